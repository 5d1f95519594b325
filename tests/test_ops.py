"""What ops and results are to Python: frozen, compared by what they hold, and fit for `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import pprint
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter

import holdall
from holdall import ops

PUT = ops.Put(("a",), "k", {"n": 1}, ttl=3)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
ENTRY = ops.Entry(("a",), "k", {"n": 1}, 7, NOW, NOW)
THINGS: list[Any] = [PUT, ENTRY, ops.Get(("a",), "k"), ops.Refresh(("a",), "k"), ops.Search(("a",)), ops.Tidy()]


@pytest.mark.parametrize("thing", THINGS)
def test_each_is_frozen(thing: Any) -> None:
    name = dataclasses.fields(thing)[0].name
    with pytest.raises(AttributeError):
        setattr(thing, name, ())
    with pytest.raises(AttributeError):
        delattr(thing, name)
    with pytest.raises((AttributeError, TypeError)):
        thing.another = 1


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copy_is_equal_and_another_type_is_not(thing: Any, twin: Any) -> None:
    assert twin(thing) == thing
    assert repr(twin(thing)) == repr(thing)
    assert [other for other in THINGS if other == thing] == [thing]


def test_the_repr_is_how_it_is_made() -> None:
    assert repr(ops.Get(("a",), "k")) == "Get(namespace=('a',), key='k')"
    assert repr(ops.Check(("a",), "k", holdall.ABSENT)) == "Check(namespace=('a',), key='k', expect=holdall.ABSENT)"


def test_pprint_writes_a_long_one() -> None:
    long = ops.Put(("a",), "k", {"text": "word " * 40})
    assert pprint.pformat([long, long]).startswith("[Put(namespace=('a',), key='k', value={'text': 'word")


def test_ops_without_values_can_be_in_a_set_and_entries_too() -> None:
    assert len({ops.Get(("a",), "k"), ops.Get(("a",), "k"), ops.Get(("a",), "l"), ENTRY, ENTRY}) == 3


def test_ops_match_by_place() -> None:
    match PUT:
        case ops.Put(namespace, key, value):
            assert (namespace, key, value) == (("a",), "k", {"n": 1})
        case _:
            pytest.fail("no match")


def test_dataclasses_takes_an_op_for_one_of_its_own() -> None:
    assert dataclasses.is_dataclass(PUT)
    assert dataclasses.is_dataclass(ops.Put)
    assert [field.name for field in dataclasses.fields(ops.Put)][:4] == ["namespace", "key", "value", "ttl"]
    defaults = {field.name: field.default for field in dataclasses.fields(ops.Delete)}
    assert defaults == {"namespace": dataclasses.MISSING, "key": dataclasses.MISSING, "expect": holdall.ANY}
    assert dataclasses.replace(PUT, key="l") == ops.Put(("a",), "l", {"n": 1}, ttl=3)
    assert [field.type for field in dataclasses.fields(ops.Get)] == ["Namespace", "str"]
    assert dataclasses.asdict(ops.Get(("a",), "k")) == {"namespace": ("a",), "key": "k"}


def test_dataclasses_takes_an_op_of_ones_own() -> None:
    class Audited(ops.Get, frozen=True):
        by: str = "nobody"

    assert [field.name for field in dataclasses.fields(Audited)] == ["namespace", "key", "by"]
    assert dataclasses.replace(Audited(("a",), "k"), by="me") == Audited(("a",), "k", "me")


def test_a_result_can_be_named_in_a_pydantic_model() -> None:
    adapter = TypeAdapter(list[holdall.Entry])
    assert adapter.validate_json(adapter.dump_json([ENTRY])) == [ENTRY]
