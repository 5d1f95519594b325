"""What of an item is kept as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdall.errors import InvalidValue
from holdall.model import file_values
from holdall.model.values import encode
from holdall.ops import File

_REST = '"encoding":"utf-8","created_at":"then","modified_at":"now"}'
_ITEM: dict[str, Any] = {"content": "text\n", "encoding": "utf-8", "created_at": "then", "modified_at": "now"}


def test_an_item_whose_content_is_too_large_for_a_file_stays_one() -> None:
    whole, too_large = ({"content": "x" * size} for size in (file_values.LARGEST, file_values.LARGEST + 1))
    assert isinstance(file_values.to_stored("/f", whole), File)
    assert isinstance(file_values.to_stored("/f", too_large), str)
    assert isinstance(file_values.to_stored("/f", {**_ITEM, **whole}), File)
    assert isinstance(file_values.to_stored("/f", {**_ITEM, **too_large}), str)


@pytest.mark.parametrize(
    "other", [{"content": 1}, {"encoding": "latin-1"}, {"created_at": 1}, {"modified_at": None}, {"note": ""}]
)
def test_an_item_with_a_field_that_no_file_has_stays_one(other: dict[str, Any]) -> None:
    assert file_values.to_stored("/f", _ITEM) == File('{"content":"text",' + _REST, b"text\n")
    assert file_values.to_stored("/f", {**_ITEM, **other}) == encode({**_ITEM, **other})
    assert file_values.to_stored("/f/", _ITEM) == encode(_ITEM)
    with pytest.raises(InvalidValue, match=r"lone surrogates.*content"):
        file_values.to_stored("/f", {**_ITEM, "content": "\ud800"})


def test_the_limit_is_the_same_in_the_scripts_of_redis() -> None:
    common = Path(file_values.__file__).parents[1] / "engines" / "redis" / "lua" / "common.lua"
    assert f"LARGEST_FILE = {file_values.LARGEST} " in common.read_text()


def test_what_was_read_without_its_content_cannot_be_put() -> None:
    for shape in (*file_values.WRITTEN, '{"content":"base64","encoding":"base64","note":1}', '{"content":"lines"}'):
        read = file_values.to_item(shape, b"", 0, 0, True, file_values.LARGEST + 1)
        read.pop("note", None)
        assert read["content"] is None
        with pytest.raises(InvalidValue, match="64 MiB"):
            file_values.to_stored("/f", read)
    assert isinstance(file_values.to_stored("/f", {"content": None}), str)
    assert isinstance(file_values.to_stored("item", {"content": None, "encoding": None}), str)


@pytest.mark.parametrize("content", [b"", b"text\r\n", b"a\nb\n", b"\xff\x00"])
@pytest.mark.parametrize(
    "template", [*file_values.WRITTEN, '{"content":"text"}', '{"content":"base64","encoding":"base64"}']
)
def test_what_was_read_is_known_to_be_a_file(template: str, content: bytes) -> None:
    for size in (len(content), file_values.LARGEST + 1):
        item = file_values.to_item(template, content, 0, 0, False, size)
        assert file_values.is_item_of_file("/f", item)
        assert not file_values.is_item_of_file("f", item)
        assert not file_values.is_item_of_file("/f", {**item, "note": 1})
