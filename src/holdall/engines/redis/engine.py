"""The Redis engine: entries in a Redis or Valkey server, or in a cluster. It needs no module, only core commands.

A *shard* is a part of a store whose keys are in one slot. A server has one shard, a cluster 32 (see `shards`). Lua
scripts make each batch atomic within its shard. All keys of a shard begin with `holdall:{shard}`. An ID is that of an
entry: encoded namespace, NUL byte, key (see `encoding`).

Entries

    (no suffix)       hash, the state of the shard: v last version, f last purged version, g number of deleted trees,
                      h setting of the history, hp last version that ended a purged old record,
                      w last number of `:w`, x stamp of the indexed fields, o set once `:o` is kept, l layout (first
                      shard only), r mark of the server's run (single server only)
    :e:ID             hash, an entry or a tombstone: h head, d text of the value, x search fields, i indexed fields,
                      a author and reason, c when it was written, if `updated` was backdated
    :p                IDs of all entries, in lexicographic order
    :f                IDs of all files, in lexicographic order
    :s                namespaces that have entries, in lexicographic order
    :n:NAMESPACE      keys of a namespace's entries, by version
    :c                the feed: IDs of entries and tombstones, by version
    :t                IDs of tombstones, by version
    :x                IDs of entries that expire, by time
    :b:BODY:N         chunk N of a file's content, 1 MiB each
    :r                hash, for each body that several files share: how many more there are than one
    :g                list of deleted trees whose entries are not all tombstones yet
    :h:ID, :hc, :hp   old records (see `engines/history/redis`)
    :l                ranges of versions that may have been lost in a restart: the last version before each, by its end

Indexes

    :y                hash, the indexed fields: path to number
    :z                set, numbers of the indexed fields whose index is complete
    :k, :u            hashes, of the first shard, the learned fields: path to time of learning, and to number of uses
    :k:lock           the client that builds the indexes of learned fields; it expires
    :i:NUMBER         an indexed field: values with IDs, in lexicographic order (see `filter_index`)
    :o:NAMESPACE      times of creation with keys, in lexicographic order: the order of a namespace's entries, for
                      neighbours. It is complete if it has as many members as `:n`
    :q, :q:...        the text index (see `search/text_index`)
    :v:ID             hash, an entry's vectors: v version, n number of vectors, d data
    :w:MODEL          IDs of entries with vectors of a model, numbered in the order of writing

Clients

    :d:CLIENT         hash, a client's last answers by slot: a write whose reply was lost is sent again, and takes
                      effect once
    :d:CLIENT:SLOT    an answer that is too large for the hash
    :m                clients that have answers, by the time of their last heartbeat
    :feed             a channel: a message for every write
    :none             never exists

Scripts check everything before they write anything, and never parse values. A script handles a limited number of
entries, with few exceptions: a batch that moves, copies or deletes a large tree, and reads of large contents.
A large tree is deleted by a record of its range and version. From then on, its entries up to that version are not live,
and later scripts replace a few at a time with their tombstones.
"""

from __future__ import annotations

import itertools
import logging
import math
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ... import ops
from ...engine import Capabilities, Options, PoolState
from ...errors import InvalidInput, OutcomeUnknown, SchemaTooNew, StoreClosed, Unavailable, shown
from ...model.keys import RESERVED
from ...model.keys import decode as decode_namespace
from ...model.values import to_datetime
from ...ops import READS, WALKS, Op
from ...runtime.programs import adrive, drive
from ..checks.redis import RedisChecks
from ..history.redis import RedisHistory
from ..learned.limits import find_room
from ..net.pool import check_options
from .connections import Address, ConnectionProgram, Connections, parse_settings
from .encoding import (
    CHUNK_SIZE,
    MAX_INLINE_BYTES,
    decode_refusal,
    decode_result,
    encode_op,
    encode_put,
    encode_read,
    make_id,
    parse_size,
    parse_version,
)
from .filter_index import encode_fields
from .listener import SubscribedListener
from .shards import Shards
from .walks import RedisWalks

logger = logging.getLogger("holdall")

_LAYOUT = 1
#: A tree with more entries than this is deleted by a record of its range.
MAX_SINGLE_DELETES = 500
_SLICE = 200  # entries in one step of maintenance
_LOCK_TTL = 10_000  # milliseconds: a client that has not indexed for so long has stopped
_HEARTBEAT_INTERVAL = 3600.0  # seconds between two heartbeats of a client
_SENT_BODY_TTL = 3600  # seconds after which a body that was sent and never used expires


#: The indexed fields of a shard: their stamp, and the number and path of each.
_Fields: TypeAlias = tuple[bytes, Sequence[tuple[str, str]]]
_NO_FIELDS: _Fields = (b"", ())


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """The options of `holdall.open` that only Redis has."""

    key_prefix: str = "holdall"
    allow_eviction: bool = False
    pool_min: int = 1
    pool_max: int = 10
    pool_timeout: float = 30.0

    def __post_init__(self) -> None:
        prefix = self.key_prefix
        if not isinstance(prefix, str) or not prefix or any(sign in prefix for sign in "{}\x00"):
            raise InvalidInput(
                f"key_prefix must be a text without braces and NUL, with which all keys begin, not {shown(prefix)}"
            )
        if type(self.allow_eviction) is not bool:
            raise InvalidInput(f"allow_eviction must be True or False, not {shown(self.allow_eviction)}")
        seconds = check_options(self.pool_min, self.pool_max, self.pool_timeout)
        object.__setattr__(self, "pool_timeout", seconds)  # it may be given as a timedelta


class RedisEngine:
    """Entries in a Redis server, or in a Redis Cluster."""

    def __init__(self, url: str, options: Options, own: RedisOptions) -> None:
        scheme, _, rest = url.partition(":")
        is_cluster = scheme.endswith("+cluster")
        self._settings = parse_settings(f"{scheme.removesuffix('+cluster')}:{rest}")
        if is_cluster and self._settings.pop("db", 0):
            raise InvalidInput("a Redis Cluster has only database 0: remove the number from the URL")
        self.capabilities = Capabilities(
            durable=True,
            multiprocess=True,
            ranks=True,
            learns=True,
            keeps_history=True,
            spans_roots=not is_cluster,
            moves_in_slices=True,
        )
        self._options = options
        self._own = own
        self._answer_ttl = math.ceil(options.timeout) + 60  # seconds; see client_write.lua
        self._shards = Shards(own.key_prefix, is_cluster, options)
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        """Set the state of an engine without connections: a new one, or one in a forked child."""
        own, shards = self._own, self._shards
        pool = own.pool_min, own.pool_max, own.pool_timeout
        shards.connections = Connections(dict(self._settings), shards.is_cluster, *pool, shards.prepare)
        # The walks have locks, which a thread of the parent may hold for ever.
        self._walks = RedisWalks(shards, lambda shard: self._ready.get(shard, _NO_FIELDS), self._declare)
        self._history = RedisHistory(shards, self._options.clock, self._walks.parse_position)
        self._client = secrets.token_hex(8)
        # The answers of this client are kept in numbered slots. Each has one write at a time.
        self._free_slots: deque[list[int]] = deque()  # pairs of a slot and the number of its last write
        self._slot_numbers = itertools.count()
        self._heartbeat_due: dict[int, float] = {}  # by shard: when the next heartbeat is due
        self._is_set_up = False
        self._to_reclaim: set[int] = set()  # shards in which this client has deleted a large tree
        self._declared: dict[int, _Fields] = {}  # indexed fields, by shard
        self._ready: dict[int, _Fields] = {}  # those of them whose index is complete
        self._learning: dict[int, tuple[bytes, str]] = {}  # by shard: the stamp and the next ID of an unfinished index

    # The engine's methods --------------------------------------------------------------------------------------------

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        return drive(self._execute(batch), self._shards.connections.perform)

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        return await adrive(self._execute(batch), self._shards.connections.aperform)

    def setup(self) -> None:
        drive(self._set_up(), self._shards.connections.perform)

    async def asetup(self) -> None:
        await adrive(self._set_up(), self._shards.connections.aperform)

    def close(self) -> None:
        self._closed = True
        self._shards.connections.close()

    def describe_pool(self) -> PoolState:
        return self._shards.connections.describe_pools()

    def before_fork(self) -> None:
        """Do nothing: a child never uses the parent's sockets."""

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            _abandoned.append(self._shards.connections)
            self._reset()

    def listen(self, notify: Callable[[], None]) -> SubscribedListener:
        return SubscribedListener(self._shards.connections.connect, self._list_subscriptions, notify)

    def _list_subscriptions(self) -> dict[Address, list[list[str]]]:
        """Return the commands that subscribe to the channels of all shards, by the node of each shard."""
        shards = self._shards
        if not shards.is_cluster:
            return {shards.connections.address_of(0): [["SUBSCRIBE", f"{shards.prefixes[0]}:feed"]]}
        drive(shards.discover_slots(shards.make_deadline()), shards.connections.perform)
        commands: dict[Address, list[list[str]]] = {}
        for shard in shards.all:
            address = shards.connections.address_of(shards.slots[shard])
            commands.setdefault(address, []).append(["SSUBSCRIBE", f"{shards.prefixes[shard]}:feed"])
        return commands

    # Batches, as programs --------------------------------------------------------------------------------------------

    def _execute(self, batch: Sequence[Op]) -> ConnectionProgram[list[Any]]:
        if self._closed or not self._is_set_up:
            yield from self._set_up()
        first = batch[0]
        kind = type(first)
        if len(batch) == 1:  # the most frequent ops come first
            if isinstance(first, ops.Get):
                shard = self._shards.of_namespace(first.namespace)
                found = yield from self._shards.get(shard, make_id(first.namespace, first.key))
                return [decode_result(first, found)]
            if isinstance(first, ops.Put) and _is_simple(first):
                return [(yield from self._put(first))]
            if isinstance(first, ops.ReadRange) and first.version is None:
                shard = self._shards.of_namespace(first.namespace)
                return [(yield from self._shards.read(shard, *encode_read(first)))]
        if isinstance(first, ops.ReadStats):
            return [(yield from self._read_stats(first))]
        if isinstance(first, ops.ListVersions):
            return [(yield from self._history.list_versions(first))]
        if isinstance(first, ops.ListPast):
            return [(yield from self._history.list_past(first))]
        if kind in WALKS:
            return [(yield from self._walks.walk(first))]
        if all(map(_reads_version, batch)):
            versions: list[Any] = []
            for op in batch:
                versions += [(yield from self._read_version(op))]
            return versions
        if kind in _MAINTENANCE and len(batch) == 1:
            return [(yield from _MAINTENANCE[kind](self, first))]
        if self._shards.is_cluster and len(batch) > 1:
            if kind is ops.Embed and all(type(op) is ops.Embed for op in batch):
                return (yield from self._run_by_shard(batch))
            if any(map(_is_store_check, batch)):
                return (yield from self._run_after_checks(batch))
        return (yield from self._run_batch(batch))

    def _read_version(self, op: Any) -> ConnectionProgram[Any]:
        """Read a version of an entry, or a part of a version of a file."""
        if isinstance(op, ops.GetVersion):
            return (yield from self._history.get(op))
        return (yield from self._history.read(op))

    def _run_by_shard(self, batch: Sequence[Any]) -> ConnectionProgram[list[Any]]:
        """Run ops that need not be one transaction, as one batch for each shard."""
        results: list[Any] = [None] * len(batch)
        by_shard: dict[int, list[int]] = {}
        for number, op in enumerate(batch):
            by_shard.setdefault(self._shards.of_namespace(op.namespace), []).append(number)
        for shard, numbers in by_shard.items():
            found = yield from self._run_batch([batch[number] for number in numbers], shard)
            for number, reply in zip(numbers, found, strict=True):
                results[number] = reply
        return results

    def _run_after_checks(self, batch: Sequence[Op]) -> ConnectionProgram[list[Any]]:
        """Run a batch on a cluster whose checks of store-wide entries are in another shard: they are run first."""
        results: list[Any] = [None] * len(batch)
        yield from self._run_batch([op for op in batch if _is_store_check(op)])
        numbers = [number for number, op in enumerate(batch) if not _is_store_check(op)]
        if numbers:
            found = yield from self._run_batch([batch[number] for number in numbers])
            for number, result in zip(numbers, found, strict=True):
                results[number] = result
        return results

    def _put(self, op: ops.Put) -> ConnectionProgram[Any]:
        """Put one item with `put_plain.lua` and `put.lua`, or with `batch.lua` where that is needed."""
        shard = self._shards.of_namespace(op.namespace)
        stamp, declared = self._declared.get(shard, _NO_FIELDS)
        tokens = (encode_fields(declared, str(op.value)),) if stamp else ()
        slot = self._take_slot()
        is_heartbeat_due = self._is_heartbeat_due(shard)
        alive = "1" if is_heartbeat_due else ""
        args = (self._client, *map(str, slot), stamp, alive, "", "", *encode_put(op, op.value), *tokens)
        try:
            status, *details = yield from self._shards.run_write(shard, "put", args)
        finally:
            self._free_slots.append(slot)
        if status == b"ok":
            if is_heartbeat_due:
                self._heartbeat_due[shard] = time.monotonic() + _HEARTBEAT_INTERVAL
            entry = decode_result(op, details[0][0])
            self._shards.newest_version = max(self._shards.newest_version, entry.version)
            return entry
        if status == b"refused":
            raise decode_refusal(op, details[1:])
        if status in (b"batch", b"declare"):
            return (yield from self._run_batch([op]))[0]
        raise _answer_lost()

    def _take_slot(self) -> list[int]:
        """Take a free slot for the answer of a write: its number, and the number of the write in it."""
        try:
            slot = self._free_slots.pop()
        except IndexError:  # no check before: another thread may take the last one in between
            slot = [next(self._slot_numbers), 0]
        slot[1] += 1
        return slot

    def _is_heartbeat_due(self, shard: int) -> bool:
        """Whether the next write has to be a heartbeat, so that the shard keeps the answers of this client."""
        return time.monotonic() > self._heartbeat_due.get(shard, 0.0)

    def _run_batch(self, batch: Sequence[Op], shard: int | None = None) -> ConnectionProgram[list[Any]]:
        """Run point ops of one shard as a transaction."""
        if shard is None:
            shard = self._shards.of_batch(batch)
        deadline = self._shards.make_deadline()
        sent_bodies = yield from self._send_bodies(shard, batch, deadline)
        if all(type(op) in READS for op in batch):
            return (yield from self._run_batch_script(shard, batch, sent_bodies, ["", "", 0], "", deadline))
        slot = self._take_slot()
        is_heartbeat_due = self._is_heartbeat_due(shard)
        client, alive = [self._client, *slot], "1" if is_heartbeat_due else ""
        try:
            results = yield from self._run_batch_script(shard, batch, sent_bodies, client, alive, deadline)
        finally:
            self._free_slots.append(slot)
        if is_heartbeat_due:
            self._heartbeat_due[shard] = time.monotonic() + _HEARTBEAT_INTERVAL
        counts = [result for op, result in zip(batch, results, strict=True) if type(op) is ops.DeleteTree]
        if any(count > MAX_SINGLE_DELETES for count in counts):
            self._to_reclaim.add(shard)
        return results

    def _run_batch_script(
        self,
        shard: int,
        batch: Sequence[Op],
        sent_bodies: dict[int, str],
        client: list[Any],
        alive: str,
        deadline: float,
    ) -> ConnectionProgram[list[Any]]:
        """Run `batch.lua`, again if the shard has to be maintained first. `client` is its ID, slot and write number."""
        run = self._shards.run_write if client[0] else self._shards.run_once
        while True:
            stamp, declared = self._declared.get(shard, _NO_FIELDS)
            encoded = [arg for op in batch for arg in encode_op(op, partial(encode_fields, declared), sent_bodies)]
            args = [*client, stamp, alive, MAX_SINGLE_DELETES, self._answer_ttl, *encoded]
            status, *details = yield from run(shard, "batch", args, deadline)
            if status == b"ok":
                self._shards.newest_version = max(self._shards.newest_version, int(details[1]))
                return [decode_result(op, reply) for op, reply in zip(batch, details[0], strict=True)]
            if status == b"refused":
                raise decode_refusal(batch[details[0]], details[1:])
            if status == b"reclaim":
                yield from self._shards.reclaim(shard)
            elif status == b"sweep":
                yield from self._shards.sweep(shard, ops.Sweep())
            elif status == b"declare":
                yield from self._declare(shard)
            elif status == b"resend":
                if time.monotonic() > deadline:
                    raise Unavailable(
                        "the Redis server has lost a content that was sent to it; check that it does not evict keys"
                        " (maxmemory-policy)"
                    )
                sent_bodies = yield from self._send_bodies(shard, batch, deadline)
            else:
                raise _answer_lost()

    def _send_bodies(self, shard: int, batch: Sequence[Op], deadline: float) -> ConnectionProgram[dict[int, str]]:
        """Send the large contents of a batch before it, and return the names of their bodies, by the ids of ops."""
        sent_bodies = {}
        for op in batch:
            if isinstance(op, ops.Put) and isinstance(op.value, ops.File) and len(op.value.content) > MAX_INLINE_BYTES:
                sent_bodies[id(op)] = yield from self._send_body(shard, op.value.content, deadline)
        return sent_bodies

    def _send_body(self, shard: int, content: bytes, deadline: float) -> ConnectionProgram[str]:
        """Send a content in chunks, as a body that a put will use; if none does, it expires."""
        name = f"u{secrets.token_hex(12)}"
        for number in range(-(-len(content) // CHUNK_SIZE)):
            chunk = content[number * CHUNK_SIZE : (number + 1) * CHUNK_SIZE]
            key = f"{self._shards.prefixes[shard]}:b:{name}:{number}"
            yield from self._shards.execute(shard, ("SET", key, chunk, "EX", _SENT_BODY_TTL), deadline)
        return name

    # Maintenance -----------------------------------------------------------------------------------------------------

    def _sweep(self, op: ops.Sweep) -> ConnectionProgram[int]:
        swept = 0
        for shard in self._shards.below(op.prefix):
            if swept < op.limit:
                swept += yield from self._shards.sweep(shard, ops.Sweep(op.limit - swept, op.prefix))
        return swept

    def _purge(self, op: ops.PurgeTombstones) -> ConnectionProgram[bool]:
        now = self._options.clock() if self._options.clock else time.time_ns() // 1000
        newest = now - round(op.age * 1_000_000)
        left = op.limit
        for shard in self._shards.all:
            yield from self._shards.reclaim(shard)
            yield from self._walks.text_index.catch_up(shard)  # it needs tombstones to remove documents
            while True:
                size = min(left, _SLICE)
                count = yield from self._shards.run_once(shard, "purge", [size, newest])
                left -= count
                if not left:
                    return True
                if count < size:
                    break
        return False

    def _set_history(self, op: ops.SetHistory) -> ConnectionProgram[ops.HistoryReach | None]:
        return (yield from self._history.set(op))

    def _purge_history(self, op: ops.PurgeHistory) -> ConnectionProgram[bool]:
        for shard in self._shards.all:  # their entries become old values
            yield from self._shards.reclaim(shard)
        return (yield from self._history.purge(op))

    def _forget(self, op: ops.Forget) -> ConnectionProgram[ops.Forgotten]:
        shard = self._shards.of_namespace(op.namespace)
        yield from self._shards.reclaim(shard)
        yield from self._walks.text_index.catch_up(shard)  # it needs tombstones to remove documents
        return (yield from self._history.forget(op))

    def _scrub(self, _op: Op) -> ConnectionProgram[ops.Scrubbed]:
        yield from self._walks.text_index.clear()
        return (yield from self._history.scrub())

    def _repair(self, _op: Op) -> ConnectionProgram[int]:
        return (yield from RedisChecks(self._shards).repair())

    def _index_texts(self, op: ops.IndexTexts) -> ConnectionProgram[tuple[int, bool]]:
        return (yield from self._walks.text_index.index(op.limit))

    def _index_order(self, _op: Op) -> ConnectionProgram[None]:
        """Do nothing: a search orders the namespaces in which it looks for neighbours."""
        return None
        yield

    @property
    def needs_maintenance(self) -> bool:
        return bool(self._to_reclaim)

    def _maintain(self, _op: Op) -> ConnectionProgram[bool]:
        """Reclaim some entries of the trees that this client has deleted. A walk reclaims all of them first."""
        for shard in list(self._to_reclaim):
            if not (yield from self._shards.reclaim_some(shard)):
                self._to_reclaim.discard(shard)
        return self.needs_maintenance

    # Setting up ------------------------------------------------------------------------------------------------------

    def _set_up(self) -> ConnectionProgram[None]:
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        shards, deadline = self._shards, self._shards.make_deadline()
        if shards.is_cluster:
            yield from shards.discover_slots(deadline)
        if not self._own.allow_eviction:
            yield from self._check_eviction(deadline)
        yield from shards.execute(0, ("HSETNX", shards.prefixes[0], "l", _LAYOUT), deadline)
        layout = int((yield from shards.execute(0, ("HGET", shards.prefixes[0], "l"), deadline)))
        if layout > _LAYOUT:
            raise SchemaTooNew(f"this store has layout {layout}, and this holdall supports {_LAYOUT}; upgrade holdall")
        yield from self._check_channel(deadline)
        if self._options.filter_fields:
            for shard in shards.all:
                yield from self._declare(shard)
        self._is_set_up = True

    def _check_channel(self, deadline: float) -> ConnectionProgram[None]:
        """Check that the user may publish. Scripts ignore a failure to publish, and watchers would wait for ever."""
        shards = self._shards
        channel = f"{shards.prefixes[0]}:feed"
        try:
            yield from shards.execute(0, ("SPUBLISH" if shards.is_cluster else "PUBLISH", channel, ""), deadline)
        except Unavailable as error:
            if not str(error.__cause__).startswith("NOPERM"):
                raise
            raise Unavailable(
                "this Redis user may not publish to the channels that notify stores of changes; allow it"
                f" (ACL SETUSER … &{self._own.key_prefix}:*): {error}"
            ) from error

    def _check_eviction(self, deadline: float) -> ConnectionProgram[None]:
        """Refuse a server that evicts entries when it is full: counts and indexes would become wrong.

        A policy that evicts only keys with an expiry (`volatile-*`) is safe: the keys of entries have none.
        """
        shards = self._shards
        nodes = {shards.connections.address_of(shards.slots[shard]): shard for shard in shards.all}
        for shard in nodes.values():
            try:
                report = (yield from shards.execute(shard, ("INFO", "memory"), deadline)).decode()
            except Unavailable as error:
                if not str(error.__cause__).startswith("NOPERM"):
                    raise
                logger.warning(
                    "cannot check whether this Redis server evicts entries: allow its user to run INFO (+info)"
                )
                return
            found = dict(line.split(":", 1) for line in report.splitlines() if ":" in line)
            policy = found.get("maxmemory_policy", "noeviction")
            if found.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
                raise Unavailable(
                    f"this Redis server evicts entries when it is full (maxmemory-policy {policy}): set the"
                    " policy to noeviction, or open the store with allow_eviction=True and accept the loss of entries"
                )

    def _declare(self, shard: int, learned: Sequence[str] = ()) -> ConnectionProgram[None]:
        """Declare our indexed fields in a shard, read all that are declared, and complete the indexes of ours.

        `learned` are declared, too, and their indexes are completed later.
        """
        paths = self._options.filter_fields
        stamp, found = yield from self._shards.run_once(shard, "declare", [*paths, *learned])
        fields = [(number.decode(), path.decode(), is_ready) for number, path, is_ready in found]
        declared = [(number, path) for number, path, _ in fields]
        self._declared[shard] = stamp, declared
        self._ready[shard] = stamp, [(number, path) for number, path, is_ready in fields if is_ready]
        if any(path in paths and not is_ready for _, path, is_ready in fields):
            low: str | None = "-"
            while low:
                low = yield from self._index_slice(shard, low, _SLICE)
            if low is None:  # another client has declared a field meanwhile
                yield from self._declare(shard)

    def _index_slice(self, shard: int, low: str, limit: int) -> ConnectionProgram[str | None]:
        """Index the declared fields of some entries of a shard, from an ID on; return the next one, "" after the last.

        None if another client has changed the list of the fields.
        """
        stamp, declared = self._declared[shard]
        _, entries, next_low = yield from self._shards.run(shard, "scan", low, "+", limit, "v", 0)
        args: list[Any] = [stamp]
        for entry_id, head, value, *_ in entries:
            is_item = parse_size(head) is None
            encoded = encode_fields(declared, value.decode()) if is_item else b""
            args += [entry_id, parse_version(head), encoded]
        if not (yield from self._shards.run_once(shard, "reindex_fields", args)):
            return None
        if not next_low:
            command = ("SADD", f"{self._shards.prefixes[shard]}:z", *(number for number, _ in declared))
            yield from self._shards.execute(shard, command, self._shards.make_deadline())
            self._ready[shard] = stamp, declared
        return str(next_low.decode())

    # Learned fields --------------------------------------------------------------------------------------------------

    def _learn(self, op: ops.LearnFields) -> ConnectionProgram[bool]:
        """Begin with a wanted field in all shards, and index some entries of one; return whether more is left."""
        shards = self._shards
        for shard in shards.all:  # other clients may have learned fields
            yield from self._declare(shard)
        learned = yield from self._read_learned()
        for name, count in op.uses:
            if name in learned:
                yield from self._execute_first("HINCRBY", "u", name, count)
        paths = {path for _, path in self._declared[0][1]}
        for name in op.wanted:
            if name not in learned and name not in paths and "\x00" not in name:
                yield from self._begin_learning(name, learned, op.least)
                learned = yield from self._read_learned()
        for shard in shards.all:
            ready = {path for _, path in self._ready[shard][1]}
            if learned.keys() - ready:
                return (yield from self._learn_slice(shard, list(learned), op.limit))
        return False

    def _begin_learning(self, name: str, learned: dict[str, tuple[int, int]], least: int) -> ConnectionProgram[None]:
        if (yield from self._walks.walk(ops.Count((), hidden=True))) < least:
            return
        has_room, dropped = find_room(learned, time.time_ns() // 1000, self._options.filter_fields)
        if not has_room:
            return
        for shard in self._shards.all if dropped is not None else ():
            yield from self._shards.run_once(shard, "drop_field", [dropped])
        for other, (_, uses) in learned.items():  # uses of long ago count less
            if other != dropped and uses:
                yield from self._execute_first("HINCRBY", "u", other, -(uses // 2))
        yield from self._execute_first("HSETNX", "k", name, time.time_ns() // 1000)

    def _learn_slice(self, shard: int, names: list[str], limit: int) -> ConnectionProgram[bool]:
        """Index a slice of a shard for the learned fields, unless another client does."""
        lock, deadline = f"{self._shards.prefixes[shard]}:k:lock", self._shards.make_deadline()
        execute = self._shards.execute
        if not (yield from execute(shard, ("SET", lock, self._client, "NX", "PX", _LOCK_TTL), deadline)):
            if (yield from execute(shard, ("GET", lock), deadline)) != self._client.encode():
                return False
            yield from execute(shard, ("PEXPIRE", lock, _LOCK_TTL), deadline)
        yield from self._declare(shard, names)
        stamp = self._declared[shard][0]
        known_stamp, low = self._learning.get(shard, (b"", "-"))
        next_low = yield from self._index_slice(shard, low if known_stamp == stamp else "-", min(limit, _SLICE))
        self._learning[shard] = stamp, next_low or "-"
        if next_low == "":
            del self._learning[shard]
            yield from execute(shard, ("DEL", lock), deadline)
        return True

    def _execute_first(self, command: str, suffix: str, *args: Any) -> ConnectionProgram[Any]:
        """Execute a command on a key of the first shard, which has what is known about learned fields."""
        key = f"{self._shards.prefixes[0]}:{suffix}"
        return (yield from self._shards.execute(0, (command, key, *args), self._shards.make_deadline()))

    def _read_learned(self) -> ConnectionProgram[dict[str, tuple[int, int]]]:
        """Return since when each learned field is learned, and how often it was used."""
        since = _to_pairs((yield from self._execute_first("HGETALL", "k")))
        uses = _to_pairs((yield from self._execute_first("HGETALL", "u")))
        return {name.decode(): (int(time), int(uses.get(name, 0))) for name, time in since.items()}

    def _read_stats(self, op: ops.ReadStats) -> ConnectionProgram[ops.Stats]:
        for shard in self._shards.all:
            yield from self._declare(shard)
        learned: list[ops.LearnedField] = []
        for name, (_, uses) in (yield from self._read_learned()).items():
            ready = sum(any(path == name for _, path in self._ready[shard][1]) for shard in self._shards.all)
            progress = ready / len(self._shards.all)
            learned.append(ops.LearnedField(name, "ready" if progress == 1 else "building", progress, uses))
        names = {field.name for field in learned}
        declared = [path for _, path in self._declared[0][1] if path not in names and not path.startswith("\x00")]
        return ops.Stats(
            entries=(yield from self._walks.walk(ops.Count(op.prefix, hidden=True))),
            files=(yield from self._walks.count_files(op.prefix)),
            text_index_lag=(yield from self._walks.text_index.count_unindexed()),
            declared_fields=tuple(declared),
            learned_fields=tuple(learned),
            **({} if op.prefix else (yield from self._measure())),
        )

    def _measure(self) -> ConnectionProgram[dict[str, Any]]:
        """Return the sizes of `Stats` that concern the whole store, a few records of each shard at a time."""
        shards = self._shards
        numbers, roots, history = Counter[str](), Counter[str](), Counter[str]()
        oldest: list[int] = []
        for shard in shards.all:
            for index in ("p", "hp"):
                low = "-"
                while low:
                    args = (index, low, _SLICE, RESERVED + "\x01", "\x01leases\x01")
                    _, vectors, leases, following, sizes = yield from shards.run(shard, "measure", *args)
                    low = following.decode()
                    numbers.update(vectors=int(vectors), leases=int(leases))
                    for root, size in zip(sizes[::2], sizes[1::2], strict=True):
                        (roots if index == "p" else history)[decode_namespace(root.decode())[0]] += int(size)
            first = ("ZRANGE", f"{shards.prefixes[shard]}:t", 0, 0)
            for entry_id in (yield from shards.execute(shard, first, shards.make_deadline())):
                key = f"{shards.prefixes[shard]}:e:".encode() + entry_id
                head = yield from shards.execute(shard, ("HGET", key, "h"), shards.make_deadline())
                oldest += [int(head.split(b" ")[2])] if head else []
        tombstone = to_datetime(min(oldest)) if oldest else None
        return {
            **numbers,
            "bytes": roots.total(),
            "root_bytes": dict(roots),
            "oldest_tombstone": tombstone,
            "history_bytes": dict(history),
        }


def _to_pairs(reply: Any) -> dict[bytes, bytes]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _answer_lost() -> OutcomeUnknown:
    return OutcomeUnknown(
        "the connection was lost during a write, and its outcome is unknown: the server no longer has its answer;"
        " read the entry to find out"
    )


def _is_simple(op: ops.Put) -> bool:
    """Whether `put_plain.lua` or `put.lua` can run a put."""
    return type(op.value) is not ops.File and op.vectors is None and op.acting is None


def _reads_version(op: Op) -> bool:
    """Whether an op reads an old version."""
    return type(op) is ops.GetVersion or (isinstance(op, ops.ReadRange) and op.version is not None)


def _is_store_check(op: Op) -> bool:
    """Whether an op checks an entry of holdall's own that is for the whole store, not for one root."""
    return type(op) is ops.Check and op.namespace[0] == RESERVED and len(op.namespace) == 2


_MAINTENANCE: dict[type, Callable[[RedisEngine, Any], ConnectionProgram[Any]]] = {
    ops.Sweep: RedisEngine._sweep,
    ops.PurgeTombstones: RedisEngine._purge,
    ops.IndexTexts: RedisEngine._index_texts,
    ops.IndexOrder: RedisEngine._index_order,
    ops.Maintain: RedisEngine._maintain,
    ops.LearnFields: RedisEngine._learn,
    ops.SetHistory: RedisEngine._set_history,
    ops.PurgeHistory: RedisEngine._purge_history,
    ops.Forget: RedisEngine._forget,
    ops.Scrub: RedisEngine._scrub,
    ops.RepairFaults: RedisEngine._repair,
}

#: A parent's connections in its forked child. They are kept, because collecting them would close their sockets.
_abandoned: list[Connections] = []
