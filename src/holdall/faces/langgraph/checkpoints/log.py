"""The log of checkpoints: how a thread's checkpoints and writes are stored in one file that only grows.

A file of frames for each thread and checkpoint namespace. A put appends one checkpoint and the values that are new in
it; `put_writes` appends the writes of a task. Frames never refer to offsets, only to IDs, so that two processes can
append to one file at once. The kinds of frames:

    key         the key of the hashes, encrypted; only in a thread that is encrypted
    value       a value of a channel, a large part of one, or elements that were added to a list
    checkpoint  a checkpoint without its values, its metadata, and the IDs of the values of its channels
    writes      the writes of a task for a checkpoint

The ID of a value is a hash of its content, so that equal values are stored once. The value of a list is a chain: each
link has the elements that were added, and the ID of the link before it.

Every frame starts with the byte 0xFF, which is in no text. So no engine takes the file for text and indexes it.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
import zlib
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ....errors import Corrupt, InvalidInput, shown
from .messages import MessageMaker

T = TypeVar("T")
#: A value as it is stored: its bytes in msgpack, or its type and its bytes, or the ID of a large value.
Part: TypeAlias = bytes | tuple[str, bytes] | msgspec.msgpack.Ext
#: A value that was serialised, and not encrypted yet: its type and its bytes.
Typed: TypeAlias = tuple[str, bytes]
#: Where the value of a channel is: the ID of a value frame, or the only part of a small value.
Pointer: TypeAlias = bytes | tuple[Part]
Pointers: TypeAlias = dict[str, Pointer]

KEY, VALUE, CHECKPOINT, WRITES = b"K", b"V", b"C", b"W"
#: Serialised values up to this many bytes are in the checkpoint itself.
_SMALL = 64
#: Serialised values, and elements of lists, from this many bytes on are stored once in a log.
LARGE = 4096
_LARGEST_PACKED = 1 << 14
#: The ID of a checkpoint in UTF-8 has at most so many bytes: a frame has one byte for their number.
MOST_ID_BYTES = 255
_MARK = 0xFF
_LARGE_PART = 1  # the code of the Ext
_DIGEST = 16
_header = struct.Struct(">HIB")  # mark and kind, size of the payload, size of the ID
_KEY_MARK, _VALUE_MARK, _CHECKPOINT_MARK, _WRITES_MARK = (
    _MARK << 8 | kind[0] for kind in (KEY, VALUE, CHECKPOINT, WRITES)
)
#: Preset dictionaries of zlib: what checkpoints and writes usually contain, so that even short ones are compressed. The
#: key is the first byte of a payload that was compressed with one; in msgpack, no array begins with it. New frames use
#: the last dictionary. The others are only for reading, and none may ever change.
_USUAL = {
    0xC1: (
        b"langchain_core.messages.toolToolMessagetool_call_idartifactstatussuccess"
        b"__interrupt____error____resume____no_writes____pregel_tasks__root____pregel_push~__pregel_pull, agenttools"
        b"langchain_core.messages.humanHumanMessagelangchain_core.messages.aiAIMessagecontentadditional_kwargs"
        b"response_metadatatypehumanainameidtool_callsinvalid_tool_callsusage_metadatainput_tokensoutput_tokens"
        b"total_tokensmodel_validate_jsonthread_iduser_idrun_idupdateforkinputsourceloopstepparents"
        b"v\x04ts2026-01-01T00:00:00.000000+00:00channel_versions__start__messagesbranch:to:modelbranch:to:agent"
        b"versions_seen__input____start__updated_channelsmessages"
    ),
    # Parts of frames as msgpack encodes them, in the order in which frames have them; the most usual ones are last.
    0xC0: (
        b"\xabartifact\xc0\xactool_call_id\xa6status\xa7success\xbclangchain_core.messages.tool\xabToolMessage"
        b"\xa9__error__\xaa__resume__\xad__no_writes__\xae__pregel_tasks\xa8__root__\xad__interrupt__"
        b"\xa4name\xa4args\xa2id\xa4type\xa9tool_call\xacinput_tokens\xadoutput_tokens\xactotal_tokens\xaftoken_usage"
        b"\xaamodel_name\xadfinish_reason\xa4stop\xa9thread_id\xa7user_id\xa6run_id\xa6update\xa4fork\xa5tools\xa5agent"
        b"\x93\xa9__start__\x91\xc5\x81\xa8messages\x91\xc8\x05\x94\xbdlangchain_core.messages.human\xacHumanMessage\x86"
        b"\xa7content\xda\x01\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa5human\xa4name\xc0\xa2id\xc0"
        b"\xb3model_validate_json\xc0\x93\xb9~__pregel_pull, __start__\xd9$\x92\x93\x00\xa8messages\xc5\x91\xc7\x93\x01"
        b"\xafbranch:to:agent\xafbranch:to:model\x92\xa4null\xc4\x00\x93\xb5~__pregel_pull, model\xd9$\x91\x93\x00"
        b"\xa8messages\xc5\x02\x91\xc8\x02\x05\x94\xbalangchain_core.messages.ai\xa9AIMessage\x89\xa7content\xda\x01"
        b"\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa2ai\xa4name\xc0\xa2id\xc0\xaatool_calls\x90"
        b"\xb2invalid_tool_calls\x90\xaeusage_metadata\xc0\xb3model_validate_json\xb0updated_channels\x91\xa9__start__"
        b"\xc4\x1b\x83\xa6source\xa5input\xa4step\xcc\xa7parents\x80\x82\xa8messages\xc4\x10\xb0updated_channels\x92"
        b"\xafbranch:to:model\xa8messages\xc4\x1a\x83\xa6source\xa4loop\xa4step\xcd\x01\xa7parents\x80\x82\xa8messages"
        b"\xc4\x10\xafbranch:to:model\x91\x92\xa4null\xc4\x00\x85\xa1v\x04\xa2ts\xd9 2026-01-01T00:00:00.000000+00:00"
        b"\xb0channel_versions\x83\xa9__start__\xcd\x01\xa8messages\xcd\x01\xafbranch:to:model\xcd\x01\xadversions_seen\x83"
        b"\xa9__input__\x80\xa9__start__\x81\xa9__start__\xcd\x01\xa5model\x81\xafbranch:to:model\xcd\x01"
        b"\xb0updated_channels\x91\xa8messages\xc4\x1a\x83\xa6source\xa4loop\xa4step\xcd\x01\xa7parents\x80\x81\xa8messages"
        b"\xc4\x10\x94\xd9$"
    ),
}
_PACKED = tuple(bytes([first]) for first in _USUAL)
_encode = msgspec.msgpack.Encoder().encode


class Checkpoint(NamedTuple):
    """A checkpoint frame."""

    parent: str | None
    body: Part
    metadata: Part
    pointers: Pointers


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value frame: one part, or the elements that were added to a list after the link `before`."""

    channel: str
    parts: list[Part]
    before: bytes | None  # None: not a list


class Write(NamedTuple):
    """A write of a task."""

    task_path: str
    task_id: str
    number: int
    channel: str
    part: Part


_decode_link = msgspec.msgpack.Decoder(Link).decode
_decode_checkpoint = msgspec.msgpack.Decoder(Checkpoint).decode
_decode_writes = msgspec.msgpack.Decoder(tuple[str, str, list[tuple[int, str, Part]]]).decode
_decode_part = msgspec.msgpack.Decoder(Part).decode


class Codec:
    """Serialises the values of one log, encrypts them and computes their IDs.

    With an `EncryptedSerializer`, each value is encrypted together with a hash of its thread, checkpoint namespace and
    channel, so that it is refused anywhere else. The hashes of values then have a secret key.
    """

    def __init__(self, serde: SerializerProtocol, thread_id: str, checkpoint_ns: str) -> None:
        self.cipher = serde.cipher if isinstance(serde, EncryptedSerializer) else None
        self._serde = serde.serde if isinstance(serde, EncryptedSerializer) else serde
        self._owner = f"{len(thread_id)}:{thread_id}{len(checkpoint_ns)}:{checkpoint_ns}"
        self._messages = MessageMaker(partial(_deserialise, self._serde, "msgpack"))
        self.keys: list[bytes] = []

    def serialise(self, value: Any) -> Typed:
        """Serialise a value."""
        return self._serde.dumps_typed(value)

    def deserialise(self, value: Typed) -> Any:
        """Make the value again."""
        return _deserialise(self._serde, *value)

    def deserialise_all(self, values: list[Typed]) -> list[Any]:
        """Make several values again, which are elements of a list."""
        if type(self._serde) is not JsonPlusSerializer:
            return list(map(self.deserialise, values))
        made: list[Any] = [self._messages.make(data) if kind == "msgpack" else None for kind, data in values]
        for number, value in enumerate(values):
            if made[number] is None:
                made[number] = self.deserialise(value)
        return made

    def seal(self, value: Typed, channel: str) -> Part:
        """Return a serialised value as it is stored, encrypted if this thread is."""
        kind, data = value
        if self.cipher is not None:
            name, data = self.cipher.encrypt(self._binding(channel) + data)
            return f"{kind}+{name}", data
        return data if kind == "msgpack" else (kind, data)

    def unseal(self, part: Part, channel: str) -> Typed:
        """Return a stored value as `seal` was given it. `Corrupt` if it was encrypted for another thread or channel."""
        if type(part) is bytes:
            return "msgpack", part
        if type(part) is not tuple:
            raise Corrupt("a large value in a checkpoint refers to another one; restore a copy of the store")
        kind, data = part
        if self.cipher is None or not is_sealed(part):
            return kind, data
        kind, name = kind.split("+", 1)
        try:
            plain = self.cipher.decrypt(name, data)
        except Exception as error:  # each cipher has errors of its own
            raise Corrupt(
                f"an encrypted value in a checkpoint is damaged, or was encrypted with another key: {shown(error)};"
                " restore a copy of the store"
            ) from error
        if plain[:_DIGEST] != self._binding(channel):
            raise Corrupt(
                f"an encrypted value in a checkpoint does not belong to the channel {channel!r} of this thread: it was"
                " moved there from another place; restore a copy of the store"
            )
        return kind, plain[_DIGEST:]

    def hash(self, known: Container[bytes], *texts: bytes) -> bytes:
        """Return the ID of a value: one that is known, if it is so with any key."""
        ids = [_hash(key, texts) for key in self.keys or [b""]]
        return next((id for id in ids if id in known), ids[0])

    def is_hash(self, id: bytes, *texts: bytes) -> bool:
        """Whether an ID is that of a value, with any key: two processes may both have made one."""
        return any(_hash(key, texts) == id for key in self.keys)

    def make_key(self) -> bytes:
        """Make the key of the hashes, and return its frame. Without encryption there is none.

        A key that was made for another append is used: that append may have failed, or may come later.
        """
        if self.cipher is None:
            return b""
        if not self.keys:
            self.keys.append(secrets.token_bytes(32))
        return b"".join(encode_frame(KEY, b"", self.seal(("bytes", key), "")) for key in self.keys)

    def use_key(self, payload: bytes) -> None:
        """Use the key of the hashes in a stored frame."""
        if self.cipher is None:
            return
        try:
            _, key = self.unseal(_decode_part(payload), "")
        except Corrupt as error:
            if error.__cause__ is None:  # it was decrypted
                raise
            raise InvalidInput(
                f"this thread was encrypted with another key: {shown(error.__cause__)}; pass as serde= the one that it"
                " was written with"
            ) from error
        if key not in self.keys:
            self.keys.append(key)

    def _binding(self, channel: str) -> bytes:
        return hashlib.blake2b(f"{self._owner}{channel}".encode(), digest_size=_DIGEST).digest()


def is_sealed(part: Part) -> bool:
    """Whether a part is encrypted. A thread may have begun before its saver got a cipher."""
    return type(part) is tuple and "+" in part[0]


def _deserialise(serde: SerializerProtocol, kind: str, data: bytes) -> Any:
    try:
        return serde.loads_typed((kind, data))
    except NotImplementedError as error:  # LangGraph's, for a type that it does not know
        raise InvalidInput(
            f"a value of this thread has the type {kind!r}, which the serializer cannot read; pass as serde="
            " the one that it was written with"
        ) from error
    except ValueError as error:  # the base of what msgpack, JSON and UTF-8 raise
        raise Corrupt(f"a value of a thread is damaged: {error}; restore a copy of the store") from error


def _hash(key: bytes, texts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST, key=key)
    for text in texts:
        digest.update(len(text).to_bytes(8))
        digest.update(text)
    return digest.digest()


def encode_frame(kind: bytes, id: bytes, payload: Any) -> bytes:
    """Encode a frame. It is compressed, unless it has elements of a list: of the other frames few are read again."""
    data = _encode(payload)
    is_packed = payload[2] is None if kind == VALUE else kind != KEY
    if is_packed and len(data) < _LARGEST_PACKED:
        packer = zlib.compressobj(wbits=-15, zdict=_USUAL[_PACKED[-1][0]])
        packed = _PACKED[-1] + packer.compress(data) + packer.flush()
        if len(packed) < len(data):
            data = packed
    return _header.pack(_MARK << 8 | kind[0], len(data), len(id)) + id + data


def decompress_payload(data: bytes | bytearray) -> bytes | bytearray:
    """Return the payload of a frame as it was before it was compressed, if it was."""
    if not data.startswith(_PACKED):
        return data
    return zlib.decompressobj(wbits=-15, zdict=_USUAL[data[0]]).decompress(data[1:])


class LogWriter:
    """Collects the frames that one append writes. `known` has the IDs of the values that the log has already."""

    def __init__(self, codec: Codec, known: Container[bytes]) -> None:
        self.codec = codec
        self._known = known
        self._frames: list[bytes] = []
        self.added: set[bytes] = set()

    @property
    def data(self) -> bytes:
        return b"".join(self._frames)

    def add_key(self) -> None:
        """Add the key of the hashes, if this thread is encrypted."""
        self._frames.append(self.codec.make_key())

    def add_value(self, channel: str, value: Typed) -> Pointer:
        """Add the whole value of a channel, and return its pointer."""
        kind, data = value
        if len(data) <= _SMALL:
            return (self.codec.seal(value, channel),)
        id = self.codec.hash(self._known, b"value", channel.encode(), kind.encode(), data)
        self._add(id, lambda: [channel, [self.codec.seal(value, channel)], None])
        return id

    def add_elements(self, channel: str, elements: list[Typed], before: bytes) -> bytes:
        """Add a link with elements that a list got after the link `before` (b"" for the first); return its ID."""
        flat = [text for kind, data in elements for text in (kind.encode(), data)]
        id = self.codec.hash(self._known, b"list", channel.encode(), before, *flat)
        self._add(id, lambda: [channel, [self._add_part(channel, element) for element in elements], before])
        return id

    def add_checkpoint(self, id: str, checkpoint: Checkpoint) -> None:
        self._frames.append(encode_frame(CHECKPOINT, id.encode(), list(checkpoint)))

    def add_writes(self, id: str, task_path: str, task_id: str, writes: Iterable[tuple[int, str, Typed]]) -> None:
        """Add writes of a task for the checkpoint with this ID."""
        stored = [(index, channel, self._add_part(channel, value)) for index, channel, value in writes]
        self._frames.append(encode_frame(WRITES, id.encode(), [task_path, task_id, stored]))

    def _add_part(self, channel: str, value: Typed) -> Part:
        """Return a part. A large one is added as a value of its own."""
        kind, data = value
        if len(data) < LARGE:
            return self.codec.seal(value, channel)
        id = self.codec.hash(self._known, b"large", channel.encode(), kind.encode(), data)
        self._add(id, lambda: [channel, [self.codec.seal(value, channel)], None])
        return msgspec.msgpack.Ext(_LARGE_PART, id)

    def _add(self, id: bytes, make: Any) -> None:
        if id not in self._known and id not in self.added:
            self.added.add(id)
            self._frames.append(encode_frame(VALUE, id, make()))


class Log:
    """The frames of a log by their IDs. They are decoded when they are needed.

    Threads may read it while one of them extends it: what was appended counts once it is scanned.
    """

    def __init__(self, codec: Codec, content: bytes) -> None:
        self.codec = codec
        #: The size of the content in bytes.
        self.size = len(content)
        #: The ID of the newest checkpoint.
        self.latest: str | None = None
        self._content: bytes | bytearray = content
        # The offsets of frames: integers, of which the garbage collector need not know.
        self.values: dict[bytes, int] = {}
        self._checkpoints: dict[bytes, int] = {}
        self._writes: dict[bytes, list[int]] = {}
        self._key_frames: list[bytes] = []
        self._scan(content, 0)

    def begin_append(self) -> LogWriter:
        """Return a writer of what is appended next."""
        writer = LogWriter(self.codec, self.values)
        if not self._key_frames:
            writer.add_key()
        return writer

    def extend(self, more: bytes) -> None:
        """Add what was appended to the content."""
        if isinstance(self._content, bytes):  # most logs are read once, and never extended
            self._content = bytearray(self._content)
        self._content += more
        self._scan(more, self.size)
        self.size += len(more)

    def _scan(self, content: bytes, base: int) -> None:
        """Find the frames of a content that begins at an offset of the log."""
        size, start = len(content), 0
        unpack, header = _header.unpack_from, _header.size
        values, checkpoints, writes = self.values, self._checkpoints, self._writes
        is_value, is_checkpoint, is_writes = _VALUE_MARK, _CHECKPOINT_MARK, _WRITES_MARK
        latest = b"" if self.latest is None else self.latest.encode()
        try:
            while start < size:
                mark, length, id_length = unpack(content, start)
                at = start + header + id_length
                end = at + length
                if end > size:
                    raise struct.error("a frame does not end where it should")
                id = content[start + header : at]
                if mark == is_value:
                    values.setdefault(id, base + start)
                elif mark == is_checkpoint:
                    checkpoints[id] = base + start
                    if id > latest:
                        latest = id
                elif mark == is_writes:
                    writes.setdefault(id, []).append(base + start)
                elif mark == _KEY_MARK:
                    self._key_frames.append(content[start:end])
                    self.codec.use_key(content[at:end])
                elif mark >> 8 != _MARK:
                    raise struct.error("a frame does not begin where it should")
                start = end
            self.latest = latest.decode() or None
        except (struct.error, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(base + start, base + size) from error

    # Checkpoints -----------------------------------------------------------------------------------------------------

    @property
    def ids(self) -> list[str]:
        """The IDs of all checkpoints, newest first."""
        try:
            return [id.decode() for id in sorted(self._checkpoints, reverse=True)]
        except UnicodeDecodeError as error:
            raise Corrupt("the ID of a checkpoint is damaged; restore a copy of the store") from error

    def __contains__(self, id: str) -> bool:
        return id.encode() in self._checkpoints

    def __len__(self) -> int:
        return len(self._checkpoints)

    def checkpoint(self, id: str) -> Checkpoint:
        return self._checkpoint_at(self._checkpoints[id.encode()])

    def ancestors(self, id: str | None) -> Iterator[str]:
        """Yield the IDs of a checkpoint's parent, of its parent, and so on."""
        seen = {id}  # a checkpoint that was put again may be its own parent
        while id is not None and id in self:
            id = self.checkpoint(id).parent
            if id is None or id in seen or id not in self:
                return
            seen.add(id)
            yield id

    def writes(self, id: str) -> list[Write]:
        """Return the writes for a checkpoint, in the order in which LangGraph applies them.

        Of two writes of a task with the same index, the first counts. Of errors and interrupts, whose index is below
        zero, the last counts.
        """
        found: dict[tuple[str, int], Write] = {}
        for start in self._writes.get(id.encode(), ()):
            task_path, task_id, stored = self._decode_at(start, _decode_writes)
            for index, channel, part in stored:
                if index < 0 or (task_id, index) not in found:
                    found[task_id, index] = Write(task_path, task_id, index, channel, part)
        return sorted(found.values(), key=lambda write: (write.task_path, write.task_id, write.number))

    # Values ----------------------------------------------------------------------------------------------------------

    def link(self, id: bytes) -> Link:
        start = self.values.get(id)
        if start is None:
            raise _missing()
        return self._decode_at(start, _decode_link)

    def chain(self, id: bytes, *known: Container[bytes]) -> tuple[list[tuple[bytes, Link]], bytes | None]:
        """Return a link, the one before it, and so on, up to one whose ID is known; and that ID.

        In place of that ID it is b"" after the first link of a list, and None after a value that is no list.
        """
        found: list[tuple[bytes, Link]] = []
        before: bytes | None = id
        while before:
            for ids in known:
                if before in ids:
                    return found, before
            link = self.link(before)
            found.append((before, link))
            before = link.before
        return found, before

    def typed(self, channel: str, part: Part) -> Typed:
        """Return a stored part as its type and its bytes."""
        if type(part) is bytes:
            return "msgpack", part
        if type(part) is msgspec.msgpack.Ext:
            id = bytes(part.data)
            link = self.link(id)
            value = self.codec.unseal(link.parts[0], channel)
            is_checked = self.codec.cipher is not None and is_sealed(link.parts[0])
            if is_checked and not self.codec.is_hash(id, b"large", channel.encode(), value[0].encode(), value[1]):
                raise Corrupt("an encrypted value was replaced by another one; restore a copy of the store")
            return value
        return self.codec.unseal(part, channel)

    # Other logs ------------------------------------------------------------------------------------------------------

    def select(self, kept: Iterable[str]) -> bytes:
        """Return the content of a log that has only these checkpoints, their writes, and the values of both.

        Writes for a checkpoint that is not in this log yet stay.
        """
        chosen = {id.encode() for id in kept}
        frames, values = list(self._key_frames), dict[bytes, None]()
        checkpoints = [start for id, start in self._checkpoints.items() if id in chosen]
        writes = [
            start
            for id, starts in self._writes.items()
            if id in chosen or id not in self._checkpoints
            for start in starts
        ]
        for start in checkpoints:
            self._add_used(self._checkpoint_at(start).pointers, values)
        for start in writes:
            _, _, stored = self._decode_at(start, _decode_writes)
            values.update(dict.fromkeys(_large_ids(part for _, _, part in stored)))
        if values.keys() - self.values:
            raise _missing()
        frames += [self._frame(start) for start in (*(self.values[id] for id in values), *checkpoints, *writes)]
        return b"".join(frames)

    def reseal(self, target: Codec) -> bytes:
        """Return the content of a log with the same frames for another thread. Encrypted values are encrypted again."""
        if self.codec.cipher is None:
            return bytes(self._content)
        target.keys = list(self.codec.keys)

        def again(part: Part, channel: str) -> Part:
            if not is_sealed(part):
                return part
            return target.seal(self.codec.unseal(part, channel), channel)

        frames = [encode_frame(KEY, b"", target.seal(("bytes", key), "")) for key in target.keys]
        for id, start in self.values.items():
            link = self._decode_at(start, _decode_link)
            parts = [again(part, link.channel) for part in link.parts]
            frames.append(encode_frame(VALUE, id, [link.channel, parts, link.before]))
        for id, start in self._checkpoints.items():
            record = self._checkpoint_at(start)
            pointers = {
                channel: pointer if isinstance(pointer, bytes) else (again(pointer[0], channel),)
                for channel, pointer in record.pointers.items()
            }
            sealed = [record.parent, again(record.body, ""), again(record.metadata, ""), pointers]
            frames.append(encode_frame(CHECKPOINT, id, sealed))
        for id, starts in self._writes.items():
            for start in starts:
                task_path, task_id, stored = self._decode_at(start, _decode_writes)
                writes = [(index, channel, again(part, channel)) for index, channel, part in stored]
                frames.append(encode_frame(WRITES, id, [task_path, task_id, writes]))
        return b"".join(frames)

    def _add_used(self, pointers: Pointers, used: dict[bytes, None]) -> None:
        """Add the IDs of the values that a checkpoint needs. Of a list, these are the links from the first one on."""
        for pointer in pointers.values():
            id = pointer if isinstance(pointer, bytes) else None
            while id and id not in used:
                link = self.link(id)
                used.update(dict.fromkeys([id, *_large_ids(link.parts)]))
                id = link.before

    def _frame(self, start: int) -> bytes:
        _, length, id_length = _header.unpack_from(self._content, start)
        return bytes(self._content[start : start + _header.size + id_length + length])

    def _checkpoint_at(self, start: int) -> Checkpoint:
        return self._decode_at(start, _decode_checkpoint)

    def _decode_at(self, start: int, decode: Callable[[bytes | bytearray], T]) -> T:
        """Decode the payload of the frame at an offset."""
        _, length, id_length = _header.unpack_from(self._content, start)
        at = start + _header.size + id_length
        data = self._content[at : at + length]
        try:
            return decode(decompress_payload(data) if data.startswith(_PACKED) else data)
        except (zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(start, self.size) from error


def _damaged(start: int, size: int) -> Corrupt:
    return Corrupt(
        f"the log of a thread is damaged at byte {start} of {size}; delete the thread, or restore a copy of the store"
    )


def _missing() -> Corrupt:
    return Corrupt("a checkpoint names a value that its log does not have; restore a copy of the store")


def _large_ids(parts: Iterable[Part]) -> Iterator[bytes]:
    """Yield the IDs of the large values among parts."""
    for part in parts:
        if type(part) is msgspec.msgpack.Ext:
            yield bytes(part.data)
