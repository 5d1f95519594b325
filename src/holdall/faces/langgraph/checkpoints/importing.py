"""Importing the threads of LangGraph's own `SqliteSaver` or `PostgresSaver`.

Their tables are only read, with their own savers, a checkpoint at a time, the oldest first; the thread with the newest
checkpoint comes last, so that it is listed first. A checkpoint that is here already with all its writes is left out. So
an import that was interrupted continues when it is run again, and a later one adds what their saver got meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple

from ....core.face_api import Call, StoreProgram, Work, check_function
from ....errors import InvalidInput, MissingExtra
from ...importing import Imported, Progress, Refused, open_read_only, translate_sqlite_errors
from ..conn_strings import is_postgres
from ..importing import connect_read_only, translate_postgres_errors

#: A checkpoint of the source: its thread, its checkpoint namespace, its ID, and how many writes it has.
_Row: TypeAlias = tuple[str, str, str, int]
_LIST = """
    SELECT thread_id, checkpoint_ns, checkpoint_id, (
        SELECT count(*) FROM {writes} AS write WHERE write.thread_id = checkpoints.thread_id
            AND write.checkpoint_ns = checkpoints.checkpoint_ns AND write.checkpoint_id = checkpoints.checkpoint_id
    ) AS writes
    FROM checkpoints ORDER BY thread_id, checkpoint_ns, checkpoint_id
"""


class Target(NamedTuple):
    """The programs of the saver to import into."""

    #: Raises `InvalidInput` for a thread ID that cannot be stored.
    check_thread: Callable[[str], object]
    #: Takes a thread and a checkpoint namespace, and returns a function that counts the writes of a checkpoint by its
    #: ID; None if the checkpoint is not here.
    find_present: Callable[[str, str], StoreProgram[Callable[[str], int | None]]]
    put: Callable[..., StoreProgram[Any]]
    put_writes: Callable[..., StoreProgram[None]]
    #: Sets when a thread was created, unless that is None, and when it was last changed.
    backdate: Callable[[str, datetime | None, datetime], StoreProgram[None]]


class Source:
    """The checkpoints of one of LangGraph's savers. Its methods block."""

    def __init__(self, source: str | os.PathLike[str], serde: Any) -> None:
        self._source = os.fspath(source)
        self._serde = serde
        self._connection: Any = None
        self._saver: Any = None

    def open(self) -> list[_Row]:
        """Connect, and return all checkpoints in order."""
        with self._translate_errors():
            if is_postgres(self._source):
                from langgraph.checkpoint.postgres import PostgresSaver

                self._connection = connect_read_only(self._source)
                self._saver = PostgresSaver(self._connection, serde=self._serde)
                return list(self._connection.execute(_LIST.format(writes="checkpoint_writes")))
            from langgraph.checkpoint.sqlite import SqliteSaver

            self._connection = open_read_only(self._source)
            self._saver = SqliteSaver(self._connection, serde=self._serde)
            self._saver.is_setup = True  # it would create tables
            columns = [column for _, column, *_ in self._connection.execute("PRAGMA table_info(writes)")]
            self._saver._has_task_path = "task_path" in columns  # which old versions do not have
            return list(self._connection.execute(_LIST.format(writes="writes")))

    def read(self, row: _Row) -> CheckpointTuple | None:
        thread_id, checkpoint_ns, checkpoint_id, _ = row
        with self._translate_errors():
            found: CheckpointTuple | None = self._saver.get_tuple(
                {
                    "configurable": {
                        "thread_id": thread_id,
                        "checkpoint_ns": checkpoint_ns,
                        "checkpoint_id": checkpoint_id,
                    }
                }
            )
            return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        package = "langgraph-checkpoint-postgres" if is_postgres(self._source) else "langgraph-checkpoint-sqlite"
        translating = (
            translate_postgres_errors("LangGraph's PostgresSaver")
            if is_postgres(self._source)
            else translate_sqlite_errors(self._source, "LangGraph's SqliteSaver")
        )
        try:
            with translating:
                yield
        except ModuleNotFoundError as error:
            raise MissingExtra(f"importing these threads needs LangGraph's own saver: pip install {package}") from error


def import_threads(target: Target, source: Source, progress: Progress | None) -> StoreProgram[Imported]:
    """Import all checkpoints of a source with the programs of a saver."""
    check_function("progress", progress)
    with closing(source):
        rows: list[_Row] = yield Work(source.open, ())
        newest: dict[str, str] = {}
        for thread_id, _, checkpoint_id, _ in rows:
            newest[thread_id] = max(checkpoint_id, newest.get(thread_id, ""))
        rows.sort(key=lambda row: (newest[row[0]], row[0]))
        outcome = Imported(total=len(rows))
        done = 0
        for (thread_id, checkpoint_ns), group in groupby(rows, key=lambda row: row[:2]):
            try:
                target.check_thread(thread_id)
            except InvalidInput as error:
                refused = [Refused((thread_id, checkpoint_ns), row[2], str(error)) for row in group]
                outcome.refused += refused
                done += len(refused)
                continue
            count_writes: Callable[[str], int | None] = yield from target.find_present(thread_id, checkpoint_ns)
            times: list[datetime | None] = []
            for row in group:
                present = count_writes(row[2])
                times.append(None)
                if present is not None and present >= row[3]:
                    outcome.present += 1
                elif (found := (yield Work(source.read, (row,)))) is not None:
                    yield from _import_writes(target, found)
                    if present is None:
                        yield from _import_checkpoint(target, found)
                        times[-1] = datetime.fromisoformat(found.checkpoint["ts"])
                    outcome.imported += 1
                done += 1
                if progress is not None:
                    yield Call(progress, (done, outcome.total))
            if not checkpoint_ns and times[-1] is not None:
                yield from target.backdate(thread_id, times[0], times[-1])
        return outcome


def _import_writes(target: Target, found: CheckpointTuple) -> StoreProgram[None]:
    # Errors, interrupts and the like do not count among the writes of a task, which are numbered.
    groups = groupby(found.pending_writes or (), key=lambda write: (write[0], write[1] in WRITES_IDX_MAP))
    for number, ((task_id, _), writes) in enumerate(groups):
        path = f"{number:06}"  # LangGraph's order, which its tuples have without the paths of the tasks
        yield from target.put_writes(found.config, [(channel, value) for _, channel, value in writes], task_id, path)


def _import_checkpoint(target: Target, found: CheckpointTuple) -> StoreProgram[None]:
    config: Any = found.config
    parent: Any = found.parent_config or {}
    before = {
        "configurable": {
            "thread_id": config["configurable"]["thread_id"],
            "checkpoint_ns": config["configurable"].get("checkpoint_ns", ""),
            "checkpoint_id": parent.get("configurable", {}).get("checkpoint_id"),
        }
    }
    versions = found.checkpoint["channel_versions"]
    yield from target.put(before, found.checkpoint, found.metadata, versions)
