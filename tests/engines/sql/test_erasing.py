"""After an erasure, the text is in no file of SQLite and disk stores, and in no table file of PostgreSQL."""

from __future__ import annotations

import contextlib
import random
import string
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import apsw
import psycopg
import pytest

import holdall
from holdall.engines.sql.dialect import Dialect
from holdall.engines.sqlite.dialect import SqliteDialect
from holdall.ops import Maintain
from holdall.testing import embed
from support.servers import postgres_url

SECRET = "xq7sekrit"  # in values, contents, keys, paths and namespaces
NS = ("users", f"alice-{SECRET}")


def fill(store: holdall.Store) -> None:
    """Write the text everywhere that a store can have it."""
    store.put(("users", "bob"), "k", {"text": "stays " * 50})
    for number in range(30):
        store.put(NS, f"key-{SECRET}-{number}", {"text": f"{SECRET} {number} " * 20, "kind": SECRET})
    store.put(NS, f"key-{SECRET}-1", {"text": f"overwritten {SECRET}"})
    files = store.files(NS)
    files.write(f"/{SECRET}.md", f"{SECRET} in a file\n" * 5000)
    files.append(f"/{SECRET}.md", f"more {SECRET}\n")
    files.write("/item.md", f"{SECRET} again")
    files.delete("/item.md")
    store.delete(NS, f"key-{SECRET}-2")
    signed = store.acting(f"agent of {SECRET}")  # holdall's own entries have tombstones, too
    with signed.files(NS).open("/stream", "wb") as file:
        file.write(SECRET.encode() * 50_000)
    for place in (NS, (*NS, "below")):
        with signed.lease(f"work {SECRET}", 30, namespace=place):
            pass
    signed.lease(f"forgotten {SECRET}", 0.05, namespace=NS).acquire()
    with tempfile.TemporaryDirectory() as folder:  # how far a load was is noted, too
        store.backup(f"{folder}/bob", prefix=("users", "bob"))
        store.load(f"{folder}/bob", to=(*NS, "loaded"))
    assert len(store.search(query=SECRET, mode="lexical", limit=50)) >= 29
    assert len(store.search(filter={"kind": SECRET}, limit=50)) >= 27
    assert files.grep(SECRET)
    store.sweep()


def erase(store: holdall.Store, **options: bool) -> None:
    report = store.erase(NS, recursive=True, **options)
    assert report.entries == 32
    assert report.beyond
    assert store.get(("users", "bob"), "k") is not None
    assert store.search(query=SECRET, mode="lexical") == []


@pytest.mark.parametrize("scheme", ["sqlite", "disk"])
def test_the_text_is_in_no_file(tmp_path: Path, scheme: str) -> None:
    where = tmp_path / "store"
    store = holdall.open(f"{scheme}:///{where}", history=timedelta(days=1), embed=embed)
    fill(store)
    store.files(("users", "bob")).write("/file", "stays")
    while store._engine_handle.engine.execute([Maintain()])[0]:  # indexes the contents
        pass
    if scheme == "sqlite":  # as an administrator may do: the statistics have keys
        with contextlib.closing(apsw.Connection(str(where))) as database:
            database.execute("ANALYZE")
    assert any(SECRET.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    erase(store)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert left == []
    assert [path for path in tmp_path.rglob("*") if SECRET in path.name] == []
    if scheme == "sqlite":  # nor are its parts in the index of contents
        with contextlib.closing(apsw.Connection(str(where))) as database:
            database.execute("CREATE VIRTUAL TABLE temp.parts USING fts5vocab(main, holdall_contents, row)")
            assert database.execute("SELECT term FROM temp.parts WHERE term IN ('xq7', 'sta')").fetchall() == [("sta",)]
    store.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()] == []


def test_parts_of_the_text_leave_the_index_of_contents_while_another_process_merges_it(tmp_path: Path) -> None:
    """FTS5's command 'optimize' then only ends that merge, which has copied what is deleted meanwhile."""
    path, chance = str(tmp_path / "agent.db"), random.Random(1)
    with (
        holdall.open(path, durability="relaxed", sweep_interval=None) as store,
        contextlib.closing(apsw.Connection(path)) as other,
    ):
        engine: Any = store._engine_handle.engine

        def has_secret() -> bool:
            pages = other.execute("SELECT block FROM holdall_contents_data WHERE instr(block, CAST('#%&' AS BLOB))")
            return bool(pages.fetchall())

        store.files(NS).write("/secret", "a #%& b")
        for _ in range(2):
            for number in range(100):
                text = "".join(chance.choices(string.ascii_lowercase + " ", k=2000))
                store.files(("home",)).write(f"/{number}-{chance.random()}", text)
            with mock.patch.object(SqliteDialect, "merge_contents", Dialect.merge_contents):
                while engine.execute([Maintain()])[0]:
                    pass
        assert has_secret()
        forget = engine._sql.ranker.forget

        def merge_and_forget() -> None:
            """Begin to merge all segments, just before the index is scrubbed."""
            other.execute("INSERT INTO holdall_contents (holdall_contents, rank) VALUES ('merge', -20)")
            forget()

        with (
            mock.patch.object(engine._sql.ranker, "forget", merge_and_forget),
            mock.patch.object(SqliteDialect, "merge_contents", Dialect.merge_contents),
        ):
            store.erase(NS, recursive=True)
        assert not has_secret()


def test_the_text_is_in_no_table_file_of_postgresql() -> None:
    with psycopg.connect(postgres_url(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE erasing")
    url = postgres_url().replace("/postgres?", "/erasing?")
    store = holdall.open(url, history=timedelta(days=1), embed=embed)
    fill(store)
    with psycopg.connect(url, autocommit=True) as admin:  # as the server does by itself: the statistics have values
        for _ in range(2):
            admin.execute("ANALYZE")
        query = "SELECT * FROM pg_stats WHERE schemaname = 'holdall'"
        assert SECRET in str(admin.execute(query).fetchall())
    erase(store, compact=True)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CHECKPOINT")
        [(folder, number)] = admin.execute(
            "SELECT current_setting('data_directory'), oid::text FROM pg_database WHERE datname = current_database()"
        ).fetchall()
    files = list(Path(folder, "base", number).iterdir())
    assert len(files) > 50
    assert [path.name for path in files if SECRET.encode() in path.read_bytes()] == []
    store.close()
