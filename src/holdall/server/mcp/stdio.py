"""MCP over stdio: one process for one client, on a store that any number of processes may use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated

from ... import Store
from ...core import face_api
from ...errors import AccessDenied, HoldallError
from .tools import act_for_client, build_server

logger = logging.getLogger("holdall.server")


def make_server(store: Store, *, read_only: bool = False) -> Any:
    """Make the server of one store. The client is notified of all changes of files."""
    bus = InMemorySubscriptionBus()

    def store_of(right: str) -> Store:
        if read_only and right not in ("read", "history"):
            raise AccessDenied("this server is read-only")
        return act_for_client(store)

    async def announce() -> None:
        try:
            async with store.files().awatch() as changes:
                async for change in changes:
                    await bus.publish(ResourceUpdated(uri=f"holdall://files{change.key}"))
        except HoldallError as error:  # the tools work without it: a token may lack `watch`, for example
            logger.warning("changes of files are not announced: %s", error)

    @contextlib.asynccontextmanager
    async def lifespan(_server: Any) -> AsyncIterator[None]:
        announcing = asyncio.create_task(announce())
        try:
            yield
        finally:
            announcing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await announcing

    has_history = face_api.capabilities_of(store).keeps_history
    return build_server(store_of, read_only=read_only, has_history=has_history, subscriptions=bus, lifespan=lifespan)


def run_stdio(store: Store, *, read_only: bool = False) -> None:
    """Serve a store over stdio until the client closes it."""
    make_server(store, read_only=read_only).run("stdio")
