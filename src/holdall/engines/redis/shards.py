"""The shards of a store: which shard a namespace is in, and how scripts and commands are run there.

The engine, the walks and the indexes call it. Its methods are programs that yield `Execute`.

A store on one server has one shard. On a cluster it has 32: the keys of a shard lie in one slot, so on one node. A root
(the first label of a namespace) and all that is below it are in one shard. A version is the time in microseconds, so
that none is used again after a restart that lost writes. On a cluster, the last five bits of a version are the number
of the shard. So versions are unique, a version identifies the shard of its entry, and newer versions are higher
in all shards, as far as the clocks of the nodes agree.

A server that restarts may lose its last writes. A cursor from before would skip the changes that come after them. So
the store of a single server records each *run* of the server, and which versions may have been lost before it
(`begin_run.lua`). A run is identified by a script with a random text: a server forgets its scripts when it stops, and
a replica that is promoted never had them. Each new connection checks for that script first.

While a slot moves to another node, each node has some of its keys. A script would take the keys on the other node for
absent. So scripts on a cluster name a second key, which never exists. While a slot moves, a node replies TRYAGAIN to a
command whose keys are not all there, and does nothing.
"""

from __future__ import annotations

import binascii
import hashlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ... import ops
from ...engine import Options
from ...errors import Corrupt, InvalidInput, OutcomeUnknown, StoreClosed, Unavailable
from ...model import file_values, keys
from ...ops import Namespace, Op
from ...runtime.programs import Sleep, drive
from ..net.retry import retry_delay
from ..net.sockets import ConnectionLost
from .connections import Command, ConnectionProgram, Connections, ErrorReply, Execute, slot_of
from .encoding import parse_body, parse_size

_SHARDS = 32  # of a cluster; it can never change, because versions contain the shard
_STEP = 200  # entries that one script sweeps or reclaims
_PART = 1 << 20  # bytes of a content in one reply
_MOST_TRIES = 5  # to read a content in parts while other clients replace it; after that it is read in one reply
_ALL = 1 << 60
_KEEP_ANSWERS = 24 * 3600 * 1_000_000  # microseconds without a write, after which a client's answers are removed
_SLOTS_TIMEOUT = 2.0  # seconds that a node may take to reply to CLUSTER SLOTS

_MAINTENANCE = frozenset(
    {"begin_run", "sweep", "reclaim", "purge", "index_texts", "declare", "reindex_fields", "drop_field", "order"}
    | {"set_history", "purge_history", "forget", "faults", "drop_contents", "clear_index"}
)
_WRITES = _MAINTENANCE | {"batch", "put"}
_WALKS = frozenset(
    {
        *("scan", "newest", "changes", "namespaces", "children", "count", "contents"),
        *("postings", "documents", "changed_documents", "versions", "vectors", "lookup", "adjacent"),
        *("old_versions", "old_version", "past", "measure"),
    }
)
#: The error replies of a server that cannot execute a command now, but may be able to later.
_TEMPORARY = ("LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "UNKILLABLE")
_UNAUTHORIZED = ("NOAUTH", "NOPERM", "WRONGPASS")


class _Script:
    """A script: the files in `lua/` that it consists of, joined."""

    def __init__(self, *parts: str) -> None:
        folder = Path(__file__).with_name("lua")
        self.text = "".join((folder / f"{part}.lua").read_text() for part in parts)
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324  # Redis identifies scripts by it


@cache
def _load_scripts() -> dict[str, _Script]:
    return {
        "get": _Script("common", "get"),
        "read": _Script("read_small", "common", "read"),
        "put": _Script("put_plain", "common", "write", "client_write", "put"),
        "batch": _Script("common", "write", "client_write", "batch"),
        **{name: _Script("common", "write", name) for name in _MAINTENANCE},
        **{name: _Script("common", "walk", name) for name in _WALKS},
    }


class Shards:
    """The shards of one store. Methods that run scripts and commands are programs."""

    def __init__(self, prefix: str, is_cluster: bool, options: Options) -> None:
        self.is_cluster = is_cluster
        self.all = range(_SHARDS if is_cluster else 1)
        self.prefixes = [f"{prefix}:{{{number}}}" for number in self.all]  # of the keys of each shard
        self.slots = [slot_of(prefix) for prefix in self.prefixes]
        self.connections: Connections  # set by the engine, which makes new ones in a forked child
        self.newest_version = 0  # that this process knows of
        self._options = options
        self._scripts = _load_scripts()

    # Which shard -----------------------------------------------------------------------------------------------------

    def of_namespace(self, namespace: Namespace) -> int:
        """Return the shard of a namespace."""
        if not self.is_cluster:
            return 0
        return binascii.crc_hqx(_root_of(namespace).encode(), 0) % _SHARDS

    def below(self, prefix: Namespace) -> Sequence[int]:
        """Return the shards that may have entries in a namespace, or below it."""
        return [self.of_namespace(prefix)] if prefix else self.all

    def of_version(self, version: int) -> int:
        """Return the shard that made a version."""
        return version % _SHARDS if self.is_cluster else 0

    def of_batch(self, batch: Sequence[Op]) -> int:
        """Return the shard of a batch. On a cluster, all ops of a batch must have the same root."""
        if not self.is_cluster:
            return 0
        roots = {_root_of(namespace) for op in batch for namespace in _list_namespaces(op)}
        if len(roots) > 1:
            raise InvalidInput(
                "on a Redis Cluster, a batch must have one root (the first label of its namespaces), because each root"
                f" is on one node; this one has {', '.join(map(repr, sorted(roots)[:5]))}: split it by root"
            )
        return self.of_namespace((roots.pop(),))

    # Running scripts -------------------------------------------------------------------------------------------------

    def make_deadline(self) -> float:
        return time.monotonic() + self._options.timeout

    def run(self, shard: int, script: str, *args: Any) -> ConnectionProgram[Any]:
        """Run a script in a shard. If it replies that the shard has to be swept or reclaimed first, do that."""
        reply = yield from self.run_once(shard, script, args)
        return (yield from self._maintain_and_repeat(shard, script, args, reply))

    def run_on_each(self, shards: Sequence[int], script: str, *args: Any) -> ConnectionProgram[list[Any]]:
        """Run a script with the same arguments in several shards."""
        return (yield from self.run_many(script, [(shard, args) for shard in shards]))

    def run_many(self, script: str, calls: Sequence[tuple[int, Sequence[Any]]]) -> ConnectionProgram[list[Any]]:
        """Run a script in several shards, each with its arguments: one request for all shards of a node."""
        if len(calls) == 1:
            return [(yield from self.run(calls[0][0], script, *calls[0][1]))]
        by_node: dict[Any, list[int]] = {}
        for number, (shard, _) in enumerate(calls):
            by_node.setdefault(self.connections.address_of(self.slots[shard]), []).append(number)
        replies: list[Any] = [None] * len(calls)
        deadline, now = self.make_deadline(), self._now()
        for numbers in by_node.values():
            commands = [self._make_command(calls[number][0], script, calls[number][1], now) for number in numbers]
            try:
                received = yield Execute(self.slots[calls[numbers[0]][0]], commands, deadline)
            except ConnectionLost:
                continue
            for number, reply in zip(numbers, received, strict=True):
                replies[number] = reply
        results: list[Any] = []
        for (shard, args), first in zip(calls, replies, strict=True):
            reply = first
            if reply is None or isinstance(reply, ErrorReply):  # retry within the same deadline
                reply = yield from self.run_once(shard, script, args, deadline)
            results.append((yield from self._maintain_and_repeat(shard, script, args, reply)))
        return results

    def _maintain_and_repeat(self, shard: int, script: str, args: Sequence[Any], reply: Any) -> ConnectionProgram[Any]:
        """While the reply is that the shard has to be swept or reclaimed first, do that and run the script again."""
        while type(reply) is list and reply and reply[0] in (b"reclaim", b"sweep"):
            if reply[0] == b"sweep":
                yield from self.sweep(shard, ops.Sweep())
            else:
                yield from self.reclaim(shard)
            reply = yield from self.run_once(shard, script, args)
        return reply

    def run_once(
        self, shard: int, script: str, args: Sequence[Any], deadline: float | None = None
    ) -> ConnectionProgram[Any]:
        """Run a script that may run twice if a reply is lost, and return its reply as it is."""
        command = self._make_command(shard, script, args, self._now())
        is_write = script in _MAINTENANCE
        deadline = deadline or self.make_deadline()
        return (yield from self.execute(shard, command, deadline, self._scripts[script].text, is_write=is_write))

    def run_write(
        self, shard: int, script: str, args: Sequence[Any], deadline: float | None = None
    ) -> ConnectionProgram[Any]:
        """Run `put` or `batch`, which take effect once. Raises `OutcomeUnknown` if it was sent and never answered."""
        command = self._make_command(shard, script, args, self._now())
        unanswered: list[ConnectionLost] = []
        deadline = deadline or self.make_deadline()
        text = self._scripts[script].text
        try:
            return (yield from self.execute(shard, command, deadline, text, unanswered, is_write=True))
        except (Unavailable, StoreClosed) as error:
            if not unanswered:
                raise
            raise OutcomeUnknown(
                "the connection was lost during a write, and its outcome is unknown; read the entry to find out:"
                f" {error}"
            ) from error

    def _now(self) -> Any:
        clock = self._options.clock
        return "" if clock is None else clock()

    def _make_command(self, shard: int, name: str, args: Sequence[Any], now: Any) -> Command:
        """Make the command that runs a script by its hash."""
        prefix = self.prefixes[shard]
        first: tuple[Any, ...] = ("2", prefix, f"{prefix}:none", now) if self.is_cluster else ("1", prefix, now)
        if name in _WRITES:
            first += (f"{shard}/{len(self.all)}", str(self.newest_version))
        return ("EVALSHA", self._scripts[name].sha, *first, *args)

    def execute(
        self,
        shard: int,
        command: Command,
        deadline: float,
        script_text: str = "",
        unanswered: list[ConnectionLost] | None = None,
        is_write: bool = False,
    ) -> ConnectionProgram[Any]:
        """Execute a command on the node of a shard, and retry until the deadline.

        `script_text` is for a server that does not have the script of `command`. `unanswered` collects the errors of
        tries that were sent and got no reply.
        """
        slot = self.slots[shard]
        refusal: ErrorReply | None = None  # says more than the timeout of the last try
        has_reclaimed = False
        for tries in itertools.count():
            try:
                [reply] = yield Execute(slot, [command], deadline, is_write=is_write)
                if isinstance(reply, ErrorReply) and str(reply).startswith("ASK "):
                    address = self.connections.parse_address(str(reply).split(" ")[2], slot)
                    _, reply = yield Execute(slot, [("ASKING",), command], deadline, address)
            except ConnectionLost as error:
                if unanswered is not None and error.was_sent:
                    unanswered.append(error)
                yield from self._pause_before_retry(refusal or error, tries, deadline)
                if self.is_cluster:
                    yield from self.discover_slots(deadline)
                continue
            if not isinstance(reply, ErrorReply):
                return reply
            message = str(reply)
            if message.startswith("NOSCRIPT"):
                command = ("EVAL", script_text, *command[2:])
            elif message.startswith("MOVED ") and not self.is_cluster:
                raise InvalidInput("this server is a node of a Redis Cluster: use redis+cluster:// for it") from reply
            elif message.startswith("MOVED "):
                self.connections.move_slot(slot, message.split(" ")[2])
                if tries > 2:
                    yield from self._pause_before_retry(reply, tries, deadline)
            elif message.startswith(_TEMPORARY):
                refusal = reply
                yield from self._pause_before_retry(reply, tries, deadline)
                if self.is_cluster:
                    yield from self.discover_slots(deadline)
            elif message.startswith("OOM") and unanswered is not None and not has_reclaimed:
                has_reclaimed = True  # what fills the server may be the entries of deleted trees
                yield from self.reclaim(shard)
            elif "INCOMPLETE" in message:
                raise Corrupt(
                    "parts of a file's content are missing, because the server has lost keys; check that it does not"
                    f" evict them (maxmemory-policy): {message}"
                ) from reply
            elif "LOST record" in message:
                raise Corrupt(f"an entry is listed, but its record is missing: {message}") from reply
            elif message.startswith(_UNAUTHORIZED):
                raise Unavailable(f"Redis refused the login, or its user lacks a permission: {message}") from reply
            else:
                raise Unavailable(f"Redis refused a command: {message}") from reply
        raise AssertionError("unreachable")

    def prepare(self, perform: Callable[[Any], Any], deadline: float) -> ErrorReply | None:
        """Prepare a new connection; return the server's error reply, if there is one."""
        return None if self.is_cluster else drive(self._begin_run(deadline), perform)

    def _begin_run(self, deadline: float) -> ConnectionProgram[ErrorReply | None]:
        """Record the server's present run in the store of a single server, if it is not recorded yet."""
        prefix = self.prefixes[0]
        [recorded] = yield Execute(0, [("HGET", prefix, "r")], deadline)
        if isinstance(recorded, ErrorReply):
            return recorded
        if recorded is not None:
            [reply] = yield Execute(0, [("EVALSHA", recorded, 0)], deadline)
            if not isinstance(reply, ErrorReply):
                return None
            if not str(reply).startswith("NOSCRIPT"):
                return reply
        mark = f"return 'a run of the server: {secrets.token_hex(16)}'"
        sha = hashlib.sha1(mark.encode()).hexdigest()  # noqa: S324  # Redis identifies scripts by it
        command = self._make_command(0, "begin_run", [recorded or "", sha], self._now())
        begin = ("EVAL", self._scripts["begin_run"].text, *command[2:])
        replies = yield Execute(0, [("EVAL", mark, 0), begin], deadline)
        return next((reply for reply in replies if isinstance(reply, ErrorReply)), None)

    def discover_slots(self, deadline: float) -> ConnectionProgram[None]:
        """Ask the nodes for the map of slots, one after the other, until one replies with it."""
        for address in self.connections.nodes:
            try:
                until = min(deadline, time.monotonic() + _SLOTS_TIMEOUT)
                [slots] = yield Execute(0, [("CLUSTER", "SLOTS")], until, address)
            except ConnectionLost:
                continue
            if isinstance(slots, ErrorReply):
                if "cluster support disabled" in str(slots):
                    raise Unavailable("this server is not a node of a Redis Cluster: use redis:// for it")
                continue
            if slots:
                self.connections.set_slots(slots, address)
                return

    def _pause_before_retry(self, error: Exception, tries: int, deadline: float) -> ConnectionProgram[None]:
        delay = retry_delay(tries, deadline)
        if delay is None:
            raise Unavailable(f"Redis could not be reached for {self._options.timeout} s: {error}") from error
        yield Sleep(delay)

    def scan_keys(self, shard: int, pattern: str, cursor: bytes) -> ConnectionProgram[tuple[bytes, list[bytes]]]:
        """Return some keys of a shard whose names match a pattern after the shard's prefix, and the next cursor.

        The first cursor, and the last one, is `b"0"`.
        """
        prefix = self.prefixes[shard].replace("*", "\\*").replace("?", "\\?").replace("[", "\\[")
        scan = ("SCAN", cursor, "MATCH", prefix + pattern, "COUNT", 1000)
        after, found = yield from self.execute(shard, scan, self.make_deadline())
        return after, found

    def delete_keys(self, shard: int, found: Sequence[bytes]) -> ConnectionProgram[None]:
        """Delete keys of a shard."""
        if found:
            yield from self.execute(shard, ("UNLINK", *found), self.make_deadline())

    # Entries and contents --------------------------------------------------------------------------------------------

    def get(self, shard: int, entry_id: str) -> ConnectionProgram[Any]:
        """Read an entry: its head, value, and a file's content; None if there is none."""
        for tries in itertools.count():
            found = yield from self.run_once(shard, "get", [entry_id, _part_size(tries)])
            if found is None or len(found) > 2:
                return found
            size = parse_size(found[0])
            if size is None or size > file_values.LARGEST:  # the content of a larger file is not part of its value
                return found
            content = yield from self._read_rest(shard, entry_id, parse_body(found[0]), 0, size)
            if content is not None:
                return [*found, content]
        raise AssertionError("unreachable")

    def read(self, shard: int, entry_id: str, start: int = 0, end: Any = "") -> ConnectionProgram[bytes | None]:
        """Read a range of a file, or None if there is no file. The bytes are of one version of it."""
        for tries in itertools.count():
            found = yield from self.run_once(shard, "read", [entry_id, start, end, _part_size(tries), ""])
            if found is None:
                return None
            body, finish, first = found
            rest = yield from self._read_rest(shard, entry_id, body, start + len(first), int(finish))
            if rest is not None:
                return first + rest if rest else first  # type: ignore[no-any-return]  # bytes
        raise AssertionError("unreachable")

    def _read_rest(
        self, shard: int, entry_id: str, body: bytes, start: int, end: int
    ) -> ConnectionProgram[bytes | None]:
        """Read the rest of a body in parts; None if the file was deleted, or has another body now."""
        parts = []
        while start < end:
            found = yield from self.run_once(shard, "read", [entry_id, start, end, _PART, body])
            if found is None or found[0] == b"changed":
                return None
            parts.append(found[2])
            start += len(found[2])
        return b"".join(parts)

    # Maintenance -----------------------------------------------------------------------------------------------------

    def reclaim(self, shard: int) -> ConnectionProgram[None]:
        """Replace the entries of deleted trees with tombstones, a step at a time."""
        while (yield from self.reclaim_some(shard)):
            yield Sleep(0)

    def reclaim_some(self, shard: int) -> ConnectionProgram[bool]:
        """Do a step of `reclaim`; return whether there is more to do."""
        return bool((yield from self.run_once(shard, "reclaim", [_STEP])))

    def sweep(self, shard: int, op: ops.Sweep) -> ConnectionProgram[int]:
        """Replace expired entries with tombstones, and return their number."""
        swept, skip = 0, 0
        while swept < op.limit:
            args = [min(op.limit - swept, _STEP), keys.encode(op.prefix), skip, _KEEP_ANSWERS]
            _, count, skip, has_more = yield from self.run(shard, "sweep", *args)
            swept += count
            if not has_more:
                break
        return swept


def _part_size(tries: int) -> str:
    """Return how many bytes of a content to read at once."""
    return str(_PART if tries < _MOST_TRIES else _ALL)


def _root_of(namespace: Namespace) -> str:
    """Return the root that decides the shard. holdall's own namespaces for a root are in the root's shard."""
    return namespace[1] if namespace[0] == keys.RESERVED and len(namespace) > 2 else namespace[0]


def _list_namespaces(op: Any) -> Iterable[Namespace]:
    yield op.namespace
    if isinstance(op, ops.Move) and op.source is not None:
        yield op.source
