"""The shorter way of frequent requests gives the same answers as Starlette's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

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


class Passing:
    """A middleware that does nothing."""

    def __init__(self, passed_to: ASGIApp) -> None:
        self.passed_to = passed_to

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.passed_to(scope, receive, send)


def test_items_have_the_same_paths_with_and_without_the_direct_way(store: holdall.Store) -> None:
    store.put(("items", "a"), "k", {})
    store.put(("a",), "k", {})
    direct = app(store, auth="none")
    plain = app(store, auth="none")
    plain.add_middleware(Passing)
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


def test_middleware_that_a_user_adds_sees_every_request(store: holdall.Store) -> None:
    class Refusing:
        def __init__(self, _: ASGIApp) -> None: ...

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await Response(status_code=418)(scope, receive, send)

    made = app(store, auth="none")
    made.add_middleware(Refusing)
    client = TestClient(made, base_url="http://localhost")
    assert {client.get(path).status_code for path in ("/v1/items/a/k", "/v1/stats")} == {418}


def test_json_is_not_guessed_to_be_something_else_and_what_is_no_json_is_restricted(store: holdall.Store) -> None:
    client = TestClient(app(store, auth="none"), base_url="http://localhost")
    restricting = {"content-security-policy", "referrer-policy"}
    for answer in (client.put("/v1/items/a/k", json={}), client.get("/v1/items/a/k"), client.get("/v1/stats")):
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert not restricting & set(answer.headers)
    shown = (client.get("/v1/items/a/k"), client.head("/v1/items/a/k"), client.get("/v1/stats"))
    for answer in (*shown, client.post("/v1/batch", json={"ops": []})):
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
    for answer in (client.get("/v1/items/a/none"), client.delete("/v1/items/a/k"), client.get("/metrics")):
        assert answer.headers.get("content-type") != "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert restricting <= set(answer.headers)
