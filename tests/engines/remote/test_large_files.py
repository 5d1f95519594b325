"""Files that are read in pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdall
from holdall.engines.remote import engine
from support.served import server


def test_a_file_that_changes_faster_than_its_pieces_are_read_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read again and again without an end, as the log of a thread that somebody writes to."""
    url = server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False)
    monkeypatch.setattr(engine, "_PIECE", 1000)
    requests = 0
    with holdall.open(url) as store, server().open_directly(url) as other:
        store.files().write("/f", b"x" * 5000)
        real = engine.Connections.perform

        def append_after(connections: engine.Connections, request: object) -> object:
            nonlocal requests
            requests += 1
            assert requests < 50
            answer = real(connections, request)  # type: ignore[arg-type]  # passed on
            other.files().append("/f", b"x")
            return answer

        monkeypatch.setattr(engine.Connections, "perform", append_after)
        assert len(store.files().read("/f")) > 5000
