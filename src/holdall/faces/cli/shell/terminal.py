"""The output of the command line: lines, coloured on a terminal, or one JSON document."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from .... import FileInfo

if TYPE_CHECKING:
    from rich.progress import Task

#: Seconds after which a progress bar is shown.
BAR_DELAY = 1.0
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class StdoutClosed(Exception):
    """The reader of stdout has closed it, which ends the command. Not a `BrokenPipeError`, which typer would handle."""


class Stdout:
    """Writes bytes to stdout."""

    closed = False  # pyarrow reads it

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:  # with PYTHONUNBUFFERED, a write may take only a part
                left = left[sys.stdout.buffer.write(left) :]
        except BrokenPipeError:
            raise StdoutClosed from None

    def flush(self) -> None:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise StdoutClosed from None


class Output:
    """Writes lines to stdout, in UTF-8. On a terminal they are coloured, and control characters are escaped."""

    def __init__(self) -> None:
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._console = console if console.is_terminal else None

    def line(self, *parts: tuple[str, str]) -> None:
        if self._console is None:
            Stdout().write("".join(text for text, _ in parts).encode() + b"\n")
            return
        escaped = ((_CONTROL.sub(lambda found: repr(found[0])[1:-1], text), style) for text, style in parts)
        self._console.print(Text.assemble(*escaped))

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.line((line, ""))


def print_files(infos: list[FileInfo], long: bool, as_json: bool) -> None:
    if as_json:
        print_json([asdict(info) for info in infos])
        return
    out = Output()
    width = max((len(str(info.size)) for info in infos), default=0)
    for info in infos:
        time = show_time(info.modified_at) if info.modified_at else "-" * 25
        size = "-" if info.is_dir else str(info.size)
        details = [(f"{size:>{width}}  {time}  ", "dim")] if long else []
        out.line(*details, (info.path, "bold blue" if info.is_dir else ""))


@contextlib.contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """Yield the function `(done, total)` that updates a progress bar on stderr, if that is a terminal.

    The bar is shown once the work has taken a second. Until the first update it shows only the time.
    """
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

    class State(ProgressColumn):
        def render(self, task: Task) -> Text:
            if task.total is None:
                return Text(f"{task.elapsed or 0:,.0f} s")
            rate = "" if task.speed is None else f", {task.speed:,.0f}/s"
            left = "" if task.time_remaining is None else f", {task.time_remaining:,.0f} s left"
            return Text(f"{task.completed:.0f}/{task.total:.0f}{rate}{left}")

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), State()
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = progress.add_task(description, total=None)
    began = time.monotonic()
    starter = threading.Timer(BAR_DELAY, progress.start)
    starter.start()
    try:
        yield lambda done, total: progress.update(task, completed=done, total=total)
    finally:
        if time.monotonic() - began < BAR_DELAY:
            starter.cancel()
        starter.join()
        progress.stop()


def print_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Print a table of two columns, a name and a text in each line."""
    listed = list(rows)
    width = max((len(name) for name, _ in listed), default=0)
    out = Output()
    for name, text in listed:
        out.line((f"{name:<{width}}  ", "dim"), (text, ""))


def show_time(time: datetime) -> str:
    """Return a time as text, to the second, in the local zone."""
    return time.astimezone().isoformat(" ", "seconds")


def print_result(document: object, text: str, as_json: bool) -> None:
    """Print the result of a command: as one JSON document, or one line of text."""
    if as_json:
        print_json(document)
    else:
        Output().line((text, ""))


def print_json(document: object) -> None:
    text = json.dumps(document, ensure_ascii=False, default=_to_json)
    Stdout().write(text.encode(errors="backslashreplace") + b"\n")  # a local file name may not be UTF-8


def _to_json(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")
