"""Logs as lines of JSON. An access log has no values, queries or tokens."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

access_logger = logging.getLogger("holdall.access")


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


def log_request(method: str, route: str, status: int, seconds: float, token: str | None, client: str | None) -> None:
    """Write a line about a request: the route and not the path, which may name entries."""
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
    """The configuration of logging for a server."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonFormatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}},
        "loggers": {
            "holdall": {"handlers": ["stderr"], "level": level, "propagate": False},
            "uvicorn": {"handlers": ["stderr"], "level": level, "propagate": False},
        },
    }
