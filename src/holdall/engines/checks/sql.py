"""Finds and repairs faults in the tables of an SQL engine: contents and vectors that do not agree with entries.

Faults come from a faulty disk, an edited file, or a bug. Each check is one query. Derived data, and data that belongs
to no entry, can be repaired without losing anything.
"""

from __future__ import annotations

from typing import Any

from ...model import keys
from ...ops import Fault
from ..sql.dialect import Dialect
from ..sql.statements import SqlProgram

_SHOWN = 5  # entries that a message names


class TableChecks:
    """The checks of one database."""

    def __init__(self, dialect: Dialect) -> None:
        self._integrity = dialect.integrity_check
        table, chunks, vectors, history = dialect.table, dialect.chunks, dialect.vectors, dialect.history
        used = (
            f"SELECT body FROM {table} WHERE body IS NOT NULL UNION SELECT body FROM {history} WHERE body IS NOT NULL"
        )
        self._orphans = f"{chunks} WHERE body_id NOT IN ({used})"
        self._lost_vectors = f"{vectors} WHERE version NOT IN (SELECT version FROM {table} WHERE vectors IS NOT NULL)"
        self._without_vectors = (
            f"value IS NOT NULL AND vectors IS NOT NULL"
            f" AND NOT EXISTS (SELECT 1 FROM {vectors} AS stored WHERE stored.version = {table}.version)"
        )
        is_reference = f" AND {dialect.is_reference}" if dialect.is_reference else ""
        length = f"SELECT sum({dialect.whole_length}) FROM {chunks} WHERE body_id = body"
        self._incomplete = f"value IS NOT NULL AND size > 0 AND coalesce(({length}), 0) <> size"
        if is_reference:  # the content is a plain file, which reading the entry checks
            self._incomplete += f" AND NOT EXISTS (SELECT 1 FROM {chunks} WHERE body_id = body{is_reference})"
        self._table = table

    def find(self) -> SqlProgram[list[Fault]]:
        """Return all faults."""
        faults: list[Fault] = []
        if self._integrity:
            *_, rows = yield list(self._integrity)
            faults += [Fault("database", str(text)) for (text,) in rows if text != "ok"]
        for what, where, message in (
            ("contents", self._orphans, "pieces of contents belong to no file"),
            ("vectors", self._lost_vectors, "vectors belong to no entry"),
        ):
            [[(count,)]] = yield [(f"SELECT count(*) FROM {where}", {})]
            if count:
                faults.append(Fault(what, f"{count} {message}", True))
        for what, where, message, repairable in (
            ("contents", self._incomplete, "files have not all their bytes", False),
            ("vectors", self._without_vectors, "entries lack the vectors that they should have", True),
        ):
            found = f"SELECT ns, key FROM {self._table} WHERE {where}"
            [[(count,)], some] = yield [
                (f"SELECT count(*) FROM ({found}) AS found", {}),
                (f"{found} ORDER BY ns, key LIMIT {_SHOWN}", {}),
            ]
            if count:
                names = ", ".join(_name(*row) for row in some)
                faults.append(Fault(what, f"{count} {message}: {names}{', …' if count > _SHOWN else ''}", repairable))
        return faults

    def repair(self) -> SqlProgram[int]:
        """Repair what can be; return how many rows."""
        clear = f"UPDATE {self._table} SET vectors = NULL WHERE {self._without_vectors} RETURNING version"
        replies: list[Any] = yield [
            (f"DELETE FROM {self._orphans} RETURNING body_id", {}),
            (f"DELETE FROM {self._lost_vectors} RETURNING version", {}),
            (clear, {}),
        ]
        return sum(len(rows) for rows in replies)


def _name(ns: str, key: str) -> str:
    return f"{key!r} in {keys.decode(ns)!r}"
