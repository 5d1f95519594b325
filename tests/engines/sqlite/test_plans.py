"""How SQLite is asked: through indexes where fields were declared, and with statements that it has prepared already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
from holdall.engines.sqlite import connection as sqlite_connection
from holdall.model import keys
from holdall.ops import Check, Get, Put

DECLARED = ["type", "user.id", "score"]


class Statements:
    """What every connection is asked, while the test runs."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.connections: list[apsw.Connection] = []
        self.planned: set[tuple[Any, ...]] = set()

    def watch(self, connection: apsw.Connection) -> None:
        self.connections.append(connection)
        connection.exec_trace = self.trace
        connection.authorizer = self.authorize

    def authorize(self, *what: Any) -> int:
        """Asked whenever a statement is planned, and never when it runs."""
        self.planned.add(what)
        return apsw.SQLITE_OK

    def trace(self, cursor: Any, sql: str, bindings: Any) -> bool:
        self.seen.append((sql, bindings))
        return True

    def of(self, function: Callable[[], Any]) -> list[tuple[str, Any]]:
        self.seen.clear()
        function()
        return [(sql, bindings) for sql, bindings in self.seen if "holdall_entries" in sql]


@pytest.fixture
def statements() -> Iterator[Statements]:
    statements = Statements()
    apsw.connection_hooks.append(statements.watch)
    yield statements
    apsw.connection_hooks.remove(statements.watch)


@pytest.fixture
def store(tmp_path: Path, statements: Statements) -> Iterator[holdall.Store]:
    with holdall.open(
        tmp_path / "agent.db", filter_fields=DECLARED, durability="relaxed", sweep_interval=None
    ) as store:
        values = [{"type": f"t{i % 20}", "user": {"id": i}, "score": i / 2, "other": i} for i in range(200)]
        store.execute([Put(("home", str(value["other"] % 10)), str(value["other"]), value) for value in values])
        yield store


def plans(store: holdall.Store, asked: list[tuple[str, Any]]) -> list[str]:
    """How SQLite goes about each statement, one text for each."""
    connection = apsw.Connection(store._engine_handle.engine._path)
    connection.create_scalar_function("holdall_after", keys.after, 2, deterministic=True)
    connection.create_aggregate_function("holdall_joined", sqlite_connection.concatenate_bytes, 1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    found = [
        "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings).fetchall())
        for sql, bindings in asked
    ]
    connection.close()
    return found


@pytest.mark.parametrize("where", [(), ("home",), ("home", "7")], ids=str)
@pytest.mark.parametrize(
    ("filter", "index"),
    [
        ({"type": "t7"}, "holdall_field_type"),
        ({"type": {"$in": ["t7", "t8"]}}, "holdall_field_type"),
        ({"user.id": 7}, "holdall_field_user.id"),
        ({"user": {"id": 7}}, "holdall_field_user.id"),
        ({"score": {"$gt": 97.0}}, "holdall_field_score"),
        ({"$and": [{"type": "t7"}, {"other": {"$gt": 3}}]}, "holdall_field_type"),
        ({"type": "t7", "other": 7}, "holdall_field_type"),
    ],
    ids=str,
)
def test_a_declared_field_is_found_through_its_index(
    store: holdall.Store, statements: Statements, filter: dict[str, Any], index: str, where: tuple[str, ...]
) -> None:
    asked = statements.of(lambda: store.search(where, filter=filter))
    found = plans(store, asked)
    assert any(index in plan for plan in found), found
    read = [plan for plan in found if "SCAN holdall_entries" in plan]
    assert not read, "some statement reads the whole table"


def test_neighbours_are_found_through_an_index_that_the_first_such_search_builds(
    store: holdall.Store, statements: Statements
) -> None:
    def indexes() -> list[Any]:
        connection = apsw.Connection(store._engine_handle.engine._path)
        found = connection.execute("SELECT name FROM sqlite_schema WHERE name = 'holdall_order'").fetchall()
        connection.close()
        return found

    store.search(("home",), query="t7")
    assert not indexes(), "until then, no put pays for it"
    found = plans(store, statements.of(lambda: store.search(("home",), query="t7", neighbours=0.3))[-4:])
    assert indexes()
    adjacent = [plan for plan in found if "SEARCH near" in plan]
    assert len(adjacent) == 1
    assert "holdall_order (ns=? AND created>? AND (created,key)<(?,?))" in adjacent[0]
    assert "holdall_order (ns=? AND (created,key)>(?,?) AND created<?)" in adjacent[0]


def test_neighbours_of_the_best_are_scored_by_their_own_terms_and_nothing_else_again(
    store: holdall.Store, statements: Statements
) -> None:
    texts = ["tea" if number % 3 == 1 else "tea with milk and sugar" for number in range(900)]
    store.execute([Put(("shop",), f"{number:03}", {"text": text}) for number, text in enumerate(texts)])
    store.search(query="tea", neighbours=0.3)  # which indexes the texts, and their order
    statements.of(lambda: store.search(query="tea", neighbours=0.3))
    read = [sql for sql, _ in statements.seen if "holdall_forward" in sql or "SELECT data FROM holdall_lists" in sql]
    assert len([sql for sql in read if "holdall_forward" in sql]) == 1
    assert len(read) <= 2, "the whole ranking was made again to find the scores of neighbours"


def test_an_undeclared_field_has_no_index(store: holdall.Store, statements: Statements) -> None:
    found = plans(store, statements.of(lambda: store.search(("home",), filter={"other": 7})))
    assert found and not any("holdall_field" in plan for plan in found)


@pytest.mark.parametrize(
    ("call", "index"),
    [
        (lambda store: store.get(("home", "7"), "7"), "(ns=? AND key=?)"),
        (lambda store: store.delete(("home", "7"), "7"), "(ns=? AND key=?)"),
        (lambda store: store.update(("home", "7"), "7", dict), "(ns=? AND key=?)"),
        (lambda store: next(iter(store.scan(("home", "7")))), "ns>?"),
        (lambda store: store.namespaces(max_depth=1), "ns>?"),
        (lambda store: store.search(("home", "7")), "holdall_newest (ns=? AND version<?)"),
        (lambda store: store.sweep(), "holdall_expiring"),
    ],
    ids=["get", "delete", "update", "scan", "namespaces", "search", "sweep"],
)
def test_what_is_common_goes_through_an_index(
    store: holdall.Store, statements: Statements, call: Callable[[holdall.Store], Any], index: str
) -> None:
    found = plans(store, statements.of(lambda: call(store)))
    assert any(index in plan for plan in found), found
    assert not any(step == "SCAN holdall_entries" for plan in found for step in plan.split("; ")), found


def test_statements_are_prepared_once(store: holdall.Store, statements: Statements) -> None:
    """Whatever differs from call to call is bound, so that the text is one that SQLite has prepared before."""

    def use(number: int) -> None:
        key, home = f"it's {number}", ("home", f"'{number}")
        entry = store.put(home, key, {"type": key, "user": {"id": number}})
        store.put(home, key, {"type": key}, expect=entry)
        store.update(home, key, lambda value: {**value, "n": number})
        store.get(home, key)
        store.execute([Get(home, key), Get(home, "other")])
        store.execute([Put(home, key, {}, ttl=number + 1), Check(home, key + "x", holdall.ABSENT)])
        store.search(("home",), filter={"type": key}, limit=number + 1)
        store.search(home, filter={"type": key, "user.id": {"$gt": number}, "other": {"$in": [number, key]}})
        store.count(home, filter={"other": key})
        store.namespaces(prefix=home)
        store.delete(home, key)
        asyncio.run(store.aput(home, key, {}))
        asyncio.run(store.aget(home, key))

    for number in range(3):
        use(number)
    texts = set()
    before = misses(statements)
    for number in range(3, 20):
        texts.add(frozenset(sql for sql, _ in statements.of(lambda number=number: use(number))))
    assert len(texts) == 1, "the same calls, with other values, are asked in other words"
    assert misses(statements) == before


def test_no_statement_is_planned_again_for_the_values_that_are_bound(
    store: holdall.Store, statements: Statements
) -> None:
    """SQLite does that where a range is bound, which takes several times as long as the look-up itself."""
    files = store.files(("home", "files"))

    def use(number: int) -> None:
        path = f"/d/{number}/file"
        files.write(path, "text")
        files.append(path, "more")
        files.read_range(path, number % 3, 6)
        files.exists(path)
        files.exists(f"/d/{number}")
        files.ls(f"/d/{number}")
        files.names("/d")
        list(files.walk("/d"))
        store.search(("home", str(number)), filter={"score": {"$gt": number}})
        list(store.scan(("home", str(number))))
        files.delete(path, recursive=True)

    use(0)
    statements.planned.clear()
    for number in range(1, 5):
        use(number)
    assert statements.planned == set()


def misses(statements: Statements) -> int:
    """How often SQLite had to prepare a statement again."""
    return sum(connection.cache_stats()["misses"] for connection in statements.connections)
