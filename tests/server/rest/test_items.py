"""Items over REST: ETags, conditions, encodings, batches."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest

import holdall
from holdall.testing import embed
from support.served import server


def test_an_item_has_its_version_as_etag_and_conditional_writes_hold(client: httpx.Client) -> None:
    first = client.put("/v1/items/users/ada/name", json={"n": 1}, headers={"If-None-Match": "*"})
    assert first.status_code == 200
    tag = first.headers["etag"]
    assert tag == f'"{first.json()["version"]}"'
    assert client.put("/v1/items/users/ada/name", json={"n": 2}, headers={"If-None-Match": "*"}).status_code == 412
    second = client.put("/v1/items/users/ada/name", json={"n": 2}, headers={"If-Match": tag})
    assert second.status_code == 200
    lost = client.put("/v1/items/users/ada/name", json={"n": 3}, headers={"If-Match": tag})
    assert lost.status_code == 412
    assert lost.headers["content-type"] == "application/problem+json"
    assert lost.json()["title"] == "Conflict"
    assert lost.json()["actual"] == second.json()["version"]
    assert client.get("/v1/items/users/ada/name").json()["value"] == {"n": 2}
    again = client.get("/v1/items/users/ada/name", headers={"If-None-Match": second.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    two = [("If-Match", second.headers["etag"]), ("If-Match", tag)]  # of which the second was ignored
    assert client.put("/v1/items/users/ada/name", json={"n": 3}, headers=two).status_code == 400
    assert client.delete("/v1/items/users/ada/name", headers={"If-Match": tag}).status_code == 412
    assert client.delete("/v1/items/users/ada/name").status_code == 204
    assert client.get("/v1/items/users/ada/name").status_code == 404
    assert client.delete("/v1/items/users/ada/name").status_code == 404


@pytest.mark.parametrize(
    ("namespace", "key"),
    [
        (("a/b", "c"), "k/l"),
        (("ü", "日本"), "schlüssel ?&#%"),
        ((" ", "%2F"), " "),
        (("a",), "/path/to"),
        (
            ("a.b", "..c"),
            "k..",
        ),
        (("*", "+"), "a+b"),
        (("\x01", "\x02"), "\x7f"),
    ],
)
def test_names_of_any_characters_survive(
    client: httpx.Client, store: holdall.Store, namespace: tuple[str, ...], key: str
) -> None:
    path = "/".join(quote(part, safe="") for part in (*namespace, key))
    assert client.put(f"/v1/items/{path}", json={"x": 1}).status_code == 200
    assert [(entry.namespace, entry.key) for entry in store.scan()] == [(namespace, key)]
    answer = client.get(f"/v1/items/{path}").json()
    assert (tuple(answer["namespace"]), answer["key"]) == (namespace, key)


def test_a_write_with_a_lease_is_done_as_long_as_the_lease_is_held(client: httpx.Client) -> None:
    lease = {"name": "a/b; c", "namespace": ["n", "m"]}
    held = lease | {"token": client.post("/v1/leases", json=lease | {"ttl": 60}).json()["token"]}
    header = {"Holdall-Lease": f"a%2Fb%3B%20c; token={held['token']}; namespace=n/m"}
    assert client.put("/v1/items/n/m/k", json={"n": 1}, headers=header).status_code == 200
    assert client.request("DELETE", "/v1/leases", json=held).status_code == 204
    lost = client.put("/v1/items/n/m/k", json={"n": 2}, headers=header)
    assert (lost.status_code, lost.json()["title"]) == (409, "LeaseLost")
    for text in ("a/b; token=1", "; token=1", "a", "a; token=x", "a; token=1; namespace=%"):
        refused = client.put("/v1/items/n/m/k", json={"n": 2}, headers={"Holdall-Lease": text})
        assert (refused.status_code, refused.json()["title"]) == (400, "InvalidInput"), text
    assert client.get("/v1/items/n/m/k").json()["value"] == {"n": 1}


def test_patches_of_several_clients_lose_nothing(client: httpx.Client) -> None:
    client.put("/v1/items/a/k", json={"a": 1, "deep": {"x": 1, "y": 2}})
    assert client.patch("/v1/items/a/k", json={"b": 2, "deep": {"x": None}}).json()["value"] == {
        "a": 1,
        "b": 2,
        "deep": {"y": 2},
    }
    assert client.patch("/v1/items/a/none", json={"b": 2}).status_code == 404
    assert client.patch("/v1/items/a/none?create=true", json={"b": 2}).status_code == 200


def test_a_batch_is_done_wholly_or_not_at_all(client: httpx.Client) -> None:
    put = {"op": "put", "namespace": ["a"], "key": "k", "value": {"n": 1}, "ttl": 60}
    done = client.post("/v1/batch", json={"ops": [put, {"op": "get", "namespace": ["a"], "key": "k"}]})
    assert done.status_code == 200
    assert done.json()["results"][1]["value"] == {"n": 1}
    assert done.json()["results"][0]["expires_at"] is not None
    failing = {"op": "check", "namespace": ["a"], "key": "k", "expect": "absent"}
    refused = client.post("/v1/batch", json={"ops": [put | {"key": "l"}, failing]})
    assert refused.status_code == 412
    assert client.get("/v1/items/a/l").status_code == 404
    assert client.post("/v1/batch", json={"ops": [{"op": "nonsense"}]}).status_code == 400


def test_bad_requests_are_problems(client: httpx.Client) -> None:
    for method, path, body in [
        ("PUT", "/v1/items/a/k", b"[1]"),
        ("PUT", "/v1/items/a/k", b"{"),
        ("PUT", "/v1/items/a/k?ttl=soon", b"{}"),
        ("PUT", "/v1/items/k", b"{}"),
        ("PUT", "/v1/items/a//k", b"{}"),
        ("PUT", "/v1/items/__holdall__/k", b"{}"),
        ("PUT", "/v1/items/a/%ff", b"{}"),
        ("GET", "/v1/scan?after=x", None),
        ("GET", "/v1/changes?since=x", None),
        ("POST", "/v1/search", b'{"limit": -1}'),
    ]:
        answer = client.request(method, path, content=body)
        assert answer.status_code == 400, (path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"]
    assert client.post("/v1/items/a/k").status_code == 405


def test_search_count_namespaces_and_scan(client: httpx.Client) -> None:
    for number in range(5):
        client.put(f"/v1/items/notes/{number % 2}/k{number}", json={"text": f"green tea {number}", "n": number})
    found = client.post("/v1/search", json={"namespace": ["notes"], "query": "tea 3", "limit": 1}).json()
    assert found["items"][0]["key"] == "k3"
    assert found["items"][0]["score"] > 0
    more = client.post(
        "/v1/search", json={"namespace": ["notes"], "query": "tea 3", "limit": 1, "cursor": found["next"]}
    )
    assert more.json()["items"][0]["key"] != "k3"
    assert client.post("/v1/count", json={"filter": {"n": {"$gte": 3}}}).json() == {"count": 2}
    tree = client.get("/v1/namespaces?prefix=notes&max_depth=2&counts=true").json()["namespaces"]
    assert tree == [
        {"namespace": ["notes", "0"], "entries": 3, "total": 3},
        {"namespace": ["notes", "1"], "entries": 2, "total": 2},
    ]
    keys, after = [], ""
    while after is not None:
        page = client.get("/v1/scan", params={"namespace": "notes", "limit": 2} | ({"after": after} if after else {}))
        keys += [item["key"] for item in page.json()["items"]]
        after = page.json()["next"]
    assert keys == ["k0", "k2", "k4", "k1", "k3"]
    assert client.delete("/v1/trees/notes/0").json() == {"deleted": 3}
    assert client.get("/v1/stats").json()["entries"] == 2


@pytest.mark.parametrize("key", ["a\nb", "\r\n", "\u2028", "a\tb", "%2F", "..%2f", "?x#y", "é\u0301", "\u202e", " "])
def test_line_breaks_and_signs_in_names_survive(client: httpx.Client, store: holdall.Store, key: str) -> None:
    path = f"/v1/items/{quote(key, safe='')}/{quote(key, safe='')}"
    assert client.put(path, json={"n": 1}).status_code == 200
    assert client.get(path).json()["key"] == key
    assert store.get((key,), key) is not None
    assert client.delete(path).status_code == 204


def test_an_unknown_path_is_a_problem(client: httpx.Client) -> None:
    for path in ("/v2/none", "/v1/items", "/v1/scan/"):  # the last two were sent to http:// at another path
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert client.get("/v1/scan?limit=0").status_code == 400


def test_the_vectors_of_an_item_are_counted(client: httpx.Client, url: str) -> None:
    with server().open_directly(url, embed=embed) as store:
        store.put(("a",), "k/l", {"notes": ["green tea", "a walk"]}, search_fields=["notes[*]"])
        store.put(("a",), "none", {"n": 1})
    for key, number in {"k%2Fl": 2, "none": 0, "missing": 0}.items():
        assert client.get(f"/v1/vectors/a/{key}").json() == {"vectors": number}
