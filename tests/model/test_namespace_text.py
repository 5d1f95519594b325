from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdall.errors import InvalidInput
from holdall.model import keys, namespace_text

LABELS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12).filter(
    lambda label: label != keys.RESERVED
)


@given(st.lists(LABELS, max_size=5).map(tuple))
def test_every_namespace_comes_back_from_its_text(namespace: tuple[str, ...]) -> None:
    assert namespace_text.decode(namespace_text.encode(namespace)) == namespace
    assert namespace_text.decode(namespace_text.show(namespace)) == namespace


@pytest.mark.parametrize(
    ("text", "namespace"),
    [
        ("users/42", ("users", "42")),
        ("/users/42/", ("users", "42")),
        ("a%2Fb/50%25", ("a/b", "50%")),
        ("Zoë/a b", ("Zoë", "a b")),
        ("%2E%2E/x", ("..", "x")),
        ("", ()),
        ("/", ()),
    ],
)
def test_a_text_may_be_written_by_hand(text: str, namespace: tuple[str, ...]) -> None:
    assert namespace_text.decode(text) == namespace


def test_a_text_for_people_has_few_escapes() -> None:
    assert namespace_text.show(("Zoë", "a/b", "50 %")) == "Zoë/a%2Fb/50 %25"


def test_a_text_can_stand_in_the_path_of_a_url() -> None:
    assert namespace_text.encode(("a/b", "..", "50% ?#", "é")) == "a%2Fb/%2E%2E/50%25%20%3F%23/%C3%A9"


@pytest.mark.parametrize("text", ["a//b", "50%", "%zz", "%ff", "a/__holdall__", "a%00", 5, "\udc80"])
def test_a_text_that_is_no_namespace_is_refused(text: object) -> None:
    with pytest.raises(InvalidInput):
        namespace_text.decode(text)


def test_the_root_can_be_refused() -> None:
    with pytest.raises(InvalidInput):
        namespace_text.decode("", empty=False)
