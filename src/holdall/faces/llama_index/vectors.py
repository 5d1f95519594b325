"""LlamaIndex' vector store on any engine: `HoldallVectorStore` is a `BasePydanticVectorStore`.

    vectors = HoldallVectorStore("agent.db", embed_model=model)
    index = VectorStoreIndex.from_vector_store(vectors, embed_model=model)

A node is an item, with the vector that LlamaIndex has computed. So other faces find it by its text, and, with the same
model, by meaning.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

try:
    from llama_index.core import Settings
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.schema import BaseNode, MetadataMode
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        FilterCondition,
        FilterOperator,
        MetadataFilter,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
    from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a vector store for LlamaIndex", "llama-index") from missing

from ... import Entry, Hit, Page, Store, ops
from ...core import face_api
from ...core.face_api import StoreProgram, async_method, sync_method
from ...ops import Namespace
from ..base import Face, read_all

_BATCH = 1000
_COMPARISONS = {
    FilterOperator.EQ: "$eq",
    FilterOperator.NE: "$ne",
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
    FilterOperator.IN: "$in",
    FilterOperator.NIN: "$nin",
    FilterOperator.CONTAINS: "$contains",
    FilterOperator.TEXT_MATCH: "$contains",
}
_BY_TEXT = (VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.SPARSE)
_BY_BOTH = (VectorStoreQueryMode.HYBRID, VectorStoreQueryMode.SEMANTIC_HYBRID)


class HoldallVectorStore(Face, BasePydanticVectorStore):
    """Nodes with their vectors, in one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `embed_model` is the model whose
    vectors the nodes have, `Settings.embed_model` by default: a store has vectors of one model, and refuses another.
    `options` are passed to `holdall.open` if a URL is given.
    """

    stores_text: bool = True
    flat_metadata: bool = False

    _store: Store = PrivateAttr()
    _owned_store: Store | None = PrivateAttr()
    _namespace: Namespace = PrivateAttr()

    def __init__(
        self,
        store_or_url: Any = None,
        *,
        embed_model: BaseEmbedding | None = None,
        namespace: Namespace = ("nodes",),
        **options: Any,
    ) -> None:
        super().__init__(stores_text=True)
        model = _Model(Settings.embed_model if embed_model is None else embed_model)
        self._store = self._open(store_or_url, **options).with_embedder(model, search_fields=["text"])
        self._namespace = face_api.check_namespace(namespace)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class, for LlamaIndex."""
        return "HoldallVectorStore"

    @property
    def client(self) -> Store:
        """The `holdall.Store` that this face runs on."""
        return self._store

    @property
    def store(self) -> Store:
        """The `holdall.Store` that this face runs on."""
        return self._store

    def _add(self, /, nodes: Sequence[BaseNode], **kwargs: Any) -> StoreProgram[list[str]]:
        """Add nodes that have embeddings, 1,000 of them in a transaction. Those with the same ids are replaced."""
        for start in range(0, len(nodes), _BATCH):
            some = nodes[start : start + _BATCH]
            puts = [ops.Put(self._namespace, node.node_id, _dump(node)) for node in some]
            batch = yield from face_api.use_vectors(self._store, puts, [node.get_embedding() for node in some])
            yield from face_api.execute(self._store, batch)
        return [node.node_id for node in nodes]

    add = sync_method(_add)
    async_add = async_method(_add)

    def _delete(self, /, ref_doc_id: str, **delete_kwargs: Any) -> StoreProgram[None]:
        """Delete the nodes of a document."""
        yield from self._delete_found({"ref_doc_id": ref_doc_id})

    delete = sync_method(_delete)
    adelete = async_method(_delete)

    def _delete_nodes(
        self,
        /,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> StoreProgram[None]:
        """Delete nodes by their ids and metadata."""
        yield from self._delete_found(_join(node_ids, None, filters))

    delete_nodes = sync_method(_delete_nodes)
    adelete_nodes = async_method(_delete_nodes)

    def _delete_found(self, filter: dict[str, Any]) -> StoreProgram[None]:
        found = yield from read_all(self._store, self._namespace, filter=filter, recursive=False)
        for start in range(0, len(found), _BATCH):
            batch = [ops.Delete(self._namespace, hit.key) for hit in found[start : start + _BATCH]]
            yield from face_api.execute(self._store, batch)

    def _clear(self) -> StoreProgram[None]:
        """Delete all nodes."""
        yield from face_api.delete_tree(self._store, self._namespace)

    clear = sync_method(_clear)
    aclear = async_method(_clear)

    def _get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> StoreProgram[list[BaseNode]]:
        """Return nodes by their ids and metadata, without embeddings."""
        wanted = _join(node_ids, None, filters)
        found = yield from read_all(self._store, self._namespace, filter=wanted, recursive=False)
        return [_load(hit) for hit in reversed(found)]

    get_nodes = sync_method(_get_nodes)
    aget_nodes = async_method(_get_nodes)

    def _query(self, /, query: VectorStoreQuery, **kwargs: Any) -> StoreProgram[VectorStoreQueryResult]:
        """Find the best nodes: by vectors, by text (`TEXT_SEARCH`, `SPARSE`), or by both (`HYBRID`)."""
        found = yield from self._find(query)
        return VectorStoreQueryResult(
            nodes=[_load(hit) for hit in found],
            similarities=[hit.score or 0.0 for hit in found],
            ids=[hit.key for hit in found],
        )

    query = sync_method(_query)
    aquery = async_method(_query)

    def _find(self, query: VectorStoreQuery) -> StoreProgram[Page[Hit]]:
        limit = query.similarity_top_k
        # An index of a vector store that keeps the texts passes an empty list of ids for all of them.
        wanted = _join(query.node_ids or None, query.doc_ids or None, query.filters)
        how: dict[str, Any] = {"filter": wanted, "recursive": False}
        if query.mode in _BY_TEXT:
            if query.query_str is None:
                raise ValueError(f"the mode {query.mode.value} needs query_str")
            limit = query.sparse_top_k or limit
            search = face_api.search(
                self._store, self._namespace, query=query.query_str, mode="lexical", limit=limit, **how
            )
            return (yield from search)
        if query.query_embedding is None:
            raise ValueError(f"the mode {query.mode.value} needs query_embedding")
        if query.mode in _BY_BOTH:
            how["query"] = query.query_str
            limit = query.hybrid_top_k or limit
        elif query.mode != VectorStoreQueryMode.DEFAULT:
            raise ValueError(f"Invalid query mode: {query.mode}")
        return (
            yield from face_api.search_vector(self._store, self._namespace, query.query_embedding, limit=limit, **how)
        )


class _Model:
    """A model of LlamaIndex as holdall calls one."""

    def __init__(self, model: BaseEmbedding) -> None:
        self.embed_documents = model.get_text_embedding_batch
        self.aembed_documents = model.aget_text_embedding_batch
        self.embed_query = model.get_query_embedding
        self.aembed_query = model.aget_query_embedding


def _dump(node: BaseNode) -> dict[str, Any]:
    described = node_to_metadata_dict(node, remove_text=True)
    return {
        "id": node.node_id,
        "text": node.get_content(metadata_mode=MetadataMode.NONE),
        "ref_doc_id": node.ref_doc_id,
        "type": described["_node_type"],
        "node": json.loads(described["_node_content"]),
    }


def _load(entry: Entry) -> BaseNode:
    value = entry.value
    described = {"_node_content": json.dumps(value["node"]), "_node_type": value["type"]}
    return metadata_dict_to_node(described, text=value["text"])


def _join(
    node_ids: Sequence[str] | None, doc_ids: Sequence[str] | None, filters: MetadataFilters | None
) -> dict[str, Any]:
    """Return the filter of holdall for what LlamaIndex asks for."""
    parts: list[dict[str, Any]] = []
    if node_ids is not None:
        parts.append({"id": {"$in": list(node_ids)}})
    if doc_ids is not None:
        parts.append({"ref_doc_id": {"$in": list(doc_ids)}})
    if filters is not None and filters.filters:
        parts.append(_translate(filters))
    return {"$and": parts} if parts else {}


def _translate(filters: MetadataFilters | MetadataFilter) -> dict[str, Any]:
    if isinstance(filters, MetadataFilters):
        parts = [_translate(one) for one in filters.filters]
        if filters.condition == FilterCondition.NOT:
            return {"$not": {"$or": parts}}
        return {"$or" if filters.condition == FilterCondition.OR else "$and": parts}
    if "." in filters.key:
        raise ValueError(f"a filter cannot name metadata with a dot in its key: {filters.key!r}")
    path, value, operator = f"node.metadata.{filters.key}", filters.value, filters.operator
    if operator in _COMPARISONS:
        return {path: {_COMPARISONS[operator]: value}}
    if operator == FilterOperator.IS_EMPTY:
        return {path: {"$in": [None, "", []]}}
    if operator in (FilterOperator.ANY, FilterOperator.ALL) and isinstance(value, list):
        each = [{path: {"$contains": one}} for one in value]
        return {"$or" if operator == FilterOperator.ANY else "$and": each}
    raise ValueError(f"a filter with the operator {operator.value} is not supported")
