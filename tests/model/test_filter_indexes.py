"""Which fields an index would serve a filter with."""

from __future__ import annotations

from typing import Any

import pytest

from holdall.model import filters
from holdall.model.filter_indexes import find_covers, list_fields


@pytest.mark.parametrize(
    ("filter", "fields"),
    [
        ({"a": 1, "b": {"$gt": 2}}, {"a": False, "b": True}),
        ({"user": {"id": 1}}, {"user.id": False}),
        ({"user.id": 1}, {"user.id": False}),
        ({"a.b": {"c": 1}}, {}),
        ({"a": {"b.c": 1}}, {}),
        ({"$or": [{"a": 1}, {"b": 2}]}, {"a": False, "b": False}),
        ({"$or": [{"a": 1}, {"b": {"$ne": 2}}]}, {}),
        ({"a": None, "b": {"$exists": True}, "c": {"$contains": 1}, "d": {"$ne": 1}, "e": [1]}, {}),
        ({"content": "x"}, {}),
        ({"a": float("nan")}, {}),
    ],
)
def test_fields_that_an_index_serves(filter: dict[str, Any], fields: dict[str, bool]) -> None:
    assert list_fields(str(filters.encode(filter))) == fields


def test_a_cover_has_only_indexed_fields() -> None:
    filter = str(filters.encode({"a": 1, "$or": [{"b": 2}, {"c": 3}]}))
    assert [[name for name, _ in cover] for cover in find_covers(filter, {"b", "c"}.__contains__)] == [["b", "c"]]
    assert find_covers(filter, {"b"}.__contains__) == []
