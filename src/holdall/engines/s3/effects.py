"""Effects: what a transaction has changed in the cache, and how the effects of others are applied to it.

Triggers of the connection that writes note the key of each changed row of the tables that are shipped, whatever changed
it. Before the commit, `collect` reads the rows of these keys. `apply` brings the rows of a key into the state of an
effect. Everything else in the cache is derived from the shipped tables, and each machine maintains it by itself.

Some triggers of the schema change shipped tables. While effects are applied they must not run: what they changed is in
the effects, and the order of changes within a transaction is not. So they are moved from the file to the connection,
where they have a further condition. Other triggers maintain what is derived, and always run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from ...errors import SchemaTooNew
from ..sqlite.connection import Connection
from ..sqlite.dialect import NOTE_NUL_KEY, has_nul_key_in
from .objects import Effect, Floor, Rows, decode_floor, encode_effect


class Shipped(NamedTuple):
    """A table whose rows are the truth, so that they go to the bucket."""

    name: str
    key: tuple[str, ...]  # the columns by which effects name rows
    is_unique: bool = True  # a key has at most one row
    local: tuple[str, ...] = ()  # columns that each cache numbers by itself
    only: str = ""  # the one key that is shipped, if not all are


#: The name of the setting of history in the table `holdall_state`, and the trigger that keeps old rows.
HISTORY, _HISTORY_TRIGGER = "history", "holdall_kept"
#: The tables that are shipped. A new table of the schema belongs here, or to `DERIVED`; a test holds that.
SHIPPED = (
    Shipped("holdall_entries", ("ns", "key")),
    Shipped("holdall_chunks", ("body_id", "start")),
    Shipped("holdall_vectors", ("version",), is_unique=False, local=("id",)),
    Shipped("holdall_trees", ("id",)),
    Shipped("holdall_history", ("ended",)),
    Shipped("holdall_state", ("name",), only=HISTORY),
)
#: The tables that each cache makes from the others.
DERIVED = (
    "holdall_unindexed",
    "holdall_contents",
    "holdall_dead_contents",
    "holdall_state",
    "holdall_terms",
    "holdall_documents",
    "holdall_texts",
    "holdall_words",
    "holdall_forward",
    "holdall_lists",
    "holdall_learned",
    "holdall_learned_paths",
    "holdall_learned_values",
)
#: The engine's own tables: where the cache is in the log; the last floor, as number 0, and the records since then; and
#: the moved triggers.
SCHEMA = """
    CREATE TABLE IF NOT EXISTS holdall_bucket (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        store TEXT NOT NULL,
        seq INTEGER NOT NULL,
        t INTEGER NOT NULL,
        upto INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS holdall_log (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS holdall_moved_triggers (name TEXT PRIMARY KEY, sql TEXT NOT NULL) WITHOUT ROWID;
"""
OWN = ("holdall_bucket", "holdall_log", "holdall_moved_triggers", "holdall_schema")

#: The indexes that stay while a cache is loaded. In most stores they have few entries, and to make one at the end takes
#: a scan of all entries: all of them a fifth of the time of a load.
_OF_FEW_ENTRIES = frozenset(
    {
        "holdall_expiring",
        "holdall_tombstones",
        "holdall_files",
        "holdall_bodies",
        "holdall_shared",
        "holdall_large",
    }
)

_TRIGGER = re.compile(
    r"CREATE\s+TRIGGER\s+(?:IF\s+NOT\s+EXISTS\s+)?(?P<name>\w+)(?P<event>.*?\sON\s+)(?P<table>\w+)"
    r"(?:\s+FOR\s+EACH\s+ROW)?(?:\s+WHEN\s(?P<when>.*?))?\sBEGIN\s(?P<body>.*)",
    re.IGNORECASE | re.DOTALL,
)
_WRITES = re.compile(r"\b(?:INTO|FROM|UPDATE(?:\s+OR\s+\w+)?)\s+(\w+)", re.IGNORECASE)
_APPLYING = "EXISTS (SELECT 1 FROM holdall_applying)"


class Position(NamedTuple):
    """Where a cache is in the log."""

    seq: int = 0
    t: int = 0
    upto: int = 0  # the log up to here is not kept in the cache
    store: str = ""


def read_position(connection: Connection) -> Position:
    rows: list[Any] = connection.execute("SELECT seq, t, upto, store FROM holdall_bucket").fetchall()
    return Position(*rows[0]) if rows else Position()


def read_floor(connection: Connection) -> Floor:
    """Return the floor that a cache was built from, or the last one that it has compared its log with."""
    rows: list[Any] = connection.execute("SELECT data FROM holdall_log WHERE seq = 0").fetchall()
    return decode_floor(rows[0][0]) if rows else Floor()


def move_triggers(writer: Connection) -> None:
    """Move the triggers that change shipped tables out of the schema; `Effects` creates them for a connection."""
    shipped = {table.name for table in SHIPPED}
    triggers: list[Any] = writer.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, sql in triggers:
        found = _TRIGGER.fullmatch(sql)
        assert found is not None, sql
        if changed_tables(found["body"]) & shipped:
            writer.execute("INSERT OR REPLACE INTO holdall_moved_triggers VALUES (?, ?)", (name, sql))
            writer.execute(f'DROP TRIGGER "{name}"')


def changed_tables(body: str) -> set[str]:
    """Return the tables that the statements of a trigger change."""
    return {found[1] for one in body.split(";") if (found := _WRITES.search(one.strip())) is not None}


class Effects:
    """The effects of one connection that writes."""

    def __init__(self, writer: Connection) -> None:
        self._writer = writer
        self._columns: dict[str, list[str]] = {}
        existing = {name for (name,) in writer.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        self._tables = [table for table in SHIPPED if table.name in existing]
        for table in self._tables:
            named: list[Any] = writer.execute(f"PRAGMA table_info({table.name})").fetchall()
            others = [name for _, name, *_ in named if name not in table.key and name not in table.local]
            self._columns[table.name] = others
        self._install()

    def columns_of(self, effects: list[Effect]) -> dict[str, list[str]]:
        """Return the columns of the rows of effects, by table."""
        return {name: self._columns[name] for name in {effect.table for effect in effects}}

    def _uninstall(self) -> None:
        found: list[Any] = self._writer.execute("SELECT name FROM temp.sqlite_schema WHERE type = 'trigger'").fetchall()
        for (name,) in found:
            self._writer.execute(f'DROP TRIGGER temp."{name}"')

    def _install(self) -> None:
        writer = self._writer
        writer.execute("CREATE TEMP TABLE IF NOT EXISTS holdall_applying (is_applying INTEGER)")
        self._installed = self._read_moved()
        for sql in self._installed:
            found = _TRIGGER.fullmatch(sql)
            assert found is not None
            when = f"({found['when']}) AND " if found["when"] else ""
            writer.execute(
                f"CREATE TEMP TRIGGER {found['name']}{found['event']}main.{found['table']}"
                f" WHEN {when}NOT {_APPLYING} BEGIN {found['body']}"
            )
        for number, table in enumerate(self._tables):
            keys = ", ".join(table.key)
            noted = f"holdall_changed_{number}"
            # A key may be noted several times: the ON CONFLICT clause of a statement holds in its triggers too.
            writer.execute(f"CREATE TEMP TABLE IF NOT EXISTS {noted} ({keys})")
            is_other = " OR ".join(f"old.{name} IS NOT new.{name}" for name in table.key)
            is_shipped = {
                row: f"{row}.{table.key[0]} = '{table.only}' AND " if table.only else "" for row in ("old", "new")
            }
            insert = {row: f"INSERT INTO {noted} VALUES ({_of(row, table.key)});" for row in ("old", "new")}
            events = (
                ("INSERT", is_shipped["new"], insert["new"]),
                ("DELETE", is_shipped["old"], insert["old"]),
                ("UPDATE", is_shipped["new"], insert["new"]),
                ("UPDATE", f"{is_shipped['old']}({is_other}) AND ", insert["old"]),
            )
            for index, (event, when, statement) in enumerate(events):
                writer.execute(
                    f"CREATE TEMP TRIGGER {noted}_{index} AFTER {event} ON main.{table.name}"
                    f" WHEN {when}NOT {_APPLYING} BEGIN {statement} END"
                )

    def _read_moved(self) -> list[str]:
        return [str(sql) for (sql,) in self._writer.execute("SELECT sql FROM holdall_moved_triggers").fetchall()]

    def has_all_triggers(self) -> bool:
        """Whether this connection has the triggers that it must have. Another process may have moved some."""
        return self._installed == self._read_moved()

    def install_triggers(self) -> None:
        self._uninstall()
        self._install()

    def obey_history(self, start: Sequence[str], stop: Sequence[str]) -> None:
        """Start or stop keeping old rows, as the setting of the store is. The arguments are those of the dialect."""
        writer = self._writer
        self._uninstall()
        is_on = writer.execute("SELECT 1 FROM holdall_state WHERE name = ?", (HISTORY,)).fetchall()
        here = "SELECT 1 FROM sqlite_schema WHERE name = :name UNION ALL SELECT 1 FROM holdall_moved_triggers WHERE"
        has_trigger = writer.execute(f"{here} name = :name", {"name": _HISTORY_TRIGGER}).fetchall()
        if not is_on:
            writer.execute("DELETE FROM holdall_moved_triggers WHERE name = ?", (_HISTORY_TRIGGER,))
        for statement in start if is_on and not has_trigger else () if is_on else stop:
            writer.execute(statement)
        move_triggers(writer)
        self._install()

    def collect(self) -> list[Effect]:
        """Return the effects of the transaction so far, and forget which rows it changed."""
        effects: list[Effect] = []
        for number, table in enumerate(self._tables):
            noted, width = f"holdall_changed_{number}", len(table.key)
            if not self._writer.execute(f"SELECT 1 FROM {noted} LIMIT 1").fetchall():
                continue
            columns = self._columns[table.name]
            same = " AND ".join(f"noted.{name} = row.{name}" for name in table.key)
            order = "row.version" if "version" in columns else _of("noted", table.key)
            if not table.is_unique:
                order += ", row.rowid"
            rows = self._writer.execute(
                f"SELECT {_of('noted', table.key)}, row.{table.key[0]}, {_of('row', columns)}"
                f" FROM (SELECT DISTINCT * FROM {noted}) AS noted LEFT JOIN {table.name} AS row ON {same}"
                f" ORDER BY {order}"
            )
            if table.is_unique:
                effects += [
                    Effect(table.name, row[:width], [] if row[width] is None else [row[width + 1 :]]) for row in rows
                ]
            else:
                for key, group in groupby(rows, itemgetter(slice(width))):
                    present = [row[width + 1 :] for row in group if row[width] is not None]
                    effects.append(Effect(table.name, key, present))
            self._writer.execute(f"DELETE FROM {noted}")
        return effects

    def dump(self, reader: Connection) -> Iterator[bytes]:
        """Return everything that is shipped, in the snapshot of a reader, as lines of effects."""
        for table in self._tables:
            columns, width = self._columns[table.name], len(table.key)
            which = f"WHERE {table.key[0]} = '{table.only}'" if table.only else ""
            order = ["version"] if "version" in columns else [*table.key, *([] if table.is_unique else ["rowid"])]
            rows = reader.execute(
                f"SELECT {', '.join([*table.key, *columns])} FROM {table.name} {which} ORDER BY {', '.join(order)}"
            )
            for key, group in groupby(rows, itemgetter(slice(width))):
                yield encode_effect(Effect(table.name, key, [row[width:] for row in group]))

    @property
    def columns(self) -> dict[str, list[str]]:
        """The columns of the rows of each table, beside the key."""
        return self._columns

    def apply(self, effects: Iterable[Effect], columns: dict[str, list[str]]) -> None:
        """Bring rows into the state of effects, of which no two have the same key."""
        self._writer.execute("INSERT INTO holdall_applying VALUES (1)")
        by_table = _group_by_table(effects)
        self._check(by_table, columns)
        for table in self._tables:
            found = by_table.get(table.name, [])
            if found:
                self._apply_to(table, found, columns[table.name])
        self._writer.execute("DELETE FROM holdall_applying")

    def _apply_to(self, table: Shipped, effects: list[Effect], columns: list[str]) -> None:
        is_entries = table.name == "holdall_entries"
        here = _here(table)
        gone = [effect.key for effect in effects if not effect.rows or not is_entries]
        if gone:
            self._writer.executemany(f"DELETE FROM {table.name} WHERE {here}", gone)
        for width, group in groupby(_rows(effects), len):
            names, rows = [*table.key, *columns][:width], [*group]
            insert = f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {', '.join('?' * width)}"
            if is_entries and self._update_entries(names, rows):
                insert += f" WHERE NOT EXISTS (SELECT 1 FROM {table.name} WHERE {here})"
            self._writer.executemany(insert, rows)
        if is_entries:
            self._queue_files([*_rows(effects)], [*table.key, *columns])

    def _update_entries(self, names: list[str], rows: list[tuple[Any, ...]]) -> bool:
        """Update the entries that exist; return whether there may be any.

        So those triggers run which maintain what is derived from entries. Not with an upsert: its ON CONFLICT clause
        would hold in the triggers too. Some triggers note that an old version is gone, so the version is set only where
        it changes.
        """
        [[newest]] = self._writer.execute("SELECT coalesce(max(version), 0) FROM holdall_entries").fetchall()
        if not newest:
            return False
        version = names.index("version") + 1
        others = ", ".join(
            f"{name} = ?{number}" for number, name in enumerate(names, 1) if name not in ("ns", "key", "version")
        )
        update, here = "UPDATE holdall_entries SET", "WHERE ns = ?1 AND key = ?2 AND version"
        same = [row for row in rows if row[version - 1] <= newest]
        if same:
            self._writer.executemany(f"{update} {others} {here} = ?{version}", same)
        self._writer.executemany(f"{update} version = ?{version}, {others} {here} <> ?{version}", rows)
        return True

    def _queue_files(self, rows: Sequence[Sequence[Any]], columns: list[str]) -> None:
        """Have the contents of files indexed, and note values that SQLite may misread."""
        version, body, value = columns.index("version"), columns.index("body"), columns.index("value")
        files = [(row[version],) for row in rows if row[body] is not None]
        if files:
            self._writer.executemany("INSERT OR IGNORE INTO holdall_unindexed (version) VALUES (?)", files)
        values = [row[value] for row in rows if row[value] is not None]
        if "u0000" in "".join(values) and any(map(has_nul_key_in, values)):
            self._writer.execute(NOTE_NUL_KEY)

    def _check(self, by_table: Mapping[str, Sequence[Any]], columns: dict[str, list[str]]) -> None:
        """Refuse what a newer release has written, which this one would lose in part."""
        for name, found in by_table.items():
            known = self._columns.get(name)
            if known is None or [one for one in columns.get(name, ()) if one not in known]:
                raise SchemaTooNew(
                    f"a newer holdall has written to this store (columns {columns.get(name)} of {name!r}, in"
                    f" {len(found)} rows): upgrade holdall on this machine"
                )

    def load(self, pieces: Iterable[tuple[str, dict[str, list[str]], Rows]]) -> int:
        """Replace everything in the cache, without triggers; return how many rows there were.

        `pieces` are rows of segments, with the name of the segment and the columns of the rows. The newest segment is
        first: of each key, the state that comes first stays.
        """
        writer = self._writer
        self._uninstall()
        for name in (*(table.name for table in self._tables), *DERIVED, "holdall_log"):
            writer.execute(f"DELETE FROM {name}")
        writer.execute("PRAGMA user_version = 0")
        indexes: list[Any] = writer.execute(
            "SELECT name, sql FROM sqlite_schema"
            " WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = 'holdall_entries'"
        ).fetchall()
        late = [(name, sql) for name, sql in indexes if name not in _OF_FEW_ENTRIES]
        for name, _ in late:  # it takes half the time to make them at the end
            writer.execute(f'DROP INDEX "{name}"')
        count = 0
        absent: set[tuple[Any, ...]] = set()  # tables and keys
        newest = ""
        for segment, columns, (rows, gone) in pieces:
            newest = newest or segment
            count += len(rows)
            by_table = {name: [*found] for name, found in groupby(sorted(rows, key=itemgetter(0)), itemgetter(0))}
            self._check(by_table, columns)
            for table in self._tables:
                found = by_table.get(table.name, [])
                if absent:
                    width = 1 + len(table.key)
                    found = [row for row in found if (*row[:width],) not in absent]
                if found:
                    self._insert(table, found, columns[table.name], is_newest=segment == newest)
            absent.update(gone)
        for _, sql in late:
            writer.execute(sql)
        self._install()
        return count

    def _insert(self, table: Shipped, rows: list[list[Any]], columns: list[str], is_newest: bool) -> None:
        """Insert the rows of those keys that have none. The first value of a row is the name of the table."""
        if not table.is_unique and not is_newest:
            exists, width = f"SELECT 1 FROM {table.name} WHERE {_here(table)}", 1 + len(table.key)
            rows = [row for row in rows if not self._writer.execute(exists, row[1:width]).fetchall()]
        unless = f" ON CONFLICT ({', '.join(table.key)}) DO NOTHING" if table.is_unique and not is_newest else ""
        for width, group in groupby(rows, len):
            names, found = [*table.key, *columns][: width - 1], [*group]
            values = ", ".join(f"?{number}" for number in range(2, width + 1))
            self._writer.executemany(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values}){unless}", found)
            if table.name == "holdall_entries":
                self._queue_files(found, ["", *names])


def _group_by_table(effects: Iterable[Effect]) -> dict[str, list[Effect]]:
    found: dict[str, list[Effect]] = {}
    for effect in effects:
        found.setdefault(effect.table, []).append(effect)
    return found


def _here(table: Shipped) -> str:
    """Return the condition for the rows of a key."""
    return " AND ".join(f"{name} = ?{number}" for number, name in enumerate(table.key, 1))


def _rows(effects: list[Effect]) -> Iterator[tuple[Any, ...]]:
    for effect in effects:
        for row in effect.rows:
            yield (*effect.key, *row)


def _of(row: str, columns: Iterable[str]) -> str:
    return ", ".join(f"{row}.{name}" for name in columns)
