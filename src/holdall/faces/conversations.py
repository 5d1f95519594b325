"""Conversations that outlive their checkpointer: archived by user, found again, resumed, exported, erased.

A checkpointer keeps a thread until its TTL ends. `archive` copies the thread's messages out of it, as one entry:

    namespace  ("users", user_id, "conversations")
    key        {thread_id}_{YYYYMMDD}_{HHMMSS}_{8 hex}    the checkpoint's time, and a hash of its id
    value      user_id, thread_id, checkpoint_id, checkpoint_at, messages

The key comes from the checkpoint alone, so what is archived twice is stored once. Everything of a user's lies below
their own namespace, so a thread's id opens nothing of anybody else's. On PostgreSQL, views show the same to SQL.
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

    from .langgraph import HoldallStore
    from .messages import from_stored, to_stored
except ModuleNotFoundError as missing:
    from ..errors import MissingExtra

    raise MissingExtra(
        f"conversations need the package {missing.name!r}: pip install 'holdall[langgraph]'", name=missing.name
    ) from missing

from .. import keys, ops, seam
from ..errors import AlreadyExists, Conflict, InvalidInput, NotFound, shown
from ..ops import ABSENT, Entry, Hit, Namespace
from ..programs import Call, Program, Work, arun, before_retry, run
from .audit import Audit, Sink
from .conn_strings import is_postgres
from .opening import Face

__all__ = ["BaseStoreRepository", "Conversation", "ConversationRepository", "PostgresStoreRepository"]

_AT_ONCE = 100
_SAID = ("messages[*].content",)  # what a query finds of a conversation: a vector for each message


@dataclass(frozen=True, slots=True)
class Conversation:
    """One archived state of a thread. `score` is None where nothing was asked for."""

    user_id: str
    thread_id: str
    key: str
    checkpoint_id: str
    checkpoint_at: datetime
    archived_at: datetime
    message_count: int
    score: float | None = None


class BaseStoreRepository(ABC):
    """A store behind four methods, for code that wants to know no more of it."""

    @property
    @abstractmethod
    def store(self) -> BaseStore:
        """The LangGraph store, to compile a graph with."""

    @abstractmethod
    def put(self, namespace: Namespace, key: str, value: Mapping[str, Any]) -> None:
        """Write a value."""

    @abstractmethod
    def get(self, namespace: Namespace, key: str) -> dict[str, Any] | None:
        """A value, or None."""

    @abstractmethod
    def search(self, namespace: Namespace, query: str | None = None, limit: int = 10) -> list[dict[str, Any]]:
        """What is in a namespace and below it: the newest, or what fits a query best."""

    @abstractmethod
    def delete(self, namespace: Namespace, key: str) -> None:
        """Remove a value."""


class ConversationRepository(Face, BaseStoreRepository):
    """Archived conversations, on any engine. Each method has an `a…` twin, which is awaited.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `index` is LangGraph's, for search
    by meaning.
    """

    def __init__(self, store_or_url: Any = None, *, index: Any = None) -> None:
        self._stand_on(HoldallStore(store_or_url, index=index))

    def _stand_on(self, face: HoldallStore) -> None:
        self._face = face
        self._beneath = face.store

    @property
    def store(self) -> HoldallStore:
        """The LangGraph store, to compile a graph with."""
        return self._face

    # Any value -------------------------------------------------------------------------------------------------------

    def _put(self, namespace: Namespace, key: str, value: Mapping[str, Any]) -> Program[None]:
        """Write a value; not below "langgraph", which is LangGraph's own."""
        if isinstance(namespace, tuple | list) and namespace[:1] in (("langgraph",), ["langgraph"]):
            raise InvalidInput(f"the root 'langgraph' is LangGraph's own: put it elsewhere than {shown(namespace)}")
        yield from seam.put(self._beneath, namespace, key, value)

    put = run(_put)
    aput = arun(_put)

    def _get(self, namespace: Namespace, key: str) -> Program[dict[str, Any] | None]:
        """A value, or None."""
        entry: Entry | None = (yield [ops.Get(namespace, key)])[0]
        return None if entry is None else entry.value

    get = run(_get)
    aget = arun(_get)

    def _search(self, namespace: Namespace, query: str | None = None, limit: int = 10) -> Program[list[dict[str, Any]]]:
        """What is in a namespace and below it: the newest, or what fits a query best.

        A dict has `namespace`, `key`, `value`, `created_at`, `updated_at` and `score`.
        """
        found = yield from seam.search(self._beneath, namespace, query=query, limit=limit)
        return [_shown(hit) for hit in found]

    search = run(_search)
    asearch = arun(_search)

    def _delete(self, namespace: Namespace, key: str) -> Program[None]:
        """Remove a value, if it is there."""
        yield [ops.Delete(namespace, key)]

    delete = run(_delete)
    adelete = arun(_delete)

    # Conversations ---------------------------------------------------------------------------------------------------

    def archive(self, user_id: str, thread_id: str, checkpointer: Any, *, channel: str = "messages") -> Conversation:
        """Copy a thread's messages out of its checkpointer, or out of the graph that is compiled with it.

        Archived again without a new checkpoint, it is what it was. `channel` is where the state has its messages.
        """
        return self._run(self._archive(user_id, thread_id, channel, lambda: _read(checkpointer, thread_id)))

    async def aarchive(
        self, user_id: str, thread_id: str, checkpointer: Any, *, channel: str = "messages"
    ) -> Conversation:
        """`archive`, awaited."""
        return await self._arun(self._archive(user_id, thread_id, channel, lambda: _aread(checkpointer, thread_id)))

    def _archive(
        self, user_id: str, thread_id: str, channel: str, read: Callable[[], _Snapshot | Awaitable[_Snapshot]]
    ) -> Program[Conversation]:
        home = _home(user_id)
        _checked_thread(thread_id)
        if not isinstance(channel, str):
            raise InvalidInput(f"channel= is the name of a channel of the state, not {shown(channel)}")
        snapshot: _Snapshot = yield Call(read, ())
        if channel not in snapshot.values:
            where = snapshot.hint or "; channel= says where its messages are"
            raise NotFound(f"the state of thread {thread_id!r} has no {channel!r}{where}")
        at = snapshot.at.astimezone(UTC)
        digest = hashlib.sha256(snapshot.checkpoint_id.encode()).hexdigest()[:8]
        key = f"{thread_id}_{at:%Y%m%d_%H%M%S}_{digest}"
        value = {
            "user_id": user_id,
            "thread_id": thread_id,
            "checkpoint_id": snapshot.checkpoint_id,
            "checkpoint_at": _text_of(at),
            "messages": _stored(snapshot.values[channel], channel),
        }
        put = ops.Put(home, key, value, None, ABSENT, index=_SAID)
        for tries in itertools.count(1):
            try:
                return _conversation((yield from seam.written(self._beneath, [put]))[0])
            except Conflict as conflict:
                entry: Entry | None = (yield [ops.Get(home, key)])[0]
                if entry is None:  # it is gone again
                    yield from before_retry(conflict, tries)
                elif _is_conversation(entry):  # archived already
                    return _conversation(entry)
                else:
                    raise AlreadyExists(
                        f"{key!r} in {home!r} is no archived conversation, and would be lost; delete it first"
                    ) from None
        raise AssertionError("unreachable")

    def _conversations(
        self, user_id: str, *, thread_id: str | None = None, query: str | None = None, limit: int = 100
    ) -> Program[list[Conversation]]:
        """A user's conversations: the last archived first, or those that fit a query best."""
        keys.check_count("limit", limit)
        found: list[Conversation] = []
        cursor: str | None = None
        while len(found) < limit:
            page = yield from seam.search(
                self._beneath,
                _home(user_id),
                query=query,
                filter=_of_thread(thread_id),
                limit=limit,
                cursor=cursor,
                recursive=False,
            )
            found += [_conversation(hit) for hit in page if _is_conversation(hit)]
            cursor = page.next
            if cursor is None:
                break
        return found[:limit]

    conversations = run(_conversations)
    aconversations = arun(_conversations)

    def _resume(self, user_id: str, thread_id: str) -> Program[list[BaseMessage]]:
        """The messages of a user's thread at its newest checkpoint that was archived, to go on with in a new one."""
        home, of_thread = _home(user_id), {"thread_id": {"$eq": _checked_thread(thread_id)}}
        # The last archived is mostly the newest; then nothing is found that is newer, and no other state is loaded.
        newest = found = yield from self._last_archived(home, of_thread)
        while found is not None:
            newest, found = found, (yield from self._last_archived(home, {"$and": [of_thread, _newer_than(found)]}))
        if newest is None:
            raise NotFound(f"user {user_id!r} has no archived conversation of thread {thread_id!r}")
        return from_stored(newest.value["messages"])

    resume = run(_resume)
    aresume = arun(_resume)

    def _export(
        self,
        target: str | os.PathLike[str] | Sink,
        *,
        user_id: str | None = None,
        thread_id: str | None = None,
        format: Literal["jsonl", "csv"] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Program[int]:
        """Write every message of every archived conversation, of one user or of all, for an audit; how many.

        `target` is a path or a text file. A line of JSONL has everything; a row of CSV is for spreadsheets. By default
        the path's ending says which. `progress(done, total)` counts conversations.
        """
        keys.check_function("progress", progress)
        wanted = _of_thread(thread_id)
        done = total = 0
        with Audit(target, format) as audit:

            def write(hits: list[Hit]) -> Program[None]:
                nonlocal done
                for hit in hits:
                    yield Work(audit.write, (_conversation(hit), hit.value["messages"]))
                done += len(hits)
                if progress is not None:
                    yield Call(progress, (done, max(done, total)))

            homes = yield from self._homes(user_id)
            for home in homes:
                total += yield from seam.count(self._beneath, home, filter=wanted, recursive=False)
            for home in homes:
                yield from self._visit(home, wanted, write)
            return audit.written

    export = run(_export)
    aexport = arun(_export)

    def _retain(self, older_than: timedelta | datetime, *, user_id: str | None = None) -> Program[int]:
        """Delete conversations whose checkpoint is older, of one user or of all; how many."""
        end = _text_of(_before(older_than))
        deleted = 0

        def delete(hits: list[Hit]) -> Program[None]:
            nonlocal deleted
            gone: list[bool] = (yield [ops.Delete(hit.namespace, hit.key) for hit in hits]) if hits else []
            deleted += sum(gone)

        for home in (yield from self._homes(user_id)):
            yield from self._visit(home, {"checkpoint_at": {"$lt": end}}, delete)
        return deleted

    retain = run(_retain)
    aretain = arun(_retain)

    def _erase(self, user_id: str) -> Program[int]:
        """Delete all that is archived of a user, at once; how many entries."""
        return (yield from seam.delete_tree(self._beneath, _home(user_id)))

    erase = run(_erase)
    aerase = arun(_erase)

    # Below -----------------------------------------------------------------------------------------------------------

    def _visit(
        self, home: Namespace, filter: dict[str, Any] | None, visit: Callable[[list[Hit]], Program[None]]
    ) -> Program[None]:
        """Every conversation of a user that matches, some at a time."""
        cursor: str | None = None
        while True:
            page = yield from seam.search(
                self._beneath, home, filter=filter, limit=_AT_ONCE, cursor=cursor, recursive=False
            )
            yield from visit([hit for hit in page if _is_conversation(hit)])
            cursor = page.next
            if cursor is None:
                return

    def _last_archived(self, home: Namespace, filter: dict[str, Any]) -> Program[Hit | None]:
        """The conversation of a user that was archived last, of those that match."""
        cursor: str | None = None
        while True:
            page = yield from seam.search(self._beneath, home, filter=filter, limit=1, cursor=cursor, recursive=False)
            if page and _is_conversation(page[0]):
                return page[0]
            cursor = page.next
            if cursor is None:
                return None

    def _homes(self, user_id: str | None) -> Program[list[Namespace]]:
        """Where one user's conversations are, or everybody's."""
        if user_id is not None:
            return [_home(user_id)]
        homes: list[Namespace] = []
        offset = 0
        while True:
            some = yield from seam.namespaces(self._beneath, prefix=_home("*"), max_depth=3, limit=1000, offset=offset)
            homes += some
            offset += 1000
            if len(some) < 1000:
                return homes

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._face.close()

    async def aclose(self) -> None:
        """`close`, awaited."""
        await self._face.aclose()


class PostgresStoreRepository(ConversationRepository):
    """`ConversationRepository` on PostgreSQL, where SQL can look into it (the views `holdall_conversations`, …)."""

    def __init__(self, conn_string: str, *, pool_config: Mapping[str, Any] | None = None, index: Any = None) -> None:
        if not isinstance(conn_string, str) or not is_postgres(conn_string):
            raise InvalidInput("PostgresStoreRepository takes a URL of PostgreSQL; ConversationRepository takes any")
        self._stand_on(HoldallStore._opened_from(conn_string, pool_config, index, None))


# Checkpointers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A thread's state, from a checkpointer or a graph."""

    checkpoint_id: str
    at: datetime
    values: Mapping[str, Any]
    hint: str = ""


def _read(source: Any, thread_id: str) -> _Snapshot:
    if hasattr(source, "get_state"):
        return _of_graph(source.get_state(_config(thread_id)), thread_id)
    if hasattr(source, "get_tuple"):
        return _of_checkpointer(source.get_tuple(_config(thread_id)), thread_id)
    raise _no_source(source)


async def _aread(source: Any, thread_id: str) -> _Snapshot:
    try:
        if hasattr(source, "aget_state"):
            return _of_graph(await source.aget_state(_config(thread_id)), thread_id)
        if hasattr(source, "aget_tuple"):
            return _of_checkpointer(await source.aget_tuple(_config(thread_id)), thread_id)
    except NotImplementedError:  # SqliteSaver and PostgresSaver are sync only
        return await asyncio.to_thread(_read, source, thread_id)
    raise _no_source(source)


def _config(thread_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id}}


def _no_source(source: Any) -> InvalidInput:
    return InvalidInput(f"a thread is archived from a checkpointer or a compiled graph, not from {shown(source)}")


def _of_checkpointer(found: Any, thread_id: str) -> _Snapshot:
    if found is None:
        raise _no_thread(thread_id)
    checkpoint = found.checkpoint
    is_in_parts = bool((found.metadata or {}).get("counters_since_delta_snapshot"))
    hint = " in one piece, so pass the compiled graph instead" if is_in_parts else ""
    return _Snapshot(checkpoint["id"], datetime.fromisoformat(checkpoint["ts"]), checkpoint["channel_values"], hint)


def _of_graph(state: Any, thread_id: str) -> _Snapshot:
    if state.created_at is None:
        raise _no_thread(thread_id)
    checkpoint_id = state.config["configurable"]["checkpoint_id"]
    return _Snapshot(checkpoint_id, datetime.fromisoformat(state.created_at), state.values)


def _no_thread(thread_id: str) -> NotFound:
    return NotFound(f"the checkpointer has no thread {thread_id!r}")


# Entries -------------------------------------------------------------------------------------------------------------


def _home(user_id: str) -> Namespace:
    return "users", user_id, "conversations"


def _checked_thread(thread_id: Any) -> str:
    if not isinstance(thread_id, str) or not thread_id:
        raise InvalidInput(f"a thread_id is a non-empty str, not {shown(thread_id)}")
    return thread_id


def _stored(messages: Any, channel: str) -> list[dict[str, Any]]:
    try:
        return to_stored(messages)
    except (NotImplementedError, TypeError, ValueError, KeyError) as error:  # as LangChain says it
        raise InvalidInput(f"the channel {channel!r} has no messages, but {shown(messages)}: {error}") from error


def _of_thread(thread_id: str | None) -> dict[str, Any] | None:
    """The filter for one thread's conversations, whatever was given for its id; None for all."""
    return None if thread_id is None else {"thread_id": {"$eq": thread_id}}


def _is_conversation(entry: Entry) -> bool:
    """Whether `archive` made it: `put` may have put anything beside."""
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


def _conversation(entry: Entry) -> Conversation:
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


def _newer_than(hit: Hit) -> dict[str, Any]:
    """The filter for conversations of a later checkpoint: by its time and, of two at one time, by its id."""
    at, checkpoint_id = hit.value["checkpoint_at"], hit.value["checkpoint_id"]
    return {"$or": [{"checkpoint_at": {"$gt": at}}, {"checkpoint_at": at, "checkpoint_id": {"$gt": checkpoint_id}}]}


def _before(older_than: Any) -> datetime:
    """The moment that a conversation is older than."""
    if isinstance(older_than, datetime) and older_than.tzinfo is not None:
        return older_than
    if not isinstance(older_than, timedelta):
        raise InvalidInput(f"older_than is a timedelta or an aware datetime, not {shown(older_than)}")
    try:
        return datetime.now(UTC) - older_than
    except OverflowError:
        raise InvalidInput(f"older_than is a timedelta that leads to no year there was: {shown(older_than)}") from None


def _text_of(moment: datetime) -> str:
    """A time as text that sorts as times do."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _shown(hit: Hit) -> dict[str, Any]:
    return {
        "namespace": list(hit.namespace),
        "key": hit.key,
        "value": hit.value,
        "created_at": hit.created_at.isoformat(),
        "updated_at": hit.updated_at.isoformat(),
        "score": hit.score,
    }
