"""The commands of the server: `serve`, `ui`, `mcp`, and `token create`, `token list`, `token revoke`."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.face_api import decode_namespace, encode_namespace
from ...errors import InvalidInput, MissingExtra, shown
from .options import DONE, AsJson, example, open_store
from .shell.terminal import Output, print_json

_EXPIRES = re.compile(r"(\d+)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DEFAULT_RIGHTS = "read,write,watch,lease,history"


def _require_server() -> None:
    """Raise `MissingExtra` if a package of the server is not installed."""
    try:
        from ...server.run import protocol  # noqa: F401  # here, because the other commands do not need it
    except ModuleNotFoundError as missing:
        raise MissingExtra(f"this needs the package {missing.name!r}: pip install 'holdall[server]'") from missing


def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="The address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 8484 by default.")] = None,
    workers: Annotated[int | None, typer.Option(help="The number of processes; 1 by default.")] = None,
    auth: Annotated[str | None, typer.Option(help="'tokens' (the default), or 'none' on this machine.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow --auth none on every address.")] = False,
    allow_host: Annotated[list[str] | None, typer.Option(help="A name by which the server is called.")] = None,
    cors: Annotated[list[str] | None, typer.Option(help="A site whose pages may use the server.")] = None,
    tls_cert: Annotated[str | None, typer.Option(help="A file with the certificate.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="A file with the key of the certificate.")] = None,
    embed: Annotated[str | None, typer.Option(help="An embedder, such as 'local'.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of holdall.open; the value is JSON.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with these settings.")] = None,
) -> int:
    """Serve the store over HTTP: REST, LangGraph's store API, remote engines and MCP."""
    _require_server()
    from ...server.run.serve import Settings, load_settings, run

    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "workers": workers,
        "auth": auth,
        "insecure": insecure or None,
        "hosts": allow_host,
        "origins": cors,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    options = dict(_parse_option(text) for text in option or ())
    if embed is not None:
        options["embed"] = embed
    if options:
        settings["options"] = options
    if context.obj or config is None:
        settings["url"] = context.obj or ""
    run(Settings(**settings) if config is None else load_settings(config, **settings))
    return DONE


def ui(
    context: typer.Context,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="The port; a free one by default.")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")] = True,
    embed: Annotated[str | None, typer.Option(help="An embedder, such as 'local', to search by meaning.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of holdall.open; the value is JSON.")
    ] = None,
) -> int:
    """Open the explorer: a web page that shows what the store holds. It is reachable from this machine only."""
    _require_server()
    from ...server.run.explore import explore

    options = dict(_parse_option(text) for text in option or ())
    if embed is not None:
        options["embed"] = embed
    explore(context.obj or "", port=port, opens_browser=browser, options=options)
    return DONE


def _parse_option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(f"--option is NAME=VALUE, such as ttl=3600, not {shown(text)}")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def mcp(
    context: typer.Context,
    scope: Annotated[str, typer.Option(metavar="A/B", help="The namespace that the model sees; all by default.")] = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer only tools that read.")] = False,
    embed: Annotated[str | None, typer.Option(help="An embedder, such as 'local'.")] = None,
) -> int:
    """Serve the store to a model over stdio (MCP)."""
    _require_server()
    from ...server.mcp.stdio import run_stdio

    with open_store(context, embed) as store:
        run_stdio(store.scoped(decode_namespace(scope)) if decode_namespace(scope) else store, read_only=read_only)
    return DONE


token = typer.Typer(help="Make, list and revoke the tokens of a server.", rich_markup_mode=None)


@token.command("create", epilog=example("holdall agent.db token create --scope users/ada --expires 30d"))
def create_token(
    context: typer.Context,
    scope: Annotated[str, typer.Option(metavar="A/B", help="The namespace that it sees; all by default.")] = "",
    allow: Annotated[str, typer.Option(metavar="RIGHT,...", help="The rights.")] = _DEFAULT_RIGHTS,
    expires: Annotated[str | None, typer.Option(metavar="30d", help="For how long it is valid: 12h, 30d, 8w.")] = None,
    label: Annotated[str, typer.Option(help="A note for yourself.")] = "",
    max_requests: Annotated[float | None, typer.Option(help="The most requests a second.")] = None,
    max_entries: Annotated[int | None, typer.Option(help="The most entries that its scope may hold.")] = None,
    max_bytes: Annotated[int | None, typer.Option(help="The most bytes that its scope may hold.")] = None,
    as_json: AsJson = False,
) -> int:
    """Make a token, and print it. It is shown only once."""
    _require_server()
    from ...server import Tokens

    with open_store(context) as store:
        made, text = Tokens(store).create(
            scope=decode_namespace(scope),
            allow=[right.strip() for right in allow.split(",")],
            expires=None if expires is None else _parse_duration(expires),
            label=label,
            max_requests=max_requests,
            max_entries=max_entries,
            max_bytes=max_bytes,
        )
    if as_json:
        print_json({**made.to_document(), "token": text})
    else:
        Output().line((text, ""))
    return DONE


@token.command("list", epilog=example("holdall agent.db token list"))
def list_tokens(context: typer.Context, as_json: AsJson = False) -> int:
    """List the tokens, without their secrets."""
    _require_server()
    from ...server import Tokens

    with open_store(context) as store:
        found = Tokens(store).list()
    if as_json:
        print_json([one.to_document() for one in found])
        return DONE
    for one in found:
        expires = "never expires" if one.expires_at is None else f"expires {one.expires_at:%Y-%m-%d %H:%M}"
        scope = encode_namespace(one.scope) or "/"
        Output().line((f"{one.id}  {scope}  {','.join(one.allow)}  {expires}  {one.label}".rstrip(), ""))
    return DONE


@token.command("revoke", epilog=example("holdall agent.db token revoke 3f1c"))
def revoke_token(
    context: typer.Context,
    identity: Annotated[str, typer.Argument(metavar="ID", help="The id of the token.")],
    as_json: AsJson = False,
) -> int:
    """Revoke a token. A running server refuses it within a second."""
    _require_server()
    from ...server import Tokens

    with open_store(context) as store:
        Tokens(store).revoke(identity)
    if as_json:
        print_json({"revoked": identity})
    return DONE


def _parse_duration(text: str) -> timedelta:
    match = _EXPIRES.fullmatch(text)
    if match is None:
        raise InvalidInput(f"--expires is a number and a unit of s, m, h, d or w, such as 30d, not {shown(text)}")
    try:
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError:
        raise InvalidInput(f"--expires {text} is too long; leave it out for a token that never ends") from None


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(epilog=example("holdall agent.db serve --port 8484"))(serve)
    app.command(epilog=example("holdall agent.db ui"))(ui)
    app.command(epilog=example("holdall agent.db mcp --scope users/ada"))(mcp)
    app.add_typer(token, name="token")
