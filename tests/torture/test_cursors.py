"""Forged cursors: whatever somebody sends in place of one is refused, or answered as any other."""

from __future__ import annotations

import base64
import random
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.errors import CursorExpired, InvalidInput
from holdall.ops import Put
from support.stores import ENGINES, new_location, open_at

LIMIT = 7
ENTRIES = 40
SIGNS = "0123456789-_.:,/~=+aZ \x00\x01٣²é\U0001f600'\"%\\"
NUMBERS = ["0", "1", "-1", "40", "2147483648", "9223372036854775807", "9223372036854775808", "9" * 40]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"ns": ("a",)},
    {"filter": {"even": True}},
    {"ns": ("a",), "recursive": False},
    {"query": "tea"},
    {"query": "tea", "filter": {"even": True}},
]


@pytest.mark.parametrize("engine", ENGINES)
def test_forged_cursors_are_refused_or_give_right_pages(
    tmp_path: Path, scaled: Callable[[int, int], int], engine: str
) -> None:
    number = scaled(300, 9_000)
    with open_at(new_location(engine, tmp_path), sweep_interval=None) as store, other_store(engine, tmp_path) as other:
        fill(store, 0)
        fill(other, ENTRIES)
        cursors, others = ([*real_cursors(each)] for each in (store, other))
        fill(store, 10)  # some are of pages that have changed
        marks, other_marks = ([*real_marks(each)] for each in (store, other))
        refused = 0
        for _ in range(number // 2):
            search, cursor = random.choice(cursors)
            refused += is_refused(store, search, forge(cursor, [each for _, each in cursors + others]))
            refused += is_refused_by_the_feed(store, forge(random.choice(marks), marks + other_marks))
        assert number // 10 < refused < number, "all were alike: this showed nothing"
        for search, cursor in cursors:
            assert not is_refused(store, search, cursor)
        for mark in marks:
            assert not is_refused_by_the_feed(store, mark)


@pytest.mark.parametrize("steps", [[2**62] * 3, [-1], [0], [5, -5]])
def test_a_ranked_cursor_of_versions_that_cannot_be_is_refused(steps: list[int]) -> None:
    with holdall.open("memory:") as store:
        fill(store, 0)
        owner = ask(store, {"query": "tea"}).next.partition(".")[0]
        packed = base64.urlsafe_b64encode(zlib.compress(array("q", steps).tobytes())).decode()
        assert is_refused(store, {"query": "tea"}, f"{owner}.{packed}")


def test_a_number_with_a_zero_before_it_is_not_taken_for_octal(tmp_path: Path) -> None:
    with open_at(new_location("postgres", tmp_path)) as store:
        fill(store, 0)
        least, rest = store.cursor().split(":", 1)
        assert is_refused_by_the_feed(store, f"0{least}:{rest}")


def other_store(engine: str, folder: Path) -> holdall.Store:
    return open_at(new_location(engine, folder), sweep_interval=None)


def fill(store: holdall.Store, first: int) -> None:
    for number in range(first, first + ENTRIES):
        namespace = random.choice([("a",), ("a", "b")])
        store.execute([Put(namespace, str(number), {"text": f"tea number {number}", "even": number % 2 == 0})])
        if number % 5 == 4:
            store.delete(namespace, str(number))


def real_cursors(store: holdall.Store) -> Iterator[tuple[dict[str, Any], str]]:
    """Searches, and cursors of theirs."""
    for search in SEARCHES:
        page = ask(store, search)
        while page.next is not None:
            yield search, page.next
            page = ask(store, search, page.next)


def real_marks(store: holdall.Store) -> Iterator[str]:
    """Cursors of the feed: where it stands, of some changes, and on the way from one."""
    yield store.cursor()
    with store.watch(since=None) as changes:
        fill(store, 5)
        for _ in range(10):
            yield next(changes).cursor
        assert changes.cursor is not None
        yield changes.cursor
    yield store.cursor()


def ask(store: holdall.Store, search: dict[str, Any], cursor: str | None = None) -> Any:
    options = dict(search)
    return store.search(options.pop("ns", ()), **options, limit=LIMIT, cursor=cursor)


def is_refused(store: holdall.Store, search: dict[str, Any], cursor: Any) -> bool:
    """Whether a search refuses a cursor; if not, its page, and some that follow, are of what is there, and match."""
    try:
        page = ask(store, search, cursor)
        check_hits(store, search, page)
        for _ in range(random.choice([0, 0, 0, 30])):
            if page.next is not None:
                page = ask(store, search, page.next)
                check_hits(store, search, page)
    except (InvalidInput, CursorExpired) as error:
        assert "cursor" in str(error)
        return True
    return False


def check_hits(store: holdall.Store, search: dict[str, Any], page: Any) -> None:
    assert len(page) <= LIMIT
    prefix = search.get("ns", ())
    for hit in page:
        entry = store.get(hit.namespace, hit.key)
        assert entry is not None and (entry.version, entry.value) == (hit.version, hit.value)
        assert hit.namespace == prefix if search.get("recursive") is False else hit.namespace[: len(prefix)] == prefix
        assert "filter" not in search or hit.value["even"]


def is_refused_by_the_feed(store: holdall.Store, cursor: Any) -> bool:
    """Whether one who watches is refused a cursor; if not, the changes that come are right, and in order."""
    try:
        with store.watch(("a",), since=cursor) as changes:
            page = list(changes._page)  # as many as there are: to ask for one more would be to wait
    except (InvalidInput, CursorExpired) as error:
        assert "cursor" in str(error)
        return True
    assert [change.version for change in page] == sorted({change.version for change in page})
    for change in page:
        entry = store.get(change.namespace, change.key)
        assert change.namespace[:1] == ("a",)
        assert (change.kind == "put") == (entry is not None)
        assert entry is None or entry.version == change.version
    return False


# Forging -------------------------------------------------------------------------------------------------------------


def forge(cursor: str, others: list[str]) -> Any:
    """Something like a cursor."""
    forged: Any = random.choice(FORGERS)(cursor, random.choice(others))
    return (
        random.choice(FORGERS)(forged, random.choice(others))
        if isinstance(forged, str) and random.random() < 0.3
        else forged
    )


def truncate(cursor: str, other: str) -> str:
    at = random.randint(0, len(cursor))
    return random.choice([cursor[:at], cursor[at:]])


def change_sign(cursor: str, other: str) -> str:
    at = random.randrange(len(cursor) + 1)
    return cursor[:at] + random.choice([*SIGNS, ""]) + cursor[at + random.choice([0, 1]) :]


def change_number(cursor: str, other: str) -> str:
    """Another number in place of one, or one that is a little more or less."""
    digits = [at for at, sign in enumerate(cursor) if sign in "0123456789"]
    if not digits:
        return cursor + random.choice(NUMBERS)
    start = end = random.choice(digits)
    while start and start - 1 in digits:
        start -= 1
    while end in digits:
        end += 1
    near = str(max(0, int(cursor[start:end][:30]) + random.randint(-3, 3)))
    return cursor[:start] + random.choice([near, near, random.choice(NUMBERS)]) + cursor[end:]


def splice(cursor: str, other: str) -> str:
    return truncate(cursor, "") + truncate(other, "")


def take_other(cursor: str, other: str) -> str:
    """One of another search, or of another store; or only what comes after its owner."""
    return random.choice([other, cursor.partition(".")[0] + "." + other.partition(".")[2]])


def make_up(cursor: str, other: str) -> str:
    """Random text, or random bytes packed as a ranked search packs them, after the right owner."""
    packed = base64.b64encode(
        zlib.compress(random.randbytes(random.choice([0, 1, 8, 16, 800])) * random.choice([1, 1, 50])), b"-_"
    )
    text = "".join(random.choices(SIGNS, k=random.randrange(30)))
    return random.choice(["", cursor.partition(".")[0] + "."]) + random.choice([packed.decode(), text])


def give_no_text(cursor: str, other: str) -> Any:
    return random.choice([5, b"", cursor.encode(), [cursor], {}, True, 1.5, float("nan")])


FORGERS = [truncate, change_sign, change_sign, change_number, change_number, splice, take_other, make_up, give_no_text]
