"""`holdall.open`: from a URL to a store. Only this module knows which engines exist. It imports them on demand."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast

from ..engine import Clock, Engine, Options
from ..errors import InvalidInput, MissingExtra, Unsupported, shown
from ..model.field_paths import WHOLE, check_paths
from ..model.filters import check_field
from ..model.values import duration_seconds, ttl_seconds
from ..runtime import arguments
from ..runtime.arguments import check_renamed
from ..runtime.signals import defer_signals
from ..search.embedders import Embedder, Metric, check_metric
from ..search.embedding_model import EmbeddingModel
from .engine_handle import engine_module, get_or_make_handle
from .options import OpEvent, StoreOptions
from .store import Store

_LATEST = 253_402_300_799_999_999  # the end of the year 9999, in microseconds

_Target: TypeAlias = tuple[Hashable, Callable[[], Engine]]
_ENGINE = tuple(name for name in vars(Engine) if not name.startswith("_"))
_POSTGRES = ("postgresql", "postgres")
_REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_REMOTE = ("http", "https")
#: Every scheme of a URL. A plain path has none.
SCHEMES = ("sqlite", "disk", "memory", *_POSTGRES, *_REDIS, "s3", *_REMOTE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)


class EngineOptions(TypedDict, total=False):
    """Options that only some engines take.

    Disk: `volume`. Redis: `key_prefix`, `allow_eviction` and the `pool_` options. S3: `endpoint`, `region`, `profile`,
    `credentials`, `cache` and `stale`. A server: `token`, `ca_file` and the `pool_` options. PostgreSQL: all others.
    """

    volume: tuple[str, ...]
    key_prefix: str
    allow_eviction: bool
    schema: str
    pool_min: int
    pool_max: int
    pool_timeout: float | timedelta
    prepare: bool | None
    connection: Any
    notify_url: str | None
    token: str | None
    ca_file: str | None
    endpoint: str
    region: str
    profile: str
    credentials: Callable[[], tuple[str, ...]]
    cache: str | os.PathLike[str]
    stale: float | timedelta


def open(
    url: str | os.PathLike[str] | Callable[[Options], Engine] | None = None,
    *,
    ttl: float | timedelta | None = None,
    refresh_on_read: bool = False,
    durability: Literal["full", "relaxed"] = "full",
    filter_fields: Sequence[str] = (),
    timeout: float | timedelta = 30.0,
    sweep_interval: float | timedelta | None = 60.0,
    feed_retention: float | timedelta | None = timedelta(days=7),
    history: float | timedelta | None = None,
    embed: Any = None,
    search_fields: Sequence[str] | None = None,
    metric: Metric = "cosine",
    full_text: bool = True,
    on_op: Callable[[OpEvent], object] | None = None,
    clock: Clock | None = None,
    **own: Unpack[EngineOptions],
) -> Store:
    """Open a store. It connects on first use.

    The URL is `"sqlite:///agent.db"` (relative; four slashes: absolute), a plain path, `"disk:///folder"` (plain
    files), `"memory:"` (private to this store), `"memory:name"` (shared within the process), `"postgresql://…"`,
    `"redis://…"`, `"redis+cluster://…"`, `"s3://bucket/prefix"`, or `"http://…"` and `"https://…"` for a server
    (`holdall URL serve`). Some engines have options of their own (`EngineOptions`). Without a URL, the environment
    variable HOLDALL_URL is used. To use your own engine, pass a function that makes it from `holdall.engine.Options`.

    - `ttl`: how long entries live unless `put` sets another time; seconds, a timedelta, or None: for ever.
    - `refresh_on_read`: whether `get` restarts an entry's TTL by default.
    - `durability`: `"full"` (a write that returned survives a power cut) or `"relaxed"` (it survives `kill -9`).
    - `filter_fields`: fields that are filtered on often, such as `["type", "user.id"]`.
    - `timeout`: how long to wait for other processes; seconds or a timedelta.
    - `sweep_interval`: the time between two removals of expired entries; seconds, a timedelta, or None: only when
      `sweep()` is called.
    - `feed_retention`: how long deletions stay in the feed, so how old a cursor may be that `watch` continues from;
      seconds, a timedelta, or None: for ever.
    - `history`: how long the values of overwritten, deleted and expired entries are kept, for `history`, `at` and
      `rewind`; seconds or a timedelta; 0: not at all. It is a setting of the store itself, which every process obeys.
      None: as the store has it; a new store keeps none.
    - `embed`: an embedder, so that a query finds texts with the same meaning: a function of a list of texts, sync or
      async, an object with `embed_documents` and `embed_query`, or `"local"` (`holdall[local]`).
    - `search_fields`: the fields of a value that a query searches, such as `["title", "notes[*].text"]`; None: all.
    - `metric`: how vectors are compared: `"cosine"`, `"dot"` or `"l2"`.
    - `full_text`: whether a query also matches words; the index is built by the first search.
    - `on_op`: called with an `OpEvent` after every batch, for metrics and traces.
    - `clock`: for tests; a function that returns microseconds since 1970.
    """
    if durability not in ("full", "relaxed"):
        raise InvalidInput(f"durability is 'full' or 'relaxed', not {shown(durability)}")
    if isinstance(filter_fields, str) or not isinstance(filter_fields, Sequence):
        raise InvalidInput(f"filter_fields is a list of field names, not {shown(filter_fields)}")
    for field in filter_fields:
        check_field(field)
    interval = (
        None if sweep_interval is None else duration_seconds("sweep_interval", sweep_interval, or_else=" or None")
    )
    arguments.check_function("on_op", on_op)
    _check_clock(clock)
    for name, flag in (("refresh_on_read", refresh_on_read), ("full_text", full_text)):
        arguments.check_flag(name, flag)
    check_metric(metric)
    engine_options = Options(duration_seconds("timeout", timeout), durability, tuple(filter_fields), clock)
    store_options = StoreOptions(
        ttl_seconds(ttl, or_else=" or None"),
        refresh_on_read,
        on_op,
        full_text,
        WHOLE if search_fields is None else check_paths(search_fields),
        None if embed is None else EmbeddingModel(Embedder(embed), metric),
        clock,
    )
    kept = None if history is None else duration_seconds("history", history, least=0, most=None, or_else=" or None")
    retention = None
    if feed_retention is not None:
        retention = duration_seconds("feed_retention", feed_retention, least=0, most=None, or_else=" or None for ever")
    return defer_signals(
        _open, url, engine_options, cast("dict[str, Any]", own), store_options, interval, retention, kept
    )


def _open(
    url: Any,
    engine_options: Options,
    own: dict[str, Any],
    store_options: StoreOptions,
    interval: float | None,
    feed_retention: float | None,
    history: float | None,
) -> Store:
    key, make = (
        _user_engine(url, engine_options, own) if callable(url) else _target(_check_url(url), engine_options, own)
    )
    handle = get_or_make_handle(key, make, interval, feed_retention)
    if history is not None:
        try:
            handle.request_history(history)
        except Unsupported:
            handle.release()
            raise
    return Store(handle, store_options)


def _user_engine(make: Callable[[Options], Engine], engine_options: Options, own: dict[str, Any]) -> _Target:
    """Prepare the engine of a function that was passed instead of a URL."""
    _check_option_names(own, ())

    def make_checked() -> Engine:
        engine = make(engine_options)
        missing = [name for name in _ENGINE if not hasattr(engine, name)]
        if missing:
            raise InvalidInput(
                f"{shown(make)} was passed instead of a URL, so it must return an engine (holdall.engine.Engine); it"
                f" returned {shown(engine)}, which has no {', '.join(missing)}"
            )
        return engine

    return None, make_checked


def _check_url(url: Any) -> str:
    if url is None:
        url = os.environ.get("HOLDALL_URL", "")
        if not url:
            raise InvalidInput("no URL: pass one, such as 'sqlite:///agent.db', or set HOLDALL_URL")
    try:
        url = os.fspath(url)
    except TypeError:
        raise InvalidInput(f"a URL is a str or a path, not {type(url).__name__} {shown(url)}") from None
    if not isinstance(url, str) or not url or "\x00" in url:
        raise InvalidInput(f"a URL is a non-empty str without NUL, such as 'sqlite:///agent.db', not {shown(url)}")
    try:
        url.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"a URL cannot contain lone surrogates: {shown(url)}") from None
    return url


def _target(url: str, engine_options: Options, own: dict[str, Any]) -> _Target:
    """Find the engine of a URL. Returns the key under which stores share it, and a function that makes it."""
    match = _SCHEME.fullmatch(url)
    if match is None:  # a plain path; a drive letter is not a scheme
        return _sqlite(url, engine_options, own)
    scheme, rest = match[1].lower(), match[2]
    if scheme not in SCHEMES:
        raise InvalidInput(
            f"unknown URL scheme {scheme!r}; there are sqlite:, disk:, memory:, postgresql:, redis:, s3: and http:, or"
            " a plain path"
        )
    if scheme == "memory":
        return _memory(rest, engine_options, own)
    if scheme == "sqlite":
        if not rest.startswith("///"):
            raise InvalidInput(
                f"{shown(url)} has no path: write sqlite:///agent.db (relative) or sqlite:////var/agent.db"
            )
        return _sqlite(rest.removeprefix("///"), engine_options, own)
    if scheme == "disk":
        if not rest.startswith("///"):
            raise InvalidInput(f"{shown(url)} has no path: write disk:///folder (relative) or disk:////var/folder")
        return _disk(rest.removeprefix("///"), engine_options, own)
    if scheme in _POSTGRES:
        return _server("postgres", url, engine_options, own)
    if scheme in _REDIS:
        return _server("redis", f"{scheme}:{rest}", engine_options, own)
    if scheme == "s3":
        return _s3(url, engine_options, own)
    return _server("remote", url, engine_options, own)


def _memory(name: str, engine_options: Options, own: dict[str, Any]) -> _Target:
    """Stores that open the same name share its entries. The options of the first one hold."""
    _check_option_names(own, ())
    module = _import_engine("memory", None)
    return ("memory", name) if name else None, lambda: module.MemoryEngine(engine_options)


def _sqlite(path: str, engine_options: Options, own: dict[str, Any]) -> _Target:
    _check_option_names(own, ())
    if path in ("", ":memory:"):
        raise InvalidInput("for a store in memory, use 'memory:'")
    if "?" in path:
        raise InvalidInput(f"{path!r}: options are keyword arguments of open(), not part of the URL")
    path = os.path.realpath(path)
    if os.path.isdir(path):  # noqa: PTH112  # pathlib would take a tenth of the time to import holdall
        raise InvalidInput(f"{path!r} is a folder; name a file in it")
    module = _import_engine("sqlite", None)
    return ("sqlite", path, engine_options), lambda: module.SqliteEngine(path, engine_options)


def _disk(path: str, engine_options: Options, own: dict[str, Any]) -> _Target:
    if "?" in path:
        raise InvalidInput(f"{path!r}: options are keyword arguments of open(), not part of the URL")
    path = os.path.realpath(path or ".")
    if os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112  # as above
        raise InvalidInput(f"{path!r} is a file; a disk: store is a folder")
    module = _import_engine("disk", None)
    given = _make_options(module.DiskOptions, own)
    return ("disk", path, engine_options, given), lambda: module.DiskEngine(path, engine_options, given)


def _server(name: str, url: str, engine_options: Options, own: dict[str, Any]) -> _Target:
    """Find the engine of a server. The names of its classes, such as `RedisEngine`, begin with that of its folder."""
    module = _import_engine(name, name)
    make_options, make = getattr(module, f"{name.title()}Options"), getattr(module, f"{name.title()}Engine")
    given = _make_options(make_options, own)
    return (name, url, engine_options, given), lambda: make(url, engine_options, given)


def _s3(url: str, engine_options: Options, own: dict[str, Any]) -> _Target:
    module = _import_engine("s3", None)
    given = _make_options(module.S3Options, own)
    address = module.find_address(url, given)
    return ("s3", address, engine_options, given), lambda: module.S3Engine(address, engine_options, given)


def _import_engine(name: str, extra: str | None) -> Any:
    """Import an engine's module, or raise an error that names the package to install."""
    try:
        return engine_module(f"holdall.engines.{name}")
    except ModuleNotFoundError as error:
        package = f"holdall[{extra}]" if extra else "holdall"
        raise MissingExtra(
            f"this URL needs the package {error.name!r}: pip install '{package}'", name=error.name
        ) from error


def _make_options(kind: Any, own: dict[str, Any]) -> Any:
    """Make the options of an engine, after a check of their names."""
    _check_option_names(own, kind.__slots__)
    return kind(**own)


def _check_option_names(own: dict[str, Any], of_engine: Sequence[str]) -> None:
    """Refuse options that neither every store nor this engine has."""
    parameters = inspect.signature(open).parameters.values()
    common = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    check_renamed(own, [*common, *of_engine])
    for name in own:
        if name not in of_engine:
            engines = f"; this engine also has {', '.join(of_engine)}" if of_engine else ""
            raise InvalidInput(f"unknown option {name!r}; the options are {', '.join(common)}{engines}")


def _check_clock(clock: Any) -> None:
    """Check that a clock can be called, and returns a time that entries can have."""
    arguments.check_function("clock", clock)
    if clock is None:
        return
    now = clock()
    if type(now) is not int or not 0 <= now <= _LATEST:
        if inspect.iscoroutine(now):
            now.close()
        raise InvalidInput(f"clock must return an int, microseconds since 1970; it returned {shown(now)}")
    if type(clock).__hash__ is None:
        raise InvalidInput(f"clock must be hashable, because stores with one clock share an engine: {shown(clock)}")
