"""What `/metrics` says about the connections to the server of a store."""

from __future__ import annotations

import asyncio
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
        (tmp_path / "2.json").write_text('{"pool": {"connections": 3}}')
        text = asyncio.run(Metrics(str(tmp_path)).render(service))
        assert "\nholdall_pool_connections 5\n" in text
