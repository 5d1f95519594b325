"""File names: at which path of a `disk:` folder an entry is stored, and which entry a path stands for.

    notes/todo.md                the file "/notes/todo.md" of the main volume, which is stored in the folder itself
    @users/@alice/cv.txt         the file "/cv.txt" of the volume ("users", "alice")
    @users/@alice/@likes.json    the item "likes" of the namespace ("users", "alice")

Each label of a namespace is a folder whose name starts with "@". A name that a file system does not accept is escaped.
The escapes can be reversed exactly:

    %2F        a control character, "/", or a "%" that would look like an escape, by its code
    ab%+/%+cd  the name "abcd", if it is too long for the file system, in two parts
    ab%~       the name "ab", if that path is taken: by a folder where this is a file, or the other way round

A name that another program chose is used as it is, unless it is exactly a name that this module would build. `.git`
and `.holdall` are not part of the store at any depth. An entry with such a name is stored under an escaped name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...errors import InvalidInput
from ...model import keys
from ...ops import Namespace

#: The folder of the catalogue, the lock and the staged files.
HOLDALL_FOLDER = ".holdall"
_EXCLUDED = re.compile(r"\.(git|holdall)", re.IGNORECASE)
_SPECIAL = re.compile(r"[\x00-\x1f\x7f/]|%(?=[0-9A-F]{2}|[+~])")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")
_CONTINUED = "%+"
_ALTERNATIVE, _ALTERNATIVES = "%~", re.compile("(?<=.)(%~)+$")
_ITEM_SUFFIX = ".json"
_MAX_NAME_BYTES, _PART_BYTES = 255, 240


class EntryName(NamedTuple):
    """The entry that a path stands for."""

    namespace: Namespace
    key: str
    is_file: bool  # a file of a volume; else an item


def is_excluded(name: str) -> bool:
    """Whether a file or folder of this name is never part of the store."""
    return _EXCLUDED.fullmatch(name) is not None


def build_names(namespace: Namespace, key: str, is_file: bool, volume: Namespace) -> list[str]:
    """Return the names on the path of an entry, outermost first. Some may be too long: see `split_long_name`."""
    names = [] if namespace == volume else ["@" + _escape(label) for label in namespace]
    if not is_file:
        return [*names, "@" + _escape(key) + _ITEM_SUFFIX]
    first, *further = (_escape_path_name(name) for name in key[1:].split("/"))
    return [*names, "%40" + first[1:] if first[0] == "@" else first, *further]


def build_alternative(name: str) -> str:
    """Return another name that stands for the same entry, for when a name is taken."""
    return name + _ALTERNATIVE


def split_long_name(name: str) -> str:
    """Return a name that the file system accepts; if it is too long, as a path of several names."""
    data = name.encode()
    if len(data) <= _MAX_NAME_BYTES:
        return name
    parts = [""]
    size = 0
    for character in name:
        size += len(character.encode())
        if size > _PART_BYTES:
            parts.append("")
            size = len(character.encode())
        parts[-1] += character
    return f"{_CONTINUED}/{_CONTINUED}".join(parts)


def parse_path(path: str, volume: Namespace) -> EntryName | None:
    """Return the entry that a path stands for; None if it cannot be that of an entry."""
    names = path.replace(f"{_CONTINUED}/{_CONTINUED}", "").split("/")
    names = [_ALTERNATIVES.sub("", name) for name in names]
    labels: list[str] = []
    for name in names[:-1]:
        if name[0] != "@":
            break
        labels.append(_unescape(name[1:]))
    rest = names[len(labels) :]
    is_item = len(rest) == 1 and rest[0][0] == "@" and rest[0].endswith(_ITEM_SUFFIX)
    if is_item:
        key = _unescape(rest[0][1 : -len(_ITEM_SUFFIX)])
    else:
        rest[0] = "@" + rest[0][3:] if rest[0].startswith("%40") else rest[0]
        key = "/" + "/".join(map(_unescape_path_name, rest))
    try:
        namespace = keys.check_namespace(tuple(labels)) if labels else volume
        keys.check_key(key)
    except InvalidInput:
        return None
    return EntryName(namespace, key, not is_item) if is_item or keys.is_path(key) else None


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text) if _SPECIAL.search(text) else text


def _unescape(name: str) -> str:
    """Reverse `_escape`. A name that `_escape` never returns is used as it is."""
    if "%" not in name:
        return name
    text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)
    return text if _escape(text) == name else name


def _escape_path_name(name: str) -> str:
    return "%2E" + name[1:] if is_excluded(name) else _escape(name)


def _unescape_path_name(name: str) -> str:
    excluded = "." + name[3:]
    if name.startswith("%2E") and is_excluded(excluded):
        return excluded
    text = _unescape(name)
    return name if "/" in text else text
