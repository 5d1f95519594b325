"""The connection strings of LangGraph's own stores, for SQLite and PostgreSQL, as URLs and options of holdall."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import holdall

from ... import Store
from ...errors import InvalidInput
from ..base import Face

F = TypeVar("F", bound=Face)
# The keyword/value form of libpq: "host=db dbname=agents", with its quoting.
_SETTING = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)\s*")
_SETTINGS = re.compile(r"\s*(?:host|hostaddr|port|dbname|user|password|service|sslmode|options|application_name)\s*=")
#: Options of psycopg's pool that have no equivalent here, and are ignored.
_POOL_ONLY = frozenset(
    {
        *("check", "close_returns", "configure", "connection_class", "max_idle", "max_lifetime", "max_waiting", "name"),
        *("num_workers", "open", "reconnect_failed", "reconnect_timeout", "reset"),
    }
)


def is_postgres(conn_string: str) -> bool:
    """Whether a connection string is for PostgreSQL, as a URL or in libpq's keyword/value form."""
    return conn_string.startswith(("postgres://", "postgresql://")) or _SETTINGS.match(conn_string) is not None


def open_from(conn_string: str, pool_config: Mapping[str, Any] | None = None, **options: Any) -> Store:
    """Open the store of a connection string. `pool_config` is that of LangGraph's PostgresStore."""
    url = "memory:" if conn_string in (":memory:", "") else conn_string
    if _SETTINGS.match(url):
        url = "postgresql://?" + _encode(_parse_settings(url))
    if is_postgres(url):
        pool_options, settings = _translate_pool_config(dict(pool_config or {}))
        options |= pool_options
        if settings:
            url += ("&" if "?" in url else "?") + _encode(settings)
    return holdall.open(url, **options)


def open_face(make: Callable[[Store], F], conn_string: str, pool_config: Mapping[str, Any] | None, **options: Any) -> F:
    """Make a face on the store of a connection string, which is closed with the face."""
    store = open_from(conn_string, pool_config, **options)
    try:
        face = make(store)
    except BaseException:
        store.close()
        raise
    face._owned_store = store
    return face


def _parse_settings(conninfo: str) -> dict[str, str]:
    settings, position = {}, 0
    while position < len(conninfo):
        found = _SETTING.match(conninfo, position)
        if found is None:
            raise InvalidInput("the connection string is neither a URL nor libpq's form 'name=value …'")
        name, value = found.groups()
        settings[name] = re.sub(r"\\(.)", r"\1", value[1:-1] if value.startswith("'") else value)
        position = found.end()
    return settings


def _encode(settings: Mapping[str, Any]) -> str:
    return urlencode(settings, quote_via=quote)


def _translate_pool_config(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of `holdall.open` for those of psycopg's pool, and the settings that belong in the URL."""
    options: dict[str, Any] = {}
    settings = dict(config.pop("kwargs", None) or {})
    for theirs, ours in (("min_size", "pool_min"), ("max_size", "pool_max"), ("timeout", "pool_timeout")):
        value = config.pop(theirs, None)
        if value is not None:
            options[ours] = value
    if "pool_min" in options:
        options.setdefault("pool_max", max(10, options["pool_min"]))
    unknown = sorted(config.keys() - _POOL_ONLY)
    if unknown:
        raise InvalidInput(f"pool_config has no {unknown[0]!r}; it takes the options of psycopg's pool")
    for name in ("autocommit", "row_factory", "cursor_factory"):  # the engine sets these itself
        settings.pop(name, None)
    if settings.pop("prepare_threshold", 0) is None:
        options["prepare"] = False
    return options, settings
