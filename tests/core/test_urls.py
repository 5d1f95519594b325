"""From a URL to a store: what is understood, what is refused, what is shared."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall import ops
from holdall.errors import InvalidInput, MissingExtra, SchemaTooNew


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDALL_URL", raising=False)


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:///agent.db", "agent.db"),
        ("sqlite:///data/agent.db", "data/agent.db"),
        ("SQLite:///agent.db", "agent.db"),
        ("agent.db", "agent.db"),
        ("./a b#c%20é.db", "a b#c%20é.db"),
        (Path("agent.db"), "agent.db"),
    ],
    ids=str,
)
def test_relative_urls_and_paths_name_a_file_here(url, file, tmp_path):
    with holdall.open(url) as store:
        store.put(("a",), "k", {})
    assert (tmp_path / file).is_file()


def test_four_slashes_are_an_absolute_path(tmp_path):
    with holdall.open(f"sqlite:///{tmp_path}/deep/down/agent.db") as store:
        store.put(("a",), "k", {})
    assert (tmp_path / "deep" / "down" / "agent.db").is_file()


def test_without_a_url_the_environment_variable_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDALL_URL", "sqlite:///from-env.db")
    with holdall.open() as store:
        store.put(("a",), "k", {})
    assert (tmp_path / "from-env.db").is_file()


def test_no_url_at_all_is_an_error_that_names_both_ways():
    with pytest.raises(InvalidInput, match="HOLDALL_URL"):
        holdall.open()


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("mongodb://localhost", "mongodb"),
        ("sqlite:", "sqlite:///agent.db"),
        ("sqlite://", "sqlite:///agent.db"),
        ("sqlite:agent.db", "sqlite:///agent.db"),
        ("sqlite://agent.db", "sqlite:///agent.db"),
        ("sqlite:///", "memory:"),
        ("sqlite:///:memory:", "memory:"),
        (":memory:", "memory:"),
        ("sqlite:///agent.db?mode=ro", "keyword arguments"),
        ("", "non-empty"),
        ("a\x00b", "NUL"),
        ("a\ud800b", "surrogates"),
        (5, "not int"),
        (b"agent.db", "str"),
        (".", "folder"),
    ],
    ids=repr,
)
def test_bad_urls_are_refused_before_anything_is_made(url, word, tmp_path):
    with pytest.raises(InvalidInput, match=word):
        holdall.open(url)
    assert list(tmp_path.iterdir()) == []


def test_opening_connects_on_first_use_only(tmp_path):
    store = holdall.open("agent.db")
    assert list(tmp_path.iterdir()) == []
    store.put(("a",), "k", {})
    assert (tmp_path / "agent.db").is_file()
    store.close()


def test_setup_and_context_managers_connect_at_once(tmp_path):
    with holdall.open("one.db"):
        assert (tmp_path / "one.db").is_file()
    store = holdall.open("two.db")
    store.setup()
    assert (tmp_path / "two.db").is_file()
    store.close()


def test_stores_on_one_file_share_one_engine_however_it_is_named(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "agent.db")
    stores = [holdall.open(url) for url in ("agent.db", f"sqlite:///{tmp_path}/agent.db", "link.db")]
    assert len({id(store._engine_handle.engine) for store in stores}) == 1
    stores[0].put(("a",), "k", {})
    stores[0].close()
    assert stores[1].get(("a",), "k") is not None
    for store in stores:
        store.close()


def test_stores_with_other_options_have_engines_of_their_own():
    with holdall.open("agent.db") as full, holdall.open("agent.db", durability="relaxed") as relaxed:
        assert full._engine_handle.engine is not relaxed._engine_handle.engine
        full.put(("a",), "k", {"n": 1})
        assert relaxed.get(("a",), "k").value == {"n": 1}


@pytest.mark.parametrize(
    "fields", [["a'b"], ['a"b'], ["a\\b"], [""], ["a..b"], ["."], ["a\x00b"], ["a\ud800b"]], ids=repr
)
def test_fields_that_cannot_be_indexed_are_refused(fields):
    with pytest.raises(InvalidInput, match="filter_fields"):
        holdall.open("agent.db", filter_fields=fields)


def test_a_missing_package_is_an_error_that_names_what_to_install():
    code = """
import sys
sys.modules["apsw"] = None
import holdall
try:
    holdall.open("agent.db")
except holdall.errors.MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'holdall'" in done.stdout
    assert "apsw" in done.stdout


@pytest.mark.parametrize(
    "opening",
    [
        "holdall.open('memory:', embed=len)",
        "holdall.open('memory:').with_embedder(len)",
        "HoldallStore(holdall.open('memory:'), index={'dims': 3, 'embed': len})",
        "HoldallStore.from_conn_string('memory:', index={'dims': 3, 'embed': len}).__enter__()",
    ],
)
def test_an_embedder_without_numpy_is_refused_when_the_store_is_opened(opening):
    code = f"""
import sys
sys.modules["numpy"] = None
import holdall
from holdall.faces.langgraph import HoldallStore
try:
    {opening}
except holdall.errors.MissingExtra as error:
    print(error.name, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("numpy an embedder needs numpy")
    assert "pip install 'holdall[vectors]'" in done.stdout


def test_the_suite_without_pytest_names_its_extra():
    code = """
import sys
sys.modules["pytest"] = sys.modules["hypothesis"] = None
import holdall.testing
holdall.testing.Clock()
try:
    holdall.testing.StoreContract
except holdall.errors.MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "holdall[testing]" in done.stdout
    assert issubclass(MissingExtra, ImportError)


def test_a_newer_schema_is_refused_and_left_alone(tmp_path):
    import apsw

    with holdall.open("agent.db") as store:
        store.put(("a",), "k", {})
    connection = apsw.Connection("agent.db")
    connection.execute("UPDATE holdall_schema SET version = 99")
    connection.close()
    before = Path("agent.db").read_bytes()
    with pytest.raises(SchemaTooNew, match="99"), holdall.open("agent.db"):
        pass
    with pytest.raises(SchemaTooNew, match="upgrade"):
        holdall.open("agent.db").get(("a",), "k")
    assert Path("agent.db").read_bytes() == before


def test_importing_holdall_needs_no_environment():
    subprocess.run([sys.executable, "-c", "import holdall"], env={"PATH": os.environ.get("PATH", "")}, check=True)


def test_a_password_in_a_url_is_not_echoed():
    with pytest.raises(InvalidInput) as caught:
        holdall.open("mongodb://me:s3cret@host/db")
    assert "s3cret" not in str(caught.value)


def test_an_engine_of_ones_own_is_made_by_a_function():
    from holdall.engines.memory import MemoryEngine

    with holdall.open(MemoryEngine, ttl=5) as store:
        assert store.put(("a",), "k", {}).expires_at is not None


@pytest.mark.parametrize("make", [lambda _: None, lambda _: 5, lambda _: object(), str])
def test_what_makes_no_engine_is_refused(make):
    with pytest.raises(InvalidInput, match=r"must return an engine.*execute"):
        holdall.open(make)


@pytest.mark.parametrize(
    "own", [{"prepare": "no"}, {"prepare": []}, {"pool_min": 3, "pool_max": 2}, {"pool_max": 0}, {"pool_timeout": "5"}]
)
def test_bad_options_of_postgresql_are_refused(own):
    with pytest.raises(InvalidInput, match=next(iter(own))):
        holdall.open("postgresql://nowhere/db", **own)


def test_a_wait_may_be_of_any_length():
    with holdall.open("memory:") as store:
        assert store.lease("name", 10, wait=10**400).acquire().release()


def test_the_error_of_wrong_arguments_names_the_public_method():
    with holdall.open("memory:") as store:
        with pytest.raises(TypeError, match=r"Store\.put\(\)"):
            store.put(("a",), "k", {}, 60)
        with pytest.raises(TypeError, match=r"Store\.put\(\) got an unexpected keyword argument 'tll'"):
            store.put(("a",), "k", {}, tll=60)


@pytest.mark.parametrize(
    ("url", "old", "new"),
    [
        ("memory:", {"indexed": ["type"]}, "filter_fields"),
        ("memory:", {"fields": ["title"]}, "search_fields"),
        ("memory:", {"index": ["title"]}, "search_fields"),
        ("redis://localhost", {"prefix": "agents"}, "key_prefix"),
    ],
    ids=repr,
)
def test_an_old_option_name_is_an_error_that_gives_the_new_one(url: str, old: Any, new: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{next(iter(old))}= was renamed: pass {new}=$"):
        holdall.open(url, **old)


@pytest.mark.parametrize(
    ("call", "new"),
    [
        (lambda store: store.put(ns=("a",), key="k", value={}), "namespace"),
        (lambda store: store.put(("a",), "k", {}, index=False), "search_fields"),
        (lambda store: asyncio.run(store.aput(("a",), "k", {}, index=False)), "search_fields"),
        (lambda store: store.get(ns=("a",), key="k"), "namespace"),
        (lambda store: store.update(ns=("a",), key="k", fn=dict), "namespace"),
        (lambda store: store.delete(ns=("a",), key="k"), "namespace"),
        (lambda store: store.delete_tree(ns_prefix=("a",)), "prefix"),
        (lambda store: store.search(ns_prefix=("a",)), "prefix"),
        (lambda store: store.count(ns_prefix=("a",)), "prefix"),
        (lambda store: store.scan(ns_prefix=("a",)), "prefix"),
        (lambda store: store.ascan(ns_prefix=("a",)), "prefix"),
        (lambda store: store.watch(ns_prefix=("a",)), "prefix"),
        (lambda store: store.awatch(ns_prefix=("a",)), "prefix"),
        (lambda store: store.scoped(ns_prefix=("a",)), "prefix"),
        (lambda store: store.files(ns=("a",)), "namespace"),
        (lambda store: store.lease("name", 10, ns=("a",)), "namespace"),
        (lambda store: store.alease("name", 10, ns=("a",)), "namespace"),
        (lambda store: store.with_embedder(len, fields=["title"]), "search_fields"),
        (lambda store: store.search(ns=("a",)), "prefix"),
        (lambda store: store.delete_tree(ns=("a",)), "prefix"),
        (lambda _: ops.Put(("a",), "k", {}, index=False), "search_fields"),
        (lambda _: ops.Get(ns=("a",), key="k"), "namespace"),
        (lambda _: ops.DeleteTree(ns=("a",)), "namespace"),
    ],
)
def test_an_old_argument_name_is_an_error_that_gives_the_new_one(call: Any, new: str) -> None:
    with holdall.open("memory:") as store, pytest.raises(InvalidInput, match=f"was renamed: pass {new}="):
        call(store)


def test_an_unknown_argument_is_a_type_error() -> None:
    with holdall.open("memory:") as store:
        for call in (store.search, store.watch, store.files().ls):
            with pytest.raises(TypeError, match="nonsense"):
                call(nonsense=1)
        with pytest.raises(TypeError, match="index"):
            store.search(index=1)  # it never had this name
    with pytest.raises(TypeError, match="index"):
        ops.Get(("a",), "k", index=1)
    with pytest.raises(TypeError, match="key"):
        ops.Get(("a",))


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("memory:", []),
        ("agent.db", []),
        ("disk:///folder", ["volume"]),
        ("postgresql://nowhere/db", ["schema", "pool_min", "notify_url"]),
        ("redis://nowhere", ["key_prefix", "allow_eviction", "pool_max"]),
    ],
)
def test_an_unknown_option_is_an_error_that_lists_those_of_the_engine(url: str, own: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"unknown option 'shards'.*feed_retention") as error:
        holdall.open(url, shards=3)
    assert all(name in str(error.value) for name in own)
    for other in {"volume", "schema", "key_prefix"} - set(own):
        assert other not in str(error.value)
        with pytest.raises(InvalidInput, match=f"unknown option '{other}'"):
            holdall.open(url, **{other: "x"})
