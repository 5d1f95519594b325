"""Models and careless code pass anything anywhere. Of the faces whose frameworks have errors as values, none raises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from deepagents.backends import protocol

from holdall.faces import spoon
from holdall.faces.deepagents import HoldallBackend
from holdall.faces.spoon import StoreBackend
from support.face_calls import Calls


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError


WRONG = [
    *(None, True, 5, -1, 2**40, 10**5000, 1.5, float("nan"), float("inf"), float("-inf"), 1j),
    *("", "5", "five", "/", "..", "\ud800", "\x00", "{" * 2000, b"", b"/f", b"\xff"),
    *([], (), {}, set(), ["/f"], [None], [["/f"]], {"/f": b"x"}, ("/f", b"x"), [("/f",)], [("/f", b"x", 1)]),
    *([("/f", None)], [(None, None)], [([], {})], [b"/f"], object, object(), Unshowable(), [Unshowable()]),
]

#: Each method's arguments when all is well, and the types of its answers.
DEEPAGENTS = {
    "ls": ({"path": "/"}, protocol.LsResult),
    "read": ({"file_path": "/f", "offset": 0, "limit": 10}, protocol.ReadResult),
    "write": ({"file_path": "/g", "content": "x"}, protocol.WriteResult),
    "edit": (
        {"file_path": "/f", "old_string": "one", "new_string": "One", "replace_all": False},
        protocol.EditResult,
    ),
    "delete": ({"file_path": "/g"}, protocol.DeleteResult),
    "grep": ({"pattern": "one", "path": "/", "glob": "*", "max_count": 5}, protocol.GrepResult),
    "glob": ({"pattern": "*", "path": "/"}, protocol.GlobResult),
    "upload_files": ({"files": [("/f", b"one\n")]}, protocol.FileUploadResponse),
    "download_files": ({"paths": ["/f"]}, protocol.FileDownloadResponse),
}
SPOON = {
    "ls_info": ({"path": "/"}, dict),
    "read": ({"file_path": "/f", "offset": 0, "limit": 10}, str),
    "write": ({"file_path": "/g", "content": "x"}, spoon.WriteResult),
    "edit": ({"file_path": "/f", "old_string": "one", "new_string": "One", "replace_all": False}, spoon.EditResult),
    "grep_raw": ({"pattern": "one", "path": "/", "glob": "*"}, (dict, str)),
    "glob_info": ({"pattern": "*", "path": "/"}, dict),
    "upload_files": ({"files": [("/f", b"one\n")]}, spoon.FileUploadResponse),
    "download_files": ({"paths": ["/f"]}, spoon.FileDownloadResponse),
}
CALLS = [
    (face, method, name)
    for face, methods in (("deepagents", DEEPAGENTS), ("spoon", SPOON))
    for method, (arguments, _) in methods.items()
    for name in arguments
]


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
@pytest.mark.parametrize(("face", "method", "name"), CALLS, ids=lambda part: part)
def test_nothing_that_is_passed_raises(
    runner: asyncio.Runner | None, url: str, face: str, method: str, name: str, tmp_path: Any
) -> None:
    place = url if url == "memory:" else tmp_path / "agent.db"
    made = HoldallBackend(place, namespace=("n",)) if face == "deepagents" else StoreBackend(place, ("n",))
    backend = Calls(made, runner)
    arguments, kind = (DEEPAGENTS if face == "deepagents" else SPOON)[method]
    backend.upload_files([("/f", b"one\ntwo\n")])
    for wrong in WRONG:
        answer = getattr(backend, method)(**{**arguments, name: wrong})
        answers = answer if isinstance(answer, list) else [answer]
        assert all(isinstance(one, kind) for one in answers), answer
        errors = [one if isinstance(one, str) else getattr(one, "error", None) for one in answers]
        assert all(error is None or isinstance(error, str) for error in errors), answer
    (made if face == "deepagents" else made.store).close()


def test_a_number_may_be_written_as_a_model_writes_it() -> None:
    with HoldallBackend("memory:", namespace=("n",)) as backend:
        backend.write("/f", "one\none\none\n")
        found = backend.grep("one", max_count="2")  # type: ignore[arg-type]  # as a model writes it
        assert ([match["line"] for match in found.matches or []], found.truncated) == ([1, 2], True)
        assert backend.grep("one", max_count="few").error == "Error: max_count is a number, not 'few'"  # type: ignore[arg-type]  # likewise
        assert backend.read("/f", 0, "few").error == "limit is a number, not 'few'"  # type: ignore[arg-type]  # likewise
    backend = StoreBackend("memory:")
    backend.write("/f", "one\ntwo\n")
    assert backend.read("/f", "1") == "     2\ttwo"  # type: ignore[arg-type]  # likewise
    assert backend.read("/f", limit=None) == "Error: limit is a number, not None"  # type: ignore[arg-type]  # likewise


@pytest.mark.parametrize("face", ["deepagents", "spoon"])
def test_a_false_in_quotes_does_not_replace_all(runner: asyncio.Runner | None, face: str) -> None:
    made = HoldallBackend("memory:", namespace=("n",)) if face == "deepagents" else StoreBackend("memory:")
    backend = Calls(made, runner)
    backend.write("/f", "one one")
    answer = backend.edit("/f", "one", "two", replace_all="false")
    assert answer.error == "Error: replace_all is True or False, not 'false'"
    assert backend.download_files(["/f"])[0].content == b"one one"
    assert backend.edit("/f", "one", "two", replace_all=True).occurrences == 2


@pytest.mark.parametrize("face", ["deepagents", "spoon"])
def test_an_invalid_element_gets_its_own_error_response(runner: asyncio.Runner | None, face: str) -> None:
    made = HoldallBackend("memory:", namespace=("n",)) if face == "deepagents" else StoreBackend("memory:")
    backend = Calls(made, runner)
    done = backend.upload_files([("/a", b"1"), "/b", None, ["/c", b"3"], ("/d",)])
    assert [(one.path, one.error) for one in done] == [
        ("/a", None),
        ("'/b'", "expected a path and its content: '/b'"),
        ("None", "expected a path and its content: None"),
        ("/c", None),
        ("('/d',)", "expected a path and its content: ('/d',)"),
    ]
    assert [one.error for one in backend.upload_files(None)] == ["expected a list: None"]
    assert [one.error for one in backend.download_files("/a")] == ["expected a list: '/a'"]
    assert [one.content for one in backend.download_files(iter(["/a", "/c"]))] == [b"1", b"3"]
