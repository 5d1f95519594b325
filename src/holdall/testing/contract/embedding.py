"""Vectors: made before the transaction, stored and deleted with their entry, and marked with their model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ... import ABSENT
from ...core import face_api
from ...errors import Conflict, EmbeddingError, InvalidInput, StoreClosed
from ...ops import Check, Delete, Put, Vectors
from ..caller import Caller
from ..clock import Clock
from ..embedder import embed
from .base import Contract, Opener
from .ranking import keys_of, ranking

NS = ("vectors",)


class Model:
    """The test embedder, with a record of its calls, which fails when `fails_at` is set."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.fails_at: int | None = None

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked.append(list(texts))
        if self.fails_at is not None and len(self.asked) >= self.fails_at:
            raise ConnectionError("the model is out")
        return embed(texts)

    @property
    def texts(self) -> list[str]:
        """All texts but the one that identifies a model."""
        return [text for texts in self.asked for text in texts if not text.startswith("Which model")]


def turned(texts: Sequence[str]) -> list[list[float]]:
    """Embed with another model of the same dimensions."""
    return [[*vector[1:], vector[0] + 1.0] for vector in embed(texts)]


def longer(texts: Sequence[str]) -> list[list[float]]:
    """Embed with another model of more dimensions."""
    return [[*vector, 0.5] for vector in embed(texts)]


def plane(texts: Sequence[str]) -> list[list[float]]:
    """Embed a text of two numbers as these numbers, and any other text as (1, 1)."""
    return [[float(n) for n in text.split()] if text[:1] in "-0123456789" else [1.0, 1.0] for text in texts]


class EmbeddingContract(Contract):
    @pytest.fixture
    def embedding(self, opened: Opener) -> Caller:
        return ranking(opened(embed=embed))

    def near(self, store: Caller, query: str, **options: Any) -> list[str]:
        return keys_of(store.search(options.pop("ns", ()), query=query, mode="semantic", **options))

    # Nearest first ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("metric", "scores"),
        [
            ("cosine", {"far": 1, "near": 0.9486832980505138, "aside": 0, "against": -1}),
            ("dot", {"far": 10, "near": 3, "aside": 0, "against": -1}),
            ("l2", {"against": -2, "near": -(5**0.5), "aside": -(10**0.5), "far": -9}),
        ],
    )
    def test_every_metric_ranks_the_nearest_first(
        self, opened: Opener, embedding: Caller, metric: Any, scores: dict[str, float]
    ) -> None:
        """LangGraph's stores ranked the farthest first by l2."""
        store = opened(embed=plane, metric=metric)
        for key, text in {"far": "10 0", "near": "3 1", "aside": "0 3", "against": "-1 0"}.items():
            store.put(NS, key, {"at": text})
        for asked in ({}, {"filter": {"at": {"$exists": True}}}):
            page = store.search(NS, query="1 0", mode="semantic", **asked)
            assert keys_of(page) == list(scores)
            assert {hit.key: hit.score for hit in page} == pytest.approx(scores)
        assert self.near(store, "1 0") == list(scores)

    def test_the_best_of_several_vectors_counts(self, embedding: Caller) -> None:
        embedding.put(NS, "several", {"notes": ["black coffee", "green tea", "a walk"]}, search_fields=["notes[*]"])
        embedding.put(NS, "one", {"notes": "green tea and a walk"})
        page = embedding.search(NS, query="green tea", mode="semantic")
        assert keys_of(page) == ["several", "one"]
        assert page[0].score == pytest.approx(1)
        assert len(embedding.search(NS, query="a walk", mode="semantic", limit=1)) == 1
        embedding.put(NS, "several", {"notes": ["black coffee"]}, search_fields=["notes[*]"])
        assert self.near(embedding, "green tea") == ["one", "several"]

    def test_what_has_no_text_has_no_vector(self, embedding: Caller) -> None:
        for key, value in {"empty": {}, "blank": {"text": " \n"}, "number": {"n": 5}, "null": {"text": None}}.items():
            embedding.put(NS, key, value)
        embedding.put(NS, "named", {"n": 5}, search_fields=["n"])
        assert self.near(embedding, "5") == ["named"]

    def test_the_vectors_of_an_entry_are_counted(self, opened: Opener, embedding: Caller) -> None:
        embedding.put(NS, "several", {"notes": ["black coffee", "green tea"]}, search_fields=["notes[*]"])
        embedding.put(NS, "one", {"notes": "a walk"})
        embedding.put(NS, "none", {"notes": "a walk"}, search_fields=False)
        embedding.files(NS).write("/file.txt", b"a walk")
        opened().put(NS, "plain", {"notes": "a walk"})
        embedding.put((*NS, "below"), "k", {"notes": "a walk"})
        embedding.put(NS, "gone", {"notes": "a walk"})
        embedding.delete(NS, "gone")
        expected = {"several": 2, "one": 1, "none": 0, "/file.txt": 0, "plain": 0, "gone": 0, "k": 0}
        assert {key: self.count_vectors(embedding, key) for key in expected} == expected
        embedding.put(NS, "several", {"notes": ["black coffee"]}, search_fields=["notes[*]"])
        assert self.count_vectors(embedding, "several") == 1

    def count_vectors(self, store: Caller, key: str) -> int:
        return face_api.run(store.store, face_api.count_vectors(NS, key))

    # Written with their entry ----------------------------------------------------------------------------------------

    def test_the_next_entry_of_a_key_does_not_inherit_vectors(self, opened: Opener, embedding: Caller) -> None:
        """In LangGraph's stores a deleted item left its vectors, which the next item with that key had."""
        plain = opened()
        embedding.put(NS, "k", {"text": "green tea"})
        embedding.delete(NS, "k")
        plain.put(NS, "k", {"text": "black coffee"})
        assert self.near(embedding, "green tea") == []
        embedding.put(NS, "k", {"text": "green tea"})
        embedding.put(NS, "k", {"text": "black coffee"}, search_fields=False)
        assert self.near(embedding, "green tea") == []

    def test_a_put_without_an_embedder_drops_the_old_vectors(
        self, opened: Opener, embedding: Caller, clock: Clock
    ) -> None:
        """Their text is no longer stored. `reindex` makes new vectors."""
        plain = opened()
        for key in "abcdef":
            embedding.put(NS, key, {"text": "green tea"}, ttl=5 if key == "f" else None)
        plain.put(NS, "a", {"text": "black coffee"})
        plain.update(NS, "b", lambda value: value)
        plain.execute([Delete(NS, "c"), Put(NS, "c", {"text": "green tea"}), Put(NS, "d", {}, search_fields=False)])
        assert sorted(self.near(embedding, "tea")) == ["e", "f"]
        clock.advance(6)
        assert self.near(embedding, "tea") == ["e"]
        plain.put(NS, "f", {"text": "green tea"})
        assert self.near(embedding, "tea") == ["e"]
        assert embedding.reindex() == 4
        assert sorted(self.near(embedding, "tea")) == ["a", "b", "c", "e", "f"]
        assert self.near(embedding, "black coffee", limit=1) == ["a"]
        assert embedding.reindex() == 0

    def test_puts_updates_and_batches_all_embed(self, embedding: Caller) -> None:
        embedding.put(NS, "put", {"text": "green tea"})
        embedding.update(NS, "update", lambda value: {"text": "green tea"}, default={})
        batch = [Put(NS, "one", {"text": "green tea"}), Put(NS, "two", {"text": "black tea"}), Delete(NS, "put")]
        embedding.execute([Check(NS, "put", embedding.get(NS, "put").version), *batch])
        assert sorted(self.near(embedding, "green tea")) == ["one", "two", "update"]
        with pytest.raises(Conflict):
            embedding.execute([Put(NS, "three", {"text": "green tea"}), Put(NS, "one", {}, expect=ABSENT)])
        with pytest.raises(Conflict):
            embedding.put(NS, "one", {"text": "coffee"}, expect=ABSENT)
        assert sorted(self.near(embedding, "green tea")) == ["one", "two", "update"]
        assert [hit.score for hit in embedding.search(query="green tea", mode="semantic", limit=2)] == [
            pytest.approx(1),
            pytest.approx(1),
        ]

    def test_vectors_cannot_be_brought_along(self, opened: Opener, embedding: Caller) -> None:
        embedding.put(NS, "k", {"text": "tea"})
        for store in (embedding, opened()):
            with pytest.raises(InvalidInput, match="vectors"):
                store.execute([Put(NS, "k", {"text": "tea"}, vectors=Vectors(1, (b"\x00" * 12,)))])
        assert self.near(embedding, "tea") == ["k"]

    # The embedder's call ---------------------------------------------------------------------------------------------

    def test_equal_texts_are_embedded_once_and_in_batches(self, opened: Opener, embedding: Caller) -> None:
        """Identical texts in one batch raised in LangGraph's stores."""
        model = Model()
        store = opened(embed=model)
        store.execute([Put(NS, str(n), {"text": f"note {n % 300}"}) for n in range(900)])
        assert sorted(model.texts) == sorted(f"note {n}" for n in range(300))
        assert max(len(texts) for texts in model.asked) <= 256
        assert store.search(NS, query="note 7", mode="semantic", limit=4)[2].score == pytest.approx(1)
        asked = len(model.asked)
        store.put(NS, "k", {"text": "note 7"}, search_fields=False)
        store.put(NS, "k", {"n": 5})
        store.delete(NS, "k")
        store.search(NS, query="note", mode="lexical")
        assert len(model.asked) == asked
        store.search(NS, query="note", mode="semantic")
        assert len(model.asked) == asked + 1

    def test_a_search_asks_the_model_for_no_more_than_the_query(self, opened: Opener, embedding: Caller) -> None:
        embedding.put(NS, "k", {"text": "tea"})
        model = Model()
        reader = opened(embed=model)
        for _ in range(3):
            assert self.near(reader, "tea") == ["k"]
        assert model.texts == ["tea"] * 3
        assert len(model.asked) == 4  # and once to identify the model

    def test_a_failing_embedder_fails_the_put_and_writes_nothing(self, opened: Opener, embedding: Caller) -> None:
        model = Model()
        store = opened(embed=model)
        store.put(NS, "k", {"text": "green tea"})
        before = store.get(NS, "k")
        model.fails_at = 0
        attempts: list[Callable[[], Any]] = [
            lambda: store.put(NS, "k", {"text": "coffee"}),
            lambda: store.update(NS, "k", lambda value: {"text": "coffee"}),
            lambda: store.execute([Put(NS, "other", {"n": 1}), Put(NS, "k", {"text": "coffee"})]),
            lambda: store.search(query="tea"),
            lambda: store.search(query="tea", mode="semantic"),
        ]
        for attempt in attempts:
            with pytest.raises(EmbeddingError, match="the model is out") as caught:
                attempt()
            assert isinstance(caught.value.__cause__, ConnectionError)
        assert (store.get(NS, "k"), store.count()) == (before, 1)
        store.put(NS, "unembedded", {"text": "coffee"}, search_fields=False)
        assert keys_of(store.search(query="tea", mode="lexical")) == ["k"]
        model.fails_at = None
        assert self.near(store, "tea") == ["k"]

    def test_others_can_write_while_a_model_embeds(self, opened: Opener, embedding: Caller) -> None:
        """LangGraph's stores embedded inside the open transaction."""
        other = opened(timeout=5).store

        def slow(texts: Sequence[str]) -> list[list[float]]:
            for text in texts:
                other.put(NS, "meanwhile", {"text": text})
                other.execute([Put(NS, "and this", {"n": 1}), Delete(NS, "and this")])
            return embed(texts)

        store = opened(embed=slow)
        store.put(NS, "k", {"text": "green tea"})
        assert store.get(NS, "meanwhile").value == {"text": "green tea"}
        store.execute([Put(NS, "k", {"text": "black tea"}), Put(NS, "k2", {"text": "white tea"})])
        assert store.get(NS, "meanwhile").value == {"text": "white tea"}
        store.search(query="camomile")
        assert store.get(NS, "meanwhile").value == {"text": "camomile"}
        other.delete(NS, "meanwhile")
        store.reindex()
        assert {"k", "k2"} <= set(self.near(store, "tea"))

    def test_an_update_embeds_what_is_written_in_the_end(self, opened: Opener, embedding: Caller) -> None:
        """Another writer commits while the model runs: the function and the model both run again."""
        other = opened().store
        disturbances = iter([{"text": "black"}])

        def disturbed(texts: Sequence[str]) -> list[list[float]]:
            if any("tea" in text for text in texts):
                for value in disturbances:
                    other.put(NS, "k", value)
            return embed(texts)

        store = opened(embed=disturbed)
        store.put(NS, "k", {"text": "green"})
        store.update(NS, "k", lambda value: {"text": value["text"] + " tea"})
        assert store.get(NS, "k").value == {"text": "black tea"}
        assert store.search(query="black tea", mode="semantic")[0].score == pytest.approx(1)

    def test_an_async_embedder_serves_async_callers(
        self, opened: Opener, embedding: Caller, runner: asyncio.Runner | None
    ) -> None:
        async def aembed(texts: Sequence[str]) -> list[list[float]]:
            await asyncio.sleep(0)
            return embed(texts)

        store = opened(embed=aembed)
        embedding.put(NS, "old", {"text": "green tea"})
        attempts: list[Callable[[], Any]] = [
            lambda: store.put(NS, "k", {"text": "tea"}),
            lambda: store.execute([Put(NS, "k", {"text": "tea"})]),
            lambda: store.search(query="tea"),
            lambda: store.reindex(),
        ]
        if runner is None:
            for attempt in attempts:
                with pytest.raises(InvalidInput, match="async"):
                    attempt()
            assert keys_of(store.search(query="tea", mode="lexical")) == ["old"]
            return
        for attempt in attempts:
            attempt()
        assert sorted(self.near(store, "tea")) == ["k", "old"]

    def test_bad_vectors_are_refused(self, opened: Opener, embedding: Caller) -> None:
        replies: list[Any] = [None, [], [[1.0]] * 3, "vectors", [[float("nan")] * 32], [["x"] * 32], [{}]]
        for number, reply in enumerate(replies):
            store = opened(embed=lambda texts, reply=reply: reply)
            with pytest.raises(EmbeddingError):
                store.put(NS, str(number), {"text": "tea"})
        assert embedding.count() == 0
        for bad in ({"embed": 5}, {"embed": "no such"}, {"embed": Model}, {"embed": embed, "metric": "manhattan"}):
            with pytest.raises(InvalidInput):
                opened(**bad)

    # Which model -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("other", [turned, longer])
    def test_another_model_is_refused_until_reindex(self, opened: Opener, embedding: Caller, other: Any) -> None:
        for n in range(250):
            embedding.store.put(NS, f"{n:03}", {"text": f"note {n}"})
        embedding.put(NS, "unindexed", {"text": "note"}, search_fields=False)
        changed = opened(embed=other)
        attempts: list[Callable[[], Any]] = [
            lambda: changed.put(NS, "k", {"text": "tea"}),
            lambda: changed.search(query="note"),
            lambda: changed.search(query="note", mode="semantic"),
            lambda: changed.scoped(NS).reindex(),
        ]
        for attempt in attempts:
            with pytest.raises(InvalidInput, match=r"another model .*reindex\(\)"):
                attempt()
        assert changed.get(NS, "k") is None
        assert len(changed.search(query="note", mode="lexical")) == 10
        reported: list[tuple[int, int]] = []
        assert changed.reindex(progress=lambda *numbers: reported.append(numbers)) == 250
        assert reported == sorted(reported)
        assert {total for _, total in reported} == {250}
        assert (reported[0][0], reported[-1][0]) == (0, 250)
        assert len(reported) > 2
        assert changed.search(query="note 7", mode="semantic")[0].key == "007"
        assert len(changed.search(query="note 7", mode="semantic", limit=1000)) == 250
        changed.put(NS, "new", {"text": "note 7"})
        assert self.near(changed, "note 7", limit=2) == ["new", "007"]
        with pytest.raises(InvalidInput, match="another model"):
            opened(embed=embed).put(NS, "k", {"text": "tea"})
        assert changed.reindex() == 0

    def test_writing_with_a_replaced_model_is_refused(self, opened: Opener, embedding: Caller) -> None:
        embedding.put(NS, "k", {"text": "tea"})
        assert keys_of(embedding.search(query="tea", mode="semantic")) == ["k"]
        opened(embed=turned).reindex()
        with pytest.raises(InvalidInput, match="another model"):
            embedding.search(query="tea", mode="semantic")
        for _ in range(2):
            with pytest.raises(InvalidInput, match="another model"):
                embedding.put(NS, "k", {"text": "coffee"})
        assert embedding.get(NS, "k").value == {"text": "tea"}

    def test_reindexing_goes_on_where_it_was_interrupted(self, opened: Opener, embedding: Caller) -> None:
        plain = opened()
        plain.execute([Put(NS, f"{n:03}", {"text": f"note {n}"}) for n in range(350)])
        model = Model()
        store = opened(embed=model)
        model.fails_at = 4  # the probe, two slices, and no more
        with pytest.raises(EmbeddingError):
            store.reindex()
        done = len(self.near(embedding, "note", limit=1000))
        assert 0 < done < 350
        plain.put(NS, "000", {"text": "note 0 again"})  # behind where it stands
        plain.delete(NS, "340")
        model.fails_at, model.asked = None, []
        assert store.reindex() == 350 - done
        assert len(model.texts) == 350 - done
        assert len(self.near(embedding, "note", limit=1000)) == 349

    def test_an_entry_changed_during_reindex_keeps_the_vectors_of_its_writer(
        self, opened: Opener, embedding: Caller
    ) -> None:
        other = opened().store
        other.execute([Put(NS, key, {"text": f"green {key}"}) for key in ("tea", "paint", "grass")])

        def disturbed(texts: Sequence[str]) -> list[list[float]]:
            if "green tea" in texts:
                other.put(NS, "tea", {"text": "black coffee"})
                other.delete(NS, "paint")
            return embed(texts)

        assert opened(embed=disturbed).reindex() == 1
        assert self.near(embedding, "green") == ["grass"]
        assert embedding.reindex() == 1
        assert sorted(self.near(embedding, "green")) == ["grass", "tea"]

    def test_reindex_takes_the_paths_of_each_put(self, opened: Opener, embedding: Caller) -> None:
        plain = opened()
        value = {"title": "green tea", "body": "black coffee"}
        plain.put(NS, "all", value)
        plain.put(NS, "body", value, search_fields=["body"])
        plain.put(NS, "none", value, search_fields=False)
        plain.put(NS, "nowhere", value, search_fields=["nowhere"])
        plain.files(NS).write("/file", "green tea")
        assert embedding.reindex() == 2
        assert sorted(self.near(embedding, "green tea")) == ["all", "body"]
        assert embedding.search(query="black coffee", mode="semantic")[0].score == pytest.approx(1)

    def test_reindex_needs_an_embedder_and_an_open_store(self, opened: Opener, embedding: Caller) -> None:
        with pytest.raises(InvalidInput, match="embed="):
            opened().reindex()
        embedding.store.close()
        with pytest.raises(StoreClosed):
            embedding.reindex()

    # Views -----------------------------------------------------------------------------------------------------------

    def test_scopes_share_one_model_and_see_only_their_own(self, opened: Opener, embedding: Caller) -> None:
        one, two = embedding.scoped(("one",)), embedding.scoped(("two",))
        one.put(NS, "k", {"text": "green tea"})
        two.put(NS, "k", {"text": "green tea"})
        two.put((), "own", {"text": "green tea"})
        assert [hit.namespace for hit in one.search(query="green tea", mode="semantic")] == [NS]
        assert sorted(hit.namespace for hit in two.search(query="green tea", mode="hybrid")) == [(), NS]
        assert len(self.near(embedding, "green tea")) == 3
        with pytest.raises(InvalidInput, match="another model"):
            opened(embed=longer).scoped(("three",)).put(NS, "k", {"text": "tea"})
        plain = opened().scoped(("one",))
        plain.put(NS, "new", {"text": "green tea"})
        opened().put(("two",), "new", {"text": "green tea"})
        assert two.reindex() == 1
        assert one.reindex() == 1
        assert (len(self.near(one, "tea")), len(self.near(two, "tea"))) == (2, 3)

    def test_a_view_has_an_embedder_of_its_own(
        self, opened: Opener, embedding: Caller, runner: asyncio.Runner | None
    ) -> None:
        plain = opened()
        view = Caller(plain.store.with_embedder(embed, search_fields=["title"], metric="dot"), runner)
        view.put(NS, "k", {"title": "green tea", "body": "black coffee"})
        assert self.near(view, "tea") == ["k"]
        assert view.search(query="green tea")[0].score is not None
        assert keys_of(plain.search(query="tea")) == ["k"]
        assert keys_of(plain.search(query="coffee")) == []
        with pytest.raises(InvalidInput, match="embed="):
            plain.search(query="tea", mode="semantic")
        assert [hit.namespace for hit in view.scoped(NS).search(query="tea", mode="semantic")] == [()]
        refused: list[dict[str, Any]] = [{"dims": 0}, {"metric": "x"}, {"search_fields": []}]
        for bad in refused:
            with pytest.raises(InvalidInput):
                plain.store.with_embedder(embed, **bad)
        with pytest.raises(InvalidInput):
            plain.store.with_embedder("no such")
        view.store.close()
        assert plain.get(NS, "k") is not None
        with pytest.raises(StoreClosed):
            view.put(NS, "k", {"title": "tea"})
