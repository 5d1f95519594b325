"""Threads of `HoldallSaver`: how they are listed and watched, their lifetimes, and which checkpoints are retained."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

import holdall
from holdall import errors
from holdall.faces.langgraph import HoldallSaver
from holdall.testing import Clock
from support.langgraph_threads import chat, put_empty, say, texts, thread
from support.threads import eventually

# Listing -------------------------------------------------------------------------------------------------------------


def test_threads_are_listed_with_what_was_said_last(saver_store: holdall.Store) -> None:
    saver = HoldallSaver(saver_store, namespace=("listing", "threads"))
    graph = chat(saver)
    for number in range(5):
        say(graph, f"thread-{number}", f"About Topic {number}", user_id=f"user-{number % 2}")
    say(graph, "other", "hello")
    say(graph, "thread-1", "again", user_id="user-1")
    page = saver.threads(limit=2)
    assert [found.id for found in page] == ["thread-1", "other"]
    first = page[0]
    assert (first.checkpoints, first.step, first.preview) == (6, 4, "answer to again")
    assert first.metadata["user_id"] == "user-1"
    assert first.created_at < first.updated_at
    assert [found.id for found in saver.threads(limit=2, cursor=page.next)] == ["thread-4", "thread-3"]
    assert {found.id for found in saver.threads(prefix="thread-")} == {f"thread-{number}" for number in range(5)}
    assert {found.id for found in saver.threads(filter={"user_id": "user-0"})} == {"thread-0", "thread-2", "thread-4"}
    assert [found.id for found in saver.threads(filter={"$or": [{"checkpoints": {"$gt": 3}}]})] == ["thread-1"]
    assert saver.threads(query="TOPIC 3 answer")[0].id == "thread-3"
    found = saver.threads(query="topics", filter={"user_id": "user-0"})
    assert {each.id for each in found} == {"thread-0", "thread-2", "thread-4"}
    assert saver.threads(query="elsewhere") == []
    saver.delete_thread("thread-1")
    assert "thread-1" not in {found.id for found in asyncio.run(saver.athreads())}


def test_threads_stay_in_the_order_of_their_checkpoints_when_old_ones_are_deleted(saver_store: holdall.Store) -> None:
    saver = HoldallSaver(saver_store, namespace=("order", "threads"))
    graph = chat(saver)
    for number in range(3):
        say(graph, f"t{number}", "hello")
    before = saver.threads()
    saver.retain(keep_last=2)
    saver.prune(["t1"])
    after = saver.threads()
    assert [found.id for found in after] == ["t2", "t1", "t0"]
    assert [found.updated_at for found in after] == [found.updated_at for found in before]
    assert [found.checkpoints for found in after] == [2, 1, 2]
    saver.set_ttl("t2", 1000)
    saver.copy_thread("t1", "copy")
    assert {found.id: found.checkpoints for found in saver.threads()} == {"copy": 1, "t2": 2, "t1": 1, "t0": 2}
    say(graph, "t1", "again")
    assert (saver.threads()[0].id, saver.threads()[0].checkpoints) == ("t1", 4)
    assert [found.id for found in saver.threads(query="copy")] == ["copy"]


def test_pages_of_threads_lack_none_while_threads_change(saver_store: holdall.Store) -> None:
    saver = HoldallSaver(saver_store, namespace=("pages", "threads"))
    other = HoldallSaver(saver_store, namespace=("pages", "threads"))
    for number in range(12):
        put_empty(saver, f"t{number}", user_id="ada")
    each_options: list[Any] = [{}, {"filter": {"user_id": "ada"}}, {"query": "ada"}]
    for options in each_options:
        seen: list[str] = []
        page = saver.threads(limit=3, **options)
        for number in range(100):
            seen += [found.id for found in page]
            if page.next is None:
                break
            # The next thread, which was on no page yet, moves to the front. One goes, and a new one comes.
            late = next((f"t{n}" for n in reversed(range(12)) if f"t{n}" not in seen), "t0")
            if number < 3:
                put_empty(other, late, user_id="ada")
                other.put(thread(f"new-{number}"), empty_checkpoint(), {}, {})
                other.delete_thread(f"new-{number - 1}")
                other.retain(keep_last=1, thread_ids=[seen[0]])
            page = saver.threads(limit=3, cursor=page.next, **options)
        assert page.next is None
        assert {f"t{number}" for number in range(12)} <= set(seen)
        other.delete_thread("new-2")


def test_every_thread_is_searched_for_runs_while_threads_change(
    saver_store: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that gets a checkpoint moves in the list, and is visited nevertheless."""
    monkeypatch.setattr("holdall.faces.langgraph.checkpoints.saver._THREADS_PER_PAGE", 3)
    other = HoldallSaver(saver_store, namespace=("moving", "threads"))

    class Slow(HoldallSaver):
        def _keep(self, thread_id: str, *args: Any, **options: Any) -> Any:
            if thread_id == "t9":  # the first that is visited
                for number in (0, 5):
                    other.put(thread(f"t{number}"), empty_checkpoint(), {}, {})
            return (yield from super()._keep(thread_id, *args, **options))

    slow = Slow(saver_store, namespace=("moving", "threads"))
    for number in range(10):
        put_empty(slow, f"t{number}", run_id="r")
    slow.delete_for_runs(["r"])
    assert [found.metadata for found in slow.list(None)] == [{}, {}]
    assert {found.id: found.checkpoints for found in slow.threads()} == {"t0": 1, "t5": 1}


def test_what_has_no_checkpoint_is_not_listed(saver_store: holdall.Store) -> None:
    saver = HoldallSaver(saver_store, namespace=("inner",))
    for name in ("older", "t"):
        saver.put(thread(name), empty_checkpoint(), {}, {})
    assert HoldallSaver(saver_store, namespace=("inner", "t")).threads() == []  # there are the items of the thread
    saver_store.delete((*saver.namespace, "t"), "generation")  # which expires a little before the item that lists it
    assert saver.get_tuple(thread("t")) is None
    assert [found.id for found in saver.threads(limit=1)] == ["older"]


def test_a_thread_is_listed_with_what_is_left_when_its_last_run_is_deleted(saver_store: holdall.Store) -> None:
    saver = HoldallSaver(saver_store, namespace=("runs", "threads"))
    graph = chat(saver)
    for run, text in (("r1", "public"), ("r2", "secret")):
        graph.invoke({"messages": [HumanMessage(text)]}, thread("t", run_id=run))
    saver.delete_for_runs(["r2"])
    [found] = saver.threads()
    assert (found.preview, found.step, found.checkpoints, found.metadata["run_id"]) == ("answer to public", 1, 3, "r1")
    last = saver.get_tuple(thread("t"))
    assert last is not None
    assert found.checkpoint_id == last.checkpoint["id"]
    assert saver.threads(query="secret") == []
    saver.put(thread("t", checkpoint_ns="sub"), empty_checkpoint(), {}, {})
    saver.delete_for_runs(["r1"])  # only the subgraph is left
    [found] = saver.threads()
    assert (found.id, found.preview, found.checkpoints) == ("t", None, 0)


def test_a_checkpoint_that_is_put_late_does_not_become_the_last(saver: HoldallSaver) -> None:
    """As those of an import into a thread that has already continued here."""
    graph = chat(saver)
    say(graph, "t", "one")
    say(graph, "t", "two")
    older = list(saver.list(thread("t")))[3]
    checkpoint: Any = {**older.checkpoint, "id": older.checkpoint["id"][:-1] + "~"}
    saver.put(older.config, checkpoint, {"step": 9}, {})
    [found] = saver.threads()
    assert (found.preview, found.step, found.checkpoints) == ("answer to two", 4, 7)


def test_of_two_processes_the_last_checkpoint_is_listed(saver: HoldallSaver) -> None:
    """Also if the one that puts an earlier checkpoint does not know the later one yet."""
    other = HoldallSaver(saver.store)
    first, earlier, later = ({**empty_checkpoint(), "id": f"{number:036}"} for number in range(3))
    config = saver.put(thread("t"), first, {"step": 0}, {})
    other.put(config, later, {"step": 2}, {})
    saver.put(config, earlier, {"step": 1}, {})
    [found] = saver.threads()
    assert (found.checkpoint_id, found.step, found.checkpoints) == (later["id"], 2, 3)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("content", [None, 5, [None, 5, {"type": "image"}, {"text": 5}]])
def test_a_message_without_a_text_has_an_empty_preview(saver: HoldallSaver, content: Any) -> None:
    """As LangChain makes it without validating it."""
    message = HumanMessage.model_construct(content=content)
    checkpoint: Any = {**empty_checkpoint(), "channel_values": {"messages": [message]}}
    saver.put(thread("t"), checkpoint, {}, {})
    assert saver.threads()[0].preview == ""


def test_metadata_that_is_no_json_is_stored_and_not_listed(saver: HoldallSaver) -> None:
    metadata: Any = {1: "a", "b": {2: "c"}, "d": 3}
    config = saver.put(thread("t"), empty_checkpoint(), metadata, {})
    assert saver.threads()[0].metadata == {"d": 3}
    found = saver.get_tuple(config)
    assert found is not None
    assert found.metadata == metadata


def test_watch_gives_checkpoints_as_they_come(saver_store: holdall.Store) -> None:
    saver = HoldallSaver(saver_store, namespace=("watching", "threads"))
    graph = chat(saver)
    say(graph, "t", "before")
    steps: list[int] = []
    ready = threading.Event()

    def follow() -> None:
        changes = saver.watch("t")
        ready.set()
        for found in changes:
            steps.append(found.metadata["step"])
            if len(steps) == 3:
                changes.close()  # type: ignore[attr-defined]  # a generator

    follower = threading.Thread(target=follow)
    follower.start()
    ready.wait()
    handle = saver_store._engine_handle
    eventually(lambda: handle.notifier is not None and bool(handle.notifier._events))  # once it waits for a change
    say(chat(HoldallSaver(saver_store, namespace=("watching", "threads"))), "t", "after")
    follower.join(20)
    assert steps == [2, 3, 4]


# Lifetimes -----------------------------------------------------------------------------------------------------------


@pytest.mark.timed
def test_a_thread_that_is_not_used_expires_with_its_writes(saver_store: holdall.Store) -> None:
    saver_store.delete_tree(("expiring",))  # of an earlier try
    saver = HoldallSaver(saver_store, namespace=("expiring", "threads"), ttl=timedelta(seconds=1))
    graph = chat(saver)
    say(graph, "used", "hello")
    say(graph, "unused", "hello")
    say(graph, "kept", "hello")
    saver.set_ttl("kept", None)
    for _ in range(4):
        time.sleep(0.4)
        assert saver.get_tuple(thread("used")) is not None
    assert saver.get_tuple(thread("unused")) is None
    assert {found.id for found in saver.threads()} == {"used", "kept"}
    assert texts(graph, "kept") == ["hello", "answer to hello"]
    say(graph, "unused", "again")
    assert texts(graph, "unused") == ["again", "answer to again"]
    with pytest.raises(errors.NotFound):
        saver.set_ttl("nothing", 5)


@pytest.mark.parametrize("age", [95, 97, 101, 103, 105])
def test_a_thread_that_has_expired_leaves_no_subgraph_to_the_next_one(age: float) -> None:
    """Also if the subgraph began between two times at which the TTL of everything is restarted."""
    clock, child = Clock(), thread("t", checkpoint_ns="child")
    with holdall.open("memory:", clock=clock) as store:
        saver = HoldallSaver(store, ttl=100)
        put_empty(saver, "t")
        clock.advance(4)
        saver.put(child, empty_checkpoint(), {}, {})
        clock.advance(age - 4)
        after = HoldallSaver(store, ttl=100)
        is_there = after.get_tuple(thread("t")) is not None
        assert (after.get_tuple(child) is not None) == is_there
        put_empty(after, "t")
        assert (after.get_tuple(child) is not None) == is_there


def test_a_thread_that_got_a_ttl_later_leaves_nothing() -> None:
    clock = Clock()
    with holdall.open("memory:", clock=clock) as store:
        saver = HoldallSaver(store)
        put_empty(saver, "t")
        saver.put(thread("t", checkpoint_ns="child"), empty_checkpoint(), {}, {})
        saver.set_ttl("t", 100)
        clock.advance(101)
        assert list(store.scan(saver.namespace)) == []


@pytest.mark.parametrize(("began_with", "goes_on_with"), [(100, None), (None, 100), (100, 20), (20, 100)])
def test_a_thread_keeps_the_ttl_it_began_with(began_with: float | None, goes_on_with: float | None) -> None:
    """An app that is deployed with another `ttl=` loses no thread that is in use, and none stays unlisted."""
    clock = Clock()
    with holdall.open("memory:", clock=clock) as store:
        say(chat(HoldallSaver(store, ttl=began_with)), "t", "one")
        for number in range(30):
            clock.advance(5)
            graph = chat(HoldallSaver(store, ttl=goes_on_with))
            say(graph, "t", "more")
            assert len(texts(graph, "t")) == 2 * number + 4
        after = HoldallSaver(store, ttl=goes_on_with)
        after.copy_thread("t", "copy")
        clock.advance(101)
        kept = [name for name, ttl in (("t", began_with), ("copy", goes_on_with)) if ttl is None]
        assert sorted(found.id for found in after.threads()) == sorted(kept)
        assert [name for name in ("t", "copy") if after.get_tuple(thread(name)) is not None] == kept
        assert {entry.namespace[-1] for entry in store.scan(after.namespace)} - {".holdall.threads"} == set(kept)


def test_pruning_does_not_restart_a_ttl() -> None:
    """Otherwise the subgraphs that were not pruned would expire before their thread."""
    clock, child = Clock(), thread("t", checkpoint_ns="child")
    with holdall.open("memory:", clock=clock) as store:
        saver = HoldallSaver(store, ttl=100)
        put_empty(saver, "t")
        put_empty(saver, "t")
        saver.put(child, empty_checkpoint(), {}, {})
        clock.advance(50)
        HoldallSaver(store, ttl=100).prune(["t"])
        clock.advance(49)
        assert [len(list(saver.list(config))) for config in (thread("t"), child)] == [1, 1]
        clock.advance(2)
        after = HoldallSaver(store, ttl=100)
        assert [after.get_tuple(config) for config in (thread("t"), child)] == [None, None]
        assert after.threads() == []


def test_retain_deletes_old_checkpoints_and_keeps_the_state(saver_store: holdall.Store) -> None:
    saver = HoldallSaver(saver_store, namespace=("retaining", "threads"))
    graph = chat(saver)
    for text in ("one", "two", "three"):
        say(graph, "t", text)
    state = texts(graph, "t")
    assert saver.retain(keep_last=1, older_than=3600) == 0
    assert saver.retain(keep_last=4) == 5
    assert len(list(saver.list(thread("t")))) == 4
    assert saver.threads()[0].checkpoints == 4
    assert saver.retain(older_than=0) == 3
    assert texts(graph, "t") == state
    say(graph, "t", "four")
    assert texts(graph, "t") == [*state, "four", "answer to four"]
    saver.retain_every(timedelta(milliseconds=50), keep_last=2)
    deadline = time.monotonic() + 20
    while len(list(saver.list(thread("t")))) > 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    saver.close()
    assert len(list(saver.list(thread("t")))) == 2
    for wrong in ({}, {"keep_last": 0}):
        with pytest.raises(errors.InvalidInput):
            saver.retain(**wrong)  # type: ignore[arg-type]  # on purpose


def test_writes_keep_a_thread_alive(saver_store: holdall.Store) -> None:
    saver = HoldallSaver(saver_store, namespace=("working", "threads"), ttl=1000)
    config = saver.put(thread("t"), empty_checkpoint(), {}, {})
    before = saver_store.get(saver.namespace, "t")
    saver._refreshed.clear()  # as if a twentieth of the TTL had passed
    time.sleep(0.01)
    saver.put_writes(config, [("a", 1)], "task")
    after = saver_store.get(saver.namespace, "t")
    assert before is not None
    assert after is not None
    assert before.expires_at is not None
    assert after.expires_at is not None
    assert after.expires_at > before.expires_at


def test_retain_deletes_old_checkpoints_of_subgraphs_too(saver: HoldallSaver) -> None:
    saver.put(thread("t"), empty_checkpoint(), {}, {})
    for _ in range(5):
        saver.put(thread("t", checkpoint_ns="sub"), empty_checkpoint(), {}, {})
    assert saver.retain(keep_last=2) == 3
    assert saver.retain(keep_last=2) == 0
    assert len(list(saver.list(thread("t", checkpoint_ns="sub")))) == 2


def test_wrong_arguments_are_refused(saver: HoldallSaver) -> None:
    wrong_times: list[Any] = ["x", float("nan"), -1, True]
    for wrong in wrong_times:
        with pytest.raises(errors.InvalidInput, match="older_than is"):
            saver.retain(older_than=wrong)
        with pytest.raises(errors.InvalidInput, match="interval is"):
            saver.retain_every(wrong, keep_last=1)
        with pytest.raises(errors.InvalidInput, match="ttl is"):
            saver.set_ttl("t", wrong)
        with pytest.raises(errors.InvalidInput, match="ttl is"):
            HoldallSaver(saver.store, ttl=wrong)
    for age in (timedelta.max, 1e300):
        assert saver.retain(older_than=age) == 0
    for ids in ("abc", None):  # the characters of a text are no IDs
        for method in (saver.prune, saver.delete_for_runs):
            with pytest.raises(errors.InvalidInput, match="_ids is a list"):
                method(ids)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(errors.InvalidInput, match="thread_ids is a list"):
        saver.retain(keep_last=1, thread_ids="abc")
