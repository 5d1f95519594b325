"""Changes as server-sent events, from a cursor on; and leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from starlette.responses import Response, StreamingResponse

from ... import AsyncWatch, Change
from ...core import face_api
from ...errors import CursorExpired, HoldallError, LeaseLost
from ...wire import to_problem
from ..exchange import Call, Handler, answer, no_content
from ..problems import HttpError
from .documents import change_document, entry_document, namespace_argument

_HEARTBEAT = 15.0  # seconds between two signs of life


async def get_cursor(call: Call) -> Response:
    """Return the current position of the feed."""
    return answer({"cursor": await call.store.acursor()})


async def watch(call: Call) -> Response:
    """Stream the changes in a namespace as server-sent events, each with its cursor as its id."""
    since = call.request.headers.get("last-event-id") or call.text("since")
    namespace, path = namespace_argument(call), call.text("path")
    if path is None:
        subscription: AsyncWatch = call.store.awatch(namespace, since=since)
    else:
        subscription = call.store.files(namespace or ("filesystem",)).awatch(path, since=since)
    service = call.service
    if service.watchers >= service.limits.watchers:
        raise HttpError(503, "too many streams are open; try again later", {"Retry-After": "5"}, "Unavailable")
    with_values = call.flag("values") and call.access.has("read")
    await subscription.__aenter__()  # an expired cursor is an error before the stream begins
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(_events(call, subscription, with_values), 200, headers, "text/event-stream")


async def _events(call: Call, subscription: AsyncWatch, with_values: bool) -> AsyncIterator[bytes]:
    call.service.watchers += 1
    waiting: asyncio.Task[Change | None] | None = None
    try:
        yield b": connected\n\n"
        while True:
            if waiting is None:
                waiting = asyncio.ensure_future(_next(subscription))
            done, _ = await asyncio.wait([waiting], timeout=_HEARTBEAT)
            if not done:
                await call.service.gate.check_again(call.access)
                yield b": still here\n\n"
                continue
            try:
                change = waiting.result()
            except HoldallError as error:
                name = "expired" if isinstance(error, CursorExpired) else "problem"
                yield f"event: {name}\ndata: ".encode() + msgspec.json.encode(to_problem(error)) + b"\n\n"
                return
            waiting = None
            if change is None:
                return
            await call.service.gate.check_again(call.access)
            document = change_document(change)
            if with_values and document["kind"] == "put":
                entry = await call.store.aget(document["namespace"], document["key"])
                document["entry"] = None if entry is None else entry_document(entry)
            yield (
                f"id: {document['cursor']}\nevent: {document['kind']}\ndata: ".encode()
                + msgspec.json.encode(document)
                + b"\n\n"
            )
    finally:
        call.service.watchers -= 1
        if waiting is not None:
            waiting.cancel()
        await subscription.aclose()


async def _next(subscription: AsyncWatch) -> Change | None:
    return await anext(subscription, None)


# Leases --------------------------------------------------------------------------------------------------------------


class Acquire(msgspec.Struct, forbid_unknown_fields=True):
    """A lease to acquire."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    ttl: Annotated[float, msgspec.Meta(gt=0)]
    namespace: list[str] = []
    wait: Annotated[float, msgspec.Meta(ge=0, le=30)] | None = None


class Held(msgspec.Struct, forbid_unknown_fields=True):
    """A lease that is held, by its token."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    token: int
    namespace: list[str] = []


async def acquire_lease(call: Call) -> Response:
    """Acquire a lease."""
    given = await call.json(Acquire)
    lease = await call.store.alease(given.name, given.ttl, namespace=tuple(given.namespace), wait=given.wait).aacquire()
    return answer({"name": lease.name, "namespace": given.namespace, "token": lease.token, "ttl": lease.ttl}, 201)


async def renew_lease(call: Call) -> Response:
    """Restart the TTL of a lease."""
    given = await call.json(Held)
    await face_api.held_lease(call.store, given.name, given.token, tuple(given.namespace)).arenew()
    return no_content()


async def release_lease(call: Call) -> Response:
    """Release a lease."""
    given = await call.json(Held)
    lease = face_api.held_lease(call.store, given.name, given.token, tuple(given.namespace))
    if not await lease.arelease():
        raise LeaseLost("lease", tuple(given.namespace), given.name, given.token, None)
    return no_content()


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    "/v1/changes": {"GET": (watch, "watch")},
    "/v1/cursor": {"GET": (get_cursor, "watch")},
    "/v1/leases": {
        "POST": (acquire_lease, "lease"),
        "PATCH": (renew_lease, "lease"),
        "DELETE": (release_lease, "lease"),
    },
}
