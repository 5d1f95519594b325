"""History over REST: versions with their authors, the past, restore and rewind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx

import holdall
from server.conftest import connect
from support.served import server


def test_versions_the_past_restore_and_rewind(tmp_path: Path) -> None:
    url = server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False, history=3600)
    with httpx.Client(base_url=url, timeout=30) as client:
        author = {"Holdall-Author": "Ada%20L", "Holdall-Reason": "test"}
        first = client.put("/v1/items/a/k", json={"n": 1}, headers=author).json()
        before = client.get("/v1/cursor").json()["cursor"]
        client.put("/v1/items/a/k", json={"n": 2})
        client.put("/v1/items/a/l", json={"n": 3})
        versions = client.get("/v1/history/a/k").json()["versions"]
        assert [(one["value"], one["author"], one["reason"]) for one in versions] == [
            ({"n": 2}, None, None),
            ({"n": 1}, "Ada L", "test"),
        ]
        assert client.get("/v1/items/a/k", params={"at": before}).json()["value"] == {"n": 1}
        assert client.get("/v1/items/a/l", params={"at": before}).status_code == 404
        for method, path, body in (
            ("POST", "/v1/search", {"query": "tea"}),
            ("POST", "/v1/batch", {"ops": [{"op": "delete", "namespace": ["a"], "key": "k"}]}),
            ("GET", "/v1/items/a/k?refresh=true", None),
            ("GET", "/v1/threads?query=tea", None),
        ):
            refused = client.request(method, path, params=httpx.URL(path).params.set("at", before), json=body)
            assert refused.status_code == 400, (path, refused.text)
            assert "at= shows the past: " in refused.json()["detail"]
        found = client.post("/v1/search", params={"at": before}, json={"namespace": ["a"]}).json()["items"]
        assert [one["value"] for one in found] == [{"n": 1}]
        differences = client.get("/v1/diff", params={"since": before}).json()["differences"]
        assert [(one["key"], one["before"] is None) for one in differences] == [("k", False), ("l", True)]
        preview = client.post("/v1/rewind", json={"namespace": ["a"], "when": before, "dry_run": True})
        assert preview.status_code == 200, preview.text
        assert client.get("/v1/items/a/l").status_code == 200
        client.post("/v1/rewind", json={"namespace": ["a"], "when": before})
        assert client.get("/v1/items/a/l").status_code == 404
        client.put("/v1/items/a/k", json={"n": 9})
        body = {"namespace": ["a"], "key": "k", "version": first["version"]}
        for header in ({"If-Match": f'"{first["version"]}"'}, {"If-None-Match": "*"}):
            assert client.post("/v1/restore", json=body, headers=header).status_code == 412
        tag = client.get("/v1/items/a/k").headers["etag"]
        restored = client.post("/v1/restore", json=body, headers={"If-Match": tag})
        assert restored.json()["value"] == {"n": 1}
        client.put("/v1/files/f.txt", content=b"one")
        client.put("/v1/files/f.txt", content=b"two")
        old = client.get("/v1/file-history?path=/f.txt").json()["versions"][-1]["version"]
        below = client.get("/v1/file-history?path=/").json()["versions"]
        assert [(one["path"], one["size"], one["version"]) for one in below][-1] == ("/f.txt", 3, old)
        assert client.post("/v1/restore", json={"path": "/f.txt", "version": old}).status_code == 200
        assert client.get("/v1/files/f.txt").content == b"one"


def test_writes_carry_the_label_of_their_token(url: str, store: holdall.Store, new_token: Callable[..., str]) -> None:
    with connect(url, new_token(label="nightly job")) as client, connect(url, new_token()) as other:
        client.put("/v1/items/a/k", json={"n": 1})
        client.put("/v1/items/a/own", json={"n": 1}, headers={"Holdall-Author": "Ada"})
        other.put("/v1/items/a/none", json={"n": 1})
    authors = [store.history(("a",), key)[0].author for key in ("k", "own", "none")]
    assert authors == ["token nightly job", "Ada", None]
