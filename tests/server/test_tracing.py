"""Spans of OpenTelemetry."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

import holdall
from holdall.server import app


def test_a_request_is_a_span_without_names_or_values(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with (
        holdall.open("memory:") as store,
        TestClient(app(store, auth="none"), base_url="http://localhost") as client,
    ):
        client.put("/v1/items/a/secret-key", json={"text": "secret-value"}, headers={"traceparent": parent})
        client.get("/v1/items/a/none")
        refused = client.post("/mcp", content=b"secret")
    put, get, mcp = exporter.get_finished_spans()
    assert put.name == "PUT /v1/items/{address:path}"
    assert put.attributes is not None
    assert put.attributes["http.response.status_code"] == 200
    assert put.context is not None
    assert f"{put.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert get.attributes is not None
    assert get.attributes["http.response.status_code"] == 404
    assert mcp.name == "POST /mcp"
    assert mcp.attributes is not None
    assert mcp.attributes["http.response.status_code"] == refused.status_code >= 400
    assert not any("secret" in span.to_json() for span in (put, get, mcp))
