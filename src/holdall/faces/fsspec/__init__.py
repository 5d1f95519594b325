"""fsspec: `holdall://path` for pandas, pyarrow, llama-index and whatever else reads through fsspec."""

from .filesystem import HoldallFileSystem

__all__ = ["HoldallFileSystem"]
