"""The OpenAPI document: it has every route, and live answers of every operation are as it describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from jsonschema import Draft202012Validator
from langgraph.checkpoint.base import empty_checkpoint

from holdall.faces.langgraph import HoldallSaver
from holdall.server import RIGHTS, Tokens
from holdall.server.rest import ROUTES, openapi
from server.conftest import connect
from support.served import server

#: Streams, which do not end: tests of events read them.
STREAMS = {"watch", "watch_thread"}


def test_the_document_has_every_route_and_method() -> None:
    document = openapi.build_document()
    described = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    real = {(path.replace(":path", ""), method) for path, methods in ROUTES.items() for method in methods}
    assert described == real - {("/openapi.json", "GET")}
    identities = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(identities)) == len(identities)
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_the_document_has_the_headers_that_a_route_takes() -> None:
    paths = openapi.build_document()["paths"]
    write = {"holdall-lease", "holdall-author", "holdall-reason"}
    for path, method, names in (
        ("/v1/items/{address}", "get", {"if-none-match"}),
        ("/v1/items/{address}", "put", write | {"if-match", "if-none-match"}),
        ("/v1/files/{path}", "get", {"if-none-match", "range", "if-range"}),
        ("/v1/changes", "get", {"last-event-id"}),
        ("/v1/batch", "post", write),
        ("/v1/search", "post", set()),
    ):
        found = {one["name"] for one in paths[path][method]["parameters"] if one["in"] == "header"}
        assert found == names, (method, path)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    """A client with every right, on a store with history, an embedder and a thread."""
    url = server().serve(
        f"sqlite:///{tmp_path}/store.db", has_clock=False, app={"auth": "tokens"}, history=3600, embed="local"
    )
    with server().open_directly(url) as store:
        _, token = Tokens(store).create(allow=RIGHTS)
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        saver = HoldallSaver(store)
        for step in range(2):
            config = saver.put(config, empty_checkpoint(), {"source": "loop", "step": step}, {})
        saver.put_writes(config, [("channel", "value")], "task")
    with connect(url, token) as client:
        yield client


def test_live_answers_are_as_the_document_describes_them(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert document == json.loads(msgspec.json.encode(openapi.build_document()))
    for name, schema in document["components"]["schemas"].items():
        if schema.get("properties") and name != "Problem":  # to which errors add members
            schema["additionalProperties"] = False
    operations = {
        one["operationId"]: (method, one) for methods in document["paths"].values() for method, one in methods.items()
    }
    asked = set()
    for name, path, arguments in requests(client):
        asked.add(name)
        method, operation = operations[name]
        answer = client.request(method.upper(), path, **arguments)
        assert answer.is_success, (name, answer.text)
        check(answer, operation["responses"], document, name)
    assert asked == set(operations) - STREAMS
    for name, path in (("get_item", "/v1/items/a/k"), ("get_file", "/v1/files/d/f.txt")):
        answer = client.get(path, headers={"If-None-Match": "*"})
        assert (answer.status_code, answer.content) == (304, b"")
        assert "304" in operations[name][1]["responses"]
    for refused in (
        client.get("/v1/items/a/none"),
        client.put("/v1/items/a/k", json=[]),
        client.get("/v1/stat?path=x"),
    ):
        assert refused.is_client_error
        check(refused, operations["get_item"][1]["responses"], document, "a problem")


def check(answer: httpx.Response, responses: dict[str, Any], document: dict[str, Any], name: str) -> None:
    """Check the status, the media type and the body of an answer."""
    status = str(answer.status_code)
    described = responses[status if status in responses else f"{status[0]}XX"]
    if status == "204":
        assert "content" not in described, name
        assert answer.content == b"", name
        return
    kind = answer.headers["content-type"].split(";")[0]
    assert kind in described["content"], name
    if kind.endswith("json"):
        schema = described["content"][kind]["schema"] | {"components": document["components"]}
        errors = [
            f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(answer.json())
        ]
        assert errors == [], (name, answer.text)


def requests(client: httpx.Client) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """For each operation, requests in an order in which they succeed: its id, the path and what else is sent."""
    yield "put_item", "/v1/items/a/k", {"json": {"text": "one"}}
    cursor = client.get("/v1/cursor").json()["cursor"]
    version = client.get("/v1/items/a/k").json()["version"]
    yield "get_item", "/v1/items/a/k", {}
    yield "count_vectors", "/v1/vectors/a/k", {}
    yield "patch_item", "/v1/items/a/k", {"json": {"more": [1]}}
    yield "put_item", "/v1/items/a/short", {"json": {}, "params": {"ttl": "60"}}
    put = {"op": "put", "namespace": ["a"], "key": "b", "value": {}}
    yield "run_batch", "/v1/batch", {"json": {"ops": [put, {"op": "get", "namespace": ["a"], "key": "none"}]}}
    for body in ({}, {"query": "one", "highlight": True}, {"preview": 2}, {"query": "one", "limit": 1}):
        yield "search", "/v1/search", {"json": body}
    yield "count", "/v1/count", {"json": {}}
    yield "list_namespaces", "/v1/namespaces", {}
    yield "list_namespaces", "/v1/namespaces?counts=true", {}
    yield "scan", "/v1/scan?limit=1", {}
    yield "scan", "/v1/scan?preview=1", {}
    yield "describe", "/v1/me", {}
    yield "put_file", "/v1/files/d/f.txt", {"content": b"one\n"}
    yield "put_file", "/v1/files/d/f.bin", {"content": b"\0"}
    file = client.get("/v1/stat?path=/d/f.txt").json()["version"]
    yield "put_file", "/v1/files/d/f.png", {"content": b"\x89PNG"}
    for path in ("d/f.txt", "d/f.bin", "d/f.png", "d/", "", f"d/f.txt?version={file}"):
        yield "get_file", f"/v1/files/{path}", {}
    yield "patch_file", "/v1/files/d/f.txt?op=append", {"content": b"two\n"}
    yield "patch_file", "/v1/files/d/f.txt", {"json": {"old": "two", "new": "three"}}
    yield "stat_file", "/v1/stat?path=/d/f.txt", {}
    yield "stat_file", "/v1/stat?path=/d", {}
    yield "read_lines", "/v1/lines?path=/d/f.txt", {}
    yield "glob", "/v1/glob?pattern=**", {}
    yield "walk", "/v1/walk?limit=1", {}
    yield "grep", "/v1/grep?pattern=one", {}
    yield "copy_file", "/v1/copy", {"json": {"src": "/d", "dst": "/e"}}
    yield "move_file", "/v1/move", {"json": {"src": "/e/f.txt", "dst": "/e/g.txt"}}
    yield "delete_file", "/v1/files/e/g.txt", {}
    yield "get_cursor", "/v1/cursor", {}
    yield "acquire_lease", "/v1/leases", {"json": {"name": "l", "ttl": 60}}
    held = {"name": "m", "token": client.post("/v1/leases", json={"name": "m", "ttl": 60}).json()["token"]}
    yield "renew_lease", "/v1/leases", {"json": held}
    yield "release_lease", "/v1/leases", {"json": held}
    yield "list_versions", "/v1/history/a/k", {}
    yield "list_file_versions", "/v1/file-history?path=/d/f.txt", {}
    yield "list_file_versions", "/v1/file-history?path=/d/", {}
    yield "diff", "/v1/diff", {"params": {"since": cursor}}
    yield "restore", "/v1/restore", {"json": {"namespace": ["a"], "key": "k", "version": version}}
    yield "restore", "/v1/restore", {"json": {"path": "/d/f.txt", "version": file}}
    yield "rewind", "/v1/rewind", {"json": {"namespace": ["a"], "when": cursor, "dry_run": True}}
    yield "list_threads", "/v1/threads", {}
    yield "get_thread", "/v1/threads/t", {}
    yield "list_checkpoints", "/v1/checkpoints/t?limit=1", {}
    yield "set_ttl", "/v1/threads/t", {"json": {"ttl": 60}}
    yield "copy_thread", "/v1/copy-thread", {"json": {"src": "t", "dst": "u"}}
    yield "prune_threads", "/v1/prune-threads", {"json": {"threads": ["u"]}}
    yield "retain_checkpoints", "/v1/retain-checkpoints", {"json": {"keep_last": 1}}
    yield "delete_runs", "/v1/delete-runs", {"json": {"run_ids": ["r"]}}
    yield "delete_thread", "/v1/threads/u", {}
    yield "stats", "/v1/stats", {}
    yield "sweep", "/v1/sweep", {}
    yield "reindex", "/v1/reindex", {}
    yield "check", "/v1/check", {"json": {"repair": True}}
    yield "back_up", "/v1/backup?namespace=a", {}
    backup = client.get("/v1/backup?namespace=a").content
    yield "load", "/v1/load?to=loaded", {"content": backup}
    yield "export_entries", "/v1/export?namespace=a", {}
    yield "import_entries", "/v1/import?namespace=imported", {"content": b'{"key": "k", "value": {"n": 1}}\n'}
    yield "erase", "/v1/erase", {"json": {"namespace": ["imported"]}}
    yield "delete_item", "/v1/items/a/b", {}
    yield "delete_tree", "/v1/trees/loaded", {}
    yield "summarise_metrics", "/v1/metrics", {}
    yield "get_metrics", "/metrics", {}
    yield "is_alive", "/healthz", {}
    yield "is_ready", "/readyz", {}
    yield "list_tokens", "/v1/tokens", {}
    yield "create_token", "/v1/tokens", {"json": {"allow": ["read"], "label": "x", "expires": 60}}
    made = client.post("/v1/tokens", json={}).json()["id"]
    yield "revoke_token", f"/v1/tokens/{made}", {}
    yield "open_session", "/v1/session", {}
    yield "close_session", "/v1/session", {}
