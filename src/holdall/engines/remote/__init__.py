"""The remote engine: a store that a server serves (`holdall URL serve`), over HTTP."""

from .engine import RemoteEngine, RemoteOptions

__all__ = ["RemoteEngine", "RemoteOptions"]
