"""The commands for entries: `holdall URL item …`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any, TypeAlias

import typer

from ... import ABSENT, ANY, Entry
from ...core.face_api import show_namespace
from ...errors import InvalidInput, NotFound
from .options import (
    DONE,
    NOT_FOUND,
    AsJson,
    Labels,
    Ns,
    choose_namespace,
    example,
    open_store,
    parse_json,
    parse_moment,
    parse_time,
)
from .shell.terminal import Output, print_json, progress_bar, show_time

app = typer.Typer(name="item", help="Read and write entries.")

Key: TypeAlias = Annotated[str, typer.Argument(metavar="KEY", help="The key of the entry.")]
Keys: TypeAlias = Annotated[list[str], typer.Argument(metavar="KEY", help="The keys of the entries.")]


def _namespace(ns: str | None, label: list[str] | None) -> tuple[str, ...]:
    found = choose_namespace(ns, label, ())
    if not found:
        raise InvalidInput("name the namespace of the entry: --ns users/ada")
    return found


@app.command(epilog=example("holdall agent.db item get likes --ns users/ada"))
def get(context: typer.Context, key: Key, ns: Ns = None, label: Labels = None, as_json: AsJson = False) -> int:
    """Print the value of an entry, as JSON. With --json, also its version and times."""
    namespace = _namespace(ns, label)
    with open_store(context) as store:
        entry = store.get(namespace, key)
    if entry is None:
        raise NotFound(f"there is no {key!r} in {show_namespace(namespace)}")
    if as_json:
        print_json(asdict(entry))
    else:
        Output().line((json.dumps(entry.value, ensure_ascii=False, indent=2), ""))
    return DONE


@app.command("set", epilog=example('holdall agent.db item set likes \'{"food": "figs"}\' --ns users/ada --ttl 3600'))
def set_(
    context: typer.Context,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="JSON", help="The value; '-' (the default) is stdin.")] = "-",
    ttl: Annotated[float | None, typer.Option("--ttl", metavar="SECONDS", help="Expire after so many seconds.")] = None,
    expires_at: Annotated[
        str | None, typer.Option("--expires-at", metavar="TIME", help="Expire then: 2027-01-31T12:00:00+00:00.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Fail if the entry exists.")] = False,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", help="Fail unless the entry is at this version.")
    ] = None,
    search_field: Annotated[
        list[str] | None,
        typer.Option("--search-field", metavar="PATH", help="Only this text is searched; repeat it for more."),
    ] = None,
    no_search: Annotated[bool, typer.Option("--no-search", help="No text of it is searched.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Write an entry. Its value is a JSON object."""
    namespace = _namespace(ns, label)
    if (new and version is not None) or (no_search and search_field):
        raise InvalidInput("--new and --version, or --no-search and --search-field, cannot be combined")
    found = parse_json(sys.stdin.buffer.read() if value == "-" else value, "the value")
    moment = None if expires_at is None else parse_time(expires_at)
    expect: Any = ABSENT if new else ANY if version is None else version
    options: dict[str, Any] = {} if ttl is None else {"ttl": ttl}
    fields: Any = False if no_search else search_field or None
    with open_store(context) as store:
        entry = store.put(namespace, key, found, expires_at=moment, expect=expect, search_fields=fields, **options)
    if as_json:
        print_json(asdict(entry))
    return DONE


@app.command("del", epilog=example("holdall agent.db item del likes dislikes --ns users/ada"))
def delete(context: typer.Context, keys: Keys, ns: Ns = None, label: Labels = None, as_json: AsJson = False) -> int:
    """Delete entries. The exit code is 1 if one does not exist."""
    namespace = _namespace(ns, label)
    with open_store(context) as store:
        deleted = sum(store.delete(namespace, key) for key in keys)
    if as_json:
        print_json({"deleted": deleted})
    return DONE if deleted == len(keys) else NOT_FOUND


@app.command("list", epilog=example("holdall agent.db item list --ns users --long"))
def list_(
    context: typer.Context,
    limit: Annotated[int | None, typer.Option("--limit", "-m", min=1, help="The maximum number of entries.")] = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Also print versions and times.")] = False,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """List the entries of a namespace and of those below it, in key order."""
    namespace = choose_namespace(ns, label, ())
    found: list[Entry] = []
    out, count = Output(), 0
    with open_store(context) as store:
        for entry in store.scan(namespace):
            count += 1
            if as_json:
                found.append(entry)
            else:
                details = [(f"{entry.version}\t{show_time(entry.updated_at)}\t", "dim")] if long else []
                value = json.dumps(entry.value, ensure_ascii=False)
                where = show_namespace(entry.namespace)
                out.line(*details, (where, "blue"), ("\t", ""), (entry.key, "bold"), ("\t", ""), (value, ""))
            if count == limit:
                break
    if as_json:
        print_json([asdict(entry) for entry in found])
    return DONE if count else NOT_FOUND


# History -------------------------------------------------------------------------------------------------------------


@app.command(epilog=example("holdall agent.db item history likes --ns users/ada"))
def history(
    context: typer.Context,
    key: Key,
    limit: Annotated[int, typer.Option("--limit", "-m", min=1, help="The maximum number of versions.")] = 100,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """List the versions of an entry that the store keeps, newest first: version, time, kind, author and value."""
    namespace = _namespace(ns, label)
    with open_store(context) as store:
        found = store.history(namespace, key, limit=limit)
    if as_json:
        print_json([asdict(version) for version in found])
        return DONE if found else NOT_FOUND
    out = Output()
    for version in found:
        value = "" if version.value is None else json.dumps(version.value, ensure_ascii=False)
        by = " ".join(part for part in (version.author, version.reason and f"({version.reason})") if part)
        details = f"{version.version}\t{show_time(version.time)}\t"
        out.line((details, "dim"), (version.kind, "bold"), (f"\t{by}\t", "blue"), (value, ""))
    return DONE if found else NOT_FOUND


@app.command(epilog=example("holdall agent.db item diff 2027-01-31T12:00:00+00:00 --ns users/ada"))
def diff(
    context: typer.Context,
    since: Annotated[str, typer.Argument(metavar="SINCE", help="A time or a cursor.")],
    until: Annotated[str | None, typer.Argument(metavar="UNTIL", help="A time or a cursor; now by default.")] = None,
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Show what changed in a namespace and below it, with the value before and after."""
    namespace = choose_namespace(ns, label, ())
    with open_store(context) as store, progress_bar("comparing"):
        found = list(store.diff(namespace, parse_moment(since), None if until is None else parse_moment(until)))
    if as_json:
        print_json([asdict(one) for one in found])
        return DONE if found else NOT_FOUND
    out = Output()
    for one in found:
        out.line((show_namespace(one.namespace), "blue"), ("\t", ""), (one.key, "bold"))
        for sign, entry, colour in (("-", one.before, "red"), ("+", one.after, "green")):
            if entry is not None:
                out.line((f"{sign} {json.dumps(entry.value, ensure_ascii=False)}", colour))
    return DONE if found else NOT_FOUND


@app.command(epilog=example("holdall agent.db item restore likes 17 --ns users/ada"))
def restore(
    context: typer.Context,
    key: Key,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="A version that `item history` lists.")],
    ns: Ns = None,
    label: Labels = None,
    as_json: AsJson = False,
) -> int:
    """Bring back an earlier version of an entry, as a new change."""
    namespace = _namespace(ns, label)
    with open_store(context) as store:
        entry = store.restore(namespace, key, version)
    if as_json:
        print_json(asdict(entry))
    return DONE
