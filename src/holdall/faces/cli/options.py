"""What the commands share: exit codes, options, and how they open a store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, TypeAlias

import typer

import holdall

from ...core.face_api import decode_namespace
from ...errors import InvalidInput
from ...ops import Namespace

#: The exit codes, which docs/reference/command.md explains.
DONE, NOT_FOUND, BAD_INPUT, UNAVAILABLE, CONFLICT, INTERRUPTED, STDOUT_CLOSED = 0, 1, 2, 3, 4, 130, 141

Prefix: TypeAlias = Annotated[
    str | None,
    typer.Option("--prefix", "--ns", metavar="A/B/C", help="Only this namespace and those below it."),
]
To: TypeAlias = Annotated[
    str | None, typer.Option("--to", metavar="A/B/C", help="The namespace to write to. Default: the same name.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
Ns: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--ns",
        "--namespace",
        metavar="A/B/C",
        help="The namespace: its labels, joined by '/'; write '/' in a label as %2F, and '%' as %25.",
    ),
]
Labels: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        "-n",
        metavar="LABEL",
        help="One label of the namespace; repeat it for more.",
    ),
]


def example(line: str) -> str:
    """Return the end of a command's help: an example, in a paragraph that is not wrapped."""
    return f"\b\nExample:\n  {line}"


@contextlib.contextmanager
def open_store(context: typer.Context, embed: Any = None) -> Iterator[holdall.Store]:
    """Open the store of the command's URL, and close it after the block."""
    store = holdall.open(context.obj or None, sweep_interval=None, embed=embed)
    try:
        yield store
    finally:
        store.close()


def choose_namespace(ns: str | None, labels: list[str] | None, default: Namespace) -> Namespace:
    """Return the namespace of the option --ns or --label, or the default."""
    if ns is not None and labels:
        raise InvalidInput("--ns and --label cannot be combined; pass one of them")
    if ns is not None:
        return decode_namespace(ns)
    return tuple(labels) if labels else default


def parse_moment(text: str) -> datetime | str:
    """Read a time, or take the text as a cursor."""
    if text.isdigit():  # a cursor of SQLite, and not a date without dashes
        return text
    return _read_time(text) or text


def parse_time(text: str) -> datetime:
    """Read a time."""
    time = _read_time(text)
    if time is None:
        raise InvalidInput(f"a time is written as 2027-01-31T12:00:00+00:00, not {text!r}")
    return time


def _read_time(text: str) -> datetime | None:
    """Read a time, which is local without a zone; None if it is none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    try:
        return time.astimezone()
    except (OverflowError, ValueError):
        raise InvalidInput(f"{text!r} is outside of the years 1 to 9999 in UTC") from None


def parse_json(text: str | bytes, what: str) -> Any:
    """Read JSON; `what` is what an error names."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} is not JSON: {error}") from None
