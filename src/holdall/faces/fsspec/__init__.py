"""fsspec: `holdall://path` for pandas, pyarrow, llama-index and other libraries that read through fsspec."""

from .filesystem import HoldallFileSystem

__all__ = ["HoldallFileSystem"]
