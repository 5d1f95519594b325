"""`langgraph dev`, the server of LangGraph's own command, with our store in its `langgraph.json`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

import holdall
from holdall.faces.langgraph import HoldallSaver
from support.servers import free_port

APP = """
from typing import TypedDict

from langgraph.graph import START, StateGraph
from langgraph_sdk import Auth

from holdall.faces.langgraph import AsyncHoldallSaver, HoldallStore

class State(TypedDict, total=False):
    said: str
    known: int

async def keep(state, runtime):
    await runtime.store.aput(("said",), state["said"], {"owner": "ada"})
    return {"known": len(await runtime.store.asearch(("said",)))}

builder = StateGraph(State)
builder.add_node("keep", keep)
builder.add_edge(START, "keep")
graph = builder.compile()

def make():
    return HoldallStore("agent.db")

async def make_saver():
    return AsyncHoldallSaver("agent.db")

auth = Auth()

@auth.authenticate
async def who(authorization: str | None) -> str:
    return "ada"

@auth.on.store
async def only_their_own(ctx, value):
    if ctx.action == "search":
        return {"owner": ctx.user.identity}
"""
CONFIG = {
    "dependencies": ["."],
    "graphs": {"keep": "./app.py:graph"},
    "store": {"path": "./app.py:make"},
    "checkpointer": {"path": "./app.py:make_saver"},
    "auth": {"path": "./app.py:auth"},
}


@contextmanager
def served(folder: Path) -> Iterator[SyncLangGraphClient]:
    (folder / "app.py").write_text(APP)
    (folder / "langgraph.json").write_text(json.dumps(CONFIG))
    port = free_port()
    command = [Path(sys.executable).with_name("langgraph"), "dev", "--no-browser", "--no-reload", "--port", str(port)]
    quiet = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=os.environ | quiet)
        try:
            url = f"http://127.0.0.1:{port}"
            while not _answers(url):
                assert server.poll() is None, (folder / "log").read_text()[-3000:]
                time.sleep(0.05)
            with get_sync_client(url=url) as client:
                yield client
        finally:
            server.terminate()
            server.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ok").status_code == 200
    except httpx.TransportError:
        return False


def test_the_server_keeps_everything_in_our_store(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        store = client.store
        store.put_item(["users", "ada"], "diet", {"owner": "ada", "text": "no peanuts", "n": 9})
        store.put_item(["users", "ada"], "tea", {"owner": "ada", "text": "green", "n": 10}, ttl=5)
        store.put_item(["users", "bob"], "diet", {"owner": "bob", "text": "all", "n": 100})

        item = store.get_item(["users", "ada"], "diet")
        assert (item["namespace"], item["key"], item["value"]["text"]) == (["users", "ada"], "diet", "no peanuts")
        assert store.get_item(["users", "ada"], "nothing") is None

        def found(**asked: Any) -> list[str]:
            return [item["key"] for item in store.search_items(["users"], **asked)["items"]]

        assert found() == ["tea", "diet"], "only what the filter that the server adds lets through"
        assert found(filter={"n": {"$gte": 10}}) == ["tea"]
        assert found(limit=1, offset=1) == ["diet"]
        assert store.list_namespaces()["namespaces"] == [["users", "ada"], ["users", "bob"]]
        assert store.list_namespaces(prefix=["users"], max_depth=1)["namespaces"] == [["users"]]

        store.delete_item(["users", "ada"], "tea")
        assert found() == ["diet"]
        state = client.runs.wait(None, "keep", input={"said": "hello"})
        assert state["known"] == 1  # type: ignore[call-overload]  # a dict
        thread = client.threads.create()
        client.runs.wait(thread["thread_id"], "keep", input={"said": "hello"})
        assert client.threads.get_state(thread["thread_id"])["values"] == {"said": "hello", "known": 1}
        log = (tmp_path / "log").read_text()
    assert "BlockingError" not in log, "the event loop was held up"
    assert "Traceback" not in log
    with holdall.open(tmp_path / "agent.db") as left:
        assert [entry.key for entry in left.scan()] == ["hello", "diet", "diet"]
        [kept] = [each for each in HoldallSaver(left).threads() if each.id == thread["thread_id"]]
        assert (kept.checkpoints, kept.step) == (3, 1)
