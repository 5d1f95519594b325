"""`reindex` says how far it is, and goes on where it was; on every engine, sync and async."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdall
from holdall.testing import embed
from support.stores import ENGINES, new_location, open_at

_schemas = itertools.count()


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdall.Store]:
    """251 entries without vectors that could have some, and two that could not."""
    with open_at(new_location(request.param, tmp_path)) as opened:
        opened.execute([holdall.ops.Put(("notes",), f"{n:03}", {"text": f"note {n}"}) for n in range(250)])
        opened.put(("other",), "with no text", {"number": 1})
        opened.put(("other",), "not to be found", {"text": "hidden"}, search_fields=False)
        opened.files(("other",)).write("/native", "text")
        yield opened


@pytest.mark.parametrize("awaited", [False, True])
def test_progress_gets_how_many_of_how_many(store: holdall.Store, awaited: bool) -> None:
    reports: list[tuple[int, int]] = []

    def reindex(on: holdall.Store) -> tuple[int, list[tuple[int, int]]]:
        reports.clear()

        def progress(done: int, total: int) -> None:
            reports.append((done, total))

        return asyncio.run(on.areindex(progress=progress)) if awaited else on.reindex(progress=progress), reports

    embedding = store.with_embedder(embed)
    assert reindex(embedding) == (250, [(0, 251), (100, 251), (200, 251), (251, 251)])
    assert reindex(embedding) == (0, [(0, 1), (1, 1)])  # the one that has no text
    assert reindex(embedding.scoped(("notes",))) == (0, [(0, 0), (0, 0)])
    store.put(("notes",), "new", {"text": "put without an embedder"})
    assert reindex(embedding.scoped(("notes",))) == (1, [(0, 1), (1, 1)])


def test_what_was_embedded_before_an_embedder_failed_is_not_embedded_again(store: holdall.Store) -> None:
    def fails(texts: list[str]) -> list[list[float]]:
        if "note 249" in texts:
            raise TimeoutError
        return embed(texts)

    with pytest.raises(holdall.errors.EmbeddingError):
        store.with_embedder(fails).reindex()
    assert store.with_embedder(embed).reindex() == 50


def test_a_search_writes_nothing_and_binds_a_store_to_no_model(store: holdall.Store) -> None:
    def end_of_feed() -> str:
        page: holdall.Page[holdall.Change] = store._engine_handle.engine.execute([holdall.ops.Changes(limit=0)])[0]
        assert page.next is not None
        return page.next

    end = end_of_feed()
    found = store.with_embedder(embed).search(query="note 17", limit=1)
    assert [hit.key for hit in found] == ["017"]
    assert store.with_embedder(embed).search(query="note 17", mode="semantic") == []
    two_dimensions = store.with_embedder(lambda texts: [[1.0, len(text)] for text in texts])
    assert two_dimensions.search(query="note", mode="semantic") == []
    assert end_of_feed() == end
    two_dimensions.put(("notes",), "with vectors", {"text": "note"})
    assert len(two_dimensions.search(query="note", mode="semantic")) == 1
    with pytest.raises(holdall.errors.InvalidInput, match="another model"):
        store.with_embedder(embed).search(query="note")
