"""Leases: one holder at a time, tokens that only grow, and writes that the storage refuses once a lease is lost."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from ... import ABSENT, DEFAULT, Files, Lease, Store
from ...errors import Conflict, InvalidInput, LeaseHeld, LeaseLost
from ...ops import Delete, Get, Put
from ..caller import Caller, LeaseCaller
from ..clock import Clock
from .base import Contract, Opener, forked

NS = ("leased",)

#: Every method that changes something, and how it is called: of the store, and of its files.
CHANGES: dict[str, Callable[[Caller, Any], Any]] = {
    "put": lambda store, lease: store.put(NS, "k", {"n": 2}, lease=lease),
    "update": lambda store, lease: store.update(NS, "k", lambda value: {"n": 3}, lease=lease),
    "delete": lambda store, lease: store.delete(NS, "k", lease=lease),
    "delete_tree": lambda store, lease: store.delete_tree(NS, lease=lease),
    "delete of nothing": lambda store, lease: store.delete(NS, "missing", lease=lease),
    "delete_tree of nothing": lambda store, lease: store.delete_tree((*NS, "missing"), lease=lease),
    "execute": lambda store, lease: store.execute([Put(NS, "k", {}), Delete(NS, "k")], lease=lease),
    "execute of nothing": lambda store, lease: store.execute([], lease=lease),
    "restore": lambda store, lease: store.restore(NS, "k", store.get(NS, "k").version, lease=lease),
    "files.write": lambda store, lease: store.files(NS).write("/f", "new", lease=lease),
    "files.restore": lambda store, lease: _restored(store.files(NS), lease),
    "files.edit": lambda store, lease: store.files(NS).edit("/f", "old", "new", lease=lease),
    "files.append": lambda store, lease: store.files(NS).append("/f", "more", lease=lease),
    "files.delete": lambda store, lease: store.files(NS).delete("/f", lease=lease),
    "files.delete of nothing": lambda store, lease: store.files(NS).delete("/missing", lease=lease),
    "files.delete of a tree": lambda store, lease: store.files(NS).delete("/", recursive=True, lease=lease),
    "files.move": lambda store, lease: store.files(NS).move("/f", "/g", lease=lease),
    "files.copy": lambda store, lease: store.files(NS).copy("/f", "/g", lease=lease),
    "files.open": lambda store, lease: _written(store.files(NS).open("/f", "wb", lease=lease)),
    "files.open to append": lambda store, lease: _written(store.files(NS).open("/f", "ab", lease=lease)),
}


def _restored(volume: Any, lease: Any) -> Any:
    return volume.restore("/f", volume.stat("/f").version, lease=lease)


def _written(file: Any) -> None:
    with file:
        file.write(b"new")


def lost(store: Caller, clock: Clock) -> LeaseCaller:
    """A lease that has expired and that another holder has acquired."""
    lease = store.lease("name", 10, namespace=NS)
    clock.advance(10)
    store.lease("name", 10, namespace=NS)
    return lease


class LeaseContract(Contract):
    def test_a_lease_has_one_holder_at_a_time(self, store: Caller) -> None:
        first = store.lease("name", 10)
        with pytest.raises(LeaseHeld, match=r"'name'.*wait=") as held:
            store.lease("name", 10)
        assert isinstance(held.value, Conflict)
        assert held.value.actual == first.lease.token
        assert store.lease("other", 10).lease.owner != first.lease.owner
        assert first.release() is True
        assert first.release() is False
        second = store.lease("name", 10)
        assert (second.lease.name, second.lease.ttl) == ("name", 10)
        assert second.lease.token > first.lease.token

    def test_a_lease_whose_acquisition_is_interrupted_is_not_held(
        self, opened: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The put was done, but its caller is gone: nobody could renew or release the lease."""
        store = opened().store
        engine = store._engine_handle.engine
        execute, aexecute, done = engine.execute, engine.aexecute, [0]

        def interrupted(batch: Any) -> Any:
            results = execute(batch)
            done[0] += 1
            if done[0] == 1:
                raise KeyboardInterrupt
            return results

        async def cancelled(batch: Any) -> Any:
            results = await aexecute(batch)
            done[0] += 1
            task = asyncio.current_task()
            if done[0] == 1 and task is not None:
                task.cancel()
                await asyncio.sleep(0)
            return results

        async def acquire() -> None:
            task = asyncio.create_task(store.alease("name", 600).__aenter__())
            with pytest.raises(asyncio.CancelledError):
                await task

        with monkeypatch.context() as patched:
            patched.setattr(engine, "execute", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.lease("name", 600).__enter__()
        with store.lease("name", 600):
            pass
        done[0] = 0
        with monkeypatch.context() as patched:
            patched.setattr(engine, "aexecute", cancelled)
            asyncio.run(acquire())
        with store.lease("name", 600) as held:
            done[0] = 0
            with monkeypatch.context() as patched:
                patched.setattr(engine, "execute", interrupted)
                with pytest.raises(LeaseHeld):
                    store.lease("name", 600).acquire()
            held.renew()

    def test_a_lease_expires_by_the_engines_clock(self, store: Caller, clock: Clock) -> None:
        first = store.lease("name", timedelta(seconds=10))
        clock.advance(9.999999)
        store.put(NS, "k", {"by": "first"}, lease=first.lease)
        with pytest.raises(LeaseHeld):
            store.lease("name", 10)
        clock.advance(0.000001)
        with pytest.raises(LeaseLost):  # not swept, and nobody else's yet
            store.put(NS, "k", {"by": "first, too late"}, lease=first.lease)
        second = store.lease("name", 10)
        assert second.lease.token > first.lease.token
        store.put(NS, "k", {"by": "second"}, lease=second.lease)
        with pytest.raises(LeaseLost, match="make another one") as error:
            store.put(NS, "k", {"by": "first, too late"}, lease=first.lease)
        assert (error.value.key, error.value.expected) == ("name", first.lease.token)
        assert store.get(NS, "k").value == {"by": "second"}

    @pytest.mark.parametrize("swept", [False, True], ids=["unswept", "swept"])
    def test_the_token_only_grows(self, opened: Opener, clock: Clock, swept: bool) -> None:
        store = opened(feed_retention=0)
        tokens = []
        for turn in range(6):
            lease = store.lease("name", 10)
            tokens.append(lease.lease.token)
            if turn % 2:
                lease.release()
            else:
                clock.advance(10)
            if swept:
                store.sweep()
        assert tokens == sorted(set(tokens))

    def test_renewing_restarts_the_ttl_and_changes_nothing(self, store: Caller, clock: Clock) -> None:
        lease, cursor = store.lease("name", 10), store.cursor()
        token = lease.lease.token
        for _ in range(5):
            clock.advance(9)
            lease.renew()
        store.put(NS, "k", {}, lease=lease.lease)
        assert lease.lease.token == token
        watch = store.watch(since=cursor)
        assert [change.key for change in watch.take(1)] == ["k"]
        watch.close()
        clock.advance(10)
        with pytest.raises(LeaseLost):
            lease.renew()
        assert lease.lease.is_lost

    def test_only_the_holder_renews_and_releases_a_lease(self, store: Caller, clock: Clock) -> None:
        old = lost(store, clock)
        with pytest.raises(LeaseLost):
            old.renew()
        assert old.release() is False
        with pytest.raises(LeaseHeld):
            store.lease("name", 10, namespace=NS)

    @pytest.mark.parametrize("name", CHANGES)
    def test_every_change_is_refused_when_the_lease_is_lost(self, store: Caller, clock: Clock, name: str) -> None:
        store.put(NS, "k", {"n": 1})
        store.files(NS).write("/f", "old")
        lease = lost(store, clock).lease
        before = store.scan(NS)
        watch = store.watch(NS)
        with pytest.raises(LeaseLost):
            CHANGES[name](store, lease)
        assert store.scan(NS) == before
        store.put(NS, "end", {})
        assert [change.key for change in watch.take(1)] == ["end"]
        watch.close()

    @pytest.mark.parametrize("name", CHANGES)
    def test_every_change_is_made_while_the_lease_is_held(self, store: Caller, name: str) -> None:
        results = []
        for lease in (None, store.lease("name", 10).lease):
            store.put(NS, "k", {"n": 1})
            store.files(NS).write("/f", "old")
            store.files(NS).delete("/g")
            results.append(CHANGES[name](store, lease))
            results.append([(entry.key, entry.value.get("content", entry.value)) for entry in store.scan(NS)])
        assert results[1] == results[3]
        assert type(results[0]) is type(results[2])

    def test_every_method_that_changes_something_takes_a_lease(self) -> None:
        taking = {
            prefix + name.removeprefix("a") if name.startswith("a") and hasattr(kind, name[1:]) else prefix + name
            for kind, prefix in ((Store, ""), (Files, "files."))
            for name, method in inspect.getmembers(kind, callable)
            if not name.startswith("_") and "lease" in inspect.signature(method).parameters
        }
        assert taking == {name.partition(" ")[0] for name in CHANGES} | {"rewind"}  # which needs a history

    def test_a_lost_lease_ends_a_retry_at_once(self, store: Caller, clock: Clock) -> None:
        calls = []

        def change(value: dict[str, Any]) -> dict[str, Any]:
            calls.append(value)
            return value

        store.put(NS, "k", {})
        lease = lost(store, clock).lease
        with pytest.raises(LeaseLost):
            store.update(NS, "k", change, lease=lease)
        assert len(calls) == 1

    def test_a_conflict_under_a_lease_is_a_conflict(self, store: Caller) -> None:
        lease = store.lease("name", 10).lease
        store.put(NS, "k", {})
        with pytest.raises(Conflict) as conflict:
            store.put(NS, "k", {}, expect=ABSENT, lease=lease)
        assert not isinstance(conflict.value, LeaseLost)
        assert conflict.value.namespace == NS
        assert not lease.is_lost
        [before, entry] = store.execute([Get(NS, "k"), Put(NS, "k", {"n": 1})], lease=lease)
        assert (before.value, entry.value) == ({}, {"n": 1})

    def test_the_lease_is_checked_in_the_same_batch_as_the_write(self, opened: Opener) -> None:
        events: list[Any] = []
        store = opened(on_op=events.append)
        lease = store.lease("name", 10).lease
        store.put(NS, "k", {}, lease=lease)
        assert [event.ops for event in events][-1] == ("Check", "Put")

    # Where leases are ------------------------------------------------------------------------------------------------

    def test_leases_are_hidden_and_spared(self, store: Caller) -> None:
        lease = store.lease("name", 10, namespace=NS).lease
        plain = store.lease("name", 10).lease
        store.put(NS, "k", {})
        assert store.namespaces() == [NS]
        assert store.count() == store.count(NS) == 1
        assert [entry.key for entry in store.scan()] == ["k"]
        assert [hit.key for hit in store.search()] == ["k"]
        assert store.delete_tree(NS) == 1
        store.put(NS, "k", {}, lease=lease)
        store.put(NS, "k", {}, lease=plain)

    def test_a_name_is_one_lease_in_one_namespace(self, store: Caller) -> None:
        for ns in (None, ("a",), ("a", "b"), ("b",)):
            store.lease("name", 10, namespace=ns)
            with pytest.raises(LeaseHeld):
                store.lease("name", 10, namespace=ns)

    def test_a_scope_has_its_own_leases(self, store: Caller) -> None:
        """A tenant cannot acquire, or wait for, a lease of another tenant."""
        one, two = store.scoped(("tenant", "one")), store.scoped(("tenant", "two"))
        held = one.lease("name", 10)
        two.lease("name", 10)
        for other in (one, store.scoped(("tenant",))):
            with pytest.raises(LeaseHeld) as error:
                other.lease("name", 10, namespace=() if other is one else ("one",))
            assert error.value.namespace == (() if other is one else ("one",))
        with pytest.raises(LeaseHeld):
            store.lease("name", 10, namespace=("tenant", "one"))
        if store.store._engine_handle.engine.capabilities.spans_roots:
            store.put(("elsewhere",), "k", {}, lease=held.lease)
        two.put((), "k", {}, lease=held.lease)
        held.release()
        for any_of_them in (store, one, two):
            with pytest.raises(LeaseLost):
                any_of_them.put(("tenant",), "k", {}, lease=held.lease)

    @pytest.mark.parametrize(
        ("name", "ttl", "options"),
        [
            ("", 10, {}),
            (5, 10, {}),
            ("a\x00", 10, {}),
            ("name", 0, {}),
            ("name", -1, {}),
            ("name", None, {}),
            ("name", "10", {}),
            ("name", 10, {"namespace": "text"}),
            ("name", 10, {"namespace": ("__holdall__",)}),
            ("name", 10, {"wait": -1}),
            ("name", 10, {"wait": True}),
            ("name", 10, {"wait": float("nan")}),
            ("name", 10, {"wait": timedelta(seconds=-1)}),
            ("name", DEFAULT, {}),
        ],
    )
    def test_bad_input_is_refused(self, store: Caller, name: Any, ttl: Any, options: Any) -> None:
        with pytest.raises(InvalidInput):
            store.lease(name, ttl, **options)

    def test_only_a_lease_of_this_store_is_taken(self, store: Caller) -> None:
        import holdall

        with holdall.open("memory:") as another:
            foreign = another.lease("name", 10).acquire()
        wrongs: tuple[Any, ...] = (foreign, "name", 5, True, {})
        for wrong in wrongs:
            with pytest.raises(InvalidInput, match="lease="):
                store.put(NS, "k", {}, lease=wrong)
            with pytest.raises(InvalidInput, match="lease="):
                store.files(NS).write("/f", "", lease=wrong)
        store.put(NS, "k", {}, lease=store.scoped(NS).lease("name", 10).lease)  # of the same engine

    # Waiting for one -------------------------------------------------------------------------------------------------

    def test_a_waiting_caller_acquires_the_lease_when_it_is_released(self, store: Caller) -> None:
        first = store.store.lease("name", 60).acquire()
        release = threading.Timer(0.05, first.release)
        release.start()
        second = store.lease("name", 60, wait=30)
        release.join()
        assert second.lease.token > first.token

    def test_a_waiting_caller_acquires_the_lease_when_it_expires(self, opened: Opener) -> None:
        store = opened(clock=None)
        first = store.lease("name", 0.1)
        assert store.lease("name", 60, wait=timedelta(seconds=30)).lease.token > first.lease.token

    def test_waiting_ends(self, store: Caller) -> None:
        store.lease("name", 60)
        for wait in (0, 0.02):
            with pytest.raises(LeaseHeld):
                store.lease("name", 60, wait=wait)

    # Blocks ----------------------------------------------------------------------------------------------------------

    def test_a_block_releases_its_lease(self, store: Caller) -> None:
        with store.lease("name", 10) as held:
            store.put(NS, "k", {}, lease=held.lease)
        with pytest.raises(RuntimeError, match="in the block"), store.lease("name", 10):
            raise RuntimeError("in the block")
        with store.lease("name", 10) as held:
            assert held.release() is True
            store.lease("name", 10)

    def test_a_block_renews_its_lease(self, opened: Opener) -> None:
        store = opened(clock=None)
        deadline = time.monotonic() + 30

        def waited_for(lease: Any) -> None:
            """Wait until the lease was renewed twice, so that it has outlived its first TTL."""
            first = _expiry(store, lease)
            while _expiry(store, lease) < first + timedelta(seconds=lease.ttl * 0.6):
                assert time.monotonic() < deadline, "not renewed"
                time.sleep(0.01)

        def hold() -> None:
            with store.store.lease("sync", 2) as lease:
                waited_for(lease)
                store.store.put(NS, "k", {}, lease=lease)

        async def main() -> None:
            async with store.store.alease("async", 2) as lease:
                await asyncio.gather(asyncio.to_thread(hold), asyncio.to_thread(waited_for, lease))
                await store.store.aput(NS, "k", {}, lease=lease)

        asyncio.run(main())

    def test_a_block_that_lost_its_lease_raises_lease_lost(self, store: Caller, clock: Clock) -> None:
        with pytest.raises(LeaseLost), store.lease("name", 60):
            clock.advance(60)
        with pytest.raises(RuntimeError), store.lease("name", 60):
            clock.advance(60)
            raise RuntimeError("the first error explains more")

    def test_an_async_block_is_interrupted_when_it_is_lost(self, store: Caller, clock: Clock) -> None:
        async def main() -> None:
            reached = False
            with pytest.raises(LeaseLost):
                async with store.store.alease("name", 0.03):
                    clock.advance(1)
                    await asyncio.sleep(30)
                    reached = True
            assert not reached
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            async with store.store.alease("name", 0.03):
                await asyncio.sleep(0)

        asyncio.run(main())

    def test_a_cancelled_block_releases_its_lease(self, store: Caller) -> None:
        async def main() -> None:
            entered = asyncio.Event()

            async def hold() -> None:
                async with store.store.alease("name", 60):
                    entered.set()
                    await asyncio.sleep(30)

            task = asyncio.create_task(hold())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await store.store.alease("name", 60).aacquire()

        asyncio.run(main())

    def test_a_block_cancelled_during_release_still_releases(self, store: Caller) -> None:
        """It is cancelled at each step of the release, and again while it waits for the release."""

        async def hold(leaves: asyncio.Event) -> None:
            async with store.store.alease("name", 600):
                leaves.set()

        async def main() -> None:
            for steps in range(24):
                leaves = asyncio.Event()
                task = asyncio.create_task(hold(leaves))
                await leaves.wait()
                for _ in range(steps // 2):
                    await asyncio.sleep(0)
                task.cancel()
                if steps % 2:
                    await asyncio.sleep(0)
                    task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                lease = await store.store.alease("name", 600, wait=5).aacquire()
                await lease.arelease()

        asyncio.run(main())

    def test_blocks_leave_no_thread(self, opened: Opener) -> None:
        before = set(threading.enumerate())
        store = opened().store
        with store.lease("a", 60), store.lease("b", 0.05):
            pass
        store.close()
        assert set(threading.enumerate()) <= before

    def test_a_forked_child_does_not_release_it(self, store: Caller) -> None:
        if not store.store._engine_handle.engine.capabilities.multiprocess:
            pytest.skip("this engine is of one process")
        with store.store.lease("name", 60) as lease:

            def in_child() -> None:
                lease.__exit__(None, None, None)
                store.store.put(NS, "k", {}, lease=lease)
                with store.store.lease("child's", 60) as own:
                    store.store.put(NS, "k", {}, lease=own)
                store.store.close()

            assert forked(in_child) == 0
            store.store.put(NS, "k", {}, lease=lease)

    # When it is acquired ---------------------------------------------------------------------------------------------

    def test_it_is_acquired_when_the_block_begins_and_not_before(self, store: Caller) -> None:
        """`lease` acquired it when it was called, `alease` when it was awaited."""
        for made in (store.store.lease("name", 60), store.store.alease("name", 60)):
            assert made.token == 0
            store.lease("name", 60).release()  # it is free
            with made as held:
                assert held is made
                assert held.token > 0
                with pytest.raises(LeaseHeld):
                    store.lease("name", 60)
            assert made.release() is False

        async def main() -> None:
            for made in (store.store.lease("name", 60), store.store.alease("name", 60)):
                await (await store.store.alease("name", 60).aacquire()).arelease()
                async with made as held:
                    assert held is made
                    with pytest.raises(LeaseHeld):
                        await store.store.alease("name", 60).aacquire()

        asyncio.run(main())

    def test_a_block_of_one_that_is_held_by_others_does_not_begin(self, store: Caller) -> None:
        other = store.lease("name", 60)
        with pytest.raises(LeaseHeld), store.store.lease("name", 60):
            raise AssertionError("it began")

        async def main() -> None:
            with pytest.raises(LeaseHeld):
                async with store.store.alease("name", 60):
                    raise AssertionError("it began")

        asyncio.run(main())
        other.renew()

    def test_one_that_was_not_acquired_guards_nothing(self, store: Caller) -> None:
        lease = store.store.lease("name", 60)
        for use in (lambda: store.put(NS, "k", {}, lease=lease), lease.renew):
            with pytest.raises(InvalidInput, match=r"acquire\(\)"):
                use()
        assert store.get(NS, "k") is None
        assert lease.release() is False
        lease.acquire()
        store.put(NS, "k", {}, lease=lease)

    def test_it_can_be_acquired_once(self, store: Caller) -> None:
        lease = store.store.lease("name", 60).acquire()
        with pytest.raises(InvalidInput, match="already"):
            lease.acquire()
        with lease:  # it is renewed and released by the block
            store.put(NS, "k", {}, lease=lease)
        with pytest.raises(InvalidInput, match="already"):
            lease.acquire()

    @pytest.mark.parametrize("use", ["a block", "an acquisition"])
    def test_a_lease_that_was_used_cannot_be_used_again(self, store: Caller, use: str) -> None:
        lease = store.store.lease("name", 60)
        if use == "a block":
            with lease:
                pass
        else:
            lease.acquire().release()

        async def main() -> None:
            for again in (lease.aacquire, lease.__aenter__):
                with pytest.raises(InvalidInput, match=r"already; make another one with store\.lease\(\)"):
                    await again()

        asyncio.run(main())
        for again in (lease.acquire, lease.__enter__):
            with pytest.raises(InvalidInput, match=r"already; make another one with store\.lease\(\)"):
                again()

    def test_a_lease_has_one_block(self, store: Caller) -> None:
        """A second block of one `Lease`, in another thread or inside the first, would exclude nobody."""
        refused: list[InvalidInput] = []

        def enter(lease: Lease) -> None:
            try:
                lease.__enter__()
            except InvalidInput as error:
                refused.append(error)

        with store.store.lease("name", 60) as lease:
            thread = threading.Thread(target=enter, args=(lease,))
            thread.start()
            thread.join()
            enter(lease)
            assert len(refused) == 2
            store.put(NS, "k", {}, lease=lease)  # it is still held

        async def main() -> None:
            async with store.store.alease("name", 60) as lease:
                with pytest.raises(InvalidInput, match="already"):
                    await lease.__aenter__()
                await store.store.aput(NS, "k", {}, lease=lease)

        asyncio.run(main())

    def test_a_lease_is_acquired_by_one_thread(self, store: Caller) -> None:
        """While one thread waits for it, the same `Lease` is in use."""
        other = store.lease("name", 60)
        lease = store.store.lease("name", 60, wait=30)
        thread = threading.Thread(target=lease.acquire)
        thread.start()
        try:
            deadline = time.monotonic() + 10
            while not lease._acquisition.locked():
                assert time.monotonic() < deadline, "it does not begin"
            for again in (lease.acquire, lease.__enter__):
                with pytest.raises(InvalidInput, match="already"):
                    again()
        finally:
            other.release()
            thread.join()
        with lease:
            store.put(NS, "k", {}, lease=lease)

    def test_one_that_was_held_by_others_can_be_tried_again(self, store: Caller) -> None:
        begins: list[Callable[[Lease], Any]] = [
            lambda lease: lease.acquire(),
            lambda lease: lease.__enter__(),
            lambda lease: asyncio.run(_awaited(lease.aacquire())),
            lambda lease: asyncio.run(_awaited(lease.__aenter__())),
        ]
        for begin in begins:
            other, lease = store.lease("name", 60), store.store.lease("name", 60)
            with pytest.raises(LeaseHeld):
                begin(lease)
            other.release()
            begin(lease)
            assert lease.release() is True

    def test_a_block_that_has_not_begun_cannot_end(self, store: Caller) -> None:
        lease = store.store.lease("name", 60).acquire()
        with pytest.raises(InvalidInput, match="no block of it has begun"):
            lease.__exit__(None, None, None)
        with pytest.raises(InvalidInput, match="no block of it has begun"):
            asyncio.run(lease.__aexit__(None, None, None))
        assert lease.release() is True


async def _awaited(coroutine: Awaitable[Any]) -> Any:
    return await coroutine


def _expiry(store: Caller, lease: Any) -> Any:
    entry = store.store._engine_handle.engine.execute([Get(tuple(lease._lease_namespace), lease.name)])[0]
    return entry.expires_at
