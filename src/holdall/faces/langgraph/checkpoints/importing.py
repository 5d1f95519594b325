"""Importing the threads of LangGraph's own `SqliteSaver` or `PostgresSaver`.

Their tables are only read, with their own savers, a checkpoint at a time, the oldest first. A checkpoint that is here
already is left out, so an import that was interrupted continues when it is run again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple

from ....core.face_api import Call, StoreProgram, Work, check_function
from ....errors import InvalidInput, MissingExtra, Unavailable
from ...importing import Imported, Progress, open_read_only, translate_sqlite_errors
from ..conn_strings import is_postgres

#: The thread, the checkpoint namespace and the ID of a checkpoint.
Address: TypeAlias = tuple[str, str, str]
_LIST = (
    "SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints ORDER BY thread_id, checkpoint_ns, checkpoint_id"
)


class Target(NamedTuple):
    """The programs of the saver to import into."""

    find_present: Callable[[str, str], StoreProgram[Callable[[str], bool]]]
    put: Callable[..., StoreProgram[Any]]
    put_writes: Callable[..., StoreProgram[None]]


class Source:
    """The checkpoints of one of LangGraph's savers. Its methods block."""

    def __init__(self, source: str | os.PathLike[str], serde: Any) -> None:
        self._source = os.fspath(source)
        self._serde = serde
        self._connection: Any = None
        self._saver: Any = None

    def open(self) -> list[Address]:
        """Connect, and return all checkpoints in order."""
        with self._translate_errors():
            if is_postgres(self._source):
                import psycopg
                from langgraph.checkpoint.postgres import PostgresSaver
                from psycopg.rows import dict_row

                self._connection = psycopg.connect(self._source, autocommit=True, row_factory=dict_row)
                self._connection.read_only = True
                self._saver = PostgresSaver(self._connection, serde=self._serde)
                return [tuple(row.values()) for row in self._connection.execute(_LIST).fetchall()]
            from langgraph.checkpoint.sqlite import SqliteSaver

            self._connection = open_read_only(self._source)
            self._saver = SqliteSaver(self._connection, serde=self._serde)
            self._saver.is_setup = True  # it would create tables
            return list(self._connection.execute(_LIST))

    def read(self, address: Address) -> CheckpointTuple | None:
        thread_id, checkpoint_ns, checkpoint_id = address
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
        try:
            if not is_postgres(self._source):
                with translate_sqlite_errors(self._source, "LangGraph's SqliteSaver"):
                    yield
                return
            import psycopg

            try:
                yield
            except psycopg.OperationalError as error:
                raise Unavailable(f"cannot read the database to import from: {error}") from error
            except psycopg.Error as error:
                raise InvalidInput(f"the URL is not a database of LangGraph's PostgresSaver: {error}") from error
        except ModuleNotFoundError as error:
            package = "langgraph-checkpoint-postgres" if is_postgres(self._source) else "langgraph-checkpoint-sqlite"
            raise MissingExtra(f"importing these threads needs LangGraph's own saver: pip install {package}") from error


def import_threads(target: Target, source: Source, progress: Progress | None) -> StoreProgram[Imported]:
    """Import all checkpoints of a source with the programs of a saver."""
    check_function("progress", progress)
    with closing(source):
        addresses: list[Address] = yield Work(source.open, ())
        outcome = Imported(total=len(addresses))
        done = 0
        for (thread_id, checkpoint_ns), group in groupby(addresses, key=lambda address: address[:2]):
            present: Callable[[str], bool] = yield from target.find_present(thread_id, checkpoint_ns)
            for address in group:
                if present(address[2]):
                    outcome.present += 1
                elif (found := (yield Work(source.read, (address,)))) is not None:
                    yield from _import_checkpoint(target, found)
                    outcome.imported += 1
                done += 1
                if progress is not None:
                    yield Call(progress, (done, outcome.total))
        return outcome


def _import_checkpoint(target: Target, found: CheckpointTuple) -> StoreProgram[None]:
    """Store a checkpoint, after its writes: a checkpoint that is here has all of them."""
    config: Any = found.config
    # Errors, interrupts and the like do not count among the writes of a task, which are numbered.
    groups = groupby(found.pending_writes or (), key=lambda write: (write[0], write[1] in WRITES_IDX_MAP))
    for number, ((task_id, _), writes) in enumerate(groups):
        path = f"{number:06}"  # LangGraph's order, which its tuples have without the paths of the tasks
        yield from target.put_writes(config, [(channel, value) for _, channel, value in writes], task_id, path)
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
