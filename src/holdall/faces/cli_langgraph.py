"""The commands for LangGraph's data: moving in from its own stores, and archived conversations."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_options import DONE, IN_THE_WAY, NOTHING, AsJson, opened
from .cli_search import OwnEmbedder, awaited, embedder
from .terminal import Output, Stdout, print_json, progress_bar

if TYPE_CHECKING:
    from .langgraph import Imported

User = Annotated[str, typer.Argument(metavar="USER", help="Whose.")]
Thread = Annotated[str | None, typer.Option("--thread", "-t", metavar="THREAD", help="Of this thread only.")]


def import_(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A SqliteStore's file, or a PostgresStore's URL.")],
    embed: OwnEmbedder = None,
    as_json: AsJson = False,
) -> int:
    """Bring what LangGraph's own SqliteStore or PostgresStore has stored, which is left as it is.

    It may be interrupted and run again: what is here already, as new or newer, is left alone.
    """
    from .langgraph import aimport_from  # not before it is needed: it needs LangGraph

    with opened(context, embedder(embed)) as store, progress_bar("importing") as progress:
        outcome = awaited(aimport_from(source, store, progress=progress))
    for one in outcome.refused:
        sys.stderr.write(f"holdall: {'/'.join(one.namespace)} {one.key!r}: {one.why}\n")
    if as_json:
        print_json(asdict(outcome))
    else:
        Output().line((_summary(outcome), ""))
    return IN_THE_WAY if outcome.refused else DONE


def _summary(outcome: Imported) -> str:
    left = [
        f"{count} {why}"
        for count, why in (
            (outcome.present, "here already"),
            (outcome.expired, "expired"),
            (len(outcome.refused), "refused"),
        )
        if count
    ]
    said = f"{outcome.imported} of {outcome.total} items imported"
    return f"{said} ({', '.join(left)})" if left else said


def conversations(
    context: typer.Context,
    user: User,
    query: Annotated[str | None, typer.Argument(metavar="QUERY", help="What was talked about.")] = None,
    thread: Thread = None,
    limit: Annotated[int, typer.Option("--limit", "-m", min=1, help="How many at most.")] = 100,
    as_json: AsJson = False,
) -> int:
    """List a user's archived conversations: the last archived first, or those that fit a query best."""
    from .conversations import ConversationRepository

    with opened(context) as store:
        found = ConversationRepository(store).conversations(user, thread_id=thread, query=query, limit=limit)
    if as_json:
        print_json([asdict(one) for one in found])
        return DONE if found else NOTHING
    out = Output()
    for one in found:
        time = one.checkpoint_at.astimezone().isoformat(" ", "seconds")
        out.line((f"{time}\t{one.message_count}\t", "dim"), (one.thread_id, "bold"), ("\t", ""), (one.key, ""))
    return DONE if found else NOTHING


def export(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="FILE", help="Where to: x.jsonl or x.csv; '-' is stdout.")],
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="USER", help="Of this user only.")] = None,
    thread: Thread = None,
    format: Annotated[str | None, typer.Option("--format", metavar="FORMAT", help="jsonl or csv.")] = None,
    as_json: AsJson = False,
) -> int:
    """Write the messages of archived conversations, one a line, for an audit."""
    from .conversations import ConversationRepository

    chosen: Any = format
    with opened(context) as store, progress_bar("exporting") as progress:
        written = ConversationRepository(store).export(
            _Text() if target == "-" else target, user_id=user, thread_id=thread, format=chosen, progress=progress
        )
    if as_json and target != "-":
        print_json({"messages": written})
    return DONE if written else NOTHING


class _Text:
    """Text on stdout, in UTF-8."""

    def write(self, text: str) -> None:
        Stdout().write(text.encode())
