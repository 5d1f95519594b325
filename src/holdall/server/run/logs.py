"""Logs as lines of JSON. An access log has no values, queries or tokens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

access_logger = logging.getLogger("holdall.access")
_LATEST = 0.1  # seconds that lines wait for others
_encode_lines = msgspec.json.Encoder().encode_lines


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", None)
        if fields is not None:
            document |= fields
        else:
            document["message"] = record.getMessage()
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(document).decode()


class _Line(msgspec.Struct):
    """A line about a request."""

    time: datetime
    level: str
    logger: str
    method: str
    route: str
    status: int
    ms: float
    token: str | None
    client: str | None


class AccessLog:
    """Writes a line about each request. With a stream, lines are written to it together, at most 0.1 s late.

    Without one, each is a record of the logger `holdall.access`, which takes longer.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._lines: list[_Line] = []

    def add(self, method: str, route: str, status: int, seconds: float, token: str | None, client: str | None) -> None:
        """Write a line about a request: the route and not the path, which may name entries."""
        if not access_logger.isEnabledFor(logging.INFO):
            return
        if self._stream is None:
            log_request(method, route, status, seconds, token, client)
            return
        if not self._lines:
            asyncio.get_running_loop().call_later(_LATEST, self.write)
        now, ms = datetime.now(UTC), round(seconds * 1000, 3)
        self._lines.append(_Line(now, "info", access_logger.name, method, route, status, ms, token, client))

    def write(self) -> None:
        """Write the lines that wait."""
        lines, self._lines = self._lines, []
        if lines and self._stream is not None:
            with contextlib.suppress(OSError, ValueError):  # as `logging` does: a closed stream must not end the server
                self._stream.write(_encode_lines(lines).decode())
                self._stream.flush()


def log_request(method: str, route: str, status: int, seconds: float, token: str | None, client: str | None) -> None:
    """Log a record about a request."""
    fields = {
        "method": method,
        "route": route,
        "status": status,
        "ms": round(seconds * 1000, 3),
        "token": token,
        "client": client,
    }
    access_logger.info("%s %s %s", method, route, status, extra={"fields": fields})


def access_log_config(level: str = "INFO") -> dict[str, Any]:
    """Return the configuration of logging for a server."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonFormatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},  # of other libraries
        "loggers": {
            "holdall": {"handlers": ["stderr"], "level": level, "propagate": False},
            "uvicorn": {"handlers": ["stderr"], "level": level, "propagate": False},
        },
    }
