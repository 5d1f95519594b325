"""What the server counts, as text for Prometheus.

Each worker writes its counts to a file of its own once a second, if they have changed. So one worker answers for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request

from ..core import face_api
from ..errors import HoldallError

if TYPE_CHECKING:
    from .app import Service

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_INTERVAL = 1.0  # seconds between two writes of a worker's counts


class _Counts(msgspec.Struct):
    """The counts of one worker. The keys are labels, joined by a space."""

    requests: dict[str, int] = {}
    conflicts: int = 0
    buckets: dict[str, list[int]] = {}
    seconds: dict[str, float] = {}
    watchers: int = 0
    pool: dict[str, int] = {}
    workers: int = 1  # 0: it has ended


class OperationSummary(msgspec.Struct):
    """The requests to a route, and in how many seconds 50, 95 and 99 % of them were answered; null: more than 10."""

    method: str
    route: str
    requests: int
    errors: int
    seconds: float
    p50: float | None
    p95: float | None
    p99: float | None


class Summary(msgspec.Struct):
    """The totals of all workers. The difference of two is a rate."""

    time: datetime
    requests: int
    conflicts: int
    watchers: int
    workers: int
    operations: list[OperationSummary]


class Metrics:
    """Counters of one worker, and their sum over all of them. `folder` is where workers share them."""

    def __init__(self, folder: str | None = None) -> None:
        self._requests: Counter[str] = Counter()
        self._buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(_BUCKETS) + 1))
        self._seconds: Counter[str] = Counter()
        self._conflicts = 0
        shared = folder or os.environ.get("HOLDALL_METRICS")
        self._file = None if shared is None else Path(shared) / f"{os.getpid()}.json"

    def observe(self, request: Request, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        method = request.scope["method"]
        name = f"{method if method in _METHODS else 'OTHER'} {route}"  # a client may invent any number of methods
        self._requests[f"{name} {status}"] += 1
        self._buckets[name][bisect_left(_BUCKETS, seconds)] += 1
        self._seconds[name] += seconds  # type: ignore[assignment]  # a Counter of floats
        self._conflicts += status in (409, 412)

    async def share(self, service: Service) -> None:
        """Write the counts of this worker to its file, until cancelled."""
        written: Any = None
        try:
            while self._file is not None:
                now = self._requests.total(), service.watchers, _describe_pool(service)
                if now != written:
                    written = now
                    self._write(service)
                await asyncio.sleep(_INTERVAL)
        finally:
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.unlink(missing_ok=True)

    def _write(self, service: Service) -> None:
        assert self._file is not None
        temporary = self._file.with_suffix(".new")
        with contextlib.suppress(OSError):
            temporary.write_bytes(msgspec.json.encode(self._counts(service)))
            temporary.replace(self._file)

    def _counts(self, service: Service) -> _Counts:
        return _Counts(
            dict(self._requests),
            self._conflicts,
            dict(self._buckets),
            dict(self._seconds),
            service.watchers,
            _describe_pool(service),
        )

    def _of_all_workers(self, service: Service) -> list[_Counts]:
        counts = [self._counts(service)]
        if self._file is not None:
            for path in self._file.parent.glob("*.json"):
                if path != self._file:
                    with contextlib.suppress(OSError, msgspec.MsgspecError):
                        read = msgspec.json.decode(path.read_bytes(), type=_Counts)
                        counts.append(read if _is_running(int(path.stem)) else _without_gauges(read))
        return counts

    def summarise(self, service: Service) -> Summary:
        """Return the totals of all workers, and the latencies of each operation in seconds."""
        counts = self._of_all_workers(service)
        requests = sum((Counter(one.requests) for one in counts), Counter())
        operations = []
        for name in sorted({name for one in counts for name in one.buckets}):
            method, route = name.split(" ")
            totals = _sum_buckets(counts, name)
            errors = [number for key, number in requests.items() if key.startswith(f"{name} ") and key[-3] in "45"]
            operations.append(
                OperationSummary(
                    method=method,
                    route=route,
                    requests=sum(totals),
                    errors=sum(errors),
                    seconds=sum(one.seconds.get(name, 0.0) for one in counts),
                    p50=_quantile(totals, 0.50),
                    p95=_quantile(totals, 0.95),
                    p99=_quantile(totals, 0.99),
                )
            )
        return Summary(
            time=datetime.now(UTC),
            requests=requests.total(),
            conflicts=sum(one.conflicts for one in counts),
            watchers=sum(one.watchers for one in counts),
            workers=sum(one.workers for one in counts),
            operations=operations,
        )

    async def render(self, service: Service) -> str:
        """Write the metrics of all workers as text for Prometheus."""
        counts = self._of_all_workers(service)
        lines = ["# HELP holdall_requests_total Requests by route and status.", "# TYPE holdall_requests_total counter"]
        requests = sum((Counter(one.requests) for one in counts), Counter())
        for name, number in sorted(requests.items()):
            method, route, status = name.split(" ")
            lines.append(f'holdall_requests_total{{method="{method}",route="{route}",status="{status}"}} {number}')
        lines += _histogram(counts)
        conflicts = sum(one.conflicts for one in counts)
        lines += ["# TYPE holdall_conflicts_total counter", f"holdall_conflicts_total {conflicts}"]
        lines += ["# TYPE holdall_watchers gauge", f"holdall_watchers {sum(one.watchers for one in counts)}"]
        lines += ["# TYPE holdall_workers gauge", f"holdall_workers {sum(one.workers for one in counts)}"]
        for name in sorted({name for one in counts for name in one.pool}):
            total = sum(one.pool.get(name, 0) for one in counts)
            lines += [f"# TYPE holdall_pool_{name} gauge", f"holdall_pool_{name} {total}"]
        lines += await _store_lines(service)
        return "\n".join(lines) + "\n"


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        return True
    return True


def _without_gauges(counts: _Counts) -> _Counts:
    """What a worker that was killed has counted: its streams and connections have ended with it."""
    return msgspec.structs.replace(counts, watchers=0, pool={}, workers=0)


def _describe_pool(service: Service) -> dict[str, int]:
    """The connections of this worker to the server of its store, by what they do; empty without such a server."""
    state = face_api.pool_of(service.store)
    if state is None:
        return {}
    return {
        "connections": state.open,
        "idle_connections": state.idle,
        "most_connections": state.most,
        "waiting_callers": state.waiting,
    }


def _sum_buckets(counts: list[_Counts], name: str) -> list[int]:
    return [sum(column) for column in zip(*(one.buckets[name] for one in counts if name in one.buckets), strict=True)]


def _quantile(totals: list[int], part: float) -> float | None:
    """The upper bound of the bucket in which a part of all requests was answered; None: slower than all bounds."""
    wanted, below = part * sum(totals), 0
    for bound, number in zip((*_BUCKETS, None), totals, strict=True):
        below += number
        if below >= wanted:
            return bound
    return None


def _histogram(counts: list[_Counts]) -> list[str]:
    lines = [
        "# HELP holdall_request_seconds Seconds until an answer began.",
        "# TYPE holdall_request_seconds histogram",
    ]
    for name in sorted({name for one in counts for name in one.buckets}):
        method, route = name.split(" ")
        labels = f'method="{method}",route="{route}"'
        totals = _sum_buckets(counts, name)
        below = 0
        for bound, number in zip((*_BUCKETS, "+Inf"), totals, strict=True):
            below += number
            lines.append(f'holdall_request_seconds_bucket{{{labels},le="{bound}"}} {below}')
        seconds = sum(one.seconds.get(name, 0.0) for one in counts)
        lines += [
            f"holdall_request_seconds_sum{{{labels}}} {seconds:.6f}",
            f"holdall_request_seconds_count{{{labels}}} {below}",
        ]
    return lines


async def _store_lines(service: Service) -> list[str]:
    began = time.perf_counter()
    try:
        stats: Any = await service.store.astats()
    except HoldallError:
        return ["# TYPE holdall_store_up gauge", "holdall_store_up 0"]
    lines = ["# TYPE holdall_store_up gauge", "holdall_store_up 1"]
    lines += ["# TYPE holdall_entries gauge", f"holdall_entries {stats.entries}"]
    lines += ["# TYPE holdall_files gauge", f"holdall_files {stats.files}"]
    if stats.text_index_lag is not None:
        lines += ["# TYPE holdall_text_index_lag gauge", f"holdall_text_index_lag {stats.text_index_lag}"]
    lines += ["# TYPE holdall_stats_seconds gauge", f"holdall_stats_seconds {time.perf_counter() - began:.6f}"]
    return lines
