"""Every route, from the tables of routes: hosts, origins, missing tokens, read-only tokens, cookies and methods."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.testclient import TestClient

import holdall
from holdall import ops, wire
from holdall.server import RIGHTS, Tokens, app, engine_batches, langgraph
from holdall.server.exchange import taken_by
from holdall.server.explorer import ROUTES as EXPLORER
from holdall.server.rest import ROUTES as REST
from server.conftest import connect
from support.serve_command import serving
from support.served import server

TABLES = (REST, langgraph.ROUTES, engine_batches.ROUTES, EXPLORER)
#: These take any right, and check what the body asks for.
BY_BODY = {("POST", "/v1/batch"), ("POST", "/v1/engine")}


def every_route() -> Iterator[tuple[str, str, str | None]]:
    """Method, path and right of each route, with MCP's."""
    for table in TABLES:
        for path, handlers in table.items():
            for method, (_, right) in handlers.items():
                yield method, re.sub("{.*?}", "k", re.sub("{.*?:path}", "a/k", path)), right
    yield "POST", "/mcp", ""


def test_every_route_refuses_other_hosts_other_sites_and_those_without_a_token(
    client: httpx.Client, url: str, store: holdall.Store
) -> None:
    before = client.get("/v1/cursor").text
    for method, path, right in every_route():
        for headers, status in (
            ({"Host": "evil.example"}, 421),
            ({"Host": "localhost.evil.example"}, 421),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
        ):
            answer = client.request(method, path, headers=headers, content=b"{}")
            assert answer.status_code == status, (method, path, headers, answer.text)
            assert "access-control-allow-origin" not in answer.headers
        if right is not None:
            with connect(url, None) as nobody:
                assert nobody.request(method, path, content=b"{}").status_code == 401, (method, path)
    assert store.count() == 0
    assert client.get("/v1/cursor").text == before


def test_a_token_does_nothing_that_it_does_not_allow(
    url: str, store: holdall.Store, new_token: Callable[..., str]
) -> None:
    store.put(("a",), "k", {"n": 1})
    store.files().write("/a/k", b"one")
    entries = [*store.search(("a",)), store.files().read("/a/k")]
    for allowed in ("read", "write", "watch"):
        with connect(url, new_token(allow=[allowed])) as client:
            for method, path, right in every_route():
                if right and right != allowed and (method, path) not in BY_BODY:
                    answer = client.request(method, path, content=b"{}")
                    assert answer.status_code == 403, (allowed, method, path, answer.text)
                    assert answer.json()["title"] == "AccessDenied"
    with connect(url, new_token(allow=["read", "watch", "history"])) as reader:
        for op in ("put", "delete", "refresh"):
            body = {"op": op, "namespace": ["a"], "key": "k"} | ({"value": {}} if op == "put" else {})
            assert reader.post("/v1/batch", json={"ops": [body]}).status_code == 403, op
        for given in (
            ops.Put(("a",), "k", {}),
            ops.Delete(("a",), "k"),
            ops.Append(("a",), "/k", b"x"),
            ops.Refresh(("a",), "k"),
            ops.Copy(("filesystem",), "/a/k", "/b"),
        ):
            answer = reader.post("/v1/engine", content=wire.encode(wire.Batch([given])))
            assert answer.status_code in (400, 403), (given, answer.text)
    assert [*store.search(("a",)), store.files().read("/a/k")] == entries


@pytest.mark.not_short
def test_a_read_only_token_writes_nothing_through_mcp(tmp_path: Path) -> None:
    database = f"{tmp_path}/store.db"
    with serving(database, tmp_path, "--option", "history=86400") as served, holdall.open(database) as store:
        store.put(("users", "ada", "a"), "k", {"n": 1})
        store.put(("users", "bob"), "plover", {"text": "plover"})
        token = Tokens(store).create(scope=("users", "ada"), allow=["read", "history", "watch"])[1]
        before = store.count(), store.cursor()
        assert asyncio.run(call_every_tool(served.url, token)) > 50
        assert (store.count(), store.cursor()) == before


async def call_every_tool(url: str, token: str) -> int:
    """Call each tool with many arguments: none that writes succeeds, and none returns a value of another scope."""
    guesses: dict[str, list[Any]] = {
        "namespace": [["a"], ["users", "bob"], ["..", "bob"], ["__holdall__", "tokens"], []],
        "prefix": [[], ["users"], ["__holdall__"]],
        "path": ["/", "/../bob", "/f", "//users/bob/f"],
        "key": ["k", "plover", "../k", "/f"],
        "value": [{"n": 2}],
        "text": ["x"],
        "old": ["x"],
        "new": ["y"],
        "query": ["plover"],
        "pattern": ["plover", "**"],
        "version": [1],
    }

    calls = 0
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as mcp,
    ):
        for tool in (await mcp.list_tools()).tools:
            required = tool.input_schema.get("required", [])
            names = [name for name in tool.input_schema["properties"] if name in guesses or name in required]
            picks = itertools.product(*(guesses.get(name, ["/f"]) for name in names))
            for picked in itertools.islice(picks, 12):
                arguments = dict(zip(names, picked, strict=True))
                answer = await mcp.call_tool(tool.name, arguments)
                assert "'text': 'plover'" not in str(answer.structured_content)
                if not tool.annotations.read_only_hint:
                    assert answer.is_error, (tool.name, arguments)
                    assert "AccessDenied" in str(answer.content), (tool.name, arguments, answer.content)
                calls += 1
    return calls


def test_a_cookie_ends_with_the_session_and_with_its_token(
    client: httpx.Client, url: str, store: holdall.Store
) -> None:
    token, text = Tokens(store).create(allow=RIGHTS)
    with connect(url, text) as owner:
        session = owner.post("/v1/session")
    cookie = session.headers["set-cookie"].lower()
    assert "secure" not in cookie, "the connection has no TLS"
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert f"path={httpx.URL(url).path}" in cookie
    with httpx.Client(base_url=url, cookies=dict(session.cookies)) as browser:
        for method, path in (
            ("POST", "/mcp"),
            ("PUT", "/v1/items/a/k"),
            ("POST", "/v1/engine"),
            ("POST", "/v1/tokens"),
        ):
            answer = browser.request(method, path, content=b"{}", headers={"Sec-Fetch-Site": "same-site"})
            assert answer.status_code == 403, path
        assert browser.get("/v1/me").status_code == 200
        ended = browser.delete("/v1/session").headers["set-cookie"].lower()
        assert "max-age=0" in ended
        assert f"path={httpx.URL(url).path}" in ended
    with httpx.Client(base_url=url, cookies=dict(session.cookies)) as browser:
        Tokens(store).revoke(token.id)
        time.sleep(1)
        for _ in range(6):  # both workers
            assert browser.get("/v1/me").status_code == 401


def test_after_a_logout_the_browser_has_no_cookie_and_no_access(url: str, new_token: Callable[..., str]) -> None:
    """With the cookie jar of a client, which obeys name, domain and path as a browser does."""
    with httpx.Client(base_url=url) as browser, httpx.Client(base_url=url) as other:
        for one in (browser, other):
            one.post("/v1/session", headers={"Authorization": f"Bearer {new_token()}"})
        [cookie] = browser.cookies.jar
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.discard, "it ends with the browser's session"
        assert browser.put("/v1/items/a/k", json={"n": 1}).status_code == 200
        for evil in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            refused = browser.delete("/v1/session", headers=evil)
            assert refused.is_client_error
            assert "set-cookie" not in refused.headers, "another site cannot end the session"
        assert browser.get("/v1/me").status_code == 200
        assert browser.delete("/v1/session").status_code == 204
        assert [*browser.cookies.jar] == []
        for method, path, right in every_route():
            if right is not None:
                assert browser.request(method, path, content=b"{}").status_code == 401, (method, path)
        assert browser.delete("/v1/session").status_code == 204, "a second logout is no error"
        assert other.get("/v1/items/a/k").status_code == 200, "other sessions go on"


def test_head_and_options_answer_at_once_and_reveal_nothing(client: httpx.Client, url: str) -> None:
    client.put("/v1/items/a/k", json={"n": 1})
    for path in dict.fromkeys(path for _, path, _ in every_route() if path != "/mcp"):
        with connect(url, None) as nobody:
            options = nobody.options(path)
            assert (options.status_code, options.content) == (204, b""), path
        head = client.head(path, timeout=10)
        assert head.content == b""
        assert head.status_code < 500, path
    got, head = client.get("/v1/items/a/k"), client.head("/v1/items/a/k")
    assert head.headers["etag"] == got.headers["etag"]
    assert head.headers["content-length"] == got.headers["content-length"]


def test_pages_of_a_listed_site_may_send_every_header_that_a_route_takes() -> None:
    site = {"Origin": "https://site.example"}
    taken = {name for _, _, handler in every_handler() for name in taken_by(handler).headers}
    wanted = taken | {"authorization", "x-api-key", "content-type", "holdall-author", "holdall-reason"}
    with (
        holdall.open("memory:") as store,
        TestClient(app(store, auth="none", origins=[site["Origin"]]), base_url="http://localhost") as client,
    ):
        asked = client.options("/v1/items/a/k", headers=site | {"Access-Control-Request-Method": "PUT"})
        assert asked.headers["access-control-allow-origin"] == site["Origin"]
        assert "PUT" in asked.headers["access-control-allow-methods"]
        assert wanted <= set(asked.headers["access-control-allow-headers"].split(", "))
        page = client.get("/", headers=site)
        assert page.headers["access-control-allow-origin"] == site["Origin"]
        assert {"Accept-Encoding", "Origin"} <= set(page.headers["vary"].split(", "))
        assert "access-control-allow-origin" not in client.get("/v1/me").headers
        asked = client.options("/mcp", headers=site | {"Access-Control-Request-Method": "POST"})
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == site["Origin"]
        assert {"mcp-protocol-version", "mcp-session-id"} <= set(
            asked.headers["access-control-allow-headers"].split(", ")
        )
        answer = client.post("/mcp", headers=site, content=b"{}")
        assert answer.headers["access-control-allow-origin"] == site["Origin"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        for other in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            assert client.options("/mcp", headers=other).status_code in (403, 421)


def test_mcp_without_a_token_is_refused_but_for_what_a_browser_asks_before(tmp_path: Path) -> None:
    with (
        holdall.open(f"{tmp_path}/store.db") as store,
        TestClient(app(store, origins=["https://site.example"]), base_url="http://localhost") as client,
    ):
        assert client.options("/mcp").content == b""
        for method in ("GET", "POST", "DELETE", "PUT", "HEAD"):
            assert client.request(method, "/mcp").status_code == 401


def test_mcp_has_no_streams_without_an_end(client: httpx.Client) -> None:
    """Without sessions, nothing is ever sent on the stream that a GET of MCP opened, and nothing ended it."""
    answer = client.get("/mcp", headers={"Accept": "text/event-stream"}, timeout=5)
    assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS, POST")
    assert client.delete("/mcp").status_code == 405


def test_every_route_obeys_or_refuses_the_headers_on_which_a_write_depends(tmp_path: Path) -> None:
    """A condition that a route ignores would be a lost update, or a write without its lease."""
    url = server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False, history=3600)
    with server().open_directly(url) as store, connect(url, None) as client:
        first, moment = store.put(("a",), "k", {"n": 1}), store.cursor()
        store.put(("a",), "k", {"n": 2})
        store.files().write("/a/k", b"one")
        bodies = {
            "/v1/batch": {"ops": [{"op": "delete", "namespace": ["a"], "key": "k"}]},
            "/v1/move": {"src": "/a/k", "dst": "/moved"},
            "/v1/copy": {"src": "/a/k", "dst": "/copied"},
            "/v1/restore": {"namespace": ["a"], "key": "k", "version": first.version},
            "/v1/rewind": {"namespace": ["a"], "when": moment},
        }
        before, obeyed = (store.count(), store.cursor()), 0
        for route, method, handler in every_handler():
            if method == "GET":
                continue
            path = re.sub("{.*?}", "k", re.sub("{.*?:path}", "a" if "trees" in route else "a/k", route))
            for name, value in (("if-match", '"99"'), ("if-none-match", "*"), ("holdall-lease", "l; token=1")):
                body = bodies.get(path, {"old": "one", "new": "two"})
                answer = client.request(method, path, json=body, headers={name: value})
                if name in taken_by(handler).headers:
                    obeyed += 1
                    assert answer.status_code == (409 if name == "holdall-lease" else 412), (method, path, answer.text)
                else:
                    assert answer.status_code == 400, (method, path, name, answer.text)
                    assert f"does not obey the header {name}" in answer.text
        assert obeyed == 26
        assert (store.count(), store.cursor()) == before


def test_every_route_refuses_an_argument_that_it_would_ignore(client: httpx.Client, store: holdall.Store) -> None:
    before = store.cursor()
    for method, path, right in every_route():
        if path.startswith("/v1/") and right is not None:
            answer = client.request(method, path, params={"limt": "1"}, content=b"{}")
            assert answer.status_code == 400, (method, path, answer.text)
            assert "does not take the argument 'limt'; it takes " in answer.json()["detail"]
    detail = client.get("/v1/scan?namespaces=a").json()["detail"]
    assert detail.endswith("does not take the argument 'namespaces'; it takes after, at, limit, namespace, preview")
    assert client.put("/v1/items/a/k?at=2026-01-01", json={}).status_code == 400, "the past cannot be written to"
    assert client.get("/?utm_source=x").status_code == 200
    assert (store.count(), store.cursor()) == (0, before)


def test_every_route_refuses_an_argument_that_is_given_twice(client: httpx.Client, store: holdall.Store) -> None:
    before = store.cursor()
    repeatable = set()
    for path, method, handler in every_handler():
        for name, schema in taken_by(handler).arguments.items() if path.startswith("/v1/") else ():
            if schema.get("type") == "array":
                repeatable.add((method, path, name))
                continue
            answer = client.request(method, path, params=[(name, "1"), (name, "2")], content=b"{}")
            assert answer.status_code == 400, (method, path, name, answer.text)
            assert answer.json()["detail"].endswith(f"takes one {name}, not 2")
    assert repeatable == {("PUT", "/v1/items/{address:path}", "search_fields")}
    assert (store.count(), store.cursor()) == (0, before)


def every_handler() -> Iterator[tuple[str, str, Any]]:
    """Path, method and handler of each route that needs a token."""
    for table in TABLES:
        for path, handlers in table.items():
            for method, (handler, right) in handlers.items():
                if right is not None:
                    yield path, method, handler


def test_a_batch_of_a_remote_engine_is_point_ops_or_one_other_op(client: httpx.Client, store: holdall.Store) -> None:
    put = ops.Put(("a",), "k", "{}")
    for first in (ops.Scan(()), ops.Sweep(), ops.SetHistory(), ops.IndexTexts(), ops.Forget(("a",)), ops.Maintain()):
        answer = client.post("/v1/engine", content=wire.encode(wire.Batch([first, put])))
        assert answer.status_code == 400, first
        assert "has no other ops" in answer.json()["detail"]
    assert store.count() == 0


def test_encodings_of_a_route_and_long_names_lead_nowhere_else(client: httpx.Client, store: holdall.Store) -> None:
    store.put(("b",), "k", {"secret": 1})
    for path in (
        "/v1/%69tems/a/v1/items/b/k",
        "/v1/items/%c0%ae%c0%ae/b/k",
        "/v1/items/a/%252e%252e/b/k",
        "/v1/items/a%2F..%2Fb/k",
        "/v1/items/b/k%00",
        "/v1/items/b/k;x",
        "/v1/items/b/k/",
        "/v1/files/%2e%2e/%2e%2e/b/k",
        "/v1/items/" + "a" * 60_000 + "/k",
        "/v1/items/a/" + "k" * 60_000,
        "/v1/files/" + "d/" * 20_000 + "f",
        "/v1/items/" + "a/" * 20_000 + "k",
    ):
        for method in ("GET", "PUT", "DELETE"):
            answer = client.request(method, httpx.URL(str(client.base_url) + path.lstrip("/")), content=b"[")
            assert 400 <= answer.status_code < 500, (method, path[:80], answer.text[:200])
            assert "secret" not in answer.text
    assert store.count() == 1


def test_ranges_at_the_ends_and_lists_of_tags(client: httpx.Client) -> None:
    tag = client.put("/v1/files/f", content=b"0123456789").headers["etag"]
    client.put("/v1/files/empty", content=b"")
    for asked, status, content in (
        ("bytes=0-0", 206, b"0"),
        ("bytes=9-", 206, b"9"),
        ("bytes=9-99", 206, b"9"),
        ("bytes=-1", 206, b"9"),
        ("bytes=-99", 206, b"0123456789"),
        ("bytes=10-", 416, None),
        ("bytes=-0", 416, None),
        ("bytes=5-2", 200, b"0123456789"),
        ("bytes=0-1,3-4", 200, b"0123456789"),
        ("lines=0-1", 200, b"0123456789"),
        ("bytes=-", 200, b"0123456789"),
        ("bytes=99999999999999999999-", 416, None),
    ):
        answer = client.get("/v1/files/f", headers={"Range": asked})
        assert answer.status_code == status, asked
        assert content is None or answer.content == content, asked
        if status == 416:
            assert answer.headers["content-range"] == "bytes */10"
    assert client.get("/v1/files/empty", headers={"Range": "bytes=0-"}).status_code == 416
    assert client.get("/v1/files/empty").content == b""
    for given in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        assert client.get("/v1/files/f", headers={"If-None-Match": given}).status_code == 304, given
    assert client.get("/v1/files/f", headers={"If-None-Match": '"0"'}).status_code == 200
    for given in (f'{tag}, "1"', "*"):
        assert client.put("/v1/files/f", content=b"x", headers={"If-Match": given}).status_code == 400, given
    assert client.put("/v1/files/f", content=b"x", headers={"If-Match": '"0"'}).status_code == 412
    assert client.get("/v1/files/f").content == b"0123456789"
