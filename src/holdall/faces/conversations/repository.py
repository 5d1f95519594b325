"""Conversations that outlive their threads: archived by user, then found, resumed, exported and erased.

A checkpointer keeps a thread until its TTL ends. `archive` copies the thread's messages out of it, as one entry:

    namespace  ("users", user_id, "conversations")
    key        {thread_id}_{YYYYMMDD}_{HHMMSS}_{8 hex}    the checkpoint's time, and a hash of its id
    value      user_id, thread_id, checkpoint_id, checkpoint_at, messages

The key depends only on the checkpoint, so a state that is archived twice is stored once. A state that continues the one
archived before it replaces that one, so a message is archived once however often its thread is. All data of a user is
below the user's own namespace, so a thread_id gives no access to other users. On PostgreSQL, SQL views show the same
data.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

try:
    from langchain_core.messages import BaseMessage
    from langgraph.store.base import BaseStore

    from ..langgraph import HoldallSaver, HoldallStore
    from .messages import from_stored, to_stored
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "the conversation repository", "langgraph") from missing

from ... import ABSENT, Entry, Hit, ops
from ...core import face_api
from ...core.face_api import Call, StoreProgram, Work, async_method, pause_before_retry, sync_method
from ...errors import AlreadyExists, Conflict, InvalidInput, NotFound, shown
from ...ops import Namespace
from ..base import NEIGHBOURS, Face, read_namespaces
from ..langgraph.conn_strings import is_postgres
from .export import MessageExport, Sink

__all__ = [
    "BaseStoreRepository",
    "Conversation",
    "ConversationRepository",
    "FoundMessage",
    "PostgresStoreRepository",
]

_PAGE_SIZE = 100  # conversations
_MOST_RANKED = 20  # conversations whose messages are ranked
_SEARCHED = ("messages[*].content",)  # a query searches these texts: one vector for each message


@dataclass(frozen=True, slots=True)
class Conversation:
    """One archived state of a thread. `score` is None without a query."""

    user_id: str
    thread_id: str
    key: str
    checkpoint_id: str
    checkpoint_at: datetime
    archived_at: datetime
    message_count: int
    score: float | None = None


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message of an archived conversation that matches a query. `number` counts its messages from 0."""

    conversation: Conversation
    number: int
    message: BaseMessage
    score: float


class BaseStoreRepository(ABC):
    """A store with four methods, for code that needs no more."""

    @property
    @abstractmethod
    def store(self) -> BaseStore:
        """The LangGraph store, to compile a graph with."""

    @abstractmethod
    def put(self, namespace: Namespace, key: str, value: Mapping[str, Any]) -> None:
        """Write a value."""

    @abstractmethod
    def get(self, namespace: Namespace, key: str) -> dict[str, Any] | None:
        """Return a value, or None."""

    @abstractmethod
    def search(self, namespace: Namespace, query: str | None = None, limit: int = 10) -> list[dict[str, Any]]:
        """Search a namespace and those below it: the last changed values, or the best matches of a query."""

    @abstractmethod
    def delete(self, namespace: Namespace, key: str) -> None:
        """Delete a value."""


class ConversationRepository(Face, BaseStoreRepository):
    """Archived conversations, on any engine. Each method also has an async form, with an `a` before its name.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. With a `HoldallSaver`, its threads
    are archived; otherwise those of a `HoldallSaver` on the same store. `index` is LangGraph's config for semantic
    search.
    """

    def __init__(self, store_or_url: Any = None, *, index: Any = None) -> None:
        saver = store_or_url if isinstance(store_or_url, HoldallSaver) else None
        self._use(HoldallStore(store_or_url, index=index), saver)

    def _use(self, face: HoldallStore, saver: HoldallSaver | None = None) -> None:
        self._face = face
        self._store = face.store
        self._saver = saver or HoldallSaver(self._store)

    @property
    def store(self) -> HoldallStore:
        """The LangGraph store, to compile a graph with."""
        return self._face

    # Any value -------------------------------------------------------------------------------------------------------

    def _put(self, namespace: Namespace, key: str, value: Mapping[str, Any]) -> StoreProgram[None]:
        """Write a value. The root "langgraph" is refused, because LangGraph itself uses it."""
        if isinstance(namespace, tuple | list) and namespace[:1] in (("langgraph",), ["langgraph"]):
            raise InvalidInput(f"the root 'langgraph' is LangGraph's own; choose another than {shown(namespace)}")
        yield from face_api.put(self._store, namespace, key, value)

    put = sync_method(_put)
    aput = async_method(_put)

    def _get(self, namespace: Namespace, key: str) -> StoreProgram[dict[str, Any] | None]:
        """Return a value, or None."""
        entry: Entry | None = (yield [ops.Get(namespace, key)])[0]
        return None if entry is None else entry.value

    get = sync_method(_get)
    aget = async_method(_get)

    def _search(
        self, namespace: Namespace, query: str | None = None, limit: int = 10
    ) -> StoreProgram[list[dict[str, Any]]]:
        """Search a namespace and those below it: the last changed values, or the best matches of a query.

        Each dict has `namespace`, `key`, `value`, `created_at`, `updated_at` and `score`.
        """
        found = yield from face_api.search(self._store, namespace, query=query, limit=limit)
        return [_to_dict(hit) for hit in found]

    search = sync_method(_search)
    asearch = async_method(_search)

    def _delete(self, namespace: Namespace, key: str) -> StoreProgram[None]:
        """Delete a value, if it exists."""
        yield [ops.Delete(namespace, key)]

    delete = sync_method(_delete)
    adelete = async_method(_delete)

    # Conversations ---------------------------------------------------------------------------------------------------

    def archive(
        self, user_id: str, thread_id: str, checkpointer: Any = None, *, channel: str = "messages"
    ) -> Conversation:
        """Copy the messages of a thread in this store, or in another checkpointer, or of a compiled graph.

        To archive the same checkpoint again changes nothing. If the thread has continued since it was archived last,
        the new state replaces that one. `channel` is the key of the messages in the state.
        """
        source = self._saver if checkpointer is None else checkpointer
        return self._run(self._archive(user_id, thread_id, channel, lambda: _read(source, thread_id)))

    async def aarchive(
        self, user_id: str, thread_id: str, checkpointer: Any = None, *, channel: str = "messages"
    ) -> Conversation:
        """`archive`, awaited."""
        source = self._saver if checkpointer is None else checkpointer
        return await self._arun(self._archive(user_id, thread_id, channel, lambda: _aread(source, thread_id)))

    def _archive(
        self, user_id: str, thread_id: str, channel: str, read: Callable[[], _Snapshot | Awaitable[_Snapshot]]
    ) -> StoreProgram[Conversation]:
        namespace = _namespace(user_id)
        _check_thread(thread_id)
        if not isinstance(channel, str):
            raise InvalidInput(f"channel is the name of a channel of the state, not {shown(channel)}")
        snapshot: _Snapshot = yield Call(read, ())
        if channel not in snapshot.values:
            hint = snapshot.hint or "; pass channel=, the key of the messages in the state"
            raise NotFound(f"the state of thread {thread_id!r} has no {channel!r}{hint}")
        at = snapshot.at.astimezone(UTC)
        digest = hashlib.sha256(snapshot.checkpoint_id.encode()).hexdigest()[:8]
        key = f"{thread_id}_{at:%Y%m%d_%H%M%S}_{digest}"
        value = {
            "user_id": user_id,
            "thread_id": thread_id,
            "checkpoint_id": snapshot.checkpoint_id,
            "checkpoint_at": _format_time(at),
            "messages": _to_stored(snapshot.values[channel], channel),
        }
        put = ops.Put(namespace, key, value, None, ABSENT, search_fields=_SEARCHED)
        for tries in itertools.count(1):
            last = yield from self._last_archived(namespace, {"thread_id": {"$eq": thread_id}})
            batch: list[ops.PointOp] = [put]
            if last is not None and last.key != key and _continues(value, last.value):
                batch.append(ops.Delete(namespace, last.key, last))
            try:
                return _to_conversation((yield from face_api.execute(self._store, batch))[0])
            except Conflict as conflict:
                entry: Entry | None = (yield [ops.Get(namespace, key)])[0]
                if entry is None:  # it, or the last one, was deleted meanwhile
                    yield from pause_before_retry(conflict, tries)
                elif _is_conversation(entry):  # archived already
                    return _to_conversation(entry)
                else:
                    raise AlreadyExists(
                        f"{key!r} in {namespace!r} was not written by archive; delete it first"
                    ) from None
        raise AssertionError("unreachable")

    def _conversations(
        self, user_id: str, *, thread_id: str | None = None, query: str | None = None, limit: int = 100
    ) -> StoreProgram[list[Conversation]]:
        """Return a user's conversations: the last archived first, or the best matches of a query first."""
        face_api.check_count("limit", limit)
        found: list[Conversation] = []
        cursor: str | None = None
        while len(found) < limit:
            page = yield from face_api.search(
                self._store,
                _namespace(user_id),
                query=query,
                filter=_thread_filter(thread_id),
                limit=limit,
                cursor=cursor,
                recursive=False,
            )
            found += [_to_conversation(hit) for hit in page if _is_conversation(hit)]
            cursor = page.next
            if cursor is None:
                break
        return found[:limit]

    conversations = sync_method(_conversations)
    aconversations = async_method(_conversations)

    def _find_messages(
        self, user_id: str, query: str, *, thread_id: str | None = None, limit: int = 10, neighbours: float = NEIGHBOURS
    ) -> StoreProgram[list[FoundMessage]]:
        """Return the messages that match a query best, of the twenty conversations that match it best.

        Messages are ranked by words. Each lends a part of its score, `neighbours`, to the one before and the one after
        it, so that an answer is found beside its question. A message that several states of a thread have is found
        once.
        """
        face_api.check_count("limit", limit)
        part = face_api.check_fraction("neighbours", neighbours)
        if not isinstance(query, str):
            raise InvalidInput(f"query is a str, not {shown(query)}")
        found = yield from face_api.search(
            self._store,
            _namespace(user_id),
            query=query,
            filter=_thread_filter(thread_id),
            limit=_MOST_RANKED,
            recursive=False,
        )
        hits = [hit for hit in found if _is_conversation(hit)]
        matches: list[FoundMessage] = yield Work(_rank_messages, (query, hits, part, limit))
        return matches

    find_messages = sync_method(_find_messages)
    afind_messages = async_method(_find_messages)

    def _resume(self, user_id: str, thread_id: str) -> StoreProgram[list[BaseMessage]]:
        """Return the messages of a thread at its newest archived checkpoint, to continue in a new thread."""
        namespace, in_thread = _namespace(user_id), {"thread_id": {"$eq": _check_thread(thread_id)}}
        # The last archived is mostly the newest. Then the next search finds nothing newer, and loads no other state.
        newest = found = yield from self._last_archived(namespace, in_thread)
        while found is not None:
            newer = {"$and": [in_thread, _newer_than(found)]}
            newest, found = found, (yield from self._last_archived(namespace, newer))
        if newest is None:
            raise NotFound(f"user {user_id!r} has no archived conversation of thread {thread_id!r}")
        return from_stored(newest.value["messages"])

    resume = sync_method(_resume)
    aresume = async_method(_resume)

    def _export(
        self,
        target: str | os.PathLike[str] | Sink,
        *,
        user_id: str | None = None,
        thread_id: str | None = None,
        format: Literal["jsonl", "csv"] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> StoreProgram[int]:
        """Write all messages of the archived conversations of one user or of all, and return their number.

        `target` is a path or a text file. A line of JSONL has the whole message; CSV is for spreadsheets. The default
        of `format` is the ending of the path. `progress(done, total)` counts conversations.
        """
        face_api.check_function("progress", progress)
        wanted = _thread_filter(thread_id)
        done = total = 0
        with MessageExport(target, format) as export:

            def write(hits: list[Hit]) -> StoreProgram[None]:
                nonlocal done
                authors = yield from face_api.read_authors(self._store, hits)
                for hit, acting in zip(hits, authors, strict=True):
                    yield Work(export.write, (_to_conversation(hit), hit.value["messages"], acting))
                done += len(hits)
                if progress is not None:
                    yield Call(progress, (done, max(done, total)))

            namespaces = yield from self._namespaces(user_id)
            for namespace in namespaces:
                total += yield from face_api.count(self._store, namespace, filter=wanted, recursive=False)
            for namespace in namespaces:
                yield from self._visit(namespace, wanted, write)
            return export.written

    export = sync_method(_export)
    aexport = async_method(_export)

    def _retain(self, older_than: timedelta | datetime, *, user_id: str | None = None) -> StoreProgram[int]:
        """Delete the conversations of one user, or of all, whose checkpoint is older, and return their number."""
        end = _format_time(_to_limit(older_than))
        deleted = 0

        def delete(hits: list[Hit]) -> StoreProgram[None]:
            nonlocal deleted
            gone: list[bool] = (yield [ops.Delete(hit.namespace, hit.key) for hit in hits]) if hits else []
            deleted += sum(gone)

        for namespace in (yield from self._namespaces(user_id)):
            yield from self._visit(namespace, {"checkpoint_at": {"$lt": end}}, delete)
        return deleted

    retain = sync_method(_retain)
    aretain = async_method(_retain)

    def _erase(self, user_id: str) -> StoreProgram[int]:
        """Delete all archived data of a user, and return the number of entries."""
        return (yield from face_api.delete_tree(self._store, _namespace(user_id)))

    erase = sync_method(_erase)
    aerase = async_method(_erase)

    # Pages of conversations ------------------------------------------------------------------------------------------

    def _visit(
        self, namespace: Namespace, filter: dict[str, Any] | None, visit: Callable[[list[Hit]], StoreProgram[None]]
    ) -> StoreProgram[None]:
        """Call `visit` with every page of a user's conversations that match a filter."""
        cursor: str | None = None
        while True:
            page = yield from face_api.search(
                self._store, namespace, filter=filter, limit=_PAGE_SIZE, cursor=cursor, recursive=False
            )
            yield from visit([hit for hit in page if _is_conversation(hit)])
            cursor = page.next
            if cursor is None:
                return

    def _last_archived(self, namespace: Namespace, filter: dict[str, Any]) -> StoreProgram[Hit | None]:
        """Return the last archived conversation of a user that matches a filter."""
        cursor: str | None = None
        while True:
            page = yield from face_api.search(
                self._store, namespace, filter=filter, limit=1, cursor=cursor, recursive=False
            )
            if page and _is_conversation(page[0]):
                return page[0]
            cursor = page.next
            if cursor is None:
                return None

    def _namespaces(self, user_id: str | None) -> StoreProgram[list[Namespace]]:
        """Return the namespaces of one user's conversations, or of all users'."""
        if user_id is not None:
            return [_namespace(user_id)]
        return (yield from read_namespaces(self._store, prefix=_namespace("*"), max_depth=3))

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._face.close()

    async def aclose(self) -> None:
        """`close`, awaited."""
        await self._face.aclose()


class PostgresStoreRepository(ConversationRepository):
    """`ConversationRepository` on PostgreSQL, where SQL can query it (the views `holdall_conversations`, …)."""

    def __init__(self, conn_string: str, *, pool_config: Mapping[str, Any] | None = None, index: Any = None) -> None:
        if not isinstance(conn_string, str) or not is_postgres(conn_string):
            raise InvalidInput("PostgresStoreRepository takes a PostgreSQL URL; ConversationRepository takes any")
        self._use(HoldallStore._open_from(conn_string, pool_config, index, None))


# Checkpointers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The state of a thread, from a checkpointer or a graph. `hint` ends the message if its messages are missing."""

    checkpoint_id: str
    at: datetime
    values: Mapping[str, Any]
    hint: str = ""


def _read(source: Any, thread_id: str) -> _Snapshot:
    if hasattr(source, "get_state"):
        return _of_graph(source.get_state(_config(thread_id)), thread_id)
    if hasattr(source, "get_tuple"):
        return _of_checkpointer(source.get_tuple(_config(thread_id), **_how_to_read(source)), thread_id)
    raise _no_checkpointer(source)


async def _aread(source: Any, thread_id: str) -> _Snapshot:
    try:
        if hasattr(source, "aget_state"):
            return _of_graph(await source.aget_state(_config(thread_id)), thread_id)
        if hasattr(source, "aget_tuple"):
            return _of_checkpointer(await source.aget_tuple(_config(thread_id), **_how_to_read(source)), thread_id)
    except NotImplementedError:  # SqliteSaver and PostgresSaver are sync only
        return await asyncio.to_thread(_read, source, thread_id)
    raise _no_checkpointer(source)


def _config(thread_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id}}


def _how_to_read(checkpointer: Any) -> dict[str, Any]:
    """Return further arguments of `get_tuple`: a thread that is archived from time to time still expires."""
    return {"refresh": False} if isinstance(checkpointer, HoldallSaver) else {}


def _no_checkpointer(source: Any) -> InvalidInput:
    return InvalidInput(f"the source of a thread is a checkpointer or a compiled graph, not {shown(source)}")


def _of_checkpointer(found: Any, thread_id: str) -> _Snapshot:
    if found is None:
        raise _no_thread(thread_id)
    checkpoint = found.checkpoint
    is_delta = bool((found.metadata or {}).get("counters_since_delta_snapshot"))
    hint = " as a whole value; pass the compiled graph instead" if is_delta else ""
    return _Snapshot(checkpoint["id"], datetime.fromisoformat(checkpoint["ts"]), checkpoint["channel_values"], hint)


def _of_graph(state: Any, thread_id: str) -> _Snapshot:
    if state.created_at is None:
        raise _no_thread(thread_id)
    checkpoint_id = state.config["configurable"]["checkpoint_id"]
    return _Snapshot(checkpoint_id, datetime.fromisoformat(state.created_at), state.values)


def _no_thread(thread_id: str) -> NotFound:
    return NotFound(f"the checkpointer has no thread {thread_id!r}")


# Entries -------------------------------------------------------------------------------------------------------------


def _namespace(user_id: str) -> Namespace:
    return "users", user_id, "conversations"


def _check_thread(thread_id: Any) -> str:
    if not isinstance(thread_id, str) or not thread_id:
        raise InvalidInput(f"a thread_id is a non-empty str, not {shown(thread_id)}")
    return thread_id


def _to_stored(messages: Any, channel: str) -> list[dict[str, Any]]:
    try:
        return to_stored(messages)
    except (NotImplementedError, TypeError, ValueError, KeyError) as error:  # LangChain's errors
        raise InvalidInput(f"the channel {channel!r} does not contain messages: {shown(messages)}: {error}") from error


def _continues(value: Mapping[str, Any], last: Mapping[str, Any]) -> bool:
    """Whether a later state has all messages of another one, in their order and unchanged."""
    known = last["messages"]
    return bool(last["checkpoint_at"] <= value["checkpoint_at"] and value["messages"][: len(known)] == known)


def _thread_filter(thread_id: str | None) -> dict[str, Any] | None:
    """Return the filter for the conversations of one thread; None for all threads."""
    return None if thread_id is None else {"thread_id": {"$eq": thread_id}}


def _is_conversation(entry: Entry) -> bool:
    """Whether an entry was written by `archive`. `put` may write other values to the same namespace."""
    value = entry.value
    texts = [value.get(name) for name in ("user_id", "thread_id", "checkpoint_id", "checkpoint_at")]
    messages = value.get("messages")
    if not all(isinstance(text, str) for text in texts) or not isinstance(messages, list):
        return False
    try:
        datetime.fromisoformat(value["checkpoint_at"])
    except ValueError:
        return False
    return all(isinstance(message, dict) and isinstance(message.get("type"), str) for message in messages)


def _to_conversation(entry: Entry) -> Conversation:
    value = entry.value
    return Conversation(
        value["user_id"],
        value["thread_id"],
        entry.key,
        value["checkpoint_id"],
        datetime.fromisoformat(value["checkpoint_at"]),
        entry.created_at,
        len(value["messages"]),
        entry.score if isinstance(entry, Hit) else None,
    )


def _rank_messages(query: str, hits: list[Hit], neighbours: float, limit: int) -> list[FoundMessage]:
    texts = [[str(message.get("content") or "") for message in hit.value["messages"]] for hit in hits]
    found: list[FoundMessage] = []
    seen: set[tuple[str, str, str]] = set()
    for at, number, score in face_api.rank_texts(query, texts, neighbours):
        if len(found) == limit:
            break
        stored = hits[at].value["messages"][number]
        identity = hits[at].value["thread_id"], stored["type"], texts[at][number]
        if identity not in seen:
            seen.add(identity)
            found.append(FoundMessage(_to_conversation(hits[at]), number, from_stored([stored])[0], score))
    return found


def _newer_than(hit: Hit) -> dict[str, Any]:
    """Return the filter for later checkpoints: by time, and by id for the same time."""
    at, checkpoint_id = hit.value["checkpoint_at"], hit.value["checkpoint_id"]
    return {"$or": [{"checkpoint_at": {"$gt": at}}, {"checkpoint_at": at, "checkpoint_id": {"$gt": checkpoint_id}}]}


def _to_limit(older_than: Any) -> datetime:
    """Return the time before which a conversation is older."""
    try:
        if isinstance(older_than, datetime) and older_than.utcoffset() is not None:
            return older_than.astimezone(UTC)
        if isinstance(older_than, timedelta):
            return datetime.now(UTC) - older_than
    except OverflowError:
        raise InvalidInput(f"older_than is outside of the years 1 to 9999 in UTC: {shown(older_than)}") from None
    raise InvalidInput(f"older_than is a timedelta or a datetime with a time zone, not {shown(older_than)}")


def _format_time(time: datetime) -> str:
    """Return a time as text that sorts in time order."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def _to_dict(hit: Hit) -> dict[str, Any]:
    return {
        "namespace": list(hit.namespace),
        "key": hit.key,
        "value": hit.value,
        "created_at": hit.created_at.isoformat(),
        "updated_at": hit.updated_at.isoformat(),
        "score": hit.score,
    }
