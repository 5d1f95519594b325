"""Databases that LangGraph's own stores made, brought into ours: items, times and TTLs, whole or bit by bit."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.store.base import PutOp, get_text_at_path
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.base import VECTOR_MIGRATIONS

import holdall
from holdall.errors import InvalidInput, NotFound, Unavailable
from holdall.faces.langgraph import HoldallStore, Imported, Refused, aimport_from, import_from
from holdall.testing.embedder import embed
from support.langgraph_stores import opener
from support.servers import postgres_url
from support.stores import ENGINES

HOME = ("users", "ada")
_numbers = itertools.count()


@dataclass
class Source:
    """A database of LangGraph's, how its store is opened, and how one looks and reaches into it."""

    url: str
    open: Callable[[], AbstractContextManager[Any]]
    execute: Callable[..., list[Any]]

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgres")


@pytest.fixture(params=["SqliteStore", "PostgresStore"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    if request.param == "SqliteStore":
        path = str(tmp_path / "theirs.db")
        made = Source(path, lambda: SqliteStore.from_conn_string(path), lambda sql: _in_sqlite(path, sql))
    else:
        name = f"theirs_{next(_numbers)}"
        with psycopg.connect(postgres_url(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        url = postgres_url().replace("/postgres?", f"/{name}?")
        made = Source(url, lambda: PostgresStore.from_conn_string(url), lambda sql: _in_postgres(url, sql))
    with made.open() as theirs:
        theirs.setup()
    return made


def _in_sqlite(path: str, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(sql).fetchall()


def _in_postgres(url: str, sql: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdall.Store]:
    with opener(request.param, tmp_path)(sweep_interval=None) as opened:
        yield opened


@pytest.mark.parametrize("use_async", [False, True])
def test_items_times_and_ttls_are_brought(source: Source, store: holdall.Store, use_async: bool) -> None:
    odd = {"text": "no peanuts — ☕", "n": 1.5, "big": 2**60, "tags": [None, True, {}], "nested": {"a": {"b": []}}}
    with source.open() as theirs:
        theirs.put(HOME, "diet", odd)
        theirs.put(("users", "bob_1"), "a/b.c", {"text": "x"})
        theirs.put(HOME, "soon", {"n": 2}, ttl=10)
        theirs.put(HOME, "gone", {"n": 3}, ttl=10)
        source.execute("UPDATE store SET created_at = '2024-01-01 00:00:00', updated_at = '2025-06-01 12:30:00'")
        source.execute("UPDATE store SET updated_at = '2025-06-02 12:30:00' WHERE key = 'diet'")
        source.execute("UPDATE store SET expires_at = '2025-06-02 12:30:00' WHERE key = 'gone'")
        there = {(item.namespace, item.key): item for item in theirs.search((), limit=10, refresh_ttl=False)}
    outcome = asyncio.run(aimport_from(source.url, store)) if use_async else import_from(source.url, store)
    assert outcome == Imported(total=4, imported=3, expired=1)
    face = HoldallStore(store)
    for (namespace, key), item in there.items():
        if key != "gone":
            found = face.get(namespace, key, refresh_ttl=False)
            assert found is not None
            assert found.value == item.value
            assert found.created_at == datetime(2024, 1, 1, tzinfo=UTC)
            assert found.updated_at == datetime(2025, 6, 2 if key == "diet" else 1, 12, 30, tzinfo=UTC)
    assert list(face.get(HOME, "diet").value) == list(there[HOME, "diet"].value)  # type: ignore[union-attr]  # it is there
    assert next(item.key for item in face.search(())) == "diet", "changed last there, so newest here"

    soon = store.get(HOME, "soon")
    assert soon is not None
    assert soon.expires_at is not None
    assert timedelta(minutes=9) < soon.expires_at - datetime.now(UTC) <= timedelta(minutes=10)
    refreshed = store.get(HOME, "soon", refresh=True)
    assert refreshed is not None
    assert refreshed.expires_at is not None
    assert soon.expires_at < refreshed.expires_at <= datetime.now(UTC) + timedelta(minutes=10)


def test_an_import_that_was_cut_short_goes_on_where_it_ended(
    source: Source, store: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdall.faces.langgraph.importing._PAGE_SIZE", 10)
    with source.open() as theirs:
        theirs.batch([PutOp((*HOME, str(n % 5)), f"k{n}", {"n": n}) for n in range(35)])
    recorded: list[tuple[int, int]] = []

    def stop_after_two(done: int, total: int) -> None:
        recorded.append((done, total))
        if len(recorded) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_from(source.url, store, progress=stop_after_two)
    assert recorded == [(10, 35), (20, 35)]
    assert store.count() == 20
    before = {(entry.namespace, entry.key): entry.version for entry in store.scan()}
    assert import_from(source.url, store) == Imported(total=35, imported=15, present=20)
    after = {(entry.namespace, entry.key): entry.version for entry in store.scan()}
    assert len(after) == 35
    assert before.items() <= after.items(), "what was here was not written again"
    assert import_from(source.url, store) == Imported(total=35, present=35)


def test_the_newer_value_wins_on_either_side(source: Source, store: holdall.Store) -> None:
    with source.open() as theirs:
        theirs.put(HOME, "changed there", {"by": "them"})
        theirs.put(HOME, "changed here", {"by": "them"})
        source.execute("UPDATE store SET updated_at = '2025-01-01 00:00:00'")
        import_from(source.url, store)
        store.put(HOME, "changed here", {"by": "us"})
        theirs.put(HOME, "changed there", {"by": "them again"})
    assert import_from(source.url, store) == Imported(total=2, imported=1, present=1)
    assert {entry.key: entry.value["by"] for entry in store.scan()} == {
        "changed there": "them again",
        "changed here": "us",
    }


def test_a_write_during_an_import_is_not_lost(source: Source, store: holdall.Store) -> None:
    with source.open() as theirs:
        theirs.put(HOME, "k", {"text": "theirs"})
        theirs.put(HOME, "other", {"text": "theirs, too"})

    def embed_while_others_write(texts: list[str]) -> list[list[float]]:
        if "theirs" in texts:
            store.put(HOME, "k", {"text": "ours, and newer"})
        return embed(texts)

    outcome = import_from(source.url, store.with_embedder(embed_while_others_write))
    assert (outcome.imported, outcome.present) == (1, 1)
    assert store.get(HOME, "k").value == {"text": "ours, and newer"}
    assert store.get(HOME, "other").value == {"text": "theirs, too"}


def test_an_item_that_cannot_be_stored_is_reported_and_the_others_are_imported(
    source: Source, store: holdall.Store
) -> None:
    with source.open() as theirs:
        theirs.put(HOME, "good", {})
        theirs.put(HOME, "", {})
        theirs.put(("__holdall__",), "k", {})
    outcome = import_from(source.url, store)
    assert (outcome.total, outcome.imported) == (3, 1)
    assert {(refused.namespace, refused.key) for refused in outcome.refused} == {(HOME, ""), (("__holdall__",), "k")}
    assert all(isinstance(refused, Refused) and refused.why for refused in outcome.refused)


# Vectors -------------------------------------------------------------------------------------------------------------


class Model:
    """The test embedder, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: Any) -> list[list[float]]:
        self.asked += texts
        return embed(texts)


TEXTS = {f"k{n}": f"note {n} about {'tea' if n % 3 else 'peanuts'}" for n in range(12)}


def fill_with_vectors(source: Source, fields: list[str] | None) -> None:
    """Items with their vectors. This Python's SQLite may be unable to load what SqliteStore makes its own with."""
    values = {key: {"text": text, "tags": [text, f"tag {key}"]} for key, text in TEXTS.items()}
    paths = fields or ["$"]
    if source.is_postgres:
        index: Any = {"dims": 32, "embed": embed, "fields": paths}
        with PostgresStore.from_conn_string(source.url, index=index) as theirs:
            theirs.setup()
            theirs.batch([PutOp(HOME, key, value) for key, value in values.items()])
            theirs.put(HOME, "unindexed", {"text": "no vector"}, index=False)
        return
    with source.open() as theirs, closing(sqlite3.connect(source.url, isolation_level=None)) as connection:
        theirs.batch([PutOp(HOME, key, value) for key, value in values.items()])
        theirs.put(HOME, "unindexed", {"text": "no vector"}, index=False)
        connection.executescript(VECTOR_MIGRATIONS[0])
        for key, value in values.items():
            for path in paths:
                texts = get_text_at_path(value, path)
                for n, vector in enumerate(embed(texts)):
                    name = path if len(texts) == 1 else f"{path}.{n}"
                    row = (".".join(HOME), key, name, struct.pack("<32f", *vector))
                    connection.execute(
                        "INSERT INTO store_vectors (prefix, key, field_name, embedding) VALUES (?, ?, ?, ?)", row
                    )


@pytest.mark.parametrize("fields", [None, ["text"], ["text", "tags[*]"]])
def test_vectors_are_carried_where_the_model_is_the_same(
    source: Source, store: holdall.Store, fields: list[str] | None
) -> None:
    fill_with_vectors(source, fields)
    model = Model()
    face = HoldallStore(store, index={"dims": 32, "embed": model, "fields": fields})
    assert import_from(source.url, face) == Imported(total=13, imported=13, vectors=12)
    embedded = [text for text in model.asked if "model" not in text]
    assert len(embedded) <= 5 + 1, "some to compare with, and what had none"
    found = face.search(HOME, query="peanuts note about", limit=13)
    if fields == ["text"]:
        assert {item.key for item in found[:4]} == {"k0", "k3", "k6", "k9"}
    assert all(item.score is not None for item in found)
    assert import_from(source.url, face) == Imported(total=13, present=13)


def mirrored(texts: Any) -> list[list[float]]:
    return [vector[::-1] for vector in embed(texts)]


def small(texts: Any) -> list[list[float]]:
    return [[1.0, 2.0, 3.0] for _ in texts]


@pytest.mark.parametrize(("dims", "model"), [(32, mirrored), (3, small)])
def test_vectors_of_another_model_are_made_again(source: Source, store: holdall.Store, dims: int, model: Any) -> None:
    fill_with_vectors(source, ["text"])
    face = HoldallStore(store, index={"dims": dims, "embed": model, "fields": ["text"]})
    assert import_from(source.url, face) == Imported(total=13, imported=13)
    assert all(item.score is not None for item in face.search(HOME, query="note", limit=13))


def test_without_an_embedder_items_come_without_their_vectors(source: Source, store: holdall.Store) -> None:
    fill_with_vectors(source, ["text"])
    assert import_from(source.url, store) == Imported(total=13, imported=13)
    assert store.search(HOME, query="peanuts")[0].score is not None, "words find them all the same"


# Sources -------------------------------------------------------------------------------------------------------------


def test_their_database_is_left_as_it_is(source: Source, tmp_path: Path) -> None:
    with source.open() as theirs:
        theirs.put(HOME, "k", {"n": 1}, ttl=10)
    before = source.execute("SELECT * FROM store")
    import_from(source.url, "memory:")
    assert source.execute("SELECT * FROM store") == before


def test_a_table_from_before_there_were_ttls(source: Source) -> None:
    with source.open() as theirs:
        theirs.put(HOME, "k", {"n": 1})
    source.execute("DROP INDEX idx_store_expires_at")
    source.execute("ALTER TABLE store DROP COLUMN ttl_minutes")
    source.execute("ALTER TABLE store DROP COLUMN expires_at")
    with holdall.open("memory:") as store:
        assert import_from(source.url, HoldallStore(store)) == Imported(total=1, imported=1)
        assert store.get(HOME, "k").value == {"n": 1}  # type: ignore[union-attr]  # it is there


def test_a_url_is_opened_and_closed(source: Source, tmp_path: Path) -> None:
    with source.open() as theirs:
        theirs.put(HOME, "k", {"n": 1})
    assert import_from(source.url, tmp_path / "ours.db").imported == 1
    with holdall.open(tmp_path / "ours.db") as store:
        assert store.count() == 1


def test_a_source_that_is_not_a_database_of_langgraphs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nothing\.db"):
        import_from(tmp_path / "nothing.db", "memory:")
    (tmp_path / "text").write_text("not a database at all, but long enough to be taken for one" * 20)
    with pytest.raises(InvalidInput, match="SqliteStore"):
        import_from(tmp_path / "text", "memory:")
    with holdall.open(tmp_path / "ours.db") as store:
        store.put(HOME, "k", {})
        with pytest.raises(InvalidInput, match="SqliteStore"):
            import_from(tmp_path / "ours.db", "memory:")
    with pytest.raises(InvalidInput, match="PostgresStore"):
        import_from(postgres_url(), "memory:")
    with pytest.raises(Unavailable, match="cannot read the database"):
        import_from("postgresql://nobody@127.0.0.1:1/none", "memory:")
