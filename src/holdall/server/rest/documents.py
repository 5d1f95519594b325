"""Entries in lists, and the arguments of the REST API in paths, queries and headers.

An answer is the record that the store returns, such as an `Entry` or a `FileInfo`, or a struct beside its handler.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import msgspec

from ... import ABSENT, ANY, DEFAULT, KEEP, Entry, Hit, Lease
from ...core import face_api
from ...errors import InvalidInput, shown
from ...ops import Namespace
from ..exchange import Call, parse_moment
from ..problems import HttpError

_ETAG = re.compile(r'(?:W/)?"(\d{1,18})"')
_DURATION = re.compile(r"\d+(\.\d+)?")
#: The namespace of files that are not in another one.
FILESYSTEM = ("filesystem",)
#: Why a query is refused with `at`.
NO_QUERY = "only the present is ranked; send a filter without a query"


class Item(msgspec.Struct):
    """An entry in a list: with its value, or with the beginning of it as text. `score` is that of a search."""

    namespace: Namespace
    key: str
    version: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    value: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    preview: str | msgspec.UnsetType = msgspec.UNSET
    is_cut: bool | msgspec.UnsetType = msgspec.UNSET
    is_file: bool | msgspec.UnsetType = msgspec.UNSET
    score: float | msgspec.UnsetType | None = msgspec.UNSET
    highlights: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


def to_item(entry: Entry, preview: int | None = None) -> Item:
    """An entry for a list: whole, or with so many characters of its value."""
    item = Item(entry.namespace, entry.key, entry.version, entry.created_at, entry.updated_at, entry.expires_at)
    if isinstance(entry, Hit):
        item.score = entry.score
    if preview is None:
        item.value = entry.value
        return item
    content = entry.value.get("content") if entry.key.startswith("/") else None
    if content is not None and entry.value.get("encoding") == "base64":
        content = "(not text)"
    fields = (f"{name}: {_text(part)}" for name, part in entry.value.items())
    text = content if isinstance(content, str) else " · ".join(fields)
    item.preview, item.is_cut, item.is_file = text[:preview], len(text) > preview, content is not None
    return item


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Deleted(msgspec.Struct):
    """How much was deleted."""

    deleted: int


def etag(version: int | None) -> dict[str, str]:
    """The header that has a version."""
    return {} if version is None else {"ETag": f'"{version}"'}


def item_address(call: Call, start: str) -> tuple[Namespace, str]:
    """The namespace and the key in the path of an item."""
    *labels, key = call.segments(start)
    return tuple(labels), key


def namespace_argument(call: Call, default: Namespace = (), *, name: str = "namespace") -> Namespace:
    """A namespace in the query, in its text form."""
    text = call.text(name)
    return default if text is None else face_api.decode_namespace(text)


def refuse_past(call: Call, why: str) -> None:
    """Refuse a request that is about the past (`at`), and cannot be."""
    if call.text("at") is not None:
        raise InvalidInput(f"at= shows the past: {why}")


def expectation(call: Call) -> Any:
    """What If-Match and If-None-Match expect of an entry."""
    match, none_match = call.request.headers.get("if-match"), call.request.headers.get("if-none-match")
    if match is not None and none_match is not None:
        raise InvalidInput("send If-Match or If-None-Match, not both")
    if none_match is not None:
        if none_match.strip() != "*":
            raise InvalidInput("to write only if there is no entry, send If-None-Match: *")
        return ABSENT
    if match is None:
        return ANY
    if match.strip() == "*":
        raise InvalidInput('If-Match names a version, such as "42", not *')
    if "," in match:
        raise InvalidInput(f"If-Match names one version, not a list: {match[:100]!r}")
    found = _ETAG.fullmatch(match.strip())
    if found is None:
        raise HttpError(412, f"If-Match is not the ETag of an entry: {match[:100]!r}", title="Conflict")
    return int(found[1])


def lifetime(call: Call) -> dict[str, Any]:
    """The arguments `ttl` and `expires_at` of a put."""
    given: dict[str, Any] = {}
    ttl, expires = call.text("ttl"), call.text("expires_at")
    if ttl is not None:
        names: dict[str, Any] = {"none": None, "default": DEFAULT, "keep": KEEP}
        if ttl not in names and not _DURATION.fullmatch(ttl):
            raise InvalidInput(f"ttl is seconds, 'none', 'keep' or 'default', not {shown(ttl)}")
        given["ttl"] = names[ttl] if ttl in names else float(ttl)
    if expires is not None:
        given["expires_at"] = parse_moment("expires_at", expires)
    return given


def search_fields(call: Call) -> Any:
    """The argument `search_fields` of a put, which may be repeated; "none" for no field."""
    fields = call.texts("search_fields")
    return None if not fields else False if fields == ["none"] else fields


def lease_argument(call: Call) -> Lease | None:
    """The lease that a write must hold: the header `Holdall-Lease: NAME; token=TOKEN; namespace=NAMESPACE`."""
    text = call.request.headers.get("holdall-lease")
    if text is None:
        return None
    name, *rest = (part.strip() for part in text.split(";"))
    arguments = dict(part.partition("=")[::2] for part in rest)
    token = arguments.get("token", "")
    if not token.isascii() or not token.isdigit() or len(token) > 18:
        raise InvalidInput(f"the header Holdall-Lease is 'NAME; token=TOKEN', not {shown(text)}")
    labels = face_api.decode_namespace(name)
    if len(labels) != 1:
        raise InvalidInput(f"the header Holdall-Lease has one name, with '/' as %2F; not {shown(name)}")
    namespace = face_api.decode_namespace(arguments.get("namespace", ""))
    return face_api.held_lease(call.store, labels[0], int(token), namespace)
