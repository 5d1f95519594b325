"""Ops as the scripts take them, and what the scripts answer as results.

A *place* is an encoded namespace, a NUL and a key: places sort as entries do, and what is below a namespace, or in a
folder, is one range of them. A record's *head* is ten words: version, created, updated, expires, ttl (microseconds), p,
d or e for how it came to be (put, delete, expire), and of a file its size, whether it grew, its body's name; last the
model that made its vectors. What is not there is "-".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from .. import keys, ops, shapes
from ..engine import (
    Row,
    check_transfer,
    check_unblocked,
    conflict,
    item_in_the_way,
    put_entry,
    to_entry,
    to_info,
    transferred,
)
from ..errors import HoldallError
from ..ops import ABSENT, ANY, KEEP, FileInfo, Namespace, Op
from ..values import decode, ttl_microseconds

#: Contents up to this size go with their op; larger ones are sent beforehand, a chunk at a time.
INLINE = 1 << 18
CHUNK = 1 << 20
#: What the scripts know as a range of places: as ZRANGEBYLEX has it.
Range: TypeAlias = tuple[str, str]
Head: TypeAlias = list[bytes]
#: The fields of a value that are indexed, as the scripts want them.
Tokens: TypeAlias = Callable[[str], bytes]

_KINDS: dict[bytes, Any] = {b"p": "put", b"d": "delete", b"e": "expire"}


def place(namespace: Namespace, key: str) -> str:
    return f"{keys.encode(namespace)}\x00{key}"


def ranges(prefix: Namespace, recursive: bool = True) -> list[Range]:
    """Where the entries of a namespace are, and of those below it: without holdall's own, where all are asked for."""
    low, high = keys.below(keys.encode(prefix))
    if not recursive:
        return [(f"[{low}\x00", f"({low}\x01")]
    if high is None:
        return [("-", f"({keys.HIDDEN[0]}"), (f"[{keys.HIDDEN[1]}", "+")]
    return [(f"[{low}", f"({high}")]


def folder_range(namespace: Namespace, folder: str) -> Range:
    """The places of the files below a folder, whose path ends in "/"; without the signs that say how they are meant."""
    low, high = keys.in_folder(folder)
    return place(namespace, low), place(namespace, high)


# Into the scripts ----------------------------------------------------------------------------------------------------


def said(op: Op, tokens: Tokens, sent: dict[int, str]) -> list[Any]:
    """An op as `batch.lua` takes it. `sent` has the names of bodies that were sent beforehand, by their ops' ids."""
    if isinstance(op, ops.Get):
        return ["G", place(op.namespace, op.key)]
    if isinstance(op, ops.Put):
        value: Any = op.value
        size: Any
        if type(value) is ops.File:
            body = sent.get(id(op), "-")
            text, fields = value.shape, b""
            size, data = len(value.content), value.content if body == "-" else b""
        else:
            text, fields, size, body, data = value, tokens(value), "-", "-", b""
        vectors = op.vectors
        given = ("-", 0, b"") if vectors is None else (vectors.model, len(vectors.data), b"".join(vectors.data))
        where = place(op.namespace, op.key)
        return [
            *("P", where, text, _ttl(op.ttl), _expect(op.expect), op.index or "", fields, size, body, data),
            *given,
        ]
    match op:
        case ops.Delete(namespace, key, expect):
            return ["D", place(namespace, key), _expect(expect)]
        case ops.Check(namespace, key, expect):
            return ["C", place(namespace, key), _expect(expect)]
        case ops.Refresh(namespace, key):
            return ["F", place(namespace, key)]
        case ops.Backdate(namespace, key, created, updated, expires):
            return ["B", place(namespace, key), created, updated, "-" if expires is None else expires]
        case ops.Indexing(namespace, key):
            return ["I", place(namespace, key)]
        case ops.Embed(namespace, key, version, vectors):
            return ["E", place(namespace, key), version, vectors.model, len(vectors.data), b"".join(vectors.data)]
        case ops.Append(namespace, key, data, expect, ttl):
            return ["A", place(namespace, key), data, _expect(expect), _ttl(ttl), shapes.NATIVE]
        case ops.ReadRange(namespace, key, start, end):
            return ["R", place(namespace, key), start, "" if end is None else max(start, end)]
        case ops.Stat(namespace, path):
            return ["S", place(namespace, path), *folder_range(namespace, path + "/")]
        case ops.CheckPath(namespace, path):
            return ["K", *folder_range(namespace, path + "/"), *_parents(namespace, path)]
        case ops.DeleteTree(namespace, None):
            low, high = keys.below(keys.encode(namespace))
            return ["T", "p", "", low, high]
        case ops.DeleteTree(namespace, str(path)):
            return ["T", "f", place(namespace, path), *folder_range(namespace, path.rstrip("/") + "/")]
        case ops.Move(namespace, src, dst, source, ttl):
            home = namespace if source is None else source
            return [
                "M",
                *_ends(home, src, namespace, dst),
                _ttl(ttl),
                int(source is not None),
                *_parents(namespace, dst),
            ]
        case ops.Copy(namespace, src, dst):
            return ["Y", *_ends(namespace, src, namespace, dst), "k", 0, *_parents(namespace, dst)]
    raise TypeError(f"not a point op: {op!r}")


def put_words(op: ops.Put) -> tuple[Any, ...]:
    """A put of an item as `put.lua` takes it."""
    namespace = keys.encode(op.namespace)
    return namespace, op.key, op.value, _ttl(op.ttl), _expect(op.expect), op.index or ""


def _ends(home: Namespace, src: str, namespace: Namespace, dst: str) -> list[str]:
    return [
        *(place(home, src), *folder_range(home, src + "/")),
        *(place(namespace, dst), *folder_range(namespace, dst + "/")),
    ]


def _parents(namespace: Namespace, path: str) -> list[Any]:
    parents = keys.parents(path)
    return [len(parents), *(place(namespace, parent) for parent in parents)]


def _ttl(ttl: Any) -> Any:
    if ttl is KEEP:
        return "k"
    return "-" if ttl is None else ttl_microseconds(ttl)


def _expect(expect: Any) -> Any:
    return "*" if expect is ANY else "-" if expect is ABSENT else expect


# Out of them ---------------------------------------------------------------------------------------------------------


def result(op: Op, reply: Any) -> Any:
    """What a script's answer to an op means."""
    if isinstance(op, ops.Get):
        return None if reply is None else to_entry(row(keys.encode(op.namespace), op.key, *reply))
    if isinstance(op, ops.Put):
        return _put_result(op, reply)
    match op:
        case ops.Delete() | ops.Refresh() | ops.Backdate() | ops.Embed():
            return bool(reply)
        case ops.Check() | ops.CheckPath():
            return None
        case ops.Indexing():
            return None if reply is None else reply.decode()
        case ops.Append():
            return int(reply)
        case ops.Stat(path=path):
            if reply is None or isinstance(reply, bytes):
                return None if reply is None else info(path, reply)
            return FileInfo(path.rstrip("/") + "/", is_dir=True)
        case ops.Move(dst=dst) | ops.Copy(dst=dst):
            return transferred(op, info(dst, reply) if isinstance(reply, bytes) else None)
    return reply  # a content, or a count


def _put_result(op: ops.Put, reply: bytes) -> Any:
    if shapes.is_native(op.value):
        return info(op.key, reply)
    if isinstance(op.value, ops.File):
        value = op.value
        return to_entry(row(keys.encode(op.namespace), op.key, reply, value.shape.encode(), value.content))
    version, created, updated, expires, *_ = reply.split(b" ")
    ends = None if expires == b"-" else int(expires)
    text: Any = op.value
    return put_entry(op, decode(text), int(version), int(created), int(updated), ends)


def refusal(op: Op, told: list[Any]) -> HoldallError:
    """The error of an op that was refused."""
    why, *rest = told
    if why == b"conflict":
        return conflict(op, None if rest[0] == b"-" else int(rest[0]))  # type: ignore[arg-type]  # it has an expectation
    if why == b"item":
        return item_in_the_way(op)  # type: ignore[arg-type]  # an Append
    try:
        if why == b"blocked":
            assert isinstance(op, ops.CheckPath | ops.Move | ops.Copy)
            path = op.path if isinstance(op, ops.CheckPath) else op.dst
            check_unblocked(path, [_key(rest[0])])
        else:
            assert isinstance(op, ops.Move | ops.Copy)
            first, second, long, *there = (_key(found) if found else None for found in rest)
            sources = [found for found in (first, second, long) if found is not None]
            check_transfer(op, sources, [found for found in there if found is not None])
    except HoldallError as error:
        return error
    raise AssertionError(f"{op!r} was refused: {told!r}")


def parted(found: bytes) -> tuple[str, str]:
    """A place's encoded namespace and key."""
    ns, _, key = found.decode().partition("\x00")
    return ns, key


def _key(found: bytes) -> str:
    return parted(found)[1]


def row(ns: str, key: str, head: bytes, value: bytes, content: bytes | None = None) -> Row:
    version, created, updated, expires, _, _, size, appended, _, _ = head.split(b" ")
    ends = None if expires == b"-" else int(expires)
    times = int(created), int(updated), ends
    if size == b"-":
        return ns, key, value.decode(), int(version), *times, None, None, None
    return ns, key, value.decode(), int(version), *times, content, int(appended == b"1"), int(size)


def info(path: str, head: bytes) -> FileInfo:
    words = head.split(b" ")
    return to_info(path, int(words[6]), int(words[0]), int(words[1]), int(words[2]))


def version_of(head: bytes) -> int:
    return int(head[: head.index(b" ")])


def kind_of(head: bytes) -> Any:
    """How a record came to be, in a `Change`'s words."""
    return _KINDS[head.split(b" ", 6)[5]]


def model_of(head: bytes) -> int | None:
    model = head[head.rindex(b" ") + 1 :]
    return None if model == b"-" else int(model)
