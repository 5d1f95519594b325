"""The gate: checks the token of each request, and makes an `Access` of it, with a store that is scoped to the token.

The record of a token is read again after half a second, so a token that was revoked is refused within a second in
every worker. Host and Origin are checked here, too: a page of another site must not use a server on this machine.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import time
from collections import OrderedDict
from collections.abc import Collection
from datetime import UTC, datetime

import msgspec
from starlette.requests import HTTPConnection

from ... import Store
from ...core import face_api
from ...errors import AccessDenied
from ..problems import HttpError
from .quotas import RequestRates, ScopeQuota
from .tokens import ID_IN_TEXT, RIGHTS, Token, TokenRecord, Tokens, is_secret_of, parse

_FRESH = 0.5  # seconds for which the record of a token is used without reading it again
_MOST_KNOWN = 10_000
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Access:
    """What the sender of a request may do: a store that is scoped to its token, and the token's rights."""

    __slots__ = ("_rights", "store", "token")

    def __init__(self, store: Store, token: Token) -> None:
        self.store, self.token = store, token
        self._rights = frozenset(token.allow)

    def has(self, right: str) -> bool:
        """Whether the token has a right."""
        return right in self._rights

    def require(self, right: str) -> None:
        """Raise `AccessDenied` unless the token has a right."""
        if right not in self._rights:
            raise AccessDenied(f"this token does not allow {right!r}; it allows {', '.join(self.token.allow)}")


class _Known(msgspec.Struct):
    """A token's record, when that was read, the access that it gives, and the text that was verified against it.

    While the record is fresh, texts are compared: to hash each of them takes longer.
    """

    read_at: float
    record: TokenRecord | None
    access: Access | None
    text: bytes = b""


class Gate:
    """Checks tokens, hosts and origins for one app."""

    def __init__(
        self, store: Store, *, uses_tokens: bool, hosts: Collection[str] | None, origins: Collection[str]
    ) -> None:
        self.tokens = Tokens(store)
        self.rates = RequestRates()
        self._store = store
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origins)
        self._machine = socket.gethostname().lower()
        self._everything = Access(store, Token(id="none", allow=RIGHTS, created_at=datetime.now(UTC)))
        self._open = None if uses_tokens else self._everything
        self.secret: str | None = None  # a text that is accepted as a token with every right, and is not stored

    async def admit(self, request: HTTPConnection) -> Access:
        """Return what the sender of a request may do; refuse it (401) without a valid token."""
        if self._open is not None:
            return self._open
        text = self.token_text(request)
        if text is None:
            raise _unauthenticated("this needs a token: send it as 'Authorization: Bearer TOKEN' or as x-api-key")
        return await self.admit_token(text)

    async def admit_token(self, text: str) -> Access:
        """Return what the holder of a token may do."""
        if self.secret is not None and hmac.compare_digest(text.encode(), self.secret.encode()):
            return self._everything
        given = text.encode()
        known = self._recall(text[ID_IN_TEXT])
        if known is None or not known.text or not hmac.compare_digest(known.text, given):
            known = await self._verify(text)
            known.text = given
        assert known.record is not None
        assert known.access is not None
        _check_expiry(known.record)
        if known.record.max_requests is not None:
            self.rates.count_request(known.record)
        return known.access

    async def _verify(self, text: str) -> _Known:
        """Check the text of a token."""
        parsed = parse(text)
        if parsed is None:
            raise _unauthenticated("this is not a token of holdall; make one with 'holdall URL token create'")
        identity, secret = parsed
        known = self._recall(identity) or await self._find(identity)
        if known.record is None or known.access is None or not is_secret_of(known.record, secret):
            raise _unauthenticated("the token is unknown, or it was revoked")
        return known

    async def check_again(self, access: Access) -> None:
        """Raise an error if the token of a stream was revoked, or has expired."""
        if access is self._everything:
            return
        known = self._recall(access.token.id) or await self._find(access.token.id)
        if known.record is None or known.access is None or known.access.token.allow != access.token.allow:
            raise _unauthenticated("the token was revoked")
        _check_expiry(known.record)

    def _recall(self, identity: str) -> _Known | None:
        """Return what is known of a token if its record was read a moment ago."""
        known = self._known.get(identity)
        return known if known is not None and time.monotonic() - known.read_at < _FRESH else None

    async def _find(self, identity: str) -> _Known:
        now, known = time.monotonic(), self._known.get(identity)
        record = await self.tokens.afind(identity)
        access = known.access if known is not None and known.record == record else None
        if access is None and record is not None:
            store = self._store.scoped(record.scope) if record.scope else self._store
            if record.max_entries is not None or record.max_bytes is not None:
                store = face_api.guarded(store, ScopeQuota(self._store, store, record))
            access = Access(store.acting(f"token {record.label}") if record.label else store, record)
        found = self._known[identity] = _Known(now, record, access)
        self._known.move_to_end(identity)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return found

    def token_text(self, request: HTTPConnection) -> str | None:
        """The text of the token that a request carries, in a header or in the cookie."""
        headers = request.headers
        kind, _, text = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return text.strip()
        if "x-api-key" in headers:
            return headers["x-api-key"]
        cookie = request.cookies.get(cookie_name(request))
        if cookie is not None and request.scope.get("method") not in _SAFE_METHODS and not self._is_same_site(request):
            raise AccessDenied("a request with a cookie that changes something must come from a page of this server")
        return cookie

    # Hosts and origins -----------------------------------------------------------------------------------------------

    def check_host(self, request: HTTPConnection) -> None:
        """Refuse a request for a host that this server is not, and one from a page of another site.

        Refuse one with two lengths, too: a proxy may have taken a part of its body for another request. `holdall serve`
        refuses it before, but the server of an app that is mounted may not.
        """
        headers = request.headers
        if "transfer-encoding" in headers and "content-length" in headers:
            detail = "a request has a content-length or a transfer-encoding, not both"
            raise HttpError(400, detail, {"Connection": "close"})
        host = headers.get("host", "")
        if not self._is_our_host(_without_port(host)):
            raise HttpError(421, f"this server is not {host[:100]!r}: name the host with --allow-host")
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins and not _is_origin_of(origin, host):
            raise HttpError(
                403, f"pages of {origin[:100]!r} may not use this server: allow them with --cors", title="AccessDenied"
            )

    def allows_origin(self, origin: str | None) -> bool:
        """Whether pages of another site may read the answer (CORS)."""
        return origin is not None and origin in self._origins

    def _is_our_host(self, name: str) -> bool:
        if self._hosts is not None and ("*" in self._hosts or name in self._hosts):
            return True
        if name in _LOOPBACK or name == self._machine:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # a page of another site is called by a name, not by an IP address

    def _is_same_site(self, request: HTTPConnection) -> bool:
        origin = request.headers.get("origin")
        if origin is not None:
            return _is_origin_of(origin, request.headers.get("host", ""))
        return request.headers.get("sec-fetch-site", "same-origin") == "same-origin"


def cookie_name(request: HTTPConnection) -> str:
    """The cookie for which a browser exchanges its token. It names the port: browsers share cookies between ports."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"holdall_session_{port}" if port.isascii() and port.isdigit() else "holdall_session"


def _check_expiry(token: Token) -> None:
    if token.expires_at is not None and token.expires_at <= datetime.now(UTC):
        raise _unauthenticated("the token has expired")


def _unauthenticated(message: str) -> HttpError:
    return HttpError(401, message, {"WWW-Authenticate": 'Bearer realm="holdall"'}, "AccessDenied")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_origin_of(origin: str, host: str) -> bool:
    scheme, separator, rest = origin.partition("://")
    return bool(separator) and scheme in ("http", "https") and rest.lower() == host.lower()
