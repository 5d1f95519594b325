"""LangGraph's `query`: by vectors where there is an index, by words where there is none; and where its stores fail."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from langchain_core.embeddings import Embeddings
from langgraph.store.base import PutOp, SearchItem, SearchOp

import holdall
from holdall.errors import EmbeddingError, InvalidInput
from holdall.faces.langgraph import HoldallStore
from holdall.testing import Clock
from support.face_calls import Calls
from support.langgraph_stores import Open

DOCS = ("docs",)


def embed(texts: Sequence[str]) -> list[list[float]]:
    """A text is its numbers: "3 4" is the vector (3, 4); one without numbers points nowhere near them."""
    return [[float(word) for word in text.split()] if text[:1] in "-0123456789" else [-1.0, -1.0] for text in texts]


class Counting:
    """An embedder that knows what it was asked."""

    def __init__(self, embed: Callable[[Sequence[str]], list[list[float]]] = embed) -> None:
        self.asked: list[list[str]] = []
        self._embed = embed

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked.append([text for text in texts if "model" not in text])  # the store asks once which one it is
        return self._embed(texts)


@pytest.fixture
def store(open_store: Open) -> Iterator[holdall.Store]:
    with open_store(sweep_interval=None) as opened:
        yield opened


def indexed(store: holdall.Store, runner: asyncio.Runner | None, **index: Any) -> Calls:
    config: Any = {"dims": 2, "embed": embed, **index}
    return Calls(HoldallStore(store, index=config), runner)


def keys(items: list[SearchItem]) -> list[str]:
    return [item.key for item in items]


# By words ------------------------------------------------------------------------------------------------------------


def test_a_query_without_an_index_ranks_by_words(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    """LangGraph's stores silently ignore it."""
    calls = Calls(HoldallStore(store), runner)
    calls.put(DOCS, "none", {"text": "Green tea in the morning."})
    calls.put(DOCS, "weak", {"text": "Some people with many other habits cannot eat peanuts at all, and others can."})
    calls.put(DOCS, "strong", {"text": "Peanuts! No peanuts."})
    calls.put(DOCS, "hidden", {"text": "peanuts peanuts"}, index=False)
    calls.put(("other",), "elsewhere", {"text": "peanuts"})
    found = calls.search(DOCS, query="peanut")
    assert keys(found) == ["strong", "weak", "hidden", "none"]
    scores = [item.score for item in found]
    assert scores[0] > scores[1] > 0
    assert scores[2:] == [None, None]
    pages = [keys(calls.search(DOCS, query="peanut", limit=1, offset=offset)) for offset in range(5)]
    assert pages == [["strong"], ["weak"], ["hidden"], ["none"], []]
    assert keys(calls.search(DOCS, query="nothing has this")) == ["hidden", "strong", "weak", "none"]
    assert keys(calls.search(DOCS, query="peanut", filter={"text": {"$contains": "tea"}})) == ["none"]
    for blank in ("", "  "):
        assert keys(calls.search(DOCS, query=blank)) == ["hidden", "strong", "weak", "none"]


def test_a_put_names_the_fields_that_are_found(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    calls = Calls(HoldallStore(store), runner)
    calls.put(DOCS, "a", {"title": "tea", "body": "coffee"}, index=["title"])
    assert [item.score for item in calls.search(DOCS, query="coffee")] == [None]
    assert calls.search(DOCS, query="tea")[0].score > 0


def test_a_cursor_goes_through_the_ranked_and_the_rest(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    for n in range(9):
        store.put(DOCS, f"k{n}", {"text": "tea" if n % 3 == 0 else "other"})
    found, cursor = [], None
    while True:
        page = store.search(DOCS, query="tea", rest=True, limit=2, cursor=cursor)
        found += [hit.key for hit in page]
        if cursor is None:
            store.delete(DOCS, "k6")  # given already
            store.put(DOCS, "new", {"text": "other"})
        cursor = page.next
        if cursor is None:
            break
        with pytest.raises(InvalidInput, match="another search"):
            store.search(DOCS, query="tea", limit=2, cursor=cursor)
    assert sorted(found[:3]) == ["k0", "k3", "k6"]
    assert found[3:] == ["new", "k8", "k7", "k5", "k4", "k2", "k1"]


# By vectors ----------------------------------------------------------------------------------------------------------


def test_the_nearest_come_first_with_their_cosine(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    calls = indexed(store, runner)
    calls.batch([PutOp(DOCS, text, {"text": text}) for text in ("1 0", "4 4", "0 9", "-1 0")])
    found = calls.search(DOCS, query="2 0")
    assert keys(found) == ["1 0", "4 4", "0 9", "-1 0"]
    assert [round(item.score, 6) for item in found] == [1, round(math.sqrt(0.5), 6), 0, -1]
    assert calls.face.index_config["dims"] == 2


def test_items_without_a_vector_come_last_without_a_score(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    calls = indexed(store, runner)
    calls.put(DOCS, "old", {"text": "1 0"}, index=False)
    calls.put(DOCS, "far", {"text": "-1 0"})
    calls.put(DOCS, "near", {"text": "1 0"})
    calls.put(DOCS, "new", {"text": "1 0"}, index=[])
    calls.put(DOCS, "numberless", {"n": 7})
    found = calls.search(DOCS, query="1 0")
    assert [(item.key, item.score) for item in found] == [
        ("near", 1),
        ("far", -1),
        ("numberless", None),
        ("new", None),
        ("old", None),
    ]
    assert keys(calls.search(DOCS, query="1 0", limit=2, offset=1)) == ["far", "numberless"]
    assert keys(calls.search(DOCS, query="1 0", limit=2, offset=3)) == ["new", "old"]


@pytest.mark.parametrize(
    ("fields", "vectors"),
    [
        (["title"], ["1 0"]),
        (["meta.lang"], ["0 1"]),
        (["tags[0]"], ["5 5"]),
        (["tags[-1]"], ["6 6"]),
        (["tags[*]"], ["5 5", "6 6"]),
        (["parts[*].text"], ["7 7", "8 8"]),
        (["{title,meta.lang}"], ["1 0", "0 1"]),
        (["meta.*"], ["0 1"]),
        (["title", "tags[*]", "missing"], ["1 0", "5 5", "6 6"]),
    ],
)
def test_fields_select_the_texts_to_embed(
    store: holdall.Store, runner: asyncio.Runner | None, fields: list[str], vectors: list[str]
) -> None:
    """LangGraph's SqliteStore ignored them."""
    value = {
        "title": "1 0",
        "meta": {"lang": "0 1"},
        "tags": ["5 5", "6 6"],
        "parts": [{"text": "7 7", "n": 1}, {"text": "8 8"}],
        "other": "never",
    }
    by_config, by_put = Counting(), Counting()
    indexed(store, runner, embed=by_config, fields=fields).put(DOCS, "k", value)
    indexed(store, runner, embed=by_put).put(DOCS, "k", value, index=fields)
    assert sorted(by_config.asked[-1]) == sorted(by_put.asked[-1]) == sorted(vectors)


def test_an_item_counts_as_its_best_vector(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    calls = indexed(store, runner, fields=["tags[*]"])
    calls.put(DOCS, "both", {"tags": ["-1 0", "1 0"]})
    calls.put(DOCS, "half", {"tags": ["1 1"]})
    found = calls.search(DOCS, query="1 0")
    assert keys(found) == ["both", "half"]
    assert found[0].score == pytest.approx(1)


def test_paging_by_vectors_loses_nothing(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    """LangGraph's vector search lost items past page 2, since it looked at twice the limit and no more."""
    calls = indexed(store, runner, fields=["tags[*]"])
    calls.batch([PutOp(DOCS, f"{n:03}", {"tags": [f"{n} 100", f"-{n} 9", "-7 -7"]}) for n in range(60)])
    calls.batch([PutOp(DOCS, f"plain-{n}", {}) for n in range(5)])
    pages = [keys(calls.search(DOCS, query="1 0", limit=7, offset=offset)) for offset in range(0, 70, 7)]
    assert [len(page) for page in pages] == [7] * 9 + [2]
    found = [key for page in pages for key in page]
    assert found == [f"{n:03}" for n in range(59, -1, -1)] + [f"plain-{n}" for n in range(4, -1, -1)]


@pytest.mark.parametrize(
    ("distance", "order", "score"),
    [
        ("cosine", ["9 0", "2 0", "3 4"], 1.0),
        ("inner_product", ["9 0", "3 4", "2 0"], 9.0),
        ("l2", ["2 0", "3 4", "9 0"], -1.0),
    ],
)
def test_every_distance_ranks_the_nearest_first(
    store: holdall.Store, runner: asyncio.Runner | None, distance: str, order: list[str], score: float
) -> None:
    """LangGraph's l2 ranked the farthest first."""
    calls = indexed(store, runner, distance_type=distance)
    calls.batch([PutOp(DOCS, text, {"text": text}) for text in ("3 4", "2 0", "9 0")])
    found = calls.search(DOCS, query="1 0")
    assert sorted(keys(found)) == sorted(order)
    assert keys(found)[0] in (("9 0", "2 0") if distance == "cosine" else (order[0],))
    assert keys(found)[-1] == order[-1]
    assert found[0].score == pytest.approx(score)


def test_an_unknown_distance_type_is_refused(store: holdall.Store) -> None:
    with pytest.raises(InvalidInput, match="distance_type"):
        indexed(store, None, distance_type="manhattan")


def test_vectors_go_with_their_item(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    """A deleted item left its vectors, inherited by the next item with that key; an overwritten one kept some."""
    calls = indexed(store, runner, fields=["tags[*]"])
    calls.put(DOCS, "deleted", {"tags": ["1 0"]})
    calls.delete(DOCS, "deleted")
    calls.put(DOCS, "deleted", {"tags": ["1 0"]}, index=False)
    calls.put(DOCS, "overwritten", {"tags": ["1 0", "0 1"]})
    calls.put(DOCS, "overwritten", {"tags": ["-1 0"]})
    calls.put(DOCS, "unindexed", {"tags": ["1 0"]})
    calls.put(DOCS, "unindexed", {"tags": ["1 0"]}, index=False)
    calls.put(DOCS, "gone", {"tags": ["1 0"]})
    calls.delete(DOCS, "gone")
    assert [(item.key, item.score) for item in calls.search(DOCS, query="1 0")] == [
        ("overwritten", -1),
        ("unindexed", None),
        ("deleted", None),
    ]


def test_equal_texts_in_a_batch_are_embedded_once(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    """LangGraph's InMemoryStore raised: "Number of embeddings does not match number of indices"."""
    counting = Counting()
    calls = indexed(store, runner, embed=counting)
    calls.batch([PutOp(DOCS, f"k{n}", {"text": "1 0"}) for n in range(5)])
    assert counting.asked[-1] == ["1 0"]
    assert [item.score for item in calls.search(DOCS, query="1 0")] == [1] * 5


def test_filters_and_prefixes_come_before_the_ranking(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    calls = indexed(store, runner, fields=["text"])
    puts = [PutOp(("t", str(n % 2)), f"{n:02}", {"text": f"{n} 100", "n": n}) for n in range(50)]
    calls.batch(puts)
    assert keys(calls.search(("t", "1"), query="1 0", filter={"n": {"$lt": 10}}, limit=3)) == ["09", "07", "05"]
    assert keys(calls.search(("t",), query="1 0", filter={"n": {"$in": [0, 40, 7]}})) == ["40", "07", "00"]


# Embedders -----------------------------------------------------------------------------------------------------------


class LangChains(Embeddings):
    """An embedder as LangChain has them."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return embed(texts)

    def embed_query(self, text: str) -> list[float]:
        return embed([text.removeprefix("query: ")])[0]


class Provided(LangChains):
    """What `init_embeddings` finds for "openai:…"; LangChain remembers the class for good."""

    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, **options: Any) -> None:
        self.made.append(options)


async def embed_later(texts: Sequence[str]) -> list[list[float]]:
    await asyncio.sleep(0)
    return embed(texts)


def test_embedders_of_every_kind(
    store: holdall.Store, runner: asyncio.Runner | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ModuleType("langchain_openai")
    provider.OpenAIEmbeddings = Provided  # type: ignore[attr-defined]  # it is made here
    Provided.made.clear()
    monkeypatch.setitem(sys.modules, "langchain_openai", provider)
    for kind in (embed, LangChains(), "openai:text-embedding-test", *([embed_later] if runner else [])):
        calls = indexed(store, runner, embed=kind)
        calls.put(DOCS, "a", {"text": "1 0"})
        calls.put(DOCS, "b", {"text": "0 1"})
        found = calls.search(DOCS, query="0 2")
        assert [(item.key, item.score) for item in found] == [("b", 1), ("a", 0)]
    assert Provided.made == [{"model": "text-embedding-test"}]


def test_an_async_embedder_needs_the_async_methods(store: holdall.Store) -> None:
    calls = indexed(store, None, embed=embed_later)
    with pytest.raises(InvalidInput, match="async"):
        calls.put(DOCS, "a", {"text": "1 0"})
    assert store.count() == 0


def test_an_embedder_that_fails_fails_the_call_and_writes_nothing(
    store: holdall.Store, runner: asyncio.Runner | None
) -> None:
    def fail(texts: Sequence[str]) -> list[list[float]]:
        if any("bad" in text for text in texts):
            raise OSError("no such model today")
        return embed(texts)

    calls = indexed(store, runner, embed=fail)
    calls.put(DOCS, "there", {"text": "1 0"})
    with pytest.raises(EmbeddingError, match="no such model today"):
        calls.put(DOCS, "k", {"text": "bad"})
    with pytest.raises(EmbeddingError):
        calls.batch(
            [PutOp(DOCS, "good", {"text": "1 0"}), PutOp(DOCS, "k", {"text": "bad"}), PutOp(DOCS, "there", None)]
        )
    with pytest.raises(EmbeddingError):
        calls.search(DOCS, query="bad")
    assert keys(calls.search(DOCS)) == ["there"]


@pytest.mark.parametrize("reply", [[[1.0]], [[1.0, 2.0], [1.0, 2.0]], [[math.nan, 1.0]], None, "x"])
def test_an_embedder_that_gives_something_else_fails_too(
    store: holdall.Store, runner: asyncio.Runner | None, reply: Any
) -> None:
    replies = iter([[[1.0, 2.0]], reply])  # the first says which model it is
    calls = indexed(store, runner, embed=lambda texts: next(replies))
    with pytest.raises(EmbeddingError):
        calls.put(DOCS, "k", {"text": "1 0"})
    assert store.count() == 0


def test_no_transaction_waits_for_the_embedder(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    """LangGraph's stores embed inside the open transaction, so that everybody waits for the model."""
    seen: list[Any] = []

    def embed_while_others_write(texts: Sequence[str]) -> list[list[float]]:
        store.put(("others",), str(len(seen)), {})  # which would wait for ever
        seen.append(store.get(("others",), str(len(seen))))
        return embed(texts)

    calls = indexed(store, runner, embed=embed_while_others_write)
    calls.put(DOCS, "k", {"text": "1 0"})
    calls.batch([PutOp(DOCS, "l", {"text": "1 0"}), SearchOp(DOCS, query="1 0")])
    assert seen
    assert None not in seen


def test_concurrent_puts_are_embedded_in_one_call(store: holdall.Store) -> None:
    counting = Counting()
    face = HoldallStore(store, index={"dims": 2, "embed": counting})

    async def put_all() -> list[Any]:
        puts = [face.aput(DOCS, f"k{n}", {"text": f"{n} 1" if n != 7 else "1 2 3"}) for n in range(16)]
        return await asyncio.gather(*puts, return_exceptions=True)

    outcomes = asyncio.run(put_all())
    assert [n for n, outcome in enumerate(outcomes) if outcome is not None] == [7], "one bad text fails its own put"
    assert isinstance(outcomes[7], EmbeddingError)
    assert len(counting.asked[1]) == 16
    assert len(face.search(DOCS, limit=100)) == 15


def test_searching_refreshes_what_it_finds_by_a_query(open_store: Open, runner: asyncio.Runner | None) -> None:
    clock = Clock()
    with open_store(clock=clock, sweep_interval=None) as store:
        calls = indexed(store, runner)
        calls.put(DOCS, "k", {"text": "1 0"}, ttl=1)
        for _ in range(3):
            clock.advance(50)
            assert keys(calls.search(DOCS, query="1 0")) == ["k"]
        clock.advance(61)
        assert calls.search(DOCS, query="1 0") == []


def test_another_model_is_noticed_and_reindexing_mends_it(store: holdall.Store, runner: asyncio.Runner | None) -> None:
    indexed(store, runner).put(DOCS, "k", {"text": "1 0"})

    def other(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 0.0, float(len(text))] for text in texts]

    calls = indexed(store, runner, embed=other, dims=3)
    with pytest.raises(InvalidInput, match="reindex"):
        calls.search(DOCS, query="1 0")
    assert calls.face.store.reindex() == 1
    assert calls.search(DOCS, query="1 0")[0].score == pytest.approx(1)


def test_closing_a_store_with_an_index_closes_what_it_opened(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    index: Any = {"dims": 2, "embed": embed}
    with HoldallStore.from_conn_string(path, index=index) as face:
        face.put(DOCS, "k", {"text": "1 0"})
    with pytest.raises(holdall.errors.StoreClosed):
        face.get(DOCS, "k")
    with HoldallStore(path, index=index) as face:
        assert face.search(DOCS, query="1 0")[0].score == 1
        again = HoldallStore(face)
        assert again.search(DOCS, query="1 0")[0].score == 1, "a face on a face embeds as it does"
