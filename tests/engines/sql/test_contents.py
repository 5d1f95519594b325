"""The index of what files contain, and when it is asked: it holds the files of the whole store."""

from __future__ import annotations

import contextlib
import itertools
import random
from pathlib import Path
from unittest import mock

import apsw
import psycopg
import pytest

import holdall
from holdall.engines.sql import files as sql_files
from holdall.engines.sql.dialect import Dialect
from holdall.engines.sqlite import dialect as sqlite_dialect
from holdall.engines.sqlite.dialect import SqliteDialect
from holdall.ops import Maintain
from support.servers import postgres_url


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_grep_of_few_small_files_reads_them_and_does_not_ask_the_index(tmp_path: Path, engine: str) -> None:
    path = str(tmp_path / "agent.db")
    is_sqlite = engine == "sqlite"
    texts = {
        f"/{folder}/{number}": f"line {number}"
        for folder, count in (("few", 5), ("many", 20))
        for number in range(count)
    }
    texts |= {f"/large/{number}": "large " * 100_000 for number in range(2)}  # more than 1 MB in all
    with (
        holdall.open(path) if is_sqlite else holdall.open(postgres_url(), schema="few_files") as store,
        mock.patch.object(sql_files, "_FEW_FILES", 5),
    ):
        files, other = store.files(), store.files(("other",))
        for name, text in texts.items():
            files.write(name, text)
        other.write("/a", "line 1")
        while store._engine_handle.engine.execute([Maintain()])[0]:
            pass
        # The index does not know of this change, so a grep that asks it does not find the new text.
        if is_sqlite:
            connection = apsw.Connection(path)
            connection.execute("UPDATE holdall_chunks SET data = CAST('needle' AS BLOB)")
            connection.close()
        else:
            with psycopg.connect(postgres_url(), autocommit=True) as admin:
                admin.execute("UPDATE few_files.chunks SET data = convert_to('needle', 'UTF8')")
        assert [match.path for match in files.grep("needle", "/few")] == [f"/few/{number}" for number in range(5)]
        assert [match.path for match in other.grep("needle")] == ["/a"]
        assert files.grep("needle", "/many") == []
        assert files.grep("needle", "/large") == []
        assert files.grep("needle") == []


def test_maintenance_merges_the_segments_of_many_small_changes(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    with holdall.open(path, durability="relaxed") as store, mock.patch.object(sql_files, "_FEW_FILES", 0):
        files, engine = store.files(), store._engine_handle.engine
        with mock.patch.object(SqliteDialect, "merge_contents", Dialect.merge_contents):
            for number in range(3):
                files.write(f"/{number}", f"needle {number}")
                assert not engine.execute([Maintain()])[0]
        assert _count_segments(path) == 3
        assert engine.execute([Maintain()])[0]  # it has merged: there may be more
        assert not engine.execute([Maintain()])[0]
        assert _count_segments(path) == 1
        assert [match.path for match in files.grep("needle")] == ["/0", "/1", "/2"]


def test_a_grep_looks_up_the_parts_of_a_text_that_the_fewest_files_have(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    with holdall.open(path, durability="relaxed") as store, mock.patch.object(sql_files, "_FEW_FILES", 0):
        files, engine = store.files(), store._engine_handle.engine
        files.write("/rare", "zzyzyyz")
        while engine.execute([Maintain()])[0]:
            pass
        with contextlib.closing(apsw.Connection(path)) as connection:
            numbers = "WITH RECURSIVE number(n) AS (SELECT 1000 UNION ALL SELECT n + 1 FROM number WHERE n < 16000)"
            common = "INSERT INTO holdall_contents (rowid, content) SELECT n, 'Common xyz' FROM number"
            connection.execute(f"{numbers} {common}")
            # The index does not know of this change, so a grep that looks up parts of "common" does not find the file.
            connection.execute("UPDATE holdall_chunks SET data = CAST('Common Zzyzyyz' AS BLOB)")
        assert [match.path for match in files.grep("Common Zzyzyyz")] == ["/rare"]
        assert files.grep("ommon Zzyzy") == []


def test_after_many_changes_all_segments_are_merged_into_one(tmp_path: Path) -> None:
    """Merging segments of one size would leave three here."""
    path, chance, numbers = str(tmp_path / "agent.db"), random.Random(1), itertools.count()
    words = ["".join(chance.choices("abcdefghijklmnop", k=5)) for _ in range(400)]
    with holdall.open(path, durability="relaxed", sweep_interval=None) as store:
        files, engine = store.files(), store._engine_handle.engine
        for count, size in ((200, 300), *[(8, 200)] * 5):
            for number in itertools.islice(numbers, count):
                files.write(f"/{number}", " ".join(chance.choices(words, k=size)))
            while engine.execute([Maintain()])[0]:
                pass
        assert _count_segments(path) == 1
        files.write("/small", "needle")
        while engine.execute([Maintain()])[0]:
            pass
        assert _count_segments(path) == 2  # the large one is not written again for one file


def test_what_no_file_contains_any_more_leaves_the_index_when_it_is_a_part_of_all(tmp_path: Path) -> None:
    """FTS5 reads its lists slowly from one deletion on, until it has merged."""
    path, chance = str(tmp_path / "agent.db"), random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnop", k=5)) for _ in range(400)]
    counts = "SELECT (SELECT count(*) FROM holdall_contents_docsize), (SELECT count(*) FROM holdall_dead_contents)"

    def count() -> tuple[int, int]:
        while engine.execute([Maintain()])[0]:
            pass
        with contextlib.closing(apsw.Connection(path)) as connection:
            [found] = connection.execute(counts)
        return found

    with (
        mock.patch.object(sql_files, "_FEW_FILES", 0),
        mock.patch.object(sqlite_dialect, "_DEAD_VERSIONS", 2),
        mock.patch.object(sqlite_dialect, "_REMOVED_AT_ONCE", 2),
        holdall.open(path, durability="relaxed", sweep_interval=None) as store,
    ):
        files, engine = store.files(), store._engine_handle.engine
        for number in range(48):
            files.write(f"/{number:02}", f"needle {number:02} {' '.join(chance.choices(words, k=300))}")
        assert count() == (48, 0)
        engine._sql._dialect._merged_size = 10**9  # otherwise all is merged soon, since all is new
        for number in range(4):
            files.write(f"/{number:02}", "thread")
        for text in ("written and overwritten", "before it is indexed", "needle 39"):
            files.write("/39", text)
        assert count() == (53, 5)
        assert [match.path for match in files.grep("needle 0")] == [f"/0{number}" for number in range(4, 10)]
        assert len(files.grep("needle")) == 44
        files.write("/04", "thread")
        assert count() == (48, 0)
        assert _count_segments(path) == 1
        with contextlib.closing(apsw.Connection(path)) as connection:
            # FTS5 numbers the pages of tombstones as segments of their own, from 65,536 on.
            [(pages,)] = connection.execute("SELECT count(*) FROM holdall_contents_data WHERE id >> 37 >= 65536")
        assert pages == 0
        assert [match.path for match in files.grep("needle 0")] == [f"/0{number}" for number in range(5, 10)]
        assert len(files.grep("thread")) == 5


def test_the_index_does_not_grow_by_edits_of_one_large_file(tmp_path: Path) -> None:
    path, chance = str(tmp_path / "agent.db"), random.Random(1)
    sizes: list[int] = []
    with (
        holdall.open(path, durability="relaxed", sweep_interval=None) as store,
        contextlib.closing(apsw.Connection(path)) as connection,
    ):
        files, engine = store.files(), store._engine_handle.engine
        text = "".join(map(chr, chance.choices(range(0x4E00, 0x9FFF), k=20_000)))
        for number in range(20):
            files.write("/large", f"{number}{text}")
            while engine.execute([Maintain()])[0]:
                pass
            sizes += [connection.execute("SELECT sum(length(block)) FROM holdall_contents_data").get]
        assert max(sizes) < 4 * sizes[0], sizes


def test_the_index_does_not_grow_while_files_are_always_waiting_for_it(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    counts: list[int] = []
    with (
        mock.patch.object(sqlite_dialect, "_DEAD_VERSIONS", 2),
        holdall.open(path, durability="relaxed", sweep_interval=None) as store,
        contextlib.closing(apsw.Connection(path)) as connection,
    ):
        files, engine = store.files(), store._engine_handle.engine
        for number in range(40):
            for name in "abcd":
                files.write(f"/{name}", f"needle {number}")
            assert engine.execute([Maintain(limit=8)])[0]  # four versions are gone, and four are new
            counts += [connection.execute("SELECT count(*) FROM holdall_contents_docsize").get]
        assert max(counts) <= 12, counts
        assert len(files.grep("needle 39")) == 4


def _count_segments(path: str) -> int:
    with contextlib.closing(apsw.Connection(path)) as connection:
        [(count,)] = connection.execute("SELECT count(DISTINCT segid) FROM holdall_contents_idx")
    return int(count)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_small_appended_pieces_are_merged_for_each_64_kb(tmp_path: Path, engine: str) -> None:
    """So a log takes little more than its bytes, and is read in few rows, before anybody has read it."""
    is_sqlite, parts = engine == "sqlite", [bytes([number]) * 1500 for number in range(100)]
    count = "SELECT count(*) FROM " + ("holdall_chunks" if is_sqlite else "appended.chunks")
    path = str(tmp_path / "agent.db")
    with (
        holdall.open(path, sweep_interval=None)
        if is_sqlite
        else holdall.open(postgres_url(), schema="appended", sweep_interval=None) as store
    ):
        files = store.files()
        for part in parts[:40]:
            files.append("/log", part)
        assert not store._engine_handle.engine.needs_maintenance  # type: ignore[attr-defined]  # of SQL engines
        for part in parts[40:]:
            files.append("/log", part)
        store.sweep()
        if is_sqlite:
            connection = apsw.Connection(path)
            [(rows,)] = connection.execute(count)
            connection.close()
        else:
            with psycopg.connect(postgres_url()) as admin:
                [(rows,)] = admin.execute(count)
        assert rows <= 4
        assert files.read("/log") == b"".join(parts)
        assert files.read_range("/log", 64_000, 70_000) == b"".join(parts)[64_000:70_000]
