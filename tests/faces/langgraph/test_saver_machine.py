"""Random operations on `HoldallSaver` and on `InMemorySaver`, compared after each step.

Two savers share a store, as two processes do: each remembers something else. What `InMemorySaver` has no method for is
done to its dicts.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

import holdall
from holdall.errors import AlreadyExists
from holdall.faces.langgraph import HoldallSaver
from support.extent import FEW_FSYNCS, IS_SHORT
from support.langgraph_threads import FernetCipher
from support.stores import ENGINES, new_location, open_at

THREADS = ["t", "a/b", "%2F", "..", "ünï·𝔘", "with space", "main", "generation", "*?[x]", "1"]
NAMESPACES = ["", "", "child:1", "child:1|grand:2", "a/b%", "Ünï"]
CHANNELS = ["messages", "steps", "plain", "other"]
_LARGE = b"\x00\xff" * 3000
_numbers = itertools.count()

plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.integers(1, 2).map(lambda size: _LARGE * size)
    | st.sampled_from([{1, 2}, datetime(2026, 1, 2, tzinfo=UTC), (1, "a")]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
texts = st.text(max_size=8) | st.integers(1000, 1001).map(lambda size: "long " * size)
messages = st.one_of(
    st.builds(HumanMessage, texts, id=st.sampled_from(["a", "b", "c", "d"])),
    st.builds(
        AIMessage, texts, id=st.text(max_size=2), additional_kwargs=st.dictionaries(texts, plain_values, max_size=2)
    ),
    st.builds(ToolMessage, texts, tool_call_id=st.just("call"), artifact=plain_values),
)
edits = st.sampled_from(
    ["append", "append", "append", "edit", "remove", "reverse", "in place", "retype", "clear", "replace", "same"]
)


class SaverMachine(RuleBasedStateMachine):
    """Steps that are taken on both."""

    store: holdall.Store
    is_encrypted = False

    @initialize()
    def begin(self) -> None:
        options: dict[str, Any] = {"namespace": ("machine", f"threads-{next(_numbers)}")}
        if self.is_encrypted:
            options["serde"] = EncryptedSerializer(FernetCipher())
        self.savers = [HoldallSaver(self.store, **options) for _ in range(2)]
        self.memory = InMemorySaver()
        self.states: dict[tuple[str, str, str], dict[str, tuple[Any, Any]]] = {}  # version and value of each channel
        self.versions = itertools.count(1)

    def addresses(self) -> list[tuple[str, str, str]]:
        return sorted(self.states)

    @rule(
        data=st.data(),
        which=st.integers(0, 1),
        thread=st.sampled_from(THREADS[:4]) | st.sampled_from(THREADS),
        ns=st.sampled_from(NAMESPACES),
        is_text=st.booleans(),
        is_again=st.integers(0, 9),
        omits=st.booleans(),
        changes=st.lists(st.tuples(st.sampled_from(CHANNELS), edits), max_size=3),
        run_id=st.sampled_from(["r1", "r2", "r3"]),
    )
    def put(
        self,
        data: Any,
        which: int,
        thread: str,
        ns: str,
        is_text: bool,
        is_again: int,
        omits: bool,
        changes: list[tuple[str, str]],
        run_id: str,
    ) -> None:
        here = [address for address in self.addresses() if address[:2] == (thread, ns)]
        parent = data.draw(st.sampled_from([None, *here[-1:], *here[-1:], *here])) if here else None
        state = dict(self.states[parent]) if parent else {}
        new_versions = {}
        for channel, edit in changes:
            number = next(self.versions)
            version = f"{number:032}.{number}" if is_text else number
            value = self.edit(data, channel, copy.deepcopy(state.get(channel, (0, None))[1]), edit)
            state[channel] = new_versions[channel] = version, value
            if edit == "clear" and channel in ("plain", "other"):
                state.pop(channel)
        id = f"{next(self.versions):032}"
        if here and is_again == 0:
            id = here[-1][2]
        values = {
            channel: value
            for channel, (_, value) in state.items()
            if not (omits and parent and channel not in new_versions)
        }
        gone = {channel: pair[0] for channel, pair in new_versions.items()}
        checkpoint: Any = {
            "v": 4,
            "id": id,
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": values,
            "channel_versions": {**{channel: version for channel, (version, _) in state.items()}, **gone},
            "versions_seen": {"node": dict(gone)},
            "updated_channels": sorted(gone),
        }
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
        if parent:
            config["configurable"]["checkpoint_id"] = parent[2]
        metadata: Any = {"source": "loop", "step": len(here), "parents": {}, "run_id": run_id}
        expected = self.memory.put(config, copy.deepcopy(checkpoint), metadata, gone)
        assert self.savers[which].put(config, checkpoint, metadata, gone) == expected
        self.states[thread, ns, id] = copy.deepcopy(state)

    def edit(self, data: Any, channel: str, value: Any, edit: str) -> Any:
        if channel in ("plain", "other"):
            return value if edit == "same" else data.draw(plain_values)
        element = messages if channel == "messages" else plain_values
        value = value or []
        match edit:
            case "append":
                value += data.draw(st.lists(element, min_size=1, max_size=3))
            case "edit" if value:
                value[data.draw(st.integers(0, len(value) - 1))] = data.draw(element)
            case "remove" if value:
                del value[data.draw(st.integers(0, len(value) - 1))]
            case "reverse":
                value.reverse()
            case "in place" if value and channel == "messages":
                value[0].additional_kwargs["seen"] = data.draw(plain_values)
            case "retype" if value:
                value[-1] = retype(value[-1])
            case "clear":
                value.clear()
            case "replace":
                value = data.draw(st.lists(element, max_size=3))
        return value

    @precondition(lambda self: self.states)
    @rule(
        data=st.data(),
        which=st.integers(0, 1),
        task=st.sampled_from(["task-1", "task-2"]),
        path=st.sampled_from(["", "~__pregel_pull, a", "~__pregel_push"]),
        writes=st.lists(
            st.tuples(st.sampled_from(["messages", "plain", "__error__", "__interrupt__", "__resume__"]), plain_values),
            max_size=3,
        ),
        is_early=st.booleans(),
    )
    def put_writes(self, data: Any, which: int, task: str, path: str, writes: list[Any], is_early: bool) -> None:
        thread, ns, id = data.draw(st.sampled_from(self.addresses()))
        if is_early:  # writes for a checkpoint that does not exist change nothing that is seen
            id = "z" + id
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}
        self.memory.put_writes(config, writes, task, path)
        self.savers[which].put_writes(config, writes, task, path)

    @precondition(lambda self: self.states)
    @rule(data=st.data(), which=st.integers(0, 1), is_latest=st.booleans())
    def get(self, data: Any, which: int, is_latest: bool) -> None:
        thread, ns, id = data.draw(st.sampled_from(self.addresses()))
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
        if not is_latest:
            config["configurable"]["checkpoint_id"] = id
        found = self.savers[which].get_tuple(config)
        assert shown(found) == shown(self.memory.get_tuple(config))
        assert found is not None
        for value in found.checkpoint["channel_values"].values():  # what is returned belongs to the caller
            if isinstance(value, list):
                value.append("changed by the caller")
                if isinstance(value[0], HumanMessage):
                    value[0].additional_kwargs["changed"] = "by the caller"

    @precondition(lambda self: self.states)
    @rule(
        data=st.data(),
        which=st.integers(0, 1),
        limit=st.none() | st.integers(0, 4),
        run_id=st.none() | st.sampled_from(["r1", "r9"]),
        has_before=st.booleans(),
    )
    def list(self, data: Any, which: int, limit: int | None, run_id: str | None, has_before: bool) -> None:
        thread, ns, id = data.draw(st.sampled_from(self.addresses()))
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
        before: Any = {"configurable": {"thread_id": thread, "checkpoint_id": id}} if has_before else None
        options: Any = {"filter": {"run_id": run_id} if run_id else None, "before": before, "limit": limit}
        found = [shown(each) for each in self.savers[which].list(config, **options)]
        assert found == [shown(each) for each in self.memory.list(config, **options)]

    @rule(which=st.integers(0, 1))
    def list_all(self, which: int) -> None:
        saver = self.savers[which]
        found = sorted((shown(each) for each in saver.list(None)), key=operator.itemgetter(0))
        assert found == sorted((shown(each) for each in self.memory.list(None)), key=operator.itemgetter(0))
        listed = {thread.id: thread.checkpoints for thread in saver.threads()}
        main = {thread: ids.get("", {}) for thread, ids in self.memory.storage.items()}
        assert {id: count for id, count in listed.items() if main.get(id)} == {
            thread: len(ids) for thread, ids in main.items() if ids
        }

    @precondition(lambda self: self.states)
    @rule(data=st.data(), which=st.integers(0, 1), strategy=st.sampled_from(["keep_latest", "delete"]))
    def prune(self, data: Any, which: int, strategy: Any) -> None:
        thread = data.draw(st.sampled_from(self.addresses()))[0]
        self.savers[which].prune([thread], strategy=strategy)
        for ns, ids in list(self.memory.storage[thread].items()):
            kept = {max(ids)} if strategy == "keep_latest" and ids else set()
            self.keep(thread, ns, kept)
        if strategy == "delete":
            self.memory.delete_thread(thread)

    @rule(which=st.integers(0, 1), runs=st.sets(st.sampled_from(["r1", "r2", "r3"]), max_size=1))
    def delete_for_runs(self, which: int, runs: set[str]) -> None:
        self.savers[which].delete_for_runs(sorted(runs))
        for thread, namespaces in list(self.memory.storage.items()):
            for ns, ids in list(namespaces.items()):
                metadata = {id: self.memory.serde.loads_typed(stored[1]) for id, stored in ids.items()}
                self.keep(thread, ns, {id for id in ids if metadata[id].get("run_id") not in runs})

    def keep(self, thread: str, ns: str, kept: set[str]) -> None:
        for id in set(self.memory.storage[thread][ns]) - kept:
            del self.memory.storage[thread][ns][id]
            self.memory.writes.pop((thread, ns, id), None)
            del self.states[thread, ns, id]

    @precondition(lambda self: self.states)
    @rule(data=st.data(), which=st.integers(0, 1), destination=st.sampled_from(THREADS))
    def copy_thread(self, data: Any, which: int, destination: str) -> None:
        source = data.draw(st.sampled_from(self.addresses()))[0]
        if any(address[0] == destination for address in self.states):
            with pytest.raises(AlreadyExists):
                self.savers[which].copy_thread(source, destination)
            return
        self.savers[which].delete_thread(destination)  # writes may be left there, of checkpoints that are gone
        self.memory.delete_thread(destination)
        self.savers[which].copy_thread(source, destination)
        for ns, ids in self.memory.storage[source].items():
            self.memory.storage[destination][ns] = dict(ids)
        for (thread, ns, channel, version), blob in list(self.memory.blobs.items()):
            if thread == source:
                self.memory.blobs[destination, ns, channel, version] = blob
        for (thread, ns, id), writes in list(self.memory.writes.items()):
            if thread == source:
                self.memory.writes[destination, ns, id] = dict(writes)
        for (thread, ns, id), state in list(self.states.items()):
            if thread == source:
                self.states[destination, ns, id] = state

    @precondition(lambda self: self.states)
    @rule(data=st.data(), which=st.integers(0, 1))
    def delete_thread(self, data: Any, which: int) -> None:
        thread = data.draw(st.sampled_from(self.addresses()))[0]
        self.savers[which].delete_thread(thread)
        self.memory.delete_thread(thread)
        for address in [address for address in self.states if address[0] == thread]:
            del self.states[address]

    @rule(which=st.integers(0, 1))
    def forget(self, which: int) -> None:
        self.savers[which].known_logs.clear()

    def teardown(self) -> None:
        if hasattr(self, "savers"):
            for which in range(2):
                self.list_all(which)


def retype(value: Any) -> Any:
    """Return what Python holds for equal to a value, and is serialised in another way."""
    match value:
        case bool():
            return int(value)
        case int():
            return value == 1 if value in (0, 1) else float(value) if float(value) == value else value
        case float():
            return -value if value == 0 else value
        case list():
            return [retype(item) for item in value]
        case dict():
            return {name: retype(item) for name, item in reversed(value.items())}
        case HumanMessage() | AIMessage():
            value.additional_kwargs = retype(value.additional_kwargs)
    return value


def shown(found: Any) -> Any:
    """Return what is compared of a tuple: with the types of its values."""
    if found is None:
        return None
    checkpoint = dict(found.checkpoint)
    address = found.config["configurable"]
    return (
        (address["thread_id"], address["checkpoint_ns"], address["checkpoint_id"]),
        repr(sorted(checkpoint.pop("channel_values").items())),
        {name: value for name, value in checkpoint.items() if name != "pending_sends"},
        found.metadata,
        found.parent_config,
        repr(found.pending_writes),
    )


@pytest.fixture(scope="module", params=["memory"] if IS_SHORT else ENGINES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[holdall.Store]:
    with open_at(new_location(request.param, tmp_path_factory.mktemp("machine")), **FEW_FSYNCS) as store:
        yield store


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_saver_does_what_memory_does(store: holdall.Store, is_encrypted: bool) -> None:
    machine: Any = type("Machine", (SaverMachine,), {"store": store, "is_encrypted": is_encrypted})
    quick = settings(
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=quick)
