"""How batches travel between the remote engine and the server: MessagePack, in which a value is its JSON text.

Both sides know the ops of a batch, so a result carries only what the op lacks. Errors travel as the members of a
problem document (RFC 9457), on every route of the server.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Union

import msgspec

from . import errors, ops
from .errors import AmbiguousMatch, Conflict, HoldallError, InvalidInput, InvalidValue, shown
from .model import file_values
from .model.values import decode, encode_plain, to_datetime, to_microseconds
from .ops import Change, Entry, FileInfo, Hit, Op, Page, RecordPage, Stats

#: The media type of a batch and of its reply.
MEDIA_TYPE = "application/vnd.holdall.batch+msgpack"
#: The most entries of one page that the server sends.
MOST_IN_PAGE = 1000
#: For how many seconds the server keeps the reply of a write, in case it has to be sent again.
REPLY_TTL = 600.0

OPS: tuple[type[Op], ...] = tuple(
    kind
    for kind in vars(ops).values()
    if isinstance(kind, type) and issubclass(kind, Op) and kind not in (Op, ops.PointOp)
)


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """Where the server keeps the reply of a write: a client has one slot for each write that it makes at a time.

    `number` is that of the write in its slot. `expect` is the version of the reply that the slot has now, or None.
    `age` is how many seconds ago the write was sent for the first time; 0 if this is the first time.
    """

    client: str
    slot: int
    number: int
    expect: int | None = None
    age: float = 0.0


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A batch for the server."""

    ops: list[Union[OPS]]  # type: ignore[valid-type]  # noqa: UP007  # made of a tuple
    slot: Slot | None = None


class Reply(msgspec.Struct, array_like=True):
    """The results of a batch. `version` is that of the reply that the slot has now."""

    results: list[Any]
    version: int | None = None


_encoder = msgspec.msgpack.Encoder()
_batch_decoder = msgspec.msgpack.Decoder(Batch)
_reply_decoder = msgspec.msgpack.Decoder(Reply)


def encode(message: Batch | Reply) -> bytes:
    """Encode a batch or a reply."""
    return _encoder.encode(message)


def checksum(batch: Sequence[Op]) -> int:
    """A number of the ops of a batch, by which the server knows whether a write that is sent again is the same."""
    return zlib.crc32(_encoder.encode(batch))


def decode_batch(body: bytes) -> Batch:
    """Decode a batch; `InvalidInput` if it is none."""
    try:
        return _batch_decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"not a batch: {shown(str(error), 200)}") from None


def decode_reply(body: bytes) -> Reply:
    """Decode the reply to a batch."""
    return _reply_decoder.decode(body)


# Results -------------------------------------------------------------------------------------------------------------


def encode_result(op: Op, result: Any) -> Any:
    """Encode the result of an op."""
    if result is None or type(result) in (bool, int, bytes):
        return result
    if type(result) is Entry:
        times = _times(result)
        return times if type(op) is ops.Put else [encode_plain(result.value), *times]
    if type(result) is FileInfo:
        return _info(result)
    if isinstance(result, Page):
        return [[_row(one) for one in result], result.next]
    if isinstance(result, RecordPage | ops.Forgotten | ops.Scrubbed | ops.HistoryReach):
        return result
    if isinstance(result, ops.OldEntry):
        assert isinstance(op, ops.GetVersion)
        entry = result.entry
        row = [op.namespace, entry.key, encode_plain(entry.value), *_times(entry)]  # as the client names it
        return [row, result.file, result.search_fields, result.ttl]
    if isinstance(result, Stats):
        return msgspec.to_builtins(result)
    if isinstance(result, str | list | tuple):  # search fields; namespaces
        return result
    raise TypeError(f"not a result: {result!r}")


def decode_result(op: Op, sent: Any) -> Any:
    """Decode what `encode_result` returned."""
    if sent is None or type(sent) in (bool, int, bytes):
        return sent
    if isinstance(op, ops.Get):
        return Entry(op.namespace, op.key, decode(sent[0]), *_from_times(sent[1:]))
    if isinstance(op, ops.Put):
        if file_values.is_written_as_file(op.value):
            return _to_info(sent)
        version, created, updated, expires = sent
        value: Any = op.value
        if isinstance(value, ops.File):
            item = file_values.to_item(value.template, value.content, created, updated, False)
        else:
            item = decode(value)
        return Entry(op.namespace, op.key, item, *_from_times((version, created, updated, expires)))
    if isinstance(op, ops.Stat | ops.Move | ops.Copy):
        return _to_info(sent)
    if isinstance(op, ops.ReadStats):
        return msgspec.convert(sent, Stats)
    if isinstance(op, ops.Namespaces):
        return [tuple(namespace) for namespace in sent]
    if isinstance(op, ops.Search):
        return Page([_to_hit(row) for row in sent[0]], sent[1])
    if isinstance(op, ops.Scan):
        return Page([_to_entry(row) for row in sent[0]], sent[1])
    if isinstance(op, ops.Unembedded):
        return Page([(_to_entry(row), fields) for row, fields in sent[0]], sent[1])
    if isinstance(op, ops.Changes):
        return Page([Change(row[0], tuple(row[1]), *row[2:]) for row in sent[0]], sent[1])
    if isinstance(op, ops.Children):
        return Page(sent[0] if op.bare else [_to_info(row) for row in sent[0]], sent[1])
    if isinstance(op, ops.GetVersion):
        file = None if sent[1] is None else msgspec.convert(sent[1], ops.File)
        return ops.OldEntry(_to_entry(sent[0]), file, sent[2], sent[3])
    if isinstance(op, ops.ListVersions):
        return msgspec.convert(sent, list[list[ops.OldVersion]])
    if isinstance(op, ops.SetHistory):
        return msgspec.convert(sent, ops.HistoryReach)
    if isinstance(op, ops.ListPast):
        return Page(msgspec.convert(sent[0], list[ops.OldHead]), sent[1])
    if isinstance(op, ops.Records | ops.ChangedRecords):
        return msgspec.convert(sent, RecordPage)
    if isinstance(op, ops.Forget):
        return msgspec.convert(sent, ops.Forgotten)
    if isinstance(op, ops.Scrub):
        return msgspec.convert(sent, ops.Scrubbed)
    if isinstance(op, ops.Grep):
        return Page([tuple(row) for row in sent[0]], sent[1])
    if isinstance(op, ops.IndexTexts):
        return tuple(sent)
    return sent


def _row(one: Any) -> Any:
    if type(one) is Hit:
        return [one.namespace, one.key, encode_plain(one.value), *_times(one), one.score]
    if type(one) is Entry:
        return [one.namespace, one.key, encode_plain(one.value), *_times(one)]
    if type(one) is Change:
        return [one.version, one.namespace, one.key, one.kind, one.cursor, one.author, one.reason]
    if type(one) is FileInfo:
        return _info(one)
    if type(one) is tuple and type(one[0]) is Entry:
        return [_row(one[0]), one[1]]
    return one


def _times(entry: Entry) -> list[int | None]:
    return [entry.version, _us(entry.created_at), _us(entry.updated_at), _us(entry.expires_at)]


def _from_times(sent: Sequence[Any]) -> tuple[int, datetime, datetime, datetime | None]:
    version, created, updated, expires = sent
    return version, to_datetime(created), to_datetime(updated), None if expires is None else to_datetime(expires)


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else to_microseconds(moment)


def _to_entry(row: Sequence[Any]) -> Entry:
    return Entry(tuple(row[0]), row[1], decode(row[2]), *_from_times(row[3:7]))


def _to_hit(row: Sequence[Any]) -> Hit:
    return Hit(tuple(row[0]), row[1], decode(row[2]), *_from_times(row[3:7]), row[7])


def _info(info: FileInfo) -> list[Any]:
    return [info.path, info.is_dir, info.size, info.version, _us(info.created_at), _us(info.modified_at)]


def _to_info(sent: Sequence[Any]) -> FileInfo:
    path, is_dir, size, version, created, modified = sent
    times = [None if moment is None else to_datetime(moment) for moment in (created, modified)]
    return FileInfo(path, is_dir, size, version, *times)


# Replies that are kept -----------------------------------------------------------------------------------------------


def to_record(op: ops.Remember, batch: Sequence[Op], results: Sequence[Any]) -> ops.Put:
    """Make the put that `Remember` stands for: the results of the writes before it, without those of reads."""
    kept = [
        None if type(one) in ops.READS else encode_result(one, done) for one, done in zip(batch, results, strict=False)
    ]
    packed = base64.b64encode(_encoder.encode(kept)).decode()
    value: Any = encode_plain({"number": op.number, "checksum": op.checksum, "results": packed})
    return ops.Put(op.namespace, op.key, value, op.ttl, op.expect)


def from_record(value: dict[str, Any]) -> list[Any]:
    """Return the encoded results that `to_record` has kept."""
    results: list[Any] = msgspec.msgpack.decode(base64.b64decode(value["results"]))
    return results


# Errors --------------------------------------------------------------------------------------------------------------


def to_problem(error: HoldallError) -> dict[str, Any]:
    """Return the members of a problem document that describe an error, except its status."""
    problem: dict[str, Any] = {"title": type(error).__name__, "detail": str(error)}
    if isinstance(error, Conflict):
        problem |= {
            "op": error.op,
            "namespace": error.namespace,
            "key": error.key,
            "expected": error.expected,
            "actual": error.actual,
        }
    elif isinstance(error, InvalidValue):
        problem["path"] = error.path
    elif isinstance(error, AmbiguousMatch):
        problem["count"] = error.count
    return problem


def from_problem(problem: Any) -> HoldallError:
    """Make the error that a problem document describes."""
    if not isinstance(problem, dict):
        problem = {}
    detail = str(problem.get("detail", ""))
    kind = getattr(errors, str(problem.get("title")), None)
    if not (isinstance(kind, type) and issubclass(kind, HoldallError)):
        return HoldallError(detail or f"the server reported {shown(problem)}")
    if issubclass(kind, Conflict):
        op, key, expected, actual = (problem.get(name) for name in ("op", "key", "expected", "actual"))
        return kind(op, tuple(problem.get("namespace") or ()), key, expected, actual)
    if issubclass(kind, InvalidValue):
        return kind(detail, str(problem.get("path", "")))
    if issubclass(kind, AmbiguousMatch):
        return kind(detail, int(problem.get("count", 0)))
    return kind(detail)
