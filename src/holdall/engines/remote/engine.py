"""The remote engine: it sends batches of ops to a server, which runs them on its own store.

A write carries a slot (`holdall.wire.Slot`), in which the server keeps its results. So a write whose reply was lost is
sent again, and takes effect once. What a server does not do for its clients, such as learning filter fields, it does
for itself.
"""

from __future__ import annotations

import gzip
import itertools
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ... import ops, wire
from ...engine import Capabilities, Options
from ...errors import HoldallError, InvalidInput, OutcomeUnknown, StoreClosed, Timeout, Unavailable, shown
from ...model import file_values
from ...model.keys import RESERVED
from ...ops import READS, WALKS, Op, Page, replace
from ...runtime.programs import Sleep, adrive, drive
from ..net.pool import check_options
from ..net.retry import retry_delay
from .connections import Answer, ConnectionLost, ConnectionProgram, Connections, Send
from .listener import NotificationListener

_PATH = "/v1/engine"
_COMPRESSED_FROM = 16 << 10  # bytes of a request
_MOST_TRIES_AT_ONCE = 3  # connections that were idle may all be closed by now
_RETRIED_STATUS = (502, 503, 504)  # of a proxy whose server is away
_PIECE = 8 << 20  # bytes of a file in one request
_MOST_TRIES_IN_PIECES = 3
_LARGE = 32 << 20  # bytes of a file that is sent in pieces
_UPLOAD_TTL = 24 * 3600.0
_ANSWERED_HERE = (ops.IndexOrder, ops.Maintain, ops.LearnFields)
_OF_NAMESPACES = (("leases",), ("uploads",))  # what holdall has of its own for a namespace, after the root


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """The options of `holdall.open` that only the remote engine has."""

    token: str | None = None
    ca_file: str | None = None
    pool_min: int = 1
    pool_max: int = 10
    pool_timeout: float = 30.0

    def __post_init__(self) -> None:
        seconds = check_options(self.pool_min, self.pool_max, self.pool_timeout)
        object.__setattr__(self, "pool_timeout", seconds)  # it may be given as a timedelta
        token = self.token or os.environ.get("HOLDALL_TOKEN") or None
        if token is not None and (not isinstance(token, str) or not token.isascii() or not token.isprintable()):
            raise InvalidInput("token= is the text that 'holdall URL token create' has printed")
        object.__setattr__(self, "token", token)

    def __repr__(self) -> str:
        return "RemoteOptions(token=...)"


class RemoteEngine:
    """Entries of a store that a server serves."""

    capabilities = Capabilities(durable=True, multiprocess=True, ranks=True, keeps_history=True)

    def __init__(self, url: str, options: Options, own: RemoteOptions) -> None:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise InvalidInput(f"not the URL of a server: {error}") from None
        if parts.username is not None or parts.query or parts.fragment or not parts.hostname:
            raise InvalidInput("the URL of a server is http://host:8484 or https://host; pass a token with token=")
        self._url, self._options, self._own = parts, options, own
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        """Set the state of an engine without connections: a new one, or one in a forked child."""
        own = self._own
        pool = own.pool_min, own.pool_max, own.pool_timeout
        self._connections = Connections(self._url, own.token, own.ca_file, pool)
        self._client = secrets.token_hex(16)
        self._free_slots: deque[_Slot] = deque()
        self._slot_numbers = itertools.count()
        self._description: dict[str, Any] | None = None

    # The engine's methods --------------------------------------------------------------------------------------------

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        return drive(self._execute(batch), self._connections.perform)

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        return await adrive(self._execute(batch), self._connections.aperform)

    async def aexecute_joined(self, batch: Sequence[Op]) -> list[Any] | None:
        return await self.aexecute(batch)

    def setup(self) -> None:
        drive(self._describe(), self._connections.perform)

    async def asetup(self) -> None:
        await adrive(self._describe(), self._connections.aperform)

    def close(self) -> None:
        self._closed = True
        self._connections.close()

    def before_fork(self) -> None:
        """Do nothing: a child never uses the parent's sockets."""

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            _abandoned.append(self._connections)
            self._reset()

    def listen(self, notify: Callable[[], None]) -> NotificationListener:
        return NotificationListener(self._connections, notify)

    # Batches, as programs --------------------------------------------------------------------------------------------

    def _execute(self, batch: Sequence[Op]) -> ConnectionProgram[list[Any]]:
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        first = batch[0]
        if isinstance(first, _ANSWERED_HERE):
            return [None if isinstance(first, ops.IndexOrder) else False]
        if isinstance(first, ops.Forget) and first.namespace[0] == RESERVED and first.namespace[2:3] in _OF_NAMESPACES:
            return [ops.Forgotten()]  # the server does it
        if isinstance(first, ops.SetHistory | ops.Forget | ops.Scrub):  # each may be done twice
            return (yield from self._send(batch, None)).results
        if isinstance(first, ops.PurgeTombstones | ops.PurgeHistory | ops.IndexTexts | ops.Sweep):
            return [(yield from self._maintain(first))]
        if isinstance(first, ops.Search) and first.limit > wire.MOST_IN_PAGE:
            return [(yield from self._search(first))]
        if isinstance(first, ops.Namespaces) and first.limit > wire.MOST_IN_PAGE:
            return [(yield from self._list_namespaces(first))]
        if isinstance(first, ops.ReadRange) and len(batch) == 1:
            return [(yield from self._read_range(first))]
        if type(first) in WALKS or all(type(op) in READS for op in batch):
            return (yield from self._send(batch, None)).results
        return (yield from (self._write_large(batch) if any(map(_is_large, batch)) else self._write(batch)))

    def _maintain(self, op: Any) -> ConnectionProgram[Any]:
        """Do maintenance, if the token may: the server does it for itself as well."""
        allowed = (yield from self._describe())["allow"]
        if isinstance(op, ops.Sweep) and op.prefix[:1] == (RESERVED,):
            return 0
        if isinstance(op, ops.Sweep):
            return (yield from self._send([op], None)).results[0] if "write" in allowed else 0
        is_allowed = "admin" in allowed
        if isinstance(op, ops.IndexTexts):
            return tuple((yield from self._send([op], None)).results[0]) if is_allowed else (0, False)
        return (yield from self._send([op], None)).results[0] if is_allowed else False

    def _write(self, batch: Sequence[Op]) -> ConnectionProgram[list[Any]]:
        try:
            slot = self._free_slots.pop()
        except IndexError:  # no check before: another thread may take the last one in between
            slot = _Slot(next(self._slot_numbers))
        slot.number += 1
        try:
            reply = yield from self._send(batch, slot)
        except HoldallError as error:
            if not isinstance(error, OutcomeUnknown | Unavailable):  # nothing was written, so the slot is as it was
                self._free_slots.append(slot)
            raise
        slot.version = reply.version
        self._free_slots.append(slot)
        return reply.results

    def _send(self, batch: Sequence[Op], slot: _Slot | None) -> ConnectionProgram[wire.Reply]:
        """Send a batch, again if the connection is lost, and return its reply with decoded results."""
        deadline = time.monotonic() + self._options.timeout
        began = time.monotonic()
        was_sent = False
        for failures in itertools.count():
            age = time.monotonic() - began if was_sent else 0.0
            sent = None if slot is None else wire.Slot(self._client, slot.index, slot.number, slot.version, age)
            body = wire.encode(wire.Batch(list(batch), sent))
            headers: tuple[tuple[str, str], ...] = (("Content-Type", wire.MEDIA_TYPE),)
            if len(body) >= _COMPRESSED_FROM:
                body = gzip.compress(body, 1)
                headers = (*headers, ("Content-Encoding", "gzip"))
            try:
                answer: Answer = yield Send(_PATH, body, deadline, headers)
                if answer.status not in _RETRIED_STATUS or _is_problem(answer):
                    return self._read_reply(batch, answer)
                lost = ConnectionLost(f"the server answered with status {answer.status}", was_sent=True)
            except ConnectionLost as error:
                lost = error
                self._connections.drop_idle()
            was_sent = was_sent or lost.was_sent
            yield from self._wait_before_retry(lost, failures, deadline, was_sent and slot is not None)
        raise AssertionError("unreachable")

    def _read_reply(self, batch: Sequence[Op], answer: Answer) -> wire.Reply:
        if answer.status != 200 or not answer.content_type.startswith(wire.MEDIA_TYPE):
            raise _to_error(answer)
        try:
            reply = wire.decode_reply(answer.body)
            results = [wire.decode_result(op, one) for op, one in zip(batch, reply.results, strict=True)]
        except (msgspec.MsgspecError, TypeError, ValueError, KeyError, IndexError) as error:
            raise Unavailable(f"the server sent a reply that this version of holdall cannot read: {error}") from error
        return wire.Reply(results, reply.version)

    def _wait_before_retry(
        self, lost: ConnectionLost, failures: int, deadline: float, may_be_done: bool
    ) -> ConnectionProgram[None]:
        if failures < _MOST_TRIES_AT_ONCE and lost.was_sent:
            delay: float | None = 0.0 if time.monotonic() < deadline else None
        else:
            delay = retry_delay(failures, deadline)
        if delay is None:
            timeout = f"{self._options.timeout:g} s"
            if may_be_done:
                raise OutcomeUnknown(
                    f"the server could not be reached for {timeout} after a write was sent ({lost}): read the entries"
                    " before you write again"
                ) from lost
            if isinstance(lost.__cause__, TimeoutError):
                raise Timeout(f"the server did not answer within {timeout}; try again, or raise timeout") from lost
            raise Unavailable(f"the server could not be reached for {timeout}: {lost}") from lost
        yield Sleep(delay)

    def _describe(self) -> ConnectionProgram[dict[str, Any]]:
        """Return what the server says about its store and the token. It is asked once."""
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        if self._description is None:
            deadline = time.monotonic() + self._options.timeout
            for failures in itertools.count():
                try:
                    answer: Answer = yield Send(_PATH, None, deadline)
                    if answer.status not in _RETRIED_STATUS or _is_problem(answer):
                        break
                    lost = ConnectionLost(f"the server answered with status {answer.status}")
                except ConnectionLost as error:
                    lost = error
                yield from self._wait_before_retry(lost, failures, deadline, False)
            if answer.status != 200:
                raise _to_error(answer)
            try:
                description = msgspec.json.decode(answer.body)
                self._description = {**description, "allow": frozenset(description["allow"])}
            except (msgspec.MsgspecError, TypeError, KeyError) as error:
                raise Unavailable(f"{self._url.geturl()} is not a server of holdall: {shown(answer.body)}") from error
        return self._description

    # Large requests, in parts ----------------------------------------------------------------------------------------

    def _search(self, op: ops.Search) -> ConnectionProgram[Page[Any]]:
        """Search for more than one page of the server has."""
        found: Page[Any] = Page()
        part = replace(op, limit=wire.MOST_IN_PAGE)
        while True:
            page = (yield from self._send([part], None)).results[0]
            found += page
            found.next = page.next
            if page.next is None or len(found) >= op.limit:
                return found
            left = min(wire.MOST_IN_PAGE, op.limit - len(found))
            part = replace(op, offset=0, cursor=page.next, limit=left)

    def _list_namespaces(self, op: ops.Namespaces) -> ConnectionProgram[list[Any]]:
        found: list[Any] = []
        while True:
            part = replace(op, limit=min(wire.MOST_IN_PAGE, op.limit - len(found)), offset=op.offset + len(found))
            some = (yield from self._send([part], None)).results[0]
            found += some
            if len(some) < part.limit or len(found) >= op.limit:
                return found

    def _read_range(self, op: ops.ReadRange) -> ConnectionProgram[bytes | None]:
        """Read a part of a file. A large one comes in pieces, all of one version of the file."""
        content: bytes | None
        is_small = op.end is not None and op.end - op.start <= _PIECE
        for _ in range(0 if is_small or op.version is not None else _MOST_TRIES_IN_PIECES):
            first = replace(op, end=op.start + _PIECE)
            info, content = (yield from self._send([ops.Stat(op.namespace, op.key), first], None)).results
            if content is None or len(content) < _PIECE:
                return content
            pieces = [content]
            end = info.size if op.end is None else min(op.end, info.size)
            at = op.start + _PIECE
            while at < end:
                piece = replace(op, start=at, end=min(at + _PIECE, end))
                stat, content = (yield from self._send([ops.Stat(op.namespace, op.key), piece], None)).results
                if stat is None or stat.version != info.version:
                    break
                pieces.append(content)
                at += _PIECE
            else:
                return b"".join(pieces)
        # At once: what is small, an old version, or a file that others change faster than its pieces are read.
        [content] = (yield from self._send([op], None)).results
        return content

    def _write_large(self, batch: Sequence[Op]) -> ConnectionProgram[list[Any]]:
        """Write a batch with large contents: they are sent before, as uploads, which the batch moves to their paths."""
        sent: list[Op] = []
        numbers: list[int] = []  # of the results to return
        for op in batch:
            if _is_large(op):
                assert isinstance(op, ops.Put)
                if op.expect is not ops.ANY:
                    sent.append(ops.Check(op.namespace, op.key, op.expect))
                home, key = (RESERVED, op.namespace[0], "uploads"), "/" + secrets.token_hex(16)
                content: bytes = op.value.content  # type: ignore[union-attr]  # a `File`
                for start in range(0, len(content), _PIECE):
                    yield from self._write([ops.Append(home, key, content[start : start + _PIECE], ttl=_UPLOAD_TTL)])
                op = ops.Move(op.namespace, key, op.key, home, op.ttl)  # noqa: PLW2901  # what is sent instead
            numbers.append(len(sent))
            sent.append(op)
        results = yield from self._write(sent)
        return [results[number] for number in numbers]


class _Slot:
    """A slot for the reply of a write. `version` is that of the reply that it has."""

    __slots__ = ("index", "number", "version")

    def __init__(self, index: int) -> None:
        self.index, self.number = index, 0
        self.version: int | None = None


def _is_large(op: Any) -> bool:
    if not (isinstance(op, ops.Put) and isinstance(op.value, ops.File)) or op.ttl is ops.KEEP:
        return False
    return len(op.value.content) > _LARGE and op.value.template == file_values.NATIVE


def _is_problem(answer: Answer) -> bool:
    return answer.content_type.startswith("application/problem+json")


def _to_error(answer: Answer) -> HoldallError:
    if not _is_problem(answer):
        return Unavailable(f"not a server of holdall: it answered with status {answer.status}: {shown(answer.body)}")
    try:
        return wire.from_problem(msgspec.json.decode(answer.body))
    except msgspec.MsgspecError:
        return Unavailable(f"the server answered with status {answer.status}: {shown(answer.body)}")


#: A parent's connections in its forked child: kept here, because collecting them would close them for the parent.
_abandoned: list[Any] = []
