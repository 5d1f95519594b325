"""Stores that an older holdall wrote: this version reads all entries, and continues to write.

The fixtures are in `fixtures/stores`; `fixtures/make_stores.py` wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdall
from fixtures import old_stores
from fixtures.old_stores import FILES, STORES, arguments, open_store
from holdall.errors import Conflict, CursorExpired

EXPECTED: dict[str, Any] = json.loads((STORES / "expected.json").read_text(encoding="utf-8"))
ALL: dict[str, Any] = EXPECTED["all"]


class Old(NamedTuple):
    """A restored store, and the expectations that differ between engines: versions, cursors and tokens."""

    store: holdall.Store
    place: dict[str, Any]
    own: dict[str, Any]

    @property
    def newest(self) -> int:
        """The newest version that is known to have been given."""
        own = self.own
        return max(*own["versions"], *own["lease_tokens"].values(), *own["change_versions"]["middle"])

    def version(self, namespace: tuple[str, ...], key: str) -> int:
        """The version that an entry had when it was written."""
        places = [(tuple(entry["namespace"]), entry["key"]) for entry in ALL["entries"]]
        return int(self.own["versions"][places.index((namespace, key))])


def restored(name: str, folder: Path) -> Iterator[Old]:
    own = EXPECTED["each"][name]
    if name.startswith("postgres"):
        old_stores.pass_transaction_id(own["transaction_id"])
    place = old_stores.restore(name, folder)
    with open_store(place) as store:
        yield Old(store, place, own)


@pytest.fixture(scope="module", params=FILES)
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Old]:
    """A store that several tests read."""
    yield from restored(request.param, tmp_path_factory.mktemp("old"))


@pytest.fixture(params=FILES)
def own_old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Old]:
    """A store that one test writes to."""
    yield from restored(request.param, tmp_path)


# Reading -------------------------------------------------------------------------------------------------------------


def test_every_entry_is_as_it_was(old: Old) -> None:
    entries = list(old.store.scan())
    assert [old_stores.describe_entry(entry) for entry in entries] == ALL["entries"]
    assert [entry.version for entry in entries] == old.own["versions"]
    assert [old.store.get(entry.namespace, entry.key) for entry in entries] == entries
    assert [list(namespace) for namespace in old.store.namespaces(limit=1000)] == ALL["namespaces"]


def test_deleted_and_expired_entries_are_gone(old: Old) -> None:
    gone = [(("docs",), "doc 4"), (("gone", "0"), "item"), (("filesystem",), "/gone.txt")]
    expired = [(("ttl",), "swept"), (("ttl",), "expired"), (("ttl",), "expires later")]
    assert [old.store.get(*place) for place in gone + expired] == [None] * 6


def test_files_have_their_bytes_and_are_found_by_them(old: Old) -> None:
    for volume in ALL["files"]:
        assert old_stores.describe_files(old.store, volume["volume"]) == volume["files"]
        matches = old.store.files(tuple(volume["volume"])).grep("needle")
        assert [[match.path, match.line] for match in matches] == volume["grep"]


def test_a_file_in_several_pieces_is_read_in_parts(old: Old) -> None:
    files = old.store.files()
    content = bytes(range(256)) * 800
    assert files.read("/bin/pieces.bin") == content
    assert files.read_range("/bin/pieces.bin", 65_000, 140_000) == content[65_000:140_000]
    with files.open("/bin/pieces.bin") as reader:
        assert b"".join(iter(lambda: reader.read(50_000), b"")) == content


@pytest.mark.parametrize("search", ALL["searches"], ids=lambda search: search["name"])
def test_searches_find_the_same_in_the_same_order(old: Old, search: dict[str, Any]) -> None:
    assert old_stores.find(old.store, search["search"]) == search["found"]


def test_counts_are_the_same(old: Old) -> None:
    for count in ALL["counts"]:
        assert old.store.count(**arguments(count["of"])) == count["count"], count["name"]


def test_a_cursor_older_than_the_feed_is_refused(old: Old) -> None:
    with pytest.raises(CursorExpired):
        old.store.watch(since=old.own["cursors"]["forgotten"])


# Writing --------------------------------------------------------------------------------------------------------------


def test_the_feed_continues_from_old_cursors(own_old: Old) -> None:
    store, own = own_old.store, own_old.own
    for name, expected in ALL["changes"].items():
        changes = old_stores.read_changes(store, own["cursors"][name])
        new = [change for change in changes if change.namespace == ("end of the feed",)]
        changes = [change for change in changes if change not in new]
        assert [old_stores.describe_change(change) for change in changes] == expected
        assert [change.version for change in changes] == own["change_versions"][name]


def test_expired_entries_are_swept_and_the_feed_has_them(own_old: Old) -> None:
    store = own_old.store
    assert store.sweep() >= 2
    changes = old_stores.read_changes(store, own_old.own["cursors"]["end"])
    expired = sorted(old_stores.describe_change(change) for change in changes)
    assert expired == [["expire", ["ttl"], "expired"], ["expire", ["ttl"], "expires later"]]


def test_a_put_gets_a_newer_version_and_keeps_the_time_of_creation(own_old: Old) -> None:
    store, namespace, key = own_old.store, ("docs", "odd"), "doc 11"
    before = store.get(namespace, key)
    assert before is not None
    started = datetime.now(UTC)
    with pytest.raises(Conflict):
        store.put(namespace, key, {}, expect=own_old.newest)
    after = store.put(namespace, key, {"type": "todo", "text": "harbour"}, expect=own_old.version(namespace, key))
    assert after.version > own_old.newest
    assert after.created_at == before.created_at
    assert (after.updated_at - started).total_seconds() > -1
    again = store.put(("docs",), "doc 4", {"text": "put after an old tombstone"})
    assert again.version > after.version
    assert store.get(("docs",), "doc 4") == again
    todos = [
        [list(namespace), key],
        *next(one["found"] for one in ALL["searches"] if one["name"] == "a declared field"),
    ]
    assert old_stores.find(store, {"filter": {"type": "todo"}}) == todos
    assert store.count() == len(ALL["entries"]) + 1


def test_leases_get_greater_tokens(own_old: Old) -> None:
    for name, token in own_old.own["lease_tokens"].items():
        with own_old.store.lease(name, 60) as lease:
            assert lease.token > token
            assert lease.token > own_old.newest


def test_old_files_can_be_changed(own_old: Old) -> None:
    files = own_old.store.files()
    before = files.read("/appended.log")
    assert files.append("/appended.log", "appended by newer code\n") == len(before)
    assert files.read("/appended.log") == before + b"appended by newer code\n"
    assert files.append("/copies/same.txt", "no copy any more\n") == len("the original\n" * 10)
    assert files.read_text("/copies/original.txt") == "the original\n" * 10
    assert files.delete("/copies/original.txt") == 1
    assert files.read_text("/copies/same.txt") == "the original\n" * 10 + "no copy any more\n"
    assert files.edit("/notes/hello.txt", "needle", "found") == 1
    files.move("/new place", "/notes/moved")
    assert files.read_text("/notes/moved/a.txt") == "moved\n"
    assert files.delete("/bin", recursive=True) == 2
    assert [match.path for match in files.grep("needle")] == ["/large.log", "/late.txt", "/notes/lighthouse.md"]
    assert [match.path for match in files.grep("found")] == ["/notes/hello.txt", "/notes/lighthouse.md"]


def test_new_entries_are_found_beside_old_ones(own_old: Old) -> None:
    store = own_old.store
    old = next(one["found"] for one in ALL["searches"] if one["name"] == "words that came after the index")
    for number in range(20):  # more than a search reads without updating the index
        store.put(("new",), str(number), {"text": f"afterwards {'and again ' * 20}"})
    found = old_stores.find(store, {"query": "afterwards", "mode": "lexical"})
    assert [one for one in found if one[0] != ["new"]] == old
    assert len(found) == len(old) + 20
    assert store.reindex() == ALL["reindexed"]
    nearest = store.search(query="water, put without an embedder", mode="semantic", limit=1)
    assert [hit.key for hit in nearest] == ["without vectors"]


def test_the_text_index_of_the_first_schema_is_removed(own_old: Old) -> None:
    """In steps, as the sweeper does it, once the new index has everything."""
    engine: Any = own_old.store._engine_handle.engine
    if not hasattr(engine, "_readers"):
        pytest.skip("only of SQLite can the tables be read here")

    def count_rows() -> list[int]:
        reader = engine._readers.take()
        try:
            return [reader.execute(f"SELECT count(*) FROM {table}").get for table in engine._dialect.old_texts]
        finally:
            engine._readers.give_back(reader)

    assert min(count_rows()) > 0
    while engine.execute([holdall.ops.IndexTexts()])[0][1]:
        pass
    assert count_rows() == [0, 0, 0]
    search = next(one for one in ALL["searches"] if one["search"].get("mode") == "lexical")
    assert old_stores.find(own_old.store, search["search"]) == search["found"]


def test_a_tree_of_old_entries_is_deleted(own_old: Old) -> None:
    store = own_old.store
    documents = sum(1 for entry in ALL["entries"] if entry["namespace"][0] == "docs")
    assert store.delete_tree(("docs",)) == documents
    assert store.count() == len(ALL["entries"]) - documents
    assert not store.search(query="garden", mode="lexical", prefix=("docs",))


def test_an_old_store_can_be_closed_and_opened_again(own_old: Old) -> None:
    entry = own_old.store.put(("new",), "key", {"text": "new"})
    own_old.store.close()
    with open_store(own_old.place) as store:
        entries = {(entry.namespace, entry.key): entry for entry in store.scan()}
        assert entries.pop((("new",), "key")) == entry
        assert [entry.version for entry in entries.values()] == own_old.own["versions"]
