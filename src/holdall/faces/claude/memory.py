"""Claude's memory tool (`memory_20250818`) on any engine: `MemoryTool` and `AsyncMemoryTool`.

    client.beta.messages.tool_runner(…, tools=[MemoryTool("agent.db", namespace=("users", "ada", "memories"))])

`/memories/notes.md` is the file `/notes.md` of the namespace. Commands answer with exactly the texts of the SDK's own
tool, since models are trained on them. Each command is one transaction, or is done again if the file has changed.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

try:
    from anthropic.lib.tools import ToolError
    from anthropic.tools.memory import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "Claude's memory tool", "claude") from missing

from ... import ABSENT, FileInfo, ops
from ...core import face_api
from ...core.face_api import StoreProgram, async_method, sync_method
from ...errors import (
    AlreadyExists,
    Conflict,
    FileNotFound,
    HoldallError,
    IsADirectory,
    NotADirectory,
    SymbolicLink,
)
from ...ops import Namespace
from ..base import FilesFace

if TYPE_CHECKING:
    from anthropic.types.beta import (
        BetaCacheControlEphemeralParam,
        BetaMemoryTool20250818CreateCommand,
        BetaMemoryTool20250818DeleteCommand,
        BetaMemoryTool20250818InsertCommand,
        BetaMemoryTool20250818RenameCommand,
        BetaMemoryTool20250818StrReplaceCommand,
        BetaMemoryTool20250818ViewCommand,
    )

_ROOT = "/memories"
_MAX_LINES = 999_999
_WIDTH = len(str(_MAX_LINES))
_UNITS = "BKMG"


class _Commands(FilesFace):
    """The commands as programs, for both tools."""

    def __init__(
        self,
        store_or_url: Any = None,
        *,
        namespace: Namespace = ("memories",),
        cache_control: BetaCacheControlEphemeralParam | None = None,
        **options: Any,
    ) -> None:
        super().__init__(cache_control=cache_control)  # type: ignore[call-arg]  # of the SDK's class beside this one
        self._open_files(store_or_url, namespace, **options)

    def _do_view(self, command: BetaMemoryTool20250818ViewCommand) -> StoreProgram[str]:
        """Show a file with line numbers, or list a folder two levels deep."""
        path = _inside(command.path)
        try:
            text = "" if path == "/" else (yield from face_api.read_text(self.files, path))
        except (FileNotFound, NotADirectory):
            raise _no_path(command.path) from None
        except IsADirectory:
            path += "/"
        except HoldallError as error:
            raise ToolError(str(error)) from error
        if path.endswith("/"):
            return (yield from self._list_folder(command.path, path))
        lines = text.split("\n")
        if len(lines) > _MAX_LINES:
            raise ToolError(f"File {command.path} exceeds maximum line limit of 999,999 lines.")
        first, last = 1, len(lines)
        if command.view_range and len(command.view_range) == 2:
            first = max(1, command.view_range[0])
            last = last if command.view_range[1] == -1 else command.view_range[1]
        return f"Here's the content of {command.path} with line numbers:\n" + _number(lines[first - 1 : last], first)

    def _list_folder(self, shown: str, folder: str) -> StoreProgram[str]:
        found: list[FileInfo] = []
        for info in (yield from self._list_visible(folder)):
            found.append(info)
            if info.is_dir:
                found += yield from self._list_visible(info.path)
        sizes = [f"{_size(info.size)}\t{shown}/{info.path[len(folder) :]}" for info in found]
        header = f"Here're the files and directories up to 2 levels deep in {shown}, excluding hidden items:"
        return "\n".join([header, f"{_size(0)}\t{shown}", *sizes])

    def _list_visible(self, folder: str) -> StoreProgram[list[FileInfo]]:
        found = yield from face_api.ls(self.files, folder)
        visible = [info for info in found if not info.path[len(folder) :].startswith(".")]
        return sorted(visible, key=lambda info: info.path.rstrip("/"))  # "a" before "a.md", also if "a" is a folder

    def _do_create(self, command: BetaMemoryTool20250818CreateCommand) -> StoreProgram[str]:
        """Create a file. An existing one is an error, also if another session has just created it."""
        path = _inside(command.path)
        try:
            if path == "/":
                raise IsADirectory(path)
            yield from face_api.write(self.files, path, command.file_text, expect=ABSENT)
        except (Conflict, IsADirectory, NotADirectory):
            raise ToolError(f"File {command.path} already exists") from None
        except SymbolicLink:
            raise _escapes(command.path) from None
        except HoldallError as error:
            raise ToolError(str(error)) from error
        return f"File created successfully at: {command.path}"

    def _do_str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> StoreProgram[str]:
        """Replace a text that occurs exactly once."""
        old, new = command.old_str, command.new_str

        def change(text: str) -> tuple[str, str]:
            starts = _find_all(text, old)
            if not starts:
                raise ToolError(
                    f"No replacement was performed, old_str `{old}` did not appear verbatim in {command.path}."
                )
            numbers = [text.count("\n", 0, start) + 1 for start in starts]
            if len(starts) > 1:
                raise ToolError(
                    f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines:"
                    f" {', '.join(map(str, numbers))}. Please ensure it is unique"
                )
            changed = text[: starts[0]] + new + text[starts[0] + len(old) :]
            first = max(1, numbers[0] - 2)
            return changed, _number(changed.split("\n")[first - 1 : numbers[0] + 2], first)

        snippet = yield from self._edit_text(command.path, change)
        return (
            f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{snippet}"
        )

    def _do_insert(self, command: BetaMemoryTool20250818InsertCommand) -> StoreProgram[str]:
        """Insert a text after a line; 0 is before the first."""

        def change(text: str) -> tuple[str, None]:
            lines = text.removesuffix("\n").split("\n") if text else []
            if not 0 <= command.insert_line <= len(lines):
                raise ToolError(
                    f"Invalid `insert_line` parameter: {command.insert_line}."
                    f" It should be within the range [0, {len(lines)}]."
                )
            lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
            return "\n".join(lines).removesuffix("\n") + "\n", None

        yield from self._edit_text(command.path, change)
        return f"The file {command.path} has been edited."

    def _edit_text(self, shown: str, change: Any) -> StoreProgram[Any]:
        path = _inside(shown)
        try:
            if path == "/":
                raise IsADirectory(path)
            return (yield from face_api.change_text(self.files, path, change))
        except (FileNotFound, NotADirectory):
            raise _no_path(shown) from None
        except IsADirectory:
            raise ToolError(f"The path {shown} is not a file.") from None
        except HoldallError as error:
            raise ToolError(str(error)) from error

    def _do_delete(self, command: BetaMemoryTool20250818DeleteCommand) -> StoreProgram[str]:
        """Delete a file, or a folder with everything in it."""
        path = _inside(command.path)
        if path == "/":
            raise ToolError("Cannot delete the /memories directory itself")
        try:
            count = yield from face_api.delete(self.files, path, recursive=True)
        except HoldallError as error:
            raise ToolError(str(error)) from error
        if not count:
            raise ToolError(f"The path {command.path} does not exist")
        return f"Successfully deleted {command.path}"

    def _do_rename(self, command: BetaMemoryTool20250818RenameCommand) -> StoreProgram[str]:
        """Move a file or folder to a path where nothing is."""
        source, target = _inside(command.old_path), _inside(command.new_path)
        if source == "/":
            raise ToolError("Cannot rename the /memories directory itself")
        if (yield from face_api.exists(self.files, target)):
            raise ToolError(f"The destination {command.new_path} already exists")
        try:
            ns = self.files.namespace
            yield from face_api.execute(self.store, [ops.Check(ns, target, ABSENT), ops.Move(ns, source, target)])
        except FileNotFound:
            raise ToolError(f"The path {command.old_path} does not exist") from None
        except (AlreadyExists, Conflict, IsADirectory, NotADirectory):
            raise ToolError(f"The destination {command.new_path} already exists") from None
        except SymbolicLink:
            raise _escapes(command.new_path) from None
        except HoldallError as error:
            raise ToolError(str(error)) from error
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    def _do_clear_all_memory(self) -> StoreProgram[str]:
        """Delete all files of the namespace."""
        yield from face_api.delete(self.files, "/", recursive=True)
        return "All memory cleared"


class MemoryTool(_Commands, BetaAbstractMemoryTool):
    """Claude's memory: the files of one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. Sessions with the same `namespace`
    share their memory, and lose no edit. `options` are passed to `holdall.open` if a URL is given.
    """

    view = sync_method(_Commands._do_view)
    create = sync_method(_Commands._do_create)
    str_replace = sync_method(_Commands._do_str_replace)
    insert = sync_method(_Commands._do_insert)
    delete = sync_method(_Commands._do_delete)
    rename = sync_method(_Commands._do_rename)
    clear_all_memory = sync_method(_Commands._do_clear_all_memory)


class AsyncMemoryTool(_Commands, BetaAsyncAbstractMemoryTool):
    """`MemoryTool` for the SDK's async client."""

    view = async_method(_Commands._do_view)
    create = async_method(_Commands._do_create)
    str_replace = async_method(_Commands._do_str_replace)
    insert = async_method(_Commands._do_insert)
    delete = async_method(_Commands._do_delete)
    rename = async_method(_Commands._do_rename)
    clear_all_memory = async_method(_Commands._do_clear_all_memory)


def _inside(path: str) -> str:
    """Return the path inside the namespace. ".." is resolved, and may not lead out of /memories."""
    if not path.startswith(_ROOT):
        raise ToolError(f"Path must start with /memories, got: {path}")
    relative = path.removeprefix(_ROOT).lstrip("/")
    folder, _, inside = posixpath.normpath(f"memories/{relative}").partition("/")
    if folder != "memories":
        raise _escapes(path)
    return f"/{inside}"


def _find_all(text: str, old: str) -> list[int]:
    """Return where a text begins, overlapping occurrences included if there is more than one."""
    if text.count(old) < 2:
        start = text.find(old)
        return [] if start < 0 else [start]
    return [start for start in range(len(text) + 1) if text.startswith(old, start)]


def _number(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:>{_WIDTH}}\t{line}" for number, line in enumerate(lines, first))


def _size(size: int) -> str:
    power = min(max(size.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    whole, rest = divmod(size, 1024**power)
    return f"{size / 1024**power:.1f}{_UNITS[power]}" if rest else f"{whole}{_UNITS[power]}"


def _escapes(path: str) -> ToolError:
    return ToolError(f"Path {path} would escape /memories directory")


def _no_path(path: str) -> ToolError:
    return ToolError(f"The path {path} does not exist. Please provide a valid path.")
