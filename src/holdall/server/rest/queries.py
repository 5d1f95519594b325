"""Search, counts, namespaces, scans, and what a token may do."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response

from ...core import face_api
from ...errors import InvalidInput, shown
from ...ops import Namespace
from ..exchange import FLAG, NUMBER, TEXT, Call, Handler, Limits, answer, takes
from .documents import NO_QUERY, Item, namespace_argument, refuse_past, to_item

_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Search(msgspec.Struct, forbid_unknown_fields=True):
    """What to search for; the arguments of `Store.search`."""

    namespace: list[str] = []
    query: str | None = None
    filter: dict[str, Any] | None = None
    mode: Literal["lexical", "semantic", "hybrid"] | None = None
    limit: _Count = 10
    offset: _Count = 0
    cursor: str | None = None
    recursive: bool = True
    rest: bool = False
    exact: bool = False
    neighbours: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    preview: _Count | None = None
    highlight: bool = False


class Count(msgspec.Struct, forbid_unknown_fields=True):
    """What to count."""

    namespace: list[str] = []
    filter: dict[str, Any] | None = None
    recursive: bool = True


class Found(msgspec.Struct):
    """Entries, the best first; `next` is the cursor of the page that follows, or null."""

    items: list[Item]
    next: str | None
    seconds: float


@takes(at=TEXT)
async def search(call: Call) -> Response:
    """Find entries."""
    given = await call.json(Search)
    if given.query:
        refuse_past(call, NO_QUERY)
    began = time.perf_counter()
    page = await call.store.asearch(
        tuple(given.namespace),
        query=given.query or None,
        filter=given.filter,
        mode=given.mode,
        limit=min(given.limit, call.service.limits.page),
        offset=given.offset,
        cursor=given.cursor,
        recursive=given.recursive,
        rest=given.rest,
        exact=given.exact,
        neighbours=given.neighbours,
    )
    took = time.perf_counter() - began
    items = [to_item(hit, given.preview) for hit in page]
    if given.highlight and given.query:
        for item, hit in zip(items, page, strict=True):
            item.highlights = _highlights(given.query, hit.value)
    return answer(Found(items, page.next, round(took, 6)))


_MOST_HIGHLIGHTS = 5  # fields of an entry
_MOST_SEARCHED = 1 << 16  # characters of a field
_CONTEXT = 60  # characters before the first word
_EXCERPT = 240


def _highlights(query: str, value: Any) -> list[dict[str, Any]]:
    """The fields in which words of the query are: an excerpt in parts, of which each is a match or not."""
    found: list[dict[str, Any]] = []
    for path, text in _texts("", value):
        spans = face_api.find_words(query, text[:_MOST_SEARCHED])
        if spans:
            found.append({"path": path, "parts": _cut(text, spans)})
            if len(found) == _MOST_HIGHLIGHTS:
                break
    return found


def _texts(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(f"{path}.{name}" if path else name, item)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(f"{path}[{number}]", item)


def _cut(text: str, spans: list[tuple[int, int]]) -> list[dict[str, Any]]:
    at = max(0, spans[0][0] - _CONTEXT)
    end = at + _EXCERPT
    parts: list[dict[str, Any]] = []
    for start, stop in spans:
        if start >= end:
            break
        parts += [{"text": text[at:start], "match": False}, {"text": text[start:stop], "match": True}]
        at = stop
    parts.append({"text": text[at:end], "match": False})
    return [part for part in parts if part["text"]]


class Counted(msgspec.Struct):
    """How many entries there are."""

    count: int


@takes(at=TEXT)
async def count(call: Call) -> Response:
    """Count entries."""
    given = await call.json(Count)
    total = await call.store.acount(tuple(given.namespace), filter=given.filter, recursive=given.recursive)
    return answer(Counted(total))


class ListedNamespace(msgspec.Struct):
    """A namespace; how many entries are in it, and with those below it."""

    namespace: Namespace
    entries: int | msgspec.UnsetType = msgspec.UNSET
    total: int | msgspec.UnsetType = msgspec.UNSET


class NamespaceList(msgspec.Struct):
    """Namespaces."""

    namespaces: list[ListedNamespace]


@takes(prefix=TEXT, suffix=TEXT, max_depth=NUMBER, limit=NUMBER, offset=NUMBER, counts=FLAG, at=TEXT)
async def list_namespaces(call: Call) -> Response:
    """List namespaces; with `counts`, how many entries each has, itself and below."""
    prefix = _pattern(call, "prefix")
    limit = call.number("limit", 100, call.service.limits.page)
    depth = call.text("max_depth")
    found: list[Namespace] = await call.store.anamespaces(
        prefix=prefix,
        suffix=_pattern(call, "suffix"),
        max_depth=None if depth is None else call.number("max_depth", 0),
        limit=limit,
        offset=call.number("offset", 0),
    )
    if not call.flag("counts"):
        return answer(NamespaceList([ListedNamespace(namespace) for namespace in found]))
    listed = []
    for namespace in found:
        own = await call.store.acount(namespace, recursive=False)
        listed.append(ListedNamespace(namespace, own, await call.store.acount(namespace)))
    return answer(NamespaceList(listed))


class ItemPage(msgspec.Struct):
    """Entries; `next` is the argument `after` of the page that follows, or null."""

    items: list[Item]
    next: str | None


@takes(namespace=TEXT, limit=NUMBER, after=TEXT, preview=NUMBER, at=TEXT)
async def scan(call: Call) -> Response:
    """List the entries in a namespace and below it, in key order, a page at a time."""
    after, limit = call.text("after"), call.number("limit", 100, call.service.limits.page)
    face_api.check_count("limit", limit, least=1)
    mark = None if after is None else _read_mark(after)
    scanned = face_api.scan_page(call.store, namespace_argument(call), mark, limit)
    page = await face_api.arun(call.store, scanned)
    following = None if page.next is None else _write_mark(page[-1].namespace, page[-1].key)
    preview = None if call.text("preview") is None else call.number("preview", 0)
    return answer(ItemPage([to_item(entry, preview) for entry in page], following))


class Features(msgspec.Struct):
    """What the store can do. `history_since` is the earliest moment that can be read; null without history."""

    embeds: bool
    full_text: bool
    ranks: bool
    history: bool
    history_seconds: float | None
    history_since: datetime | None


class Description(msgspec.Struct):
    """The token of a request, and the store."""

    holdall: str
    token: str
    label: str
    scope: Namespace
    allow: tuple[str, ...]
    expires_at: datetime | None
    features: Features
    limits: Limits


async def describe(call: Call) -> Response:
    """Describe the token, and what the store can do."""
    options, capabilities = face_api.options_of(call.store), face_api.capabilities_of(call.store)
    token = call.access.token
    reach = await face_api.arun(call.store, face_api.read_history_setting(call.store))
    features = Features(
        embeds=options.embedding is not None,
        full_text=options.full_text,
        ranks=capabilities.ranks,
        history=capabilities.keeps_history,
        history_seconds=None if reach is None else reach.keep,
        history_since=None if reach is None else datetime.fromtimestamp(reach.since / 1_000_000, UTC),
    )
    return answer(
        Description(
            holdall=face_api.VERSION,
            token=token.id,
            label=token.label,
            scope=token.scope,
            allow=token.allow,
            expires_at=token.expires_at,
            features=features,
            limits=call.service.limits,
        )
    )


def _pattern(call: Call, name: str) -> Namespace | None:
    text = call.text(name)
    return None if text is None else face_api.decode_namespace(text)


def _write_mark(namespace: Namespace, key: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((namespace, key))).decode()


def _read_mark(text: str) -> tuple[Namespace, str]:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=tuple[tuple[str, ...], str])
    except (ValueError, msgspec.MsgspecError):
        raise InvalidInput(f"after= is the 'next' of an earlier page, not {shown(text)}") from None


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    "/v1/search": {"POST": (search, "read")},
    "/v1/count": {"POST": (count, "read")},
    "/v1/namespaces": {"GET": (list_namespaces, "read")},
    "/v1/scan": {"GET": (scan, "read")},
    "/v1/me": {"GET": (describe, "")},
}
