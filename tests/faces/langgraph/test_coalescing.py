"""Calls that tasks make at once: one batch for all of them, and each with its own outcome."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import holdall
from holdall import OpEvent
from holdall.core.coalescing import Coalescer
from holdall.errors import EmbeddingError, InvalidValue, StoreClosed, Unavailable
from holdall.faces.langgraph import HoldallStore
from holdall.testing import embed
from support.langgraph_stores import Open

HOME = ("users", "ada")


@pytest.fixture
def batches() -> list[tuple[str, ...]]:
    """The names of the ops of every batch that reached the engine."""
    return []


@pytest.fixture
def face(open_store: Open, batches: list[tuple[str, ...]]) -> Iterator[HoldallStore]:
    def note(event: OpEvent) -> None:
        batches.append(event.ops)

    with open_store(on_op=note) as store:
        yield HoldallStore(store)


def test_concurrent_calls_of_tasks_are_one_batch(face: HoldallStore, batches: list[tuple[str, ...]]) -> None:
    async def all_at_once() -> None:
        await asyncio.gather(*(face.aput(HOME, f"k{n}", {"n": n}) for n in range(64)))
        items = await asyncio.gather(*(face.aget(HOME, f"k{n}") for n in range(65)))
        assert [None if item is None else item.value["n"] for item in items] == [*range(64), None]
        await asyncio.gather(*(face.adelete(HOME, f"k{n}") for n in range(64)))
        assert await face.asearch(HOME) == []

    asyncio.run(all_at_once())
    assert len(batches) <= 7, "two batches for the calls of each kind, where two may run at once"
    called = [name for batch in batches for name in batch]
    assert called == ["Put"] * 64 + ["Get"] * 65 + ["Delete"] * 64 + ["Search"]


def test_a_call_during_a_batch_is_in_the_next_batch(batches: list[tuple[str, ...]]) -> None:
    done: list[list[str]] = []
    let_go = asyncio.Event()

    async def execute(ops: list[Any]) -> list[Any]:
        done.append([op.key for op in ops])
        await let_go.wait()
        return [op.key for op in ops]

    async def ask() -> list[Any]:
        gathering = Coalescer(execute)
        asked = []
        for group in (["a"], ["b"], ["c", "d"]):
            asked += [asyncio.create_task(gathering.run(holdall.ops.Get(HOME, key))) for key in group]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        let_go.set()
        return await asyncio.gather(*asked)

    assert asyncio.run(ask()) == ["a", "b", "c", "d"]
    assert done == [["a"], ["b", "c", "d"]]


def test_one_bad_put_fails_alone(face: HoldallStore, batches: list[tuple[str, ...]]) -> None:
    """One bad op failed every future of LangGraph's batcher's tick."""

    async def all_at_once() -> list[Any]:
        values = [{"n": n if n not in (5, 40) else float("nan")} for n in range(64)]
        puts = (face.aput(HOME, f"k{n}", value) for n, value in enumerate(values))
        return await asyncio.gather(*puts, return_exceptions=True)

    outcomes = asyncio.run(all_at_once())
    assert [n for n, outcome in enumerate(outcomes) if outcome is not None] == [5, 40]
    assert {type(outcomes[5]), type(outcomes[40])} == {InvalidValue}
    assert {item.key for item in face.search(HOME, limit=100)} == {f"k{n}" for n in range(64) if n not in (5, 40)}
    assert len(batches) < 40, "each good one in a batch of its own would be 62"


def test_an_error_of_the_whole_store_fails_all_waiting_calls() -> None:
    tries = 0

    async def execute(ops: list[Any]) -> list[Any]:
        nonlocal tries
        tries += 1
        raise Unavailable("the outcome is unknown")  # so it must not be tried again

    async def ask() -> list[Any]:
        gathering = Coalescer(execute)
        asked = (gathering.run(holdall.ops.Get(HOME, str(n))) for n in range(8))
        return await asyncio.gather(*asked, return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(ask())] == [Unavailable] * 8
    assert tries == 1


@pytest.mark.parametrize("worked", [False, True])
def test_an_embedder_that_is_away_is_not_waited_for_again_and_again(face: HoldallStore, worked: bool) -> None:
    """And what needs no embedder is done."""
    asked: list[list[str]] = []

    def fails(texts: list[str]) -> list[list[float]]:
        asked.append(texts)
        if is_away:
            raise TimeoutError("the model is away")
        return embed(texts)

    async def all_at_once() -> list[Any]:
        puts = [embedding.aput(HOME, f"k{n}", {"text": f"text {n}"}) for n in range(32)]
        others = [embedding.aput(HOME, "plain", {"text": "no vector"}, index=False), embedding.adelete(HOME, "old")]
        return await asyncio.gather(*puts, *others, return_exceptions=True)

    is_away = not worked
    embedding = HoldallStore(face.store.with_embedder(fails))
    embedding.put(HOME, "old", {"text": "old"}, index=None if worked else False)
    is_away = True
    asked.clear()
    outcomes = asyncio.run(all_at_once())
    assert [type(outcome) for outcome in outcomes] == [EmbeddingError] * 32 + [type(None)] * 2
    assert len(asked) <= 2, "the texts, and one to see whether it is the model"
    assert [item.key for item in face.search(HOME, limit=100)] == ["plain"]


def test_puts_to_one_key_are_done_in_the_order_in_which_they_were_asked_for(face: HoldallStore) -> None:
    async def all_at_once() -> None:
        await asyncio.gather(*(face.aput(HOME, "k", {"n": n}) for n in range(100)))

    asyncio.run(all_at_once())
    item = face.get(HOME, "k")
    assert item is not None
    assert item.value == {"n": 99}


@pytest.mark.parametrize("cancelled", range(4))
def test_a_task_that_is_cancelled_takes_no_other_with_it(face: HoldallStore, cancelled: int) -> None:
    async def all_at_once() -> list[Any]:
        tasks = [asyncio.create_task(face.aput(HOME, f"k{n}", {"n": n})) for n in range(4)]
        for _ in range(cancelled):  # before its turn, and at several points of it
            await asyncio.sleep(0)
        tasks[cancelled].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(all_at_once())
    assert isinstance(outcomes[cancelled], asyncio.CancelledError)
    others = [n for n in range(4) if n != cancelled]
    assert [outcomes[n] for n in others] == [None] * 3
    assert {f"k{n}" for n in others} <= {item.key for item in face.search(HOME)}


def test_no_event_loop_is_special(face: HoldallStore) -> None:
    """LangGraph's async stores belong to the loop they were made in."""

    async def work(name: str) -> None:
        await asyncio.gather(*(face.aput(HOME, f"{name}-{n}", {}) for n in range(10)))
        assert await face.aget(HOME, f"{name}-9") is not None

    for turn in range(3):  # one after the other, in one thread
        asyncio.run(work(f"turn-{turn}"))
    threads = [threading.Thread(target=lambda n=n: asyncio.run(work(f"thread-{n}"))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(face.search(HOME, limit=100)) == 70


def test_a_loop_that_ends_leaves_nothing_that_waits(face: HoldallStore) -> None:
    async def leave() -> None:
        for n in range(3):
            asyncio.ensure_future(face.aput(HOME, f"k{n}", {}))  # noqa: RUF006  # so careless
        await asyncio.sleep(0)

    asyncio.run(leave())
    gc.collect()  # where a task that was never awaited would complain
    asyncio.run(face.aput(HOME, "later", {}))
    assert face.get(HOME, "later") is not None


def test_a_closed_store_refuses_calls(face: HoldallStore) -> None:
    async def after_closing() -> list[Any]:
        puts = [face.aput(HOME, str(n), {}) for n in range(3)]
        return await asyncio.gather(*puts, face.aget(HOME, "0"), return_exceptions=True)

    face.store.close()
    assert [type(outcome) for outcome in asyncio.run(after_closing())] == [StoreClosed] * 4
