"""The command line: `holdall URL ls /notes`, and the other commands for files.

Each command is a function that calls `Files` and returns its exit code. The commands for entries are in `items.py`,
those that search in `search.py`, those for operators in `operate.py`, those for LangGraph's data in `langgraph.py`.
Results go to stdout, as lines or with `--json` as one JSON document. An error goes to stderr, as one line. `run`
converts errors to exit codes.
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

    from .shell.terminal import Output, Stdout, StdoutClosed, print_files, print_json, progress_bar
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "the command line", "cli") from missing

import holdall

from ... import ABSENT, FileInfo, Files
from ...errors import (
    AlreadyExists,
    AmbiguousMatch,
    Conflict,
    HistoryGone,
    HoldallError,
    InvalidInput,
    IsADirectory,
    NoMatch,
    NotADirectory,
    NotFound,
    NotText,
)
from . import items, operate, serving
from .langgraph import conversations, langgraph, threads
from .options import (
    BAD_INPUT,
    CONFLICT,
    DONE,
    INTERRUPTED,
    NOT_FOUND,
    STDOUT_CLOSED,
    UNAVAILABLE,
    AsJson,
    Labels,
    Ns,
    choose_namespace,
    example,
    open_store,
)
from .search import reindex, search, stats
from .shell.completion import make_completion
from .shell.transfer import copy_in, copy_out, copy_to_local, local_files, local_name, read_line_chunks

#: The exit codes of errors: the first match counts. Any other error of a store or the system is `UNAVAILABLE`.
_CODES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((Conflict, AlreadyExists, AmbiguousMatch, IsADirectory, NotADirectory, NotText), CONFLICT),
    ((FileExistsError, IsADirectoryError, NotADirectoryError), CONFLICT),
    ((NotFound, NoMatch, HistoryGone, FileNotFoundError), NOT_FOUND),
    ((InvalidInput,), BAD_INPUT),
)
_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]  # click's `UsageError`, which typer does not export

app = typer.Typer(name="holdall", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

StorePath: TypeAlias = Annotated[str, typer.Argument(metavar="PATH", help="An absolute path in the store.")]
StorePaths: TypeAlias = Annotated[list[str], typer.Argument(metavar="PATH", help="Absolute paths in the store.")]
Folder: TypeAlias = Annotated[str, typer.Argument(metavar="PATH", help="The folder.")]
Source: TypeAlias = Annotated[str, typer.Argument(metavar="SRC", help="The file or folder in the store.")]
Target: TypeAlias = Annotated[
    str, typer.Argument(metavar="DST", help="The new path; with a '/' at the end, the folder to put it into.")
]
InputText: TypeAlias = Annotated[str, typer.Argument(metavar="TEXT", help="The text; '-' (the default) is stdin.")]
Long: TypeAlias = Annotated[bool, typer.Option("--long", "-l", help="Also print sizes and times.")]


# Entry point ---------------------------------------------------------------------------------------------------------


def run(arguments: list[str]) -> int:
    """Run the command with its arguments, and return the exit code."""
    try:
        code = app(_insert_url(arguments) or ["--help"], prog_name="holdall", standalone_mode=False)
        Stdout().flush()
        return code or DONE
    except StdoutClosed:
        return STDOUT_CLOSED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except _USAGE_ERROR as error:
        message = error.format_message()
        _print_error(f"{message}{'' if message.endswith(('.', '?')) else '.'} See {_name_command(error.ctx)} --help.")
        return BAD_INPUT
    except (HoldallError, OSError) as error:
        _print_error(error)
        return _exit_code(error)
    finally:
        _empty_stdout()


def _name_command(context: Any) -> str:
    """Return the names of the command whose usage was wrong, as `holdall item set`: without the URL."""
    names: list[str] = []
    while context is not None:
        names.append(context.info_name or "holdall")
        context = context.parent
    return " ".join(reversed(names)) or "holdall"


def _empty_stdout() -> None:
    """Flush stdout, or discard its buffer if that fails: Python would report the same error at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _insert_url(arguments: list[str]) -> list[str]:
    """Insert "" as the URL if the first argument is a command. "" stands for the URL in HOLDALL_URL.

    A store in a file with the name of a command can be opened as `./ls`.
    """
    first = next((index for index, argument in enumerate(arguments) if not argument.startswith("-")), None)
    if first is None or arguments[first] not in COMMANDS:
        return arguments
    return [*arguments[:first], "", *arguments[first:]]


def _exit_code(error: BaseException) -> int:
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), UNAVAILABLE)


def _print_error(error: object) -> None:
    sys.stderr.write(f"holdall: {' '.join(str(error).split())}\n")


def _print_version(requested: bool) -> None:
    if requested:
        sys.stdout.write(f"holdall {holdall.__version__}\n")
        raise typer.Exit


@app.callback()
def _take_url(
    context: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The store: agent.db, postgresql://…; the default is HOLDALL_URL.")
    ] = "",
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Read, search, change and operate a store: its files, its entries, copies and backups.

    Exit codes: 0 success, 1 not found, no match or different, 2 bad input, 3 the store is unavailable or a backup is
    damaged, 4 a conflict with what is in the store (a folder, a second match, a concurrent change).
    """
    context.obj = url


@contextlib.contextmanager
def _open_files(context: typer.Context, ns: str | None, labels: list[str] | None) -> Iterator[Files]:
    namespace = choose_namespace(ns, labels, ("filesystem",))
    with open_store(context) as store:
        yield store.files(namespace)


# Listing -------------------------------------------------------------------------------------------------------------


@app.command(epilog=example("holdall agent.db ls /notes --long"))
def ls(
    context: typer.Context,
    path: Folder = "/",
    long: Long = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """List a folder. The paths of subfolders end in "/"."""
    with _open_files(context, ns, label) as files:
        found = files.ls(path)
        if not found:
            info = files.stat(path)  # raises NotFound if nothing is there
            found = [] if info.is_dir else [info]
    print_files(found, long, as_json)
    return DONE


@app.command(epilog=example("holdall agent.db tree / --depth 2"))
def tree(
    context: typer.Context,
    path: Folder = "/",
    depth: Annotated[int | None, typer.Option("--depth", "-d", min=1, help="The number of levels to show.")] = None,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Show a folder and everything below it as a tree."""
    out = Output()
    found: list[FileInfo] = []
    with _open_files(context, ns, label) as files:
        top = files.stat(path)
        if not as_json:
            out.line((top.path, "bold blue" if top.is_dir else ""))
        for info, bars in _walk_tree(files, top.path, depth) if top.is_dir else ():
            if as_json:
                found.append(info)
            else:
                name = info.path.rstrip("/").rpartition("/")[2] + "/" * info.is_dir
                out.line((bars, "dim"), (name, "bold blue" if info.is_dir else ""))
    if as_json:
        print_json([asdict(info) for info in found])
    return DONE


def _walk_tree(files: Files, folder: str, depth: int | None) -> Iterator[tuple[FileInfo, str]]:
    """Yield everything below a folder, each with the lines to draw before its name. A folder is listed when reached."""
    levels = [(iter(_mark_last(files.ls(folder))), "")]
    while levels:
        children, bars = levels[-1]
        child = next(children, None)
        if child is None:
            levels.pop()
            continue
        info, last = child
        yield info, bars + ("└── " if last else "├── ")
        if info.is_dir and (depth is None or len(levels) < depth):
            levels.append((iter(_mark_last(files.ls(info.path))), bars + ("    " if last else "│   ")))


def _mark_last(infos: list[FileInfo]) -> list[tuple[FileInfo, bool]]:
    return [(info, number == len(infos)) for number, info in enumerate(infos, 1)]


@app.command(epilog=example("holdall agent.db glob '*.md'"))
def glob(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="For example '*.md', 'src/**/*.py', '*.{md,txt}'.")],
    path: Folder = "/",
    long: Long = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Find files by their paths. A pattern without "/" matches file names at any depth."""
    with _open_files(context, ns, label) as files:
        found = files.glob(pattern, path)
    print_files(found, long, as_json)
    return DONE if found else NOT_FOUND


@app.command(epilog=example("holdall agent.db grep bread /notes"))
def grep(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="The text to find.")],
    path: Folder = "/",
    regex: Annotated[bool, typer.Option("--regex", "-E", help="PATTERN is a regular expression.")] = False,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Ignore upper and lower case.")] = False,
    glob: Annotated[str | None, typer.Option("--glob", "-g", metavar="GLOB", help="Only in files that match.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-m", min=1, help="The maximum number of lines.")] = None,
    only_paths: Annotated[bool, typer.Option("--files", "-l", help="Print only paths, each once.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Find lines that contain a text. Prints path, line number and text."""
    with _open_files(context, ns, label) as files:
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
    return DONE if found else NOT_FOUND


# Reading -------------------------------------------------------------------------------------------------------------


@app.command(epilog=example("holdall agent.db cat /notes/todo.md"))
def cat(context: typer.Context, paths: StorePaths, ns: Ns = None, label: Labels = None, as_json: AsJson = False) -> int:
    """Print files, byte for byte."""
    code, documents = DONE, []
    with _open_files(context, ns, label) as files:
        for path in paths:
            try:
                if as_json:
                    documents.append(_to_document(path, files.read(path)))
                else:
                    copy_out(files, path, Stdout())
            except HoldallError as error:  # the other files can still be printed
                _print_error(error)
                code = max(code, _exit_code(error))
    if as_json:
        print_json(documents)
    return code


def _to_document(path: str, content: bytes) -> dict[str, str]:
    try:
        return {"path": path, "encoding": "utf-8", "content": content.decode()}
    except UnicodeDecodeError:
        return {"path": path, "encoding": "base64", "content": base64.b64encode(content).decode()}


@app.command(epilog=example("holdall agent.db get /notes notes-copy"))
def get(
    context: typer.Context,
    path: StorePath,
    local: Annotated[
        str | None,
        typer.Argument(
            metavar="LOCAL", help="The local path; '-' is stdout. Default: its name, in the current folder."
        ),
    ] = None,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Copy a file or folder from the store. Each local file is written completely, or not at all."""
    with _open_files(context, ns, label) as files:
        info = files.stat(path)
        if local == "-":
            copy_out(files, info.path, Stdout())
            return DONE
        if local is None and info.path == "/":
            raise InvalidInput("to copy all files, name the local folder: get / backup")
        target = Path(local or _name(info.path))
        if not info.is_dir:
            target = target / local_name(info.path) if target.is_dir() else target
            pairs = [(info.path, target)]
            copy_to_local(files, *pairs[0])
        else:
            pairs = []
            with progress_bar("copying"):
                for file in files.walk(info.path):
                    pairs.append((file.path, target / local_name(file.path.removeprefix(info.path))))
                    pairs[-1][1].parent.mkdir(parents=True, exist_ok=True)
                    copy_to_local(files, *pairs[-1])
    if as_json:
        print_json([{"path": path, "local": str(copy)} for path, copy in pairs])
    return DONE


# Writing -------------------------------------------------------------------------------------------------------------


@app.command(epilog=example("holdall agent.db write /notes/ada.md 'likes tea'"))
def write(
    context: typer.Context,
    path: StorePath,
    text: InputText = "-",
    new: Annotated[bool, typer.Option("--new", help="Fail if the file exists.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Create or replace a file. The text is written as it is, without a newline at its end."""
    with _open_files(context, ns, label) as files:
        if new:
            info = files.write(path, _read_input(text), expect=ABSENT)
        else:
            info = files.write(path, _check_text(text)) if text != "-" else copy_in(files, path, sys.stdin.buffer)
    return _finish(info, as_json)


@app.command(epilog=example("echo '- buy bread' | holdall agent.db append /notes/todo.md"))
def append(
    context: typer.Context,
    path: StorePath,
    text: InputText = "-",
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Append to a file. Lines from stdin are written as soon as they are read, each as a whole."""
    offset: int | None = None
    size = 0
    with _open_files(context, ns, label) as files:
        for chunk in [_check_text(text).encode()] if text != "-" else read_line_chunks(sys.stdin.buffer):
            start = files.append(path, chunk)
            offset, size = start if offset is None else offset, size + len(chunk)
    if as_json:
        print_json({"path": path, "offset": offset, "bytes": size})
    return DONE


@app.command(epilog=example("holdall agent.db edit /notes/ada.md tea coffee"))
def edit(
    context: typer.Context,
    path: StorePath,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The text to replace. It must occur exactly once.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The new text.")],
    every: Annotated[bool, typer.Option("--all", "-a", help="Replace all occurrences.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Replace a text in a file. Concurrent changes are kept."""
    with _open_files(context, ns, label) as files:
        count = files.edit(path, _check_text(old), _check_text(new), replace_all=every)
    if as_json:
        print_json({"path": path, "replacements": count})
    return DONE


@app.command(epilog=example("holdall agent.db put report.pdf /papers/"))
def put(
    context: typer.Context,
    local: Annotated[str, typer.Argument(metavar="LOCAL", help="A local file or folder; '-' is stdin.")],
    path: Annotated[
        str | None,
        typer.Argument(metavar="PATH", help="The new path; with a '/' at the end, the folder for it. Default: '/'."),
    ] = None,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Copy a local file or folder into the store. Each file is replaced completely, or not at all."""
    written: list[FileInfo] = []
    with _open_files(context, ns, label) as files:
        if local == "-":
            if path is None:
                raise InvalidInput("to write stdin, name the path in the store: put - /notes.md")
            written.append(copy_in(files, path, sys.stdin.buffer))
        else:
            source = Path(local)
            target = _join(path or "/", os.path.realpath(source).rpartition(os.sep)[2])
            found = list(local_files(source))
            with progress_bar("copying") as progress:
                for local_file in found:
                    name = target if local_file == source else f"{target}/{local_file.relative_to(source).as_posix()}"
                    with local_file.open("rb") as file:
                        written.append(copy_in(files, name, file))
                    progress(len(written), len(found))
    if as_json:
        print_json([asdict(info) for info in written])
    return DONE


def _read_input(text: str) -> bytes:
    return sys.stdin.buffer.read() if text == "-" else _check_text(text).encode()


def _check_text(argument: str) -> str:
    """Return an argument, or raise `InvalidInput` if its bytes are not UTF-8."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise InvalidInput("the text is not UTF-8; to write bytes, pass them on stdin") from None
    return argument


# Removing, moving and copying ----------------------------------------------------------------------------------------


@app.command(epilog=example("holdall agent.db rm -r /notes/old"))
def rm(
    context: typer.Context,
    paths: StorePaths,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Also remove folders.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Ignore paths that do not exist.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Remove files, and folders with -r."""
    code, removed = DONE, 0
    with _open_files(context, ns, label) as files, progress_bar("removing"):
        for path in paths:
            try:
                removed += _remove(files, path, recursive)
            except HoldallError as error:
                if not (force and isinstance(error, NotFound)):
                    _print_error(error)
                    code = max(code, _exit_code(error))
    if as_json:
        print_json({"removed": removed})
    return code


def _remove(files: Files, path: str, recursive: bool) -> int:
    info = files.stat(path)
    if recursive:
        return files.delete(info.path, recursive=True)
    if info.is_dir:
        raise IsADirectory(f"{path!r} is a folder; remove it with -r")
    return int(files.store.delete(files.namespace, info.path))


@app.command(epilog=example("holdall agent.db mv /draft.md /final.md"))
def mv(
    context: typer.Context,
    src: Source,
    dst: Target,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Move or rename a file or folder. An existing file is replaced, a folder is not.

    This is atomic, unless the folder has more than 1,000 files: if such a move is interrupted, run it again.
    """
    with _open_files(context, ns, label) as files, progress_bar("moving"):
        info = files.move(src, _join(dst, _name(src)))
    return _finish(info, as_json)


@app.command(epilog=example("holdall agent.db cp /notes /backup"))
def cp(
    context: typer.Context,
    src: Source,
    dst: Target,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Copy a file or folder, atomically. An existing file is replaced, a folder is not."""
    with _open_files(context, ns, label) as files, progress_bar("copying"):
        info = files.copy(src, _join(dst, _name(src)))
    return _finish(info, as_json)


def _finish(info: FileInfo, as_json: bool) -> int:
    if as_json:
        print_json(asdict(info))
    return DONE


def _join(path: str, name: str) -> str:
    """Return a path, or for one that ends in "/" the path of a name in that folder."""
    return path + name if path.endswith("/") else path


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


for _command_name, _command, _example in (
    ("search", search, "holdall agent.db search 'who likes tea?' --ns users"),
    ("reindex", reindex, "holdall agent.db reindex --embed local"),
    ("stats", stats, "holdall agent.db stats --json"),
    ("watch", operate.watch, "holdall agent.db watch --ns users --json"),
    ("namespaces", operate.namespaces, "holdall agent.db namespaces --depth 1"),
    ("rewind", operate.rewind, "holdall agent.db rewind 2027-01-31T12:00:00+00:00 --ns users/ada"),
    ("erase", operate.erase, "holdall agent.db erase --ns users/ada --recursive"),
    ("copy", operate.copy, "holdall agent.db copy postgresql://db.example.com/agents --follow"),
    ("compare", operate.compare, "holdall agent.db compare postgresql://db.example.com/agents"),
    ("backup", operate.backup, "holdall agent.db backup monday.backup"),
    ("load", operate.load, "holdall new.db load monday.backup"),
    ("backup-check", operate.backup_check, "holdall backup-check monday.backup"),
    ("check", operate.check, "holdall agent.db check --repair"),
    ("export", operate.export, "holdall agent.db export entries.jsonl --prefix users"),
    ("completion", make_completion(lambda: typer.main.get_command(app)), "source <(holdall completion bash)"),
    ("import", operate.import_, "holdall agent.db import notes.parquet --ns notes -c key=id -c value=title,text"),
):
    app.command(_command_name, epilog=example(_example))(_command)
for _group in (items.app, threads, conversations, langgraph):
    app.add_typer(_group)
serving.register(app)

COMMANDS = frozenset(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a group
