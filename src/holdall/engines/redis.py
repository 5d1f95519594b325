"""The Redis engine: entries in a Redis or Valkey server, or spread over a cluster, with nothing but core commands.

A *shard* is a part of a store whose keys lie in one slot: a server's only one, or one of a cluster's many, in which the
root of a namespace says which is its own. Within a shard, scripts make each batch atomic. Of its keys, which all begin
with `holdall:{shard}`:

    (itself)      hash: v the last version, f the last forgotten one, g how many deleted trees wait, w and x counters;
                  in the first shard l, the layout
    :e:PLACE      hash, an entry or a tombstone: h its head (`redis_ops`), d its value's exact text, x the paths that it
                  is found by, i its indexed fields
    :p :f :s      all places, those of files, and the namespaces that hold any: sets in lexicographic order
    :n:NS         a namespace's keys by version
    :c :t :x      the feed, tombstones too, and the tombstones alone, by version; what expires, by when
    :b:BODY:N     a file's content in chunks of 1 MiB; :r how many more entries share one
    :g            trees that were deleted as a whole, and are being cleared away
    :i:FIELD      an indexed field's values, each with its place, in lexicographic order
    :y :z         which fields are indexed, by number; and which of these have what was put before
    :q…           the index of texts (`redis_texts`)
    :v:PLACE :w:MODEL    an entry's vectors; whose a model made, in the order in which they came
    :d:CLIENT     what a client's last batches answered: one whose reply was lost is asked again, and not done again
    :feed         a channel: something was written

Scripts judge everything before they write anything, never look into values, and look at so much at a time and no more:
all but the batch that moves, copies or deletes what is large, or reads large files among other things, and walks that
meet one, which take as long as that is large.
A tree of many entries is deleted by one note of its range and version: from then on nothing in it counts that is no
newer, and steps of a few entries each make the tombstones that were promised.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from .. import ops
from ..engine import Capabilities, Options
from ..errors import InvalidInput, SchemaTooNew, StoreClosed, Unavailable, shown
from ..keys import RESERVED
from ..ops import READS, WALKS, Op
from ..programs import Program, adrive, drive
from .pool import check_options
from .redis_fields import tokens
from .redis_listener import SubscribedListener
from .redis_ops import CHUNK, INLINE, place, put_words, refusal, result, said, version_of
from .redis_shards import Shards
from .redis_walks import RedisWalks
from .redis_wire import Address, Lost, Wire, check_url

logger = logging.getLogger("holdall")

_LAYOUT = 1
#: A tree of more entries than this is deleted as a whole, and cleared away afterwards.
MOST_AT_ONCE = 500
_SLICE = 200  # entries that are seen to in one step of upkeep
_SILENT = 24 * 3600  # seconds, after which what a client was last answered is forgotten
_SAID_EVERY = 3600.0  # how often it says that it is still there
_UNUSED = 3600  # seconds, after which a body goes that was sent for a put that never came


#: What tells the indexed fields of a shard from others, and their numbers and paths.
_Fields: TypeAlias = tuple[bytes, Sequence[tuple[str, str]]]
_NO_FIELDS: _Fields = (b"", ())


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """Redis' own options of `holdall.open`."""

    prefix: str = "holdall"
    pool_min: int = 1
    pool_max: int = 10
    pool_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not self.prefix or any(sign in self.prefix for sign in "{}\x00"):
            raise InvalidInput(f"prefix is what keys begin with, without braces, not {shown(self.prefix)}")
        check_options(self.pool_min, self.pool_max, self.pool_timeout)


class RedisEngine:
    """Entries in a Redis server, or in a cluster of them."""

    def __init__(self, url: str, options: Options, own: RedisOptions) -> None:
        scheme, _, rest = url.partition(":")
        is_cluster = scheme.endswith("+cluster")
        self._settings = check_url(f"{scheme.removesuffix('+cluster')}:{rest}")
        if is_cluster and self._settings.pop("db", 0):
            raise InvalidInput("a Redis Cluster has no database but 0")
        self.capabilities = Capabilities(durable=True, multiprocess=True, ranks=True, spans_roots=not is_cluster)
        self._options = options
        self._own = own
        self._shards = Shards(own.prefix, is_cluster, options)
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        """A state with nothing open: at the beginning, and in a forked child."""
        own, shards = self._own, self._shards
        shards.wire = Wire(dict(self._settings), shards.is_cluster, own.pool_min, own.pool_max, own.pool_timeout)
        # Anew, too: their locks may be held for ever.
        self._walks = RedisWalks(shards, lambda shard: self._ready.get(shard, _NO_FIELDS), self._declare)
        self._client = secrets.token_hex(8)
        self._memories: deque[list[int]] = deque()  # where in it no batch is under way, and the number of the last
        self._count = itertools.count()
        self._said_at: dict[int, float] = {}
        self._is_set_up = False
        self._declared: dict[int, _Fields] = {}  # fields that are indexed, by shard
        self._ready: dict[int, _Fields] = {}  # and those of them that find what was put before, too

    # The engine's methods --------------------------------------------------------------------------------------------

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        return drive(self._work(batch), self._shards.wire.perform)

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        return await adrive(self._work(batch), self._shards.wire.aperform)

    def setup(self) -> None:
        drive(self._set_up(), self._shards.wire.perform)

    async def asetup(self) -> None:
        await adrive(self._set_up(), self._shards.wire.aperform)

    def close(self) -> None:
        self._closed = True
        self._shards.wire.close()

    def before_fork(self) -> None:
        """Nothing: a child leaves the parent's sockets alone."""

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            _abandoned.append(self._shards.wire)
            self._reset()

    def listen(self, ring: Callable[[], None]) -> SubscribedListener:
        return SubscribedListener(self._shards.wire.connect, self._channels, ring)

    def _channels(self) -> dict[Address, list[list[str]]]:
        """What to subscribe to, and where: of a cluster, a shard's channel is where the shard is."""
        shards = self._shards
        if not shards.is_cluster:
            return {shards.wire.address_of(0): [["SUBSCRIBE", f"{shards.names[0]}:feed"]]}
        drive(shards.look_around(shards.deadline()), shards.wire.perform)
        places: dict[Address, list[list[str]]] = {}
        for shard in shards.all:
            address = shards.wire.address_of(shards.slots[shard])
            places.setdefault(address, []).append(["SSUBSCRIBE", f"{shards.names[shard]}:feed"])
        return places

    # Work, as programs -----------------------------------------------------------------------------------------------

    def _work(self, batch: Sequence[Op]) -> Program[list[Any]]:
        if self._closed or not self._is_set_up:
            yield from self._set_up()
        first = batch[0]
        kind = type(first)
        if kind in WALKS:
            return [(yield from self._walks.walk(first))]
        if len(batch) == 1:
            if isinstance(first, ops.Get):
                shard = self._shards.home(first.namespace)
                return [result(first, (yield from self._shards.get(shard, place(first.namespace, first.key))))]
            if isinstance(first, ops.Put) and type(first.value) is not ops.File and first.vectors is None:
                return [(yield from self._put(first))]
            if isinstance(first, ops.ReadRange):
                shard = self._shards.home(first.namespace)
                _, where, start, end = said(first, lambda _: b"", {})
                return [(yield from self._shards.read(shard, where, start, end))]
            if kind in _UPKEEP:
                return [(yield from _UPKEEP[kind](self, first))]
        elif self._shards.is_cluster:
            if kind is ops.Embed and all(type(op) is ops.Embed for op in batch):
                return (yield from self._each_by_itself(batch))
            if any(map(_is_everybodys, batch)):
                return (yield from self._checked_before(batch))
        return (yield from self._batch(batch))

    def _each_by_itself(self, batch: Sequence[Any]) -> Program[list[Any]]:
        """Ops that need not be done together, and are of several roots: those of each at once."""
        results: list[Any] = [None] * len(batch)
        by_shard: dict[int, list[int]] = {}
        for number, op in enumerate(batch):
            by_shard.setdefault(self._shards.home(op.namespace), []).append(number)
        for shard, numbers in by_shard.items():
            found = yield from self._batch([batch[number] for number in numbers], shard)
            for number, reply in zip(numbers, found, strict=True):
                results[number] = reply
        return results

    def _checked_before(self, batch: Sequence[Op]) -> Program[list[Any]]:
        """On a cluster, what is checked for the whole store is in a shard of its own, and checked first."""
        results: list[Any] = [None] * len(batch)
        places = [number for number, op in enumerate(batch) if _is_everybodys(op)]
        yield from self._batch([batch[number] for number in places])
        rest = [number for number in range(len(batch)) if number not in places]
        if rest:
            for number, found in zip(rest, (yield from self._batch([batch[number] for number in rest])), strict=True):
                results[number] = found
        return results

    def _put(self, op: ops.Put) -> Program[Any]:
        """One item, by a script of its own: it is asked for most often."""
        shard = self._shards.home(op.namespace)
        if self._declared.get(shard, _NO_FIELDS)[1]:
            return (yield from self._batch([op]))[0]
        memory = self._memory()
        silent = _SILENT if time.monotonic() > self._said_at.get(shard, 0.0) or memory[1] == 1 else ""
        args = (self._client, *memory, "", silent, *put_words(op))
        try:
            status, *told = yield from self._shards.script(shard, "put", args)
        except Unavailable as error:
            raise _unknown(error) from error
        finally:
            self._memories.append(memory)
        if status == b"ok":
            if silent:
                self._said_at[shard] = time.monotonic() + _SAID_EVERY
            entry = result(op, told[0])
            self._shards.seen = max(self._shards.seen, entry.version)
            return entry
        if status == b"refused":
            raise refusal(op, told[1:])
        if status == b"more":
            return (yield from self._batch([op]))[0]
        raise _unanswered()

    def _memory(self) -> list[int]:
        """A place to remember a batch in, and the number of this one."""
        try:
            memory = self._memories.pop()
        except IndexError:  # rather than look beforehand: another thread may take the last one in between
            memory = [next(self._count), 0]
        memory[1] += 1
        return memory

    def _batch(self, batch: Sequence[Op], shard: int | None = None) -> Program[list[Any]]:
        if shard is None:
            shard = self._shards.of_batch(batch)
        deadline = self._shards.deadline()
        sent = yield from self._send_all(shard, batch, deadline)
        if all(type(op) in READS for op in batch):
            return (yield from self._run(shard, batch, sent, ["", "", 0], "", deadline))
        memory = self._memory()
        is_due = time.monotonic() > self._said_at.get(shard, 0.0) or memory[1] == 1
        who = [self._client, *memory]
        try:
            results = yield from self._run(shard, batch, sent, who, _SILENT if is_due else "", deadline)
        except Unavailable as error:
            raise _unknown(error) from error
        finally:
            self._memories.append(memory)
        if is_due:
            self._said_at[shard] = time.monotonic() + _SAID_EVERY
        if any(type(op) is ops.DeleteTree and count > MOST_AT_ONCE for op, count in zip(batch, results, strict=True)):
            with contextlib.suppress(Unavailable):  # it is deleted; somebody else will clear it away
                yield from self._shards.reclaim(shard)
        return results

    def _run(
        self, shard: int, batch: Sequence[Op], sent: dict[int, str], who: list[Any], silent: Any, deadline: float
    ) -> Program[list[Any]]:
        while True:
            known, declared = self._declared.get(shard, _NO_FIELDS)
            words = [word for op in batch for word in said(op, partial(tokens, declared), sent)]
            args = [*who, known, silent, MOST_AT_ONCE, *words]
            status, *told = yield from self._shards.script(shard, "batch", args, deadline)
            if status == b"ok":
                self._shards.seen = max(self._shards.seen, int(told[1]))
                return [result(op, reply) for op, reply in zip(batch, told[0], strict=True)]
            if status == b"refused":
                raise refusal(batch[told[0]], told[1:])
            if status == b"pending":
                yield from self._shards.reclaim(shard)
            elif status == b"sweep":
                yield from self._shards.sweep(shard, ops.Sweep())
            elif status == b"fields":
                yield from self._declare(shard)
            elif status == b"resend":
                if time.monotonic() > deadline:
                    raise Unavailable("the server loses what is sent to it; does it evict (maxmemory-policy)?")
                sent = yield from self._send_all(shard, batch, deadline)
            else:
                raise _unanswered()

    def _send_all(self, shard: int, batch: Sequence[Op], deadline: float) -> Program[dict[int, str]]:
        """Send the large contents of a batch beforehand; what they are called, by their ops' ids."""
        sent = {}
        for op in batch:
            if isinstance(op, ops.Put) and isinstance(op.value, ops.File) and len(op.value.content) > INLINE:
                sent[id(op)] = yield from self._send(shard, op.value.content, deadline)
        return sent

    def _send(self, shard: int, content: bytes, deadline: float) -> Program[str]:
        """Send a body beforehand, a chunk at a time, for a put to take; if none does, it expires."""
        name = f"u{secrets.token_hex(12)}"
        for number in range(-(-len(content) // CHUNK)):
            chunk = content[number * CHUNK : (number + 1) * CHUNK]
            key = f"{self._shards.names[shard]}:b:{name}:{number}"
            yield from self._shards.say(shard, ("SET", key, chunk, "EX", _UNUSED), deadline)
        return name

    # Upkeep ----------------------------------------------------------------------------------------------------------

    def _sweep(self, op: ops.Sweep) -> Program[int]:
        turned = 0
        for shard in self._shards.under(op.prefix):
            if turned < op.limit:
                turned += yield from self._shards.sweep(shard, ops.Sweep(op.limit - turned, op.prefix))
        return turned

    def _forget(self, op: ops.Forget) -> Program[bool]:
        now = self._options.clock() if self._options.clock else time.time_ns() // 1000
        before = now + 1 if op.age is None else now - round(op.age * 1_000_000)
        left = op.limit
        for shard in self._shards.all:
            yield from self._shards.reclaim(shard)
            yield from self._walks.texts.learn_all(shard)  # it needs them, to know what is gone
            while True:
                size = min(left, _SLICE)
                args = [size, "" if op.keep is None else op.keep, before]
                count = yield from self._shards.script(shard, "forget", args)
                left -= count
                if not left:
                    return True
                if count < size:
                    break
        return False

    def _learn(self, op: ops.Learn) -> Program[tuple[int, bool]]:
        return (yield from self._walks.texts.learn(op.limit))

    def _tidy(self, _op: Op) -> Program[bool]:
        return False
        yield

    # Setting up ------------------------------------------------------------------------------------------------------

    def _set_up(self) -> Program[None]:
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        shards, deadline = self._shards, self._shards.deadline()
        if shards.is_cluster:
            yield from shards.look_around(deadline)
        yield from shards.say(0, ("HSETNX", shards.names[0], "l", _LAYOUT), deadline)
        layout = int((yield from shards.say(0, ("HGET", shards.names[0], "l"), deadline)))
        if layout > _LAYOUT:
            raise SchemaTooNew(f"this store has layout {layout}, and this holdall knows {_LAYOUT}; upgrade holdall")
        yield from self._check_channel(deadline)
        yield from self._check_eviction(deadline)
        if self._options.indexed:
            for shard in shards.all:
                yield from self._declare(shard)
        self._is_set_up = True

    def _check_channel(self, deadline: float) -> Program[None]:
        """Scripts write, and tell last: who may not tell is better told at once than never heard."""
        shards = self._shards
        channel = f"{shards.names[0]}:feed"
        try:
            yield from shards.say(0, ("SPUBLISH" if shards.is_cluster else "PUBLISH", channel, ""), deadline)
        except Unavailable as error:
            if not str(error.__cause__).startswith("NOPERM"):
                raise
            raise Unavailable(
                "this user of Redis may not publish on the channels by which stores hear of changes; allow it"
                f" (ACL SETUSER … &{self._own.prefix}:*): {error}"
            ) from error

    def _check_eviction(self, deadline: float) -> Program[None]:
        """Warn of a server that throws entries away when it is full, if it lets us know."""
        try:
            told = (yield from self._shards.say(0, ("INFO", "memory"), deadline)).decode()
        except Unavailable as error:
            if not str(error.__cause__).startswith("NOPERM"):
                raise
            return
        found = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
        policy = found.get("maxmemory_policy", "noeviction")
        if found.get("maxmemory", "0") != "0" and policy != "noeviction":
            logger.warning(
                "this Redis throws keys away when it is full (maxmemory-policy %s): a store would lose entries; set it"
                " to noeviction",
                policy,
            )

    def _declare(self, shard: int) -> Program[None]:
        """Have our fields indexed in a shard, and learn which are; those of ours find what was put before, too."""
        paths = self._options.indexed
        stamp, found = yield from self._shards.script(shard, "declare", paths)
        fields = [(number.decode(), path.decode(), is_ready) for number, path, is_ready in found]
        declared = [(number, path) for number, path, _ in fields]
        self._declared[shard] = stamp, declared
        if any(path in paths and not is_ready for _, path, is_ready in fields):
            low = "-"
            while low:
                _, entries, going_on = yield from self._shards.one(shard, "places", low, "+", _SLICE, "v", 0)
                words: list[Any] = []
                for where, head, value, *_ in entries:
                    is_item = head.split(b" ", 7)[6] == b"-"
                    words += [where, version_of(head), tokens(declared, value.decode()) if is_item else b""]
                yield from self._shards.script(shard, "refield", words)
                low = going_on.decode()
            numbers = [number for number, _, _ in fields]
            yield from self._shards.say(
                shard, ("SADD", f"{self._shards.names[shard]}:z", *numbers), self._shards.deadline()
            )
            fields = [(number, path, 1) for number, path, _ in fields]
        self._ready[shard] = stamp, [(number, path) for number, path, is_ready in fields if is_ready]


def _unknown(error: Unavailable) -> Unavailable:
    """What is said of a write that nobody answered."""
    if not isinstance(error.__cause__, Lost):
        return error
    return Unavailable(f"the connection was lost during a write, whose outcome is unknown; read and decide: {error}")


def _unanswered() -> Unavailable:
    return Unavailable(
        "the connection was lost during a write, whose outcome is unknown: what it answered is not kept any more"
    )


def _is_everybodys(op: Op) -> bool:
    """Whether it checks something of the whole store's."""
    return type(op) is ops.Check and op.namespace[0] == RESERVED and len(op.namespace) == 2


_UPKEEP: dict[type, Callable[[RedisEngine, Any], Program[Any]]] = {
    ops.Sweep: RedisEngine._sweep,
    ops.Forget: RedisEngine._forget,
    ops.Learn: RedisEngine._learn,
    ops.Tidy: RedisEngine._tidy,
}

#: A parent's connections in its forked child: kept, because letting go would end them.
_abandoned: list[Wire] = []
