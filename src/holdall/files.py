"""Files: a volume's programs, written once over the ops, on any engine.

A volume is the files of exactly one namespace; folders are implied by their paths. Listing costs what it lists, reading
what it reads and appending what it appends. `pieces.py` has the file objects of `Files.open`, and `patterns.py` what
`glob` and `grep` look for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from . import keys, ops, shapes
from .errors import (
    AmbiguousMatch,
    Conflict,
    HoldallError,
    InvalidInput,
    InvalidValue,
    IsADirectory,
    NoMatch,
    NotFound,
    NotText,
    shown,
)
from .ops import ANY, DEFAULT, KEEP, Expectation, FileInfo, Namespace, Page, PointOp
from .programs import Program, Work, apages, arun, before_retry, each, pages, run
from .watch import AsyncWatch, Watch

if TYPE_CHECKING:
    from .leases import Lease
    from .patterns import Lines
    from .pieces import AsyncFile, BinaryFile
    from .store import Store

T = TypeVar("T")
Data: TypeAlias = str | bytes | bytearray | memoryview
Mode: TypeAlias = Literal["rb", "wb", "ab"]

_PATHS = 10_000  # at a time
_LINE_END = re.compile("\r\n|\r|\n")
_ANY_END = "(?:\r\n|\r(?!\n)|(?<!\r)\n)"
_MANY, _LARGE = 100, 4 << 20  # files, and bytes, that go together: other writers wait no longer than that takes


@dataclass(frozen=True, slots=True)
class Window:
    """Some lines of a file, without their ends: from line `offset` (the first is 0) on, of `total`."""

    lines: list[str]
    offset: int
    total: int


@dataclass(frozen=True, slots=True)
class Match:
    """A line that `grep` found; the first of a file is line 1."""

    path: str
    line: int
    text: str


class Files:
    """The files of one namespace. Get one from `Store.files`."""

    def __init__(self, store: Store, namespace: Namespace, shape: ops.Json = shapes.NATIVE) -> None:
        self._store = store
        self._namespace = namespace
        self._shape = shape  # of what is written, where it is read as an item

    def __repr__(self) -> str:
        return f"<holdall.Files of {self._namespace!r} in {self._store!r}>"

    @property
    def store(self) -> Store:
        """The store beneath."""
        return self._store

    @property
    def namespace(self) -> Namespace:
        """The namespace whose files these are."""
        return self._namespace

    # Whole files -----------------------------------------------------------------------------------------------------

    def _write(
        self, path: str, data: Data, *, expect: Expectation | FileInfo = ANY, lease: Lease | None = None
    ) -> Program[FileInfo]:
        """Create or replace a file with text, kept as UTF-8, or bytes. `expect=` and `lease=` as in `Store.put`."""
        info: FileInfo = (yield from self._change(self._put(path, _to_bytes(data), expect), lease))[1]
        return info

    write = run(_write)
    awrite = arun(_write)

    def _put(self, path: str, content: bytes, expect: Expectation | FileInfo = ANY) -> list[PointOp]:
        path = keys.check_path(path)
        file = ops.File(self._shape, content)
        put = ops.Put(self._namespace, path, file, DEFAULT, _version(expect))
        return [ops.CheckPath(self._namespace, path), put]

    def _read(self, path: str) -> Program[bytes]:
        """A file's bytes."""
        return (yield from self._range(keys.check_path(path), 0, None))

    read = run(_read)
    aread = arun(_read)

    def _read_text(self, path: str) -> Program[str]:
        """A file's text; line ends are as they were written. `NotText` if it is not UTF-8."""
        content = (yield [ops.ReadRange(self._namespace, path, 0)])[0]
        if content is None:
            content = yield from self._range(keys.check_path(path), 0, None)
        return _to_text(path, content)

    read_text = run(_read_text)
    aread_text = arun(_read_text)

    def _read_lines(self, path: str, offset: int = 0, limit: int = 2000) -> Program[Window]:
        r"""Up to `limit` lines from line `offset` on. A line ends at \n, \r\n or \r, and at nothing else."""
        keys.check_count("offset", offset)
        keys.check_count("limit", limit)
        lines = split_lines((yield from self._read_text(path)))
        return Window(lines[offset : offset + limit], offset, len(lines))

    read_lines = run(_read_lines)
    aread_lines = arun(_read_lines)

    def _edit(
        self, path: str, old: str, new: str, *, replace_all: bool = False, lease: Lease | None = None
    ) -> Program[int]:
        r"""Replace a text in a file, and say how often. Others' edits meanwhile are kept: it begins again.

        `old` must be there exactly once, unless `replace_all`: else `NoMatch` or `AmbiguousMatch`. Where it is not
        there as it stands, its \n may be any line end, and those of `new` become the same.
        """
        path = keys.check_path(path)
        if not isinstance(old, str) or not isinstance(new, str):
            raise InvalidInput("edit replaces one str by another")
        if not old:
            raise InvalidInput("the text to replace cannot be empty; say which text, or use write or append")
        _check_unicode(new)
        keys.check_flag("replace_all", replace_all)
        for tries in itertools.count(1):
            info, content = yield [ops.Stat(self._namespace, path), ops.ReadRange(self._namespace, path, 0)]
            if content is None:
                raise _missing(path, info)
            text, count = _replaced(_to_text(path, content), old, new, path, replace_all)
            file = ops.File(self._shape, text.encode())
            try:
                yield from self._change([ops.Put(self._namespace, path, file, KEEP, info.version)], lease)
            except Conflict as conflict:
                yield from before_retry(conflict, tries)
            else:
                return count
        raise AssertionError("unreachable")

    edit = run(_edit)
    aedit = arun(_edit)

    # Several files, each for itself: for faces, whose frameworks hear what became of each -----------------------------

    def _write_each(self, files: Iterable[tuple[str, Data]]) -> Program[list[FileInfo | HoldallError]]:
        """Create or replace several files: what `write` would give for each, or raise. A few cost one fsync."""
        answers: list[FileInfo | HoldallError] = []
        groups: list[list[PointOp] | HoldallError] = []
        size = 0
        given = list(files)
        for place, (path, data) in enumerate(given, 1):
            try:
                content = _to_bytes(data)
                groups.append(self._put(path, content))
                size += len(content)
            except HoldallError as error:
                groups.append(error)
            if place == len(given) or len(groups) == _MANY or size > _LARGE:
                done = yield from each(groups)
                answers += [one if isinstance(one, HoldallError) else one[1] for one in done]
                groups, size = [], 0
        return answers

    def _read_each(self, paths: Iterable[str]) -> Program[list[bytes | HoldallError]]:
        """The bytes of several files: what `read` would give for each, or raise."""
        answers: list[bytes | HoldallError] = []
        given = list(paths)
        for start in range(0, len(given), _MANY):
            some = given[start : start + _MANY]
            done = yield from each([self._whole(path) for path in some])
            for path, found in zip(some, done, strict=True):
                if isinstance(found, HoldallError):
                    answers.append(found)
                else:
                    info, content = found
                    answers.append(_missing(path, info) if content is None else content)
        return answers

    def _whole(self, path: str) -> list[PointOp] | HoldallError:
        try:
            path = keys.check_path(path)
        except HoldallError as error:
            return error
        return [ops.Stat(self._namespace, path), ops.ReadRange(self._namespace, path, 0)]

    # Parts of files --------------------------------------------------------------------------------------------------

    def _append(self, path: str, data: Data, *, lease: Lease | None = None) -> Program[int]:
        """Add text or bytes to the end of a file, which is made if it is missing; the offset at which they begin."""
        path, content = keys.check_path(path), _to_bytes(data)
        append = ops.Append(self._namespace, path, content)
        offset: int = (yield from self._change([ops.CheckPath(self._namespace, path), append], lease))[1]
        return offset

    append = run(_append)
    aappend = arun(_append)

    def _read_range(self, path: str, start: int, end: int | None = None) -> Program[bytes]:
        """The bytes from `start` up to `end`, or to the end of the file. Past its end there are none."""
        keys.check_count("start", start, most=2**62)
        if end is not None:
            keys.check_count("end", end, most=2**62)
        return (yield from self._range(keys.check_path(path), start, end))

    read_range = run(_read_range)
    aread_range = arun(_read_range)

    def _range(self, path: str, start: int, end: int | None) -> Program[bytes]:
        while True:
            content: bytes | None = (yield [ops.ReadRange(self._namespace, path, start, end)])[0]
            if content is not None:
                return content
            info: FileInfo | None = (yield [ops.Stat(self._namespace, path)])[0]
            if info is None or info.is_dir:
                raise _missing(path, info)
            # It has come in between.

    def open(self, path: str, mode: Mode = "rb", *, lease: Lease | None = None) -> BinaryFile:
        """A binary file object, that reads or writes in pieces: "rb", "wb" or "ab".

        What "wb" writes becomes visible when it is closed, all at once, and not at all after an exception, or if the
        lease is lost by then; "ab" checks it with every piece. A file that others change while it is read raises
        `Conflict`.
        """
        from .pieces import opened

        return opened(self, path, mode, lease)

    async def aopen(self, path: str, mode: Mode = "rb", *, lease: Lease | None = None) -> AsyncFile:
        """`open`, for `async with await files.aopen(...)`: `read`, `write` and `close` are coroutines."""
        from .pieces import aopened

        return await aopened(self, path, mode, lease)

    # Listing ---------------------------------------------------------------------------------------------------------

    def _ls(self, path: str = "/", *, prefix: str = "") -> Program[list[FileInfo]]:
        """What is in a folder: its files and, with a "/" at their end, its subfolders. Nothing for a missing one.

        With a `prefix`, those whose names begin with it: the others cost nothing.
        """
        return self._listed(keys.check_folder(path), prefix, bare=False)

    ls = run(_ls)
    als = arun(_ls)

    def _names(self, path: str = "/", *, prefix: str = "") -> Program[list[str]]:
        """The names of what `ls` gives, and nothing else of it, which is less work in a large folder."""
        folder = keys.check_folder(path)
        paths: list[str] = yield from self._listed(folder, prefix, bare=True)
        return [path[len(folder) :] for path in paths]

    names = run(_names)
    anames = arun(_names)

    def _listed(self, folder: str, prefix: str, bare: bool) -> Program[list[Any]]:
        if not isinstance(prefix, str) or "/" in prefix:
            raise InvalidInput(f"prefix= is how a name begins, without '/', not {shown(prefix)}")
        begin = folder + prefix
        found: list[Any] = []
        after: str | None = None
        if prefix:  # a file of just this name comes before where the walk begins
            after, info = begin, (yield [ops.Stat(self._namespace, begin)])[0]
            if info is not None and not info.is_dir:
                found.append(info.path if bare else info)
        while True:
            page: Page[Any] = (
                yield [ops.Children(self._inside(), folder, after, _PATHS if bare else 1000, bare=bare)]
            )[0]
            if prefix:
                found += itertools.takewhile(lambda one: (one if bare else one.path).startswith(begin), page)
            else:
                found += page
            if page.next is None or not page.next.startswith(begin):
                return found
            after = page.next

    def _stat(self, path: str) -> Program[FileInfo]:
        """What there is to know of a file or folder without reading it; `NotFound` where there is neither."""
        folder = keys.check_folder(path)
        if folder == "/":
            return FileInfo("/", is_dir=True)
        info: FileInfo | None = (yield [ops.Stat(self._namespace, folder[:-1])])[0]
        if info is not None and path.endswith("/") and not info.is_dir:  # the file hides a folder of its name
            inside: Page[FileInfo] = (yield [ops.Children(self._inside(), folder, limit=1)])[0]
            info = FileInfo(folder, is_dir=True) if inside else None
        if info is None:
            raise NotFound(f"there is no {shown(path)}")
        return info

    stat = run(_stat)
    astat = arun(_stat)

    def _exists(self, path: str) -> Program[bool]:
        """Whether there is a file or folder."""
        try:
            yield from self._stat(path)
        except NotFound:
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
        self, path: str, matches: Callable[[str], bool] | None = None
    ) -> Callable[[Any], Program[tuple[list[FileInfo], Any]]]:
        folder = keys.check_folder(path)

        def page(after: Any) -> Program[tuple[list[FileInfo], Any]]:
            walk = ops.Children(self._inside(), folder, after, deep=True, matches=matches)
            found: Page[FileInfo] = (yield [walk])[0]
            return found, found.next

        return page

    def _glob(self, pattern: str, path: str = "/") -> Program[list[FileInfo]]:
        """The files whose path matches, in path order: `*`, `?`, `[...]`, `**` for any folders, `{a,b}`.

        A pattern without "/" is matched with a file's name, in any folder below `path`; one with "/" with its path from
        there on. Names that begin with "." have to be asked for. A `path` that is a file's is matched by its name.
        """
        from . import patterns  # not before it is needed: what it stands on takes long to import

        folder = keys.check_folder(path)
        below, matches = patterns.glob(pattern, folder)
        page = self._walk_pages(below, matches)
        found: list[FileInfo] = []
        if _may_be_a_file(path, folder) and patterns.chooses(pattern, folder[:-1]):
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
    ) -> Program[list[Match]]:
        """The lines that contain a text, or match a regular expression, in path and line order.

        `path` is a folder or a file, `glob` chooses among the files, and `limit` stops after so many lines. Files that
        are not text are passed over.
        """
        from . import patterns

        folder = keys.check_folder(path)
        if limit is not None:
            keys.check_count("limit", limit)
        keys.check_flag("regex", regex)
        keys.check_flag("ignore_case", ignore_case)
        below, matches = (folder, None) if glob is None else patterns.glob(glob, folder)
        search = patterns.Lines(pattern, regex, ignore_case)
        found: list[Match] = []
        if _may_be_a_file(path, folder) and (glob is None or patterns.chooses(glob, folder[:-1])):
            [content] = yield [ops.ReadRange(self._namespace, folder[:-1], 0)]
            found += yield from _matches(search, [(folder[:-1], content or b"")])
        after: str | None = None
        while limit is None or len(found) < limit:
            walk = ops.Grep(self._inside(), below, search.literals, ignore_case, after, matches)
            page: Page[tuple[str, bytes]] = (yield [walk])[0]
            found += yield from _matches(search, page)
            if page.next is None:
                break
            after = page.next
        return found[:limit]

    grep = run(_grep)
    agrep = arun(_grep)

    # Trees -----------------------------------------------------------------------------------------------------------

    def _delete(self, path: str, *, lease: Lease | None = None) -> Program[int]:
        """Remove a file, or a folder with all that is in it, atomically; how many files that were."""
        folder = keys.check_folder(path)
        count: int = (yield from self._change([ops.DeleteTree(self._namespace, folder[:-1] or "/")], lease))[0]
        return count

    delete = run(_delete)
    adelete = arun(_delete)

    def _move(self, src: str, dst: str, *, lease: Lease | None = None) -> Program[FileInfo]:
        """Give a file or folder another path, atomically and without copying it. Replaces a file, not a folder."""
        info: FileInfo = (yield from self._change([ops.Move(self._namespace, *keys.paths(src, dst))], lease))[0]
        return info

    move = run(_move)
    amove = arun(_move)

    def _copy(self, src: str, dst: str, *, lease: Lease | None = None) -> Program[FileInfo]:
        """Have a file or folder at another path too, atomically; what is in it is shared until one of them changes."""
        info: FileInfo = (yield from self._change([ops.Copy(self._namespace, *keys.paths(src, dst))], lease))[0]
        return info

    copy = run(_copy)
    acopy = arun(_copy)

    # Watching --------------------------------------------------------------------------------------------------------

    def watch(self, path: str = "/", *, since: str | None = None) -> Watch:
        """Iterate over the changes of a file, or of all in a folder, as they come; see `Store.watch`."""
        return Watch(self._store, self._changes(path, since))

    def awatch(self, path: str = "/", *, since: str | None = None) -> AsyncWatch:
        """`watch`, as an async iterator."""
        return AsyncWatch(self._store, self._changes(path, since))

    def _changes(self, path: str, since: str | None) -> ops.Changes:
        return ops.Changes(self._inside(), since, path=keys.check_folder(path)[:-1] or "/")

    # Running programs ------------------------------------------------------------------------------------------------

    def _run(self, program: Program[T]) -> T:
        return self._store._run(program)

    def _arun(self, program: Program[T]) -> Coroutine[Any, Any, T]:
        return self._store._arun(program)

    def _change(self, batch: list[PointOp], lease: Lease | None) -> Program[list[Any]]:
        return self._store._change(batch, lease)

    def _inside(self) -> Namespace:
        return self._store._home(self._namespace)


def _matches(search: Lines, files: list[tuple[str, bytes]]) -> Program[list[Match]]:
    """The matching lines of some files, looked for where that keeps no event loop waiting."""
    lines = (yield Work(search.of_all, (files,))) if search.may_take_long and files else search.of_all(files)
    return [Match(*line) for line in lines]


def _may_be_a_file(path: str, folder: str) -> bool:
    return folder != "/" and not path.endswith("/")


def split_lines(text: str) -> list[str]:
    r"""The lines of a text, without their ends: \n, \r\n or \r. An end at the end begins no further line."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")  # five times as fast as a regular expression
    if not lines[-1]:
        lines.pop()
    return lines


def _replaced(text: str, old: str, new: str, path: str, replace_all: bool) -> tuple[str, int]:
    # A match never takes one half of a \r\n.
    find = re.compile(("(?<!\r)" if old[0] == "\n" else "") + re.escape(old) + ("(?!\n)" if old[-1] == "\r" else ""))
    count = len(find.findall(text))
    if not count and _LINE_END.search(old):  # what was shown as lines has lost its line ends
        find = re.compile(_ANY_END.join(re.escape(line) for line in _LINE_END.split(old)))
        count = len(find.findall(text))

    def substitute(found: re.Match[str]) -> str:
        end = _LINE_END.search(found[0])
        return new if end is None or found[0] == old else _LINE_END.sub(end[0], new)

    if not count:
        raise NoMatch(f"the text to replace is not in {path!r} (0 matches): {old!r:.200}")
    if count > 1 and not replace_all:
        raise AmbiguousMatch(
            f"the text to replace is in {path!r} {count} times; give more of what is around it, or replace_all=True:"
            f" {old!r:.200}",
            count,
        )
    return find.sub(substitute, text), count


def _to_bytes(data: Any) -> bytes:
    if isinstance(data, str):
        _check_unicode(data)
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidValue(f"a file holds str or bytes, not {type(data).__name__} {shown(data)}")


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(f"lone surrogates are not text: at character {error.start}") from None


def _to_text(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise NotText(f"{path!r} is not text: byte {error.start} is not UTF-8; read it as bytes") from None


def _missing(path: str, info: FileInfo | None) -> HoldallError:
    return IsADirectory(f"{path!r} is a folder") if info is not None else NotFound(f"there is no file {path!r}")


def _version(expect: Any) -> Any:
    return expect.version if isinstance(expect, FileInfo) else expect
