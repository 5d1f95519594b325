"""One file: write, read, append and edit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ... import ABSENT
from ...errors import (
    AmbiguousMatch,
    Conflict,
    FileNotFound,
    InvalidInput,
    InvalidValue,
    IsADirectory,
    NoMatch,
    NotText,
)
from ...ops import FileInfo
from ..caller import FilesCaller
from ..clock import Clock
from .base import Contract
from .items import many

NS = ("filesystem",)
BINARY = bytes(range(256)) * 3

# Each is one line, whatever else ends lines elsewhere.
ODD_BREAKS = "form\x0cfeed|tab\x0b|nel\x85|ls\u2028|ps\u2029|fs\x1c|gs\x1d|rs\x1e|nul\x00"


class FileContract(Contract):
    # Whole files -----------------------------------------------------------------------------------------------------

    def test_what_is_written_is_read(self, volume: FilesCaller, clock: Clock) -> None:
        info = volume.write("/notes/todo.md", "buy tea\n")
        assert info == FileInfo("/notes/todo.md", False, 8, info.version, clock.now, clock.now)
        assert isinstance(info.version, int)
        assert volume.read("/notes/todo.md") == b"buy tea\n"
        assert volume.read_text("/notes/todo.md") == "buy tea\n"
        assert volume.stat("/notes/todo.md") == info

    @pytest.mark.parametrize(
        "data", [b"", BINARY, bytearray(b"abc"), memoryview(b"abc")], ids=["empty", "binary", "bytearray", "memoryview"]
    )
    def test_bytes_are_kept_as_they_are(self, volume: FilesCaller, data: Any) -> None:
        assert volume.write("/f", data).size == len(data)
        assert volume.read("/f") == bytes(data)

    @many
    @given(data=st.binary(max_size=200) | st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
    def test_any_content_comes_back(self, volume: FilesCaller, data: str | bytes) -> None:
        content = data.encode() if isinstance(data, str) else data
        assert volume.write("/f", data).size == len(content)
        assert volume.read("/f") == content
        assert volume.append("/f", data) == len(content)
        assert volume.read("/f") == content * 2
        if isinstance(data, str):
            assert volume.read_text("/f") == data * 2

    def test_line_ends_are_kept(self, volume: FilesCaller) -> None:
        """AG2's disk store turns CRLF into LF."""
        text = "one\r\ntwo\nthree\rfour\r\n"
        volume.write("/f", text)
        assert volume.read_text("/f") == text
        assert volume.read("/f") == text.encode()

    def test_a_megabyte_and_its_overwrite_come_back(self, volume: FilesCaller) -> None:
        large = BINARY * 1500
        assert volume.write("/f", large).size == len(large)
        assert volume.read("/f") == large
        assert volume.write("/f", b"small").size == 5
        assert volume.read("/f") == b"small"

    def test_binary_is_not_text(self, volume: FilesCaller) -> None:
        volume.write("/f", b"ab\xff")
        for read in (volume.read_text, volume.read_lines):
            with pytest.raises(NotText, match=r"byte 2.*UTF-8"):
                read("/f")

    def test_created_survives_an_overwrite_and_versions_grow(self, volume: FilesCaller, clock: Clock) -> None:
        first = volume.write("/f", "1")
        clock.advance(5)
        second = volume.write("/f", "22")
        assert second.created_at == first.created_at
        assert second.modified_at == clock.now
        assert second.version > first.version
        assert volume.delete("/f") == 1
        clock.advance(5)
        third = volume.write("/f", "3")
        assert third.version > second.version
        assert third.created_at == clock.now

    def test_expect_guards_a_write(self, volume: FilesCaller) -> None:
        """Two create-only writes both succeed in spoon_ai."""
        first = volume.write("/f", "1", expect=ABSENT)
        with pytest.raises(Conflict):
            volume.write("/f", "2", expect=ABSENT)
        second = volume.write("/f", "2", expect=first)
        for stale in (first, first.version):
            with pytest.raises(Conflict) as caught:
                volume.write("/f", "3", expect=stale)
            assert (caught.value.expected, caught.value.actual) == (first.version, second.version)
        with pytest.raises(InvalidInput):
            volume.write("/f", "3", expect=None)
        assert volume.read("/f") == b"2"
        assert volume.write("/f", "3", expect=second.version).size == 1

    def test_expect_guards_every_other_change_of_a_file(self, volume: FilesCaller) -> None:
        first = volume.write("/f", "one")
        volume.append("/f", " two", expect=first)
        second = volume.stat("/f")
        changes: list[Callable[[Any], Any]] = [
            lambda expect: volume.edit("/f", "one", "1", expect=expect),
            lambda expect: volume.edit("/f", "not there", "1", expect=expect),
            lambda expect: volume.append("/f", "three", expect=expect),
            lambda expect: volume.move("/f", "/g", expect=expect),
            lambda expect: volume.delete("/f", expect=expect),
            lambda expect: volume.delete("/f", recursive=True, expect=expect),
        ]
        for change in changes:
            for stale in (first, first.version, ABSENT):
                with pytest.raises(Conflict):
                    change(stale)
            with pytest.raises(InvalidInput):
                change(None)
        assert volume.stat("/f") == second
        assert volume.edit("/f", "one", "1", expect=second) == 1
        moved = volume.move("/f", "/g", expect=volume.stat("/f"))
        assert volume.read("/g") == b"1 two"
        for path in ("/f", "/folder"):
            with pytest.raises(Conflict):
                volume.delete(path, expect=moved)
        assert volume.delete("/g", expect=volume.stat("/g")) == 1
        assert volume.append("/new", "x", expect=ABSENT) == 0

    def test_a_missing_file_raises_not_found(self, volume: FilesCaller) -> None:
        volume.write("/folder/f", "x")
        for path, error in (("/missing", FileNotFound), ("/folder", IsADirectory), ("/folder/f/below", FileNotFound)):
            for read in (volume.read, volume.read_text, volume.read_lines, volume.open):
                with pytest.raises(error):
                    read(path)
            with pytest.raises(error):
                volume.read_range(path, 0)
            with pytest.raises(error):
                volume.edit(path, "a", "b")
        with pytest.raises(FileNotFoundError):
            volume.read("/missing")

    def test_what_is_neither_text_nor_bytes_is_refused(self, volume: FilesCaller) -> None:
        before = volume.write("/f", "x")
        for data in (None, 5, ["a"], {"content": "a"}, "\ud800"):
            for put in (volume.write, volume.append):
                with pytest.raises(InvalidValue):
                    put("/f", data)
        with pytest.raises(InvalidValue):
            volume.edit("/f", "x", "\udfff")
        assert volume.stat("/f") == before

    # Lines -----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("text", "lines"),
        [
            ("", []),
            ("\n", [""]),
            ("a", ["a"]),
            ("a\n", ["a"]),
            ("a\n\n", ["a", ""]),
            ("a\r\nb\rc\nd", ["a", "b", "c", "d"]),
            ("a\r\r\nb", ["a", "", "b"]),
            ("a\n\rb", ["a", "", "b"]),
            (ODD_BREAKS, [ODD_BREAKS]),
        ],
        ids=repr,
    )
    def test_a_line_ends_at_nl_crnl_and_cr_only(self, volume: FilesCaller, text: str, lines: list[str]) -> None:
        volume.write("/f", text)
        window = volume.read_lines("/f")
        assert (window.lines, window.offset, window.total) == (lines, 0, len(lines))

    def test_a_window_of_lines(self, volume: FilesCaller) -> None:
        volume.write("/f", "".join(f"line {n}\n" for n in range(3000)))
        first = volume.read_lines("/f")
        assert (len(first.lines), first.total) == (2000, 3000)
        window = volume.read_lines("/f", 2998, 5)
        assert (window.lines, window.offset, window.total) == (["line 2998", "line 2999"], 2998, 3000)
        assert volume.read_lines("/f", offset=1, limit=0).lines == []
        assert volume.read_lines("/f", offset=3000).lines == []
        assert volume.read_lines("/f", offset=9999).total == 3000
        for bad in ({"offset": -1}, {"limit": -1}, {"offset": "1"}, {"limit": None}, {"limit": True}):
            with pytest.raises(InvalidInput):
                volume.read_lines("/f", **bad)

    @many
    @example(text="\r\na")
    @given(text=st.text("ab\r\n\x0b\x0c\x1c\x85\u2028\u2029é", max_size=30))
    def test_lines_and_grep_and_edit_agree(self, volume: FilesCaller, text: str) -> None:
        """deepagents' grep and read disagree on line numbers after a form feed."""
        volume.write("/f", text)
        window = volume.read_lines("/f")
        assert text.replace("\r\n", "\n").replace("\r", "\n").split("\n") in (window.lines, [*window.lines, ""])
        found = volume.grep("")
        assert [(match.line, match.text) for match in found] == list(enumerate(window.lines, 1))
        if any(window.lines):  # what was shown as lines can be edited back
            assert volume.edit("/f", "\n".join(window.lines), "done") == 1
            assert volume.read_lines("/f").lines == ["done"]

    # Editing ---------------------------------------------------------------------------------------------------------

    def test_edit_replaces_one_and_returns_the_count(self, volume: FilesCaller, clock: Clock) -> None:
        first = volume.write("/f", "one two three")
        clock.advance(1)
        assert volume.edit("/f", "two", "2") == 1
        assert volume.read_text("/f") == "one 2 three"
        info = volume.stat("/f")
        assert info.created_at == first.created_at
        assert info.modified_at == clock.now
        assert info.version > first.version

    def test_an_impossible_edit_raises_an_error_that_names_the_cause(self, volume: FilesCaller) -> None:
        """`edit(p, "", "-", replace_all=True)` shreds the file in spoon_ai."""
        volume.write("/f", "a.a.a")
        volume.write("/binary", b"a\xff")
        before = volume.walk()
        with pytest.raises(NoMatch, match="0 matches") as missing:
            volume.edit("/f", "b", "c")
        assert missing.value.count == 0
        with pytest.raises(AmbiguousMatch, match="3 times") as ambiguous:
            volume.edit("/f", "a", "b")
        assert ambiguous.value.count == 3
        for replace_all in (False, True):
            with pytest.raises(InvalidInput, match="empty"):
                volume.edit("/f", "", "-", replace_all=replace_all)
        with pytest.raises(NotText):
            volume.edit("/binary", "a", "b")
        for old, new in ((b"a", "b"), ("a", b"b"), (None, "b"), ("a", None)):
            with pytest.raises(InvalidInput):
                volume.edit("/f", old, new)
        assert volume.walk() == before

    def test_edit_takes_both_texts_literally(self, volume: FilesCaller) -> None:
        volume.write("/f", r"x.*y \1 $ x.*y")
        assert volume.edit("/f", ".*", r"\1\g<0>\n", replace_all=True) == 2
        assert volume.read_text("/f") == r"x\1\g<0>\ny \1 $ x\1\g<0>\ny"
        with pytest.raises(NoMatch):
            volume.edit("/f", "x.", "z")

    def test_matches_do_not_overlap(self, volume: FilesCaller) -> None:
        volume.write("/f", "aaaa")
        with pytest.raises(AmbiguousMatch) as caught:
            volume.edit("/f", "aa", "b")
        assert caught.value.count == 2
        assert volume.edit("/f", "aa", "b", replace_all=True) == 2
        assert volume.read_text("/f") == "bb"

    def test_crlf_text_can_be_edited_as_it_was_read(self, volume: FilesCaller) -> None:
        """deepagents cannot do this."""
        volume.write("/f", "one\r\ntwo\r\nthree\r\n")
        assert volume.edit("/f", "one\ntwo", "1\n1.5\n2") == 1
        assert volume.read_text("/f") == "1\r\n1.5\r\n2\r\nthree\r\n"
        volume.write("/cr", "a\rb\rc")
        assert volume.edit("/cr", "a\nb\n", "x\n") == 1
        assert volume.read_text("/cr") == "x\rc"
        volume.write("/mixed", "a\r\nb|a\nb")
        assert volume.edit("/mixed", "a\nb", "x") == 1  # the one that is there as it stands
        assert volume.read_text("/mixed") == "a\r\nb|x"

    def test_edits_from_many_threads_are_all_kept(self, volume: FilesCaller) -> None:
        """deepagents: 8 threads x 40 edits reported 320 ok and kept 95."""
        volume.write("/f", "".join(f"<{worker}.{n}>\n" for worker in range(8) for n in range(10)))
        counts: list[int] = []

        def work(worker: int) -> None:
            counts.extend(volume.files.edit("/f", f"<{worker}.{n}>", f"done {worker}.{n}") for n in range(10))

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts == [1] * 80
        assert volume.read_lines("/f").lines == [f"done {worker}.{n}" for worker in range(8) for n in range(10)]

    # Parts -----------------------------------------------------------------------------------------------------------

    def test_append_creates_extends_and_returns_the_offset(self, volume: FilesCaller, clock: Clock) -> None:
        assert volume.append("/log", "é\n") == 0
        created = clock.now
        clock.advance(1)
        assert volume.append("/log", b"\xff") == 3
        assert volume.append("/log", "") == 4
        assert volume.append("/log", "end") == 4
        assert volume.read("/log") == "é\n".encode() + b"\xffend"
        info = volume.stat("/log")
        assert (info.size, info.created_at, info.modified_at) == (7, created, clock.now)

    def test_many_appends_and_every_range_of_them(self, volume: FilesCaller) -> None:
        content = b""
        for n in range(150):
            piece = bytes([n]) * (n % 7)
            assert volume.append("/log", piece) == len(content)
            content += piece
        assert volume.read("/log") == content
        assert volume.stat("/log").size == len(content)
        for start in range(0, len(content) + 3, 29):
            assert volume.read_range("/log", start) == content[start:]
            for end in (start, start + 1, start + 50, len(content), len(content) + 1, 2**40):
                assert volume.read_range("/log", start, end) == content[start:end]
        assert volume.read_range("/log", 5, 2) == b""

    def test_appends_from_many_threads_return_right_offsets(self, volume: FilesCaller) -> None:
        """AG2's concurrent appends return wrong offsets."""
        appended: list[tuple[int, bytes]] = []

        def work(worker: int) -> None:
            for n in range(20):
                piece = f"<{worker}.{n}>".encode()
                appended.append((volume.files.append("/log", piece), piece))

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        content = volume.read("/log")
        assert b"".join(piece for _, piece in sorted(appended)) == content
        assert len(appended) == 160

    def test_ranges_past_the_end_are_empty_and_bad_ones_refused(self, volume: FilesCaller) -> None:
        volume.write("/f", b"abc")
        assert volume.read_range("/f", 3) == b""
        assert volume.read_range("/f", 2**61, 2**61 + 5) == b""
        assert volume.read_range("/f", 0, 0) == b""
        for bad in ((-1,), (0, -1), ("0",), (0, 1.5), (None,), (2**63,), (True,)):
            with pytest.raises(InvalidInput):
                volume.read_range("/f", *bad)

    def test_an_overwrite_of_an_appended_file_removes_its_chunks(self, volume: FilesCaller) -> None:
        for n in range(20):
            volume.append("/log", f"{n}\n")
        volume.write("/log", "x")
        assert volume.append("/log", "y") == 1
        volume.delete("/log")
        assert volume.append("/log", "z") == 0
        assert volume.read("/log") == b"z"

    def test_an_edit_of_an_appended_file_sees_all_of_it(self, volume: FilesCaller) -> None:
        for n in range(20):
            volume.append("/log", f"<{n}>")
        assert volume.edit("/log", "9><10", "9><ten") == 1
        assert volume.append("/log", "end") == volume.stat("/log").size - 3
        assert volume.read_text("/log") == "".join(f"<{n}>" for n in range(20)).replace("<10>", "<ten>") + "end"
