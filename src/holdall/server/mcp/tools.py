"""The tools, resources and prompt that a model gets. Each tool calls the store, and describes itself for a model.

Answers are bounded, and say how to get the rest. A tool that writes takes `expect`, the version that the model has
seen, so that nothing that others wrote in the meantime is lost.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, ParamSpec

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.subscriptions import SubscriptionBus
from mcp.types import ToolAnnotations

from ... import ABSENT, ANY, Entry, FileInfo, Store
from ...core import face_api
from ...errors import HoldallError, InvalidInput

P = ParamSpec("P")

_MOST_CHARACTERS = 40_000  # of values, or of a file, in one answer
_MOST_RESOURCE = 10 << 20  # bytes of a file that is read as a resource, in one piece
_MOST_RESULTS = 50
_MOST_NAME = 200  # characters of a client's name
_client: ContextVar[str] = ContextVar("holdall_mcp_client", default="")
INSTRUCTIONS = (
    "A durable memory that you share with other agents and sessions. memory_* keep small facts as JSON, found by"
    " search; file_* keep longer texts. Names are relative to your own space. Search before you write, so that you"
    " change what is known instead of adding a second version. Pass `expect` with the version you have read: if"
    " somebody changed it since, you get an error, and read it again."
)
PROMPT = """You have a durable memory through the tools of the server "holdall". Use it like this:

1. At the start of a task, call memory_search with what the task is about, and file_list for notes.
2. When you learn something that will matter later (a preference, a decision, a name, a result), store it with
   memory_put: one fact per key, in a namespace such as ["facts", "PROJECT"], with a short text in the value.
3. Before you store, search for it. If it is there, change it: pass its version as `expect`.
4. Keep longer notes in files, such as /notes/PROJECT.md, and change them with file_edit or file_append.
5. Delete what is no longer true. Never store passwords or keys."""

#: Returns the store for a call, and raises `AccessDenied` if a right is missing.
StoreOf = Callable[[str], Store]


def build_server(
    store_of: StoreOf,
    *,
    read_only: bool = False,
    has_history: bool = False,
    subscriptions: SubscriptionBus | bool = False,
    lifespan: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None,
) -> MCPServer[Any]:
    """Make an MCP server over stores. `store_of(right)` returns the store of the current caller."""
    with _keep_root_logger():
        server: MCPServer[Any] = MCPServer(
            "holdall",
            instructions=INSTRUCTIONS,
            version=face_api.VERSION,
            subscriptions=subscriptions or False,  # type: ignore[arg-type]  # a bus, or False
            lifespan=lifespan,
            middleware=[_note_client],
        )
    _add_reads(server, store_of)
    if not read_only:
        _add_writes(server, store_of)
    if has_history:
        _add_history(server, store_of, read_only)
    return server


async def _note_client(ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
    """Note the name of the client for the time of its request."""
    params = ctx.session.client_params
    token = _client.set(params.client_info.name if params is not None else "")
    try:
        return await call_next(ctx)
    finally:
        _client.reset(token)


def act_for_client(store: Store) -> Store:
    """Return a view of a store whose writes carry the name of the client, if it has given one."""
    name = _client.get()
    return store.acting(f"client {name[:_MOST_NAME]}") if name else store


@contextlib.contextmanager
def _keep_root_logger() -> Iterator[None]:
    """Undo what `MCPServer` does to the root logger, which belongs to the user: it adds a handler."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _safely(tool: Callable[P, Awaitable[dict[str, Any]]]) -> Callable[P, Coroutine[Any, Any, dict[str, Any]]]:
    """Let a model read the message of an error, which says what to do."""

    @functools.wraps(tool)
    async def call(*args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        try:
            return await tool(*args, **kwargs)
        except HoldallError as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    return call


_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_REPLACES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)


def _add_reads(server: MCPServer[Any], store_of: StoreOf) -> None:
    """Add the tools that read, the resources and the prompt."""

    @server.tool(annotations=_READS)
    @_safely
    async def memory_get(namespace: list[str], key: str, offset: int = 0) -> dict[str, Any]:
        """Read one memory by its namespace (a list of labels) and key. Returns value and version, or found=false. A very long value comes as parts of its JSON text instead: to read on, call again with offset=next."""  # noqa: E501  # one line for a model
        entry = await store_of("read").aget(tuple(namespace), key)
        if entry is None:
            return {"found": False}
        face_api.check_count("offset", offset)
        text = face_api.encode_value(entry.value)
        if not offset and len(text) <= _MOST_CHARACTERS:
            return {"found": True, **_entry(entry)}
        end = offset + _MOST_CHARACTERS
        part = {"text": text[offset:end], "next": end if end < len(text) else None}
        return {"found": True, **_address(entry), **part}

    @server.tool(annotations=_READS)
    @_safely
    async def memory_search(
        query: str | None = None,
        namespace: list[str] | None = None,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        cursor: str | None = None,
    ) -> dict[str, Any]:
        """Find memories by what they are about (query), by fields of their values (filter, such as {"type": "note"}), or both, in a namespace and below it. The best come first. To get more, call again with the same arguments and cursor=next. A long value is cut to its beginning, in preview: read it with memory_get."""  # noqa: E501  # one line for a model
        page = await store_of("read").asearch(
            tuple(namespace or ()), query=query or None, filter=filter, limit=min(limit, _MOST_RESULTS), cursor=cursor
        )
        most = _MOST_CHARACTERS // max(len(page), 1)
        return {"memories": [{**_entry(hit, most), "score": hit.score} for hit in page], "next": page.next}

    @server.tool(annotations=_READS)
    @_safely
    async def memory_list(prefix: list[str] | None = None, limit: int = 50, offset: int = 0) -> dict[str, Any]:
        """List the namespaces that hold memories, below a prefix. To get more, raise offset by the number you got."""
        most = min(limit, 200)
        found = await store_of("read").anamespaces(prefix=tuple(prefix or ()), limit=most + 1, offset=offset)
        return {"namespaces": [list(one) for one in found[:most]], "more": len(found) > most}

    @server.tool(annotations=_READS)
    @_safely
    async def file_read(path: str, offset: int = 0, limit: int = 500) -> dict[str, Any]:
        """Read lines of a text file, from line `offset` (the first is 0). Returns the text, the total number of lines and the version. To read on, call again with offset=next. is_cut is true if a line is too long to be shown whole."""  # noqa: E501  # one line for a model
        files = store_of("read").files()
        info = await files.astat(path)
        window = await files.aread_lines(path, offset, min(limit, 2000))
        lines: list[str] = []
        size = 0
        for line in window.lines:
            size += len(line) + 1
            if size > _MOST_CHARACTERS and lines:
                break
            lines.append(line[:_MOST_CHARACTERS])
        end = offset + len(lines)
        following = end if end < window.total else None
        is_cut = any(len(line) > _MOST_CHARACTERS for line in window.lines[: len(lines)])
        return {
            "text": "\n".join(lines),
            "total": window.total,
            "next": following,
            "version": info.version,
            "is_cut": is_cut,
        }

    @server.tool(annotations=_READS)
    @_safely
    async def file_list(path: str = "/", after: str | None = None) -> dict[str, Any]:
        """List a folder: its files with sizes, and its subfolders, which end in "/". To get more, pass after=next."""
        store = store_of("read")
        page = await face_api.arun(store, face_api.list_files(store.files(), path, after, 200))
        return {"files": [_info(info) for info in page], "next": page.next}

    @server.tool(annotations=_READS)
    @_safely
    async def file_glob(pattern: str, path: str = "/") -> dict[str, Any]:
        """Find files by a pattern of their paths, such as "*.md" or "notes/**/*.txt". At most 200; use a narrower pattern for others."""  # noqa: E501  # one line for a model
        found = await store_of("read").files().aglob(pattern, path)
        return {"files": [_info(info) for info in found[:200]], "more": len(found) > 200}

    @server.tool(annotations=_READS)
    @_safely
    async def file_grep(
        pattern: str, path: str = "/", glob: str | None = None, regex: bool = False, ignore_case: bool = False
    ) -> dict[str, Any]:
        """Find lines that contain a text, or match a regular expression, in all files below a folder. At most 100; name a folder or a glob to see others."""  # noqa: E501  # one line for a model
        found = (
            await store_of("read")
            .files()
            .agrep(pattern, path, glob=glob, regex=regex, ignore_case=ignore_case, limit=101)
        )
        matches = [{"path": one.path, "line": one.line, "text": one.text[:500]} for one in found[:100]]
        return {"matches": matches, "more": len(found) > 100}

    @server.resource("holdall://files/{+path}", name="file", description="A file of the memory, by its path.")
    async def file(path: str) -> str:
        absolute = "/" + path.lstrip("/")
        try:
            files = store_of("read").files()
            if (await files.astat(absolute)).size > _MOST_RESOURCE:
                raise InvalidInput(
                    f"{absolute!r} has more than {_MOST_RESOURCE:,} bytes: read its lines with file_read"
                )
            return await files.aread_text(absolute)
        except HoldallError as error:
            raise ResourceError(f"{type(error).__name__}: {error}") from error

    @server.prompt(name="keep_a_memory", description="Teaches a model to keep a memory with these tools.")
    def keep_a_memory() -> str:
        return PROMPT


def _add_writes(server: MCPServer[Any], store_of: StoreOf) -> None:
    @server.tool(annotations=_REPLACES)
    @_safely
    async def memory_put(
        namespace: list[str], key: str, value: dict[str, Any], expect: int | None = None, ttl: float | None = None
    ) -> dict[str, Any]:
        """Store a memory: a JSON object under a namespace (a list of labels) and a key. It replaces what is there; pass expect with the version you have read (0: there must be none), so that nobody's change is lost. ttl is seconds after which it is forgotten."""  # noqa: E501  # one line for a model
        options: dict[str, Any] = {} if ttl is None else {"ttl": ttl}
        entry = await store_of("write").aput(tuple(namespace), key, value, expect=_expect(expect), **options)
        return {"version": entry.version}

    @server.tool(annotations=_REPLACES)
    @_safely
    async def memory_delete(namespace: list[str], key: str, expect: int | None = None) -> dict[str, Any]:
        """Delete a memory that is no longer true. Pass expect with the version you have read."""
        return {"deleted": await store_of("write").adelete(tuple(namespace), key, expect=_expect(expect))}

    @server.tool(annotations=_REPLACES)
    @_safely
    async def file_write(path: str, text: str, expect: int | None = None) -> dict[str, Any]:
        """Create or replace a text file. The path is absolute, such as /notes/today.md. Pass expect with the version you have read (0: there must be no file)."""  # noqa: E501  # one line for a model
        return _info(await store_of("write").files().awrite(path, text, expect=_expect(expect)))

    @server.tool(annotations=_REPLACES)
    @_safely
    async def file_edit(
        path: str, old: str, new: str, replace_all: bool = False, expect: int | None = None
    ) -> dict[str, Any]:
        """Replace a text in a file. The old text must occur exactly once, unless replace_all is true. Changes by others are kept; pass expect with the version you have read to get an error if there are any."""  # noqa: E501  # one line for a model
        files = store_of("write").files()
        return {"replaced": await files.aedit(path, old, new, replace_all=replace_all, expect=_expect(expect))}

    @server.tool(annotations=_ADDS)
    @_safely
    async def file_append(path: str, text: str, expect: int | None = None) -> dict[str, Any]:
        """Add a text to the end of a file, which is created if it is missing. Write the line end yourself. Pass expect with the version you have read (0: there must be no file) if nobody else may have changed it."""  # noqa: E501  # one line for a model
        return {"offset": await store_of("write").files().aappend(path, text, expect=_expect(expect))}

    @server.tool(annotations=_REPLACES)
    @_safely
    async def file_move(src: str, dst: str, expect: int | None = None) -> dict[str, Any]:
        """Move or rename a file or folder. A file at the destination is replaced. For a file, pass expect with the version you have read."""  # noqa: E501  # one line for a model
        return _info(await store_of("write").files().amove(src, dst, expect=_expect(expect)))

    @server.tool(annotations=_REPLACES)
    @_safely
    async def file_delete(path: str, recursive: bool = False, expect: int | None = None) -> dict[str, Any]:
        """Delete a file; with recursive=true also a folder and everything in it. For a file, pass expect with the version you have read."""  # noqa: E501  # one line for a model
        files = store_of("write").files()
        return {"deleted": await files.adelete(path, recursive=recursive, expect=_expect(expect))}


def _add_history(server: MCPServer[Any], store_of: StoreOf, read_only: bool) -> None:
    @server.tool(annotations=_READS)
    @_safely
    async def history(namespace: list[str], key: str, limit: int = 20) -> dict[str, Any]:
        """List the old versions of a memory, newest first, with their values and authors. Long values are cut to their beginnings, in preview: with a smaller limit, more of each is shown. For a file, use the namespace ["filesystem"] and its path as key."""  # noqa: E501  # one line for a model
        found = await store_of("history").ahistory(tuple(namespace), key, limit=min(limit, _MOST_RESULTS))
        most = _MOST_CHARACTERS // max(len(found), 1)
        return {
            "versions": [
                {
                    "version": one.version,
                    "kind": one.kind,
                    "time": one.time.isoformat(),
                    **_value(one.value, most),
                    "author": one.author,
                }
                for one in found
            ]
        }

    if read_only:
        return

    @server.tool(annotations=_ADDS)
    @_safely
    async def restore(namespace: list[str], key: str, version: int) -> dict[str, Any]:
        """Bring an old version of a memory back, as a new change."""
        store_of("history")
        entry = await store_of("write").arestore(tuple(namespace), key, version)
        return {"version": entry.version}


def _expect(version: int | None) -> Any:
    return ANY if version is None else ABSENT if version == 0 else version


def _entry(entry: Entry, most: int = _MOST_CHARACTERS) -> dict[str, Any]:
    return {**_address(entry), **_value(entry.value, most)}


def _address(entry: Entry) -> dict[str, Any]:
    return {
        "namespace": list(entry.namespace),
        "key": entry.key,
        "version": entry.version,
        "updated_at": entry.updated_at.isoformat(),
    }


def _value(value: dict[str, Any] | None, most: int) -> dict[str, Any]:
    """A value; or the beginning of its JSON text, if that has more characters than `most`."""
    if value is None or len(text := face_api.encode_value(value)) <= most:
        return {"value": value}
    return {"preview": text[:most]}


def _info(info: FileInfo) -> dict[str, Any]:
    return {"path": info.path, "is_dir": info.is_dir, "size": info.size, "version": info.version}
