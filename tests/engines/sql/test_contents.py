"""The index of what files contain, and when it is asked: it holds the files of the whole store."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import apsw
import psycopg
import pytest

import holdall
from holdall.engines.sql import files as sql_files
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
