"""Searching at up to a million entries: what each question costs as the store grows, beside what others take.

The parts, each a module here, may be measured alone:

- `text`: SQLite with values of 120 words of 10,000 users and one namespace of 10,000, beside tantivy, a bare FTS5 table
  and langgraph's `SqliteStore`; at each of the sizes, for the plot.
- `vectors`: SQLite with 1,000,000 vectors of 256 dimensions: time, recall, memory, hybrid search.
- `postgres`: 100,000 such vectors, beside langgraph's `PostgresStore` with its HNSW index.
- `redis`: hybrid search among 50,000.
- `moves`: a move of a folder of 100,000 files on each engine, beside another writer.

The environment variable `HOLDALL_SCALE` holds options, such as `--entries 10000 --only text`; the same options follow
`python -m benchmarks.scale`. All that is stored is made from fixed seeds, and nothing is kept between runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..harness import Bench
from .costs import Costs

PARTS = ("text", "vectors", "postgres", "redis", "moves")
OPTIONS = "HOLDALL_SCALE"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each part stores."""

    entries: tuple[int, ...]
    vectors: int
    postgres: int
    redis: int
    moves: int
    costs: Costs = field(default_factory=Costs)


def run(bench: Bench) -> None:
    options = parse(shlex.split(os.environ.get(OPTIONS, "")))
    sizes = Sizes(tuple(options.entries), options.vectors, options.postgres, options.redis, options.moves)
    for part in options.only:
        measure: Callable[[Bench, Sizes], None] = importlib.import_module(f"{__package__}.{part}").measure
        measure(bench, sizes)
    if options.plot is not None:
        from .plot import draw

        options.plot.write_text(draw(sizes.costs))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options of this section. A mistake ends the process with a message."""
    return parser().parse_args(arguments)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="Measure search at many entries.")
    made.add_argument("--only", type=_parts, default=PARTS, metavar="PARTS", help=f"some of {','.join(PARTS)}")
    made.add_argument(
        "--entries",
        type=_counts,
        default=(1_000, 10_000, 100_000, 1_000_000),
        metavar="COUNTS",
        help="sizes of the stores of texts, such as 10000,100000",
    )
    made.add_argument("--vectors", type=int, default=1_000_000, help="vectors on SQLite")
    made.add_argument("--postgres", type=int, default=100_000, help="vectors on PostgreSQL")
    made.add_argument("--redis", type=int, default=50_000, help="vectors on Redis")
    made.add_argument("--moves", type=int, default=100_000, help="files in a folder that is moved, on each engine")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw cost against size there, as SVG")
    return made


def _parts(words: str) -> tuple[str, ...]:
    parts = tuple(words.split(","))
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no part is called {', '.join(unknown)}: there are {', '.join(PARTS)}")
    return parts


def _counts(words: str) -> tuple[int, ...]:
    counts = tuple(sorted(int(word) for word in words.split(",")))
    if counts[0] < 1_000:
        raise argparse.ArgumentTypeError("at least 1,000 entries: fewer have no 100 users of 10 entries")
    return counts
