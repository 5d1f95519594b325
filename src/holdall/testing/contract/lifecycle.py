"""Opening, sharing and closing stores, the hook for ops, and use from many threads and event loops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from typing import Any

import pytest

from ... import ABSENT
from ...errors import Conflict, InvalidInput, InvalidValue, StoreClosed
from ...ops import Put
from ..caller import Caller
from .base import Contract, Opener, forked

NS = ("lifecycle",)


class LifecycleContract(Contract):
    def test_a_closed_store_refuses_everything(self, store: Caller) -> None:
        store.put(NS, "k", {})
        view = store.scoped(NS)
        store.close()
        store.close()
        for call in (
            lambda: store.put(NS, "k", {}),
            lambda: store.get(NS, "k"),
            lambda: store.update(NS, "k", lambda value: value),
            lambda: store.delete(NS, "k"),
            lambda: store.delete_tree(NS),
            lambda: store.execute([Put(NS, "k", {})]),
            lambda: store.search(),
            lambda: store.count(),
            lambda: store.scan(),
            lambda: store.namespaces(),
            lambda: store.sweep(),
            lambda: store.setup(),
            lambda: view.get((), "k"),
        ):
            with pytest.raises(StoreClosed):
                call()

    def test_closing_a_view_leaves_the_store_open(self, store: Caller) -> None:
        view = store.scoped(NS)
        view.put((), "k", {})
        view.close()
        with pytest.raises(StoreClosed):
            view.get((), "k")
        assert store.get(NS, "k") is not None

    def test_context_managers_set_up_and_close(self, opened: Opener) -> None:
        with opened().store as store:
            store.put(NS, "k", {})
        with pytest.raises(StoreClosed):
            store.get(NS, "k")

        async def main() -> None:
            async with opened().store as store:
                await store.aput(NS, "k", {})
            with pytest.raises(StoreClosed):
                await store.aget(NS, "k")

        asyncio.run(main())

    def test_what_was_written_is_there_after_reopening(self, opened: Opener) -> None:
        store = opened()
        if not store.store._engine_handle.engine.capabilities.durable:
            pytest.skip("this engine is not durable")
        entries = [store.put(NS, str(i), {"i": i}, ttl=None if i else 100) for i in range(5)]
        store.delete(NS, "4")
        store.close()
        again = opened()
        assert again.scan() == entries[:4]
        assert again.put(NS, "4", {}, expect=ABSENT).version > entries[4].version

    def test_setup_twice_is_fine(self, store: Caller) -> None:
        store.setup()
        store.setup()
        assert store.put(NS, "k", {}) == store.get(NS, "k")

    def test_on_op_sees_every_batch_and_never_values(self, opened: Opener) -> None:
        events: list[Any] = []
        store = opened(on_op=events.append)
        entry = store.put(NS, "k", {"secret": "s3cret"})
        store.execute([Put(NS, "a", {}), Put(NS, "b", {})])
        with pytest.raises(Conflict):
            store.put(NS, "k", {"secret": "s3cret"}, expect=entry.version + 99)
        store.search(NS, filter={"secret": "s3cret"})
        assert [(event.ops, event.error) for event in events] == [
            (("Put",), None),
            (("Put", "Put"), None),
            (("Put",), Conflict),
            (("Search",), None),
        ]
        assert all(event.seconds >= 0 for event in events)
        assert "s3cret" not in repr(events)
        with pytest.raises(InvalidValue):
            store.put(NS, "k", {"secret": object()})
        assert len(events) == 4

    def test_a_broken_hook_fails_no_write(self, opened: Opener, caplog: pytest.LogCaptureFixture) -> None:
        def broken(event: object) -> None:
            raise RuntimeError("broken hook")

        store = opened(on_op=broken)
        with caplog.at_level(logging.ERROR, "holdall"):
            store.put(NS, "k", {})
        assert store.get(NS, "k") is not None
        assert "on_op" in caplog.text

    def test_an_async_function_needs_aupdate(self, store: Caller) -> None:
        async def add(value: dict[str, Any]) -> dict[str, Any]:
            await asyncio.sleep(0)
            return {"n": value["n"] + 1}

        store.put(NS, "k", {"n": 1})
        with pytest.raises(InvalidInput, match="async"):
            store.store.update(NS, "k", add)
        assert asyncio.run(store.store.aupdate(NS, "k", add)).value == {"n": 2}

    def test_threads_and_event_loops_at_once(self, store: Caller) -> None:
        """The memory store of LangGraph broke under threads."""
        errors: list[BaseException] = []

        def guarded(work: Any) -> None:
            try:
                work()
            except BaseException as error:  # handed to the test's own thread
                errors.append(error)

        def sync_work(name: str) -> None:
            for i in range(40):
                entry = store.store.put((*NS, name), str(i), {"i": i})
                assert store.store.get((*NS, name), str(i)) == entry
                store.store.search(NS, limit=3)
                store.store.update((*NS, "shared"), "n", lambda v: {"n": v["n"] + 1}, default={"n": 0})

        async def async_work(name: str) -> None:
            entries = await asyncio.gather(*(store.store.aput((*NS, name), str(i), {"i": i}) for i in range(40)))
            found = await asyncio.gather(*(store.store.aget((*NS, name), str(i)) for i in range(40)))
            assert found == entries
            for _ in range(40):
                await store.store.aupdate((*NS, "shared"), "n", lambda v: {"n": v["n"] + 1}, default={"n": 0})

        threads = [threading.Thread(target=guarded, args=(lambda n=n: sync_work(f"s{n}"),)) for n in range(3)]
        threads += [
            threading.Thread(target=guarded, args=(lambda n=n: asyncio.run(async_work(f"a{n}")),)) for n in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert store.count(NS) == 6 * 40 + 1
        assert store.get((*NS, "shared"), "n").value == {"n": 240}
        versions = [entry.version for entry in store.scan(NS)]
        assert len(set(versions)) == len(versions)

    def test_a_cancelled_batch_is_wholly_there_or_not_at_all(self, store: Caller) -> None:
        parts = [str(part) for part in range(5)]

        async def one(name: str) -> None:
            await store.store.aexecute([Put((*NS, name), part, {}) for part in parts])

        async def main() -> set[str]:
            returned: set[str] = set()
            for turn in range(24):
                tasks = {f"{turn}.{n}": asyncio.create_task(one(f"{turn}.{n}")) for n in range(6)}
                for _ in range(turn % 4):  # before they begin, and after each of their first steps
                    await asyncio.sleep(0)
                if turn >= 12:  # somewhere in the middle
                    await asyncio.sleep(turn * 0.0001)
                for task in list(tasks.values())[::2]:
                    task.cancel()
                outcomes = await asyncio.gather(*tasks.values(), return_exceptions=True)
                assert outcomes[1::2] == [None] * 3, "those that were not cancelled"
                assert all(isinstance(outcome, (asyncio.CancelledError, type(None))) for outcome in outcomes)
                returned |= {name for name, outcome in zip(tasks, outcomes, strict=True) if outcome is None}
            entry = await store.store.aput(NS, "after", {})
            assert await store.store.aget(NS, "after") == entry
            return returned

        returned = asyncio.run(main())
        written = {namespace[-1] for namespace in store.namespaces(prefix=(*NS, "*"), limit=1000)}
        assert returned <= written
        for name in written:
            assert [entry.key for entry in store.scan((*NS, name))] == parts, f"half of batch {name}"

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    def test_a_forked_child_goes_on_with_the_store(self, store: Caller, runner: asyncio.Runner | None) -> None:
        """The child sees earlier entries. With a multiprocess engine, parent and child see each other's writes."""
        before = store.put(NS, "before", {})
        asyncio.run(store.store.aget(NS, "before"))  # threads and loops that a child will not have

        def in_child() -> None:
            with contextlib.ExitStack() as loop:
                child = Caller(store.store, None if runner is None else loop.enter_context(asyncio.Runner()))
                assert child.get(NS, "before") == before
                entry = child.put(NS, "from the child", {})
                assert child.get(NS, "from the child") == entry
                assert child.update(NS, "before", lambda value: {"seen": True}).version > entry.version
                assert len(child.scan(NS)) == child.count(NS) == 2
                child.close()

        assert forked(in_child) == 0
        assert store.put(NS, "after", {}) == store.get(NS, "after")
        if store.store._engine_handle.engine.capabilities.multiprocess:
            assert [entry.key for entry in store.scan(NS)] == ["after", "before", "from the child"]
            assert store.get(NS, "before").value == {"seen": True}
        else:
            assert store.scan(NS) == [store.get(NS, "after"), before]

    def test_concurrent_batches_fail_alone(self, store: Caller) -> None:
        """One bad op failed every future of the async batcher's tick in LangGraph."""

        async def one(i: int) -> object:
            expect = 10**9 if i % 3 == 0 else ABSENT
            try:
                return (await store.store.aexecute([Put(NS, f"x{i}", {}), Put(NS, f"y{i}", {}, expect=expect)]))[0].key
            except Conflict:
                return None

        async def main() -> list[object]:
            return await asyncio.gather(*(one(i) for i in range(60)))

        outcomes = asyncio.run(main())
        assert outcomes == [None if i % 3 == 0 else f"x{i}" for i in range(60)]
        assert store.count(NS) == 80
