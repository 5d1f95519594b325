"""Clients that write while their server is killed repeatedly, and that record which writes were acknowledged.

Each client is a process with several concurrent writers. Half of the clients are sync, half async.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import holdall
from holdall.errors import Conflict, OutcomeUnknown, Unavailable
from holdall.ops import ABSENT, Delete, Put
from holdall.runtime.programs import adrive, drive
from support.processes import Process, beginning, receive, report, start
from support.servers import Postgres, Redis
from support.threads import together

CLIENTS = 8
WRITERS = 2  # in each client


def write_while_killed(server: Postgres | Redis, kills: int, *, cut_off: Callable[[], object]) -> None:
    """Write from many clients while the server is killed and restarted. Acknowledged writes must exist, once.

    Before every second kill, `cut_off()` makes it drop connections.
    """
    names = [f"client{i}" for i in range(CLIENTS)]
    deadline = 60 + kills * 30
    with beginning(
        *(
            start(write_until_told, deadline=deadline, url=server.url, name=name, use_async=i % 2 == 0)
            for i, name in enumerate(names)
        )
    ) as processes:
        for number in range(kills):
            wait_until_all_write(server, names, processes)
            if number % 2:
                cut_off()
            time.sleep(random.uniform(0, 0.3))
            server.kill()
            time.sleep(random.choice([0, 0, 0.5]))
            server.start()
        wait_until_all_write(server, names, processes)
        for process in processes:
            process.send("stop")
        outcomes = {name: process.finish()[-1] for name, process in zip(names, processes, strict=True)}
    written = check_all(server.url, outcomes)
    assert written > 100 * kills, "hardly anything was written: this showed nothing"


def check_all(url: str, outcomes: dict[str, Any]) -> int:
    """Check that each acknowledged write exists exactly once, and return how many there were."""
    with holdall.open(url) as store:
        check_counters(store, outcomes)
        for name in outcomes:
            for writer in range(WRITERS):
                check_writer(store, f"{name}.{writer}", outcomes[name][str(writer)])
    unknown = sum(writer["unknown"] for client in outcomes.values() for writer in client.values())
    written = sum(sum(writer["steps"].values()) for client in outcomes.values() for writer in client.values())
    print(f"{written} writes acknowledged, {unknown} of unknown outcome")
    assert unknown < written / 20, "most outcomes were unknown: this showed little"
    return written


def wait_until_all_write(server: Postgres | Redis, names: list[str], processes: tuple[Process, ...]) -> None:
    """Every writer of every client gets through, some way from where it is now."""
    with holdall.open(server.url) as store:
        writers = [f"{name}.{i}" for name in names for i in range(WRITERS)]
        before = store.get(("shared",), "update")
        began = before.value["last"] if before else {}
        deadline = time.monotonic() + 60
        while True:
            entry = store.get(("shared",), "update")
            last = entry.value["last"] if entry else {}
            if all(last.get(name, 0) > began.get(name, 0) for name in writers):
                return
            assert time.monotonic() < deadline, f"some clients never recovered: {began} {last}"
            for process in processes:
                assert process.code is None, "a client has ended"
            time.sleep(0.05)


def check_counters(store: holdall.Store, outcomes: dict[str, Any]) -> None:
    """All clients count in the same two entries; a step lost or done twice makes the sum wrong."""
    for how in ("update", "expect"):
        steps = {f"{name}.{i}": outcomes[name][str(i)]["steps"][how] for name in outcomes for i in range(WRITERS)}
        entry = store.get(("shared",), how)
        assert entry is not None
        assert entry.value["last"] == {name: last for name, last in steps.items() if last}, (
            f"{how}: {entry.value['last']} is there, {steps} was done"
        )
        assert entry.value["n"] == sum(steps.values()), f"{how}: {entry.value['n']}, of {sum(steps.values())}"


def check_writer(store: holdall.Store, writer: str, outcome: dict[str, Any]) -> None:
    steps = outcome["steps"]
    for kind, versions in (("blind", outcome["blind"]), ("pair", outcome["pair"])):
        found = {entry.key: entry for entry in store.scan((kind, writer))}
        assert found.keys() == versions.keys(), f"{writer}: {kind}"
        for key, version in versions.items():
            assert found[key].created_at == found[key].updated_at, f"{kind} {key} of {writer} was put twice"
            assert version in (None, found[key].version), f"{kind} {key} of {writer} is not as it was acknowledged"
    places = [entry.key for entry in store.scan(("token", writer))]
    expected = [] if not steps["token"] else ["left"] if steps["token"] % 2 else ["right"]
    assert places == expected, f"{writer} moved {steps['token']} times: {places}"
    assert store.count(("gone", writer)) == 0


def write_until_told(url: str, name: str, use_async: bool) -> None:
    """Half of the clients write from threads, half from tasks; at the end each says what it takes for done."""
    stop = stop_on_message()
    writers = [Writer(f"{name}.{i}") for i in range(WRITERS)]
    with holdall.open(url, timeout=30) as store:
        write_until(stop, store, writers, use_async)
    report({str(i): writer.outcome() for i, writer in enumerate(writers)})


def write_until(stop: threading.Event, store: holdall.Store, writers: list[Writer], use_async: bool) -> None:
    """Let each writer write, from a thread or a task of its own."""

    def write(writer: Writer) -> None:
        while not stop.is_set():
            drive(writer.step(), perform)

    async def awrite(writer: Writer) -> None:
        while not stop.is_set():
            await adrive(writer.step(), aperform)

    def perform(call: tuple[str, Any, Any]) -> Any:
        method, args, options = call
        try:
            return getattr(store, method)(*args, **options)
        except (Conflict, Unavailable) as error:
            return error

    async def aperform(call: tuple[str, Any, Any]) -> Any:
        method, args, options = call
        try:
            return await getattr(store, f"a{method}")(*args, **options)
        except (Conflict, Unavailable) as error:
            return error

    if use_async:

        async def main() -> None:
            await asyncio.gather(*(awrite(writer) for writer in writers))

        asyncio.run(main())
    else:
        together([partial(write, writer) for writer in writers])


class Writer:
    """One writer's steps, each a generator that yields calls of the store and is sent their results or errors.

    After an unknown outcome it reads, and decides; everything else that goes wrong is a failure.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = dict.fromkeys(("update", "expect", "blind", "pair", "token", "gone"), 0)
        self.versions: dict[str, dict[str, int | None]] = {"blind": {}, "pair": {}}
        self.unknown = 0

    def outcome(self) -> dict[str, Any]:
        return {"steps": self.steps, "unknown": self.unknown, **self.versions}

    def step(self) -> Any:
        """The next step, of any kind."""
        kind = random.choice(list(self.steps))
        number = self.steps[kind] + 1
        yield from getattr(self, f"_{kind}")(number)
        self.steps[kind] = number

    def _is_unknown(self, reply: Any) -> bool:
        if isinstance(reply, Unavailable):
            assert isinstance(reply, OutcomeUnknown), repr(reply)
            self.unknown += 1
            return True
        return False

    def _counted(self, value: dict[str, Any], number: int) -> dict[str, Any]:
        return {"n": value["n"] + 1, "last": {**value["last"], self.name: number}}

    def _update(self, number: int) -> Any:
        while True:
            options = {"default": {"n": 0, "last": {}}}
            reply = yield "update", (("shared",), "update", lambda value: self._counted(value, number)), options
            if not self._is_unknown(reply):
                assert reply.value["last"][self.name] == number, reply
                return
            entry = yield "get", (("shared",), "update"), {}
            if entry is not None and entry.value["last"].get(self.name, 0) == number:
                return

    def _expect(self, number: int) -> Any:
        while True:
            entry = yield "get", (("shared",), "expect"), {}
            value = entry.value if entry else {"n": 0, "last": {}}
            if value["last"].get(self.name, 0) == number:
                return  # the unknown outcome of before
            options = {"expect": entry or ABSENT}
            reply = yield "put", (("shared",), "expect", self._counted(value, number)), options
            if not isinstance(reply, Conflict) and not self._is_unknown(reply):
                return

    def _blind(self, number: int) -> Any:
        """Nobody else writes this entry, so its fate can always be known."""
        reply = yield "put", (("blind", self.name), str(number), {"by": self.name, "step": number}), {}
        assert isinstance(reply, holdall.ops.Entry), repr(reply)
        self.versions["blind"][str(number)] = reply.version

    def _pair(self, number: int) -> Any:
        home = ("pair", self.name)
        keys = [f"{number}a", f"{number}b"]
        reply = yield "execute", ([Put(home, key, {"step": number}) for key in keys],), {}
        if self._is_unknown(reply):
            first = yield "get", (home, keys[0]), {}
            found = [first, (yield "get", (home, keys[1]), {})]
            assert None not in found or found == [None, None], f"half a batch: {found}"
            if found == [None, None]:
                yield from self._pair(number)
                return
            reply = found
        assert not isinstance(reply, Exception), repr(reply)
        self.versions["pair"] |= {entry.key: entry.version for entry in reply}

    def _token(self, number: int) -> Any:
        """From one entry to the other; done twice it would be a Conflict, half of it would leave two or none."""
        home = ("token", self.name)
        source, target = ("right", "left") if number % 2 else ("left", "right")
        entry = yield "get", (home, source), {}
        if number > 1:
            assert entry is not None and entry.value == {"step": number - 1}, f"{self.name} {number}: {entry}"
        take = [Delete(home, source, expect=entry)] if entry else []
        batch = [*take, Put(home, target, {"step": number}, expect=ABSENT)]
        reply = yield "execute", (batch,), {}
        if self._is_unknown(reply):
            there = yield "get", (home, target), {}
            if there is None:
                yield from self._token(number)
            return
        assert not isinstance(reply, Exception), repr(reply)

    def _gone(self, number: int) -> Any:
        """A delete that was done returns True, even if its reply was lost."""
        entry = yield "put", (("gone", self.name), str(number), {}), {}
        assert isinstance(entry, holdall.ops.Entry), repr(entry)
        deleted = yield "delete", (("gone", self.name), str(number)), {}
        assert deleted is True, repr(deleted)


def stop_on_message() -> threading.Event:
    """In a client: set once the test sends it a message."""
    logging.getLogger("psycopg").setLevel("ERROR")  # it warns of every pipeline that a kill cuts short
    stop = threading.Event()
    threading.Thread(target=lambda: (receive(), stop.set()), daemon=True).start()
    return stop
