"""The history of entries and files: versions, the store as it was, differences, and bringing old values back."""

from __future__ import annotations

import functools
import io
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ...errors import Conflict, HistoryGone, InvalidInput, IsADirectory, LeaseLost, NotADirectory, Unsupported
from ...ops import ABSENT, Append, Backdate, Delete, Entry, Put, ReadRange, Refresh, Version
from ..caller import Caller
from ..clock import Clock
from .base import Contract, Opener

NS = ("history", "a")
DAY = timedelta(days=1)


def summary(versions: list[Version]) -> list[tuple[str, Any]]:
    return [(one.kind, one.value) for one in versions]


def found(entries: Any) -> dict[tuple[Any, str], Any]:
    return {(entry.namespace, entry.key): entry.value for entry in entries}


class HistoryContract(Contract):
    @pytest.fixture
    def keeping(self, opened: Opener) -> Opener:
        """Give a function that opens a store with options; skip the test if its engine keeps no history."""
        if not opened().store._engine_handle.engine.capabilities.keeps_history:
            with pytest.raises(Unsupported, match="history"):
                opened(history=DAY)
            pytest.skip("this engine keeps no history")
        return opened

    @pytest.fixture
    def kept(self, keeping: Opener) -> Caller:
        """A store that keeps old values for a day."""
        return keeping(history=DAY)

    def test_each_change_of_an_entry_is_a_version(self, kept: Caller, clock: Clock) -> None:
        start, first = clock.now, kept.put(NS, "k", {"n": 1})
        clock.advance(1)
        second = kept.put(NS, "k", {"n": 2})
        clock.advance(1)
        kept.delete(NS, "k")
        clock.advance(1)
        third = kept.put(NS, "k", {"n": 3})
        versions = kept.history(NS, "k")
        assert summary(versions) == [("put", {"n": 3}), ("delete", None), ("put", {"n": 2}), ("put", {"n": 1})]
        assert [one.time for one in versions] == [start + timedelta(seconds=seconds) for seconds in (3, 2, 1, 0)]
        assert [one.version for one in versions if one.kind == "put"] == [third.version, second.version, first.version]
        assert summary(kept.history(NS, "k", limit=2)) == [("put", {"n": 3}), ("delete", None)]
        assert kept.history(NS, "k", limit=0) == kept.history(NS, "other") == []

    def test_the_history_of_a_folder_has_the_versions_of_all_its_files(self, kept: Caller, clock: Clock) -> None:
        volume = kept.acting("ada").files(NS)
        steps = ["/d/a", "/d/b", "/other", "/d/a", "/d/deep/c", "/db"]
        for number, path in enumerate(steps):
            clock.advance(1)
            volume.write(path, b"x" * number)
        volume.delete("/d/b")
        kept.put(NS, "/d/item", {"n": 1})
        kept.files((*NS, "below")).write("/d/a", b"x")
        found = volume.history("/d/")
        expected = [
            ("/d/item", "put"),
            ("/d/b", "delete"),
            *((f"/d/{name}", "put") for name in ("deep/c", "a", "b", "a")),
        ]
        assert [(one.path, one.kind) for one in found] == expected
        assert [one.size for one in found[2:]] == [4, 3, 1, 0]
        assert [one.author for one in found] == [None, *["ada"] * 5]
        assert volume.history("/d/", limit=3) == found[:3]
        assert volume.history("/d/deep/") == [found[2]]
        assert len(volume.history("/")) == len(found) + 2
        assert volume.history("/none/") == volume.history("/d/", limit=0) == []
        assert [one.path for one in volume.history("/d/a")] == [None, None], "of a file, it is known"

    def test_without_history_nothing_is_kept(self, keeping: Opener, clock: Clock) -> None:
        store = keeping()
        store.put(NS, "k", {"n": 1})
        store.put(NS, "k", {"n": 2})
        assert summary(store.history(NS, "k")) == [("put", {"n": 2})]
        with pytest.raises(HistoryGone, match="history="):
            store.at(clock.now).get(NS, "k")

    def test_the_setting_is_the_stores_and_open_stores_obey_it(self, keeping: Opener, clock: Clock) -> None:
        first = keeping()
        first.put(NS, "k", {"n": 1})
        second = keeping(history=DAY)
        second.get(NS, "k")
        first.put(NS, "k", {"n": 2})  # by a store that was open before
        assert summary(first.history(NS, "k")) == [("put", {"n": 2}), ("put", {"n": 1})]
        third = keeping()
        third.put(NS, "k", {"n": 3})
        assert len(third.history(NS, "k")) == 3
        keeping(history=0).get(NS, "k")
        first.put(NS, "k", {"n": 4})
        first.sweep()
        assert summary(first.history(NS, "k")) == [("put", {"n": 4})]
        with pytest.raises(HistoryGone):
            first.at(clock.now).get(NS, "k")
        keeping(history=3600).get(NS, "k")
        first.put(NS, "k", {"n": 5})
        assert summary(first.history(NS, "k")) == [("put", {"n": 5}), ("put", {"n": 4})]

    def test_a_bad_duration_is_refused(self, keeping: Opener) -> None:
        for bad in (-1, "a day", float("nan")):
            with pytest.raises(InvalidInput, match="history"):
                keeping(history=bad)

    def test_an_expired_entry_has_the_time_of_its_expiry(self, kept: Caller, clock: Clock) -> None:
        kept.put(NS, "k", {"n": 1}, ttl=10)
        end = clock.now + timedelta(seconds=10)
        clock.advance(100)
        assert kept.sweep() == 1
        expiry, put = kept.history(NS, "k")
        assert (expiry.kind, expiry.value, expiry.time) == ("expire", None, end)
        assert (put.kind, put.value, put.expires_at) == ("put", {"n": 1}, end)

    def test_refreshes_and_backdating_are_no_versions(self, kept: Caller, clock: Clock) -> None:
        kept.put(NS, "k", {"n": 1}, ttl=10)
        begin = clock.now
        clock.advance(5)
        kept.execute([Refresh(NS, "k"), Backdate(NS, "k", created_at=begin - DAY, updated_at=begin - DAY)])
        [version] = kept.history(NS, "k")
        assert (version.time, version.expires_at) == (begin, begin + timedelta(seconds=15))
        assert kept.at(begin + timedelta(seconds=4)).get(NS, "k").value == {"n": 1}
        clock.advance(7)
        kept.delete(NS, "k")
        clock.advance(20)
        assert kept.at(begin + timedelta(seconds=11)).get(NS, "k").value == {"n": 1}  # the last known expiry holds
        assert kept.at(begin + timedelta(seconds=12)).get(NS, "k") is None
        with pytest.raises(HistoryGone):
            kept.at(begin - timedelta(seconds=1)).get(NS, "k")

    def test_old_versions_are_purged_after_their_time(self, keeping: Opener, clock: Clock) -> None:
        store = keeping(history=100)
        for number in range(4):
            store.put(NS, "k", {"n": number})
            store.files(NS).write("/f", f"content {number}")
            clock.advance(40)
        cursor = store.cursor()
        store.sweep()  # versions 0 and 1 were replaced 120 and 80 seconds ago
        assert [one.value for one in store.history(NS, "k")] == [{"n": 3}, {"n": 2}, {"n": 1}]
        volume = store.files(NS)
        contents = [volume.read("/f", version=one.version) for one in volume.history("/f")]
        assert contents == [b"content 3", b"content 2", b"content 1"]
        assert store.at(clock.now - timedelta(seconds=100)).get(NS, "k").value == {"n": 1}
        with pytest.raises(HistoryGone):
            store.at(clock.now - timedelta(seconds=101)).get(NS, "k")
        clock.advance(1000)
        store.put(NS, "k", {"n": 4})
        store.sweep()
        assert len(store.history(NS, "k")) == 2
        assert store.at(cursor).get(NS, "k").value == {"n": 3}
        assert volume.read("/f") == b"content 3"

    def test_the_store_as_it_was(self, kept: Caller, clock: Clock) -> None:
        kept.put(NS, "gone", {"n": 1})
        kept.put(NS, "changed", {"n": 2, "tag": "old"})
        kept.put((*NS, "b"), "same", {"n": 3, "tag": "old"})
        moments = [clock.now, kept.cursor()]
        clock.advance(1)
        kept.execute([Delete(NS, "gone"), Put(NS, "changed", {"n": 20})])
        kept.put(("other",), "new", {"n": 4})
        for when in moments:
            then = kept.at(when)
            assert found(then.scan()) == {
                (NS, "gone"): {"n": 1},
                (NS, "changed"): {"n": 2, "tag": "old"},
                ((*NS, "b"), "same"): {"n": 3, "tag": "old"},
            }
            assert [entry.key for entry in then.scan()] == ["changed", "gone", "same"]
            assert then.get(NS, "changed").value == {"n": 2, "tag": "old"}
            assert then.get(("other",), "new") is None
            assert then.count() == 3
            assert then.count(NS, recursive=False) == 2
            assert then.count(filter={"tag": "old"}) == 2
            assert [hit.key for hit in then.search(NS, filter={"n": {"$gt": 1}})] == ["same", "changed"]
            page = then.search(limit=2)
            assert [hit.key for hit in page] == ["same", "changed"]
            assert [hit.key for hit in then.search(limit=2, cursor=page.next)] == ["gone"]
            assert [hit.key for hit in then.search(offset=1)] == ["changed", "gone"]
            assert then.namespaces() == [NS, (*NS, "b")]
            assert then.namespaces(max_depth=1) == [("history",)]
            assert then.stats().entries == 3
        assert kept.count() == 3
        assert kept.at(kept.cursor()).get(NS, "gone") is None

    def test_the_past_cannot_be_written_ranked_or_copied(self, kept: Caller, clock: Clock, tmp_path: Path) -> None:
        kept.put(NS, "k", {"text": "a word"})
        kept.backup(tmp_path / "present")
        then = kept.at(clock.now)
        for call in (
            lambda: then.put(NS, "k", {}),
            lambda: then.delete(NS, "k"),
            lambda: then.delete_tree(NS),
            lambda: then.files(NS).write("/f", "x"),
            lambda: then.search(NS, query="word"),
            then.cursor,
            then.sweep,
            then.check,
            lambda: then.export_entries(io.BytesIO(), format="jsonl"),
            lambda: then.backup(tmp_path / "past"),
            lambda: then.load(tmp_path / "present", into=True),
        ):
            with pytest.raises(Unsupported, match="at"):
                call()
        for bad in (datetime(2026, 1, 1), 5, None, "", "ü"):  # noqa: DTZ001  # without a time zone
            with pytest.raises(InvalidInput):
                kept.at(bad)
        with pytest.raises(InvalidInput, match="cursor"):
            kept.at("no cursor").get(NS, "k")

    def test_files_as_they_were(self, kept: Caller, clock: Clock) -> None:
        volume = kept.files(NS)
        volume.write("/notes/a.md", "one\ntwo\n")
        volume.write("/notes/deep/b.md", "three\n")
        volume.write("/empty", "")
        kept.put(NS, "item", {"n": 1})
        when, cursor = clock.now, kept.cursor()
        clock.advance(1)
        volume.write("/notes/a.md", "ruined")
        volume.append("/notes/deep/b.md", "four\n")
        volume.move("/empty", "/moved")
        for moment in (when, cursor):
            then = kept.at(moment).files(NS)
            assert then.read("/notes/a.md") == b"one\ntwo\n"
            assert then.read_text("/notes/deep/b.md") == "three\n"
            assert then.read("/empty") == b""
            assert then.read_range("/notes/a.md", 4, 7) == b"two"
            assert then.names("/notes") == ["a.md", "deep/"]
            assert [info.path for info in then.ls("/")] == ["/empty", "/notes/"]
            assert [info.path for info in then.glob("**/*.md")] == ["/notes/a.md", "/notes/deep/b.md"]
            assert [info.path for info in then.walk()] == ["/empty", "/notes/a.md", "/notes/deep/b.md"]
            assert [(match.path, match.line) for match in then.grep("o")] == [("/notes/a.md", 1), ("/notes/a.md", 2)]
            assert then.stat("/notes").is_dir
            assert then.stat("/notes/a.md").size == 8
            assert not then.exists("/moved")
            assert not then.exists("/item")
            with then.open("/notes/a.md") as file:
                assert file.read() == b"one\ntwo\n"
        assert volume.read("/notes/deep/b.md") == b"three\nfour\n"

    def test_versions_of_a_file(self, kept: Caller) -> None:
        volume = kept.files(NS)
        volume.write("/log", "a")
        for letter in "bcd":
            volume.append("/log", letter)
        volume.write("/log", "new")
        volume.copy("/log", "/copy")
        volume.append("/copy", "er")
        volume.delete("/log")
        versions = volume.history("/log")
        assert [(one.kind, one.size) for one in versions] == [
            ("delete", None),
            *(("put", size) for size in (3, 4, 3, 2, 1)),
        ]
        contents = [volume.read("/log", version=one.version) for one in versions[1:]]
        assert contents == [b"new", b"abcd", b"abc", b"ab", b"a"]
        assert [one.value["content"] for one in kept.history(NS, "/log")[1:]] == ["new", "abcd", "abc", "ab", "a"]
        assert [volume.read("/copy", version=one.version) for one in volume.history("/copy")] == [b"newer", b"new"]
        with pytest.raises(HistoryGone):
            volume.read("/log", version=versions[0].version)
        with pytest.raises(InvalidInput):
            volume.read("/log", version="1")
        info = volume.restore("/log", versions[2].version)
        assert (info.path, info.size, volume.read("/log")) == ("/log", 4, b"abcd")
        assert volume.append("/log", "!") == 4
        assert volume.read("/log", version=versions[2].version) == b"abcd"

    def test_large_contents_are_kept_through_moves_and_edits(self, kept: Caller) -> None:
        volume = kept.files(NS)
        first, second = b"x" * 300_000, b"y" * 200_000
        volume.write("/large", first)
        volume.append("/large", second)
        volume.move("/large", "/elsewhere")
        volume.write("/elsewhere", "small")
        moved, original = volume.history("/elsewhere"), volume.history("/large")
        assert volume.read("/elsewhere", version=moved[1].version) == first + second
        assert volume.read("/large", version=original[1].version) == first + second
        assert volume.read("/large", version=original[2].version) == first
        volume.restore("/large", original[2].version)
        assert volume.read_range("/large", 299_999) == b"x"

    def test_a_deleted_tree_can_be_read_as_it_was(self, kept: Caller, clock: Clock) -> None:
        for name in "abc":
            kept.put((*NS, name), "k", {"name": name})
        when, cursor = clock.now, kept.cursor()
        clock.advance(1)
        assert kept.delete_tree(NS) == 3
        for moment in (when, cursor):
            assert [entry.value["name"] for entry in kept.at(moment).scan(NS)] == ["a", "b", "c"]
        assert [one.kind for one in kept.history((*NS, "b"), "k")] == ["delete", "put"]

    def test_differences_between_two_moments(self, kept: Caller, clock: Clock) -> None:
        kept.put(NS, "same", {})
        kept.put(NS, "changed", {"n": 1})
        kept.put(NS, "gone", {"n": 2})
        first = clock.now
        clock.advance(1)
        kept.put(NS, "changed", {"n": 10})
        kept.delete(NS, "gone")
        kept.put((*NS, "b"), "new", {"n": 3})
        second = kept.cursor()
        clock.advance(1)
        kept.put(NS, "later", {})

        def values(*moments: Any) -> list[Any]:
            return [
                (one.key, one.before and one.before.value, one.after and one.after.value)
                for one in kept.diff(NS, *moments)
            ]

        between = [("changed", {"n": 1}, {"n": 10}), ("gone", {"n": 2}, None), ("new", None, {"n": 3})]
        assert values(first, second) == between
        assert values(first) == [*between[:2], ("later", None, {}), between[2]]
        assert values(second, second) == []

    def test_restoring_a_version_is_a_new_change(self, kept: Caller) -> None:
        first = kept.put(NS, "k", {"n": 1}, search_fields=["title"])
        kept.put(NS, "k", {"n": 2})
        with pytest.raises(HistoryGone):
            kept.restore(NS, "k", first.version + 10**6)
        restored = kept.restore(NS, "k", first.version)
        assert restored.value == kept.get(NS, "k").value == {"n": 1}
        assert restored.version > first.version
        kept.delete(NS, "k")
        again = kept.restore(NS, "k", first.version)
        assert (again.value, again.created_at) == ({"n": 1}, first.created_at)
        assert [one.value for one in kept.history(NS, "k")] == [{"n": 1}, None, {"n": 1}, {"n": 2}, {"n": 1}]

    def test_restoring_does_not_replace_a_change_that_was_not_expected(self, kept: Caller) -> None:
        volume = kept.files(NS)
        first, second = kept.put(NS, "k", {"n": 1}), kept.put(NS, "k", {"n": 2})
        file, changed = volume.write("/f", "first"), volume.write("/f", "second")
        for expect in (first, ABSENT):
            with pytest.raises(Conflict):
                kept.restore(NS, "k", first.version, expect=expect)
        with pytest.raises(Conflict):
            volume.restore("/f", file.version, expect=file)
        assert (kept.get(NS, "k").value, volume.read_text("/f")) == ({"n": 2}, "second")
        kept.restore(NS, "k", first.version, expect=second)
        volume.restore("/f", file.version, expect=changed)
        assert (kept.get(NS, "k").value, volume.read_text("/f")) == ({"n": 1}, "first")
        kept.delete(NS, "k")
        assert kept.restore(NS, "k", second.version, expect=ABSENT).value == {"n": 2}

    def test_a_restored_entry_starts_its_ttl_again(self, kept: Caller, clock: Clock) -> None:
        with_ttl = kept.put(NS, "ttl", {}, ttl=10)
        fixed = kept.put(NS, "fixed", {}, expires_at=clock.now + timedelta(seconds=10))
        later = kept.put(NS, "later", {}, expires_at=clock.now + timedelta(seconds=50))
        clock.advance(20)
        kept.sweep()
        kept.delete(NS, "later")
        assert kept.restore(NS, "ttl", with_ttl.version).expires_at == clock.now + timedelta(seconds=10)
        assert kept.restore(NS, "fixed", fixed.version).expires_at is None
        assert kept.restore(NS, "later", later.version).expires_at == later.expires_at

    def test_rewinding_brings_a_namespace_back_and_can_be_rewound(self, kept: Caller, clock: Clock) -> None:
        volume = kept.files(NS)
        kept.put(NS, "changed", {"n": 1})
        kept.put(NS, "gone", {"n": 2})
        kept.put(("outside",), "k", {"n": 1})
        volume.write("/notes.md", "good notes")
        before, cursor = found(kept.scan(NS)), kept.cursor()
        clock.advance(1)
        kept.put(NS, "changed", {"n": 10})
        kept.delete(NS, "gone")
        kept.put((*NS, "b"), "new", {"n": 3})
        kept.put(("outside",), "k", {"n": 2})
        volume.write("/notes.md", "ruined")
        ruined, later = found(kept.scan(NS)), kept.cursor()
        clock.advance(1)
        dry = kept.rewind(NS, cursor, dry_run=True)
        assert (dry.restored, dry.deleted) == (3, 1)
        assert found(kept.scan(NS)) == ruined
        assert kept.rewind(NS, cursor) == dry
        after = found(kept.scan(NS))
        for entries in (before, after):
            entries[NS, "/notes.md"] = entries[NS, "/notes.md"]["content"]
        assert after == before
        assert kept.get(("outside",), "k").value == {"n": 2}
        assert kept.rewind(NS, cursor).restored == 0 or kept.rewind(NS, cursor).deleted == 0
        kept.rewind(NS, later, sliced=True)
        assert volume.read("/notes.md") == b"ruined"
        assert kept.get((*NS, "b"), "new").value == {"n": 3}
        assert kept.get(NS, "gone") is None

    def test_what_has_expired_is_brought_back_before_and_after_it_is_swept(self, kept: Caller, clock: Clock) -> None:
        for is_swept in (False, True):
            kept.put(NS, "k", {"n": 1}, ttl=10)
            kept.put(NS, "new and gone", {}, expires_at=clock.now + timedelta(seconds=3))
            clock.advance(5)
            moment = clock.now
            clock.advance(20)
            if is_swept:
                kept.sweep()
            assert [(one.key, one.before.value, one.after) for one in kept.diff(NS, moment)] == [("k", {"n": 1}, None)]
            rewound = kept.rewind(NS, moment)
            assert (rewound.restored, rewound.deleted) == (1, 0)
            restored = kept.get(NS, "k")
            assert (restored.value, restored.expires_at) == ({"n": 1}, clock.now + timedelta(seconds=10))

    def test_a_rewind_to_the_future_changes_nothing(self, kept: Caller, clock: Clock) -> None:
        kept.put(NS, "k", {}, ttl=10)
        rewound = kept.rewind(NS, clock.now + timedelta(days=1))
        assert (rewound.restored, rewound.deleted) == (0, 0)
        assert kept.get(NS, "k") is not None

    def test_a_number_that_is_no_version_is_refused(self, kept: Caller) -> None:
        kept.files(NS).write("/f", "x")
        wrong: list[Any] = [2**63, -(2**63) - 1, "1", True, None]
        for version in wrong:
            with pytest.raises(InvalidInput):
                kept.restore(NS, "/f", version)
            with pytest.raises(InvalidInput):
                kept.files(NS).restore("/f", version)
            if version is not None:
                with pytest.raises(InvalidInput):
                    kept.files(NS).read("/f", version=version)
                with pytest.raises(InvalidInput):
                    kept.execute([ReadRange(NS, "/f", 0, None, version)])

    def test_a_file_is_not_restored_to_the_path_of_a_folder(self, kept: Caller) -> None:
        volume = kept.files(NS)
        file, below = volume.write("/a", "file"), volume.write("/b/c", "below")
        volume.delete("/a")
        volume.delete("/b", recursive=True)
        volume.write("/a/b", "below")
        volume.write("/b", "file")
        for restore in (volume.restore, functools.partial(kept.restore, NS)):
            with pytest.raises(IsADirectory):
                restore("/a", file.version)
            with pytest.raises(NotADirectory):
                restore("/b/c", below.version)
        assert [info.path for info in volume.walk("/")] == ["/a/b", "/b"]

    def test_a_rewind_is_refused_when_the_lease_is_lost(self, kept: Caller, clock: Clock) -> None:
        kept.put(NS, "k", {"n": 1})
        cursor = kept.cursor()
        lease = kept.lease("name", 10).lease
        for when in (kept.cursor(), cursor):
            kept.rewind(NS, when, lease=lease)
        kept.put(NS, "k", {"n": 2})
        clock.advance(10)
        for when in (kept.cursor(), cursor):
            with pytest.raises(LeaseLost):
                kept.rewind(NS, when, lease=lease)
        assert kept.get(NS, "k").value == {"n": 2}

    def test_a_rewind_is_seen_by_watchers(self, kept: Caller) -> None:
        kept.put(NS, "k", {"n": 1})
        cursor = kept.cursor()
        kept.put(NS, "k", {"n": 2})
        kept.put(NS, "new", {})
        watch = kept.watch(NS)
        kept.acting("operator", reason="undo").rewind(NS, cursor)
        changes = watch.take(2)
        watch.close()
        assert {(change.key, change.kind, change.author, change.reason) for change in changes} == {
            ("k", "put", "operator", "undo"),
            ("new", "delete", "operator", "undo"),
        }

    def test_writes_carry_an_author_and_a_reason(self, kept: Caller) -> None:
        cursor = kept.cursor()
        agent = kept.acting("agent-7", reason="a tool call")
        agent.put(NS, "put", {"n": 1})
        agent.update(NS, "put", lambda value: {"n": value["n"] + 1})
        agent.put(NS, "deleted", {})
        kept.acting("agent-8").delete(NS, "deleted")
        agent.files(NS).append("/log", "x")
        kept.files(NS).append("/log", "y")
        kept.put(NS, "nobody", {})
        watch = kept.watch(NS, since=cursor)
        changes = {change.key: (change.author, change.reason) for change in watch.take(4)}
        watch.close()
        both = ("agent-7", "a tool call")
        assert changes == {"put": both, "deleted": ("agent-8", None), "/log": (None, None), "nobody": (None, None)}
        assert [(one.author, one.reason) for one in kept.history(NS, "put")] == [both, both]
        assert [(one.kind, one.author) for one in kept.history(NS, "deleted")] == [
            ("delete", "agent-8"),
            ("put", "agent-7"),
        ]
        assert [one.author for one in kept.files(NS).history("/log")] == [None, "agent-7"]
        for again in (False, True):  # the keys are new, and then they exist
            for author in ("agent-7", "agent-8"):
                puts = [Put(NS, key, {"again": again}) for key in (f"{author}-1", f"{author}-2")]
                kept.acting(author).execute([*puts, Put(NS, "last", {})])
            authors = [kept.history(NS, key)[0].author for key in ("agent-7-1", "agent-8-1", "agent-8-2", "last")]
            assert authors == ["agent-7", "agent-8", "agent-8", "agent-8"]
        kept.execute([Put(NS, "agent-7-1", {}), Put(NS, "agent-8-1", {})])
        assert [kept.history(NS, key)[0].author for key in ("agent-7-1", "agent-8-1")] == [None, None]
        for bad in ("", 5, None, "x" * 1001):
            with pytest.raises(InvalidInput, match="author"):
                kept.acting(bad)
        with pytest.raises(InvalidInput, match="reason"):
            kept.acting("agent", reason="")

    def test_a_failed_batch_keeps_nothing(self, kept: Caller) -> None:
        entry = kept.put(NS, "k", {"n": 1})
        volume = kept.files(NS)
        volume.write("/f", "x")
        with pytest.raises(Conflict):
            kept.execute([Put(NS, "k", {"n": 2}), Append(NS, "/f", b"y"), Put(NS, "other", {}, expect=entry.version)])
        assert summary(kept.history(NS, "k")) == [("put", {"n": 1})]
        assert len(volume.history("/f")) == 1
        assert volume.read("/f") == b"x"

    def test_several_changes_in_one_batch_are_versions_but_no_moments(self, kept: Caller, clock: Clock) -> None:
        kept.put(NS, "k", {"n": 0})
        clock.advance(1)
        cursor = kept.cursor()
        kept.execute([Put(NS, "k", {"n": 1}), Append(NS, "/f", b"a"), Append(NS, "/f", b"b"), Put(NS, "k", {"n": 2})])
        assert [one.value for one in kept.history(NS, "k")] == [{"n": 2}, {"n": 1}, {"n": 0}]
        volume = kept.files(NS)
        assert [volume.read("/f", version=one.version) for one in volume.history("/f")] == [b"ab", b"a"]
        assert kept.at(clock.now).get(NS, "k").value == {"n": 2}
        assert kept.at(cursor).get(NS, "k").value == {"n": 0}
        assert kept.at(cursor).count() == 1

    def test_a_scope_sees_only_its_own_past(self, kept: Caller, clock: Clock) -> None:
        kept.put(("user", "alice"), "k", {"n": 1})
        kept.put(("user", "bob"), "k", {"n": 1})
        when = clock.now
        clock.advance(1)
        kept.put(("user", "alice"), "k", {"n": 2})
        kept.put(("user", "bob"), "k", {"n": 2})
        alice = kept.scoped(("user", "alice"))
        assert [one.value for one in alice.history((), "k")] == [{"n": 2}, {"n": 1}]
        assert found(alice.at(when).scan()) == {((), "k"): {"n": 1}}
        assert [(one.namespace, one.before.value) for one in alice.diff((), when)] == [((), {"n": 1})]
        assert alice.rewind((), when).restored == 1
        assert kept.get(("user", "alice"), "k").value == {"n": 1}
        assert kept.get(("user", "bob"), "k").value == {"n": 2}
        old = alice.history((), "k")[-1]
        assert isinstance(alice.restore((), "k", old.version), Entry)

    def test_hidden_namespaces_keep_no_past_and_are_left_alone(self, kept: Caller, clock: Clock) -> None:
        hidden = (*NS, ".holdall.log")
        kept.put(NS, "k", {"n": 1})
        start = kept.cursor()
        clock.advance(1)
        for number in range(3):
            kept.put(hidden, "k", {"n": number})
            kept.files(hidden).append("/log", "line\n")
        kept.put(NS, "k", {"n": 2})
        assert summary(kept.history(hidden, "k")) == [("put", {"n": 2})]
        assert [version.size for version in kept.files(hidden).history("/log")] == [15]
        for view in (kept.at(start), kept.at(kept.cursor())):
            assert [entry.namespace for entry in view.scan()] == [NS]
            assert view.count() == 1
        assert [(one.namespace, one.key) for one in kept.diff((), start)] == [(NS, "k")]
        assert kept.rewind(NS[:1], start).restored == 1
        assert kept.get(hidden, "k") is not None
        assert kept.files(hidden).read("/log") == b"line\n" * 3
        with pytest.raises(Unsupported, match="hidden"):
            kept.rewind(hidden, start)

    def test_many_entries_are_read_page_by_page(self, kept: Caller, clock: Clock) -> None:
        count = 1200
        for start in range(0, count, 300):
            kept.execute([Put((*NS, f"n{n % 7}"), f"k{n:04}", {"n": n}) for n in range(start, start + 300)])
        when = clock.now
        clock.advance(1)
        kept.delete_tree((*NS, "n3"))
        kept.execute([Put((*NS, "n5"), f"k{n:04}", {"n": -1}) for n in range(5, count, 7)])
        then = kept.at(when)
        assert sorted(entry.value["n"] for entry in then.scan()) == list(range(count))
        assert then.count(filter={"n": {"$gte": 600}}) == count - 600
        differing = list(kept.diff(NS, when))
        assert len(differing) == len(range(3, count, 7)) + len(range(5, count, 7))
        kept.rewind(NS, when)
        assert sorted(entry.value["n"] for entry in kept.scan()) == list(range(count))
