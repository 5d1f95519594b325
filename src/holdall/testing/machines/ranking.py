"""A Hypothesis state machine that compares every ranked search of an engine with a brute-force ranking.

Entries and files are put, changed, expired and deleted, through two stores at the same URL, with an embedder and
without. The model keeps the entries, and how each was put. For each search, it scores all of its entries with the same
functions (`search.scoring.bm25`, `search.vectors.score`), and sorts them.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ... import ops
from ...core.store import Store
from ...errors import HoldallError
from ...model import field_paths, filters
from ...ops import Entry, Namespace
from ...search import ranking, scoring, tokens, vectors
from ...search.embedders import METRICS
from ..caller import Caller
from ..clock import Clock
from ..embedder import embed

WORDS = ["apple", "apples", "pie", "café", "the", "who", "東京"]
QUERIES = [
    "apple",
    "the cafes",
    "pie café",
    '"apple pie"',
    'apple "the who"',
    "東京都",
    "who",
    "'; --",
    "zebra apple pie 東",
]
VOLUME = ("a",)
PATHS = ["/f", "/d/g", "/d/h"]

namespaces = st.sampled_from([("a",), ("a", "b"), ("ab",)])
prefixes = st.sampled_from([(), ("a",), ("a",), ("a", "b"), ("ab",), ("c",)])
entry_keys = st.sampled_from(["k0", "k1", "k2", "k3"])
paths = st.sampled_from(PATHS)
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
items = st.fixed_dictionaries(
    {"title": texts}, optional={"kind": st.sampled_from(["x", "y"]), "tags": st.lists(texts, max_size=3)}
)
shapes = st.builds(lambda text: {"content": text}, texts) | st.just({"content": "/w==", "encoding": "base64"})
indexes = st.sampled_from([None, None, None, False, ["title"], ["tags[*]", "content"], ["nowhere"]])
lifetimes = st.sampled_from([None, None, None, 5])
mostly = st.sampled_from([True, True, False])
conditions = st.sampled_from([None, None, {"kind": "x"}, {"kind": {"$ne": "x"}}, {"content": {"$contains": "pie"}}])
parts = st.sampled_from([0, 0, 0.3, 1])
modes = st.sampled_from(["lexical", "semantic", "hybrid"])
either = st.sampled_from([0, 1])  # of the two stores


def ranking_machine(
    open_store: Callable[[Path, Clock], Store], *, use_async: bool = False
) -> type[RuleBasedStateMachine]:
    """A state machine for ranked searches in the stores that `open_store(folder, clock)` opens.

    Called again with the same folder, `open_store` must open the same store. In a test file:

        TestRanking = ranking_machine(lambda folder, clock: holdall.open(folder / "x.db", clock=clock)).TestCase
    """

    class Machine(_RankingMachine):
        def open_subject(self, folder: Path, clock: Clock) -> Store:
            return open_store(folder, clock)

    Machine.use_async = use_async
    Machine.__qualname__ = Machine.__name__ = "RankingMachine"
    return Machine


# The model -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """An entry in the model: the arguments of its put, and its current state."""

    entry: Entry
    index: Any = None
    is_file: bool = False
    vectors: tuple[bytes, ...] = ()

    @property
    def texts(self) -> list[str]:
        """The texts that full-text search indexes."""
        if self.index is False:
            return []
        if self.is_file and self.index is None:
            return [text for text in [body(self.entry.value)] if text is not None]
        return field_paths.find_strings(self.entry.value, tuple(self.index or field_paths.WHOLE))

    @property
    def embedded(self) -> list[str]:
        """The texts that have vectors, if an embedder made any."""
        if self.index is False:
            return []
        if self.is_file and self.index is None:
            return [text for text in [body(self.entry.value)] if text is not None and text.strip()]
        return field_paths.find_texts(self.entry.value, tuple(self.index or field_paths.WHOLE))

    def lives(self, now: datetime) -> bool:
        return self.entry.expires_at is None or self.entry.expires_at > now


def body(value: dict[str, Any]) -> str | None:
    """The text of a file, or None if it is binary."""
    if value.get("encoding") != "base64":
        return str(value["content"])
    with suppress(UnicodeDecodeError):
        return base64.b64decode(value["content"]).decode()
    return None


def vector(text: str) -> bytes:
    """Embed texts as vectors of different lengths, so that the metrics differ."""
    [numbers] = lengthened([text])
    return array("f", numbers).tobytes()


def lengthened(given: Iterable[str]) -> list[list[float]]:
    """Scale the vectors of the test embedder."""
    listed = list(given)
    return [
        [number * (1 + len(text) % 3) for number in numbers]
        for text, numbers in zip(listed, embed(listed), strict=True)
    ]


def by_text(everything: list[Known], query: tokens.Query) -> dict[int, float]:
    """Score each version that contains a term of the query."""
    counted = [(known.entry.version, Counter(token for text in known.texts for token in tokens.tokens(text)))
               for known in everything]  # fmt: skip
    documents = [(version, counts) for version, counts in counted if counts]
    lengths = [sum(counts.values()) for _, counts in documents]
    parts: list[list[scoring.Part]] = []
    for term in query.terms:
        having = [number for number, (_, counts) in enumerate(documents) if term in counts]
        parts.append([(array("I", having), bytes(documents[number][1][term] for number in having))])
    scores = scoring.bm25(parts, lengths, len(documents), sum(lengths))
    return {documents[number][0]: score for number, score in scores.items()}


def in_order(scores: dict[int, float]) -> list[tuple[int, float]]:
    """Sort by score, and by age, newest first, where scores are equal."""
    return sorted(scores.items(), key=lambda item: (item[1], item[0]), reverse=True)


def lent(
    scores: dict[int, float], fitting: Collection[int], living: Iterable[Known], part: float, *, is_distance: bool
) -> dict[int, float]:
    """Let the best lend a part of their scores to the nearest entries before and after them that match."""
    lenders = dict(in_order(scores)[: ranking.LENDERS])
    zero = min(lenders.values(), default=0.0) if is_distance else 0.0
    orders: dict[Namespace, list[Entry]] = {}
    for known in sorted(living, key=lambda known: (known.entry.created_at, known.entry.key)):
        orders.setdefault(known.entry.namespace, []).append(known.entry)
    gains: dict[int, float] = {}
    for order in orders.values():
        for number, entry in enumerate(order):
            gain = (lenders.get(entry.version, zero) - zero) * part
            for side in (order[:number][::-1], order[number + 1 :]):
                near = [other for other in side[: ranking.WINDOW] if other.version in fitting]
                if near and gain > 0 and abs(near[0].created_at - entry.created_at) <= timedelta(hours=1):
                    gains[near[0].version] = max(gains.get(near[0].version, 0.0), gain)
    return scores | {version: scores.get(version, zero) + gain for version, gain in gains.items()}


def fused(lexical: dict[int, float], semantic: dict[int, float], most: int) -> list[tuple[int, float]]:
    """Fuse the best of both rankings; then add the rest, first by vector, then by text."""
    ranked = scoring.fuse(dict(in_order(lexical)[:most]), dict(in_order(semantic)[:most]), most)
    seen = {version for version, _ in ranked}
    lowest = min((score for _, score in ranked), default=0.0)
    for scores in (semantic, lexical):
        rest = [(version, lowest) for version, _ in in_order(scores) if version not in seen]
        ranked += rest
        seen |= {version for version, _ in rest}
    return ranked


# The machine ---------------------------------------------------------------------------------------------------------


class _RankingMachine(RuleBasedStateMachine):
    use_async = False

    def open_subject(self, folder: Path, clock: Clock) -> Store:
        raise NotImplementedError

    @initialize(metric=st.sampled_from(METRICS))
    def begin(self, metric: Any) -> None:
        self.clock = Clock()
        self.metric = metric
        self.folder = Path(tempfile.mkdtemp(prefix="holdall-machine-"))
        self.runner = asyncio.Runner() if self.use_async else None
        self.stores = [self.open(), self.open()]
        self.views = [self.view(store) for store in self.stores]
        self.known: dict[tuple[Namespace, str], Known] = {}  # what has expired too, until it is swept
        self.steps = 0

    def open(self) -> Caller:
        return Caller(self.open_subject(self.folder, self.clock), self.runner)

    def store(self, which: int, embeds: bool) -> Caller:
        """Return a store, or a view of it with an embedder."""
        return self.views[which] if embeds else self.stores[which]

    def view(self, store: Caller) -> Caller:
        return Caller(store.store.with_embedder(lengthened, metric=self.metric), self.runner)

    def teardown(self) -> None:
        if hasattr(self, "stores"):
            for store in self.stores:
                store.store.close()
            if self.runner is not None:
                self.runner.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def note(
        self,
        namespace: Namespace,
        key: str,
        known: Known | None = None,
        *,
        is_file: bool = False,
        embeds: bool = False,
    ) -> None:
        """Update the model after an entry was written."""
        entry = self.stores[0].get(namespace, key)
        assert entry is not None
        written = replace(known, entry=entry) if known else Known(entry, is_file=is_file)
        if embeds:
            written = replace(written, vectors=tuple(map(vector, written.embedded)))
        self.known[namespace, key] = written

    def living(self, prefix: Namespace = ()) -> dict[tuple[Namespace, str], Known]:
        return {
            address: known
            for address, known in self.known.items()
            if address[0][: len(prefix)] == prefix and known.lives(self.clock.now)
        }

    # Steps -----------------------------------------------------------------------------------------------------------

    @rule(which=either, namespace=namespaces, key=entry_keys, value=items, index=indexes, ttl=lifetimes, embeds=mostly)
    def put(self, which: int, namespace: Namespace, key: str, value: Any, index: Any, ttl: Any, embeds: bool) -> None:
        entry = self.store(which, embeds).put(namespace, key, value, search_fields=index, ttl=ttl)
        self.note(namespace, key, Known(entry, index), embeds=embeds)

    @rule(which=either, path=paths, value=shapes | items, index=indexes, ttl=lifetimes, embeds=mostly)
    def put_file(self, which: int, path: str, value: Any, index: Any, ttl: Any, embeds: bool) -> None:
        """Put an item that is, or is not, a file's value."""
        entry = self.store(which, embeds).put(VOLUME, path, value, search_fields=index, ttl=ttl)
        self.note(VOLUME, path, Known(entry, index, "content" in value), embeds=embeds)

    @rule(which=either, namespace=namespaces, values=st.lists(items, min_size=2, max_size=6), embeds=mostly)
    def put_many(self, which: int, namespace: Namespace, values: list[Any], embeds: bool) -> None:
        self.store(which, embeds).execute([ops.Put(namespace, f"k{n % 4}", value) for n, value in enumerate(values)])
        for n in range(min(4, len(values))):
            self.note(namespace, f"k{n}", embeds=embeds)

    @rule(which=either, namespace=namespaces, key=entry_keys, title=texts, embeds=mostly)
    def update(self, which: int, namespace: Namespace, key: str, title: str, embeds: bool) -> None:
        old = self.living().get((namespace, key))
        entry = self.store(which, embeds).update(namespace, key, lambda value: {"title": title}, default={})
        self.note(namespace, key, Known(entry, old.index if old else None), embeds=embeds)

    @rule(which=either, namespace=namespaces, key=entry_keys)
    def delete(self, which: int, namespace: Namespace, key: str) -> None:
        if self.stores[which].delete(namespace, key):
            del self.known[namespace, key]

    @rule(which=either)
    def delete_tree(self, which: int) -> None:
        self.stores[which].delete_tree(("a", "b"))
        for address in self.living(("a", "b")):
            del self.known[address]

    @rule(which=either, path=paths, content=texts | st.just(b"apple\xff"))
    def write(self, which: int, path: str, content: Any) -> None:
        with suppress(HoldallError):  # a folder is in the way
            self.stores[which].files(VOLUME).write(path, content)
            self.note(VOLUME, path, is_file=True)

    @rule(which=either, path=paths, more=texts)
    def append(self, which: int, path: str, more: str) -> None:
        old = self.living().get((VOLUME, path))
        with suppress(HoldallError):  # or an item
            self.stores[which].files(VOLUME).append(path, " " + more)
            self.note(VOLUME, path, replace(old, vectors=()) if old else None, is_file=True)

    @rule(which=either, src=st.sampled_from([*PATHS, "/d"]), dst=st.sampled_from([*PATHS, "/e"]), moves=st.booleans())
    def transfer(self, which: int, src: str, dst: str, moves: bool) -> None:
        volume = self.stores[which].files(VOLUME)
        tree = {
            path: known
            for (home, path), known in self.living(VOLUME).items()
            if home == VOLUME and known.is_file and (path == src or path.startswith(src + "/"))
        }
        try:
            (volume.move if moves else volume.copy)(src, dst)
        except HoldallError:
            return
        for path, known in tree.items() if src != dst else ():
            if moves:
                del self.known[VOLUME, path]
            self.note(VOLUME, dst + path[len(src) :], known)

    @rule(which=either)
    def reindex(self, which: int) -> None:
        self.views[which].reindex()
        for address, known in self.living().items():
            is_written_as_file = known.is_file and self.is_written_as_file(known.entry)
            if not known.vectors and not is_written_as_file:
                self.known[address] = replace(known, vectors=tuple(map(vector, known.embedded)))

    @rule(which=either, limit=st.integers(1, 4))
    def index_texts(self, which: int, limit: int) -> None:
        """Index some texts, as another process does during its search."""
        self.stores[which].store._engine_handle.engine.execute([ops.IndexTexts(limit)])

    @rule(which=either)
    def forget(self, which: int) -> None:
        """Purge all tombstones."""
        while self.stores[which].store._engine_handle.engine.execute([ops.PurgeTombstones(age=0)])[0]:
            pass

    @rule(which=either, namespace=namespaces, key=entry_keys, seconds=st.sampled_from([0, 1, 5, 3600, 10**10]))
    def backdate(self, which: int, namespace: Namespace, key: str, seconds: int) -> None:
        if known := self.living().get((namespace, key)):
            created = self.clock.now - timedelta(seconds=seconds)
            self.stores[which].execute([ops.Backdate(namespace, key, created_at=created)])
            self.note(namespace, key, known)

    @rule(seconds=st.sampled_from([1, 1, 4, 4, 1800, 3600]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(which=either)
    def sweep(self, which: int) -> None:
        self.stores[which].sweep()
        self.known = self.living()

    @precondition(lambda self: self.stores[0].store._engine_handle.engine.capabilities.durable)
    @rule(which=either)
    def reopen(self, which: int) -> None:
        self.stores[which].close()
        self.stores[which] = self.open()
        self.views[which] = self.view(self.stores[which])

    # Searching -------------------------------------------------------------------------------------------------------

    @rule(which=either, mode=modes, query=st.sampled_from(QUERIES), prefix=prefixes, recursive=st.booleans(),
          filter=conditions, rest=st.booleans(), neighbours=parts, limit=st.integers(1, 4),
          offset=st.integers(0, 6))  # fmt: skip
    def search(self, which: int, prefix: Namespace, offset: int, mode: Any, **asked: Any) -> None:
        self.compare(self.store(which, mode != "lexical"), prefix, offset, mode=mode, **asked)

    @rule(which=either, query=st.sampled_from(QUERIES), prefix=prefixes, filter=conditions, limit=st.integers(1, 4))
    def search_approximately(self, which: int, prefix: Namespace, limit: int, **asked: Any) -> None:
        """All pages together have what an exact search finds; each is in order, and has the same scores."""
        expected = self.expected(prefix, scoring.FUSED, mode="semantic", **asked)
        found: list[tuple[Namespace, str, float | None]] = []
        cursor = None
        while True:
            page = self.views[which].search(prefix, mode="semantic", limit=limit, cursor=cursor, **asked)
            assert shown(page) == [hit for hit in expected if hit in shown(page)]
            found += shown(page)
            cursor = page.next
            if cursor is None:
                break
            assert len(page) == limit
        assert sorted(found) == sorted(expected)

    @invariant()
    def everything_is_found(self) -> None:
        """Search by vectors after each step, and by text sometimes, so that several changes are indexed together."""
        if not hasattr(self, "stores"):
            return
        self.steps += 1
        for mode in ("semantic", "lexical", "hybrid")[: 1 if self.steps % 4 else 3]:
            part = self.steps % 8 and 0.5  # also without, which is the code that most searches use
            self.compare(self.views[self.steps % 2], (), 0, mode=mode, query="apple 京", limit=50, neighbours=part)

    def compare(self, store: Caller, prefix: Namespace, offset: int, limit: int, **asked: Any) -> None:
        """Compare an exact search, page by page, with the expected ranking."""
        expected = self.expected(prefix, scoring.fusion_depth(limit), **asked)
        asked["exact"] = True
        page = store.search(prefix, offset=offset, limit=limit, **asked)
        assert shown(page) == expected[offset : offset + limit]
        assert (page.next is not None) == (len(expected) > offset + limit)
        while page.next is not None:
            offset += limit
            page = store.search(prefix, cursor=page.next, limit=limit, **asked)
            assert shown(page) == expected[offset : offset + limit]

    def expected(
        self,
        prefix: Namespace,
        most: int,
        mode: str,
        query: str,
        recursive: bool = True,
        filter: Any = None,
        rest: bool = False,
        neighbours: float = 0,
    ) -> list[tuple[Namespace, str, float | None]]:
        parsed, matcher = tokens.parse_query(query), filters.parse(filter)
        inside = {
            known.entry.version: known
            for address, known in self.living(prefix).items()
            if (recursive or address[0] == prefix) and (matcher is None or matcher.matches(known.entry.value))
        }
        fitting = inside
        if mode != "semantic":
            fitting = {v: known for v, known in inside.items() if tokens.has_phrases(parsed, known.texts)}
        lexical = {v: score for v, score in by_text(list(self.known.values()), parsed).items() if v in fitting}
        wanted = vector(query)
        semantic = {
            v: vectors.score(wanted, known.vectors, self.metric) for v, known in fitting.items() if known.vectors
        }
        living = self.living().values()
        lexical = lent(lexical, fitting, living, neighbours, is_distance=False)
        semantic = lent(semantic, fitting, living, neighbours, is_distance=self.metric == "l2")
        ranked = {
            "lexical": in_order(lexical),
            "semantic": in_order(semantic),
            "hybrid": fused(lexical, semantic, most),
        }
        found: list[tuple[int, float | None]] = [*ranked[mode]]
        if rest:
            found += [(version, None) for version in sorted(inside.keys() - dict(found).keys(), reverse=True)]
        return [(inside[v].entry.namespace, inside[v].entry.key, score and round(score, 9)) for v, score in found]

    @staticmethod
    def is_written_as_file(entry: Entry) -> bool:
        """Whether it was written as a file, which stores its own times."""
        return "modified_at" in entry.value


def shown(page: Iterable[Any]) -> list[tuple[Namespace, str, float | None]]:
    return [(hit.namespace, hit.key, hit.score and round(hit.score, 9)) for hit in page]
