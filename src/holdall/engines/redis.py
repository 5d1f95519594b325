"""The Redis engine: entries in a Redis or Valkey server, or spread over a cluster, with nothing but core commands.

A *shard* is a part of a store whose keys lie in one slot: a server's only one, or one of a cluster's many, in which the
root of a namespace says which is its own. Within a shard, scripts make each batch atomic. Of its keys, which all begin
with `holdall:{shard}`:

    (itself)      hash: v the last version, f the last forgotten one, g how many deleted trees wait, w and x counters
    :e:PLACE      hash, an entry or a tombstone: h its head (`redis_ops`), d its value's exact text, x the paths that it
                  is found by, i its indexed fields
    :p :f :s      all places, those of files, and the namespaces that hold any: sets in lexicographic order
    :n:NS         a namespace's keys by version
    :c :t :x      the feed, tombstones too, and the tombstones alone, by version; what expires, by when
    :b:BODY:N     a file's content in chunks of 1 MiB; :r how many more entries share one
    :g            trees that were deleted as a whole, and are being cleared away
    :i:FIELD      an indexed field's values, each with its place, in lexicographic order
    :v:PLACE :w:MODEL    an entry's vectors; whose a model made, in the order in which they came
    :d:CLIENT     what a client's last batches answered: one whose reply was lost is asked again, and not done again
    :feed         a channel: something was written

Scripts judge everything before they write anything, never look into values, and look at so much at a time and no more.
A tree of many entries is deleted by one note of its range and version: from then on nothing in it counts that is no
newer, and steps of a few entries each make the tombstones that were promised.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import keys, ops
from ..engine import Capabilities, Options
from ..errors import InvalidInput, SchemaTooNew, StoreClosed, Unavailable, shown
from ..ops import READS, WALKS, Op
from ..programs import Program, Sleep, adrive, drive
from .redis_listener import SubscribedListener
from .redis_ops import CHUNK, INLINE, place, refusal, result, said
from .redis_walks import RedisWalks
from .redis_wire import Address, Lost, Refusal, Say, Wire, check_url, slot_of

_LAYOUT = 1
#: A tree of more entries than this is deleted as a whole, and cleared away afterwards.
MOST_AT_ONCE = 500
_STEP = 200  # entries that are cleared away in one step
_PAUSE = 0.002  # between steps of upkeep that nobody waits for
_SILENT = 24 * 3600  # seconds, after which what a client was last answered is forgotten
_SAID_EVERY = 3600.0  # how often it says that it is still there
_UNUSED = 3600  # seconds, after which a body goes that was sent for a put that never came

#: What a server says when it cannot answer just now.
_FOR_NOW = ("LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "UNKILLABLE")


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
        for name, least in (("pool_min", 0), ("pool_max", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidInput(f"{name} is a number of connections, at least {least}, not {shown(value)}")
        if not isinstance(self.pool_timeout, (int, float)) or not 0 < self.pool_timeout < 1e9:
            raise InvalidInput(f"pool_timeout is a number of seconds, not {shown(self.pool_timeout)}")


class _Script:
    """A script, by the name of its file, with what it is built on before it."""

    def __init__(self, *parts: str) -> None:
        folder = Path(__file__).with_name("redis_lua")
        self.text = "".join((folder / f"{part}.lua").read_text() for part in ("common", *parts))
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324  # what Redis calls it by


@cache
def _scripts() -> dict[str, _Script]:
    writing = ("batch", "sweep", "reclaim", "forget")
    walking = ("places", "newest", "changes", "spaces", "children", "count", "contents")
    return {
        "get": _Script("get"),
        **{name: _Script("write", name) for name in writing},
        **{name: _Script("walk", name) for name in walking},
    }


class RedisEngine:
    """Entries in a Redis server."""

    capabilities = Capabilities(durable=True, multiprocess=True, ranks=False)

    def __init__(self, url: str, options: Options, own: RedisOptions) -> None:
        self._settings = check_url(url)
        self._options = options
        self._own = own
        self._shard = f"{own.prefix}:{{0}}"
        self._slot = slot_of(self._shard)
        self._scripts = _scripts()
        self._closed = False
        self._walks = RedisWalks(self._asked, lambda _filter: [])
        self._reset()

    def _reset(self) -> None:
        """A state with nothing open: at the beginning, and in a forked child."""
        own = self._own
        self._wire = Wire(dict(self._settings), False, own.pool_min, own.pool_max, own.pool_timeout)
        self._client = secrets.token_hex(8)
        self._memories: deque[list[int]] = deque()  # where in it no batch is under way, and the number of the last
        self._count = itertools.count()
        self._said_at = 0.0
        self._is_set_up = False
        self._fields = ""

    # The engine's methods --------------------------------------------------------------------------------------------

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        return drive(self._work(batch), self._wire.perform)

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        return await adrive(self._work(batch), self._wire.aperform)

    def setup(self) -> None:
        drive(self._set_up(self._deadline()), self._wire.perform)

    async def asetup(self) -> None:
        await adrive(self._set_up(self._deadline()), self._wire.aperform)

    def close(self) -> None:
        self._closed = True
        self._wire.close()

    def before_fork(self) -> None:
        """Nothing: a child leaves the parent's sockets alone."""

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            _abandoned.append(self._wire)
            self._reset()

    def listen(self, ring: Callable[[], None]) -> SubscribedListener:
        return SubscribedListener(self._wire.connect, self._channels, ring)

    def _channels(self) -> dict[Address, list[list[str]]]:
        return {self._wire.address_of(self._slot): [["SUBSCRIBE", f"{self._shard}:feed"]]}

    # Work, as programs -----------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        return time.monotonic() + self._options.timeout

    def _work(self, batch: Sequence[Op]) -> Program[list[Any]]:
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        if not self._is_set_up:
            yield from self._set_up(self._deadline())
        first = batch[0]
        kind = type(first)
        if kind in WALKS:
            return [(yield from self._walks.walk(first))]
        if len(batch) == 1:
            if isinstance(first, ops.Get):
                reply = yield from self._script("get", [place(first.namespace, first.key)], self._deadline())
                return [result(first, reply)]
            if kind in _UPKEEP:
                return [(yield from _UPKEEP[kind](self, first))]
        return (yield from self._batch(batch))

    def _batch(self, batch: Sequence[Op]) -> Program[list[Any]]:
        deadline = self._deadline()
        is_read = all(type(op) in READS for op in batch)
        sent = {}
        for op in batch:
            if isinstance(op, ops.Put) and isinstance(op.value, ops.File) and len(op.value.content) > INLINE:
                sent[id(op)] = yield from self._send(op.value.content, deadline)
        if is_read:
            return (yield from self._run(batch, sent, ["", "", "0", self._fields, ""], deadline))
        memory = self._memories.pop() if self._memories else [next(self._count), 0]
        memory[1] += 1
        is_due = time.monotonic() > self._said_at or memory[1] == 1
        who = [self._client, memory[0], memory[1], self._fields, _SILENT if is_due else ""]
        try:
            results = yield from self._run(batch, sent, who, deadline)
        finally:
            self._memories.append(memory)
        if is_due:
            self._said_at = time.monotonic() + _SAID_EVERY
        return results

    def _run(self, batch: Sequence[Op], sent: dict[int, str], who: list[Any], deadline: float) -> Program[list[Any]]:
        words = [word for op in batch for word in said(op, self._tokens, sent)]
        while True:
            status, *told = yield from self._script("batch", ["", "", *who, MOST_AT_ONCE, *words], deadline)
            if status == b"ok":
                return [result(op, reply) for op, reply in zip(batch, told[0], strict=True)]
            if status == b"refused":
                raise refusal(batch[told[0]], told[1:])
            if status == b"pending":
                yield from self._reclaim()
            elif status == b"sweep":
                yield from self._sweep(ops.Sweep())
            else:
                raise Unavailable(
                    "the connection was lost during a write, which was done; but what it answered is not known any more"
                )

    def _send(self, content: bytes, deadline: float) -> Program[str]:
        """Send a body beforehand, a chunk at a time, for a put to take; if none does, it expires."""
        name = f"u{secrets.token_hex(12)}"
        for number in range(-(-len(content) // CHUNK)):
            chunk = content[number * CHUNK : (number + 1) * CHUNK]
            yield from self._say(("SET", f"{self._shard}:b:{name}:{number}", chunk, "EX", _UNUSED), deadline)
        return name

    def _tokens(self, value: str) -> bytes:
        del value
        return b""

    # Asking ----------------------------------------------------------------------------------------------------------

    def _now(self) -> Any:
        return "" if self._options.clock is None else self._options.clock()

    def _asked(self, script: str, *args: Any) -> Program[list[Any]]:
        """Ask a script that walks, and see to what it says has to be done first."""
        while True:
            told = yield from self._script(script, args, self._deadline())
            if told[0] == b"ok":
                return told  # type: ignore[no-any-return]  # a reply
            if told[0] == b"sweep":
                yield from self._sweep(ops.Sweep())
            else:
                yield from self._reclaim()

    def _script(self, name: str, args: Sequence[Any], deadline: float) -> Program[Any]:
        script = self._scripts[name]
        words = (1, self._shard, self._now(), *args)
        return (yield from self._say(("EVALSHA", script.sha, *words), deadline, ("EVAL", script.text, *words)))

    def _say(self, command: tuple[Any, ...], deadline: float, whole: tuple[Any, ...] = ()) -> Program[Any]:
        """Say something until it is heard. A batch knows whether it was done before, so it may be said twice."""
        for tries in itertools.count():
            try:
                [reply] = yield Say(self._slot, [command], deadline)
            except Lost as error:
                yield from self._pause_before_retry(error, tries, deadline)
                continue
            if not isinstance(reply, Refusal):
                return reply
            why = str(reply)
            if why.startswith("NOSCRIPT"):
                command = whole
            elif why.startswith(_FOR_NOW):
                yield from self._pause_before_retry(reply, tries, deadline)
            else:
                raise Unavailable(f"Redis refused: {why}") from reply
        raise AssertionError("unreachable")

    def _pause_before_retry(self, error: Exception, tries: int, deadline: float) -> Program[None]:
        pause = 0.01 * 2 ** min(tries, 6) * random.uniform(0.5, 1) if tries else 0.0
        if time.monotonic() + pause > deadline:
            raise Unavailable(f"Redis could not be reached for {self._options.timeout} s: {error}") from error
        yield Sleep(pause)

    # Upkeep ----------------------------------------------------------------------------------------------------------

    def _reclaim(self) -> Program[None]:
        """Clear away what is left of deleted trees, a step at a time."""
        while (yield from self._script("reclaim", ["", "", _STEP], self._deadline())):
            yield Sleep(0)

    def _sweep(self, op: ops.Sweep) -> Program[int]:
        turned, skip = 0, 0
        while turned < op.limit:
            args = ["", "", min(op.limit - turned, _STEP), keys.encode(op.prefix), skip]
            _, count, skip, more = yield from self._asked("sweep", *args)
            turned += count
            if not more:
                break
        return turned

    def _forget(self, op: ops.Forget) -> Program[bool]:
        yield from self._reclaim()
        now = self._options.clock() if self._options.clock else time.time_ns() // 1000
        before = now + 1 if op.age is None else now - round(op.age * 1_000_000)
        left = op.limit
        while left:
            args = ["", "", min(left, _STEP), "" if op.keep is None else op.keep, before, 1 << 60]
            count = yield from self._script("forget", args, self._deadline())
            left -= count
            if count < args[2]:
                return False
        return True

    def _learn(self, _op: Op) -> Program[tuple[int, bool]]:
        return 0, False
        yield

    def _tidy(self, _op: Op) -> Program[bool]:
        yield from self._reclaim()
        return False

    # Setting up ------------------------------------------------------------------------------------------------------

    def _set_up(self, deadline: float) -> Program[None]:
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        yield from self._say(("HSETNX", self._shard, "l", _LAYOUT), deadline)
        layout = int((yield from self._say(("HGET", self._shard, "l"), deadline)))
        if layout > _LAYOUT:
            raise SchemaTooNew(f"this store has layout {layout}, and this holdall knows {_LAYOUT}; upgrade holdall")
        self._is_set_up = True


_UPKEEP: dict[type, Callable[[RedisEngine, Any], Program[Any]]] = {
    ops.Sweep: RedisEngine._sweep,
    ops.Forget: RedisEngine._forget,
    ops.Learn: RedisEngine._learn,
    ops.Tidy: RedisEngine._tidy,
}

#: A parent's connections in its forked child: kept, because letting go would end them.
_abandoned: list[Wire] = []
