"""Changing what is stored, in Chromium: edits and their conflicts, files, history, rewind, and live changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdall
from support.served import server

pytestmark = pytest.mark.not_short

AGENT = """
import sys, holdall
with holdall.open(sys.argv[1]) as store:
    agent = store.acting("agent-7", reason="nightly job")
    for number in range(int(sys.argv[3])):
        agent.put(("notes",), sys.argv[2], {"text": f"from the agent {number}", "number": number})
"""


def let_an_agent_write(folder: Path, key: str, times: int = 1) -> None:
    """Write an entry in a process of its own, as an agent does."""
    subprocess.run([sys.executable, "-c", AGENT, f"sqlite:///{folder}/store.db", key, str(times)], check=True)


def edit(page: Any, text: str) -> None:
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Content").fill(text)


def test_an_edit_is_saved_and_can_be_undone(url: str, store: holdall.Store, open_page: Callable[..., Any]) -> None:
    store.put(("notes",), "a", {"text": "first"}, ttl=3600)
    page = open_page(f"{url}#/browse?ns=notes&entry=notes/a")
    edit(page, '{"text": ')
    assert "not JSON" in page.locator(".field-error").inner_text()
    assert page.get_by_role("button", name="Save").is_disabled()
    page.get_by_role("textbox", name="Content").fill("[1]")
    assert "JSON object" in page.locator(".field-error").inner_text()
    page.get_by_role("textbox", name="Content").fill('{"text": "second"}')
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Saved.", exact=True).wait_for()
    entry = store.get(("notes",), "a")
    assert entry is not None
    assert entry.value == {"text": "second"}
    assert entry.expires_at is not None, "an edit keeps the time to live"
    assert store.history(("notes",), "a")[0].author == "explorer"
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("link", name='"first"').wait_for()
    entry = store.get(("notes",), "a")
    assert entry is not None
    assert entry.value == {"text": "first"}


def test_undoing_does_not_overwrite_what_another_process_wrote_meanwhile(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.put(("notes",), "a", {"text": "first"})
    page = open_page(f"{url}#/browse?ns=notes&entry=notes/a")
    edit(page, '{"text": "second"}')
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Undo").wait_for()
    store.put(("notes",), "a", {"text": "an agent's"})
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("It could not be undone.").wait_for()
    entry = store.get(("notes",), "a")
    assert entry is not None
    assert entry.value == {"text": "an agent's"}


def test_undoing_an_edit_brings_back_what_it_replaced_and_not_what_was_opened(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.put(("notes",), "a", {"text": "first"})
    page = open_page(f"{url}#/browse?ns=notes&entry=notes/a")
    edit(page, '{"text": "mine"}')
    store.put(("notes",), "a", {"text": "theirs"})
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Save mine over it").click()
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("link", name='"theirs"').wait_for()


def test_an_edit_does_not_overwrite_what_another_process_wrote_meanwhile(
    url: str, store: holdall.Store, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    store.put(("notes",), "a", {"text": "first"})
    page = open_page(f"{url}#/browse?ns=notes&entry=notes/a")
    edit(page, '{"text": "mine"}')
    let_an_agent_write(tmp_path, "a")
    page.get_by_text("agent-7 has changed this entry since you began to edit").wait_for()
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name="It was changed while you edited").wait_for()
    shown = page.locator(".conflict .diff").inner_text()
    assert "from the agent 0" in shown
    assert "mine" in shown
    entry = store.get(("notes",), "a")
    assert entry is not None
    assert entry.value["text"] == "from the agent 0", "nothing was overwritten"
    let_an_agent_write(tmp_path, "a", times=2)
    page.get_by_role("button", name="Save mine over it").click()
    page.locator(".conflict", has_text="from the agent 1").wait_for()
    entry = store.get(("notes",), "a")
    assert entry is not None
    assert entry.value["text"] == "from the agent 1", "a newer change is not overwritten unseen"
    page.get_by_role("button", name="Save mine over it").click()
    page.get_by_text("Saved.", exact=True).wait_for()
    entry = store.get(("notes",), "a")
    assert entry is not None
    assert entry.value == {"text": "mine"}


def test_a_text_that_was_not_saved_is_kept_when_another_entry_is_opened(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.put(("notes",), "a", {"text": "first"})
    store.put(("notes",), "b", {"text": "other"})
    page = open_page(f"{url}#/browse?ns=notes&entry=notes/a")
    closes = """() => dispatchEvent(new Event("beforeunload", {cancelable: true}))"""
    edit(page, '{"text": "typed for an hour"}')
    page.get_by_role("row", name="b", exact=False).last.click()
    page.get_by_role("link", name='"other"').wait_for()
    page.get_by_text("Your changes of a are not saved.").wait_for()
    assert page.evaluate(closes) is False, "the browser asks before it closes the page"
    page.go_back()
    assert page.get_by_role("textbox", name="Content").input_value() == '{"text": "typed for an hour"}'
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Saved.", exact=True).wait_for()
    entry = store.get(("notes",), "a")
    assert entry is not None
    assert entry.value == {"text": "typed for an hour"}
    page.get_by_role("link", name='"typed for an hour"').wait_for()
    assert page.evaluate(closes) is True
    edit(page, '{"text": "unwanted"}')
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("link", name='"typed for an hour"').wait_for()
    page.get_by_role("row", name="b", exact=False).last.click()
    page.go_back()
    page.get_by_role("link", name='"typed for an hour"').wait_for()


def test_a_file_that_has_changed_is_neither_deleted_nor_moved(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    files = store.files(("f",))
    files.write("/a.txt", "seen")
    page = open_page(f"{url}#/browse?ns=f&folder=/&entry=f/%252Fa.txt")
    page.locator(".code", has_text="seen").wait_for()
    for action in ("Delete", "Move"):
        page.get_by_role("button", name=action, exact=True).click()
        if action == "Move":
            page.get_by_label("New path").fill("/b.txt")
        files.write("/a.txt", f"changed before {action}")
        page.locator(".code", has_text=f"changed before {action}").wait_for()
        page.get_by_role("dialog").get_by_role("button", name=action).click()
        page.locator(".toast.error", has_text="expected it at version").wait_for()
        assert files.read_text("/a.txt") == f"changed before {action}"
        page.get_by_role("button", name="Dismiss").click()


def test_older_versions_are_shown_on_demand_and_by_an_address(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    for number in range(130):
        store.put(("notes",), "a", {"number": number})
    page = open_page(f"{url}#/browse?ns=notes&entry=notes/a&tab=history")
    page.locator(".revision").nth(98).click()
    page.locator(".diff .removed", has_text="30").wait_for()
    page.get_by_role("button", name="Show older versions").click()
    page.locator(".revision").nth(129).wait_for()
    first = store.history(("notes",), "a", limit=200)[-1]
    page.goto("about:blank")
    page.goto(f"{url}#/browse?ns=notes&entry=notes/a&tab=history&version={first.version}")
    page.locator(".diff", has_text=f"Version {first.version}").wait_for()
    page.locator(".diff", has_text="Before: nothing").wait_for()


def test_an_entry_is_made_and_deleted_and_brought_back(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    page = open_page(f"{url}#/browse?pane=main")
    page.get_by_role("button", name="New entry").click()
    page.get_by_label("Namespace (labels").fill("users/a%2Fb")
    page.get_by_label("Key", exact=True).fill("k/1")
    page.get_by_label("Value (a JSON object)").fill('{"n": 1}')
    page.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name="k/1", level=2).wait_for()
    assert store.get(("users", "a/b"), "k/1") is not None
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("k/1 is deleted.").wait_for()
    assert store.get(("users", "a/b"), "k/1") is None
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("heading", name="k/1", level=2).wait_for()
    assert store.get(("users", "a/b"), "k/1") is not None


def test_without_history_nothing_offers_to_undo(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    url = server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False)
    with server().open_directly(url) as store:
        store.put(("notes",), "a", {"text": "first"})
        page = open_page(f"{url}/#/browse?ns=notes&entry=notes/a")
        page.get_by_role("button", name="Delete").click()
        page.get_by_text("it cannot be brought back").wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        page.get_by_text("a is deleted.").wait_for()
        assert page.get_by_role("button", name="Undo").count() == 0
        assert page.get_by_role("link", name="History").count() == 0


def test_a_file_is_uploaded_found_by_grep_edited_moved_and_deleted(
    url: str, store: holdall.Store, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    files = store.files(("agent", "files"))
    files.write("/old.txt", "nothing here\n")
    page = open_page(f"{url}#/browse?ns=agent/files&folder=/")
    local = tmp_path / "plan.py"
    local.write_text("import os\n\n\ndef buy():\n    # almonds, not peanuts\n    return 7\n")
    page.get_by_label("Files to upload").set_input_files(local)
    page.get_by_text("/plan.py is stored.").wait_for()
    page.get_by_label("Find lines in these files").fill("PEANUTS")
    page.get_by_text("1 line in 1 file").wait_for()
    page.locator(".grep-lines li").nth(3).wait_for()
    assert page.locator(".grep-lines li").all_inner_texts() == [
        "",
        "def buy():",
        "    # almonds, not peanuts",
        "    return 7",
    ], "with the lines around it"
    page.get_by_label("Find lines in these files").fill("o")
    page.get_by_text("3 lines in 2 files").wait_for()
    page.locator(".grep-lines li").nth(6).wait_for()
    sizes = page.locator(".grep-lines").evaluate_all("lists => lists.map(list => list.children.length)")
    assert sizes == [1, 6], "matches that are near each other are in one piece"
    page.get_by_label("Find lines in these files").fill("PEANUTS")
    page.get_by_role("link", name="# almonds, not peanuts").click()
    page.locator(".code .is-marked", has_text="almonds").wait_for()
    assert page.locator(".syntax-keyword").first.inner_text() == "import"
    edit(page, "def buy():\n    return 8\n")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Saved.", exact=True).wait_for()
    assert files.read_text("/plan.py") == "def buy():\n    return 8\n"
    page.get_by_role("button", name="Move").click()
    page.get_by_label("New path").fill("/src/plan.py")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    page.get_by_text("It is now /src/plan.py.").wait_for()
    assert files.exists("/src/plan.py")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert Path(download.value.path()).read_text() == "def buy():\n    return 8\n"
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("plan.py is deleted.").wait_for()
    assert not files.exists("/src/plan.py")


def test_an_upload_does_not_replace_a_file_unasked(
    url: str, store: holdall.Store, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    files = store.files(("f",))
    files.write("/a.txt", "old")
    page = open_page(f"{url}#/browse?ns=f&folder=/")
    (tmp_path / "a.txt").write_text("new")
    page.get_by_label("Files to upload").set_input_files(tmp_path / "a.txt")
    page.get_by_role("dialog").get_by_text("Replace a.txt?").wait_for()
    assert files.read_text("/a.txt") == "old"
    page.get_by_role("dialog").get_by_role("button", name="Replace").click()
    page.get_by_text("/a.txt is stored.").wait_for()
    assert files.read_text("/a.txt") == "new"


def test_changes_of_a_running_agent_appear_with_author_and_difference(
    url: str, store: holdall.Store, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    store.put(("notes",), "a", {"text": "before", "number": -1})
    page = open_page(f"{url}#/live")
    page.locator('[data-status="live"]').wait_for()
    let_an_agent_write(tmp_path, "a")
    change = page.locator(".change").first
    change.get_by_text("agent-7").wait_for()
    change.locator(".added", has_text="from the agent 0").wait_for()
    change.locator(".removed", has_text="before").wait_for()
    files = store.files(("notes",))
    files.write("/plan.md", "one\ntwo,\n")
    files.write("/plan.md", "one\ntwo\n")
    change = page.locator(".change", has_text="plan.md").first
    change.locator(".added").wait_for()
    assert change.locator(".change-details > *").all_inner_texts() == ["− two,", "+ two"], "the lines of a file"
    page.get_by_role("button", name="Pause").click()
    for key in "bcd":
        store.put(("notes",), key, {"n": 1})
    page.get_by_role("button", name="Continue (3 new)").wait_for()
    assert page.locator(".change").count() == 3
    page.keyboard.press("p")
    page.locator(".change").nth(5).wait_for()
    store.put(("other",), "c", {"n": 1})
    page.locator(".change", has_text="other").wait_for()
    page.goto(f"{url}#/live?ns=other")
    page.locator(".change", has_text="other").wait_for()
    assert page.locator(".change").count() == 1, "filtered by namespace"


def test_without_history_a_change_is_compared_with_the_one_before(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    url = server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False) + "/"
    with server().open_directly(url.rstrip("/")) as store:
        files = store.files(("notes",))
        page = open_page(f"{url}#/live")
        page.locator('[data-status="live"]').wait_for()
        files.write("/plan.md", "one\ntwo\n")
        page.locator(".change .added", has_text="+ two").wait_for()
        files.write("/plan.md", "one\nthree\n")
        page.locator(".change .removed", has_text="− two").wait_for()
        files.write("/large", "line\n" * 50_000)
        files.write("/plan.md", "one\nfour\n")
        page.locator(".change .added", has_text="+ four").wait_for()
        assert page.locator(".change", has_text="large").locator(".added").count() == 0


def test_the_table_the_tree_and_the_entry_follow_changes(
    url: str, store: holdall.Store, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    store.put(("notes",), "a", {"text": "before"})
    page = open_page(f"{url}#/browse?ns=notes&entry=notes/a")
    page.locator('[data-status="live"]').wait_for()
    let_an_agent_write(tmp_path, "a")
    page.get_by_role("link", name='"from the agent 0"').wait_for()
    let_an_agent_write(tmp_path, "b")
    page.get_by_role("row", name="b", exact=False).filter(has_text="from the agent").nth(1).wait_for()
    page.locator('.tree-row:has-text("notes") .tree-count', has_text="2").wait_for()
    store.delete(("notes",), "a")
    page.get_by_text("There is no such entry now.").wait_for()


def test_an_old_version_is_compared_and_restored(
    url: str, store: holdall.Store, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    store.put(("notes",), "a", {"text": "good"})
    let_an_agent_write(tmp_path, "a")
    page = open_page(f"{url}#/browse?ns=notes&entry=notes/a")
    page.get_by_role("button", name="History").click()
    page.locator(".revision", has_text="by agent-7").wait_for()
    assert "nightly job" in page.locator(".revision").first.inner_text()
    page.locator(".revision").nth(1).click()
    page.locator(".diff .added", has_text="good").wait_for()
    page.get_by_role("button", name="Restore this version").click()
    page.get_by_text("is back.").wait_for()
    entry = store.get(("notes",), "a")
    assert entry is not None
    assert entry.value == {"text": "good"}
    page.get_by_role("button", name="Undo").click()
    page.locator(".revision").nth(3).wait_for()
    entry = store.get(("notes",), "a")
    assert entry is not None
    assert entry.value["text"] == "from the agent 0"


def test_a_file_is_restored_and_the_whole_page_shows_an_earlier_moment(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    files = store.files(("f",))
    files.write("/plan.md", "1. Measure\n2. Decide\n")
    files.write("/plan.md", "TODO\n")
    store.put(("f",), "later", {"n": 1})
    page = open_page(f"{url}#/browse?ns=f&entry=f/%252Fplan.md&tab=history")
    page.locator(".revision").nth(1).click()
    page.locator(".diff .added", has_text="Measure").wait_for()
    page.get_by_role("link", name="See the whole store at this moment").click()
    page.get_by_text("You see the store as it was at").wait_for()
    page.get_by_text("1 entry", exact=True).wait_for()
    page.locator(".markdown", has_text="Measure").wait_for()
    assert page.get_by_role("button", name="Edit").count() == 0
    assert page.get_by_role("button", name="New entry").count() == 0
    page.get_by_role("link", name="Back to now").click()
    page.get_by_text("2 entries").wait_for()
    page.locator(".markdown", has_text="TODO").wait_for()
    page.get_by_role("button", name="History").click()
    page.locator(".revision").nth(1).click()
    page.get_by_role("button", name="Restore this version").click()
    page.get_by_text("is back.").wait_for()
    assert files.read_text("/plan.md") == "1. Measure\n2. Decide\n"


def test_a_namespace_is_rewound_after_a_preview_and_that_is_undone(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.put(("agent", "memory"), "home", {"city": "Lisbon"})
    store.put(("other",), "x", {"n": 1})
    moment = store.history(("other",), "x")[0].time
    store.put(("agent", "memory"), "home", {"city": "nowhere"})
    store.put(("agent", "memory"), "junk", {"text": "made up"})
    store.put(("other",), "x", {"n": 2})
    since = moment.isoformat().replace("+00:00", "Z")
    page = open_page(f"{url}#/history?ns=agent&since={since}")
    page.get_by_text("2 entries differ").wait_for()
    page.get_by_role("button", name="Rewind to then").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("1 entry would be brought back, and 1 entry made since then would be deleted").wait_for()
    dialog.get_by_role("button", name="home").click()
    dialog.locator(".diff .removed", has_text="Lisbon").wait_for()
    assert store.get(("agent", "memory"), "junk") is not None, "a preview changes nothing"
    dialog.get_by_role("button", name="Rewind 2 entries").click()
    page.get_by_text("Rewound 2 entries.").wait_for()
    entry, other = store.get(("agent", "memory"), "home"), store.get(("other",), "x")
    assert entry is not None
    assert other is not None
    assert (entry.value, other.value) == ({"city": "Lisbon"}, {"n": 2})
    assert store.get(("agent", "memory"), "junk") is None
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("2 entries differ").wait_for()
    assert store.get(("agent", "memory"), "junk") is not None


def test_an_edit_keeps_the_ends_of_lines(url: str, store: holdall.Store, open_page: Callable[..., Any]) -> None:
    files = store.files(("docs",))
    files.write("/crlf.txt", b"one\r\ntwo\r\n")
    files.write("/mixed.txt", b"one\r\ntwo\n")
    page = open_page(f"{url}#/browse?ns=docs&folder=/&entry=docs/%252Fcrlf.txt")
    edit(page, "one\n2\n")
    files.write("/crlf.txt", b"one\r\ntwo\r\nthree\r\n")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name="It was changed while you edited").wait_for()
    assert page.locator(".conflict .removed").all_inner_texts() == ["two", "three"], "equal lines are equal"
    page.get_by_role("button", name="Save mine over it").click()
    page.get_by_text("Saved.", exact=True).wait_for()
    assert files.read("/crlf.txt") == b"one\r\n2\r\n"
    page.goto(f"{url}#/browse?ns=docs&folder=/&entry=docs/%252Fmixed.txt")
    page.get_by_role("heading", name="mixed.txt", level=2).wait_for()
    page.get_by_role("button", name="Edit").click()
    page.get_by_text("end in different ways").wait_for()
    assert files.read("/mixed.txt") == b"one\r\ntwo\n"


def test_an_entry_whose_key_a_path_cannot_have_keeps_its_numbers(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.put(("notes",), "..", {"large": 12345678901234567890, "text": "first"})
    page = open_page(f"{url}#/browse?ns=notes&entry=notes/..")
    page.get_by_role("link", name="12345678901234567890").wait_for()
    page.get_by_role("button", name="Edit").click()
    field = page.get_by_role("textbox", name="Content")
    field.fill(field.input_value().replace("first", "second"))
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Saved.", exact=True).wait_for()
    entry = store.get(("notes",), "..")
    assert entry is not None
    assert entry.value == {"large": 12345678901234567890, "text": "second"}


def test_a_folder_has_a_time_line(url: str, store: holdall.Store, open_page: Callable[..., Any]) -> None:
    files = store.acting("agent-7", reason="nightly job").files(("docs",))
    files.write("/plan/a.md", "first\n")
    files.write("/plan/a.md", "second\n")
    files.write("/plan/deep/b.md", "b\n")
    files.write("/elsewhere.md", "x\n")
    files.delete("/plan/deep/b.md")
    page = open_page(f"{url}#/browse?ns=docs&folder=/plan/")
    page.get_by_role("button", name="History").click()
    page.get_by_text("4 changes of files here and below").wait_for()
    rows = page.locator(".folder-timeline .file-row")
    assert [row.split("\n")[:2] for row in rows.all_inner_texts()] == [
        ["deleted", "deep/b.md"],
        ["written", "deep/b.md"],
        ["written", "a.md"],
        ["written", "a.md"],
    ]
    assert "by agent-7 · nightly job" in rows.nth(1).inner_text()
    rows.nth(3).click()
    page.locator(".diff .added", has_text="first").wait_for()
    rows.nth(2).click()
    page.locator(".diff .removed", has_text="first").wait_for()
    files.write("/plan/a.md", "third\n")
    page.get_by_text("5 changes of files here and below").wait_for()
    page.get_by_role("button", name="Back to the files").click()
    page.locator(".files:not(.folder-timeline) .file-name", has_text="a.md").wait_for()
