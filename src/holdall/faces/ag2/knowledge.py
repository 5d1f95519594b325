"""AG2's knowledge on any engine: `HoldallKnowledgeStore` implements `KnowledgeStore`.

    agent = Agent("ada", config=…, knowledge=KnowledgeConfig(store=HoldallKnowledgeStore("agent.db")))

Each method calls one of `holdall.Files`, with AG2's paths and results. AG2 need not be installed. If it is, its own
types are used (`protocol.py`). The event logs are in `event_log.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

from ... import ABSENT, ANY, FileInfo, Lease, ops
from ...core import face_api
from ...errors import Conflict, CursorExpired, HoldallError, InvalidInput, StoreClosed, shown
from ...ops import Expect, Expectation, Namespace
from ..base import FilesFace
from .locks import Locks
from .protocol import LOG_PREFIX, ChangeCallback, ChangeSubscription, KnowledgeStore, create_file, has_parameter

logger = logging.getLogger("holdall")

_Names: TypeAlias = list[str]
_LOCK_SECONDS = 30.0  # the longest time that AG2 holds a lock
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0  # seconds before a subscription retries after an error of its store
_in_callback: ContextVar[bool] = ContextVar("holdall: in a callback of on_change", default=False)


class HoldallKnowledgeStore(FilesFace):
    """An agent's knowledge: the files of one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. Agents with the same `namespace`
    share their knowledge. `options` are passed to `holdall.open` if a URL is given.
    """

    _waits_for_callbacks = False  # whether a change returns after the callbacks for it have run

    def __init__(self, store_or_url: Any = None, *, namespace: Namespace = ("knowledge",), **options: Any) -> None:
        self._open_files(store_or_url, namespace, **options)
        self._subscriptions: set[_Subscription] = set()

    # Reading ---------------------------------------------------------------------------------------------------------

    async def read(self, path: str) -> str | None:
        """Return the text of a file, with its line ends unchanged; None if there is no file."""
        content = await self._read_bytes(path, 0, None)
        return None if content is None else content.decode()

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """Return the text of the bytes from `start` up to `end`, or to the end of the file; "" if there is no file.

        A range that begins or ends inside a character raises `UnicodeDecodeError`.
        """
        return (await self._read_bytes(path, start, end) or b"").decode()

    async def _read_bytes(self, path: str, start: int, end: int | None) -> bytes | None:
        path = _normalise(path)
        if path == "/":
            return None
        content: bytes | None
        [content] = await self.store.aexecute([ops.ReadRange(self.files.namespace, path, start, end)])
        return content

    async def list(self, path: str = "/", *, prefix: str = "") -> _Names:
        """List the names in a folder that begin with `prefix`, sorted. The names of subfolders end in "/"."""
        return await self.files.anames(_normalise(path), prefix=prefix)

    async def exists(self, path: str) -> bool:
        """Whether a path is a file, or a folder with files in it."""
        return await self.files.aexists(_normalise(path))

    async def list_versions_under(self, prefix: str) -> dict[str, int]:
        """Return the version of each file at a path or below it. Versions only increase."""
        path = _normalise(prefix)
        files = [info async for info in self.files.awalk(path)]
        if path != "/" and await self.files.aexists(path):
            files.append(await self.files.astat(path))
        return {info.path: info.version for info in files if info.version is not None}

    # Writing ---------------------------------------------------------------------------------------------------------

    async def write(
        self, path: str, content: str, *, expect: Expectation | FileInfo = ANY, lease: Lease | None = None
    ) -> None:
        """Create or replace a file. `expect` and `lease` are those of `holdall.Files.write`."""
        await self.files.awrite(_normalise(path), content, expect=expect, lease=lease)
        await self._await_callbacks()

    async def append(self, path: str, content: str, *, lease: Lease | None = None) -> int:
        """Append text to a file, or create it, at the cost of that text alone. Returns the byte offset of the text."""
        offset = await self.files.aappend(_normalise(path), content, lease=lease)
        await self._await_callbacks()
        return offset

    async def delete(self, path: str, *, lease: Lease | None = None) -> None:
        """Delete a file, or a folder and all files in it, if it exists."""
        await self.files.adelete(_normalise(path), recursive=True, lease=lease)
        await self._await_callbacks()

    # Changes ---------------------------------------------------------------------------------------------------------

    async def on_change(self, path: str, callback: ChangeCallback) -> ChangeSubscription:
        """Call `callback(path)` for every change of a file at a path or below it from now on, by any process.

        Calls are made one at a time, in the order of change, and for each file of a deleted folder. Several changes of
        a file before its call may give one call. An exception in the callback is logged, and has no other effect.
        """
        subscription = _Subscription(self, _normalise(path), callback)
        await subscription.start()
        return subscription

    async def _await_callbacks(self) -> None:
        """Wait for the callbacks of a change if this class promises that; not for a change made by a callback."""
        if self._waits_for_callbacks and self._subscriptions and not _in_callback.get():
            for subscription in list(self._subscriptions):
                await subscription.wait_until_caught_up()

    # Closing ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the subscriptions that were made here, and close the store if it was opened here."""
        for subscription in list(self._subscriptions):
            subscription.schedule_close()
        super().close()

    async def aclose(self) -> None:
        """`close`, awaited. It returns after the subscriptions have ended."""
        for subscription in list(self._subscriptions):
            await subscription.close()
        await super().aclose()


class MemoryKnowledgeStore(HoldallKnowledgeStore):
    """Knowledge in memory, for one process. As in AG2's own, a change returns after its callbacks have run."""

    _waits_for_callbacks = True

    def __init__(self) -> None:
        super().__init__("memory:")


class SqliteKnowledgeStore(HoldallKnowledgeStore):
    """Knowledge in a SQLite file. Missing folders of its path are created.

    `on_change` also reports the changes of other processes, without polling. `poll_interval_s` is ignored; it is
    accepted for compatibility with AG2's own class.
    """

    def __init__(self, path: str | os.PathLike[str], *, poll_interval_s: float = 0.5) -> None:  # noqa: ARG002  # ignored
        path = os.fspath(path)
        if path != ":memory:":
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # noqa: PTH103, PTH120  # a str
        super().__init__("memory:" if path == ":memory:" else f"sqlite:///{path}")


class DiskKnowledgeStore(HoldallKnowledgeStore):
    """Knowledge in plain files of a folder, which any tool may read and edit. A missing folder is created.

    They are the files of `holdall.open("disk:///folder").files()`. `on_change` also reports changes made by other
    programs, such as an editor.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(f"disk:///{os.fspath(root)}", namespace=("filesystem",))


class RedisKnowledgeStore(HoldallKnowledgeStore):
    """Knowledge in Redis or Valkey, under keys that begin with `key_prefix`, in holdall's format and not in AG2's.

    `on_change` also reports the changes of other processes, without polling. `poll_interval_s` is ignored; it is
    accepted for compatibility with AG2's own class.
    """

    def __init__(self, url: str, *, key_prefix: str = "ag2:knowledge", poll_interval_s: float = 0.5) -> None:  # noqa: ARG002  # ignored
        if not isinstance(url, str):
            raise InvalidInput(f"url is the URL of a server, redis://…, and not a client: {shown(url)}")
        super().__init__(url, key_prefix=f"{key_prefix.rstrip(':')}:holdall")


class LockedKnowledgeStore:
    """A store that takes a lock on the path for each change. Reads take no lock.

    `lock` is any object with `await acquire(name, ttl=…) -> bool` and `await release(name)`. The default is
    `Locks` of the same store. With it, the storage itself refuses a change whose lock has been lost:
    `LeaseLost`.
    """

    def __init__(self, store: KnowledgeStore, lock: Any = None) -> None:
        self._store = store
        if lock is None:
            if not isinstance(store, HoldallKnowledgeStore):
                raise InvalidInput(f"only a HoldallKnowledgeStore has locks of its own; pass lock= for {shown(store)}")
            lock = Locks(store.store, namespace=store.files.namespace)
        self._lock = lock
        self._fences = (
            isinstance(lock, Locks)
            and isinstance(store, HoldallKnowledgeStore)
            and face_api.is_same_storage(lock.store, store.store)
        )

    async def read(self, path: str) -> str | None:
        return await self._store.read(path)

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        return await self._store.read_range(path, start, end)

    async def list(self, path: str = "/", *, prefix: str = "") -> _Names:
        if has_parameter(self._store.list, "prefix"):
            return await self._store.list(path, prefix=prefix)  # type: ignore[call-arg]  # checked above
        return [name for name in await self._store.list(path) if name.startswith(prefix)]

    async def exists(self, path: str) -> bool:
        return await self._store.exists(path)

    async def on_change(self, path: str, callback: ChangeCallback) -> ChangeSubscription:
        return await self._store.on_change(path, callback)

    async def write(self, path: str, content: str, *, expect: Literal[Expect.ANY, Expect.ABSENT] = ANY) -> None:
        if expect is not ANY and expect is not ABSENT:
            raise InvalidInput(f"expect is holdall.ANY or holdall.ABSENT here, not {shown(expect)}")
        async with self._locked(path, "write") as options:
            if expect is ABSENT and has_parameter(self._store.write, "expect"):
                options["expect"] = ABSENT
            elif expect is ABSENT and await self._store.exists(path):
                raise Conflict("write", (), path, None, None)
            await self._store.write(path, content, **options)

    async def append(self, path: str, content: str) -> int:
        async with self._locked(path, "append") as options:
            return await self._store.append(path, content, **options)

    async def delete(self, path: str) -> None:
        async with self._locked(path, "delete") as options:
            await self._store.delete(path, **options)

    @asynccontextmanager
    async def _locked(self, path: str, what: str) -> AsyncIterator[dict[str, Any]]:
        """Hold the lock of a path, and yield the arguments that a change must be given with it."""
        name = f"store:write:{_normalise(path)}"
        lease: Lease | None = await self._lock.lease(name, _LOCK_SECONDS) if self._fences else None
        if lease is None and (self._fences or not await self._lock.acquire(name, ttl=_LOCK_SECONDS)):
            raise RuntimeError(f"Failed to acquire {what} lock for {path}")
        try:
            yield {} if lease is None else {"lease": lease}
        finally:
            await (self._lock.release(name) if lease is None else lease.arelease())


class DefaultBootstrap:
    """AG2's layout of an agent's knowledge: a `SKILL.md` in each of its folders, which describes its contents.

    It writes only missing files, so it may run again at any time: also after a crash, or after edits of these files.
    """

    def __init__(self, mention_tool: bool = True) -> None:
        self._mention_tool = mention_tool

    async def bootstrap(self, store: KnowledgeStore, actor_name: str) -> None:
        """Write the missing files of the layout for an agent."""
        for path, text in _layout(actor_name, self._mention_tool).items():
            await create_file(store, path, text)


def _layout(actor_name: str, mention_tool: bool) -> dict[str, str]:
    if mention_tool:
        how = "This is what you know from earlier conversations. Use the `knowledge` tool to read and write it."
    else:
        how = (
            "This is what the agent knows from earlier conversations. Policies and strategies of the framework read and"
            " write it; there is no tool exposed to the model."
        )
    return {
        "/SKILL.md": f"# What {actor_name} knows\n\n{how}\n\n"
        "- `/log/`: the events of each conversation, written by the framework\n"
        "- `/artifacts/`: files and data from elsewhere\n"
        "- `/memory/`: working memory and summaries, written by the framework\n",
        f"{LOG_PREFIX}SKILL.md": "The events of each conversation, a JSON object a line, written when it ends.\n",
        "/artifacts/SKILL.md": "Files and data from elsewhere that may be needed again. Put such things here.\n",
        "/memory/SKILL.md": "`working.md` is what matters now, and `conversations/` has a summary of each"
        " conversation. Both are kept up to date by the framework.\n",
    }


async def import_from(source: KnowledgeStore, into: KnowledgeStore) -> int:
    """Copy all files of another store, such as one of AG2's own, and return how many were new.

    Existing files are not changed, so an import can be run again.
    """
    count, folders = 0, ["/"]
    while folders:
        folder = folders.pop()
        for name in await source.list(folder):
            path = folder + name
            if name.endswith("/"):
                folders.append(path)
            elif (text := await source.read(path)) is not None:
                count += await create_file(into, path, text)
    return count


# Changes -------------------------------------------------------------------------------------------------------------


class _Subscription:
    """A task that watches a path and calls one callback."""

    def __init__(self, knowledge: HoldallKnowledgeStore, path: str, callback: ChangeCallback) -> None:
        self._knowledge = knowledge
        self._path = path
        self._callback = callback
        self._watch = knowledge.files.awatch(path)
        self._is_reading = self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to watch: changes from now on are reported."""
        await self._watch.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._call_for_changes(), name=f"holdall on_change {self._path!r:.100}")
        self._task.add_done_callback(lambda _: self._knowledge._subscriptions.discard(self))
        self._knowledge._subscriptions.add(self)

    async def close(self) -> None:
        """Stop, and wait until the task has ended; inside the callback, return at once. It may be called twice."""
        self._is_closed = True
        await self._watch.aclose()
        task = self._task
        if task is None or task.done() or task is asyncio.current_task():
            return
        if not self._is_reading:  # to cancel a read would lose a connection; the closed watch ends it
            task.cancel()
        await asyncio.wait([task])

    def schedule_close(self) -> None:
        """`close`, from any thread, without waiting for it."""

        def close() -> None:
            self._ending = self._loop.create_task(self.close())

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(close)

    async def wait_until_caught_up(self) -> None:
        """Wait until the callback has been called for all earlier changes. In another event loop, do not wait."""
        if self._loop is asyncio.get_running_loop():
            await self._watch.caught_up()

    async def _call_for_changes(self) -> None:
        _in_callback.set(True)
        pause = _FIRST_PAUSE
        try:
            while not self._is_closed:
                try:
                    self._is_reading = True
                    change = await anext(self._watch)
                    self._is_reading = False
                    await self._call(change.key)
                    pause = _FIRST_PAUSE
                except (StopAsyncIteration, StoreClosed):
                    return
                except CursorExpired:
                    logger.warning(
                        "on_change(%r): changes were missed: the store has purged them",
                        self._path,
                    )
                    await self._watch.aclose()
                    self._watch = self._knowledge.files.awatch(self._path)
                except HoldallError:
                    self._is_reading = False
                    logger.warning("on_change(%r): cannot watch the store; retrying", self._path, exc_info=True)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            await self._watch.aclose()

    async def _call(self, path: str) -> None:
        try:
            answer: Any = self._callback(path)
            if inspect.isawaitable(answer):
                await answer
        except Exception:  # an error of the caller's code must not end the subscription
            logger.exception("a callback of on_change failed for %r", path)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            logger.exception("a callback of on_change was cancelled for %r", path)


def _normalise(path: Any) -> str:
    """Return an absolute path without a "/" at its end. As in AG2, the leading "/" may be missing."""
    if not isinstance(path, str):
        raise InvalidInput(f"a path is a str, not {type(path).__name__} {shown(path)}")
    if ".." in path.split("/"):
        raise InvalidInput(f"Path traversal blocked: {shown(path)} has '..' in it")
    return face_api.check_folder("/" + path)[:-1] or "/"
