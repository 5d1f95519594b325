"""The approximate index of vectors on PostgreSQL: how much it finds, and that it is built without harm to anybody."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psycopg
import pytest

import holdall
from holdall.engines.postgres import entries as postgres_entries
from holdall.engines.postgres import ranker as postgres_ranker
from holdall.engines.postgres.indexes import background
from holdall.engines.postgres.ranker import PostgresRanker
from holdall.ops import Put
from support.extent import IS_SHORT
from support.processes import receive, report, start
from support.servers import postgres_url

DIMS, FEW = 16, 200
HERE = ("notes",)
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _small_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_threshold(monkeypatch.setattr)


def use_small_threshold(patch: Any) -> None:
    """Make a few hundred vectors many."""
    patch(postgres_ranker, "MOST_EXACT", FEW)
    patch(background, "MOST_EXACT", FEW)
    patch(postgres_entries, "MOST_EXACT", FEW)
    patch(background, "_QUIET", 0.2)
    patch(background, "_PAUSE", 0.0)


class Model:
    """The vectors of texts that end with a number."""

    def __init__(self, count: int, dims: int = DIMS, clusters: int = 100) -> None:
        from benchmarks.data import clustered_vectors  # here: a process of its own must find it first

        self.rows = clustered_vectors(count, dims, clusters)

    def __call__(self, texts: Sequence[str]) -> Any:
        return self.rows[[int(last) if (last := text.split()[-1]).isdecimal() else 0 for text in texts]]

    def nearest(self, query: int, among: Sequence[int], metric: str = "cosine", count: int = 10) -> list[int]:
        """The nearest vectors, all compared."""
        rows, wanted = self.rows[among].astype(np.float64), self.rows[query].astype(np.float64)
        scores = rows @ wanted
        if metric == "cosine":
            scores /= np.linalg.norm(rows, axis=1)
        elif metric == "l2":
            scores = -np.linalg.norm(rows - wanted, axis=1)
        return [among[number] for number in np.argsort(-scores)[:count].tolist()]


def new_schema() -> str:
    return f"vector_index_{next(_numbers)}"


def put(store: holdall.Store, numbers: Sequence[int], namespace: tuple[str, ...] = HERE) -> None:
    for start_at in range(0, len(numbers), 1000):
        some = numbers[start_at : start_at + 1000]
        store.execute([Put(namespace, str(n), {"text": f"text {n}", "even": n % 2 == 0}) for n in some])


def put_without_index(model: Model, schema: str) -> None:
    """Make a store with many vectors, as an older release left it."""
    with (
        mock.patch.object(background, "MOST_EXACT", 10_000),
        holdall.open(postgres_url(), schema=schema, embed=model) as store,
    ):
        put(store, range(500))
    assert indexes(schema) == []


def keys(hits: Sequence[Any]) -> list[int]:
    return [int(hit.key) for hit in hits]


def indexes(schema: str) -> list[tuple[str, bool]]:
    """The names of the approximate indexes, and whether each is valid."""
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        return connection.execute(
            "SELECT relname::text, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " JOIN pg_am ON pg_am.oid = relam WHERE amname = 'hnsw' AND relnamespace::regnamespace::text = %s",
            (schema,),
        ).fetchall()


def wait_until(condition: Any, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def wait_for_index(schema: str, count: int = 1) -> None:
    wait_until(lambda: [is_valid for _, is_valid in indexes(schema)] == [True] * count)


@contextmanager
def counted_uses() -> Iterator[list[Any]]:
    """List the searches by an index in the block."""
    uses: list[Any] = []
    query = PostgresRanker.query_index

    def counted(self: Any, index: Any, *args: Any) -> Any:
        uses.append(index)
        return query(self, index, *args)

    with mock.patch.object(PostgresRanker, "query_index", counted):
        yield uses


@contextmanager
def old_transaction(schema: str) -> Iterator[None]:
    """A transaction that has written vectors: no index is completed before it ends."""
    with psycopg.connect(postgres_url()) as connection:
        connection.execute(f"DELETE FROM {schema}.vectors WHERE id < 0")
        yield


def building(schema: str) -> list[int]:
    """The process ids of sessions that build an index, or drop one."""
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE state = 'active'"
            " AND query ~ '^(CREATE|DROP) INDEX CONCURRENTLY' AND strpos(query, %s) > 0",
            (f'"{schema}"',),
        ).fetchall()
    return [pid for (pid,) in rows]


# What it finds -------------------------------------------------------------------------------------------------------


def test_of_the_ten_nearest_it_finds_99_in_100_by_every_metric(scaled: Callable[[int, int], int]) -> None:
    count, asked, schema = scaled(20_000, 20_000), scaled(60, 60), new_schema()
    model = Model(count + asked, clusters=200)
    with holdall.open(postgres_url(), schema=schema, embed=model, timeout=300) as store:  # for a busy machine
        put(store, range(count))
        for number, metric in enumerate(("cosine", "dot", "l2")[: 1 if IS_SHORT else 3], 1):
            view: Any = store.with_embedder(model, metric=metric)  # type: ignore[arg-type]  # a metric
            view.search(query="text 1", mode="semantic")
            wait_for_index(schema, number)
            found = 0
            with counted_uses() as uses:
                for query in range(count, count + asked):
                    hits = view.search(query=f"text {query}", mode="semantic")
                    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
                    found += len({*keys(hits)} & {*model.nearest(query, range(count), metric)})
            assert len(uses) == asked
            assert found >= 0.99 * 10 * asked
            exact = view.search(query=f"text {count}", mode="semantic", exact=True)
            assert keys(exact) == model.nearest(count, range(count), metric)


def test_what_is_deleted_overwritten_or_new_is_found_as_it_is_now() -> None:
    model, schema = Model(2000), new_schema()
    with holdall.open(postgres_url(), schema=schema, embed=model) as store, counted_uses() as uses:
        put(store, range(1000))
        wait_for_index(schema)
        [best, second] = keys(store.search(query="text 7", mode="semantic", limit=2))
        assert best == 7
        store.delete(HERE, "7")
        assert keys(store.search(query="text 7", mode="semantic", limit=1)) == [second]
        store.put(HERE, str(second), {"text": "text 1500"})
        assert second not in keys(store.search(query="text 7", mode="semantic", limit=1))
        assert keys(store.search(query="text 1500", mode="semantic", limit=1)) == [second]
        store.put(HERE, "1700", {"text": "text 1700"}, ttl=0.2)
        assert keys(store.search(query="text 1700", mode="semantic", limit=1)) == [1700]
        time.sleep(0.3)
        assert keys(store.search(query="text 1700", mode="semantic", limit=1)) != [1700]
        assert len(uses) == 6
        store.delete_tree(HERE)
        assert store.search(query="text 7", mode="semantic") == []


def test_few_vectors_are_compared_exactly_whatever_else_there_is() -> None:
    model, schema = Model(3000), new_schema()
    with holdall.open(postgres_url(), schema=schema, embed=model) as store:
        put(store, range(2000))
        put(store, range(2000, 2100), ("few",))
        wait_for_index(schema)
        with counted_uses() as uses:
            for query in range(2500, 2520):
                hits = store.search(("few",), query=f"text {query}", mode="semantic")
                assert keys(hits) == model.nearest(query, range(2000, 2100))
            assert uses == []
            store.search(query="text 2500", mode="semantic")
            assert len(uses) == 1
            store.delete_tree(HERE)
            uses.clear()
            for query in range(2500, 2520):
                assert keys(store.search(query=f"text {query}", mode="semantic")) == model.nearest(
                    query, range(2000, 2100)
                )
            assert len(uses) <= 1, "the first may find out that many entries have changed"


def test_a_filter_and_a_namespace_cost_no_hit() -> None:
    model, schema = Model(4000), new_schema()
    with holdall.open(postgres_url(), schema=schema, embed=model) as store:
        put(store, range(2000))
        put(store, range(2000, 3000), ("other",))
        wait_for_index(schema)
        with counted_uses() as uses:
            hits = store.search(HERE, query="text 3500", mode="semantic", filter={"even": True}, limit=50)
            assert len(hits) == 50
            assert {number % 2 for number in keys(hits)} == {0}
            assert {hit.namespace for hit in hits} == {HERE}
            assert len(uses) == 1
        everything = store.search(("other",), query="text 3500", mode="semantic", limit=1500)
        assert sorted(keys(everything)) == list(range(2000, 3000))


def test_pages_have_every_entry_once() -> None:
    model, schema = Model(2000), new_schema()
    with holdall.open(postgres_url(), schema=schema, embed=model) as store:
        put(store, range(1500))
        wait_for_index(schema)
        found: list[int] = []
        cursor = None
        while True:
            page = store.search(query="text 1900", mode="semantic", limit=300, cursor=cursor)
            found += keys(page)
            cursor = page.next
            if cursor is None:
                break
        assert sorted(found) == list(range(1500))


def test_the_best_of_several_vectors_is_the_score_of_an_entry() -> None:
    model, schema = Model(3000), new_schema()
    with holdall.open(postgres_url(), schema=schema, embed=model, search_fields=["texts[*]"]) as store:
        store.execute([Put(HERE, str(n), {"texts": [f"text {3 * n + part}" for part in range(3)]}) for n in range(800)])
        wait_for_index(schema)
        with counted_uses() as uses:
            hits = store.search(query="text 2500", mode="semantic")
            exact = store.search(query="text 2500", mode="semantic", exact=True)
        assert uses
        assert len(set(keys(hits))) == 10
        scores = {hit.key: hit.score for hit in exact}
        assert len(scores.keys() & {hit.key for hit in hits}) >= 9
        assert all(scores.get(hit.key, hit.score) == hit.score for hit in hits)


@pytest.mark.parametrize(("metric", "size"), [("cosine", 1e25), ("dot", 1e6), ("l2", 1e6)])
def test_vectors_that_float16_cannot_hold_are_stored_and_found(metric: Any, size: float) -> None:
    model, schema = Model(1000), new_schema()
    model.rows *= np.float32(size)
    with holdall.open(postgres_url(), schema=schema, embed=model, metric=metric) as store:
        put(store, range(500))
        wait_for_index(schema)
        put(store, range(500, 600))
        best = model.nearest(550, range(600), metric, 1)
        assert keys(store.search(query="text 550", mode="semantic", limit=1)) == best


def test_more_than_2000_dimensions_have_an_index_of_float16() -> None:
    model, schema = Model(400, dims=2100), new_schema()
    with holdall.open(postgres_url(), schema=schema, embed=model) as store:
        put(store, range(300))
        wait_for_index(schema)
        with counted_uses() as uses:
            assert keys(store.search(query="text 350", mode="semantic"))[:1] == model.nearest(350, range(300))[:1]
            by_distance = store.with_embedder(model, metric="l2").search(query="text 350", mode="semantic")
        assert keys(by_distance) == model.nearest(350, range(300), "l2")
        assert len(uses) == 1, "there is no index for the distance, so it is exact"


# How it is built -----------------------------------------------------------------------------------------------------


def test_writers_do_not_wait_while_the_index_is_built() -> None:
    model, schema = Model(3000), new_schema()
    with holdall.open(postgres_url(), schema=schema, embed=model) as store:
        put(store, range(500))
        with old_transaction(schema):
            store.search(query="text 1", mode="semantic")
            wait_until(lambda: building(schema))
            writers = [threading.Thread(target=put, args=(store, range(500 + n, 900, 4))) for n in range(4)]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            store.put(HERE, "5", {"text": "text 2000"})
            store.delete(HERE, "6")
            assert building(schema), "the index was built while others wrote"
            assert keys(store.search(query="text 800", mode="semantic", limit=1)) == [800]
        wait_for_index(schema)
        with counted_uses() as uses:
            assert all(keys(store.search(query=f"text {n}", mode="semantic", limit=1)) == [n] for n in range(800, 900))
            assert keys(store.search(query="text 2000", mode="semantic", limit=1)) == [5]
            assert 6 not in keys(store.search(query="text 6", mode="semantic"))
        assert len(uses) == 102


def test_an_index_that_was_left_invalid_is_built_again() -> None:
    model, schema = Model(600), new_schema()
    with holdall.open(postgres_url(), schema=schema, embed=model) as store:
        put(store, range(500))
        with old_transaction(schema):
            store.search(query="text 1", mode="semantic")
            wait_until(lambda: building(schema) and indexes(schema))
            with psycopg.connect(postgres_url(), autocommit=True) as connection:
                for pid in building(schema):
                    connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
            wait_until(lambda: not building(schema))
            assert [is_valid for _, is_valid in indexes(schema)] == [False]
            assert keys(store.search(query="text 7", mode="semantic")) == model.nearest(7, range(500))
        wait_until(
            lambda: store.search(query="text 7", mode="semantic") and [valid for _, valid in indexes(schema)] == [True]
        )
        wait_for_index(schema)


def search_until_killed(url: str, schema: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[3]))
    use_small_threshold(setattr)
    with holdall.open(url, schema=schema, embed=Model(600)) as store:
        store.search(query="text 1", mode="semantic")
        report("searched")
        receive()


def test_the_server_completes_the_index_of_a_process_that_was_killed() -> None:
    model, schema = Model(600), new_schema()
    put_without_index(model, schema)
    with old_transaction(schema):
        process = start(search_until_killed, url=postgres_url(), schema=schema)
        assert process.receive() == "searched"
        wait_until(lambda: building(schema))
        process.kill()
    wait_for_index(schema)


def test_of_two_stores_only_one_builds() -> None:
    model, schema = Model(600), new_schema()
    with (
        holdall.open(postgres_url(), schema=schema, embed=model) as one,
        holdall.open(postgres_url(), schema=schema, embed=model, timeout=31) as other,
    ):
        put(one, range(500))
        with old_transaction(schema):
            one.search(query="text 1", mode="semantic")
            wait_until(lambda: building(schema))
            other.search(query="text 1", mode="semantic")
            time.sleep(0.5)
            assert len(building(schema)) == 1
        wait_for_index(schema)


def test_setup_has_the_index_of_a_store_that_has_vectors_built() -> None:
    model, schema = Model(600), new_schema()
    put_without_index(model, schema)
    with holdall.open(postgres_url(), schema=schema) as admin:
        admin.setup()
    wait_for_index(schema)


def test_a_role_without_ddl_rights_searches_exactly_until_another_runs_setup(caplog: pytest.LogCaptureFixture) -> None:
    model, schema = Model(600), new_schema()
    put_without_index(model, schema)
    role = f"user_of_{schema}"
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
        connection.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}")
    with holdall.open(
        postgres_url().replace("://postgres", f"://{role}", 1), schema=schema, embed=model, metric="l2"
    ) as store:
        assert keys(store.search(query="text 7", mode="semantic")) == model.nearest(7, range(500), "l2")
        wait_until(lambda: store.search(query="text 7", mode="semantic") and "may not build the index" in caplog.text)
        assert "_l2;" in caplog.text
        store.put(HERE, "x", {"text": "text 550"})
        assert store.search(query="text 550", mode="semantic", limit=1)[0].key == "x"
        with holdall.open(postgres_url(), schema=schema) as admin:
            admin.setup()
        wait_for_index(schema)
        assert "_l2" in indexes(schema)[0][0]
        with counted_uses() as uses:
            store.search(query="text 7", mode="semantic")
        assert len(uses) == 1


def test_nothing_is_built_through_a_pooler(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pooler gives the session to the next client, with the lock in it: nobody could build any more."""
    model, schema = Model(600), new_schema()
    put_without_index(model, schema)
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", -1)
    with holdall.open(postgres_url(), schema=schema, embed=model) as store:
        wait_until(lambda: store.search(query="text 7", mode="semantic") and "pass notify_url" in caplog.text)
        assert keys(store.search(query="text 7", mode="semantic")) == model.nearest(7, range(500))
    assert indexes(schema) == []
