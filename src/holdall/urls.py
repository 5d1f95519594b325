"""From a URL to a store. The only place that knows which engines exist, and it imports them on demand."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast

from . import keys
from .embed import Embedder, Metric, check_metric
from .embedding import Embedding
from .engine import Clock, Engine, Options
from .errors import InvalidInput, MissingExtra, shown
from .fields import WHOLE, check_paths
from .filters import check_field
from .ops import Forget
from .settings import OpEvent, Settings
from .sharing import engine_module, share
from .store import Store
from .values import ttl_seconds

_LATEST = 253_402_300_799_999_999  # the end of the year 9999, in microseconds
_FOR_EVER = 1e12  # seconds

_Target: TypeAlias = tuple[Hashable, Callable[[], Engine]]
_ENGINE = tuple(name for name in vars(Engine) if not name.startswith("_"))
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)


class EngineOptions(TypedDict, total=False):
    """Options that only some engines take. Disk: `volume`. Redis: `prefix` and the pool's. PostgreSQL: all others."""

    volume: tuple[str, ...]
    prefix: str
    schema: str
    pool_min: int
    pool_max: int
    pool_timeout: float
    prepare: bool | None
    connection: Any
    notify_url: str | None


def open(
    url: str | os.PathLike[str] | Callable[[Options], Engine] | None = None,
    *,
    ttl: float | timedelta | None = None,
    refresh_on_read: bool = False,
    durability: Literal["full", "relaxed"] = "full",
    indexed: Sequence[str] = (),
    timeout: float = 30.0,
    sweep_interval: float | None = 60.0,
    history: timedelta | int | None = timedelta(days=7),
    embed: Any = None,
    fields: Sequence[str] | None = None,
    metric: Metric = "cosine",
    full_text: bool = True,
    on_op: Callable[[OpEvent], object] | None = None,
    clock: Clock | None = None,
    **own: Unpack[EngineOptions],
) -> Store:
    """Open a store; it connects on first use.

    `"sqlite:///agent.db"` (relative; four slashes: absolute), a plain path, `"disk:///folder"` (plain files),
    `"memory:"` (private to this store) or `"memory:name"` (shared within the process); `"postgresql://…"`,
    `"redis://…"` or `"redis+cluster://…"`. Some have options of their own (`EngineOptions`).
    Without a URL, the environment variable HOLDALL_URL says which. An engine of your own is given as a function that
    makes it from the `holdall.engine.Options` below.

    - `ttl`: how long entries live unless a put says otherwise; seconds, a timedelta, or None: for ever.
    - `refresh_on_read`: whether `get` starts an entry's TTL anew by default.
    - `durability`: `"full"` (a write that returned survives a power cut) or `"relaxed"` (it survives `kill -9`).
    - `indexed`: fields that are filtered on often, such as `["type", "user.id"]`.
    - `timeout`: seconds to wait for other processes.
    - `sweep_interval`: seconds between two clearings of expired entries; None: only when `sweep()` is called.
    - `history`: how long it is known what was deleted, for those who watch since a cursor: a timedelta, a number of
      deleted entries, or None: for ever.
    - `embed`: what makes vectors of texts, so that a query finds what means the same: a function of a list of texts,
      sync or async, an object with `embed_documents` and `embed_query`, or `"local"` (`holdall[local]`).
    - `fields`: which texts of a value a query finds, such as `["title", "notes[*].text"]`; None: all.
    - `metric`: how vectors are compared: `"cosine"`, `"dot"` or `"l2"`.
    - `full_text`: whether a query also finds words; their index is made when somebody first searches.
    - `on_op`: called with an `OpEvent` after every batch, for metrics and traces.
    - `clock`: for tests; gives microseconds since 1970.
    """
    if durability not in ("full", "relaxed"):
        raise InvalidInput(f"durability is 'full' or 'relaxed', not {shown(durability)}")
    if isinstance(indexed, str) or not isinstance(indexed, Sequence):
        raise InvalidInput(f"indexed is a list of field names, not {shown(indexed)}")
    for field in indexed:
        check_field(field)
    _check_seconds("timeout", timeout)
    if sweep_interval is not None:
        _check_seconds("sweep_interval", sweep_interval)
    keys.check_function("on_op", on_op)
    _check_clock(clock)
    for name, flag in (("refresh_on_read", refresh_on_read), ("full_text", full_text)):
        keys.check_flag(name, flag)
    check_metric(metric)
    options = Options(float(timeout), durability, tuple(indexed), clock)
    settings = Settings(
        ttl_seconds(ttl),
        refresh_on_read,
        on_op,
        full_text,
        WHOLE if fields is None else check_paths(fields),
        None if embed is None else Embedding(Embedder(embed), metric),
    )
    key, make = (
        (None, lambda: _checked_engine(url, options))
        if callable(url)
        else _target(_url(url), options, cast("dict[str, Any]", own))
    )
    if own:
        raise InvalidInput(f"unknown option {min(own)!r}; the options are {', '.join(_option_names())}")
    return Store(share(key, make, sweep_interval, _forgetting(history)), settings)


def _checked_engine(make: Callable[[Options], Engine], options: Options) -> Engine:
    engine = make(options)
    missing = [name for name in _ENGINE if not hasattr(engine, name)]
    if missing:
        raise InvalidInput(
            f"{shown(make)} was given in place of a URL, so it must make an engine (holdall.engine.Engine); it made"
            f" {shown(engine)}, which has no {', '.join(missing)}"
        )
    return engine


def _url(url: Any) -> str:
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


def _target(url: str, options: Options, own: dict[str, Any]) -> _Target:
    """The key under which stores share an engine, and how to make it. Takes the engine's own options out of `own`."""
    match = _SCHEME.fullmatch(url)
    if match is None:  # a plain path; a drive letter is not a scheme
        return _sqlite(url, options)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "memory":
        return _memory(rest, options)
    if scheme == "sqlite":
        if not rest.startswith("///"):
            raise InvalidInput(
                f"{shown(url)} has no path: write sqlite:///agent.db (relative) or sqlite:////var/agent.db"
            )
        return _sqlite(rest.removeprefix("///"), options)
    if scheme == "disk":
        if not rest.startswith("///"):
            raise InvalidInput(f"{shown(url)} has no path: write disk:///folder (relative) or disk:////var/folder")
        return _disk(rest.removeprefix("///"), options, own)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, options, own)
    if scheme in ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"):
        return _redis(f"{scheme}:{rest}", options, own)
    raise InvalidInput(
        f"unknown URL scheme {scheme!r}; there are sqlite:, disk:, memory:, postgresql: and redis:, or a plain path"
    )


def _memory(name: str, options: Options) -> _Target:
    """All that open one name share its entries; the options of the first hold."""
    module = _module("memory", None)
    return ("memory", name) if name else None, lambda: module.MemoryEngine(options)


def _sqlite(path: str, options: Options) -> _Target:
    if path in ("", ":memory:"):
        raise InvalidInput("for a store in memory, use 'memory:'")
    if "?" in path:
        raise InvalidInput(f"{path!r}: options are keyword arguments of open(), not part of the URL")
    path = os.path.realpath(path)
    if os.path.isdir(path):  # noqa: PTH112  # pathlib would take a tenth of the time to import holdall
        raise InvalidInput(f"{path!r} is a folder; name a file in it")
    module = _module("sqlite", None)
    return ("sqlite", path, options), lambda: module.SqliteEngine(path, options)


def _disk(path: str, options: Options, own: dict[str, Any]) -> _Target:
    if "?" in path:
        raise InvalidInput(f"{path!r}: options are keyword arguments of open(), not part of the URL")
    path = os.path.realpath(path or ".")
    if os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112  # as above
        raise InvalidInput(f"{path!r} is a file; a disk: store is a folder")
    module = _module("disk", None)
    given = module.DiskOptions(**({"volume": own.pop("volume")} if "volume" in own else {}))
    return ("disk", path, options, given), lambda: module.DiskEngine(path, options, given)


def _postgres(url: str, options: Options, own: dict[str, Any]) -> _Target:
    module = _module("postgres", "postgres")
    given = module.PostgresOptions(
        **{name: own.pop(name) for name in list(own) if name in module.PostgresOptions.__slots__}
    )
    return ("postgres", url, options, given), lambda: module.PostgresEngine(url, options, given)


def _redis(url: str, options: Options, own: dict[str, Any]) -> _Target:
    module = _module("redis", "redis")
    given = module.RedisOptions(**{name: own.pop(name) for name in list(own) if name in module.RedisOptions.__slots__})
    return ("redis", url, options, given), lambda: module.RedisEngine(url, options, given)


def _module(name: str, extra: str | None) -> Any:
    """An engine's module, imported now, or an error that says what to install."""
    try:
        return engine_module(f"{__package__}.engines.{name}")
    except ModuleNotFoundError as error:
        package = f"holdall[{extra}]" if extra else "holdall"
        raise MissingExtra(
            f"this URL needs the package {error.name!r}: pip install '{package}'", name=error.name
        ) from error


def _forgetting(history: Any) -> Forget | None:
    """What is done to a store whose history is kept only so far."""
    if history is None:
        return None
    if isinstance(history, timedelta) and history > timedelta(0):
        return Forget(age=min(history.total_seconds(), _FOR_EVER))
    if type(history) is int and 0 <= history < 2**62:
        return Forget(keep=history)
    raise InvalidInput(f"history is a timedelta, a number of deleted entries, or None, not {shown(history)}")


def _check_clock(clock: Any) -> None:
    """That a clock can be read, and tells a time that entries can have."""
    keys.check_function("clock", clock)
    if clock is None:
        return
    now = clock()
    if type(now) is not int or not 0 <= now <= _LATEST:
        if inspect.iscoroutine(now):
            now.close()
        raise InvalidInput(f"clock gives an int, the microseconds since 1970 until now, not {shown(now)}")
    if type(clock).__hash__ is None:
        raise InvalidInput(f"clock must be hashable, as stores with one clock share an engine; {shown(clock)} is not")


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise InvalidInput(f"{name} is a number of seconds, more than 0, not {shown(value)}")


def _option_names() -> list[str]:
    kept = inspect.signature(open).parameters.values()
    return [parameter.name for parameter in kept if parameter.kind is parameter.KEYWORD_ONLY]
