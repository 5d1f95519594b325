"""The commands for LangGraph's data: threads, the imports from its own stores and savers, archived conversations."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.face_api import show_namespace
from ...errors import InvalidInput, NotFound
from .options import CONFLICT, DONE, NOT_FOUND, AsJson, Yes, example, open_store
from .search import EmbedderOption, find_embedder, parse_filter, run_async
from .shell.terminal import Output, Stdout, print_json, print_result, progress_bar, show_time

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointTuple

    from ..langgraph.store import Imported

User = Annotated[str, typer.Argument(metavar="USER", help="The user's id.")]
ThreadId = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's ID.")]
Thread = Annotated[str | None, typer.Option("--thread", "-t", metavar="THREAD", help="Only this thread.")]


threads = typer.Typer(name="threads", help="LangGraph's threads, which HoldallSaver keeps.")
conversations = typer.Typer(name="conversations", help="Archived conversations.")
langgraph = typer.Typer(name="langgraph", help="Data of LangGraph's own stores.")


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
    return _report(outcome, "items", as_json)


def _report(outcome: Imported, things: str, as_json: bool) -> int:
    """Print the outcome of an import, and return the exit code."""
    for item in outcome.refused:
        sys.stderr.write(f"holdall: {show_namespace(item.namespace)} {item.key!r}: {item.why}\n")
    print_result(asdict(outcome), _summary(outcome, things), as_json)
    return CONFLICT if outcome.refused else DONE


def _summary(outcome: Imported, things: str) -> str:
    skipped = [
        f"{count} {reason}"
        for count, reason in (
            (outcome.present, "here already"),
            (outcome.expired, "expired"),
            (len(outcome.refused), "refused"),
        )
        if count
    ]
    summary = f"{outcome.imported} of {outcome.total} {things} imported"
    return f"{summary} ({', '.join(skipped)})" if skipped else summary


@threads.callback(invoke_without_command=True, epilog=example("holdall agent.db threads --query 'the diet'"))
def list_threads(
    context: typer.Context,
    query: Annotated[str | None, typer.Option("--query", "-q", metavar="TEXT", help="Find threads about this.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", metavar="ID", help="The beginning of their IDs.")] = None,
    filter: Annotated[
        str | None, typer.Option("--filter", "-f", metavar="JSON", help='Of the metadata: \'{"user_id": "ada"}\'.')
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-m", min=1, help="The maximum number of threads.")] = 100,
    as_json: AsJson = False,
) -> int:
    """List threads: those with the newest checkpoint first, or the best matches of a query first."""
    if context.invoked_subcommand is not None:
        return DONE
    from ..langgraph import HoldallSaver

    with open_store(context) as store:
        found = HoldallSaver(store).threads(query=query, prefix=prefix, filter=parse_filter(filter), limit=limit)
    if as_json:
        print_json([asdict(thread) for thread in found])
        return DONE if found else NOT_FOUND
    out = Output()
    for thread in found:
        preview = " ".join((thread.preview or "").split())
        details = f"{show_time(thread.updated_at)}\t{thread.checkpoints}\t"
        out.line((details, "dim"), (thread.id, "bold"), (f"\t{preview}", ""))
    return DONE if found else NOT_FOUND


@threads.command("show", epilog=example("holdall agent.db threads show trip"))
def show_thread(
    context: typer.Context,
    thread: ThreadId,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", "-c", help="List its checkpoints instead.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show the state of a thread: the messages and the other channels of its last checkpoint."""
    from ..conversations.messages import to_plain
    from ..langgraph import HoldallSaver

    config: Any = {"configurable": {"thread_id": thread}}
    out = Output()
    with open_store(context) as store:
        saver = HoldallSaver(store)
        if checkpoints:
            found = list(saver.list(config))
            if as_json:
                print_json([_summarise(each) for each in found])
                return DONE if found else NOT_FOUND
            for each in map(_summarise, found):
                out.line((f"{each['time']}\t{each['step']}\t{each['source']}\t", "dim"), (each["id"], "bold"))
            return DONE if found else NOT_FOUND
        last = saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    if last is None:
        raise NotFound(f"there is no thread {thread!r}")
    values = to_plain(last.checkpoint["channel_values"])
    if as_json:
        print_json({**_summarise(last), "metadata": to_plain(last.metadata), "values": values})
        return DONE
    for channel, value in values.items():
        for part in value if isinstance(value, list) else [value]:
            is_message = isinstance(part, dict) and isinstance(part.get("type"), str) and "content" in part
            name, text = (part["type"], part["content"]) if is_message else (channel, part)
            out.line((f"{name}\t", "dim"), (text if isinstance(text, str) else json.dumps(text), ""))
    return DONE


def _summarise(found: CheckpointTuple) -> dict[str, Any]:
    configurable: Any = found.config.get("configurable")
    return {
        "id": configurable["checkpoint_id"],
        "checkpoint_ns": configurable["checkpoint_ns"],
        "time": found.checkpoint["ts"],
        "step": found.metadata.get("step"),
        "source": found.metadata.get("source"),
    }


@threads.command("prune", epilog=example("holdall agent.db threads prune --keep-last 20 --older-than 7"))
def prune_threads(
    context: typer.Context,
    thread: Annotated[
        list[str] | None, typer.Argument(metavar="[THREAD]...", help="The threads. Default: all.", show_default=False)
    ] = None,
    keep_last: Annotated[int, typer.Option("--keep-last", min=1, help="The checkpoints of each that stay.")] = 1,
    older_than: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="Only those that are older.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the threads that are named.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Delete old checkpoints of threads. What the last state of a thread needs stays."""
    from ..langgraph import HoldallSaver

    if delete and not thread:
        raise InvalidInput("--delete needs the threads to delete")
    if not yes:
        what = ", ".join(thread) if thread else "all threads"
        typer.confirm(f"Delete {what}?" if delete else f"Delete old checkpoints of {what}?", abort=True, err=True)
    with open_store(context) as store:
        saver = HoldallSaver(store)
        if delete:
            saver.prune(thread or (), strategy="delete")
            if as_json:
                print_json({"deleted": thread})
            return DONE
        age = None if older_than is None else older_than * 86400  # a timedelta cannot hold any number
        removed = saver.retain(keep_last=keep_last, older_than=age, thread_ids=thread or None)
    print_result({"checkpoints": removed}, f"{removed} checkpoints deleted", as_json)
    return DONE


@threads.command("import", epilog=example("holdall agent.db threads import checkpoints.sqlite"))
def import_threads(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The file of a SqliteSaver, or the URL of a PostgresSaver.")
    ],
    as_json: AsJson = False,
) -> int:
    """Import the threads of LangGraph's own SqliteSaver or PostgresSaver, which is only read.

    An import can be interrupted and run again. Checkpoints that are here already are kept.
    """
    from ..langgraph import HoldallSaver

    with open_store(context) as store, progress_bar("importing") as progress:
        outcome = run_async(HoldallSaver(store).aimport_from(source, progress=progress))
    return _report(outcome, "checkpoints", as_json)


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
        details = f"{show_time(conversation.checkpoint_at)}\t{conversation.message_count}\t"
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
