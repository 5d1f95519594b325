"""`HoldallSaver`: hidden namespaces, space, encryption, several processes, and importing."""

from __future__ import annotations

import asyncio
import base64
import gc
import itertools
import multiprocessing
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from cryptography.fernet import InvalidToken
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import holdall
from holdall import errors
from holdall.faces.langgraph import AsyncHoldallSaver, HoldallSaver, HoldallStore
from holdall.faces.langgraph.checkpoints import log
from holdall.faces.langgraph.checkpoints.known_logs import Address, KnownLog
from holdall.faces.langgraph.checkpoints.log import Checkpoint, Codec, Log, LogWriter
from support.extent import IS_SHORT
from support.langgraph_threads import FernetCipher, chat, put_empty, say, texts, thread
from support.servers import postgres_url
from support.stores import new_location, open_at


def size_of_log(saver: HoldallSaver, name: str) -> int:
    return saver.store.files((".holdall.threads", name)).stat("/main/log").size


# Where the threads are -----------------------------------------------------------------------------------------------


def test_checkpoints_are_hidden_from_the_memories_beside_them(saver_store: holdall.Store) -> None:
    store = saver_store.scoped(("hidden",))
    memories, graph = HoldallStore(store), chat(HoldallSaver(store))
    memories.put(("memories",), "one", {"text": "hello"})
    say(graph, "t1", "hello")
    assert [item.key for item in memories.search(())] == ["one"]
    assert [item.key for item in memories.search((), query="hello")] == ["one"]
    assert memories.list_namespaces() == [("memories",)]
    assert store.count() == 1
    assert [entry.key for entry in store.scan()] == ["one"]
    assert store.count((".holdall.threads",)) == 3
    assert store.stats().entries == 4


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_copies_and_backups_have_the_threads_and_an_erasure_removes_them(tmp_path: Path, is_encrypted: bool) -> None:
    serde = EncryptedSerializer(FernetCipher()) if is_encrypted else None
    with holdall.open(tmp_path / "agent.db") as store:
        saver = HoldallSaver(store, serde=serde)
        graph = chat(saver)
        say(graph, "t", "one swordfish")
        say(graph, "t", "two")
        saver.prune(["t"])
        say(graph, "t", "three", user_id="ada")
        before = [tuple(found) for found in saver.list(None)]
        store.backup(tmp_path / "agent.backup")
        with holdall.open("memory:") as copied, holdall.open(tmp_path / "loaded.db") as loaded:
            holdall.copy(store, copied)
            loaded.load(tmp_path / "agent.backup")
            for other in (copied, loaded):
                there = HoldallSaver(other, serde=serde)
                assert [tuple(found) for found in there.list(None)] == before
                [listed] = there.threads(filter={"user_id": "ada"})
                assert (listed.id, listed.checkpoints) == ("t", 4)
                say(chat(there), "t", "four")
                assert len(texts(chat(there), "t")) == 8
        store.erase((*saver.namespace, "t"))
        store.erase(saver.namespace, "t")
        assert HoldallSaver(store, serde=serde).get_tuple(thread("t")) is None
        assert saver.threads() == []
    assert all(b"swordfish" not in file.read_bytes() for file in tmp_path.glob("agent.db*"))


def test_a_scope_has_threads_of_its_own(saver_store: holdall.Store) -> None:
    graphs = [chat(HoldallSaver(saver_store.scoped(("scopes", tenant)))) for tenant in ("a", "b")]
    for graph, text in zip(graphs, ("for a", "for b"), strict=True):
        say(graph, "same", text)
    assert [texts(graph, "same")[0] for graph in graphs] == ["for a", "for b"]


def test_a_scope_reaches_no_threads_of_others(saver_store: holdall.Store) -> None:
    """Neither with IDs that look like paths, nor with calls that look through all threads."""
    inside, outside = (HoldallSaver(saver_store.scoped(scope)) for scope in (("walls", "a"), ("walls",)))
    other = HoldallSaver(saver_store.scoped(("walls", "b")))
    for saver in (other, outside):
        for _ in range(3):
            put_empty(saver, "t", run_id="r")
    for id in ("t", "../b/t", "../../b/.holdall.threads/t", "b"):
        assert inside.get_tuple(thread(id)) is None
        assert list(inside.list(thread(id))) == []
        inside.copy_thread(id, "mine")
        inside.delete_thread(id)
        with pytest.raises(errors.NotFound):
            inside.set_ttl(id, 1)
    inside.delete_for_runs(["r"])
    assert (inside.retain(keep_last=1), list(inside.list(None)), inside.threads()) == (0, [], [])
    assert [len(list(saver.list(None))) for saver in (other, outside)] == [3, 3]


# Space ---------------------------------------------------------------------------------------------------------------


def test_a_turn_costs_the_same_however_long_the_thread_is(saver: HoldallSaver) -> None:
    graph, sizes = chat(saver), [0]
    for _ in range(40):
        say(graph, "t", base64.b64encode(os.urandom(400)).decode())
        sizes.append(size_of_log(saver, "t"))
    turns = [after - before for before, after in itertools.pairwise(sizes)]
    assert max(turns[1:]) < 1.1 * min(turns[1:])
    saver._known.clear()  # and no more in a process that has just begun
    say(graph, "t", base64.b64encode(os.urandom(400)).decode())
    assert size_of_log(saver, "t") - sizes[-1] < 1.1 * min(turns[1:])


def test_a_large_value_is_stored_once(saver: HoldallSaver) -> None:
    image = base64.b64encode(os.urandom(300_000)).decode()
    content: Any = [{"type": "image", "base64": image}]
    graph = chat(saver)
    graph.invoke({"messages": [HumanMessage(content, id="image")]}, thread("t"))
    before = size_of_log(saver, "t")
    for number in range(3):
        graph.invoke({"messages": [HumanMessage("more", id=f"more-{number}")]}, thread("t"))
    graph.update_state(
        thread("t"), {"messages": [HumanMessage("edited", id="more-0")]}
    )  # what follows is written again
    assert size_of_log(saver, "t") - before < 20_000
    assert graph.get_state(thread("t")).values["messages"][0].content == content


def test_an_element_that_is_changed_in_place_is_stored_again(saver: HoldallSaver) -> None:
    class Plan(TypedDict):
        steps: Annotated[list[Any], operator.add]

    def work(state: Plan) -> Any:
        state["steps"][0]["done"] = len(state["steps"])
        return {"steps": [{"done": 0}]}

    builder = StateGraph(Plan)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    graph = builder.compile(checkpointer=saver)
    for _ in range(3):
        graph.invoke({"steps": [{"done": None}]}, thread("t"))
    saver._known.clear()
    assert graph.get_state(thread("t")).values["steps"][0] == {"done": 5}


def test_what_is_read_is_the_same_before_and_after_it_is_forgotten(saver: HoldallSaver) -> None:
    class Plan(TypedDict):
        steps: Annotated[list[Any], operator.add]

    builder = StateGraph(Plan)
    builder.add_node("work", lambda state: {"steps": [(1, "a")]})
    builder.add_edge(START, "work")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"steps": [(0, "b")]}, thread("t"))
    assert graph.get_state(thread("t")).values["steps"] == [[0, "b"], [1, "a"]]  # as LangGraph deserialises tuples
    saver._known.clear()
    assert graph.get_state(thread("t")).values["steps"] == [[0, "b"], [1, "a"]]


# Encryption ----------------------------------------------------------------------------------------------------------


def test_an_encrypted_thread_has_no_plain_text_and_cannot_be_moved(tmp_path: Path) -> None:
    """langgraph#9004: a ciphertext could be moved to another thread unnoticed."""
    serde = EncryptedSerializer(FernetCipher())
    path = tmp_path / "secret.db"
    with HoldallSaver(str(path), serde=serde) as saver:
        graph = chat(saver)
        say(graph, "t1", "the password is swordfish", user_id="u")
        say(graph, "t1", "large " + "swordfish " * 2000)
        say(graph, "t2", "hello")
        assert len(texts(graph, "t1")) == 4
        saver._known.clear()
        assert len(texts(graph, "t1")) == 4
        assert saver.threads(prefix="t1")[0].preview is None
        saver.copy_thread("t1", "copy")
        assert texts(graph, "copy") == texts(graph, "t1")
        saver.prune(["t1"])
        assert texts(graph, "t1") == texts(graph, "copy")

        files = saver.store.files((".holdall.threads", "t2"))
        files.write("/main/log", saver.store.files((".holdall.threads", "t1")).read("/main/log"))
        saver._known.clear()
        with pytest.raises(errors.Corrupt, match="another place"):
            saver.get_tuple(thread("t2"))
    for file in tmp_path.iterdir():
        assert b"swordfish" not in file.read_bytes()


def rewrite_log(saver: HoldallSaver, source: Address, target: Address, edit: Callable[[bytes, Any], Any]) -> None:
    """Write the frames of a log to another one, or to the same, as an attacker without the key can.

    `edit` takes the kind and the payload of a frame, and returns its new payload.
    """
    files = saver.store.files((*saver.namespace, source.thread_id))
    content, frames, at = files.read(source.path), [], 0
    while at < len(content):
        _, length, id_length = log._header.unpack_from(content, at)
        kind, start = content[at + 1 : at + 2], at + log._header.size + id_length
        payload = log.decompress_payload(content[start : start + length])
        edited = edit(kind, msgspec.msgpack.decode(payload))
        frames.append(log.encode_frame(kind, content[at + log._header.size : start], edited))
        at = start + length
    files.write(target.path, b"".join(frames))
    saver._known.clear()


def keep_frame(kind: bytes, payload: Any) -> Any:
    return payload


def swap_pointers(kind: bytes, payload: Any) -> Any:
    if kind == log.CHECKPOINT:
        pointers = payload[3]
        pointers["a"], pointers["b"] = pointers["b"], pointers["a"]
    return payload


def swap_writes(kind: bytes, payload: Any) -> Any:
    if kind == log.WRITES:
        payload[2] = [[number, {"a": "b", "b": "a"}[channel], part] for number, channel, part in payload[2]]
    return payload


def put_values(saver: HoldallSaver, values: dict[str, Any]) -> Any:
    """Put a checkpoint with these values, and writes of the same. Returns its config."""
    versions: Any = dict.fromkeys(values, 1)
    checkpoint: Any = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}
    config = saver.put(thread("t"), checkpoint, {}, versions)
    saver.put_writes(config, list(values.items()), "task")
    return config


@pytest.mark.parametrize(
    "values",
    [
        {"a": "small", "b": "other"},
        {"a": "in a frame " * 20, "b": "of its own " * 20},
        {"a": ["a list"], "b": ["another"]},
        {"a": ["large" * 2000], "b": ["larger" * 2000]},
    ],
    ids=["small", "value", "list", "large"],
)
def test_a_ciphertext_cannot_be_moved_to_another_channel_or_subgraph(
    saver: HoldallSaver, values: dict[str, Any]
) -> None:
    secret = HoldallSaver(saver.store, serde=EncryptedSerializer(FernetCipher()))
    config = put_values(secret, values)
    main, sub = Address("t", ""), Address("t", "sub")
    rewrite_log(secret, main, main, keep_frame)  # which is no attack
    found = secret.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == values
    assert found.pending_writes == [("task", channel, value) for channel, value in values.items()]
    for target, edit in ((sub, keep_frame), (main, swap_pointers), (main, swap_writes)):
        rewrite_log(secret, main, target, edit)
        with pytest.raises(errors.Corrupt, match="another place"):
            secret.get_tuple(thread("t", checkpoint_ns=target.checkpoint_ns))
        with pytest.raises(errors.Corrupt, match="another place"):
            list(secret.list(thread("t", checkpoint_ns=target.checkpoint_ns)))
        if target == main:
            rewrite_log(secret, main, main, edit)  # back


def test_large_ciphertexts_of_one_channel_cannot_be_exchanged(saver: HoldallSaver) -> None:
    secret = HoldallSaver(saver.store, serde=EncryptedSerializer(FernetCipher()))
    config, main = put_values(secret, {"a": ["one" * 2000, "two" * 2000]}), Address("t", "")
    large: list[Any] = []

    def collect(kind: bytes, payload: Any) -> Any:
        if kind == log.VALUE and payload[2] is None:
            large.append(payload)
        return payload

    def exchange(kind: bytes, payload: Any) -> Any:
        return large.pop() if kind == log.VALUE and payload[2] is None else payload

    rewrite_log(secret, main, main, collect)
    assert len(large) >= 2
    rewrite_log(secret, main, main, exchange)
    with pytest.raises(errors.Corrupt, match="replaced"):
        secret.get_tuple(config)


def test_a_thread_that_was_not_encrypted_is_read_and_goes_on_encrypted(saver: HoldallSaver) -> None:
    """As LangGraph's own savers do it: a cipher is set for an app that has threads already."""
    say(chat(saver), "t", "large " + "old " * 2000)
    secret = HoldallSaver(saver.store, serde=EncryptedSerializer(FernetCipher()))
    graph = chat(secret)
    say(graph, "t", "swordfish")
    before = texts(graph, "t")
    assert (len(before), before[2]) == (4, "swordfish")
    assert b"swordfish" not in saver.store.files((*saver.namespace, "t")).read("/main/log")
    secret.copy_thread("t", "copy")
    secret.prune(["t"])
    assert texts(graph, "copy") == texts(graph, "t") == before


def test_another_key_is_refused_and_nobody_is_advised_to_delete_the_thread(saver: HoldallSaver) -> None:
    class Cipher(FernetCipher):
        """Raises the error of LangGraph's own cipher, AES of pycryptodome."""

        def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
            try:
                return super().decrypt(ciphername, ciphertext)
            except InvalidToken as error:
                raise ValueError("MAC check failed") from error

    say(chat(HoldallSaver(saver.store, serde=EncryptedSerializer(Cipher()))), "t", "hello")
    other = HoldallSaver(saver.store, serde=EncryptedSerializer(Cipher()))
    with pytest.raises(errors.InvalidInput, match="another key: MAC check failed; pass as serde="):
        other.get_tuple(thread("t"))


def test_a_damaged_log_is_corrupt(saver: HoldallSaver) -> None:
    say(chat(saver), "t", "hello")
    files = saver.store.files((*saver.namespace, "t"))
    content = files.read("/main/log")
    frame = min(Log(Codec(JsonPlusSerializer(), "t", ""), content)._checkpoints.values())
    _, size, id_size = log._header.unpack_from(content, frame)
    id, payload, end = (frame + log._header.size + extra for extra in (0, id_size, id_size + size))
    no_text = (b"\xd9" + bytes([min(size - 2, 255)])).ljust(size, b"\xfe")
    for damaged in (
        content[1:],
        content[:-1],
        content[:id] + b"\xfe" * id_size + content[payload:],
        content[:payload] + b"\xc1" * size + content[end:],  # what is not compressed
        content[:payload] + no_text + content[end:],
    ):
        files.write("/main/log", damaged)
        saver._known.clear()
        with pytest.raises(errors.Corrupt, match="damaged at byte"):
            list(saver.list(thread("t")))


def test_a_log_that_was_compressed_with_the_first_dictionary_is_read_and_goes_on(saver: HoldallSaver) -> None:
    home = (*saver.namespace, "t")
    old = (Path(__file__).parents[2] / "fixtures" / "thread.log").read_bytes()
    saver.store.put(home, "generation", {}, search_fields=False)
    saver.store.files(home).write("/main/log", old)
    graph, said = chat(saver), ["hello", "answer to hello", "and again", "answer to and again"]
    assert texts(graph, "t") == said
    assert [found.metadata["step"] for found in saver.list(thread("t"))] == [4, 3, 2, 1, 0, -1]
    say(graph, "t", "at last")
    saver._known.clear()
    assert texts(graph, "t") == [*said, "at last", "answer to at last"]
    assert saver.store.files(home).read("/main/log").startswith(old)


def test_equal_values_of_an_encrypted_thread_are_stored_once(tmp_path: Path) -> None:
    serde = EncryptedSerializer(FernetCipher())
    large = base64.b64encode(os.urandom(100_000)).decode()
    with HoldallSaver(str(tmp_path / "secret.db"), serde=serde) as saver:
        graph = chat(saver)
        graph.invoke({"messages": [HumanMessage("first", id="first"), HumanMessage(large, id="large")]}, thread("t"))
        before = size_of_log(saver, "t")
        saver._known.clear()
        graph.update_state(thread("t"), {"messages": [HumanMessage("edited", id="first")]})  # the rest is written again
        assert size_of_log(saver, "t") - before < 10_000
        assert graph.get_state(thread("t")).values["messages"][1].content == large


def test_nothing_is_unpickled(saver: HoldallSaver) -> None:
    class Custom:
        pass

    checkpoint: Any = {**empty_checkpoint(), "channel_values": {"a": Custom()}, "channel_versions": {"a": 1}}
    with pytest.raises(TypeError):
        saver.put(thread("t"), checkpoint, {}, {"a": 1})
    assert saver.get_tuple(thread("t")) is None


def test_an_allow_list_is_used(saver: HoldallSaver) -> None:
    strict = HoldallSaver(saver.store, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    allowed = strict.with_allowlist([("some.module", "Name")])
    assert isinstance(allowed, HoldallSaver)
    assert allowed.serde is not strict.serde


def test_a_saver_that_is_dropped_frees_what_it_remembers_at_once(saver: HoldallSaver) -> None:
    say(chat(saver), "t", "hello")
    other = HoldallSaver(saver.store)
    assert other.get_tuple(thread("t")) is not None
    known = other._known.recall(Address("t", ""))
    assert known is not None
    codec = weakref.ref(known.log.codec)
    gc.disable()
    try:
        del other, known
        assert codec() is None
    finally:
        gc.enable()


# Opening -------------------------------------------------------------------------------------------------------------


def test_it_opens_as_langgraphs_own_savers_do(tmp_path: Path) -> None:
    with HoldallSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        saver.setup()
        say(chat(saver), "t", "hello")

    async def run() -> int:
        async with AsyncHoldallSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
            await saver.setup()
            return len([found async for found in saver.alist(thread("t"))])

    assert asyncio.run(run()) == 3


@pytest.mark.parametrize("config", [{"configurable": {}}, {}, {"configurable": {"thread_id": ""}}])
def test_a_config_without_a_thread_is_refused(saver: HoldallSaver, config: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="thread"):
        saver.get_tuple(config)


def test_versions_of_langgraphs_savers_go_on(saver: HoldallSaver) -> None:
    assert saver.get_next_version(None, None) == 1
    assert saver.get_next_version(7, None) == 8
    assert saver.get_next_version(f"{7:032}.0.25", None).startswith(f"{8:032}.0.")


# Several at once -----------------------------------------------------------------------------------------------------


def run_both(target: Callable[..., None], location: Any) -> None:
    """Run a function in two processes, "a" and "b", which begin their work together."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=target, args=(location, name, barrier)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0


def _resume(url: str, name: str, barrier: Any) -> None:
    with HoldallSaver(url) as saver:
        graph = chat(saver)
        saver.get_tuple(thread("t"))
        barrier.wait(60)
        for number in range(10):
            graph.invoke({"messages": [HumanMessage(f"{name} {number}", id=f"{name}-{number}")]}, thread("t"))


@pytest.mark.skipif(IS_SHORT, reason="in make test-all: two processes import LangGraph")
def test_two_processes_on_one_thread_lose_no_checkpoint(tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    with HoldallSaver(url) as saver:
        say(chat(saver), "t", "begin")
    run_both(_resume, url)
    with HoldallSaver(url) as saver:
        found = list(saver.list(thread("t")))
        assert len(found) == 3 + 2 * 10 * 3
        said = {message.id for each in found for message in each.checkpoint["channel_values"].get("messages", ())}
        assert {f"{name}-{number}" for name in ("a", "b") for number in range(10)} <= said
        ids = {each.config["configurable"]["checkpoint_id"] for each in found}
        parents = [each.parent_config["configurable"]["checkpoint_id"] for each in found if each.parent_config]
        assert set(parents) <= ids


class _Asked(TypedDict):
    answers: Annotated[list[str], operator.add]


def ask(saver: Any) -> Any:
    """A graph that asks, and then notes the answer."""
    builder = StateGraph(_Asked)
    builder.add_node("ask", lambda state: {"answers": [interrupt("which?")]})
    builder.add_node("note", lambda state: {"answers": [f"noted {state['answers'][-1]}"]})
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "note")
    return builder.compile(checkpointer=saver)


def _answer(location: Any, name: str, barrier: Any) -> None:
    with open_at(location) as store:
        graph = ask(HoldallSaver(store))
        interrupted = graph.get_state(thread("t")).config
        barrier.wait(60)
        graph.invoke(Command(resume=name), interrupted)


@pytest.mark.skipif(IS_SHORT, reason="in make test-all: two processes import LangGraph")
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_two_processes_resume_one_interrupt_and_both_histories_are_kept(engine: str, tmp_path: Path) -> None:
    location = new_location(engine, tmp_path)
    with open_at(location) as store:
        ask(HoldallSaver(store)).invoke({"answers": []}, thread("t"))
    run_both(_answer, location)
    with open_at(location) as store:
        saver = HoldallSaver(store)
        found = {each.config["configurable"]["checkpoint_id"]: each for each in saver.list(thread("t"))}
        ends = [each for each in found.values() if each.metadata["step"] == 2]
        assert sorted(each.checkpoint["channel_values"]["answers"] for each in ends) == [
            ["a", "noted a"],
            ["b", "noted b"],
        ]
        for end in ends:  # each has a history of its own, which goes back to the first checkpoint
            parents, at = [], end
            while at.parent_config is not None:
                at = found[at.parent_config["configurable"]["checkpoint_id"]]
                parents.append(at.checkpoint["channel_values"].get("answers", []))
            assert parents == [end.checkpoint["channel_values"]["answers"][:1], [], []]
        interrupted = next(each for each in found.values() if each.metadata["step"] == 0)
        written = {channel for _, channel, _ in interrupted.pending_writes or ()}
        assert written >= {"__interrupt__", "__resume__", "answers"}
        assert saver.threads()[0].checkpoints == len(found)


def test_a_subgraph_that_begins_while_the_last_log_is_deleted_is_listed(tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    checkpoint = {**empty_checkpoint(), "id": "ffffffff-0000-6000-8000-000000000000"}
    calls = itertools.count(1)
    with HoldallSaver(url) as other:

        class Slow(HoldallSaver):
            def _addresses(self, thread_id: str) -> Any:
                found = yield from super()._addresses(thread_id)
                if next(calls) == 2:  # the logs were counted, and the last one is about to be deleted
                    other.put(thread("t", checkpoint_ns="sub:1"), checkpoint, {}, {})
                return found

        with Slow(url) as slow:
            put_empty(slow, "t", run_id="r")
            assert other.get_tuple(thread("t", checkpoint_ns="sub:1")) is None
            slow.delete_for_runs(["r"])
            assert slow.get_tuple(thread("t")) is None
            assert [each.id for each in slow.threads()] == ["t"]
            assert len(list(slow.list(None))) == 1


def test_a_thread_that_is_deleted_or_pruned_elsewhere_goes_on_whole(tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    with HoldallSaver(url) as one, HoldallSaver(url) as other:
        graph = chat(one)
        say(graph, "t", "one")
        other.prune(["t"])
        say(graph, "t", "two")
        assert len(texts(chat(other), "t")) == 4
        before = one.get_tuple(thread("t"))
        assert before is not None
        other.delete_thread("t")
        checkpoint: Any = {**before.checkpoint, "id": "ffffffff-0000-6000-8000-000000000000"}
        one.put(before.config, checkpoint, {"step": 9}, {})  # it refers to what is deleted
        assert len(texts(chat(other), "t")) == 4
        with pytest.raises(errors.AlreadyExists):
            one.copy_thread("t", "t")


def test_threads_read_what_another_thread_extends(saver: HoldallSaver) -> None:
    """One saver, in several threads: lists and copies of a thread that grows meanwhile."""
    secret = HoldallSaver(saver.store, namespace=("secret",), serde=EncryptedSerializer(FernetCipher()))
    graph, numbers = chat(secret), itertools.count()
    say(graph, "t", "begin")
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            list(secret.list(thread("t")))
            target = f"copy-{next(numbers)}"
            secret.copy_thread("t", target)
            found = secret.get_tuple(thread(target))
            assert found is not None
            secret.delete_thread(target)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor() as pool:
            readers = [pool.submit(read) for _ in range(3)]
            for number in range(30):
                say(graph, "t", f"more {number}")
            is_over.set()
            for reader in readers:
                reader.result()
    finally:
        is_over.set()
        sys.setswitchinterval(interval)


def test_of_two_reads_the_later_counts() -> None:
    """Two threads read the same log from the same offset on; the first to come back has read less."""
    serde, made = JsonPlusSerializer(), []
    for id in ("one", "two"):
        writer = LogWriter(Codec(serde, "t", ""), {})
        writer.add_checkpoint(id, Checkpoint(None, b"", b"", {}))
        made.append(writer.data)
    known = KnownLog(Log(Codec(serde, "t", ""), b""), None, None)
    known.extend(0, made[0])
    known.extend(0, made[0] + made[1])
    known.extend(0, made[0])
    known.extend(500, made[1])  # something before it is missing
    assert (known.log.ids, known.log.latest, known.log.size) == (["two", "one"], "two", len(made[0] + made[1]))


def test_writes_that_come_before_the_first_checkpoint_refer_to_nothing_that_may_go(tmp_path: Path) -> None:
    url, large, checkpoint = str(tmp_path / "agent.db"), "large" * 2000, empty_checkpoint()
    with HoldallSaver(url) as one, HoldallSaver(url) as other:
        config = thread("t", checkpoint_id=checkpoint["id"])
        one.put_writes(config, [("a", large)], "task-1")
        assert one.get_tuple(thread("t")) is None
        other.delete_thread("t")
        one.put_writes(config, [("a", large)], "task-2")
        one.put(thread("t"), checkpoint, {}, {})
        found = other.get_tuple(thread("t"))
        assert found is not None
        assert found.pending_writes == [("task-2", "a", large)]


def test_a_checkpoint_that_is_its_own_parent_has_no_history(saver: HoldallSaver) -> None:
    checkpoint = empty_checkpoint()
    config = saver.put(thread("t", checkpoint_id=checkpoint["id"]), checkpoint, {}, {})
    assert saver.get_delta_channel_history(config=config, channels=["a"]) == {"a": {"writes": []}}


def test_many_threads_are_written_at_once(saver_store: holdall.Store) -> None:
    saver = HoldallSaver(saver_store, namespace=("many", "threads"))
    graph = chat(saver)

    async def run() -> None:
        await asyncio.gather(
            *(graph.ainvoke({"messages": [HumanMessage(f"hello {n}")]}, thread(f"t-{n}")) for n in range(24))
        )

    asyncio.run(run())
    assert len(saver.threads()) == 24
    assert all(texts(graph, f"t-{n}") == [f"hello {n}", f"answer to hello {n}"] for n in range(24))


# Importing -----------------------------------------------------------------------------------------------------------


def test_threads_of_sqlite_saver_are_imported_and_continue(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        graph = chat(theirs)
        say(graph, "t1", "one", user_id="u")
        say(graph, "t1", "two")
        say(graph, "t2", "three")
        before = [(found.checkpoint, found.metadata, found.parent_config) for found in theirs.list(thread("t1"))]
        writes = [found.pending_writes for found in theirs.list(thread("t1"))]
    with HoldallSaver(str(tmp_path / "ours.db")) as saver:
        calls: list[tuple[int, int]] = []

        def stop_early(done: int, total: int) -> None:
            calls.append((done, total))
            if done == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            saver.import_from(tmp_path / "theirs.db", progress=stop_early)
        assert calls[-1] == (4, 9)
        imported = saver.import_from(tmp_path / "theirs.db")
        assert (imported.total, imported.present, imported.imported) == (9, 4, 5)
        ours = [(found.checkpoint, found.metadata, found.parent_config) for found in saver.list(thread("t1"))]
        assert ours == before
        assert [found.pending_writes for found in saver.list(thread("t1"))] == writes
        say(chat(saver), "t1", "four")
        assert texts(chat(saver), "t1")[-2:] == ["four", "answer to four"]
        with pytest.raises(errors.FileNotFound):
            saver.import_from(tmp_path / "missing.db")
        (tmp_path / "text.db").write_text("not a database, but long enough to look at")
        with pytest.raises(errors.InvalidInput, match="SqliteSaver"):
            saver.import_from(tmp_path / "text.db")


def test_imported_writes_of_a_task_are_numbered_as_langgraph_numbers_them(tmp_path: Path) -> None:
    checkpoint = empty_checkpoint()
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        config: Any = theirs.put(thread("t"), checkpoint, {}, {})
        theirs.put_writes(config, [("__resume__", "yes")], "task")
        theirs.put_writes(config, [("a", 1)], "task")
    with HoldallSaver(str(tmp_path / "ours.db")) as saver:
        saver.import_from(tmp_path / "theirs.db")
        saver.put_writes(config, [("a", 2)], "task")  # the same write again: the first counts
        found = saver.get_tuple(config)
        assert found is not None
        assert found.pending_writes == [("task", "__resume__", "yes"), ("task", "a", 1)]


def test_an_import_that_is_run_again_adds_later_writes_of_a_checkpoint(tmp_path: Path) -> None:
    """As for an app that still runs on their saver during the first import."""
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        config: Any = theirs.put(thread("t"), empty_checkpoint(), {}, {})
        theirs.put_writes(config, [("a", 1)], "task-1", "1")
        with HoldallSaver(str(tmp_path / "ours.db")) as saver:
            assert saver.import_from(tmp_path / "theirs.db").imported == 1
            theirs.put_writes(config, [("a", 2), ("b", 3)], "task-2", "2")
            assert saver.import_from(tmp_path / "theirs.db").imported == 1
            assert saver.import_from(tmp_path / "theirs.db").present == 1
            ours = saver.get_tuple(config)
            expected = theirs.get_tuple(config)
            assert ours is not None
            assert expected is not None
            assert (
                ours.pending_writes
                == expected.pending_writes
                == [("task-1", "a", 1), *[("task-2", "a", 2), ("task-2", "b", 3)]]
            )


def test_a_database_of_an_old_version_of_sqlite_saver_is_imported(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        config: Any = theirs.put(thread("t"), empty_checkpoint(), {}, {})
        theirs.put_writes(config, [("a", 1)], "task")
        theirs.conn.execute("ALTER TABLE writes DROP COLUMN task_path")
        theirs.conn.commit()
    with HoldallSaver(str(tmp_path / "ours.db")) as saver:
        saver.import_from(tmp_path / "theirs.db")
        found = saver.get_tuple(config)
        assert found is not None
        assert found.pending_writes == [("task", "a", 1)]


def test_a_thread_that_cannot_be_stored_does_not_end_an_import(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        for name in ("", "__holdall__", "t" * 1100, "z"):
            theirs.put(thread(name), empty_checkpoint(), {}, {})
    with HoldallSaver(str(tmp_path / "ours.db")) as saver:
        imported = saver.import_from(tmp_path / "theirs.db")
        assert (imported.total, imported.imported) == (4, 1)
        assert [each.namespace[0] for each in imported.refused] == ["", "__holdall__", "t" * 1100]
        assert [each.id for each in saver.threads()] == ["z"]


@pytest.mark.skipif(IS_SHORT, reason="in make test-all")
def test_threads_of_postgres_saver_are_imported(tmp_path: Path) -> None:
    with PostgresSaver.from_conn_string(postgres_url()) as theirs:
        theirs.setup()
        say(chat(theirs), "imported", "one")
        before = [(found.checkpoint, found.metadata) for found in theirs.list(thread("imported"))]
    with HoldallSaver(str(tmp_path / "ours.db")) as saver:
        assert saver.import_from(postgres_url()).imported == 3
        assert [(found.checkpoint, found.metadata) for found in saver.list(thread("imported"))] == before
