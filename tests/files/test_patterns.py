"""What a pattern may cost: an event loop never waits for one, and none fills the memory."""

from __future__ import annotations

import asyncio
import resource
import time

import pytest

import holdall
from holdall.errors import InvalidInput
from holdall.files import patterns
from support import processes


@pytest.mark.timed
@pytest.mark.parametrize("step", ["_regex", "find_all"])
def test_an_event_loop_waits_neither_for_compiling_nor_for_matching(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = patterns if step == "_regex" else patterns.LineMatcher
    slow = getattr(owner, step)

    def slowly(*args: object) -> object:
        time.sleep(0.5)
        return slow(*args)

    monkeypatch.setattr(owner, step, slowly)

    async def longest_wait() -> float:
        waits = [0.0]

        async def beat() -> None:
            while True:
                began = time.monotonic()
                await asyncio.sleep(0.005)
                waits.append(time.monotonic() - began)

        async with holdall.open("memory://") as store:
            files = store.files(("docs",))
            await files.awrite("/a", "tea and toast\n")
            beating = asyncio.create_task(beat())
            await asyncio.sleep(0.01)
            assert [match.line for match in await files.agrep("T.A", regex=True, ignore_case=True)] == [1]
            beating.cancel()
        return max(waits)

    assert asyncio.run(longest_wait()) < 0.4


def test_a_long_line_does_not_fill_the_memory() -> None:
    """Of a group that repeats, the engine keeps something for each time."""
    [grown] = processes.run(grep_a_long_line)
    assert grown < 250 << 20  # a line as a whole: 900 MB


def grep_a_long_line() -> None:
    with holdall.open("memory://") as store:
        files = store.files(("docs",))
        files.write("/a", "ab" * 1_000_000)
        assert len(files.grep("b.*a", regex=True)) == 1
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        files.grep("(((((a|b)|c)|d)|e)|f)+$", regex=True)
        processes.report((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)


def test_beyond_a_quarter_of_a_million_characters_only_simple_expressions_look() -> None:
    with holdall.open("memory://") as store:
        files = store.files(("docs",))
        files.write("/a", "." * 300_000 + "needle")
        assert len(files.grep("needle")) == len(files.grep("NEEDLE", ignore_case=True)) == 1
        assert len(files.grep("n[e]+dle$", regex=True)) == len(files.grep("(needle)?$", regex=True)) == 1
        assert files.grep("(needle)+", regex=True) == []


def test_counts_of_single_characters_add_up() -> None:
    """A table or a rule in Markdown, for one; only a count after a group multiplies."""
    for pattern in (r"-{80}|={80}", r"^#{1,6} .{0,400}$", r"\|(?: -{3,200} \|){1,20}"):
        patterns.LineMatcher(pattern, is_regex=True, ignore_case=False)
    with pytest.raises(InvalidInput, match="repeats too much"):
        patterns.LineMatcher(r"(?:(?:a{100}){100}){100}", is_regex=True, ignore_case=False)


def test_an_escaped_bracket_is_no_group() -> None:
    assert patterns.LineMatcher(r"\)+", is_regex=True, ignore_case=False)._end is None
    assert patterns.LineMatcher(r"(a)+", is_regex=True, ignore_case=False)._end is not None


@pytest.mark.timed
def test_a_long_pattern_is_refused_on_a_long_line() -> None:
    """While one large set is compared with each character, no time limit is checked."""
    with holdall.open("memory:") as store:
        files = store.files(("docs",))
        files.write("/a", "a" * 5_000_000)
        letters = "".join(chr(0x4E00 + 2 * number) for number in range(4000))
        began = time.monotonic()
        with pytest.raises(InvalidInput, match="takes more than"):
            files.grep(f"[{letters}]{{2}}", regex=True)
        assert time.monotonic() - began < 3
        assert files.grep("b+", regex=True) == []
