"""The command line: `holdall URL ls /notes`, and what else one does with files in a shell.

Each command is a function, which does its work through `Files` and returns its exit code; those that search are in
`cli_search.py`, those for LangGraph's data in `cli_langgraph.py`. What it finds goes to stdout, as lines or with
`--json` as one JSON document; what went wrong goes to stderr, as one line. `run` is where errors become exit codes.
"""

from __future__ import annotations

import base64
import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeAlias

try:
    import typer

    from .terminal import NobodyReads, Output, Stdout, print_files, print_json
except ModuleNotFoundError as missing:
    from ..errors import MissingExtra

    raise MissingExtra(
        f"the command needs the package {missing.name!r}: pip install 'holdall[cli]'", name=missing.name
    ) from missing

import holdall

from ..errors import (
    AlreadyExists,
    AmbiguousMatch,
    Conflict,
    HoldallError,
    InvalidInput,
    IsADirectory,
    NoMatch,
    NotADirectory,
    NotFound,
    NotText,
)
from ..files import Files
from ..ops import ABSENT, FileInfo
from .cli_langgraph import conversations, export, import_
from .cli_options import (
    BAD_INPUT,
    DONE,
    IN_THE_WAY,
    INTERRUPTED,
    NOBODY_READS,
    NOTHING,
    UNAVAILABLE,
    AsJson,
    Labels,
    Ns,
    chosen_namespace,
    opened,
)
from .cli_search import reindex, search
from .transfer import copy_in, copy_out, copy_to_local, lines_in_pieces, local_files, local_name

#: The first that fits an error is its exit code; whatever else a store or the system reports is `UNAVAILABLE`.
_CODES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((Conflict, AlreadyExists, AmbiguousMatch, IsADirectory, NotADirectory, NotText), IN_THE_WAY),
    ((FileExistsError, IsADirectoryError, NotADirectoryError), IN_THE_WAY),
    ((NotFound, NoMatch, FileNotFoundError), NOTHING),
    ((InvalidInput,), BAD_INPUT),
)
_USAGE: type[Any] = typer.BadParameter.__mro__[1]  # `UsageError` has no name of its own in typer

app = typer.Typer(name="holdall", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

StorePath: TypeAlias = Annotated[str, typer.Argument(metavar="PATH", help="An absolute path in the store.")]
StorePaths: TypeAlias = Annotated[list[str], typer.Argument(metavar="PATH", help="Absolute paths in the store.")]
Folder: TypeAlias = Annotated[str, typer.Argument(metavar="PATH", help="The folder to look in.")]
Source: TypeAlias = Annotated[str, typer.Argument(metavar="SRC", help="The file or folder.")]
Target: TypeAlias = Annotated[
    str, typer.Argument(metavar="DST", help="Its new path; with a '/' at the end, the folder to put it into.")
]
Given: TypeAlias = Annotated[str, typer.Argument(metavar="TEXT", help="The text; '-' or nothing: from stdin.")]
Long: TypeAlias = Annotated[bool, typer.Option("--long", "-l", help="Sizes and times, too.")]


# The way in ----------------------------------------------------------------------------------------------------------


def run(words: list[str]) -> int:
    """Do what the words say; the exit code."""
    try:
        code = app(_with_url(words) or ["--help"], prog_name="holdall", standalone_mode=False)
        Stdout().flush()
        return code or DONE
    except NobodyReads:
        return NOBODY_READS
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except _USAGE as error:
        _complain(f"{error.format_message()} See holdall --help.")
        return BAD_INPUT
    except (HoldallError, OSError) as error:
        _complain(error)
        return _code(error)
    finally:
        _let_go()


def _let_go() -> None:
    """Leave nothing in stdout's buffer that Python would stumble over at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _with_url(words: list[str]) -> list[str]:
    """The words with a URL in its place: where the first is a command, it is left to HOLDALL_URL, which "" stands for.

    A store in a file that is called like a command is named `./ls`.
    """
    first = next((place for place, word in enumerate(words) if not word.startswith("-")), None)
    if first is None or words[first] not in COMMANDS:
        return words
    return [*words[:first], "", *words[first:]]


def _code(error: BaseException) -> int:
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), UNAVAILABLE)


def _complain(error: object) -> None:
    sys.stderr.write(f"holdall: {' '.join(str(error).split())}\n")


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"holdall {holdall.__version__}\n")
        raise typer.Exit


@app.callback()
def _url(
    context: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The store: agent.db, postgresql://…; without one, HOLDALL_URL.")
    ] = "",
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Look into a store, search it, and work on its files.

    Exit codes: 0 done or found, 1 nothing there or no match, 2 bad input, 3 the store is unavailable, 4 what is there
    is in the way (a folder, a second match, somebody else's change).
    """
    context.obj = url


@contextlib.contextmanager
def _volume(context: typer.Context, ns: str | None, labels: list[str] | None) -> Iterator[Files]:
    namespace = chosen_namespace(ns, labels, ("filesystem",))
    with opened(context) as store:
        yield store.files(namespace)


# Looking -------------------------------------------------------------------------------------------------------------


@app.command()
def ls(
    context: typer.Context,
    path: Folder = "/",
    long: Long = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """List a folder; subfolders end in "/"."""
    with _volume(context, ns, label) as files:
        found = files.ls(path)
        if not found:
            info = files.stat(path)  # which fails where there is nothing
            found = [] if info.is_dir else [info]
    print_files(found, long, as_json)
    return DONE


@app.command()
def tree(
    context: typer.Context,
    path: Folder = "/",
    depth: Annotated[int | None, typer.Option("--depth", "-d", min=1, help="How many levels to go down.")] = None,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Draw a folder with all that is below it."""
    out = Output()
    found: list[FileInfo] = []
    with _volume(context, ns, label) as files:
        top = files.stat(path)
        if not as_json:
            out.line((top.path, "bold blue" if top.is_dir else ""))
        for info, bars in _below(files, top.path, depth) if top.is_dir else ():
            if as_json:
                found.append(info)
            else:
                name = info.path.rstrip("/").rpartition("/")[2] + "/" * info.is_dir
                out.line((bars, "dim"), (name, "bold blue" if info.is_dir else ""))
    if as_json:
        print_json([asdict(info) for info in found])
    return DONE


def _below(files: Files, folder: str, depth: int | None) -> Iterator[tuple[FileInfo, str]]:
    """What is in a folder and below it, each with the lines to draw before its name; listed as it is needed."""
    levels = [(iter(_with_last(files.ls(folder))), "")]
    while levels:
        children, bars = levels[-1]
        child = next(children, None)
        if child is None:
            levels.pop()
            continue
        info, last = child
        yield info, bars + ("└── " if last else "├── ")
        if info.is_dir and (depth is None or len(levels) < depth):
            levels.append((iter(_with_last(files.ls(info.path))), bars + ("    " if last else "│   ")))


def _with_last(infos: list[FileInfo]) -> list[tuple[FileInfo, bool]]:
    return [(info, place == len(infos)) for place, info in enumerate(infos, 1)]


@app.command()
def glob(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Such as '*.md', 'src/**/*.py', '*.{md,txt}'.")],
    path: Folder = "/",
    long: Long = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Find files by their paths. A pattern without "/" is matched with names, at any depth."""
    with _volume(context, ns, label) as files:
        found = files.glob(pattern, path)
    print_files(found, long, as_json)
    return DONE if found else NOTHING


@app.command()
def grep(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="The text to look for.")],
    path: Folder = "/",
    regex: Annotated[bool, typer.Option("--regex", "-E", help="PATTERN is a regular expression.")] = False,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Upper or lower case alike.")] = False,
    glob: Annotated[str | None, typer.Option("--glob", "-g", metavar="GLOB", help="Only in files that match.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-m", min=1, help="Stop after so many lines.")] = None,
    only_paths: Annotated[bool, typer.Option("--files", "-l", help="Only the files' paths, each once.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Find lines by what they contain: path, line and text."""
    with _volume(context, ns, label) as files:
        found = files.grep(pattern, path, glob=glob, regex=regex, ignore_case=ignore_case, limit=limit)
    out = Output()
    if only_paths:
        paths = list(dict.fromkeys(match.path for match in found))
        print_json(paths) if as_json else out.lines(paths)
    elif as_json:
        print_json([asdict(match) for match in found])
    else:
        for match in found:
            out.line(
                (match.path, "magenta"), (":", "cyan"), (f"{match.line}", "green"), (":", "cyan"), (match.text, "")
            )
    return DONE if found else NOTHING


# Reading -------------------------------------------------------------------------------------------------------------


@app.command()
def cat(context: typer.Context, paths: StorePaths, ns: Ns = None, label: Labels = None, as_json: AsJson = False) -> int:
    """Print files, byte for byte."""
    code, shown = DONE, []
    with _volume(context, ns, label) as files:
        for path in paths:
            try:
                if as_json:
                    shown.append(_with_content(path, files.read(path)))
                else:
                    copy_out(files, path, Stdout())
            except HoldallError as error:  # the others can still be shown
                _complain(error)
                code = max(code, _code(error))
    if as_json:
        print_json(shown)
    return code


def _with_content(path: str, content: bytes) -> dict[str, str]:
    try:
        return {"path": path, "encoding": "utf-8", "content": content.decode()}
    except UnicodeDecodeError:
        return {"path": path, "encoding": "base64", "content": base64.b64encode(content).decode()}


@app.command()
def get(
    context: typer.Context,
    path: StorePath,
    local: Annotated[
        str | None, typer.Argument(metavar="LOCAL", help="Where to; '-' is stdout. By default, its name, here.")
    ] = None,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Copy a file or folder out of the store. Each local file is written whole, or not at all."""
    with _volume(context, ns, label) as files:
        info = files.stat(path)
        if local == "-":
            copy_out(files, info.path, Stdout())
            return DONE
        if local is None and info.path == "/":
            raise InvalidInput("say which folder the whole volume is to be copied to: get / backup")
        target = Path(local or _name(info.path))
        if not info.is_dir:
            target = target / local_name(info.path) if target.is_dir() else target
            pairs = [(info.path, target)]
            copy_to_local(files, *pairs[0])
        else:
            pairs = []
            for file in files.walk(info.path):
                pairs.append((file.path, target / local_name(file.path.removeprefix(info.path))))
                pairs[-1][1].parent.mkdir(parents=True, exist_ok=True)
                copy_to_local(files, *pairs[-1])
    if as_json:
        print_json([{"path": path, "local": str(place)} for path, place in pairs])
    return DONE


# Writing -------------------------------------------------------------------------------------------------------------


@app.command()
def write(
    context: typer.Context,
    path: StorePath,
    text: Given = "-",
    new: Annotated[bool, typer.Option("--new", help="Refuse where there is a file already.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Create or replace a file; nothing is added to the text."""
    with _volume(context, ns, label) as files:
        if new:
            info = files.write(path, _given(text), expect=ABSENT)
        else:
            info = files.write(path, _text(text)) if text != "-" else copy_in(files, path, sys.stdin.buffer)
    return _done(info, as_json)


@app.command()
def append(
    context: typer.Context,
    path: StorePath,
    text: Given = "-",
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Add to the end of a file. Lines from stdin are there as soon as they are read, and none is torn."""
    offset: int | None = None
    size = 0
    with _volume(context, ns, label) as files:
        for piece in [_text(text).encode()] if text != "-" else lines_in_pieces(sys.stdin.buffer):
            at = files.append(path, piece)
            offset, size = at if offset is None else offset, size + len(piece)
    if as_json:
        print_json({"path": path, "offset": offset, "bytes": size})
    return DONE


@app.command()
def edit(
    context: typer.Context,
    path: StorePath,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The text to replace; it must be there exactly once.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The text to put there.")],
    every: Annotated[bool, typer.Option("--all", "-a", help="Replace it wherever it is.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Replace a text in a file. Changes that others make meanwhile are kept."""
    with _volume(context, ns, label) as files:
        count = files.edit(path, _text(old), _text(new), replace_all=every)
    if as_json:
        print_json({"path": path, "replacements": count})
    return DONE


@app.command()
def put(
    context: typer.Context,
    local: Annotated[str, typer.Argument(metavar="LOCAL", help="A local file or folder; '-' is stdin.")],
    path: Annotated[
        str | None,
        typer.Argument(metavar="PATH", help="Where to; with a '/' at the end, into it. By default, its name in '/'."),
    ] = None,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Copy a local file or folder into the store. Each file is replaced whole, or not at all."""
    written: list[FileInfo] = []
    with _volume(context, ns, label) as files:
        if local == "-":
            if path is None:
                raise InvalidInput("say which path stdin is to be written to: put - /notes.md")
            written.append(copy_in(files, path, sys.stdin.buffer))
        else:
            source = Path(local)
            target = _into(path or "/", source.resolve().name)
            for place in local_files(source):
                name = target if place == source else f"{target}/{place.relative_to(source).as_posix()}"
                with place.open("rb") as file:
                    written.append(copy_in(files, name, file))
    if as_json:
        print_json([asdict(info) for info in written])
    return DONE


def _given(text: str) -> bytes:
    return sys.stdin.buffer.read() if text == "-" else _text(text).encode()


def _text(word: str) -> str:
    """A word of the command line as text, which it may not be."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise InvalidInput("the text is not UTF-8; to write bytes, pass them on stdin") from None
    return word


# Trees ---------------------------------------------------------------------------------------------------------------


@app.command()
def rm(
    context: typer.Context,
    paths: StorePaths,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Folders too, with all in them.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="It is fine if there is nothing.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Remove files, and with -r folders."""
    code, removed = DONE, 0
    with _volume(context, ns, label) as files:
        for path in paths:
            try:
                removed += _removed(files, path, recursive)
            except HoldallError as error:
                if not (force and isinstance(error, NotFound)):
                    _complain(error)
                    code = max(code, _code(error))
    if as_json:
        print_json({"removed": removed})
    return code


def _removed(files: Files, path: str, recursive: bool) -> int:
    info = files.stat(path)
    if recursive:
        return files.delete(info.path)
    if info.is_dir:
        raise IsADirectory(f"{path!r} is a folder; remove it with -r")
    return int(files.store.delete(files.namespace, info.path))


@app.command()
def mv(
    context: typer.Context,
    src: Source,
    dst: Target,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Move or rename a file or folder, at once. A file that is there is replaced, a folder is not."""
    with _volume(context, ns, label) as files:
        info = files.move(src, _into(dst, _name(src)))
    return _done(info, as_json)


@app.command()
def cp(
    context: typer.Context,
    src: Source,
    dst: Target,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Copy a file or folder, at once. A file that is there is replaced, a folder is not."""
    with _volume(context, ns, label) as files:
        info = files.copy(src, _into(dst, _name(src)))
    return _done(info, as_json)


def _done(info: FileInfo, as_json: bool) -> int:
    if as_json:
        print_json(asdict(info))
    return DONE


def _into(path: str, name: str) -> str:
    """A path, or where a name goes in the folder that it is."""
    return path + name if path.endswith("/") else path


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


for _command in (search, reindex, conversations, export):
    app.command()(_command)
app.command("import")(import_)

COMMANDS = frozenset(
    command.name or command.callback.__name__ for command in app.registered_commands if command.callback is not None
)
