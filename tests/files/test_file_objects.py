"""File objects that are interrupted, at every point of their code where Python can do that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import holdall
from holdall import Files
from holdall.errors import Unavailable
from support.interrupts import InterruptAt, Interrupted


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # an interrupt in a finalizer
    with holdall.open("memory:") as store:
        yield store.files()


def interrupt_everywhere(function: Callable[[], object]) -> Iterator[str]:
    """Interrupt a function at each of its points, one after another, and give the location of each."""
    number = 0
    while True:
        trace = InterruptAt(number, "file_objects.py")
        with suppress(Interrupted), trace:
            function()
        if trace.where is None:
            assert number > 5, "this showed nothing"
            return
        yield trace.where
        number += 1


def test_opening_to_write_that_is_interrupted_leaves_the_file_as_it_was(files: Files) -> None:
    files.write("/a", "old")
    for where in interrupt_everywhere(lambda: files.open("/a", "wb")):
        assert files.read_text("/a") == "old", where
    assert files.read_text("/a") == "old", "it was not closed"


@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_what_is_written_while_interrupted_is_there_once_or_not_at_all(files: Files, mode: str) -> None:
    def write() -> None:
        with files.open("/a", mode) as file:
            file.write(b"new;")
            file.flush()
            file.write(b"more;")

    files.write("/a", "old;")
    for where in interrupt_everywhere(write):
        allowed = {"old;", "old;new;", "old;new;more;"} if mode == "ab" else {"old;", "new;more;"}
        assert files.read_text("/a") in allowed, where
        files.write("/a", "old;")


def test_after_a_piece_that_failed_nothing_is_appended(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcome may be unknown. A buffer would write it again."""
    file = files.open("/a", "ab")
    file.write(b"new;")
    append = Files._append

    def append_and_fail(*args: object, **kwargs: object) -> object:
        yield from append(*args, **kwargs)
        raise holdall.errors.OutcomeUnknown("the connection was lost")

    monkeypatch.setattr(Files, "_append", append_and_fail)
    with pytest.raises(holdall.errors.OutcomeUnknown):
        file.flush()
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="could not be written"):
        file.close()
    assert files.read_text("/a") == "new;"
    assert file.closed
