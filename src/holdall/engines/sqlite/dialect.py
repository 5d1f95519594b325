"""The SQL of SQLite: the schema, the dialect, and how SQLite reads the fields of a value.

The id of a row is its version, so the table itself is in the order of the feed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from ...errors import InvalidInput
from ...model import keys
from ...model.filters import check_field
from ...model.values import decode
from ...ops import File, Op, Put
from ..checks.sql import TableChecks
from ..history.sql import copy_row, is_kept
from ..learned.sqlite import MIGRATION as LEARNED_FIELDS
from ..sql.dialect import MOST_FOUND, ContentQuery, Dialect, choose_grams
from ..sql.feed import MARK_NAMESPACE
from ..sql.narrowing import Binder, Path, index_name, json_path
from ..sql.statements import ManyTimes, Rows, SqlProgram, Statement

#: Numbered, and additive only. A file with more migrations than this list is refused.
MIGRATIONS = (
    """
    CREATE TABLE holdall_entries (
        version INTEGER PRIMARY KEY,
        ns TEXT NOT NULL,
        key TEXT NOT NULL,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        expires INTEGER,
        ttl INTEGER,
        kind TEXT,
        body INTEGER,
        size INTEGER,
        appended INTEGER,
        shared INTEGER,
        fields TEXT,
        vectors INTEGER,
        value TEXT,
        UNIQUE (ns, key)
    );
    CREATE INDEX holdall_newest ON holdall_entries (ns, version, expires) WHERE value IS NOT NULL;
    CREATE INDEX holdall_expiring ON holdall_entries (expires) WHERE expires IS NOT NULL;
    CREATE INDEX holdall_tombstones ON holdall_entries (version) WHERE value IS NULL;
    CREATE INDEX holdall_files ON holdall_entries (ns, key) WHERE body IS NOT NULL;
    CREATE INDEX holdall_shared ON holdall_entries (body) WHERE shared IS NOT NULL;
    CREATE TABLE holdall_chunks (
        body_id INTEGER NOT NULL,
        start INTEGER NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (body_id, start)
    );
    CREATE INDEX holdall_large ON holdall_entries (ns) WHERE size > 1048576;
    CREATE TABLE holdall_unindexed (version INTEGER PRIMARY KEY, gone INTEGER);
    CREATE VIRTUAL TABLE holdall_contents USING fts5(
        content, tokenize = 'trigram', content = '', contentless_delete = 1, detail = none
    );
    CREATE TRIGGER holdall_changed AFTER UPDATE OF version ON holdall_entries
    WHEN old.body IS NOT NULL OR new.body IS NOT NULL
    BEGIN
        INSERT INTO holdall_unindexed SELECT old.version, 1 WHERE old.body IS NOT NULL
            ON CONFLICT (version) DO UPDATE SET gone = 1;
        INSERT OR IGNORE INTO holdall_unindexed SELECT new.version, NULL WHERE new.body IS NOT NULL;
    END;
    CREATE TRIGGER holdall_unused AFTER UPDATE OF body ON holdall_entries
    WHEN old.body IS NOT NULL AND old.body IS NOT new.body
    BEGIN
        DELETE FROM holdall_chunks WHERE body_id = old.body AND NOT EXISTS (
            SELECT 1 FROM holdall_entries WHERE shared IS NOT NULL AND body = old.body
        );
    END;
    CREATE TABLE holdall_state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE holdall_terms (
        part INTEGER NOT NULL,
        term TEXT NOT NULL,
        documents BLOB NOT NULL,
        times BLOB NOT NULL,
        PRIMARY KEY (part, term)
    ) WITHOUT ROWID;
    CREATE TABLE holdall_documents (
        part INTEGER PRIMARY KEY,
        versions BLOB NOT NULL,
        lengths BLOB NOT NULL,
        gone BLOB NOT NULL
    );
    CREATE TABLE holdall_texts (
        ns TEXT NOT NULL,
        key TEXT NOT NULL,
        document INTEGER NOT NULL,
        PRIMARY KEY (ns, key)
    ) WITHOUT ROWID;
    CREATE TABLE holdall_vectors (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        version INTEGER NOT NULL,
        model INTEGER NOT NULL,
        data BLOB NOT NULL
    );
    CREATE INDEX holdall_vectors_of ON holdall_vectors (version);
    CREATE TRIGGER holdall_unembedded AFTER UPDATE OF version ON holdall_entries WHEN old.vectors IS NOT NULL
    BEGIN
        DELETE FROM holdall_vectors WHERE version = old.version;
    END;
    """,
    # The text index of segments; holdall_terms, holdall_documents and holdall_texts were the one before.
    """
    CREATE TABLE holdall_words (term TEXT PRIMARY KEY, id INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE holdall_forward (
        version INTEGER PRIMARY KEY,
        entry INTEGER NOT NULL,
        length INTEGER NOT NULL,
        data BLOB NOT NULL
    );
    CREATE INDEX holdall_forward_of ON holdall_forward (entry);
    CREATE TABLE holdall_lists (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
    """,
    LEARNED_FIELDS,
    # Deleted trees (`feed.DeletedTrees`)
    """
    CREATE TABLE holdall_trees (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        low TEXT NOT NULL,
        high TEXT NOT NULL,
        path TEXT,
        path_low TEXT,
        path_high TEXT,
        until INTEGER NOT NULL,
        deleted INTEGER NOT NULL,
        next_version INTEGER NOT NULL,
        last_version INTEGER NOT NULL,
        from_ns TEXT NOT NULL,
        from_key TEXT NOT NULL
    );
    """,
    # History (`engines/history`), and the author and reason of a change
    """
    ALTER TABLE holdall_entries ADD COLUMN changed INTEGER;
    ALTER TABLE holdall_entries ADD COLUMN acting TEXT;
    ALTER TABLE holdall_trees ADD COLUMN acting TEXT;
    CREATE TABLE holdall_history (
        ended INTEGER PRIMARY KEY,
        ns TEXT NOT NULL,
        key TEXT NOT NULL,
        version INTEGER NOT NULL,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        changed INTEGER NOT NULL,
        expires INTEGER,
        ttl INTEGER,
        body INTEGER,
        size INTEGER,
        appended INTEGER,
        fields TEXT,
        acting TEXT,
        ended_kind TEXT NOT NULL,
        ended_at INTEGER NOT NULL,
        ended_acting TEXT,
        value TEXT NOT NULL
    );
    CREATE INDEX holdall_history_of ON holdall_history (ns, key, ended);
    CREATE INDEX holdall_history_bodies ON holdall_history (body) WHERE body IS NOT NULL;
    DROP TRIGGER holdall_unused;
    CREATE TRIGGER holdall_unneeded AFTER UPDATE OF body ON holdall_entries
    WHEN old.body IS NOT NULL AND old.body IS NOT new.body
    BEGIN
        DELETE FROM holdall_chunks WHERE body_id = old.body AND NOT EXISTS (
            SELECT 1 FROM holdall_entries WHERE shared IS NOT NULL AND body = old.body
        ) AND NOT EXISTS (SELECT 1 FROM holdall_history WHERE body = old.body);
    END;
    """,
    """
    ALTER TABLE holdall_history ADD COLUMN delta TEXT;
    CREATE INDEX holdall_history_large ON holdall_history (ended) WHERE delta IS NULL AND size > 131072;
    """,
    # FTS5's command 'merge' then leaves at most one segment of each level (`merge_contents`).
    "INSERT INTO holdall_contents (holdall_contents, rank) VALUES ('usermerge', 2)",
    # Versions that the index of contents still has (`remove_contents`). Only `merge_contents` merges: what FTS5 merges
    # by itself, in the transactions of inserts and deletions, takes up to 0.7 s in a store with many changes.
    """
    CREATE TABLE holdall_dead_contents (version INTEGER PRIMARY KEY);
    INSERT INTO holdall_contents (holdall_contents, rank)
        VALUES ('deletemerge', 0), ('automerge', 0), ('crisismerge', 128);
    """,
)

#: How many pages of the index of contents one transaction merges, measured: 17 ms; and how large these are.
_MERGED_PAGES, _PAGE_BYTES = 128, 4096
#: The segments of the index of contents, and null, as a common table expression.
_SEGMENTS = """
    segment(number) AS (
        SELECT min(segid) FROM holdall_contents_idx
        UNION ALL
        SELECT (SELECT min(segid) FROM holdall_contents_idx WHERE segid > number) FROM segment WHERE number IS NOT NULL
    )"""
#: How many segments there are, and about how many bytes they have. FTS5 stores the number of a page times two.
_SEGMENT_SIZES = f"""
    WITH RECURSIVE {_SEGMENTS}
    SELECT count(number), total(
        (SELECT pgno FROM holdall_contents_idx WHERE segid = number ORDER BY term DESC LIMIT 1)
    ) * {_PAGE_BYTES // 2} FROM segment"""
#: FTS5 reads two segments as fast as one; more take longer.
_FAST_SEGMENTS = 2
#: So many segments are not merged while other contents wait to be indexed.
_SEGMENTS_IN_LAG = 24
#: Dead versions are removed from the index of contents when they are an eighth of all, and at least this many.
_DEAD_PART, _DEAD_VERSIONS = 8, 1000
#: How many dead versions one transaction removes. Measured: 1 ms.
_REMOVED_AT_ONCE = 256
_FIRST_DEAD = "(SELECT version FROM holdall_dead_contents ORDER BY version LIMIT :limit)"
#: Remove the first dead versions from the index of contents.
_REMOVE_DEAD = (
    f"DELETE FROM holdall_contents WHERE rowid IN {_FIRST_DEAD}",
    f"DELETE FROM holdall_dead_contents WHERE version IN {_FIRST_DEAD}",
)
#: Remove all of them, and the tombstones that FTS5 keeps of them.
SCRUB_CONTENTS = """
    BEGIN IMMEDIATE;
    DELETE FROM holdall_contents WHERE rowid IN (SELECT version FROM holdall_dead_contents);
    DELETE FROM holdall_dead_contents;
    INSERT INTO holdall_contents (holdall_contents) VALUES ('optimize');  -- may only end a merge that was under way
    INSERT INTO holdall_contents (holdall_contents) VALUES ('optimize');
    COMMIT;
"""
#: How many grams of a search have their lists measured, and how many are looked up.
_MEASURED_GRAMS, _SHORTEST_LISTS = 24, 5
#: The MATCH expression of the grams whose lists span the fewest pages. FTS5 reads each list to its end.
#: A segment of its index has lists in the order of their terms, and FTS5 notes the first term of a page, after a '0'.
#: So this is an estimate. A wrong one only makes the search slower.
_RAREST = f"""
    WITH RECURSIVE {_SEGMENTS},
    gram(number, value, term) AS (SELECT key, value, CAST('0' || lower(value) AS BLOB) FROM json_each(:grams))
    SELECT group_concat(quoted, ' AND ') FROM (
        SELECT '"' || replace(value, '"', '""') || '"' AS quoted FROM gram, segment
        GROUP BY gram.number ORDER BY total(
            (SELECT pgno FROM holdall_contents_idx WHERE segid = segment.number AND term > gram.term
                ORDER BY term LIMIT 1)
            - (SELECT pgno FROM holdall_contents_idx WHERE segid = segment.number AND term <= gram.term
                ORDER BY term DESC LIMIT 1)
        ), gram.number LIMIT {_SHORTEST_LISTS}
    )"""
#: Not in the migrations: only searches with neighbours need it, and it makes every put slower.
ORDER_INDEX = (
    "CREATE INDEX IF NOT EXISTS holdall_order ON holdall_entries (ns, created, key, expires) WHERE value IS NOT NULL"
)
_GLOB_SPECIAL = re.compile(r"[*?\[]")
_UNSAFE_LABEL = re.compile(r'["\\\x00-\x1f]')  # SQLite may misread a JSON path with one of these

#: Notes that the file has a value with NUL in a key; run in the transaction that stores it.
NOTE_NUL_KEY = "PRAGMA user_version = 1"


def has_nul_key(op: Op) -> bool:
    """Whether an op puts JSON with NUL in a key. SQLite ends a key there, and may take it for another one."""
    value: Any = op.value if isinstance(op, Put) else ""
    return not isinstance(value, File) and has_nul_key_in(value)


def has_nul_key_in(value: str) -> bool:
    """Whether the JSON of a value has NUL in a key. Most values have no backslash, which is found out faster."""
    return "\\" in value and "\\u0000" in value and _find_nul_key(decode(value))


def _find_nul_key(value: Any) -> bool:
    if isinstance(value, dict):
        return any("\x00" in key or _find_nul_key(item) for key, item in value.items())
    return isinstance(value, list) and any(map(_find_nul_key, value))


class SqliteDialect(Dialect):
    table = "holdall_entries"
    # Correct as long as the row with the highest version is never removed, even if it is a tombstone.
    next_version = "(SELECT coalesce(max(version), 0) + 1 FROM holdall_entries)"
    first_version = "NULL"  # SQLite inserts the next row id, which is the same number
    version_on_conflict = "excluded.version"
    next_versions = "(SELECT max(version) FROM holdall_entries) + row_number() OVER (ORDER BY key)"
    by_version = "NOT INDEXED"
    next_body = next_version
    chunks = "holdall_chunks"
    content = """CASE WHEN size > 0 THEN (
        SELECT CASE WHEN length(data) = size THEN data ELSE (
            SELECT holdall_joined(data) FROM (SELECT data FROM holdall_chunks WHERE body_id = body ORDER BY start)
        ) END FROM holdall_chunks WHERE body_id = body AND start = 0
    ) END"""
    reads_pieces = True  # measured: 0.07 ms instead of 2.7 ms for 1 MB
    head = """(SELECT holdall_joined(data) FROM (
        SELECT data FROM holdall_chunks WHERE body_id = body AND start < 1048576 ORDER BY start
    ))"""
    history = "holdall_history"
    # The first statement makes FTS5 read its list of segments again. The check does not do so, and reports damage if
    # another connection has merged segments.
    integrity_check = ("SELECT rowid FROM holdall_contents LIMIT 1", {}), ("PRAGMA integrity_check(20)", {})
    stamps = MappingProxyType({"acting": ":acting", "changed": "NULL"})
    stop_history = ("DROP TRIGGER IF EXISTS holdall_kept", "DROP INDEX IF EXISTS holdall_bodies")
    old_content = """CASE WHEN size > 0 THEN (SELECT holdall_joined(data) FROM (
        SELECT data FROM holdall_chunks WHERE body_id = body AND start < size ORDER BY start
    )) END"""
    state, words, forward, lists = "holdall_state", "holdall_words", "holdall_forward", "holdall_lists"
    old_texts = "holdall_terms", "holdall_documents", "holdall_texts"
    vectors = "holdall_vectors"
    single_writer = True
    unindexed = "holdall_unindexed"
    misread_check = "PRAGMA user_version"  # see NOTE_NUL_KEY

    def __init__(self, filter_fields: Sequence[str]) -> None:
        self.declared = tuple(filter_fields)
        self.checks = TableChecks(self)
        self.indexed_contents = "SELECT rowid FROM holdall_contents"
        self.clear_contents = ("DELETE FROM holdall_contents", "DELETE FROM holdall_dead_contents")
        # BEFORE: another trigger removes the pieces of a body that no old row refers to. The index finds the entry that
        # still has the body of an old row.
        self.start_history = (
            f"CREATE TRIGGER holdall_kept BEFORE UPDATE OF version ON holdall_entries WHEN {is_kept(self)}"
            f" BEGIN {copy_row(self.history)}; END",
            "CREATE INDEX holdall_bodies ON holdall_entries (body) WHERE body IS NOT NULL",
        )
        self._merged_size: int | None = None  # bytes of the index of contents when all segments were merged
        self._documents = 0  # how many the index of contents had when they were counted
        self._is_removing = False  # whether dead versions are being removed from it
        self._bytes_to_merge = 0  # how many it had when the merging of all segments began, less what was merged
        self._indexed: set[Path] = set()
        for field in filter_fields:
            path = check_field(field)
            if any(_UNSAFE_LABEL.search(label) or "'" in label for label in path):
                raise InvalidInput(
                    f"filter_fields= cannot name a field with quotes, backslashes or control characters: {field!r}"
                )
            self._indexed |= {path, (field,)}  # a key with dots means both

    def parameters(self, op: Op) -> Mapping[str, Any]:
        return {"acting": getattr(op, "acting", None)}

    def history_position(self) -> SqlProgram[int]:
        [[(newest,)]] = yield [("SELECT coalesce(max(version), 0) FROM holdall_entries", {})]
        return int(newest)

    def make_tombstones(self, which: str, kind: str, above: str = "") -> str:
        return f"""
            UPDATE holdall_entries SET
                version = {above or "(SELECT max(version) FROM holdall_entries)"} + chosen.number,
                value = NULL, expires = NULL, ttl = NULL, updated = :now, kind = '{kind}',
                changed = NULL, acting = :acting,
                body = NULL, size = NULL, appended = NULL, shared = NULL, fields = NULL, vectors = NULL
            FROM (
                SELECT version AS old, row_number() OVER () AS number
                FROM (SELECT version FROM holdall_entries WHERE {which})
            ) AS chosen
            WHERE version = chosen.old RETURNING version"""

    def reserve_versions(self, count: int, now: int | None) -> SqlProgram[int]:
        # An entry of holdall's own takes the version after them. So it is the highest, from which the next ones follow.
        sql = (
            "INSERT INTO holdall_entries (version, ns, key, value, created, updated)"
            " SELECT coalesce(max(version), 0) + :count + 1, :ns, :key, '{}', :now, :now"
            " FROM holdall_entries WHERE true"
            " ON CONFLICT (ns, key) DO UPDATE SET version = excluded.version RETURNING version"
        )
        params = {"count": count, "ns": keys.encode(MARK_NAMESPACE), "key": "reserved", "now": now}
        [[(version,)]] = yield [(sql, params)]
        return int(version) - count - 1

    def find_text(self, text: str, part: str) -> str:
        return f"instr({text}, {part})"

    def character(self, code: int) -> str:
        return f"char({code})"

    def among(self, column: str, numbers: list[int]) -> tuple[str, dict[str, Any]]:
        listed = msgspec.json.encode(numbers).decode()
        return f"{column} IN (SELECT value FROM json_each(:numbers))", {"numbers": listed}

    def each_number(self, numbers: list[int]) -> tuple[str, dict[str, Any]]:
        return "json_each(:numbers)", {"numbers": msgspec.json.encode(numbers).decode()}

    def among_texts(self, column: str, texts: list[str]) -> tuple[str, dict[str, Any]]:
        listed = msgspec.json.encode(texts).decode()
        return f"{column} IN (SELECT value FROM json_each(:texts))", {"texts": listed}

    def index_contents(self, texts: list[tuple[int, str]]) -> SqlProgram[None]:
        yield [("INSERT INTO holdall_contents (rowid, content) VALUES (?, ?)", [*texts])]

    def remove_contents(self, versions: list[int]) -> SqlProgram[bool]:
        # A deletion leaves a tombstone in FTS5 until it merges. With one, a search looks for each number that it reads
        # among the tombstones: with 100,000 files, it takes 6.9 ms instead of 1.3. So dead versions, which no entry
        # has, stay until they are many, or the index is twice as large. Then all are removed, and all segments merged.
        indexed = "SELECT 1 FROM holdall_contents_docsize WHERE id = ?1"
        note = f"INSERT OR IGNORE INTO holdall_dead_contents SELECT ?1 WHERE EXISTS ({indexed})"
        yield [(note, [(version,) for version in versions])]
        return False

    def merge_contents(self, has_lag: bool) -> SqlProgram[bool]:
        # Measured with 100,000 files: a search takes 3.2 ms instead of 5.2 ms with the segments that inserts leave.
        # FTS5 merges those of about one size. If some are left, and the index is twice as large as when all were
        # merged, all are merged: a search then takes 1.3 ms instead of 1.5. A negative number begins this; later calls
        # continue it.
        changes: Statement = ("SELECT total_changes()", {})
        [[(segments, size)], [(before,)]] = yield [(_SEGMENT_SIZES, {}), changes]
        if self._merged_size is None:
            self._merged_size = size
        pages = _MERGED_PAGES
        if self._bytes_to_merge <= 0:
            is_twice_as_large = size >= 2 * self._merged_size
            merges_all = yield from self._remove_dead(is_twice_as_large, has_lag)
            if self._is_removing:
                return True
            if merges_all or (is_twice_as_large and segments > _FAST_SEGMENTS and not has_lag):
                pages, self._bytes_to_merge = -pages, size
            elif has_lag and segments <= _SEGMENTS_IN_LAG:
                return False
        merge = "INSERT INTO holdall_contents (holdall_contents, rank) VALUES ('merge', :pages)"
        _, [(after,)] = yield [(merge, {"pages": pages}), changes]
        has_merged = bool(after - before > 1)  # one change is the insert itself
        if self._bytes_to_merge > 0:
            self._bytes_to_merge -= _MERGED_PAGES * _PAGE_BYTES if has_merged else self._bytes_to_merge
            self._merged_size = None  # which the next call finds out
        return has_merged

    def _remove_dead(self, is_due: bool, has_lag: bool) -> SqlProgram[bool]:
        """Remove some dead versions, if that is due or they are many; return whether these were the last."""
        [[(dead,)]] = yield [("SELECT count(*) FROM holdall_dead_contents", {})]
        if not (is_due or has_lag or self._is_removing) and dead >= max(_DEAD_VERSIONS, self._documents // _DEAD_PART):
            [[(self._documents,)]] = yield [("SELECT count(*) FROM holdall_contents_docsize", {})]
            is_due = dead >= max(_DEAD_VERSIONS, self._documents // _DEAD_PART)
        if not (self._is_removing or (is_due and dead)):
            return False
        yield [(statement, {"limit": _REMOVED_AT_ONCE}) for statement in _REMOVE_DEAD]
        self._is_removing = dead > _REMOVED_AT_ONCE
        if not self._is_removing:
            self._documents = 0  # there may be fewer now
        return not self._is_removing

    def find_contents(self, grams: list[str]) -> ContentQuery | None:
        if not grams:
            return None
        measured = {"grams": msgspec.json.encode(choose_grams(grams, _MEASURED_GRAMS)).decode()}
        sql = f"SELECT rowid FROM holdall_contents WHERE holdall_contents MATCH ({_RAREST}) LIMIT {MOST_FOUND}"

        def read_answer(rows: Rows) -> Statement | None:
            # The versions themselves, and not the query again: it reads long posting lists.
            source, params = self.each_number([version for (version,) in rows])
            return (f"SELECT value FROM {source}", params) if len(rows) < MOST_FOUND else None

        return (sql, measured), read_answer

    def index_order(self) -> SqlProgram[None]:
        yield [(ORDER_INDEX, {})]

    def insert_many(self, table: str, columns: str, rows: list[tuple[Any, ...]], conflict: str) -> ManyTimes:
        values = ", ".join("?" for _ in rows[0])
        return f"INSERT INTO {table} AS old ({columns}) VALUES ({values}) ON CONFLICT {conflict}", rows

    def join_file(self, key: str) -> str:
        return f"holdall_entries AS file ON file.ns = :ns AND file.key = {key}"

    def one_of(self, column: str, query: str) -> str:
        return f"{column} IN ({query})"

    def contains(self, data: str, part: str) -> str:
        return f"instr({data}, {part}) > 0"

    def next_namespace(self, ns: str, depth: int | None) -> str:
        return f"{ns} || char(1)" if depth is None else f"holdall_after({ns}, {depth:d})"

    def compare(self, path: Path, operator: str, operand: Any, bind: Binder) -> str | None:
        field = self._field(path, bind)
        if field is None:
            return None
        if operator == "IN":
            return f"{field} IN ({', '.join(bind(item) for item in operand)})"
        condition = f"{field} {operator} {bind(operand)}"
        if operator != "=" and self.is_indexed(path):  # without it SQLite expects a quarter of all rows in any range
            return f"likelihood({condition}, 0.001)"
        if operator == "=" and not self.is_indexed(path):
            if isinstance(operand, str) and len(operand) <= 1000:
                return f"({self._has_text(msgspec.json.encode(operand).decode(), bind)} AND {condition})"
            if type(operand) is int:  # the JSON of 5, 5.0 and -5 has "5", up to 2**53
                return f"({self._has_text(str(abs(operand)), bind)} AND {condition})"
        return condition

    def is_null(self, path: Path, bind: Binder) -> str | None:
        field = self._field(path, bind)
        return field and f"{field} IS NULL"

    def exists(self, path: Path, bind: Binder) -> str | None:
        bound_path = self._json_path(path, bind)
        return bound_path and f"json_type(value, {bound_path}) IS NOT NULL"

    def _field(self, path: Path, bind: Binder) -> str | None:
        bound_path = self._json_path(path, bind)
        return bound_path and f"json_extract(value, {bound_path})"

    def _has_text(self, text: str, bind: Binder) -> str:
        """Return the condition that the JSON of the value has a text. GLOB takes half the time of parsing it."""
        literal = _GLOB_SPECIAL.sub(r"[\g<0>]", text)
        return f"value GLOB {bind(f'*{literal}*')}"

    def is_indexed(self, path: Path) -> bool:
        return path in self._indexed

    def indexes(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the statement of each declared index: on the field, then the namespace."""
        for path in sorted(self._indexed):
            name = f"holdall_{index_name(path)}"
            field = f"json_extract(value, '{json_path(path)}')"
            yield (
                name,
                (f'CREATE INDEX IF NOT EXISTS "{name}" ON holdall_entries ({field}, ns) WHERE {field} IS NOT NULL'),
            )

    def _json_path(self, path: Path, bind: Binder) -> str | None:
        if self.is_indexed(path):  # exactly the expression of the index, or SQLite would not use it
            return f"'{json_path(path)}'"
        if any(_UNSAFE_LABEL.search(label) for label in path):
            return None
        return bind(json_path(path))
