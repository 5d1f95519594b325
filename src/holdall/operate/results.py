"""What the functions of this folder return. `import holdall` loads this module, and not the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ..ops import Fault, Namespace


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry that is not the same in two stores: its address relative to both, and what differs.

    `what` is "only in the first", "only in the second", or names of fields, such as "value" and "expires_at".
    """

    namespace: Namespace
    key: str
    what: tuple[str, ...]


@dataclass(slots=True)
class Comparison:
    """The result of a comparison. `entries` were compared; `differences` are the first ones that were found."""

    entries: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


@dataclass(slots=True)
class Copied:
    """The result of a copy, of this call and of those that it continued.

    `differences` is what `verify=True` found; empty if the copy is equal. `vectors_left_out` is how many entries have
    vectors of a model that the destination does not have.
    """

    entries: int = 0
    deletions: int = 0
    vectors: int = 0
    vectors_left_out: int = 0
    versions: int = 0  # old ones, of stores that keep history
    resumed: bool = False
    verified: int = 0
    differences: list[Difference] = field(default_factory=list)


@dataclass(slots=True)
class BackupInfo:
    """What a backup has. An entry that changed while the backup ran counts each time that it was written."""

    entries: int = 0
    deletions: int = 0
    files: int = 0
    vectors: int = 0
    versions: int = 0  # old ones, of a store that keeps history
    bytes: int = 0
    prefix: Namespace = ()
    created_at: datetime | None = None
    holdall: str = ""  # the version that made it


@dataclass(slots=True)
class Loaded:
    """The result of loading a backup; `resumed` is whether an interrupted call was continued."""

    entries: int = 0
    deletions: int = 0
    vectors: int = 0
    vectors_left_out: int = 0
    versions: int = 0  # old ones, of stores that keep history
    resumed: bool = False


@dataclass(slots=True)
class Checked:
    """The result of a check: how many entries were read, the faults that are left, and those that were repaired."""

    entries: int = 0
    faults: list[Fault] = field(default_factory=list)
    repaired: list[Fault] = field(default_factory=list)
