"""Names: where an entry lies in the folder of a `disk:` store, and which entry a file there is.

    notes/todo.md                the file "/notes/todo.md" of the volume that lies in the folder itself
    @users/@alice/cv.txt         the file "/cv.txt" of ("users", "alice")
    @users/@alice/@likes.json    the item "likes" there

So a namespace is a folder of folders with an "@", and what begins with none belongs to the volume that they end in. A
name that cannot stand as it is has escapes, which give it back exactly:

    %2F        a character that no file system takes, or that means something here, by its code
    ab%+/%+cd  one name, too long for the file system, in two
    ab%~       the same as "ab", whose place is taken: by a folder, where this is a file, or the other way round

Names that others gave stand for themselves, whatever they look like, unless they are just what we would have written.
`.git` is git's, and no place for files of a store, nor are they files of it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .. import keys
from ..errors import InvalidInput
from ..ops import Namespace

#: The folder of the catalogue. It and git's are no part of the store, at whatever depth.
OWN = ".holdall"
_FOREIGN = re.compile(r"\.(git|holdall)", re.IGNORECASE)
_SPECIAL = re.compile(r"[\x00-\x1f\x7f/]|%(?=[0-9A-F]{2}|[+~])")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")
_MORE, _OTHER, _OTHERS = "%+", "%~", re.compile("(?<=.)(%~)+$")
_ITEM = ".json"
_LONGEST, _PIECE = 255, 240  # bytes of one name; and of a part of one that is longer


class Place(NamedTuple):
    """Which entry a file is."""

    namespace: Namespace
    key: str
    is_file: bool  # of a volume; else an item


def is_foreign(name: str) -> bool:
    """Whether a file or folder of this name is none of ours."""
    return _FOREIGN.fullmatch(name) is not None


def names_of(namespace: Namespace, key: str, is_file: bool, volume: Namespace) -> list[str]:
    """The names, one below the other, at which an entry lies; each may be too long for a file system."""
    names = [] if namespace == volume else ["@" + _escape(label) for label in namespace]
    if not is_file:
        return [*names, "@" + _escape(key) + _ITEM]
    first, *further = (_escape_foreign(name) for name in key[1:].split("/"))
    return [*names, "%40" + first[1:] if first[0] == "@" else first, *further]


def other(name: str) -> str:
    """The same name, where its place is taken."""
    return name + _OTHER


def cut(name: str) -> str:
    """A name as the file system takes it: a path of several, where it is too long."""
    data = name.encode()
    if len(data) <= _LONGEST:
        return name
    pieces = [""]
    size = 0
    for character in name:
        size += len(character.encode())
        if size > _PIECE:
            pieces.append("")
            size = len(character.encode())
        pieces[-1] += character
    return f"{_MORE}/{_MORE}".join(pieces)


def place_of(path: str, volume: Namespace) -> Place | None:
    """Which entry lies at a path in the folder; None where none can."""
    names = path.replace(f"{_MORE}/{_MORE}", "").split("/")
    names = [_OTHERS.sub("", name) for name in names]
    labels: list[str] = []
    for name in names[:-1]:
        if name[0] != "@":
            break
        labels.append(_unescape(name[1:]))
    rest = names[len(labels) :]
    is_item = len(rest) == 1 and rest[0][0] == "@" and rest[0].endswith(_ITEM)
    if is_item:
        key = _unescape(rest[0][1 : -len(_ITEM)])
    else:
        rest[0] = "@" + rest[0][3:] if rest[0].startswith("%40") else rest[0]
        key = "/" + "/".join(map(_unescape_foreign, rest))
    try:
        namespace = keys.check_namespace(tuple(labels)) if labels else volume
        keys.check_key(key)
    except InvalidInput:
        return None
    return Place(namespace, key, not is_item) if is_item or keys.is_path(key) else None


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text) if _SPECIAL.search(text) else text


def _unescape(name: str) -> str:
    """What was escaped; a name that we would not have made so stands for itself."""
    if "%" not in name:
        return name
    text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)
    return text if _escape(text) == name else name


def _escape_foreign(name: str) -> str:
    return "%2E" + name[1:] if is_foreign(name) else _escape(name)


def _unescape_foreign(name: str) -> str:
    own = "." + name[3:]
    if name.startswith("%2E") and is_foreign(own):
        return own
    text = _unescape(name)
    return name if "/" in text else text
