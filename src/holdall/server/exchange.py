"""One request and its answer: what the handlers of all routes share.

A handler is `async def handler(call: Call) -> Response`. `Endpoint` admits the sender, calls the handler of the
method, and turns errors into problem documents.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
import types
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import unquote, unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..errors import HoldallError, InvalidInput, shown
from .auth.gate import Access
from .messages import IndexedRequest, JsonAnswer
from .problems import HttpError, to_response
from .tracing import request_span

if TYPE_CHECKING:
    from .app import Service

logger = logging.getLogger("holdall.server")

T = TypeVar("T")
_SLOWEST = 16 * 1024  # bytes a second: a client that sends its body more slowly is cut off
_SMALL = 64 * 1024  # bytes of a body that is read in one piece
_HEARTBEAT = 15.0  # seconds without data on a stream, after which a heartbeat is sent
_encode = msgspec.json.Encoder().encode
_TIME = re.compile(r"\d{4}-\d\d-\d\d")
_TRUE, _FALSE = ("true", "1", "yes", ""), ("false", "0", "no")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a server."""

    body: int = 64 << 20  # bytes of a request
    batch: int = 10_000  # ops in a batch
    page: int = 1000  # results in one answer
    body_timeout: float = 30.0  # seconds for a body, and more for a large one
    header_timeout: float = 30.0  # seconds for the head of a request
    archive: int = 4 << 30  # bytes of a backup or a table that a client sends
    watchers: int = 10_000  # open streams of one worker
    grep: int = 1000  # lines in one answer


class Call:
    """A request: its sender's access and store, its arguments and its body."""

    __slots__ = ("access", "request", "service")

    def __init__(self, service: Service, request: Request, access: Access) -> None:
        self.service, self.request, self.access = service, request, access

    @property
    def store(self) -> Any:
        """The store, scoped to the token; as it was at a moment, with the argument `at`; with the author of writes."""
        store: Any = self.access.store
        when = self.text("at")
        if when is not None:
            self.access.require("history")
            store = store.at(parse_moment("at", when))
        author = self.request.headers.get("holdall-author")
        if author:
            reason = self.request.headers.get("holdall-reason")
            store = store.acting(unquote(author), reason=unquote(reason) if reason else None)
        return store

    def body(self) -> Awaitable[bytes]:
        """Read the body, decompressed; refuse one that is too large or too slow."""
        return read_body(self.request, self.service.limits)

    async def save_body(self, path: Path) -> None:
        """Write the body, which may be a large one, to a file."""
        limits = self.service.limits
        with path.open("wb") as file:
            async for chunk in read_chunks(self.request, limits, limits.archive):
                await asyncio.to_thread(file.write, chunk)

    async def json(self, kind: type[T]) -> T:
        """Read the body as JSON of a type."""
        return decode_json(await self.body(), kind)

    def segments(self, start: str) -> list[str]:
        """Return the segments of the path after `start`, each decoded once, so that "%2F" is a part of a segment."""
        raw: bytes = self.request.scope.get("raw_path") or self.request.scope["path"].encode()
        mount, found, rest = raw.partition(start.encode())
        if not found or unquote_to_bytes(mount) != self.request.scope.get("root_path", "").encode():
            raise HttpError(404, "there is nothing here", title="NotFound")
        try:
            if b"%" not in rest:
                return rest.decode().split("/")
            return [unquote_to_bytes(segment).decode() for segment in rest.split(b"/")]
        except UnicodeDecodeError:
            raise InvalidInput(f"the path is not UTF-8: {shown(rest)}") from None

    def has_tag(self, tag: str | None) -> bool:
        """Whether If-None-Match lists an ETag: the sender has this version already. A proxy may have made it weak."""
        given = self.request.headers.get("if-none-match")
        return given is not None and any(one.strip().removeprefix("W/") in (tag, "*") for one in given.split(","))

    # Arguments in the query ------------------------------------------------------------------------------------------

    def text(self, name: str) -> str | None:
        """An argument of the query."""
        return self.request.query_params.get(name) if self.request.scope["query_string"] else None

    def texts(self, name: str) -> list[str]:
        """An argument of the query that may be repeated."""
        return self.request.query_params.getlist(name) if self.request.scope["query_string"] else []

    def number(self, name: str, default: int, most: int | None = None) -> int:
        """A whole number of the query."""
        given = self.text(name)
        if given is None:
            return default
        if not given.isascii() or not given.isdigit() or len(given) > 18:
            raise InvalidInput(f"{name} is a whole number, not {shown(given)}")
        return int(given) if most is None else min(int(given), most)

    def flag(self, name: str, default: bool = False) -> bool:
        """A flag of the query."""
        given = self.text(name)
        if given is None:
            return default
        if given.lower() in _TRUE:
            return True
        if given.lower() in _FALSE:
            return False
        raise InvalidInput(f"{name} is true or false, not {shown(given)}")


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]
#: Headers on which a write depends.
CONDITIONS = ("if-match", "if-none-match", "holdall-lease")
#: The JSON schemas of most arguments in the query.
TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}


class Taken(msgspec.Struct, frozen=True):
    """What a handler takes besides the path and the body: headers, and arguments of the query with their schemas."""

    headers: tuple[str, ...] = ()
    arguments: dict[str, dict[str, Any]] = {}


_taken: dict[Handler, Taken] = {}


def takes(*headers: str, **arguments: dict[str, Any]) -> Callable[[Handler], Handler]:
    """Declare the headers and the arguments of the query that a handler takes.

    A request with another argument is refused, and so is a write with another one of `CONDITIONS`.
    """

    def declare(handler: Handler) -> Handler:
        _taken[handler] = Taken(headers, arguments)
        return handler

    return declare


def taken_by(handler: Handler) -> Taken:
    """What `takes` has declared."""
    return _taken.get(handler, Taken())


class Endpoint:
    """The ASGI app of a route: one handler for each method, and the right that it needs; None: no token is needed."""

    def __init__(self, service: Service, name: str, handlers: Mapping[str, tuple[Handler, str | None]]) -> None:
        self.service, self.name, self.handlers = service, name, dict(handlers)
        self._refused = {
            method: [name for name in CONDITIONS if name not in taken_by(handler).headers]
            for method, (handler, _) in handlers.items()
            if method != "GET"
        }
        self._is_strict = name.startswith("/v1/")  # LangGraph's SDK and browsers may send arguments of their own
        if "GET" in self.handlers and self.handlers["GET"][1] != "watch":  # a stream has no end to wait for
            self.handlers["HEAD"] = self.handlers["GET"]

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        request = IndexedRequest(scope, receive)
        return self._trace(request, send) if self.service.tracing.is_on() else self._respond(request, None, send)

    async def _trace(self, request: Request, send: Send) -> None:
        with request_span(request, self.name) as set_status:
            await self._respond(request, set_status, send)

    async def _respond(self, request: Request, set_status: Callable[[int], None] | None, send: Send) -> None:
        began = time.perf_counter()
        access: Access | None = None
        try:
            response, access = await self._answer(request)
        except HoldallError as error:
            response = to_response(error)
        except ClientDisconnect:
            return
        except Exception:  # a fault of ours: the sender gets an answer, and the log has the traceback
            logger.exception("a request to %s failed", self.name)
            response = to_response(HttpError(500, "the server failed; its log says why", title="HoldallError"))
        if set_status is not None:
            set_status(response.status_code)
        seconds = time.perf_counter() - began
        if not isinstance(response, JsonAnswer):  # it may be a stream
            self.service.finish(request, self.name, response, access, seconds)
            await response(request.scope, request.receive, send)
            return
        self.service.add_json_headers(request, response.raw_headers)
        try:
            await response(request.scope, request.receive, send)
        finally:  # the sender need not wait for this
            self.service.record(request, self.name, response.status_code, access, seconds)

    async def _answer(self, request: Request) -> tuple[Response, Access | None]:
        gate = self.service.gate
        gate.check_host(request)
        method = request.scope["method"]
        found = self.handlers.get(method)
        if found is None:
            if method == "OPTIONS":
                return Response(status_code=204, headers={"Allow": ", ".join(sorted(self.handlers))}), None
            raise HttpError(405, f"{method} is not possible here", {"Allow": ", ".join(sorted(self.handlers))})
        handler, right = found
        if right is None:
            return await handler(Call(self.service, request, None)), None  # type: ignore[arg-type]  # needs no access
        access = await gate.admit(request)
        if right:
            access.require(right)
        for condition in self._refused.get(method, ()):
            if condition in request.headers:
                raise InvalidInput(f"{method} {self.name} does not obey the header {condition}; nothing was done")
        if self._is_strict and request.scope["query_string"]:
            self._check_arguments(request, taken_by(handler))
        return await handler(Call(self.service, request, access)), access

    def _check_arguments(self, request: Request, taken: Taken) -> None:
        """Refuse arguments of the query that the handler would ignore: most are misspelt, or given twice."""
        given = [name for name, _ in request.query_params.multi_items()]
        unknown = [name for name in given if name not in taken.arguments]
        if unknown:
            known = ", ".join(sorted(taken.arguments)) or "none"
            raise InvalidInput(
                f"{request.method} {self.name} does not take the argument {shown(unknown[0])}; it takes {known}"
            )
        if len(set(given)) < len(given):
            for name in {name for name in given if given.count(name) > 1}:
                if taken.arguments[name].get("type") != "array":
                    raise InvalidInput(f"{request.method} {self.name} takes one {name}, not {given.count(name)}")


async def stream(
    call: Call,
    chunks: AsyncIterator[bytes],
    media_type: str,
    *,
    first: bytes,
    idle: bytes,
    close: Callable[[], Awaitable[object]],
) -> Response:
    """Answer with chunks as they come, after `first`, with `idle` as a heartbeat between them.

    The token is checked again before each chunk, and the stream ends when it is revoked. `close` is awaited at the end,
    also if the stream is refused.
    """
    if call.service.watchers >= call.service.limits.watchers:
        await close()
        raise HttpError(503, "too many streams are open; try again later", {"Retry-After": "5"}, "Unavailable")
    return _Stream(call, chunks, media_type, first, idle, close)


class _Stream(StreamingResponse):
    """The answer of `stream`. It cleans up itself: when a client leaves, Starlette cancels what sends the chunks."""

    def __init__(
        self,
        call: Call,
        chunks: AsyncIterator[bytes],
        media_type: str,
        first: bytes,
        idle: bytes,
        close: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(self._keep_alive(first, idle), 200, {"X-Accel-Buffering": "no"}, media_type)
        self._call, self._chunks, self._close = call, chunks, close
        self._waiting: asyncio.Task[bytes | None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._call.service.watchers += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._call.service.watchers -= 1
            if self._waiting is not None:
                self._waiting.cancel()
                await asyncio.wait([self._waiting])
            await self._close()

    async def _keep_alive(self, first: bytes, idle: bytes) -> AsyncIterator[bytes]:
        yield first
        while True:
            if self._waiting is None:
                self._waiting = asyncio.ensure_future(_next(self._chunks))
            done, _ = await asyncio.wait([self._waiting], timeout=_HEARTBEAT)
            try:
                await self._call.service.gate.check_again(self._call.access)
            except HoldallError:
                return
            chunk = self._waiting.result() if done else idle
            if chunk is None:
                return
            if done:
                self._waiting = None
            yield chunk


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


def parse_moment(name: str, text: str) -> datetime | str:
    """A moment: a time in ISO form, which is UTC without an offset; or a cursor."""
    if not _TIME.match(text):
        return text
    try:
        found = datetime.fromisoformat(text.replace(" ", "+"))  # a "+" that a form has decoded
    except ValueError:
        raise InvalidInput(f"{name} is a time such as 2026-01-31T12:00:00Z, or a cursor, not {shown(text)}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


async def read_chunks(request: Request, limits: Limits, most: int) -> AsyncIterator[bytes]:
    """The body of a request, decompressed, in chunks; refuse one that is too large or too slow."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise HttpError(415, f"the content encoding {encoding[:50]!r} is not known; send gzip, or none")
    inflate = None if encoding == "identity" else zlib.decompressobj(47)  # gzip or zlib, whatever it is
    loop = asyncio.get_running_loop()
    began, received, size = loop.time(), 0, 0
    stream = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout_at(began + limits.body_timeout + received / _SLOWEST):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise _too_slow() from None
        if chunk is None:
            break
        received += len(chunk)
        if inflate is not None:
            try:
                chunk = inflate.decompress(chunk, most - size + 1)
            except zlib.error:
                raise InvalidInput("the body is not compressed as its content encoding says") from None
            if inflate.unused_data:
                raise InvalidInput("data follows the end of the compressed body; compress the whole body in one piece")
        size += len(chunk)
        if max(size, received) > most:
            raise _too_large(most)
        if chunk:
            yield chunk
    if inflate is not None and not inflate.eof:
        raise InvalidInput("the body is not compressed as its content encoding says: it is cut off")


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the body of a request, decompressed; refuse one that is too large or too slow."""
    headers = request.headers
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) <= _SMALL and "content-encoding" not in headers:
        # Most bodies: without an async generator for each.
        try:
            body = await _finish_within(limits.body_timeout, _receive_all(request))
        except TimeoutError:
            raise _too_slow() from None
        if len(body) > limits.body:
            raise _too_large(limits.body)
        return body
    return b"".join([chunk async for chunk in read_chunks(request, limits, limits.body)])


async def _receive_all(request: Request) -> bytes:
    body: bytes = b""
    while True:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


async def _finish_within(seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine, with a timer if it has to wait: to set and cancel one takes 10 us of the 220 us of a put."""
    try:
        awaited = coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped
    async with asyncio.timeout(seconds):
        return await _go_on(coroutine, awaited)


@types.coroutine
def _go_on(coroutine: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Await a coroutine that has begun."""
    try:
        while True:
            try:
                value = yield awaited
            except BaseException as error:
                awaited = coroutine.throw(error)
            else:
                awaited = coroutine.send(value)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped


@functools.cache
def _decoder(kind: Any) -> Any:
    return msgspec.json.Decoder(kind)


def decode_json(body: bytes, kind: type[T]) -> T:
    """Decode JSON of a type; `InvalidInput` names what is wrong."""
    try:
        return _decoder(kind).decode(body)  # type: ignore[arg-type, no-any-return]  # types are hashable
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not what this route takes: {error}") from None


def answer(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a JSON document."""
    return JsonAnswer(_encode(document), status, headers)


def no_content(headers: Mapping[str, str] | None = None) -> Response:
    """Answer that it is done."""
    return Response(status_code=204, headers=headers)


def _too_slow() -> HttpError:
    return HttpError(408, "the body came too slowly", {"Connection": "close"})


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body of this request has at most {most:,} bytes", {"Connection": "close"})
