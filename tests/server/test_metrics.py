"""What `/metrics` says about the connections to the server of a store."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
from starlette.testclient import TestClient

import holdall
from holdall.server import app
from holdall.server.metrics import Metrics
from support.stores import new_location, open_at


@pytest.mark.parametrize("engine", ["postgres", "redis"])
def test_metrics_have_the_numbers_of_the_pool(engine: str, tmp_path: Any) -> None:
    with (
        open_at(new_location(engine, tmp_path), pool_max=3) as store,
        TestClient(app(store, auth="none"), base_url="http://localhost") as client,
    ):
        store.put(("a",), "k", {})
        numbers = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
        assert numbers["holdall_pool_most_connections"] == "3"
        assert int(numbers["holdall_pool_connections"]) >= int(numbers["holdall_pool_idle_connections"]) >= 1
        assert numbers["holdall_pool_waiting_callers"] == "0"


def test_numbers_of_the_pools_of_all_workers_are_added(tmp_path: Any) -> None:
    with holdall.open("memory:") as store:
        service = app(store, auth="none").state.service
        (tmp_path / "1.json").write_text('{"pool": {"connections": 2}}')
        (tmp_path / f"{os.getppid()}.json").write_text('{"pool": {"connections": 3}}')
        text = asyncio.run(Metrics(str(tmp_path)).render(service))
        assert "\nholdall_pool_connections 5\n" in text


def test_a_worker_that_was_killed_has_counts_but_no_streams_and_connections(tmp_path: Any) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with holdall.open("memory:") as store:
        service = app(store, auth="none").state.service
        counts = '{"requests": {"GET /v1/me 200": 2}, "watchers": 3, "pool": {"connections": 4}}'
        (tmp_path / f"{ended.pid}.json").write_text(counts)
        metrics = Metrics(str(tmp_path))
        lines = asyncio.run(metrics.render(service)).splitlines()
        assert {"holdall_workers 1", "holdall_watchers 0"} <= set(lines)
        assert not any(line.startswith("holdall_pool_connections") for line in lines)
        assert 'holdall_requests_total{method="GET",route="/v1/me",status="200"} 2' in lines
        assert metrics.summarise(service).workers == 1


def test_invented_methods_are_counted_as_one() -> None:
    with (
        holdall.open("memory:") as store,
        TestClient(app(store, auth="none"), base_url="http://localhost") as client,
    ):
        for number in range(3):
            assert client.request(f"BREW{number}", "/v1/me").status_code == 405
        assert 'holdall_requests_total{method="OTHER",route="/v1/me",status="405"} 3' in client.get("/metrics").text
