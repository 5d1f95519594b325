"""Stock `StoreBackend` over `HoldallStore`, `HoldallBackend` and spoon_ai's `StoreBackend`, all on the same files."""

from __future__ import annotations

from typing import Any

import pytest
from deepagents.backends import StoreBackend

import holdall
from holdall.faces import spoon
from holdall.faces.deepagents import HoldallBackend
from holdall.faces.langgraph import HoldallStore
from support.face_calls import Calls
from support.scripted_agents import agent, answers, call
from support.threads import together

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.fixture
def native(any_store: holdall.Store, runner: Any, place: tuple[str, ...]) -> Any:
    return Calls(HoldallBackend(any_store, namespace=place), runner)


@pytest.fixture
def stock(any_store: holdall.Store, runner: Any, place: tuple[str, ...]) -> Any:
    return Calls(StoreBackend(store=HoldallStore(any_store), namespace=lambda _: place), runner)


@pytest.fixture
def spoons(any_store: holdall.Store, runner: Any, place: tuple[str, ...]) -> Any:
    return Calls(spoon.StoreBackend(any_store, place), runner)


def comparable(result: Any) -> Any:
    """A listing or a search, as one may compare it: times are the entry's in one and the dict's in the other."""
    assert result.error is None
    found = result.entries if hasattr(result, "entries") else result.matches
    kept = [{key: value for key, value in one.items() if key != "modified_at"} for one in found]
    return sorted(kept, key=lambda one: (one["path"], one.get("line", 0)))


def same(native: Any, stock: Any, *paths: str) -> None:
    for path in paths:
        assert native.read(path) == stock.read(path)
        assert native.read(path, 1, 1) == stock.read(path, 1, 1)
    assert native.download_files(list(paths)) == stock.download_files(list(paths))
    for folder in ("/", "/d", "/d/e"):
        assert comparable(native.ls(folder)) == comparable(stock.ls(folder))
    for pattern in ("*", "**/*.md", "/d/*"):
        assert comparable(native.glob(pattern)) == comparable(stock.glob(pattern))
    for text in ("one", "t", "é"):
        assert comparable(native.grep(text)) == comparable(stock.grep(text))


def test_files_of_one_backend_can_be_read_edited_and_deleted_by_the_other(native: Any, stock: Any) -> None:
    makers = ((native, "n", stock), (stock, "s", native))
    for maker, name, _ in makers:
        maker.write(f"/d/{name}.md", "one\ntwo é\n")
        maker.write(f"/d/e/{name}", "")
        maker.upload_files([(f"/{name}.txt", b"text"), (f"/{name}-empty.txt", b"")])
    paths = [path for _, name, _ in makers for path in (f"/d/{name}.md", f"/d/e/{name}", f"/{name}.txt", "/none")]
    same(native, stock, *paths)
    for _, name, other in makers:
        assert other.edit(f"/d/{name}.md", "one", "three").occurrences == 1
        assert other.edit(f"/d/{name}.md", "no", "x").error == "Error: String not found in file: 'no'"
        assert other.write(f"/d/e/{name}", f"now by the other\nthan {name}").error is None
    same(native, stock, *paths)
    for _, name, other in makers:
        assert other.delete(f"/d/{name}.md").error is None
        assert other.delete(f"/{name}.txt").error is None
    same(native, stock, *paths)
    assert native.delete("/d").error is None
    assert stock.delete("/d").error == "Error: File '/d' not found"


def test_binary_files_go_both_ways(native: Any, stock: Any) -> None:
    native.upload_files([("/n.png", PNG)])
    stock.upload_files([("/s.png", PNG)])
    for path in ("/n.png", "/s.png"):
        assert native.read(path) == stock.read(path)
        assert native.download_files([path]) == stock.download_files([path])
        assert native.download_files([path])[0].content == PNG
        refused = "Error: Cannot edit binary files with text replacements."
        assert native.edit(path, "P", "Q").error == stock.edit(path, "P", "Q").error == refused


def test_spoon_ais_backend_is_a_third_way_to_the_same_files(native: Any, stock: Any, spoons: Any) -> None:
    spoons.write("/d/f.md", "one\ntwo\n")
    same(native, stock, "/d/f.md")
    native.edit("/d/f.md", "one", "1")
    stock.edit("/d/f.md", "two", "2")
    assert spoons.edit("/d/f.md", "1\n2", "3").occurrences == 1
    assert spoons.read("/d/f.md") == "     1\t3"
    same(native, stock, "/d/f.md")
    assert "already exists" in spoons.write("/d/f.md", "again").error
    assert [info["path"] for info in spoons.ls_info("/d")] == ["/d/f.md"]


def test_stock_finds_every_file_among_many(native: Any, stock: Any) -> None:
    """It pages by 100, with offsets."""
    native.upload_files([(f"/{number:03}.md", b"word") for number in range(250)])
    for found in (stock.ls("/"), stock.grep("word"), stock.glob("*.md")):
        assert len(comparable(found)) == 250


def test_edits_of_ours_and_writes_of_stocks_at_once_are_all_kept(any_store: Any, place: Any) -> None:
    native = HoldallBackend(any_store, namespace=place)
    stock = StoreBackend(store=HoldallStore(any_store), namespace=lambda _: place)
    native.write("/f", "<a>\n<b>\n")

    def ours() -> None:
        for number in range(30):
            assert native.edit("/f", "<a>", f"{number} <a>").error is None

    def theirs() -> None:
        for number in range(30):
            assert stock.write(f"/other-{number}", "x").error is None

    together([ours, theirs])
    assert any_store.files(place).read_text("/f") == " ".join([*map(str, range(30)), "<a>"]) + "\n<b>\n"
    assert len(comparable(native.ls("/"))) == 31


def test_agents_on_either_backend_share_files(any_store: holdall.Store, place: Any, runner: Any) -> None:
    native = HoldallBackend(any_store, namespace=place)
    stock = StoreBackend(store=HoldallStore(any_store), namespace=lambda _: place)
    write = [call("write_file", file_path="/plan.md", content="- [ ] tea\n")]
    edit = [call("edit_file", file_path="/plan.md", old_string="[ ]", new_string="[x]"), call("ls", path="/")]
    read = [call("read_file", file_path="/plan.md"), call("glob", pattern="*"), call("grep", pattern="[x]")]
    for first, second in ((native, stock), (stock, native)):
        assert [message.status for message in answers(agent(first, write), runner)] == ["success"]
        assert [message.status for message in answers(agent(second, edit), runner)] == ["success"] * 2
        for backend in (first, second):
            contents = [message.content for message in answers(agent(backend, read), runner)]
            assert contents == ["@@ lines 1-1 of 1 @@\n- [x] tea", "['/plan.md']", "/plan.md"]
