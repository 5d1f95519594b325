"""A Hypothesis state machine for the history of any engine, with a model of the past of its own.

The model keeps a copy of all entries at each moment that the machine has noted, as a cursor and as a time, and the list
of changes of each entry. After any steps, the store as it was at any of these moments must be that copy.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ... import ops
from ...core.store import Store
from ...ops import Namespace
from ..clock import Clock

_Address: TypeAlias = tuple[Namespace, str]
#: What an entry is to the model: the n of its item, or the content of its file.
_Model: TypeAlias = dict[_Address, Any]

namespaces = st.sampled_from([("a",), ("a", "b"), ("a", "é")])
item_keys = st.sampled_from(["k1", "k2"])
paths = st.sampled_from(["/f", "/d/g"])
numbers = st.integers(0, 99)
contents = st.sampled_from(["", "x", "longer text\n"])


def history_machine(open_store: Callable[[Path, Clock], Store]) -> type[RuleBasedStateMachine]:
    """A state machine for the stores that `open_store(folder, clock)` opens. They keep old values for an hour."""

    class Machine(_HistoryMachine):
        def open_subject(self, folder: Path, clock: Clock) -> Store:
            return open_store(folder, clock)

    Machine.__qualname__ = Machine.__name__ = "HistoryMachine"
    return Machine


class _HistoryMachine(RuleBasedStateMachine):
    def open_subject(self, folder: Path, clock: Clock) -> Store:
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdall-history-"))
        self.clock = Clock()
        self.store = self.open_subject(self.folder, self.clock)
        self.now: _Model = {}
        self.changes: dict[_Address, list[tuple[str, Any]]] = {}
        self.moments: list[tuple[Any, str, _Model]] = []
        self.note()

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def set(self, address: _Address, value: Any) -> None:
        self.now[address] = value
        self.changes.setdefault(address, []).append(("put", value))

    def remove(self, address: _Address) -> None:
        if self.now.pop(address, None) is not None:
            self.changes[address].append(("delete", None))

    def note(self) -> None:
        """Note the present moment, and go on to a later one."""
        self.moments.append((self.clock.now, self.store.cursor(), dict(self.now)))
        self.clock.advance(1)

    @rule(namespace=namespaces, key=item_keys, n=numbers)
    def put(self, namespace: Namespace, key: str, n: int) -> None:
        self.store.put(namespace, key, {"n": n})
        self.set((namespace, key), n)
        self.note()

    @rule(namespace=namespaces, key=item_keys, n=numbers)
    def put_twice_in_a_batch(self, namespace: Namespace, key: str, n: int) -> None:
        self.store.execute([ops.Put(namespace, key, {"n": n}), ops.Put(namespace, key, {"n": -n})])
        self.set((namespace, key), n)
        self.set((namespace, key), -n)
        self.note()

    @rule(namespace=namespaces, path=paths, text=contents, appends=st.booleans())
    def write(self, namespace: Namespace, path: str, text: str, appends: bool) -> None:
        files, address = self.store.files(namespace), (namespace, path)
        if appends:
            files.append(path, text)
            text = self.now.get(address, "") + text
        else:
            files.write(path, text)
        self.set(address, text)
        self.note()

    @rule(namespace=namespaces, moves=st.booleans())
    def transfer(self, namespace: Namespace, moves: bool) -> None:
        source, target = (namespace, "/f"), (namespace, "/d/g")
        if source not in self.now:
            return
        files = self.store.files(namespace)
        files.move("/f", "/d/g") if moves else files.copy("/f", "/d/g")
        self.set(target, self.now[source])
        if moves:
            self.remove(source)
        self.note()

    @rule(namespace=namespaces, key=item_keys | paths)
    def delete(self, namespace: Namespace, key: str) -> None:
        self.store.delete(namespace, key)
        self.remove((namespace, key))
        self.note()

    @rule(namespace=namespaces)
    def delete_tree(self, namespace: Namespace) -> None:
        self.store.delete_tree(namespace)
        for address in self.under(namespace):
            self.remove(address)
        self.note()

    @rule(data=st.data(), namespace=namespaces, sliced=st.booleans())
    def rewind(self, data: st.DataObject, namespace: Namespace, sliced: bool) -> None:
        when, cursor, then = data.draw(st.sampled_from(self.moments))
        self.store.rewind(namespace, data.draw(st.sampled_from([when, cursor])), sliced=sliced)
        # An entry that was replaced by an equal one is written again, too: the model takes its changes from the store.
        for address in {*self.under(namespace), *(one for one in then if one[0][: len(namespace)] == namespace)}:
            self.now.pop(address, None)
            if address in then:
                self.now[address] = then[address]
            self.changes[address] = self.versions(address)[::-1]
        self.note()

    @rule(namespace=namespaces)
    def erase(self, namespace: Namespace) -> None:
        self.store.erase(namespace, recursive=True)
        gone = {*self.under(namespace), *(one for one in self.changes if one[0][: len(namespace)] == namespace)}
        for address in gone:
            self.now.pop(address, None)
            self.changes.pop(address, None)
        for _, _, then in self.moments:
            for address in gone:
                then.pop(address, None)
        self.note()

    @rule(seconds=st.sampled_from([10, 4000]))
    def wait_and_sweep(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.store.sweep()
        if seconds > 3600:  # all old values are purged
            self.moments = []
            self.changes = {address: [("put", value)] for address, value in self.now.items()}
            self.note()

    @rule(data=st.data(), by_time=st.booleans())
    def look_back(self, data: st.DataObject, by_time: bool) -> None:
        when, cursor, then = data.draw(st.sampled_from(self.moments))
        view = self.store.at(when if by_time else cursor)
        assert {(entry.namespace, entry.key): _shown(entry.value) for entry in view.scan()} == then
        assert view.count() == len(then)
        for (namespace, key), value in then.items():
            entry = view.get(namespace, key)
            assert entry is not None
            assert _shown(entry.value) == value
            if key.startswith("/"):
                assert view.files(namespace).read_text(key) == value

    @rule(data=st.data())
    def compare(self, data: st.DataObject) -> None:
        (_, cursor, before), (_, later, after) = data.draw(
            st.tuples(st.sampled_from(self.moments), st.sampled_from(self.moments))
        )
        for one in self.store.diff(("a",), cursor, later):
            address = one.namespace, one.key
            assert (None if one.before is None else _shown(one.before.value)) == before.get(address)
            assert (None if one.after is None else _shown(one.after.value)) == after.get(address)
            before, after = ({key: value for key, value in side.items() if key != address} for side in (before, after))
        assert before == after

    @rule(namespace=namespaces, key=item_keys | paths)
    def list_versions(self, namespace: Namespace, key: str) -> None:
        address = namespace, key
        assert self.versions(address) == self.changes.get(address, [])[::-1]

    def versions(self, address: _Address) -> list[tuple[str, Any]]:
        found = self.store.history(*address, limit=1000)
        return [(one.kind, None if one.value is None else _shown(one.value)) for one in found]

    def under(self, namespace: Namespace) -> list[_Address]:
        return [address for address in self.now if address[0][: len(namespace)] == namespace]


#: How long the stores of this machine keep old values.
KEPT = timedelta(hours=1)


def _shown(value: dict[str, Any]) -> Any:
    return value["content"] if "content" in value else value["n"]
