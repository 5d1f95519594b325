"""The REST API as an OpenAPI 3.1 document, made from the routes and from the types of their bodies and answers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.responses import Response

from ... import Checked, Entry, Erased, FileInfo, Loaded, Rewound, Stats, Window
from ...core import face_api
from ..auth import routes as auth
from ..exchange import TEXT, Call, Handler, answer, taken_by
from ..metrics import Summary
from . import documents, events, files, history, items, operation, queries, threads

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
#: The types of JSON answers, by handler; several, if it depends on the request.
_ANSWERS: dict[Any, tuple[type, ...]] = {
    items.get_item: (Entry,),
    items.count_vectors: (items.VectorCount,),
    items.put_item: (Entry,),
    items.patch_item: (Entry,),
    items.delete_tree: (documents.Deleted,),
    items.run_batch: (items.Results,),
    files.get_file: (files.FilePage,),
    files.put_file: (FileInfo,),
    files.patch_file: (files.Appended, files.Edited),
    files.stat_file: (FileInfo,),
    files.read_lines: (Window,),
    files.glob: (files.FileList,),
    files.walk: (files.FilePage,),
    files.grep: (files.Matches,),
    files.move_file: (FileInfo,),
    files.copy_file: (FileInfo,),
    queries.search: (queries.Found,),
    queries.count: (queries.Counted,),
    queries.list_namespaces: (queries.NamespaceList,),
    queries.scan: (queries.ItemPage,),
    queries.describe: (queries.Description,),
    events.get_cursor: (events.Cursor,),
    events.acquire_lease: (events.Acquired,),
    history.list_versions: (history.Versions,),
    history.list_file_versions: (history.Versions,),
    history.restore: (Entry, FileInfo),
    history.diff: (history.Diffs,),
    history.rewind: (Rewound,),
    threads.list_threads: (threads.ThreadPage,),
    threads.get_thread: (threads.Checkpoint,),
    threads.list_checkpoints: (threads.CheckpointPage,),
    threads.retain_checkpoints: (documents.Deleted,),
    operation.erase: (Erased,),
    operation.load: (Loaded,),
    operation.import_entries: (operation.Written,),
    operation.check: (Checked,),
    operation.stats: (Stats,),
    operation.sweep: (operation.Swept,),
    operation.reindex: (operation.Written,),
    operation.summarise_metrics: (Summary,),
    operation.is_alive: (operation.Status,),
    operation.is_ready: (operation.Status,),
    auth.list_tokens: (auth.TokenList,),
    auth.create_token: (auth.CreatedToken,),
}
_OBJECT_BODIES = {items.put_item, items.patch_item}
_BYTE_BODIES = {files.put_file, files.patch_file, operation.load, operation.import_entries}
#: The media types of answers that are not JSON, by handler.
_OTHER_ANSWERS: dict[Any, tuple[str, ...]] = {
    files.get_file: ("application/octet-stream", "text/plain", *files.RASTER),
    events.watch: ("text/event-stream",),
    threads.watch_thread: ("text/event-stream",),
    operation.back_up: ("application/octet-stream",),
    operation.export_entries: ("application/octet-stream",),
    operation.get_metrics: ("text/plain",),
}
_CREATED = {events.acquire_lease, auth.create_token}
#: Headers of every write: who writes, and why.
_SIGNATURE = ("holdall-author", "holdall-reason")


def build_document() -> dict[str, Any]:
    """Make the OpenAPI document."""
    by_type, schemas = _build_schemas(_BODIES.values())
    answers, answer_schemas = _build_schemas(itertools.chain(*_ANSWERS.values()))
    for schema in answer_schemas.values():  # a default is sent, too
        schema["required"] += [name for name, field in schema["properties"].items() if "default" in field]
    by_type |= answers
    schemas |= answer_schemas
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
        "properties": {"type": TEXT, "status": {"type": "integer"}, "title": TEXT, "detail": TEXT},
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


def _build_schemas(types: Iterable[type]) -> tuple[dict[type, Any], dict[str, Any]]:
    """Make the schema of each type, and the components that they refer to."""
    distinct = list(dict.fromkeys(types))
    found, components = msgspec.json.schema_components(distinct, ref_template="#/components/schemas/{name}")
    return dict(zip(distinct, found, strict=True)), components


def _operation(
    tag: str, path: str, method: str, handler: Any, right: str | None, by_type: dict[type, Any]
) -> dict[str, Any]:
    taken = taken_by(handler)
    is_write = right == "write" or "holdall-lease" in taken.headers
    headers = (*taken.headers, *_SIGNATURE) if is_write else taken.headers
    described: dict[str, Any] = {
        "tags": [tag],
        "operationId": handler.__name__,
        "summary": (handler.__doc__ or "").strip(),
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": TEXT} for name in re.findall(r"{(\w+)}", path)),
            *({"name": name, "in": "query", "schema": schema} for name, schema in taken.arguments.items()),
            *({"name": name, "in": "header", "schema": TEXT} for name in headers),
        ],
        "responses": {
            _status(handler): _answer(handler, by_type),
            "4XX": {
                "description": "refused",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if method == "GET" and "if-none-match" in taken.headers:
        described["responses"]["304"] = {"description": "the sender has this version"}
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
    if handler in _CREATED:
        return "201"
    return "2XX" if handler in _ANSWERS or handler in _OTHER_ANSWERS else "204"


def _answer(handler: Any, by_type: dict[type, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {kind: {} for kind in _OTHER_ANSWERS.get(handler, ())}
    if handler in _ANSWERS:
        schemas = [by_type[kind] for kind in _ANSWERS[handler]]
        content["application/json"] = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    return {"description": "the answer", "content": content} if content else {"description": "done"}


_DOCUMENT: dict[str, Any] = {}


async def get_document(_call: Call) -> Response:
    """The REST API as an OpenAPI document."""
    if not _DOCUMENT:
        _DOCUMENT.update(build_document())
    return answer(_DOCUMENT)


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {"/openapi.json": {"GET": (get_document, None)}}
