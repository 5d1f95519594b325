"""The history of the Redis engine: the ops on old values, as programs that run scripts.

While history is on, a script that replaces a record keeps it, in the same step (`write.lua`):

    :h:ID   the kept records of an entry by version, each packed: head, value, search fields, when it was written,
            author, and the version, kind, time and author of the change that replaced it
    :hc     the version of that change with the ID, by that version: the order in which they are purged
    :hp     IDs of entries with kept records, in lexicographic order

The fields of a shard's state are `h`, the setting (duration, time of the beginning, last version before it), and
`hp`, the last version that ended a purged record. A kept file record counts as a user of its body.
"""

from __future__ import annotations

from collections.abc import Callable

from ... import ops
from ...engine import HistorySetting, end_of, no_history, system_clock, to_old_entry
from ...errors import InvalidInput, Unavailable
from ...model import keys
from ...ops import Namespace, OldHead, OldVersion, Page
from ..redis.connections import ConnectionProgram
from ..redis.encoding import KINDS, folder_bounds, list_ranges, make_id, ranges_after, split_id, to_row
from ..redis.shards import Shards

_STEP = 200  # records that one script removes
_PAGE = 500  # entries that one script checks


class RedisHistory:
    """The ops on old values."""

    def __init__(
        self, shards: Shards, clock: Callable[[], int] | None, parse_position: Callable[[str], dict[int, str]]
    ) -> None:
        self._shards = shards
        self._clock = clock or system_clock
        self._parse_position = parse_position

    def set(self, op: ops.SetHistory) -> ConnectionProgram[ops.HistoryReach | None]:
        """Run `SetHistory`."""
        shards, keep = self._shards, None if op.keep is None else round(op.keep * 1_000_000)
        reach: ops.HistoryReach | None = None
        for shard in shards.all:
            key, deadline = shards.prefixes[shard], shards.make_deadline()
            field = yield from shards.execute(shard, ("HGET", key, "h"), deadline)
            present = int(field.split(b" ")[0]) if field else 0
            if keep not in (None, present) or (op.since is not None and present):
                if not present:  # what is left of an earlier history
                    while (yield from shards.run_once(shard, "purge_history", [_STEP, ""])) == _STEP:
                        pass
                wanted = present if keep is None else keep
                yield from shards.run(shard, "set_history", wanted or "", "" if op.since is None else op.since)
                field = yield from shards.execute(shard, ("HGET", key, "h"), deadline)
            if field:
                seconds, since, _ = map(int, field.split(b" "))
                reach = ops.HistoryReach(seconds / 1_000_000, max(since, reach.since if reach else 0))
        return reach

    def purge(self, op: ops.PurgeHistory) -> ConnectionProgram[bool]:
        """Remove old values that were kept long enough, or all if history is off. Return whether more is left."""
        shards, left = self._shards, op.limit
        for shard in shards.all:
            field = yield from shards.execute(shard, ("HGET", shards.prefixes[shard], "h"), shards.make_deadline())
            newest = self._clock() - int(field.split(b" ")[0]) if field else ""
            while left:
                size = min(left, _STEP)
                count = yield from shards.run_once(shard, "purge_history", [size, newest])
                left -= count
                if count < size:
                    break
        return not left

    # Reading ---------------------------------------------------------------------------------------------------------

    def get(self, op: ops.GetVersion) -> ConnectionProgram[ops.OldEntry | None]:
        args = make_id(op.namespace, op.key), op.version, int(op.content), 0, ""
        _, *found = yield from self._shards.run(self._shards.of_namespace(op.namespace), "old_version", *args)
        if not found:
            return None
        head, value, paths, content = found
        ttl = head.split(b" ")[4]
        row = to_row(keys.encode(op.namespace), op.key, head, value, content)
        return to_old_entry(row, paths.decode() or None, None if ttl == b"-" else int(ttl))

    def read(self, op: ops.ReadRange) -> ConnectionProgram[bytes | None]:
        args = make_id(op.namespace, op.key), op.version, 1, op.start, "" if op.end is None else op.end
        _, *found = yield from self._shards.run(self._shards.of_namespace(op.namespace), "old_version", *args)
        return found[3] if found else None

    def list_versions(self, op: ops.ListVersions) -> ConnectionProgram[list[list[OldVersion]]]:
        listed: list[list[OldVersion]] = []
        for namespace, key in op.addresses:
            listed += [(yield from self._list_versions(op, namespace, key))]
        return listed

    def _list_versions(
        self, op: ops.ListVersions, namespace: Namespace, key: str
    ) -> ConnectionProgram[list[OldVersion]]:
        shard, entry_id = self._shards.of_namespace(namespace), make_id(namespace, key)
        limit = op.limit + 1 if op.before is None else 1 << 30
        _, head, acting, changed, olds = yield from self._shards.run(shard, "old_versions", entry_id, limit)
        found: list[OldVersion] = []
        if head is not None and _field(head, 5) == b"p":
            found.append(_put(head, changed or _field(head, 2), acting))
        for old_head, written, old_acting, ended, kind, time, end_acting in olds:
            found.append(_put(old_head, written, old_acting))
            if kind != b"p":
                expires = _field(old_head, 3)
                name = KINDS[kind]
                end = end_of(name, None if expires == b"-" else int(expires), int(time))
                found.append(OldVersion(int(ended), name, end, acting=_text(end_acting)))
        found.sort(key=lambda one: -one.version)
        return [one for one in found if op.before is None or one.version < op.before][: op.limit]

    def list_past(self, op: ops.ListPast) -> ConnectionProgram[Page[OldHead]]:
        positions: dict[int, str] = self._parse_position(op.at) if isinstance(op.at, str) else {}
        heads: list[tuple[bytes, bytes]] = []
        for shard in self._shards.below(op.prefix):
            moment = op.at if isinstance(op.at, int) else _number(positions.get(shard, "0"), op.at)
            found = yield from self._read_shard(shard, op, moment)
            heads += found
        heads.sort()
        page: Page[OldHead] = Page()
        for entry_id, head in heads[: op.limit]:
            ns, key = split_id(entry_id)
            version, created, updated, expires, _, _, size, *_ = head.split(b" ")
            times = int(created), int(updated), None if expires == b"-" else int(expires)
            page.append(OldHead(keys.decode(ns), key, int(version), *times, None if size == b"-" else int(size)))
        if len(heads) > op.limit:
            page.next = page[-1].key
        return page

    def _read_shard(self, shard: int, op: ops.ListPast, moment: int) -> ConnectionProgram[list[tuple[bytes, bytes]]]:
        """Return the first heads of one shard, one more than a page has."""
        last_id = None if op.after is None else make_id(*op.after)
        heads: list[tuple[bytes, bytes]] = []
        for begin, high in ranges_after(_ranges(op), last_id):
            low = begin
            while low and len(heads) <= op.limit:
                kind = "t" if isinstance(op.at, int) else "p"
                size = 2 if op.key is not None else min(op.limit + 1, _PAGE)
                reply = yield from self._shards.run(shard, "past", low, high, size, kind, moment)
                _, found, following, setting, purged = reply
                self._check(op.at, moment, setting, int(purged))
                heads += [(entry_id, head) for entry_id, head in found if op.folder is None or _field(head, 6) != b"-"]
                low = following.decode()
        return heads

    def _check(self, at: str | int, moment: int, field: bytes | None, purged: int) -> None:
        """Raise `HistoryGone` if the records of a moment are not kept."""
        if field is None:
            raise no_history()
        keep, since, position = map(int, field.split(b" "))
        setting = HistorySetting(keep, since, position, purged)
        if isinstance(at, int):
            setting.check_time(at, self._clock())
        else:
            setting.check_position(moment, at)

    # Erasing ---------------------------------------------------------------------------------------------------------

    def forget(self, op: ops.Forget) -> ConnectionProgram[ops.Forgotten]:
        """Remove the tombstones and old values of a namespace or a key."""
        shard = self._shards.of_namespace(op.namespace)
        if op.key is not None:
            low = make_id(op.namespace, op.key)
            high = f"{low}\x00"
        else:
            [(begin, end)] = list_ranges(op.namespace, op.recursive)
            low, high = begin[1:], end[1:]
        tombstones = versions = skip = 0
        while True:
            args = [_STEP, low, high, max(skip, 0)]
            records, removed, skip = yield from self._shards.run_once(shard, "forget", args)
            tombstones, versions = tombstones + removed, versions + records
            if skip < 0 and records < _STEP:
                return ops.Forgotten(tombstones, versions)

    def scrub(self) -> ConnectionProgram[ops.Scrubbed]:
        """Ask the server to write its append-only file again. The engine has removed the text index."""
        shards = self._shards
        cleared = ["the text index, which the next search by text builds again"]
        beyond = [
            "snapshots (RDB files) and append-only files that the server has written before",
            "replicas and backups",
            "answers that the server keeps for clients until they are silent for a day",
        ]
        try:
            nodes = {shards.connections.address_of(shards.slots[shard]): shard for shard in shards.all}
            for shard in nodes.values():
                yield from shards.execute(shard, ("BGREWRITEAOF",), shards.make_deadline())
            cleared.append("the append-only file: a rewrite was requested, and is done in the background")
        except (Unavailable, InvalidInput) as error:
            beyond.insert(0, f"the append-only file, whose rewrite was refused: {error}")
        return ops.Scrubbed(tuple(cleared), tuple(beyond))


def _ranges(op: ops.ListPast) -> list[tuple[str, str]]:
    """Return the ranges of IDs that a walk over the past lists."""
    if op.key is not None:
        entry_id = make_id(op.prefix, op.key)
        return [(f"[{entry_id}", f"[{entry_id}")]
    if op.folder is not None:
        low, high = folder_bounds(op.prefix, op.folder)
        return [(f"[{low}", f"({high}")]
    return list_ranges(op.prefix, op.recursive)


def _number(position: str, cursor: str) -> int:
    number = position.partition("-")[0]
    if not (number.isascii() and number.isdigit()):
        raise InvalidInput(f"not a cursor of this store: {cursor!r:.60}")
    return int(number)


def _put(head: bytes, written: bytes, acting: bytes | None) -> OldVersion:
    version, _, _, expires, _, _, size, *_ = head.split(b" ")
    lasts = None if expires == b"-" else int(expires)
    return OldVersion(int(version), "put", int(written), lasts, None if size == b"-" else int(size), _text(acting))


def _field(head: bytes, number: int) -> bytes:
    return head.split(b" ")[number]


def _text(acting: bytes | None) -> str | None:
    return acting.decode() if acting else None
