"""AG2's knowledge on any engine: `HoldallKnowledgeStore` is a `KnowledgeStore`.

    agent = Agent("ada", config=…, knowledge=KnowledgeConfig(store=HoldallKnowledgeStore("agent.db")))

Each method is one of `holdall.Files`, with AG2's paths and answers. AG2 need not be installed; where it is, its own
types are used (`ag2_protocol.py`). The event logs are in `ag2_log.py`.
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

from .. import keys, ops, seam
from ..errors import Conflict, HistoryGone, HoldallError, InvalidInput, StoreClosed, shown
from ..files import Files
from ..leases import Lease, Locks
from ..ops import ABSENT, ANY, Expect, Expectation, FileInfo, Namespace
from ..store import Store
from .ag2_log import EventLogWriter, Tail
from .ag2_protocol import (
    CONVERSATIONS_PREFIX,
    LOG_PREFIX,
    WORKING_MEMORY_PATH,
    ChangeCallback,
    ChangeSubscription,
    KnowledgeStore,
    NoopChangeSubscription,
    StoreBootstrap,
    UnknownEvent,
    create,
    takes,
)
from .opening import Face

__all__ = [
    "CONVERSATIONS_PREFIX",
    "LOG_PREFIX",
    "WORKING_MEMORY_PATH",
    "ChangeCallback",
    "ChangeSubscription",
    "DefaultBootstrap",
    "DiskKnowledgeStore",
    "EventLogWriter",
    "HoldallKnowledgeStore",
    "KnowledgeStore",
    "LockedKnowledgeStore",
    "MemoryKnowledgeStore",
    "NoopChangeSubscription",
    "RedisKnowledgeStore",
    "SqliteKnowledgeStore",
    "StoreBootstrap",
    "Tail",
    "UnknownEvent",
    "import_from",
]

logger = logging.getLogger("holdall")

_Names: TypeAlias = list[str]
_LOCK_SECONDS = 30.0  # for how long AG2 has a lock, at most
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0  # before a subscription whose store was away looks again, in seconds
_telling: ContextVar[bool] = ContextVar("holdall: in a callback of on_change", default=False)


class HoldallKnowledgeStore(Face):
    """An agent's knowledge: the files of one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `namespace` says whose knowledge it
    is; agents that are given the same share it. `options` are for `holdall.open`, where a URL was given.
    """

    _tells_before_it_returns = False

    def __init__(self, store_or_url: Any = None, *, namespace: Namespace = ("knowledge",), **options: Any) -> None:
        #: The `holdall.Store` beneath.
        self.store: Store = self._open(store_or_url, **options)
        #: The same files with all that holdall can do with them, sync and async.
        self.files: Files = self.store.files(namespace)
        self._subscriptions: set[_Subscription] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.files.namespace!r} in {self.store!r}>"

    # Reading ---------------------------------------------------------------------------------------------------------

    async def read(self, path: str) -> str | None:
        """A file's text, with its line ends as they were written; None if there is none."""
        content = await self._range(path, 0, None)
        return None if content is None else content.decode()

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """The text of the bytes from `start` up to `end`, or to the end; "" if there is no file.

        `UnicodeDecodeError` where a character would be cut in two.
        """
        return (await self._range(path, start, end) or b"").decode()

    async def _range(self, path: str, start: int, end: int | None) -> bytes | None:
        path = _normalised(path)
        if path == "/":
            return None
        content: bytes | None
        [content] = await self.store.aexecute([ops.ReadRange(self.files.namespace, path, start, end)])
        return content

    async def list(self, path: str = "/", *, prefix: str = "") -> _Names:
        """The names in a folder, sorted; those of subfolders end in "/". With a `prefix`, those that begin with it."""
        return await self.files.anames(_normalised(path), prefix=prefix)

    async def exists(self, path: str) -> bool:
        """Whether there is a file, or a folder with files in it."""
        return await self.files.aexists(_normalised(path))

    async def list_versions_under(self, prefix: str) -> dict[str, int]:
        """The version of each file at a path or below it; a version only ever grows."""
        path = _normalised(prefix)
        files = [info async for info in self.files.awalk(path)]
        if path != "/" and await self.files.aexists(path):
            files.append(await self.files.astat(path))
        return {info.path: info.version for info in files if info.version is not None}

    # Writing ---------------------------------------------------------------------------------------------------------

    async def write(
        self, path: str, content: str, *, expect: Expectation | FileInfo = ANY, lease: Lease | None = None
    ) -> None:
        """Create or replace a file. `expect=` and `lease=` as in `holdall.Files.write`."""
        await self.files.awrite(_normalised(path), content, expect=expect, lease=lease)
        await self._told()

    async def append(self, path: str, content: str, *, lease: Lease | None = None) -> int:
        """Add text to a file, which is made if it is missing, at the cost of that text; the byte at which it begins."""
        offset = await self.files.aappend(_normalised(path), content, lease=lease)
        await self._told()
        return offset

    async def delete(self, path: str, *, lease: Lease | None = None) -> None:
        """Remove a file, or a folder with all that is in it; what is not there is fine."""
        await self.files.adelete(_normalised(path), lease=lease)
        await self._told()

    # Changes ---------------------------------------------------------------------------------------------------------

    async def on_change(self, path: str, callback: ChangeCallback) -> ChangeSubscription:
        """Have `callback(path)` called for every file at a path or below it that anybody changes from now on.

        One at a time, in the order of change, and once for each file of a folder that is deleted; what changes several
        times before its turn comes may be told once. An exception in it is logged, and concerns nobody else.
        """
        subscription = _Subscription(self, _normalised(path), callback)
        await subscription.begin()
        return subscription

    async def _told(self) -> None:
        """Let callbacks run before a change returns, where that was promised; not for a change that they make."""
        if self._tells_before_it_returns and self._subscriptions and not _telling.get():
            for subscription in list(self._subscriptions):
                await subscription.caught_up()

    # Closing ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the subscriptions that were made here, and close the store if it was opened here."""
        for subscription in list(self._subscriptions):
            subscription.end_soon()
        super().close()

    async def aclose(self) -> None:
        """`close`, awaited: the subscriptions have ended by then."""
        for subscription in list(self._subscriptions):
            await subscription.close()
        await super().aclose()


class MemoryKnowledgeStore(HoldallKnowledgeStore):
    """Knowledge that is gone with the process. As with AG2's own, callbacks have run when a change returns."""

    _tells_before_it_returns = True

    def __init__(self) -> None:
        super().__init__("memory:")


class SqliteKnowledgeStore(HoldallKnowledgeStore):
    """Knowledge in a SQLite file, whose folders are made if they are missing.

    Changes are told as they happen, by whichever process they are made; `poll_interval_s` is taken for the sake of
    code that gives it.
    """

    def __init__(self, path: str | os.PathLike[str], *, poll_interval_s: float = 0.5) -> None:  # noqa: ARG002  # as above
        path = os.fspath(path)
        if path != ":memory:":
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # noqa: PTH103, PTH120  # a str
        super().__init__("memory:" if path == ":memory:" else f"sqlite:///{path}")


class DiskKnowledgeStore(HoldallKnowledgeStore):
    """Knowledge in plain files of a folder, which is made if it is missing: any tool may read and edit them.

    They are the files that `holdall.open("disk:///folder").files()` has. Changes are told whoever makes them, be it an
    editor.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(f"disk:///{os.fspath(root)}", namespace=("filesystem",))


class RedisKnowledgeStore(HoldallKnowledgeStore):
    """Knowledge in Redis or Valkey, under keys that begin with `key_prefix`, in holdall's form and not in AG2's.

    Changes are told as they happen, by whichever process they are made; `poll_interval_s` is taken for the sake of
    code that gives it.
    """

    def __init__(self, url: str, *, key_prefix: str = "ag2:knowledge", poll_interval_s: float = 0.5) -> None:  # noqa: ARG002  # as above
        if not isinstance(url, str):
            raise InvalidInput(f"pass the URL of a server, redis://…, and not a client: {shown(url)}")
        super().__init__(url, prefix=f"{key_prefix.rstrip(':')}:holdall")


class LockedKnowledgeStore:
    """A store whose changes take a lock each, by the path that they change. Reading takes none.

    `lock` is anything with `await acquire(name, ttl=…) -> bool` and `await release(name)`. With `holdall.Locks` of the
    same store, which is what it has where none is given, the storage itself refuses a change whose lock was lost by
    then: `LeaseLost`.
    """

    def __init__(self, store: KnowledgeStore, lock: Any = None) -> None:
        self._store = store
        if lock is None:
            if not isinstance(store, HoldallKnowledgeStore):
                raise InvalidInput(f"only a store of holdall's has locks of its own; pass lock= for {shown(store)}")
            lock = Locks(store.store, ns=store.files.namespace)
        self._lock = lock
        self._fences = (
            isinstance(lock, Locks)
            and isinstance(store, HoldallKnowledgeStore)
            and seam.is_same_storage(lock.store, store.store)
        )

    async def read(self, path: str) -> str | None:
        return await self._store.read(path)

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        return await self._store.read_range(path, start, end)

    async def list(self, path: str = "/", *, prefix: str = "") -> _Names:
        if takes(self._store.list, "prefix"):
            return await self._store.list(path, prefix=prefix)  # type: ignore[call-arg]  # as was asked
        return [name for name in await self._store.list(path) if name.startswith(prefix)]

    async def exists(self, path: str) -> bool:
        return await self._store.exists(path)

    async def on_change(self, path: str, callback: ChangeCallback) -> ChangeSubscription:
        return await self._store.on_change(path, callback)

    async def write(self, path: str, content: str, *, expect: Literal[Expect.ANY, Expect.ABSENT] = ANY) -> None:
        if expect is not ANY and expect is not ABSENT:
            raise InvalidInput(f"expect is holdall.ANY or holdall.ABSENT here, not {shown(expect)}")
        async with self._locked(path, "write") as options:
            if expect is ABSENT and takes(self._store.write, "expect"):
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
        """Have the lock; what a change has to be given with it."""
        name = f"store:write:{_normalised(path)}"
        lease: Lease | None = await self._lock.lease(name, _LOCK_SECONDS) if self._fences else None
        if lease is None and (self._fences or not await self._lock.acquire(name, ttl=_LOCK_SECONDS)):
            raise RuntimeError(f"Failed to acquire {what} lock for {path}")
        try:
            yield {} if lease is None else {"lease": lease}
        finally:
            await (self._lock.release(name) if lease is None else lease.arelease())


class DefaultBootstrap:
    """AG2's layout of an agent's knowledge: a `SKILL.md` in each of its folders, which says what belongs there.

    It writes what is missing and leaves alone what is there, so it may run again at any time: after a crash, too, and
    after somebody has edited what it wrote.
    """

    def __init__(self, mention_tool: bool = True) -> None:
        self._mention_tool = mention_tool

    async def bootstrap(self, store: KnowledgeStore, actor_name: str) -> None:
        """Lay out a store for an agent."""
        for path, text in _layout(actor_name, self._mention_tool).items():
            await create(store, path, text)


def _layout(actor_name: str, mention_tool: bool) -> dict[str, str]:
    if mention_tool:
        how = "Here you keep what you know from one conversation to the next. Use the `knowledge` tool to work with it."
    else:
        how = (
            "Here is kept what the agent knows from one conversation to the next. Policies and strategies of the"
            " framework read and write it; there is no tool exposed to the model."
        )
    return {
        "/SKILL.md": f"# What {actor_name} knows\n\n{how}\n\n"
        "- `/log/`: what was said and done, written by the framework\n"
        "- `/artifacts/`: files and data from elsewhere\n"
        "- `/memory/`: working memory and summaries, written by the framework\n",
        f"{LOG_PREFIX}SKILL.md": "The events of each conversation, a JSON object a line, written when it ends.\n",
        "/artifacts/SKILL.md": "Files and data from elsewhere that may be needed again. Put such things here.\n",
        "/memory/SKILL.md": "`working.md` is what matters now, and `conversations/` has a summary of each"
        " conversation. Both are kept up to date by the framework.\n",
    }


async def import_from(source: KnowledgeStore, into: KnowledgeStore) -> int:
    """Bring what another store has, such as one of AG2's own; how many files came.

    What is there already stays as it is, so an import may be made again.
    """
    count, folders = 0, ["/"]
    while folders:
        folder = folders.pop()
        for name in await source.list(folder):
            path = folder + name
            if name.endswith("/"):
                folders.append(path)
            elif (text := await source.read(path)) is not None:
                count += await create(into, path, text)
    return count


# Changes -------------------------------------------------------------------------------------------------------------


class _Subscription:
    """A task that watches, and calls one callback."""

    def __init__(self, knowledge: HoldallKnowledgeStore, path: str, callback: ChangeCallback) -> None:
        self._knowledge = knowledge
        self._path = path
        self._callback = callback
        self._watch = knowledge.files.awatch(path)
        self._is_reading = self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Be told what happens from now on."""
        await self._watch.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._tell_all(), name=f"holdall on_change {self._path!r:.100}")
        self._task.add_done_callback(lambda _: self._knowledge._subscriptions.discard(self))
        self._knowledge._subscriptions.add(self)

    async def close(self) -> None:
        """Stop; the task has ended then. From inside the callback, it ends with that. Closing twice is fine."""
        self._is_closed = True
        await self._watch.aclose()
        task = self._task
        if task is None or task.done() or task is asyncio.current_task():
            return
        if not self._is_reading:  # in the middle of that, a connection would be lost; it ends by itself
            task.cancel()
        await asyncio.wait([task])

    def end_soon(self) -> None:
        """`close`, from any thread, without waiting for it."""

        def end() -> None:
            self._ending = self._loop.create_task(self.close())

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(end)

    async def caught_up(self) -> None:
        """Wait until the callback has been called for all that was written before; only in its own event loop."""
        if self._loop is asyncio.get_running_loop():
            await self._watch.caught_up()

    async def _tell_all(self) -> None:
        _telling.set(True)
        pause = _FIRST_PAUSE
        try:
            while not self._is_closed:
                try:
                    self._is_reading = True
                    change = await anext(self._watch)
                    self._is_reading = False
                    await self._tell(change.key)
                    pause = _FIRST_PAUSE
                except (StopAsyncIteration, StoreClosed):
                    return
                except HistoryGone:
                    logger.warning("on_change(%r): the store has forgotten changes that were not told yet", self._path)
                    await self._watch.aclose()
                    self._watch = self._knowledge.files.awatch(self._path)
                except HoldallError:
                    self._is_reading = False
                    logger.warning("on_change(%r): the store cannot be watched just now", self._path, exc_info=True)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            await self._watch.aclose()

    async def _tell(self, path: str) -> None:
        try:
            answer: Any = self._callback(path)
            if inspect.isawaitable(answer):
                await answer
        except Exception:  # whatever it does wrong is not for us to know
            logger.exception("a callback of on_change failed for %r", path)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            logger.exception("a callback of on_change was cancelled for %r", path)


def _normalised(path: Any) -> str:
    """A path as AG2 means it: from the root on, whether it says so or not, and without a "/" at its end."""
    if not isinstance(path, str):
        raise InvalidInput(f"a path is a str, not {type(path).__name__} {shown(path)}")
    if ".." in path.split("/"):
        raise InvalidInput(f"Path traversal blocked: {shown(path)} has '..' in it")
    return keys.check_folder("/" + path)[:-1] or "/"
