"""Leases: locks that expire, and that fence.

A lease is an entry of holdall's own with a TTL, put on condition that it is absent. Its version is the token, which
only grows. A write with `lease=` carries a check of that version in the same batch. So the storage refuses a holder
whose lease has expired, however long that holder was paused. While a `with` block runs, the lease is renewed at a third
of its TTL: in threads that all sync blocks share, or in a task of the block's own event loop.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import threading
import time
import weakref
from collections.abc import Coroutine
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import ops
from ..core.dispatch import Dispatcher
from ..engine import Engine
from ..errors import (
    Conflict,
    HoldallError,
    InvalidInput,
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    StoreClosed,
    shown,
)
from ..model import keys
from ..model.values import MAX_TTL, duration_seconds
from ..ops import ABSENT, Entry, Namespace, PointOp
from ..runtime.arguments import explain_renamed
from ..runtime.programs import IS_ASYNC, Call, Sleep, StoreProgram, arun, run
from ..runtime.signals import defer_signals

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("holdall")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05  # seconds between two tries to acquire a lease that is held

_unfinished: set[asyncio.Task[Any]] = set()  # an event loop keeps only weak references to tasks


def lease_namespace(inside: Namespace) -> keys.Resolved:
    """Return the namespace of holdall's own in which the leases of a namespace are. It is in the same root."""
    return keys.Resolved((keys.RESERVED, *inside[:1], "leases", *inside[1:]))


class Lease:
    """A lease, from `Store.lease` or `Store.alease`. It is held from `with`, `async with` or `acquire()` on.

    A block renews it in the background and releases it at its end. It can be acquired once, and have one block.
    """

    def __init__(
        self, store: Dispatcher, name: str, ttl: float | timedelta, namespace: Namespace | None, wait: Any
    ) -> None:
        if ttl is None:
            raise InvalidInput("a lease needs a ttl, in seconds: how long it holds unless it is renewed")
        self._store = store
        self._name = keys.check_key(name, "the name of a lease")
        self._namespace = keys.check_namespace(() if namespace is None else namespace, empty=True)
        inside = keys.check_namespace(store._resolve_prefix(self._namespace), empty=True)
        self._lease_namespace = lease_namespace(inside)
        self._ttl = duration_seconds("ttl", ttl, most=MAX_TTL)
        self._wait = None if wait is None else duration_seconds("wait", wait, least=0, most=None, or_else=" or None")
        self._owner = os.urandom(16).hex()
        self._token = 0  # not acquired yet
        self._renewed = 0.0
        self._process = os.getpid()
        self._acquisition = threading.Lock()  # taken while it is acquired, and from then on
        self._block = threading.Lock()  # taken when a block begins, and from then on
        self._is_over = False  # released, or known to be lost
        self._is_lost = False
        self._renewer: _Renewer | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._holder: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._has_cancelled = False

    @classmethod
    def held(cls, store: Dispatcher, name: str, token: int, namespace: Namespace, ttl: float = 1.0) -> Lease:
        """Make a lease that another process has acquired, by its token. Whether it is held, the storage decides."""
        lease = cls(store, name, ttl, namespace, None)
        lease._token = token
        lease._acquisition.acquire()
        return lease

    def __repr__(self) -> str:
        if not self._token:
            return f"<holdall.Lease {self._name!r}, not acquired>"
        state = ", lost" if self._is_lost else ", released" if self._is_over else ""
        return f"<holdall.Lease {self._name!r}, token {self._token}{state}>"

    @property
    def name(self) -> str:
        """The name of the lease."""
        return self._name

    @property
    def ttl(self) -> float:
        """How many seconds it holds after it was acquired or renewed."""
        return self._ttl

    @property
    def owner(self) -> str:
        """A random text that only this holder has."""
        return self._owner

    @property
    def token(self) -> int:
        """The version of the put that acquired it: greater than that of every earlier holder. 0 before that."""
        return self._token

    @property
    def is_lost(self) -> bool:
        """Whether this process knows that the lease was lost. Only a write with `lease=` knows for certain."""
        return self._is_lost

    # Programs --------------------------------------------------------------------------------------------------------

    def _acquire(self) -> StoreProgram[Lease]:
        """Acquire it, and return it. Waits as long as `wait=` allows, then raises `LeaseHeld`.

        Nothing renews it in the background: call `renew`, or use a `with` block instead.
        """
        if not self._acquisition.acquire(blocking=False):
            raise self._used_already()
        try:
            return (yield from self._acquire_in_time())
        finally:
            if not self._token:
                self._acquisition.release()

    acquire = run(_acquire)
    aacquire = arun(_acquire)

    def _used_already(self) -> InvalidInput:
        """Make the error of a second use. Two users of one object would both be its holder, so it locks nothing."""
        return InvalidInput(f"{self!r} was used already; make another one with store.lease()")

    def _acquire_in_time(self) -> StoreProgram[Lease]:
        give_up = time.monotonic() + (self._wait or 0)
        pause = _FIRST_PAUSE
        put = ops.Put(self._lease_namespace, self._name, {"owner": self._owner}, self._ttl, ABSENT)
        while True:
            began = time.monotonic()
            try:
                entry: Entry = (yield [put])[0]
                self._token, self._renewed, self._process = entry.version, began, os.getpid()
                return self
            except Conflict as conflict:
                held = conflict
            except OutcomeUnknown:
                yield from self._withdraw(put)
                raise
            except (HoldallError, GeneratorExit):  # refused, or the storage is unreachable, or the program was closed
                raise
            except BaseException:  # cancelled or interrupted: the put may have happened
                yield from self._finish(self._withdraw(put))
                raise
            while True:
                left = give_up - time.monotonic()
                if left <= 0:
                    raise LeaseHeld("lease", self._namespace, self._name, None, held.actual)
                yield Sleep(min(left, pause * random.uniform(0.5, 1)))
                pause = min(pause * 1.5, _LONGEST_PAUSE)
                if (yield [ops.Get(self._lease_namespace, self._name)])[0] is None:  # a read costs less than a put
                    break

    def _withdraw(self, put: ops.Put) -> StoreProgram[None]:
        """Release the lease that an interrupted put has acquired, or may still acquire.

        The put is sent again: when it is answered, the first one has ended. A read could come before the first put.
        """
        try:
            entry: Entry | None
            try:
                entry = (yield [put])[0]
            except Conflict:
                entry = (yield [ops.Get(self._lease_namespace, self._name)])[0]
            if entry is not None and entry.value.get("owner") == self._owner:
                yield [ops.Delete(self._lease_namespace, self._name, entry.version)]
        except HoldallError:  # the lease expires after its TTL
            return

    def _finish(self, program: StoreProgram[Any]) -> StoreProgram[None]:
        """Run a program to its end after a cancellation, even if the task is cancelled again."""
        if (yield IS_ASYNC):
            yield Call(self._run_uncancelled, (program,))
        else:
            yield from program

    async def _run_uncancelled(self, program: StoreProgram[Any]) -> None:
        """Run a program in a task of its own, which continues if its caller is cancelled."""
        import asyncio

        task = asyncio.create_task(self._arun(program))
        _unfinished.add(task)
        task.add_done_callback(_unfinished.discard)
        await asyncio.shield(task)

    def _renew(self) -> StoreProgram[None]:
        """Restart its TTL. `LeaseLost` if it is no longer held."""
        began = time.monotonic()
        yield from self._guard([ops.Refresh(self._lease_namespace, self._name)])
        self._renewed = began

    renew = run(_renew)
    arenew = arun(_renew)

    def _release(self) -> StoreProgram[bool]:
        """Release it. Returns whether it was still held. Never releases the lease of another holder."""
        if not self._token or self._is_over or self._process != os.getpid():  # a fork does not own its parent's lease
            return False
        delete = ops.Delete(self._lease_namespace, self._name, self._token)
        try:
            self._is_over = True  # set first: a renewal that runs now must not report a loss
            yield [delete]
        except Conflict:
            self._is_lost = True
            return False
        except (HoldallError, GeneratorExit):
            self._is_over = False
            raise
        except BaseException:  # cancelled or interrupted: the delete may not have happened
            yield from self._finish(self._delete_again(delete))
            raise
        return True

    def _delete_again(self, delete: ops.Delete) -> StoreProgram[None]:
        """Finish an interrupted release, which may have happened already."""
        try:
            yield [delete]
        except Conflict:
            return
        except BaseException as error:  # the lease expires after its TTL, unless it is released later
            self._is_over = False
            if not isinstance(error, HoldallError):
                raise

    release = run(_release)
    arelease = arun(_release)

    def _guard(self, batch: list[Any]) -> StoreProgram[list[Any]]:
        """Run a batch if the lease is held, else raise `LeaseLost`. The storage checks it in the same transaction."""
        if not self._token:
            raise InvalidInput(f"{self!r}: use it with a `with` block, or call acquire() first")
        try:
            results: list[Any] = yield [ops.Check(self._lease_namespace, self._name, self._token), *batch]
            return results[1:]
        except Conflict as conflict:
            if conflict.namespace != self._lease_namespace:
                raise
            raise self._mark_lost(conflict.actual) from None

    def _mark_lost(self, actual: int | None = None) -> LeaseLost:
        """Note that the lease is over, and return the error to raise."""
        if not self._is_over:
            self._is_over = self._is_lost = True
        return LeaseLost("lease", self._namespace, self._name, self._token, actual)

    def _renew_once(self) -> StoreProgram[float | None]:
        """Renew it in the background. Returns in how many seconds the next renewal is due; None if there is none."""
        if self._is_over:
            return None
        try:
            yield from self._renew()
        except (Conflict, StoreClosed):
            return None
        except Exception as error:  # the storage is unreachable: try again while the lease may be held
            if not isinstance(error, HoldallError):
                logger.exception("%r could not be renewed", self)
            if time.monotonic() - self._renewed > self._ttl:
                self._mark_lost()
                return None
            return min(self._ttl / 10, 1.0)
        return self._until_due()

    def _until_due(self) -> float:
        """How many seconds are left until the next renewal."""
        return max(0.0, self._renewed + self._ttl / 3 - time.monotonic())

    # Blocks ----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Lease:
        if self._is_over or not self._block.acquire(blocking=False):
            raise self._used_already()
        try:
            if not self._token:
                self.acquire()
            self._renewer = self._store._engine_handle.companion(_Renewer)
            defer_signals(self._renewer.add, self)
            return self
        except InvalidInput:  # another thread is acquiring it
            self._block.release()
            raise
        except BaseException:  # held or interrupted: the block does not start, so `__exit__` is not called
            if self._renewer is not None:
                defer_signals(self._renewer.discard, self)
            with contextlib.suppress(HoldallError):  # the lease expires after its TTL
                self.release()
            self._block.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # No statement before the `try`: a signal handler may raise at any. One that raises before this method begins
        # cannot be caught; then the lease is renewed for as long as the program refers to it.
        try:
            defer_signals(self._end_block, kind is None)
        except HoldallError:
            raise
        except BaseException:  # a signal handler raised, maybe before the lease was released
            defer_signals(self._end_block, False)
            raise

    def _end_block(self, may_raise: bool) -> None:
        """Stop the renewals and release the lease. It may be called again. `may_raise`: also raise storage errors."""
        if self._process != os.getpid():  # a fork does not own its parent's lease
            return
        if self._renewer is None:
            raise self._no_block()
        self._renewer.discard(self)
        try:
            if not self._is_over:
                self.release()
        except HoldallError:
            if may_raise:
                raise
        if self._is_lost and may_raise:
            raise self._mark_lost()

    def _no_block(self) -> InvalidInput:
        return InvalidInput(f"{self!r}: no block of it has begun; release it with release()")

    async def __aenter__(self) -> Lease:
        import asyncio

        if self._is_over or not self._block.acquire(blocking=False):
            raise self._used_already()
        if not self._token:
            try:
                await self.aacquire()
            except BaseException:
                self._block.release()
                raise
        self._holder = asyncio.current_task()
        assert self._holder is not None
        self._cancelling = self._holder.cancelling()
        self._renewal = asyncio.create_task(self._renew_repeatedly(), name=f"holdall lease {self._name!r:.100}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        if self._process != os.getpid():
            return
        if self._renewal is None or self._holder is None:
            raise self._no_block()
        self._renewal.cancel()
        if self._has_cancelled:
            left = self._holder.uncancel()
            if kind is not None and issubclass(kind, asyncio.CancelledError) and left <= self._cancelling:
                raise self._mark_lost() from error
        if not self._is_over:
            try:
                await self.arelease()
            except HoldallError:
                if kind is None:
                    raise
        if self._is_lost and kind is None:
            raise self._mark_lost()

    async def _renew_repeatedly(self) -> None:
        """Renew until the block ends. If the lease is lost, cancel the block: `__aexit__` raises `LeaseLost` then."""
        import asyncio

        due: float | None = self._until_due()
        while due is not None:
            await asyncio.sleep(due)
            due = await self._store._arun(self._renew_once())
        if self._is_lost and self._holder is not None:
            self._has_cancelled = True
            self._holder.cancel()

    def _run(self, program: StoreProgram[Any]) -> Any:
        return self._store._run(program)

    def _arun(self, program: StoreProgram[Any]) -> Coroutine[Any, Any, Any]:
        return self._store._arun(program)


class _Renewer:
    """The threads that renew the leases of sync blocks: one waits for the next renewal that is due, the others renew.

    So a slow renewal delays no other. The first lease starts the first thread. No thread is left after the last lease.
    """

    def __init__(self, _engine: Engine) -> None:
        self._changed = threading.Condition()
        # When each renewal is due; infinity while it runs. Weak keys, as an interrupted block may never end.
        self._due: weakref.WeakKeyDictionary[Lease, float] = weakref.WeakKeyDictionary()
        self._threads: set[threading.Thread] = set()
        self._waiter: threading.Thread | None = None  # the thread that waits for the next renewal
        self._wakes = 0.0  # when that thread wakes
        self._stopped = False

    def add(self, lease: Lease) -> None:
        with self._changed:
            due = self._due[lease] = time.monotonic() + lease._until_due()
            if self._waiter is None:
                self._start_waiter()
            elif due < self._wakes:
                self._changed.notify()

    def discard(self, lease: Lease) -> None:
        with self._changed:
            self._due.pop(lease, None)  # the waiting thread notices this when it wakes

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join()

    def abandon(self) -> None:
        """Do nothing: threads do not survive a fork."""

    def _start_waiter(self) -> None:
        thread = threading.Thread(target=self._renew_due, name="holdall-renewer", daemon=True)
        thread.start()
        self._waiter = thread
        self._threads.add(thread)

    def _renew_due(self) -> None:
        while (lease := self._wait_for_due()) is not None:
            due_in = lease._run(lease._renew_once())
            with self._changed:
                if due_in is None:
                    self._due.pop(lease, None)
                elif lease in self._due:
                    self._due[lease] = time.monotonic() + due_in
                    self._changed.notify()  # the waiting thread may wake too late for it
            del lease  # keep no reference while this thread waits for the next

    def _wait_for_due(self) -> Lease | None:
        """Wait for a lease that is due for renewal. None if another thread waits, or there is no lease."""
        this = threading.current_thread()
        with self._changed:
            if self._waiter is None:
                self._waiter = this
            while self._waiter is this and not self._stopped:
                lease = min(self._due, key=self._due.__getitem__, default=None)
                if lease is None or self._due[lease] == math.inf:
                    break
                self._wakes = self._due[lease]
                if (left := self._wakes - time.monotonic()) > 0:
                    del lease  # keep no reference while this thread waits
                    self._changed.wait(left)
                    continue
                self._due[lease] = math.inf
                self._waiter = None
                if any(due < math.inf for due in self._due.values()):
                    # Without another thread, the other leases wait for this renewal.
                    with contextlib.suppress(RuntimeError):
                        self._start_waiter()
                return lease
            if self._waiter is this:
                self._waiter = None
            self._threads.discard(this)
            return None


class LeaseMethods(Dispatcher):
    """The methods of `Store` for leases."""

    @explain_renamed
    def lease(
        self,
        name: str,
        ttl: float | timedelta,
        *,
        namespace: Namespace | None = None,
        wait: float | timedelta | None = None,
    ) -> Lease:
        """Make a lease for a `with` block, which acquires it, renews it in the background, and releases it.

        It holds for `ttl` seconds, or until it is released; then a write with `lease=` is refused. A name is one lease
        in one namespace: `namespace`, or the store's own. `wait` is how long to wait for another holder before
        `LeaseHeld`: seconds or a timedelta; None tries once. Without a block, call `acquire()`, `renew()` and
        `release()`.
        """
        return Lease(self, name, ttl, namespace, wait)

    @explain_renamed
    def alease(
        self,
        name: str,
        ttl: float | timedelta,
        *,
        namespace: Namespace | None = None,
        wait: float | timedelta | None = None,
    ) -> Lease:
        """`lease`, for `async with store.alease(...)`, or `await store.alease(...).aacquire()`.

        A block whose lease is lost is cancelled, and ends with `LeaseLost`.
        """
        return Lease(self, name, ttl, namespace, wait)

    def _change(self, batch: list[PointOp], lease: Lease | None) -> StoreProgram[list[Any]]:
        """Run a batch of changes. With a lease, check that it is held, even if the batch is empty."""
        if lease is None:
            if batch:
                return (yield batch)  # type: ignore[no-any-return]  # the results
            self._require_open()  # a closed store refuses even an empty batch
            return []
        if not isinstance(lease, Lease) or lease._store._engine_handle is not self._engine_handle:
            raise InvalidInput(f"lease= must be a lease of this store, not {shown(lease)}")
        return (yield from lease._guard(batch))
