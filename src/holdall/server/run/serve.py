"""Runs the app with uvicorn, in one process or in several workers. The command `holdall URL serve` calls it."""

from __future__ import annotations

import ipaddress
import logging
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from uvicorn.supervisors import multiprocess

import holdall

from ...core import face_api
from ...errors import InvalidInput, shown
from ..app import app
from ..auth.tokens import Tokens
from ..exchange import Limits
from .logs import AccessLog, access_log_config
from .protocol import TimeLimitedProtocol

_SETTINGS = "HOLDALL_SERVE"  # the environment variable through which workers receive their settings


class Settings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What `serve` is started with. It is passed on to the workers, so it is plain data."""

    url: str
    host: str = "127.0.0.1"
    port: int = 8484
    workers: int = 1
    auth: str = "tokens"
    insecure: bool = False
    hosts: list[str] = []
    origins: list[str] = []
    tls_cert: str | None = None
    tls_key: str | None = None
    options: dict[str, Any] = {}  # of `holdall.open`
    limits: dict[str, Any] = {}
    secret: str | None = None  # accepted as a token with every right, as long as the server runs


def load_settings(path: Path, **given: Any) -> Settings:
    """Read settings from a TOML file. Those of the command line take precedence, each option on its own."""
    try:
        known = tomllib.loads(path.read_text())
        if isinstance(known.get("options"), dict):
            given["options"] = known["options"] | given.get("options", {})
        return msgspec.convert({**known, **given}, Settings)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"{path}: {error}") from None


class _Worker(multiprocess.Process):
    """A worker whose death is noticed at once, and not after the time that a busy worker has to answer.

    uvicorn's own keeps both ends of its pipe open. So it waits for the answer of a worker that was killed meanwhile,
    and starts no other one until then.
    """

    def start(self) -> None:
        super().start()
        self.child_conn.close()  # the worker has its own

    def is_alive(self, timeout: float = 5) -> bool:
        try:
            return super().is_alive(timeout)
        except (EOFError, OSError):
            return False


def run(settings: Settings, log_level: str = "INFO") -> None:
    """Serve a store until the process is stopped."""
    _check(settings)
    multiprocess.Process = _Worker  # type: ignore[misc]  # uvicorn has no option for it
    if settings.auth == "tokens" and settings.secret is None:
        _print_first_token(settings)
    folder = tempfile.mkdtemp(prefix="holdall-metrics-")
    os.environ["HOLDALL_METRICS"] = folder
    os.environ["HOLDALL_WORKERS"] = str(settings.workers)
    os.environ[_SETTINGS] = msgspec.json.encode(settings).decode()
    try:
        uvicorn.run(
            "holdall.server.run.serve:make_app",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            http=TimeLimitedProtocol,
            log_config=access_log_config(log_level),
            access_log=False,  # the app writes its own, without queries
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=10,
            timeout_worker_healthcheck=60,  # a busy machine may take more than uvicorn's 5 s to start a worker
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_app() -> Any:
    """Make the app of one worker, from the settings in its environment."""
    settings = msgspec.json.decode(os.environ[_SETTINGS], type=Settings)
    TimeLimitedProtocol.head_timeout = _limits(settings).header_timeout
    face_api.trust_handler(uvicorn.Server.handle_exit)  # it only sets flags
    store = holdall.open(settings.url or None, **settings.options)
    made = app(
        store,
        auth=settings.auth,  # type: ignore[arg-type]  # checked by `run`
        hosts=[*settings.hosts, settings.host],
        origins=settings.origins,
        limits=_limits(settings),
        closes_store=True,
    )
    made.state.service.gate.secret = settings.secret
    made.state.service.access_log = AccessLog(sys.stderr)
    return made


def _check(settings: Settings) -> None:
    if settings.auth not in ("tokens", "none"):
        raise InvalidInput(f"--auth is 'tokens' or 'none', not {shown(settings.auth)}")
    if not 1 <= settings.port <= 65535:  # uvicorn would listen on another one
        raise InvalidInput(f"--port is a number from 1 to 65535, not {settings.port}")
    if settings.workers < 1:
        raise InvalidInput("--workers is at least 1")
    if settings.url.startswith("memory:") and settings.workers > 1:
        raise InvalidInput("each worker would have a memory: store of its own; use one worker, or a file")
    if settings.auth == "none" and not _is_loopback(settings.host) and not settings.insecure:
        raise InvalidInput(
            f"--auth none lets everybody who reaches {settings.host} do everything; use tokens, or add --insecure"
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise InvalidInput("--tls-cert and --tls-key belong together")
    _limits(settings)


def _limits(settings: Settings) -> Limits:
    try:
        return msgspec.convert(settings.limits, Limits)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"limits: {error}") from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _print_first_token(settings: Settings) -> None:
    """Make an admin token, if the store has never had a token, and print it."""
    if settings.url.startswith("memory:"):
        sys.stderr.write("holdall: a memory: store keeps no tokens; serve it with --auth none\n")
        return
    options = {name: value for name, value in settings.options.items() if name != "embed"}
    with holdall.open(settings.url or None, **options) as store:
        text = Tokens(store).ensure_admin()
    if text is not None:
        sys.stdout.write(f"The admin token of this store, which is shown only now:\n\n    {text}\n\n")
        sys.stdout.flush()
    logging.getLogger("holdall.server").info("serving on %s:%s", settings.host, settings.port)
