"""The store API of `langgraph_sdk`: every call of its sync and async clients, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
