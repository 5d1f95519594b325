"""Erasing: nothing is left of an entry, and everything else stays."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ...errors import CursorExpired, InvalidInput
from ..caller import Caller
from ..clock import Clock
from .base import Contract, Opener

NS = ("erased", "alice")


class EraseContract(Contract):
    @pytest.fixture
    def erasing(self, opened: Opener) -> Caller:
        """A store that keeps old values, if its engine can."""
        keeps = opened().store._engine_handle.engine.capabilities.keeps_history
        return opened(history=timedelta(days=1)) if keeps else opened()

    def test_an_erased_entry_leaves_nothing(self, erasing: Caller, clock: Clock) -> None:
        store = erasing
        store.put(("other",), "k", {"n": 0})
        start = store.cursor()
        for number in range(3):
            store.put(NS, "k", {"n": number})
            store.put(NS, "stays", {"n": number})
            clock.advance(1)
        report = store.erase(NS, "k")
        assert report.entries == report.tombstones == 1
        assert report.cleared
        assert store.get(NS, "k") is None
        assert store.get(NS, "stays").value == {"n": 2}
        assert store.get(("other",), "k").value == {"n": 0}
        if store.store._engine_handle.engine.capabilities.keeps_history:
            assert report.versions == 3
            assert store.history(NS, "k") == []
            assert len(store.history(NS, "stays")) == 3
            assert [entry.key for entry in store.at(clock.now - timedelta(seconds=1)).scan(NS)] == ["stays"]
        with pytest.raises(CursorExpired):  # its reader would miss the deletion
            store.watch(NS, since=start)
        again = store.erase(NS, "k")
        assert (again.entries, again.versions, again.tombstones) == (0, 0, 0)
        assert store.put(NS, "k", {"n": 9}).version > 0

    def test_a_namespace_is_erased_with_what_is_below_it_if_asked(self, erasing: Caller, clock: Clock) -> None:
        store = erasing
        volume = store.files(NS)
        store.put(NS, "k", {})
        store.put((*NS, "below"), "k", {})
        store.put(("erased", "alicette"), "k", {})
        volume.write("/notes.md", "x" * 100_000)
        volume.append("/notes.md", "more")
        volume.copy("/notes.md", "/copy.md")
        store.put(NS, "expired", {}, ttl=1)
        store.put(NS, "deleted", {})
        store.delete(NS, "deleted")
        clock.advance(2)
        report = store.erase(NS)
        assert (report.entries, report.tombstones) == (3, 5)
        assert list(store.scan(NS)) == [store.get((*NS, "below"), "k")]
        assert volume.ls() == []
        assert store.erase(NS, recursive=True).entries == 1
        assert list(store.scan(NS)) == []
        assert store.get(("erased", "alicette"), "k") is not None
        volume.write("/notes.md", "new")
        assert volume.read("/notes.md") == b"new"
        assert [match.path for match in volume.grep("new")] == ["/notes.md"]

    def test_searches_work_after_an_erasure(self, erasing: Caller) -> None:
        store = erasing
        store.put(NS, "k", {"text": "a confidential word"})
        store.put(("other",), "k", {"text": "another word"})
        assert len(store.search(query="word")) == 2
        store.erase(NS, recursive=True)
        assert [hit.namespace for hit in store.search(query="word")] == [("other",)]
        assert store.search(query="confidential") == []

    def test_bad_arguments_are_refused(self, erasing: Caller) -> None:
        for args, options in (((NS, "k"), {"recursive": True}), (((),), {}), ((NS,), {"compact": 1})):
            with pytest.raises(InvalidInput):
                erasing.erase(*args, **options)

    def test_a_scope_erases_only_its_own(self, erasing: Caller) -> None:
        erasing.put(("user", "alice"), "k", {})
        erasing.put(("user", "bob"), "k", {})
        assert erasing.scoped(("user", "alice")).erase((), recursive=True).entries == 1
        assert [entry.namespace for entry in erasing.scan()] == [("user", "bob")]
