"""What the commands of the command line share: their exit codes, their options, and how they open a store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias

import typer

import holdall

from ..errors import InvalidInput
from ..ops import Namespace

DONE, NOTHING, BAD_INPUT, UNAVAILABLE, IN_THE_WAY, INTERRUPTED, NOBODY_READS = 0, 1, 2, 3, 4, 130, 141

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Ns: TypeAlias = Annotated[
    str | None, typer.Option("--ns", metavar="A/B/C", help="The namespace, its labels joined by '/'.")
]
Labels: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--label", "-n", metavar="LABEL", help="One label of the namespace, as it is; repeat it for more."),
]


@contextlib.contextmanager
def opened(context: typer.Context, embed: Any = None) -> Iterator[holdall.Store]:
    store = holdall.open(context.obj or None, sweep_interval=None, embed=embed)
    try:
        yield store
    finally:
        store.close()


def chosen_namespace(ns: str | None, labels: list[str] | None, default: Namespace) -> Namespace:
    if ns is not None and labels:
        raise InvalidInput("--ns and --label are two ways to say the same; give one of them")
    if ns is not None:
        return tuple(ns.strip("/").split("/"))
    return tuple(labels) if labels else default
