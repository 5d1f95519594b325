"""What a remote engine may erase and copy, by the rights and the scope of its token."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import holdall
from holdall import ops
from holdall.engine import Forget
from holdall.errors import AccessDenied, InvalidInput
from holdall.operate import records
from holdall.server import Tokens
from support.large_contents import leave_out_contents
from support.served import server

SCOPE = ("tenants", "42")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return server().serve(f"sqlite:///{tmp_path}/served.db", has_clock=False, app={"auth": "tokens"})


def connect(url: str, *rights: str, scope: tuple[str, ...] = SCOPE) -> holdall.Store:
    with server().open_directly(url) as direct:
        return holdall.open(url, token=Tokens(direct).create(scope=scope, allow=rights)[1])


def test_erasing_needs_its_right_and_compacting_the_whole_store(url: str) -> None:
    with connect(url, "read", "write") as store, pytest.raises(AccessDenied, match="erase"):
        store.put(("a",), "k", {})
        store.erase(("a",), "k")
    with connect(url, "read", "write", "erase") as store:
        store.put(("a",), "k", {})
        erased = store.erase(("a",), "k", compact=True)
        assert erased.entries == 1
        assert "whole store" in erased.beyond[-1]
    with connect(url, "read", "write", "erase", scope=()) as store:
        assert not any("whole store" in text for text in store.erase(("a",), compact=True).beyond)


def test_a_scope_forgets_nothing_of_another(url: str) -> None:
    with server().open_directly(url) as direct:
        other = direct.scoped(("tenants", "43"))
        since = other.cursor()
        other.put(("a",), "k", {})
        other.delete(("a",), "k")
        with connect(url, "read", "write", "erase") as store:
            for namespace in (("tenants", "43", "a"), ("a",)):
                store.erase(namespace, recursive=True)

            with pytest.raises(InvalidInput):
                store._engine_handle.execute([Forget(("__holdall__", "tokens"), recursive=True)])
        with other.watch(since=since) as watch:
            assert next(iter(watch)).kind == "delete"


def test_a_scope_is_copied_from_and_to_with_large_files(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdall.open(tmp_path / "local.db") as local, holdall.open("memory:") as back:
        files = local.files()
        files.write("/large", bytes(range(256)) * 20)
        item = {"content": base64.b64encode(b"\xff" * 3000).decode(), "encoding": "base64"}
        local.put(("filesystem",), "/item", item)
        local.execute([ops.Put(("many",), str(number), {"n": number}) for number in range(600)])
        leave_out_contents(local, monkeypatch)
        monkeypatch.setattr(records, "PIECE", 1000)
        with connect(url, "read", "write") as store:
            holdall.copy(local, store)
            local.put(("many",), "later", {})
            assert holdall.copy(local, store).resumed
        monkeypatch.undo()
        with connect(url, "read", "watch") as store:
            assert holdall.compare(local, store).equal
            holdall.copy(store, back)
            with pytest.raises(AccessDenied):
                holdall.copy(local, store, to=("other",))
        assert holdall.compare(local, back).equal
        with server().open_directly(url) as direct:
            assert direct.count() == direct.scoped(SCOPE).count() == 603


def test_the_notes_of_a_copy_are_checked(url: str) -> None:
    home = ("__holdall__", "copies")
    with connect(url, "read", "write", "watch") as store:
        for op in (
            ops.Put(home, "identity", '{"id": "x"}', None),  # type: ignore[arg-type]  # as engines get it
            ops.Put(home, "clock", '{"n": 1}', None),  # type: ignore[arg-type]
            ops.Put(home, "copy ../x", "{}", None),  # type: ignore[arg-type]
            ops.Put(home, "copy " + "0" * 32, ops.File("{}", b""), None),  # type: ignore[arg-type]
            ops.Get(home, "0" * 16 + " identity"),
            ops.Delete(home, "identity"),
        ):
            with pytest.raises((InvalidInput, holdall.errors.InvalidValue)):
                store._engine_handle.execute([op])


def test_each_scope_has_its_own_notes_of_copies(url: str, tmp_path: Path) -> None:
    with holdall.open(tmp_path / "local.db") as local:
        local.put(("a",), "k", {})
        for scope in (SCOPE, ("tenants", "43"), ()):
            with connect(url, "read", "write", scope=scope) as store:
                copied = holdall.copy(local, store)
                assert (copied.resumed, copied.entries) == (False, 1)
                assert store.get(("a",), "k") is not None
