"""Processes that write through a face: killed at random moments, and several at once. Nothing may be lost.

    class Notes(FaceWriter):                     one for each face
        async def write(self, name, number): …   one step: it writes what belongs together
        async def read(self): …                  the steps that are there, as "name number"

A test module has a table of such classes, and a function `write` that its processes run: tests/torture/test_faces.py.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdall
from support.processes import finish_together, report, start, wait_to_begin
from support.stores import new_location, open_at

PROCESSES = 8


class FaceWriter(ABC):
    """A face on a store, and the steps that a process does with it."""

    @abstractmethod
    def __init__(self, store: holdall.Store) -> None: ...

    async def prepare(self) -> None:  # noqa: B027  # most need none
        """Do what one process does once, before the others begin."""

    @abstractmethod
    async def write(self, name: str, number: int) -> None:
        """Do one step."""

    @abstractmethod
    async def read(self) -> list[str]:
        """Return the steps that are there, in any order."""


def run_writer(kind: type[FaceWriter], at: dict[str, str], name: str, count: int) -> None:
    """In a process: do `count` steps at the same time as others, or, with 0, steps until it is killed."""

    async def main() -> None:
        async with open_at(at, timeout=120) as store:
            face = kind(store)
            if count:
                await store.aget(("warm",), "up")
                wait_to_begin()
            for number in range(count) if count else itertools.count():
                await face.write(name, number)
                if not count:
                    report(number)

    asyncio.run(main())
    os._exit(0)  # to end the interpreter, with all frameworks in it, takes 0.2 s


def check_kills(kind: type[FaceWriter], engine: str, write: Callable[..., Any], folder: Path, rounds: int) -> None:
    """Kill a writer `rounds` times. What it has acknowledged is there, whole, and at most one step more.

    `write(at, face, name, count)` is the function of the test module that its processes run.
    """
    at = new_location(engine, folder)
    run_once(at, lambda store: kind(store).prepare())
    acknowledged = 0
    for round in range(rounds):
        name = f"round{round}"
        process = start(write, at=at, face=kind.__name__, name=name, count=0)
        reported = [process.receive()]
        time.sleep(random.uniform(0, 0.05))
        reported += process.kill()
        acknowledged += len(reported)
        assert reported == list(range(len(reported)))
        steps = sorted(int(step.split()[1]) for step in read_steps(kind, at) if step.split()[0] == name)
        assert steps == list(range(len(steps))), f"a step is missing: {steps}"
        assert len(steps) in (len(reported), len(reported) + 1), (
            f"{len(reported)} were acknowledged, {len(steps)} are there"
        )
    assert acknowledged >= rounds


def check_several(kind: type[FaceWriter], engine: str, write: Callable[..., Any], folder: Path, count: int) -> None:
    """Run processes that write at once. Each step is there once."""
    at = new_location(engine, folder)
    run_once(at, lambda store: kind(store).prepare())
    names = [f"p{number}" for number in range(PROCESSES)]
    finish_together([start(write, at=at, face=kind.__name__, name=name, count=count) for name in names])
    expected = Counter(f"{name} {step}" for name in names for step in range(count))
    assert Counter(read_steps(kind, at)) == expected


def read_steps(kind: type[FaceWriter], at: dict[str, str]) -> list[str]:
    found: list[str] = run_once(at, lambda store: kind(store).read())
    return found


def run_once(at: dict[str, str], call: Callable[[holdall.Store], Any]) -> Any:
    """Open a store, and run a coroutine on it."""

    async def main() -> Any:
        async with open_at(at) as store:
            return await call(store)

    return asyncio.run(main())
