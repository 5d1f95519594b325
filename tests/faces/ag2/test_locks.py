"""Locks by name, as AG2's `LockedKnowledgeStore` needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdall
from holdall import Store
from holdall.errors import InvalidInput, LeaseLost
from holdall.faces.ag2 import Locks
from holdall.testing import Clock

NS = ("leased",)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Iterator[Store]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "agent.db")
    with holdall.open(url, clock=clock, sweep_interval=None) as opened:
        yield opened


def test_locks_say_what_they_take(store: Store) -> None:
    with pytest.raises(InvalidInput, match="Store"):
        Locks(5)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(InvalidInput, match="namespace"):
        Locks(store, namespace="users")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(InvalidInput, match="wait"):
        Locks(store, wait=-1)
    with pytest.raises(InvalidInput, match="key"):
        asyncio.run(Locks(store).release([]))  # type: ignore[arg-type]  # the mistake


def test_locks_are_ag2s_and_not_the_stores() -> None:
    assert not hasattr(holdall, "Locks")


def test_locks_by_name_as_ag2_wants_them(store: Store, clock: Clock) -> None:
    async def main() -> None:
        ours, theirs = Locks(store, wait=None), Locks(store, wait=0.01)
        assert await ours.acquire("store:write:/a", ttl=30.0) is True
        assert await theirs.acquire("store:write:/a", ttl=30.0) is False
        assert await ours.acquire("store:write:/a") is False
        assert await theirs.acquire("store:write:/b", ttl=30.0) is True
        await theirs.release("store:write:/a")  # not theirs
        assert await theirs.acquire("store:write:/a", ttl=30.0) is False
        await ours.release("store:write:/a")
        await ours.release("store:write:/a")
        assert await theirs.acquire("store:write:/a", ttl=30.0) is True
        clock.advance(30)
        assert await ours.acquire("store:write:/a", ttl=30.0) is True
        await theirs.release("store:write:/a")  # it is another's by now
        assert await theirs.acquire("store:write:/a", ttl=30.0) is False

    asyncio.run(main())


def test_a_lock_that_expired_is_not_given_back_for_who_has_it_now(store: Store, clock: Clock) -> None:
    locks = Locks(store, wait=None)

    async def late(is_taken: asyncio.Event, is_over: asyncio.Event) -> None:
        assert await locks.acquire("name", ttl=30.0)
        is_taken.set()
        await is_over.wait()
        assert await locks.release("name") is False

    async def main() -> None:
        is_taken, is_over = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(late(is_taken, is_over))
        await is_taken.wait()
        clock.advance(30)
        assert await locks.acquire("name", ttl=30.0)
        is_over.set()
        await task
        assert await locks.acquire("name", ttl=30.0) is False
        assert await locks.release("name") is True
        assert await locks.release("name") is False

    asyncio.run(main())


def test_a_lock_as_a_lease_fences(store: Store, clock: Clock) -> None:
    async def main() -> None:
        locks = Locks(store, wait=None)
        assert locks.store is store
        lease = await locks.lease("name", ttl=30.0)
        assert lease is not None
        assert await locks.lease("name") is None
        await store.aput(NS, "k", {"n": 1}, lease=lease)
        clock.advance(30)
        with pytest.raises(LeaseLost):
            await store.aput(NS, "k", {"n": 2}, lease=lease)

    asyncio.run(main())


def test_increments_under_a_lock_are_all_kept(store: Store) -> None:
    async def main() -> None:
        locks = [Locks(store, wait=30.0) for _ in range(8)]

        async def add(lock: Locks) -> None:
            for _ in range(3):
                assert await lock.acquire("counter")
                entry = await store.aget(NS, "n")
                await store.aput(NS, "n", {"n": (entry.value["n"] if entry else 0) + 1})
                await lock.release("counter")

        await asyncio.gather(*map(add, locks))

    asyncio.run(main())
    assert store.get(NS, "n").value == {"n": 24}
