"""Finding files by name (glob) and lines by content (grep)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ...errors import InvalidInput
from ...files import patterns
from ...ops import Put
from ..caller import Caller, FilesCaller
from .base import Contract
from .files import ODD_BREAKS
from .items import many

NS = ("filesystem",)
NAMES = [
    "/.hidden/x.md",
    "/.hidden.md",
    "/README.md",
    "/[x].md",
    "/notes/.draft.md",
    "/notes/a.md",
    "/notes/a.txt",
    "/notes/b.py",
    "/notes/deep/er/c.md",
    "/notes2/a.md",
]

# A pattern, the folder, and the names that it stands for.
GLOBS: list[tuple[str, str, list[str]]] = [
    ("*.md", "/", ["/.hidden/x.md", "/README.md", "/[x].md", "/notes/a.md", "/notes/deep/er/c.md", "/notes2/a.md"]),
    ("/*.md", "/", ["/README.md", "/[x].md"]),
    ("a.md", "/", ["/notes/a.md", "/notes2/a.md"]),
    ("notes/*.md", "/", ["/notes/a.md"]),
    ("/notes/*.md", "/", ["/notes/a.md"]),
    ("./notes/*.md", "/", ["/notes/a.md"]),
    ("notes//*.md", "/", ["/notes/a.md"]),
    ("notes/./a.*", "/", ["/notes/a.md", "/notes/a.txt"]),
    ("notes/**/*.md", "/", ["/notes/a.md", "/notes/deep/er/c.md"]),
    ("**/*.md", "/", ["/README.md", "/[x].md", "/notes/a.md", "/notes/deep/er/c.md", "/notes2/a.md"]),
    ("**/deep/**", "/", ["/notes/deep/er/c.md"]),
    ("**", "/notes/deep", ["/notes/deep/er/c.md"]),
    ("*/a.md", "/", ["/notes/a.md", "/notes2/a.md"]),
    ("*.{py,txt}", "/", ["/notes/a.txt", "/notes/b.py"]),
    ("notes/{a,b}.*", "/", ["/notes/a.md", "/notes/a.txt", "/notes/b.py"]),
    ("{notes/a,notes2/a}.md", "/", ["/notes/a.md", "/notes2/a.md"]),
    ("[ab].*", "/", ["/notes/a.md", "/notes/a.txt", "/notes/b.py", "/notes2/a.md"]),
    ("[!a].py", "/", ["/notes/b.py"]),
    ("?.md", "/notes", ["/notes/a.md", "/notes/deep/er/c.md"]),
    ("*.md", "/notes", ["/notes/a.md", "/notes/deep/er/c.md"]),
    ("*.md", "/notes/", ["/notes/a.md", "/notes/deep/er/c.md"]),
    ("deep/*/c.md", "/notes", ["/notes/deep/er/c.md"]),
    (".*.md", "/", ["/.hidden.md", "/notes/.draft.md"]),
    (".hidden/*", "/", ["/.hidden/x.md"]),
    (r"\[x\].md", "/", ["/[x].md"]),
    ("[[]x].md", "/", ["/[x].md"]),
    ("NOTES/*.md", "/", []),
    ("*.MD", "/", []),
    ("notes", "/", []),
    ("*.md", "/missing", []),
    ("a.md", "/notes/a.md", ["/notes/a.md"]),
    ("/*.md", "/notes/a.md", ["/notes/a.md"]),
    ("**/*.md", "/notes/a.md", ["/notes/a.md"]),
    ("*.py", "/notes/a.md", []),
    ("notes/*.md", "/notes/a.md", []),
    ("a.md", "/notes/a.md/", []),
]


class FindContract(Contract):
    # glob ------------------------------------------------------------------------------------------------------------

    @pytest.fixture
    def named(self, volume: FilesCaller) -> FilesCaller:
        for name in NAMES:
            volume.write(name, "x")
        return volume

    @pytest.mark.parametrize(("pattern", "folder", "found"), GLOBS, ids=lambda part: part if part is str else None)
    def test_a_glob_finds_these(self, named: FilesCaller, pattern: str, folder: str, found: list[str]) -> None:
        infos = named.glob(pattern, folder)
        assert [info.path for info in infos] == found
        assert [named.stat(info.path) for info in infos] == infos

    def test_a_glob_that_cannot_be_is_refused(self, named: FilesCaller) -> None:
        for bad in ("", None, 5, b"*", "../*", "notes/../*", "{..,notes}/*", "{1..100000}", "{a,b}" * 12, "\ud800*"):
            with pytest.raises(InvalidInput):
                named.glob(bad)
            if bad is not None:
                with pytest.raises(InvalidInput):
                    named.grep("x", glob=bad)

    def test_a_name_that_begins_like_the_folder_is_not_in_it(self, volume: FilesCaller) -> None:
        for name in ("/a-/x", "/a.md", "/a/x", "/a0", "/ab/x"):
            volume.write(name, "x")
        assert [info.path for info in volume.glob("*", "/a")] == ["/a/x"]
        assert [match.path for match in volume.grep("x", "/a")] == ["/a/x"]

    # grep ------------------------------------------------------------------------------------------------------------

    def test_lines_come_in_path_and_line_order(self, volume: FilesCaller) -> None:
        volume.write("/b", "tea\ncoffee\nmore tea")
        volume.write("/a/z", "no\r\ntea\r\n")
        volume.write("/a-", "tea")
        assert [(match.path, match.line, match.text) for match in volume.grep("tea")] == [
            ("/a-", 1, "tea"),
            ("/a/z", 2, "tea"),
            ("/b", 1, "tea"),
            ("/b", 3, "more tea"),
        ]
        assert [match.path for match in volume.grep("tea", "/a")] == ["/a/z"]
        assert [match.line for match in volume.grep("tea", "/b")] == [1, 3]
        assert [match.line for match in volume.grep("tea", "/b", limit=1)] == [1]
        assert volume.grep("tea", "/missing") == []

    def test_a_text_is_found_literally(self, volume: FilesCaller) -> None:
        """spoon_ai's grep is documented as literal and is a regex."""
        lines = [
            "a.c",
            "abc",
            "[x]",
            "%",
            "_",
            "*",
            "a\\b",
            '"quoted" OR',
            "it's",
            "x AND y",
            "-- x",
            "^",
            "NEAR(",
            "é",
        ]
        volume.write("/f", "\n".join(lines))
        for line in lines:
            assert [match.text for match in volume.grep(line)] == [other for other in lines if line in other]
        assert volume.grep("A.C") == volume.grep("a.d") == volume.grep("É") == []

    def test_short_texts_are_found_too(self, volume: FilesCaller) -> None:
        volume.write("/f", "q\nqr\nqrs\né漢\n")
        for text, lines in {
            "q": [1, 2, 3],
            "qr": [2, 3],
            "qrs": [3],
            "rs": [3],
            "漢": [4],
            "é漢": [4],
            "": [1, 2, 3, 4],
        }.items():
            assert [match.line for match in volume.grep(text)] == lines

    def test_a_text_is_never_found_across_lines(self, volume: FilesCaller) -> None:
        volume.write("/f", "one\ntwo\r\nthree")
        for text in ("one\ntwo", "two\r\nthree", "\n", "\r"):
            assert volume.grep(text) == []

    def test_grep_counts_lines_as_reading_does(self, volume: FilesCaller) -> None:
        volume.write("/f", f"one\r{ODD_BREAKS}\r\nneedle\n")
        assert [(match.line, match.text) for match in volume.grep("needle")] == [(3, "needle")]
        assert [(match.line, match.text) for match in volume.grep("feed")] == [(2, ODD_BREAKS)]
        assert volume.read_lines("/f").lines[2] == "needle"

    def test_binary_files_are_passed_over(self, volume: FilesCaller) -> None:
        volume.write("/binary", b"needle\xff")
        volume.write("/text", "needle")
        assert [match.path for match in volume.grep("needle")] == ["/text"]
        assert [match.path for match in volume.grep("ne+dle", regex=True)] == ["/text"]

    @pytest.mark.parametrize(
        ("pattern", "text", "found"),
        [
            ("NEEDLE", "a needle", True),
            ("needle", "A NEEDLE", True),
            ("ÄÖÜ", "xäöüx", True),
            ("привет", "ПРИВЕТ", True),
            ("a.c", "ABC", False),
            ("kelvin", "\u212aELVIN", True),
            ("mississippi", "Mi\u017f\u017fi\u017f\u017fippi", True),
            ("straße", "STRASSE", False),
        ],
    )
    def test_case_can_be_ignored(self, volume: FilesCaller, pattern: str, text: str, found: bool) -> None:
        volume.write("/f", text)
        assert [match.text for match in volume.grep(pattern, ignore_case=True)] == ([text] if found else [])
        escaped = pattern.replace(".", r"\.")
        assert bool(volume.grep(escaped, regex=True, ignore_case=True)) is found

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            (r"^def \w+", ["def one():", "def two(a, b):"]),
            (r"two|three", ["def two(a, b):", "# three"]),
            (r"one\(\)", ["def one():"]),
            (r"(?i)DEF ONE", ["def one():"]),
            (r"colou?r", ["color", "colour"]),
            (r"colou*r", ["color", "colour"]),
            (r"colou{0,2}r", ["color", "colour"]),
            (r"^$", [""]),
            (r"e$", ["# three"]),
            (r"x*", ["def one():", "def two(a, b):", "# three", "", "color", "colour"]),
            (r"[[:digit:]]", []),
            (r"def(?= t)", ["def two(a, b):"]),
            (r"[(?0-9)]+(?P<x>:)", ["def one():", "def two(a, b):"]),
            (r"(?:[a-z]{1,1000} ?){2}\(?x?", ["def one():", "def two(a, b):", "# three", "color", "colour"]),
        ],
    )
    def test_regular_expressions(self, volume: FilesCaller, pattern: str, found: list[str]) -> None:
        volume.write("/f", "def one():\ndef two(a, b):\r\n# three\n\ncolor\ncolour\n")
        assert [match.text for match in volume.grep(pattern, regex=True)] == found

    def test_a_pattern_that_cannot_be_is_refused(self, volume: FilesCaller) -> None:
        volume.write("/f", "x")
        for bad in ("(", "[", "*x", "(?P<n>", "\\"):
            with pytest.raises(InvalidInput, match="regular expression"):
                volume.grep(bad, regex=True)
        attempts: list[tuple[Any, dict[str, Any]]] = [(None, {}), (b"x", {}), (5, {}), ("x", {"limit": -1})]
        for pattern, options in [*attempts, ("x", {"limit": "1"}), ("x", {"limit": True})]:
            with pytest.raises(InvalidInput):
                volume.grep(pattern, **options)

    def test_a_regular_expression_that_blows_up_is_stopped(
        self, volume: FilesCaller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(patterns, "_SECONDS", 0.2)  # 5 would do, and take long
        volume.write("/f", "\n".join(["a" * 60 + "b"] * 100))
        began = time.monotonic()
        with pytest.raises(InvalidInput, match="takes more than"):
            volume.grep(r"(a|a)+$", regex=True)
        assert time.monotonic() - began < 5

    @pytest.mark.parametrize(
        "pattern",
        [
            "(?R)",
            "a(?R)?b",
            "(a(?1)?b)",
            "(?P<n>a(?&n)?b)",
            "(?P<n>a(?P>n)?b)",
            "(a(?+1)?)(b)",
            "(?:a{1000}){1000}",
            "(){100000}",
            "(?:a{00000000001000}){00000000001000}",
            "(?x)(?:a{1 0 0 0}){1 0 0 0}",
            "|".join(f"word{n}" for n in range(200_000)),
        ],
        ids=lambda pattern: f"{pattern:.20}",
    )
    def test_a_regular_expression_that_would_fill_the_memory_is_refused(
        self, volume: FilesCaller, pattern: str
    ) -> None:
        volume.write("/f", "aabb")
        began = time.process_time()
        with pytest.raises(InvalidInput, match="regular expression"):
            volume.grep(pattern, regex=True)
        assert time.process_time() - began < 0.5

    def test_a_text_of_any_length_can_be_looked_for(self, volume: FilesCaller) -> None:
        text = "no such text " * 10_000
        volume.write("/f", text)
        assert [match.path for match in volume.grep(text)] == ["/f"]
        assert [match.path for match in volume.grep(text[:1_000].upper(), ignore_case=True)] == ["/f"]
        with pytest.raises(InvalidInput, match="characters"):
            volume.grep(text.upper(), ignore_case=True)

    @pytest.mark.parametrize(
        ("pattern", "regex"), [("abc\ud800", False), ("abc\ud800", True), ("(" * 5000 + ")" * 5000, True)]
    )
    def test_what_nobody_can_look_for_is_refused(self, volume: FilesCaller, pattern: str, regex: bool) -> None:
        volume.write("/a", "abc?")
        with pytest.raises(InvalidInput):
            volume.grep(pattern, regex=regex)

    def test_a_limit_stops_early(self, volume: FilesCaller) -> None:
        for n in range(5):
            volume.write(f"/{n}", "tea\ntea\n")
        assert [(match.path, match.line) for match in volume.grep("tea", limit=3)] == [("/0", 1), ("/0", 2), ("/1", 1)]
        assert volume.grep("tea", limit=0) == []
        assert len(volume.grep("tea", limit=10)) == len(volume.grep("tea", limit=11)) == len(volume.grep("tea")) == 10

    def test_a_glob_chooses_among_the_files(self, named: FilesCaller) -> None:
        assert [match.path for match in named.grep("x", glob="*.py")] == ["/notes/b.py"]
        assert [match.path for match in named.grep("x", "/notes", glob="deep/**/*.md")] == ["/notes/deep/er/c.md"]
        assert [match.path for match in named.grep("x", glob="{README,c}.md")] == ["/README.md", "/notes/deep/er/c.md"]
        assert named.grep("x", glob="*.rs") == []
        assert [match.path for match in named.grep("x", "/notes/b.py", glob="*.py")] == ["/notes/b.py"]
        assert named.grep("x", "/notes/b.py", glob="*.md") == []

    def test_grep_sees_every_write_that_returned_before_it(self, store: Caller, volume: FilesCaller) -> None:
        """An index, where there is one, is never stale."""

        def found(text: str) -> list[str]:
            return [match.path for match in volume.grep(text)]

        assert found("needle") == []
        volume.write("/a", "needle")
        assert found("needle") == ["/a"]
        volume.append("/log", "hay nee")
        assert found("needle") == ["/a"]
        volume.append("/log", "dle")
        assert found("needle") == ["/a", "/log"]
        volume.copy("/log", "/copy")
        volume.edit("/log", "needle", "pin")
        assert found("needle") == ["/a", "/copy"]
        volume.move("/a", "/d/b")
        assert found("needle") == ["/copy", "/d/b"]
        store.put(NS, "/item", {"content": ["a needle", "as lines"], "created_at": "", "modified_at": ""})
        assert found("needle") == ["/copy", "/d/b", "/item"]
        store.put(NS, "/item", {"content": 5, "note": "needle"})
        volume.write("/copy", "gone")
        assert found("needle") == ["/d/b"]
        with volume.open("/piece", "wb") as file:
            file.write(b"nee")
            file.write(b"dle")
            assert found("needle") == ["/d/b"]
        assert found("needle") == ["/d/b", "/piece"]
        volume.delete("/d", recursive=True)
        store.delete(NS, "/piece")
        assert found("needle") == []

    def test_one_in_a_thousand_is_found(self, store: Caller, volume: FilesCaller) -> None:
        store.execute([Put(NS, f"/{n % 30}/{n}", {"content": f"file {n}\nnumber {n * 7}\n"}) for n in range(1000)])
        assert [(match.path, match.line) for match in volume.grep("number 6993")] == [("/9/999", 2)]
        assert len(volume.grep("number")) == 1000
        assert [match.path for match in volume.grep(r"^file 5\d5$", regex=True)] == sorted(
            f"/{n % 30}/{n}" for n in range(505, 600, 10)
        )
        for n in range(20):
            volume.write(f"/large/{n:02}", f"{n} " + "filler " * 30_000 + "\nthe end\n")
        assert [match.line for match in volume.grep("the end", limit=18)] == [2] * 18
        assert [match.path for match in volume.grep("\nthe end"[1:], glob="/large/*")] == [
            f"/large/{n:02}" for n in range(20)
        ]

    @many
    @given(
        texts=st.lists(st.text("aAbéÉk\u212a%_\"' \n\r\x0c", max_size=12), min_size=1, max_size=4),
        pattern=st.text("aAbéÉk\u212a%_\"' ", max_size=4),
        ignore_case=st.booleans(),
    )
    def test_grep_finds_what_a_plain_search_finds(
        self, volume: FilesCaller, texts: list[str], pattern: str, ignore_case: bool
    ) -> None:
        volume.delete("/", recursive=True)
        for number, text in enumerate(texts):
            volume.write(f"/{number}", text)

        def folded(text: str) -> str:
            return text.casefold() if ignore_case else text

        expected = [
            (f"/{number}", at, line)
            for number, text in enumerate(texts)
            for at, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n"), 1)
            if text and folded(pattern) in folded(line)
        ]
        found = volume.grep(pattern, ignore_case=ignore_case)
        assert [(match.path, match.line, match.text) for match in found] == expected
