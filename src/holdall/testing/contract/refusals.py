"""Input that the store refuses before it asks the engine: which error is raised, and that nothing is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ...errors import InvalidInput, InvalidValue
from ...ops import Append, CheckPath, Copy, DeleteTree, Move, ReadRange, Stat
from ..caller import Caller, FilesCaller
from .base import Contract, Opener

NS = ("input",)
VOLUME = ("filesystem",)
NAN, INF = float("nan"), float("inf")


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("not even its repr works")


class UnhashableClock:
    __hash__ = None  # type: ignore[assignment]  # as that of a dataclass

    def __call__(self) -> int:
        return 0


#: Longer than Python will turn into text, and what a message may choke on, too.
ODD_THINGS = {"an int of 5,000 digits": 10**5000, "a broken repr": Unshowable(), "a long list": [0] * 100_000}

BAD_NAMESPACES: dict[str, Any] = {
    "empty": (),
    "a str": "users",
    "none": None,
    "an int": 5,
    "a set": {"a"},
    "empty label": ("a", ""),
    "int label": ("a", 1),
    "none label": (None,),
    "bytes label": (b"a",),
    "list label": (["a"],),
    "NUL": ("a\x00b",),
    "lone surrogate": ("\ud800",),
    "reserved": ("a", "__holdall__"),
    "too long": ("a" * 600, "b" * 600),
}
BAD_KEYS = {
    "empty": "",
    "none": None,
    "an int": 1,
    "bytes": b"k",
    "NUL": "a\x00",
    "lone surrogate": "k\udfff",
    "too long": "k" * 2000,
    "too long in bytes": "漢" * 600,
}
BAD_VALUES: dict[str, tuple[Any, str]] = {
    "none": (None, ""),
    "a list": ([1], ""),
    "a str": ("{}", ""),
    "an int": (1, ""),
    "NaN": ({"a": {"b": [1, NAN]}}, "a.b[1]"),
    "infinity": ({"a": INF}, "a"),
    "minus infinity": ({"a": -INF}, "a"),
    "bytes": ({"a": {"b": b"x"}}, "a.b"),
    "a set": ({"a": {1}}, "a"),
    "an object": ({"a": [object()]}, "a[0]"),
    "a class": ({"a": {"b": int}}, "a.b"),
    "complex": ({"a": 1j}, "a"),
    "int key": ({"a": {1: 2}}, "a"),
    "none key": ({None: 1}, ""),
    "lone surrogate": ({"a": ["ok", "\ud800"]}, "a[1]"),
    "lone surrogate in a key": ({"a": {"\udc00": 1}}, "a."),
    "too many digits": ({"n": 10**4300}, "n"),
    "too deep": (nested(300), "a.a.a"),
    "circular": (circular(), "self.self"),
}
BAD_EXPECTATIONS = {"none": None, "beyond any version": 2**63, "a bool": True, "a float": 1.5, "a str": "1"}
BAD_TTLS = {
    "zero": 0,
    "negative": -1,
    "NaN": NAN,
    "infinity": INF,
    "a str": "60",
    "a bool": True,
    "no time": timedelta(0),
    "ages": 1e300,
}
BAD_FILTERS: dict[str, Any] = {
    "a list": [],
    "a str": "type = 1",
    "unknown operator": {"a": {"$regex": "x"}},
    "unknown operator beside fields": {"$nor": [{"a": 1}]},
    "field operator beside fields": {"$gt": 1},
    "operators and fields mixed": {"a": {"$gt": 1, "b": 2}},
    "$in without a list": {"a": {"$in": "abc"}},
    "$nin without a list": {"a": {"$nin": 1}},
    "$and without a list": {"$and": {"a": 1}},
    "$or of a str": {"$or": ["a"]},
    "$not of a list": {"$not": [{"a": 1}]},
    "$exists of an int": {"a": {"$exists": 1}},
    "lone surrogate": {"a": {"$in": ["\ud800"]}},
    "lone surrogate in a key": {"\udfff": 1},
    "int key": {1: 2},
    "an object": {"a": object()},
    "too deep": nested(300),
}
BAD_COUNTS = {"negative": -1, "a float": 1.0, "a str": "1", "none": None, "a bool": True, "huge": 2**63}

BAD_PATHS: dict[str, Any] = {
    "empty": "",
    "relative": "notes.md",
    "parent": "/a/../b",
    "parent at the end": "/a/..",
    "only the parent": "..",
    "newline": "/a\nb",
    "NUL": "/a\x00b",
    "delete": "/a\x7f",
    "next line": "/a\x85b",
    "lone surrogate": "/a\ud800",
    "none": None,
    "bytes": b"/a",
    "an int": 5,
}
NOT_A_FILE = {"the root": "/", "two slashes": "//", "a folder": "/a/", "a dot": "/a/.", "too long": "/" + "n" * 10_000}

ENTRY_CALLS: dict[str, Callable[[Caller, Any, Any], Any]] = {
    "put": lambda store, ns, key: store.put(ns, key, {}),
    "get": lambda store, ns, key: store.get(ns, key),
    "delete": lambda store, ns, key: store.delete(ns, key),
    "update": lambda store, ns, key: store.update(ns, key, lambda value: value, default={}),
}
PREFIX_CALLS: dict[str, Callable[[Caller, Any], Any]] = {
    "search": lambda store, ns: store.search(ns),
    "count": lambda store, ns: store.count(ns),
    "scan": lambda store, ns: store.scan(ns),
    "namespaces prefix": lambda store, ns: store.namespaces(prefix=ns),
    "namespaces suffix": lambda store, ns: store.namespaces(suffix=ns),
}


class RefusalContract(Contract):
    @pytest.mark.parametrize("thing", ODD_THINGS.values(), ids=ODD_THINGS.keys())
    def test_any_wrong_argument_gets_a_short_message(self, store: Caller, thing: Any) -> None:
        store.put(NS, "there", {}, ttl=60)
        calls: list[Callable[[], Any]] = [
            lambda: store.put(thing, "k", {}),
            lambda: store.put((thing,), "k", {}),
            lambda: store.put(NS, thing, {}),
            lambda: store.put(NS, "k", thing),
            lambda: store.put(NS, "k", {"a": {thing: 1} if isinstance(thing, int) else {"b": Unshowable()}}),
            lambda: store.put(NS, "k", {}, ttl=thing),
            lambda: store.put(NS, "k", {}, expect=thing),
            lambda: store.get(NS, "there", refresh=thing),
            lambda: store.update(NS, "there", thing),
            lambda: store.execute([thing]),
            lambda: store.search(filter=thing),
            lambda: store.search(filter={"a": {"$exists": thing}}),
            lambda: store.search(limit=thing),
            lambda: store.search(recursive=thing),
            lambda: store.search(cursor=thing),
            lambda: store.namespaces(prefix=thing),
            lambda: store.namespaces(max_depth=thing),
            lambda: store.scoped(thing),
            lambda: store.reindex(progress=thing),
            lambda: store.files(NS).grep(thing),
            lambda: store.files(NS).edit("/file", "a", "b", replace_all=thing),
            lambda: store.files(NS).open("/file", thing),
        ]
        for call in calls:
            with pytest.raises(InvalidInput) as caught:
                call()
            assert len(str(caught.value)) < 500
        assert store.count() == 1

    @pytest.fixture
    def untouched(self, opened: Opener) -> Any:
        """A store with one entry. After the test this must still be its only entry."""
        store = opened()
        before = store.put(("before",), "k", {"n": 1})
        yield store
        assert store.scan() == [before]

    @pytest.mark.parametrize("call", ENTRY_CALLS)
    @pytest.mark.parametrize("bad", BAD_NAMESPACES)
    def test_bad_namespaces_are_refused(self, untouched: Caller, call: str, bad: str) -> None:
        with pytest.raises(InvalidInput):
            ENTRY_CALLS[call](untouched, BAD_NAMESPACES[bad], "k")

    @pytest.mark.parametrize("call", PREFIX_CALLS)
    @pytest.mark.parametrize("bad", [bad for bad in BAD_NAMESPACES if bad not in ("empty", "none")])
    def test_bad_prefixes_are_refused(self, untouched: Caller, call: str, bad: str) -> None:
        with pytest.raises(InvalidInput):
            PREFIX_CALLS[call](untouched, BAD_NAMESPACES[bad])

    @pytest.mark.parametrize("bad", BAD_NAMESPACES)
    def test_bad_trees_and_scopes_are_refused(self, untouched: Caller, bad: str) -> None:
        with pytest.raises(InvalidInput):
            untouched.delete_tree(BAD_NAMESPACES[bad])
        with pytest.raises(InvalidInput):
            untouched.scoped(BAD_NAMESPACES[bad])

    @pytest.mark.parametrize("call", ENTRY_CALLS)
    @pytest.mark.parametrize("bad", BAD_KEYS)
    def test_bad_keys_are_refused(self, untouched: Caller, call: str, bad: str) -> None:
        with pytest.raises(InvalidInput):
            ENTRY_CALLS[call](untouched, NS, BAD_KEYS[bad])

    @pytest.mark.parametrize("bad", BAD_VALUES)
    def test_what_is_not_json_is_refused_and_its_path_named(self, untouched: Caller, bad: str) -> None:
        value, path = BAD_VALUES[bad]
        with pytest.raises(InvalidValue) as caught:
            untouched.put(NS, "k", value)
        assert caught.value.path.startswith(path)
        assert path in str(caught.value)
        str(caught.value).encode()  # the message itself can be printed
        if value is not None:
            with pytest.raises(InvalidValue):
                untouched.update(("before",), "k", lambda _: value)

    @pytest.mark.parametrize("bad", BAD_EXPECTATIONS)
    def test_bad_expectations_are_refused(self, untouched: Caller, bad: str) -> None:
        """`expect=None` most of all: a read that was forgotten must not become an unconditional write."""
        with pytest.raises(InvalidInput, match="ABSENT"):
            untouched.put(("before",), "k", {}, expect=BAD_EXPECTATIONS[bad])
        with pytest.raises(InvalidInput, match="ABSENT"):
            untouched.delete(("before",), "k", expect=BAD_EXPECTATIONS[bad])

    @pytest.mark.parametrize("bad", BAD_TTLS)
    def test_bad_ttls_are_refused(self, untouched: Caller, opened: Opener, bad: str) -> None:
        with pytest.raises(InvalidInput, match="ttl"):
            untouched.put(NS, "k", {}, ttl=BAD_TTLS[bad])
        with pytest.raises(InvalidInput, match="ttl"):
            opened(ttl=BAD_TTLS[bad])

    @pytest.mark.parametrize("bad", BAD_FILTERS)
    def test_malformed_filters_are_refused(self, untouched: Caller, bad: str) -> None:
        with pytest.raises(InvalidInput):
            untouched.search(filter=BAD_FILTERS[bad])
        with pytest.raises(InvalidInput):
            untouched.count(filter=BAD_FILTERS[bad])

    @pytest.mark.parametrize("bad", BAD_COUNTS)
    def test_bad_limits_are_refused(self, untouched: Caller, bad: str) -> None:
        for name in ("limit", "offset"):
            with pytest.raises(InvalidInput, match=name):
                untouched.search(**{name: BAD_COUNTS[bad]})
            with pytest.raises(InvalidInput, match=name):
                untouched.namespaces(**{name: BAD_COUNTS[bad]})

    def test_what_is_neither_true_nor_false_is_refused(self, opened: Opener) -> None:
        """A model or a form may send "false", which Python takes for true."""
        store = opened()
        store.put(NS, "k", {"text": "tea"})
        files = store.files(NS)
        files.write("/f", "tea tea")
        calls: list[tuple[str, Callable[[Any], Any]]] = [
            ("recursive", lambda bad: store.search(NS, recursive=bad)),
            ("recursive", lambda bad: store.count(NS, recursive=bad)),
            ("rest", lambda bad: store.search(NS, query="tea", rest=bad)),
            ("exact", lambda bad: store.search(NS, query="tea", exact=bad)),
            ("regex", lambda bad: files.grep("tea", regex=bad)),
            ("ignore_case", lambda bad: files.grep("tea", ignore_case=bad)),
            ("replace_all", lambda bad: files.edit("/f", "tea", "milk", replace_all=bad)),
        ]
        bads: list[Any] = ["false", "", 1, 0, None, []]
        for name, call in calls:
            for bad in bads:
                with pytest.raises(InvalidInput, match=f"^{name} is True or False, not "):
                    call(bad)
        for bad in bads:
            if bad is not None:
                with pytest.raises(InvalidInput, match="refresh is True, False or None, not "):
                    store.get(NS, "missing", refresh=bad)
        assert files.read_text("/f") == "tea tea"

    @pytest.mark.parametrize("depth", [0, -1, 1.0, "1", True])
    def test_a_bad_depth_is_refused(self, untouched: Caller, depth: Any) -> None:
        with pytest.raises(InvalidInput, match="max_depth"):
            untouched.namespaces(max_depth=depth)

    @pytest.mark.parametrize(
        "options",
        [
            {"colour": "red"},
            {"durability": "none"},
            {"timeout": 0},
            {"timeout": "5"},
            {"sweep_interval": -1},
            {"filter_fields": "type"},
            {"filter_fields": [1]},
            {"filter_fields": None},
            {"filter_fields": ["a..b"]},
            {"filter_fields": [""]},
            {"on_op": 5},
            {"clock": 5},
            {"clock": lambda: None},
            {"clock": time.time},
            {"clock": lambda: -1},
            {"clock": UnhashableClock()},
            {"refresh_on_read": "no"},
            {"full_text": 0},
            {"metric": "nearest"},
            {"feed_retention": -1},
            {"feed_retention": "7d"},
        ],
        ids=lambda options: " ".join(options),
    )
    def test_bad_options_are_refused(self, opened: Opener, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput, match=next(iter(options))):
            opened(**options)

    @pytest.mark.parametrize("path", [*BAD_PATHS.values(), *NOT_A_FILE.values()], ids=[*BAD_PATHS, *NOT_A_FILE])
    def test_a_bad_path_is_refused_and_changes_nothing(self, store: Caller, volume: FilesCaller, path: Any) -> None:
        volume.write("/b", "x")
        before = store.scan()
        attempts: list[tuple[Any, ...]] = [
            (volume.write, path, "y"),
            (volume.append, path, "y"),
            (volume.edit, path, "x", "y"),
            (volume.read, path),
            (volume.read_range, path, 0),
            (volume.read_lines, path),
            (volume.open, path, "rb"),
            (volume.open, path, "wb"),
            (volume.open, path, "ab"),
        ]
        if path in BAD_PATHS.values():
            attempts += [
                (volume.stat, path),
                (volume.exists, path),
                (volume.delete, path),
                (volume.ls, path),
                (volume.walk, path),
                (volume.glob, "*", path),
                (volume.grep, "x", path),
            ]
        if path in BAD_PATHS.values() or path in ("/", "//", NOT_A_FILE["too long"]):
            attempts += [(volume.move, path, "/c"), (volume.move, "/b", path)]
            attempts += [(volume.copy, path, "/c"), (volume.copy, "/b", path)]
        for call, *args in attempts:
            with pytest.raises(InvalidInput):
                call(*args)
        assert store.scan() == before

    @pytest.mark.parametrize("path", BAD_PATHS.values(), ids=BAD_PATHS)
    def test_a_bad_path_in_a_batch_is_refused_and_changes_nothing(
        self, store: Caller, volume: FilesCaller, path: Any
    ) -> None:
        volume.write("/b", "x")
        before = store.scan()
        batch: list[Any] = [
            Append(VOLUME, path, b"y"),
            ReadRange(VOLUME, path, 0),
            Stat(VOLUME, path),
            CheckPath(VOLUME, path),
            Move(VOLUME, path, "/c"),
            Move(VOLUME, "/b", path),
            Copy(VOLUME, path, "/c"),
            Copy(VOLUME, "/b", path),
        ]
        if path is not None:  # which means all that is in the namespace
            batch.append(DeleteTree(VOLUME, path))
        for op in batch:
            with pytest.raises(InvalidInput):
                store.execute([Append(VOLUME, "/b", b"more"), op])
            assert store.scan() == before

    def test_each_bad_path_gets_its_own_message(self, volume: FilesCaller) -> None:
        messages = {
            "": "absolute",
            "notes.md": "did you mean '/notes.md'",
            "/a/../b": r"'\.\.'",
            "/a\nb": "control characters",
            "/a/": "folder",
            "/" + "n" * 10_000: "at most 1536 bytes",
            "/" + "漢" * 600: "at most 1536 bytes",
        }
        for path, message in messages.items():
            with pytest.raises(InvalidInput, match=message) as caught:
                volume.write(path, "x")
            assert len(str(caught.value)) < 300
