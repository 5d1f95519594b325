"""A move of a folder of many files on each engine: how long the call takes, and how long another writer waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import holdall

from ..harness import OURS, Bench, Row, within
from ..postgres import new_server as new_postgres
from ..redis import new_server as new_redis
from ..writer import another_writer
from .costs import load, once, put_all, timed

if TYPE_CHECKING:
    from . import Sizes

_HERE = ("tree",)
_IN_FOLDER = 100
_ALONE = 2.0  # seconds in which the writer is measured by itself
IDLE = "idle"


def measure(bench: Bench, sizes: Sizes) -> None:
    with ExitStack() as stack:
        folder = bench.folder / "redis-moves"
        folder.mkdir()
        urls = {
            "SQLite": str(bench.folder / "moves.db"),
            "PostgreSQL": next(stack.enter_context(new_postgres(bench))),
            "Redis": stack.enter_context(new_redis(folder)),
            "disk": f"disk:///{bench.folder}/moves",
        }
        for engine, url in urls.items():
            bench.part = f"a move of {sizes.moves:,} files on {engine}"
            _measure(bench, engine, url, sizes.moves)


def _measure(bench: Bench, engine: str, url: str, count: int) -> None:
    with holdall.open(url) as store:
        load(bench, f"files on {engine}", lambda some: put_all(store, some), _files(count))
        files = store.files(_HERE)
        with another_writer(url) as stop:
            time.sleep(_ALONE)
            alone = stop()
        bench.progress(f"moving {count:,} files on {engine}")
        with another_writer(url) as stop:
            spent = timed(lambda: files.move("/old", "/new"))
            meanwhile = stop()
        assert not files.exists("/old")
        assert store.count(_HERE) == count
    once(bench, "move", {OURS: spent})
    for what, part, target in (("median", 0.5, None), ("99th percentile", 0.99, None), ("longest", 1, within(0.050))):
        bench.rows.append(
            Row(
                f"wait of another writer, {what}",
                {OURS: [_share(meanwhile, part)], IDLE: [_share(alone, part)]},
                target,
                [],
                as_rate=False,
                part=bench.part,
            )
        )


def _files(count: int) -> Iterator[tuple[tuple[str, ...], str, dict[str, str]]]:
    for number in range(count):
        path = f"/old/{number // _IN_FOLDER}/{number}"
        yield _HERE, path, {"content": f"file {number}", "encoding": "utf-8"}


def _share(waits: list[float], part: float) -> float:
    """What so large a part of the writes took at most."""
    return sorted(waits)[min(int(len(waits) * part), len(waits) - 1)]
