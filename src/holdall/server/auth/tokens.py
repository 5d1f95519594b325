"""Tokens: who may use a store through the server, and what of it.

A token is a text, `hold_ID_SECRET`, that is shown once. The store keeps its SHA-256 under the reserved label, with the
scope, the rights and the quota. `Tokens` makes, lists and revokes them; the server checks them (`gate.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from ... import ABSENT, Store, ops
from ...core import face_api
from ...core.face_api import StoreProgram, async_method, sync_method
from ...errors import Conflict, InvalidInput, NotFound, shown
from ...ops import Namespace

T = TypeVar("T")

#: What a token may allow.
RIGHTS = ("read", "write", "watch", "lease", "history", "erase", "admin")
_HOME = face_api.Reserved(("tokens",))
#: Where the id is in the text of a token.
ID_IN_TEXT = slice(5, 21)
_TEXT = re.compile(r"hold_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_MOST_LABEL = 200


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret.

    `max_requests` is how many requests a second it may send. `max_entries` and `max_bytes` are how much its scope may
    hold: what would add more is refused. None: no limit.
    """

    id: str
    scope: Namespace = ()
    allow: tuple[str, ...] = ("read",)
    label: str = ""
    created_at: datetime
    expires_at: datetime | None = None
    max_requests: float | None = None  # a second
    max_entries: int | None = None
    max_bytes: int | None = None

    def to_document(self) -> dict[str, Any]:
        """The token as a JSON document."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


class TokenRecord(Token, frozen=True, kw_only=True):
    """A token as it is stored."""

    hash: str


class Tokens:
    """The tokens of a store, which must not be scoped. Each method has an async form with an "a" before its name."""

    def __init__(self, store: Store) -> None:
        if face_api.scope_of(store):
            raise InvalidInput("tokens belong to the whole store, not to a scope of it")
        self._store = store

    def _create(
        self,
        *,
        scope: Namespace = (),
        allow: Iterable[str] = ("read", "write", "watch", "lease", "history"),
        expires: timedelta | None = None,
        label: str = "",
        max_requests: float | None = None,
        max_entries: int | None = None,
        max_bytes: int | None = None,
    ) -> StoreProgram[tuple[Token, str]]:
        """Make a token. Returns it and its text, which is not stored and cannot be read again."""
        rights = _check_rights(allow)
        face_api.check_namespace(scope, empty=True)
        if not isinstance(label, str) or len(label) > _MOST_LABEL:
            raise InvalidInput(f"a label is a text of at most {_MOST_LABEL} characters, not {shown(label)}")
        if expires is not None and (not isinstance(expires, timedelta) or expires <= timedelta(0)):
            raise InvalidInput(f"expires is a timedelta after which the token ends, not {shown(expires)}")
        is_number = isinstance(max_requests, int | float) and not isinstance(max_requests, bool)
        if max_requests is not None and not (is_number and max_requests > 0):
            raise InvalidInput(f"max_requests is a number above 0, or None, not {shown(max_requests)}")
        for name, most in (("max_entries", max_entries), ("max_bytes", max_bytes)):
            if most is not None:
                face_api.check_count(name, most, most=2**62)
        now = datetime.now(UTC)
        try:
            expires_at = None if expires is None else now + expires
        except OverflowError:
            raise InvalidInput(f"expires is a timedelta that ends before the year 10000, not {expires}") from None
        secret, identity = secrets.token_urlsafe(32), secrets.token_hex(8)
        record = TokenRecord(
            id=identity,
            scope=tuple(scope),
            allow=rights,
            label=label,
            created_at=now,
            expires_at=expires_at,
            max_requests=max_requests,
            max_entries=max_entries,
            max_bytes=max_bytes,
            hash=_hash(secret),
        )
        value = msgspec.to_builtins(record)
        yield [ops.Put(_HOME, identity, value, None, ABSENT, search_fields=False)]
        return _public(record), f"hold_{identity}_{secret}"

    create = sync_method(_create)
    acreate = async_method(_create)

    def _list(self) -> StoreProgram[list[Token]]:
        """List the tokens, also those that have expired, by their id."""
        entries = yield from face_api.scan_reserved(self._store, "tokens")
        return [_public(_read(entry.value)) for entry in entries]

    list = sync_method(_list)
    alist = async_method(_list)

    def _revoke(self, identity: str) -> StoreProgram[None]:
        """Revoke a token. All workers of a server refuse it within a second."""
        if not (yield [ops.Delete(_HOME, face_api.check_key(identity))])[0]:
            raise NotFound(f"there is no token {shown(identity)}")

    revoke = sync_method(_revoke)
    arevoke = async_method(_revoke)

    def _find(self, identity: str) -> StoreProgram[TokenRecord | None]:
        entry = (yield [ops.Get(_HOME, identity)])[0]
        return None if entry is None else _read(entry.value)

    afind = async_method(_find)

    def _ensure_admin(self) -> StoreProgram[str | None]:
        """Make an admin token if there is no token at all, and return its text. For the first start of a server.

        Two servers that start at once make one token: the first writes an entry that the second finds.
        """
        if (yield from self._list()):
            return None
        token, text = yield from self._create(allow=RIGHTS, label="first")
        first = ops.Put(face_api.Reserved(("tokens-begun",)), "first", {"id": token.id}, None, ABSENT)
        try:
            yield [first]
        except Conflict:
            yield from self._revoke(token.id)
            return None
        return text

    ensure_admin = sync_method(_ensure_admin)

    def _run(self, program: StoreProgram[T]) -> T:
        return face_api.run(self._store, program)

    def _arun(self, program: StoreProgram[T]) -> Coroutine[Any, Any, T]:
        return face_api.arun(self._store, program)


def parse(text: str) -> tuple[str, str] | None:
    """Split the text of a token into its id and its secret; None if it is not one."""
    match = _TEXT.fullmatch(text)
    return None if match is None else (match[1], match[2])


def is_secret_of(record: TokenRecord, secret: str) -> bool:
    """Whether this is the secret of a token, compared in constant time."""
    return hmac.compare_digest(record.hash, _hash(secret))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _check_rights(allow: Iterable[str]) -> tuple[str, ...]:
    given = set(allow)
    unknown = sorted(given - set(RIGHTS))
    if unknown or not given or isinstance(allow, str):
        raise InvalidInput(f"allow= is a list of rights, of {', '.join(RIGHTS)}; not {shown(unknown or allow)}")
    return tuple(right for right in RIGHTS if right in given)


def _read(value: dict[str, Any]) -> TokenRecord:
    return msgspec.convert(value, TokenRecord)


def _public(record: TokenRecord) -> Token:
    return Token(**{name: getattr(record, name) for name in Token.__struct_fields__})
