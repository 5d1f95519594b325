"""Files over REST: bytes, ranges, edits, listings, and headers with which nothing runs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

import holdall
from holdall.engines.memory import MemoryEngine
from holdall.server import app


def test_a_file_is_written_read_in_parts_edited_and_deleted(client: httpx.Client) -> None:
    put = client.put("/v1/files/notes/a.txt", content=b"hello world")
    assert put.json()["size"] == 11
    read = client.get("/v1/files/notes/a.txt")
    assert (read.content, read.headers["etag"]) == (b"hello world", put.headers["etag"])
    part = client.get("/v1/files/notes/a.txt", headers={"Range": "bytes=6-8"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"wor", "bytes 6-8/11")
    assert client.get("/v1/files/notes/a.txt", headers={"Range": "bytes=-5"}).content == b"world"
    assert client.get("/v1/files/notes/a.txt", headers={"Range": "bytes=11-"}).status_code == 416
    assert client.head("/v1/files/notes/a.txt").headers["content-length"] == "11"
    stale = {"If-Match": put.headers["etag"]}
    assert client.patch("/v1/files/notes/a.txt", json={"old": "world", "new": "there"}).json() == {"replaced": 1}
    assert client.put("/v1/files/notes/a.txt", content=b"lost", headers=stale).status_code == 412
    assert client.patch("/v1/files/notes/a.txt?op=append", content=b"!").json() == {"offset": 11}
    assert client.get("/v1/files/notes/a.txt").text == "hello there!"
    assert client.patch("/v1/files/notes/a.txt", json={"old": "gone", "new": ""}).status_code == 422
    edit, move = {"old": "hello", "new": "lost"}, {"src": "/notes/a.txt", "dst": "/b.txt"}
    assert client.patch("/v1/files/notes/a.txt", json=edit, headers=stale).status_code == 412
    assert client.patch("/v1/files/notes/a.txt?op=append", content=b"lost", headers=stale).status_code == 412
    assert client.post("/v1/move", json=move, headers=stale).status_code == 412
    assert client.delete("/v1/files/notes/a.txt", headers=stale).status_code == 412
    got = client.get("/v1/files/notes/a.txt")
    assert got.text == "hello there!"
    current = {"If-Match": got.headers["etag"]}
    moved = client.post("/v1/move", json=move, headers=current).json()
    back = {"src": "/b.txt", "dst": "/notes/a.txt"}
    assert client.post("/v1/move", json=back, headers={"If-Match": f'"{moved["version"]}"'}).status_code == 200
    assert client.delete("/v1/files/notes/a.txt").status_code == 204
    assert client.get("/v1/files/notes/a.txt").status_code == 404


def test_a_file_that_changes_while_it_is_read_is_not_sent_with_its_old_etag(monkeypatch: pytest.MonkeyPatch) -> None:
    real = holdall.Files.astat

    async def stat_before_a_write(files: holdall.Files, path: str) -> holdall.FileInfo:
        info = await real(files, path)
        await files.awrite(path, b"TWO")
        return info

    with (
        holdall.open("memory:") as store,
        TestClient(app(store, auth="none"), base_url="http://localhost") as client,
    ):
        store.files().write("/f", b"one")
        monkeypatch.setattr(holdall.Files, "astat", stat_before_a_write)
        for headers in ({}, {"Range": "bytes=1-"}):
            answer = client.get("/v1/files/f", headers=headers)
            assert (answer.status_code, answer.json()["title"]) == (409, "Conflict")
        monkeypatch.undo()
        assert client.get("/v1/files/f").content == b"TWO"


def test_an_old_version_is_read_in_parts_as_the_present_one() -> None:
    with (
        holdall.open("memory:", history=3600) as store,
        TestClient(app(store, auth="none"), base_url="http://localhost") as client,
    ):
        old = client.put("/v1/files/f", content=b"0123456789").json()["version"]
        client.put("/v1/files/f", content=b"new")
        part = client.get(f"/v1/files/f?version={old}", headers={"Range": "bytes=2-4"})
        assert (part.status_code, part.content) == (206, b"234")
        assert (part.headers["content-range"], part.headers["etag"]) == ("bytes 2-4/10", f'"{old}"')
        whole = client.get(f"/v1/files/f?version={old}")
        assert (whole.status_code, whole.content) == (200, b"0123456789")
        assert client.head(f"/v1/files/f?version={old}").headers["content-length"] == "10"
        assert client.get(f"/v1/files/f?version={old}", headers={"If-None-Match": f'"{old}"'}).status_code == 304
        assert client.get("/v1/files/f?version=99999").status_code == 410


def test_listing_glob_grep_lines_move_and_copy(client: httpx.Client) -> None:
    for name in ("/a.md", "/b/c.md", "/b/d.txt"):
        assert client.put(f"/v1/files{name}", content=f"one\ntwo of {name}\n".encode()).status_code == 200
    assert [one["path"] for one in client.get("/v1/files/").json()["files"]] == ["/a.md", "/b/"]
    assert [one["path"] for one in client.get("/v1/glob?pattern=*.md").json()["files"]] == ["/a.md", "/b/c.md"]
    assert [one["path"] for one in client.get("/v1/walk?limit=2").json()["files"]] == ["/a.md", "/b/c.md"]
    found = client.get("/v1/grep?pattern=two&glob=*.txt").json()
    assert found == {"matches": [{"path": "/b/d.txt", "line": 2, "text": "two of /b/d.txt"}], "more": False}
    assert client.get("/v1/lines?path=/a.md&offset=1").json() == {"lines": ["two of /a.md"], "offset": 1, "total": 2}
    assert client.post("/v1/move", json={"src": "/b", "dst": "/e"}).status_code == 200
    assert client.post("/v1/copy", json={"src": "/a.md", "dst": "/f.md"}).json()["path"] == "/f.md"
    assert client.get("/v1/stat?path=/e").json()["is_dir"] is True
    assert client.get("/v1/files/e").status_code == 409
    assert client.delete("/v1/files/e").status_code == 409
    assert client.delete("/v1/files/e?recursive=true").status_code == 204
    assert client.get("/v1/files/?namespace=other%2Fvolume").json()["files"] == []


@pytest.mark.parametrize(
    "route", ["/v1/files/d/?limit=10", "/v1/files/d/?prefix=f&limit=10", "/v1/walk?path=/d&limit=10"]
)
def test_a_page_of_a_listing_costs_what_it_lists(monkeypatch: pytest.MonkeyPatch, route: str) -> None:
    """Each page read the whole folder, or all files before it."""
    real, read = MemoryEngine._children, list[int]()

    def count(engine: MemoryEngine, op: Any) -> Any:
        page = real(engine, op)
        read.append(len(page))
        return page

    monkeypatch.setattr(MemoryEngine, "_children", count)
    with (
        holdall.open("memory:") as store,
        TestClient(app(store, auth="none"), base_url="http://localhost") as client,
    ):
        paths = ["/d/f", *(f"/d/f{number:02}" for number in range(40))]
        for path in [*paths, "/c", "/e"]:
            store.files().write(path, b"")
        listed, following = list[str](), ""
        while following is not None:
            page = client.get(route + (f"&after={following}" if following else "")).json()
            assert len(page["files"]) <= 10
            listed += [one["path"] for one in page["files"]]
            following = page["next"]
        assert listed == paths
        assert sum(read) < 2 * len(paths)
        for mark in ("/c", "/e", "/d/", "d/f", ""):
            assert client.get(f"{route}&after={mark}").status_code == 400, mark


def test_nothing_that_is_stored_runs_in_a_browser(client: httpx.Client) -> None:
    page = b"<script>alert(1)</script>"
    for name, kind, is_attached in [
        ("x.html", "text/plain; charset=utf-8", False),
        ("x.js", "text/plain; charset=utf-8", False),
        ("x.svg", "application/octet-stream", True),
        ("x.pdf", "application/octet-stream", True),
        ("x.png", "image/png", False),
        ("README", "text/plain; charset=utf-8", False),
    ]:
        client.put(f"/v1/files/{name}", content=page)
        answer = client.get(f"/v1/files/{name}")
        assert answer.headers["content-type"] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("sandbox")
        assert ("attachment" in answer.headers.get("content-disposition", "")) is is_attached


def test_traversal_and_tricks_in_paths_are_refused(client: httpx.Client) -> None:
    for path in ("/v1/files/a%2Fb", "/v1/files/%2e%2e/x", "/v1/files/a/%2E%2E/b", "/v1/files/a%00b", "/v1/files/a%0ab"):
        answer = client.put(path, content=b"x")
        assert answer.status_code in (400, 404), (path, answer.text)
    assert client.get("/v1/walk").json()["files"] == []
