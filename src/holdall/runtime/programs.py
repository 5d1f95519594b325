"""Logic written once, run sync or async.

A *program* is a generator: it yields a request and is sent the reply. It does no I/O itself, so the same program runs
sync, with `drive`, and async, with `adrive`. Both take a `perform` function, which answers requests.

There are three request languages, each with its own type. Store programs (`StoreProgram`) yield batches of ops, `Call`,
`Work` and `Sleep`. SQL programs (`engines/sql/statements.py`) yield statements and `Work`. Connection programs of
PostgreSQL and Redis (`connections.py` in their folders) yield requests that concern connections. The drivers themselves
answer `IS_ASYNC`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from ..errors import Conflict, HoldallError, LeaseLost, StoreClosed, Unavailable
from ..ops import FrozenStruct, Op
from .arguments import check_renamed

#: The most tries of a read-modify-write, and the longest pause between two, in milliseconds.
_MOST_TRIES, _LONGEST_PAUSE = 300, 500

T = TypeVar("T")
RequestT = TypeVar("RequestT")
P = ParamSpec("P")


class Call(FrozenStruct, frozen=True):
    """A request to call a user's function. With an async driver, it may be a coroutine function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


class Work(FrozenStruct, frozen=True):
    """A request to call a function of holdall that may take long. An async driver calls it in a thread."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


class Sleep(FrozenStruct, frozen=True):
    """A request to wait."""

    seconds: float


class EngineBatch(FrozenStruct, frozen=True):
    """A request to run a batch on the engine of a store, as it is: in the engine's namespaces, and not checked again.

    For programs that move stored data, and for those that use two stores. The store may be another than the driver's.
    """

    store: Any
    batch: list[Any]


class IsAsync:
    """A request whose reply is whether the driver is async. The drivers answer it themselves."""


IS_ASYNC = IsAsync()

#: Any program, by its requests and its result. The type of a generator cannot relate a reply to its request.
Program: TypeAlias = Generator[RequestT, Any, T]
#: The requests of the store, its files and the faces: a list of ops, which is a batch, or one of these.
StoreRequest: TypeAlias = Sequence[Op] | Call | Work | Sleep | IsAsync | EngineBatch
StoreProgram: TypeAlias = Generator[StoreRequest, Any, T]


def pause_before_retry(conflict: Exception, tries: int) -> Program[Sleep, None]:
    """Pause before a read-modify-write starts again. After too many tries, or a lost lease, raise the conflict.

    Each pause may be twice as long as the one before. With short pauses, the conflicts of many writers at once grow
    with the square of their number: 310 pops of one session had 35,000 conflicts, and have 3,000 to 7,000.
    """
    if tries >= _MOST_TRIES or isinstance(conflict, LeaseLost):
        raise conflict
    yield Sleep(random.uniform(0, 0.001 * min(2**tries, _LONGEST_PAUSE)))


def retry_conflicts(attempt: Callable[[], StoreProgram[T]]) -> StoreProgram[T]:
    """Run a read-modify-write: again from its start if a check fails, because another has written in the meantime.

    Not for one that calls a user's function, whose own conflicts are the user's.
    """
    for tries in itertools.count(1):
        try:
            return (yield from attempt())
        except Conflict as conflict:
            yield from pause_before_retry(conflict, tries)
    raise AssertionError("unreachable")


def run_each(groups: Sequence[list[Any] | HoldallError]) -> StoreProgram[list[list[Any] | HoldallError]]:
    """Run groups of ops that may fail independently; return each group's results, or its error.

    All groups are sent in one batch. If that fails, each group is sent on its own. An error in place of a group is
    returned as it is.
    """
    answers = list(groups)
    valid = [number for number, group in enumerate(groups) if not isinstance(group, HoldallError)]
    batch = [op for number in valid for op in groups[number]]  # type: ignore[union-attr]  # no error is among them
    if not batch:
        return answers
    try:
        results = iter((yield batch))
    except HoldallError as error:
        concerns_all = len(valid) == 1 or isinstance(error, Unavailable | StoreClosed)
        for number in valid:
            answers[number] = error if concerns_all else (yield from run_each([groups[number]]))[0]
    else:
        for number in valid:
            answers[number] = [next(results) for _ in groups[number]]  # type: ignore[union-attr]  # as above
    return answers


def drive(program: Program[RequestT, T], perform: Callable[[RequestT], Any]) -> T:
    """Run a program to its end, answering its requests with `perform`."""
    try:
        request = next(program)
        while True:
            try:
                reply = False if request is IS_ASYNC else perform(request)
            except BaseException as error:
                request = program.throw(error)
            else:
                request = program.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped


async def adrive(program: Program[RequestT, T], perform: Callable[[RequestT], Awaitable[Any]]) -> T:
    """`drive`, with a `perform` that is awaited."""
    try:
        request = next(program)
        while True:
            try:
                reply = True if request is IS_ASYNC else await perform(request)
            except BaseException as error:
                request = program.throw(error)
            else:
                request = program.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped


class Runner(Protocol):
    """A class whose public methods `run` and `arun` make from programs."""

    def _run(self, program: StoreProgram[T]) -> T: ...

    def _arun(self, program: StoreProgram[T]) -> Coroutine[Any, Any, T]: ...


R = TypeVar("R", bound=Runner)


def run(method: Callable[Concatenate[R, P], StoreProgram[T]]) -> Callable[Concatenate[R, P], T]:
    """Make the sync public method of a program."""

    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            program = method(self, *args, **kwargs)
        except TypeError:
            check_renamed(kwargs, inspect.signature(method).parameters)
            raise
        return self._run(program)

    return _set_name(call, method, method.__name__.removeprefix("_"))


def arun(method: Callable[Concatenate[R, P], StoreProgram[T]]) -> Callable[Concatenate[R, P], Coroutine[Any, Any, T]]:
    """Make the async public method of a program."""

    async def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            program = method(self, *args, **kwargs)
        except TypeError:
            check_renamed(kwargs, inspect.signature(method).parameters)
            raise
        return await self._arun(program)

    return _set_name(call, method, "a" + method.__name__.removeprefix("_"))


def _set_name(call: T, method: Callable[..., Any], name: str) -> T:
    """Give a public method the signature and docstring of its program, under its own name."""
    functools.update_wrapper(call, method)  # type: ignore[arg-type]  # a function, whatever T says of its type
    owner = method.__qualname__.rpartition(".")[0]
    call.__name__ = name  # type: ignore[attr-defined]  # a function, as above
    call.__qualname__ = f"{owner}.{name}"  # type: ignore[attr-defined]  # a function, as above
    method.__qualname__ = f"{owner}.{method.__name__.removeprefix('_')}"  # for the messages about wrong arguments
    return call


def pages(runner: Runner, page: Callable[[Any], StoreProgram[tuple[list[T], Any]]]) -> Generator[T, None, None]:
    """Iterate over items in pages: `page(mark)` returns a page and the mark of the next, None after the last."""
    mark = None
    while True:
        items, mark = runner._run(page(mark))
        yield from items
        if mark is None:
            return


async def apages(runner: Runner, page: Callable[[Any], StoreProgram[tuple[list[T], Any]]]) -> AsyncGenerator[T, None]:
    """`pages`, awaited."""
    mark = None
    while True:
        items, mark = await runner._arun(page(mark))
        for item in items:
            yield item
        if mark is None:
            return
