"""Files as items and items as files: the same entries through both interfaces."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ...errors import AlreadyExists, Conflict, FileNotFound, InvalidValue
from ...files.volume import Files
from ...model.file_values import LARGEST, LINES
from ...ops import FileInfo, Get, Put
from ..caller import Caller, FilesCaller
from ..clock import Clock
from .base import Contract
from .items import identical, json_values, many, objects, texts

NS = ("filesystem",)
THEN = "2024-05-06T07:08:09+00:00"
ENCODED = base64.b64encode(b"\x00\xff\xfe").decode()

# As deepagents and spoon_ai keep files, and the bytes that each is.
SHAPES: dict[str, tuple[dict[str, Any], bytes]] = {
    "text": ({"content": "a\r\nb", "encoding": "utf-8", "created_at": THEN, "modified_at": THEN}, b"a\r\nb"),
    "base64": ({"content": ENCODED, "encoding": "base64", "created_at": THEN, "modified_at": THEN}, b"\x00\xff\xfe"),
    "base64 of text": ({"content": "YWJj", "encoding": "base64"}, b"abc"),
    "lines": ({"content": ["one", "two\r", ""], "created_at": THEN, "modified_at": THEN}, b"one\ntwo\r\n"),
    "no encoding": ({"content": "text", "created_at": THEN, "modified_at": THEN}, b"text"),
    "only content": ({"content": "é\u2028"}, "é\u2028".encode()),
    "another order": ({"modified_at": "whenever", "encoding": "utf-8", "content": "x", "created_at": ""}, b"x"),
    "empty text": ({"content": "", "encoding": "utf-8"}, b""),
    "empty base64": ({"content": "", "encoding": "base64"}, b""),
    "one empty line": ({"content": [""]}, b""),
}
# What looks like a file and cannot be taken apart and put together again.
NOT_SHAPES: dict[str, dict[str, Any]] = {
    "no content": {"encoding": "utf-8", "created_at": THEN},
    "a number": {"content": 5},
    "null": {"content": None},
    "a dict": {"content": {"a": 1}},
    "no lines": {"content": []},
    "lines with ends": {"content": ["a\n", "b"]},
    "lines of numbers": {"content": ["a", 1]},
    "lines in base64": {"content": ["YWJj"], "encoding": "base64"},
    "not base64": {"content": "!!!", "encoding": "base64"},
    "base64 in another spelling": {"content": "YWJj\n", "encoding": "base64"},
    "base64 with stray bits": {"content": "YWK=", "encoding": "base64"},
    "another encoding": {"content": "x", "encoding": "latin-1"},
    "encoding in capitals": {"content": "x", "encoding": "UTF-8"},
    "no text as encoding": {"content": "x", "encoding": None},
    "a list as encoding": {"content": "x", "encoding": ["utf-8"]},
    "a number as time": {"content": "x", "created_at": 5},
    "null as time": {"content": "x", "modified_at": None},
    "one field more": {"content": "x", "encoding": "utf-8", "size": 1},
    "nothing": {},
}

path_labels = st.text("ab.*é漢 -0", min_size=1, max_size=4).filter(lambda label: label not in (".", ".."))
any_path = st.lists(path_labels, min_size=1, max_size=3).map(lambda labels: "/" + "/".join(labels))
contents = (
    texts
    | st.binary(max_size=12).map(lambda data: base64.b64encode(data).decode())
    | st.lists(texts, max_size=4)
    | json_values
)
times = st.just(THEN) | texts | json_values
shaped = st.fixed_dictionaries(
    {"content": contents},
    optional={
        "encoding": st.sampled_from(["utf-8", "base64", "ascii", None]),
        "created_at": times,
        "modified_at": times,
    },
    # The item of a file that is too large to be one, which `put` refuses.
).filter(lambda value: value["content"] is not None or value.get("encoding", "") is not None)


class FileValueContract(Contract):
    # Items that are files --------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", SHAPES)
    def test_an_item_in_the_shape_of_a_file_is_one(self, store: Caller, volume: FilesCaller, name: str) -> None:
        value, content = SHAPES[name]
        entry = store.put(NS, "/d/f", value)
        assert identical(entry.value, value)
        assert identical(store.get(NS, "/d/f").value, value)
        assert identical(store.search(NS)[0].value, value)
        assert identical(store.scan(NS)[0].value, value)
        assert identical(store.execute([Get(NS, "/d/f")])[0].value, value)
        assert volume.read("/d/f") == content
        info = FileInfo("/d/f", False, len(content), entry.version, entry.created_at, entry.updated_at)
        assert volume.stat("/d/f") == info
        assert volume.ls("/d") == volume.walk() == volume.glob("f") == [info]

    @pytest.mark.parametrize("name", NOT_SHAPES)
    def test_an_item_in_another_shape_stays_one(self, store: Caller, volume: FilesCaller, name: str) -> None:
        value = NOT_SHAPES[name]
        assert identical(store.put(NS, "/d/f", value).value, value)
        assert identical(store.get(NS, "/d/f").value, value)
        assert volume.walk() == volume.ls() == []
        assert not volume.exists("/d/f")
        with pytest.raises(FileNotFound):
            volume.read("/d/f")
        assert volume.delete("/d/f") == volume.delete("/", recursive=True) == 0
        assert identical(store.get(NS, "/d/f").value, value)

    @pytest.mark.parametrize("key", ["f", "d/f", "/", "//f", "/d/", "/d/./f", "/d/../f", "/..", "/d/\n", "/d\x85/f"])
    def test_an_item_whose_key_is_no_path_stays_one(self, store: Caller, volume: FilesCaller, key: str) -> None:
        value = {"content": "x", "encoding": "utf-8"}
        store.put(NS, key, value)
        assert identical(store.get(NS, key).value, value)
        assert volume.walk() == []
        assert store.delete(NS, key) is True

    @many
    @given(path=any_path, value=objects | shaped | shaped.map(lambda value: dict(reversed(value.items()))))
    def test_any_object_under_any_path_comes_back_identical(
        self, store: Caller, volume: FilesCaller, path: str, value: dict[str, Any]
    ) -> None:
        assert identical(store.put(NS, path, value).value, value)
        entry = store.get(NS, path)
        assert identical(entry.value, value)
        assert identical(store.search(NS, limit=1)[0].value, value)  # the newest
        if volume.exists(path):
            content = volume.read(path)
            kept = value["content"]
            if isinstance(kept, list):
                kept = "\n".join(kept)
            assert content == (base64.b64decode(kept) if value.get("encoding") == "base64" else kept.encode())
        store.delete(NS, path)
        assert volume.walk() == []

    # Files that are items --------------------------------------------------------------------------------------------

    def test_a_file_reads_as_the_shape_that_frameworks_know(
        self, store: Caller, volume: FilesCaller, clock: Clock
    ) -> None:
        created = clock.now.isoformat()
        volume.write("/text", "a\r\né")
        volume.write("/binary", b"\x00\xff")
        for key, content, encoding in (("/text", "a\r\né", "utf-8"), ("/binary", "AP8=", "base64")):
            value = {"content": content, "encoding": encoding, "created_at": created, "modified_at": created}
            assert identical(store.get(NS, key).value, value)
        clock.advance(90)
        volume.append("/text", "!")
        value = store.get(NS, "/text").value
        assert value["content"] == "a\r\né!"
        assert (value["created_at"], value["modified_at"]) == (created, clock.now.isoformat())
        volume.append("/text", b"\xff")
        assert store.get(NS, "/text").value["encoding"] == "base64"
        assert store.get(NS, "/text").value["content"] == base64.b64encode("a\r\né!".encode() + b"\xff").decode()

    def test_a_volume_may_have_its_files_as_lists_of_lines(
        self, store: Caller, volume: FilesCaller, clock: Clock
    ) -> None:
        lines = FilesCaller(Files(store.store, NS, LINES), volume._runner)
        created = clock.now.isoformat()
        info = lines.write("/text", "a\r\né\n")
        assert info == volume.stat("/text")
        value = {"content": ["a\r", "é", ""], "created_at": created, "modified_at": created}
        assert identical(store.get(NS, "/text").value, value)
        assert [hit.key for hit in store.search(NS, filter={"content": {"$contains": "é"}})] == ["/text"]
        clock.advance(90)
        assert lines.edit("/text", "é", "e") == 1
        volume.append("/text", "!")
        value = {"content": ["a\r", "e", "!"], "created_at": created, "modified_at": clock.now.isoformat()}
        assert identical(store.get(NS, "/text").value, value)
        assert volume.read("/text") == b"a\r\ne\n!"
        lines.write("/binary", b"\x00\xff")
        value = {"content": "AP8=", "created_at": clock.now.isoformat(), "modified_at": clock.now.isoformat()}
        assert identical(store.get(NS, "/binary").value, {**value, "encoding": "base64"})

    @many
    @given(data=st.binary(max_size=30) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    def test_any_file_survives_being_put_as_the_item_that_it_is(
        self, store: Caller, volume: FilesCaller, data: str | bytes
    ) -> None:
        volume.write("/f", data)
        content, value = volume.read("/f"), store.get(NS, "/f").value
        store.put(NS, "/g", value)
        assert volume.read("/g") == content
        assert identical(store.get(NS, "/g").value, value)

    @pytest.mark.parametrize("name", SHAPES)
    def test_an_append_keeps_the_form(self, store: Caller, volume: FilesCaller, clock: Clock, name: str) -> None:
        value, content = SHAPES[name]
        store.put(NS, "/f", value)
        clock.advance(5)
        assert volume.append("/f", "+\nmore") == len(content)
        assert volume.read("/f") == content + b"+\nmore"
        grown = store.get(NS, "/f").value
        expected = dict(value)
        if isinstance(value["content"], list):
            expected["content"] = (content + b"+\nmore").decode().split("\n")
        elif value.get("encoding") == "base64":
            expected["content"] = base64.b64encode(content + b"+\nmore").decode()
        else:
            expected["content"] = (content + b"+\nmore").decode()
        if "modified_at" in value:
            expected["modified_at"] = clock.now.isoformat()
        assert identical(grown, expected)

    @pytest.mark.parametrize("name", SHAPES)
    def test_a_write_or_edit_leaves_the_new_form(
        self, store: Caller, volume: FilesCaller, clock: Clock, name: str
    ) -> None:
        value, content = SHAPES[name]
        for change in ("write", "edit"):
            clock.advance(1)
            entry = store.put(NS, "/f", value)
            if change == "write":
                volume.write("/f", content)
            elif name in ("base64", "empty text", "empty base64", "one empty line"):
                continue
            else:
                volume.edit("/f", content.decode(), content.decode())
            expected = {
                "content": base64.b64encode(content).decode() if name == "base64" else content.decode(),
                "encoding": "base64" if name == "base64" else "utf-8",
                "created_at": entry.created_at.isoformat(),
                "modified_at": clock.now.isoformat(),
            }
            assert identical(store.get(NS, "/f").value, expected)

    def test_moving_and_copying_keep_the_form(self, store: Caller, volume: FilesCaller) -> None:
        for name, (value, _) in SHAPES.items():
            store.put(NS, f"/d/{name}", value)
        volume.copy("/d", "/e")
        volume.move("/d", "/f")
        for name, (value, content) in SHAPES.items():
            for folder in ("/e", "/f"):
                assert volume.read(f"{folder}/{name}") == content
                assert identical(store.get(NS, f"{folder}/{name}").value["content"], value["content"])

    # Items' methods on files -----------------------------------------------------------------------------------------

    def test_a_file_and_an_item_replace_each_other(self, store: Caller, volume: FilesCaller, clock: Clock) -> None:
        first = volume.write("/k", "file")
        clock.advance(1)
        entry = store.put(NS, "/k", {"n": 1})
        assert entry.created_at == first.created_at
        assert not volume.exists("/k")
        with pytest.raises(AlreadyExists):
            volume.append("/k", "x")
        again = volume.write("/k", "file again")
        assert again.created_at == first.created_at
        assert again.version > entry.version > first.version
        assert store.get(NS, "/k").value["content"] == "file again"
        store.put(NS, "/k", {"content": "an item's file"})
        assert volume.append("/k", "!") == 14
        assert store.delete(NS, "/k") is True
        assert not volume.exists("/k")

    def test_versions_and_expectations_are_the_same_ones(self, store: Caller, volume: FilesCaller) -> None:
        info = volume.write("/f", "one")
        entry = store.get(NS, "/f")
        assert entry.version == info.version
        changed = store.put(NS, "/f", {"content": "two"}, expect=info.version)
        with pytest.raises(Conflict):
            volume.write("/f", "three", expect=info)
        volume.write("/f", "three", expect=changed)
        with pytest.raises(Conflict):
            store.delete(NS, "/f", expect=changed)
        assert volume.read("/f") == b"three"

    def test_an_item_in_a_batch_is_a_file_too(self, store: Caller, volume: FilesCaller) -> None:
        value = {"content": ["a", "b"]}
        entry, _, got = store.execute([Put(NS, "/f", value), Put(NS, "/i", {"content": 1}), Get(NS, "/f")])
        assert entry == got
        assert identical(got.value, value)
        assert [info.path for info in volume.walk()] == ["/f"]

    def test_update_sees_and_writes_the_shape(self, store: Caller, volume: FilesCaller) -> None:
        volume.write("/f", "one")
        entry = store.update(NS, "/f", lambda value: {**value, "content": value["content"] + " two"})
        assert entry.value["content"] == "one two"
        assert volume.read("/f") == b"one two"

    def test_filters_see_the_shape(self, store: Caller, volume: FilesCaller, clock: Clock) -> None:
        volume.write("/text", "tea and cake")
        volume.append("/text", ", and more")
        volume.write("/binary", b"\xfftea")
        store.put(NS, "/lines", {"content": ["tea", "cake"], "created_at": THEN, "modified_at": THEN})
        store.put(NS, "/item", {"content": {"tea": 1}, "encoding": 5})
        now = clock.now.isoformat()
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"content": {"$contains": "tea"}}, ["/lines", "/text"]),
            ({"content": {"$contains": "and more"}}, ["/text"]),
            ({"content": "tea and cake, and more"}, ["/text"]),
            ({"content": ["tea", "cake"]}, ["/lines"]),
            ({"content": {"tea": 1}}, ["/item"]),
            ({"content.tea": 1}, ["/item"]),
            ({"content": {"$ne": "text"}}, ["/binary", "/item", "/lines", "/text"]),
            ({"content": "text"}, []),
            ({"content": "lines"}, []),
            ({"encoding": "utf-8"}, ["/text"]),
            ({"encoding": "base64"}, ["/binary"]),
            ({"encoding": 5}, ["/item"]),
            ({"encoding": {"$exists": False}}, ["/lines"]),
            ({"encoding": None}, ["/lines"]),
            ({"encoding": {"$in": ["utf-8", "base64"]}}, ["/binary", "/text"]),
            ({"created_at": THEN}, ["/lines"]),
            ({"created_at": now}, ["/binary", "/text"]),
            ({"created_at": {"$gt": THEN}}, ["/binary", "/text"]),
            ({"modified_at": {"$lte": THEN}}, ["/lines"]),
            ({"$or": [{"encoding": "base64"}, {"content.tea": 1}]}, ["/binary", "/item"]),
            ({"$not": {"encoding": {"$exists": True}}}, ["/lines"]),
        ]
        for filter, found in cases:
            assert sorted(hit.key for hit in store.search(NS, filter=filter)) == found, filter
            assert store.count(NS, filter=filter) == len(found), filter

    def test_listing_entries_gives_files_and_items_alike(self, store: Caller, volume: FilesCaller) -> None:
        for n in range(5):
            volume.append("/f", f"{n} ")
        store.put(NS, "item", {"n": 1})
        assert [(entry.key, entry.value.get("content")) for entry in store.scan()] == [
            ("/f", "0 1 2 3 4 "),
            ("item", None),
        ]
        page = store.search(NS, limit=1)
        rest = store.search(NS, limit=1, cursor=page.next)
        assert [hit.key for hit in [*page, *rest]] == ["item", "/f"]
        assert rest[0].value["content"] == "0 1 2 3 4 "
        assert store.count() == 2
        assert store.namespaces() == [NS]
        assert store.delete_tree(NS) == 2
        assert volume.append("/f", "more") == 0

    # Large files -----------------------------------------------------------------------------------------------------

    def test_a_file_too_large_to_look_into_is_passed_over_and_stops_nothing(
        self, store: Caller, volume: FilesCaller
    ) -> None:
        first, last = b"the large needle\n", b"needle\n"
        large = first + (b"x" * 63 + b"\n") * (LARGEST // 64) + last
        store.put(NS, "item", {"text": "a needle"})
        volume.write("/a.md", "one needle\n")
        info = volume.write("/large.md", large)
        volume.write("/z.md", "last needle\n")

        small = [("/a.md", 1), ("/z.md", 1)]
        for options in ({}, {"glob": "*.md"}, {"ignore_case": True}, {"regex": True}):
            assert [(match.path, match.line) for match in volume.grep("needle", **options)] == small
        assert volume.grep("needle", "/large.md") == []

        hollow = {
            "content": None,
            "encoding": None,
            "created_at": info.created_at.isoformat(),
            "modified_at": info.modified_at.isoformat(),
        }
        assert [(entry.key, entry.value["content"]) for entry in store.scan(NS) if entry.key != "item"] == [
            ("/a.md", "one needle\n"),
            ("/large.md", None),
            ("/z.md", "last needle\n"),
        ]
        entry = store.get(NS, "/large.md")
        assert entry.value == hollow
        assert store.execute([Get(NS, "item"), Get(NS, "/large.md")])[1] == entry
        assert [hit.key for hit in store.search(NS)] == ["/z.md", "/large.md", "/a.md", "item"]
        is_hollow = {"content": {"$exists": True}, "encoding": None}
        assert [hit.value for hit in store.search(NS, filter=is_hollow)] == [hollow]
        assert store.count(NS, filter={"content": {"$ne": None}}) == 2
        if store.store._engine_handle.engine.capabilities.ranks:
            found = {hit.key: hit.value for hit in store.search(NS, query='"needle"', filter=is_hollow)}
            assert found == {"/large.md": hollow}

        with pytest.raises(InvalidValue, match="content"):
            store.put(NS, "/large.md", entry.value)
        assert volume.stat("/large.md") == info
        with volume.open("/large.md", "rb") as file:
            assert file.read(len(first)) == first
            file.seek(len(large) - len(last))
            assert file.read() == last
        assert volume.read_range("/large.md", 64, 70) == large[64:70]
        assert volume.append("/large.md", "more") == len(large)
        assert volume.copy("/large.md", "/copy.md").size == volume.move("/large.md", "/moved.md").size
        assert [match.path for match in volume.grep("needle")] == ["/a.md", "/z.md"]
