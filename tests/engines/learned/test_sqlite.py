"""Learned fields on SQLite: noticed by themselves, built in slices, continued after a kill, and dropped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
from holdall import ops
from holdall.core import maintenance
from holdall.engines.learned import limits
from holdall.ops import LearnFields
from holdall.testing import Clock


def fill(store: holdall.Store, count: int) -> None:
    puts = [ops.Put(("n", str(number % 7)), f"k{number}", {"tag": f"t{number % 50}"}) for number in range(count)]
    for start in range(0, count, 1000):
        store.execute(puts[start : start + 1000])


def engine_of(store: holdall.Store) -> Any:
    return store._engine_handle.engine


def finish(store: holdall.Store) -> None:
    while engine_of(store).execute([LearnFields()])[0]:
        pass


def test_a_field_that_slow_searches_filter_on_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SLOW", 0.0)
    with holdall.open(tmp_path / "s.db", durability="relaxed") as store:
        fill(store, 6000)
        expected = store.search(filter={"tag": "t7"}, limit=200)
        until = time.monotonic() + 20
        while [field.state for field in store.stats().learned_fields] != ["ready"]:
            assert store.search(filter={"tag": "t7"}, limit=200) == expected
            assert time.monotonic() < until
            time.sleep(0.01)
        assert store.search(filter={"tag": "t7"}, limit=200) == expected


def test_fast_searches_and_small_stores_learn_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdall.open(tmp_path / "s.db", durability="relaxed") as store:
        fill(store, 100)
        monkeypatch.setattr(maintenance, "SLOW", 0.0)
        for _ in range(5):
            store.search(filter={"tag": "t7"})
        assert engine_of(store).execute([LearnFields(("tag",))]) == [False]
        assert store.stats().learned_fields == ()


def test_an_index_that_is_not_complete_is_not_used_and_is_continued(tmp_path: Path) -> None:
    url = str(tmp_path / "s.db")
    with holdall.open(url, sweep_interval=None, durability="relaxed") as store:
        fill(store, 2000)
        engine_of(store).execute([LearnFields(("tag",), least=0)])
        engine_of(store).execute([LearnFields()])
        [field] = store.stats().learned_fields
        assert field.state == "building"
        assert 0 < field.progress < 1
        assert store.count(filter={"tag": "t7"}) == 40
    with holdall.open(url, sweep_interval=None, durability="relaxed") as store:  # as after a kill
        assert store.count(filter={"tag": "t7"}) == 40
        finish(store)
        assert [field.state for field in store.stats().learned_fields] == ["ready"]
        assert store.count(filter={"tag": "t7"}) == 40
    rows = apsw.Connection(url).execute("SELECT count(*) FROM holdall_learned_values").fetchall()
    assert rows == [(2000,)]


def test_a_search_reads_only_what_the_index_finds(tmp_path: Path) -> None:
    url = str(tmp_path / "s.db")
    with holdall.open(url, sweep_interval=None, durability="relaxed") as store:
        fill(store, 300)
        engine_of(store).execute([LearnFields(("tag",), least=0)])
        finish(store)
        apsw.Connection(url).execute("DELETE FROM holdall_learned_values WHERE value = 't7'")
        for prefix in ((), ("n",), ("n", "0")):
            assert store.search(prefix, filter={"tag": "t7"}) == []
            assert store.search(prefix, filter={"$or": [{"tag": "t7"}, {"tag": {"$in": ["t7"]}}]}) == []
        assert store.count(filter={"tag": "t7"}) == 0


def test_a_learned_name_with_a_dot_may_have_equal_values_at_both_of_its_paths(tmp_path: Path) -> None:
    with holdall.open(tmp_path / "s.db", sweep_interval=None, durability="relaxed") as store:
        store.put(("n",), "old", {"a.b": 1, "a": {"b": 1}})
        engine_of(store).execute([LearnFields(("a.b",), least=0)])
        finish(store)
        for value in ({"a.b": 1, "a": {"b": True}}, {"a.b": "x", "a": {"b": "x"}}, {"a.b": 1, "a": {"b": 1.0}}):
            store.put(("n",), "new", value)
        store.put(("n",), "old", {"a.b": 1, "a": {"b": 1}})
        assert {hit.key for hit in store.search(filter={"a.b": 1})} == {"old", "new"}
        assert store.search(filter={"a.b": "x"}) == []


def test_the_least_used_field_is_dropped_for_a_ninth(tmp_path: Path) -> None:
    clock = Clock()
    with holdall.open(tmp_path / "s.db", clock=clock, sweep_interval=None, durability="relaxed") as store:
        names = tuple(f"f{number}" for number in range(9))
        store.put(("n",), "k", dict.fromkeys(names, 1))
        engine_of(store).execute([LearnFields(names[:8], least=0)])
        finish(store)
        engine_of(store).execute([LearnFields(uses=tuple((name, 5) for name in names[:8] if name != "f3"))])
        clock.advance(limits.RESIDENCE / 1_000_000)
        engine_of(store).execute([LearnFields(("f8",), least=0)])
        finish(store)
        assert {field.name for field in store.stats().learned_fields} == set(names) - {"f3"}
        for name in names:
            assert store.count(filter={name: 1}) == 1
    values = apsw.Connection(str(tmp_path / "s.db")).execute("SELECT count(*) FROM holdall_learned_values").fetchall()
    assert values == [(8,)]


def test_a_damaged_value_can_still_be_replaced(tmp_path: Path) -> None:
    url = str(tmp_path / "s.db")
    with holdall.open(url, sweep_interval=None, durability="relaxed") as store:
        store.put(("n",), "k", {"tag": "a"})
        engine_of(store).execute([LearnFields(("tag",), least=0)])
        finish(store)
        apsw.Connection(url).execute("UPDATE holdall_entries SET value = '{' WHERE key = 'k'")
        store.put(("n",), "k", {"tag": "b"})
        assert [hit.key for hit in store.search(filter={"tag": "b"})] == ["k"]


@pytest.mark.parametrize("few", [0, 10_000])
def test_the_count_of_everything_is_exact(tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdall.engines.sqlite import entries

    monkeypatch.setattr(entries, "_FEW", few)
    clock = Clock()
    with holdall.open(tmp_path / "s.db", clock=clock, sweep_interval=None, durability="relaxed") as store:
        fill(store, 50)
        for number in range(5):
            store.delete(("n", str(number % 7)), f"k{number}")
            store.put(("ttl",), f"k{number}", {}, ttl=5)
        with store.lease("job", ttl=30):  # entries of holdall's own
            assert store.count() == 50
            clock.advance(6)
            assert store.count() == 45
            store.sweep()
            assert store.count() == 45


@pytest.mark.parametrize("is_learned_before", [True, False])
def test_a_learned_field_finds_nothing_of_a_large_deleted_tree(tmp_path: Path, is_learned_before: bool) -> None:
    def count_values() -> int:
        return int(apsw.Connection(str(tmp_path / "s.db")).execute("SELECT count(*) FROM holdall_learned_values").get)

    with holdall.open(tmp_path / "s.db", durability="relaxed", sweep_interval=None) as store:
        fill(store, 3500)
        if is_learned_before:
            engine_of(store).execute([LearnFields(("tag",), ("tag",), least=0)])
            finish(store)
        assert store.delete_tree(("n",)) == 3500
        new = store.put(("n", "1"), "k8", {"tag": "t8"})
        if not is_learned_before:
            engine_of(store).execute([LearnFields(("tag",), ("tag",), least=0)])
            finish(store)
        assert [hit.version for hit in store.search(filter={"tag": "t8"})] == [new.version]
        assert store.count(filter={"tag": {"$gte": "t"}}) == 1
        assert count_values() > 1, "the tree was cleared at once: this showed nothing"
        store.sweep()
        assert [hit.version for hit in store.search(filter={"tag": "t8"})] == [new.version]
        assert count_values() == 1
