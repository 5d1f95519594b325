"""The arguments and replies of the Lua scripts: ops are encoded for them, and their replies decoded into results.

The engine and the walks call it; the scripts in `lua/` have the other side of each format.

An *entry ID* is an encoded namespace, a NUL byte and a key. IDs sort as entries do. So all entries below a namespace,
or below a folder, are one range of IDs.

A record's *head* has ten fields, separated by spaces. A missing one is "-":

    version created updated expires ttl     times and durations in microseconds
    kind                                    p, d or e: the record is an entry (put), or the tombstone of a deleted or
                                            an expired one
    size appended body                      of a file: its bytes, "1" if it was appended to, the name of its body
    model                                   the embedding model of its vectors
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ... import ops
from ...engine import (
    Row,
    check_transfer,
    check_unblocked,
    conflict,
    item_exists,
    put_entry,
    to_entry,
    to_info,
    transfer_result,
)
from ...errors import Corrupt, HoldallError, shown
from ...model import file_values, keys
from ...model.values import decode, ttl_microseconds
from ...ops import ABSENT, ANY, KEEP, FileInfo, Namespace, Op, Record, Vectors

#: A larger content is sent before its op, in chunks.
MAX_INLINE_BYTES = 1 << 18
CHUNK_SIZE = 1 << 20
#: A range of entry IDs, in the form of ZRANGEBYLEX.
IdRange: TypeAlias = tuple[str, str]
#: Encodes the indexed fields of a value for the scripts.
EncodeFields: TypeAlias = Callable[[str], bytes]

_HEAD_PARTS = 10
#: The kinds of changes, by the letter of a record.
KINDS: dict[bytes, Any] = {b"p": "put", b"d": "delete", b"e": "expire"}


def make_id(namespace: Namespace, key: str) -> str:
    """Make the ID of an entry."""
    return f"{keys.encode(namespace)}\x00{key}"


def split_id(entry_id: bytes) -> tuple[str, str]:
    """Split an ID into the encoded namespace and the key."""
    ns, _, key = entry_id.decode().partition("\x00")
    return ns, key


def list_ranges(prefix: Namespace, recursive: bool = True, hides: bool = False) -> list[IdRange]:
    """List the ranges of the IDs in a namespace, and below it. The root has no range for holdall's own namespaces.

    `hides`: there is none for hidden namespaces.
    """
    low, high = keys.below(keys.encode(prefix))
    if hides and recursive:
        (begin, end), *others = list_ranges(prefix)
        hidden_low, hidden_high = keys.hidden_below(low)
        return [(begin, f"({hidden_low}"), (f"[{hidden_high}", end), *others]
    if not recursive:
        return [(f"[{low}\x00", f"({low}\x01")]
    if high is None:
        return [("-", f"({keys.RESERVED_RANGE[0]}"), (f"[{keys.RESERVED_RANGE[1]}", "+")]
    return [(f"[{low}", f"({high}")]


def ranges_after(ranges: list[IdRange], last_id: str | None) -> list[IdRange]:
    """Return what is left of ranges after an ID; all of it if that is None."""
    if last_id is None:
        return ranges
    left = [(low, high) for low, high in ranges if high == "+" or high[1:] > last_id]
    return [(f"({last_id}" if low == "-" or low[1:] <= last_id else low, high) for low, high in left]


def folder_bounds(namespace: Namespace, folder: str) -> tuple[str, str]:
    """Return the first ID in a folder, whose path ends in "/", and the first ID after it."""
    low, high = keys.in_folder(folder)
    return make_id(namespace, low), make_id(namespace, high)


# Arguments of scripts ------------------------------------------------------------------------------------------------


def encode_op(op: Op, encode_fields: EncodeFields, sent_bodies: dict[int, str]) -> list[Any]:
    """Encode an op for `batch.lua`. `sent_bodies` has the names of bodies that were sent before, by the ids of ops."""
    if isinstance(op, ops.Get):
        return ["get", make_id(op.namespace, op.key)]
    if isinstance(op, ops.Put):
        value: Any = op.value
        size: Any
        if type(value) is ops.File:
            body = sent_bodies.get(id(op), "-")
            text, fields = value.template, b""
            size, data = len(value.content), value.content if body == "-" else b""
        else:
            text, fields, size, body, data = value, encode_fields(value), "-", "-", b""
        vectors = op.vectors
        encoded = ("-", 0, b"") if vectors is None else (vectors.model, len(vectors.data), b"".join(vectors.data))
        return ["put", *encode_put(op, text), fields, size, body, data, *encoded, op.acting or ""]
    match op:
        case ops.Delete(namespace, key, expect, acting):
            return ["delete", make_id(namespace, key), _encode_expect(expect), acting or ""]
        case ops.Check(namespace, key, expect):
            return ["check", make_id(namespace, key), _encode_expect(expect)]
        case ops.Refresh(namespace, key):
            return ["refresh", make_id(namespace, key)]
        case ops.Backdate(namespace, key, created, updated, expires):
            times = ["-" if time is None else time for time in (created, updated, expires)]
            return ["backdate", make_id(namespace, key), *times]
        case ops.SetChange(namespace, key, time, kind, acting, expires):
            end = "e" if kind == "expire" else "d"
            return ["set_change", make_id(namespace, key), time, end, acting or "", "-" if expires is None else expires]
        case ops.GetSearchFields(namespace, key):
            return ["get_search_fields", make_id(namespace, key)]
        case ops.CountVectors(namespace, key):
            return ["count_vectors", make_id(namespace, key)]
        case ops.Embed(namespace, key, version, vectors):
            data = b"".join(vectors.data)
            return ["embed", make_id(namespace, key), version, vectors.model, len(vectors.data), data]
        case ops.Append(namespace, key, data, expect, ttl, acting):
            entry_id, lifetime = make_id(namespace, key), _encode_ttl(ttl)
            return ["append", entry_id, data, _encode_expect(expect), lifetime, file_values.NATIVE, acting or ""]
        case ops.ReadRange():
            return ["read", *encode_read(op)]
        case ops.Stat(namespace, path):
            return ["stat", make_id(namespace, path), *folder_bounds(namespace, path + "/")]
        case ops.CheckPath(namespace, path):
            return ["check_path", *folder_bounds(namespace, path + "/"), *_encode_parents(namespace, path)]
        case ops.DeleteTree(namespace, None):
            low, high = keys.below(keys.encode(namespace))
            return ["delete_tree", "p", "", low, high, op.acting or ""]
        case ops.DeleteTree(namespace, str(path)):
            bounds = folder_bounds(namespace, path.rstrip("/") + "/")
            return ["delete_tree", "f", make_id(namespace, path), *bounds, op.acting or ""]
        case ops.Move(namespace, src, dst, source, ttl):
            source_namespace = namespace if source is None else source
            return [
                "move",
                *_encode_paths(source_namespace, src, namespace, dst),
                _encode_ttl(ttl),
                int(source is not None),
                *_encode_parents(namespace, dst),
                op.acting or "",
            ]
        case ops.MoveSlice(namespace, src, dst, after, limit):
            low, high = folder_bounds(namespace, src + "/")
            low = low if after is None else make_id(namespace, keys.next_key(after))
            return [
                *("move_slice", make_id(namespace, src), low, high),
                *(make_id(namespace, dst), limit, op.acting or ""),
            ]
        case ops.Copy(namespace, src, dst):
            paths, parents = _encode_paths(namespace, src, namespace, dst), _encode_parents(namespace, dst)
            return ["copy", *paths, "k", 0, *parents, op.acting or ""]
    raise TypeError(f"not a point op: {op!r}")


def encode_put(op: ops.Put, text: Any) -> tuple[Any, ...]:
    """Encode the arguments of `put.lua`, which are also the first ones of a put in `batch.lua`."""
    return make_id(op.namespace, op.key), text, _encode_ttl(op.ttl), _encode_expect(op.expect), op.search_fields or ""


def encode_read(op: ops.ReadRange) -> tuple[str, int, Any]:
    """Encode the arguments of a read of a file: its ID, and the start and the end of the range."""
    return make_id(op.namespace, op.key), op.start, "" if op.end is None else max(op.start, op.end)


def _encode_paths(src_namespace: Namespace, src: str, dst_namespace: Namespace, dst: str) -> list[str]:
    return [
        *(make_id(src_namespace, src), *folder_bounds(src_namespace, src + "/")),
        *(make_id(dst_namespace, dst), *folder_bounds(dst_namespace, dst + "/")),
    ]


def _encode_parents(namespace: Namespace, path: str) -> list[Any]:
    parents = keys.parents(path)
    return [len(parents), *(make_id(namespace, parent) for parent in parents)]


def _encode_ttl(ttl: Any) -> Any:
    if ttl is KEEP:
        return "k"
    return "-" if ttl is None else ttl_microseconds(ttl)


def _encode_expect(expect: Any) -> Any:
    return "*" if expect is ANY else "-" if expect is ABSENT else expect


# Replies of scripts --------------------------------------------------------------------------------------------------


def decode_result(op: Op, reply: Any) -> Any:
    """Decode the reply to an op into the op's result."""
    if isinstance(op, ops.Get):
        return None if reply is None else to_entry(to_row(keys.encode(op.namespace), op.key, *reply))
    if isinstance(op, ops.Put):
        return _decode_put_result(op, reply)
    match op:
        case ops.Delete() | ops.Refresh() | ops.Backdate() | ops.Embed():
            return bool(reply)
        case ops.Check() | ops.CheckPath() | ops.SetChange():
            return None
        case ops.GetSearchFields():
            return None if reply is None else reply.decode()
        case ops.Append() | ops.CountVectors():
            return int(reply)
        case ops.Stat(path=path):
            if reply is None or isinstance(reply, bytes):
                return None if reply is None else to_file_info(path, reply)
            return FileInfo(path.rstrip("/") + "/", is_dir=True)
        case ops.MoveSlice():
            return None if reply is None else split_id(reply)[1]
        case ops.Move(dst=dst) | ops.Copy(dst=dst):
            return transfer_result(op, to_file_info(dst, reply) if isinstance(reply, bytes) else None)
    return reply  # the content of ReadRange, or the count of DeleteTree


def _decode_put_result(op: ops.Put, head: bytes) -> Any:
    if file_values.is_written_as_file(op.value):
        return to_file_info(op.key, head)
    if isinstance(op.value, ops.File):
        value = op.value
        return to_entry(to_row(keys.encode(op.namespace), op.key, head, value.template.encode(), value.content))
    version, created, updated, expires, *_ = head.split(b" ")
    expires_at = None if expires == b"-" else int(expires)
    text: Any = op.value
    return put_entry(op, decode(text), int(version), int(created), int(updated), expires_at)


def decode_refusal(op: Op, refusal: list[Any]) -> HoldallError:
    """Return the error of an op that a script refused."""
    reason, *details = refusal
    if reason == b"conflict":
        stored = None if details[0] == b"-" else int(details[0])
        return conflict(op, stored)  # type: ignore[arg-type]  # an op with an expectation
    if reason == b"item":
        return item_exists(op)  # type: ignore[arg-type]  # an Append
    try:
        if reason == b"blocked":
            assert isinstance(op, ops.CheckPath | ops.Move | ops.Copy)
            path = op.path if isinstance(op, ops.CheckPath) else op.dst
            check_unblocked(path, [split_id(details[0])[1]])
        else:
            assert isinstance(op, ops.Move | ops.Copy)
            first, second, too_long, *existing = (split_id(found)[1] if found else None for found in details)
            sources = [found for found in (first, second, too_long) if found is not None]
            check_transfer(op, sources, [found for found in existing if found is not None])
    except HoldallError as error:
        return error
    raise AssertionError(f"{op!r} was refused: {refusal!r}")


def _split_head(ns: str, key: str, head: bytes) -> list[bytes]:
    parts = head.split(b" ")
    if len(parts) != _HEAD_PARTS:
        raise Corrupt(f"the record of {key!r} in {keys.decode(ns)!r} is damaged: write or delete it, or restore a copy")
    return parts


def to_row(ns: str, key: str, head: bytes, value: bytes, content: bytes | None = None) -> Row:
    version, created, updated, expires, _, _, size, appended, _, _ = _split_head(ns, key, head)
    expires_at = None if expires == b"-" else int(expires)
    times = int(created), int(updated), expires_at
    if size == b"-":
        return ns, key, value.decode(), int(version), *times, None, None, None
    return ns, key, value.decode(), int(version), *times, content, int(appended == b"1"), int(size)


def to_record(reply: list[Any]) -> Record:
    """Make the record of a reply of `read_record` in `walk.lua`, or of a tombstone's head."""
    entry_id, head, value, paths, content, vectors = reply
    ns, key = split_id(entry_id)
    version, created, updated, expires, ttl, kind, size, appended, _, model = _split_head(ns, key, head)
    text: Any = None if value is None else value.decode()
    stored = None
    if vectors is not None:
        length = len(vectors[1]) // int(vectors[0])
        pieces = tuple(vectors[1][start : start + length] for start in range(0, len(vectors[1]), length))
        stored = Vectors(int(model), pieces)
    return Record(
        keys.decode(ns),
        key,
        int(version),
        KINDS[kind],
        text,
        int(created),
        int(updated),
        _parse_number(expires),
        _parse_number(ttl),
        paths.decode() if paths else None,
        _parse_number(size) if text is not None else None,
        content,
        appended == b"1",
        stored,
    )


def _parse_number(field: bytes) -> int | None:
    return None if field == b"-" else int(field)


def to_file_info(path: str, head: bytes) -> FileInfo:
    version, created, updated, _, _, _, size, *_ = head.split(b" ")
    return to_info(path, int(size), int(version), int(created), int(updated))


def parse_version(head: bytes) -> int:
    try:
        return int(head[: head.index(b" ")])
    except (ValueError, AttributeError) as error:  # None: it is lost
        raise Corrupt(f"a stored record is damaged: {shown(head)}") from error


def parse_kind(head: bytes) -> Any:
    """Return the kind of the `Change` that made a record."""
    return KINDS[head.split(b" ", 6)[5]]


def parse_size(head: bytes) -> int | None:
    """Return the size of a file, None for an item."""
    size = head.split(b" ", 7)[6]
    return None if size == b"-" else int(size)


def parse_body(head: bytes) -> bytes:
    """Return the name of a file's body."""
    return head.split(b" ", 9)[8]


def parse_model(head: bytes) -> int | None:
    """Return the embedding model of an entry's vectors."""
    model = head[head.rindex(b" ") + 1 :]
    return None if model == b"-" else int(model)
