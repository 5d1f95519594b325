"""The Redis engine on a cluster of three nodes: the contract, and what differs because each root is on one node."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import holdall
from holdall.engines.redis.connections import slot_of
from holdall.errors import Conflict, InvalidInput, Unavailable
from holdall.ops import Check, Move, Put
from holdall.testing import Clock, StoreContract, contract, file_machine, ranking_machine
from support.extent import IS_SHORT
from support.servers import RedisCluster, redis_cluster_url
from support.threads import eventually

_numbers = itertools.count()


#: What meets the shards: all in the long form, and in the short one what each part asks of them in its own way.
PARTS: tuple[type, ...] = (
    contract.BatchContract,
    contract.FeedContract,
    contract.FileContract,
    contract.FindContract,
    contract.ItemContract,
    contract.LeaseContract,
    contract.LifetimeContract,
    contract.ListingContract,
    contract.ScopeContract,
    contract.SearchContract,
    contract.TreeContract,
    contract.WatchContract,
)
PARTS = PARTS if IS_SHORT else (StoreContract,)


class TestCluster(*PARTS):  # type: ignore[misc]  # chosen as it is imported
    @pytest.fixture
    def url(self) -> str:
        return f"contract{next(_numbers)}"  # a prefix for each test

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        return holdall.open(redis_cluster_url(), key_prefix=url, **options)


def open_store(folder: Path, clock: Clock) -> holdall.Store:
    return holdall.open(redis_cluster_url(), key_prefix=folder.name, clock=clock, sweep_interval=None)


if not IS_SHORT:
    TestFileMachine = file_machine(open_store).TestCase
    TestRanking = ranking_machine(open_store).TestCase
    for _machine in (TestFileMachine, TestRanking):
        _machine.settings = settings(_machine.settings, max_examples=10, deadline=None)
    del _machine  # or it would run once more

ROOTS = [f"root {number}" for number in range(40)]


@pytest.fixture
def store() -> Any:
    with holdall.open(redis_cluster_url(), key_prefix=f"own{next(_numbers)}", filter_fields=["n"]) as store:
        yield store


def test_slots_are_those_of_the_cluster() -> None:
    assert slot_of("a:{123456789}:b") == 12739  # from the specification of Redis Cluster


def test_roots_are_spread_over_the_nodes_and_read_as_one_store(store: holdall.Store) -> None:
    for number, root in enumerate(ROOTS):
        store.put((root, "below"), "k", {"n": number, "text": "tea"})
    shards = store._engine_handle.engine._shards  # type: ignore[attr-defined]  # Redis' own
    homes = {shards.connections.address_of(shards.slots[shards.of_namespace((root,))]) for root in ROOTS}
    assert len(homes) == 3
    assert [hit.namespace[0] for hit in store.search(limit=100)] == ROOTS[::-1]
    assert [entry.namespace[0] for entry in store.scan()] == sorted(ROOTS)
    assert store.namespaces(max_depth=1) == [(root,) for root in sorted(ROOTS)]
    assert store.count() == 40 == store.count(filter={"n": {"$gte": 0}})
    assert [hit.value["n"] for hit in store.search(filter={"n": {"$in": [7, 31]}})] == [31, 7]
    assert len(store.search(query="tea", limit=100)) == 40
    watch = store.watch(since=store.cursor())
    for root in ROOTS[:5]:
        store.delete_tree((root,))
    assert [next(watch).namespace[0] for _ in range(5)] == ROOTS[:5]
    watch.close()


def test_pages_of_all_roots_give_each_entry_once_while_others_write(store: holdall.Store) -> None:
    for root in ROOTS:
        store.put((root,), "k", {})
    seen: list[str] = []
    page = store.search(limit=7)
    while True:
        seen += [hit.namespace[0] for hit in page]
        if page.next is None:
            break
        store.put((ROOTS[len(seen) % 40], "more"), "k", {})
        page = store.search(limit=7, cursor=page.next)
    assert set(seen) == set(ROOTS)


def test_a_batch_that_spans_roots_is_refused_and_leaves_nothing(store: holdall.Store) -> None:
    kept = store.put(("a",), "k", {})
    for other in (Put(("b",), "k", {}), Check(("b",), "k", holdall.ABSENT), Move(("b",), "/x", "/y", ("a",))):
        with pytest.raises(InvalidInput, match="'a', 'b'"):
            store.execute([Put(("a",), "k", {"n": 1}), other])
    assert store.get(("a",), "k") == kept
    with store.lease("job", 10, namespace=("a",)) as lease:
        store.put(("a", "below"), "k", {}, lease=lease)
        with pytest.raises(InvalidInput, match="one root"):
            store.put(("b",), "k", {}, lease=lease)


def test_a_cluster_url_of_a_single_server_is_refused() -> None:
    from support.servers import redis_url

    with (
        pytest.raises(Unavailable, match="redis://"),
        holdall.open(redis_url().replace("redis://", "redis+cluster://")) as store,
    ):
        store.get(("a",), "k")


def test_a_single_server_url_of_a_cluster_node_is_refused() -> None:
    with RedisCluster() as cluster:
        refused = 0
        for node in cluster.nodes:  # one of them serves the slot
            try:
                with holdall.open(node.url, timeout=600) as store:
                    store.put(("a",), "k", {})
            except InvalidInput as error:
                assert "redis+cluster://" in str(error)
                refused += 1
        assert refused == 2


@pytest.mark.timed
def test_a_slot_that_moves_to_another_node_is_followed() -> None:
    """Key by key, in either order: while both nodes have keys of the slot, no read or write sees half of them."""
    with (
        RedisCluster() as cluster,
        holdall.open(cluster.url, timeout=0.05, sweep_interval=None) as hasty,
        holdall.open(cluster.url, timeout=30, sweep_interval=None) as patient,
        ThreadPoolExecutor(2) as pool,
    ):
        kept = patient.put(("a",), "k", {"n": 0})
        eventually(lambda: is_open(hasty))
        shards = hasty._engine_handle.engine._shards  # type: ignore[attr-defined]  # Redis' own
        slot = shards.slots[shards.of_namespace(("a",))]
        names = {node.port: node.ask("CLUSTER", "MYID") for node in cluster.nodes}
        for is_reversed in (False, True):
            port = shards.connections.address_of(slot)[1]
            [source] = [node for node in cluster.nodes if node.port == port]
            target = next(node for node in cluster.nodes if node is not source)
            target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source.port])
            source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target.port])
            moving = sorted(source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000), reverse=is_reversed)
            assert len(moving) > 5
            for number, key in enumerate(moving):
                source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", key)
                with contextlib.suppress(Unavailable):
                    assert hasty.get(("a",), "k") == kept
                with pytest.raises((Unavailable, Conflict)):
                    hasty.put(("a",), "k", {"n": -1}, expect=holdall.ABSENT)
                with pytest.raises((Unavailable, Conflict)):
                    hasty.execute([Put(("a",), f"new {number}", {}), Check(("a",), "k", holdall.ABSENT)])
            waiting = pool.submit(patient.put, ("a",), "k", {"n": 1}), pool.submit(patient.put, ("a",), "new", {})
            for node in (target, source):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[target.port])
            assert [put.result().value for put in waiting] == [{"n": 1}, {}]
            kept = patient.update(("a",), "k", lambda value: {"n": value["n"] + 1})
            assert kept.value == {"n": 2}
            assert patient.get(("a",), "k") == kept
            assert [entry.key for entry in patient.scan()] == ["k", "new"]
            assert hasty.get(("a",), "k") == kept
            assert shards.connections.address_of(slot)[1] == target.port


def is_open(store: holdall.Store) -> bool:
    try:
        return store.get(("a",), "k") is not None
    except Unavailable:
        return False


@pytest.mark.timed
def test_a_watch_goes_on_when_the_slot_of_its_root_moves_to_another_node() -> None:
    """The node that loses the slot ends the subscription, and says so in a message only."""
    with (
        RedisCluster() as cluster,
        holdall.open(cluster.url, timeout=20, sweep_interval=None) as store,
        holdall.open(cluster.url, timeout=30, sweep_interval=None) as other,
    ):
        notified = threading.Event()
        listener = store._engine_handle.engine.listen(notified.set)  # type: ignore[attr-defined]  # Redis has it
        try:
            other.put(("a",), "k", {})
            assert notified.wait(10)
            shards = store._engine_handle.engine._shards  # type: ignore[attr-defined]  # Redis' own
            slot = shards.slots[shards.of_namespace(("a",))]
            [source] = [node for node in cluster.nodes if node.port == shards.connections.address_of(slot)[1]]
            target = next(node for node in cluster.nodes if node is not source)
            names = {node.port: node.ask("CLUSTER", "MYID") for node in cluster.nodes}
            target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source.port])
            source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target.port])
            for key in source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000):
                source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", key)
            for node in (target, source):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[target.port])
            for number in range(3):
                time.sleep(0.3)  # it subscribes again, and notifies of that
                notified.clear()
                other.put(("a",), "k", {"n": number})
                assert notified.wait(2), "a write has notified nobody"
        finally:
            listener.close()


@pytest.mark.timed
@pytest.mark.not_short
def test_a_listener_notices_a_node_that_is_silent_while_others_are_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdall")
    monkeypatch.setattr("holdall.engines.redis.listener._PING_INTERVAL", 0.1)
    with RedisCluster() as cluster, holdall.open(cluster.url, timeout=20, sweep_interval=None) as store:
        listener = store._engine_handle.engine.listen(lambda: None)  # type: ignore[attr-defined]  # Redis has it
        try:
            shards = store._engine_handle.engine._shards  # type: ignore[attr-defined]  # Redis' own
            store.put(("a",), "k", {})
            port = shards.connections.address_of(shards.slots[shards.of_namespace(("a",))])[1]
            frozen = next(node for node in cluster.nodes if node.port != port)
            time.sleep(0.3)
            assert not caplog.messages
            frozen.freeze()
            until = time.monotonic() + 1
            while not caplog.messages and time.monotonic() < until:
                store.put(("a",), "k", {})
                time.sleep(0.02)
            frozen.thaw()
            assert any("does not reply to PING" in message for message in caplog.messages)
        finally:
            listener.close()


@pytest.mark.timed
def test_a_read_of_all_roots_waits_for_a_node_that_does_not_answer_no_longer_than_it_may() -> None:
    with RedisCluster() as cluster, holdall.open(cluster.url, timeout=0.5, sweep_interval=None) as store:
        store.put(("a",), "k", {})
        assert store.count() == 1
        shards: Any = store._engine_handle.engine._shards  # type: ignore[attr-defined]  # Redis' own
        deadlines: list[float] = []
        deadline = shards.make_deadline
        shards.make_deadline = lambda: deadlines.append(deadline()) or deadlines[-1]
        cluster.nodes[1].freeze()
        try:
            with pytest.raises(Unavailable):
                store.count()
            assert len(deadlines) == 1, "it was given its time again"
        finally:
            cluster.nodes[1].thaw()


@pytest.mark.timed
def test_a_node_that_is_gone_is_reported_and_recovered_from(caplog: pytest.LogCaptureFixture) -> None:
    """Its entries are unavailable until it is back, and no call hangs."""
    durable = RedisCluster("--appendonly", "yes", "--appendfsync", "always")
    with durable as cluster, holdall.open(cluster.url, timeout=0.3, sweep_interval=None) as store:
        for root in ROOTS:
            store.put((root,), "k", {"root": root})
        cluster.nodes[1].kill()
        failed = 0
        for root in ROOTS[:12]:
            try:
                assert store.get((root,), "k").value == {"root": root}  # type: ignore[union-attr]  # it is there
            except Unavailable:
                failed += 1
        assert failed > 0
        cluster.nodes[1].start()
        cluster.wait()
        assert {entry.namespace[0] for entry in store.scan()} == set(ROOTS)
        store.put((ROOTS[0],), "k", {"root": "again"})
