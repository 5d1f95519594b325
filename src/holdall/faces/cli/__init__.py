"""The command line: `holdall`."""

from .app import run

__all__ = ["run"]
