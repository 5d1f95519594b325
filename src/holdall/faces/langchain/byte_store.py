"""LangChain's byte stores on any engine: `HoldallByteStore` implements `BaseStore[str, bytes]`."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

try:
    from langchain_core.stores import ByteStore
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a byte store for LangChain", "langchain") from missing

from ... import Entry, ops
from ...core import face_api
from ...core.face_api import StoreProgram, async_method, sync_method
from ...errors import InvalidValue, shown
from ...ops import Namespace
from ..base import NamespaceFace


class HoldallByteStore(NamespaceFace, ByteStore):
    """Bytes by key, in one namespace of a holdall store: for `CacheBackedEmbeddings`, for example.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given. `mset` and `mdelete` are one transaction.
    """

    def __init__(self, store_or_url: Any = None, *, namespace: Namespace = ("bytes",), **options: Any) -> None:
        self._open_namespace(store_or_url, namespace, **options)

    def _mget(self, keys: Sequence[str]) -> StoreProgram[list[bytes | None]]:
        """Return the bytes of each key, None where there are none."""
        entries: list[Entry | None] = yield [ops.Get(self._namespace, key) for key in keys]
        return [None if entry is None else base64.b64decode(entry.value["bytes"]) for entry in entries]

    mget = sync_method(_mget)
    amget = async_method(_mget)

    def _mset(self, key_value_pairs: Sequence[tuple[str, bytes]]) -> StoreProgram[None]:
        """Set the bytes of some keys, all or none."""
        yield from face_api.execute(self.store, [self._put(key, value) for key, value in key_value_pairs])

    mset = sync_method(_mset)
    amset = async_method(_mset)

    def _put(self, key: str, value: bytes) -> ops.Put:
        if not isinstance(value, bytes):
            raise InvalidValue(f"a byte store holds bytes, not {type(value).__name__} {shown(value)}")
        stored = {"bytes": base64.b64encode(value).decode()}
        return ops.Put(self._namespace, key, stored, search_fields=False)

    def _mdelete(self, keys: Sequence[str]) -> StoreProgram[None]:
        """Delete some keys, those that exist."""
        yield from face_api.execute(self.store, [ops.Delete(self._namespace, key) for key in keys])

    mdelete = sync_method(_mdelete)
    amdelete = async_method(_mdelete)

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Iterate over the keys, or those that begin with `prefix`."""
        for entry in self.store.scan(self._namespace):
            if entry.namespace != self._namespace:  # those below it come last
                return
            if entry.key.startswith(prefix or ""):
                yield entry.key

    async def ayield_keys(self, *, prefix: str | None = None) -> AsyncIterator[str]:
        """`yield_keys`, as an async iterator."""
        async for entry in self.store.ascan(self._namespace):
            if entry.namespace != self._namespace:
                return
            if entry.key.startswith(prefix or ""):
                yield entry.key
