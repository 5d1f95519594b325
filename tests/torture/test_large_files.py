"""Files of more than a gigabyte: other calls still work, and memory use stays small."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support import processes, stores

MIB = 1 << 20


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "disk"])
def test_a_file_larger_than_a_database_value_breaks_no_other_call(
    engine: str, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    [grown] = processes.run(
        use_beside_a_large_file, at=stores.new_location(engine, tmp_path), pieces=scaled(132, 1100), deadline=900
    )
    assert grown < 300 * MIB


def use_beside_a_large_file(at: dict[str, str], pieces: int) -> None:
    with stores.open_at(at) as store:
        files = store.files(("docs",))
        files.write("/a.md", "a needle\n")
        files.write("/z.md", "a needle\n")
        line = b"needle " + b"x" * 120 + b"\n"
        before = peak = measure_memory()
        is_done = threading.Event()

        def sample_memory() -> None:
            nonlocal peak
            while not is_done.wait(0.005):
                peak = max(peak, measure_memory())

        sampler = threading.Thread(target=sample_memory)
        sampler.start()
        with files.open("/large", "wb") as file:
            for _ in range(pieces):
                file.write(line * (MIB // len(line)))
        for options in ({}, {"glob": "*.md"}, {"regex": True}, {"ignore_case": True}):
            assert [match.path for match in files.grep("needle", **options)] == ["/a.md", "/z.md"]
        assert files.grep("needle", "/large") == []
        found = {entry.key: entry.value["content"] for entry in store.scan(("docs",))}
        assert found == {"/a.md": "a needle\n", "/large": None, "/z.md": "a needle\n"}
        assert {hit.key for hit in store.search(("docs",))} == found.keys()
        assert {hit.key for hit in store.search(("docs",), query="needle")} == found.keys()
        assert store.count(("docs",), filter={"content": {"$contains": "needle"}}) == 2
        with files.open("/large", "rb") as file:
            assert sum(len(piece) for piece in iter(lambda: file.read(MIB), b"")) == files.stat("/large").size
        files.copy("/large", "/copy")
        files.append("/copy", "more")
        assert files.read_range("/copy", files.stat("/large").size) == b"more"
        assert files.delete("/large", recursive=True) == files.delete("/copy", recursive=True) == 1
        is_done.set()
        sampler.join()
        processes.report(peak - before)


def measure_memory() -> int:
    """Return the bytes of memory that this process uses, without mapped files."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) << 10
