"""An index of vectors: its bounds hold, its cells have the nearest, and damage is noticed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdall.search.embedders import METRICS, Metric
from holdall.search.vector_index import building, index
from holdall.search.vector_index.building import IndexBuilder, sample_size
from holdall.search.vector_index.index import Candidates, VectorIndex
from holdall.search.vector_index.layout import Damaged, Header, map_file
from holdall.search.vectors import Matrix, rank

metrics = pytest.mark.parametrize("metric", METRICS)
Rows = Sequence[tuple[int, Any]]  # versions and vectors


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few vectors have cells, and an approximate search compares a part of them."""
    for module in (index, building):
        monkeypatch.setattr(module, "COMPARED", 400)
    monkeypatch.setattr(index, "_SCANNED", 400)
    monkeypatch.setattr(index, "_BOUNDED", 64)
    monkeypatch.setattr(building, "_PLAIN_CELL", 64)


def built(
    rows: Rows,
    metric: Metric = "cosine",
    old: VectorIndex | None = None,
    alive: list[int] | None = None,
    allocate: Callable[[int], Any] = bytearray,
) -> VectorIndex:
    """An index of rows; the ids are numbers from 1 on, behind those of the old index."""
    first = 0 if old is None else old.header.last
    header = Header("name", 1, metric, len(rows[0][1]), 0, 0, 0, first + len(rows))
    builder = IndexBuilder(header, old)
    vectors = [np.asarray(vector, "<f4").tobytes() for _, vector in rows]
    if old is not None and alive is not None:
        builder.keep(alive)
    elif (wanted := sample_size(len(rows))) and old is None:
        for _ in builder.train(vectors[:wanted], len(rows)):
            pass
    ids, versions = range(first + 1, first + len(rows) + 1), [version for version, _ in rows]
    for start in range(0, len(rows), 100):
        builder.place(ids[start : start + 100], versions[start : start + 100], vectors[start : start + 100])
    for _ in builder.lay_out(allocate(builder.allocate())):
        pass
    for start in range(0, len(rows), 100):
        builder.fill(ids[start : start + 100], versions[start : start + 100], vectors[start : start + 100])
    for _ in builder.finish():
        pass
    return builder.index()


def ranked(candidates: Candidates, rows: Rows, query: bytes, metric: Metric, step: int) -> Iterator[tuple[int, float]]:
    """The ranking that an engine makes of candidates: it scores those that may be next."""
    stored: dict[int, list[bytes]] = {}
    for version, vector in rows:
        stored.setdefault(version, []).append(np.asarray(vector, "<f4").tobytes())
    waiting: list[tuple[int, float]] = []
    while True:
        versions, lowest = candidates.advance(step)
        given = [(version, data) for version in versions for data in stored[version]]
        waiting += rank(query, [version for version, _ in given], [data for _, data in given], metric)
        waiting.sort(key=lambda pair: (-pair[1], -pair[0]))
        yield from (pair for pair in waiting if pair[1] >= lowest)
        waiting = [pair for pair in waiting if pair[1] < lowest]
        if lowest == -math.inf:
            return


def exactly(rows: Rows, query: bytes, metric: Metric) -> list[tuple[int, float]]:
    matrix = Matrix()
    matrix.add([version for version, _ in rows], [np.asarray(vector, "<f4").tobytes() for _, vector in rows])
    return list(matrix.ranked(query, metric))


numbers = st.integers(-3, 3).map(float) | st.sampled_from([0.1, 1e-42, 1e-30, 1e30, 3e38])
vectors = st.lists(numbers, min_size=3, max_size=3)


@metrics
@given(rows=st.lists(st.tuples(st.integers(1, 12), vectors), min_size=1, max_size=30), query=vectors)
def test_the_bounds_give_the_exact_ranking(metric: Metric, rows: Rows, query: list[float]) -> None:
    """Versions repeat, and lengths differ by more than a byte can tell."""
    found, asked = built(rows, metric), np.asarray(query, "<f4").tobytes()
    expected = exactly(rows, asked, metric)
    assert list(ranked(found.compare_all(asked, metric), rows, asked, metric, 3)) == expected
    wanted = [1, 3, 5, 7, 99]
    some, missing = found.compare_some(asked, metric, wanted)
    assert sorted(missing) == [version for version in wanted if version not in dict(rows)]
    assert list(ranked(some, rows, asked, metric, 2)) == [pair for pair in expected if pair[0] in wanted]


@metrics
def test_few_vectors_are_scored_for_the_best_of_many(metric: Metric, small: None) -> None:
    rows, queries = clustered(3000)
    found = built(rows, metric)
    versions, lowest = found.compare_all(queries[0].tobytes(), metric).advance(10)
    assert 10 <= len(versions) < 100
    assert lowest > -math.inf


@metrics
def test_of_many_equal_vectors_the_newest_are_taken_first_and_each_once(metric: Metric, small: None) -> None:
    rows: Rows = [(version, [1.0, 2.0, 3.0]) for version in range(1, 301)]
    candidates = built(rows, metric).compare_all(np.ones(3, "<f4").tobytes(), metric)
    assert candidates.advance(10, most=50)[0] == list(range(251, 301))
    assert candidates.advance(10, most=50)[0] == list(range(201, 251))
    left, lowest = candidates.advance(300, most=50)
    assert (left, lowest) == (list(range(1, 201)), -math.inf)


@pytest.mark.parametrize(("count", "compared"), [(450, 450), (800, 800), (900, 700), (1100, 500), (1600, 400)])
def test_the_part_that_is_compared_falls_step_by_step(
    count: int, compared: int, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "COMPARED", 800)
    rows, queries = clustered(count)
    found = built(rows)
    assert found.compares_all == (count <= 800)
    versions, _ = found.compare_nearest(queries[0].tobytes(), "cosine").advance(count)
    assert compared <= len(versions) <= compared + 100


@metrics
def test_nearly_all_of_the_nearest_are_found(metric: Metric, small: None) -> None:
    rows, queries = clustered(3000)
    found = built(rows, metric)
    assert not found.compares_all
    hits = 0
    for query in queries:
        asked = query.tobytes()
        candidates = found.compare_nearest(asked, metric)
        assert len(candidates.advance(10_000)[0]) < 1000  # it compares a part
        best = list(islice(ranked(found.compare_nearest(asked, metric), rows, asked, metric, 10), 10))
        hits += len({*best} & {*exactly(rows, asked, metric)[:10]})
    assert hits / (10 * len(queries)) >= 0.99


@metrics
def test_of_few_vectors_all_of_the_nearest_are_found_though_they_are_in_many_cells(metric: Metric, small: None) -> None:
    rows, queries = clustered(700)
    chance = np.random.default_rng(4)
    alike = [(version, chance.standard_normal(len(vector)).astype(np.float32)) for version, vector in rows]
    found = built(alike, metric)
    assert not found.compares_all
    for query in queries:
        asked = query.tobytes()
        best = list(islice(ranked(found.compare_nearest(asked, metric), alike, asked, metric, 10), 10))
        assert best == exactly(alike, asked, metric)[:10]


@metrics
def test_an_extended_index_has_the_old_and_the_new_without_those_that_are_gone(metric: Metric, small: None) -> None:
    rows, queries = clustered(3000)
    old = built(rows[:2500], metric)
    alive = [version for version, _ in rows[:2500] if version % 3]
    found = built(rows[2500:], metric, old, alive)
    left = [row for row in rows[:2500] if row[0] % 3] + list(rows[2500:])
    assert len(found) == len(left)
    assert found.header.trained == 2500
    for query in queries[:3]:
        asked = query.tobytes()
        expected = exactly(left, asked, metric)
        assert list(ranked(found.compare_all(asked, metric), left, asked, metric, 50)) == expected
        assert next(ranked(found.compare_nearest(asked, metric), left, asked, metric, 10)) == expected[0]


def test_damage_is_noticed_before_it_can_hide_a_vector(tmp_path: Path, small: None) -> None:
    rows, queries = clustered(1000)
    memory: list[bytearray] = []

    def allocate(size: int) -> bytearray:
        memory.append(bytearray(size))
        return memory[0]

    built(rows, allocate=allocate)
    whole, path = bytes(memory[0]), tmp_path / "index"

    def search() -> None:
        VectorIndex(map_file(str(path), "name")).compare_all(queries[0].tobytes(), "cosine")

    path.write_bytes(whole)
    search()
    codes = len(whole) - 1000 * 16
    for position in (0, 9, 14, 30, 4096, 5000, codes // 2, codes - 100, codes + 5, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(Damaged):
            search()
    for size in (0, 10, 4096, codes, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(Damaged):
            search()
    path.write_bytes(whole)
    with pytest.raises(Damaged, match="another"):
        map_file(str(path), "other")
    with pytest.raises(Damaged):
        map_file(str(tmp_path / "nothing"), "name")


def clustered(count: int) -> tuple[list[tuple[int, Any]], Any]:
    """Vectors in clusters, with versions, and queries near some of them."""
    chance = np.random.default_rng(5)
    centres = chance.standard_normal((60, 16))
    made = centres[chance.integers(0, 60, count + 20)] + 0.3 * chance.standard_normal((count + 20, 16))
    made *= chance.uniform(0.9, 1.1, (count + 20, 1))
    rows = made.astype("<f4")
    return list(enumerate(rows[:count], 1)), rows[count:]
