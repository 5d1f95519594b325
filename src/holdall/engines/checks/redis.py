"""Finds and repairs faults of a Redis store: keys that the server has lost, and contents that belong to no file.

A server loses keys if it evicts them, or restarts without its last writes. A script compares the records of a page of
entries with the indexes (`faults.lua`). What the indexes lack is added from the records.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ...model import keys
from ...ops import Fault
from ..redis.connections import ConnectionProgram
from ..redis.encoding import split_id
from ..redis.shards import Shards

#: The IDs of damaged entries, by kind.
_Damaged: TypeAlias = dict[str, list[bytes]]

_PAGE, _OLD_PAGE = 200, 20  # entries that one script checks: their records, or their old records
_SCANNED = 1000  # keys
_SHOWN = 5  # entries that a message names
_MOST_TRIES = 5
_KINDS = {
    "entry": ("entries are listed, but have no record", False),
    "index": ("entries are missing in an index", True),
    "vectors": ("entries lack the vectors that they should have", True),
    "contents": ("files have not all their bytes", False),
}


class RedisChecks:
    """The checks of one store."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def find(self) -> ConnectionProgram[list[Fault]]:
        """Return all faults."""
        found: dict[str, list[bytes]] = {}
        orphans = 0
        for shard in self._shards.all:
            yield from self._shards.reclaim(shard)
            damaged, *_ = yield from self._walk(shard)
            for kind, ids in damaged.items():
                found.setdefault(kind, []).extend(ids)
            orphans += len((yield from self._find_orphans(shard))[0])
        faults = [_describe(kind, ids) for kind, ids in found.items()]
        if orphans:
            faults.append(Fault("contents", f"{orphans} pieces of contents belong to no file", True))
        return faults

    def repair(self) -> ConnectionProgram[int]:
        """Repair what can be; return how much that was."""
        repaired = 0
        for shard in self._shards.all:
            yield from self._shards.reclaim(shard)
            damaged, *_ = yield from self._walk(shard, repairs=True)
            repaired += sum(len(ids) for kind, ids in damaged.items() if _KINDS[kind][1])
            orphans, version = yield from self._find_orphans(shard)
            for start in range(0, len(orphans), _PAGE):
                args = version, *orphans[start : start + _PAGE]
                repaired += yield from self._shards.run_once(shard, "drop_contents", args)
        return repaired

    def _walk(self, shard: int, repairs: bool = False) -> ConnectionProgram[tuple[_Damaged, set[bytes], set[str]]]:
        """Return damaged entries by kind, the bodies that are used, and the versions of the shard meanwhile."""
        damaged: _Damaged = {}
        bodies: set[bytes] = set()
        versions: set[str] = set()
        for index, size in (("p", _PAGE), ("hp", _OLD_PAGE)):
            low: Any = "-"
            while low:
                args = index, low, size, int(repairs)
                faults, used, low, version = yield from self._shards.run_once(shard, "faults", args)
                bodies.update(used)
                versions.add(version.decode())
                for kind, entry_id in faults:
                    damaged.setdefault(kind.decode(), []).append(entry_id)
        return damaged, bodies, versions

    def _find_orphans(self, shard: int) -> ConnectionProgram[tuple[list[bytes], str]]:
        """Return the chunks of contents that belong to no file, and the version of the shard.

        It finds no chunks while others write all the time: a content can be moved while the records are read.
        """
        for _ in range(_MOST_TRIES):
            chunks = yield from self._list_chunks(shard)
            _, bodies, versions = yield from self._walk(shard)
            if len(versions) == 1:
                unused = [chunk for chunk in chunks if chunk.rpartition(b":")[0] not in bodies]
                orphans = []
                for chunk in unused:  # one that expires belongs to a content that is being sent
                    if (yield from self._execute(shard, "PTTL", self._start(shard).encode() + chunk)) == -1:
                        orphans.append(chunk)  # noqa: PERF401  # a comprehension cannot yield
                return orphans, versions.pop()
        return [], ""

    def _list_chunks(self, shard: int) -> ConnectionProgram[list[bytes]]:
        """Return the keys of all chunks of contents, without the prefix that they share."""
        start = self._start(shard)
        pattern = "".join(f"\\{one}" if one in "*?[]^-\\" else one for one in start) + "*"
        found: list[bytes] = []
        cursor: Any = "0"
        while True:
            cursor, page = yield from self._execute(shard, "SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)
            found += [key[len(start.encode()) :] for key in page]
            if cursor == b"0":
                return found

    def _start(self, shard: int) -> str:
        """Return the prefix of the keys of contents."""
        return f"{self._shards.prefixes[shard]}:b:"

    def _execute(self, shard: int, *command: Any) -> ConnectionProgram[Any]:
        return (yield from self._shards.execute(shard, command, self._shards.make_deadline()))


def _describe(kind: str, ids: list[bytes]) -> Fault:
    message, repairable = _KINDS[kind]
    names = ", ".join(_name(*split_id(each)) for each in ids[:_SHOWN])
    return Fault(kind, f"{len(ids)} {message}: {names}{', …' if len(ids) > _SHOWN else ''}", repairable)


def _name(ns: str, key: str) -> str:
    return f"{key!r} in {keys.decode(ns)!r}"
