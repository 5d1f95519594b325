"""All errors that holdall raises, as one tree.

    HoldallError
    ├── InvalidInput (ValueError)           an argument that cannot be used: a key, path, filter, cursor, option, URL
    │   ├── InvalidValue                    a value contains something that JSON cannot hold
    │   ├── SymbolicLink                    a link is on the way to a file of a `disk:` store, and is not followed
    │   └── CursorExpired                   a cursor is older than the deletions that the feed still has
    ├── Conflict                            `expect=` did not hold; nothing was written
    │   ├── LeaseHeld                       another holder has the lease
    │   └── LeaseLost                       the lease expired or was released; writes with it are refused
    ├── NotFound (LookupError)              there is no such entry
    │   └── FileNotFound (FileNotFoundError)  there is no such file or folder
    ├── HistoryGone                         the old values that were asked for are not kept (any more)
    ├── IsADirectory (IsADirectoryError)    a folder is where a file should be
    ├── NotADirectory (NotADirectoryError)  a file is where a folder should be
    ├── AlreadyExists (FileExistsError)     another file or item is there and would be lost
    ├── NotText                             a file's bytes are not UTF-8
    ├── NoMatch                             the text that an edit replaces is not in the file
    ├── AmbiguousMatch                      the text that an edit replaces is there more than once
    ├── Unavailable                         the storage cannot be reached or written now; nothing was written
    │   ├── Timeout (TimeoutError)          the storage was busy for as long as `timeout` allows
    │   └── OutcomeUnknown                  the write may have happened: read before you write again
    ├── AccessDenied (PermissionError)      a server refuses the token, or the token does not allow this
    ├── QuotaExceeded                       a token has sent too many requests; nothing was written
    ├── EmbeddingError                      the embedder failed, or did not return vectors
    ├── Corrupt                             what is stored is not what holdall wrote
    ├── SchemaTooNew                        a newer holdall wrote this store
    ├── MissingExtra (ImportError)          an optional package is not installed; names the extra
    ├── Unsupported                         this engine does not support the operation
    └── StoreClosed                         the store was closed

The engine translates a driver's error once and keeps it as `__cause__`.
"""

from __future__ import annotations

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "AmbiguousMatch",
    "Conflict",
    "Corrupt",
    "CursorExpired",
    "EmbeddingError",
    "FileNotFound",
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
    "OutcomeUnknown",
    "QuotaExceeded",
    "SchemaTooNew",
    "StoreClosed",
    "SymbolicLink",
    "Timeout",
    "Unavailable",
    "Unsupported",
]


class HoldallError(Exception):
    """The base of every error that holdall raises on purpose."""


class InvalidInput(HoldallError, ValueError):
    """An argument cannot be used. The message says why, and what to pass instead."""


class InvalidValue(InvalidInput):
    """A value contains something that JSON cannot hold. `path` leads to it."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class SymbolicLink(InvalidInput):
    """A symbolic link is on the way to a file of a `disk:` store. It might lead outside, so it is not followed."""


class CursorExpired(InvalidInput):
    """A cursor is older than the deletions that the feed still has (`feed_retention=`), or ahead of the store."""


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
    """Another holder has the lease. `actual` is its token, if known."""

    def __str__(self) -> str:
        return f"the lease {self.key!r} is held by another holder; pass wait= to wait for it, or try again later"


class LeaseLost(Conflict):
    """The lease is no longer held, so a write with it is refused. `expected` is the token that it had."""

    def __str__(self) -> str:
        return (
            f"the lease {self.key!r} (token {self.expected}) was lost: it expired or was released, and another holder"
            " may have it now. Writes with it are refused: make another one with store.lease(), and start from what is"
            " stored"
        )


class NotFound(HoldallError, LookupError):
    """There is no such entry. `FileNotFound` if it is a file or folder."""


class FileNotFound(NotFound, FileNotFoundError):
    """There is no such file or folder."""


class HistoryGone(HoldallError):
    """The old values that were asked for are not kept: they are older than `history=`, or from before it was on."""


class IsADirectory(HoldallError, IsADirectoryError):
    """A folder is where a file should be."""


class NotADirectory(HoldallError, NotADirectoryError):
    """A file is where a folder should be."""


class AlreadyExists(HoldallError, FileExistsError):
    """Another file or item is there, and would be lost."""


class NotText(HoldallError):
    """A file's bytes are not UTF-8 text."""


class NoMatch(HoldallError):
    """The text to replace is not in the file; `count` is 0."""

    count = 0


class AmbiguousMatch(HoldallError):
    """The text to replace is in the file `count` times, and `replace_all` was not set."""

    def __init__(self, message: str, count: int) -> None:
        super().__init__(message, count)
        self.count = count

    def __str__(self) -> str:
        return str(self.args[0])


class Unavailable(HoldallError):
    """The storage cannot be reached, or refuses to write (a full disk, a missing folder).

    Nothing of the batch was written, unless this is an `OutcomeUnknown`.
    """


class Timeout(Unavailable, TimeoutError):
    """The storage was busy for as long as the `timeout` option allows. Nothing of the batch was written."""


class OutcomeUnknown(Unavailable):
    """A write may have happened or not, and there is no way to know: read before you write again."""


class AccessDenied(HoldallError, PermissionError):
    """A server refuses the token, or the token does not allow this operation. Nothing was written."""


class QuotaExceeded(HoldallError):
    """A token has used up a quota: of requests a second, or of what its scope may hold. Nothing was written."""


class EmbeddingError(HoldallError):
    """The embedder (`embed=`) raised an error, which is `__cause__`, or did not return usable vectors."""

    # True if the embedder would fail for every text, for example because it is unreachable.
    _fails_for_all_texts = False


class Corrupt(HoldallError):
    """A file or row is not one that holdall wrote."""


class SchemaTooNew(HoldallError):
    """The store was written by a newer holdall than this one."""


class MissingExtra(HoldallError, ImportError):
    """An optional dependency is missing; the message names the extra to install."""


class Unsupported(HoldallError):
    """The engine of this store does not support the operation."""


class StoreClosed(HoldallError):
    """The store was closed; open a new one."""


def shown(value: object, most: int = 100) -> str:
    """Return a short text of any value for an error message. Never raises."""
    try:
        text = repr(value)
    except Exception:  # an int of 5,000 digits, or a user's __repr__ that fails
        text = f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= most else f"{text[:most]}…"
