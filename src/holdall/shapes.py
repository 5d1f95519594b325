"""Files as items, and items as files.

Frameworks keep a file as a dict: its `content` as text, as base64 or as a list of lines, with an `encoding` and two
times beside it. Put under a path, such a dict is stored as a file, bytes apart from the rest, if putting it together
again gives exactly that dict; otherwise it stays a plain item. Read as an item, any file has such a shape.

What is stored beside a file's bytes is its *shape*: the dict, with the name of its form in place of the content. The
shape of a file that was written as one is empty: its item is text or base64, with the entry's own times. A volume may
have its files as lists of lines instead, spoon_ai's form, which has no encoding.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from . import keys
from .errors import InvalidInput, shown
from .ops import File, Json
from .values import decode, encode_plain, plain_object, to_datetime

#: The shape of a file that was written as a file.
NATIVE = Json("{}")
#: The same, where a volume has its files as lists of lines.
LINES = Json('{"content":"lines of a file"}')
#: The shapes of what was written as a file.
WRITTEN = (NATIVE, LINES)
#: The fields of a file's item: what a database keeps of them is not what a filter sees.
FIELDS = frozenset({"content", "encoding", "created_at", "modified_at"})
_TIMES = ("created_at", "modified_at")


def stored(key: str, value: Any) -> Json | File:
    """What to keep of a value: a `File`, where key and value are a file's."""
    if isinstance(value, File):
        if not (keys.is_path(key) and isinstance(value.content, bytes) and is_native(value)):
            raise InvalidInput(f"not a file that can be put under {shown(key)}: {shown(value)}; see Files.write")
        return value
    plain = plain_object(value)
    if key[0] == "/" and "content" in plain and keys.is_path(key) and plain.keys() <= FIELDS:
        content = _taken_out(plain)
        if content is not None:
            form, data = content
            return File(encode_plain({**plain, "content": form}), data)
    return encode_plain(plain)


def is_native(value: Any) -> bool:
    """Whether what is put was written as a file, not put as an item that has the shape of one."""
    return isinstance(value, File) and value.shape in WRITTEN


def item(shape: str, content: bytes, created: int, updated: int, appended: bool) -> dict[str, Any]:
    """The dict that a file is when it is read as an item."""
    fields = decode(shape)
    if not fields:
        text = to_text(content)
        return {
            "content": base64.b64encode(content).decode() if text is None else text,
            "encoding": "base64" if text is None else "utf-8",
            "created_at": _iso(created),
            "modified_at": _iso(updated),
        }
    if shape == LINES:
        fields = {"content": "lines", "created_at": _iso(created), "modified_at": _iso(updated)}
    form = fields["content"]
    text = None if form == "base64" else to_text(content)
    if text is None:
        fields["content"] = base64.b64encode(content).decode()
        fields["encoding"] = "base64"
    else:
        fields["content"] = text.split("\n") if form == "lines" else text
    if appended and "modified_at" in fields:
        fields["modified_at"] = _iso(updated)
    return fields


def to_text(content: bytes) -> str | None:
    """A file's text; None where it is binary."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _taken_out(plain: dict[str, Any]) -> tuple[str, bytes] | None:
    """The form and the bytes of a dict's content, if nothing is lost that way."""
    content, encoding = plain["content"], plain.get("encoding", "utf-8")
    if encoding not in ("utf-8", "base64") or not all(isinstance(plain.get(time, ""), str) for time in _TIMES):
        return None
    try:
        if isinstance(content, str) and encoding == "base64":
            data = base64.b64decode(content, validate=True)
            return ("base64", data) if base64.b64encode(data).decode() == content else None
        if isinstance(content, str):
            return "text", content.encode()
        if isinstance(content, list) and content and encoding == "utf-8" and all(map(_is_line, content)):
            return "lines", "\n".join(content).encode()
    except (binascii.Error, ValueError):  # not base64, or a lone surrogate
        pass
    return None


def _is_line(line: Any) -> bool:
    return isinstance(line, str) and "\n" not in line


def _iso(microseconds: int) -> str:
    return to_datetime(microseconds).isoformat()
