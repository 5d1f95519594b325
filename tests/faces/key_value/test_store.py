"""py-key-value's stores on every engine."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from hashlib import sha256

import pytest
from key_value.aio.errors import InvalidKeyError, SerializationError
from key_value.aio.protocols.key_value import AsyncKeyValue

import holdall
from holdall.errors import StoreClosed
from holdall.faces.key_value import HoldallKeyValue


def test_values_are_items_of_a_collection(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    async def main() -> None:
        store = HoldallKeyValue(any_store, namespace=place)
        assert isinstance(store, AsyncKeyValue)
        await store.put("k", {"a": 1}, collection="c")
        assert any_store.get((*place, "c"), "k").value == {"a": 1}  # type: ignore[union-attr]
        await store.put_many(["x", "y"], [{"n": 1}, {"n": 2}], collection="c", ttl=100)
        assert await store.get_many(["x", "missing", "y"], collection="c") == [{"n": 1}, None, {"n": 2}]
        value, ttl = await store.ttl("x", collection="c")
        assert value == {"n": 1} and ttl is not None and 90 < ttl <= 100
        assert await store.ttl("k", collection="c") == ({"a": 1}, None)
        assert await store.keys("c") == ["k", "x", "y"]
        assert await store.keys("c", limit=2) == ["x", "y"]
        await store.put("z", {}, collection="d")
        assert sorted(await store.collections()) == ["c", "d"]
        assert await store.delete_many(["x", "missing"], collection="c") == 1
        assert await store.destroy_collection("c") is True
        assert await store.destroy_collection("c") is False
        assert await store.destroy() is True
        assert any_store.count(place) == 0

    asyncio.run(main())


@pytest.mark.timed
def test_what_has_expired_is_gone() -> None:
    async def main() -> None:
        async with HoldallKeyValue("memory:") as store:
            await store.put("k", {"a": 1}, ttl=0.05)
            assert await store.get("k") == {"a": 1}
            await asyncio.sleep(0.1)
            assert await store.get("k") is None
            await store.cull()

    asyncio.run(main())


def test_what_cannot_be_stored_is_an_error_of_py_key_value() -> None:
    async def main() -> None:
        async with HoldallKeyValue("memory:") as store:
            with pytest.raises(SerializationError):
                await store.put("k", {"a": object()})
            with pytest.raises(SerializationError):  # it would be read as text
                await store.put("k", {"a": datetime.now(UTC)})
            with pytest.raises(SerializationError):  # all or none
                await store.put_many(["k", "l"], [{"a": 1}, {"a": object()}])
            assert await store.get("k") is None
            with pytest.raises(InvalidKeyError):
                await store.put("", {"a": 1})

    asyncio.run(main())


def test_it_closes_only_the_store_that_it_opened() -> None:
    async def main() -> None:
        async with HoldallKeyValue("memory:") as own:
            await own.put("k", {})
        with pytest.raises(StoreClosed):
            own.store.count()
        with holdall.open("memory:") as store:
            async with HoldallKeyValue(store) as shared:
                await shared.put("k", {})
            assert store.count() == 1

    asyncio.run(main())


def test_names_may_be_long(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    async def main() -> None:
        store = HoldallKeyValue(any_store, namespace=place)
        names = ["c" * 1500, "c" * 1501, "名" * 400, "c"]
        for name in names:
            await store.put(collection=name, key="k", value={"in": name})
            await store.put(collection="keys", key=name * 5, value={"is": name})
        for name in names:
            assert await store.get(collection=name, key="k") == {"in": name}
            assert await store.get(collection="keys", key=name * 5) == {"is": name}
        assert f"sha256:{sha256(b'c' * 7500).hexdigest()}" in await store.keys(collection="keys")
        for name in await store.collections():
            assert await store.destroy_collection(name)

    asyncio.run(main())
