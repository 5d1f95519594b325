"""Who is asked for words beside us: tantivy, and a bare FTS5 table. Neither stores the values; both give numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import apsw
import tantivy

from holdall.search.tokens import parse_query

from .corpus import Corpus, Question
from .files import bytes_by_table

TANTIVY, FTS5 = "tantivy", "bare FTS5"


class Peer(Protocol):
    def load(self, corpus: Corpus) -> None:
        """Add all texts, and return when they can be searched."""

    def settle(self) -> None:
        """Merge what was added in parts."""

    def search(self, question: Question) -> list[int]:
        """The numbers of the best ten."""

    def bytes(self) -> int:
        """How large the index is."""


class Tantivy:
    """An index of namespaces, as filter terms, and of stemmed words with their frequencies but no positions."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        fields = tantivy.SchemaBuilder()
        fields.add_integer_field("number", stored=True)
        fields.add_text_field("namespace", tokenizer_name="raw", index_option="basic")
        fields.add_text_field("text", tokenizer_name="en_stem", index_option="freq")
        self._schema = fields.build()
        self._index = tantivy.Index(self._schema, str(folder))

    def load(self, corpus: Corpus) -> None:
        writer = self._index.writer(heap_size=512_000_000)
        for number, text in enumerate(corpus.texts):
            namespace = ".".join(corpus.namespace(number))
            writer.add_document(tantivy.Document(number=number, namespace=namespace, text=text))
        writer.commit()
        self._index.reload()
        self._writer = writer

    def settle(self) -> None:
        self._writer.wait_merging_threads()
        self._index.reload()
        self._searcher = self._index.searcher()

    def search(self, question: Question) -> list[int]:
        namespace, words = question
        terms = [
            (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "text", term, "freq"))
            for term in parse_query(words).terms
        ]
        query = tantivy.Query.boolean_query(terms)
        if namespace:
            inside = tantivy.Query.term_query(self._schema, "namespace", ".".join(namespace), "basic")
            inside = tantivy.Query.const_score_query(inside, 0.0)
            query = tantivy.Query.boolean_query([(tantivy.Occur.Must, inside), (tantivy.Occur.Must, query)])
        hits = self._searcher.search(query, 10, count=False).hits  # to count them it would look at all that match
        return [self._searcher.doc(address)["number"][0] for _, address in hits]

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir())


class BareFts5:
    """A contentless table with a column for the namespace, which counts nothing, and one for the words."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = apsw.Connection(str(path))
        for pragma, value in (("journal_mode", "wal"), ("synchronous", "normal"), ("cache_size", "-64000")):
            self._connection.execute(f"PRAGMA {pragma} = {value}").fetchall()
        self._connection.execute(
            "CREATE VIRTUAL TABLE texts USING fts5"
            " (namespace, text, content = '', detail = 'column', tokenize = 'porter ascii')"
        )
        self._connection.execute("INSERT INTO texts (texts, rank) VALUES ('rank', 'bm25(0.0, 1.0)')")

    def load(self, corpus: Corpus) -> None:
        def rows() -> Iterator[tuple[int, str, str]]:
            for number, text in enumerate(corpus.texts):
                yield number, corpus.namespace(number)[-1], text

        with self._connection:
            self._connection.executemany("INSERT INTO texts (rowid, namespace, text) VALUES (?, ?, ?)", rows())

    def settle(self) -> None:
        self._connection.execute("INSERT INTO texts (texts) VALUES ('optimize')")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def search(self, question: Question) -> list[int]:
        namespace, words = question
        match = f"text : ({' OR '.join(words.split())})"
        if namespace:
            match = f"namespace : {namespace[-1]} AND {match}"
        sql = "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT 10"
        return [row[0] for row in self._connection.execute(sql, (match,))]

    def bytes(self) -> int:
        return sum(bytes_by_table(self._connection).values())

    def close(self) -> None:
        self._connection.close()
