"""Records: what copies, backups and comparisons read of an engine, and write to it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import holdall

from ...ops import ChangedRecords, RecordPage, Records
from ..caller import Caller
from ..clock import Clock
from ..embedder import embed
from .base import Contract, Opener

_names = itertools.count()


class RecordContract(Contract):
    @pytest.fixture
    def memory(self, clock: Clock) -> Iterator[holdall.Store]:
        """A store in memory: the reference that copies are compared with."""
        with holdall.open(f"memory:records-{next(_names)}", clock=clock, embed=embed) as store:
            yield store

    @pytest.fixture
    def copy(self, runner: asyncio.Runner | None) -> Any:
        def copy(source: holdall.Store, destination: holdall.Store, **options: Any) -> holdall.Copied:
            if runner is None:
                return holdall.copy(source, destination, **options)
            return runner.run(holdall.acopy(source, destination, **options))

        return copy

    def test_a_copy_from_memory_and_back_is_equal(
        self, opened: Opener, memory: holdall.Store, clock: Clock, copy: Any
    ) -> None:
        fill(memory, clock)
        here = opened(embed=embed)
        assert copy(memory, here.store, verify=True).differences == []
        with holdall.open(f"memory:records-{next(_names)}", clock=clock) as back:
            copied = copy(here.store, back, verify=True)
            assert copied.differences == []
            assert copied.vectors == sum(1 for _ in memory.scan(("notes",))) - 1  # one has no searched texts
            assert holdall.compare(memory, back).equal
        newest = [(hit.namespace, hit.key) for hit in memory.search(("notes",), limit=100)]
        assert [(hit.namespace, hit.key) for hit in here.search(("notes",), limit=100)] == newest
        assert here.files().read("/grown.txt") == b"one two"

    def test_a_page_of_changed_records_has_the_entries_at_one_moment(self, store: Caller, opened: Opener) -> None:
        store.put(("root", "a"), "1", {"n": 1})
        store.put(("root", "a"), "2", {"n": 1})
        store.put(("root", "b"), "3", {"n": 1})
        first = walk(store, ChangedRecords((), None, 2))
        assert [record.key for record in first.records] == ["1", "2"]
        assert first.more
        store.put(("root", "a"), "1", {"n": 2})
        store.delete(("root", "a"), "2")
        rest = walk(store, ChangedRecords((), first.next))
        assert [(record.key, record.kind, record.value) for record in rest.records] == [
            ("3", "put", '{"n":1}'),
            ("1", "put", '{"n":2}'),
            ("2", "delete", None),
        ]
        assert not rest.more
        assert walk(store, ChangedRecords((), rest.next)).records == []
        assert [record.key for record in walk(store, ChangedRecords(("root", "a"), None)).records] == ["1", "2"]

    def test_records_are_listed_in_key_order(self, store: Caller) -> None:
        for key in ("b", "a", "c"):
            store.put(("n",), key, {"key": key}, search_fields=["key"], ttl=60)
        store.put(("n", "below"), "d", {})
        first = walk(store, Records(("n",), None, 2))
        assert [record.key for record in first.records] == ["a", "b"]
        assert first.records[0].search_fields == '["key"]'
        assert first.records[0].ttl == 60_000_000
        assert first.more
        rest = walk(store, Records(("n",), (("n",), "b")))
        assert [(record.namespace, record.key) for record in rest.records] == [(("n",), "c"), (("n", "below"), "d")]
        assert not rest.more

    def test_entries_of_holdall_itself_are_no_records(self, store: Caller) -> None:
        with store.lease("nightly", ttl=60):
            assert walk(store, ChangedRecords()).records == []
            assert walk(store, Records(())).records == []


def fill(store: holdall.Store, clock: Clock) -> None:
    """Put one of everything that a record can have."""
    store.put(("notes",), "plain", {"text": "a plain note", "numbers": [1, 2.5, None, True]})
    clock.advance(1)
    store.put(("notes",), "titled", {"title": "peanuts", "text": "hidden"}, search_fields=["title"], ttl=3600)
    store.put(("notes",), "unsearched", {"text": "hidden"}, search_fields=False)
    store.put(("notes",), "fixed", {"text": "ends"}, expires_at=clock.now + timedelta(hours=2))
    store.put(("notes", "ü\x01/"), "odd \x01 key", {"text": "\x00 😀"})
    store.put(("gone",), "deleted", {})
    store.delete(("gone",), "deleted")
    clock.advance(1)
    store.put(("notes",), "plain", {"text": "a plain note, changed"})
    files = store.files()
    files.write("/empty", b"")
    files.write("/folder/binary", bytes(range(256)) * 300)
    files.write("/grown.txt", "one")
    files.append("/grown.txt", " two")
    times = {"created_at": "2020-01-01T00:00:00+00:00", "modified_at": "2020-01-01T00:00:00+00:00"}
    store.put(("filesystem",), "/item.txt", {"content": "as an item", "encoding": "utf-8", **times})
    clock.advance(1)
    files.append("/item.txt", " that grew")


def walk(store: Caller, op: Any) -> RecordPage:
    """Run a walk on the engine: the store has no public method for it."""
    store.setup()
    engine = store.store._engine_handle.engine
    page: RecordPage = (engine.execute([op]) if store._runner is None else store._runner.run(engine.aexecute([op])))[0]
    return page
