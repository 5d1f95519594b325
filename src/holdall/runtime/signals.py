"""Defers signal handlers while the main thread changes something.

Python runs signal handlers in the main thread, between any two steps of its code. A handler may raise, as Ctrl-C does,
or call the store itself. In the middle of a change, or while a lock is held, either would do damage. Python's own
`Thread.start`, `Event` and `Condition` are not safe from this, and no driver is. So `defer_signals` replaces every
signal handler written in Python while the main thread is in an engine. The replacement records the signals; their
handlers run when the engine is done. This costs about 3 us a call. Other threads run no signal handlers. A handler that
only sets a flag, as a web server's, need not be deferred: see `trust_handler`.

A call that waits must not delay a signal for as long. Where the call has changed nothing yet, it checks with
`restart_if_signaled`: the handlers run, and if none raises, the call starts again. Where it waits for a server, or
reads for long, and holds nothing that a handler could need, it checks with `run_pending_handlers`.

A handler may be set in ways that only the system knows of: with SA_RESTART, or chained by `faulthandler`. So the whole
`sigaction` of each signal is saved and restored, except that of Python's own handler of SIGINT. This costs about 1 us
for each signal that has a handler.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps in enums, which takes ten times as long
import os
import signal
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
_Handlers: TypeAlias = list[tuple[int, Callable[..., Any]]]

#: How often a waiting call checks for pending signals, in seconds.
SIGNAL_CHECK_INTERVAL = 0.1

_NUMBERS = tuple(int(number) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_ACTION_BYTES = 256  # more than a `struct sigaction` has anywhere
_RESEND_DELAY = 0.01  # seconds, until the hooks of a fork have ended
_INT_HANDLER = signal.default_int_handler
_trusted: list[Any] = []  # functions: handlers that are not deferred
#: The indexes in `_NUMBERS` of signals that have had a handler in Python, and what the others have. No handler is kept
#: here: it may refer to an event loop.
_known: tuple[list[int], list[Any]] = [], []
_main_thread = threading.main_thread().ident
_is_deferring = False
_is_forking = False  # deferring from before a fork until after it
_may_restart = False
_call_start = 0.0
_pending: list[tuple[int, Any]] = []  # the signals that arrived while deferring, and their frames
_replaced: _Handlers = []  # the handlers that `_record` stands in for
_actions: dict[int, Any] = {}  # the `struct sigaction` of each of these
_sigaction: Any = None  # of the C library, once it is needed
_restores = 0  # how often handlers were restored
_starts = 0  # calls of `_start_deferring` in progress: a signal handler that calls the store nests them


class Restart(BaseException):
    """Signal handlers are pending, and the call has changed nothing: `defer_signals` runs them and starts it again."""


class HandlerRaised(BaseException):
    """A signal handler raised `error` in the middle of a call. Only `defer_signals` may catch this."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def is_in_main_thread() -> bool:
    """Whether signal handlers run in this thread."""
    return threading.get_ident() == _main_thread


def defer_signals(function: Callable[..., T], /, *args: Any) -> T:
    """Call a function during which no signal handler runs."""
    if _is_deferring or threading.get_ident() != _main_thread:
        return function(*args)
    if _trusted and not _find_handlers():  # as in a web server: there is nothing to defer
        return function(*args)
    start = time.monotonic()
    while True:
        try:
            _start_deferring(start, may_restart=True)
            return function(*args)
        except Restart:
            continue
        except HandlerRaised as raised:
            raise raised.error from None
        finally:
            _stop_deferring()


@types.coroutine
def await_deferring(coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await a coroutine during whose steps no signal handler runs. Handlers run between two steps."""
    step: Callable[[Any], Any] = coroutine.send
    value: Any = None
    while True:
        try:
            awaited = defer_signals(_run_step, step, value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped
        except BaseException as error:
            if getattr(coroutine, "cr_frame", None) is None:  # it has ended
                raise
            step, value = coroutine.throw, error  # raised by a handler, after the step
            continue
        finally:
            if step is coroutine.send:
                value = None
        try:
            value = yield awaited
            step = coroutine.send
        except BaseException as error:
            step, value = coroutine.throw, error


def _run_step(step: Callable[[Any], Any], value: Any) -> Any:
    disallow_restart()  # a step cannot be taken twice
    return step(value)


def trust_handler(function: Callable[..., object]) -> None:
    """Let a signal handler run at any moment, a method of any object: it raises nothing, and calls no store."""
    if function not in _trusted:
        _trusted.append(function)


def call_start() -> float:
    """When the call of this thread started. A call that is restarted keeps its first start, so its deadline holds."""
    return _call_start if _is_deferring and threading.get_ident() == _main_thread else time.monotonic()


def has_pending_signal() -> bool:
    """Whether a signal handler waits for this thread."""
    return bool(_pending) and threading.get_ident() == _main_thread


def restart_if_signaled() -> None:
    """Restart the call if signal handlers are pending. For calls that have changed nothing and hold nothing."""
    if _may_restart and has_pending_signal():
        raise Restart


def disallow_restart() -> None:
    """Have `restart_if_signaled` do nothing from now on: the call is about to change something."""
    global _may_restart
    if threading.get_ident() == _main_thread:
        _may_restart = False


def run_pending_handlers() -> None:
    """Run the pending signal handlers. An error of theirs is raised here, as `HandlerRaised`."""
    if not has_pending_signal():
        return
    start, may_restart = _call_start, _may_restart
    try:
        _stop_deferring()
    except BaseException as error:
        raise HandlerRaised(error) from error
    finally:
        _start_deferring(start, may_restart)


def before_fork() -> None:
    """Defer signal handlers until `after_fork`: the hooks of a fork must not be interrupted."""
    global _is_forking
    if _is_deferring or threading.get_ident() != _main_thread:
        return
    try:
        _start_deferring(time.monotonic(), may_restart=False)
    except BaseException:
        _restore_handlers()
        raise
    _is_forking = True


def after_fork() -> None:
    """Stop deferring, in the parent and in the child.

    Python ignores what a hook of a fork raises. So no handler runs here; the signals are sent again a moment later.
    """
    global _is_forking, _is_deferring
    if not _is_forking:
        return
    _is_forking = False
    pending = [number for number, _ in _pending]
    _pending.clear()
    _is_deferring = False
    _restore_handlers()
    for number in pending:
        resend = threading.Timer(_RESEND_DELAY, os.kill, (os.getpid(), number))
        resend.daemon = True
        resend.start()


def _start_deferring(start: float, may_restart: bool) -> None:
    global _starts, _call_start, _may_restart
    _starts += 1
    try:
        _replace_handlers()
    finally:
        _starts -= 1
    _call_start, _may_restart = start, may_restart


def _replace_handlers() -> None:
    global _is_deferring, _main_thread, _replaced
    while True:
        restores = _restores
        handlers = _replaced = _find_handlers()
        try:
            for index, (number, handler) in enumerate(handlers):
                if handler is not _INT_HANDLER and _signal.getsignal(number) is not _record:
                    _save_action(number)
                before = _signal.signal(number, _record)
                if before is not handler and before is not _record:  # a signal handler has just set another
                    handlers = _replaced = [*handlers[:index], (number, before), *handlers[index + 1 :]]
        except ValueError:  # in a subinterpreter no handler can be set, and none runs
            _main_thread = None
            return
        _is_deferring = True
        if restores == _restores:
            return
        _is_deferring = False  # a signal handler has called the store, which restored some


def _stop_deferring() -> None:
    global _is_deferring
    _is_deferring = False
    try:
        _restore_handlers()
    finally:
        _run_handlers()


def _restore_handlers() -> None:
    """Restore the handlers, except where a signal handler has set another."""
    global _restores, _replaced
    _restores += 1
    try:
        for number, handler in _replaced:
            if _signal.getsignal(number) is _record:
                _signal.signal(number, handler)
                if handler is not _INT_HANDLER:
                    _restore_action(number)
    except BaseException:  # raised by a restored handler: restore the others too
        _restore_handlers()
        raise
    if not _starts:
        _replaced = []  # a handler may refer to an event loop


def _run_handlers() -> None:
    """Run the handlers of the pending signals."""
    if not _pending:
        return
    number, frame = _pending[0]
    del _pending[0]
    try:
        handler = _signal.getsignal(number)
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            _signal.raise_signal(number)
    finally:  # one that raises must not keep the others from running
        _run_handlers()


def _find_handlers() -> _Handlers:
    """The signals whose handlers are Python code that is not trusted, with these handlers."""
    global _known
    while True:
        indexes, others = _known
        handlers: _Handlers = []
        found = list(map(_signal.getsignal, _NUMBERS))
        for index in indexes:
            handler, found[index] = found[index], None
            if handler is _record:  # an interrupt kept it from being restored
                handlers.append((_NUMBERS[index], dict(_replaced).get(_NUMBERS[index], handler)))
            elif _is_python(handler) and getattr(handler, "__func__", handler) not in _trusted:
                handlers.append((_NUMBERS[index], handler))
        if found == others:  # to look at each of them would take 2 us
            return handlers
        indexes = [index for index, number in enumerate(_NUMBERS) if _is_python(_signal.getsignal(number))]
        _known = indexes, [None if index in indexes else handler for index, handler in enumerate(found)]


def _is_python(handler: Any) -> bool:
    return handler.__class__ is not int and handler is not None


def _record(number: int, frame: Any) -> None:
    """The handler of every signal while handlers are deferred."""
    if _is_deferring:
        if all(number != other for other, _ in _pending):
            _pending.append((number, frame))
        return
    handler = dict(_replaced).get(number)  # deferring starts or stops just now
    if handler is not None:
        handler(number, frame)


def _save_action(number: int) -> None:
    action = _actions.get(number)
    if action is None:
        action = _actions[number] = _new_action()
    if action:
        _sigaction(number, None, action)


def _restore_action(number: int) -> None:
    action = _actions.get(number)
    if action:
        _sigaction(number, action, None)


def _new_action() -> Any:
    """Return the memory for one `struct sigaction`; nothing on a system that has none, such as Windows."""
    global _sigaction
    try:
        import ctypes

        _sigaction = ctypes.CDLL(None).sigaction
    except (ImportError, OSError, AttributeError, TypeError):
        return b""
    return ctypes.create_string_buffer(_ACTION_BYTES)


def _adopt_in_child() -> None:
    """In a forked child, the thread that forked is the main thread. The parent's may have been in a call."""
    global _main_thread, _is_deferring
    was_main = threading.get_ident() == _main_thread
    _main_thread = threading.get_ident()
    _pending.clear()  # they were sent to the parent
    if _is_deferring and not was_main:
        _is_deferring = False
        _restore_handlers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_adopt_in_child)
