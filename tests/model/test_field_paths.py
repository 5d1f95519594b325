"""Paths into a value: LangGraph's syntax, held against LangGraph's own function."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.base.embed import get_text_at_path

from holdall.errors import InvalidInput
from holdall.model.field_paths import check_paths, find_strings, find_texts

VALUE: dict[str, Any] = {
    "title": "On Tea",
    "pages": 12,
    "draft": False,
    "author": {"name": "Ann", "born": None, "works": [{"title": "One"}, {"title": "Two", "year": 2}]},
    "tags": ["green", "black"],
    "grid": [["a", "b"], ["c"]],
    "a.b": "dotted",
    "empty": "  ",
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("title", ["On Tea"]),
        ("author.name", ["Ann"]),
        ("author.works[0].title", ["One"]),
        ("author.works[-1].title", ["Two"]),
        ("author.works[*].title", ["One", "Two"]),
        ("author.works[*].year", ["2"]),
        ("author.works.*.title", ["One", "Two"]),
        ("tags[*]", ["green", "black"]),
        ("tags[2]", []),
        ("tags[-3]", []),
        ("grid[*][*]", ["a", "b", "c"]),
        ("grid[1][0]", ["c"]),
        ("{title,author.name}", ["On Tea", "Ann"]),
        ("{ title , author.name }", ["On Tea", "Ann"]),
        ("author.{name,born}", ["Ann"]),
        ("{author,nothing}.name", ["Ann"]),
        ("author.{works[*].title,name}", ["One", "Two", "Ann"]),
        ("pages", ["12"]),
        ("draft", ["False"]),
        ("author.born", []),
        ("nothing.at.all", []),
        ("title.deeper", []),
        ("title[0]", []),
        ("author[*]", []),
        ("a.b", []),
        ("empty", []),
        ("tags", ["green\nblack"]),
        ("author", ["Ann\nOne\nTwo"]),
        ("*", ["On Tea", "12", "False", "Ann\nOne\nTwo", "green\nblack", "a\nb\nc", "dotted"]),
        ("$", ["On Tea\nAnn\nOne\nTwo\ngreen\nblack\na\nb\nc\ndotted\n  "]),
    ],
)
def test_a_path_leads_to_its_texts(path: str, found: list[str]) -> None:
    assert find_texts(VALUE, check_paths([path])) == found


def test_the_whole_value_is_the_default() -> None:
    value = {"b": "first", "a": ["second", {"c": "third", "n": 3, "t": True}]}
    assert find_texts(value) == ["first\nsecond\nthird"]
    assert find_strings(value) == ["first", "second", "third"]


@pytest.mark.parametrize("value", [{}, {"n": 1, "t": True, "x": None, "deep": [{"y": 2.5}]}, {"s": "", "t": " \n"}])
def test_a_value_without_a_word_has_no_text(value: dict[str, Any]) -> None:
    """An embedder must not be asked for the vector of nothing: some models refuse, and all make noise of it."""
    assert find_texts(value) == []


def test_equal_texts_of_one_value_are_embedded_once() -> None:
    value = {"a": "same", "b": "same", "c": "other"}
    assert find_texts(value, ("a", "b", "*", "c")) == ["same", "other"]


def test_full_text_reads_a_string_once_however_many_paths_lead_to_it() -> None:
    assert find_strings(VALUE, ("author", "author.name", "{author.name,title}", "*")) == [
        *("Ann", "One", "Two", "On Tea", "green", "black", "a", "b", "c", "dotted", "  ")
    ]
    assert find_strings({"a": "twice", "b": "twice"}, ("a", "b")) == ["twice", "twice"]
    assert find_strings(VALUE, ("pages", "draft", "tags[1]")) == ["black"]
    assert find_strings(VALUE, ("title", "$")) == find_strings(VALUE)


def test_a_value_as_deep_as_any_can_be_read() -> None:
    value: dict[str, Any] = {"end": "here"}
    for _ in range(100):
        value = {"in": [value]}
    assert find_texts(value) == find_strings(value) == ["here"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "a step is empty"),
        (".", "a step is empty"),
        ("a.", "a step is empty"),
        (".a", "a step is empty"),
        ("a..b", "a step is empty"),
        ("{a,}", "a step is empty"),
        ("{}", "a step is empty"),
        ("a[", "a '[' is not closed"),
        ("a[0", "a '[' is not closed"),
        ("a]", "a ']' closes nothing"),
        ("a}", "a '}' closes nothing"),
        ("{a", "a '{' is not closed"),
        ("{a,{b,c}}", "braces cannot be nested"),
        ("a[]", "neither an index"),
        ("a[x]", "neither an index"),
        ("a[1.5]", "neither an index"),
        ("a[-]", "neither an index"),
        ("a[٣]", "neither an index"),
        ("a[1:2]", "neither an index"),
        ("a[" + "9" * 5000 + "]", "neither an index"),
        ("$.a", "write 'a'"),
        ("$[0]", "write '[0]'"),
    ],
)
def test_a_path_that_could_lead_nowhere_is_refused(path: str, why: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_paths(["title", path])
    assert why in str(caught.value)
    assert "such as 'a.b'" in str(caught.value)
    assert len(str(caught.value)) < 6000


@pytest.mark.parametrize("paths", ["title", b"title", None, 3, [1], [None], [["a"]], []])
def test_what_are_no_paths_is_refused(paths: Any) -> None:
    with pytest.raises(InvalidInput):
        check_paths(paths)


def test_checked_paths_are_a_tuple_without_repetitions() -> None:
    assert check_paths(path for path in ["b", "a", "b"]) == ("b", "a")


# Beside LangGraph ----------------------------------------------------------------------------------------------------

words = st.sampled_from(["a", "b", "c"])
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text("xyz \n", max_size=3)
things = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=12
)
values = st.dictionaries(words, things, max_size=3)
steps = st.one_of(words, words, st.integers(-3, 3).map("[{}]".format), st.sampled_from(["[*]", "*"]))
keys = st.lists(words, min_size=1, max_size=3).map(".".join)
braces = st.lists(keys, min_size=1, max_size=3).map(lambda inner: "{" + ",".join(inner) + "}")
paths = st.builds(
    lambda some, last: ".".join([*some, *last]).replace(".[", "["),
    st.lists(steps, min_size=1, max_size=4),
    st.lists(braces, max_size=1),
)


@given(values, paths | st.just("$"))
def test_langgraph_finds_the_same_texts(value: dict[str, Any], path: str) -> None:
    """But for what is meant to differ: a dict or a list is its strings instead of its JSON, and blanks are left out."""
    value = json.loads(json.dumps(value, sort_keys=True))  # as LangGraph orders them
    theirs = [
        as_lines(json.loads(text)) if text[:1] in "[{" and text else text for text in get_text_at_path(value, path)
    ]
    assert find_texts(value, check_paths([path])) == [text for text in dict.fromkeys(theirs) if text.strip()]


def as_lines(thing: Any) -> str:
    return "\n".join(leaves(thing))


def leaves(thing: Any) -> list[str]:
    if isinstance(thing, dict | list):
        inside = thing.values() if isinstance(thing, dict) else thing
        return [leaf for inner in inside for leaf in leaves(inner)]
    return [thing] if isinstance(thing, str) else []
