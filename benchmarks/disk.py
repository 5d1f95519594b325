"""Plain files: our disk engine beside `open()` itself, and beside AG2's DiskKnowledgeStore by AG2's protocol.

Raw is what a program does that wants the same: a temporary file, fsync, rename, fsync of the folder to write, and
`open().read()` to read. AG2's store waits for no fsync and replaces nothing atomically; it is held against ours for
reading and watching, and at `durability="relaxed"` for writing. How soon an edit made outside is seen is measured, too.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ag2.knowledge import DiskKnowledgeStore

import holdall
from holdall.faces.ag2 import knowledge as face

from .data import files, folder_of
from .harness import OURS, Bench, Row, Target, ahead_of, at_most, within

RAW, AG2 = "raw open()", "AG2 Disk"
FEW, MANY = 1_000, 20_000
_KB = b"x" * 1023 + b"\n"
_RANDOM = random.Random(7)
_AT_ONCE = 500


def run(bench: Bench) -> None:
    _items_and_files(bench, "full")
    _items_and_files(bench, "relaxed")
    _knowledge(bench)
    _edits(bench)
    bench.note("raw, durable: a temporary file, fsync, rename, fsync of the folder; relaxed: the same without an fsync")
    bench.note(f"{AG2} writes in place, and waits for no fsync")


def _items_and_files(bench: Bench, durability: Literal["full", "relaxed"]) -> None:
    texts = [(path, text.encode()) for path, text in files(FEW)]
    is_durable = durability == "full"
    root = bench.folder / f"raw-{durability}"
    (root / "new").mkdir(parents=True)
    for path, data in texts:
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (root / path[1:]).write_bytes(data)
    with holdall.open(f"disk:///{bench.folder}/ours-{durability}", durability=durability) as store:
        volume = store.files()
        _load(store, texts)
        new = itertools.count()

        def each(do: Callable[[str], object]) -> Callable[[], None]:
            def turn() -> None:
                for _ in range(50):
                    do(f"/new/{next(new)}")

            return turn

        item = {"text": "y" * 1000}
        contenders: dict[str, Callable[[str], object]] = {
            "write": lambda path: volume.write(path, _KB),
            "put": lambda path: store.put(("items",), path[5:], item),
        }
        for what, ours in contenders.items():
            runs = {OURS: each(ours), RAW: each(lambda path: _replace(root, path, _KB, is_durable))}
            target = at_most(2, RAW) if is_durable and what == "put" else None
            label = f"{what}, 1 KB, new, {'durable' if is_durable else 'relaxed'}"
            bench.measure(label, runs, ops=50, rounds=9, target=target, durable=is_durable)
        if is_durable:
            _reading(bench, store, root, texts)


def _reading(bench: Bench, store: holdall.Store, root: Path, texts: list[tuple[str, bytes]]) -> None:
    volume = store.files()
    paths = [path for path, _ in texts]
    keys = [str(number) for number in range(FEW)]
    store.execute([holdall.ops.Put(("read",), key, {"text": "y" * 1000}) for key in keys])
    (root / "items").mkdir()
    for key in keys:
        (root / "items" / key).write_text('{"text": "' + "y" * 1000 + '"}')

    def each(do: Callable[[str], object], among: list[str]) -> Callable[[], None]:
        def turn() -> None:
            for _ in range(500):
                do(_RANDOM.choice(among))

        return turn

    assert volume.read(paths[7]) == _raw_read(root, paths[7])
    runs = {OURS: each(volume.read, paths), RAW: each(lambda path: _raw_read(root, path), paths)}
    bench.measure("read", runs, ops=500, rounds=15, target=at_most(2, RAW))
    get = {
        OURS: each(lambda key: store.get(("read",), key), keys),
        RAW: each(lambda key: _raw_read(root, f"/items/{key}"), keys),
    }
    bench.measure("get, an item", get, ops=500, rounds=15, target=at_most(2, RAW))


def _raw_read(root: Path, path: str) -> bytes:
    with open(f"{root}{path}", "rb") as file:  # noqa: PTH123  # as it is in the name of the row
        return file.read()


def _replace(root: Path, path: str, data: bytes, sync: bool) -> None:
    """What a careful program does."""
    target = f"{root}{path}"
    with open(f"{target}.tmp", "wb") as file:  # noqa: PTH123  # as above
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    os.replace(f"{target}.tmp", target)  # noqa: PTH105  # as above
    if sync:
        folder = os.open(os.path.dirname(target), os.O_RDONLY)  # noqa: PTH120  # as above
        os.fsync(folder)
        os.close(folder)


def _load(store: holdall.Store, texts: list[tuple[str, bytes]]) -> None:
    for start in range(0, len(texts), _AT_ONCE):
        puts = [
            holdall.ops.Put(("filesystem",), path, {"content": data.decode(), "encoding": "utf-8"})
            for path, data in texts[start : start + _AT_ONCE]
        ]
        store.execute(puts)


# Beside AG2's --------------------------------------------------------------------------------------------------------


def _knowledge(bench: Bench) -> None:
    texts = [(path, text.encode()) for path, text in files(MANY)]
    ours: Any = face.DiskKnowledgeStore(bench.folder / "knowledge")
    theirs: Any = DiskKnowledgeStore(bench.folder / "theirs")
    bench.progress(f"loading {MANY:,} files")
    _load(ours.store, texts)
    for path, data in texts:
        target = bench.folder / "theirs" / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    with asyncio.Runner() as runner:

        def row(what: str, op: str, arguments: Callable[[], tuple[Any, ...]], target: Target | None) -> None:
            def turn(store: Any) -> Callable[[], object]:
                async def calls() -> None:
                    call = getattr(store, op)
                    for _ in range(100):
                        await call(*arguments())

                return lambda: runner.run(calls())

            bench.measure(what, {OURS: turn(ours), AG2: turn(theirs)}, ops=100, rounds=9, target=target)

        of = f", {MANY:,} files"
        row(f"AG2 read{of}", "read", lambda: (_RANDOM.choice(texts)[0],), None)
        row(f"AG2 list, a folder of 20{of}", "list", lambda: (folder_of(_RANDOM.randrange(MANY)),), ahead_of(AG2))
        row(f"AG2 exists{of}", "exists", lambda: (_RANDOM.choice(texts)[0],), None)
        row("AG2 append, 1 KB (ours durable)", "append", lambda: ("/log", _KB.decode()), None)
    ours.close()


# Edits made outside --------------------------------------------------------------------------------------------------


def _edits(bench: Bench) -> None:
    """How long after an edit was made outside `ls` and `grep` have seen it, and a watch has reported it."""
    folder = bench.folder / "knowledge"
    seen: list[float] = []
    watched: list[float] = []
    with holdall.open(f"disk:///{folder}") as store:
        volume = store.files()
        with volume.watch("/edited") as watch:
            for number in range(30):
                target = folder / "edited" / f"{number}.md"
                target.parent.mkdir(exist_ok=True)
                (folder / "new").write_text(f"unique{number}")
                began = time.perf_counter()
                (folder / "new").rename(target)
                assert volume.grep(f"unique{number}", "/edited")[0].path == f"/edited/{number}.md"
                seen.append(time.perf_counter() - began)
                assert next(watch).key == f"/edited/{number}.md"
            for number in range(30):
                time.sleep(_RANDOM.uniform(0, 0.02))
                target = folder / "edited" / f"watched-{number}.md"
                began = time.perf_counter()
                target.write_text("x")
                while next(watch).key != f"/edited/{target.name}":
                    pass
                watched.append(time.perf_counter() - began)
    for what, spent in (("from an edit outside to grep's answer", seen), ("from an edit outside to watch", watched)):
        worst = {OURS: sorted(spent)[-3:]}
        bench.rows.append(Row(f"{what}, the slowest of 30", worst, within(0.1), [], as_rate=False))
