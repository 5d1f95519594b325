"""Connection strings as LangGraph's own stores take them: SQLite's, PostgreSQL's, or a URL of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import holdall

from ..errors import InvalidInput
from ..store import Store

# PostgreSQL's other form: "host=db dbname=agents", with libpq's quoting.
_SETTING = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)\s*")
_SETTINGS = re.compile(r"\s*(?:host|hostaddr|port|dbname|user|password|service|sslmode|options|application_name)\s*=")
#: What a pool of psycopg's can be told, and ours has no need to be.
_POOL_ONLY = frozenset(
    {
        *("check", "close_returns", "configure", "connection_class", "max_idle", "max_lifetime", "max_waiting", "name"),
        *("num_workers", "open", "reconnect_failed", "reconnect_timeout", "reset"),
    }
)


def is_postgres(conn_string: str) -> bool:
    """Whether it is for PostgreSQL, as a URL or in libpq's other form."""
    return conn_string.startswith(("postgres://", "postgresql://")) or _SETTINGS.match(conn_string) is not None


def open_from(conn_string: str, pool_config: Mapping[str, Any] | None = None, **options: Any) -> Store:
    """The store that a connection string names. `pool_config` is that of a PostgreSQL store of LangGraph's."""
    url = "memory:" if conn_string in (":memory:", "") else conn_string
    if _SETTINGS.match(url):
        url = "postgresql://?" + _query(_settings(url))
    if is_postgres(url):
        own, settings = _pool_options(dict(pool_config or {}))
        options |= own
        if settings:
            url += ("&" if "?" in url else "?") + _query(settings)
    return holdall.open(url, **options)


def _settings(conninfo: str) -> dict[str, str]:
    settings, place = {}, 0
    while place < len(conninfo):
        found = _SETTING.match(conninfo, place)
        if found is None:
            raise InvalidInput("this connection string is neither a URL nor 'name=value …', as libpq takes it")
        name, value = found.groups()
        settings[name] = re.sub(r"\\(.)", r"\1", value[1:-1] if value.startswith("'") else value)
        place = found.end()
    return settings


def _query(settings: Mapping[str, Any]) -> str:
    return urlencode(settings, quote_via=quote)


def _pool_options(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our options for those of psycopg's pool, and what belongs into the URL."""
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
        raise InvalidInput(f"pool_config has no {unknown[0]!r}; it takes what a pool of psycopg's does")
    for name in ("autocommit", "row_factory", "cursor_factory"):  # ours to choose
        settings.pop(name, None)
    if settings.pop("prepare_threshold", 0) is None:
        options["prepare"] = False
    return options, settings
