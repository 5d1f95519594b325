"""The commands that find entries by a query or a filter, that make their vectors again, and that describe the store."""

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

from ... import Hit, LearnedField
from ...core.face_api import show_namespace
from ...errors import InvalidInput
from .options import DONE, NOT_FOUND, AsJson, Labels, Ns, choose_namespace, open_store, parse_json
from .shell.terminal import Output, print_json, print_result, print_rows, progress_bar, show_time

T = TypeVar("T")

_EMBED = "--embed", "-e"
_MODELS = "'local', or a model of yours as 'module:name'"
EmbedderOption: TypeAlias = Annotated[
    str | None, typer.Option(*_EMBED, metavar="MODEL", help=f"Also search by meaning: {_MODELS}.")
]
RequiredEmbedder: TypeAlias = Annotated[
    str, typer.Option(*_EMBED, metavar="MODEL", help=f"The model that makes the vectors: {_MODELS}.")
]


def parse_filter(text: str | None) -> Any:
    """Read the option --filter."""
    return None if text is None else parse_json(text, "--filter")


def search(
    context: typer.Context,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help='The words to find; "words in quotes" must occur as a phrase.')
    ] = None,
    filter: Annotated[
        str | None, typer.Option("--filter", "-f", metavar="JSON", help='For example \'{"rank": {"$gte": 5}}\'.')
    ] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="MODE", help="How to rank: lexical, semantic or hybrid.")
    ] = None,
    embed: EmbedderOption = None,
    limit: Annotated[int, typer.Option("--limit", "-m", min=1, help="The maximum number of hits.")] = 10,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Continue after a page: its 'next'.")] = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Also print scores and times.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Find entries and files in a namespace and those below it; the default is all namespaces.

    With a query, the best matches come first; without one, the last changes.
    """
    namespace = choose_namespace(ns, label, ())
    wanted = parse_filter(filter)
    with open_store(context, find_embedder(embed)) as store:
        arguments: dict[str, Any] = {"query": query, "filter": wanted, "mode": mode, "limit": limit, "cursor": cursor}
        page = (
            store.search(namespace, **arguments) if embed is None else run_async(store.asearch(namespace, **arguments))
        )
    if as_json:
        print_json({"hits": [asdict(hit) for hit in page], "next": page.next})
        return DONE if page else NOT_FOUND
    out = Output()
    for hit in page:
        value = json.dumps(hit.value, ensure_ascii=False)
        details = [(f"{_score(hit)}\t{show_time(hit.updated_at)}\t", "dim")] if long else []
        out.line(
            *details, (show_namespace(hit.namespace), "blue"), ("\t", ""), (hit.key, "bold"), ("\t", ""), (value, "")
        )
    return DONE if page else NOT_FOUND


def _score(hit: Hit) -> str:
    return "-" if hit.score is None else f"{hit.score:.3f}"


def reindex(context: typer.Context, embed: RequiredEmbedder, as_json: AsJson = False) -> int:
    """Make the vectors of all entries that have none of a model.

    Run it after a change of model. It can be interrupted and run again, while the store is in use.
    """
    with open_store(context, find_embedder(embed)) as store, progress_bar("embedding") as progress:
        count = run_async(store.areindex(progress=progress))
    print_result({"embedded": count}, f"{count} {'entry has' if count == 1 else 'entries have'} new vectors", as_json)
    return DONE


def stats(context: typer.Context, as_json: AsJson = False) -> int:
    """Show how much the store holds, and the state of its indexes."""
    with open_store(context) as store, progress_bar("counting"):
        found = store.stats()
    if as_json:
        print_json(asdict(found))
        return DONE
    lag = "none yet" if found.text_index_lag is None else f"{found.text_index_lag} changes behind"
    sizes = {"bytes": found.bytes, "vectors": found.vectors, "leases": found.leases}
    rows = [
        ("entries", str(found.entries)),
        ("files", str(found.files)),
        *((name, f"{count:,}") for name, count in sizes.items() if count is not None),
        ("text index", lag),
        *([("oldest tombstone", found.oldest_tombstone.isoformat(" ", "seconds"))] if found.oldest_tombstone else []),
        *(("history", f"{size:,} bytes of {root}") for root, size in sorted((found.history_bytes or {}).items())),
        *(("declared field", name) for name in found.declared_fields),
        *(("learned field", _describe_learned(field)) for field in found.learned_fields),
    ]
    print_rows(rows)
    return DONE


def _describe_learned(field: LearnedField) -> str:
    state = f"building, {field.progress:.0%}" if field.state == "building" else field.state
    reason = f": {field.reason}" if field.reason else ""
    return f"{field.name} ({state}{reason}; uses: {field.uses})"


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine. Calls that use an embedder are awaited, because the embedder may be async."""
    import asyncio  # here, because most commands do not need it

    return asyncio.run(coroutine)


def find_embedder(name: str | None) -> Any:
    """Return the value of `embed=` for a name. A module of 'module:name' may be in the current folder."""
    if name is None or ":" not in name:
        return name
    module, _, attribute = name.partition(":")
    here = os.getcwd()  # noqa: PTH109  # a str
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # a module may raise anything when it is imported
        raise InvalidInput(f"--embed {name}: {type(error).__name__}: {error}") from error
