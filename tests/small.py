"""Thresholds made small, so that a handful of entries goes the ways that only thousands go otherwise."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

from hypothesis import settings

from holdall import ranking, search
from holdall.engines import memory_search, postings, redis_search, redis_texts, redis_walks, sql_search, sql_texts

SMALL: dict[Any, dict[str, int]] = {
    ranking: {"FUSED": 4, "_FIRST_LOOK": 2, "_LARGEST_LOOK": 4},
    search: {"FUSED": 4},
    memory_search: {"FEW": 3, "_SPARE": 3},
    sql_search: {"FEW": 3, "_PAGE": 2},
    sql_texts: {"_SLICE_BYTES": 200, "_FEW_CHANGES": 3, "_FEW_BYTES": 100, "_PAGE": 2},
    postings: {"PART": 4, "_SPARE": 6},
    redis_texts: {"_SLICE": 3, "_SLICE_BYTES": 200, "_FEW_CHANGES": 3, "_FEW_BYTES": 100, "_PAGE": 2},
    redis_search: {"FEW": 3, "_PAGE": 2},
    redis_walks: {"FEW": 3, "_FIRST_PAGE": 2, "_LARGEST_PAGE": 3, "_FEED_PAGE": 2},
}


def in_small(machine: Any, share: float = 1) -> type[unittest.TestCase]:
    """A state machine's test, run with all of that."""

    class Small(fewer(machine, share)):  # type: ignore[misc]  # a class that is made here
        @classmethod
        def setUpClass(cls) -> None:
            for module, numbers in SMALL.items():
                patch = mock.patch.multiple(module, **numbers)
                patch.start()
                cls.addClassCleanup(patch.stop)

    return Small


def fewer(machine: Any, share: float = 0.4) -> type[unittest.TestCase]:
    """A state machine's test, of this share of the usual examples: a server takes its time."""

    class Fewer(machine.TestCase):  # type: ignore[misc]  # made by Hypothesis
        settings = settings(
            machine.TestCase.settings, max_examples=round(settings.default.max_examples * share), deadline=None
        )

    return Fewer
