"""Ops and results as Python objects: frozen, compared by their fields, and ops as plain data that msgspec encodes."""

from __future__ import annotations

import copy
import pickle
import pprint
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any, Union

import msgspec
import pytest
from pydantic import TypeAdapter

import holdall
from holdall import engine, ops
from holdall.model import file_values, filters, keys, values
from holdall.runtime import signals
from holdall.search import vectors

PUT = ops.Put(("a",), "k", {"n": 1}, ttl=3)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
ENTRY = ops.Entry(("a",), "k", {"n": 1}, 7, NOW, NOW)
THINGS: list[Any] = [PUT, ENTRY, ops.Get(("a",), "k"), ops.Refresh(("a",), "k"), ops.Search(("a",)), ops.Maintain()]


@pytest.mark.parametrize("thing", THINGS)
def test_each_is_frozen(thing: Any) -> None:
    name = type(thing).__match_args__[0]
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


def test_replace_makes_a_changed_copy() -> None:
    assert ops.replace(PUT, key="l") == ops.Put(("a",), "l", {"n": 1}, ttl=3)
    with pytest.raises(TypeError):
        ops.replace(PUT, keys="l")


def test_a_result_can_be_named_in_a_pydantic_model() -> None:
    adapter = TypeAdapter(list[holdall.Entry])
    assert adapter.validate_json(adapter.dump_json([ENTRY])) == [ENTRY]


FILTER = filters.encode(
    {"stars": {"$gte": 3, "$lt": float("inf")}, "$or": [{"id": 2**80}, {"name": {"$in": ["é", None]}}]}
)
VECTORS = ops.Vectors(3, (b"\x00\x01", b"\xff"), "dot")
#: Each op as an engine receives it, with every field given somewhere.
OPS: list[ops.Op] = [
    ops.Get(("a",), "k"),
    ops.Put(("a",), "k", values.encode({"n": 1}), None, ops.ABSENT, '["title"]', VECTORS),  # type: ignore[arg-type]
    ops.Put(("a",), "/k", ops.File(file_values.NATIVE, b"\x00\xff"), 2.5, 7),
    ops.Put(keys.Resolved(("a", "b")), "k", values.encode({}), ops.KEEP),  # type: ignore[arg-type]
    ops.Delete(("a",), "k", 7, '{"author":"a"}'),
    ops.Check(("a",), "k", ops.ABSENT),
    ops.Refresh(("a",), "k"),
    ops.Backdate(("a",), "k", 1, 2, 3),
    ops.DeleteTree(("a",), "/b"),
    ops.Append(("a",), "/k", b"\xff", ops.ANY, 3.0),
    ops.ReadRange(("a",), "/k", 1, 9, 7),
    ops.SetHistory(3.5),
    ops.PurgeHistory(9),
    ops.Forget(("a",), "k", True, 9),
    ops.Scrub(True),
    ops.GetVersion(("a",), "k", 7, False),
    ops.ListVersions(((("a",), "k"),), 7, 9),
    ops.SetChange(("a",), "k", 5, "expire", "{}"),
    ops.ListPast(("a",), "c", (("a", "b"), "k"), 9, False, "k", "/f/"),
    ops.ListPast(("a",), 5),
    ops.Stat(("a",), "/k"),
    ops.CheckPath(("a",), "/k"),
    ops.Move(("a",), "/k", "/l", ("b",), None),
    ops.MoveSlice(("a",), "/k", "/l", "/k/a", 9),
    ops.Copy(("a",), "/k", "/l"),
    ops.GetSearchFields(("a",), "k"),
    ops.CountVectors(("a",), "k"),
    ops.Embed(("a",), "k", 7, VECTORS),
    ops.Remember(("a",), "k", 3, 600.0, 7),
    ops.IndexTexts(9),
    ops.Maintain(9),
    ops.LearnFields(("a.b",), ("a.b",), (("a.b", 3),), 1, 9),
    ops.ReadStats(("a",)),
    ops.Sweep(9, ("a",)),
    ops.PurgeTombstones(1.5, 3),
    ops.Search(("a",), FILTER, 5, 2, "c", False, 'green "tea"', ops.Vector(3, b"\xff", "l2"), True, True, True, 0.3),
    ops.IndexOrder(),
    ops.Unembedded(3, ("a",), (("a", "b"), "k"), 9),
    ops.Count(("a",), FILTER, False, 3),
    ops.Namespaces(("a", "*"), ("b",), 3, 9, 2, ("c",)),
    ops.Scan(("a",), (("a", "b"), "k"), 9),
    ops.Changes(("a",), "c", 9, "/k"),
    ops.Records(("n",), (("n",), "k"), 5),
    ops.ChangedRecords(("n",), "57", 5),
    ops.FindFaults(),
    ops.RepairFaults(),
    ops.Children(("a",), "/", "/b", 9, True, "/**/*.{md,txt}", True),
    ops.Grep(("a",), "/", ("tea", "é"), True, "/b", "*.md"),
]
KINDS = {
    kind
    for kind in vars(ops).values()
    if isinstance(kind, type) and issubclass(kind, ops.Op) and kind not in (ops.Op, ops.PointOp)
}


def test_the_list_of_ops_is_complete() -> None:
    assert {type(op) for op in OPS} == KINDS


@pytest.mark.parametrize("codec", [msgspec.msgpack, msgspec.json], ids=["msgpack", "json"])
def test_every_op_survives_a_msgspec_round_trip(codec: Any) -> None:
    sent = codec.encode(OPS)
    received = codec.decode(sent, type=list[Union[tuple(KINDS)]])  # noqa: UP007  # made of a set
    assert received == OPS
    assert [type(op) for op in received] == [type(op) for op in OPS]


def test_a_decoded_filter_matches_as_before() -> None:
    search = msgspec.msgpack.decode(msgspec.msgpack.encode(ops.Search((), FILTER)), type=ops.Search)
    assert filters.matches(search.filter, {"stars": 4, "id": 2**80})
    assert not filters.matches(search.filter, {"stars": 2, "id": 2**80})


def test_ops_exports_what_users_may_put_in_a_batch_and_engine_all_others() -> None:
    every = {name for name, op in vars(ops).items() if isinstance(op, type) and issubclass(op, ops.Op)} - {"Op"}
    for_users = {op.__name__ for op in ops.POINT_OPS}
    assert every & set(ops.__all__) == for_users | {"PointOp"}
    assert every - for_users - {"PointOp"} <= set(engine.__all__)
    assert all(hasattr(engine, name) for name in engine.__all__)


def test_keep_is_exported_beside_default() -> None:
    assert holdall.KEEP is ops.KEEP
    assert {"KEEP", "DEFAULT"} <= set(holdall.__all__)


def test_what_engine_authors_need_is_exported_without_importing_numpy() -> None:
    assert engine.Matrix is vectors.Matrix
    assert engine.restart_if_signaled is signals.restart_if_signaled
    code = "import sys, holdall.engine; assert 'numpy' not in sys.modules; holdall.engine.Matrix; sys.modules['numpy']"
    subprocess.run([sys.executable, "-c", code], check=True)
