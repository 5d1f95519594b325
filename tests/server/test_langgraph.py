"""The store API of `langgraph_sdk`: every call of its sync and async clients, against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.errors import AuthenticationError, PermissionDeniedError

import holdall


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, url: str, new_token: Callable[..., str]) -> Any:
    """Call a method of the SDK's store client."""
    token = new_token()
    if request.param == "sync":
        client = get_sync_client(url=url, api_key=token)
        yield lambda name, *args, **kwargs: getattr(client.store, name)(*args, **kwargs)
        client.http.client.close()
        return
    with asyncio.Runner() as runner:
        aclient = get_client(url=url, api_key=token)
        yield lambda name, *args, **kwargs: runner.run(getattr(aclient.store, name)(*args, **kwargs))
        runner.run(aclient.aclose())


def test_every_call_of_the_sdk(call: Any, store: holdall.Store) -> None:
    assert call("put_item", ["users", "ada"], "food", {"likes": "green tea"}, ttl=5) is None
    assert call("put_item", ["users", "ada"], "hidden", {"likes": "green tea"}, index=False) is None
    item = call("get_item", ["users", "ada"], "food", refresh_ttl=True)
    assert (item["namespace"], item["key"], item["value"]) == (["users", "ada"], "food", {"likes": "green tea"})
    assert set(item) == {"namespace", "key", "value", "created_at", "updated_at"}
    entry = store.get(("users", "ada"), "food")
    assert entry is not None
    assert entry.expires_at is not None
    assert 290 < (entry.expires_at - entry.updated_at).total_seconds() < 310, "minutes, not seconds"
    assert call("get_item", ["users", "ada"], "none") is None
    found = call("search_items", ["users"], query="tea", filter={"likes": {"$eq": "green tea"}}, refresh_ttl=True)
    assert [(hit["key"], hit["score"] > 0) for hit in found["items"]] == [("food", True)]
    listed = call("search_items", ["users"], limit=1, offset=1)
    assert [hit["score"] for hit in listed["items"]] == [None]
    call("put_item", ["users", "bob", "notes"], "a", {})
    assert call("list_namespaces", prefix=["users"], max_depth=2)["namespaces"] == [["users", "ada"], ["users", "bob"]]
    assert call("list_namespaces", suffix=["notes"])["namespaces"] == [["users", "bob", "notes"]]
    assert call("delete_item", ["users", "ada"], "food") is None
    assert call("delete_item", ["users", "ada"], "food") is None
    assert call("get_item", ["users", "ada"], "food") is None


def test_refused_requests_are_the_errors_of_the_sdk(url: str, new_token: Callable[..., str]) -> None:
    with get_sync_client(url=url, api_key="wrong") as nobody, pytest.raises(AuthenticationError):
        nobody.store.get_item(["a"], "k")
    with get_sync_client(url=url, api_key=new_token(allow=["read"])) as reader:
        assert reader.store.get_item(["a"], "k") is None
        with pytest.raises(PermissionDeniedError, match="does not allow 'write'"):
            reader.store.put_item(["a"], "k", {})


def test_malformed_requests_have_the_status_of_langgraphs_server(client: httpx.Client) -> None:
    assert client.get("/ok").json() == {"ok": True}
    assert client.put("/store/items", json={"namespace": ["a.b"], "key": "k", "value": {}}).status_code == 422
    assert client.put("/store/items", json={"namespace": [""], "key": "k", "value": {}}).status_code == 422
    assert client.get("/store/items?namespace=a").status_code == 400
    assert client.put("/store/items", json={"namespace": ["a"], "value": {}}).status_code == 400


#: The same calls in JavaScript. It prints what it received, as JSON.
SCRIPT = """
import { Client } from "@langchain/langgraph-sdk";
const store = new Client({ apiUrl: process.env.URL, apiKey: process.env.TOKEN }).store;
const ada = ["users", "ada"];
await store.putItem(ada, "food", { likes: "green tea" }, { ttl: 5 });
await store.putItem(ada, "hidden", { likes: "green tea" }, { index: false });
await store.putItem(["users", "bob", "notes"], "a", {});
const got = {
  item: await store.getItem(ada, "food", { refreshTtl: true }),
  none: await store.getItem(ada, "none"),
  found: await store.searchItems(["users"], { query: "tea", filter: { likes: "green tea" }, refreshTtl: true }),
  listed: await store.searchItems(["users"], { limit: 1, offset: 1 }),
  namespaces: await store.listNamespaces({ prefix: ["users"], maxDepth: 2 }),
};
await store.deleteItem(ada, "food");
got.gone = await store.getItem(ada, "food");
const stranger = new Client({ apiUrl: process.env.URL, apiKey: "wrong", callerOptions: { maxRetries: 0 } });
got.refused = await stranger.store.getItem(ada, "food").then(() => null, (error) => error.status);
console.log(JSON.stringify(got));
"""
MODULES = Path(sys.prefix) / "node"


@pytest.mark.not_short
@pytest.mark.skipif(
    not (MODULES / "node_modules/@langchain/langgraph-sdk").exists() or shutil.which("node") is None,
    reason="npm is not installed: with it, 'make test-all' installs @langchain/langgraph-sdk",
)
def test_every_call_of_the_javascript_sdk(url: str, new_token: Callable[..., str], store: holdall.Store) -> None:
    done = subprocess.run(
        ["node", "--input-type=module", "-e", SCRIPT],
        cwd=MODULES,
        env=os.environ | {"URL": url, "TOKEN": new_token()},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert (got["item"]["namespace"], got["item"]["value"]) == (["users", "ada"], {"likes": "green tea"})
    assert got["none"] is None
    assert [(hit["key"], hit["score"] > 0) for hit in got["found"]["items"]] == [("food", True)]
    assert len(got["listed"]["items"]) == 1
    assert got["namespaces"] == {"namespaces": [["users", "ada"], ["users", "bob"]]}
    assert got["gone"] is None
    assert got["refused"] == 401
    assert [entry.key for entry in store.scan(("users",))] == ["hidden", "a"]
