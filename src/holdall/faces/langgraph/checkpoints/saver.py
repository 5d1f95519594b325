"""LangGraph's checkpoints on any engine: `HoldallSaver` is a `BaseCheckpointSaver`, sync and async in one object.

    graph = builder.compile(checkpointer=HoldallSaver("sqlite:///agent.db"), store=HoldallStore("sqlite:///agent.db"))

The checkpoints of a thread are in a namespace of the store that other searches leave out:

    (".holdall.threads",)             an item for each thread: its last step, metadata and message
    (".holdall.threads", thread_id)   items `generation` and `new_log`, and a file for each checkpoint namespace (`log`)

A put appends to the file, however large that is. A frame that refers to values which are in the file already is written
under the condition that the `generation` is unchanged: removing values from a file, or deleting the file, changes that
item too. Without that item there is no checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self, TypeAlias, TypeVar

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
    from ...base import explain_missing

    raise explain_missing(missing, "LangGraph's checkpointer", "langgraph") from missing

from langchain_core.runnables import RunnableConfig

from .... import ABSENT, FileInfo, Page, Store, ops
from ....core import face_api
from ....core.face_api import StoreProgram, Work, async_method, sync_method
from ....errors import AlreadyExists, Conflict, InvalidInput, NotFound, shown
from ....ops import KEEP, Namespace, PointOp, Ttl
from ...base import Face
from ...importing import Imported, Progress
from ..conn_strings import open_face
from .grown_lists import StoredList, extend_list
from .importing import Source, Target, import_threads
from .known_logs import (
    LOG_NAME,
    Address,
    KnownLoader,
    KnownLog,
    KnownLogs,
    Loader,
    checkpoint_ns_of,
    make_config,
)
from .log import MOST_ID_BYTES, Checkpoint, Codec, Log, LogWriter, Pointers
from .retention import Choose, Retention, add_delta_ancestors, choose_to_retain
from .threads import SEARCHED, Thread, count_for, count_of, make_filter, rename, summarise, summarise_log, to_thread

_GENERATION = "generation"
#: An item that changes with each new log of a subgraph, so that a thread is not deleted while it gets one.
_NEW_LOG = "new_log"
#: How many bytes of logs a saver remembers in all, about.
_MOST_REMEMBERED = 64 << 20
#: Logs from this size on are parsed in a thread, not in the event loop.
_LARGE_LOG = 1 << 17
#: A thread is refreshed when this part of its TTL has passed since it was last refreshed.
_REFRESH_PART = 1 / 20
_MOST_REFRESHED = 10_000  # threads
_THREADS_PER_PAGE = 100
_OR_NONE = " or None"  # what a TTL may be besides a duration

T = TypeVar("T")
#: The logs of each thread.
_Logs: TypeAlias = list[dict[Address, Log]]
_Addresses: TypeAlias = list[Address]
_Ops: TypeAlias = list[PointOp]
_Tuples: TypeAlias = list[CheckpointTuple]
_Threads: TypeAlias = Page[Thread]


class HoldallSaver(Face, BaseCheckpointSaver[Any]):
    """LangGraph's checkpointer on a `holdall.Store`.

    `namespace` is where the threads are; its first label gets ".holdall." before it, so that searches leave them out.
    `ttl`, in seconds, is how long a thread that this saver begins is kept after its last use. `serde` is LangGraph's
    serializer.
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
        self.namespace: Namespace = (".holdall." + labels[0].removeprefix(".holdall."), *labels[1:])
        self._ttl = face_api.ttl_seconds(ttl, _OR_NONE)
        #: The `holdall.Store` that this face runs on.
        self.store: Store = self._open(store_or_url)
        self._refreshed: dict[str, float] = {}
        self._retention: Retention | None = None
        self.known_logs = KnownLogs(_MOST_REMEMBERED)

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
        return open_face(lambda store: cls(store, serde=serde, namespace=namespace, ttl=ttl), conn_string, pool_config)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store!r}>"

    def setup(self) -> None:
        """Connect, create and migrate now, rather than on first use."""
        self.store.setup()

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BaseCheckpointSaver[Any]:
        """Return a saver on the same store that also makes objects of these classes."""
        clone = super().with_allowlist(extra_allowlist)
        if clone is not self and isinstance(clone, HoldallSaver):
            clone.known_logs = KnownLogs(_MOST_REMEMBERED)  # what is remembered is bound to a serializer
        return clone

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ARG002  # LangGraph's signature
        """Return the version after `current`. A thread that LangGraph's own savers began continues with their form."""
        if current is None:
            return 1
        if isinstance(current, str):
            number = int(current.split(".")[0]) + 1
            return f"{number:032}.{random.random():016}"
        return current + 1

    # Reading ---------------------------------------------------------------------------------------------------------

    def _get_tuple(self, config: RunnableConfig, *, refresh: bool = True) -> StoreProgram[CheckpointTuple | None]:
        """Read a checkpoint, or the latest of a thread; None if there is none.

        Without `refresh`, this is no use of the thread: its TTL goes on.
        """
        address = _address_of(config)
        known = yield from self._read(address, refresh)
        id = _checkpoint_id(config) or known.log.latest
        if id is None or id not in known.log:
            return None
        found = yield from self._load(KnownLoader(address, known), id)
        self.known_logs.remember(address, known)  # with the lists that were loaded
        return found

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
        """Iterate over checkpoints, newest first: of a thread, or of one thread after the other if `config` is None.

        The tuples share the values that they have in common, and the elements of lists, such as messages: copy one
        before you change it.
        """
        wanted = _Wanted(config, filter, before, limit)
        for logs in face_api.pages(self, self._log_pages(config)):
            yield from wanted.select(logs)
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
        async for logs in face_api.apages(self, self._log_pages(config)):
            for found in wanted.select(logs):
                yield found
            if wanted.limit == 0:
                return

    def _log_pages(self, config: RunnableConfig | None) -> Callable[[Any], StoreProgram[tuple[_Logs, Any]]]:
        """Return a program that reads the logs of each thread of a page."""

        def page(cursor: Any) -> StoreProgram[tuple[_Logs, Any]]:
            if config is not None:
                thread_ids, following = [_thread_id(config)], None
            else:
                found = yield from face_api.search(self.store, self.namespace, limit=20, cursor=cursor, recursive=False)
                thread_ids, following = [hit.key for hit in found], found.next
            checkpoint_ns = None if config is None else config["configurable"].get("checkpoint_ns")
            if checkpoint_ns:
                face_api.check_key(checkpoint_ns, "a checkpoint_ns")
            logs: _Logs = []
            for thread_id in thread_ids:
                if checkpoint_ns is not None:
                    addresses = [Address(thread_id, checkpoint_ns)]
                else:
                    addresses = yield from self._addresses(thread_id)
                of_thread = {}
                for address in addresses:
                    of_thread[address] = (yield from self._read(address)).log
                logs.append(of_thread)
            return logs, following

        return page

    def _addresses(self, thread_id: str) -> StoreProgram[_Addresses]:
        """Return the logs of a thread."""
        files = self.store.files(self._home(thread_id))
        infos: list[FileInfo] = yield from face_api.glob(files, "**" + LOG_NAME)
        return [Address(thread_id, checkpoint_ns_of(info.path)) for info in infos]

    def _read(self, address: Address, refresh: bool = True) -> StoreProgram[KnownLog]:
        """Read a log, or what was appended to it since it was last read."""
        home, known = self._home(address.thread_id), self.known_logs.recall(address)
        start = 0 if known is None else known.log.size
        while True:
            generation, content = yield [ops.Get(home, _GENERATION), ops.ReadRange(home, address.path, start)]
            version = None if generation is None else generation.version
            if known is not None and (content is None or known.generation != version):
                self.known_logs.forget(address)
                known, start = None, 0
                continue
            if generation is None:  # there is no checkpoint; writes that came before the first one may go at any time
                return self._new_log(address)
            if known is None:
                known = KnownLog((yield from self._parse(address, content or b"")), generation, self._ttl)
            elif content:
                with self.known_logs.lock:
                    known.extend(start, content)
            self.known_logs.remember(address, known)
            if refresh:
                yield from self._refresh(address.thread_id, known)
            return known

    def _new_log(self, address: Address) -> KnownLog:
        return KnownLog(Log(Codec(self.serde, *address), b""), None, self._ttl)

    def _refresh(self, thread_id: str, known: KnownLog, is_due: bool = False) -> StoreProgram[None]:
        """Restart the TTL of everything of a thread, unless that was done a short while ago.

        It is due at once for a new log: one that outlives its thread would be found by the next thread with its ID.
        """
        if known.ttl is None or known.generation is None:
            return
        now = time.monotonic()
        if not is_due and now - self._refreshed.get(thread_id, -known.ttl) < known.ttl * _REFRESH_PART:
            return
        home = self._home(thread_id)
        paths = [address.path for address in (yield from self._addresses(thread_id))]
        yield [
            ops.Refresh(self.namespace, thread_id),
            *(ops.Refresh(home, key) for key in (_GENERATION, *paths)),
        ]
        if len(self._refreshed) > _MOST_REFRESHED:
            self._refreshed.clear()
        self._refreshed[thread_id] = now

    def _load(self, loader: Loader, id: str) -> StoreProgram[CheckpointTuple]:
        """Load a checkpoint. Async, a large one is loaded in a thread."""
        if loader.size < _LARGE_LOG:
            return loader.load(id)
        found: CheckpointTuple = yield Work(loader.load, (id,))
        return found

    def _parse(self, address: Address, content: bytes) -> StoreProgram[Log]:
        codec = Codec(self.serde, *address)
        if len(content) < _LARGE_LOG:
            return Log(codec, content)
        log: Log = yield Work(Log, (codec, content))
        return log

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
        id, home = _check_id(checkpoint["id"]), self._home(address.thread_id)
        details: Any = get_serializable_checkpoint_metadata(config, metadata)

        def attempt(is_first: bool) -> StoreProgram[RunnableConfig]:
            known = self.known_logs.recall(address)
            if known is None and parent is None and not address.checkpoint_ns and is_first:  # mostly a new thread
                known = self._new_log(address)
            elif known is None or (parent is not None and parent not in known.log):
                known = yield from self._read(address)
                if parent is not None and parent in known.log:
                    yield from self._load(KnownLoader(address, known), parent)
            writer = known.log.begin_append()
            pointers, lists = self._add_values(address, known, writer, checkpoint, parent, new_versions)
            body = {name: value for name, value in checkpoint.items() if name not in ("channel_values", "id")}
            sealed = [writer.codec.seal(writer.codec.serialise(part), "") for part in (body, details)]
            writer.add_checkpoint(id, Checkpoint(parent, sealed[0], sealed[1], pointers))
            data = writer.data
            batch: _Ops = [
                ops.Put(home, _GENERATION, {"ttl": known.ttl}, known.ttl, ABSENT, False)
                if known.generation is None
                else ops.Check(home, _GENERATION, known.generation),
                ops.Append(home, address.path, data, ttl=known.ttl),
            ]
            is_latest = known.log.latest is None or known.log.latest <= id
            if known.generation is None or (is_latest and not address.checkpoint_ns):
                count = 0 if address.checkpoint_ns else len(known.log) + (id not in known.log)
                value = summarise(address.thread_id, checkpoint, details, count, writer.codec.cipher is not None)
                batch.append(ops.Put(self.namespace, address.thread_id, value, known.ttl, search_fields=SEARCHED))
            elif not known.log.size:
                batch.append(ops.Put(home, _NEW_LOG, {}, known.ttl, search_fields=False))
            made, offset, *_ = yield batch
            is_behind = offset != known.log.size  # another process has put something meanwhile
            with self.known_logs.lock:
                if known.generation is None:
                    known.generation = made.version
                known.extend(offset, data)
                known.add_lists(lists)
            self.known_logs.remember(address, known)
            yield from self._refresh(address.thread_id, known, is_due=offset == 0)
            if (is_behind or not is_latest) and not address.checkpoint_ns:
                yield from self._correct_listing(address)
            return make_config(address, id)

        return (yield from self._retry_append(address, attempt))

    def _retry_append(self, address: Address, attempt: Callable[[bool], StoreProgram[T]]) -> StoreProgram[T]:
        """Run a program that appends to a log; again if another process has rewritten or deleted it in the meantime.

        The program is given whether this is the first attempt.
        """
        is_first = True

        def attempt_afresh() -> StoreProgram[T]:
            nonlocal is_first
            try:
                return (yield from attempt(is_first))
            except Conflict:
                is_first = False
                self.known_logs.forget(address)
                raise

        return (yield from face_api.retry_conflicts(attempt_afresh))

    def _correct_listing(self, address: Address) -> StoreProgram[None]:
        """Correct the item that lists a thread: its checkpoints, and the last of them. A later put does so, too."""
        [listed] = yield [ops.Get(self.namespace, address.thread_id)]
        known = yield from self._read(address)
        if listed is None:
            return
        value = {**listed.value, "checkpoints": len(known.log)}
        if listed.value["checkpoint_id"] != known.log.latest:
            value = summarise_log(address.thread_id, known.log, known.log.ids)
        with contextlib.suppress(Conflict):
            yield [ops.Put(self.namespace, address.thread_id, value, known.ttl, listed, SEARCHED)]

    put = sync_method(_put)
    aput = async_method(_put)

    def _add_values(
        self,
        address: Address,
        known: KnownLog,
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
                stored = extend_list(known.lists.get(channel, []), channel, value, writer)
                pointers[channel], lists[channel] = stored.last_link, stored
            else:
                pointers[channel] = writer.add_value(channel, serialise(value))
        # Channels that have not changed since the parent, and whose values LangGraph did not pass.
        versions = checkpoint["channel_versions"]
        others = [channel for channel in versions if channel not in pointers and channel not in new_versions]
        if others and parent is not None and parent in known.log:
            record = known.log.checkpoint(parent)
            before = Loader(address, known.log).body(record, parent)["channel_versions"]
            for channel in others:
                if channel in record.pointers and before.get(channel) == versions[channel]:
                    pointers[channel] = record.pointers[channel]
        return pointers, lists

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

        def attempt(_: bool) -> StoreProgram[None]:
            known = self.known_logs.recall(address)
            if known is None:
                known = yield from self._read(address)
            writer = known.log.begin_append()
            typed = [
                (WRITES_IDX_MAP.get(channel, index), channel, writer.codec.serialise(value))
                for index, (channel, value) in enumerate(writes)
            ]
            writer.add_writes(id, task_path, task_id, typed)
            guard = [] if known.generation is None else [ops.Check(home, _GENERATION, known.generation)]
            data = writer.data
            *_, offset = yield [*guard, ops.Append(home, address.path, data, ttl=known.ttl)]
            with self.known_logs.lock:
                known.extend(offset, data)
            yield from self._refresh(address.thread_id, known, is_due=offset == 0)

        yield from self._retry_append(address, attempt)

    put_writes = sync_method(_put_writes)
    aput_writes = async_method(_put_writes)

    # Deleting --------------------------------------------------------------------------------------------------------

    def _delete_thread(self, thread_id: str) -> StoreProgram[None]:
        """Delete a thread with all its checkpoints and writes."""
        thread_id = _check_thread_id(thread_id)
        yield [ops.DeleteTree(self._home(thread_id)), ops.Delete(self.namespace, thread_id)]
        self.known_logs.forget_thread(thread_id)

    delete_thread = sync_method(_delete_thread)
    adelete_thread = async_method(_delete_thread)

    def _delete_for_runs(self, run_ids: Sequence[str]) -> StoreProgram[None]:
        """Delete the checkpoints of runs, and their writes, in all threads."""
        gone = set(_check_ids("run_ids", run_ids))
        if not gone:
            return

        def choose(loader: Loader, ids: Sequence[str]) -> Sequence[str]:
            return [id for id in ids if loader.metadata(id).get("run_id") not in gone]

        yield from self._keep_in_all(choose)

    delete_for_runs = sync_method(_delete_for_runs)
    adelete_for_runs = async_method(_delete_for_runs)

    def _prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> StoreProgram[None]:
        """Delete the checkpoints of threads: all but the latest of each namespace, or all with the strategy "delete".

        Checkpoints that a kept one needs for its delta channels stay, with their writes.
        """
        if strategy not in ("keep_latest", "delete", "delete_all"):
            raise InvalidInput(f"strategy is 'keep_latest' or 'delete', not {shown(strategy)}")
        for thread_id in map(_check_thread_id, _check_ids("thread_ids", thread_ids)):
            if strategy == "keep_latest":
                yield from self._keep(thread_id, choose_to_retain(1, None))
            else:
                yield from self._delete_thread(thread_id)

    prune = sync_method(_prune)
    aprune = async_method(_prune)

    def _retain(
        self, *, keep_last: int | None = None, older_than: Ttl = None, thread_ids: Sequence[str] | None = None
    ) -> StoreProgram[int]:
        """Delete old checkpoints of all threads, or of those that are named, and return how many.

        `keep_last` is how many of each thread and checkpoint namespace stay. `older_than` is, in seconds or as a
        timedelta, how old one must be. With both, those go that are neither among the last nor young enough. The latest
        of a namespace stays in any case, and so does what delta channels are made from.
        """
        choose = choose_to_retain(keep_last, older_than)
        if thread_ids is None:
            return (yield from self._keep_in_all(choose, 1 if keep_last is None else keep_last))
        removed = 0
        for thread_id in map(_check_thread_id, _check_ids("thread_ids", thread_ids)):
            removed += yield from self._keep(thread_id, choose)
        return removed

    retain = sync_method(_retain)
    aretain = async_method(_retain)

    def retain_every(
        self, interval: float | timedelta, *, keep_last: int | None = None, older_than: Ttl = None
    ) -> None:
        """Call `retain` at an interval, in a background thread, until the saver is closed.

        `interval` is in seconds, or a timedelta.
        """
        seconds = face_api.duration_seconds("interval", interval)
        choose_to_retain(keep_last, older_than)
        if self._retention is not None:
            self._retention.stop()
        self._retention = Retention(lambda: self.retain(keep_last=keep_last, older_than=older_than), seconds)

    def close(self) -> None:
        """Stop what runs in the background, and close the store, if it was opened here. It may be called twice."""
        if self._retention is not None:
            self._retention.stop()
        super().close()

    async def aclose(self) -> None:
        """`close`, awaited."""
        if self._retention is not None:
            await asyncio.to_thread(self._retention.stop)  # it waits for its thread
        await super().aclose()

    def _keep_in_all(self, choose: Choose, least: int = 0) -> StoreProgram[int]:
        """Rewrite the logs of all threads; return how many checkpoints were deleted.

        At least so many of each log are chosen: those of the threads themselves that have no more are not read.
        """
        cursor, removed = None, 0
        while True:
            page = yield from self._threads(limit=_THREADS_PER_PAGE, cursor=cursor)
            for thread in page:
                removed += yield from self._keep(thread.id, choose, has_few=thread.checkpoints <= least)
            cursor = page.next
            if cursor is None:
                return removed

    def _keep(self, thread_id: str, choose: Choose, has_few: bool = False) -> StoreProgram[int]:
        """Rewrite the logs of a thread with the checkpoints that are chosen; return how many were deleted.

        `has_few`: only those of subgraphs.
        """
        removed = 0
        for address in (yield from self._addresses(thread_id)):
            if address.checkpoint_ns or not has_few:
                removed += yield from self._rewrite(address, choose)
        return removed

    def _rewrite(self, address: Address, choose: Choose) -> StoreProgram[int]:
        """Rewrite a log with the checkpoints that are chosen. This is no use of the thread: its TTL goes on."""
        home = self._home(address.thread_id)

        def attempt() -> StoreProgram[int]:
            listed, generation, new_log, info, content = yield [
                ops.Get(self.namespace, address.thread_id),
                ops.Get(home, _GENERATION),
                ops.Get(home, _NEW_LOG),
                ops.Stat(home, address.path),
                ops.ReadRange(home, address.path, 0),
            ]
            if content is None or generation is None or listed is None:
                return 0
            log = yield from self._parse(address, content)
            loader = Loader(address, log)
            ids = log.ids
            kept = add_delta_ancestors(loader, log, choose(loader, ids))
            if len(kept) == len(ids):
                return 0
            # A thread goes with its last log. It is listed while it has one.
            is_gone = not kept and (yield from self._addresses(address.thread_id)) == [address]
            changed: _Ops = [
                ops.Put(home, address.path, face_api.new_file(log.select(kept)), KEEP, info.version)
                if kept
                else ops.Delete(home, address.path, info.version)
            ]
            if is_gone:
                changed += [
                    ops.Delete(home, _GENERATION, generation),
                    ops.Check(home, _NEW_LOG, ABSENT) if new_log is None else ops.Delete(home, _NEW_LOG, new_log),
                    ops.Delete(self.namespace, address.thread_id, listed),
                ]
            else:
                value = generation.value
                if listed.value["checkpoint_id"] in kept:
                    value = {**value, **count_for(listed, len(kept))}
                elif listed.value["checkpoint_id"] in log:
                    summary = summarise_log(address.thread_id, log, kept)
                    changed.append(ops.Put(self.namespace, address.thread_id, summary, KEEP, listed, SEARCHED))
                changed.append(ops.Put(home, _GENERATION, value, KEEP, generation, False))
            yield changed
            self.known_logs.forget(address)
            return len(ids) - len(kept)

        return (yield from face_api.retry_conflicts(attempt))

    def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> StoreProgram[None]:
        """Copy a thread with all its checkpoints and writes; the target must be a new thread."""
        source, target = _check_thread_id(source_thread_id), _check_thread_id(target_thread_id)
        addresses, is_whole = (yield from self._addresses(source)), False
        while not is_whole:  # a subgraph may begin meanwhile
            listed, generation, *contents = yield [
                ops.Get(self.namespace, source),
                ops.Get(self._home(source), _GENERATION),
                *(ops.ReadRange(self._home(source), address.path, 0) for address in addresses),
            ]
            before, addresses = addresses, (yield from self._addresses(source))
            is_whole = addresses == before
        if listed is None or generation is None:
            return
        home = self._home(target)
        summary = rename(listed.value, target, count_of(listed, generation))
        batch: _Ops = [ops.Put(home, _GENERATION, {"ttl": self._ttl}, self._ttl, ABSENT, False)]
        for address, content in zip(addresses, contents, strict=True):
            if content is None:  # deleted meanwhile
                continue
            log = yield from self._parse(address, content)
            copied = log.reseal(Codec(self.serde, target, address.checkpoint_ns))
            batch.append(ops.Put(home, address.path, face_api.new_file(copied), self._ttl, ABSENT))
            if log.latest is not None and not address.checkpoint_ns:  # what is listed may be about to be corrected
                summary = summarise_log(target, log, log.ids)
        batch.append(ops.Put(self.namespace, target, summary, self._ttl, ABSENT, SEARCHED))
        try:
            yield batch
        except Conflict as conflict:
            raise AlreadyExists(f"there is a thread {target!r} already; delete it first") from conflict

    copy_thread = sync_method(_copy_thread)
    acopy_thread = async_method(_copy_thread)

    # Threads ---------------------------------------------------------------------------------------------------------

    def _threads(
        self,
        *,
        prefix: str | None = None,
        filter: Mapping[str, Any] | None = None,
        query: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> StoreProgram[_Threads]:
        """List threads, those with the newest checkpoint first; `page.next` is the cursor of the next page.

        `prefix` is the beginning of their IDs. `filter` is a filter, as in `Store.search`, of the metadata of the last
        checkpoint, and of `step` and `checkpoints`. `query` finds threads by the words of their ID, metadata and
        preview, as in `Store.search`: the best matches come first.
        """
        while True:
            found = yield from face_api.search(
                self.store,
                self.namespace,
                query=query or None,
                filter=make_filter(prefix, filter),
                limit=limit,
                cursor=cursor,
                recursive=False,
            )
            generations = (yield [ops.Get(self._home(hit.key), _GENERATION) for hit in found]) if found else []
            both = zip(found, generations, strict=True)
            # What lists a thread may expire a little later than the thread.
            threads = [to_thread(hit, generation) for hit, generation in both if generation is not None]
            cursor = found.next
            if threads or cursor is None:
                return Page(threads, cursor)

    threads = sync_method(_threads)
    athreads = async_method(_threads)

    def watch(self, thread_id: str, *, checkpoint_ns: str = "", after: str | None = None) -> Iterator[CheckpointTuple]:
        """Iterate over the checkpoints of a thread that are put from now on, by any process, as they come.

        With `after`, the id of a checkpoint, those after it that exist already come first.
        """
        address = Address(_check_thread_id(thread_id), checkpoint_ns)
        seen = _up_to(after, self._run(self._read(address)).log.ids)
        with self.store.watch(self._home(address.thread_id), since=self.store.cursor()) as changes:
            yield from self._run(self._load_new(address, seen))
            for change in changes:
                if change.key == address.path:
                    yield from self._run(self._load_new(address, seen))

    async def awatch(
        self, thread_id: str, *, checkpoint_ns: str = "", after: str | None = None
    ) -> AsyncIterator[CheckpointTuple]:
        """`watch`, as an async iterator."""
        address = Address(_check_thread_id(thread_id), checkpoint_ns)
        seen = _up_to(after, (await self._arun(self._read(address))).log.ids)
        async with self.store.awatch(self._home(address.thread_id), since=await self.store.acursor()) as changes:
            for found in await self._arun(self._load_new(address, seen)):
                yield found
            async for change in changes:
                if change.key == address.path:
                    for found in await self._arun(self._load_new(address, seen)):
                        yield found

    def _load_new(self, address: Address, seen: set[str]) -> StoreProgram[_Tuples]:
        """Load the checkpoints that are not among those seen, the oldest first."""
        known = yield from self._read(address)
        new = sorted(id for id in known.log.ids if id not in seen)
        seen.update(new)
        loader = KnownLoader(address, known)
        found: _Tuples = []
        for id in new:
            found.append((yield from self._load(loader, id)))  # no comprehension can yield
        return found

    def _set_ttl(self, thread_id: str, ttl: Ttl) -> StoreProgram[None]:
        """Give a thread a TTL of its own, in seconds, which begins again with each use. None keeps it for ever."""
        thread_id = _check_thread_id(thread_id)
        home, seconds = self._home(thread_id), face_api.ttl_seconds(ttl, _OR_NONE)

        def attempt() -> StoreProgram[None]:
            generation, new_log, listed = yield [
                ops.Get(home, _GENERATION),
                ops.Get(home, _NEW_LOG),
                ops.Get(self.namespace, thread_id),
            ]
            addresses = yield from self._addresses(thread_id)
            if generation is None or listed is None:
                raise NotFound(f"there is no thread {thread_id!r}")
            batch: _Ops = [
                ops.Put(home, _GENERATION, {"ttl": seconds}, seconds, generation, False),
                ops.Check(home, _NEW_LOG, ABSENT)
                if new_log is None
                else ops.Put(home, _NEW_LOG, {}, seconds, new_log, False),
                ops.Put(
                    self.namespace,
                    thread_id,
                    {**listed.value, "checkpoints": count_of(listed, generation)},
                    seconds,
                    listed,
                    SEARCHED,
                ),
            ]
            for address in addresses:  # a file gets another TTL when it is moved
                batch += [
                    ops.Move(home, address.path, "/moved"),
                    ops.Move(home, "/moved", address.path, ttl=seconds),
                ]
            yield batch
            self.known_logs.forget_thread(thread_id)

        yield from face_api.retry_conflicts(attempt)

    set_ttl = sync_method(_set_ttl)
    aset_ttl = async_method(_set_ttl)

    def _import_from(
        self, source: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> StoreProgram[Imported]:
        """Import the threads of a `SqliteSaver` (the path of its file) or of a `PostgresSaver` (its URL).

        `progress(done, total)` is called after each checkpoint. An import that was interrupted continues when it is run
        again. `refused` lists the checkpoints of threads whose ID cannot be stored.
        """
        target = Target(self._check_thread, self._find_present, self._put, self._put_writes, self._backdate)
        return (yield from import_threads(target, Source(source, self.serde), progress))

    import_from = sync_method(_import_from)
    aimport_from = async_method(_import_from)

    def _check_thread(self, thread_id: str) -> None:
        face_api.check_namespace(self._home(_check_thread_id(thread_id)))

    def _backdate(self, thread_id: str, created: datetime | None, updated: datetime) -> StoreProgram[None]:
        yield [face_api.Backdate(self.namespace, thread_id, created, updated)]

    def _find_present(self, thread_id: str, checkpoint_ns: str) -> StoreProgram[Callable[[str], int | None]]:
        """Return a function that counts the writes of a checkpoint; None if it is not here."""
        log = (yield from self._read(Address(_check_thread_id(thread_id), checkpoint_ns))).log

        def count_writes(id: str) -> int | None:
            return len(log.writes(id)) if id in log else None

        return count_writes

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
        loader = Loader(address, log)
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

    def select(self, logs: Mapping[Address, Log]) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of the logs of a thread, newest first, and count them off the limit."""
        loaders = {address: Loader(address, log) for address, log in logs.items()}
        newest_first = heapq.merge(*([(id, at) for id in log.ids] for at, log in logs.items()), reverse=True)
        for id, address in newest_first:
            if self.limit is not None and self.limit <= 0:
                self.limit = 0
                return
            if (self._id is not None and id != self._id) or (self._before is not None and id >= self._before):
                continue
            loader = loaders[address]
            if self._filter:
                metadata = loader.metadata(id)
                if any(metadata.get(name) != value for name, value in self._filter.items()):
                    continue
            if self.limit is not None:
                self.limit -= 1
            yield loader.load(id)


def _thread_id(config: RunnableConfig) -> str:
    return _check_thread_id(config.get("configurable", {}).get("thread_id"))


def _up_to(last: str | None, ids: Iterable[str]) -> set[str]:
    """Return the ids of the checkpoints up to one, which need not exist any more; without one, all ids."""
    return {id for id in ids if last is None or id <= last}


def _check_thread_id(thread_id: Any) -> str:
    if thread_id is None or thread_id == "":
        raise InvalidInput('a config needs a thread: {"configurable": {"thread_id": "…"}}')
    return face_api.check_key(str(thread_id), "a thread_id")


def _check_ids(name: str, ids: Any) -> Iterable[Any]:
    """Refuse a text, whose characters would be taken for IDs."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise InvalidInput(f"{name} is a list of IDs, not {shown(ids)}")
    return ids


def _address_of(config: RunnableConfig) -> Address:
    thread_id, checkpoint_ns = _thread_id(config), config["configurable"].get("checkpoint_ns") or ""
    return Address(thread_id, checkpoint_ns and face_api.check_key(checkpoint_ns, "a checkpoint_ns"))


def _checkpoint_id(config: RunnableConfig) -> str | None:
    id = config["configurable"].get("checkpoint_id")
    return _check_id(id) if id else None


def _check_id(id: Any) -> str:
    checked = face_api.check_key(id, "a checkpoint's id")
    if len(checked.encode()) > MOST_ID_BYTES:
        raise InvalidInput(f"a checkpoint's id has at most {MOST_ID_BYTES} bytes: {shown(checked)}")
    return checked
