"""Checks: each kind of damage is found, and what can be repaired is."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import apsw
import psycopg
import pytest

import holdall
from holdall.engines.sql.dialect import Dialect
from holdall.engines.sqlite.dialect import SqliteDialect
from holdall.testing import embed
from support.stores import ENGINES, new_location, open_at


def fill(store: holdall.Store) -> None:
    for number in range(5):
        store.put(("notes",), f"k{number}", {"text": f"note {number}"})
    store.files().write("/a.txt", "hello " * 100)
    store.files().write("/b.txt", "b")
    store.files().write("/large.bin", b"\xff" * 300_000)


def build_indexes(store: holdall.Store) -> None:
    """Have all texts and contents indexed."""
    engine = store._engine_handle.engine
    while engine.execute([holdall.engine.IndexTexts()])[0][1]:
        pass
    while engine.execute([holdall.engine.Maintain()])[0]:
        pass


@pytest.mark.parametrize("engine", ENGINES)
def test_a_store_without_faults_passes(engine: str, tmp_path: Path) -> None:
    with open_at(new_location(engine, tmp_path), embed=embed, history=3600) as store:
        fill(store)
        store.delete(("notes",), "k0")
        store.put((".holdall.threads", "trip"), "hidden", {})
        checked = store.check()
        assert (checked.entries, checked.faults) == (8, [])
        assert asyncio.run(store.acheck(repair=True)).faults == []
        assert store.scoped(("notes",)).check().entries == 4


#: SQL of a damage, the kind of fault, a part of its message, and whether it can be repaired.
DAMAGE: dict[str, tuple[str, str, str, bool]] = {
    "value": ("UPDATE {entries} SET value = '{{broken' WHERE key = 'k1'", "entry", "'k1'", False),
    "orphan": ("INSERT INTO {chunks} (body_id, start, data) VALUES (99999, 0, {blob})", "contents", "no file", True),
    "cut": ("DELETE FROM {chunks} WHERE length(data) = 600", "contents", "'/a.txt'", False),
    "lost vectors": ("UPDATE {entries} SET vectors = NULL WHERE key = 'k2'", "vectors", "no entry", True),
    "no vectors": (
        "DELETE FROM {vectors} WHERE version = (SELECT version FROM {entries} WHERE key = 'k3')",
        "vectors",
        "'k3'",
        True,
    ),
    "a text too many": (
        "INSERT INTO {forward} SELECT version + 1000000, entry, length, data FROM {forward} LIMIT 1",
        "index",
        "belong to no entry",
        True,
    ),
    "a text too few": (
        "DELETE FROM {forward} WHERE version = (SELECT version FROM {entries} WHERE key = 'k3')",
        "index",
        "lacks 1 entries that have texts",
        True,
    ),
    "a word too few": ("DELETE FROM {words} WHERE term = 'note'", "index", "words cannot be read", True),
    "no terms": ("UPDATE {forward} SET data = {blob}", "index", "documents whose words cannot be read", True),
    "search fields": ("UPDATE {entries} SET fields = '{{' WHERE key = 'k1'", "entry", "'k1'", False),
    "author": ("UPDATE {entries} SET acting = '{{' WHERE key = 'k1'", "history", "not JSON", False),
    "old content": ("DELETE FROM {chunks} WHERE length(data) = 700", "history", "has 0 bytes instead of 700", False),
    "old value": ("UPDATE {history} SET value = '{{'", "history", "'/kept.txt'", False),
    "no word lists": ("DELETE FROM {lists}", "index", "cannot be read", True),
    "a file too few": (
        "DELETE FROM {indexed} WHERE {version} = (SELECT version FROM {entries} WHERE key = '/a.txt')",
        "index",
        "lacks 1 files",
        True,
    ),
}


TABLES = ("entries", "chunks", "vectors", "forward", "words", "lists", "history")


def damage_sqlite(at: dict[str, str], sql: str) -> None:
    names = {name: f"holdall_{name}" for name in TABLES}
    with contextlib.closing(apsw.Connection(at["url"])) as database:  # it has a newer SQLite than Python
        database.execute(sql.format(**names, blob="x'00'", indexed="holdall_contents", version="rowid"))


def damage_postgres(at: dict[str, str], sql: str) -> None:
    names = {name: f'"{at["schema"]}".{name}' for name in TABLES}
    further = {"indexed": f'"{at["schema"]}".contents', "version": "version", "blob": "'\\x00'::bytea"}
    with psycopg.connect(at["url"], autocommit=True) as connection:
        connection.execute(sql.format(**names, **further))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize(("engine", "damage"), [("sqlite", damage_sqlite), ("postgres", damage_postgres)])
def test_damage_is_found_and_repaired_if_it_can_be(
    engine: str, damage: Callable[[dict[str, str], str], None], name: str, tmp_path: Path
) -> None:
    at = new_location(engine, tmp_path)
    sql, kind, message, repairable = DAMAGE[name]
    with open_at(at, embed=embed, history=3600) as store:
        fill(store)
        for content in ("old " * 175, "new"):
            store.files().write("/kept.txt", content)
        build_indexes(store)
        assert store.check().faults == []
    damage(at, sql)
    with open_at(at, embed=embed) as store:
        faults = store.check().faults
        assert any(fault.kind == kind and message in fault.message for fault in faults), faults
        checked = store.check(repair=True)
        if not repairable:
            assert checked.faults
            return
        assert checked.faults == []
        assert {fault.kind for fault in checked.repaired} == {kind}
        assert store.check().faults == []
        if kind == "vectors":
            assert store.reindex() == 1
        assert len(store.search(("notes",), query="note")) == 5
        assert [match.path for match in store.files().grep("hello")] == ["/a.txt"]
        build_indexes(store)
        assert store.check().faults == []


def test_an_index_that_another_connection_has_merged_is_not_damaged(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    without_merging = mock.patch.object(SqliteDialect, "merge_contents", Dialect.merge_contents)
    with without_merging, holdall.open(path, durability="relaxed") as store:
        for number in range(3):
            store.files().write(f"/{number}", "hello")
            build_indexes(store)
        assert store.check().faults == []
        with contextlib.closing(apsw.Connection(path)) as database:
            database.execute("INSERT INTO holdall_contents (holdall_contents) VALUES ('optimize')")
        assert store.check().faults == []


def test_a_gram_that_postgresql_has_lost_is_found(tmp_path: Path) -> None:
    at = new_location("postgres", tmp_path)
    with open_at(at) as store:
        fill(store)
        build_indexes(store)
        assert store.check().faults == []
        with psycopg.connect(at["url"], autocommit=True) as connection:
            connection.execute(f"UPDATE \"{at['schema']}\".grams SET bits = '\\x00'::bytea")  # type: ignore[arg-type]
        assert [fault.kind for fault in store.check().faults] == ["index"]
        assert store.check(repair=True).faults == []
        assert [match.path for match in store.files().grep("hello")] == ["/a.txt"]


def test_a_damaged_database_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdall.open(path) as store:
        for number in range(500):
            store.put(("notes",), f"k{number}", {"text": "x" * 200})
    with sqlite3.connect(path) as database:
        [(page,)] = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'holdall_newest'")
        [(size,)] = database.execute("PRAGMA page_size")
    database.close()
    with path.open("r+b") as file:
        file.seek(page * size - 60)
        file.write(b"\xff" * 60)
    with holdall.open(path) as store:
        assert "database" in {fault.kind for fault in store.check().faults}


def test_an_entry_that_an_index_of_redis_has_lost_is_found(tmp_path: Path) -> None:
    import redis

    at = new_location("redis", tmp_path)
    with open_at(at) as store:
        fill(store)
        client: Any = redis.from_url(at["url"])
        [feed] = client.keys(f"{at['key_prefix']}:*:c")
        client.zremrangebyrank(feed, 0, 0)
        client.close()
        assert "index" in {fault.kind for fault in store.check().faults}


def ends_of(client: Any, start: str) -> list[bytes]:
    return sorted(client.keys(f"{start}*"), key=client.memory_usage)


#: What damages a Redis store, given a client and the beginning of all keys; the kind of fault, a part of its message,
#: and whether it can be repaired.
REDIS_DAMAGE: dict[str, tuple[Callable[[Any, str], Any], str, str, bool]] = {
    "order of change": (lambda redis, at: redis.zremrangebyrank(f"{at}:c", 0, 0), "index", "1 entries are", True),
    "order of keys": (lambda redis, at: redis.delete(f"{at}:p"), "index", "differ", False),
    "files": (lambda redis, at: redis.delete(f"{at}:f"), "index", "4 entries are", True),
    "namespaces": (lambda redis, at: redis.zremrangebyrank(f"{at}:s", 0, -1), "index", "are missing in", True),
    "one namespace": (lambda redis, at: redis.delete(f"{at}:n:notes\x01"), "index", "6 entries are", True),
    "expiring": (lambda redis, at: redis.delete(f"{at}:x"), "index", "'expires' in ('notes',)", True),
    "vectors": (lambda redis, at: redis.delete(f"{at}:v:notes\x01\x00k2"), "vectors", "'k2' in ('notes',)", True),
    "order of vectors": (lambda redis, at: redis.delete(ends_of(redis, f"{at}:w:")[0]), "vectors", "'k2'", True),
    "content": (lambda redis, at: redis.delete(ends_of(redis, f"{at}:b:")[-1]), "contents", "'/large.bin'", False),
    "orphan": (lambda redis, at: redis.set(f"{at}:b:none:0", b"x"), "contents", "1 pieces", True),
    "record": (lambda redis, at: redis.delete(f"{at}:e:notes\x01\x00k1"), "entry", "'k1' in ('notes',)", False),
    "head": (
        lambda redis, at: redis.hset(f"{at}:e:notes\x01\x00k1", "h", "broken"),
        "entry",
        "'k1' in ('notes',)",
        False,
    ),
    "old content": (
        lambda redis, at: [redis.delete(key) for key in ends_of(redis, f"{at}:b:") if redis.strlen(key) == 700],
        "history",
        "'/kept.txt'",
        False,
    ),
}


@pytest.mark.parametrize("name", REDIS_DAMAGE)
def test_keys_that_redis_has_lost_are_found_and_made_again_if_they_can_be(name: str, tmp_path: Path) -> None:
    import redis

    at = new_location("redis", tmp_path)
    damage, kind, message, repairable = REDIS_DAMAGE[name]
    with open_at(at, embed=embed, history=3600) as store:
        fill(store)
        store.put(("notes",), "expires", {}, ttl=1000)
        for content in ("old " * 175, "new"):
            store.files().write("/kept.txt", content)
        assert store.check().faults == []
        before = [entry.key for entry in store.search(limit=20)]
        client: Any = redis.from_url(at["url"])
        damage(client, f"{at['key_prefix']}:{{0}}")
        client.close()
        faults = store.check().faults
        assert any(fault.kind == kind and message in fault.message for fault in faults), faults
        checked = store.check(repair=True)
        if not repairable:
            assert checked.faults
            return
        assert checked.faults == []
        assert {fault.kind for fault in checked.repaired} == {kind}
        assert store.check().faults == []
        if kind == "vectors":
            assert store.reindex() > 0
        assert [entry.key for entry in store.search(limit=20)] == before
        assert len(store.search(("notes",), query="note")) == 5
        assert [info.path for info in store.files().ls()] == ["/a.txt", "/b.txt", "/kept.txt", "/large.bin"]


def test_contents_that_are_written_meanwhile_are_no_faults(tmp_path: Path) -> None:
    with open_at(new_location("redis", tmp_path), history=3600) as store:
        files = store.files()

        def write() -> None:
            for number in range(400):
                files.write(f"/{number % 3}", bytes([number % 256]) * 1000)
                files.move(f"/{number % 3}", f"/moved{number % 3}")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            while writer.is_alive():
                assert store.check(repair=True).faults == []
        finally:
            writer.join()
        assert store.check().faults == []


@pytest.mark.parametrize("engine", ENGINES)
def test_stats_have_sizes(engine: str, tmp_path: Path) -> None:
    with open_at(new_location(engine, tmp_path), embed=embed, history=3600) as store:
        fill(store)
        before = store.stats()
        assert (before.vectors, before.leases, before.history_bytes, before.oldest_tombstone) == (5, 0, {}, None)
        assert before.bytes is not None
        assert before.bytes > 600
        store.put(("notes",), "k0", {"text": "x" * 1000})
        store.put(("notes",), "k0", {"text": "y"})
        store.delete(("notes",), "k1")
        with store.lease("nightly", ttl=60):
            after = store.stats()
        assert (after.vectors, after.leases) == (4, 1)
        assert after.oldest_tombstone is not None
        assert after.history_bytes is not None
        assert after.history_bytes["notes"] > 1000
