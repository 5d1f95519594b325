"""The index of vectors: its rankings are those of brute force, whatever was added and removed before."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdall.errors import InvalidInput
from holdall.search import vectors
from holdall.search.embedders import METRICS, Metric
from holdall.search.vectors import Matrix, score

DIMS = 3
#: Small whole numbers: every sum is exact, so brute force agrees to the last digit; and there are many ties.
small = st.lists(st.integers(-3, 3), min_size=DIMS, max_size=DIMS)
ids = st.integers(0, 12)
added = st.lists(st.tuples(ids, small), max_size=12)
changes = st.lists(st.tuples(st.sets(ids), added), max_size=6)
metrics = pytest.mark.parametrize("metric", METRICS)


@metrics
@given(changes=changes, query=small, allowed=st.none() | st.lists(st.integers(0, 15), max_size=12))
def test_a_ranking_is_that_of_brute_force(
    metric: Metric, changes: list[tuple[set[int], list[Any]]], query: list[int], allowed: list[int] | None
) -> None:
    held: list[tuple[int, list[int]]] = []
    with of_small_parts():
        matrix = Matrix()
        for removed, new in changes:
            matrix.change(removed, [id for id, _ in new], [packed(vector) for _, vector in new])
            held = [(id, vector) for id, vector in held if id not in removed] + new
        ranking = list(matrix.ranked(packed(query), metric, allowed=allowed))
        assert len(matrix) == len(held)
    wanted = [(id, vector) for id, vector in held if allowed is None or id in allowed]
    assert ranking == brute_force(wanted, query, metric)
    for id, best in ranking:
        assert score(packed(query), [packed(vector) for other, vector in held if other == id], metric) == best


@metrics
def test_a_ranking_of_many_is_that_of_brute_force_in_float64(metric: Metric) -> None:
    rows, query = random_rows(20_000), random_rows(1)[0]
    matrix = matrix_of(rows)
    expected = ranked_in_float64(rows, query, metric)
    ranking = list(matrix.ranked(query.tobytes(), metric))
    assert [id for id, _ in ranking] == expected
    assert [id for id, _ in islice(matrix.ranked(query.tobytes(), metric), 10)] == expected[:10]
    allowed = set(range(0, 20_000, 100))
    few = [id for id, _ in matrix.ranked(query.tobytes(), metric, allowed=allowed)]
    assert few == [id for id in expected if id in allowed]


@metrics
def test_vectors_that_are_equal_in_float32_are_ranked_exactly(metric: Metric) -> None:
    """The quick pass orders these wrongly; if it did not, this would hold nothing."""
    query = random_rows(1)[0]
    noise = random_rows(300) * np.float32(1e-4)
    rows = (query + noise).astype(np.float32)
    expected = ranked_in_float64(rows, query, metric)
    quick = rows @ query / (np.linalg.norm(rows, axis=1) if metric == "cosine" else np.float32(1))
    assert np.argsort(-quick, kind="stable").tolist()[:100] != expected[:100]
    assert [id for id, _ in matrix_of(rows).ranked(query.tobytes(), metric)] == expected


@metrics
def test_equal_vectors_score_the_same_wherever_they_lie(metric: Metric) -> None:
    rows = random_rows(10_000, dims=101)
    same = list(range(0, 10_000, 7))
    rows[same] = rows[0]
    ranking = dict(matrix_of(rows).ranked(random_rows(1, dims=101)[0].tobytes(), metric))
    assert {ranking[id] for id in same} == {ranking[0]}
    order = [id for id in ranking if id in set(same)]
    assert order == sorted(same, reverse=True)


@metrics
def test_lengths_whose_products_float32_cannot_hold_are_ranked_too(metric: Metric) -> None:
    rows = random_rows(300)
    for at, scale in enumerate((1e-42, 1e-38, 1e-30, 1e30, 3e38)):
        rows[at * 50 :][:10] = np.clip(rows[at * 50 :][:10], -1, 1) * np.float32(scale)
    matrix = matrix_of(rows)
    for query in rows[::10]:
        expected = ranked_in_float64(rows, query, metric)
        assert [id for id, _ in matrix.ranked(query.tobytes(), metric)] == expected


def test_one_long_vector_does_not_make_the_others_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound on the error that every row shared would have every row computed twice."""
    rows = random_rows(5_000)
    rows[17] *= np.float32(1e8)
    matrix, computed = matrix_of(rows), 0
    exact = vectors._scores

    def counted(some: Any, query: Any, metric: Metric) -> Any:
        nonlocal computed
        computed += len(some)
        return exact(some, query, metric)

    monkeypatch.setattr(vectors, "_scores", counted)
    query = random_rows(1)[0]
    assert next(matrix.ranked(query.tobytes(), "l2"))[0] == ranked_in_float64(rows, query, "l2")[0]
    assert 0 < computed < 200


def test_a_ranking_is_computed_as_far_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, pieces = matrix_of(random_rows(20_000)), []
    exact = vectors._scores
    monkeypatch.setattr(vectors, "_scores", lambda some, *rest: (pieces.append(len(some)), exact(some, *rest))[1])
    ranking = matrix.ranked(random_rows(1)[0].tobytes())
    list(islice(ranking, 10))
    assert sum(pieces) < 200
    list(islice(ranking, 990))
    assert 1000 <= sum(pieces) < 5000


# Zeros ---------------------------------------------------------------------------------------------------------------


def test_a_vector_of_zeros_scores_zero_by_cosine() -> None:
    matrix = Matrix()
    matrix.add([1, 2, 3], [packed([1, 0, 0]), packed([0, 0, 0]), packed([-1, 0, 0])])
    assert list(matrix.ranked(packed([2, 0, 0]))) == [(1, 1.0), (2, 0.0), (3, -1.0)]
    assert list(matrix.ranked(packed([0, 0, 0]))) == [(3, 0.0), (2, 0.0), (1, 0.0)]


def test_a_vector_scores_no_negative_zero_for_its_own_distance() -> None:
    matrix = Matrix()
    matrix.add([1], [packed([1, 2, 3])])
    [(_, found)] = matrix.ranked(packed([1, 2, 3]), "l2")
    assert math.copysign(1, found) == 1


def test_an_empty_matrix_ranks_nothing() -> None:
    matrix = Matrix()
    assert list(matrix.ranked(packed([1, 2, 3]))) == []
    matrix.add([1], [packed([1, 2, 3])])
    matrix.remove([1, 99])
    assert (list(matrix.ranked(packed([1, 2, 3]))), len(matrix)) == ([], 0)


@pytest.mark.parametrize("wrong", [b"", b"\0" * 8, b"\0" * 13])
def test_a_vector_of_other_dimensions_is_refused_and_nothing_changes(wrong: bytes) -> None:
    matrix = Matrix()
    matrix.add([1, 2], [packed([1, 2, 3]), packed([3, 2, 1])])
    with pytest.raises(InvalidInput, match="3 dimensions"):
        matrix.change([1], [3, 4], [packed([1, 1, 1]), wrong])
    with pytest.raises(InvalidInput, match="dimensions"):
        matrix.ranked(wrong)
    assert sorted(id for id, _ in matrix.ranked(packed([1, 2, 3]))) == [1, 2]


@pytest.mark.parametrize("wrong", [b"", b"\0\0\0"])
def test_a_first_vector_without_dimensions_is_refused(wrong: bytes) -> None:
    matrix = Matrix()
    with pytest.raises(InvalidInput):
        matrix.add([1], [wrong])
    matrix.add([1], [packed([1, 2, 3])])
    assert len(matrix) == 1


def test_ids_and_vectors_must_be_as_many() -> None:
    with pytest.raises(InvalidInput, match="2 ids were given for 1 vectors"):
        Matrix().add([1, 2], [packed([1, 2, 3])])


# Changing while others search ----------------------------------------------------------------------------------------


def test_a_ranking_that_was_begun_goes_on_as_it_began() -> None:
    rows = random_rows(2_000)
    matrix, query = matrix_of(rows), random_rows(1)[0]
    expected = ranked_in_float64(rows, query, "cosine")
    ranking = matrix.ranked(query.tobytes())
    first = [id for id, _ in islice(ranking, 10)]
    matrix.remove(range(0, 2_000, 2))
    matrix.add(range(1, 2_000, 2), [query.tobytes()] * 1_000)
    matrix.remove(range(2_000))  # by now most is gone, so the rest moves
    assert len(matrix) == 0
    assert first + [id for id, _ in ranking] == expected


def test_what_was_removed_is_left_behind_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_PIECE", 64)
    matrix, rows = Matrix(), random_rows(vectors._BLOCK)
    for _ in range(8):  # as a reindex does: everything is replaced
        matrix.change(range(len(rows)), range(len(rows)), [row.tobytes() for row in rows])
    assert len(matrix._blocks) <= 2
    assert len(matrix) == len(rows)


def test_searches_see_each_change_whole() -> None:
    """Each id is replaced again and again, so that it is always there once."""
    matrix, rows = Matrix(), random_rows(400)
    with of_small_parts():
        matrix.add(range(400), [row.tobytes() for row in rows])
        done = threading.Event()
        wrong: list[object] = []

        def search() -> None:
            try:
                while not done.is_set():
                    found = [id for id, _ in matrix.ranked(rows[0].tobytes())]
                    if sorted(found) != list(range(400)):
                        wrong.append(found)
                    picked = [id for id, _ in matrix.ranked(rows[0].tobytes(), "l2", allowed=range(5))]
                    if sorted(picked) != list(range(5)):
                        wrong.append(picked)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=search) for _ in range(3)]
        for thread in threads:
            thread.start()
        for turn in range(300):
            some = range(turn % 7, 400, 7)
            matrix.change(some, some, [rows[(id + turn) % 400].tobytes() for id in some])
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_without_numpy_the_error_names_the_extra() -> None:
    script = (
        "import sys; sys.modules['numpy'] = None\n"
        "from holdall.errors import MissingExtra\n"
        "try: import holdall.search.vectors\n"
        "except MissingExtra as error: print(error)"
    )
    printed = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert "pip install 'holdall[vectors]'" in printed


# Brute force ---------------------------------------------------------------------------------------------------------


def brute_force(held: Iterable[tuple[int, Sequence[float]]], query: Sequence[float], metric: Metric) -> list[Any]:
    """By the book, in plain Python."""
    best: dict[int, float] = {}
    for id, vector in held:
        product = math.fsum(a * b for a, b in zip(vector, query, strict=True))
        lengths = math.hypot(*vector), math.hypot(*query)
        if metric == "cosine":
            scored = product / math.prod(lengths) if all(lengths) else 0.0
        elif metric == "dot":
            scored = product
        else:
            scored = 0.0 - math.dist(vector, query)
        best[id] = max(best.get(id, -math.inf), scored)
    return sorted(best.items(), key=lambda pair: (-pair[1], -pair[0]))


def ranked_in_float64(rows: np.ndarray[Any, Any], query: np.ndarray[Any, Any], metric: Metric) -> list[int]:
    wide, wanted = rows.astype(np.float64), query.astype(np.float64)
    if metric == "l2":
        scored = -np.linalg.norm(wide - wanted, axis=1)
    else:
        scored = wide @ wanted
        if metric == "cosine":
            scored = scored / np.linalg.norm(wide, axis=1)
    return np.lexsort((-np.arange(len(rows)), -scored)).tolist()


def random_rows(count: int, dims: int = 48) -> np.ndarray[Any, Any]:
    return np.random.default_rng(count).standard_normal((count, dims), dtype=np.float32)


def matrix_of(rows: np.ndarray[Any, Any]) -> Matrix:
    matrix = Matrix()
    matrix.add(range(len(rows)), [row.tobytes() for row in rows])
    return matrix


def packed(vector: Sequence[float]) -> bytes:
    return array("f", vector).tobytes()


@contextmanager
def of_small_parts() -> Iterator[None]:
    """So that a few vectors take several blocks, pieces and stretches."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("_BLOCK", 4), ("_PIECE", 3), ("FIRST_SORTED", 2), ("_GROWTH", 2)):
            patch.setattr(vectors, name, size)
        yield


@pytest.mark.parametrize("metric", METRICS)
def test_the_score_of_an_equal_vector_is_between_its_bounds(metric: Metric) -> None:
    """Rounded, the product of two equal vectors may be larger than the square of their length."""
    lengths = np.array([1 / 3, 0.1, 7.7, 1e-3, 3e5])
    for length in lengths.tolist():
        same = np.array([length])
        for product in (np.nextafter(length, 9e9), length, np.nextafter(length, 0)):
            low, high = vectors.bound_scores(np.array([product * (1 + 8e-15)]), np.zeros(1), same, length, metric)
            exact = {"cosine": 1.0, "dot": length * length, "l2": 0.0}[metric]
            assert low[0] <= exact * (1 + 1e-14) and exact * (1 - 1e-14) <= high[0]
