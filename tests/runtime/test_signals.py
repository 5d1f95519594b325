"""Signal handlers are put off while the main thread is in an engine, and run soon all the same."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
from holdall.errors import Timeout
from holdall.ops import Put
from holdall.runtime import signals
from holdall.runtime.signals import Restart, defer_signals, restart_if_signaled, run_pending_handlers
from support.processes import report, run
from support.servers import Postgres, Redis
from support.stores import ENGINES, new_location, open_at
from support.threads import TimeIsUp

pytestmark = pytest.mark.timed

NUMBERS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def raise_time_is_up(*_: Any) -> None:
    raise TimeIsUp


@pytest.fixture
def came() -> Iterator[list[int]]:
    """The signals whose handlers have run; nothing is raised by them."""
    numbers: list[int] = []
    before = [signal.signal(number, lambda number, _: numbers.append(number)) for number in NUMBERS]
    yield numbers
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


def send(*numbers: int) -> None:
    for number in numbers:
        signal.raise_signal(number)


def test_handlers_run_after_the_call_each_once(came: list[int]) -> None:
    def call() -> str:
        send(*NUMBERS, signal.SIGUSR1)
        assert came == []
        return "result"

    handlers = [signal.getsignal(number) for number in (*NUMBERS, signal.SIGINT)]  # a shell may have SIGINT ignored
    assert defer_signals(call) == "result"
    assert sorted(came) == sorted(NUMBERS)
    assert [signal.getsignal(number) for number in (*NUMBERS, signal.SIGINT)] == handlers


def test_a_trusted_handler_runs_at_once_and_others_after_the_call(
    came: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Server:
        def handle_exit(self, number: int, _: Any) -> None:
            came.append(-number)

    def call() -> list[int]:
        send(*NUMBERS)
        return list(came)

    monkeypatch.setattr(signals, "_trusted", [])
    signals.trust_handler(Server.handle_exit)
    signal.signal(signal.SIGUSR1, Server().handle_exit)
    assert defer_signals(call) == [-signal.SIGUSR1]
    assert sorted(came) == sorted((-signal.SIGUSR1, *NUMBERS[1:]))


def test_one_that_raises_does_not_keep_the_others_from_running(came: list[int]) -> None:
    signal.signal(signal.SIGUSR1, raise_time_is_up)
    with pytest.raises(TimeIsUp):
        defer_signals(send, *NUMBERS)
    assert sorted(came) == sorted(NUMBERS[1:])
    assert signal.getsignal(signal.SIGUSR1) is raise_time_is_up
    assert not signals._pending


def test_a_call_that_has_changed_nothing_begins_again_after_the_handlers(came: list[int]) -> None:
    calls = []

    def call() -> int:
        calls.append(len(came))
        if len(calls) == 1:
            send(signal.SIGUSR1)
        restart_if_signaled()
        return len(calls)

    assert defer_signals(call) == 2
    assert calls == [0, 1]


def test_what_a_handler_raises_in_the_middle_is_no_error_of_the_calls(came: list[int]) -> None:
    """A handler may raise an OSError or a ValueError, which a driver's errors are, too."""

    def handle(*_: Any) -> None:
        raise TimeoutError("time is up")

    def call() -> str:
        send(signal.SIGUSR1, signal.SIGUSR2)
        try:
            run_pending_handlers()
        except Exception:
            return "taken for an error"
        return "nothing was raised"

    signal.signal(signal.SIGUSR1, handle)
    with pytest.raises(TimeoutError, match="time is up"):
        defer_signals(call)
    assert came == [signal.SIGUSR2]


def test_a_handler_may_set_another(came: list[int]) -> None:
    def handle(*_: Any) -> None:
        signal.signal(signal.SIGUSR1, raise_time_is_up)

    def call() -> None:
        send(signal.SIGUSR1)
        run_pending_handlers()
        assert signal.getsignal(signal.SIGUSR1) is signals._record
        send(signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, handle)
    with pytest.raises(TimeIsUp):
        defer_signals(call)
    assert signal.getsignal(signal.SIGUSR1) is raise_time_is_up


def test_other_threads_neither_wait_nor_begin_again(came: list[int]) -> None:
    outcomes: list[str] = []

    def elsewhere() -> None:
        restart_if_signaled()
        run_pending_handlers()
        outcomes.append(defer_signals(lambda: "done"))

    def call() -> None:
        send(signal.SIGUSR1)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert came == []

    defer_signals(call)
    assert outcomes == ["done"]
    assert came == [signal.SIGUSR1]


def test_nothing_but_guard_catches_what_begins_again() -> None:
    assert not issubclass(Restart, Exception)


def test_a_change_of_handlers_by_one_that_raises_stays(came: list[int]) -> None:
    def handle(*_: Any) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise TimeIsUp

    signal.signal(signal.SIGUSR1, handle)
    with pytest.raises(TimeIsUp):
        defer_signals(send, signal.SIGUSR1, signal.SIGUSR2)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert came == [signal.SIGUSR2]


def test_an_event_loop_has_each_signal_once(tmp_path: Path) -> None:
    """Its own handlers come by a file that the system writes to, when the signal comes."""
    handled: list[int] = []

    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: handled.append(1))
        defer_signals(send, signal.SIGUSR1)
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert handled == [1]


def test_a_child_that_another_thread_forks_meanwhile_has_its_handlers() -> None:
    run(fork_in_a_guarded_call, deadline=30)


def fork_in_a_guarded_call() -> None:
    codes: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            defer_signals(lambda: None)
            os._exit(3 if signal.getsignal(signal.SIGTERM) is raise_time_is_up and not signals._is_deferring else 4)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def call() -> None:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()

    signal.signal(signal.SIGTERM, raise_time_is_up)
    defer_signals(call)
    assert codes == [3]


def test_a_signal_handler_that_forks_in_the_middle_of_a_read_does_not_hang(tmp_path: Path) -> None:
    run(fork_while_reading, deadline=60, path=str(tmp_path / "agent.db"))


def fork_while_reading(path: str) -> None:
    logging.disable()
    store = holdall.open(path)
    store.put(("home",), "key", {})
    forks: list[int] = []

    def handle(*_: Any) -> None:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        forks.append(child)
        signal.setitimer(signal.ITIMER_REAL, 0.005)  # no interval: where forks take longer, all else would wait

    signal.signal(signal.SIGALRM, handle)
    until = time.monotonic() + 20
    while len(forks) < 20 and time.monotonic() < until:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 0.0005))
        assert store.get(("home",), "key") is not None
        store.count(("home",))
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert len(forks) >= 20
    store.put(("home",), "key", {"n": 1})
    store.close()
    report("done")


# Forks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["memory", "sqlite", "disk"])
@pytest.mark.parametrize("raises", [False, True])
def test_a_signal_handler_amid_a_fork_does_no_harm(engine: str, raises: bool, tmp_path: Path) -> None:
    """It may call the store, or raise. The hooks of the fork are run to their end."""
    run(fork_amid_signals, deadline=60, at=new_location(engine, tmp_path), raises=raises)


def fork_amid_signals(at: dict[str, str], raises: bool) -> None:
    sys.unraisablehook = lambda _: None  # Python writes what a hook of another module's raises
    store = open_at(at, sweep_interval=None)
    store.put(("home",), "key", {})
    handled = 0
    # It raises only in the block that catches it: a deferred signal may come after the timer was stopped.
    may_raise = False

    def handle(*_: Any) -> None:
        nonlocal handled, may_raise
        handled += 1
        if raises and may_raise:
            may_raise = False
            raise TimeIsUp
        store.put(("home",), "handler", {"n": handled})

    signal.signal(signal.SIGALRM, handle)
    until = time.monotonic() + 20
    while handled < 50 and time.monotonic() < until:
        try:
            may_raise = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.002))
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
            time.sleep(0.002)
            may_raise = False
        except TimeIsUp:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert handled >= 50, "this showed nothing"
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    store.put(("home",), "key", {"n": 1})
    assert store.get(("home",), "key").value == {"n": 1}  # type: ignore[union-attr]  # it was put
    store.close()
    report("done")


# Event loops ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_signal_handler_may_call_the_store_while_an_event_loop_uses_it(engine: str, tmp_path: Path) -> None:
    run(call_in_handler_amid_tasks, deadline=60, at=new_location(engine, tmp_path))


def call_in_handler_amid_tasks(at: dict[str, str]) -> None:
    store = open_at(at, sweep_interval=None)
    store.put(("home",), "key", {})
    handled = 0

    def handle(*_: Any) -> None:
        nonlocal handled
        handled += 1
        store.put(("home",), "handler", {"n": handled})
        signal.setitimer(signal.ITIMER_REAL, 0.0003)

    async def main() -> None:
        until = time.monotonic() + 20
        while handled < 200 and time.monotonic() < until:
            await asyncio.gather(*(store.aput(("home",), str(number), {}) for number in range(5)))
        signal.setitimer(signal.ITIMER_REAL, 0)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0003)
    asyncio.run(main())
    assert handled >= 200, "this showed nothing"
    store.close()
    report("done")


def test_an_interrupted_aput_is_not_written_later(tmp_path: Path) -> None:
    store = holdall.open(tmp_path / "agent.db")
    store.put(("home",), "key", {"n": 0})

    class Interrupting(deque[Any]):
        def append(self, item: Any) -> None:
            super().append(item)
            send(signal.SIGALRM)

    commits: Any = store._engine_handle.engine._commits  # type: ignore[attr-defined]  # SQLite's
    commits._queue = Interrupting()
    before = signal.signal(signal.SIGALRM, raise_time_is_up)
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(TimeIsUp):
            loop.run_until_complete(store.aput(("home",), "key", {"n": "interrupted"}))
    finally:
        signal.signal(signal.SIGALRM, before)
        loop.close()
    store.put(("home",), "key", {"n": "acknowledged"})
    assert store.get(("home",), "key").value == {"n": "acknowledged"}  # type: ignore[union-attr]  # it was put
    store.close()


# How handlers are set ------------------------------------------------------------------------------------------------


def test_handlers_keep_what_only_the_system_knows(tmp_path: Path) -> None:
    """`faulthandler` chains to a handler with a `sigaction` of its own."""
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    with (tmp_path / "dump").open("w+") as dump:
        faulthandler.register(signal.SIGUSR2, file=dump, chain=True)
        try:
            defer_signals(lambda: None)
            os.kill(os.getpid(), signal.SIGUSR2)
            assert "most recent call first" in (tmp_path / "dump").read_text()
        finally:
            faulthandler.unregister(signal.SIGUSR2)
            signal.signal(signal.SIGUSR2, before)


# Waiting -------------------------------------------------------------------------------------------------------------


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """What is called here is interrupted, and ends soon after that."""
    signal.signal(signal.SIGALRM, raise_time_is_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.monotonic()
    try:
        with pytest.raises(TimeIsUp):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert time.monotonic() - began < seconds + 5, "it was waited for to the end"


def lock_database(at: dict[str, str]) -> apsw.Connection:
    """Begin to write, as another process might."""
    path = at["url"]
    other = apsw.Connection(path.removeprefix("disk:///") + "/.holdall/catalogue.db" if "disk:" in path else path)
    other.execute("BEGIN IMMEDIATE")
    return other


@pytest.mark.parametrize("engine", ["sqlite", "disk"])
def test_a_call_that_waits_for_another_process_is_interrupted(engine: str, tmp_path: Path) -> None:
    run(wait_for_a_lock, deadline=60, at=new_location(engine, tmp_path))


def wait_for_a_lock(at: dict[str, str]) -> None:
    store = open_at(at, timeout=30, sweep_interval=None)
    store.put(("home",), "key", {"n": 1})
    other = lock_database(at)
    with interrupted_after(0.3):
        store.put(("home",), "key", {"n": 2})
    leading = threading.Thread(target=store.put, args=(("home",), "thread", {}))
    leading.start()
    time.sleep(0.2)
    with interrupted_after(0.3):  # in the queue behind that thread
        store.put(("home",), "key", {"n": 3})
    other.execute("ROLLBACK")
    leading.join()
    assert [(entry.key, entry.value) for entry in store.scan(("home",))] == [("key", {"n": 1}), ("thread", {})]
    store.close()
    report("done")


@pytest.mark.parametrize("engine", ["sqlite", "disk"])
def test_a_handler_that_does_not_raise_is_nothing_to_a_call_that_waits(engine: str, tmp_path: Path) -> None:
    run(wait_amid_signals, deadline=60, at=new_location(engine, tmp_path))


def wait_amid_signals(at: dict[str, str]) -> None:
    store = open_at(at, timeout=30, sweep_interval=None)
    store.put(("home",), "key", {"n": 1})
    handled: list[str] = []
    other = lock_database(at)

    def handle(*_: Any) -> None:
        handled.append(threading.current_thread().name)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    threading.Timer(0.6, other.execute, ("ROLLBACK",)).start()
    store.put(("home",), "key", {"n": 2})
    assert len(handled) > 3, "the handlers did not run meanwhile"
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert store.get(("home",), "key").value == {"n": 2}  # type: ignore[union-attr]  # it was put
    store.close()
    report("done")


def test_a_call_that_begins_again_has_no_more_time_than_it_had(tmp_path: Path) -> None:
    run(time_out_amid_signals, deadline=60, at=new_location("sqlite", tmp_path))


def time_out_amid_signals(at: dict[str, str]) -> None:
    store = open_at(at, timeout=1, sweep_interval=None)
    store.put(("home",), "key", {"n": 1})
    other = lock_database(at)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    threading.Timer(10, other.execute, ("ROLLBACK",)).start()
    began = time.monotonic()
    with pytest.raises(Timeout):
        store.put(("home",), "key", {"n": 2})
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert time.monotonic() - began < 5
    report("done")
    os._exit(0)


def test_opening_amid_signals_has_no_more_time_than_its_timeout(tmp_path: Path) -> None:
    """Another process has locked the folder."""
    lock = f"import fcntl, os, time; fcntl.flock(os.open({str(tmp_path)!r}, os.O_RDONLY), fcntl.LOCK_EX)"
    code = f"{lock}; print('locked', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        before = signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
        began = time.monotonic()
        try:
            with pytest.raises(Timeout), holdall.open(tmp_path / "agent.db", timeout=1) as store:
                store.put(("home",), "key", {})
            assert time.monotonic() - began < 5
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            other.kill()


def test_what_a_disk_store_has_committed_is_not_done_again(tmp_path: Path) -> None:
    """Signals come all the time, and another process locks the catalogue again and again."""
    run(append_amid_signals, deadline=60, folder=str(tmp_path / "store"))


def append_amid_signals(folder: str) -> None:
    store = holdall.open(f"disk:///{folder}", timeout=20, sweep_interval=None, durability="relaxed")
    files = store.files()
    files.write("/log", "0\n")
    code = (
        "import apsw, sys, time\n"
        f"other = apsw.Connection({folder + '/.holdall/catalogue.db'!r})\n"
        "while True:\n"
        "    try: other.execute('BEGIN IMMEDIATE'); time.sleep(0.002); other.execute('ROLLBACK')\n"
        "    except apsw.BusyError: pass\n"
        "    time.sleep(0.0002)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as other:
        time.sleep(0.5)
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        until = time.monotonic() + 3
        number = 0
        while time.monotonic() < until:
            number += 1
            files.append("/log", f"{number}\n")
        signal.setitimer(signal.ITIMER_REAL, 0)
        other.kill()
    assert files.read_text("/log").split() == [str(each) for each in range(number + 1)]
    store.close()
    report("done")


def test_a_large_value_that_a_silent_server_does_not_take_is_interrupted() -> None:
    with Redis() as server, holdall.open(server.url, timeout=30) as store:
        store.put(("home",), "key", {"n": 1})
        server.freeze()
        with interrupted_after(0.3):
            store.put(("home",), "key", {"text": "x" * 15_000_000})
        server.thaw()
        assert store.get(("home",), "key").value == {"n": 1}  # type: ignore[union-attr]  # it was put


@pytest.mark.parametrize("kind", [Postgres, Redis])
def test_a_call_that_waits_for_a_silent_server_is_interrupted(kind: type[Postgres | Redis]) -> None:
    with kind() as server, holdall.open(server.url, timeout=30) as store:
        store.put(("home",), "key", {"n": 1})
        server.freeze()
        with interrupted_after(0.3):
            store.put(("home",), "key", {"n": 2})
        with interrupted_after(0.3):
            store.get(("home",), "key")
        server.thaw()
        store.put(("home",), "key", {"n": 3})
        assert store.get(("home",), "key").value == {"n": 3}  # type: ignore[union-attr]  # it was put


@pytest.mark.parametrize("engine", ["postgres", "redis"])
def test_a_call_that_waits_for_a_connection_is_interrupted(engine: str, tmp_path: Path) -> None:
    with open_at(new_location(engine, tmp_path), pool_max=1, timeout=30) as store:
        store.put(("home",), "key", {"n": 1})
        taken, done = threading.Event(), threading.Event()

        def keep() -> None:
            pool = next(iter(pools_of(store)))
            connection = pool.acquire(lambda: None, time.monotonic() + 10)
            taken.set()
            done.wait(30)
            pool.release(None, connection)

        thread = threading.Thread(target=keep)
        thread.start()
        assert taken.wait(10)
        with interrupted_after(0.3):
            store.put(("home",), "key", {"n": 2})
        done.set()
        thread.join()
        store.put(("home",), "key", {"n": 3})
        assert store.get(("home",), "key").value == {"n": 3}  # type: ignore[union-attr]  # it was put


def pools_of(store: holdall.Store) -> list[Any]:
    engine: Any = store._engine_handle.engine
    return [engine._pool] if hasattr(engine, "_pool") else list(engine._shards.connections._pools.values())


def test_a_long_search_is_interrupted(tmp_path: Path) -> None:
    """Between two statements, on SQLite, where it runs in the main thread itself."""
    with holdall.open(tmp_path / "agent.db", durability="relaxed") as store:
        for part in range(40):
            store.execute([Put(("home",), f"{part}-{number}", {"n": number}) for number in range(500)])
        ran: list[int] = []
        signal.signal(signal.SIGUSR1, lambda *_: ran.append(1))
        run_statements = type(store._engine_handle.engine)._run_for_walk  # type: ignore[attr-defined]  # SQLite's

        def run_and_send(*args: Any) -> Any:
            send(signal.SIGUSR1)
            before = len(ran)
            result = run_statements(*args)
            assert len(ran) == before + 1, "it waited for the end"
            return result

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(store._engine_handle.engine), "_run_for_walk", run_and_send)
            assert store.count(("home",), filter={"n": 7}) == 40
        assert ran
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
