"""The commands for operators: watching, copying, comparing, backup and load, export and import."""

from __future__ import annotations

import signal
import sys
from dataclasses import asdict
from typing import Annotated, Any, TypeAlias

import typer

import holdall

from ...core.face_api import decode_namespace, show_namespace
from ...errors import InvalidInput
from .options import (
    CONFLICT,
    DONE,
    NOT_FOUND,
    AsJson,
    Labels,
    Ns,
    Prefix,
    To,
    Yes,
    choose_namespace,
    open_store,
    parse_moment,
)
from .search import EmbedderOption, find_embedder, run_async
from .shell.terminal import Output, Stdout, print_json, print_result, print_rows, progress_bar

Destination: TypeAlias = Annotated[str, typer.Argument(metavar="DST", help="The URL of the other store.")]
Backup: TypeAlias = Annotated[str, typer.Argument(metavar="FILE", help="The backup, a local file.")]
Format: TypeAlias = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", help="jsonl or parquet. Default: by FILE.")
]


def watch(
    context: typer.Context,
    since: Annotated[str | None, typer.Option("--since", metavar="CURSOR", help="Start after this cursor.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-m", min=1, help="Stop after so many changes.")] = None,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Print changes as they happen, until you press Ctrl-C. With --json, one JSON document in each line."""
    namespace = choose_namespace(ns, label, ())
    out, count = Output(), 0
    with open_store(context) as store, store.watch(namespace, since=since) as changes:
        for change in changes:
            if as_json:
                print_json(asdict(change))
            else:
                colour = {"put": "green", "delete": "red"}.get(change.kind, "yellow")
                where = show_namespace(change.namespace)
                out.line((f"{change.kind}\t", colour), (where, "blue"), ("\t", ""), (change.key, "bold"))
            Stdout().flush()
            count += 1
            if count == limit:
                break
    return DONE


def namespaces(
    context: typer.Context,
    depth: Annotated[int | None, typer.Option("--depth", "-d", min=1, help="Cut namespaces to so many labels.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-m", min=1, help="The maximum number of namespaces.")] = 1000,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """List the namespaces that hold entries, sorted. '*' in --ns stands for any one label."""
    prefix = choose_namespace(ns, label, ())
    with open_store(context) as store:
        found = store.namespaces(prefix=prefix or None, max_depth=depth, limit=limit)
    if as_json:
        print_json([list(namespace) for namespace in found])
    else:
        Output().lines(show_namespace(namespace) for namespace in found)
    return DONE if found else NOT_FOUND


def rewind(
    context: typer.Context,
    when: Annotated[
        str, typer.Argument(metavar="WHEN", help="A time, such as 2027-01-31T12:00:00+00:00, or a cursor.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would change.")] = False,
    sliced: Annotated[bool, typer.Option("--sliced", help="Allow more than 100,000 changes, in slices.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Bring a namespace, and those below it, back to what it was at a time, as new changes."""
    namespace = choose_namespace(ns, label, ())
    with open_store(context) as store, progress_bar("rewinding"):
        rewound = store.rewind(namespace, parse_moment(when), dry_run=dry_run, sliced=sliced)
    would = "would be " if dry_run else ""
    print_result(
        asdict(rewound), f"{rewound.restored} entries {would}restored, {rewound.deleted} {would}deleted", as_json
    )
    return DONE


def erase(
    context: typer.Context,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="Only this entry of the namespace.")] = None,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Also the namespaces below it.")] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Also what takes long, and keeps others waiting: tables are rewritten.")
    ] = False,
    yes: Yes = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Erase an entry or a namespace with its history, so that nothing readable is left in the engine's own files.

    Prints what was removed, and what is out of reach. It cannot be undone.
    """
    namespace = choose_namespace(ns, label, ())
    if not namespace:
        raise InvalidInput("name the namespace to erase: --ns users/ada")
    if not yes:
        what = show_namespace(namespace) if key is None else f"{key!r} in {show_namespace(namespace)}"
        typer.confirm(f"Erase {what} for ever?", abort=True, err=True)
    with open_store(context) as store, progress_bar("erasing"):
        erased = store.erase(namespace, key, recursive=recursive, compact=compact)
    if as_json:
        print_json(asdict(erased))
        return DONE
    counts = f"{erased.entries} entries, {erased.versions} old versions, {erased.tombstones} tombstones"
    print_rows(
        [
            ("erased", counts),
            *(("cleared", text) for text in erased.cleared),
            *(("out of reach", text) for text in erased.beyond),
        ]
    )
    return DONE


# Copying and comparing -----------------------------------------------------------------------------------------------


def copy(
    context: typer.Context,
    destination: Destination,
    prefix: Prefix = None,
    to: To = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with every later change, until you press Ctrl-C.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare both stores at the end.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin again, if the copy was interrupted for too long.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Copy the store to another one, on any engine, while both are in use.

    A copy that was interrupted continues when the command is repeated, and writes nothing twice.
    """
    stopped = False

    def stop(number: int, frame: Any) -> None:
        del number, frame
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True

    if follow:  # the first signal ends it between two pages, so that it can print what it did; the second, at once
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
    with (
        open_store(context) as store,
        holdall.open(destination, sweep_interval=None) as other,
        progress_bar("copying") as progress,
    ):
        copied = holdall.copy(
            store,
            other,
            prefix=_parse(prefix) or (),
            to=_parse(to),
            follow=follow,
            verify=verify,
            restart=restart,
            progress=progress,
            stop=(lambda: stopped) if follow else None,
        )
    summary = f"{copied.entries} entries and {copied.deletions} deletions copied"
    if copied.vectors_left_out:
        summary += f"; {copied.vectors_left_out} entries have vectors of another model: run reindex on the copy"
    if verify:
        summary += f"; {copied.verified} entries compared, {len(copied.differences)} differ"
    print_result(asdict(copied), summary, as_json)
    if not as_json:
        _print_differences(copied.differences)
    return CONFLICT if copied.differences else DONE


def compare(
    context: typer.Context,
    destination: Annotated[str, typer.Argument(metavar="OTHER", help="The URL of the other store.")],
    prefix: Prefix = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="A/B/C", help="The namespace of the other store. Default: the same.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-m", min=1, help="The maximum number of differences.")] = 100,
    as_json: AsJson = False,
) -> int:
    """Compare two stores. The exit code is 1 if they differ.

    Values, contents, times, TTLs, search fields and vectors are compared; versions are each store's own.
    """
    with (
        open_store(context) as store,
        holdall.open(destination, sweep_interval=None) as other,
        progress_bar("comparing") as progress,
    ):
        arguments: dict[str, Any] = {"prefix": _parse(prefix) or (), "to": _parse(to), "limit": limit}
        found = holdall.compare(store, other, progress=progress, **arguments)
    summary = f"{found.entries} entries compared, {len(found.differences)} differ"
    print_result({"equal": found.equal, **asdict(found)}, summary, as_json)
    if not as_json:
        _print_differences(found.differences)
    return DONE if found.equal else NOT_FOUND


def _print_differences(differences: list[holdall.Difference]) -> None:
    out = Output()
    for one in differences:
        where = show_namespace(one.namespace)
        out.line((where, "blue"), ("\t", ""), (one.key, "bold"), (f"\t{', '.join(one.what)}", ""))


def _parse(namespace: str | None) -> tuple[str, ...] | None:
    return None if namespace is None else decode_namespace(namespace)


# Backup and load -----------------------------------------------------------------------------------------------------


def backup(context: typer.Context, file: Backup, prefix: Prefix = None, as_json: AsJson = False) -> int:
    """Write the store, as it is at one moment, to one compressed file. Others can go on writing."""
    with open_store(context) as store, progress_bar("backing up") as progress:
        info = store.backup(file, prefix=_parse(prefix) or (), progress=progress)
    return _print_backup(info, as_json)


def load(
    context: typer.Context,
    file: Backup,
    to: To = None,
    into: Annotated[bool, typer.Option("--into", help="Add the backup to what is in the store.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Delete what is in the store first.")] = False,
    as_json: AsJson = False,
) -> int:
    """Load a backup. The whole file is checked before anything is written.

    A store that is not empty is refused, unless --into or --replace is given.
    """
    with open_store(context) as store, progress_bar("loading") as progress:
        loaded = store.load(file, to=_parse(to), into=into, replace=replace, progress=progress)
    print_result(asdict(loaded), f"{loaded.entries} entries loaded", as_json)
    return DONE


def backup_check(file: Backup, as_json: AsJson = False) -> int:
    """Read a backup to its end, check it, and show what it has. It needs no store."""
    with progress_bar("checking") as progress:
        info = holdall.check_backup(file, progress=progress)
    return _print_backup(info, as_json)


def _print_backup(info: holdall.BackupInfo, as_json: bool) -> int:
    if as_json:
        print_json(asdict(info))
        return DONE
    assert info.created_at is not None
    rows = {"entries": info.entries, "files": info.files, "vectors": info.vectors, "bytes": info.bytes}
    made = [("made", f"{info.created_at.isoformat(' ', 'seconds')} by holdall {info.holdall}")]
    print_rows([*((name, f"{count:,}") for name, count in rows.items()), *made])
    return DONE


def check(
    context: typer.Context,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired.")] = False,
    as_json: AsJson = False,
) -> int:
    """Check every entry and its old versions, contents, vectors and indexes. The exit code is 4 if a fault is left."""
    with open_store(context) as store, progress_bar("checking") as progress:
        found = store.check(repair=repair, progress=progress)
    if as_json:
        faults = {name: [_describe(one) for one in getattr(found, name)] for name in ("faults", "repaired")}
        print_json({"entries": found.entries, **faults})
        return CONFLICT if found.faults else DONE
    out = Output()
    out.line((f"{found.entries} entries checked, {len(found.faults)} faults", ""))
    for fault in found.repaired:
        out.line(("repaired\t", "green"), (f"{fault.kind}: {fault.message}", ""))
    for fault in found.faults:
        hint = " (--repair repairs it)" if fault.repairable else ""
        out.line(("fault\t", "red"), (f"{fault.kind}: {fault.message}{hint}", ""))
    return CONFLICT if found.faults else DONE


def _describe(fault: holdall.Fault) -> dict[str, Any]:
    return {"kind": fault.kind, "message": fault.message, "repairable": fault.repairable}


# Export and import ---------------------------------------------------------------------------------------------------


def export(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The local file: x.jsonl or x.parquet; '-' is stdout.")],
    format: Format = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> int:
    """Export entries as rows, for other tools: JSONL, or Parquet with holdall[parquet]."""
    chosen: Any = format or ("jsonl" if file == "-" else None)
    target: Any = Stdout() if file == "-" else file
    with open_store(context) as store, progress_bar("exporting") as progress:
        count = store.export_entries(target, prefix=_parse(prefix) or (), format=chosen, progress=progress)
    if as_json and file != "-":
        print_json({"entries": count})
    return DONE if count else NOT_FOUND


def import_(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The local file: x.jsonl or x.parquet; '-' is stdin.")],
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            "-c",
            metavar="PART=COLUMN",
            help="Which column is a part of the entry: key=id, value=title,text; parts are namespace, key, value,"
            " content, created_at, updated_at, expires_at, ttl, search_fields.",
        ),
    ] = None,
    format: Format = None,
    embed: EmbedderOption = None,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Import rows as entries: what export writes, or with --column a file of another tool.

    --ns is the namespace of rows that have none. Without a column for the value, all other columns are its fields.
    """
    chosen: Any = format or ("jsonl" if file == "-" else None)
    source: Any = sys.stdin.buffer if file == "-" else file
    namespace = choose_namespace(ns, label, ()) or None
    with open_store(context, find_embedder(embed)) as store, progress_bar("importing") as progress:
        arguments: dict[str, Any] = {"namespace": namespace, "columns": _parse_columns(column), "format": chosen}
        count = run_async(store.aimport_entries(source, progress=progress, **arguments))
    print_result({"entries": count}, f"{count} entries imported", as_json)
    return DONE


def _parse_columns(given: list[str] | None) -> dict[str, Any] | None:
    columns: dict[str, Any] = {}
    for pair in given or ():
        part, equals, column = pair.partition("=")
        if not equals or not column:
            raise InvalidInput(f"--column takes PART=COLUMN, such as key=id; not {pair!r}")
        columns[part] = column.split(",") if part == "value" and "," in column else column
    return columns or None
