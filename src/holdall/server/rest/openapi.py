"""The REST API as an OpenAPI 3.1 document, made from the routes and from the types of their bodies."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from starlette.responses import Response

from ...core import face_api
from ..auth import routes as auth
from ..exchange import Call, Handler, answer
from . import events, files, history, items, operation, queries, threads

_TABLES = {
    "items": items.ROUTES,
    "files": files.ROUTES,
    "queries": queries.ROUTES,
    "changes and leases": events.ROUTES,
    "history": history.ROUTES,
    "threads": threads.ROUTES,
    "operation": operation.ROUTES,
    "tokens": auth.ROUTES,
}
#: The types of JSON bodies, by handler.
_BODIES: dict[Any, type] = {
    items.run_batch: items.Batch,
    queries.search: queries.Search,
    queries.count: queries.Count,
    events.acquire_lease: events.Acquire,
    events.renew_lease: events.Held,
    events.release_lease: events.Held,
    history.restore: history.Restore,
    history.rewind: history.Rewind,
    files.move_file: files.Transfer,
    files.copy_file: files.Transfer,
    operation.erase: operation.Erase,
    operation.check: operation.Check,
    threads.set_ttl: threads.ThreadTtl,
    threads.copy_thread: threads.ThreadCopy,
    threads.prune_threads: threads.Prune,
    threads.retain_checkpoints: threads.Retain,
    threads.delete_runs: threads.Runs,
    auth.create_token: auth.NewToken,
}
_OBJECT_BODIES = {items.put_item, items.patch_item}
_BYTE_BODIES = {files.put_file, files.patch_file, operation.load, operation.import_entries}
#: The arguments of the query, by handler: name and schema.
_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
_VOLUME = {"namespace": _TEXT}
_PAGE = {"limit": _NUMBER, "after": _TEXT}
_ARGUMENTS: dict[Any, dict[str, Any]] = {
    items.get_item: {"refresh": _FLAG, "at": _TEXT},
    items.put_item: {"ttl": _TEXT, "expires_at": _TEXT, "search_fields": _TEXT},
    items.patch_item: {"create": _FLAG},
    files.get_file: {**_VOLUME, **_PAGE, "prefix": _TEXT, "version": _NUMBER, "at": _TEXT},
    files.put_file: _VOLUME,
    files.patch_file: {**_VOLUME, "op": {"enum": ["append", "edit"]}},
    files.delete_file: {**_VOLUME, "recursive": _FLAG},
    files.stat_file: {**_VOLUME, "path": _TEXT},
    files.read_lines: {**_VOLUME, "path": _TEXT, "offset": _NUMBER, "limit": _NUMBER},
    files.glob: {**_VOLUME, "pattern": _TEXT, "path": _TEXT, "limit": _NUMBER, "offset": _NUMBER},
    files.walk: {**_VOLUME, **_PAGE, "path": _TEXT},
    files.grep: {
        **_VOLUME,
        "pattern": _TEXT,
        "path": _TEXT,
        "glob": _TEXT,
        "regex": _FLAG,
        "ignore_case": _FLAG,
        "limit": _NUMBER,
    },
    files.move_file: _VOLUME,
    files.copy_file: _VOLUME,
    queries.list_namespaces: {
        "prefix": _TEXT,
        "suffix": _TEXT,
        "max_depth": _NUMBER,
        "limit": _NUMBER,
        "offset": _NUMBER,
        "counts": _FLAG,
    },
    queries.scan: {**_VOLUME, **_PAGE, "preview": _NUMBER},
    events.watch: {**_VOLUME, "since": _TEXT, "path": _TEXT, "values": _FLAG},
    history.list_versions: {"limit": _NUMBER},
    history.list_file_versions: {**_VOLUME, "path": _TEXT, "limit": _NUMBER},
    threads.list_threads: {"prefix": _TEXT, "query": _TEXT, "filter": _TEXT, "limit": _NUMBER, "cursor": _TEXT},
    threads.get_thread: {"checkpoint_id": _TEXT, "checkpoint_ns": _TEXT, "at": _TEXT},
    threads.list_checkpoints: {"checkpoint_ns": _TEXT, "before": _TEXT, "limit": _NUMBER},
    threads.watch_thread: {"checkpoint_ns": _TEXT},
    operation.back_up: _VOLUME,
    operation.load: {"to": _TEXT, "into": _FLAG, "replace": _FLAG},
    operation.export_entries: {**_VOLUME, "format": {"enum": ["jsonl", "parquet"]}},
    operation.import_entries: {**_VOLUME, "format": {"enum": ["jsonl", "parquet"]}, "columns": _TEXT},
    history.diff: {**_VOLUME, "since": _TEXT, "until": _TEXT, "limit": _NUMBER},
}
#: Answers that are not JSON.
_OTHER_ANSWERS = {
    files.get_file: "application/octet-stream",
    events.watch: "text/event-stream",
    threads.watch_thread: "text/event-stream",
    operation.back_up: "application/octet-stream",
    operation.export_entries: "application/octet-stream",
    operation.get_metrics: "text/plain",
}
_EMPTY = {
    items.delete_item,
    files.delete_file,
    events.renew_lease,
    events.release_lease,
    threads.set_ttl,
    threads.delete_thread,
    threads.copy_thread,
    threads.prune_threads,
    threads.delete_runs,
    auth.revoke_token,
    auth.open_session,
    auth.close_session,
}
_CREATED = {events.acquire_lease, auth.create_token}


def build_document() -> dict[str, Any]:
    """Make the OpenAPI document."""
    bodies, schemas = msgspec.json.schema_components(
        list(dict.fromkeys(_BODIES.values())), ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(dict.fromkeys(_BODIES.values()), bodies, strict=True))
    paths: dict[str, Any] = {}
    for tag, table in _TABLES.items():
        for route, handlers in table.items():
            path = route.replace(":path", "")
            paths[path] = {
                method.lower(): _operation(tag, path, method, handler, right, by_type)
                for method, (handler, right) in handlers.items()
            }
    schemas["Problem"] = {
        "type": "object",
        "required": ["type", "status", "title", "detail"],
        "properties": {"type": _TEXT, "status": {"type": "integer"}, "title": _TEXT, "detail": _TEXT},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "holdall", "version": face_api.VERSION, "description": "One durable store for agents."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(
    tag: str, path: str, method: str, handler: Any, right: str | None, by_type: dict[type, Any]
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "tags": [tag],
        "operationId": handler.__name__ if method != "HEAD" else f"head_{handler.__name__}",
        "summary": (handler.__doc__ or "").strip(),
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": _TEXT} for name in re.findall(r"{(\w+)}", path)),
            *({"name": name, "in": "query", "schema": schema} for name, schema in _ARGUMENTS.get(handler, {}).items()),
        ],
        "responses": {
            _status(handler): _answer(handler),
            "4XX": {
                "description": "refused",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if right is not None:
        described["security"] = [{"bearer": []}, {"key": []}]
        described["x-right"] = right
    if handler in _BODIES:
        described["requestBody"] = _body("application/json", by_type[_BODIES[handler]])
    elif handler in _OBJECT_BODIES:
        described["requestBody"] = _body("application/json", {"type": "object"})
    elif handler in _BYTE_BODIES:
        described["requestBody"] = _body("application/octet-stream", {"type": "string", "format": "binary"})
    return described


def _body(kind: str, schema: Any) -> dict[str, Any]:
    return {"required": True, "content": {kind: {"schema": schema}}}


def _status(handler: Any) -> str:
    return "204" if handler in _EMPTY else "201" if handler in _CREATED else "2XX"


def _answer(handler: Any) -> dict[str, Any]:
    if handler in _EMPTY:
        return {"description": "done"}
    kind = _OTHER_ANSWERS.get(handler, "application/json")
    if kind != "application/json":
        kinds = [kind, "application/json", "text/plain"] if handler is files.get_file else [kind]
        return {"description": "the answer", "content": {one: {} for one in kinds}}
    return {"description": "the answer", "content": {kind: {"schema": {"type": "object"}}}}


_DOCUMENT: dict[str, Any] = {}


async def get_document(_call: Call) -> Response:
    """The REST API as an OpenAPI document."""
    if not _DOCUMENT:
        _DOCUMENT.update(build_document())
    return answer(_DOCUMENT)


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {"/openapi.json": {"GET": (get_document, None)}}
