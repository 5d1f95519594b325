"""Files: the methods of a volume, as programs over the ops, on any engine.

A volume is the files of exactly one namespace. Folders are implied by paths. The cost of listing, reading and appending
depends only on what is listed, read and appended. `file_objects.py` has the file objects of `Files.open`.
`patterns.py` has the patterns of `grep`; globs are in `model/globs.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from .. import ops
from ..errors import (
    FileNotFound,
    HistoryGone,
    HoldallError,
    InvalidInput,
    IsADirectory,
    shown,
)
from ..history.versions import list_folder_versions, list_versions, restore, to_version
from ..live.watch import AsyncWatch, Watch
from ..model import file_values, globs, keys
from ..ops import ANY, DEFAULT, KEEP, Expectation, FileInfo, Namespace, Page, PointOp, Version
from ..runtime import arguments
from ..runtime.programs import StoreProgram, Work, apages, arun, pages, retry_conflicts, run, run_each
from .large_moves import move
from .texts import Data, make_edit, split_lines, to_bytes, to_text

if TYPE_CHECKING:
    from ..core.store import Store
    from ..live.leases import Lease
    from .file_objects import AsyncFile, BinaryFile
    from .patterns import LineMatcher

T = TypeVar("T")
Mode: TypeAlias = Literal["rb", "wb", "ab"]

_PATHS_PER_PAGE = 10_000
#: The most files and bytes in one batch, so that other writers do not wait long.
_BATCH_FILES, _BATCH_BYTES = 100, 4 << 20


@dataclass(frozen=True, slots=True)
class Window:
    """Some lines of a file, without line ends: those from line `offset` on (the first is 0), of `total`."""

    lines: list[str]
    offset: int
    total: int


@dataclass(frozen=True, slots=True)
class Match:
    """A line that `grep` found. The first line of a file is 1."""

    path: str
    line: int
    text: str


class Files:
    """The files of one namespace. Get one from `Store.files`."""

    def __init__(self, store: Store, namespace: Namespace, template: ops.Json = file_values.NATIVE) -> None:
        self._store = store
        self._namespace = namespace
        self._template = template  # how a file that is written here looks when it is read as an item

    def __repr__(self) -> str:
        return f"<holdall.Files of {self._namespace!r} in {self._store!r}>"

    @property
    def store(self) -> Store:
        """The store that holds the files."""
        return self._store

    @property
    def namespace(self) -> Namespace:
        """The namespace of the files."""
        return self._namespace

    # Whole files -----------------------------------------------------------------------------------------------------

    def _write(
        self, path: str, data: Data, *, expect: Expectation | FileInfo = ANY, lease: Lease | None = None
    ) -> StoreProgram[FileInfo]:
        """Create or replace a file with text (stored as UTF-8) or bytes. `expect=` and `lease=` as in `Store.put`."""
        info: FileInfo = (yield from self._change(self._put(path, to_bytes(data), expect), lease))[1]
        return info

    write = run(_write)
    awrite = arun(_write)

    def _put(self, path: str, content: bytes, expect: Expectation | FileInfo = ANY) -> list[PointOp]:
        path = keys.check_path(path)
        file = ops.File(self._template, content)
        put = ops.Put(self._namespace, path, file, DEFAULT, _version(expect))
        return [ops.CheckPath(self._namespace, path), put]

    def _read(self, path: str, *, version: int | None = None) -> StoreProgram[bytes]:
        """Read the bytes of a file; with a `version` from `history`, as they were then."""
        path = keys.check_path(path)
        if version is None:
            return (yield from self._range(path, 0, None))
        arguments.check_version(version)
        content: bytes | None = (yield [ops.ReadRange(self._namespace, path, 0, None, version)])[0]
        if content is None:
            raise HistoryGone(f"version {version} of {path!r} is not kept, or is a deletion; see history()")
        return content

    read = run(_read)
    aread = arun(_read)

    def _read_text(self, path: str) -> StoreProgram[str]:
        """Read the text of a file. Line ends are as they were written. `NotText` if it is not UTF-8."""
        content = (yield [ops.ReadRange(self._namespace, path, 0)])[0]
        if content is None:
            content = yield from self._range(keys.check_path(path), 0, None)
        return to_text(path, content)

    read_text = run(_read_text)
    aread_text = arun(_read_text)

    def _read_lines(self, path: str, offset: int = 0, limit: int = 2000) -> StoreProgram[Window]:
        r"""Read up to `limit` lines from line `offset` on. A line ends at \n, \r\n or \r, and at nothing else."""
        arguments.check_count("offset", offset)
        arguments.check_count("limit", limit)
        lines = split_lines((yield from self._read_text(path)))
        return Window(lines[offset : offset + limit], offset, len(lines))

    read_lines = run(_read_lines)
    aread_lines = arun(_read_lines)

    def _edit(
        self,
        path: str,
        old: str,
        new: str,
        *,
        replace_all: bool = False,
        expect: Expectation | FileInfo = ANY,
        lease: Lease | None = None,
    ) -> StoreProgram[int]:
        r"""Replace a text in a file, and return how often. If the file changed in the meantime, do it again.

        `old` must be there exactly once, unless `replace_all` is set: else `NoMatch` or `AmbiguousMatch`. If it is not
        there exactly as given, its \n matches any line end, and the line ends of `new` become the same. With
        `expect=`, as in `Store.put`, a file that has another version is a `Conflict`.
        """
        path = keys.check_path(path)
        change = make_edit(path, old, new, replace_all=replace_all)
        return (yield from self._change_text(path, change, expect=expect, lease=lease))

    def _change_text(
        self,
        path: str,
        change: Callable[[str], tuple[str, T]],
        *,
        expect: Expectation | FileInfo = ANY,
        lease: Lease | None = None,
    ) -> StoreProgram[T]:
        """Replace the text of a file by what `change(text)` returns, and return its second result.

        If the file changed in the meantime, do it again, unless a version is expected. The file keeps its TTL.
        """
        path = keys.check_path(path)
        checks = self._checks(path, expect)

        def attempt() -> StoreProgram[T]:
            *_, info, content = yield [
                *checks,
                ops.Stat(self._namespace, path),
                ops.ReadRange(self._namespace, path, 0),
            ]
            if content is None:
                raise _missing(path, info)
            text, result = change(to_text(path, content))
            file = ops.File(self._template, to_bytes(text))
            yield from self._change([ops.Put(self._namespace, path, file, KEEP, info.version)], lease)
            return result

        return (yield from attempt() if checks else retry_conflicts(attempt))

    edit = run(_edit)
    aedit = arun(_edit)

    # History ---------------------------------------------------------------------------------------------------------

    def _history(self, path: str, *, limit: int = 100) -> StoreProgram[list[Version]]:
        """Return the versions of a file that the store keeps, newest first, as `Store.history` does.

        They come without their contents: `read(path, version=...)` returns one. With a path that ends in "/": the
        versions of all files below that folder, each with its path.
        """
        if isinstance(path, str) and path.endswith("/"):
            folder = keys.check_folder(path)
            found = yield from list_folder_versions(self._store, self._namespace, folder, limit)
            return [replace(to_version(one), path=file) for file, one in found]
        versions = yield from list_versions(self._store, self._namespace, keys.check_path(path), limit)
        return [to_version(one) for one in versions]

    history = run(_history)
    ahistory = arun(_history)

    def _restore(
        self, path: str, version: int, *, expect: Expectation | FileInfo = ANY, lease: Lease | None = None
    ) -> StoreProgram[FileInfo]:
        """Write an old version of a file again, as a new change. `HistoryGone` if the store does not keep it.

        With `expect=`, as in `Store.put`, a file that has another version is a `Conflict`.
        """
        path = keys.check_path(path)
        yield from restore(self._store, self._namespace, path, version, _version(expect), lease)
        info: FileInfo = (yield [ops.Stat(self._namespace, path)])[0]
        return info

    restore = run(_restore)
    arestore = arun(_restore)

    # Several files, each with its own result, for faces --------------------------------------------------------------

    def _write_each(self, files: Iterable[tuple[str, Data]]) -> StoreProgram[list[FileInfo | HoldallError]]:
        """Create or replace several files. Returns for each what `write` would return or raise."""
        answers: list[FileInfo | HoldallError] = []
        groups: list[list[PointOp] | HoldallError] = []
        size = 0
        given = list(files)
        for index, (path, data) in enumerate(given, 1):
            try:
                content = to_bytes(data)
                groups.append(self._put(path, content))
                size += len(content)
            except HoldallError as error:
                groups.append(error)
            if index == len(given) or len(groups) == _BATCH_FILES or size > _BATCH_BYTES:
                done = yield from run_each(groups)
                answers += [one if isinstance(one, HoldallError) else one[1] for one in done]
                groups, size = [], 0
        return answers

    def _read_each(self, paths: Iterable[str]) -> StoreProgram[list[bytes | HoldallError]]:
        """Read several files. Returns for each what `read` would return or raise."""
        answers: list[bytes | HoldallError] = []
        given = list(paths)
        for start in range(0, len(given), _BATCH_FILES):
            some = given[start : start + _BATCH_FILES]
            done = yield from run_each([self._read_ops(path) for path in some])
            for path, found in zip(some, done, strict=True):
                if isinstance(found, HoldallError):
                    answers.append(found)
                else:
                    info, content = found
                    answers.append(_missing(path, info) if content is None else content)
        return answers

    def _read_ops(self, path: str) -> list[PointOp] | HoldallError:
        try:
            path = keys.check_path(path)
        except HoldallError as error:
            return error
        return [ops.Stat(self._namespace, path), ops.ReadRange(self._namespace, path, 0)]

    # Parts of files --------------------------------------------------------------------------------------------------

    def _append(
        self, path: str, data: Data, *, expect: Expectation | FileInfo = ANY, lease: Lease | None = None
    ) -> StoreProgram[int]:
        """Add text or bytes to the end of a file, and return their offset. A missing file is created.

        With `expect=`, as in `Store.put`, a file that has another version is a `Conflict`.
        """
        path, content = keys.check_path(path), to_bytes(data)
        append = ops.Append(self._namespace, path, content, _version(expect))
        offset: int = (yield from self._change([ops.CheckPath(self._namespace, path), append], lease))[1]
        return offset

    append = run(_append)
    aappend = arun(_append)

    def _read_range(self, path: str, start: int, end: int | None = None) -> StoreProgram[bytes]:
        """Read the bytes from `start` up to `end`, or to the end of the file. Past its end there are none."""
        arguments.check_count("start", start, most=2**62)
        if end is not None:
            arguments.check_count("end", end, most=2**62)
        return (yield from self._range(keys.check_path(path), start, end))

    read_range = run(_read_range)
    aread_range = arun(_read_range)

    def _range(self, path: str, start: int, end: int | None) -> StoreProgram[bytes]:
        while True:
            content: bytes | None = (yield [ops.ReadRange(self._namespace, path, start, end)])[0]
            if content is not None:
                return content
            info: FileInfo | None = (yield [ops.Stat(self._namespace, path)])[0]
            if info is None or info.is_dir:
                raise _missing(path, info)
            # The file was created in the meantime.

    def open(self, path: str, mode: Mode = "rb", *, lease: Lease | None = None) -> BinaryFile:
        """Return a binary file object that reads or writes in pieces. The mode is "rb", "wb" or "ab".

        What "wb" writes becomes visible when the file is closed, all at once; not after an exception, nor if the lease
        is lost by then. "ab" checks the lease with every piece. Reading a file that others have changed since it was
        opened raises `Conflict`.
        """
        from .file_objects import open_sync

        return open_sync(self, path, mode, lease)

    async def aopen(self, path: str, mode: Mode = "rb", *, lease: Lease | None = None) -> AsyncFile:
        """`open`, for `async with await files.aopen(...)`: `read`, `write` and `close` are coroutines."""
        from .file_objects import open_async

        return await open_async(self, path, mode, lease)

    # Listing ---------------------------------------------------------------------------------------------------------

    def _ls(self, path: str = "/", *, prefix: str = "") -> StoreProgram[list[FileInfo]]:
        """List a folder: its files, and its subfolders with a "/" at their end. A missing folder is empty.

        With a `prefix`, only names that begin with it. The others cost nothing.
        """
        return self._list(keys.check_folder(path), prefix, bare=False)

    ls = run(_ls)
    als = arun(_ls)

    def _names(self, path: str = "/", *, prefix: str = "") -> StoreProgram[list[str]]:
        """List only the names of what `ls` lists. That is less work in a large folder."""
        folder = keys.check_folder(path)
        paths: list[str] = yield from self._list(folder, prefix, bare=True)
        return [path[len(folder) :] for path in paths]

    names = run(_names)
    anames = arun(_names)

    def _list(self, folder: str, prefix: str, bare: bool) -> StoreProgram[list[Any]]:
        found: list[Any] = []
        after: str | None = None
        while True:
            page = yield from self._list_page(folder, prefix, after, _PATHS_PER_PAGE if bare else 1000, bare)
            found += page
            if page.next is None:
                return found
            after = page.next

    def _list_page(
        self, folder: str, prefix: str, after: str | None, limit: int, bare: bool = False
    ) -> StoreProgram[Page[Any]]:
        """Read a page of a folder, after a path. The first page may have one more than `limit`."""
        if not isinstance(prefix, str) or "/" in prefix:
            raise InvalidInput(f"prefix= is the beginning of a name, without '/', not {shown(prefix)}")
        begin = folder + prefix
        found: Page[Any] = Page()
        if prefix and after is None:  # a file with exactly this name sorts before the start of the walk
            after, info = begin, (yield [ops.Stat(self._namespace, begin)])[0]
            if info is not None and not info.is_dir:
                found.append(info.path if bare else info)
        page: Page[Any] = (yield [ops.Children(self._resolve_namespace(), folder, after, limit, bare=bare)])[0]
        if prefix:
            found += itertools.takewhile(lambda one: (one if bare else one.path).startswith(begin), page)
        else:
            found += page
        found.next = page.next if page.next is not None and page.next.startswith(begin) else None
        return found

    def _stat(self, path: str) -> StoreProgram[FileInfo]:
        """Return the `FileInfo` of a file or folder. `FileNotFound` if there is neither."""
        info = yield from self._find(path)
        if info is None:
            raise FileNotFound(f"there is no {shown(path)}")
        return info

    stat = run(_stat)
    astat = arun(_stat)

    def _find(self, path: str) -> StoreProgram[FileInfo | None]:
        """Find a file, else a folder, else None. A path with "/" at its end is never that of a file."""
        folder = keys.check_folder(path)
        if folder == "/":
            return FileInfo("/", is_dir=True)
        info: FileInfo | None = (yield [ops.Stat(self._namespace, folder[:-1])])[0]
        # A folder may have the same name as a file.
        if info is not None and path.endswith("/") and not info.is_dir:
            inside: Page[FileInfo] = (yield [ops.Children(self._resolve_namespace(), folder, limit=1)])[0]
            return FileInfo(folder, is_dir=True) if inside else None
        return info

    def _exists(self, path: str) -> StoreProgram[bool]:
        """Whether there is a file or folder."""
        try:
            yield from self._stat(path)
        except FileNotFound:
            return False
        return True

    exists = run(_exists)
    aexists = arun(_exists)

    def walk(self, path: str = "/") -> Generator[FileInfo, None, None]:
        """Iterate over every file in a folder and below it, in path order, a page at a time."""
        return pages(self, self._walk_pages(path))

    def awalk(self, path: str = "/") -> AsyncGenerator[FileInfo, None]:
        """`walk`, as an async iterator."""
        return apages(self, self._walk_pages(path))

    def _walk_pages(
        self, path: str, glob: str | None = None
    ) -> Callable[[Any], StoreProgram[tuple[list[FileInfo], Any]]]:
        folder = keys.check_folder(path)

        def page(after: Any) -> StoreProgram[tuple[list[FileInfo], Any]]:
            walk = ops.Children(self._resolve_namespace(), folder, after, deep=True, glob=glob)
            found: Page[FileInfo] = (yield [walk])[0]
            return found, found.next

        return page

    def _glob(self, pattern: str, path: str = "/") -> StoreProgram[list[FileInfo]]:
        """Find the files whose path matches, in path order: `*`, `?`, `[...]`, `**` for any folders, `{a,b}`.

        A pattern without "/" is matched with the names of files in any folder below `path`; one with "/" with their
        paths relative to `path`. Names that begin with "." match only a pattern that begins with ".". If `path` is a
        file, its name is matched.
        """
        folder = keys.check_folder(path)
        page = self._walk_pages(*globs.split_glob(pattern, folder))
        found: list[FileInfo] = []
        if _may_be_a_file(path, folder) and globs.is_match(pattern, folder[:-1]):
            [info] = yield [ops.Stat(self._namespace, folder[:-1])]
            found += [info] if info is not None and not info.is_dir else []
        more, mark = yield from page(None)
        found += more
        while mark is not None:
            more, mark = yield from page(mark)
            found += more
        return found

    glob = run(_glob)
    aglob = arun(_glob)

    def _grep(
        self,
        pattern: str,
        path: str = "/",
        *,
        glob: str | None = None,
        regex: bool = False,
        ignore_case: bool = False,
        limit: int | None = None,
    ) -> StoreProgram[list[Match]]:
        """Find the lines that contain a text, or match a regular expression, in path and line order.

        `path` is a folder or a file, `glob` selects files, and `limit` is the most lines to return. Files that are not
        text, and files of more than 64 MiB, are skipped.
        """
        from . import patterns  # here, since importing `regex` takes long

        folder = keys.check_folder(path)
        if limit is not None:
            arguments.check_count("limit", limit)
        arguments.check_flag("regex", regex)
        arguments.check_flag("ignore_case", ignore_case)
        below, rest = (folder, None) if glob is None else globs.split_glob(glob, folder)
        asked = pattern, regex, ignore_case
        search = (yield Work(patterns.LineMatcher, asked)) if regex or ignore_case else patterns.LineMatcher(*asked)
        found: list[Match] = []
        if _may_be_a_file(path, folder) and (glob is None or globs.is_match(glob, folder[:-1])):
            [content] = yield [ops.ReadRange(self._namespace, folder[:-1], 0, file_values.LARGEST + 1)]
            if content is not None and len(content) <= file_values.LARGEST:
                found += yield from _find_lines(search, [(folder[:-1], content)])
        after: str | None = None
        while limit is None or len(found) < limit:
            walk = ops.Grep(self._resolve_namespace(), below, search.literals, ignore_case, after, rest)
            page: Page[tuple[str, bytes]] = (yield [walk])[0]
            found += yield from _find_lines(search, page)
            if page.next is None:
                break
            after = page.next
        return found[:limit]

    grep = run(_grep)
    agrep = arun(_grep)

    # Trees -----------------------------------------------------------------------------------------------------------

    def _delete(
        self,
        path: str,
        *,
        recursive: bool = False,
        expect: Expectation | FileInfo = ANY,
        lease: Lease | None = None,
    ) -> StoreProgram[int]:
        """Remove a file, or with `recursive` also a folder with everything in it, in one transaction.

        Returns how many files were removed: 0 if there is nothing. Without `recursive`, a folder is `IsADirectory`.
        With `expect=`, as in `Store.put`, a file that has another version is a `Conflict`.
        """
        arguments.check_flag("recursive", recursive)
        target = keys.check_folder(path)[:-1] or "/"
        checks = self._checks(target, expect)
        if recursive:
            count: int = (yield from self._change([*checks, ops.DeleteTree(self._namespace, target)], lease))[-1]
            return count
        info = yield from self._find(path)
        if info is not None and info.is_dir:
            raise IsADirectory(f"{path!r} is a folder; pass recursive=True to delete it with everything in it")
        # Without a version: a disk store that is full accepts only unconditional deletes.
        batch: list[ops.PointOp] = [] if info is None else [ops.Delete(self._namespace, target)]
        results = yield from self._change([*checks, *batch], lease)
        return sum(results[len(checks) :])

    delete = run(_delete)
    adelete = arun(_delete)

    def _move(
        self, src: str, dst: str, *, expect: Expectation | FileInfo = ANY, lease: Lease | None = None
    ) -> StoreProgram[FileInfo]:
        """Move a file or folder without copying it, in one transaction. Replaces a file, not a folder.

        A folder of more than 1,000 files is moved in slices, each in one transaction: at every moment, each file is at
        one of its two paths. If the move is interrupted, call it again: it goes on. With `expect=`, as in `Store.put`,
        a file that has another version is a `Conflict`.
        """
        op = ops.Move(self._namespace, *keys.check_paths(src, dst))
        return (yield from move(self._store, op, lease, self._checks(op.src, expect)))

    move = run(_move)
    amove = arun(_move)

    def _copy(self, src: str, dst: str, *, lease: Lease | None = None) -> StoreProgram[FileInfo]:
        """Copy a file or folder to another path, in one transaction. Contents are shared until one of them changes."""
        info: FileInfo = (yield from self._change([ops.Copy(self._namespace, *keys.check_paths(src, dst))], lease))[0]
        return info

    copy = run(_copy)
    acopy = arun(_copy)

    # Watching --------------------------------------------------------------------------------------------------------

    def watch(self, path: str = "/", *, since: str | None = None) -> Watch:
        """Iterate over the changes of a file, or of all files in a folder, as they happen. See `Store.watch`."""
        return Watch(self._store, self._changes(path, since))

    def awatch(self, path: str = "/", *, since: str | None = None) -> AsyncWatch:
        """`watch`, as an async iterator."""
        return AsyncWatch(self._store, self._changes(path, since))

    def _changes(self, path: str, since: str | None) -> ops.Changes:
        return ops.Changes(self._resolve_namespace(), since, path=keys.check_folder(path)[:-1] or "/")

    # Running programs ------------------------------------------------------------------------------------------------

    def _run(self, program: StoreProgram[T]) -> T:
        return self._store._run(program)

    def _arun(self, program: StoreProgram[T]) -> Coroutine[Any, Any, T]:
        return self._store._arun(program)

    def _change(self, batch: list[PointOp], lease: Lease | None) -> StoreProgram[list[Any]]:
        return self._store._change(batch, lease)

    def _checks(self, path: str, expect: Expectation | FileInfo) -> list[ops.Check]:
        """Return the op that raises `Conflict` unless a file has the expected version."""
        version = _version(expect)
        return [] if version is ANY else [ops.Check(self._namespace, path, version)]

    def _resolve_namespace(self) -> Namespace:
        """Return the namespace inside the store's scope, as walks need it."""
        return self._store._resolve_namespace(self._namespace)


def _find_lines(search: LineMatcher, files: list[tuple[str, bytes]]) -> StoreProgram[list[Match]]:
    """Find the matching lines of some files. A slow search runs where it does not block an event loop."""
    lines = (yield Work(search.find_all, (files,))) if search.may_take_long and files else search.find_all(files)
    return [Match(*line) for line in lines]


def _may_be_a_file(path: str, folder: str) -> bool:
    return folder != "/" and not path.endswith("/")


def _missing(path: str, info: FileInfo | None) -> HoldallError:
    return IsADirectory(f"{path!r} is a folder") if info is not None else FileNotFound(f"there is no file {path!r}")


def _version(expect: Any) -> Any:
    return expect.version if isinstance(expect, FileInfo) else expect
