"""Batches that no remote engine sends: they are refused, and do no harm."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

import holdall
from holdall import ops, wire
from server.conftest import connect

HERE = ("a",)
CLIENT = "0" * 32


def send(client: httpx.Client, *batch: ops.Op, slot: wire.Slot | None = None) -> httpx.Response:
    return client.post("/v1/engine", content=wire.encode(wire.Batch(list(batch), slot)))


def put(key: str, number: int = 1) -> ops.Put:
    return ops.Put(HERE, key, f'{{"n":{number}}}', None)  # type: ignore[arg-type]  # JSON, as a store has encoded it


BATCHES: dict[str, Callable[[int], ops.Op]] = {
    "GetVersion": lambda number: ops.GetVersion(HERE, "k", number),
    "ListVersions": lambda number: ops.ListVersions(((HERE, "k"),), before=number),
    "ListVersions, limit": lambda number: ops.ListVersions(((HERE, "k"),), limit=number),
    "ListPast": lambda number: ops.ListPast(HERE, number),
    "SetChange": lambda number: ops.SetChange(HERE, "k", number),
    "SetHistory": ops.SetHistory,
    "PurgeTombstones": ops.PurgeTombstones,
    "PurgeTombstones, limit": lambda number: ops.PurgeTombstones(0, number),
    "PurgeHistory": ops.PurgeHistory,
    "IndexTexts": ops.IndexTexts,
    "Sweep": ops.Sweep,
    "Forget": lambda number: ops.Forget(HERE, limit=number),
    "Children": lambda number: ops.Children(HERE, "/", limit=number),
    "Scan": lambda number: ops.Scan(HERE, limit=number),
    "Search": lambda number: ops.Search(HERE, limit=number),
    "Count": lambda number: ops.Count(HERE, unembedded=number),
    "Unembedded": ops.Unembedded,
    "Embed": lambda number: ops.Embed(HERE, "k", number, ops.Vectors(1, (b"\0" * 4,))),
    "Vectors": lambda number: ops.Put(HERE, "k", "{}", None, vectors=ops.Vectors(number, (b"\0" * 4,))),  # type: ignore[arg-type]  # JSON, as above
}


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("number", [2**64 - 1, 2**63, -(2**63), -1, 0])
def test_a_number_that_no_store_sends_is_refused_or_answered(client: httpx.Client, kind: str, number: int) -> None:
    """One is answered with 500, and a limit of 0 kept a thread of the server busy for ever."""
    send(client, put("k"))
    answer = send(client, BATCHES[kind](number))
    assert answer.status_code in ((200, 400, 410, 412) if number <= 0 else (400,)), answer.text


def test_a_filter_that_is_nested_too_deeply_is_refused(client: httpx.Client) -> None:
    assert send(client, ops.Search(HERE, filter='{"a":' * 20_000 + "1" + "}" * 20_000)).status_code == 400


def test_maintenance_that_a_server_does_for_itself_is_refused(client: httpx.Client) -> None:
    for op in (ops.Maintain(), ops.LearnFields(("n",)), ops.IndexOrder()):
        assert send(client, op).status_code == 400


@pytest.mark.parametrize("age", [0.0, 1.0])
def test_the_number_of_a_write_is_refused_for_another_write(
    client: httpx.Client, store: holdall.Store, age: float
) -> None:
    """It was answered with the results of the first write, and nothing was written."""
    first, again = wire.Slot(CLIENT, 0, 1), wire.Slot(CLIENT, 0, 1, None, age)
    answers = [send(client, put("k"), slot=first), send(client, put("k"), slot=again)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].content == answers[1].content
    for others in ([put("k", 2)], [put("other")], [put("k"), put("other")], [ops.Delete(HERE, "k")]):
        refused = send(client, *others, slot=again)
        assert refused.status_code == 400, refused.text
    assert [(entry.key, entry.value) for entry in store.scan()] == [("k", {"n": 1})]
    assert send(client, put("k"), slot=wire.Slot(CLIENT, 0, 2, 2**64 - 1)).status_code == 400


def test_tokens_of_two_scopes_do_not_share_the_numbers_of_writes(
    url: str, store: holdall.Store, new_token: Callable[..., str]
) -> None:
    slot = wire.Slot(CLIENT, 0, 1)
    for number, scope in enumerate((("one",), ("two",))):
        with connect(url, new_token(scope=scope)) as client:
            assert send(client, put("k", number), slot=slot).status_code == 200
    values = [store.get((scope, *HERE), "k") for scope in ("one", "two")]
    assert [None if entry is None else entry.value for entry in values] == [{"n": 0}, {"n": 1}]
