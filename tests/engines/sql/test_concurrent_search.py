"""Who writes in the middle of a search, and what the search says: it is of one moment, whatever the indexes know."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

import holdall
from holdall import ops
from holdall.engines.postgres.connections import Acquire, ConnectionLost, Connections, Pipeline, Release
from holdall.engines.postgres.feed import PostgresFeed
from holdall.engines.sql import ranker as sql_search
from holdall.engines.sql import text_index as sql_texts
from holdall.errors import Conflict, CursorExpired
from holdall.ops import ABSENT, IndexTexts, Put
from holdall.runtime.programs import drive
from holdall.search import ranking, vectors
from holdall.search.segments import arrays, merging
from holdall.search.segments import state as segments
from holdall.testing import Clock, embed
from support.brute_force import check_lexical
from support.servers import Postgres, postgres_url, program

NS = ("notes",)
Opener = Callable[..., holdall.Store]
_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(engine: str, tmp_path: Path) -> Iterator[Opener]:
    """Opens stores on one place, each with an engine of its own, as if it were in another process."""
    stores: list[holdall.Store] = []
    schema = f"learning_{next(_numbers)}"

    def opener(**options: Any) -> holdall.Store:
        own: dict[str, Any] = {"timeout": 30 + next(_numbers), "sweep_interval": None, **options}
        if engine == "sqlite":
            stores.append(holdall.open(tmp_path / "store.db", **own))
        else:
            stores.append(holdall.open(postgres_url(), schema=schema, **own))
        return stores[-1]

    yield opener
    for store in stores:
        store.close()


def after_each(kind: str, action: Callable[[], Any]) -> Callable[[holdall.OpEvent], None]:
    """A hook for `on_op=` that acts after such a batch, once for each."""
    acting = threading.local()

    def hook(event: holdall.OpEvent) -> None:
        if event.ops == (kind,) and not getattr(acting, "now", False):
            acting.now = True
            action()
            acting.now = False

    return hook


def keys_of(hits: Any) -> list[str]:
    return sorted(hit.key for hit in hits)


# While a search is under way -----------------------------------------------------------------------------------------


def test_an_entry_that_is_always_being_overwritten_is_always_found(opened: Opener) -> None:
    """The search has the index catch up; then the entry changes again: it is found as it is then."""
    other = opened()
    steps = itertools.count()

    def overwrite() -> None:
        other.execute([Put(NS, "busy", {"text": f"green tea {next(steps)}"}), Put(NS, "new", {"text": "tea"})])

    store = opened(on_op=after_each("IndexTexts", overwrite))
    for _ in range(3):
        other.execute([Put(NS, f"{n:02}", {"text": "black coffee"}) for n in range(20)])
        other.put(NS, "busy", {"text": "green tea"})
        before = next(steps)
        assert "busy" in keys_of(store.search(query="green tea"))
        assert next(steps) > before + 1, "the search did not learn"
    check_lexical(store, "green tea", "coffee")


def test_a_search_ends_though_others_write_faster_than_the_index_learns(opened: Opener) -> None:
    other = opened()
    rounds = itertools.count()

    def write_on() -> None:
        number = next(rounds)
        if number < 20:
            other.execute([Put(NS, f"{number}.{n}", {"text": "tea"}) for n in range(600)])

    store = opened(on_op=after_each("IndexTexts", write_on))
    other.execute([Put(NS, str(n), {"text": "green tea"}) for n in range(600)])
    assert len(store.search(query="green", limit=1000)) == 600
    assert 0 < next(rounds) < 20, "it learned what came meanwhile, for ever"
    check_lexical(other, "green tea")


def test_an_index_whose_segments_are_merged_meanwhile_hides_nothing(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of its documents are gone, so another process merges all segments, and is in the middle of it."""
    for name, number in {"SPARE": 4, "SMALL": 8, "PART": 16}.items():
        monkeypatch.setattr(segments, name, number)
    monkeypatch.setattr(merging, "STEP", 8)
    other = opened()
    mine, theirs = (engine_of(store) for store in (opened(), other))
    steps: list[tuple[int, bool]] = []

    def merge_some() -> None:
        if not steps:
            for _ in range(2):
                other.execute([Put(NS, f"{n:02}", {"text": f"tea {n}"}) for n in range(20)])
                steps.append(theirs.execute([IndexTexts(1000)])[0])
            steps.extend(theirs.execute([IndexTexts(1)])[0] for _ in range(3))

    store = opened(on_op=after_each("IndexTexts", merge_some))
    other.execute([Put(NS, f"{n:02}", {"text": "tea"}) for n in range(20)])
    assert len(store.search(query="tea", limit=100)) == 20
    assert steps == [(20, True), (20, True), (0, True), (0, True), (0, True)]
    check_lexical(other, "tea", "tea 7")
    mine.execute([IndexTexts()])
    check_lexical(store, "tea", "tea 7")
    while theirs.execute([IndexTexts()])[0][1]:
        check_lexical(store, "tea", "tea 7")


def test_a_process_that_only_searches_does_the_merges_that_another_has_left(tmp_path: Path) -> None:
    """The first indexes a slice for each search, and ends. The second finds nothing to index, but it sweeps."""
    path = tmp_path / "store.db"
    with holdall.open(path, sweep_interval=None) as store:
        for number in range(6):
            store.execute([Put(NS, f"{number}.{n}", {"text": f"tea {n}"}) for n in range(20)])
            assert len(store.search(query="tea", limit=200)) == 20 * (number + 1)

    def count_segments() -> int:
        # In another process: two libraries of SQLite in one do not see each other's locks.
        read = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone())"
        sql = "SELECT value FROM holdall_state WHERE name = 'segments'"
        stored = subprocess.run([sys.executable, "-c", read, path, sql], check=True, capture_output=True).stdout
        return len(msgspec.json.decode(stored, type=segments.State).segments)

    assert count_segments() == 6
    with holdall.open(path, sweep_interval=0.05) as store:
        store.get(NS, "0.0")
        time.sleep(0.3)
        assert count_segments() == 6  # not by a process that never searches
        assert len(store.search(query="tea", limit=200)) == 120
        deadline = time.monotonic() + 20
        while count_segments() > 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert len(store.search(query="tea", limit=200)) == 120


def test_indexing_ends_though_a_merge_is_going_on(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most documents are gone, and those that came since the merge began are not worth a merge of their own."""
    for name, number in {"SPARE": 4, "SMALL": 8, "PART": 16}.items():
        monkeypatch.setattr(segments, name, number)
    monkeypatch.setattr(merging, "STEP", 8)
    store = opened()
    engine = engine_of(store)
    for _ in range(3):
        store.execute([Put(NS, f"{n:02}", {"text": f"tea {n}"}) for n in range(20)])
        engine.execute([IndexTexts(1000)])
    assert engine.execute([IndexTexts()]) == [(0, True)]  # the merge begins
    store.put(NS, "new", {"text": "tea"})
    steps = 0
    while engine.execute([IndexTexts()])[0][1]:
        steps += 1
        assert steps < 100, "it does the same step again and again"
    check_lexical(store, "tea", "tea 7")


def test_what_is_deleted_and_forgotten_leaves_the_index_too(opened: Opener) -> None:
    """Others write all the while: the tombstones go all the same, and what they say is known before."""
    other = opened()
    store = opened(
        feed_retention=0, on_op=after_each("PurgeTombstones", lambda: other.put(NS, "busy", {"text": "tea"}))
    )
    store.execute([Put(NS, f"{n:02}", {"text": "tea"}) for n in range(40)])
    check_lexical(store, "tea")
    for n in range(30):
        store.delete(NS, f"{n:02}")
    store.sweep()
    assert len(engine_of(store).execute([ops.Changes(limit=1000)])[0]) == 11
    check_lexical(store, "tea")
    check_lexical(other, "tea")


def engine_of(store: holdall.Store) -> Any:
    return store._engine_handle.engine


def test_what_is_written_after_a_search_is_indexed_in_the_background(tmp_path: Path) -> None:
    """So no search waits long for the index of a store in use. A search by the engine itself says how it lags."""
    with holdall.open(tmp_path / "store.db") as store:
        store.execute([Put(NS, f"{n:02}", {"text": "tea"}) for n in range(40)])
        check_lexical(store, "tea")
        store.execute([Put(NS, f"{n:02}", {"text": "green tea"}) for n in range(20, 60)])
        deadline = time.monotonic() + 20
        while isinstance(engine_of(store).execute([ops.Search((), query="green")])[0], ops.IndexLag):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        check_lexical(store, "tea", "green")


# In an older snapshot ------------------------------------------------------------------------------------------------


class Snapshot:
    """A reader that sees the store as it was when it began, and asks its engine's programs."""

    def __init__(self, store: holdall.Store) -> None:
        self._engine = engine_of(store)
        self._is_sqlite = hasattr(self._engine, "_readers")
        if self._is_sqlite:
            self._reader = self._engine._readers.take()
            self._reader.execute("BEGIN")
            self._reader.execute("SELECT count(*) FROM holdall_entries").fetchall()
        else:
            self._deadline = time.monotonic() + 30
            self._reader = self._engine._connections.perform(Acquire(self._deadline))
            begin = [("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", {}), ("SELECT 1", {})]
            self._engine._connections.perform(Pipeline(self._reader, begin, self._deadline))

    def search(self, **asked: Any) -> Any:
        program = self._engine._sql.walk(ops.Search((), limit=100, caught_up=True, **asked))
        if self._is_sqlite:
            return drive(program, self._reader.run)
        return drive(
            self._engine._run_statements(self._reader, program, self._deadline), self._engine._connections.perform
        )

    def end(self) -> None:
        if self._is_sqlite:
            self._engine._readers.give_back(self._reader)
        else:
            self._engine._connections.perform(Pipeline(self._reader, [("ROLLBACK", {})], self._deadline))
            self._engine._connections.perform(Release(self._reader))


@pytest.mark.parametrize("warm", [True, False], ids=["which has read before", "which reads for the first time"])
def test_a_reader_in_an_older_snapshot_finds_what_was_there_then(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    """What the process remembers of the indexes is of a later moment."""
    monkeypatch.setattr(segments, "PART", 4)
    monkeypatch.setattr(segments, "SMALL", 4)
    monkeypatch.setattr(sql_search, "_PAGE", 3)
    store = opened(embed=embed)
    store.execute([Put(NS, str(n), {"text": f"tea {n}"}) for n in range(10)])
    engine_of(store).execute([IndexTexts()])
    if warm:
        store.search(query="tea", mode="hybrid")
    store.execute([Put(NS, str(n), {"text": f"tea {n} again"}) for n in range(5)])  # known to nobody yet
    then = {(hit.key, hit.version) for hit in store.search(limit=100)}
    old = Snapshot(store)
    try:
        store.execute([Put(NS, str(n), {"text": f"coffee {n}"}) for n in range(3, 8)])
        store.delete(NS, "9")
        store.put(NS, "later", {"text": "tea"})
        engine_of(store).execute([IndexTexts()])
        assert keys_of(store.search(query="tea", mode="lexical")) == ["0", "1", "2", "8", "later"]
        assert len(store.search(query="tea", mode="semantic", limit=100)) == 10
        embedding: Any = store._options.embedding
        vector = ops.Vector(embedding._model, store._run(embedding._embedder.embed_query("tea")))
        for asked in (
            {"query": "tea"},
            {"vector": vector},
            {"query": "tea", "vector": vector},
        ):
            assert {(hit.key, hit.version) for hit in old.search(**asked)} == then, asked.keys()
    finally:
        old.end()
    assert keys_of(store.search(query="tea", mode="lexical")) == ["0", "1", "2", "8", "later"]


def test_an_event_loop_goes_on_while_a_search_learns_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long is not done in the loop, whose heart beats meanwhile: each of these waits for that."""
    beats, passed = [0], set()

    def watched(where: Any, name: str) -> None:
        function = getattr(where, name)

        def call(*args: Any, **options: Any) -> Any:
            before, deadline = beats[0], time.monotonic() + 20
            in_loop = threading.current_thread() is threading.main_thread()  # as small ones are
            while beats[0] == before and not in_loop and time.monotonic() < deadline:
                time.sleep(0.001)
            if beats[0] > before:
                passed.add(name)
            return function(*args, **options)

        monkeypatch.setattr(where, name, call)

    async def beat() -> None:
        while True:
            beats[0] += 1
            await asyncio.sleep(0.001)

    async def main() -> None:
        async with holdall.open(
            postgres_url(), schema=f"learning_{next(_numbers)}", embed=embed, sweep_interval=None
        ) as store:
            await store.aexecute([Put(NS, str(n), {"text": f"tea {n}, or coffee no{n}"}) for n in range(600)])
            heart = asyncio.create_task(beat())
            for name in ("_tokenise_rows", "_build_segment"):
                watched(sql_texts, name)
            watched(arrays.ArrayScores, "add")
            watched(vectors.Matrix, "ranked")
            watched(vectors.Matrix, "add")
            found = await store.asearch(NS, query="tea", mode="hybrid", limit=1000)
            assert len(found) == 600
            heart.cancel()

    asyncio.run(main())
    assert passed == {"_tokenise_rows", "_build_segment", "ranked", "add"}


# Several writers -----------------------------------------------------------------------------------------------------


def test_vectors_of_writes_that_were_refused_are_not_kept(opened: Opener) -> None:
    """Puts that share a commit, of which some are refused: each entry has the vectors of the put that won."""
    store = opened(embed=embed)
    store.put(NS, "first", {"text": "x"})

    def put(number: int) -> bool:
        try:
            store.execute(
                [
                    Put(NS, f"extra{number}", {"a": f"word {number}", "b": f"more {number}"}, search_fields=["a", "b"]),
                    Put(NS, f"{number % 10}", {"text": f"note {number}"}, expect=ABSENT),
                ]
            )
            return True
        except Conflict:
            return False

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(put, range(80)))
    assert sum(won) == 10
    for number in range(80):
        best = store.search(query=f"note {number}", mode="semantic", limit=1, filter={"text": f"note {number}"})
        assert [hit.score for hit in best] == ([pytest.approx(1)] if won[number] else [])
    assert len(vectors_of(store)) == 1 + 10 + 20
    entries = {hit.version for hit in store.search(limit=1000)}
    assert {version for (version,) in vectors_of(store)} == entries


def vectors_of(store: holdall.Store) -> list[tuple[int]]:
    """The versions of all stored vectors."""
    sql = f"SELECT version FROM {engine_of(store)._dialect.vectors}"
    if hasattr(engine_of(store), "_readers"):
        reader = engine_of(store)._readers.take()
        rows = reader.execute(sql).fetchall()
        engine_of(store)._readers.give_back(reader)
        return rows  # type: ignore[no-any-return]  # apsw's
    with psycopg.connect(postgres_url()) as connection:
        return connection.execute(sql).fetchall()


def test_vectors_go_with_what_they_were_made_of(opened: Opener) -> None:
    """Nothing is left behind by overwrites, deletes, expiries, moves and reindexing."""
    clock = Clock()
    store = opened(embed=embed, clock=clock)
    plain = opened(clock=clock)
    store.execute([Put(NS, str(n), {"text": f"tea {n}"}, 5 if n % 3 == 0 else None) for n in range(12)])
    store.put(NS, "/d/shaped", {"content": "green tea"})
    store.put(NS, "/d/other", {"content": "black tea"})
    store.files(NS).copy("/d", "/e")
    store.files(NS).move("/d", "/f")
    store.files(NS).move("/f/shaped", "/e/shaped")
    store.files(NS).append("/e/other", "!")
    plain.put(NS, "1", {"text": "coffee"})
    store.put(NS, "2", {"text": "coffee"})
    store.delete(NS, "4")
    clock.advance(6)
    store.sweep()
    left = {hit.key: hit.version for hit in store.search(query="tea", mode="semantic", limit=100)}
    assert sorted(left) == ["/e/shaped", "/f/other", "10", "11", "2", "5", "7", "8"]
    assert sorted(version for (version,) in vectors_of(store)) == sorted(left.values())
    store.with_embedder(lambda texts: [[*vector, 1.0] for vector in embed(texts)]).reindex()
    assert len(vectors_of(store)) == 10
    store.delete_tree(NS)
    assert vectors_of(store) == []


def test_learners_at_once_learn_everything_once(opened: Opener) -> None:
    stores = [opened() for _ in range(4)]
    stores[0].execute([Put(NS, f"{n:03}", {"text": f"tea {n % 10}"}) for n in range(200)])

    def work(number: int) -> None:
        for n in range(20):
            stores[number].put(NS, f"{number}.{n}", {"text": f"tea {n % 7}"})
            stores[number].delete(NS, f"{number * 20 + n:03}")
            engine_of(stores[number]).execute([IndexTexts(7)])
            assert f"{number}.{n}" in keys_of(stores[number].search(query=f"tea {n % 7}", limit=1000))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    for store in stores:
        check_lexical(store, "tea", "tea 3", "9")


# PostgreSQL's own ----------------------------------------------------------------------------------------------------


@pytest.fixture
def schema() -> str:
    return f"learning_{next(_numbers)}"


def test_an_entry_that_changes_while_a_slice_is_read_is_learned_once(
    schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice that goes on where one ended reads twice, up to an end that it has read before."""
    with (
        holdall.open(postgres_url(), schema=schema) as store,
        holdall.open(postgres_url(), schema=schema, timeout=29) as other,
    ):
        store.execute([Put(NS, key, {"text": f"tea {key}"}) for key in "abc"])
        assert engine_of(store).execute([IndexTexts(2)]) == [(2, True)]
        read_end = PostgresFeed.indexable_end
        changes = iter(["again"])

        def changing(self: PostgresFeed) -> Any:
            end = yield from read_end(self)
            for text in changes:
                other.put(NS, "c", {"text": f"tea c {text}"})
            return end

        monkeypatch.setattr(PostgresFeed, "indexable_end", changing)
        assert engine_of(store).execute([IndexTexts(9)]) == [(0, False)]
        assert next(changes, None) is None
        assert engine_of(store).execute([IndexTexts(9)]) == [(1, False)]
        check_lexical(store, "tea", "c", "again")


def test_a_long_transaction_is_learned_when_it_ends(schema: str) -> None:
    """Its versions are older than what the index knows by then."""
    with holdall.open(postgres_url(), schema=schema) as store, psycopg.connect(postgres_url()) as long:
        store.execute([Put(NS, f"{n:02}", {"text": "tea"}) for n in range(20)])
        check_lexical(store, "tea")
        change = (
            f"UPDATE {schema}.entries SET value = %s, version = nextval('{schema}.versions'),"
            f" xid = pg_current_xact_id() WHERE key = '07'"
        )
        long.execute(change, ('{"text":"camomile"}',))
        store.execute([Put(NS, f"{n:02}", {"text": "green tea"}) for n in range(10, 40)])
        check_lexical(store, "green tea", "camomile")
        assert store.search(query="camomile") == []
        store.put(NS, "more", {"text": "tea"})
        check_lexical(store, "green tea")
        long.commit()
        assert keys_of(store.search(query="camomile")) == ["07"]
        check_lexical(store, "green tea", "camomile")
        store.execute([Put(NS, f"{n:02}", {"text": "white tea"}) for n in range(50, 90)])
        check_lexical(store, "tea", "camomile")


@pytest.mark.parametrize("was_done", [True, False])
def test_a_search_whose_connection_is_lost_while_it_learns_is_answered(
    schema: str, monkeypatch: pytest.MonkeyPatch, was_done: bool
) -> None:
    """Learning can be done twice: nobody has to know what became of the first time."""
    with holdall.open(postgres_url(), schema=schema) as store:
        store.execute([Put(NS, f"{n:02}", {"text": "tea"}) for n in range(40)])
        store.with_embedder(embed).reindex()
        perform, transacting = Connections.perform, iter(["commit"])

        def losing(self: Connections, request: Any) -> Any:
            """Lose the connection at the next commit of a transaction that has written."""
            if isinstance(request, Pipeline) and request.statements == [("COMMIT", {})]:
                [[(xid,)]] = perform(
                    self, Pipeline(request.connection, [("SELECT pg_current_xact_id_if_assigned()::text", {})], 1e9)
                )
                for _ in transacting if xid else ():
                    if was_done:
                        perform(self, request)
                    request.connection.close()
                    raise ConnectionLost(psycopg.OperationalError("the connection was lost"))
            return perform(self, request)

        monkeypatch.setattr(Connections, "perform", losing)
        assert len(store.search(query="tea", limit=100)) == 40
        assert next(transacting, None) is None
        check_lexical(store, "tea")
        store.execute([Put(NS, f"{n:02}", {"text": "tea"}) for n in range(5)])
        transacting = iter(["commit"])
        assert store.with_embedder(embed).reindex() == 5
        assert next(transacting, None) is None


def test_a_copy_on_another_server_finds_what_is_put_there() -> None:
    """From a dump: its rows name transactions that the other server has not come to yet."""
    with Postgres() as one, Postgres() as other:
        with holdall.open(one.url, feed_retention=0) as store:
            store.execute([Put(NS, f"{n:02}", {"text": f"tea {n}"}) for n in range(40)])
            check_lexical(store, "tea")
            with psycopg.connect(one.url, autocommit=True) as connection:
                for _ in range(3000):
                    connection.execute("SELECT pg_current_xact_id()")
            store.put(NS, "late", {"text": "tea"})
            store.delete(NS, "07")
            store.sweep()
            check_lexical(store, "tea")
            old = store.cursor()
        dump = subprocess.run([program("pg_dump"), one.url], check=True, capture_output=True).stdout
        subprocess.run([program("psql"), "-q", other.url], input=dump, check=True, capture_output=True)
        with holdall.open(other.url, feed_retention=0) as store, holdall.open(other.url, timeout=29) as second:
            check_lexical(store, "tea")
            with pytest.raises(CursorExpired):
                engine_of(store).execute([ops.Changes(since=old)])
            here = store.cursor()
            store.put(NS, "new", {"text": "coffee"})
            store.execute([Put(NS, f"{n:02}", {"text": "coffee"}) for n in range(20)])
            store.delete(NS, "30")
            assert len(second.search(query="coffee", limit=100)) == 21
            check_lexical(second, "tea", "coffee")
            assert len(engine_of(second).execute([ops.Changes(since=here)])[0]) == 22
            store.sweep()
            check_lexical(store, "tea", "coffee")


def test_few_and_many_are_ranked_alike(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the entries are picked first, or the ranking is read until enough of them are found."""
    store = opened(embed=embed)
    store.execute([Put(("a", str(n % 3)), f"{n:02}", {"text": f"tea {n % 5}", "n": n}) for n in range(60)])
    answers = []
    for few in (1000, 2):
        monkeypatch.setattr(sql_search, "FEW", few)
        monkeypatch.setattr(ranking, "_FIRST_LOOK", min(64, few))
        for mode in ("lexical", "semantic", "hybrid"):
            for filter in (None, {"n": {"$gte": 50}}):
                page = store.search(("a", "1"), query="tea 3", mode=mode, filter=filter, limit=7)
                answers.append([(hit.key, hit.score) for hit in page])
    assert answers[:6] == answers[6:]
