"""LangGraph's checkpoints on any engine: `HoldallSaver` is a `BaseCheckpointSaver`, sync and async in one object.

    graph = builder.compile(checkpointer=HoldallSaver("sqlite:///agent.db"), store=HoldallStore("sqlite:///agent.db"))

The checkpoints of a thread are in a namespace of the store that other searches leave out:

    (".threads",)             an item for each thread: its last step, metadata and message
    (".threads", thread_id)   an item `generation`, and a file for each checkpoint namespace (`checkpoint_log`)

A put appends to the file, whatever its size. What refers to values that are in the file already is only written while
the `generation` is unchanged: whatever removes values from a file, or deletes it, changes that item too.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias
from urllib.parse import quote, unquote

try:
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        CheckpointMetadata,
        CheckpointTuple,
        get_serializable_checkpoint_metadata,
    )
    from langgraph.checkpoint.base import Checkpoint as LangGraphCheckpoint
    from langgraph.checkpoint.serde.base import SerializerProtocol
except ModuleNotFoundError as missing:
    from ...errors import MissingExtra

    raise MissingExtra(
        f"LangGraph's checkpointer needs the package {missing.name!r}: pip install 'holdall[langgraph]'",
        name=missing.name,
    ) from missing

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from ... import ABSENT, Entry, FileInfo, Store, ops
from ...core import face_api
from ...core.face_api import StoreProgram, Work, async_method, sync_method
from ...errors import AlreadyExists, Conflict, InvalidInput, shown
from ...ops import Namespace, PointOp, Ttl
from ..base import Face
from .checkpoint_log import Checkpoint, Codec, Link, Log, LogWriter, Part, Pointers
from .conn_strings import open_from
from .grown_lists import StoredList, copy_element, make_element

_GENERATION = "generation"
_MAIN, _SUB, _LOG = "/main", "/sub/", "/log"
#: How many bytes of logs a saver remembers in all, about.
_MOST_REMEMBERED = 64 << 20
_ELEMENT_SIZE = 1000  # what a remembered element of a list takes, about
#: How many lists of a channel are remembered: forks of a thread have different ones.
_MOST_LISTS = 3
_PREVIEW = 200  # characters
#: Logs from this size on are parsed in a thread, not in the event loop.
_LARGE_LOG = 1 << 17


class _Address(NamedTuple):
    """A log: its thread, and its checkpoint namespace."""

    thread_id: str
    checkpoint_ns: str

    @property
    def path(self) -> str:
        if not self.checkpoint_ns:
            return _MAIN + _LOG
        return _SUB + quote(self.checkpoint_ns, safe=":|") + _LOG


def _checkpoint_ns_of(path: str) -> str:
    """Return the checkpoint namespace of a log."""
    return unquote(path.removeprefix(_SUB).removesuffix(_LOG)) if path.startswith(_SUB) else ""


class _Known:
    """What a saver remembers of a log: its content up to some size, and the lists that were last read or written."""

    def __init__(self, log: Log, generation: Entry | None) -> None:
        self.log = log
        self.generation = None if generation is None else generation.version
        self.lists: dict[str, list[StoredList]] = {}  # of each channel the last ones, the newest first
        self.copies: dict[bytes, tuple[list[type], list[Any]]] = {}  # of the elements of links that were read

    @property
    def weight(self) -> int:
        """About how many bytes this takes."""
        return self.log.size + _ELEMENT_SIZE * sum(len(stored) for lists in self.lists.values() for stored in lists)

    def add_lists(self, lists: Mapping[str, StoredList]) -> None:
        for channel, stored in lists.items():
            others = (each for each in self.lists.get(channel, ()) if each.last_link != stored.last_link)
            self.lists[channel] = [stored, *others][:_MOST_LISTS]

    def extend(self, offset: int, more: bytes) -> None:
        """Add what was appended at an offset, unless something before it is missing here."""
        if offset == self.log.size:
            self.log.extend(more)


class _Loader:
    """Makes LangGraph's tuples from a log. An element that several checkpoints share is deserialised once."""

    def __init__(self, address: _Address, log: Log) -> None:
        self._address = address
        self._log = log
        self._values: dict[bytes, Any] = {}
        self._elements: dict[bytes, list[Any]] = {}

    @property
    def size(self) -> int:
        """How many bytes the log has."""
        return self._log.size

    def load(self, id: str) -> CheckpointTuple:
        """Return a checkpoint."""
        log, record = self._log, self._log.checkpoint(id)
        checkpoint = self.body(record, id)
        checkpoint["channel_values"] = {
            channel: self.value(channel, pointer) for channel, pointer in record.pointers.items()
        }
        return CheckpointTuple(
            config=_config(self._address, id),
            checkpoint=checkpoint,
            metadata=self.read(record.metadata, ""),
            parent_config=None if record.parent is None else _config(self._address, record.parent),
            pending_writes=[
                (write.task_id, write.channel, self.read(write.part, write.channel)) for write in log.writes(id)
            ],
        )

    def body(self, record: Checkpoint, id: str) -> Any:
        """Return a checkpoint without its values."""
        return {"id": id, **self.read(record.body, "")}

    def metadata(self, id: str) -> Any:
        return self.read(self._log.checkpoint(id).metadata, "")

    def read(self, part: Part, channel: str) -> Any:
        return self._log.codec.deserialise(self._log.typed(channel, part))

    def value(self, channel: str, pointer: bytes | list[Part]) -> Any:
        if isinstance(pointer, list):
            return self.read(pointer[0], channel)
        link = self._log.link(pointer)
        if link.before is not None:
            return [
                element for id, each in self._log.chain(pointer, link) for element in self.elements(channel, id, each)
            ]
        if pointer not in self._values:
            self._values[pointer] = self.read(link.parts[0], channel)
        return self._values[pointer]

    def elements(self, channel: str, id: bytes, link: Link) -> list[Any]:
        """Return the elements of a link."""
        if id not in self._elements:
            self._elements[id] = [self.read(part, channel) for part in link.parts]
        return self._elements[id]


class _KnownLoader(_Loader):
    """Makes elements that were read before from copies, and remembers the lists that it reads."""

    def __init__(self, address: _Address, known: _Known) -> None:
        super().__init__(address, known.log)
        self._known = known

    def value(self, channel: str, pointer: bytes | list[Part]) -> Any:
        if isinstance(pointer, list):
            return self.read(pointer[0], channel)
        link = self._log.link(pointer)
        if link.before is None:
            return self.read(link.parts[0], channel)
        value: list[Any] = []
        stored = StoredList()
        deserialise, known = self._log.codec.deserialise, self._known
        for id, each in self._log.chain(pointer, link):
            if id in known.copies:
                types, copies = known.copies[id]
                value += [make_element(kind, copy, deserialise) for kind, copy in zip(types, copies, strict=True)]
            else:
                typed = [self._log.typed(channel, part) for part in each.parts]
                elements = list(map(deserialise, typed))
                value += elements
                types = list(map(type, elements))
                copies = [copy_element(element, one) for element, one in zip(elements, typed, strict=True)]
                known.copies[id] = types, copies
            stored.add(id, types, copies)
        known.add_lists({channel: stored})
        return value


def _config(address: _Address, id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": address.thread_id,
            "checkpoint_ns": address.checkpoint_ns,
            "checkpoint_id": id,
        }
    }


#: Chooses the checkpoints to keep, of all of a log, the newest first.
_Choose: TypeAlias = Callable[[_Loader, list[str]], list[str]]


class HoldallSaver(Face, BaseCheckpointSaver[Any]):
    """LangGraph's checkpointer on a `holdall.Store`.

    `namespace` is where the threads are; its last label gets a "." before it, so that searches leave them out. `ttl` is
    how long a thread is kept after its last use, in seconds. `serde` is LangGraph's serializer.
    """

    def __init__(
        self,
        store_or_url: Any = None,
        *,
        serde: SerializerProtocol | None = None,
        namespace: Namespace = ("threads",),
        ttl: Ttl = None,
    ) -> None:
        BaseCheckpointSaver.__init__(self, serde=serde)
        labels = face_api.check_namespace(namespace)
        #: The namespace of the threads.
        self.namespace: Namespace = (*labels[:-1], "." + labels[-1].removeprefix("."))
        #: The `holdall.Store` that this face runs on.
        self.store: Store = self._open(store_or_url)
        self._ttl = ttl
        self._known: OrderedDict[_Address, _Known] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        pipeline: bool = False,  # noqa: ARG003  # PostgresSaver has it; ignored
        serde: SerializerProtocol | None = None,
        pool_config: Mapping[str, Any] | None = None,
        namespace: Namespace = ("threads",),
        ttl: Ttl = None,
    ) -> Self:
        """Open a saver as LangGraph's own savers are opened: for a `with` block, or an `async with` block."""
        store = open_from(conn_string, pool_config)
        try:
            saver = cls(store, serde=serde, namespace=namespace, ttl=ttl)
        except BaseException:
            store.close()
            raise
        saver._owned_store = store
        return saver

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store!r}>"

    def setup(self) -> None:
        """Connect, create and migrate now, rather than on first use."""
        self.store.setup()

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ARG002  # LangGraph's signature
        """Return the version after `current`. A thread that LangGraph's own savers began continues with their form."""
        if current is None:
            return 1
        if isinstance(current, str):
            number = int(current.split(".")[0]) + 1
            return f"{number:032}.{random.random():016}"
        return current + 1

    # Reading ---------------------------------------------------------------------------------------------------------

    def _get_tuple(self, config: RunnableConfig) -> StoreProgram[CheckpointTuple | None]:
        """Read a checkpoint, or the latest of a thread; None if there is none."""
        address = _address_of(config)
        known = yield from self._read(address)
        id = _checkpoint_id(config) or known.log.latest
        if id is None or id not in known.log:
            return None
        return (yield from self._load(_KnownLoader(address, known), id))

    get_tuple = sync_method(_get_tuple)
    aget_tuple = async_method(_get_tuple)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first: of a thread, or of all threads if `config` is None.

        The tuples share the elements of lists, such as messages, that they have in common: copy one before you change
        it.
        """
        wanted = _Wanted(config, filter, before, limit)
        for address, log in face_api.pages(self, self._log_pages(config)):
            yield from wanted.select(address, log)
            if wanted.limit == 0:
                return

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, as an async iterator."""
        wanted = _Wanted(config, filter, before, limit)
        async for address, log in face_api.apages(self, self._log_pages(config)):
            for found in wanted.select(address, log):
                yield found
            if wanted.limit == 0:
                return

    def _log_pages(
        self, config: RunnableConfig | None
    ) -> Callable[[Any], StoreProgram[tuple[list[tuple[_Address, Log]], Any]]]:
        """Return a program that reads the logs of a page of threads."""

        def page(cursor: Any) -> StoreProgram[tuple[list[tuple[_Address, Log]], Any]]:
            if config is not None:
                thread_ids, following = [_thread_id(config)], None
            else:
                found = yield from face_api.search(self.store, self.namespace, limit=20, cursor=cursor, recursive=False)
                thread_ids, following = [hit.key for hit in found], found.next
            checkpoint_ns = None if config is None else config["configurable"].get("checkpoint_ns")
            logs: list[tuple[_Address, Log]] = []
            for thread_id in thread_ids:
                if checkpoint_ns is not None:
                    addresses = [_Address(thread_id, checkpoint_ns)]
                else:
                    addresses = yield from self._addresses(thread_id)
                for address in addresses:
                    logs.append((address, (yield from self._read(address)).log))
            return logs, following

        return page

    def _addresses(self, thread_id: str) -> StoreProgram[list[_Address]]:
        """Return the logs of a thread."""
        files = self.store.files(self._home(thread_id))
        infos: list[FileInfo] = yield from face_api.glob(files, "**" + _LOG)
        return [_Address(thread_id, _checkpoint_ns_of(info.path)) for info in infos]

    def _read(self, address: _Address) -> StoreProgram[_Known]:
        """Read a log, or what was appended to it since it was last read."""
        home, known = self._home(address.thread_id), self._recall(address)
        start = 0 if known is None else known.log.size
        while True:
            *_, generation, content = yield [
                *self._refreshes(address),
                ops.Get(home, _GENERATION),
                ops.ReadRange(home, address.path, start),
            ]
            version = None if generation is None else generation.version
            if known is not None and (content is None or known.generation != version):
                self._forget(address)
                known, start = None, 0
                continue
            if known is None:
                known = _Known((yield from self._parse(address, content or b"")), generation)
                self._remember(address, known)
            elif content:
                with self._lock:
                    known.extend(start, content)
            return known

    def _load(self, loader: _Loader, id: str) -> StoreProgram[CheckpointTuple]:
        """Load a checkpoint. Async, a large one is loaded in a thread."""
        if loader.size < _LARGE_LOG:
            return loader.load(id)
        found: CheckpointTuple = yield Work(loader.load, (id,))
        return found

    def _parse(self, address: _Address, content: bytes) -> StoreProgram[Log]:
        codec = Codec(self.serde, *address)
        if len(content) < _LARGE_LOG:
            return Log(codec, content)
        return (yield Work(Log, (codec, content)))

    def _refreshes(self, address: _Address) -> list[PointOp]:
        return []

    # Writing ---------------------------------------------------------------------------------------------------------

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: LangGraphCheckpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> StoreProgram[RunnableConfig]:
        """Store a checkpoint, after the one that `config` names. Returns the config of the new one."""
        address, parent = _address_of(config), _checkpoint_id(config)
        home = self._home(address.thread_id)
        details: Any = get_serializable_checkpoint_metadata(config, metadata)
        for tries in itertools.count(1):
            known = self._recall(address)
            if known is None or (parent is not None and parent not in known.log):
                known = yield from self._read(address)
                if parent is not None and parent in known.log:
                    yield from self._load(_KnownLoader(address, known), parent)
            codec, writer = known.log.codec, LogWriter(known.log.codec, known.log.values)
            if not known.log.has_key:
                writer.add_key()
            pointers, lists = self._add_values(address, known, writer, checkpoint, parent, new_versions)
            body = {name: value for name, value in checkpoint.items() if name not in ("channel_values", "id")}
            sealed = (codec.seal(codec.serialise(part), "") for part in (body, details))
            writer.add_checkpoint(checkpoint["id"], Checkpoint(parent, *sealed, pointers))
            data = writer.data
            batch: list[PointOp] = [
                ops.Put(home, _GENERATION, {}, self._ttl, ABSENT, False)
                if known.generation is None
                else ops.Check(home, _GENERATION, known.generation),
                ops.Append(home, address.path, data, ttl=self._ttl),
            ]
            if known.generation is None or not address.checkpoint_ns:
                batch.append(self._summarise(address, known, checkpoint, details))
            try:
                made, offset, *_ = yield batch
            except Conflict as conflict:
                self._forget(address)
                yield from face_api.before_retry(conflict, tries)
                continue
            with self._lock:
                if known.generation is None:
                    known.generation = made.version
                known.extend(offset, data)
                known.add_lists(lists)
            self._remember(address, known)
            return _config(address, checkpoint["id"])
        raise AssertionError("unreachable")

    put = sync_method(_put)
    aput = async_method(_put)

    def _add_values(
        self,
        address: _Address,
        known: _Known,
        writer: LogWriter,
        checkpoint: LangGraphCheckpoint,
        parent: str | None,
        new_versions: ChannelVersions,
    ) -> tuple[Pointers, dict[str, StoredList]]:
        """Add the values that a log does not have; return the pointers to all, and the lists as they are now stored."""
        pointers: Pointers = {}
        lists: dict[str, StoredList] = {}
        serialise = writer.codec.serialise
        for channel, value in checkpoint["channel_values"].items():
            if type(value) is list and value:
                stored = _extend(known.lists.get(channel, []), channel, value, writer)
                pointers[channel], lists[channel] = stored.last_link, stored
            else:
                pointers[channel] = writer.add_value(channel, serialise(value))
        # Channels that have not changed since the parent, and whose values LangGraph did not pass.
        versions = checkpoint["channel_versions"]
        others = [channel for channel in versions if channel not in pointers and channel not in new_versions]
        if others and parent is not None and parent in known.log:
            record = known.log.checkpoint(parent)
            before = _Loader(address, known.log).body(record, parent)["channel_versions"]
            for channel in others:
                if channel in record.pointers and before.get(channel) == versions[channel]:
                    pointers[channel] = record.pointers[channel]
        return pointers, lists

    def _summarise(
        self, address: _Address, known: _Known, checkpoint: LangGraphCheckpoint, metadata: dict[str, Any]
    ) -> ops.Put:
        """Return the put of the item that lists a thread."""
        value = {
            "checkpoints": len(known.log) + (checkpoint["id"] not in known.log),
            "checkpoint_id": checkpoint["id"],
            "metadata": {name: item for name, item in metadata.items() if _is_json(item)},
            "preview": None if known.log.codec.cipher else _preview(checkpoint["channel_values"]),
        }
        return ops.Put(self.namespace, address.thread_id, value, self._ttl, search_fields=False)

    def _put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> StoreProgram[None]:
        """Store the writes of a task for the checkpoint that `config` names."""
        address, id = _address_of(config), _checkpoint_id(config)
        if id is None:
            raise InvalidInput("put_writes needs a checkpoint_id in the config")
        home = self._home(address.thread_id)
        for tries in itertools.count(1):
            known = self._recall(address)
            if known is None:
                known = yield from self._read(address)
            codec, writer = known.log.codec, LogWriter(known.log.codec, known.log.values)
            if not known.log.has_key:
                writer.add_key()
            typed = [
                (WRITES_IDX_MAP.get(channel, index), channel, codec.serialise(value))
                for index, (channel, value) in enumerate(writes)
            ]
            writer.add_writes(id, task_path, task_id, typed)
            guard = [] if known.generation is None else [ops.Check(home, _GENERATION, known.generation)]
            data = writer.data
            try:
                *_, offset = yield [*guard, ops.Append(home, address.path, data, ttl=self._ttl)]
            except Conflict as conflict:
                self._forget(address)
                yield from face_api.before_retry(conflict, tries)
                continue
            with self._lock:
                known.extend(offset, data)
            return

    put_writes = sync_method(_put_writes)
    aput_writes = async_method(_put_writes)

    # Deleting --------------------------------------------------------------------------------------------------------

    def _delete_thread(self, thread_id: str) -> StoreProgram[None]:
        """Delete a thread with all its checkpoints and writes."""
        thread_id = _check_thread_id(thread_id)
        yield [ops.DeleteTree(self._home(thread_id)), ops.Delete(self.namespace, thread_id)]
        self._forget_thread(thread_id)

    delete_thread = sync_method(_delete_thread)
    adelete_thread = async_method(_delete_thread)

    def _delete_for_runs(self, run_ids: Sequence[str]) -> StoreProgram[None]:
        """Delete the checkpoints of runs, and their writes, in whatever threads they are."""
        gone = set(run_ids)
        if not gone:
            return
        cursor = None
        while True:
            page = yield from face_api.search(self.store, self.namespace, limit=100, cursor=cursor, recursive=False)
            for hit in page:
                yield from self._keep(
                    hit.key,
                    lambda loader, ids: [id for id in ids if loader.metadata(id).get("run_id") not in gone],
                )
            cursor = page.next
            if cursor is None:
                return

    delete_for_runs = sync_method(_delete_for_runs)
    adelete_for_runs = async_method(_delete_for_runs)

    def _prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> StoreProgram[None]:
        """Delete the checkpoints of threads: all but the latest of each namespace, or all with the strategy "delete".

        Checkpoints that a kept one needs for its delta channels stay, with their writes.
        """
        if strategy not in ("keep_latest", "delete", "delete_all"):
            raise InvalidInput(f"strategy is 'keep_latest' or 'delete', not {shown(strategy)}")
        for thread_id in thread_ids:
            if strategy == "keep_latest":
                yield from self._keep(_check_thread_id(thread_id), lambda loader, ids: ids[:1])
            else:
                yield from self._delete_thread(thread_id)

    prune = sync_method(_prune)
    aprune = async_method(_prune)

    def _keep(self, thread_id: str, choose: _Choose) -> StoreProgram[None]:
        """Rewrite the logs of a thread with the checkpoints that are chosen, of all newest first."""
        for address in (yield from self._addresses(thread_id)):
            yield from self._rewrite(address, choose)

    def _rewrite(self, address: _Address, choose: _Choose) -> StoreProgram[None]:
        home = self._home(address.thread_id)
        for tries in itertools.count(1):
            generation, info, content = yield [
                ops.Get(home, _GENERATION),
                ops.Stat(home, address.path),
                ops.ReadRange(home, address.path, 0),
            ]
            if content is None:
                return
            log = yield from self._parse(address, content)
            loader = _Loader(address, log)
            ids = log.ids
            kept = _with_delta_ancestors(loader, log, choose(loader, ids))
            if len(kept) == len(ids):
                return
            changed: list[PointOp] = [
                ops.Put(home, address.path, face_api.new_file(log.select(kept)), self._ttl, info.version)
                if kept
                else ops.Delete(home, address.path, info.version)
            ]
            if generation is not None:
                changed.append(ops.Put(home, _GENERATION, generation.value, self._ttl, generation, False))
            try:
                yield changed
            except Conflict as conflict:
                yield from face_api.before_retry(conflict, tries)
                continue
            self._forget(address)
            return

    def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> StoreProgram[None]:
        """Copy a thread with all its checkpoints and writes; the target must be a new thread."""
        source, target = _check_thread_id(source_thread_id), _check_thread_id(target_thread_id)
        addresses = yield from self._addresses(source)
        [listed] = yield [ops.Get(self.namespace, source)]
        if listed is None or not addresses:
            return
        home = self._home(target)
        batch: list[PointOp] = [
            ops.Put(home, _GENERATION, {}, self._ttl, ABSENT, False),
            ops.Put(self.namespace, target, listed.value, self._ttl, ABSENT, False),
        ]
        for address in addresses:
            known = yield from self._read(address)
            content = known.log.reseal(Codec(self.serde, target, address.checkpoint_ns))
            batch.append(ops.Put(home, address.path, face_api.new_file(content), self._ttl, ABSENT))
        try:
            yield batch
        except Conflict as conflict:
            raise AlreadyExists(f"there is a thread {target!r} already; delete it first") from conflict

    copy_thread = sync_method(_copy_thread)
    acopy_thread = async_method(_copy_thread)

    # Delta channels --------------------------------------------------------------------------------------------------

    def _get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> StoreProgram[Mapping[str, Any]]:
        """Return for each channel the writes since its last stored value, from the oldest on, and that value as `seed`.

        Only ancestors of the checkpoint count. The log is read once.
        """
        address = _address_of(config)
        history: dict[str, dict[str, Any]] = {channel: {"writes": []} for channel in channels}
        if not history:
            return history
        log = (yield from self._read(address)).log
        loader = _Loader(address, log)
        id = _checkpoint_id(config) or log.latest
        remaining = set(channels)
        for ancestor in log.ancestors(id):
            pointers = log.checkpoint(ancestor).pointers
            for write in reversed(log.writes(ancestor)):
                if write.channel in remaining:
                    value = loader.read(write.part, write.channel)
                    history[write.channel]["writes"].append((write.task_id, write.channel, value))
            for channel in remaining & pointers.keys():
                history[channel]["seed"] = loader.value(channel, pointers[channel])
            remaining -= pointers.keys()
            if not remaining:
                break
        for found in history.values():
            found["writes"].reverse()
        return history

    get_delta_channel_history = sync_method(_get_delta_channel_history)
    aget_delta_channel_history = async_method(_get_delta_channel_history)

    # What is remembered ----------------------------------------------------------------------------------------------

    def _recall(self, address: _Address) -> _Known | None:
        with self._lock:
            known = self._known.get(address)
            if known is not None:
                self._known.move_to_end(address)
            return known

    def _remember(self, address: _Address, known: _Known) -> None:
        with self._lock:
            self._known[address] = known
            self._known.move_to_end(address)
            weight = sum(each.weight for each in self._known.values())
            while weight > _MOST_REMEMBERED and len(self._known) > 1:
                weight -= self._known.popitem(last=False)[1].weight

    def _forget(self, address: _Address) -> None:
        with self._lock:
            self._known.pop(address, None)

    def _forget_thread(self, thread_id: str) -> None:
        with self._lock:
            for address in [address for address in self._known if address.thread_id == thread_id]:
                del self._known[address]

    def _home(self, thread_id: str) -> Namespace:
        return (*self.namespace, thread_id)


class AsyncHoldallSaver(HoldallSaver):
    """`HoldallSaver`, whose `setup` is awaited, as that of LangGraph's async savers is."""

    async def setup(self) -> None:  # type: ignore[override]  # as LangGraph's async savers have it
        """Connect, create and migrate now, rather than on first use."""
        await self.store.asetup()


class _Wanted:
    """Which checkpoints `list` is asked for."""

    def __init__(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        self._id = None if config is None else _checkpoint_id(config)
        self._filter = filter or {}
        self._before = None if before is None else _checkpoint_id(before)
        self.limit = limit

    def select(self, address: _Address, log: Log) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a log, and count them off the limit."""
        loader = _Loader(address, log)
        for id in log.ids:
            if self.limit is not None and self.limit <= 0:
                self.limit = 0
                return
            if (self._id is not None and id != self._id) or (self._before is not None and id >= self._before):
                continue
            if self._filter:
                metadata = loader.metadata(id)
                if any(metadata.get(name) != value for name, value in self._filter.items()):
                    continue
            if self.limit is not None:
                self.limit -= 1
            yield loader.load(id)


def _extend(candidates: list[StoredList], channel: str, value: list[Any], writer: LogWriter) -> StoredList:
    """Store what a list has that is not stored yet; return it as it is then stored."""
    serialise = writer.codec.serialise
    whole = [stored for stored in candidates if stored.begins(value, serialise)]
    if not whole:  # elements were removed, or changed
        whole = [stored.cut(stored.common(value, serialise)) for stored in candidates]
    stored = max(whole, key=len, default=StoredList())
    added = value[len(stored) :]
    if not added:
        return stored
    typed = [serialise(element) for element in added]
    extended = stored.copy()
    copies = [copy_element(element, one) for element, one in zip(added, typed, strict=True)]
    extended.add(writer.add_elements(channel, typed, stored.last_link), list(map(type, added)), copies)
    return extended


def _with_delta_ancestors(loader: _Loader, log: Log, kept: list[str]) -> set[str]:
    """Return the checkpoints to keep, and the ancestors that the values of their delta channels are made from."""
    needed = set(kept)
    for id in kept:
        counters = loader.metadata(id).get("counters_since_delta_snapshot") or {}
        remaining = set(counters) - log.checkpoint(id).pointers.keys()
        for ancestor in log.ancestors(id):
            if not remaining:
                break
            needed.add(ancestor)
            remaining -= log.checkpoint(ancestor).pointers.keys()
    return needed


def _thread_id(config: RunnableConfig) -> str:
    return _check_thread_id(config.get("configurable", {}).get("thread_id"))


def _check_thread_id(thread_id: Any) -> str:
    if thread_id is None or thread_id == "":
        raise InvalidInput('a config needs a thread: {"configurable": {"thread_id": "…"}}')
    return face_api.check_key(str(thread_id), "a thread_id")


def _address_of(config: RunnableConfig) -> _Address:
    return _Address(_thread_id(config), config["configurable"].get("checkpoint_ns") or "")


def _checkpoint_id(config: RunnableConfig) -> str | None:
    return config["configurable"].get("checkpoint_id") or None


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float | bool)


def _preview(values: Mapping[str, Any]) -> str | None:
    """Return the beginning of the last message: of the channel `messages`, or of any list of messages."""
    for channel in sorted(values, key=lambda name: name != "messages"):
        value = values[channel]
        last = value[-1] if isinstance(value, list) and value else None
        if isinstance(last, BaseMessage):
            content = last.content
            if not isinstance(content, str):
                texts = (block if isinstance(block, str) else block.get("text") for block in content)
                content = next((text for text in texts if isinstance(text, str)), "")
            return content[:_PREVIEW].encode(errors="replace").decode()
    return None
