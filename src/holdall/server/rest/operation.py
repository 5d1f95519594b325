"""What operators need: erasing, backups, tables, checks, health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from starlette.responses import Response, StreamingResponse

from ...errors import Corrupt, HoldallError, InvalidInput, SchemaTooNew, shown
from ..auth.routes import require_whole_store
from ..exchange import FLAG, TEXT, Call, Handler, answer, decode_json, takes
from ..problems import HttpError
from .documents import namespace_argument

_PIECE = 1 << 20  # bytes
_FORMAT = {"enum": ["jsonl", "parquet"]}


class Erase(msgspec.Struct, forbid_unknown_fields=True):
    """What to erase: an entry, or a namespace; with `recursive`, also those below it."""

    namespace: list[str]
    key: str | None = None
    recursive: bool = False
    compact: bool = False


async def erase(call: Call) -> Response:
    """Remove entries with every trace of them: old values, tombstones, what is left in files."""
    given = await call.json(Erase)
    call.access.require("write")
    if given.compact:  # it keeps all users of the store waiting
        require_whole_store(call)
    done = await call.store.aerase(tuple(given.namespace), given.key, recursive=given.recursive, compact=given.compact)
    return answer(done)


# Backups and tables --------------------------------------------------------------------------------------------------


@takes(namespace=TEXT)
async def back_up(call: Call) -> Response:
    """Download a backup of a namespace and of those below it, as they are at one moment."""
    with _temporary_folder() as kept:
        await call.store.abackup(kept.path / "backup", prefix=namespace_argument(call))
        return kept.send("backup", "holdall.backup")


@takes(to=TEXT, into=FLAG, replace=FLAG)
async def load(call: Call) -> Response:
    """Load a backup, which is the body. It is checked before anything is written."""
    with _temporary_folder() as kept:
        await call.save_body(kept.path / "backup")
        try:
            done = await call.store.aload(
                kept.path / "backup",
                to=_optional_namespace(call, "to"),
                into=call.flag("into"),
                replace=call.flag("replace"),
            )
        except (Corrupt, SchemaTooNew) as error:
            detail = str(error).replace(str(kept.path / "backup"), "the body")
            raise HttpError(422, detail, title=type(error).__name__) from error
        return answer(done)


@takes(namespace=TEXT, format=_FORMAT)
async def export_entries(call: Call) -> Response:
    """Download a table with a row for each entry, as lines of JSON or as Parquet."""
    kind = _table_format(call)
    with _temporary_folder() as kept:
        await call.store.aexport_entries(kept.path / "table", prefix=namespace_argument(call), format=kind)
        return kept.send("table", f"entries.{kind}")


class Written(msgspec.Struct):
    """How many entries were written."""

    entries: int


@takes(namespace=TEXT, format=_FORMAT, columns=TEXT)
async def import_entries(call: Call) -> Response:
    """Put an entry for each row of a table, which is the body. `columns`, as JSON, names the column of each part."""
    columns, kind = call.text("columns"), _table_format(call)
    with _temporary_folder() as kept:
        await call.save_body(kept.path / "table")
        if kind == "jsonl":
            await asyncio.to_thread(_check_lines, kept.path / "table", call.service.limits.body)
        number = await call.store.aimport_entries(
            kept.path / "table",
            namespace=_optional_namespace(call, "namespace"),
            columns=None if columns is None else decode_json(columns.encode(), dict[str, str | list[str]]),
            format=kind,
        )
        return answer(Written(number))


def _check_lines(path: Path, most: int) -> None:
    """Refuse a table with a row that is larger than a request may be: each row is read into memory."""
    with path.open("rb") as file:
        while line := file.readline(most + 1):
            if len(line) > most:
                raise HttpError(413, f"a row of a table has at most {most:,} bytes")


class Check(msgspec.Struct, forbid_unknown_fields=True):
    """A check. With `repair`, it repairs the faults that it can."""

    repair: bool = False


async def check(call: Call) -> Response:
    """Read every entry, and check that indexes, contents and vectors agree with it."""
    given = decode_json(await call.body() or b"{}", Check)
    return answer(await call.store.acheck(repair=given.repair))


class _TemporaryFolder:
    """A temporary folder, which is removed at the end of the block, or once its file is sent."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="holdall-")
        self.path = Path(self._folder.name)
        self.is_sent = False

    def send(self, file: str, name: str) -> Response:
        """Answer with a file as an attachment."""
        self.is_sent = True
        headers = {
            "Content-Length": str((self.path / file).stat().st_size),
            "Content-Disposition": f'attachment; filename="{name}"',
        }
        return StreamingResponse(self._pieces(self.path / file), 200, headers, "application/octet-stream")

    async def _pieces(self, path: Path) -> AsyncIterator[bytes]:
        try:
            with path.open("rb") as file:
                while piece := await asyncio.to_thread(file.read, _PIECE):
                    yield piece
        finally:
            self.remove()

    def remove(self) -> None:
        self._folder.cleanup()


@contextlib.contextmanager
def _temporary_folder() -> Iterator[_TemporaryFolder]:
    folder = _TemporaryFolder()
    try:
        yield folder
    finally:
        if not folder.is_sent:
            folder.remove()


def _optional_namespace(call: Call, name: str) -> Any:
    return None if call.text(name) is None else namespace_argument(call, name=name)


def _table_format(call: Call) -> Literal["jsonl", "parquet"]:
    given = call.text("format") or "jsonl"
    if given not in ("jsonl", "parquet"):
        raise InvalidInput(f"format is 'jsonl' or 'parquet', not {shown(given)}")
    return given  # type: ignore[return-value]  # one of the two


# Maintenance, health and metrics -------------------------------------------------------------------------------------


@takes(at=TEXT)
async def stats(call: Call) -> Response:
    """Describe what the store holds, and the state of its indexes."""
    return answer(await call.store.astats())


class Swept(msgspec.Struct):
    """How many expired entries were removed."""

    expired: int


async def sweep(call: Call) -> Response:
    """Remove expired entries now."""
    return answer(Swept(await call.store.asweep()))


async def reindex(call: Call) -> Response:
    """Make the vectors that are missing."""
    return answer(Written(await call.store.areindex()))


class Status(msgspec.Struct):
    """The state of the server."""

    status: str


async def is_alive(_call: Call) -> Response:
    """Answer that the process runs."""
    return answer(Status("ok"))


async def is_ready(call: Call) -> Response:
    """Answer whether the store can be read."""
    try:
        await call.service.store.acursor()
    except HoldallError as error:
        raise HttpError(503, f"the store cannot be read: {type(error).__name__}", title="Unavailable") from error
    return answer(Status("ready"))


async def get_metrics(call: Call) -> Response:
    """The metrics of all workers, as text for Prometheus."""
    require_whole_store(call)
    text = await call.service.metrics.render(call.service)
    return Response(text, 200, media_type="text/plain; version=0.0.4")


async def summarise_metrics(call: Call) -> Response:
    """The metrics of all workers as JSON: totals and latencies by operation. The difference of two is a rate."""
    require_whole_store(call)
    return answer(call.service.metrics.summarise(call.service))


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    "/v1/erase": {"POST": (erase, "erase")},
    "/v1/backup": {"GET": (back_up, "read")},
    "/v1/load": {"POST": (load, "write")},
    "/v1/export": {"GET": (export_entries, "read")},
    "/v1/import": {"POST": (import_entries, "write")},
    "/v1/check": {"POST": (check, "admin")},
    "/v1/stats": {"GET": (stats, "read")},
    "/v1/sweep": {"POST": (sweep, "write")},
    "/v1/reindex": {"POST": (reindex, "admin")},
    "/v1/metrics": {"GET": (summarise_metrics, "admin")},
    "/healthz": {"GET": (is_alive, None)},
    "/readyz": {"GET": (is_ready, None)},
    "/metrics": {"GET": (get_metrics, "admin")},
}
