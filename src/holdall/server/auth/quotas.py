"""Quotas of tokens: requests a second, and how much the scope of a token may hold.

They hold for all workers together. The workers share the rate of requests in a file. How much a scope holds is measured
in the store. A worker measures again before it has added more than its part of a tenth of the quota since the last
time, and whenever a write does not fit. So the quota is exceeded by a tenth at most. A write that is larger than that
part is measured and done while a lease is held, one at a time in the whole store.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ... import Store, ops
from ...core import face_api
from ...errors import QuotaExceeded
from ...ops import Op
from ..problems import HttpError
from .tokens import Token

_BURST = 1.0  # seconds of the rate that may be used at once
_SLACK = 0.1  # the part of a quota by which all workers together may exceed it
_FRESH = 30.0  # seconds for which a measurement is used at most
_LEASE = 60.0  # seconds
_state = struct.Struct("<dd")  # what is left of a rate, and when that was computed


class RequestRates:
    """Counts requests. The workers of a server share what is left of each rate in a folder."""

    def __init__(self) -> None:
        folder = os.environ.get("HOLDALL_METRICS")
        self._folder = None if folder is None else Path(folder)
        self._left: dict[str, bytes] = {}

    def count_request(self, token: Token) -> None:
        """Count a request; refuse it (429) if the token has sent too many."""
        assert token.max_requests is not None
        if self._folder is None:
            is_allowed, self._left[token.id] = _take(self._left.get(token.id, b""), token.max_requests)
        else:
            file = os.open(self._folder / f"{token.id}.rate", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                is_allowed, left = _take(os.pread(file, _state.size, 0), token.max_requests)
                os.pwrite(file, left, 0)
            finally:
                os.close(file)
        if not is_allowed:
            detail = f"this token may send {token.max_requests:g} requests a second; wait and try again"
            raise HttpError(429, detail, {"Retry-After": "1"}, "QuotaExceeded")


def _take(state: bytes, rate: float) -> tuple[bool, bytes]:
    """Take one request of what is left of a rate. Returns whether there was one, and what is left now."""
    now, most = time.monotonic(), max(1.0, rate * _BURST)
    left, since = _state.unpack(state) if len(state) == _state.size else (most, now)
    left = min(most, left + (now - since) * rate)
    return left >= 1, _state.pack(left - 1 if left >= 1 else left, now)


class Amount(NamedTuple):
    """Entries and bytes."""

    entries: int = 0
    size: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(self.entries + other.entries, self.size + other.size)


class ScopeQuota:
    """The guard of a token's writes. `store` is the token's own, `whole` has the lease of large writes."""

    def __init__(self, whole: Store, store: Store, token: Token) -> None:
        self._whole, self._store, self._token = whole, store, token
        self._most = (token.max_entries, token.max_bytes)
        self._workers = max(1, int(os.environ.get("HOLDALL_WORKERS", "1")))
        self._measured: tuple[float, Amount] | None = None  # when, and what
        self._added = Amount()  # since then, at most

    @contextlib.asynccontextmanager
    async def admit(self, batch: Sequence[Op]) -> AsyncIterator[None]:
        """Let a batch be done in a block, if the scope may hold what it adds."""
        growing = [op for op in batch if isinstance(op, ops.Put | ops.Append | ops.Copy | ops.Move) and _counts(op)]
        if not growing:
            yield
            return
        at_most = _estimate(growing)
        if at_most is not None and self._has_room(at_most):
            self._added = self._added.plus(at_most)
            yield
            return
        lease = self._whole.alease(f"quota of {self._token.id}", _LEASE, wait=_LEASE)
        async with lease:
            growth = await self._compute(batch)
            if any(most is not None and more > 0 for most, more in zip(self._most, growth, strict=True)):
                entries, size = await face_api.arun(self._store, face_api.measure(self._store))
                self._measured, self._added = (time.monotonic(), Amount(entries, size)), Amount()
                self._check(Amount(entries, size), growth)
                self._added = Amount(max(growth.entries, 0), max(growth.size, 0))
            yield

    def _has_room(self, growth: Amount) -> bool:
        """Whether what was measured last, and the part of the slack that this worker has, allow to add so much."""
        if self._measured is None or time.monotonic() - self._measured[0] > _FRESH:
            return False
        added = self._added.plus(growth)
        return all(
            most is None or (more <= most * _SLACK / self._workers and known + more <= most)
            for most, more, known in zip(self._most, added, self._measured[1], strict=True)
        )

    def _check(self, held: Amount, growth: Amount) -> None:
        names = ("entries", "bytes of values and files")
        for most, has, more, name in zip(self._most, held, growth, names, strict=True):
            if most is not None and more > 0 and has + more > most:
                raise QuotaExceeded(
                    f"the scope of this token may hold {most:,} {name}; it has {has:,}, and this would add {more:,}."
                    " Delete something first"
                )

    async def _compute(self, batch: Sequence[Op]) -> Amount:
        """Return how much a batch adds to what is stored."""
        total = Amount()
        sizes: dict[Any, int | None] = {}  # what the batch has changed so far
        for op in batch:
            if not _counts(op):
                continue
            if isinstance(op, ops.Put | ops.Append | ops.Delete):
                address = op.namespace, op.key
                before = sizes[address] if address in sizes else await self._size_of(*address)
                if isinstance(op, ops.Delete):
                    after = None
                elif isinstance(op, ops.Append):
                    after = (before or 0) + len(op.data)
                else:
                    after = _size_of(op)
                sizes[address] = after
                total = total.plus(Amount((after is not None) - (before is not None), (after or 0) - (before or 0)))
            elif isinstance(op, ops.Copy):
                total = total.plus(await self._measure_tree(op.namespace, op.src))
            elif isinstance(op, ops.Move) and op.source is not None:
                total = total.plus(await self._measure_tree(op.source, op.src))
        return total

    async def _size_of(self, namespace: Any, key: str) -> int | None:
        read: Op = ops.Stat(namespace, key) if key.startswith("/") else ops.Get(namespace, key)
        [found] = await face_api.arun(self._whole, face_api.execute_prepared(self._whole, [read]))
        if found is None:
            return None
        return found.size if isinstance(found, ops.FileInfo) else len(face_api.encode_value(found.value).encode())

    async def _measure_tree(self, namespace: Any, path: str) -> Amount:
        """Return how much a file, or a folder with everything in it, holds."""
        [found] = await face_api.arun(self._whole, face_api.execute_prepared(self._whole, [ops.Stat(namespace, path)]))
        if found is None:
            return Amount()
        if not found.is_dir:
            return Amount(1, found.size)
        total = Amount()
        async for info in self._whole.files(namespace).awalk(path):
            total = total.plus(Amount(1, info.size))
        return total


def _counts(op: Any) -> bool:
    """Whether an op is about what users store, or an upload, and not about other entries of holdall's own."""
    namespace = getattr(op, "namespace", ())
    return namespace[:1] != (face_api.RESERVED,) or namespace[2:] == ("uploads",)


def _estimate(growing: Sequence[Any]) -> Amount | None:
    """Return the most that ops can add; None if that is not known without reading."""
    total = Amount()
    for op in growing:
        if isinstance(op, ops.Copy) or (isinstance(op, ops.Move) and op.source is not None):
            return None
        if not isinstance(op, ops.Move):
            total = total.plus(Amount(1, len(op.data) if isinstance(op, ops.Append) else _size_of(op)))
    return total


def _size_of(op: ops.Put) -> int:
    """The bytes of a value or of contents."""
    value: Any = op.value
    return len(value.content) if isinstance(value, ops.File) else len(value.encode())
