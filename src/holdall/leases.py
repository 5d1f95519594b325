"""Leases: locks that expire, and that fence.

A lease is an entry of holdall's own, with a TTL, put where nothing was: its version is the token, which only grows.
Whatever is written with `lease=` carries a check of that version in the same batch, so it is the storage that refuses a
holder whose time has run out, however long that holder slept. While a `with` block runs, the lease is renewed at a
third of its TTL: in a thread that all sync blocks share, or in a task of the block's own event loop.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Coroutine, Generator
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import keys, ops
from .batches import Batching
from .engine import Engine
from .errors import Conflict, HoldallError, InvalidInput, LeaseHeld, LeaseLost, StoreClosed, shown
from .ops import ABSENT, Entry, Namespace, PointOp
from .programs import AWAITED, Call, Program, Sleep, arun, run
from .values import ttl_seconds

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("holdall")

_FOR_EVER = 1e12  # seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05  # between two looks of who waits for a lease, in seconds


_shielded: set[asyncio.Task[Any]] = set()


class Lease:
    """A lease that was acquired; get one from `Store.lease`. A context manager, sync and async, which renews it."""

    def __init__(self, store: Batching, name: str, ttl: float | timedelta, ns: Namespace | None) -> None:
        seconds = ttl_seconds(ttl)
        if seconds is None:
            raise InvalidInput("a lease needs a ttl, in seconds: how long it holds unless it is renewed")
        self._store = store
        self._name = keys.check_key(name)
        self._namespace = keys.check_namespace(() if ns is None else ns, empty=True)
        inside = keys.check_namespace(store._inside(self._namespace), empty=True)
        self._home = keys.Home((keys.RESERVED, *inside[:1], "leases", *inside[1:]))
        self._ttl = seconds
        self._owner = os.urandom(16).hex()
        self._token = 0
        self._renewed = 0.0
        self._process = os.getpid()
        self._is_over = False  # released, or known to be lost
        self._is_lost = False
        self._renewer: _Renewer | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._holder: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._has_cancelled = False

    def __repr__(self) -> str:
        state = ", lost" if self._is_lost else ", released" if self._is_over else ""
        return f"<holdall.Lease {self._name!r}, token {self._token}{state}>"

    @property
    def name(self) -> str:
        """What is leased."""
        return self._name

    @property
    def ttl(self) -> float:
        """For how many seconds it holds after it was acquired or renewed."""
        return self._ttl

    @property
    def owner(self) -> str:
        """A nonce that only this holder has."""
        return self._owner

    @property
    def token(self) -> int:
        """The version of the put that acquired it: greater than that of every earlier holder."""
        return self._token

    @property
    def is_lost(self) -> bool:
        """Whether it is known here that the lease was lost. Only a write with `lease=` finds out for certain."""
        return self._is_lost

    # Programs --------------------------------------------------------------------------------------------------------

    def _acquire(self, wait: float | None) -> Program[Lease]:
        give_up = time.monotonic() + (wait or 0)
        pause = _FIRST_PAUSE
        put = ops.Put(self._home, self._name, {"owner": self._owner}, self._ttl, ABSENT)
        while True:
            began = time.monotonic()
            try:
                entry: Entry = (yield [put])[0]
                self._token, self._renewed = entry.version, began
                return self
            except Conflict as conflict:
                held = conflict
            except (HoldallError, GeneratorExit):  # refused, or the storage is away; or nothing can be asked any more
                raise
            except BaseException:  # cancelled, or interrupted: the storage may have gone on
                if (yield AWAITED):
                    yield Call(self._shielded, (self._withdraw(put),))
                else:
                    yield from self._withdraw(put)
                raise
            while True:
                left = give_up - time.monotonic()
                if left <= 0:
                    raise LeaseHeld("lease", self._namespace, self._name, None, held.actual)
                yield Sleep(min(left, pause * random.uniform(0.5, 1)))
                pause = min(pause * 1.5, _LONGEST_PAUSE)
                if (yield [ops.Get(self._home, self._name)])[0] is None:  # a look costs less than a try
                    break

    def _withdraw(self, put: ops.Put) -> Program[None]:
        """Give back what an interrupted put has got, or may yet get: nobody has its token.

        It is sent once more, because the first is over when this one is answered; a look might come too early.
        """
        try:
            entry: Entry | None
            try:
                entry = (yield [put])[0]
            except Conflict:
                entry = (yield [ops.Get(self._home, self._name)])[0]
            if entry is not None and entry.value["owner"] == self._owner:
                yield [ops.Delete(self._home, self._name, entry.version)]
        except HoldallError:  # then it lasts as long as its TTL
            return

    async def _shielded(self, program: Program[None]) -> None:
        """Run a program to its end, though whoever waits for it is cancelled again."""
        import asyncio

        task = asyncio.create_task(self._arun(program))
        _shielded.add(task)  # the loop alone would forget it
        task.add_done_callback(_shielded.discard)
        await asyncio.shield(task)

    def _renew(self) -> Program[None]:
        """Start its TTL anew; `LeaseLost` if it is not held any more."""
        began = time.monotonic()
        yield from self.guard([ops.Refresh(self._home, self._name)])
        self._renewed = began

    renew = run(_renew)
    arenew = arun(_renew)

    def _release(self) -> Program[bool]:
        """Give it back; whether it was still held. What is somebody else's by now is left alone."""
        if self._is_over or self._process != os.getpid():  # a forked child leaves its parent's lease alone
            return False
        self._is_over = True  # before: a renewal that is under way must not take this for a loss
        try:
            yield [ops.Delete(self._home, self._name, self._token)]
        except Conflict:
            self._is_lost = True
            return False
        except BaseException:
            self._is_over = False
            raise
        return True

    release = run(_release)
    arelease = arun(_release)

    def guard(self, batch: list[Any]) -> Program[list[Any]]:
        """Run a batch if the lease is held: the storage checks it in the same transaction, else `LeaseLost`."""
        try:
            results: list[Any] = yield [ops.Check(self._home, self._name, self._token), *batch]
            return results[1:]
        except Conflict as conflict:
            if conflict.namespace != self._home:
                raise
            raise self._lost(conflict.actual) from None

    def _lost(self, actual: int | None = None) -> LeaseLost:
        if not self._is_over:
            self._is_over = self._is_lost = True
        return LeaseLost("lease", self._namespace, self._name, self._token, actual)

    def _keep(self) -> Program[float | None]:
        """One renewal in the background: in how many seconds the next is due; None if there is none."""
        if self._is_over:
            return None
        try:
            yield from self._renew()
        except (Conflict, StoreClosed):
            return None
        except HoldallError:  # the storage is away: as long as the lease may be held, try again
            if time.monotonic() - self._renewed > self._ttl:
                self._lost()
                return None
            return min(self._ttl / 10, 1.0)
        return self._until_due()

    def _until_due(self) -> float:
        return max(0.0, self._renewed + self._ttl / 3 - time.monotonic())

    # With a block ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Lease:
        if self._is_over:
            raise self._lost()
        self._renewer = self._store._shared.companion(_Renewer)
        self._renewer.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process != os.getpid():  # a forked child leaves its parent's lease alone
            return
        assert self._renewer is not None
        self._renewer.discard(self)
        if not self._is_over:
            try:
                self.release()
            except HoldallError:
                if kind is None:
                    raise
        if self._is_lost and kind is None:
            raise self._lost()

    async def __aenter__(self) -> Lease:
        import asyncio

        if self._is_over:
            raise self._lost()
        self._holder = asyncio.current_task()
        assert self._holder is not None
        self._cancelling = self._holder.cancelling()
        self._keeper = asyncio.create_task(self._keep_on(), name=f"holdall lease {self._name!r:.100}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        if self._process != os.getpid():
            return
        assert self._keeper is not None
        assert self._holder is not None
        self._keeper.cancel()
        if self._has_cancelled:
            left = self._holder.uncancel()
            if kind is not None and issubclass(kind, asyncio.CancelledError) and left <= self._cancelling:
                raise self._lost() from error
        if not self._is_over:
            try:
                await self.arelease()
            except HoldallError:
                if kind is None:
                    raise
        if self._is_lost and kind is None:
            raise self._lost()

    async def _keep_on(self) -> None:
        """Renew, until the block ends; if the lease is lost, cancel the block: `__aexit__` makes that `LeaseLost`."""
        import asyncio

        due: float | None = self._until_due()
        while due is not None:
            await asyncio.sleep(due)
            due = await self._store._arun(self._keep())
        if self._is_lost and self._holder is not None:
            self._has_cancelled = True
            self._holder.cancel()

    def _run(self, program: Program[Any]) -> Any:
        return self._store._run(program)

    def _arun(self, program: Program[Any]) -> Coroutine[Any, Any, Any]:
        return self._store._arun(program)


class Acquiring:
    """What `Store.alease` gives: `async with` it, or await it for the `Lease`."""

    def __init__(self, lease: Lease, wait: float | None) -> None:
        self._lease = lease
        self._wait = wait

    def __await__(self) -> Generator[Any, Any, Lease]:
        return self._lease._arun(self._lease._acquire(self._wait)).__await__()

    async def __aenter__(self) -> Lease:
        await self
        return await self._lease.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lease.__aexit__(kind, error, trace)


class _Renewer:
    """The thread that renews the leases of sync blocks. It begins with the first of them, and ends after the last."""

    def __init__(self, _engine: Engine) -> None:
        self._changed = threading.Condition()
        self._due: dict[Lease, float] = {}
        self._wakes = 0.0  # when the thread does
        self._thread: threading.Thread | None = None
        self._stopped = False

    def add(self, lease: Lease) -> None:
        with self._changed:
            due = self._due[lease] = time.monotonic() + lease._until_due()
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew_all, name="holdall-renewer", daemon=True)
                self._thread.start()
            elif due < self._wakes:
                self._changed.notify()

    def discard(self, lease: Lease) -> None:
        with self._changed:
            self._due.pop(lease, None)  # the thread finds out when it would have renewed it

    def stop(self) -> None:
        with self._changed:
            self._stopped, thread = True, self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def abandon(self) -> None:
        """Nothing to let go of."""

    def _renew_all(self) -> None:
        while True:
            with self._changed:
                if self._stopped or not self._due:
                    self._thread = None
                    return
                lease = min(self._due, key=self._due.__getitem__)
                self._wakes = self._due[lease]
                if (left := self._wakes - time.monotonic()) > 0:
                    self._changed.wait(left)
                    continue
            try:
                due = lease._run(lease._keep())
            except Exception:  # of ours: the other leases must not be lost with this one
                logger.exception("%r could not be renewed", lease)
                due = None
            with self._changed:
                if due is None:
                    self._due.pop(lease, None)
                elif lease in self._due:
                    self._due[lease] = time.monotonic() + due


class Locks:
    """Locks by name, in the shape that AG2's `LockedKnowledgeStore` wants: `acquire` and `release` are coroutines.

    Each is a lease that nobody renews. `acquire` waits for `wait` seconds, and says whether the lock was had.
    """

    def __init__(self, store: Batching, *, ns: Namespace | None = None, wait: float | None = 10.0) -> None:
        if not isinstance(store, Batching):
            raise InvalidInput(f"locks are kept in a Store, not in {shown(store)}")
        if ns is not None:
            keys.check_namespace(ns, empty=True)
        self._store = store
        self._ns = ns
        self._wait = check_wait(wait)
        self._held: dict[str, list[tuple[object, Lease]]] = {}  # by whom: one that expired may be another task's by now

    @property
    def store(self) -> Batching:
        """The store that keeps the locks, and so can refuse what is written with one that was lost."""
        return self._store

    async def lease(self, name: str, ttl: float = 30.0) -> Lease | None:
        """The lock of this name as a `Lease`, for `lease=`; None if somebody else kept it. Release it by itself."""
        lease = Lease(self._store, name, ttl, self._ns)
        try:
            await lease._arun(lease._acquire(self._wait))
        except LeaseHeld:
            return None
        return lease

    async def acquire(self, name: str, ttl: float = 30.0) -> bool:
        """Have the lock of this name for at most `ttl` seconds; False if somebody else kept it."""
        import asyncio

        lease = await self.lease(name, ttl)
        if lease is not None:
            self._held.setdefault(name, []).append((asyncio.current_task(), lease))
        return lease is not None

    async def release(self, name: str) -> bool:
        """Give it back, if it was had here; whether it was still held."""
        import asyncio

        held = self._held.get(keys.check_key(name))
        if not held:
            return False
        task = asyncio.current_task()
        _, lease = held.pop(next((place for place, (holder, _) in enumerate(held) if holder is task), 0))
        if not held:
            del self._held[name]
        return await lease.arelease()


class Leasing(Batching):
    """The part of `Store` that leases."""

    def lease(
        self, name: str, ttl: float | timedelta, *, ns: Namespace | None = None, wait: float | None = None
    ) -> Lease:
        """Acquire a lease, for a `with` block, which renews it and gives it back.

        It holds for `ttl` seconds, or until it is released; what is written with `lease=` is refused after that. One
        name is one lease in one namespace: `ns`, or the store's own. `wait=None` tries once; else it is waited for,
        so many seconds; then `LeaseHeld`.
        """
        return self._run(Lease(self, name, ttl, ns)._acquire(check_wait(wait)))

    def alease(
        self, name: str, ttl: float | timedelta, *, ns: Namespace | None = None, wait: float | None = None
    ) -> Acquiring:
        """`lease`, for `async with store.alease(...)`; awaited, it gives the `Lease`. A block whose lease is lost is
        cancelled, and ends with `LeaseLost`."""
        return Acquiring(Lease(self, name, ttl, ns), check_wait(wait))

    def _change(self, batch: list[PointOp], lease: Lease | None) -> Program[list[Any]]:
        """Run a batch that changes something; with a lease, if that is held, even where there is nothing to be done."""
        if lease is None:
            if batch:
                return (yield batch)  # type: ignore[no-any-return]  # the results
            self._engine()  # a closed store has none, whatever is to be done
            return []
        if not isinstance(lease, Lease) or lease._store._shared is not self._shared:
            raise InvalidInput(f"lease= is a lease that this store has given, not {shown(lease)}")
        return (yield from lease.guard(batch))


def check_wait(wait: Any) -> float | None:
    """For how long somebody waits, or `InvalidInput`."""
    if wait is None:
        return None
    if isinstance(wait, timedelta):
        wait = wait.total_seconds()
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not wait >= 0:
        raise InvalidInput(f"wait= is a number of seconds, or None to try once, not {shown(wait)}")
    return float(min(wait, _FOR_EVER))  # an int may be too large for a float
