"""The commands that find entries by a query or a filter, and give them new vectors."""

from __future__ import annotations

import importlib
import json
import operator
import os
import sys
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Annotated, Any, TypeAlias, TypeVar

import typer

from ..errors import InvalidInput
from ..ops import Hit
from .cli_options import DONE, NOTHING, AsJson, Labels, Ns, chosen_namespace, opened
from .terminal import Output, print_json, progress_bar

T = TypeVar("T")

_EMBED = "--embed", "-e"
_MODELS = "'local', or your own as 'module:name'"
OwnEmbedder: TypeAlias = Annotated[
    str | None, typer.Option(*_EMBED, metavar="MODEL", help=f"Find what means the same, too: {_MODELS}.")
]
NewEmbedder: TypeAlias = Annotated[
    str, typer.Option(*_EMBED, metavar="MODEL", help=f"The model that makes the vectors: {_MODELS}.")
]


def search(
    context: typer.Context,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help='What to look for; "words in quotes" as they stand.')
    ] = None,
    filter: Annotated[
        str | None, typer.Option("--filter", "-f", metavar="JSON", help='Such as \'{"rank": {"$gte": 5}}\'.')
    ] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="MODE", help="How to rank: lexical, semantic or hybrid.")
    ] = None,
    embed: OwnEmbedder = None,
    limit: Annotated[int, typer.Option("--limit", "-m", min=1, help="How many at most.")] = 10,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where the last page ended: its 'next'.")] = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Scores and times, too.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Find entries and files in a namespace and below it; in all of them by default.

    By a query, the best come first; without one, the newest change.
    """
    namespace = chosen_namespace(ns, label, ())
    try:
        wanted = None if filter is None else json.loads(filter)
    except ValueError as error:
        raise InvalidInput(f"--filter is not JSON: {error}") from None
    with opened(context, embedder(embed)) as store:
        asked: dict[str, Any] = {"query": query, "filter": wanted, "mode": mode, "limit": limit, "cursor": cursor}
        page = store.search(namespace, **asked) if embed is None else awaited(store.asearch(namespace, **asked))
    if as_json:
        print_json({"hits": [asdict(hit) for hit in page], "next": page.next})
        return DONE if page else NOTHING
    out = Output()
    for hit in page:
        value = json.dumps(hit.value, ensure_ascii=False)
        details = [(f"{_score(hit)}\t{_time(hit)}\t", "dim")] if long else []
        out.line(*details, ("/".join(hit.namespace), "blue"), ("\t", ""), (hit.key, "bold"), ("\t", ""), (value, ""))
    return DONE if page else NOTHING


def _score(hit: Hit) -> str:
    return "-" if hit.score is None else f"{hit.score:.3f}"


def _time(hit: Hit) -> str:
    return hit.updated_at.astimezone().isoformat(" ", "seconds")


def reindex(context: typer.Context, embed: NewEmbedder, as_json: AsJson = False) -> int:
    """Give vectors of a model to all entries that have none of it.

    For after a change of model. It may be interrupted and run again, while the store is in use.
    """
    with opened(context, embedder(embed)) as store, progress_bar("embedding") as progress:
        count = awaited(store.areindex(progress=progress))
    if as_json:
        print_json({"embedded": count})
    else:
        Output().line((f"{count} {'entry has' if count == 1 else 'entries have'} new vectors", ""))
    return DONE


def awaited(coroutine: Coroutine[Any, Any, T]) -> T:
    """What uses an embedder is awaited, since that may be async."""
    import asyncio  # not before it is needed

    return asyncio.run(coroutine)


def embedder(name: str | None) -> Any:
    """What `embed=` takes, by its name; 'module:name' is looked for in the current folder, too."""
    if name is None or ":" not in name:
        return name
    module, _, attribute = name.partition(":")
    here = os.getcwd()  # noqa: PTH109  # a str
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # whatever the module does when it is imported
        raise InvalidInput(f"--embed {name}: {type(error).__name__}: {error}") from error
