"""Threads of LangGraph's checkpointer: as a list, step by step, and their upkeep.

Stored values are read as plain JSON: nothing that a thread contains is imported or constructed here.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from starlette.responses import Response

from ...errors import InvalidInput, MissingExtra, NotFound
from ..exchange import NUMBER, TEXT, Call, Handler, answer, decode_json, no_content, takes
from ..problems import HttpError
from .documents import NO_QUERY, Deleted, refuse_past
from .events import Event, stream_events

if TYPE_CHECKING:
    from ...faces.langgraph import HoldallSaver

_MOST_CHECKPOINTS = 100  # in one answer


class InertSerializer:
    """Reads what LangGraph's serializer has written as plain JSON: an object is its fields, and its name in `$type`."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, content = data
        if kind == "null":
            return None
        if kind == "json":
            return msgspec.json.decode(content)
        if kind == "msgpack":
            return _to_plain(_decode(content))
        if "+" in kind:
            raise HttpError(422, "this thread is encrypted, and the server does not have its key", title="Unsupported")
        return {"$type": kind, "$bytes": base64.b64encode(content).decode()}

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        raise NotImplementedError(f"the server writes no checkpoints: {type(obj).__name__}")


def _read_object(code: int, data: memoryview) -> Any:
    found = _decode(bytes(data))
    if code == _DELTA_SNAPSHOT or not isinstance(found, list) or len(found) < 3 or not isinstance(found[1], str):
        return found
    module, name, argument = found[:3]
    if (module, name) == ("uuid", "UUID") or not isinstance(argument, dict | list):
        return argument
    fields = argument if isinstance(argument, dict) else {"$args": argument}
    return {"$type": f"{module}.{name}", **{str(field): value for field, value in fields.items()}}


_DELTA_SNAPSHOT = 7
_decode = msgspec.msgpack.Decoder(ext_hook=_read_object, strict=False).decode


def _to_plain(value: Any) -> Any:
    """A decoded value with text as the names of fields, and bytes as text."""
    if isinstance(value, dict):
        return {name if isinstance(name, str) else str(name): _to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    return {"$bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _saver(call: Call) -> HoldallSaver:
    try:
        from ...faces.langgraph import HoldallSaver
    except ModuleNotFoundError as missing:
        raise MissingExtra(
            f"threads need the package {missing.name!r} on the server: pip install 'holdall[langgraph]'",
            name=missing.name,
        ) from missing
    return HoldallSaver(call.store, serde=InertSerializer())


def _thread_id(call: Call, start: str) -> str:
    segments = call.segments(start)
    if len(segments) != 1 or not segments[0]:
        raise InvalidInput("a thread's id is one segment of the path: encode '/' as %2F")
    return segments[0]


def _config(thread: str, call: Call) -> Any:
    configurable = {"thread_id": thread, "checkpoint_ns": call.text("checkpoint_ns") or ""}
    if call.text("checkpoint_id"):
        configurable["checkpoint_id"] = call.text("checkpoint_id") or ""
    return {"configurable": configurable}


class PendingWrite(msgspec.Struct):
    """A write of a task to a channel."""

    task_id: str
    channel: str
    value: Any


class Checkpoint(msgspec.Struct):
    """A checkpoint of a thread: the values of its channels, and the writes that are pending."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    time: str
    metadata: dict[str, Any]
    values: dict[str, Any]
    writes: list[PendingWrite]


def _to_checkpoint(found: Any) -> Checkpoint:
    where, parent = found.config["configurable"], found.parent_config
    return Checkpoint(
        thread_id=where["thread_id"],
        checkpoint_ns=where["checkpoint_ns"],
        checkpoint_id=where["checkpoint_id"],
        parent_id=None if parent is None else parent["configurable"]["checkpoint_id"],
        time=found.checkpoint["ts"],
        metadata=found.metadata,
        values=found.checkpoint["channel_values"],
        writes=[PendingWrite(*write) for write in found.pending_writes or ()],
    )


class ListedThread(msgspec.Struct):
    """A thread. `step` and `metadata` are those of its last checkpoint."""

    # The fields of the face's `Thread`, which cannot be imported where LangGraph is not installed.

    id: str
    created_at: datetime
    updated_at: datetime
    checkpoints: int
    checkpoint_id: str
    step: int | None
    metadata: dict[str, Any]
    preview: str | None


class ThreadPage(msgspec.Struct):
    """Threads; `next` is the cursor of the page that follows, or null."""

    threads: list[ListedThread]
    next: str | None


@takes(prefix=TEXT, query=TEXT, filter=TEXT, limit=NUMBER, cursor=TEXT, at=TEXT)
async def list_threads(call: Call) -> Response:
    """List threads, those with the newest checkpoint first."""
    given = call.text("filter")
    if call.text("query"):
        refuse_past(call, NO_QUERY)
    page = await _saver(call).athreads(
        prefix=call.text("prefix"),
        filter=None if given is None else decode_json(given.encode(), dict[str, Any]),
        query=call.text("query"),
        limit=call.number("limit", 100, call.service.limits.page),
        cursor=call.text("cursor"),
    )
    return answer(ThreadPage(msgspec.convert(list(page), list[ListedThread], from_attributes=True), page.next))


@takes(checkpoint_id=TEXT, checkpoint_ns=TEXT, at=TEXT)
async def get_thread(call: Call) -> Response:
    """Read the state of a thread: of its last checkpoint, or of `checkpoint_id`."""
    thread = _thread_id(call, "/v1/threads/")
    found = await _saver(call).aget_tuple(_config(thread, call))
    if found is None:
        raise NotFound(f"there is no such checkpoint of the thread {thread!r}")
    return answer(_to_checkpoint(found))


class CheckpointPage(msgspec.Struct):
    """Checkpoints, newest first; `next` is the argument `before` of the page that follows, or null."""

    checkpoints: list[Checkpoint]
    next: str | None


@takes(checkpoint_id=TEXT, checkpoint_ns=TEXT, before=TEXT, limit=NUMBER, at=TEXT)
async def list_checkpoints(call: Call) -> Response:
    """List the checkpoints of a thread, newest first; `before` is the id of the last one of the page before."""
    thread = _thread_id(call, "/v1/checkpoints/")
    before = call.text("before")
    limit = call.number("limit", 20, _MOST_CHECKPOINTS)
    found = _saver(call).alist(
        _config(thread, call),
        before=None if before is None else {"configurable": {"checkpoint_id": before}},
        limit=limit + 1,
    )
    checkpoints = [_to_checkpoint(one) async for one in found]
    following = checkpoints[limit - 1].checkpoint_id if len(checkpoints) > limit and limit else None
    return answer(CheckpointPage(checkpoints[:limit], following))


@takes("last-event-id", checkpoint_ns=TEXT)
async def watch_thread(call: Call) -> Response:
    """Stream the checkpoints of a thread that are put from now on, or after Last-Event-ID, as server-sent events."""
    thread = _thread_id(call, "/v1/thread-changes/")
    call.access.require("read")
    last = call.request.headers.get("last-event-id") or None
    found = _saver(call).awatch(thread, checkpoint_ns=call.text("checkpoint_ns") or "", after=last)
    return await stream_events(call, _describe_checkpoints(found), found.aclose)  # type: ignore[attr-defined]  # a generator


async def _describe_checkpoints(found: Any) -> AsyncIterator[Event]:
    async for one in found:
        checkpoint = _to_checkpoint(one)
        yield checkpoint.checkpoint_id, "checkpoint", checkpoint


async def delete_thread(call: Call) -> Response:
    """Delete a thread with all its checkpoints."""
    await _saver(call).adelete_thread(_thread_id(call, "/v1/threads/"))
    return no_content()


class ThreadTtl(msgspec.Struct, forbid_unknown_fields=True):
    """How long a thread is kept after its last use, in seconds; null: for ever."""

    ttl: Annotated[float, msgspec.Meta(gt=0, lt=10**9)] | None


async def set_ttl(call: Call) -> Response:
    """Give a thread a TTL of its own."""
    given = await call.json(ThreadTtl)
    await _saver(call).aset_ttl(_thread_id(call, "/v1/threads/"), given.ttl)
    return no_content()


class ThreadCopy(msgspec.Struct, forbid_unknown_fields=True):
    """From which thread to which new one."""

    src: str
    dst: str


async def copy_thread(call: Call) -> Response:
    """Copy a thread with all its checkpoints."""
    given = await call.json(ThreadCopy)
    saver = _saver(call)
    if await saver.aget_tuple({"configurable": {"thread_id": given.src}}) is None:  # also refuses an encrypted one
        raise NotFound(f"there is no thread {given.src!r}")
    await saver.acopy_thread(given.src, given.dst)
    return no_content()


class Prune(msgspec.Struct, forbid_unknown_fields=True):
    """Threads whose checkpoints are deleted: all but the latest, or all."""

    threads: list[str]
    strategy: Literal["keep_latest", "delete"] = "keep_latest"


async def prune_threads(call: Call) -> Response:
    """Delete checkpoints of threads."""
    given = await call.json(Prune)
    await _saver(call).aprune(given.threads, strategy=given.strategy)
    return no_content()


class Retain(msgspec.Struct, forbid_unknown_fields=True):
    """Which checkpoints of all threads stay: the last ones, and those that are younger, in seconds."""

    keep_last: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    older_than: Annotated[float, msgspec.Meta(ge=0, lt=10**9)] | None = None


async def retain_checkpoints(call: Call) -> Response:
    """Delete old checkpoints of all threads."""
    given = await call.json(Retain)
    removed = await _saver(call).aretain(keep_last=given.keep_last, older_than=given.older_than)
    return answer(Deleted(removed))


class Runs(msgspec.Struct, forbid_unknown_fields=True):
    """The ids of runs."""

    run_ids: list[str]


async def delete_runs(call: Call) -> Response:
    """Delete the checkpoints of runs, in all threads."""
    await _saver(call).adelete_for_runs((await call.json(Runs)).run_ids)
    return no_content()


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    "/v1/threads": {"GET": (list_threads, "read")},
    "/v1/threads/{thread:path}": {
        "GET": (get_thread, "read"),
        "PATCH": (set_ttl, "write"),
        "DELETE": (delete_thread, "write"),
    },
    "/v1/checkpoints/{thread:path}": {"GET": (list_checkpoints, "read")},
    "/v1/thread-changes/{thread:path}": {"GET": (watch_thread, "watch")},
    "/v1/copy-thread": {"POST": (copy_thread, "write")},
    "/v1/prune-threads": {"POST": (prune_threads, "write")},
    "/v1/retain-checkpoints": {"POST": (retain_checkpoints, "write")},
    "/v1/delete-runs": {"POST": (delete_runs, "write")},
}
