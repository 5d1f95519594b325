"""Export and import of rows."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import holdall
from holdall.errors import FileNotFound, InvalidInput, NotADirectory
from holdall.testing import Clock
from holdall.testing.contract.records import fill

ROW = '{"namespace": ["a"], "key": "%s", "value": {}}'


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> holdall.Store:
    return holdall.open(tmp_path / "a.db", clock=clock, durability="relaxed")


@pytest.fixture
def target(tmp_path: Path, clock: Clock) -> holdall.Store:
    return holdall.open(tmp_path / "b.db", clock=clock, durability="relaxed")


@pytest.mark.parametrize("name", ["all.jsonl", "all.parquet"])
def test_an_export_imports_as_equal_entries(
    name: str, store: holdall.Store, target: holdall.Store, clock: Clock, tmp_path: Path
) -> None:
    fill(store, clock)
    assert store.export_entries(tmp_path / name) == store.count()
    assert target.import_entries(tmp_path / name) == store.count()
    different = holdall.compare(store, target).differences
    assert [one.key for one in different] == ["/item.txt"]  # a put cannot make a file that has grown since
    assert target.files().read("/folder/binary") == store.files().read("/folder/binary")
    assert target.get(("filesystem",), "/item.txt").value == store.get(("filesystem",), "/item.txt").value


@pytest.mark.parametrize("name", ["large.jsonl", "large.parquet"])
def test_rows_with_large_values_are_imported_a_few_at_a_time(name: str, store: holdall.Store, tmp_path: Path) -> None:
    for number in range(24):
        store.put(("large",), str(number), {"text": "x" * (1 << 20)})
    store.export_entries(tmp_path / name)
    batches: list[int] = []
    with holdall.open("memory:", on_op=lambda event: batches.append(len(event.ops))) as target:
        assert target.import_entries(tmp_path / name) == 24
        assert target.count() == 24
    assert max(batches) <= 18  # of 48: two for each row


def test_rows_of_another_tool_are_imported_with_a_mapping(target: holdall.Store, tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    first = {"id": 7, "title": "Tea", "body": "green", "made": "2026-01-02T03:04:05"}
    path.write_text(json.dumps(first) + '\n\n{"id": 8, "title": "Bread"}\n')
    columns = {"key": "id", "value": ["title", "body"], "created_at": "made", "updated_at": "made"}
    assert target.import_entries(path, namespace=("notes",), columns=columns) == 2
    entry = target.get(("notes",), "7")
    assert entry is not None
    assert entry.value == {"title": "Tea", "body": "green"}
    assert entry.created_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    target.import_entries(path, namespace=("all",), columns={"key": "title"})
    assert target.get(("all",), "Tea").value == {"id": 7, "body": "green", "made": "2026-01-02T03:04:05"}


def test_a_parquet_file_of_another_tool(target: holdall.Store, tmp_path: Path) -> None:
    rows = [
        {
            "user": "users/ada",
            "name": "likes",
            "doc": json.dumps({"food": "figs"}),
            "when": datetime(2026, 1, 2, tzinfo=UTC),
        }
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    columns = {"namespace": "user", "key": "name", "value": "doc", "updated_at": "when"}
    target.import_entries(tmp_path / "x.parquet", columns=columns)
    assert target.get(("users", "ada"), "likes").value == {"food": "figs"}


@pytest.mark.parametrize(
    ("line", "arguments", "reason"),
    [
        ("{", {}, "line 1 is not JSON"),
        ("[1]", {}, "a row is an object"),
        ('{"key": "k", "value": {}}', {}, "has no namespace"),
        ('{"namespace": ["a"], "value": {}}', {}, "no column 'key'"),
        ('{"namespace": ["a"], "key": "k"}', {"columns": {"value": "doc"}}, "no column 'doc'"),
        ('{"namespace": ["a"], "key": "k", "value": {}, "expires_at": []}', {}, "expires_at is a time"),
        ('{"namespace": ["a"], "key": "k", "value": {}, "expires_at": 1e20}', {}, "row 1: "),
        ('{"namespace": ["a"], "key": "k", "value": {}, "created_at": 1e18}', {}, "row 1: "),
        (f'{{"namespace": ["a"], "key": "k", "value": {{}}, "ttl": 1{"0" * 400}}}', {}, "row 1: "),
        (f'{{"namespace": ["a"], "key": "k", "value": "{"[" * 5000}"}}', {}, "row 1: "),
        ('{"a":' * 5000, {}, "line 1 is not JSON"),
        (f"{ROW % 'k'}\n{ROW % ''}", {}, "row 2: a key cannot be empty"),
        (f"{ROW % 'k'}\n{ROW % ('x' * 2000)}", {}, "row 2: a key has at most"),
        ('{"namespace": ["a"], "key": "k", "value": {"n": NaN}}', {}, "row 1: nan is not JSON"),
        ('{"namespace": ["a"], "key": [1], "value": {}}', {}, "row 1: its key is a text or a number"),
        ('{"namespace": {"a": 1}, "key": "k", "value": {}}', {}, "row 1: its namespace is a text or a list"),
        ('{"namespace": ["a"], "key": "k", "value": "tea"}', {}, "not 'tea'"),
        ('{"namespace": ["a"], "key": "k", "value": {}, "ttl": "soon"}', {}, "row 1: ttl is a number of seconds"),
        ('{"namespace": ["a"], "key": "/k", "content": 5}', {}, "row 1: its content is text or bytes"),
        ('{"namespace": ["a"], "key": "k", "content": "tea"}', {}, "row 1: a path is absolute"),
        ("", {"columns": {"nonsense": "x"}}, "columns= maps"),
        ("", {"format": "xml"}, "'jsonl' or 'parquet'"),
    ],
)
def test_a_row_that_cannot_be_stored_is_refused(
    target: holdall.Store, line: str, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        target.import_entries(io.BytesIO(line.encode()), **{"format": "jsonl", **arguments})
    assert target.count() == 0


def test_an_imported_file_is_not_below_another_file(target: holdall.Store) -> None:
    target.files(("a",)).write("/notes", "a file")
    with pytest.raises(NotADirectory):
        target.import_entries(io.BytesIO(b'{"namespace": ["a"], "key": "/notes/b", "content": "x"}'), format="jsonl")
    assert target.count() == 1


@pytest.mark.parametrize("given", [None, 5, b"rows.jsonl", io.StringIO()])
def test_what_is_no_file_is_refused(target: holdall.Store, given: Any) -> None:
    target.put(("a",), "k", {})
    for use in (target.import_entries, target.export_entries):
        with pytest.raises(InvalidInput, match="pass a path or a binary file"):
            use(given, format="jsonl")


def test_a_damaged_parquet_file_is_refused(store: holdall.Store, target: holdall.Store) -> None:
    for number in range(200):
        store.put(("notes",), f"k{number}", {"text": f"{number} " * 20})
    buffer = io.BytesIO()
    store.export_entries(buffer, format="parquet")
    whole = buffer.getvalue()
    chance = random.Random(5)
    for _ in range(50):  # not in the footer, which has no checksum
        damaged = bytearray(whole)
        damaged[chance.randrange(4, len(whole) // 2)] ^= 1 << chance.randrange(8)
        with pytest.raises(InvalidInput, match="not a Parquet file, or damaged"):
            target.import_entries(io.BytesIO(damaged), format="parquet")
    assert target.count() == 0


def test_files_that_are_missing_or_of_another_kind(target: holdall.Store, tmp_path: Path) -> None:
    for name in ("x.jsonl", "x.parquet"):
        with pytest.raises(FileNotFound):
            target.import_entries(tmp_path / name)
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(InvalidInput, match="not a Parquet file"):
        target.import_entries(tmp_path / "x.parquet")
    with pytest.raises(InvalidInput):
        target.export_entries(tmp_path / "x.xml")


def test_a_scope_exports_and_imports_its_own_names(store: holdall.Store, target: holdall.Store) -> None:
    store.put(("users", "ada"), "k", {"n": 1})
    store.put(("other",), "k", {"n": 2})
    buffer = io.BytesIO()
    assert store.scoped(("users",)).export_entries(buffer, format="jsonl") == 1
    assert json.loads(buffer.getvalue())["namespace"] == ["ada"]
    buffer.seek(0)
    target.scoped(("t",)).import_entries(buffer, format="jsonl")
    assert target.get(("t", "ada"), "k") is not None
