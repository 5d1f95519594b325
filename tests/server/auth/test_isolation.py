"""A token sees its scope only: whatever is sent, nothing of another scope is received or changed."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import holdall
from holdall import ops, wire
from holdall.server import Tokens, app
from holdall.server.mcp.tools import build_server
from server.conftest import connect
from support.extent import IS_SHORT

A, B = ("users", "ada"), ("users", "bob")
SECRET = "xyzzy-secret"  # a name of B, which A tries, too
VALUE = "plover"  # only B has it
LABELS = st.sampled_from(
    [
        "users",
        "bob",
        "ada",
        "notes",
        "..",
        ".",
        "%2e%2e",
        "*",
        "__holdall__",
        SECRET,
        "filesystem",
        "leases",
        "tokens",
        "uploads",
    ]
)
#: What B has, as an attacker would guess it, and anything.
NAMES = st.one_of(
    st.sampled_from([["users"], [*B], [*B, "notes"], [*B, "filesystem"], [*B, "notes", SECRET]]),
    st.lists(LABELS, min_size=1, max_size=4),
)


def fill(store: holdall.Store) -> None:
    """What B has."""
    bob = store.scoped(B)
    bob.put(("notes",), SECRET, {"text": f"{VALUE} green tea"})
    bob.files().write(f"/{SECRET}.txt", f"{VALUE}\n")
    bob.lease(SECRET, 60).acquire()


def requests() -> st.SearchStrategy[tuple[str, str, Any]]:
    def paths(prefix: str, methods: list[str], body: Any) -> st.SearchStrategy[tuple[str, str, Any]]:
        return st.tuples(st.sampled_from(methods), NAMES.map(lambda names: f"{prefix}{'/'.join(names)}"), st.just(body))

    queries = st.sampled_from(
        [
            "/v1/scan",
            "/v1/namespaces?counts=true",
            "/v1/stats",
            "/v1/me",
            "/v1/walk",
            "/v1/glob?pattern=*",
            f"/v1/grep?pattern={VALUE}",
            "/v1/tokens",
            "/v1/threads",
            f"/v1/threads/{SECRET}",
            f"/v1/checkpoints/{SECRET}",
            "/v1/export",
            "/v1/export?namespace=users/bob",
            "/v1/metrics",
            "/metrics",
            "/store/items?namespace=users.bob.notes&key=" + SECRET,
            "/v1/files/",
            "/openapi.json",
        ]
    )
    namespaces = NAMES.map("/".join)
    return st.one_of(
        paths("/v1/items/", ["GET", "PUT", "DELETE", "PATCH"], {"text": "mine"}),
        paths("/v1/trees/", ["DELETE"], None),
        paths("/v1/files/", ["GET", "PUT", "DELETE"], None),
        paths("/v1/history/", ["GET"], None),
        st.tuples(st.just("GET"), queries, st.none()),
        st.tuples(st.just("GET"), namespaces.map(lambda text: f"/v1/scan?namespace={text}"), st.none()),
        st.tuples(st.just("GET"), namespaces.map(lambda text: f"/v1/namespaces?prefix={text}"), st.none()),
        st.tuples(st.just("GET"), namespaces.map(lambda text: f"/v1/files/?namespace={text}"), st.none()),
        st.tuples(
            st.just("POST"),
            st.just("/v1/search"),
            st.fixed_dictionaries(
                {"namespace": NAMES | st.just([]), "query": st.sampled_from([VALUE, "green tea", None])}
            ),
        ),
        st.tuples(st.just("POST"), st.just("/v1/count"), st.fixed_dictionaries({"namespace": NAMES | st.just([])})),
        st.tuples(
            st.just("POST"),
            st.just("/store/items/search"),
            st.fixed_dictionaries({"namespace_prefix": NAMES | st.just([]), "query": st.just(VALUE)}),
        ),
        st.tuples(st.just("POST"), st.just("/store/namespaces"), st.fixed_dictionaries({"prefix": NAMES})),
        st.tuples(
            st.just("POST"),
            st.just("/v1/leases"),
            st.fixed_dictionaries({"name": st.just(SECRET), "ttl": st.just(1), "namespace": NAMES | st.just([])}),
        ),
        st.tuples(st.just("POST"), st.just("/v1/engine"), batches()),
    )


def batches() -> st.SearchStrategy[bytes]:
    def at(namespace: list[str]) -> list[ops.Op]:
        home = tuple(namespace)
        return [
            ops.Get(home, SECRET),
            ops.Delete(home, SECRET),
            ops.DeleteTree(home),
            ops.Search(home, query=VALUE),
            ops.Scan(home),
            ops.Scan((), (("users",), "a")),
            ops.Changes(home),
            ops.Records(home),
            ops.Namespaces(base=home),
            ops.ReadRange(home, f"/{SECRET}.txt", 0),
            ops.Children(home, "/"),
            ops.Grep(home, "/"),
            ops.Move(home, "/a", "/b", ("users", "bob", "filesystem")),
            ops.Sweep(prefix=home),
            ops.PurgeTombstones(0),
            ops.Forget(home, SECRET),
            ops.Forget(home, recursive=True),
            ops.Get(("__holdall__", "copies"), "identity"),
            ops.Put(("__holdall__", "copies"), f"copy {'0' * 32}", "{}", None),
        ]

    return NAMES.flatmap(lambda names: st.sampled_from(at(names))).map(lambda op: wire.encode(wire.Batch([op])))


def test_random_requests_receive_and_change_nothing_of_another_scope(tmp_path: Path) -> None:
    """Two stores, one with B's entries and one without: every answer is the same."""
    stores = [holdall.open(tmp_path / name, durability="relaxed", history=3600) for name in ("with.db", "without.db")]
    fill(stores[0])
    texts = [
        Tokens(store).create(scope=A, allow=["read", "write", "watch", "lease", "history", "erase"])[1]
        for store in stores
    ]
    before = list(stores[0].scoped(B).scan())
    with TestClient(app(stores[0], hosts=["*"])) as full, TestClient(app(stores[1], hosts=["*"])) as empty:

        @settings(max_examples=300 if IS_SHORT else 2000, deadline=None, suppress_health_check=list(HealthCheck))
        @given(requests())
        def send(request: tuple[str, str, Any]) -> None:
            method, path, body = request
            answers = []
            for client, text in zip((full, empty), texts, strict=True):
                content: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
                headers = {"Authorization": f"Bearer {text}"}
                answer = client.request(method, path, headers=headers, **(content if body is not None else {}))
                answers.append(answer)
            with_bob, without = answers
            assert VALUE not in with_bob.text.replace(f"pattern={VALUE}", "")
            assert with_bob.status_code == without.status_code < 500, (method, path, with_bob.text, without.text)
            assert shape(with_bob) == shape(without), (method, path, with_bob.text, without.text)
            assert headers_of(with_bob) == headers_of(without), (method, path)

        send()
    assert list(stores[0].scoped(B).scan()) == before
    assert stores[1].scoped(B).count() == 0
    for store in stores:
        store.close()


def shape(answer: httpx.Response) -> Any:
    """An answer without what may differ: versions, which have gaps; times; scores, which know words of all scopes."""
    if "msgpack" in answer.headers.get("content-type", ""):
        results, _ = msgspec.msgpack.decode(answer.content)
        return [result if isinstance(result, int) else rows(result) for result in results]
    try:
        return plain(answer.json())
    except ValueError:
        with contextlib.suppress(ValueError):
            return [plain(json.loads(line)) for line in answer.text.splitlines()]
        return answer.content


def headers_of(answer: httpx.Response) -> dict[str, str]:
    """The headers, without a version and the length that its digits have."""
    return {name: value for name, value in answer.headers.items() if name not in ("date", "etag", "content-length")}


def rows(result: Any) -> Any:
    """Rows without their numbers and cursors, which are versions, times and scores."""
    if isinstance(result, list):
        return [rows(one) for one in result]
    if isinstance(result, dict):
        return {name: rows(one) for name, one in result.items()}
    is_number = isinstance(result, int | float) or (isinstance(result, str) and result.replace("-", "").isdigit())
    return None if is_number else result


CHANGING = {
    "version",
    "created_at",
    "updated_at",
    "modified_at",
    "expires_at",
    "history_since",  # of the whole store: when history= was turned on
    "score",
    "seconds",
    "token",
    "time",
    "actual",
    "detail",
    "cursor",
    "next",
}


def plain(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: plain(value) for name, value in document.items() if name not in CHANGING}
    if isinstance(document, list):
        return [plain(one) for one in document]
    return document


def test_forged_expired_truncated_and_revoked_tokens_are_refused(
    url: str, store: holdall.Store, new_token: Callable[..., str]
) -> None:
    good, other, revoked = new_token(), new_token(), new_token()
    identity, secret = good.split("_", 2)[1:]
    Tokens(store).revoke(revoked.split("_", 2)[1])
    wrong = [
        "",
        "hold",
        good[:-1],
        good + "A",
        good.upper(),
        f"hold_{identity}_{other.split('_', 2)[2]}",
        f"hold_{other.split('_', 2)[1]}_{secret}",
        f"hold_{identity[::-1]}_{secret}",
        f"hold_{identity}_{secret[::-1]}",
        new_token(expires=timedelta(microseconds=1)),
        revoked,
    ]
    with httpx.Client(base_url=url) as plain_client:
        for text in wrong:
            assert plain_client.get("/v1/me", headers={"x-api-key": text}).status_code == 401, text
        assert plain_client.get("/v1/me").status_code == 401
        assert plain_client.get(f"/v1/me?token={good}").status_code == 401, "never in a URL"
        assert plain_client.get("/v1/me", headers={"x-api-key": good}).status_code == 200


def test_hosts_origins_and_cookies(client: httpx.Client, url: str, new_token: Callable[..., str]) -> None:
    assert client.get("/v1/me", headers={"Host": "evil.example"}).status_code == 421
    assert client.get("/v1/me", headers={"Origin": "http://evil.example"}).status_code == 403
    host = client.base_url.netloc.decode()
    assert client.get("/v1/me", headers={"Origin": f"http://{host}"}).status_code == 200
    session = client.post("/v1/session")
    cookie = session.headers["set-cookie"]
    assert all(part in cookie.lower() for part in ("httponly", "samesite=strict"))
    with httpx.Client(base_url=url, cookies=dict(session.cookies)) as browser:
        assert browser.get("/v1/me").status_code == 200
        assert browser.put("/v1/items/a/k", json={}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert browser.put("/v1/items/a/k", json={}, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_bodies_have_limits(client: httpx.Client, store: holdall.Store) -> None:
    bomb = gzip.compress(b"0" * (65 << 20))
    refused = client.put("/v1/files/bomb", content=bomb, headers={"Content-Encoding": "gzip"})
    assert refused.status_code == 413
    assert store.count() == 0


@pytest.mark.parametrize("rest", [gzip.compress(b"second"), b"\0", b"x" * 100_000], ids=["member", "zero", "rest"])
def test_data_after_the_end_of_a_compressed_body_is_refused(
    client: httpx.Client, store: holdall.Store, rest: bytes
) -> None:
    """It was left out of what was written, and kept in memory without a limit."""
    sent = gzip.compress(b"first") + rest
    assert client.put("/v1/files/a", content=sent, headers={"Content-Encoding": "gzip"}).status_code == 400
    chunks = iter([gzip.compress(b"first"), rest])
    assert client.put("/v1/files/a", content=chunks, headers={"Content-Encoding": "gzip"}).status_code == 400
    assert store.count() == 0


def test_a_compressed_body_that_has_no_contents_is_limited(url: str, new_token: Callable[..., str]) -> None:
    """Empty blocks add nothing to the contents."""
    packer = zlib.compressobj(wbits=31)
    head = packer.compress(b"x") + packer.flush(zlib.Z_SYNC_FLUSH)
    empty = b"\0\0\0\xff\xff" * (1 << 18)
    with connect(url, new_token()) as client, contextlib.suppress(httpx.WriteError, httpx.ReadError):
        sent = itertools.chain([head], itertools.repeat(empty, 60))  # 75 MiB
        answer = client.put("/v1/files/a", content=sent, headers={"Content-Encoding": "gzip"})
        assert answer.status_code == 413


def test_a_read_only_token_only_reads(url: str, new_token: Callable[..., str], store: holdall.Store) -> None:
    store.put(("a",), "k", {"n": 1})
    with httpx.Client(base_url=url, headers={"x-api-key": new_token(allow=["read"])}) as client:
        for method, path in [
            ("PUT", "/v1/items/a/k"),
            ("DELETE", "/v1/items/a/k"),
            ("PATCH", "/v1/items/a/k"),
            ("DELETE", "/v1/trees/a"),
            ("PUT", "/v1/files/a"),
            ("POST", "/v1/move"),
            ("GET", "/v1/changes"),
            ("POST", "/v1/leases"),
            ("GET", "/v1/tokens"),
            ("GET", "/metrics"),
            ("POST", "/v1/rewind"),
            ("GET", "/v1/items/a/k?refresh=true"),
            ("GET", "/store/items?namespace=a&key=k&refresh_ttl=true"),
        ]:
            assert client.request(method, path, content=b"{}").status_code == 403, path
        assert client.post("/store/items/search", json={"refresh_ttl": True}).status_code == 403
        put = {"op": "put", "namespace": ["a"], "key": "k", "value": {}}
        assert client.post("/v1/batch", json={"ops": [put]}).status_code == 403
        batch = wire.encode(wire.Batch([ops.Delete(("a",), "k")]))
        assert client.post("/v1/engine", content=batch).status_code == 403
    assert store.get(("a",), "k") is not None


def test_mcp_tools_have_the_rights_and_the_scope_of_the_token() -> None:
    async def main() -> None:
        from mcp import Client

        with holdall.open("memory:") as store:
            fill(store)

            def store_of(right: str) -> holdall.Store:
                if right != "read":
                    raise holdall.errors.AccessDenied(right)
                return store.scoped(A)

            async with Client(build_server(store_of)) as client:
                for tool, arguments in [
                    ("memory_search", {"query": VALUE}),
                    ("memory_get", {"namespace": ["users", "bob", "notes"], "key": SECRET}),
                    ("memory_list", {}),
                    ("file_grep", {"pattern": VALUE}),
                    ("file_read", {"path": f"/../bob/{SECRET}.txt"}),
                ]:
                    answer = await client.call_tool(tool, arguments)
                    assert "green tea" not in str(answer)
                put = {"namespace": ["a"], "key": "k", "value": {}}
                assert (await client.call_tool("memory_put", put)).is_error

    asyncio.run(main())


def test_another_secret_is_refused_right_after_the_real_one(url: str, new_token: Callable[..., str]) -> None:
    text = new_token()
    others = [text[:-1] + ("a" if text[-1] != "a" else "b"), text + "a", text[:-1], "x" * 5 + text[5:]]
    with connect(url, None) as client:
        for other in others:
            for token, status in ((text, 200), (other, 401), (text, 200), (text.upper(), 401)):
                answer = client.get("/v1/me", headers={"Authorization": f"Bearer {token}"})
                assert answer.status_code == status, token
