"""User code that mypy must accept in strict mode, and mistakes that it must refuse. `make check` reads it.

An expected error is a `type: ignore` with its code; where mypy no longer finds the error, it says that the comment is
unused.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, assert_type

import ag2
import ag2.knowledge
import langgraph.store.base

import holdall
from holdall.faces.ag2 import (
    DefaultBootstrap,
    HoldallKnowledgeStore,
    KnowledgeStore,
    LockedKnowledgeStore,
    Locks,
    MemoryKnowledgeStore,
    SqliteKnowledgeStore,
)
from holdall.faces.conversations import BaseStoreRepository, Conversation, ConversationRepository
from holdall.faces.langgraph import AsyncHoldallStore, HoldallStore, import_from
from holdall.ops import Check, Delete, Get, Put


@dataclasses.dataclass
class Note:
    text: str


def increment(value: dict[str, Any]) -> dict[str, Any]:
    return {"n": value["n"] + 1}


async def increment_later(value: dict[str, Any]) -> dict[str, Any]:
    return {"n": value["n"] + 1}


def sync_code() -> None:
    with holdall.open("agent.db", ttl=60, filter_fields=["type"], durability="relaxed") as store:
        entry = store.put(("notes",), "a", {"text": "x"}, expect=holdall.ABSENT)
        assert_type(entry, holdall.Entry)
        store.put(("notes",), "b", Note("x"), ttl=None, expect=entry)
        assert_type(store.get(("notes",), "a"), holdall.Entry | None)
        assert_type(store.search(("notes",), filter={"text": "x"}), holdall.Page[holdall.Hit])
        assert_type(store.count(), int)
        assert_type(store.namespaces(max_depth=1), list[tuple[str, ...]])
        store.update(("notes",), "a", increment, default={"n": 0})
        batch = [Get(("notes",), "a"), Put(("notes",), "a", {}), Delete(("notes",), "b"), Check(("notes",), "c", 1)]
        assert_type(store.execute(batch), list[Any])
        for found in store.scan():
            assert_type(found, holdall.Entry)
        assert_type(store.scoped(("tenant",)), holdall.Store)
        assert_type(store.cursor(), str)
        for change in store.watch(("notes",), since=store.cursor()):
            assert_type(change, holdall.Change)
        with store.lease("name", 30, wait=timedelta(seconds=5)) as lease:
            assert_type(lease, holdall.Lease)
            store.put(("notes",), "a", {}, lease=lease)
            store.files().write("/a", "text", lease=lease)
    holdall.open("postgresql://localhost", schema="agents", pool_max=5)


async def async_code() -> None:
    async with holdall.open("agent.db") as store:
        assert_type(await store.aput(("notes",), "a", {"text": "x"}), holdall.Entry)
        assert_type(await store.aget(("notes",), "a"), holdall.Entry | None)
        await store.aupdate(("notes",), "a", increment_later, default={"n": 0})
        async with store.alease("name", 30) as lease, store.files().awatch("/notes") as changes:
            assert_type(await store.aput(("notes",), "a", {}, lease=lease), holdall.Entry)
            assert_type(await anext(changes), holdall.Change)
        async for found in store.ascan():
            assert_type(found, holdall.Entry)


def with_langgraph() -> None:
    with HoldallStore.from_conn_string("agent.db", ttl={"default_ttl": 5}) as store:
        assert_type(store, HoldallStore)
        assert_type(store.get(("notes",), "a"), langgraph.store.base.Item | None)
        assert_type(store.search(("notes",), query="x"), list[langgraph.store.base.SearchItem])
        assert_type(import_from("theirs.db", store).imported, int)
        base: langgraph.store.base.BaseStore = store
        repository: BaseStoreRepository = ConversationRepository(base)
        assert_type(repository.get(("a",), "k"), dict[str, Any] | None)


async def with_langgraph_later() -> None:
    async with AsyncHoldallStore.from_conn_string("agent.db") as store:
        assert_type(store, AsyncHoldallStore)
        assert_type(await store.sweep_ttl(), int)
    repository = ConversationRepository(store)
    assert_type(await repository.aconversations("ada"), list[Conversation])
    assert_type(repository.store, HoldallStore)


async def with_ag2() -> None:
    stores: list[ag2.knowledge.KnowledgeStore] = [MemoryKnowledgeStore(), SqliteKnowledgeStore("a.db")]
    ours: list[KnowledgeStore] = [ag2.knowledge.MemoryKnowledgeStore(), LockedKnowledgeStore(stores[0])]
    bootstrap: ag2.knowledge.StoreBootstrap = DefaultBootstrap()
    await bootstrap.bootstrap(ours[0], "ada")
    store = HoldallKnowledgeStore("agent.db", namespace=("agents", "ada"))
    ag2.KnowledgeConfig(store=store, bootstrap=bootstrap)
    ag2.KnowledgeConfig(store=LockedKnowledgeStore(store, Locks(store.store)))
    assert_type(await store.read("/a"), str | None)
    subscription: ag2.knowledge.ChangeSubscription = await store.on_change("/", changed)
    await subscription.close()


async def changed(path: str) -> None:
    assert_type(path, str)


def mistakes(store: holdall.Store) -> None:
    holdall.open("agent.db", durabilty="full")  # type: ignore[call-arg]  # no such option
    holdall.open("agent.db", durability="fulll")  # type: ignore[arg-type]  # no such durability
    store.put("notes", "a", {})  # type: ignore[arg-type]  # no tuple
    store.put(("notes",), 5, {})  # type: ignore[arg-type]  # no text
    store.put(("notes",), "a", "text")  # type: ignore[arg-type]  # no dict
    store.put(("notes",), "a", {}, expect=None)  # type: ignore[arg-type]  # a forgotten read
    store.put(("notes",), "a", {}, lease="name")  # type: ignore[arg-type]  # no Lease
    store.update(("notes",), "a", lambda value: 5)  # type: ignore[arg-type, return-value]  # no dict
    store.execute([holdall.ops.Sweep()])  # type: ignore[list-item]  # no op of users'
