"""A Hypothesis state machine that runs any engine against memory.

Every step is done to both stores, which share a clock that the machine moves. Results and errors must be the same,
except for version numbers. Then all listings are compared.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from ... import ABSENT, ANY, ops
from ...core import urls
from ...core.store import Store
from ...errors import CursorExpired, HoldallError
from ...ops import Entry, Expectation, Namespace
from ..caller import Caller
from ..clock import Clock
from ..contract.filtering import random_filters, values

namespaces = st.sampled_from([("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("b",), ("é", "\x01")])
prefixes = namespaces | st.just(())
entry_keys = st.sampled_from(["k1", "k2", "/dir/f", "é"])
lifetimes = st.sampled_from([ops.DEFAULT, None, 1, 5.5])
expectations = st.sampled_from(["any", "any", "absent", "current", "stale"])
steps = st.sampled_from(["put", "put", "get", "delete", "check", "refresh", "delete_tree"])


def store_machine(
    open_store: Callable[[Path, Clock], Store],
    *,
    use_async: bool = False,
    open_reference: Callable[[Clock], Store] = lambda clock: urls.open("memory:", clock=clock, sweep_interval=None),
) -> type[RuleBasedStateMachine]:
    """A state machine for the stores that `open_store(folder, clock)` opens, compared with memory or another reference.

    Called again with the same folder, `open_store` must open the same store. In a test file:

        TestMachine = store_machine(lambda folder, clock: holdall.open(folder / "x.db", clock=clock)).TestCase
    """

    class Machine(_StoreMachine):
        def open_subject(self, folder: Path, clock: Clock) -> Store:
            return open_store(folder, clock)

        def open_reference(self, clock: Clock) -> Store:
            return open_reference(clock)

    Machine.use_async = use_async
    Machine.__qualname__ = Machine.__name__ = "StoreMachine"
    return Machine


class _StoreMachine(RuleBasedStateMachine):
    use_async = False
    cursors: Bundle[Any] = Bundle("cursors")
    positions: Bundle[Any] = Bundle("positions")

    def open_subject(self, folder: Path, clock: Clock) -> Store:
        raise NotImplementedError

    def open_reference(self, clock: Clock) -> Store:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.folder = Path(tempfile.mkdtemp(prefix="holdall-machine-"))
        self.runner = asyncio.Runner() if self.use_async else None
        self.reference = Caller(self.open_reference(self.clock), None)
        self.subject = Caller(self.open_subject(self.folder, self.clock), self.runner)
        self.known: dict[tuple[Namespace, str], list[tuple[Entry, Entry]]] = {}  # every version: subject's, reference's

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.subject.store.close()
            self.reference.store.close()
            if self.runner is not None:
                self.runner.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # Doing a thing to both -------------------------------------------------------------------------------------------

    def both(self, action: Callable[[Caller, int], Any]) -> Any:
        """Run an action on each store (0: the subject, 1: the reference), compare, and return both results."""
        outcomes = [self.attempt(action, store, side) for side, store in enumerate((self.subject, self.reference))]
        assert comparable(outcomes[0]) == comparable(outcomes[1])
        return outcomes

    @staticmethod
    def attempt(action: Callable[[Caller, int], Any], store: Caller, side: int) -> Any:
        try:
            return action(store, side)
        except HoldallError as error:
            return type(error)

    def expectation(self, kind: str, namespace: Namespace, key: str, side: int) -> Expectation:
        versions = self.known.get((namespace, key), [])
        if kind == "absent":
            return ABSENT
        if kind == "current" and versions:
            return versions[-1][side]
        if kind == "stale" and len(versions) > 1:
            return versions[-2][side].version
        return ANY

    def remember(self, results: list[Any]) -> None:
        """Remember the entries that both stores returned, so that later steps can expect them."""
        for subject, reference in zip(*(flat(result) for result in results), strict=True):
            if isinstance(subject, Entry):
                versions = self.known.setdefault((subject.namespace, subject.key), [])
                if not versions or versions[-1][0].version < subject.version:
                    versions.append((subject, reference))

    # Steps -----------------------------------------------------------------------------------------------------------

    @rule(namespace=namespaces, key=entry_keys, value=values, ttl=lifetimes, expect=expectations)
    def put(self, namespace: Namespace, key: str, value: Any, ttl: Any, expect: str) -> None:
        self.remember(
            self.both(
                lambda store, side: store.put(
                    namespace, key, value, ttl=ttl, expect=self.expectation(expect, namespace, key, side)
                )
            )
        )

    @rule(namespace=namespaces, key=entry_keys, expect=expectations)
    def delete(self, namespace: Namespace, key: str, expect: str) -> None:
        self.both(
            lambda store, side: store.delete(namespace, key, expect=self.expectation(expect, namespace, key, side))
        )

    @rule(namespace=namespaces, key=entry_keys, default=st.none() | st.just({"n": 0}))
    def update(self, namespace: Namespace, key: str, default: Any) -> None:
        self.remember(
            self.both(
                lambda store, side: store.update(namespace, key, lambda value: {**value, "seen": 1}, default=default)
            )
        )

    @rule(batch=st.lists(st.tuples(steps, namespaces, entry_keys, values, lifetimes, expectations), max_size=5))
    def execute(self, batch: list[tuple[str, Namespace, str, Any, Any, str]]) -> None:
        def operations(side: int) -> list[Any]:
            built: list[Any] = []
            for step, namespace, key, value, ttl, kind in batch:
                expect = self.expectation(kind, namespace, key, side)
                match step:
                    case "put":
                        built.append(ops.Put(namespace, key, value, ttl, expect))
                    case "get":
                        built.append(ops.Get(namespace, key))
                    case "delete":
                        built.append(ops.Delete(namespace, key, expect))
                    case "check":
                        built.append(ops.Check(namespace, key, expect))
                    case "refresh":
                        built.append(ops.Refresh(namespace, key))
                    case "delete_tree":
                        built.append(ops.DeleteTree(namespace))
            return built

        self.remember(self.both(lambda store, side: store.execute(operations(side))))

    @rule(namespace=namespaces)
    def delete_tree(self, namespace: Namespace) -> None:
        self.both(lambda store, side: store.delete_tree(namespace))

    @rule(namespace=namespaces, key=entry_keys, refresh=st.booleans())
    def get(self, namespace: Namespace, key: str, refresh: bool) -> None:
        self.remember(self.both(lambda store, side: store.get(namespace, key, refresh=refresh)))

    @rule(seconds=st.sampled_from([0.5, 1, 3, 10]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def sweep(self) -> None:
        self.both(lambda store, side: store.sweep())

    @rule()
    def forget(self) -> None:
        for store in (self.subject, self.reference):
            while store.store._engine_handle.engine.execute([ops.PurgeTombstones(age=0, limit=2)])[0]:
                pass

    @precondition(lambda self: self.subject.store._engine_handle.engine.capabilities.durable)
    @rule()
    def reopen(self) -> None:
        self.subject.close()
        self.subject = Caller(self.open_subject(self.folder, self.clock), self.runner)

    # Finding ---------------------------------------------------------------------------------------------------------

    @rule(prefix=prefixes, filter=random_filters, recursive=st.booleans(), offset=st.integers(0, 2))
    def search(self, prefix: Namespace, filter: Any, recursive: bool, offset: int) -> None:
        query: dict[str, Any] = {"filter": filter, "recursive": recursive}
        self.both(lambda store, side: store.search(prefix, limit=3, offset=offset, **query))
        self.both(lambda store, side: store.count(prefix, **query))

    @rule(target=cursors, prefix=prefixes, filter=st.none() | random_filters, limit=st.integers(1, 3))
    def first_page(self, prefix: Namespace, filter: Any, limit: int) -> Any:
        pages = self.both(lambda store, side: store.search(prefix, filter=filter, limit=limit))
        return prefix, filter, limit, [page.next for page in pages]

    @rule(target=cursors, cursor=consumes(cursors))
    def next_page(self, cursor: Any) -> Any:
        prefix, filter, limit, marks = cursor
        if None in marks:
            assert marks == [None, None]
            return cursor
        pages = self.both(lambda store, side: store.search(prefix, filter=filter, limit=limit, cursor=marks[side]))
        return prefix, filter, limit, [page.next for page in pages]

    @rule(target=positions)
    def take_cursor(self) -> Any:
        return [store.cursor() for store in (self.subject, self.reference)]

    @rule(target=positions, position=consumes(positions), prefix=prefixes)
    def read_from_cursor(self, position: Any, prefix: Namespace) -> Any:
        """Read the changes since a cursor, or take a new cursor if it has expired."""
        found = self.both(lambda store, side: feed(store, prefix, position[side]))
        if found[0] is CursorExpired:
            return self.take_cursor()
        return [store.cursor() for store in (self.subject, self.reference)]

    @rule(prefix=st.none() | prefixes, depth=st.none() | st.integers(1, 3), limit=st.integers(0, 5))
    def namespaces(self, prefix: Any, depth: Any, limit: int) -> None:
        self.both(lambda store, side: store.namespaces(prefix=prefix, max_depth=depth, limit=limit))

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "subject"):
            return
        self.both(lambda store, side: store.scan())
        self.both(lambda store, side: store.search(limit=100))
        self.both(lambda store, side: store.count())
        self.both(lambda store, side: feed(store))


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list) else [result]


def feed(store: Caller, prefix: Namespace = (), since: str | None = None) -> list[tuple[Namespace, str, str]]:
    """Return the last change of each entry. Unordered: entries that expire together are swept in any order."""
    changes = store.store._engine_handle.engine.execute([ops.Changes(prefix, since)])[0]
    return sorted((change.namespace, change.key, change.kind) for change in changes)


def comparable(result: Any) -> Any:
    """Return a result without version numbers, and with the types of values."""
    if isinstance(result, Entry):
        return (
            result.namespace,
            result.key,
            repr(result.value),
            result.created_at,
            result.updated_at,
            result.expires_at,
        )
    if isinstance(result, list):
        return [comparable(item) for item in result], getattr(result, "next", None) is None
    return result
