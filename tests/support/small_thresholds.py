"""Small thresholds, so that a few entries use the code that otherwise only thousands use."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

from hypothesis import settings

from holdall.engines.memory import engine as memory
from holdall.engines.memory import ranker as memory_search
from holdall.engines.postgres import entries as postgres_entries
from holdall.engines.postgres import ranker as postgres_search
from holdall.engines.postgres.indexes import background as postgres_indexes
from holdall.engines.redis import walks
from holdall.engines.redis.search import postings
from holdall.engines.redis.search import ranker as redis_search
from holdall.engines.redis.search import text_index as redis_texts
from holdall.engines.sql import bounded_reads, feed
from holdall.engines.sql import ranker as sql_search
from holdall.engines.sql import text_index as sql_texts
from holdall.engines.sqlite import dialect as sqlite_dialect
from holdall.engines.sqlite.vectors import ranker as sqlite_vectors
from holdall.files import large_moves
from holdall.search import ranking, scoring
from holdall.search.segments import arrays, merging, plain
from holdall.search.segments import state as segments
from holdall.search.vector_index import building, index

SMALL: dict[Any, dict[str, float]] = {
    ranking: {"_FIRST_LOOK": 2, "_LARGEST_LOOK": 4, "SPARE": 1, "LENDERS": 3, "WINDOW": 2},
    scoring: {"FUSED_SHORT": 3, "FUSED": 5, "SHORT_PAGE": 2},
    memory_search: {"FEW": 3, "_SPARE": 3},
    memory: {"PAGE_BYTES": 30},
    bounded_reads: {"_SMALL": 6, "PAGE_BYTES": 30, "_LARGEST_PAGE": 8},
    large_moves: {"LARGE_FOLDER": 1, "_SMALLEST_SLICE": 1, "_LARGEST_SLICE": 2, "_PAGE": 2},
    feed: {"LARGE_TREE": 1, "_LARGEST_SLICE": 2},
    sql_search: {"FEW": 3, "FEW_ENTRIES": 1, "_PAGE": 2, "_LOOKED_AT": 3},
    postgres_entries: {"MOST_EXACT": 3},
    postgres_search: {"MOST_EXACT": 3, "_MIN_ROWS": 2, "_SPARE_ROWS": 1, "_MOST_APPROXIMATE": 5},
    postgres_indexes: {"MOST_EXACT": 3, "_QUIET": 0, "_PAUSE": 0},
    sql_texts: {
        "_SLICE_BYTES": 200,
        "_FEW_CHANGES": 3,
        "_FEW_BYTES": 100,
        "_PAGE": 2,
        "_DELETED": 3,
        "FEW_ENTRIES": 1,
        "_CACHE_BYTES": 1000,
    },
    segments: {"PART": 4, "MOST_PARTS": 3, "SMALL": 4, "FACTOR": 2, "PAGE": 3, "CLAIM": 0, "SPARE": 4},
    merging: {"BLOCK": 20, "STEP": 6},
    arrays: {"FIRST_SORTED": 2, "_SHORT": 3},
    plain: {"_FIRST": 1, "_SAMPLE": 1, "_SAMPLED": 1, "_LOOKED_UP": 1, "_FEW_FOUND": 2, "_MANY": 1},
    postings: {"PART": 4, "_SPARE": 6},
    sqlite_dialect: {"_DEAD_VERSIONS": 2, "_REMOVED_AT_ONCE": 1},
    sqlite_vectors: {
        "MOST_EXACT": 3,
        "_PAGE": 2,
        "_READ": 2,
        "_LONGEST_TAIL": 6,
        "_SAMPLE": 4,
        "_FITTING": 2,
        "_MOST_SCORED": 2,
        "_RUN": 2,
    },
    building: {"COMPARED": 4, "_PLAIN_CELL": 2, "_PIECE": 2},
    index: {"COMPARED": 4, "_SCANNED": 4, "_BOUNDED": 3},
    redis_texts: {"_SLICE": 3, "_SLICE_BYTES": 200, "_FEW_CHANGES": 3, "_FEW_BYTES": 100, "_PAGE": 2},
    redis_search: {"FEW": 3, "_PAGE": 2},
    walks: {"FEW": 3, "_FIRST_PAGE": 2, "_LARGEST_PAGE": 3, "_FEED_PAGE": 2, "PAGE_BYTES": 30},
}


def in_small(machine: Any, share: float = 1) -> type[unittest.TestCase]:
    """Return the test of a state machine, run with the small thresholds."""

    class Small(fewer(machine, share)):  # type: ignore[misc]  # a class that is made here
        @classmethod
        def setUpClass(cls) -> None:
            for module, numbers in SMALL.items():
                patch = mock.patch.multiple(module, **numbers)
                patch.start()
                cls.addClassCleanup(patch.stop)

    return Small


def fewer(machine: Any, share: float = 0.4) -> type[unittest.TestCase]:
    """Return the test of a state machine with a share of the usual examples, since servers are slow."""

    class Fewer(machine.TestCase):  # type: ignore[misc]  # made by Hypothesis
        settings = settings(
            machine.TestCase.settings, max_examples=round(settings.default.max_examples * share), deadline=None
        )

    return Fewer
