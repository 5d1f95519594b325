"""Changes as server-sent events, from a cursor on; and leases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeAlias

import msgspec
from starlette.responses import Response

from ... import AsyncWatch
from ...core import face_api
from ...errors import CursorExpired, HoldallError, LeaseLost
from ...wire import to_problem
from ..exchange import FLAG, TEXT, Call, Handler, answer, no_content, stream, takes
from .documents import namespace_argument

#: The id of an event, its name and its data.
Event: TypeAlias = tuple[str, str, Any]


class Cursor(msgspec.Struct):
    """A position in the feed."""

    cursor: str


async def get_cursor(call: Call) -> Response:
    """Return the current position of the feed."""
    return answer(Cursor(await call.store.acursor()))


@takes("last-event-id", namespace=TEXT, path=TEXT, since=TEXT, values=FLAG)
async def watch(call: Call) -> Response:
    """Stream the changes in a namespace as server-sent events, each with its cursor as its id."""
    since = call.request.headers.get("last-event-id") or call.text("since")
    namespace, path = namespace_argument(call), call.text("path")
    if path is None:
        subscription: AsyncWatch = call.store.awatch(namespace, since=since)
    else:
        subscription = call.store.files(namespace or ("filesystem",)).awatch(path, since=since)
    with_values = call.flag("values") and call.access.has("read")
    await subscription.__aenter__()  # an expired cursor is an error before the stream begins
    return await stream_events(call, _describe(call, subscription, with_values), subscription.aclose)


async def _describe(call: Call, subscription: AsyncWatch, with_values: bool) -> AsyncIterator[Event]:
    async for change in subscription:
        document: Any = change
        if with_values and change.kind == "put":
            document = {**asdict(change), "entry": await call.store.aget(change.namespace, change.key)}
        yield change.cursor, change.kind, document


async def stream_events(call: Call, events: AsyncIterator[Event], close: Callable[[], Awaitable[object]]) -> Response:
    """Answer with server-sent events. The token is checked again before each; `close` ends what they come from."""
    chunks, first, idle = _encode_events(events), b": connected\n\n", b": still here\n\n"
    return await stream(call, chunks, "text/event-stream", first=first, idle=idle, close=close)


async def _encode_events(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    try:
        async for identity, name, document in events:
            yield f"id: {identity}\nevent: {name}\ndata: ".encode() + msgspec.json.encode(document) + b"\n\n"
    except HoldallError as error:
        name = "expired" if isinstance(error, CursorExpired) else "problem"
        yield f"event: {name}\ndata: ".encode() + msgspec.json.encode(to_problem(error)) + b"\n\n"


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


class Acquired(msgspec.Struct):
    """A lease that was acquired. Its token increases with each holder."""

    name: str
    namespace: list[str]
    token: int
    ttl: float


async def acquire_lease(call: Call) -> Response:
    """Acquire a lease."""
    given = await call.json(Acquire)
    lease = await call.store.alease(given.name, given.ttl, namespace=tuple(given.namespace), wait=given.wait).aacquire()
    return answer(Acquired(lease.name, given.namespace, lease.token, lease.ttl), 201)


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
