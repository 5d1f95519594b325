"""The shorter way of frequent requests gives the same answers as Starlette's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.routing import Mount
from starlette.testclient import TestClient

import holdall
from holdall.server import app
from holdall.server.messages import IndexedHeaders


@pytest.fixture
def store(tmp_path: Path) -> Iterator[holdall.Store]:
    with holdall.open(f"{tmp_path}/store.db") as store:
        yield store


def test_headers_are_found_as_in_starlette_and_repeated_ones_are_joined() -> None:
    raw = [(b"host", b"a"), (b"if-match", b'"1"'), (b"if-match", b'"2"'), (b"author", "é".encode("latin-1"))]
    ours, theirs = IndexedHeaders(raw), Headers(raw=raw)
    for name in ("host", "Host", "author", "missing"):
        assert ours.get(name) == theirs.get(name)
        assert (name in ours) == (name in theirs)
    assert ours["If-Match"] == '"1", "2"'
    assert ours.getlist("if-match") == ['"1"', '"2"']
    with pytest.raises(KeyError):
        ours["missing"]


def test_items_have_the_same_paths_with_and_without_the_direct_way(store: holdall.Store) -> None:
    store.put(("items", "a"), "k", {})
    store.put(("a",), "k", {})
    direct = app(store, auth="none")
    plain = app(store, auth="none")
    plain.user_middleware.clear()
    paths = (
        *("/v1/items/a/k", "/v1/items/", "/v1/items", "/v1/items/a%2Fk", "/v1%2Fitems/a/k", "/v1/items/a/k?ttl=1"),
        *("/mounted/v1/items/a/k", "/v1/v1/items/a/k", "/v1/items/v1/items/a/k", "/mounted/mounted/v1/items/a/k"),
    )
    for mount in ("", "/mounted", "/v1", "/v1/items"):
        clients = [
            TestClient(Starlette(routes=[Mount(mount, made)]) if mount else made, base_url="http://localhost")
            for made in (direct, plain)
        ]
        for path in paths:
            ours, theirs = (client.get(path) for client in clients)
            assert (ours.status_code, ours.text, ours.headers) == (theirs.status_code, theirs.text, theirs.headers)
    with TestClient(direct, base_url="http://localhost") as client:
        assert client.get("/v1/items/a/k").status_code == 200
