"""Logic written once, run sync or async.

A *program* is a generator: it yields a request and is sent the reply. It never does I/O itself, so it does not know
whether anybody awaits. Two drivers run it, `drive` and `adrive`; what a request means is up to the `perform` function
that they are given. The store's programs yield batches of ops, `Call`, `Work` and `Sleep`; those of the SQL that
engines share yield statements and `Work`, and PostgreSQL's engine runs them in programs of its own, which yield what is
done with connections. Any of them may yield `AWAITED`: the drivers answer it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from .errors import HoldallError, LeaseLost, StoreClosed, Unavailable
from .ops import FrozenStruct

#: How often a read-modify-write is tried before it gives up.
_MOST_TRIES = 1000

T = TypeVar("T")
P = ParamSpec("P")

Program: TypeAlias = Generator[Any, Any, T]


class Call(FrozenStruct, frozen=True):
    """A request to call the user's function; where the driver is async, the function may be too."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


class Work(FrozenStruct, frozen=True):
    """A request to call a function of ours that may take long: an async driver does it in a thread."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


class Sleep(FrozenStruct, frozen=True):
    """A request to wait."""

    seconds: float


class Awaited:
    """A request to say whether somebody awaits; the drivers answer it themselves."""


AWAITED = Awaited()


def before_retry(conflict: Exception, tries: int) -> Program[None]:
    """Wait a little before a read-modify-write begins again; after so many tries, give up with the conflict.

    At once, where it would never hold again.
    """
    if tries >= _MOST_TRIES or isinstance(conflict, LeaseLost):
        raise conflict
    yield Sleep(random.uniform(0, 0.001 * min(tries, 20)))


def each(groups: Sequence[list[Any] | HoldallError]) -> Program[list[list[Any] | HoldallError]]:
    """Run groups of ops of which one may fail without the others: each group's results, or its error.

    They go in one batch. Where that fails, nothing of it is left, and each group goes alone. A group that has failed
    already is given as its error.
    """
    answers = list(groups)
    places = [place for place, group in enumerate(groups) if not isinstance(group, HoldallError)]
    batch = [op for place in places for op in groups[place]]  # type: ignore[union-attr]  # no error is among them
    if not batch:
        return answers
    try:
        results = iter((yield batch))
    except HoldallError as error:
        is_everybodys = len(places) == 1 or isinstance(error, Unavailable | StoreClosed)
        for place in places:
            answers[place] = error if is_everybodys else (yield from each([groups[place]]))[0]
    else:
        for place in places:
            answers[place] = [next(results) for _ in groups[place]]  # type: ignore[union-attr]  # as above
    return answers


def drive(program: Program[T], perform: Callable[[Any], Any]) -> T:
    """Run a program to its end, answering its requests with `perform`."""
    try:
        request = next(program)
        while True:
            try:
                reply = False if request is AWAITED else perform(request)
            except BaseException as error:
                request = program.throw(error)
            else:
                request = program.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped


async def adrive(program: Program[T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """`drive`, with a `perform` that is awaited."""
    try:
        request = next(program)
        while True:
            try:
                reply = True if request is AWAITED else await perform(request)
            except BaseException as error:
                request = program.throw(error)
            else:
                request = program.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped


class Runner(Protocol):
    """What a class has whose public methods are made from programs by `run` and `arun`."""

    def _run(self, program: Program[T]) -> T: ...

    def _arun(self, program: Program[T]) -> Coroutine[Any, Any, T]: ...


R = TypeVar("R", bound=Runner)


def run(method: Callable[Concatenate[R, P], Program[T]]) -> Callable[Concatenate[R, P], T]:
    """The sync public method of a program."""

    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self, *args, **kwargs))

    return _named(call, method, method.__name__.removeprefix("_"))


def arun(method: Callable[Concatenate[R, P], Program[T]]) -> Callable[Concatenate[R, P], Coroutine[Any, Any, T]]:
    """The async public method of a program."""

    async def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._arun(method(self, *args, **kwargs))

    return _named(call, method, "a" + method.__name__.removeprefix("_"))


def _named(call: T, method: Callable[..., Any], name: str) -> T:
    """Give a public method its program's signature and words, under its own name."""
    functools.update_wrapper(call, method)  # type: ignore[arg-type]  # a function, whatever T says of its type
    owner = method.__qualname__.rpartition(".")[0]
    call.__name__ = name  # type: ignore[attr-defined]  # a function, as above
    call.__qualname__ = f"{owner}.{name}"  # type: ignore[attr-defined]  # a function, as above
    method.__qualname__ = f"{owner}.{method.__name__.removeprefix('_')}"  # what Python says of wrong arguments
    return call


def pages(runner: Runner, page: Callable[[Any], Program[tuple[list[T], Any]]]) -> Generator[T, None, None]:
    """Iterate over items that come in pages: `page(mark)` gives one and the mark of the next, None after the last."""
    mark = None
    while True:
        items, mark = runner._run(page(mark))
        yield from items
        if mark is None:
            return


async def apages(runner: Runner, page: Callable[[Any], Program[tuple[list[T], Any]]]) -> AsyncGenerator[T, None]:
    """`pages`, awaited."""
    mark = None
    while True:
        items, mark = await runner._arun(page(mark))
        for item in items:
            yield item
        if mark is None:
            return
