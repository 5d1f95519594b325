"""Asking scripts in the shards of a store: where a namespace is, what to do when nobody answers, and what comes first.

A store on one server has one shard, and its versions count its changes. On a cluster there are 32, whose keys lie in as
many slots, on whichever nodes have these. A root, and all that is below it, is in one of them. There a version is the
time in microseconds, its last five bits the number of the shard: so versions are unique, newer ones are higher across
shards, as far as the nodes' clocks agree, and a version tells where its entry is.

While a slot moves from one node to another, each has some of its keys, and a script on either would take those that it
lacks for absent. So scripts on a cluster name a second key, which never exists: while any key of a slot may be
elsewhere, a node answers a command whose keys are not all there with TRYAGAIN, and does nothing.
"""

from __future__ import annotations

import binascii
import hashlib
import itertools
import random
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .. import keys, ops
from ..engine import Options
from ..errors import Corrupt, InvalidInput, Unavailable
from ..ops import Namespace, Op
from ..programs import Program, Sleep
from .redis_wire import Lost, Refusal, Say, Wire, slot_of

_SHARDS = 32  # of a cluster; never to be changed, since versions tell them
_STEP = 200  # entries that are cleared away in one step
_PIECE = 1 << 20  # bytes of a content that one script gives
_MOST_TRIES = 5  # to read a content piece by piece that others write anew; then it is read at once
_WHOLE = 1 << 60
_LONGEST_LOOK = 2.0  # seconds that a node may take to say who has which slots

_WRITING = frozenset({"batch", "put", "sweep", "reclaim", "forget", "learn", "declare", "refield"})
_WALKING = frozenset(
    {
        *("places", "newest", "changes", "spaces", "children", "count", "contents"),
        *("texts", "documents", "versions", "vectors", "lookup"),
    }
)
#: What a server says when it cannot answer just now.
_FOR_NOW = ("LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "UNKILLABLE")
_NOT_LET_IN = ("NOAUTH", "NOPERM", "WRONGPASS")


class _Script:
    """A script, by the name of its file, with what it is built on before it."""

    def __init__(self, *parts: str) -> None:
        folder = Path(__file__).with_name("redis_lua")
        self.text = "".join((folder / f"{part}.lua").read_text() for part in parts)
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324  # what Redis calls it by


@cache
def _scripts() -> dict[str, _Script]:
    return {
        "get": _Script("common", "get"),
        "read": _Script("common", "read"),
        "put": _Script("put"),
        **{name: _Script("common", "write", name) for name in _WRITING - {"put"}},
        **{name: _Script("common", "walk", name) for name in _WALKING},
    }


class Shards:
    """The shards of one store, as programs that say things to servers."""

    def __init__(self, prefix: str, is_cluster: bool, options: Options) -> None:
        self.is_cluster = is_cluster
        self.all = range(_SHARDS if is_cluster else 1)
        self.names = [f"{prefix}:{{{number}}}" for number in self.all]
        self.slots = [slot_of(name) for name in self.names]
        self.wire: Wire  # the engine's: it is another in a forked child
        self.seen = 0  # the highest version that we know of
        self._options = options
        self._scripts = _scripts()

    # Where things are ------------------------------------------------------------------------------------------------

    def home(self, namespace: Namespace) -> int:
        """The shard of a namespace."""
        if not self.is_cluster:
            return 0
        return binascii.crc_hqx(_root(namespace).encode(), 0) % _SHARDS

    def under(self, prefix: Namespace) -> Sequence[int]:
        """The shards in which something may be that is in a namespace, or below it."""
        return [self.home(prefix)] if prefix else self.all

    def of_version(self, version: int) -> int:
        return version % _SHARDS if self.is_cluster else 0

    def of_batch(self, batch: Sequence[Op]) -> int:
        """The shard of all ops of a batch, which have to be of one root."""
        if not self.is_cluster:
            return 0
        roots = {_root(namespace) for op in batch for namespace in _namespaces(op)}
        if len(roots) > 1:
            raise InvalidInput(
                "on a Redis Cluster, a batch stays within one root (the first label of its namespaces), which is what"
                f" one node has; this has {', '.join(map(repr, sorted(roots)[:5]))}: make it several batches"
            )
        return self.home((roots.pop(),))

    # Asking ----------------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        return time.monotonic() + self._options.timeout

    def one(self, shard: int, script: str, *args: Any) -> Program[Any]:
        """Ask a script in a shard, and see to what it says has to be done first."""
        return (yield from self._settled(shard, script, args, (yield from self.script(shard, script, args))))

    def each(self, shards: Sequence[int], script: str, *args: Any) -> Program[list[Any]]:
        """Ask a script the same in several shards."""
        return (yield from self.many(script, [(shard, args) for shard in shards]))

    def many(self, script: str, asked: Sequence[tuple[int, Sequence[Any]]]) -> Program[list[Any]]:
        """Ask a script in several shards, in those that one node has at once."""
        if len(asked) == 1:
            return [(yield from self.one(asked[0][0], script, *asked[0][1]))]
        together: dict[Any, list[int]] = {}
        for number, (shard, _) in enumerate(asked):
            together.setdefault(self.wire.address_of(self.slots[shard]), []).append(number)
        replies: list[Any] = [None] * len(asked)
        deadline, now = self.deadline(), self._now()
        for here in together.values():
            commands = [self._command(asked[number][0], script, asked[number][1], now)[0] for number in here]
            try:
                told = yield Say(self.slots[asked[here[0]][0]], commands, deadline)
            except Lost:
                continue
            for number, reply in zip(here, told, strict=True):
                replies[number] = reply
        results: list[Any] = []
        for (shard, args), first in zip(asked, replies, strict=True):
            reply = first
            if reply is None or isinstance(reply, Refusal):  # again, for as long as is left of the time
                reply = yield from self.script(shard, script, args, deadline)
            results.append((yield from self._settled(shard, script, args, reply)))
        return results

    def _settled(self, shard: int, script: str, args: Sequence[Any], reply: Any) -> Program[Any]:
        while type(reply) is list and reply and reply[0] in (b"pending", b"sweep"):
            if reply[0] == b"sweep":
                yield from self.sweep(shard, ops.Sweep())
            else:
                yield from self.reclaim(shard)
            reply = yield from self.script(shard, script, args)
        return reply

    def script(self, shard: int, name: str, args: Sequence[Any], deadline: float | None = None) -> Program[Any]:
        command, whole = self._command(shard, name, args, self._now())
        return (yield from self.say(shard, command, deadline or self.deadline(), whole))

    def _now(self) -> Any:
        clock = self._options.clock
        return "" if clock is None else clock()

    def _command(self, shard: int, name: str, args: Sequence[Any], now: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """A script's command by its name, and with its whole text, for a server that does not know it."""
        script = self._scripts[name]
        home = self.names[shard]
        words: tuple[Any, ...] = (2, home, f"{home}:none", now) if self.is_cluster else (1, home, now)
        if name in _WRITING:
            words += (f"{shard}/{_SHARDS}", self.seen) if self.is_cluster else ("", "")
        return ("EVALSHA", script.sha, *words, *args), ("EVAL", script.text, *words, *args)

    def say(self, shard: int, command: tuple[Any, ...], deadline: float, whole: tuple[Any, ...] = ()) -> Program[Any]:
        """Say something until it is heard. A batch knows whether it was done before, so it may be said twice."""
        slot = self.slots[shard]
        for tries in itertools.count():
            try:
                [reply] = yield Say(slot, [command], deadline)
                if isinstance(reply, Refusal) and str(reply).startswith("ASK "):
                    address = self.wire.address_in(str(reply).split(" ")[2], slot)
                    _, reply = yield Say(slot, [("ASKING",), command], deadline, address)
            except Lost as error:
                yield from self._pause_before_retry(error, tries, deadline)
                if self.is_cluster:
                    yield from self.look_around(deadline)
                continue
            if not isinstance(reply, Refusal):
                return reply
            why = str(reply)
            if why.startswith("NOSCRIPT"):
                command = whole
            elif why.startswith("MOVED ") and not self.is_cluster:
                raise InvalidInput("this server is a node of a Redis Cluster: use redis+cluster:// for it") from reply
            elif why.startswith("MOVED "):
                self.wire.move(slot, why.split(" ")[2])
                if tries > 2:
                    yield from self._pause_before_retry(reply, tries, deadline)
            elif why.startswith(_FOR_NOW):
                yield from self._pause_before_retry(reply, tries, deadline)
                if self.is_cluster:
                    yield from self.look_around(deadline)
            elif "INCOMPLETE" in why:
                raise Corrupt(
                    "a file's content is not all there: the server has lost keys; does it evict (maxmemory-policy)?"
                    f" {why}"
                ) from reply
            else:
                refused = "Redis refused to let us in" if why.startswith(_NOT_LET_IN) else "Redis refused"
                raise Unavailable(f"{refused}: {why}") from reply
        raise AssertionError("unreachable")

    def look_around(self, deadline: float) -> Program[None]:
        """Ask the nodes in turn who has which slots, until one knows."""
        for address in self.wire.nodes:
            try:
                patience = min(deadline, time.monotonic() + _LONGEST_LOOK)
                [slots] = yield Say(0, [("CLUSTER", "SLOTS")], patience, address)
            except Lost:
                continue
            if isinstance(slots, Refusal):
                if "cluster support disabled" in str(slots):
                    raise Unavailable("this server is no node of a Redis Cluster: use redis:// for it")
                continue
            if slots:
                self.wire.learn(slots, address)
                return

    def _pause_before_retry(self, error: Exception, tries: int, deadline: float) -> Program[None]:
        pause = 0.01 * 2 ** min(tries, 6) * random.uniform(0.5, 1) if tries else 0.0
        if time.monotonic() + pause > deadline:
            raise Unavailable(f"Redis could not be reached for {self._options.timeout} s: {error}") from error
        yield Sleep(pause)

    def clear(self, shard: int, pattern: str) -> Program[None]:
        """Remove the keys of a shard whose names go on like this, some at a time."""
        name = self.names[shard].replace("*", "\\*").replace("?", "\\?").replace("[", "\\[")
        cursor = b"0"
        while True:
            scan = ("SCAN", cursor, "MATCH", name + pattern, "COUNT", 1000)
            cursor, found = yield from self.say(shard, scan, self.deadline())
            if found:
                yield from self.say(shard, ("UNLINK", *found), self.deadline())
            if cursor == b"0":
                return

    # Contents --------------------------------------------------------------------------------------------------------

    def get(self, shard: int, where: str) -> Program[Any]:
        """An entry: head, value, and a file's content."""
        for tries in itertools.count():
            found = yield from self.script(shard, "get", [where, _most(tries)])
            if found is None or len(found) > 2 or (size := found[0].split(b" ")[6]) == b"-":
                return found
            content = yield from self._rest(shard, where, found[0].split(b" ")[8], 0, int(size))
            if content is not None:
                return [*found, content]
        raise AssertionError("unreachable")

    def read(self, shard: int, where: str, start: int = 0, end: Any = "") -> Program[bytes | None]:
        """A part of a file, or None if there is none: of one moment, though a large one comes in pieces."""
        for tries in itertools.count():
            found = yield from self.script(shard, "read", [where, start, end, _most(tries), ""])
            if found is None:
                return None
            body, finish, first = found
            rest = yield from self._rest(shard, where, body, start + len(first), int(finish))
            if rest is not None:
                return first + rest if rest else first  # type: ignore[no-any-return]  # bytes
        raise AssertionError("unreachable")

    def _rest(self, shard: int, where: str, body: bytes, start: int, end: int) -> Program[bytes | None]:
        """The rest of a body, a piece at a time; None if the file has another meanwhile, or is gone."""
        pieces = []
        while start < end:
            found = yield from self.script(shard, "read", [where, start, end, _PIECE, body])
            if found is None or found[0] == b"moved":
                return None
            pieces.append(found[2])
            start += len(found[2])
        return b"".join(pieces)

    # What may have to be done first ----------------------------------------------------------------------------------

    def reclaim(self, shard: int) -> Program[None]:
        """Clear away what is left of deleted trees, a step at a time."""
        while (yield from self.script(shard, "reclaim", [_STEP])):
            yield Sleep(0)

    def sweep(self, shard: int, op: ops.Sweep) -> Program[int]:
        turned, skip = 0, 0
        while turned < op.limit:
            args = [min(op.limit - turned, _STEP), keys.encode(op.prefix), skip]
            _, count, skip, more = yield from self.one(shard, "sweep", *args)
            turned += count
            if not more:
                break
        return turned


def _most(tries: int) -> int:
    """How many bytes to ask for at once."""
    return _PIECE if tries < _MOST_TRIES else _WHOLE


def _root(namespace: Namespace) -> str:
    """What a namespace is in a cluster by; holdall's own for a root is where that is."""
    return namespace[1] if namespace[0] == keys.RESERVED and len(namespace) > 2 else namespace[0]


def _namespaces(op: Any) -> Iterable[Namespace]:
    yield op.namespace
    if isinstance(op, ops.Move) and op.source is not None:
        yield op.source
