"""How a `HoldallStore` comes to its store: URLs, LangGraph's connection strings, stores, other faces."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

import holdall
from holdall.errors import InvalidInput, StoreClosed
from holdall.faces.langgraph import AsyncHoldallStore, HoldallStore, conn_strings
from support.servers import postgres_url

HOME = ("users", "ada")


def test_a_url_a_path_a_store_or_another_face(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with HoldallStore(path) as face:
        face.put(HOME, "k", {"n": 1})
        again = HoldallStore(face)
        assert again.store is face.store
        assert again.get(HOME, "k") == face.get(HOME, "k")
        again.close()
        assert face.get(HOME, "k") is not None, "who did not open it does not close it"
    with pytest.raises(StoreClosed):
        face.get(HOME, "k")
    with holdall.open(f"sqlite:///{path}") as store:
        with HoldallStore(store) as face:
            assert face.store is store
        assert store.get(HOME, "k") is not None
        scoped = HoldallStore(store.scoped(("users",)))
        assert scoped.list_namespaces() == [("ada",)]


@pytest.mark.parametrize("wrong", [7, object(), ["memory:"]])
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="URL"):
        HoldallStore(wrong)


def test_without_a_url_the_environment_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDALL_URL", str(tmp_path / "env.db"))
    with HoldallStore() as face:
        face.setup()
    assert (tmp_path / "env.db").exists()


def test_from_conn_string_is_a_context_manager_as_langgraphs_own(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    ttl: Any = {"default_ttl": 5, "refresh_on_read": False, "sweep_interval_minutes": 1}
    with HoldallStore.from_conn_string(path, ttl=ttl) as face:
        face.setup()
        face.put(HOME, "k", {"n": 1})
        assert face.ttl_config == ttl
    with pytest.raises(StoreClosed):
        face.get(HOME, "k")
    with HoldallStore.from_conn_string(path) as face:
        assert face.get(HOME, "k") is not None
    for memory in (":memory:", "memory:", ""):
        with HoldallStore.from_conn_string(memory) as one, HoldallStore.from_conn_string(memory) as other:
            one.put(HOME, "k", {})
            assert other.get(HOME, "k") is None


def test_async_from_conn_string_is_one_too(tmp_path: Path) -> None:
    async def use() -> None:
        async with AsyncHoldallStore.from_conn_string(str(tmp_path / "agent.db")) as face:
            await face.setup()
            await face.aput(HOME, "k", {"n": 1}, ttl=1)
            assert (await face.aget(HOME, "k")).value == {"n": 1}  # type: ignore[union-attr]  # it is there
            assert await face.sweep_ttl() == 0
            await asyncio.to_thread(face.put, HOME, "from a thread", {})
            assert face.get(HOME, "from a thread") is not None, "in the event loop itself, too"
        with pytest.raises(StoreClosed):
            await face.aget(HOME, "k")

    asyncio.run(use())


def test_postgres_by_url_and_by_settings() -> None:
    url = postgres_url()
    info = psycopg.conninfo.conninfo_to_dict(url)
    settings = " ".join(f"{name}='{value}'" for name, value in info.items() if value)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("DROP SCHEMA IF EXISTS holdall CASCADE")
    with HoldallStore.from_conn_string(url, pipeline=True, pool_config={"min_size": 1, "max_size": 3}) as face:
        face.setup()
        face.put(HOME, "k", {"n": 1})
        assert face.store._engine_handle.engine._own.pool_max == 3  # type: ignore[attr-defined]  # PostgreSQL's
    with HoldallStore.from_conn_string(settings) as face:
        assert face.get(HOME, "k") is not None
        face.store.delete_tree(HOME)


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ("host=db dbname=agents", {"host": ["db"], "dbname": ["agents"]}),
        (" user = ada  password='it''s' ", None),
        (r"password='it\'s a \\ secret' dbname=x", {"password": ["it's a \\ secret"], "dbname": ["x"]}),
        (r"host=a\ b", {"host": ["a b"]}),
        ("options='-c search_path=x&y'", {"options": ["-c search_path=x&y"]}),
        ("host=db nonsense", None),
    ],
)
def test_settings_become_a_url(settings: str, meant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(holdall, "open", lambda url, **_: opened.append(url))
    if meant is None:
        with pytest.raises(InvalidInput, match="connection string"):
            conn_strings.open_from(settings)
        return
    conn_strings.open_from(settings)
    [url] = opened
    assert url.startswith("postgresql://?")
    assert parse_qs(urlsplit(url).query) == meant
    assert psycopg.conninfo.conninfo_to_dict(url) == {name: value for name, [value] in meant.items()}


def test_a_pools_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(holdall, "open", lambda url, **options: opened.append((url, options)))
    kwargs = {"autocommit": True, "prepare_threshold": None, "row_factory": dict, "sslmode": "require"}
    config = {"min_size": 20, "max_size": None, "timeout": 3, "max_lifetime": 60, "kwargs": kwargs}
    conn_strings.open_from("postgresql://db/agents", config)
    conn_strings.open_from("agent.db", config)
    assert opened == [
        (
            "postgresql://db/agents?sslmode=require",
            {"pool_min": 20, "pool_max": 20, "pool_timeout": 3, "prepare": False},
        ),
        ("agent.db", {}),
    ]
    with pytest.raises(InvalidInput, match="nonsense"):
        conn_strings.open_from("postgresql://db", {"nonsense": 1})
