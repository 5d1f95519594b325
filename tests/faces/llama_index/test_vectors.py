"""LlamaIndex' vector store, compared with its own in memory, on every engine."""

from __future__ import annotations

import asyncio
import hashlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

import holdall
from holdall.errors import EmbeddingError, InvalidInput, StoreClosed
from holdall.faces.langgraph import HoldallStore
from holdall.faces.llama_index import HoldallVectorStore

DIMENSIONS = 8


class WordModel(BaseEmbedding):
    """A model without a network: a text is the sum of its words."""

    def _get_text_embedding(self, text: str) -> list[float]:
        sums = [0.0] * DIMENSIONS
        for word in text.lower().split():
            digest = hashlib.sha256(word.strip(".,?").encode()).digest()
            sums = [old + byte - 128 for old, byte in zip(sums, digest, strict=False)]
        return sums if any(sums) else [1.0] * DIMENSIONS

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


MODEL = WordModel()


def node(id: str, text: str, document: str = "doc", **metadata: Any) -> TextNode:
    made = TextNode(id_=id, text=text, metadata=metadata, embedding=MODEL.get_text_embedding(text))
    made.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=document)
    return made


NODES = [
    node("a", "red apples", n=1, tags=["x", "y"], name="Ada"),
    node("b", "green apples", n=2, tags=["y"], name="Bob"),
    node("c", "blue whales swim", "other", n=3, tags=[], empty=""),
    node("d", "red whales", "other"),
]

filters = st.builds(
    MetadataFilters,
    filters=st.lists(
        st.builds(
            lambda operator, number: MetadataFilter(key="n", value=number, operator=operator),
            st.sampled_from(["==", "!=", ">", ">=", "<", "<="]),
            st.integers(0, 4),
        )
        | st.builds(
            lambda operator, numbers: MetadataFilter(key="n", value=numbers, operator=operator),
            st.sampled_from(["in", "nin"]),
            st.lists(st.integers(0, 4), max_size=3),
        )
        | st.builds(
            lambda operator, tags: MetadataFilter(key="tags", value=tags, operator=operator),
            st.sampled_from(["any", "all"]),
            st.lists(st.sampled_from("xyz"), min_size=1, max_size=3),
        )
        | st.builds(
            lambda key: MetadataFilter(key=key, value=None, operator="is_empty"),
            st.sampled_from(["n", "tags", "empty"]),
        )
        | st.just(MetadataFilter(key="name", value="d", operator="text_match"))
        | st.just(MetadataFilter(key="tags", value="y", operator="contains")),
        max_size=3,
    ),
    condition=st.sampled_from(FilterCondition),
)


@given(
    filters=filters,
    ids=st.none() | st.lists(st.sampled_from("abcdz"), min_size=1, max_size=4),
    words=st.sampled_from(["red", "apples", "whales swim", "green"]),
    limit=st.integers(1, 5),
)
def test_queries_find_what_the_store_in_memory_finds(
    filters: MetadataFilters, ids: list[str] | None, words: str, limit: int
) -> None:
    query = VectorStoreQuery(MODEL.get_query_embedding(words), limit, node_ids=ids, filters=filters)
    theirs = SimpleVectorStore()
    theirs.add(NODES)
    ours = HoldallVectorStore("memory:", embed_model=MODEL)
    ours.add(NODES)
    found, expected = ours.query(query), theirs.query(query)
    ours.close()
    assert found.ids is not None and expected.ids is not None
    assert found.similarities == pytest.approx(expected.similarities, abs=1e-5)
    if len(set(expected.similarities or [])) == len(expected.ids):
        assert found.ids == expected.ids


def test_nodes_are_found_by_vectors_by_text_and_by_both(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    async def main() -> None:
        nodes = HoldallVectorStore(any_store.scoped(place), embed_model=MODEL)
        assert await nodes.async_add(NODES) == ["a", "b", "c", "d"]

        async def find(mode: str, words: str = "blue whales", **how: Any) -> list[str]:
            embedding = MODEL.get_query_embedding(words)
            query = VectorStoreQuery(embedding, 2, query_str=words, mode=VectorStoreQueryMode(mode), **how)
            return (await nodes.aquery(query)).ids or []

        assert (await find("default"))[0] == "c"
        assert await find("text_search") == ["c", "d"]
        assert (await find("hybrid"))[0] == "c"
        assert await find("text_search", doc_ids=["doc"]) == []
        with pytest.raises(ValueError, match="mode"):
            await find("svm")
        insensitive = MetadataFilter(key="name", value="a", operator=FilterOperator.TEXT_MATCH_INSENSITIVE)
        with pytest.raises(ValueError, match="text_match_insensitive"):
            await find("default", filters=MetadataFilters(filters=[insensitive]))
        [found] = await nodes.aget_nodes(["a"])
        assert found.to_dict() == NODES[0].model_copy(update={"embedding": None}).to_dict()
        await nodes.adelete("doc")
        assert sorted(one.node_id for one in nodes.get_nodes()) == ["c", "d"]
        await nodes.adelete_nodes([])
        await nodes.adelete_nodes(["d"])
        assert [one.node_id for one in nodes.get_nodes()] == ["c"]
        await nodes.aclear()
        assert nodes.get_nodes() == []

    asyncio.run(main())


def test_an_index_keeps_documents_here_and_others_find_them_by_the_same_model() -> None:
    with holdall.open("memory:") as store:
        context = StorageContext.from_defaults(vector_store=HoldallVectorStore(store, embed_model=MODEL))
        documents = [Document(text="Ada is allergic to peanuts"), Document(text="The whale swims")]
        VectorStoreIndex.from_documents(documents, storage_context=context, embed_model=MODEL)
        again = VectorStoreIndex.from_vector_store(HoldallVectorStore(store, embed_model=MODEL), embed_model=MODEL)
        [found] = again.as_retriever(similarity_top_k=1).retrieve("peanuts allergic")
        assert found.node.get_content() == "Ada is allergic to peanuts"
        assert math.isclose(found.score or 0, 1, abs_tol=0.5)
        seen = HoldallStore(store, index={"dims": DIMENSIONS, "embed": MODEL.get_text_embedding_batch})
        assert seen.search(("nodes",), query="peanuts")[0].value["text"] == "Ada is allergic to peanuts"


def test_metadata_with_a_dot_in_its_key_cannot_be_filtered() -> None:
    """A path of holdall would lead into an object: finding nothing would be a wrong answer."""
    wanted = MetadataFilters(filters=[MetadataFilter(key="file.name", value="a")])
    with pytest.raises(ValueError, match=r"file\.name"):
        HoldallVectorStore("memory:", embed_model=MODEL).get_nodes(filters=wanted)


def test_vectors_that_do_not_fit_are_refused() -> None:
    with holdall.open("memory:") as store:
        nodes = HoldallVectorStore(store, embed_model=MODEL)
        nodes.add(NODES)
        for wrong in ([1.0] * 7, [math.nan] * DIMENSIONS):
            with pytest.raises(EmbeddingError):
                nodes.add([TextNode(id_="x", text="x", embedding=wrong)])
        with pytest.raises(ValueError):
            nodes.add([TextNode(id_="x", text="x")])
        assert len(nodes.get_nodes()) == 4

        class Other(WordModel):
            def _get_text_embedding(self, text: str) -> list[float]:
                return [float(number % 3) for number in range(DIMENSIONS)]

        with pytest.raises(InvalidInput, match="another model"):
            HoldallVectorStore(store, embed_model=Other()).add(NODES)


def test_it_closes_only_the_store_that_it_opened() -> None:
    async def main() -> None:
        async with HoldallVectorStore("memory:", embed_model=MODEL) as own:
            await own.async_add(NODES)
        with pytest.raises(StoreClosed):
            own.store.count()
        with holdall.open("memory:") as store:
            with HoldallVectorStore(store, embed_model=MODEL) as shared:
                shared.add(NODES)
            assert store.count() == 4

    asyncio.run(main())
