"""The ASGI app of a store: its routes, and what they share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from .. import Store
from ..errors import InvalidInput, shown
from . import engine_batches, langgraph
from .auth.gate import Access, Gate
from .exchange import Endpoint, Limits
from .explorer import ROUTES as EXPLORER_ROUTES
from .mcp.http import McpEndpoint
from .metrics import Metrics
from .problems import HttpError, to_response
from .rest import ROUTES as REST_ROUTES
from .run.logs import AccessLog
from .tracing import Tracing

#: Headers of every answer that does not have its own, except a `JsonAnswer`.
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
#: Those of a `JsonAnswer`. No browser makes a page of JSON, so it needs no headers that restrict pages. A client in
#: Python takes 3 to 4 us to read each header.
_JSON_HEADERS = (_HEADERS[0], _HEADERS[3])
#: No browser shows or runs the answer to another method. No cache keeps it unless its headers allow that (RFC 9110).
_SHOWN = frozenset({"GET", "HEAD", "POST"})
#: Headers that pages of other sites may send.
_CORS_HEADERS = (
    "authorization, x-api-key, content-type, if-match, if-none-match, if-range, range, last-event-id,"
    " holdall-author, holdall-reason, holdall-lease, accept, mcp-protocol-version, mcp-session-id, mcp-method, mcp-name"
)

#: The starts of paths that go to the endpoint of a route directly.
_DIRECT = {"/v1/items/": "/v1/items/{address:path}"}


class _DirectApp(Starlette):
    """A Starlette app that passes requests whose path has a known start to their endpoints. Others match all routes.

    An endpoint answers every request itself, also with an error. So it needs nothing of what comes before a route,
    unless a user has added middleware.
    """

    def __init__(self, starts: Mapping[str, ASGIApp], **options: Any) -> None:
        super().__init__(**options)
        self._starts = starts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self.user_middleware:
            path, mount = scope["path"], scope.get("root_path", "")
            for start, endpoint in self._starts.items():
                if path.startswith(start, len(mount)) and path.startswith(mount):
                    await endpoint(scope, receive, send)
                    return
        await super().__call__(scope, receive, send)


class Service:
    """What the handlers of an app share: the store, the gate, the limits and the metrics."""

    def __init__(self, store: Store, gate: Gate, limits: Limits) -> None:
        self.store, self.gate, self.limits = store, gate, limits
        self.metrics = Metrics()
        self.access_log = AccessLog()
        self.tracing = Tracing()
        self.watchers = 0

    def finish(self, request: Request, route: str, response: Response, access: Access | None, seconds: float) -> None:
        """Add the headers that every answer has, and record the request."""
        self.add_headers(request, response.raw_headers)
        self.record(request, route, response.status_code, access, seconds)

    def add_headers(self, request: Request, raw: list[tuple[bytes, bytes]]) -> None:
        """Add the headers that every answer has to those of an answer."""
        given = {name for name, _ in raw}
        raw += [header for header in _HEADERS if header[0] not in given]
        self._add_cors(request, raw)

    def add_json_headers(self, request: Request, raw: list[tuple[bytes, bytes]]) -> None:
        """Add to the headers of a `JsonAnswer` those that depend on the request."""
        if request.scope["method"] in _SHOWN:
            raw += _JSON_HEADERS
        self._add_cors(request, raw)

    def _add_cors(self, request: Request, raw: list[tuple[bytes, bytes]]) -> None:
        """Add the headers with which pages of other sites may read an answer."""
        origin = request.headers.get("origin")
        if origin is not None and self.gate.allows_origin(origin):
            headers = MutableHeaders(raw=raw)
            headers["Access-Control-Allow-Origin"] = origin
            headers.add_vary_header("Origin")
            headers["Access-Control-Allow-Headers"] = _CORS_HEADERS
            headers["Access-Control-Allow-Methods"] = "GET, HEAD, PUT, POST, PATCH, DELETE"
            headers["Access-Control-Expose-Headers"] = "etag, content-range, mcp-session-id"

    def record(self, request: Request, route: str, status: int, access: Access | None, seconds: float) -> None:
        """Count a request, and write it to the access log."""
        self.metrics.observe(request, route, status, seconds)
        token, client = None if access is None else access.token.id, request.scope.get("client")
        self.access_log.add(request.scope["method"], route, status, seconds, token, client[0] if client else None)


class _AnyPath(PathConvertor):
    """The rest of a path. Starlette's own has no line breaks, which names may have."""

    regex = r"[\s\S]*"


register_url_convertor("any", _AnyPath())


async def _not_found(_request: Request, _error: Exception) -> Response:
    return to_response(HttpError(404, "there is nothing here: /openapi.json lists the routes", title="NotFound"))


def app(
    store: Store,
    *,
    auth: Literal["tokens", "none"] = "tokens",
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    limits: Limits | None = None,
    closes_store: bool = False,
) -> Starlette:
    """Make an ASGI app that serves a store. It can be mounted in another app.

    `auth="none"` lets every sender do everything. `hosts` are the names by which the server is called, besides
    localhost, IP addresses and the name of this machine; `"*"` is any. `origins` are sites whose pages may use it
    (CORS), such as `"https://example.com"`. With `closes_store`, the end of the app closes the store.
    """
    if auth not in ("tokens", "none"):
        raise InvalidInput(f"auth is 'tokens' or 'none', not {shown(auth)}")
    gate = Gate(store, uses_tokens=auth == "tokens", hosts=hosts, origins=origins)
    service = Service(store, gate, limits or Limits())
    endpoints = {
        path: Endpoint(service, path, handlers)
        for table in (engine_batches.ROUTES, REST_ROUTES, langgraph.ROUTES, EXPLORER_ROUTES)
        for path, handlers in table.items()
    }
    routes: list[BaseRoute] = [Route(path.replace(":path}", ":any}"), endpoint) for path, endpoint in endpoints.items()]
    direct = {start: endpoints[path] for start, path in _DIRECT.items()}
    mcp = McpEndpoint(service)
    routes.append(Route("/mcp", mcp))

    @contextlib.asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        await store.asetup()
        sharing = asyncio.create_task(service.metrics.share(service))
        try:
            async with mcp.running():
                yield
        finally:
            sharing.cancel()
            service.access_log.write()
            if closes_store:
                await store.aclose()

    made = _DirectApp(direct, routes=routes, lifespan=lifespan, exception_handlers={404: _not_found})
    made.router.redirect_slashes = False  # behind a proxy with TLS, a client would repeat its token over plain HTTP
    made.state.service = service
    return made
