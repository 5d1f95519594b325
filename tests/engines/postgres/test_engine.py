"""The PostgreSQL engine: the contract, the state machine, and what is PostgreSQL's own."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdall
from holdall.engines.postgres import engine
from holdall.engines.postgres.dialect import MIGRATIONS, PostgresDialect, hash_of, new_token
from holdall.engines.postgres.indexes import background
from holdall.errors import Conflict, InvalidInput, NotFound, SchemaTooNew, Unavailable
from holdall.model import filters
from holdall.ops import ABSENT, Append, Check, Delete, Get, Put
from holdall.testing import Clock, StoreContract, file_machine, store_machine
from holdall.testing.contract import filtering
from holdall.testing.embedder import embed
from support.extent import IS_SHORT
from support.postgres_schemas import empty_schema
from support.processes import receive, report, start
from support.servers import postgres_url
from support.small_thresholds import fewer

_numbers = itertools.count()


class TestPostgres(StoreContract):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        with empty_schema() as schema:
            yield schema

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        return holdall.open(postgres_url(), schema=url, **options)


def open_store(folder: Path, clock: Clock) -> holdall.Store:
    return holdall.open(
        postgres_url(), schema=folder.name, clock=clock, sweep_interval=None, filter_fields=["a", "a.b"]
    )


TestMachine = fewer(store_machine(open_store))
TestAsyncMachine = fewer(store_machine(open_store, use_async=True))
TestFileMachine = fewer(file_machine(open_store))
TestAsyncFileMachine = fewer(file_machine(open_store, use_async=True))


def test_writers_whose_random_is_seeded_alike_do_not_take_each_others_writes_for_their_own() -> None:
    with holdall.open(postgres_url(), schema="seeded") as store:
        for n in range(3):
            random.seed(1)
            assert store.put(("a",), "k", {"n": n}).value == {"n": n}
        assert store.get(("a",), "k").value == {"n": 2}  # type: ignore[union-attr]  # it is there


def test_a_forked_child_does_not_take_its_parents_writes_for_its_own() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b"%d" % new_token())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reader, 100)) != new_token()
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a batch"])
def test_an_item_put_over_a_file_or_vectors_leaves_nothing_of_them(alone: bool) -> None:
    schema = "put_over_alone" if alone else "put_over_in_a_batch"

    def put(store: holdall.Store, key: str, value: dict[str, Any]) -> holdall.Entry:
        if alone:
            return store.put(("filesystem",), key, value)
        entries: list[holdall.Entry] = store.execute([Put(("filesystem",), key, value), Put(("a",), "b", {})])
        return entries[0]

    with holdall.open(postgres_url(), schema=schema, embed=embed) as store:
        embedded = store.put(("filesystem",), "/b", {"text": "with vectors"})
    with holdall.open(postgres_url(), schema=schema) as store:
        files = store.files()
        written = files.write("/a", b"content")
        assert administer(f"SELECT count(*) FROM {schema}.chunks") == [(1,)]
        assert administer(f"SELECT count(*) > 0 FROM {schema}.vectors") == [(True,)]
        for path, version in (("/a", written.version), ("/b", embedded.version)):
            entry = put(store, path, {"now": "an item"})
            assert entry.value == {"now": "an item"}
            assert version is not None
            assert entry.version > version
            assert store.get(("filesystem",), path) == entry
            assert not files.exists(path)
        assert administer(f"SELECT count(*) FROM {schema}.chunks") == [(0,)]
        assert administer(f"SELECT count(*) FROM {schema}.vectors") == [(0,)]
        assert (
            administer(f"SELECT body, size, vectors, fields FROM {schema}.entries WHERE ns LIKE 'files%'")
            == [(None, None, None, None)] * 2
        )
        assert files.grep("content") == []


# Starting up ---------------------------------------------------------------------------------------------------------


def administer(*statements: str) -> list[tuple[Any, ...]]:
    """Run statements as the server's owner; the last one's rows."""
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_ten_processes_may_set_up_at_once() -> None:
    schemas = [f"at_once_{i}" for i in range(3)]
    processes = [start(set_up, url=postgres_url(), schemas=schemas, name=str(i)) for i in range(10)]
    for process in processes:
        assert process.receive() == "ready"
    begin = time.time() + 0.3
    for process in processes:
        process.send(begin)
    assert [process.finish() for process in processes] == [["done"]] * 10
    for schema in schemas:
        with holdall.open(postgres_url(), schema=schema) as store:
            assert store.count(("home",)) == 10
        assert administer(f"SELECT version FROM {schema}.schema_version") == [(len(MIGRATIONS),)]
        indexes = f"SELECT 1 FROM pg_indexes WHERE schemaname = '{schema}' AND indexname LIKE 'field%'"
        assert len(administer(indexes)) == 3


def set_up(url: str, schemas: list[str], name: str) -> None:
    holdall.open(url).close()
    report("ready")
    begin = receive()
    for number, schema in enumerate(schemas):
        time.sleep(max(0, begin + number * 0.5 - time.time()))
        with holdall.open(url, schema=schema, filter_fields=["kind", "user.id"]) as store:
            store.put(("home",), name, {"kind": "x"})
    report("done")


def field_indexes(schema: str) -> dict[str, str]:
    """The definitions of the declared fields' indexes, by name."""
    where = f"WHERE schemaname = '{schema}' AND indexname LIKE 'field%'"
    return dict(administer(f"SELECT indexname::text, indexdef FROM pg_indexes {where}"))


def test_fields_that_look_alike_have_an_index_each() -> None:
    """`a.b` nested, and a key that is called what its index was once called."""
    with holdall.open(postgres_url(), schema="alike", filter_fields=["a.b", "a.b_nested", "x" * 80, 'it\'s \\ "odd"']):
        pass
    definitions = field_indexes("alike")
    assert len(definitions) == len({text.partition("(")[2] for text in definitions.values()}) == 6


@pytest.mark.parametrize("field", ["kind", "user.id", "x" * 80, "it's", "back\\slash"])
def test_an_index_from_before_names_had_a_number_is_kept_and_serves(field: str) -> None:
    with holdall.open(postgres_url(), schema="older"):
        pass
    for path in {(field,), tuple(field.split("."))}:
        name = "field_" + ".".join(path) + ("_nested" if len(path) > 1 else "")
        name = name if len(name) < 64 else f"field_{hash_of(name)}"
        labels = ", ".join("'" + label.replace("'", "''") + "'" for label in path)
        administer(f'CREATE INDEX "{name}" ON older.entries (older.field(projection, ARRAY[{labels}]), ns)')
    before = field_indexes("older")
    with holdall.open(postgres_url(), schema="older", filter_fields=[field]):
        pass
    assert field_indexes("older") == before
    administer("DROP SCHEMA older CASCADE")


def test_a_batch_of_many_statements_is_one_change_in_order() -> None:
    with holdall.open(postgres_url(), schema="many") as store:
        puts = [Put(("home",), f"{n:04}", {"n": n}) for n in reversed(range(1001))]
        entries = store.execute([*puts, Put(("home",), "0007", {"again": True})])
        assert [entry.key for entry in entries] == [*(put.key for put in puts), "0007"]
        assert [entry.version for entry in entries] == sorted({entry.version for entry in entries})
        assert administer("SELECT count(*), count(DISTINCT xid), count(DISTINCT token) FROM many.entries") == [
            (1001, 1, 1)
        ]
        with pytest.raises(Conflict):
            store.execute([*(Put(("home",), put.key, {}) for put in puts), Put(("home",), "0008", {}, expect=ABSENT)])
        assert [entry.value for entry in store.scan()][7:9] == [{"again": True}, {"n": 8}]


def test_a_statement_that_the_session_has_forgotten_is_prepared_again() -> None:
    with holdall.open(postgres_url(), schema="forgotten", pool_max=1) as store:
        for n in range(4):
            store.put(("home",), "a", {"n": n})
            with pytest.raises(Conflict):  # rolled back, after which psycopg deallocates everything
                store.execute([Put(("home",), "b", {}), Put(("home",), "a", {}, expect=ABSENT)])
            assert store.get(("home",), "a").value == {"n": n}  # type: ignore[union-attr]  # it is there


@pytest.fixture
def app() -> Iterator[str]:
    """The URL for a role that may use what is granted to it and create nothing."""
    administer("DROP ROLE IF EXISTS app", "CREATE ROLE app LOGIN")
    yield postgres_url().replace("://postgres", "://app", 1)
    administer("DROP OWNED BY app", "DROP ROLE app")


GRANTS = (
    "GRANT USAGE ON SCHEMA {0} TO app",
    "GRANT ALL ON ALL TABLES IN SCHEMA {0} TO app",
    "GRANT ALL ON ALL SEQUENCES IN SCHEMA {0} TO app",
    "GRANT ALL ON ALL FUNCTIONS IN SCHEMA {0} TO app",
)


def test_a_role_without_ddl_rights_runs_on_a_prepared_schema(app: str) -> None:
    with holdall.open(postgres_url(), schema="prepared", filter_fields=["kind"]) as owner:
        owner.put(("home",), "a", {"kind": "x"})
    administer(*(grant.format("prepared") for grant in GRANTS))
    with holdall.open(app, schema="prepared", filter_fields=["kind"], ttl=60) as store:
        store.execute([Put(("home",), "b", {"kind": "y"}), Check(("home",), "c", ABSENT), Delete(("home",), "a")])
        assert [hit.key for hit in store.search(("home",), filter={"kind": "y"})] == ["b"]
        assert store.get(("home",), "b", refresh=True) is not None
        assert store.namespaces() == [("home",)]
        assert store.sweep() == 0
        assert store.delete_tree(("home",)) == 1


def test_a_role_without_ddl_rights_finds_neighbours_without_their_index(app: str) -> None:
    indexes = "SELECT indexname FROM pg_indexes WHERE schemaname = 'rights' AND indexname = 'entries_order'"
    with holdall.open(postgres_url(), schema="rights") as owner:
        for key, text in [("a", "hello"), ("b", "my cat"), ("c", "Fritz"), ("d", "bye")]:
            owner.put(("home",), key, {"text": text})
        administer(*(grant.format("rights") for grant in GRANTS))
        with psycopg.connect(postgres_url()) as connection, holdall.open(app, schema="rights") as store:
            found = store.search(("home",), query="cat", neighbours=0.3)
            assert {hit.key for hit in found} == {"a", "b", "c"}
            assert not connection.execute(indexes).fetchall()
            assert owner.search(("home",), query="cat", neighbours=0.3) == found
            assert connection.execute(indexes).fetchall(), "the owner may create it"


def test_a_role_without_ddl_rights_gets_an_error_that_asks_for_a_schema(app: str) -> None:
    store = holdall.open(app, schema="unprepared")
    with pytest.raises(Unavailable, match="run setup\\(\\) once with a role that may"):
        store.setup()
    with pytest.raises(Unavailable, match="run setup\\(\\) once with a role that may"):
        store.put(("home",), "a", {})
    with holdall.open(postgres_url(), schema="unprepared") as owner:
        owner.setup()
    with pytest.raises(Unavailable, match="unprepared"):
        store.put(("home",), "a", {})
    administer(*(grant.format("unprepared") for grant in GRANTS))
    store.put(("home",), "a", {})  # the schema exists now
    store.close()


def test_a_role_without_ddl_rights_gets_an_error_that_names_a_missing_index(app: str) -> None:
    with holdall.open(postgres_url(), schema="no_index") as owner:
        owner.setup()
    administer(*(grant.format("no_index") for grant in GRANTS))
    store = holdall.open(app, schema="no_index", filter_fields=["kind"])
    with pytest.raises(Unavailable, match="run setup\\(\\) once with a role that may"):
        store.put(("home",), "a", {})
    store.close()


def test_this_release_works_on_a_newer_schema_that_only_adds() -> None:
    with holdall.open(postgres_url(), schema="newer") as store:
        store.put(("home",), "a", {"n": 1})
    administer(
        "UPDATE newer.schema_version SET version = version + 1",
        "ALTER TABLE newer.entries ADD COLUMN later text",
        "CREATE TABLE newer.bodies (id bigint)",
    )
    with holdall.open(postgres_url(), schema="newer", filter_fields=["n"]) as store:
        store.execute([Put(("home",), "b", {"n": 2}), Put(("home",), "c", {"n": 3}), Get(("home",), "a")])
        assert sorted(hit.key for hit in store.search(("home",), filter={"n": {"$gt": 1}})) == ["b", "c"]
        assert store.delete(("home",), "c")
        assert len(list(store.scan())) == 2
        assert len(store._engine_handle.engine.execute([holdall.ops.Changes()])[0]) == 3
    assert administer("SELECT version FROM newer.schema_version") == [(len(MIGRATIONS) + 1,)]


def test_a_schema_that_needs_a_newer_release_is_refused() -> None:
    with holdall.open(postgres_url(), schema="too_new") as store:
        store.put(("home",), "a", {})
    administer("UPDATE too_new.schema_version SET version = 90, oldest = 90")
    store = holdall.open(postgres_url(), schema="too_new")
    with pytest.raises(SchemaTooNew, match="90"):
        store.put(("home",), "a", {"overwritten": True})
    store.close()
    assert administer("SELECT value FROM too_new.entries") == [("{}",)]


ODD_NAMES = [
    "Mixed Case",
    'double "quotes"',
    "single 'quotes'",
    "both '\"' and \\\"",
    "per%cent %s %(x)s",
    "colon:name ::text :now",
    "{schema} $1 ?",
    "VALUES ON CONFLICT RETURNING",
    "value expires version",
    "select",
    "dot.ted",
    "; DROP SCHEMA public; --",
    "новая схема 漢字 🎒",
    "x" * 63,
    "é" * 31,
]


@pytest.mark.parametrize("schema", ODD_NAMES)
def test_a_schema_may_have_any_name(schema: str) -> None:
    odd = ["plain", "dc:title", "it's", 'a "b"', "50%", "{x}", "é:now", schema]
    with holdall.open(postgres_url(), schema=schema, filter_fields=odd) as store:
        store.put(("home",), "a", dict.fromkeys(odd, "x"), ttl=60)
        store.execute([Put(("home",), "b", {}), Put(("home",), "c", {}), Check(("home",), "d", ABSENT)])
        store.execute([Put(("home",), "c", {}, expect=store.get(("home",), "c")), Delete(("home",), "b")])
        for field in odd:
            assert [hit.key for hit in store.search(("home",), filter={field: "x"})] == ["a"], field
            assert [hit.key for hit in store.search(("home",), filter={field: {"$gte": "w"}})] == ["a"], field
        assert store.get(("home",), "a", refresh=True) is not None
        page = store.search(("home",), limit=1)
        assert len(store.search(("home",), limit=1, cursor=page.next)) == 1
        assert store.namespaces(max_depth=1) == [("home",)]
        assert len(store._engine_handle.engine.execute([holdall.ops.Changes()])[0]) == 3
        assert store.delete_tree(("home",)) == 2
    with psycopg.connect(postgres_url()) as connection:
        found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).fetchall()
    assert found == [(1,)]


@pytest.mark.parametrize("schema", ["", "x" * 64, "é" * 32, "a\x00b", "\ud800", None, 5])
def test_what_cannot_name_a_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidInput, match="schema"):
        holdall.open(postgres_url(), schema=schema)


# Values --------------------------------------------------------------------------------------------------------------

AT_THE_EDGES: dict[str, Any] = {
    "nul": "a\x00b",
    "start of heading": "a\x01b",
    "nul alone": "\x00",
    "4300 digits": int("9" * 4300),
    "-4300 digits": -int("9" * 4300),
    "least": 5e-324,
    "most": 1.7976931348623157e308,
    "1e308": 1e308,
    "-0.0": -0.0,
    "10 KB": "ab\U0001f392" * 2500,
    "401 letters": "é" * 401,
    "400 letters": "\U0001f392" * 400,
    "deep": json.loads("[" * 50 + "]" * 50),
    "long list": list(range(3000)),
    "long dict": {f"key {i}": "x" * 30 for i in range(200)},
    "escaped": '\\u0000 "\\" \\\\u0000',
    "1 MB": "".join(random.Random(1).choices("abcdefgh \n", k=1_000_000)),
}


@pytest.mark.parametrize("indexed", [[], ["field", "field.inner"]], ids=["undeclared", "declared"])
def test_values_at_the_edges_come_back_and_are_found(indexed: list[str]) -> None:
    with holdall.open(postgres_url(), schema=f"edges_{len(indexed)}", filter_fields=indexed) as store:
        for key, value in AT_THE_EDGES.items():
            store.put(("one",), key, {"field": value, key + "\x00": [value]})
            store.put(("nested",), key, {"field": {"inner": value}})
        store.execute([Put(("many",), key, {"field": value}) for key, value in AT_THE_EDGES.items()])
        for key, value in AT_THE_EDGES.items():
            entry = store.get(("one",), key)
            assert entry is not None
            assert entry.value == {"field": value, key + "\x00": [value]}
            assert repr(entry.value["field"]) == repr(value)
            assert store.get(("many",), key).value == {"field": value}  # type: ignore[union-attr]  # it is there
            same = {other for other, found in AT_THE_EDGES.items() if type(found) is type(value) and found == value}
            for filter in ({"field": {"$eq": value}}, {"field": {"$in": [value]}}):
                assert {hit.key for hit in store.search(("one",), filter=filter, limit=50)} == same, key
            assert {hit.key for hit in store.search(("nested",), filter={"field.inner": {"$eq": value}})} == same, key
            if isinstance(value, str | int | float):
                order = {
                    other
                    for other, found in AT_THE_EDGES.items()
                    if isinstance(found, str) == isinstance(value, str)
                    and isinstance(found, str | int | float)
                    and found >= value
                }
                filter = {"field": {"$gte": value}}
                assert {hit.key for hit in store.search(("one",), filter=filter, limit=50)} == order, key


def test_a_declared_field_and_a_long_namespace_fit_together() -> None:
    """What an index row cannot hold is left out of it, and is no reason to refuse a value."""
    letters = random.Random(2)
    with holdall.open(postgres_url(), schema="long_rows", filter_fields=["field"]) as store:
        namespace = ("".join(chr(letters.randrange(0x1F300, 0x1F5FF)) for _ in range(255)),)
        value = {"field": "".join(chr(letters.randrange(0x1F300, 0x1F5FF)) for _ in range(400))}
        store.put(namespace, "a", value)
        assert [hit.value for hit in store.search(filter=value)] == [value]


@pytest.mark.parametrize("indexed", [[], ["a", "a.b", "c.d"]], ids=["undeclared", "declared"])
def test_filters_find_what_the_matcher_finds(indexed: list[str]) -> None:
    schema = f"fuzz_{len(indexed)}"
    with holdall.open(postgres_url(), schema=schema, filter_fields=indexed) as store:
        numbers = itertools.count()

        @settings(
            max_examples=100 if IS_SHORT else 300, deadline=None, suppress_health_check=list(HealthCheck), database=None
        )
        @given(stored=st.lists(filtering.values, min_size=1, max_size=5), filter=filtering.random_filters)
        def check(stored: list[dict[str, Any]], filter: dict[str, Any]) -> None:
            home = (str(next(numbers)),)
            store.execute([Put(home, str(i), value) for i, value in enumerate(stored)])
            parsed = filters.parse(filter)
            expected = {str(i) for i, value in enumerate(stored) if parsed is None or parsed.matches(value)}
            assert {hit.key for hit in store.search(home, filter=filter)} == expected
            assert store.count(home, filter=filter) == len(expected)

        check()


@pytest.mark.parametrize("filter", [{"kind": "rare"}, {"n": 77}, {"n": {"$gte": 19_990}}, {"undeclared": "u77"}])
def test_a_filter_is_answered_by_an_index(filter: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """At 20,000 rows: declared fields, and equality with a string in any field, once a search by it was slow."""
    with holdall.open(postgres_url(), schema="explained", filter_fields=["kind", "n"]) as store:
        if store.count() == 0:
            values = ({"kind": "rare" if n == 77 else "usual", "n": n, "undeclared": f"u{n}"} for n in range(20_000))
            while batch := list(itertools.islice(values, 2000)):
                store.execute([Put(("home", str(value["n"] % 20)), str(value["n"]), value) for value in batch])
            administer("ANALYZE explained.entries")
        with monkeypatch.context() as patched:
            patched.setattr(engine, "SLOW_FILTER", 0)
            expected = store.count(filter=filter)
        if "undeclared" in filter:
            wait_for_general_index("explained")
        plans = explained(store, filter)
        assert plans, "nothing was asked"
        for plan in plans:
            assert "Seq Scan on entries" not in plan, plan
            assert "field_" in plan or "entries_projection" in plan, plan
        assert len(store.search(filter=filter, limit=100)) == expected > 0


def wait_for_general_index(schema: str) -> None:
    until = time.monotonic() + 30
    while administer(_GENERAL_INDEX.format(schema)) != [(True,)]:
        assert time.monotonic() < until
        time.sleep(0.02)


_GENERAL_INDEX = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{}.entries_projection')"


def test_the_general_index_is_built_only_once_a_filter_was_slow_in_a_large_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "LEAST_ENTRIES", 100)
    schema = "general_index"
    with holdall.open(postgres_url(), schema=schema) as store:
        store.execute([Put(("home",), str(n), {"n": n}) for n in range(100)])
        monkeypatch.setattr(engine, "SLOW_FILTER", 0)
        store.search(filter={"n": 5})
        builder = store._engine_handle.engine._index_builder  # type: ignore[attr-defined]  # PostgreSQL's
        builder._thread.join()
        assert administer(_GENERAL_INDEX.format(schema)) == [], "100 entries are few"
        builder._not_before.clear()
        store.put(("home",), "100", {"n": 100})
        monkeypatch.setattr(engine, "SLOW_FILTER", 60)
        store.search(filter={"n": 5})
        monkeypatch.setattr(engine, "SLOW_FILTER", 0)
        store.search(("home",))
        builder._thread.join()
        assert administer(_GENERAL_INDEX.format(schema)) == [], "no search with a filter was slow"
        store.search(filter={"n": 5})
        wait_for_general_index(schema)
        store.execute([Put(("home",), str(n), {"n": -n}) for n in range(0, 100, 2)])
        assert [hit.key for hit in store.search(filter={"n": -6})] == ["6"]
        assert [hit.key for hit in store.search(filter={"n": 5})] == ["5"]
        assert store.count(filter={"n": 6}) == 0


def test_a_role_that_may_not_build_the_general_index_notes_it_and_setup_builds_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "LEAST_ENTRIES", 10)
    schema = "general_index_of_a_role"
    with holdall.open(postgres_url(), schema=schema) as store:
        store.execute([Put(("home",), str(n), {"n": n}) for n in range(20)])
    administer(
        f"CREATE ROLE {schema} LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO {schema}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {schema}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {schema}",
    )
    url = postgres_url().replace("://postgres", f"://{schema}", 1)
    with holdall.open(url, schema=schema) as store, monkeypatch.context() as patched:
        patched.setattr(engine, "SLOW_FILTER", 0)
        assert [hit.key for hit in store.search(filter={"n": 5})] == ["5"]
        store._engine_handle.engine._index_builder._thread.join()  # type: ignore[attr-defined]  # PostgreSQL's
    assert "read whole namespaces" in caplog.text
    assert administer(_GENERAL_INDEX.format(schema)) == []
    with holdall.open(postgres_url(), schema=schema) as store:
        store.setup()
        wait_for_general_index(schema)


def test_the_type_of_a_parameter_comes_from_its_value_and_not_from_its_name() -> None:
    dialect = PostgresDialect("types", (), server_clock=False)
    assert dialect.number_parameters("SELECT :ns, :limit, :ns") == (b"SELECT $1, $2, $1", ("ns", "limit"))
    with holdall.open(postgres_url(), schema="types") as store, psycopg.connect(postgres_url()) as given:
        connections: Any = store._engine_handle.engine._connections
        sql = "SELECT pg_typeof(:limit)::text, pg_typeof(:ns)::text, pg_typeof(:key::text[])::text"
        for connection in (connections._acquire(time.monotonic() + 10), given):
            for number in (1, 2**20, 2**40):
                statement = sql, {"limit": number, "ns": b"", "key": ["a", None]}
                assert connections._start(connection, statement).fetchall() == [("bigint", "bytea", "text[]")]
            connection.close()


def explained(store: holdall.Store, filter: dict[str, Any]) -> list[str]:
    """The plans of the statements of a search that name the filter's field."""
    connections: Any = store._engine_handle.engine._connections
    plans = []
    start = connections._start

    def explain_and_start(connection: Any, statement: Any, prepare: bool | None) -> Any:
        sql, params = statement
        if params and "projection" in sql:
            cursor = start(connection, (f"EXPLAIN {sql}", params), False)
            plans.append("\n".join(row[0] for row in cursor.fetchall()))
        return start(connection, statement, prepare)

    connections._start = explain_and_start
    try:
        store.search(filter=filter, limit=100)
    finally:
        del connections._start
    return plans


def test_who_loses_the_race_to_make_a_file_loses_nothing_else() -> None:
    home, writers = ("home",), 6
    with holdall.open(postgres_url(), schema="append_race") as store:
        for turn in range(25):
            barrier = threading.Barrier(writers)

            def write(writer: int, turn: int = turn, barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                store.execute([Put(home, f"{turn} {writer}", {}), Append(home, f"/{turn}", b"%d" % writer)])

            in_threads(write, range(writers))
            assert len(store.files(home).read(f"/{turn}")) == writers
        assert store.count(home) == 25 * (writers + 1)


def test_copies_that_are_deleted_at_once_leave_no_piece() -> None:
    with holdall.open(postgres_url(), schema="copies_race") as store:
        files = store.files()
        for _ in range(25):
            files.write("/a", b"content")
            files.copy("/a", "/b")
            in_threads(files.delete, ["/a", "/b"])
        with psycopg.connect(postgres_url()) as connection:
            assert connection.execute("SELECT count(*) FROM copies_race.chunks").fetchone() == (0,)


def in_threads(function: Callable[[Any], Any], arguments: Iterable[Any]) -> None:
    with ThreadPoolExecutor() as executor:
        list(executor.map(function, arguments))


def test_a_tree_that_moves_away_under_its_writers_takes_whole_files_along() -> None:
    with holdall.open(postgres_url(), schema="move_race") as store:
        files = store.files()
        writing = True

        def write(writer: int) -> None:
            for number in range(60):
                path = f"/a/{writer} {number}"
                files.write(path, b"1" * 50)
                files.append(path, b"2" * 50)
                files.write(path, b"3" * 77)

        def move(_: int) -> None:
            for number in itertools.count():
                if not writing:
                    return
                with suppress(NotFound):
                    files.move("/a", f"/{number}")

        with ThreadPoolExecutor() as executor:
            moving = executor.submit(move, 0)
            in_threads(write, range(4))
            writing = False
            moving.result()
        assert {info.path: len(files.read(info.path)) for info in files.walk()} == {
            info.path: info.size for info in files.walk()
        }
        pieces = "SELECT sum(length(data)) FROM move_race.chunks"
        with psycopg.connect(postgres_url()) as connection:
            assert connection.execute(pieces).fetchone() == (sum(info.size for info in files.walk()),)
