"""What a question holds in memory at once: some files, however many there are to look at."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from support import processes, stores

NS = ("docs",)
MB = 1_000_000
SIZE = 10 * MB


@pytest.mark.parametrize("engine", stores.ENGINES)
def test_large_files_are_looked_at_a_few_at_a_time(
    engine: str, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    count = scaled(8, 60)
    peaks = dict(
        processes.run(look_at_large_files, at=stores.new_location(engine, tmp_path), count=count, deadline=600)
    )
    # One file takes two or three times its size: its pieces, its bytes, its text. An embedder needs further copies.
    assert peaks.pop("reindex") < 7 * SIZE
    assert {question: peak // MB for question, peak in peaks.items() if peak > 4 * SIZE} == {}
    assert peaks.keys() == {"scan", "count", "filter", "words", "hybrid", "rest"}


def look_at_large_files(at: dict[str, str], count: int) -> None:
    filler = ("x" * 999 + "\n") * (SIZE // 1000)
    numbered = {"content": {"$contains": "number 0\n"}}  # the oldest one
    with stores.open_at(at, embed=embed, metric="dot") as store:
        for number in range(count):
            store.put(NS, f"/{number:02}.txt", {"content": f"needle\nnumber {number}\nword{number}\n{filler}"})
        store.search(NS, query="needle", mode="lexical", limit=1)  # indexes them
        questions: dict[str, Callable[[], Any]] = {
            "scan": lambda: _exhaust(store.scan(NS)) == count,
            "count": lambda: store.count(NS, filter=numbered) == 1,
            "filter": lambda: _keys(store.search(NS, filter=numbered, limit=1)) == ["/00.txt"],
            "words": lambda: len(store.search(NS, query='"needle"', mode="lexical", filter=numbered, limit=5)) == 1,
            "hybrid": lambda: len(store.search(NS, query="needle", filter=numbered, limit=5)) == 1,
            "rest": lambda: len(store.search(NS, query="word0", mode="lexical", rest=True, limit=1)) == 1,
        }
        for question, ask in questions.items():
            _report_peak(question, ask)
        with stores.open_at(at, embed=embed_otherwise, metric="dot") as other:
            _report_peak("reindex", lambda: other.reindex() == count)


def embed(texts: list[str]) -> list[list[float]]:
    return [[1.0, 0.0] for _ in texts]


def embed_otherwise(texts: list[str]) -> list[list[float]]:
    return [[0.0, 1.0, 0.0] for _ in texts]


def _report_peak(question: str, ask: Callable[[], Any]) -> None:
    tracemalloc.start()
    assert ask(), question
    processes.report((question, tracemalloc.get_traced_memory()[1]))
    tracemalloc.stop()


def _exhaust(entries: Iterable[Any]) -> int:
    return sum(1 for _ in entries)


def _keys(hits: Iterable[Any]) -> list[str]:
    return [hit.key for hit in hits]
