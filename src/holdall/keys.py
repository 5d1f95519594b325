"""Namespaces, keys and paths: what they may be, and the one text under which every engine orders them.

A namespace is encoded label by label, each closed by U+0001, so that

- the order of the encoded texts, code point by code point, is the order of the tuples;
- everything below a namespace is one range of texts, and `("a",)` never reaches `("ab",)`;
- `("a/b",)`, `("a.b",)` and `("a", "b")` are three different texts.

U+0001 and U+0002 inside a label become U+0002 and the next code point, which keeps all three. UTF-8 sorts as code
points do, so a database that compares bytes agrees with Python.

A path is a key that begins with "/"; below a folder is one range of keys.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from .errors import InvalidInput, shown
from .ops import Namespace

#: Ours, in every root: users cannot name it.
RESERVED = "__holdall__"

# Together they must fit the smallest index row of the databases we run on (PostgreSQL: 2,704 bytes).
MAX_NAMESPACE_BYTES = 1024
MAX_KEY_BYTES = 1536

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_NOT_NORMAL = re.compile(r"[\x00-\x1f\x7f-\x9f]|/$|/\.{0,2}/|/\.{1,2}$")
_END = "\x01"
_ESCAPE = "\x02"
_SPECIAL = re.compile("[\x01\x02]")
_ESCAPED = re.compile("\x02([\x02\x03])")


class Reserved(tuple[str, ...]):
    """A place of holdall's own for a namespace: what it is for, and the namespace. `Store` knows where that is."""

    __slots__ = ()


class Home(tuple[str, ...]):
    """A namespace as engines see it, whichever scope it is used in."""

    __slots__ = ()


def check_count(name: str, value: Any, least: int = 0, most: int = 2**31) -> None:
    """A number that a caller gave, or `InvalidInput`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} is an int, not {type(value).__name__} {shown(value)}")
    if not least <= value < most:
        raise InvalidInput(f"{name} is at least {least} and less than 2**{most.bit_length() - 1}, not {shown(value)}")


def check_flag(name: str, value: Any, *, or_none: bool = False) -> None:
    """True or False, as a caller gave it, or `InvalidInput`: the text "false" would be taken for true."""
    if not (isinstance(value, bool) or (or_none and value is None)):
        raise InvalidInput(f"{name} is {'True, False or None' if or_none else 'True or False'}, not {shown(value)}")


def check_function(name: str, value: Any) -> None:
    """A function that a caller gave, or None where it was left out; else `InvalidInput`."""
    if not (value is None or callable(value)):
        raise InvalidInput(f"{name} is a function, not {type(value).__name__} {shown(value)}")


def check_namespace(namespace: Any, *, empty: bool = False) -> Namespace:
    """The namespace as a tuple, or `InvalidInput`. `()` passes only where it means something: prefixes and scopes."""
    if type(namespace) is not tuple:
        if isinstance(namespace, str) or not isinstance(namespace, (tuple, list)):
            hint = f"; did you mean ({shown(namespace)},)?" if isinstance(namespace, str) else ""
            raise InvalidInput(
                f"a namespace is a tuple of labels, not {type(namespace).__name__} {shown(namespace)}{hint}"
            )
        namespace = tuple(namespace)
    if not namespace:
        if empty:
            return ()
        raise InvalidInput("a namespace needs at least one label, e.g. ('memories',); got ()")
    try:
        _check_labels(namespace)
    except TypeError:  # an unhashable label
        _check_labels.__wrapped__(namespace)
    return namespace  # type: ignore[no-any-return]  # checked label by label


def check_pattern(labels: Any, name: str) -> Namespace:
    """A prefix or suffix to match namespaces with: labels, of which `"*"` stands for any one."""
    if labels is None:
        return ()
    try:
        return check_namespace(labels, empty=True)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None


@lru_cache(maxsize=4096)
def _check_labels(namespace: Namespace) -> None:
    for label in namespace:
        if not isinstance(label, str):
            raise InvalidInput(
                f"a namespace label is a str, not {type(label).__name__} {shown(label)}, in {shown(namespace)}"
            )
        if not label:
            raise InvalidInput(f"a namespace label cannot be empty, in {shown(namespace)}")
        if label == RESERVED:
            raise InvalidInput(
                f"the label {RESERVED!r} is reserved for holdall itself; choose another, in {shown(namespace)}"
            )
        _check_text(label, "a namespace label")
    size = len(encode(namespace).encode())
    if size > MAX_NAMESPACE_BYTES:
        raise InvalidInput(
            f"a namespace has at most {MAX_NAMESPACE_BYTES} bytes in all; this has {size}: {shown(namespace)}"
        )


def check_key(key: Any) -> str:
    """The key as a plain str, or `InvalidInput`."""
    if type(key) is str and 0 < len(key) <= MAX_KEY_BYTES and key.isascii() and "\x00" not in key:
        return key  # the usual case
    if type(key) is not str and isinstance(key, str):  # an Enum's member, say: it must not be found as anything else
        key = str.__str__(key)
    if not isinstance(key, str):
        raise InvalidInput(f"a key is a str, not {type(key).__name__} {shown(key)}")
    if not key:
        raise InvalidInput("a key cannot be empty")
    _check_text(key, "a key")
    if len(key) * 4 > MAX_KEY_BYTES and (size := len(key.encode())) > MAX_KEY_BYTES:
        raise InvalidInput(f"a key has at most {MAX_KEY_BYTES} bytes; this has {size}: {shown(key)}")
    return key


def _check_text(text: str, what: str) -> None:
    if "\x00" in text:
        raise InvalidInput(f"{what} cannot contain NUL: {shown(text)}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{what} cannot contain lone surrogates: {shown(text)}") from None


@lru_cache(maxsize=4096)
def encode(namespace: Namespace) -> str:
    """The text that a namespace is ordered and stored under; `()` is the empty text."""
    return "".join(_escape(label) + _END for label in namespace)


@lru_cache(maxsize=4096)
def decode(text: str) -> Namespace:
    """The namespace of a text that `encode` made."""
    return tuple(_unescape(label) for label in text.split(_END)[:-1])


# Paths ---------------------------------------------------------------------------------------------------------------


def check_path(path: Any) -> str:
    """A file's path, normalised, or `InvalidInput`."""
    if type(path) is str and len(path) * 4 <= MAX_KEY_BYTES and path.isascii() and path and is_path(path):
        return path  # the usual case
    folder = check_folder(path)
    if folder == "/" or path.endswith(("/", "/.")):
        raise InvalidInput(f"{shown(path)} names a folder; a file's path has a name at its end")
    return folder[:-1]


def check_folder(path: Any) -> str:
    """A folder's path, normalised, with a "/" at its end; a file's may be one too."""
    return _folder(path) if type(path) is str else _folder.__wrapped__(path)


@lru_cache(maxsize=4096)  # a path is checked where it is passed in, and again with its op
def _folder(path: Any) -> str:
    if not isinstance(path, str):
        raise InvalidInput(f"a path is a str, not {type(path).__name__} {shown(path)}")
    if not path.startswith("/"):
        hint = f"; did you mean {shown('/' + path)}?" if path else ""
        raise InvalidInput(f"a path is absolute and begins with '/'; got {shown(path)}{hint}")
    if _CONTROL.search(path):
        raise InvalidInput(f"a path cannot contain control characters: {shown(path)}")
    labels = [label for label in path.split("/") if label not in ("", ".")]
    if ".." in labels:
        raise InvalidInput(f"a path cannot contain '..': {shown(path)}")
    if labels:
        check_key("/" + "/".join(labels))
    return "/" + "".join(label + "/" for label in labels)


def paths(src: str, dst: str) -> tuple[str, str]:
    """From where to where a file or folder goes, normalised, or `InvalidInput`."""
    begin, end = check_folder(src), check_folder(dst)
    for folder, path in ((begin, src), (end, dst)):
        if folder == "/":
            raise InvalidInput(f"the root of a volume cannot be moved, copied or replaced: {path!r}")
    if end.startswith(begin) and end != begin:
        raise InvalidInput(f"{dst!r} is inside {src!r}; a folder cannot be moved or copied into itself")
    return begin[:-1], end[:-1]


def is_path(key: str) -> bool:
    """Whether a key is a file's path, as `check_path` gives it."""
    return key[0] == "/" and _NOT_NORMAL.search(key) is None and len(key) > 1


def parents(path: str) -> list[str]:
    """The folders that a path is in, without their "/" at the end and without the root: none of them can be a file."""
    return [path[:place] for place, character in enumerate(path) if character == "/" and place > 0]


def next_key(after: str) -> str:
    """The least key after this one; after a folder, whose path ends in "/", the least that is not in it."""
    return in_folder(after)[1] if after.endswith("/") else after + "\x01"


def in_folder(folder: str) -> tuple[str, str]:
    """The range `[low, high)` of the keys below a folder, whose path ends in "/"."""
    return folder, folder[:-1] + "0"  # which comes after "/"


#: The encoded namespaces of holdall's own, `[low, high)`: hidden from walks.
HIDDEN = (RESERVED + _END, RESERVED + _ESCAPE)


def below(encoded: str) -> tuple[str, str | None]:
    """The range `[low, high)` of the encoded namespaces that are this one or below it; high is None for no bound."""
    return (encoded, encoded[:-1] + _ESCAPE) if encoded else ("", None)


def after(encoded: str, depth: int | None = None) -> str:
    """The least text above an encoded namespace that can be another's; with `depth`, one whose first labels differ."""
    end = -1
    for _ in range(depth or 0):
        end = encoded.find(_END, end + 1)
        if end < 0:
            break
    if end < 0:
        return encoded + _END  # as if it had an empty label more, which none has
    return encoded[:end] + _ESCAPE


def matches(namespace: Namespace, prefix: Namespace, suffix: Namespace) -> bool:
    """Whether a namespace begins and ends as told, where `"*"` stands for any one label."""
    return (
        len(namespace) >= max(len(prefix), len(suffix))
        and all(want in ("*", label) for want, label in zip(prefix, namespace, strict=False))
        and all(want in ("*", label) for want, label in zip(reversed(suffix), reversed(namespace), strict=False))
    )


def literal_prefix(pattern: Namespace) -> Namespace:
    """The labels of a prefix pattern before its first `"*"`: they bound where to look."""
    return pattern[: pattern.index("*")] if "*" in pattern else pattern


def _escape(label: str) -> str:
    return _SPECIAL.sub(lambda found: _ESCAPE + chr(ord(found[0]) + 1), label) if _SPECIAL.search(label) else label


def _unescape(label: str) -> str:
    return _ESCAPED.sub(lambda found: chr(ord(found[1]) - 1), label) if _ESCAPE in label else label
