"""Errors as `application/problem+json`: which status each has."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from .. import errors, wire
from ..errors import HoldallError

#: The first match counts.
_STATUS: tuple[tuple[type[HoldallError], int], ...] = (
    (errors.CursorExpired, 410),
    (errors.HistoryGone, 410),
    (errors.InvalidInput, 400),
    (errors.LeaseHeld, 409),
    (errors.LeaseLost, 409),
    (errors.Conflict, 412),
    (errors.NotFound, 404),
    (errors.IsADirectory, 409),
    (errors.NotADirectory, 409),
    (errors.AlreadyExists, 409),
    (errors.NotText, 422),
    (errors.NoMatch, 422),
    (errors.AmbiguousMatch, 422),
    (errors.OutcomeUnknown, 504),
    (errors.Unavailable, 503),
    (errors.AccessDenied, 403),
    (errors.QuotaExceeded, 507),
    (errors.EmbeddingError, 502),
    (errors.Unsupported, 501),
    (errors.MissingExtra, 501),
    (errors.StoreClosed, 503),
)


class HttpError(HoldallError):
    """A request that the server refuses before it asks the store."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None, title: str = "") -> None:
        super().__init__(detail)
        self.status, self.headers, self.title = status, headers or {}, title or "InvalidInput"


def status_of(error: HoldallError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, HttpError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def to_response(error: HoldallError) -> Response:
    """The answer to a request that failed."""
    status = status_of(error)
    document: dict[str, Any] = {"type": "about:blank", "status": status, **wire.to_problem(error)}
    headers: dict[str, str] = {}
    if isinstance(error, HttpError):
        document["title"] = error.title
        headers |= error.headers
    return Response(msgspec.json.encode(document), status, headers, "application/problem+json")
