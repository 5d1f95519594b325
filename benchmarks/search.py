"""Search: how good the answers are, and what they cost.

Quality is measured on the NPL collection (11,429 abstracts, 93 queries with judgements), where it lies beside the
project, as `../shared/data/vaswani`: by full text, by vectors of the local model, and by both, with the settings that
everybody gets, beside `bm25s` with the same stemmer. The rankings are cut at 1,000.

Speed: vectors beside langgraph's stores, full text beside a bare FTS5 table of the same tokens. The texts are made of
60,000 words, of which some are as much more frequent than others as in English.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import apsw
import bm25s
import numpy as np
import Stemmer
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

import holdall
from holdall.search.tokens import parse_query, tokens

from .data import words_of
from .harness import OURS, Bench, Row, Score, Target, at_least, at_most, no_slower_than
from .writer import another_writer, hold_against_limit

MEMORY, SQLITE, FTS5, OFF, UNFILTERED = "InMemoryStore", "SqliteStore", "bare FTS5", "full text off", "unfiltered"
MANY, DIMS, SOME = 100_000, 384, 10_000
HERE = ("notes",)
_COLLECTION = Path(__file__).parents[2] / "shared" / "data" / "vaswani"


def run(bench: Bench) -> None:
    _quality(bench)
    _vectors(bench)
    texts = list(_texts(MANY))
    _full_text(bench, texts)
    _indexing(bench, texts[:SOME], "full", rounds=1)
    _indexing(bench, texts[:SOME], "relaxed", rounds=5)


# Quality -------------------------------------------------------------------------------------------------------------


def _quality(bench: Bench) -> None:
    if not _COLLECTION.exists():
        bench.note("quality was not measured: the NPL collection is not at ../shared/data/vaswani")
        return
    with gzip.open(_COLLECTION / "docs.jsonl.gz", "rt") as lines:
        documents = {row["id"]: row["text"] for row in map(json.loads, lines)}
    queries = [json.loads(line) for line in (_COLLECTION / "queries.jsonl").read_text().splitlines()]
    for k1, b in ((1.2, 0.75), (0.9, 0.4)):
        bench.scores.append(Score(f"bm25s, k1 {k1}, b {b}", _measures(queries, _of_bm25s(documents, queries, k1, b))))
    with holdall.open(str(bench.folder / "quality.db"), embed="local") as store:
        bench.progress(f"embedding {len(documents):,} abstracts")
        _load(store, ((HERE, key, {"text": text}) for key, text in documents.items()))
        found: dict[str, dict[str, float]] = {}
        for mode in ("lexical", "semantic", "hybrid"):
            bench.progress(f"{mode} search for {len(queries)} queries")
            found[mode] = _measures(queries, _of_ours(store, queries, mode))
    better = {name: max(found["lexical"][name], found["semantic"][name]) for name in found["hybrid"]}
    least = {"lexical": {"MAP": 0.287}, "semantic": None, "hybrid": better}
    words = {"lexical": "full text", "semantic": 'vectors, embed="local"', "hybrid": "both"}
    bench.scores += [Score(f"{OURS}, {words[mode]}", found[mode], least[mode]) for mode in found]


def _of_bm25s(documents: dict[str, str], queries: list[Any], k1: float, b: float) -> Iterator[list[str]]:
    keys, stemmer = list(documents), Stemmer.Stemmer("english")

    def tokenized(texts: Iterable[str]) -> Any:
        return bm25s.tokenize(list(texts), stopwords="en", stemmer=stemmer, show_progress=False)

    index = bm25s.BM25(k1=k1, b=b, method="robertson")
    index.index(tokenized(documents.values()), show_progress=False)
    rankings, _ = index.retrieve(tokenized(query["text"] for query in queries), k=1000, show_progress=False)
    return ([keys[number] for number in ranking] for ranking in rankings)


def _of_ours(store: holdall.Store, queries: list[Any], mode: Any) -> Iterator[list[str]]:
    return ([hit.key for hit in store.search(HERE, query=query["text"], mode=mode, limit=1000)] for query in queries)


def _measures(queries: list[Any], rankings: Iterable[list[str]]) -> dict[str, float]:
    """Mean average precision, normalised gain of the first ten, and how much of what is relevant the first 100 have."""
    each = [_of_one(set(query["relevant"]), ranking) for query, ranking in zip(queries, rankings, strict=True)]
    return {name: fmean(one[name] for one in each) for name in each[0]}


def _of_one(relevant: set[str], ranking: list[str]) -> dict[str, float]:
    places = [place for place, key in enumerate(ranking, 1) if key in relevant]
    best = sum(1 / math.log2(place + 1) for place in range(1, min(10, len(relevant)) + 1))
    return {
        "MAP": sum(rank / place for rank, place in enumerate(places, 1)) / len(relevant),
        "nDCG@10": sum(1 / math.log2(place + 1) for place in places if place <= 10) / best,
        "R@100": sum(place <= 100 for place in places) / len(relevant),
    }


# Vectors -------------------------------------------------------------------------------------------------------------


class _Model:
    """Vectors by number, as a model would give them: near each other in a thousand groups."""

    def __init__(self, count: int) -> None:
        chance = np.random.default_rng(7)
        groups = chance.standard_normal((1000, DIMS), dtype=np.float32)
        noise = chance.standard_normal((count, DIMS), dtype=np.float32)
        self.rows = groups[chance.integers(0, 1000, count)] + noise

    def numbers(self, texts: Sequence[str]) -> list[int]:
        """The number at the end of each text; 0 where there is none, as in what a store asks to know a model by."""
        return [int(last) if (last := text.rpartition(" ")[2]).isdecimal() else 0 for text in texts]

    def ours(self, texts: Sequence[str]) -> Any:
        return self.rows[self.numbers(texts)]

    def theirs(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = self.rows[self.numbers(texts)].tolist()
        return vectors

    def nearest(self, queries: Sequence[str], among: Any) -> list[list[int]]:
        """The ten nearest of some rows to each query, every one compared in float64."""
        rows = self.rows[among].astype(np.float64)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = self.rows[self.numbers(queries)].astype(np.float64) @ rows.T
        nearest: list[list[int]] = [among[np.argsort(-each)[:10]].tolist() for each in cosines]
        return nearest


def _vectors(bench: Bench) -> None:
    asked = 100
    model = _Model(MANY + asked)
    queries = [f"query {MANY + number}" for number in range(asked)]
    items = [
        (HERE, str(number), {"text": f"item {number}", "part": number % 100, "other": number % 100})
        for number in range(MANY)
    ]
    bench.progress("comparing every vector")
    right = model.nearest(queries, np.arange(MANY))
    right_filtered = model.nearest(queries, np.arange(7, MANY, 100))
    with ExitStack() as stack:
        stores = {
            "": stack.enter_context(
                holdall.open(
                    str(bench.folder / "vectors.db"), embed=model.ours, search_fields=["text"], filter_fields=["part"]
                )
            ),
            ", in memory": stack.enter_context(holdall.open("memory:", embed=model.ours, search_fields=["text"])),
        }
        for where, store in stores.items():
            bench.progress(f"loading {MANY:,} vectors{where}")
            _load(store, items)
        peers = _langgraph(bench, stack, model, items)

        def ours(store: holdall.Store, **options: Any) -> Callable[[str], list[int]]:
            return lambda query: [
                int(hit.key) for hit in store.search(HERE, query=query, mode="semantic", limit=10, **options)
            ]

        searches = {name: _peer_search(peer) for name, peer in peers.items()}
        for name, search in searches.items():
            assert search(queries[0]) == right[0], f"{name} finds something else"
        theirs: dict[str, list[float]] = {}
        for where, store in stores.items():
            whole, filtered = ours(store), ours(store, filter={"part": 7})
            for what, search, wanted in (("", whole, right), (", filtered to 1 %", filtered, right_filtered)):
                recall = fmean(len({*search(query)} & {*ten}) / 10 for query, ten in zip(queries, wanted, strict=True))
                title = f"{OURS}, top 10 of {MANY:,} vectors{what}{where}"
                bench.scores.append(Score(title, {"recall@10": recall}, {"recall@10": 0.99}))
            what = f"top 10 of {MANY:,} × {DIMS}{where}"
            if not theirs:
                row = _each(bench, what, {OURS: whole, **searches}, queries, dict.fromkeys(searches, 3))
                theirs = {name: row.seconds[name] for name in searches}
            else:
                row = _each(bench, what, {OURS: whole}, queries)
            bench.rows[-1] = Row(what, {**row.seconds, **theirs}, at_least(10, *searches), [], as_rate=False)
            title = f"top 10 of {MANY // 100:,}, filtered from {MANY:,} × {DIMS}"
            runs: dict[str, Callable[[str], object]]
            if not where:  # memory has no indexes
                runs = {OURS: filtered, UNFILTERED: whole}
                _each(bench, f"{title}, declared field", runs, queries, target=no_slower_than(UNFILTERED))
            runs = {OURS: ours(store, filter={"other": 7}), UNFILTERED: whole}
            _each(bench, f"{title}, undeclared{where}", runs, queries)


def _langgraph(bench: Bench, stack: ExitStack, model: _Model, items: list[Any]) -> dict[str, Any]:
    index: Any = {"dims": DIMS, "embed": model.theirs, "fields": ["text"]}
    peers: dict[str, Any] = {MEMORY: InMemoryStore(index=index)}
    if hasattr(sqlite3.Connection, "enable_load_extension"):
        path = str(bench.folder / "vectors-langgraph.db")
        peers[SQLITE] = stack.enter_context(SqliteStore.from_conn_string(path, index=index))
        peers[SQLITE].setup()
    else:
        bench.note(f"{SQLITE} is not measured: this Python's sqlite3 cannot load the extension that it needs")
    for name, peer in peers.items():
        bench.progress(f"loading {len(items):,} vectors into {name}")
        for some in _slices(items):
            peer.batch([PutOp(*item) for item in some])
    return peers


def _peer_search(peer: Any) -> Callable[[str], list[int]]:
    return lambda query: [int(item.key) for item in peer.search(HERE, query=query, limit=10)]


# Full text -----------------------------------------------------------------------------------------------------------


def _texts(count: int) -> Iterator[str]:
    """Texts of 1 KB. The word in place n is about n times rarer than the first."""
    chance, words = random.Random(9), words_of(60_000)
    weights = list(itertools.accumulate(1 / (place + 2.7) for place in range(len(words))))
    for _ in range(count):
        yield " ".join(chance.choices(words, cum_weights=weights, k=200))[:1000]


def _queries(texts: Sequence[str], count: int) -> list[str]:
    """One to five words of some text: common ones as often as they are written."""
    chance = random.Random(3)
    return [" ".join(chance.sample(chance.choice(texts).split()[:-1], chance.randint(1, 5))) for _ in range(count)]


def _full_text(bench: Bench, texts: list[str]) -> None:
    path, queries = bench.folder / "texts.db", _queries(texts, 100)
    bare = _bare(bench, texts)
    with holdall.open(str(path)) as store:
        bench.progress(f"loading {len(texts):,} texts")
        _load(store, ((HERE, str(number), {"text": text}) for number, text in enumerate(texts)))
        bench.progress("the first search")
        with another_writer(str(path)) as stop:
            began = time.perf_counter()
            store.search(HERE, query=queries[0])
            spent = time.perf_counter() - began
            waits = stop()
        bench.note(f"the first search after loading {len(texts):,} texts took {spent:.1f} s, and made their index")
        hold_against_limit(bench, "another process's writes during that first search", waits)

        def ours(query: str) -> list[int]:
            return [int(hit.key) for hit in store.search(HERE, query=query, limit=10)]

        def theirs(query: str) -> list[int]:
            words = " OR ".join(f'"{term}"' for term in parse_query(query).terms)
            sql = "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT 10"
            return [row[0] for row in bare.execute(sql, (words,))]

        for query in queries[:10]:
            terms = set(parse_query(query).terms)
            assert all(terms & set(tokens(texts[number])) for found in (ours(query), theirs(query)) for number in found)
        what = f"full text, top 10 of {len(texts):,} of 1 KB, {len(queries)} queries"
        _each(bench, what, {OURS: ours, FTS5: theirs}, queries, target=at_most(2, FTS5))
        bench.note(f"{FTS5} gives the numbers of documents; holdall the items with their values")
    bare.close()


def _bare(bench: Bench, texts: Iterable[str]) -> apsw.Connection:
    """A table of the same tokens and nothing else, in one segment."""
    bench.progress("loading the bare FTS5 table")
    connection = apsw.Connection(str(bench.folder / "fts5.db"))
    for pragma, value in (("journal_mode", "wal"), ("synchronous", "normal"), ("cache_size", "-8000")):
        connection.execute(f"PRAGMA {pragma} = {value}").fetchall()
    connection.execute("CREATE VIRTUAL TABLE texts USING fts5 (tokens, content = '')")
    with connection:
        rows = ((number, " ".join(tokens(text))) for number, text in enumerate(texts))
        connection.executemany("INSERT INTO texts (rowid, tokens) VALUES (?, ?)", rows)
    connection.execute("INSERT INTO texts (texts) VALUES ('optimize')")
    return connection


def _indexing(bench: Bench, texts: list[str], durability: Literal["full", "relaxed"], rounds: int) -> None:
    """What the index adds to the writing of texts, with the first search after it, which completes the index."""
    made = itertools.count()
    query = texts[0].split()[0]

    def puts(full_text: bool) -> Callable[[], None]:
        def run() -> None:
            path = bench.folder / f"indexing-{next(made)}.db"
            with holdall.open(str(path), durability=durability, full_text=full_text) as store:
                for number, text in enumerate(texts):
                    store.put(HERE, str(number), {"text": text})
                if full_text:
                    assert store.search(HERE, query=query)

        return run

    bench.measure(
        f"{len(texts):,} puts of 1 KB and the first search, {durability} durability",
        {OURS: puts(full_text=True), OFF: puts(full_text=False)},
        rounds=rounds,
        target=at_most(3, OFF) if durability == "full" else None,  # as stores are, unless one says otherwise
        durable=durability == "full",
    )


# Shared --------------------------------------------------------------------------------------------------------------


def _each(
    bench: Bench,
    what: str,
    searches: dict[str, Callable[[str], object]],
    queries: Sequence[str],
    times: dict[str, int] | None = None,
    target: Target | None = None,
) -> Row:
    """A row whose medians are over queries: each is asked once before it counts. The slow are asked a few only."""
    row = Row(what, {name: [] for name in searches}, target, [], as_rate=False)
    for number, query in enumerate(queries):
        bench.progress(f"{what}: query {number + 1} of {len(queries)}")
        for name, search in searches.items():
            if number >= (times or {}).get(name, len(queries)):
                continue
            search(query)
            began = time.perf_counter()
            search(query)
            row.seconds[name].append(time.perf_counter() - began)
    bench.rows.append(row)
    return row


def _load(store: holdall.Store, items: Iterable[Any]) -> None:
    for some in _slices(items):
        store.execute([holdall.ops.Put(*item) for item in some])


def _slices(items: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(items)
    while some := list(itertools.islice(left, 1000)):
        yield some
