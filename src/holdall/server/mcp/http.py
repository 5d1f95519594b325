"""MCP over streamable HTTP, at /mcp, with the tokens of the server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ... import Store
from ...core import face_api
from ...errors import AccessDenied, HoldallError
from ..auth.gate import Access
from ..exchange import read_body
from ..problems import HttpError, to_response
from ..tracing import request_span
from .tools import act_for_client, build_server

if TYPE_CHECKING:
    from ..app import Service

_access: ContextVar[Access] = ContextVar("holdall_mcp_access")
_PATH = "/mcp"
_CLIENT_LEFT = 499  # the status that nginx logs for it
_METHODS = "OPTIONS, POST"  # without sessions, a GET would be a stream on which nothing is ever sent


class McpEndpoint:
    """The ASGI app of the route: it admits the sender, whose store the tools then use."""

    def __init__(self, service: Service) -> None:
        self._service = service
        server = build_server(_store_of, has_history=face_api.capabilities_of(service.store).keeps_history)
        self._app = server.streamable_http_app(
            streamable_http_path=_PATH,
            stateless_http=True,
            json_response=True,
            max_request_body_size=service.limits.body,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the gate checks it
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run what serves requests, for as long as the app lives."""
        async with self._app.router.lifespan_context(self._app):
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._service.tracing.is_on():
            await self._respond(scope, receive, send)
            return
        with request_span(Request(scope), _PATH) as set_status:
            set_status(await self._respond(scope, receive, send))

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Answer a request, and return the status."""
        began = time.perf_counter()
        request = Request(scope, receive)
        try:
            self._service.gate.check_host(request)
            if scope["method"] == "OPTIONS":  # a browser asks without a token what it may send
                return await self._refuse(request, Response(status_code=204, headers={"Allow": _METHODS}), began, send)
            access = await self._service.gate.admit(request)
            if scope["method"] != "POST":
                raise HttpError(405, f"{scope['method']} is not possible here", {"Allow": _METHODS})
            body = await read_body(request, self._service.limits)  # with the limits of all routes
        except HoldallError as error:
            return await self._refuse(request, to_response(error), began, send)
        except ClientDisconnect:
            return _CLIENT_LEFT
        status = 500  # unless an answer begins

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                self._service.add_headers(request, headers)
                message = {**message, "headers": headers}
            await send(message)

        token = _access.set(access)
        try:
            await self._app({**scope, "path": _PATH, "root_path": ""}, _with_body(body, receive), note_status)
        finally:
            _access.reset(token)
            self._service.record(request, _PATH, status, access, time.perf_counter() - began)
        return status

    async def _refuse(self, request: Request, response: Response, began: float, send: Send) -> int:
        """Answer without MCP, and return the status."""
        self._service.finish(request, _PATH, response, None, time.perf_counter() - began)
        await response(request.scope, request.receive, send)
        return response.status_code


def _with_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that starts with a body that was read already."""
    read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return read.pop() if read else await receive()

    return receive_again


def _store_of(right: str) -> Store:
    access: Any = _access.get(None)
    if access is None:
        raise AccessDenied("this call has no token")
    access.require(right)
    store: Store = access.store
    return store if access.token.label else act_for_client(store)  # the label of a token is already the author
