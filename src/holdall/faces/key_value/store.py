"""py-key-value's stores on any engine: `HoldallKeyValue` implements `AsyncKeyValue`.

    mcp = FastMCP("notes", session_state_store=HoldallKeyValue("agent.db"))

A collection is a namespace below the store's own, and a value is an item in it: nothing is wrapped or encoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

try:
    from key_value.aio._utils.managed_entry import ManagedEntry
    from key_value.aio.errors import InvalidKeyError, SerializationError
    from key_value.aio.stores.base import (
        BaseContextManagerStore,
        BaseCullStore,
        BaseDestroyCollectionStore,
        BaseDestroyStore,
        BaseEnumerateCollectionsStore,
        BaseEnumerateKeysStore,
    )
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a store for py-key-value", "key-value") from missing

from ... import Entry, Store, ops
from ...core import face_api
from ...core.face_api import Backdate
from ...errors import InvalidInput, InvalidValue
from ...ops import Namespace
from ..base import open_store

_LONGEST_COLLECTION, _LONGEST_KEY = 500, 1500  # bytes; the store's own limits are a little higher
_MANY = 10_000  # the most keys or collections in a list, as in py-key-value's own stores


class HoldallKeyValue(
    BaseDestroyStore,
    BaseDestroyCollectionStore,
    BaseEnumerateCollectionsStore,
    BaseEnumerateKeysStore,
    BaseCullStore,
    BaseContextManagerStore,
):
    """The collections below one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given. Writes of several keys are one transaction. Very long names are kept by their
    SHA-256.
    """

    def __init__(
        self,
        store_or_url: Any = None,
        *,
        namespace: Namespace = ("key-value",),
        default_collection: str | None = None,
        **options: Any,
    ) -> None:
        store, is_ours = open_store(store_or_url, **options)
        #: The `holdall.Store` that this face runs on.
        self.store: Store = store
        self._namespace = face_api.check_namespace(namespace)
        super().__init__(default_collection=default_collection, stable_api=True, client_provided_by_user=not is_ours)
        if is_ours:
            self._exit_stack.push_async_callback(store.aclose)

    def __repr__(self) -> str:
        return f"<HoldallKeyValue of {self._namespace!r} in {self.store!r}>"

    async def _get_managed_entry(self, *, collection: str, key: str) -> ManagedEntry | None:
        return (await self._get_managed_entries(collection=collection, keys=[key]))[0]

    async def _get_managed_entries(self, *, collection: str, keys: Sequence[str]) -> list[ManagedEntry | None]:
        inside = self._inside(collection)
        with _translate():
            found: list[Entry | None] = await self.store.aexecute(
                [ops.Get(inside, _shorten(key, _LONGEST_KEY)) for key in keys]
            )
        return [_describe(entry) for entry in found]

    async def _put_managed_entry(self, *, collection: str, key: str, managed_entry: ManagedEntry) -> None:
        await self._put(collection, [key], [managed_entry])

    async def _put_managed_entries(
        self,
        *,
        collection: str,
        keys: Sequence[str],
        managed_entries: Sequence[ManagedEntry],
        ttl: float | None,  # the entries have the expiry
        created_at: datetime,
        expires_at: datetime | None,
    ) -> None:
        await self._put(collection, keys, managed_entries)

    async def _put(self, collection: str, keys: Sequence[str], entries: Sequence[ManagedEntry]) -> None:
        inside = self._inside(collection)
        batch: list[ops.PointOp] = []
        for name, entry in zip(keys, entries, strict=True):
            key = _shorten(name, _LONGEST_KEY)
            entry.value_as_json  # noqa: B018  # raises SerializationError: we would store a datetime as text
            batch.append(ops.Put(inside, key, entry.value_as_dict, None))
            if entry.expires_at is not None:
                batch.append(Backdate(inside, key, expires_at=entry.expires_at))
        with _translate():
            await face_api.arun(self.store, face_api.execute(self.store, batch))

    async def _delete_managed_entry(self, *, key: str, collection: str) -> bool:
        return bool(await self._delete_managed_entries(keys=[key], collection=collection))

    async def _delete_managed_entries(self, *, keys: Sequence[str], collection: str) -> int:
        inside = self._inside(collection)
        with _translate():
            return sum(await self.store.aexecute([ops.Delete(inside, _shorten(key, _LONGEST_KEY)) for key in keys]))

    async def _get_collection_keys(self, *, collection: str, limit: int | None = None) -> list[str]:
        with _translate():
            page = await self.store.asearch(self._inside(collection), recursive=False, limit=min(limit or _MANY, _MANY))
        return sorted(hit.key for hit in page)

    async def _get_collection_names(self, *, limit: int | None = None) -> list[str]:
        depth = len(self._namespace) + 1
        found = await self.store.anamespaces(prefix=self._namespace, max_depth=depth, limit=min(limit or _MANY, _MANY))
        return [namespace[-1] for namespace in found if len(namespace) == depth]

    async def _delete_collection(self, *, collection: str) -> bool:
        with _translate():
            return await self.store.adelete_tree(self._inside(collection)) > 0

    async def _delete_store(self) -> bool:
        await self.store.adelete_tree(self._namespace)
        return True

    async def _cull(self) -> None:
        await self.store.asweep()

    def _inside(self, collection: str) -> Namespace:
        return (*self._namespace, _shorten(collection, _LONGEST_COLLECTION))


def _shorten(name: str, longest: int) -> str:
    """Return the name in the store: the SHA-256 of one that is very long, as in py-key-value's own stores."""
    encoded = name.encode(errors="surrogatepass")
    return name if len(encoded) <= longest else f"sha256:{hashlib.sha256(encoded).hexdigest()}"


def _describe(entry: Entry | None) -> ManagedEntry | None:
    if entry is None:
        return None
    return ManagedEntry(value=entry.value, created_at=entry.created_at, expires_at=entry.expires_at)


@contextmanager
def _translate() -> Iterator[None]:
    """Raise holdall's refusals as py-key-value's errors."""
    try:
        yield
    except InvalidValue as error:
        raise SerializationError(f"Failed to serialize object to JSON: {error}") from error
    except InvalidInput as error:
        raise InvalidKeyError(str(error)) from error
