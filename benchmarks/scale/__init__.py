"""Searching at up to a million entries: what each question costs as the store grows, beside what others take.

The parts, each a module here, may be measured alone:

- `text`: SQLite with values of 120 words of 10,000 users and one namespace of 10,000, beside tantivy, a bare FTS5 table
  and langgraph's `SqliteStore`; at each of the sizes, for the plot.
- `vectors`: SQLite with 1,000,000 vectors of 256 dimensions: time, recall, memory, hybrid search.
- `postgres`: 100,000 such vectors, beside langgraph's `PostgresStore` with its HNSW index.
- `redis`: hybrid search among 50,000.
- `moves`: a move of a folder of 100,000 files on each engine, beside another writer.

The environment variable `HOLDALL_SCALE` holds options, such as `--entries 10000 --only text`; `--help` lists them. All
that is stored is made from fixed seeds, and nothing is kept between runs.
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
from .plot import draw

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
        if part == "text" and options.plot is not None:  # now: a later part may fail
            options.plot.write_text(draw(sizes.costs))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options of this section. A mistake ends the process with a message."""
    parser = argparse.ArgumentParser(prog=OPTIONS, description="Measure search at many entries.")
    parser.add_argument("--only", type=_parts, default=PARTS, metavar="PARTS", help=f"some of {','.join(PARTS)}")
    parser.add_argument(
        "--entries",
        type=_counts,
        default=(1_000, 10_000, 100_000, 1_000_000),
        metavar="COUNTS",
        help="sizes of the stores of texts, such as 10000,100000",
    )
    parser.add_argument("--vectors", type=int, default=1_000_000, help="vectors on SQLite")
    parser.add_argument("--postgres", type=int, default=100_000, help="vectors on PostgreSQL")
    parser.add_argument("--redis", type=int, default=50_000, help="vectors on Redis")
    parser.add_argument("--moves", type=int, default=100_000, help="files in a folder that is moved, on each engine")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw cost against size there, as SVG")
    options = parser.parse_args(arguments)
    if options.plot is not None and ("text" not in options.only or len(options.entries) < 2):
        parser.error("--plot needs the part text, and --entries with two sizes or more")
    return options


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
