"""The store API of LangGraph's server, which the clients of `langgraph_sdk` speak (Python and JavaScript)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from starlette.responses import Response

from .. import DEFAULT, Entry, Hit, ops
from ..errors import InvalidInput
from .exchange import Call, Handler, answer, no_content
from .problems import HttpError

_UNPROCESSABLE = 422


class _Put(msgspec.Struct):
    namespace: list[str]
    key: str
    value: dict[str, Any]
    index: Literal[False] | list[str] | None = None
    ttl: float | None = None


class _Delete(msgspec.Struct):
    namespace: list[str]
    key: str


class _Search(msgspec.Struct):
    namespace_prefix: list[str] = []
    filter: dict[str, Any] | None = None
    limit: int = 10
    offset: int = 0
    query: str | None = None
    refresh_ttl: bool | None = None


class _Namespaces(msgspec.Struct):
    prefix: list[str] | None = None
    suffix: list[str] | None = None
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


async def put_item(call: Call) -> Response:
    """Write an item."""
    given = await call.json(_Put)
    ttl: Any = DEFAULT if given.ttl is None else given.ttl * 60
    await call.store.aput(_labels(given.namespace), given.key, given.value, ttl=ttl, search_fields=given.index)
    return no_content()


async def get_item(call: Call) -> Response:
    """Read an item; null if there is none."""
    key = call.text("key")
    if not key:
        raise InvalidInput("the argument key is missing")
    labels = _labels((call.text("namespace") or "").split("."))
    refresh = call.flag("refresh_ttl") if call.text("refresh_ttl") is not None else None
    if refresh:
        call.access.require("write")
    entry = await call.store.aget(labels, key, refresh=refresh)
    return answer(None if entry is None else _item(entry))


async def delete_item(call: Call) -> Response:
    """Delete an item, if it is there."""
    given = await call.json(_Delete)
    await call.store.adelete(_labels(given.namespace), given.key)
    return no_content()


async def search_items(call: Call) -> Response:
    """Find items."""
    given = await call.json(_Search)
    if given.refresh_ttl:
        call.access.require("write")
    limit = min(given.limit, call.service.limits.page)
    prefix = _labels(given.namespace_prefix)
    hits = await call.store.asearch(
        prefix, query=given.query or None, filter=given.filter, limit=limit, offset=given.offset
    )
    if given.refresh_ttl:
        expiring = [ops.Refresh(hit.namespace, hit.key) for hit in hits if hit.expires_at is not None]
        if expiring:
            await call.store.aexecute(expiring)
    return answer({"items": [_item(hit) for hit in hits]})


async def list_namespaces(call: Call) -> Response:
    """List namespaces."""
    given = await call.json(_Namespaces)
    found = await call.store.anamespaces(
        prefix=None if given.prefix is None else _labels(given.prefix),
        suffix=None if given.suffix is None else _labels(given.suffix),
        max_depth=given.max_depth,
        limit=min(given.limit, call.service.limits.page),
        offset=given.offset,
    )
    return answer({"namespaces": found})


async def ok(_call: Call) -> Response:
    """Answer that the server runs."""
    return answer({"ok": True})


#: The routes: path, and for each method the handler and the right that it needs.
ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    "/ok": {"GET": (ok, None)},
    "/store/items": {"PUT": (put_item, "write"), "GET": (get_item, "read"), "DELETE": (delete_item, "write")},
    "/store/items/search": {"POST": (search_items, "read")},
    "/store/namespaces": {"POST": (list_namespaces, "read")},
}


def _labels(labels: list[str]) -> tuple[str, ...]:
    for label in labels:
        if not label or "." in label:
            raise HttpError(_UNPROCESSABLE, f"a label of a namespace is not empty and has no '.': {label[:100]!r}")
    return tuple(labels)


def _item(entry: Entry) -> dict[str, Any]:
    item: dict[str, Any] = {
        "namespace": entry.namespace,
        "key": entry.key,
        "value": entry.value,
        "created_at": entry.created_at,
        "updated_at": entry.updated_at,
    }
    if isinstance(entry, Hit):
        item["score"] = entry.score
    return item
