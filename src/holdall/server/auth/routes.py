"""The routes of tokens, and of a browser's session."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec
from starlette.responses import Response

from ...core import face_api
from ...errors import AccessDenied
from ..exchange import Call, Handler, answer, no_content
from .gate import cookie_name
from .tokens import Token

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Amount = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    """A token to make."""

    scope: list[str] = []
    allow: tuple[str, ...] = ("read",)
    expires: Annotated[float, msgspec.Meta(gt=0, lt=10**9)] | None = None
    label: str = ""
    max_requests: _Positive | None = None
    max_entries: _Amount | None = None
    max_bytes: _Amount | None = None


def require_whole_store(call: Call) -> None:
    """Raise `AccessDenied` if the token has a scope."""
    if face_api.scope_of(call.access.store):
        raise AccessDenied("this needs an admin token for the whole store")


class TokenList(msgspec.Struct):
    """Tokens without their secrets."""

    tokens: list[Token]


async def list_tokens(call: Call) -> Response:
    """List the tokens, without their secrets."""
    require_whole_store(call)
    return answer(TokenList(await call.service.gate.tokens.alist()))


class CreatedToken(Token, frozen=True, kw_only=True):
    """A token with its text, which is shown once."""

    token: str


async def create_token(call: Call) -> Response:
    """Make a token. Its text is shown once."""
    require_whole_store(call)
    given = await call.json(NewToken)
    token, text = await call.service.gate.tokens.acreate(
        scope=tuple(given.scope),
        allow=given.allow,
        expires=None if given.expires is None else timedelta(seconds=given.expires),
        label=given.label,
        max_requests=given.max_requests,
        max_entries=given.max_entries,
        max_bytes=given.max_bytes,
    )
    return answer(CreatedToken(**msgspec.structs.asdict(token), token=text), 201)


async def revoke_token(call: Call) -> Response:
    """Revoke a token."""
    require_whole_store(call)
    await call.service.gate.tokens.arevoke(call.request.path_params["id"])
    return no_content()


async def open_session(call: Call) -> Response:
    """Exchange a token for a cookie, which scripts of the page cannot read."""
    text = call.service.gate.token_text(call.request)
    response = no_content()
    if text is not None:
        response.set_cookie(
            cookie_name(call.request),
            text,
            path=call.request.scope.get("root_path") or "/",
            httponly=True,
            samesite="strict",
            secure=call.request.url.scheme == "https",
        )
    return response


async def close_session(call: Call) -> Response:
    """Delete the cookie."""
    response = no_content()
    path = call.request.scope.get("root_path") or "/"
    response.delete_cookie(cookie_name(call.request), path=path, httponly=True, samesite="strict")
    return response


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    "/v1/tokens": {"GET": (list_tokens, "admin"), "POST": (create_token, "admin")},
    "/v1/tokens/{id}": {"DELETE": (revoke_token, "admin")},
    "/v1/session": {"POST": (open_session, ""), "DELETE": (close_session, None)},
}
