"""The objects of a store, and what is in them.

    format                 which store this is; created once
    log/0000000042         one commit: a record
    blob/<seq>-<nonce>     contents of files, raw; a record refers to parts of them
    seg/<seq>-<seq>-<nonce>  the records of that range, merged
    floor/00000007         the list of the segments that replace the log up to a number; created once, kept for ever
    hint                   the number of the newest floor, about; the one object that is overwritten

Records and segments have the same form. The first line has a checksum of the rest. The rest is lines of JSON, which may
be compressed: a header, then one *effect* a line, which is the new state of the rows of one key: the table and the key,
a tab, the rows. Only such images of rows are stored, never commands, so that two releases of holdall cannot come to
different results.

`erase` writes new segments from the rows that are left, and deletes the old ones. Of old records it keeps the header,
so that their numbers are not free.

An object without a valid checksum is the rest of a write that was cut off. As a record it has no effects.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgspec

from ...errors import Corrupt, SchemaTooNew, shown

LAYOUT = 1
FORMAT, HINT = "format", "hint"
_COMPRESSED = 16 << 10  # bytes: smaller ones are not worth it
_PIECE = 4 << 20  # bytes of text that are decompressed at once
_TAB = b"\t"  # between key and rows: JSON text has none
_Line: TypeAlias = bytes

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Damaged(Exception):  # not an error: its meaning depends on which object it is
    """An object does not match its checksum."""


class Header(msgspec.Struct, omit_defaults=True):
    """The first line of a record or segment."""

    by: str = ""  # a nonce: which attempt wrote it
    t: int = 0  # when, in microseconds
    columns: dict[str, list[str]] = {}  # of each table, those that the rows have beside the key
    is_erased: bool = False  # its effects are in segments only: a cache that lacks them is built again


class Effect(NamedTuple):
    """The new state of the rows of one key: none, one, or several."""

    table: str
    key: Sequence[Any]
    rows: list[Any]  # the values of each


class Rows(NamedTuple):
    """Rows of several tables. Each begins with the table and the key."""

    present: list[list[Any]]
    absent: list[tuple[Any, ...]]  # tables and keys that have none


class Segment(msgspec.Struct):
    """A segment, as a floor lists it."""

    name: str
    level: int  # how often its records were merged
    size: int
    last: int  # the sequence number of its last record


class Floor(msgspec.Struct):
    """The segments that replace the log up to a sequence number."""

    number: int = 0
    upto: int = 0
    t: int = 0  # when, in microseconds
    segments: list[Segment] = []  # the oldest first
    replaced: list[str] = []  # objects that are no longer needed because of this floor, beside the log
    first: int = 1  # the first sequence number of the log that this floor replaces
    collected: int = 0  # the objects that floors up to this one replace are deleted


class Format(msgspec.Struct):
    """Which store this is."""

    layout: int
    store: str


def log_name(seq: int) -> str:
    return f"log/{seq:010d}"


def floor_name(number: int) -> str:
    return f"floor/{number:08d}"


BLOB_ID = r"\d{10}-[0-9a-f]{16}"  # a sequence number and a nonce
#: Only objects with such names are ever deleted as unused: other programs may keep theirs below the same prefix.
_BLOB = re.compile(f"blob/{BLOB_ID}")
_SEGMENT = re.compile(r"seg/\d{10}-\d{10}-[0-9a-f]{16}")


def is_blob(name: str) -> bool:
    return _BLOB.fullmatch(name) is not None


def is_segment(name: str) -> bool:
    return _SEGMENT.fullmatch(name) is not None


def segment_name(first: int, last: int) -> str:
    return f"seg/{first:010d}-{last:010d}-{make_nonce()}"


def blob_name(seq: int) -> str:
    return f"blob/{seq:010d}-{make_nonce()}"


def make_nonce() -> str:
    return secrets.token_hex(8)


def encode_struct(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value)


def decode_format(data: bytes) -> Format:
    try:
        found = msgspec.json.decode(data, type=Format)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the object 'format' of the store is not what holdall writes: {shown(data)}") from error
    if found.layout > LAYOUT:
        raise SchemaTooNew(f"the store has layout {found.layout}, newer than this holdall's {LAYOUT}: upgrade holdall")
    return found


def decode_floor(data: bytes) -> Floor:
    try:
        return msgspec.json.decode(data, type=Floor)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a floor of the store is not what holdall writes: {shown(data)}") from error


def encode_lines(header: Header, lines: Iterable[_Line]) -> bytes:
    """Return a record or segment."""
    payload = b"\n".join([msgspec.json.encode(header), *lines])
    form = b"plain"
    if len(payload) > _COMPRESSED:
        payload, form = zlib.compress(payload, 1), b"zlib"
    return b"holdall 1 %s %s\n%s" % (_start_checksum(payload).hexdigest().encode(), form, payload)


def decode_lines(data: bytes) -> tuple[Header, bytes] | None:
    """Return the header and the lines of effects of a record or segment; None if it is not a whole one."""
    try:
        [(header, first), *others] = stream_lines([data])
    except Damaged:
        return None
    return header, b"\n".join([first, *(text for _, text in others)])


def erase_record(record: bytes) -> bytes:
    """Return what stays of a record in the log when its effects are erased."""
    found = decode_lines(record)
    header = Header() if found is None else found[0]
    return encode_lines(Header(header.by, header.t, is_erased=True), [])


def is_same_commit(found: bytes, record: bytes) -> bool:
    """Whether a record that was found is this one, or what was left of it."""
    if found == record:
        return True
    theirs, ours = decode_lines(found), decode_lines(record)
    return theirs is not None and ours is not None and theirs[0].is_erased and theirs[0].by == ours[0].by


def stream_lines(parts: Iterable[bytes]) -> Iterator[tuple[Header, bytes]]:
    """Decode a record or segment that comes in parts: return its header with some whole lines of effects at a time.

    Raises `Damaged`, at the end at the latest, if it is not a whole one.
    """
    payload = iter(parts)
    first, _, rest = next(payload, b"").partition(b"\n")
    words = first.split(b" ")
    if len(words) != 4 or words[0] != b"holdall":
        raise Damaged
    if words[1] != b"1":
        raise SchemaTooNew(f"a record of the store has the form {shown(words[1])}: upgrade holdall")
    checksum = _start_checksum()
    header: Header | None = None
    held: list[bytes] = []  # the beginning of a line
    for text in _decompress(chain([rest], payload), words[3] == b"zlib", checksum.update):
        lines, newline, beginning = text.rpartition(b"\n")
        if not newline:
            held.append(text)
            continue
        whole = b"".join([*held, lines])
        held = [beginning]
        if header is None:
            line, newline, whole = whole.partition(b"\n")
            header = _decode_header(line)
        if newline:
            yield header, whole
    if checksum.hexdigest().encode() != words[2]:
        raise Damaged
    last = b"".join(held)
    yield (_decode_header(last), b"") if header is None else (header, last)


def _decompress(parts: Iterable[bytes], is_compressed: bool, pass_on: Callable[[bytes], None]) -> Iterator[bytes]:
    """Return the text of parts, in pieces that do not get too large."""
    if not is_compressed:
        for part in parts:
            pass_on(part)
            yield part
        return
    stream = zlib.decompressobj()
    try:
        for part in parts:
            pass_on(part)
            while part:
                yield stream.decompress(part, _PIECE)
                part = stream.unconsumed_tail  # noqa: PLW2901  # what is left of it
        yield stream.flush()
    except zlib.error as error:
        raise Damaged from error


def _decode_header(line: _Line) -> Header:
    try:
        return msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError as error:
        raise Damaged from error


def encode_effect(effect: Effect) -> _Line:
    key = _encode([effect.table, *map(_to_json, effect.key)])
    return key + _TAB + _encode([[*map(_to_json, row)] for row in effect.rows])


def decode_effects(text: bytes) -> list[Effect]:
    """Return the effects of lines, which are decoded together: that takes a third of the time."""
    if not text:
        return []
    found = _decode(b"[[%s]]" % text.replace(_TAB, b",").replace(b"\n", b"],["))
    if text.count(b'["') > len(found):  # a text cannot contain it, so there are bytes; or rows that begin with a text
        return [
            Effect(table, tuple(map(_from_json, key)), [[*map(_from_json, row)] for row in rows])
            for (table, *key), rows in found
        ]
    return [Effect(table, key, rows) for (table, *key), rows in found]


def decode_rows(text: bytes) -> Rows:
    """Return the rows of lines.

    Most lines have one row, without bytes. If all have, they are decoded as lists of values, which takes half the time.
    """
    if not text:
        return Rows([], [])
    lines = text.count(b"\n") + 1
    if text.count(b"]\t[[") == text.count(b'["') == lines:
        joined = text.replace(b"]\t[[", b",").replace(b"]]\n", b"],").removesuffix(b"]")
        found = _decode(b"[%s]" % joined)
        if len(found) == lines:  # otherwise a line has several rows
            return Rows(found, [])
    effects = decode_effects(text)
    return Rows(
        [[effect.table, *effect.key, *row] for effect in effects for row in effect.rows],
        [(effect.table, *effect.key) for effect in effects if not effect.rows],
    )


def merge_lines(sources: Iterable[tuple[Header, bytes]], keeps_absent: bool) -> tuple[Header, list[_Line]]:
    """Merge records or segments, the oldest first: of each key, the newest state stays.

    `keeps_absent`: also that a key has no rows, because older segments may have some.
    """
    newest: dict[bytes, _Line] = {}
    columns: dict[str, list[str]] = {}
    t = 0
    for header, text in sources:
        # Positions are by column, so all must have the same ones; older releases have the first of them.
        for table, names in header.columns.items():
            if len(names) >= len(columns.get(table, ())):
                columns[table] = names
        t = max(t, header.t)
        for line in text.split(b"\n") if text else ():
            key, _, _ = line.partition(_TAB)
            newest.pop(key, None)  # the newest last
            newest[key] = line
    kept = [line for line in newest.values() if keeps_absent or not line.endswith(b"\t[]")]
    return Header(make_nonce(), t, columns), kept


def _start_checksum(payload: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(payload, digest_size=16)


def _to_json(value: Any) -> Any:
    return [b64encode(value).decode()] if isinstance(value, bytes) else value


def _from_json(value: Any) -> Any:
    return b64decode(value[0]) if type(value) is list else value
