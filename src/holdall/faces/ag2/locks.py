"""Locks by name, with the interface that AG2's `LockedKnowledgeStore` needs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from ... import Lease, Store
from ...core import face_api
from ...errors import InvalidInput, LeaseHeld, shown
from ...ops import Namespace


class Locks:
    """Locks by name: `acquire` and `release` are coroutines.

    Each is a lease that is not renewed. `acquire` waits up to `wait`, seconds or a timedelta; None tries once.
    """

    def __init__(
        self, store: Store, *, namespace: Namespace | None = None, wait: float | timedelta | None = 10.0
    ) -> None:
        if not isinstance(store, Store):
            raise InvalidInput(f"pass the Store that keeps the locks, not {shown(store)}")
        store.alease("a name", 30.0, namespace=namespace, wait=wait)  # refuses a bad namespace or wait now
        self._store = store
        self._namespace = namespace
        self._wait = wait
        self._held: dict[str, list[tuple[object, Lease]]] = {}  # by task: another task may hold a lock that expired

    @property
    def store(self) -> Store:
        """The store that keeps the locks, and refuses a write whose lock was lost."""
        return self._store

    async def lease(self, name: str, ttl: float = 30.0) -> Lease | None:
        """Acquire a lock as a `Lease`, for `lease=`; None if another holder has it. Release it with `arelease`."""
        try:
            return await self._store.alease(name, ttl, namespace=self._namespace, wait=self._wait).aacquire()
        except LeaseHeld:
            return None

    async def acquire(self, name: str, ttl: float = 30.0) -> bool:
        """Acquire a lock for at most `ttl` seconds. False if another holder has it."""
        lease = await self.lease(name, ttl)
        if lease is not None:
            self._held.setdefault(name, []).append((asyncio.current_task(), lease))
        return lease is not None

    async def release(self, name: str) -> bool:
        """Release a lock that was acquired here. Returns whether it was still held."""
        held = self._held.get(face_api.check_key(name))
        if not held:
            return False
        task = asyncio.current_task()
        _, lease = held.pop(next((index for index, (holder, _) in enumerate(held) if holder is task), 0))
        if not held:
            del self._held[name]
        return await lease.arelease()
