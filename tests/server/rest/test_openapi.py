"""The OpenAPI document: it has every route, and what it says holds."""

from __future__ import annotations

import json

import httpx
import msgspec
from jsonschema import Draft202012Validator

from holdall.server.rest import ROUTES, openapi


def test_the_document_has_every_route_and_method() -> None:
    document = openapi.build_document()
    described = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    real = {(path.replace(":path", ""), method) for path, methods in ROUTES.items() for method in methods}
    assert described == real - {("/openapi.json", "GET")}
    identities = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(identities)) == len(identities)
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_live_answers_are_as_the_document_says(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert document == json.loads(msgspec.json.encode(openapi.build_document()))
    client.put("/v1/items/a/k", json={"n": 1})
    client.put("/v1/files/f.txt", content=b"one\n")
    examples = {
        "get_item": ("/v1/items/a/k", None),
        "search": ("/v1/search", {"query": "one"}),
        "count": ("/v1/count", {}),
        "list_namespaces": ("/v1/namespaces?counts=true", None),
        "scan": ("/v1/scan", None),
        "stats": ("/v1/stats", None),
        "describe": ("/v1/me", None),
        "run_batch": ("/v1/batch", {"ops": [{"op": "get", "namespace": ["a"], "key": "k"}]}),
        "get_file": ("/v1/files/f.txt", None),
        "stat_file": ("/v1/stat?path=/f.txt", None),
        "grep": ("/v1/grep?pattern=one", None),
        "acquire_lease": ("/v1/leases", {"name": "l", "ttl": 5}),
        "create_token": ("/v1/tokens", {"allow": ["read"], "label": "x"}),
        "list_tokens": ("/v1/tokens", None),
        "get_metrics": ("/metrics", None),
        "is_alive": ("/healthz", None),
    }
    operations = {one["operationId"]: one for methods in document["paths"].values() for one in methods.values()}
    for name, (path, body) in examples.items():
        answer = client.get(path) if body is None else client.post(path, json=body)
        responses = operations[name]["responses"]
        expected = str(answer.status_code) if str(answer.status_code) in responses else f"{answer.status_code // 100}XX"
        assert expected in responses, (name, answer.text)
        assert answer.status_code < 300, (name, answer.text)
        kind = answer.headers["content-type"].split(";")[0]
        assert kind in responses[expected]["content"], name
    problem = client.get("/v1/items/a/none")
    schema = document["components"]["schemas"]["Problem"]
    Draft202012Validator(schema).validate(problem.json())
