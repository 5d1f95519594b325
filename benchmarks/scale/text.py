"""Texts on SQLite: loading, indexing, searching, filtering, counting and deleting, at each size."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore

import holdall
from holdall.search.tokens import parse_query, tokens

from ..data import Item
from ..harness import OURS, Bench, Size, Target, at_least, at_most, within
from ..writer import another_writer
from . import footprint
from .corpus import ARCHIVE, WORDS, Corpus, Question
from .costs import Costs, ask, once, rate, timed
from .files import bytes_of
from .peers import FTS5, TANTIVY, BareFts5, Peer, Tantivy

if TYPE_CHECKING:
    from . import Sizes

SQLITE, ALONE = "SqliteStore", "holdall, nothing else"
#: Stores of fewer entries are held to no target: constant costs outweigh what grows.
_HELD = 100_000
_ASKED = 60
_AT_ONCE = 1000
_PATIENCE = 60.0  # seconds for what is done in the background
_CLEARING = 5.0  # seconds after delete_tree in which the writer goes on, as the tree is cleared in the background
_OLD_DAY = 7


def measure(bench: Bench, sizes: Sizes) -> None:
    bench.note(f"{TANTIVY} and {FTS5} give numbers of documents, holdall the entries with their values")
    bench.note(f"{TANTIVY} keeps word frequencies without positions, and does not count what matches")
    for count in sizes.entries:
        _At(bench, sizes.costs, count).measure()


class _At:
    """One size: its texts, our store and the peers'."""

    def __init__(self, bench: Bench, costs: Costs, count: int) -> None:
        self._bench, self._costs, self._count = bench, costs, count
        bench.progress(f"making {count:,} texts")
        self._corpus = Corpus(count)
        self._folder = bench.folder / f"text-{count}"
        self._folder.mkdir()
        (self._folder / "ours").mkdir()
        self._url = str(self._folder / "ours" / "store.db")
        self._is_held = count >= _HELD
        bench.part = f"{count:,} texts on SQLite"

    def measure(self) -> None:
        with ExitStack() as stack:
            tantivy = Tantivy(self._folder / "tantivy")
            fts5 = stack.enter_context(closing(BareFts5(self._folder / "fts5.db")))
            langgraph = stack.enter_context(SqliteStore.from_conn_string(str(self._folder / "langgraph.db")))
            langgraph.setup()
            self._load(langgraph)
            before = bytes_of(Path(self._url))
            store = stack.enter_context(holdall.open(self._url))
            self._index(store, tantivy, fts5, before)
            self._search(store, tantivy, fts5)
            self._beside_nothing_else(store)
            self._filter(store, langgraph)
            self._count_all(store)
            self._footprint()
            self._delete_all(store)

    def _held(self, target: Target) -> Target | None:
        return target if self._is_held else None

    # Loading ---------------------------------------------------------------------------------------------------------

    def _load(self, langgraph: SqliteStore) -> None:
        """Full text is off for this: then no index is made in the background, whose time would count here or there."""
        with holdall.open(self._url, full_text=False) as store:
            spent = {OURS: self._load_all(OURS, partial(_put_all, store))}
        batches = self._load_all(SQLITE, lambda items: langgraph.batch([PutOp(*item) for item in items]))
        rate(self._bench, "loading", {**spent, SQLITE: batches}, len(self._corpus))

    def _load_all(self, name: str, put: Callable[[list[Item]], object]) -> float:
        spent, loaded = 0.0, 0
        for items in slices(self._corpus.items()):
            spent += timed(partial(put, items))
            loaded += len(items)
            self._bench.progress(f"loading {self._count:,} into {name}: {loaded:,}")
        return spent

    def _index(self, store: holdall.Store, tantivy: Tantivy, fts5: BareFts5, before: dict[str, int]) -> None:
        """The first search makes the index of all texts. `before` is what the store took on disk without it."""
        corpus, bench = self._corpus, self._bench
        bench.progress(f"the first search of {self._count:,}")
        [(_, words)] = corpus.questions(1)
        spent = {OURS: timed(lambda: store.search((), query=words))}
        once(bench, "first search after loading", spent)
        peers: dict[str, Peer] = {TANTIVY: tantivy, FTS5: fts5}
        for name, peer in peers.items():
            bench.progress(f"indexing {self._count:,} with {name}")
            spent[name] = timed(partial(peer.load, corpus))
            peer.settle()
        self._costs.add("index of all texts", self._count, spent)
        rate(bench, "indexing", spent, len(corpus), self._held(at_least(0.25, TANTIVY)))
        if self._is_held:
            bench.also(within(1 / 20_000, "at least 20,000/s"))
        after = bytes_of(Path(self._url))
        grown = {name: (size - before.get(name, 0)) / len(corpus) for name, size in after.items()}
        sizes = {OURS: sum(grown.values()), TANTIVY: tantivy.bytes() / len(corpus), FTS5: fts5.bytes() / len(corpus)}
        what = f"text index of an entry of {WORDS} words, {self._count:,} entries"
        bench.sizes.append(Size(what, sizes, "bytes", 400 if self._is_held else None))
        shown = ", ".join(f"{name} {size:.0f}" for name, size in grown.items() if size >= 1)
        bench.note(f"bytes of the text index an entry, {self._count:,}: {shown}")

    # Searching -------------------------------------------------------------------------------------------------------

    def _search(self, store: holdall.Store, tantivy: Tantivy, fts5: BareFts5) -> None:
        corpus = self._corpus
        contenders: dict[str, Callable[[Question], list[int]]] = {
            OURS: partial(_numbers, store),
            TANTIVY: tantivy.search,
            FTS5: fts5.search,
        }
        fewer = {FTS5: 10}

        def row(what: str, short: str, questions: list[Question], target: Target | None = None) -> None:
            self._check(contenders, questions[:3])
            found = ask(self._bench, what, contenders, questions, target=target, fewer=fewer)
            self._costs.add_row(short, self._count, found)

        everywhere: list[Question] = [((), words) for _, words in corpus.questions(_ASKED)]
        target = self._held(at_most(4, TANTIVY))
        row("6 words in the whole store", "6 words, whole store", everywhere, target)
        each = f"6 words in a user's namespace of {corpus.each}"
        row(each, "6 words, one user", corpus.questions(_ASKED), self._held(within(0.005)))
        large = f"6 words in a namespace of {corpus.large:,}"
        row(
            large,
            "6 words, namespace of 10,000",
            corpus.large_questions(_ASKED),
            self._held(within(0.015)),
        )
        new = itertools.count()

        def put_then_search(question: Question) -> None:
            namespace, words = question
            key = f"new-{next(new)}"
            store.put(namespace, key, {"text": words, "day": -1})
            assert key in {hit.key for hit in store.search(namespace, query=words)}, "a search misses the put before it"

        what, target = "put, then search that namespace", self._held(within(0.006))
        found = ask(self._bench, what, {OURS: put_then_search}, corpus.questions(_ASKED), target=target)
        self._costs.add_row("put, then search there", self._count, found)

    def _check(self, contenders: dict[str, Callable[[Question], list[int]]], questions: list[Question]) -> None:
        """That whatever is found is inside the namespace and shares a word with the question."""
        for question in questions:
            namespace, words = question
            terms = set(parse_query(words).terms)
            for name, search in contenders.items():
                found = search(question)
                assert found, f"{name} finds nothing for {question}"
                for number in found:
                    assert terms & set(tokens(self._corpus.texts[number])), f"{name} finds {number} for {question}"
                    assert self._corpus.namespace(number)[: len(namespace)] == namespace, f"{name} looks elsewhere"

    def _beside_nothing_else(self, store: holdall.Store) -> None:
        """The same questions to a store that holds one namespace only."""
        for namespace in (self._corpus.namespace(1), ARCHIVE):
            items = self._corpus.items_in(namespace)
            with holdall.open(str(self._folder / f"{namespace[-1]}.db")) as alone:
                for some in slices(items):
                    _put_all(alone, some)
                contenders = {OURS: partial(_numbers, store), ALONE: partial(_numbers, alone)}
                ask(
                    self._bench,
                    f"6 words in a namespace of {len(items):,}, and in a store of it",
                    contenders,
                    self._corpus.questions_in(items, _ASKED),
                    target=self._held(at_most(2, ALONE)),
                )

    # Filters, counts and trees ---------------------------------------------------------------------------------------

    def _filter(self, store: holdall.Store, langgraph: SqliteStore) -> None:
        """Entries of one day of a thousand: of an old one, so that nothing is found among the newest."""
        bench, wanted = self._bench, {"day": _OLD_DAY}
        first = timed(lambda: store.search((), filter=wanted))
        theirs = timed(lambda: langgraph.search(("users",), filter=wanted))
        what = "filter on an undeclared field, 1 in 1,000"
        once(bench, f"{what}: the first", {OURS: first, SQLITE: theirs})
        if self._is_held:
            waited = _until_faster(lambda: store.search((), filter=wanted), first / 5)
            after = f"not within {_PATIENCE:.0f} s" if waited is None else f"{waited:.1f} s later"
            bench.note(f"the filter on an undeclared field was five times as fast {after}, {self._count:,} entries")
        days = list(range(20, 60))
        contenders: dict[str, Callable[[int], object]] = {
            OURS: lambda day: store.search((), filter={"day": day}),
            SQLITE: lambda day: langgraph.search(("users",), filter={"day": day}),
        }
        target = self._held(within(0.010))
        found = ask(bench, f"{what}: 10 of them", contenders, days, target=target, fewer={SQLITE: 5}, warm_up=2)
        self._costs.add_row("filter, undeclared field", self._count, found)
        every = {OURS: lambda day: store.search((), filter={"day": day}, limit=2_000)}
        ask(bench, f"{what}: all of them", every, days[:12], warm_up=2)

    def _count_all(self, store: holdall.Store) -> None:
        assert store.count() >= len(self._corpus)
        target = self._held(within(0.005))
        found = ask(self._bench, "count of everything", {OURS: lambda _: store.count()}, range(15), target=target)
        self._costs.add_row("count of everything", self._count, found)

    def _footprint(self) -> None:
        bench = self._bench
        if not self._is_held:
            return
        bench.progress(f"memory and event loop while {self._count:,} are searched")
        words = [{"prefix": (), "query": words} for _, words in self._corpus.questions(200)]
        inside = [{"prefix": place, "query": words} for place, words in self._corpus.questions(200)]
        cost = footprint.of_searches(self._url, {}, list(itertools.chain(*zip(words, inside, strict=True))))
        bench.sizes.append(Size(f"memory for searches of {self._count:,} texts", {OURS: cost.memory / 1e6}, "MB", 300))
        what = f"a tick of 1 ms is late, 99th percentile, {footprint.TASKS} tasks search"
        once(bench, what, {OURS: cost.busy, "idle": cost.alone}, within(0.020))
        bench.note(
            f"{cost.searches:,} searches were done beside the ticker in {footprint.SECONDS:g} s, {self._count:,}"
        )

    def _delete_all(self, store: holdall.Store) -> None:
        bench = self._bench
        bench.progress(f"deleting {self._count:,}")
        with another_writer(self._url) as stop:
            time.sleep(2)
            before = stop()
        with another_writer(self._url) as stop:
            time.sleep(0.5)
            there = store.count(("users",))
            began = time.perf_counter()
            deleted = store.delete_tree(("users",))
            spent = time.perf_counter() - began
            time.sleep(_CLEARING)
            waits = stop()
        assert deleted == there, f"delete_tree counted {deleted:,} of {there:,}"
        assert store.count(("users",)) == 0
        found = once(bench, "delete_tree of all users", {OURS: spent}, self._held(within(1.0)))
        self._costs.add_row("delete_tree of all", self._count, found)
        what = "longest wait of another writer meanwhile"
        once(bench, what, {OURS: max(waits), "idle": max(before)}, self._held(within(0.050)))


def slices(items: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(items)
    while some := list(itertools.islice(left, _AT_ONCE)):
        yield some


def _put_all(store: holdall.Store, items: Iterable[Item]) -> None:
    store.execute([holdall.ops.Put(*item) for item in items])


def _numbers(store: holdall.Store, question: Question) -> list[int]:
    namespace, words = question
    return [int(hit.key) for hit in store.search(namespace, query=words) if hit.key.isdecimal()]


def _until_faster(work: Callable[[], object], limit: float) -> float | None:
    """Seconds until this takes less than the limit thrice; None if that was too long to wait for."""
    began, in_a_row = time.perf_counter(), 0
    while time.perf_counter() - began < _PATIENCE:
        in_a_row = in_a_row + 1 if timed(work) < limit else 0
        if in_a_row == 3:
            return time.perf_counter() - began
        time.sleep(0.1)
    return None
