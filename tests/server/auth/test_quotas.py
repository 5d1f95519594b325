"""Quotas of tokens: they hold for all workers together, and nothing is half written."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import holdall
from holdall.core import face_api
from holdall.errors import InvalidInput, QuotaExceeded
from holdall.ops import Put
from holdall.server import Tokens
from holdall.server.auth.quotas import ScopeQuota
from server.conftest import connect
from support.serve_command import serving
from support.served import server
from support.stores import new_location


def test_entries_are_limited(url: str, store: holdall.Store, new_token: Callable[..., str]) -> None:
    store.put(("users", "bob"), "k", {})
    with connect(url, new_token(scope=("users", "ada"), max_entries=10)) as ada:
        for number in range(10):
            assert ada.put(f"/v1/items/notes/{number}", json={}).status_code == 200
        refused = ada.put("/v1/items/notes/more", json={})
        assert (refused.status_code, refused.json()["title"]) == (507, "QuotaExceeded")
        assert "may hold 10 entries" in refused.json()["detail"]
        assert ada.put("/v1/items/notes/3", json={"changed": 1}).status_code == 200, "no entry is added"
        ops = [{"op": "put", "namespace": ["a"], "key": str(number), "value": {}} for number in range(2)]
        assert ada.post("/v1/batch", json={"ops": ops}).status_code == 507
        assert ada.delete("/v1/items/notes/1").status_code == 204
        assert ada.post("/v1/batch", json={"ops": ops}).status_code == 507, "all of it, or nothing"
        assert ada.put("/v1/files/f", content=b"x").status_code == 200
        assert ada.put("/v1/files/g", content=b"x").status_code == 507
        assert ada.post("/v1/copy", json={"src": "/f", "dst": "/h"}).status_code == 507
        rows = b'{"key": "1", "a": 1}\n{"key": "2", "a": 1}\n'
        assert ada.post("/v1/import?namespace=t", content=rows).status_code == 507
    assert store.scoped(("users", "ada")).count() == 10


@pytest.mark.parametrize("engine", ["sqlite", "redis"])  # one that sums sizes, and one that does not
def test_bytes_are_limited(tmp_path: Path, engine: str) -> None:
    at = new_location(engine, tmp_path)
    url = server().serve(at.pop("url"), has_clock=False, app={"auth": "tokens"}, **at)
    with server().open_directly(url) as store:
        text = Tokens(store).create(scope=("ada",), allow=["read", "write", "lease"], max_bytes=100_000)[1]
        with connect(url, text) as ada:
            assert ada.put("/v1/files/f", content=b"x" * 60_000).status_code == 200
            assert ada.put("/v1/files/g", content=b"x" * 60_000).status_code == 507
            bomb = gzip.compress(b"x" * 60_000)
            assert ada.put("/v1/files/g", content=bomb, headers={"Content-Encoding": "gzip"}).status_code == 507
            assert ada.patch("/v1/files/f?op=append", content=b"x" * 60_000).status_code == 507
            assert ada.post("/v1/copy", json={"src": "/f", "dst": "/g"}).status_code == 507
            assert ada.put("/v1/files/f", content=b"y" * 90_000).status_code == 200, "it replaces the old contents"
            assert ada.put("/v1/items/a/k", json={"text": "ä" * 10_000}).status_code == 507
            assert ada.put("/v1/items/a/k", json={"text": "ä" * 1_000}).status_code == 200
        with holdall.open(url, token=text) as remote:
            with pytest.raises(QuotaExceeded, match="bytes"):
                remote.put(("a",), "more", {"text": "x" * 20_000})
            with pytest.raises(QuotaExceeded):
                remote.files().write("/large", b"x" * (33 << 20))  # sent as an upload
            assert remote.files().names() == ["f"]
        assert {info.path: info.size for info in store.scoped(("ada",)).files().ls()} == {"/f": 90_000}
    server().close(url)


@pytest.mark.not_short  # 5 s
def test_many_writers_at_all_workers_exceed_a_quota_by_a_tenth_at_most(
    url: str, store: holdall.Store, new_token: Callable[..., str]
) -> None:
    most = 300
    token = new_token(scope=("ada",), max_entries=most)

    async def write() -> int:
        limits = httpx.Limits(max_connections=16)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, limits=limits) as client:

            async def some(writer: int) -> int:
                written = 0
                for number in range(50):
                    if number % 10 == 9:
                        ops = [
                            {"op": "put", "namespace": ["b"], "key": f"{writer}-{number}-{one}", "value": {}}
                            for one in range(20)
                        ]
                        written += 20 * ((await client.post("/v1/batch", json={"ops": ops})).status_code == 200)
                    else:
                        answer = await client.put(f"/v1/items/n/{writer}-{number}", json={})
                        assert answer.status_code in (200, 507), answer.text
                        written += answer.status_code == 200
                return written

            return sum(await asyncio.gather(*(some(writer) for writer in range(16))))

    acknowledged = asyncio.run(write())
    held = store.scoped(("ada",)).count()
    assert held == acknowledged
    assert most * 0.9 <= held <= most * 1.1


def test_nothing_is_added_past_the_quota_by_sync_methods(store: holdall.Store) -> None:
    token = Tokens(store).create(scope=("ada",), max_entries=1)[0]
    scoped = store.scoped(("ada",))
    guarded = face_api.guarded(scoped, ScopeQuota(store, scoped, token))
    with pytest.raises(InvalidInput, match="async"):
        guarded.put(("a",), "k", {})
    with pytest.raises(InvalidInput, match="async"):
        guarded.files().append("/f", "x")
    with pytest.raises(InvalidInput, match="async"):
        guarded.execute([Put(("a",), "k", {})])
    assert guarded.get(("a",), "k") is None
    assert scoped.count() == 0


@pytest.mark.not_short
def test_requests_are_counted_over_all_workers(tmp_path: Path) -> None:
    database = f"{tmp_path}/store.db"
    with serving(database, tmp_path, workers=2) as served:
        with holdall.open(database) as store:
            text = Tokens(store).create(allow=["read"], max_requests=50)[1]

        def send(_: int) -> int:
            allowed = 0
            with connect(served.url, text) as client:
                while time.monotonic() < end:
                    answer = client.get("/v1/me")
                    allowed += answer.status_code == 200
                    if answer.status_code != 200:
                        assert (answer.status_code, answer.json()["title"]) == (429, "QuotaExceeded")
                        assert answer.headers["retry-after"] == "1"
            return allowed

        for connections in (1, 4):
            time.sleep(1.1)  # what was saved is full again
            began = time.monotonic()
            end = began + 3
            with ThreadPoolExecutor(connections) as pool:
                allowed = sum(pool.map(send, range(connections)))
            expected = 50 + 50 * 3  # a second's worth may be used at once
            assert 0.9 * expected <= allowed <= 1.1 * expected, connections
