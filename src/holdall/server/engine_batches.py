"""The route of remote engines: batches of ops as MessagePack (`holdall.wire`)."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator

from starlette.responses import Response

from .. import AsyncWatch, wire
from ..core import face_api
from ..errors import HoldallError, InvalidInput
from .exchange import Call, Handler, answer, stream

_COMPRESSED_FROM = 16 << 10  # bytes of a reply


async def run_batch(call: Call) -> Response:
    """Run a batch of a remote engine."""
    batch = wire.decode_batch(await call.body())
    if len(batch.ops) > call.service.limits.batch:
        raise InvalidInput(f"a batch has at most {call.service.limits.batch} ops, not {len(batch.ops)}")
    store = face_api.view_for(call.store, batch)
    reply = await face_api.arun(store, face_api.run_batch(store, batch, call.access.require))
    body = wire.encode(reply)
    headers = {}
    if len(body) >= _COMPRESSED_FROM and "gzip" in call.request.headers.get("accept-encoding", ""):
        body = await asyncio.to_thread(gzip.compress, body, 1)
        headers["Content-Encoding"] = "gzip"
    return Response(body, 200, headers, wire.MEDIA_TYPE)


async def describe(call: Call) -> Response:
    """Describe to a remote engine what its token allows."""
    return answer({"holdall": face_api.VERSION, "allow": call.access.token.allow})


async def notify(call: Call) -> Response:
    """Stream a line whenever something in the scope has changed, and at intervals as a heartbeat."""
    watch: AsyncWatch = call.store.awatch()
    await watch.__aenter__()  # what changes after the first line is announced
    chunks = _notifications(watch)
    return await stream(call, chunks, "application/x-ndjson", first=b"\n", idle=b"\n", close=watch.aclose)


async def _notifications(watch: AsyncWatch) -> AsyncIterator[bytes]:
    with contextlib.suppress(HoldallError):  # the stream ends, and the client opens another one
        async for _ in watch:
            yield b"*\n"


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    "/v1/engine": {"POST": (run_batch, ""), "GET": (describe, "")},
    "/v1/engine/notifications": {"GET": (notify, "watch")},
}
