"""Every public method of the store, of files and of threads has a route, and each of these routes works."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

import httpx
import msgspec
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

import holdall
from holdall.faces.langgraph import HoldallSaver
from holdall.server.rest import ROUTES
from holdall.server.rest.threads import InertSerializer
from server.conftest import connect
from support.served import server

#: Methods that are about an object in Python, and not about what is stored; and by what they are replaced.
IN_PYTHON = {
    "Store": {
        "acting": "headers Holdall-Author and Holdall-Reason",
        "at": "?at=",
        "close": "the server closes its store",
        "files": "?namespace=",
        "scoped": "the scope of a token",
        "setup": "the server does it",
        "with_embedder": "the server has its embedder",
    },
    "Files": {"namespace": "?namespace=", "store": "a property"},
    "HoldallSaver": {
        # LangGraph calls these. They write what only its serializer can, through a remote engine: /v1/engine.
        "config_specs": "",
        "from_conn_string": "",
        "get": "",
        "get_delta_channel_history": "",
        "get_next_version": "",
        "put": "",
        "put_writes": "",
        "serde": "",
        "with_allowlist": "",
        "import_from": "a file or database of the caller",
        "retain_every": "repeat POST /v1/retain-checkpoints",
        "close": "",
        "setup": "",
    },
}
ROUTE_OF = {
    "Store": {
        "backup": "GET /v1/backup",
        "check": "POST /v1/check",
        "count": "POST /v1/count",
        "cursor": "GET /v1/cursor",
        "delete": "DELETE /v1/items/{address:path}",
        "delete_tree": "DELETE /v1/trees/{namespace:path}",
        "diff": "GET /v1/diff",
        "erase": "POST /v1/erase",
        "execute": "POST /v1/batch",
        "export_entries": "GET /v1/export",
        "get": "GET /v1/items/{address:path}",
        "history": "GET /v1/history/{address:path}",
        "import_entries": "POST /v1/import",
        "lease": "POST /v1/leases",
        "load": "POST /v1/load",
        "namespaces": "GET /v1/namespaces",
        "put": "PUT /v1/items/{address:path}",
        "reindex": "POST /v1/reindex",
        "restore": "POST /v1/restore",
        "rewind": "POST /v1/rewind",
        "scan": "GET /v1/scan",
        "search": "POST /v1/search",
        "stats": "GET /v1/stats",
        "sweep": "POST /v1/sweep",
        "update": "PATCH /v1/items/{address:path}",
        "watch": "GET /v1/changes",
    },
    "Files": {
        "append": "PATCH /v1/files/{path:path}",
        "copy": "POST /v1/copy",
        "delete": "DELETE /v1/files/{path:path}",
        "edit": "PATCH /v1/files/{path:path}",
        "exists": "GET /v1/stat",
        "glob": "GET /v1/glob",
        "grep": "GET /v1/grep",
        "history": "GET /v1/file-history",
        "ls": "GET /v1/files/{path:path}",
        "move": "POST /v1/move",
        "names": "GET /v1/files/{path:path}",
        "open": "GET /v1/files/{path:path}",
        "read": "GET /v1/files/{path:path}",
        "read_lines": "GET /v1/lines",
        "read_range": "GET /v1/files/{path:path}",
        "read_text": "GET /v1/files/{path:path}",
        "restore": "POST /v1/restore",
        "stat": "GET /v1/stat",
        "walk": "GET /v1/walk",
        "watch": "GET /v1/changes",
        "write": "PUT /v1/files/{path:path}",
    },
    "HoldallSaver": {
        "copy_thread": "POST /v1/copy-thread",
        "delete_for_runs": "POST /v1/delete-runs",
        "delete_thread": "DELETE /v1/threads/{thread:path}",
        "get_tuple": "GET /v1/threads/{thread:path}",
        "list": "GET /v1/checkpoints/{thread:path}",
        "prune": "POST /v1/prune-threads",
        "retain": "POST /v1/retain-checkpoints",
        "set_ttl": "PATCH /v1/threads/{thread:path}",
        "threads": "GET /v1/threads",
        "watch": "GET /v1/thread-changes/{thread:path}",
    },
}


@pytest.mark.parametrize("kind", [holdall.Store, holdall.Files, HoldallSaver])
def test_every_public_method_has_a_route(kind: type) -> None:
    names = {name for name in dir(kind) if not name.startswith("_")}
    methods = {name for name in names if not (name[0] == "a" and name[1:] in names)}
    known = ROUTE_OF[kind.__name__]
    assert methods == known.keys() | IN_PYTHON[kind.__name__].keys()
    routes = {f"{method} {path}" for path, handlers in ROUTES.items() for method in handlers}
    assert set(known.values()) <= routes


@pytest.fixture
def url(tmp_path: Path) -> str:
    options = {"durability": "relaxed", "history": 3600}
    return server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False, app={"auth": "tokens"}, **options)


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def talk(store: holdall.Store, thread: str, text: str) -> None:
    graph = StateGraph(State)
    graph.add_node("model", lambda state: {"messages": [AIMessage(f"you said {state['messages'][-1].content}")]})
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    compiled = graph.compile(checkpointer=HoldallSaver(store))
    compiled.invoke({"messages": [HumanMessage(text)]}, {"configurable": {"thread_id": thread}})


def test_threads_are_listed_read_copied_and_deleted(client: httpx.Client, store: holdall.Store) -> None:
    talk(store, "a/1", "tea")
    talk(store, "b", "coffee")
    listed = client.get("/v1/threads").json()["threads"]
    assert [(one["id"], one["checkpoints"]) for one in listed] == [("b", 3), ("a/1", 3)]
    assert listed[1]["preview"] == "you said tea"
    assert [one["id"] for one in client.get("/v1/threads?query=tea").json()["threads"]] == ["a/1"]
    state = client.get("/v1/threads/a%2F1").json()
    first, second = state["values"]["messages"]
    assert (first["type"], first["content"], second["content"]) == ("human", "tea", "you said tea")
    assert second["$type"].endswith(".AIMessage")
    page = client.get("/v1/checkpoints/a%2F1?limit=2").json()
    assert [one["metadata"]["step"] for one in page["checkpoints"]] == [1, 0]
    rest = client.get(f"/v1/checkpoints/a%2F1?before={page['next']}").json()
    assert ([one["metadata"]["step"] for one in rest["checkpoints"]], rest["next"]) == ([-1], None)
    earlier = client.get(f"/v1/threads/a%2F1?checkpoint_id={page['next']}").json()
    assert [one["content"] for one in earlier["values"]["messages"]] == ["tea"]
    assert client.post("/v1/copy-thread", json={"src": "a/1", "dst": "c"}).status_code == 204
    assert client.post("/v1/copy-thread", json={"src": "a/1", "dst": "b"}).status_code == 409
    copied = HoldallSaver(store).get_tuple({"configurable": {"thread_id": "c"}})
    assert copied is not None
    assert [message.content for message in copied.checkpoint["channel_values"]["messages"]] == ["tea", "you said tea"]
    assert client.post("/v1/prune-threads", json={"threads": ["c"]}).status_code == 204
    assert len(client.get("/v1/checkpoints/c").json()["checkpoints"]) == 1
    assert client.post("/v1/retain-checkpoints", json={"keep_last": 2}).json() == {"deleted": 2}
    assert client.patch("/v1/threads/c", json={"ttl": 3600}).status_code == 204
    assert client.delete("/v1/threads/a%2F1").status_code == 204
    assert client.get("/v1/threads/a%2F1").status_code == 404
    run = client.get("/v1/threads/b").json()["metadata"].get("run_id", "none")
    assert client.post("/v1/delete-runs", json={"run_ids": [run]}).status_code == 204


def test_nothing_that_a_thread_contains_is_imported() -> None:
    content = msgspec.msgpack.encode(["os", "system", "touch /tmp/never"])
    forged = msgspec.msgpack.encode({"x": msgspec.msgpack.Ext(0, content)})
    assert InertSerializer().loads_typed(("msgpack", forged)) == {"x": "touch /tmp/never"}
    assert InertSerializer().loads_typed(("pickle", b"x"))["$type"] == "pickle"


def test_new_checkpoints_are_streamed(client: httpx.Client, store: holdall.Store) -> None:
    talk(store, "t", "one")
    with client.stream("GET", "/v1/thread-changes/t") as events:
        lines = events.iter_lines()
        assert next(lines) == ": connected"
        with ThreadPoolExecutor() as pool:
            talking = pool.submit(lambda: (time.sleep(0.3), talk(store, "t", "two")))
            data = next(json.loads(line[6:]) for line in lines if line.startswith("data: "))
            talking.result()
        assert data["thread_id"] == "t"


def test_a_stream_of_checkpoints_resumes_after_the_last_one_that_was_received(
    client: httpx.Client, store: holdall.Store
) -> None:
    talk(store, "t", "one")
    talk(store, "t", "two")
    ids = sorted(one["checkpoint_id"] for one in client.get("/v1/checkpoints/t").json()["checkpoints"])
    with client.stream("GET", "/v1/thread-changes/t", headers={"Last-Event-ID": ids[0]}) as events:
        received = (line[4:] for line in events.iter_lines() if line.startswith("id: "))
        assert [next(received) for _ in ids[1:]] == ids[1:]


def test_a_backup_is_downloaded_and_loaded_again(client: httpx.Client, store: holdall.Store) -> None:
    store.put(("a", "b"), "k", {"n": 1})
    store.files().write("/f", b"x" * 100_000)
    archive = client.get("/v1/backup")
    assert archive.headers["content-disposition"] == 'attachment; filename="holdall.backup"'
    assert int(archive.headers["content-length"]) == len(archive.content)
    assert client.post("/v1/load", content=archive.content).status_code == 409
    loaded = client.post("/v1/load?to=copy&into=true", content=archive.content)
    assert loaded.json()["entries"] == 2
    assert client.get("/v1/items/copy/a/b/k").json()["value"] == {"n": 1}
    refused = client.post("/v1/load?into=true", content=archive.content[:-10])
    assert (refused.status_code, refused.json()["title"]) == (422, "Corrupt")
    assert "/tmp" not in refused.text


def test_a_table_is_exported_and_imported(client: httpx.Client, store: holdall.Store) -> None:
    store.put(("a",), "k", {"n": 1})
    table = client.get("/v1/export?namespace=a").content
    assert json.loads(table)["value"] == {"n": 1}
    rows = b'{"id": "1", "text": "tea"}\n{"id": "2", "text": "coffee"}\n'
    columns = json.dumps({"key": "id"})
    done = client.post("/v1/import", params={"namespace": "notes", "columns": columns}, content=rows)
    assert done.json() == {"entries": 2}
    assert client.get("/v1/items/notes/2").json()["value"] == {"text": "coffee"}
    assert client.post("/v1/import?format=csv", content=rows).status_code == 400
    bomb = gzip.compress(b'"' + b"x" * (65 << 20) + b'"')
    assert client.post("/v1/import", content=bomb, headers={"Content-Encoding": "gzip"}).status_code == 413


def test_a_token_of_a_scope_backs_up_and_erases_its_scope(
    url: str, store: holdall.Store, new_token: Callable[..., str], client: httpx.Client
) -> None:
    store.put(("users", "ada", "notes"), "k", {"text": "ada"})
    store.put(("users", "bob", "notes"), "k", {"text": "plover"})
    with connect(url, new_token(scope=("users", "ada"), allow=["read", "write", "erase"])) as ada:
        archive = ada.get("/v1/backup").content
        assert b"plover" not in archive
        assert b"bob" not in archive
        assert client.post("/v1/load?to=there&into=true", content=archive).json()["entries"] == 1
        assert client.get("/v1/items/there/notes/k").json()["value"] == {"text": "ada"}
        assert b"plover" not in ada.get("/v1/export").content
        assert ada.post("/v1/erase", json={"namespace": ["notes"], "compact": True}).status_code == 403
        done = ada.post("/v1/erase", json={"namespace": ["notes"], "key": "k"})
        assert done.json()["entries"] == 1
        assert ada.post("/v1/check").status_code == 403
        assert ada.get("/v1/metrics").status_code == 403
    assert store.get(("users", "bob", "notes"), "k") is not None
    assert store.get(("users", "ada", "notes"), "k") is None


def test_the_store_is_checked_rewound_and_compared(client: httpx.Client) -> None:
    client.put("/v1/items/a/k", json={"n": 1})
    then = datetime.now(UTC).isoformat()
    client.put("/v1/items/a/k", json={"n": 2})
    preview = client.post("/v1/rewind", json={"namespace": ["a"], "when": then, "dry_run": True}).json()
    assert preview == {"restored": 1, "deleted": 0}
    [difference] = client.get("/v1/diff", params={"namespace": "a", "since": then}).json()["differences"]
    assert (difference["before"]["value"], difference["after"]["value"]) == ({"n": 1}, {"n": 2})
    assert client.get("/v1/items/a/k", params={"at": then}).json()["value"] == {"n": 1}
    assert client.post("/v1/rewind", json={"namespace": ["a"], "when": then}).json() == preview
    assert client.get("/v1/items/a/k").json()["value"] == {"n": 1}
    assert client.post("/v1/check").json()["faults"] == []


def test_old_values_need_the_right_of_history(url: str, client: httpx.Client, new_token: Callable[..., str]) -> None:
    version = client.put("/v1/items/a/k", json={"n": 1}).json()["version"]
    client.put("/v1/items/a/k", json={"n": 2})
    with connect(url, new_token(allow=["read", "write"])) as writer:
        for path, body in [
            ("/v1/restore", {"namespace": ["a"], "key": "k", "version": version}),
            ("/v1/rewind", {"namespace": ["a"], "when": "2026-01-01T00:00:00Z", "dry_run": True}),
        ]:
            assert writer.post(path, json=body).status_code == 403
        assert writer.get("/v1/items/a/k?at=2026-01-01").status_code == 403
    with connect(url, new_token(allow=["read", "history"])) as reader:
        body: dict[str, Any] = {"namespace": ["a"], "when": "2026-01-01T00:00:00Z"}
        assert reader.post("/v1/rewind", json=body).status_code == 403
        assert reader.post("/v1/restore", json={"namespace": ["a"], "key": "k", "version": version}).status_code == 403
    assert client.get("/v1/items/a/k").json()["value"] == {"n": 2}


def test_highlights_mark_the_words_of_a_query(client: httpx.Client) -> None:
    client.put("/v1/items/a/k", json={"text": "Ada likes the greenest teas", "more": ["green", "none"]})
    [hit] = client.post("/v1/search", json={"query": "tea green", "highlight": True}).json()["items"]
    assert hit["highlights"] == [
        {
            "path": "text",
            "parts": [{"text": "Ada likes the greenest ", "match": False}, {"text": "teas", "match": True}],
        },
        {"path": "more[0]", "parts": [{"text": "green", "match": True}]},
    ]
    client.put("/v1/items/a/cn", json={"text": "今天喝绿茶"})
    [hit] = client.post("/v1/search", json={"query": "绿茶", "highlight": True, "limit": 1}).json()["items"]
    assert hit["highlights"][0]["parts"][-1] == {"text": "绿茶", "match": True}


def test_metrics_are_summarised_as_json(client: httpx.Client) -> None:
    for _ in range(20):  # a worker may answer none of one
        client.get("/v1/items/a/none")
    summary = client.get("/v1/metrics").json()
    assert summary["requests"] >= 1
    [operation] = [one for one in summary["operations"] if one["route"] == "/v1/items/{address:path}"]
    assert operation["errors"] == operation["requests"] >= 1
    assert operation["p50"] <= operation["p99"]
