"""Watching: every change under a prefix, in order, exactly once, from a cursor on, by any writer."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from ...errors import CursorExpired, InvalidInput, StoreClosed
from ...ops import Change, Changes, Page, Put
from ..caller import Caller, WatchCaller
from ..clock import Clock
from .base import Contract, Opener, forked

NS = ("watched",)


def seen(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.kind, change.key) for change in changes]


class WatchContract(Contract):
    @pytest.fixture
    def watch(self, store: Caller) -> Iterator[WatchCaller]:
        """A subscription to everything in NS, from the beginning of the test on."""
        watch = store.watch(NS)
        yield watch
        watch.close()

    def test_each_change_comes_once_with_its_kind(self, store: Caller, clock: Clock, watch: WatchCaller) -> None:
        entry = store.put(NS, "a", {"n": 1})
        [change] = watch.take(1)
        assert (change.version, change.namespace, change.key, change.kind) == (entry.version, NS, "a", "put")
        store.put((*NS, "below"), "b", {}, ttl=5)
        store.delete(NS, "a")
        assert seen(watch.take(2)) == [("put", "b"), ("delete", "a")]
        clock.advance(5)
        store.sweep()
        assert seen(watch.take(1)) == [("expire", "b")]
        store.execute([Put(NS, key, {}) for key in "xyz"])
        store.delete_tree(NS)
        taken = watch.take(3)
        assert sorted(seen(taken)) == [("delete", "x"), ("delete", "y"), ("delete", "z")]
        versions = [change.version for change in taken]
        assert versions == sorted(set(versions))

    def test_changes_of_one_entry_may_come_as_its_newest(self, store: Caller, watch: WatchCaller) -> None:
        for n in range(5):
            newest = store.put(NS, "k", {"n": n})
        store.put(NS, "after", {})
        *before, last = watch.take(2)
        assert [change.version for change in before] == [newest.version]
        assert last.key == "after"

    def test_what_has_expired_comes_once_and_as_its_expiry(self, store: Caller, clock: Clock) -> None:
        """It never comes as a put that cannot be read any more: it comes when it is swept, as an expiry."""
        cursor = store.cursor()
        early = store.watch(NS)
        store.put(NS, "seen", {}, ttl=5)
        assert seen(early.take(1)) == [("put", "seen")]
        store.put(NS, "short", {}, ttl=5)
        store.put(NS, "again", {}, ttl=5)
        store.put(NS, "stays", {}, ttl=6)
        clock.advance(5)
        store.put(NS, "again", {})
        late = store.watch(NS, since=cursor)
        for watch in (early, late):
            assert seen(watch.take(2)) == [("put", "stays"), ("put", "again")]
        store.sweep()
        store.put(NS, "end", {})
        for watch in (early, late):
            *expired, end = watch.take(3)
            assert sorted(seen(expired)) == [("expire", "seen"), ("expire", "short")]
            assert seen([end]) == [("put", "end")]
            watch.close()

    def test_changes_of_others_are_not_ones_own(self, store: Caller, watch: WatchCaller) -> None:
        store.put(("watchedish",), "k", {})
        store.put(("other",), "k", {})
        with store.files(NS).open("/file", "wb") as file:  # which is kept as a hidden entry until it is closed
            file.write(b"x")
        with store.lease("name", 10, namespace=NS):
            pass
        store.put(NS, "k", {}, ttl=10)
        store.get(NS, "k", refresh=True)
        store.put(NS, "end", {})
        assert seen(watch.take(3)) == [("put", "/file"), ("put", "k"), ("put", "end")]

    def test_everything_is_watched_without_a_prefix_but_what_is_hidden(self, store: Caller) -> None:
        watch = store.watch()
        with store.lease("name", 10):
            store.put(("a",), "k", {})
        store.put(("b", "c"), "k", {})
        assert [change.namespace for change in watch.take(2)] == [("a",), ("b", "c")]
        watch.close()

    def test_a_scope_sees_its_own_with_relative_namespaces(self, store: Caller) -> None:
        inside = store.scoped(("tenant", "one"))
        watch, cursor = inside.watch(), inside.cursor()
        store.put(("tenant", "two"), "secret", {})
        store.put(("tenant",), "secret", {})
        inside.put((), "mine", {})
        inside.put(("notes",), "mine", {})
        expected = [((), "mine"), (("notes",), "mine")]
        assert [(change.namespace, change.key) for change in watch.take(2)] == expected
        watch.close()
        again = store.scoped(("tenant", "one")).watch(since=cursor)
        assert [(change.namespace, change.key) for change in again.take(2)] == expected
        again.close()

    def test_a_subscription_can_be_waited_for(self, store: Caller) -> None:
        """Wait until the iterating thread has taken all earlier changes and waits for more, or until it is closed."""

        async def main() -> None:
            taken: list[str] = []
            watch = store.store.awatch(NS)

            async def take() -> None:
                async for change in watch:
                    await asyncio.sleep(0.01)
                    taken.append(change.key)

            async with watch:
                task = asyncio.create_task(take())
                await watch.caught_up()
                for key in "abc":
                    await store.store.aput(NS, key, {})
                await store.store.aput(("other",), "d", {})
                await asyncio.gather(watch.caught_up(), watch.caught_up())
                assert taken == ["a", "b", "c"]
                await store.store.aput(NS, "d", {})
                late = asyncio.create_task(watch.caught_up())
                await asyncio.sleep(0)
            await asyncio.gather(late, watch.caught_up(), task)

        asyncio.run(main())

    # Cursors ---------------------------------------------------------------------------------------------------------

    def test_the_feed_continues_after_a_cursor(self, store: Caller) -> None:
        store.put(NS, "before", {})
        cursor = store.cursor()
        for key in "abcde":
            store.put(NS, key, {})
        first = store.watch(NS, since=cursor)
        taken = first.take(2)
        assert seen(taken) == [("put", "a"), ("put", "b")]
        assert first.watch.cursor == taken[-1].cursor
        first.close()
        for since in (taken[-1].cursor, first.watch.cursor):
            again = store.watch(NS, since=since)
            assert seen(again.take(3)) == [("put", "c"), ("put", "d"), ("put", "e")]
            again.close()
        assert isinstance(cursor, str)

    def test_a_subscription_that_gave_nothing_has_a_cursor_too(self, store: Caller) -> None:
        watch = store.watch(NS)
        watch.close()
        store.put(NS, "k", {})
        again = store.watch(NS, since=watch.watch.cursor)
        assert seen(again.take(1)) == [("put", "k")]
        again.close()

    def test_a_cursor_outlives_the_store(self, opened: Opener) -> None:
        store = opened()
        if not store.store._engine_handle.engine.capabilities.durable:
            pytest.skip("this engine is not durable")
        watch = store.watch(NS)
        store.put(NS, "a", {})
        [change] = watch.take(1)
        store.put(NS, "b", {})
        store.delete(NS, "a")
        store.close()
        again = opened().watch(NS, since=change.cursor)
        assert seen(again.take(2)) == [("put", "b"), ("delete", "a")]
        again.close()

    def test_what_was_missed_is_read_page_by_page(self, store: Caller) -> None:
        """A slow consumer lags by more than a page, which does not slow the writers."""
        watch = store.watch(NS)
        for start in range(0, 1200, 400):
            store.execute([Put(NS, str(i), {}) for i in range(start, start + 400)])
        assert [change.key for change in watch.take(1200)] == [str(i) for i in range(1200)]
        store.put(NS, "end", {})
        assert seen(watch.take(1)) == [("put", "end")]
        assert len(watch.watch._page) == 0
        watch.close()

    @pytest.mark.parametrize(
        "since", ["", "nonsense", "1.5", "-1", 7, b"1", "9" * 30, "1/2/3", "1:0:", "1~", "99~5", "1~5_", "1\ud800"]
    )
    def test_what_is_no_cursor_is_refused(self, store: Caller, since: Any) -> None:
        with pytest.raises(InvalidInput, match="cursor"):
            store.watch(NS, since=since).take(1)

    def test_a_search_cursor_is_no_cursor_of_the_feed(self, store: Caller) -> None:
        store.execute([Put(NS, str(i), {}) for i in range(3)])
        with pytest.raises(InvalidInput, match="cursor"):
            store.watch(NS, since=store.search(NS, limit=1).next).take(1)

    # Files -----------------------------------------------------------------------------------------------------------

    def test_files_are_watched_by_path(self, store: Caller) -> None:
        volume = store.files(("volume",))
        everything, folder, file = volume.watch(), volume.watch("/docs"), volume.watch("/docs/a.txt")
        volume.write("/docs/a.txt", "a")
        volume.write("/docsy.txt", "not in it")
        store.files(("volume", "below")).write("/docs/other", "another volume's")
        volume.append("/docs/b.txt", "b")
        volume.move("/docs/b.txt", "/docs/c.txt")
        volume.delete("/docs/a.txt")
        expected = [("put", "/docs/c.txt"), ("delete", "/docs/b.txt"), ("delete", "/docs/a.txt")]
        assert sorted(seen(folder.take(3))) == sorted(expected)
        assert sorted(seen(everything.take(4))) == sorted([("put", "/docsy.txt"), *expected])
        assert seen(file.take(1)) == [("delete", "/docs/a.txt")]
        for watch in (everything, folder, file):
            watch.close()

    # Waiting ---------------------------------------------------------------------------------------------------------

    def test_a_write_through_any_store_wakes_a_waiting_watch(self, store: Caller, opened: Opener) -> None:
        """The writer is this store, another store on this engine, or another engine on the same storage."""
        watch = store.watch(NS)
        for writer in (store, opened(), opened(timeout=29.0)):
            ready = threading.Event()
            late = threading.Thread(target=lambda w=writer, r=ready: (r.wait(), w.store.put(NS, "k", {})))
            late.start()
            threading.Timer(0.05, ready.set).start()  # by then the other end waits, mostly
            assert seen(watch.take(1)) == [("put", "k")]
            late.join()
        watch.close()

    def test_several_subscriptions_get_everything_each(self, store: Caller) -> None:
        watches = [store.watch(NS) for _ in range(3)]
        store.execute([Put(NS, key, {}) for key in "abc"])
        for watch in watches:
            assert [change.key for change in watch.take(3)] == ["a", "b", "c"]
            watch.close()

    def test_a_wait_that_times_out_loses_no_change(self, store: Caller) -> None:
        async def main() -> list[Change]:
            async with store.store.awatch(NS) as watch:
                for _ in range(3):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(watch), 0.01)
                await store.store.aput(NS, "k", {})
                return [await anext(watch)]

        assert seen(asyncio.run(main())) == [("put", "k")]

    def test_tasks_that_share_a_subscription_get_each_change_once(self, store: Caller) -> None:
        async def main() -> list[str]:
            async with store.store.awatch(NS) as watch:

                async def take() -> list[str]:
                    return [(await anext(watch)).key for _ in range(5)]

                tasks = [asyncio.create_task(take()) for _ in range(3)]
                for number in range(15):
                    await store.store.aput(NS, f"{number:02}", {})
                async with asyncio.timeout(30):
                    return sorted(key for taken in await asyncio.gather(*tasks) for key in taken)

        assert asyncio.run(main()) == [f"{number:02}" for number in range(15)]

    def test_many_writers_at_once(self, store: Caller) -> None:
        watch = store.watch(NS)

        def write(name: str) -> None:
            for i in range(25):
                store.store.put((*NS, name), str(i), {})

        threads = [threading.Thread(target=write, args=(str(n),)) for n in range(4)]
        for thread in threads:
            thread.start()
        taken = watch.take(100)
        for thread in threads:
            thread.join()
        for n in range(4):
            own = [change.key for change in taken if change.namespace == (*NS, str(n))]
            assert own == [str(i) for i in range(25)], "each writer's changes are in its order, and none is missing"
        watch.close()

    # Ending ----------------------------------------------------------------------------------------------------------

    def test_closing_ends_the_wait_and_leaves_no_thread(self, opened: Opener) -> None:
        before = set(threading.enumerate())
        store = opened().store
        watch = store.watch(NS)
        ended = threading.Event()

        def wait() -> None:
            list(watch)
            ended.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        store.put(NS, "k", {})
        watch.close()
        watch.close()
        assert ended.wait(30)
        waiting.join()
        assert list(watch) == []
        assert [thread for thread in threading.enumerate() if "listener" in thread.name] == []
        store.close()
        assert set(threading.enumerate()) <= before

    def test_closing_the_store_wakes_waiting_callers(self, opened: Opener) -> None:
        before = set(threading.enumerate())
        store, errors = opened().store, []

        def wait(watch: Any) -> None:
            try:
                next(watch)
            except StoreClosed as error:
                errors.append(error)

        watches = [store.watch(NS), store.scoped(NS).watch()]
        threads = [threading.Thread(target=wait, args=(watch,)) for watch in watches]
        for thread in threads:
            thread.start()
        keeps_the_engine_open = opened()
        store.close()
        for thread in threads:
            thread.join(30)
        assert len(errors) == 2
        with pytest.raises(StoreClosed):
            store.watch(NS)
        keeps_the_engine_open.store.close()
        assert set(threading.enumerate()) <= before

    def test_an_event_loop_that_ends_leaves_no_thread(self, opened: Opener) -> None:
        before = set(threading.enumerate())
        store = opened().store

        async def main() -> None:
            waiting = asyncio.create_task(anext(store.awatch(NS)))
            closed, kept = store.awatch(NS), store.awatch()
            others = [asyncio.create_task(anext(watch)) for watch in (closed, kept)]
            while len(store._engine_handle.companion(_notifier())._events) < 3:
                await asyncio.sleep(0)
            await closed.aclose()
            with pytest.raises(StopAsyncIteration):
                await others[0]
            assert not waiting.done()
            assert not others[1].done()

        asyncio.run(main())
        assert store._engine_handle.companion(_notifier())._events == {}
        store.close()
        assert set(threading.enumerate()) <= before

    def test_an_abandoned_subscription_leaves_no_thread(self, opened: Opener) -> None:
        store = opened().store
        watch = store.watch(NS)
        store.put(NS, "k", {})
        next(watch)
        next_one = threading.Timer(0, lambda: store.put(NS, "l", {}))
        next_one.start()
        next(watch)  # it has waited
        next_one.join()
        del watch
        gc.collect()
        assert store._engine_handle.companion(_notifier())._events == {}

    def test_a_forked_child_watches_on(self, store: Caller) -> None:
        if not store.store._engine_handle.engine.capabilities.multiprocess:
            pytest.skip("this engine is of one process")
        watch = store.store.watch(NS)
        store.put(NS, "a", {})
        assert next(watch).key == "a"
        woken = threading.Thread(target=lambda: results.append(next(watch).key))
        results: list[str] = []
        woken.start()

        def in_child() -> None:
            store.store.put(NS, "from the child", {})
            assert next(watch).key == "from the child"
            with store.store.watch(NS) as another:
                late = threading.Timer(0.05, lambda: store.store.put(NS, "b", {}))
                late.start()
                assert next(another).key == "b"
                late.join()
            watch.close()
            store.store.close()

        assert forked(in_child) == 0
        woken.join(30)
        assert results == ["from the child"]
        assert next(watch).key == "b"
        watch.close()

    # Feed retention --------------------------------------------------------------------------------------------------

    def test_a_cursor_older_than_the_purged_tombstones_has_expired(self, store: Caller, clock: Clock) -> None:
        cursor = store.cursor()
        store.put(NS, "kept", {})
        store.put(NS, "gone", {})
        store.delete(NS, "gone")
        before = store.cursor()
        clock.advance(timedelta(days=6))
        store.sweep()
        early = store.watch(NS, since=cursor)
        assert seen(early.take(2)) == [("put", "kept"), ("delete", "gone")]
        clock.advance(timedelta(days=1, seconds=1))
        store.sweep()
        with pytest.raises(CursorExpired, match=r"store\.cursor\(\).*since="):
            store.watch(NS, since=cursor).take(1)
        late = store.watch(NS, since=before)  # it has seen the deletion
        last = store.put(NS, "gone", {})
        assert seen(late.take(1)) == seen(early.take(1)) == [("put", "gone")]
        assert last.created_at == clock.now
        assert [entry.key for entry in store.scan(NS)] == ["gone", "kept"]
        for watch in (early, late):
            watch.close()

    @pytest.mark.parametrize("retention", [60, 60.0, timedelta(minutes=1)], ids=repr)
    def test_deletions_stay_in_the_feed_for_the_retention(self, opened: Opener, clock: Clock, retention: Any) -> None:
        store = opened(feed_retention=retention)
        store.execute([Put(NS, key, {}) for key in "ab"])
        first = store.cursor()
        store.delete(NS, "a")
        second = store.cursor()
        clock.advance(40)
        store.delete(NS, "b")
        clock.advance(21)
        store.sweep()
        with pytest.raises(CursorExpired, match="feed_retention"):
            store.watch(NS, since=first).take(1)
        watch = store.watch(NS, since=second)
        assert seen(watch.take(1)) == [("delete", "b")]
        watch.close()

    def test_deletions_may_stay_in_the_feed_for_ever(self, opened: Opener, clock: Clock) -> None:
        store = opened(feed_retention=None)
        cursor = store.cursor()
        store.put(NS, "k", {})
        store.delete(NS, "k")
        clock.advance(timedelta(days=3000))
        store.sweep()
        watch = store.watch(NS, since=cursor)
        assert seen(watch.take(1)) == [("delete", "k")]
        watch.close()

    @pytest.mark.parametrize("retention", [-1, float("nan"), "7d", True, timedelta(days=-1)], ids=repr)
    def test_what_is_no_retention_is_refused(self, opened: Opener, retention: Any) -> None:
        with pytest.raises(InvalidInput, match="feed_retention"):
            opened(feed_retention=retention)

    def test_versions_grow_after_tombstones_are_purged(self, opened: Opener) -> None:
        store = opened(feed_retention=0)
        versions = []
        for _ in range(3):
            versions.append(store.put(NS, "k", {}).version)
            store.delete(NS, "k")
            store.sweep()
            versions.append(store.put(NS, "other", {}).version)
            store.delete_tree(NS)
            store.sweep()
        assert versions == sorted(set(versions))
        assert store.watch(since=store.cursor()).watch.cursor

    def test_tombstones_are_purged_in_slices(self, opened: Opener) -> None:
        store = opened(feed_retention=0)
        for start in range(0, 1100, 275):
            store.execute([Put(NS, str(i), {}) for i in range(start, start + 275)])
        store.put(("kept",), "k", {})
        store.delete_tree(NS)
        store.sweep()
        assert [change.key for change in _walk(store)] == ["k"]

    def test_the_feed_can_be_read_from_its_beginning_after_tombstones_are_purged(self, opened: Opener) -> None:
        """A reader that starts without a cursor misses nothing, unless entries it has read are deleted and purged."""
        store = opened(feed_retention=0)
        store.execute([Put(NS, key, {}) for key in "abcdef"])
        store.delete(NS, "f")
        store.sweep()
        page, read = _walk(store, limit=2), []
        while page:
            read += [change.key for change in page]
            page = _walk(store, limit=2, since=page.next)
        assert read == ["a", "b", "c", "d", "e"]
        halfway = _walk(store, limit=2).next
        store.delete(NS, "a")
        store.sweep()
        with pytest.raises(CursorExpired):
            while True:
                page = _walk(store, limit=2, since=halfway)
                halfway = page.next
                if not page:
                    break

    def test_a_cursor_that_is_ahead_of_the_store_is_refused(self, store: Caller) -> None:
        """This happens after a backup is restored: waiting for that version would miss all changes before it."""
        store.put(NS, "k", {})
        ahead = {"1": "999999999", ":": "999999998:999999999:", "~": "1~9000000000000000"}
        cursor = ahead[next((sign for sign in ":~" if sign in store.cursor()), "1")]
        with pytest.raises(CursorExpired):
            store.watch(since=cursor).take(1)

    def test_the_text_index_processes_deletions_before_tombstones_are_purged(self, opened: Opener) -> None:
        store = opened(feed_retention=0)
        if not store.store._engine_handle.engine.capabilities.ranks:
            pytest.skip("this engine does not rank")
        for key in "abc":
            store.put(NS, key, {"text": "apple pie"})
        [first, *_] = store.search(NS, query="apple")
        store.delete(NS, "a")
        store.delete(NS, "b")
        store.sweep()
        store.put(NS, "d", {"text": "banana bread"})
        fresh = store.search(NS, query="apple")
        assert [hit.key for hit in fresh] == ["c"]
        assert fresh[0].score > first.score, "what is rarer weighs more: the index knows that two are gone"

    def test_the_sweeper_purges_tombstones(self, opened: Opener) -> None:
        store = opened(sweep_interval=0.02, feed_retention=0, clock=None)
        store.put(NS, "k", {})
        store.delete(NS, "k")
        deadline = time.monotonic() + 30
        while _walk(store):
            assert time.monotonic() < deadline, "not forgotten within 30 s"
            time.sleep(0.02)


def _walk(store: Caller, **query: Any) -> Page[Change]:
    """Read changes from the engine."""
    page: Page[Change] = store.store._engine_handle.engine.execute([Changes(**query)])[0]
    return page


def _notifier() -> Any:
    from ...live.notification import Notifier

    return Notifier
