"""Export and import of entries as rows of a table: JSONL, or Parquet with pyarrow (`holdall[parquet]`).

A row has what a put can set, and the times:

    namespace       a list of labels            key             text
    value           an object; in Parquet its JSON, because the fields of entries differ
    content         of a file, instead of a value: text, or with "encoding": "base64" bytes; in Parquet bytes
    created_at, updated_at, expires_at          times; null where there is none
    ttl             seconds or null             search_fields   a list of paths, null for all texts

A file that another tool wrote is read with a mapping of columns. Everything is read and written a page at a time.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, cast

from .. import ops
from ..errors import InvalidInput, MissingExtra, shown
from ..model import file_values, keys, namespace_text
from ..model.values import decode, to_datetime
from ..ops import Namespace, Record, RecordPage
from ..runtime.programs import Call, StoreProgram, Work
from .archive import open_local, replace_local
from .records import execute

if TYPE_CHECKING:
    from ..core.store import Store

Progress = Callable[[int, int], object] | None

_PAGE, _PAGE_BYTES = 500, 8 << 20  # rows and bytes in one transaction
_FIELDS = ("namespace", "key", "value", "content", "created_at", "updated_at", "expires_at", "ttl", "search_fields")
_TIMES = ("created_at", "updated_at", "expires_at")


def find_format(path: Any, format: str | None) -> str:
    """Return "jsonl" or "parquet": what is asked for, or by the file's name."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    chosen = format or (
        "parquet" if name.endswith(".parquet") else "jsonl" if name.endswith((".jsonl", ".ndjson")) else ""
    )
    if chosen not in ("jsonl", "parquet"):
        raise InvalidInput(
            f"format is 'jsonl' or 'parquet', not {shown(format or name)}; name a file x.jsonl or x.parquet"
        )
    return chosen


def _check_file(file: Any, method: str) -> None:
    if not hasattr(file, method) or isinstance(file, io.TextIOBase):
        raise InvalidInput(f"pass a path or a binary file, not {shown(file)}")


# Export --------------------------------------------------------------------------------------------------------------


def export_entries(
    store: Store, path: Any, prefix: Namespace, format: str | None, progress: Progress
) -> StoreProgram[int]:
    """Write a row for each entry below a prefix, in key order; return how many."""
    chosen = find_format(path, format)
    if isinstance(path, str | os.PathLike):
        with replace_local(path) as file:
            return (yield from _export(store, file, prefix, chosen, progress))
    _check_file(path, "write")
    return (yield from _export(store, path, prefix, chosen, progress))


def _export(store: Store, file: IO[bytes], prefix: Namespace, format: str, progress: Progress) -> StoreProgram[int]:
    base = store._resolve_prefix(prefix)
    writer = _ParquetWriter(file) if format == "parquet" else _JsonlWriter(file)
    total: int = (yield from execute(store, [ops.Count(base, hidden=True)]))[0] if progress is not None else 0
    after: tuple[Namespace, str] | None = None
    done = 0
    while True:
        page: RecordPage = (yield from execute(store, [ops.Records(base, after, _PAGE)]))[0]
        rows = [_to_row(record, len(store._scope)) for record in page.records]
        yield Work(writer.write, (rows,))
        done += len(rows)
        if progress is not None:
            yield Call(progress, (done, max(done, total)))
        if not page.more or not page.records:
            break
        after = page.records[-1].namespace, page.records[-1].key
    yield Work(writer.close, ())
    return done


def _to_row(record: Record, scope: int) -> dict[str, Any]:
    row: dict[str, Any] = {"namespace": list(record.namespace[scope:]), "key": record.key}
    if record.size is not None and record.content is None:
        raise InvalidInput(f"the file {record.key!r} is larger than 64 MiB and fits into no row; use a backup")
    assert record.value is not None
    if record.size is None:
        row["value"] = decode(record.value)
    elif record.value in file_values.WRITTEN:
        row["content"] = record.content
    else:
        row["value"] = file_values.to_item(
            record.value, record.content or b"", record.created, record.updated, record.appended, record.size
        )
    for name, moment in zip(_TIMES, (record.created, record.updated, record.expires), strict=True):
        row[name] = None if moment is None else to_datetime(moment)
    row["ttl"] = None if record.ttl is None else record.ttl / 1_000_000
    row["search_fields"] = None if record.search_fields is None else decode(record.search_fields)
    return row


class _JsonlWriter:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, rows: list[dict[str, Any]]) -> None:
        lines = [json.dumps(_to_json(row), ensure_ascii=False, separators=(",", ":")) for row in rows]
        self._file.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        self._file.flush()


def _to_json(row: dict[str, Any]) -> dict[str, Any]:
    """Make a row JSON: times as text, and a content as text or base64."""
    plain = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
    content: Any = plain.get("content")
    if content is not None:
        text = file_values.to_text(content)
        plain["content"] = base64.b64encode(content).decode() if text is None else text
        plain["encoding"] = "base64" if text is None else "utf-8"
    return {name: value for name, value in plain.items() if value is not None}


class _ParquetWriter:
    def __init__(self, file: IO[bytes]) -> None:
        pyarrow = _import_pyarrow()
        time = pyarrow.timestamp("us", tz="UTC")
        types = {
            "namespace": pyarrow.list_(pyarrow.string()),
            "key": pyarrow.string(),
            "value": pyarrow.string(),
            "content": pyarrow.binary(),
            **dict.fromkeys(_TIMES, time),
            "ttl": pyarrow.float64(),
            "search_fields": pyarrow.list_(pyarrow.string()),
        }
        self._pyarrow = pyarrow
        self._schema = pyarrow.schema(list(types.items()))
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema, write_page_checksum=True)

    def write(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            plain = [
                {**row, "value": json.dumps(row["value"], ensure_ascii=False)} if "value" in row else row
                for row in rows
            ]
            self._writer.write_table(self._pyarrow.Table.from_pylist(plain, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _import_pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtra("Parquet needs pyarrow: pip install 'holdall[parquet]'", name="pyarrow") from error
    return pyarrow


# Import --------------------------------------------------------------------------------------------------------------


def import_entries(
    store: Store,
    path: Any,
    namespace: Namespace | None,
    columns: Mapping[str, str | Sequence[str]] | None,
    format: str | None,
    progress: Progress,
) -> StoreProgram[int]:
    """Put an entry for each row; return how many."""
    chosen = find_format(path, format)
    if not isinstance(path, str | os.PathLike):
        _check_file(path, "read")
    mapping = _check_columns(columns)
    home = None if namespace is None else keys.check_namespace(namespace, empty=bool(store._scope))
    rows = _read_rows(path, chosen)
    done = 0
    while page := cast("list[tuple[int, Any]]", (yield Work(_take, (rows,)))):
        batch: list[Any] = []
        for number, row in page:
            try:
                made = _to_ops(row, home, mapping)
                for op in made:
                    store._prepare(op)  # only checks it here, so that an error names the row
                batch += made
            except (InvalidInput, ValueError, TypeError, OverflowError, OSError, RecursionError) as error:
                raise InvalidInput(f"row {number}: {error}. The first {done} rows are stored") from error
        yield from store._write_batch(batch, None)
        done += len(page)
        if progress is not None:
            yield Call(progress, (done, done))
    return done


def _check_columns(columns: Any) -> dict[str, Any]:
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not columns.keys() <= set(_FIELDS):
        raise InvalidInput(f"columns= maps some of {', '.join(_FIELDS)} to columns of the file, not {shown(columns)}")
    for name, column in columns.items():
        if not isinstance(column, str) and (name != "value" or isinstance(column, bytes)):
            raise InvalidInput(f"columns= maps {name!r} to the name of a column, not {shown(column)}")
    return dict(columns)


def _take(rows: Iterator[tuple[int, Any, int]]) -> list[tuple[int, Any]]:
    """Take the rows of one transaction."""
    page, room = [], _PAGE_BYTES
    for number, row, size in rows:
        page.append((number, row))
        room -= size
        if len(page) == _PAGE or room < 0:
            break
    return page


def _read_rows(source: Any, format: str) -> Iterator[tuple[int, Any, int]]:
    """Yield the rows of a file with their numbers and sizes. It is closed at the end if it was opened here."""
    read = _read_parquet if format == "parquet" else _read_jsonl
    if not isinstance(source, str | os.PathLike):
        yield from read(source)
        return
    with open_local(source) as file:
        yield from read(file)


def _read_jsonl(file: IO[bytes]) -> Iterator[tuple[int, Any, int]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield number, json.loads(line), len(line)
            except (ValueError, RecursionError) as error:  # nested too deeply
                raise InvalidInput(f"line {number} is not JSON: {error}") from error


def _read_parquet(file: IO[bytes]) -> Iterator[tuple[int, Any, int]]:
    pyarrow = _import_pyarrow()
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as table:
            for batch in table.iter_batches(batch_size=_PAGE):
                size = batch.nbytes // max(batch.num_rows, 1)  # on average
                step = max(1, _PAGE_BYTES // max(size, 1))
                for start in range(0, batch.num_rows, step):
                    for row in batch.slice(start, step).to_pylist():
                        number += 1
                        yield number, row, size
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # pyarrow's own errors have no number
            raise
        raise InvalidInput(f"not a Parquet file, or damaged after {number} rows: {error}") from error


def _to_ops(row: Any, home: Namespace | None, mapping: dict[str, Any]) -> list[Any]:
    """Make the ops that store a row."""
    if not isinstance(row, dict):
        raise InvalidInput(f"a row is an object, not {shown(row)}")
    found = {name: row.get(mapping.get(name, name)) for name in _FIELDS if name != "value"}
    namespace = home if home is not None and found["namespace"] is None else _to_namespace(found["namespace"])
    key = found["key"]
    if key is None:
        raise InvalidInput(f"it has no column {mapping.get('key', 'key')!r} for the key")
    if isinstance(key, bool) or not isinstance(key, str | int | float):
        raise InvalidInput(f"its key is a text or a number, not {shown(key)}")
    key = str(key)
    is_file = found["content"] is not None
    value = _to_file(found["content"], row.get("encoding")) if is_file else _to_value(row, mapping)
    fields = found["search_fields"]
    put = ops.Put(namespace, key, value, _to_seconds(found["ttl"]), search_fields=False if fields == [] else fields)
    times = [_to_time(name, found[name]) for name in _TIMES]
    check = [ops.CheckPath(namespace, keys.check_path(key))] if is_file else []
    return [*check, put, *([ops.Backdate(namespace, key, *times)] if any(times) else [])]


def _to_namespace(found: Any) -> Namespace:
    if isinstance(found, str):
        return namespace_text.decode(found)
    if found is None:
        raise InvalidInput("it has no namespace: name its column, or pass a namespace for all rows")
    if not isinstance(found, list):
        raise InvalidInput(f"its namespace is a text or a list of labels, not {shown(found)}")
    return tuple(found)


def _to_file(content: Any, encoding: Any) -> ops.File:
    if isinstance(content, str):
        content = base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
    if not isinstance(content, bytes):
        raise InvalidInput(f"its content is text or bytes, not {shown(content)}")
    return ops.File(file_values.NATIVE, content)


def _to_value(row: dict[str, Any], mapping: dict[str, Any]) -> Any:
    source = mapping.get("value", "value")
    if isinstance(source, str) and source in row and row[source] is not None:
        value = row[source]
        try:
            return json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"its value is an object or its JSON, not {shown(value)} ({error})") from error
    if isinstance(source, str) and "value" in mapping:
        raise InvalidInput(f"it has no column {source!r} for the value")
    used = {mapping.get(name, name) for name in _FIELDS if name != "value"} | {"value"}
    names = [name for name in row if name not in used] if isinstance(source, str) else list(source)
    return {name: _plain(row.get(name)) for name in names}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _to_seconds(ttl: Any) -> float | None:
    try:
        return None if ttl is None else float(ttl)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"ttl is a number of seconds, not {shown(ttl)}") from error


def _to_time(name: str, value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value if value is None or value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    raise InvalidInput(f"{name} is a time, not {shown(value)}")
