"""Checks the indexes of texts and of file contents of an SQL engine against the entries.

Both are derived, so a damaged one is repaired by building it again. An index that lags is not compared.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...errors import Corrupt
from ...ops import Fault
from ...search.segments.documents import decode_forward
from ..sql.dialect import Dialect
from ..sql.files import INDEXED_SIZE
from ..sql.statements import Rows, SqlProgram, Statement
from ..sql.text_index import SqlTextIndex

_PAGE = 500  # rows that one statement reads
_MOST_SEARCHED = 200  # files for which the index of contents is searched
TEXTS, CONTENTS = "the index of texts", "the index of file contents"


class IndexChecks:
    """The checks of one database."""

    def __init__(self, dialect: Dialect, texts: SqlTextIndex) -> None:
        self._dialect, self._texts = dialect, texts
        self._indexed = f"body IS NOT NULL AND value IS NOT NULL AND size > 0 AND size <= {INDEXED_SIZE}"
        self._not_queued = f"version NOT IN (SELECT version FROM {dialect.unindexed})"

    def find(self) -> SqlProgram[list[Fault]]:
        """Return all faults."""
        found = [
            *(f"{TEXTS} {what}" for what in (yield from self._check_texts())),
            *(f"{CONTENTS} {what}" for what in (yield from self._check_contents())),
        ]
        return [Fault("index", message, True) for message in found]

    # Texts -----------------------------------------------------------------------------------------------------------

    def _check_texts(self) -> SqlProgram[list[str]]:
        try:
            documents = yield from self._texts.read_documents()
        except (Corrupt, msgspec.MsgspecError, ValueError, IndexError) as error:
            return [f"cannot be read: {error}"]
        if documents is None:
            return []
        state, indexed, lengths = documents
        faults: list[str] = []
        if (state.count, state.total) != (len(lengths), sum(lengths.values())):
            faults.append(f"counts {state.count} documents, but has {len(lengths)}")
        if lost := len(lengths.keys() - indexed):
            faults.append(f"has {lost} documents in no list of words")
        table, forward = self._dialect.table, self._dialect.forward
        current = f"SELECT version FROM {table} WHERE value IS NOT NULL"
        [[(extra,)]] = yield [(f"SELECT count(*) FROM {forward} WHERE version NOT IN ({current})", {})]
        if extra:
            faults.append(f"has {extra} documents that belong to no entry")
        if damaged := (yield from self._count_damaged_texts()):
            faults.append(f"has {damaged} documents whose words cannot be read")
        if missing := (yield from self._count_missing_texts()):
            faults.append(f"lacks {missing} entries that have texts")
        return faults

    def _count_damaged_texts(self) -> SqlProgram[int]:
        """Count the documents whose terms have no number in the index, or are not as many as their length."""
        [rows] = yield [(f"SELECT id FROM {self._dialect.words}", {})]
        known = {row[0] for row in rows}
        sql = f"SELECT version, length, data FROM {self._dialect.forward} WHERE version > :after"
        damaged, after = 0, 0
        while True:
            [rows] = yield [(f"{sql} ORDER BY version LIMIT {_PAGE}", {"after": after})]
            damaged += sum(not _is_sound(data, length, known) for _, length, data in rows)
            if len(rows) < _PAGE:
                return damaged
            after = rows[-1][0]

    def _count_missing_texts(self) -> SqlProgram[int]:
        """Count the entries that have words, but no document."""
        forward, missing, after = self._dialect.forward, 0, 0
        while True:
            rows = yield from self._texts.read_rows(f"version NOT IN (SELECT version FROM {forward})", after, _PAGE)
            missing += yield from self._texts.count_with_words(rows)
            if len(rows) < _PAGE:
                return missing
            after = rows[-1][0]

    # Contents --------------------------------------------------------------------------------------------------------

    def _check_contents(self) -> SqlProgram[list[str]]:
        faults: list[str] = []
        lacking = f"{self._not_queued} AND version NOT IN ({self._dialect.indexed_contents})"
        missing, after = 0, 0
        while True:
            rows = yield from self._read_files(lacking, after, _PAGE // 10)
            missing += sum(_decode(content) is not None for _, content in rows)
            if len(rows) < _PAGE // 10:
                break
            after = rows[-1][0]
        if missing:
            faults.append(f"lacks {missing} files")
        present = f"{self._not_queued} AND version IN ({self._dialect.indexed_contents})"
        rows = yield from self._read_files(present, 0, _MOST_SEARCHED)
        lost = 0
        for version, content in rows:
            text = _decode(content)
            if text is not None and not (yield from self._finds(version, text)):
                lost += 1
        if lost:
            faults.append(f"does not find {lost} of the first {len(rows)} files by their text")
        return faults

    def _read_files(self, where: str, after: int, limit: int) -> SqlProgram[Rows]:
        sql = (
            f"SELECT version, {self._dialect.content} FROM {self._dialect.table}"
            f" WHERE {self._indexed} AND {where} AND version > :after ORDER BY version LIMIT :limit"
        )
        rows: Rows = (yield [(sql, {"after": after, "limit": limit})])[0]
        return rows

    def _finds(self, version: int, text: str) -> SqlProgram[bool]:
        """Whether the index finds a file by parts of its text."""
        line = max(text[:10_000].splitlines(), key=len, default="")
        grams = [line[start : start + 3] for start in (0, len(line) // 2, max(len(line) - 3, 0))]
        grams = [gram for gram in grams if len(gram) == 3 and "\x00" not in gram]
        query = self._dialect.find_contents(grams)
        if query is None:
            return True
        ask, read_answer = query
        *_, answer = yield [*self._dialect.by_index, ask]
        found = read_answer(answer)
        if found is None:  # too many files have them
            return True
        sql, params = found
        own = f"SELECT version FROM {self._dialect.table} WHERE version = {int(version)}"
        [rows] = yield [(f"{own} AND {self._dialect.one_of('version', sql)}", params)]
        return bool(rows)

    # Repairing -------------------------------------------------------------------------------------------------------

    def repair_contents(self) -> list[Statement]:
        """Return the statements that have the contents of all files indexed again."""
        queue = f"INSERT INTO {self._dialect.unindexed} (version) SELECT version FROM {self._dialect.table}"
        wanted = "WHERE body IS NOT NULL AND value IS NOT NULL"
        empty = [*self._dialect.clear_contents, f"DELETE FROM {self._dialect.unindexed}"]
        return [(sql, {}) for sql in (*empty, f"{queue} {wanted}")]


def _is_sound(forward: bytes, length: int, known: set[int]) -> bool:
    """Whether the terms of a document are known and as many as its length."""
    try:
        terms, counts = decode_forward(forward)
    except (Corrupt, ValueError, IndexError):
        return False
    return sum(counts) == length and known.issuperset(terms)


def _decode(content: Any) -> str | None:
    """Return the text of a file, None if it is not text, which is not indexed."""
    try:
        return bytes(content or b"").decode()
    except UnicodeDecodeError:
        return None
