"""The commands for LangGraph's data: the import from its own stores, and archived conversations."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.face_api import show_namespace
from .options import CONFLICT, DONE, NOT_FOUND, AsJson, example, open_store
from .search import EmbedderOption, find_embedder, run_async
from .shell.terminal import Output, Stdout, print_json, progress_bar

if TYPE_CHECKING:
    from ..langgraph.store import Imported

User = Annotated[str, typer.Argument(metavar="USER", help="The user's id.")]
Thread = Annotated[str | None, typer.Option("--thread", "-t", metavar="THREAD", help="Only this thread.")]


conversations = typer.Typer(name="conversations", help="Archived conversations.", no_args_is_help=True)
langgraph = typer.Typer(name="langgraph", help="Data of LangGraph's own stores.", no_args_is_help=True)


@langgraph.command("import", epilog=example("holdall agent.db langgraph import store.sqlite"))
def import_(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The file of a SqliteStore, or the URL of a PostgresStore.")
    ],
    embed: EmbedderOption = None,
    as_json: AsJson = False,
) -> int:
    """Import the data of LangGraph's own SqliteStore or PostgresStore, which is only read.

    An import can be interrupted and run again. Entries that are here already, as new or newer, are kept.
    """
    from ..langgraph.store import aimport_from  # here, because the other commands do not need LangGraph

    with open_store(context, find_embedder(embed)) as store, progress_bar("importing") as progress:
        outcome = run_async(aimport_from(source, store, progress=progress))
    for item in outcome.refused:
        sys.stderr.write(f"holdall: {show_namespace(item.namespace)} {item.key!r}: {item.why}\n")
    if as_json:
        print_json(asdict(outcome))
    else:
        Output().line((_summary(outcome), ""))
    return CONFLICT if outcome.refused else DONE


def _summary(outcome: Imported) -> str:
    skipped = [
        f"{count} {reason}"
        for count, reason in (
            (outcome.present, "here already"),
            (outcome.expired, "expired"),
            (len(outcome.refused), "refused"),
        )
        if count
    ]
    summary = f"{outcome.imported} of {outcome.total} items imported"
    return f"{summary} ({', '.join(skipped)})" if skipped else summary


@conversations.command("list", epilog=example("holdall agent.db conversations list ada 'the diet'"))
def list_(
    context: typer.Context,
    user: User,
    query: Annotated[str | None, typer.Argument(metavar="QUERY", help="Find conversations about this.")] = None,
    thread: Thread = None,
    limit: Annotated[int, typer.Option("--limit", "-m", min=1, help="The maximum number of conversations.")] = 100,
    as_json: AsJson = False,
) -> int:
    """List a user's archived conversations: the last archived first, or the best matches of a query first."""
    from ..conversations.repository import ConversationRepository

    with open_store(context) as store:
        found = ConversationRepository(store).conversations(user, thread_id=thread, query=query, limit=limit)
    if as_json:
        print_json([asdict(conversation) for conversation in found])
        return DONE if found else NOT_FOUND
    out = Output()
    for conversation in found:
        time = conversation.checkpoint_at.astimezone().isoformat(" ", "seconds")
        details = f"{time}\t{conversation.message_count}\t"
        out.line((details, "dim"), (conversation.thread_id, "bold"), ("\t", ""), (conversation.key, ""))
    return DONE if found else NOT_FOUND


@conversations.command(epilog=example("holdall agent.db conversations export audit.csv --user ada"))
def export(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="FILE", help="The local file: x.jsonl or x.csv; '-' is stdout.")],
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="USER", help="Only this user.")] = None,
    thread: Thread = None,
    format: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="jsonl or csv. Default: by FILE.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Export the messages of archived conversations, one per line."""
    from ..conversations.repository import ConversationRepository

    chosen: Any = format  # the repository checks it
    with open_store(context) as store, progress_bar("exporting") as progress:
        written = ConversationRepository(store).export(
            _TextStdout() if target == "-" else target, user_id=user, thread_id=thread, format=chosen, progress=progress
        )
    if as_json and target != "-":
        print_json({"messages": written})
    return DONE if written else NOT_FOUND


class _TextStdout:
    """Writes text to stdout, in UTF-8."""

    def write(self, text: str) -> None:
        Stdout().write(text.encode())
