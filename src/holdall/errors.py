"""Every error holdall raises, as one tree.

    HoldallError
    ├── InvalidInput (ValueError)           a bad label, key, path, filter, cursor, option, URL, `expect=None`
    │   ├── InvalidValue                    something in a value that JSON cannot hold; names the path to it
    │   └── HistoryGone                     a cursor from before what the store still knows of its changes
    ├── Conflict                            `expect=` did not hold; nothing was written
    │   ├── LeaseHeld                       somebody else holds the lease
    │   └── LeaseLost                       the lease expired, or was released: it may be another's by now
    ├── NotFound (FileNotFoundError)        the entry or file is not there
    ├── IsADirectory (IsADirectoryError)    a folder is where a file should be
    ├── NotADirectory (NotADirectoryError)  a file is where a folder should be
    ├── AlreadyExists (FileExistsError)     something else is there, and would be lost
    ├── NotText                             a file's bytes are not UTF-8
    ├── NoMatch                             an edit's text is not in the file
    ├── AmbiguousMatch                      ... or is there more than once; carries the count
    ├── Unavailable                         the storage cannot be reached or written just now
    │   └── Timeout                         ... and was waited for as long as `timeout` allows
    ├── EmbeddingError                      the embedder failed, or what it returned are not vectors
    ├── Corrupt                             what is stored is not what holdall wrote
    ├── SchemaTooNew                        a newer holdall wrote this store
    ├── MissingExtra (ImportError)          an optional package is not installed; names the extra
    ├── Unsupported                         this engine does not do that
    └── StoreClosed                         the store was closed

A driver's own error is translated in the engine, once, and stays reachable as `__cause__`.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "AmbiguousMatch",
    "Conflict",
    "Corrupt",
    "EmbeddingError",
    "HistoryGone",
    "HoldallError",
    "InvalidInput",
    "InvalidValue",
    "IsADirectory",
    "LeaseHeld",
    "LeaseLost",
    "MissingExtra",
    "NoMatch",
    "NotADirectory",
    "NotFound",
    "NotText",
    "SchemaTooNew",
    "StoreClosed",
    "Timeout",
    "Unavailable",
    "Unsupported",
]


class HoldallError(Exception):
    """The base of every error that holdall raises on purpose."""


class InvalidInput(HoldallError, ValueError):
    """What was passed in cannot be used; the message says why and what to pass instead."""


class InvalidValue(InvalidInput):
    """A value holds something that JSON cannot; `path` leads to it."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class HistoryGone(InvalidInput):
    """A cursor cannot be gone on from: what was deleted after it is no longer known, or it is ahead of the store."""


class Conflict(HoldallError):
    """An entry was not in the state that `expect=` named, so nothing was written.

    `op` is the name of the op, `expected` and `actual` are versions; None stands for an absent entry.
    """

    def __init__(self, op: str, namespace: tuple[str, ...], key: str, expected: int | None, actual: int | None) -> None:
        super().__init__(op, namespace, key, expected, actual)
        self.op = op
        self.namespace = namespace
        self.key = key
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        wanted = "to be absent" if self.expected is None else f"at version {self.expected}"
        found = "it is absent" if self.actual is None else f"it is at version {self.actual}"
        return f"{self.op} of {self.key!r} in {self.namespace!r} expected it {wanted}, but {found}; read it and retry"


class LeaseHeld(Conflict):
    """Somebody else holds the lease; `actual` is their token, where it is known."""

    def __str__(self) -> str:
        return f"the lease {self.key!r} is held by somebody else; pass wait= to wait for it, or try again later"


class LeaseLost(Conflict):
    """The lease is not held any more, so nothing was written; `expected` is the token that it had."""

    def __str__(self) -> str:
        return (
            f"the lease {self.key!r} (token {self.expected}) was lost: it expired or was released, and may be somebody"
            " else's by now, so nothing was written; acquire it anew, and begin again from what is stored"
        )


class NotFound(HoldallError, FileNotFoundError):
    """There is no such entry or file."""


class IsADirectory(HoldallError, IsADirectoryError):
    """There is a folder where a file was asked for."""


class NotADirectory(HoldallError, NotADirectoryError):
    """There is a file where a folder was asked for."""


class AlreadyExists(HoldallError, FileExistsError):
    """Something is there already, and would be lost."""


class NotText(HoldallError):
    """A file's bytes are not UTF-8 text."""


class NoMatch(HoldallError):
    """The text to replace is not in the file; `count` is 0."""

    count = 0


class AmbiguousMatch(HoldallError):
    """The text to replace is in the file `count` times, and not all of them were meant."""

    def __init__(self, message: str, count: int) -> None:
        super().__init__(message, count)
        self.count = count

    def __str__(self) -> str:
        return str(self.args[0])


class Unavailable(HoldallError):
    """The storage cannot be reached, or refuses to write (a full disk, a missing folder)."""


class Timeout(Unavailable):
    """The storage stayed busy for as long as the `timeout` option allows."""


class EmbeddingError(HoldallError):
    """The embedder that was given as `embed=` failed (`__cause__` says how), or returned no usable vectors."""

    _is_the_model = False  # known to fail whatever it is given, and not for what it was given here


class Corrupt(HoldallError):
    """The file or row found is not one that holdall wrote."""


class SchemaTooNew(HoldallError):
    """The store was written by a newer holdall than this one."""


class MissingExtra(HoldallError, ImportError):
    """An optional dependency is missing; the message names the extra to install."""


class Unsupported(HoldallError):
    """The engine behind this store cannot do what was asked."""


class StoreClosed(HoldallError):
    """The store was closed; open a new one."""


def shown(value: object, most: int = 100) -> str:
    """What a message shows of something that was passed in, whatever it is: short, and never an error of its own."""
    try:
        text = repr(value)
    except Exception:  # an int of 5,000 digits, or a __repr__ of the user's that fails
        text = f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= most else f"{text[:most]}…"
