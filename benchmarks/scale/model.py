"""The vectors, and how searches by them are measured on every engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

import holdall

from ..data import Item, clustered_vectors
from ..harness import OURS, Bench, Row, Score, at_most
from .corpus import ASKED_WORDS, USERS, make_texts, user
from .costs import ask

Metric: TypeAlias = Literal["cosine", "dot", "l2"]
METRICS: tuple[Metric, ...] = ("cosine", "dot", "l2")
DIMS, WORDS, BEST = 256, 12, 10
#: The parts that a hybrid search consists of, and both together.
TEXT_HALF, VECTOR_HALF, HALVES = "text half", "vector half", "both halves"
_BLOCK = 50_000


class Model:
    """An embedder that knows the vector of each text by the number at its end, and the right answers."""

    def __init__(self, count: int, asked: int) -> None:
        self.count, self.users = count, min(USERS, count // 10)
        self.rows = clustered_vectors(count + asked, DIMS)
        texts = (f"{words} {number}" for number, words in enumerate(make_texts(count + asked, WORDS)))
        self._texts = list(texts)
        #: The texts of the vectors that are not stored.
        self.queries = [" ".join(text.split()[-ASKED_WORDS - 1 :]) for text in self._texts[count:]]

    def items(self) -> Iterator[Item]:
        for number, text in enumerate(self._texts[: self.count]):
            yield self.namespace(number), str(number), {"text": text}

    def namespace(self, number: int) -> tuple[str, ...]:
        return user(number % self.users)

    def embed(self, texts: Sequence[str]) -> Any:
        return self.rows[[_number(text) for text in texts]]

    def embed_lists(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = self.embed(texts).tolist()
        return vectors

    def nearest(self) -> dict[Metric, list[set[int]]]:
        """The ten nearest vectors to each query by each metric, all compared."""
        queries, stored = self.rows[self.count :], self.rows[: self.count]
        found = {metric: _Best(len(queries)) for metric in METRICS}
        for start in range(0, self.count, _BLOCK):
            block = stored[start : start + _BLOCK]
            products = queries @ block.T
            squares = np.einsum("ij,ij->i", block, block)
            found["dot"].add(start, products)
            found["cosine"].add(start, products / np.sqrt(squares))
            found["l2"].add(start, 2 * products - squares)
        return {metric: best.numbers() for metric, best in found.items()}


class _Best:
    """The ten highest scores of each query, of those seen so far."""

    def __init__(self, queries: int) -> None:
        self._scores: Any = np.full((queries, BEST), -np.inf, np.float32)
        self._numbers: Any = np.zeros((queries, BEST), np.int64)

    def add(self, start: int, scores: Any) -> None:
        least = self._scores.min(axis=1)
        if start == 0:
            least = np.nextafter(np.partition(scores, -BEST, axis=1)[:, -BEST], np.float32(-np.inf))
        for query in np.flatnonzero(scores.max(axis=1) > least):
            better = np.flatnonzero(scores[query] > least[query])
            known = np.concatenate([self._scores[query], scores[query, better]])
            numbers = np.concatenate([self._numbers[query], better + start])
            best = np.argsort(-known, kind="stable")[:BEST]
            self._scores[query], self._numbers[query] = known[best], numbers[best]

    def numbers(self) -> list[set[int]]:
        return [set(row) for row in self._numbers.tolist()]


def _number(text: str) -> int:
    """The number at the end of a text; 0 if there is none, as in the text that a store knows a model by."""
    last = text.rpartition(" ")[2]
    return int(last) if last.isdecimal() else 0


def recall(bench: Bench, what: str, found: Mapping[str, Sequence[set[int]]], right: Sequence[set[int]]) -> None:
    """A score for each contender: the part of the right answers that it found."""
    for name, answers in found.items():
        part = sum(len(answer & wanted) for answer, wanted in zip(answers, right, strict=True)) / BEST / len(right)
        bench.scores.append(
            Score(f"{name}: {bench.part}, {what}", {"recall@10": part}, {"recall@10": 0.99} if name == OURS else None)
        )


def numbers(hits: Sequence[Any]) -> set[int]:
    return {int(hit.key) for hit in hits}


def hybrid(bench: Bench, what: str, store: holdall.Store, questions: Sequence[tuple[tuple[str, ...], str]]) -> Row:
    """A row for hybrid searches beside their halves, in turns.

    Each mode gets a third of the questions. The second to ask a question would find what the first has read in the
    memory of the server: on PostgreSQL, it took 13 ms of CPU time where the first took 23.
    """

    def search(mode: Any, third: int) -> Any:
        return lambda asked: store.search(asked[third][0], query=asked[third][1], mode=mode)

    modes = {OURS: search("hybrid", 0), TEXT_HALF: search("lexical", 1), VECTOR_HALF: search("semantic", 2)}
    row = ask(bench, what, modes, list(zip(*[iter(questions)] * 3, strict=False)))
    halves = zip(row.seconds[TEXT_HALF], row.seconds[VECTOR_HALF], strict=True)
    row = replace(row, seconds={**row.seconds, HALVES: [sum(pair) for pair in halves]}, target=at_most(1.2, HALVES))
    bench.rows[-1] = row
    return row
