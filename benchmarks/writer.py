"""What another process feels that writes to the store meanwhile."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import holdall

from .harness import OURS, Bench, Row, within

_KB = ("x" * 1023 + "\n").encode()


@contextmanager
def another_writer(url: str) -> Iterator[Callable[[], list[float]]]:
    """A process that writes files of 1 KB, one after the other; the function stops it, and says what each took."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_write_on, args=(url, there), daemon=True)
    process.start()
    there.close()  # so that its end is seen here
    assert here.recv() == "ready"
    here.send("go")

    def stop() -> list[float]:
        here.send("stop")
        waits: list[float] = here.recv()
        return waits

    yield stop
    process.join()


def _write_on(url: str, orders: Connection) -> None:
    waits: list[float] = []
    with holdall.open(url) as store:
        volume = store.files(("writer",))
        for _ in range(20):
            volume.write("/warm-up", _KB)
        orders.send("ready")
        orders.recv()
        for number in itertools.count():
            began = time.perf_counter()
            volume.write(f"/{number % 1000}", _KB)
            waits.append(time.perf_counter() - began)
            if orders.poll():
                break
        orders.recv()
        orders.send(waits)


def hold_against_limit(bench: Bench, what: str, waits: list[float]) -> None:
    """A row for the slowest hundredth of what a writer waited for."""
    slowest = sorted(waits)[int(len(waits) * 0.99)]
    target = within(0.1, "99th percentile under 100 ms")
    bench.rows.append(Row(f"{what}, {len(waits):,} of them", {OURS: [slowest]}, target, [], as_rate=False))
