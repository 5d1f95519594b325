"""The vector index of SQLite and disk stores: a file that may be missing, damaged or late, at no cost of an answer."""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdall
from holdall.engines.sqlite.vectors import ranker
from holdall.ops import Delete, Put
from holdall.search.vector_index import building, index
from support.processes import report, start

DIMS, COUNT = 16, 900
NS = ("notes",)
Opener = Callable[..., holdall.Store]

SMALL: dict[Any, dict[str, int]] = {
    ranker: {"MOST_EXACT": 100, "_READ": 20, "_PAGE": 64, "_SAMPLE": 32, "_FITTING": 4},
    building: {"COMPARED": 150, "_PLAIN_CELL": 32},
    index: {"COMPARED": 150, "_SCANNED": 150, "_BOUNDED": 64},
}


def make_small() -> None:
    for module, numbers in SMALL.items():
        for name, number in numbers.items():
            setattr(module, name, number)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred vectors have an index, and an approximate search compares a part of them."""
    for module, numbers in SMALL.items():
        for name, number in numbers.items():
            monkeypatch.setattr(module, name, number)


@pytest.fixture(params=["sqlite", "disk"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens stores on one place, each with an engine of its own."""
    if request.param == "disk" and sys.platform != "linux":
        pytest.skip("needs flock")
    stores: list[holdall.Store] = []

    def opener(**options: Any) -> holdall.Store:
        where = tmp_path / "store.db" if request.param == "sqlite" else f"disk:///{tmp_path}/folder"
        stores.append(open_there(str(where), timeout=30 + len(stores), **options))
        return stores[-1]

    yield opener
    for store in stores:
        store.close()


def open_there(where: str, **options: Any) -> holdall.Store:
    return holdall.open(where, embed=embed, sweep_interval=None, durability="relaxed", **options)


def embed(texts: list[str]) -> list[list[float]]:
    """The vector of a text: near the centre that its first word names, a little off for each text."""
    made = []
    for text in texts:
        first = text.split()[0]
        centre = np.random.default_rng(int(first) if first.isdigit() else 99_999).standard_normal(DIMS)
        noise = np.random.default_rng(random.Random(text).randrange(1 << 30)).standard_normal(DIMS)
        made.append((centre + 0.2 * noise).tolist())
    return made


def fill(store: holdall.Store, first: int = 0, count: int = COUNT, namespace: tuple[str, ...] = NS) -> None:
    """Put entries in 40 clusters."""
    numbers = range(first, first + count)
    store.execute([Put(namespace, f"k{n}", {"text": f"{n % 40} note {n}"}) for n in numbers])


def find(store: holdall.Store, query: str, namespace: tuple[str, ...] = (), **asked: Any) -> list[tuple[str, Any]]:
    page = store.search(namespace, query=query, mode="semantic", **asked)
    return [(hit.key, hit.score) for hit in page]


def files_of(tmp_path: Path) -> list[Path]:
    found = [*tmp_path.glob("store.db-vectors-*"), *tmp_path.glob("folder/.holdall/catalogue.db-vectors-*")]
    return [path for path in found if not path.name.endswith("lock")]


def wait_for_index(store: holdall.Store, tmp_path: Path, old: Path | None = None) -> Path:
    """Search until there is an index that the search uses."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        find(store, "7 wait")
        all_known = store._engine_handle.engine._sql.ranker._known  # type: ignore[attr-defined]  # of SQLite and disk
        used = {known.index.header.build for known in all_known.values() if known.index is not None}
        found = [path for path in files_of(tmp_path) if path != old and path.name[-16:] in used]
        if found:
            return found[0]
        time.sleep(0.02)
    raise AssertionError("no index was built")


def recall(store: holdall.Store, namespace: tuple[str, ...] = ()) -> float:
    """The part of the exact answers that is found without `exact=True`."""
    hits = 0
    for number in range(40):
        query = f"{number} asked"
        exact = find(store, query, namespace, exact=True)
        hits += len({*find(store, query, namespace)} & {*exact})
    return hits / 400


def is_approximate(store: holdall.Store) -> bool:
    """Whether searches use an index that compares a part of the vectors."""
    [known] = store._engine_handle.engine._sql.ranker._known.values()  # type: ignore[attr-defined]  # as above
    return known.index is not None and not known.index.compares_all


def test_a_large_store_gets_an_index_which_finds_the_nearest(opened: Opener, tmp_path: Path) -> None:
    store = opened()
    fill(store)
    before = [find(store, f"{number} asked") for number in range(40)]
    wait_for_index(store, tmp_path)
    assert is_approximate(store)
    after = [find(store, f"{number} asked", exact=True) for number in range(40)]
    assert after == before  # from memory, and from the index
    assert recall(store) >= 0.97
    other = opened()
    assert [find(other, f"{number} asked", exact=True) for number in range(40)] == before
    assert recall(other) >= 0.97
    assert len(files_of(tmp_path)) == 1


@pytest.mark.parametrize("metric", ["dot", "l2"])
def test_other_metrics_have_an_index_of_their_own(tmp_path: Path, metric: Any) -> None:
    with open_there(str(tmp_path / "store.db"), metric=metric) as store:
        fill(store)
        before = [find(store, f"{number} asked") for number in range(10)]
        wait_for_index(store, tmp_path)
        assert [find(store, f"{number} asked", exact=True) for number in range(10)] == before
        assert recall(store) >= 0.97


def test_every_write_is_found_at_once_beside_an_index(opened: Opener, tmp_path: Path) -> None:
    store = opened()
    fill(store)
    wait_for_index(store, tmp_path)
    for number in range(5):
        query = f"{number} asked"
        best = find(store, query)[0][0]
        store.put(NS, "new", {"text": query})
        assert find(store, query)[0] == ("new", pytest.approx(1.0))
        store.delete(NS, "new")
        assert find(store, query)[0][0] == best
        store.delete(NS, best)
        assert best not in dict(find(store, query))
        assert best not in dict(find(store, query, exact=True))


@pytest.mark.parametrize("count", [140, 600])  # all are compared, or a part of them
def test_many_equal_vectors_are_not_all_scored(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(ranker, "_MOST_SCORED", 50)
    scored: list[int] = []
    score = ranker.SqliteRanker.score

    def count_scored(self: Any, vector: Any, versions: list[int]) -> Any:
        scored.append(len(versions))
        return (yield from score(self, vector, versions))

    monkeypatch.setattr(ranker.SqliteRanker, "score", count_scored)
    store = opened()
    store.execute([Put(NS, f"k{n}", {"text": "7 the same"}) for n in range(count)])
    wait_for_index(store, tmp_path)
    assert is_approximate(store) == (count == 600)
    newest = [f"k{n}" for n in reversed(range(count))]
    scored.clear()
    found = [key for key, _ in find(store, "7 the same")]
    assert sum(scored) <= 50
    assert len(found) == 10
    assert found == newest[:10] or is_approximate(store)
    assert [key for key, _ in find(store, "7 the same", exact=True)] == newest[:10]
    assert sum(scored) >= count
    assert sorted(key for key, _ in find(store, "7 the same", limit=count)) == sorted(newest)


@pytest.mark.parametrize("harm", ["missing", "cut", "flipped", "empty", "another's"])
def test_a_damaged_index_costs_no_answer_and_is_replaced(opened: Opener, tmp_path: Path, harm: str) -> None:
    store = opened()
    fill(store)
    before = [find(store, f"{number} asked") for number in range(10)]
    path = wait_for_index(store, tmp_path)
    data = bytearray(path.read_bytes())
    path.unlink()  # a process that has it mapped is not concerned
    if harm == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif harm == "flipped":
        data[-100] ^= 4
        path.write_bytes(data)
    elif harm == "empty":
        path.touch()
    elif harm == "another's":
        (tmp_path / "other").mkdir()
        with open_there(str(tmp_path / "other" / "store.db")) as other:
            fill(other, 5000)
            shutil.copy(wait_for_index(other, tmp_path / "other"), path)
    fresh = opened()
    assert [find(fresh, f"{number} asked", exact=True) for number in range(10)] == before
    wait_for_index(fresh, tmp_path, path)
    assert [find(fresh, f"{number} asked", exact=True) for number in range(10)] == before
    assert recall(fresh) >= 0.97
    assert len(files_of(tmp_path)) == 1


def test_a_large_namespace_is_searched_wherever_its_vectors_are(opened: Opener, tmp_path: Path) -> None:
    """Neighbours of the query that are elsewhere must not crowd out those in the namespace."""
    store = opened()
    fill(store)
    store.execute([Put(("mine",), f"far{n}", {"text": f"{1000 + n % 30} far {n}"}) for n in range(150)])
    store.execute([Put(("mine",), f"near{n}", {"text": f"{n} planted"}) for n in range(5)])
    wait_for_index(store, tmp_path)
    assert is_approximate(store)
    for number in range(5):
        found = find(store, f"{number} asked", ("mine",), limit=20)
        assert found == find(store, f"{number} asked", ("mine",), limit=20, exact=True)
        assert found[0][0] == f"near{number}"
    assert recall(store, NS) >= 0.97  # most of the candidates are in this one
    assert find(store, "3 asked", filter={"text": "3 planted"})[0][0] == "near3"


def test_a_small_namespace_is_searched_exactly_without_the_other_vectors(opened: Opener, tmp_path: Path) -> None:
    store = opened()
    fill(store)
    fill(store, 2000, 60, ("mine",))
    before = find(store, "3 asked", ("mine",), limit=60)
    assert len(before) == 60
    wait_for_index(store, tmp_path)
    assert find(store, "3 asked", ("mine",), limit=60) == before
    other = opened()
    assert find(other, "3 asked", ("mine",), limit=60) == before
    known = other._engine_handle.engine._sql.ranker._known  # type: ignore[attr-defined]  # of SQLite and disk
    assert known == {}


def test_pages_and_large_limits_go_on_where_the_cells_end(opened: Opener, tmp_path: Path) -> None:
    store = opened()
    fill(store)
    expected = find(store, "3 asked", limit=COUNT)
    wait_for_index(store, tmp_path)
    assert find(store, "3 asked", limit=COUNT) == expected
    found: list[tuple[str, Any]] = []
    cursor = None
    while True:
        page = store.search((), query="3 asked", mode="semantic", limit=170, cursor=cursor)
        found += [(hit.key, hit.score) for hit in page]
        cursor = page.next
        if cursor is None:
            break
    assert sorted(found) == sorted(expected)


def test_an_index_that_is_mostly_outdated_is_built_again(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranker, "_COUNT_INTERVAL", 0.0)
    store = opened()
    fill(store)
    old = wait_for_index(store, tmp_path)
    store.execute([Delete(NS, f"k{n}") for n in range(COUNT) if n % 10])
    left = find(store, "3 asked", limit=COUNT)
    assert len(left) == COUNT // 10  # few enough to be exact
    new = wait_for_index(store, tmp_path, old)
    assert new.stat().st_size < old.stat().st_size if old.exists() else True
    assert find(store, "3 asked", limit=COUNT) == left


def test_a_growing_store_extends_its_index(opened: Opener, tmp_path: Path) -> None:
    store = opened()
    fill(store, 0, 400)
    old = wait_for_index(store, tmp_path)
    for step in range(3):
        fill(store, 400 + step * 150, 150)
        old = wait_for_index(store, tmp_path, old)
    assert recall(store) >= 0.97
    assert sorted(find(store, "3 asked", limit=COUNT, exact=True)) == sorted(find(store, "3 asked", limit=COUNT))
    assert len(find(store, "3 asked", limit=COUNT)) == 850


def test_more_than_memory_should_hold_is_searched_before_there_is_a_file(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here no file can be written at all."""
    store = opened()
    fill(store)
    expected = [find(store, f"{number} asked", limit=30) for number in range(5)]
    folder = tmp_path if (tmp_path / "store.db").exists() else tmp_path / "folder" / ".holdall"
    monkeypatch.setattr(ranker, "_LONGEST_TAIL", 50)
    for path in [*files_of(tmp_path), *folder.glob("*-vectors-lock")]:
        path.unlink(missing_ok=True)
    base = "store.db" if folder == tmp_path else "catalogue.db"
    (folder / f"{base}-vectors-lock").mkdir()  # so that the lock cannot be opened
    other = opened()
    assert [find(other, f"{number} asked", limit=30) for number in range(5)] == expected
    other.put(NS, "new", {"text": "3 asked"})
    assert find(other, "3 asked")[0][0] == "new"
    [known] = other._engine_handle.engine._sql.ranker._known.values()  # type: ignore[attr-defined]  # as above
    assert known.index is not None
    assert len(known.tail) <= 50


def test_a_copy_of_the_database_alone_is_a_whole_store(tmp_path: Path) -> None:
    with open_there(str(tmp_path / "store.db")) as store:
        fill(store)
        wait_for_index(store, tmp_path)
        expected = [find(store, f"{number} asked", exact=True) for number in range(10)]
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "store.db", tmp_path / "copy" / "store.db")
    with open_there(str(tmp_path / "copy" / "store.db")) as copy:
        assert [find(copy, f"{number} asked", exact=True) for number in range(10)] == expected
        wait_for_index(copy, tmp_path / "copy")


def test_an_older_database_does_not_use_a_newer_index(tmp_path: Path) -> None:
    """Its next vectors get ids that the newer index seems to cover."""
    path = tmp_path / "store.db"
    with open_there(str(path)) as store:
        fill(store, 0, 300)
        wait_for_index(store, tmp_path)
    shutil.copy(path, tmp_path / "backup")
    with open_there(str(path)) as store:
        fill(store, 300, 400)
        wait_for_index(store, tmp_path, files_of(tmp_path)[0])
    shutil.copy(tmp_path / "backup", path)
    with open_there(str(path)) as store:
        fill(store, 5000, 50)
        assert find(store, "13 note 5013")[0][0] == "k5013"
        assert len(find(store, "3 asked", limit=1000, exact=True)) == 350


@pytest.mark.timed
def test_closing_does_not_wait_for_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    place = building.IndexBuilder.place

    def slow(self: Any, *given: Any) -> None:
        begun.set()
        time.sleep(0.3)
        place(self, *given)

    monkeypatch.setattr(building.IndexBuilder, "place", slow)
    store = open_there(str(tmp_path / "store.db"))
    fill(store)
    find(store, "3 asked")
    assert begun.wait(30)
    before = time.monotonic()
    store.close()
    assert time.monotonic() - before < 2
    assert files_of(tmp_path) == []


# Processes -----------------------------------------------------------------------------------------------------------


def build_slowly(path: str) -> None:
    make_small()
    fill_in = building.IndexBuilder.fill

    def slow(self: Any, *given: Any) -> None:
        report("building")
        time.sleep(0.2)
        fill_in(self, *given)

    building.IndexBuilder.fill = slow  # type: ignore[method-assign]  # in this process only
    store = open_there(path)
    find(store, "3 asked")
    time.sleep(60)


def test_a_build_that_is_killed_leaves_nothing_wrong(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_there(str(path)) as store:
        fill(store)
        builder = start(build_slowly, deadline=120, path=str(path))
        assert builder.receive() == "building"
        expected = [find(store, f"{number} asked") for number in range(10)]
        assert [file.suffix for file in files_of(tmp_path)] == [".new"]
        builder.kill()
        wait_for_index(store, tmp_path)
        assert [find(store, f"{number} asked", exact=True) for number in range(10)] == expected
        assert [file.name.endswith(".new") for file in files_of(tmp_path)] == [False]


def search_and_write(path: str, number: int, seconds: float) -> None:
    make_small()
    wrong, end, step = 0, time.monotonic() + seconds, 0
    with open_there(path) as store:
        while time.monotonic() < end:
            step += 1
            text = f"{step % 40} of {number} at {step}"
            store.put((f"p{number}",), f"k{step % 60}", {"text": text})
            wrong += find(store, text)[0] != (f"k{step % 60}", pytest.approx(1.0))
            if step % 20 == 0:
                wrong += len(find(store, text, (f"p{number}",), limit=100)) != min(step, 60)
    report([wrong, step])


def test_many_processes_share_one_index(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    path = tmp_path / "store.db"
    with open_there(str(path)) as store:
        fill(store)
        crew = [
            start(search_and_write, deadline=180, path=str(path), number=n, seconds=scaled(3, 20)) for n in range(3)
        ]
        for process in crew:
            [(wrong, steps)] = process.finish()
            assert wrong == 0
            assert steps > 3
        wait_for_index(store, tmp_path)
        assert len(find(store, "3 asked", exact=True, limit=2000)) == store.count()
        assert len([file for file in files_of(tmp_path) if file.suffix != ".new"]) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_searches_while_its_parent_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    place = building.IndexBuilder.place

    def slow(self: Any, *given: Any) -> None:
        begun.set()
        time.sleep(0.05)
        place(self, *given)

    monkeypatch.setattr(building.IndexBuilder, "place", slow)
    with open_there(str(tmp_path / "store.db")) as store:
        fill(store)
        expected = find(store, "3 asked")
        assert begun.wait(30)
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if find(store, "3 asked") == expected else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        wait_for_index(store, tmp_path)
        assert find(store, "3 asked", exact=True) == expected
