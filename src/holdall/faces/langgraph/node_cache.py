"""LangGraph's cache of node results on any engine: `HoldallCache` implements `BaseCache`.

    graph = builder.compile(cache=HoldallCache("agent.db"))

A result is an item with the bytes of LangGraph's serializer.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence
from typing import Any

try:
    from langgraph.cache.base import BaseCache, FullKey
    from langgraph.checkpoint.serde.base import SerializerProtocol
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "LangGraph's cache", "langgraph") from missing

from ... import Entry, ops
from ...core import face_api
from ...core.face_api import StoreProgram, async_method, sync_method
from ...errors import Unavailable
from ...ops import Namespace
from ..base import NamespaceFace, read_all

logger = logging.getLogger("holdall")


class HoldallCache(NamespaceFace, BaseCache[Any]):
    """Results of nodes, below one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given. `serde` is LangGraph's own serializer by default, which unpickles nothing. As with
    LangGraph's `RedisCache`, nodes also run while the storage is unavailable: nothing is found or kept then.
    """

    def __init__(
        self,
        store_or_url: Any = None,
        *,
        namespace: Namespace = ("node-cache",),
        serde: SerializerProtocol | None = None,
        **options: Any,
    ) -> None:
        BaseCache.__init__(self, serde=serde)
        self._open_namespace(store_or_url, namespace, **options)

    def _get(self, keys: Sequence[FullKey]) -> StoreProgram[dict[FullKey, Any]]:
        """Return the results that are kept, by their keys."""
        entries: list[Entry | None]
        try:
            entries = yield [ops.Get(self._inside(*namespace), key) for namespace, key in keys]
        except Unavailable as error:
            logger.warning("no result of a node is found in the cache: %s", error)
            return {}
        return {
            (tuple(namespace), key): self._load(entry.value)
            for (namespace, key), entry in zip(keys, entries, strict=True)
            if entry is not None
        }

    get = sync_method(_get)
    aget = async_method(_get)

    def _set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> StoreProgram[None]:
        """Keep results, each for its number of seconds, or for ever."""
        batch: list[ops.PointOp] = []
        for (namespace, key), (result, ttl) in pairs.items():
            if ttl is not None and ttl <= 0:
                batch.append(ops.Delete(self._inside(*namespace), key))
                continue
            kind, data = self.serde.dumps_typed(result)
            value = {"type": kind, "data": base64.b64encode(data).decode()}
            batch.append(ops.Put(self._inside(*namespace), key, value, ttl, search_fields=False))
        try:
            yield from face_api.execute(self.store, batch)
        except Unavailable as error:
            logger.warning("results of nodes are not kept in the cache: %s", error)

    set = sync_method(_set)
    aset = async_method(_set)

    def _clear(self, namespaces: Sequence[Namespace] | None = None) -> StoreProgram[None]:
        """Remove the results of some namespaces, or all."""
        if namespaces is None:
            yield from face_api.delete_tree(self.store, self._namespace)
            return
        for namespace in namespaces:  # those below it stay
            found = yield from read_all(self.store, self._inside(*namespace), recursive=False)
            yield from face_api.execute(self.store, [ops.Delete(hit.namespace, hit.key) for hit in found])

    clear = sync_method(_clear)
    aclear = async_method(_clear)

    def _load(self, value: dict[str, Any]) -> Any:
        return self.serde.loads_typed((value["type"], base64.b64decode(value["data"])))
