"""Browsing in Chromium: the tree, the table, an entry, searching, the keyboard, the address."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

import holdall
from holdall.faces.langgraph import HoldallSaver
from holdall.ops import Put
from holdall.testing import embed
from support.explorer_views import add_threads
from support.langgraph_threads import chat, put_empty, say, thread
from support.served import server

pytestmark = pytest.mark.not_short


@pytest.fixture
def filled(store: holdall.Store) -> holdall.Store:
    """A store with some users, and what is known of them."""
    for user in ("ada", "bob"):
        store.put(("users", user, "facts"), "diet", {"text": f"{user} is allergic to peanuts", "importance": 9})
        store.put(("users", user, "facts"), "city", {"text": "lives in Lisbon", "importance": 3})
    store.files(("users", "ada", "files")).write("/notes/todo.md", "# Todo\n\n- call the dentist\n- buy almonds\n")
    return store


def test_the_tree_leads_to_an_entry_and_the_address_leads_back_to_it(
    url: str, filled: holdall.Store, open_page: Callable[..., Any]
) -> None:
    page = open_page(url)
    page.get_by_role("treeitem", name="users").click()
    page.get_by_text("5 entries").wait_for()
    page.locator(".tree-row", has_text="users").locator(".tree-arrow").wait_for()
    page.locator(".tree-row", has_text="ada").click()
    page.locator(".tree-row", has_text="facts").first.click()
    page.get_by_text("2 entries").wait_for()
    page.get_by_role("row", name="diet").click()
    page.get_by_role("heading", name="diet", level=2).wait_for()
    assert '"ada is allergic to peanuts"' in page.locator(".json").inner_text()
    assert page.locator(".facts").inner_text().startswith("Version")
    other = open_page(page.url)
    other.get_by_role("heading", name="diet", level=2).wait_for()
    assert other.locator('[role="treeitem"][aria-selected="true"] > .tree-row').inner_text().startswith("facts")
    page.go_back()
    page.locator(".detail").wait_for(state="detached")


def test_a_search_finds_entries_and_files_as_it_is_typed(
    url: str, filled: holdall.Store, open_page: Callable[..., Any]
) -> None:
    page = open_page(url)
    page.get_by_role("treeitem", name="users").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("peanut allergies")
    page.get_by_text("2 found in").wait_for()
    assert page.locator("mark").first.inner_text() in ("allergic", "peanuts")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("almonds")
    page.get_by_text("1 found in").wait_for()
    page.locator(".result").click()
    page.get_by_role("heading", name="Todo", exact=True).wait_for()


def test_a_click_on_a_value_filters_by_it_and_a_chip_removes_the_filter(
    url: str, filled: holdall.Store, open_page: Callable[..., Any]
) -> None:
    page = open_page(f"{url}#/browse?entry=users/ada/facts/diet")
    page.get_by_role("link", name="9", exact=True).click()
    page.get_by_text("2 entries").wait_for()
    assert page.locator(".chip").inner_text().startswith("importance = 9")
    page.get_by_role("button", name="Remove the filter importance").click()
    page.get_by_text("5 entries").wait_for()


def test_a_hundred_thousand_entries_are_browsed_by_keyboard(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    for first in range(0, 100_000, 1000):
        store.execute([Put(("notes",), f"{n:06}", {"text": f"note {n}"}) for n in range(first, first + 1000)])
    page = open_page(f"{url}#/browse?ns=notes&pane=main")
    page.get_by_text("100,000 entries").wait_for()
    grid = page.get_by_role("grid")
    assert grid.get_attribute("aria-rowcount") == "100001"
    grid.focus()
    page.keyboard.press("End")
    page.get_by_text("099999", exact=True).wait_for(timeout=60_000)
    assert page.locator(".grid-row").count() < 100, "only the rows in sight are in the document"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="099998", level=2).wait_for()
    page.keyboard.press("Escape")
    page.locator(".detail").wait_for(state="detached")
    page.keyboard.press("Home")
    page.get_by_text("000000", exact=True).wait_for()


def test_the_tree_and_the_page_work_without_a_mouse(
    url: str, filled: holdall.Store, open_page: Callable[..., Any]
) -> None:
    page = open_page(url)
    page.get_by_role("treeitem", name="users").wait_for()
    page.get_by_role("treeitem", name="All entries").first.focus()
    for key in ("ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    page.get_by_role("treeitem", name="ada").wait_for()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_text("3 entries").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("Search").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    page.get_by_role("heading", name="Live", level=2).wait_for()


def test_an_empty_store_shows_what_to_do(url: str, store: holdall.Store, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{url}#/browse?pane=main")
    page.get_by_text("This store is empty.").wait_for()
    page.get_by_text('store.put(("users", "ada")').wait_for()


def test_numbers_that_javascript_cannot_hold_are_shown_and_saved_as_they_were(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    value = {"big": 12345678901234567890123, "whole": 1.0, "text": "a"}
    store.put(("n",), "k", value)
    page = open_page(f"{url}#/browse?entry=n/k")
    page.get_by_role("link", name="12345678901234567890123").wait_for()
    page.keyboard.press("e")
    field = page.get_by_role("textbox", name="Content")
    field.fill(field.input_value().replace('"a"', '"b"'))
    page.keyboard.press("Control+Enter")
    page.get_by_text("Saved.", exact=True).wait_for()
    entry = store.get(("n",), "k")
    assert entry is not None
    assert entry.value == value | {"text": "b"}
    assert isinstance(entry.value["whole"], float)


def test_a_thread_is_a_conversation_step_by_step(url: str, store: holdall.Store, open_page: Callable[..., Any]) -> None:
    add_threads(store)
    page = open_page(f"{url}#/threads")
    page.get_by_role("button", name="trip-to-lisbon").click()
    page.locator(".message.is-new", has_text="Shall I book it?").wait_for()
    assert page.locator(".message").count() == 4
    assert page.locator(".tool-call").inner_text().startswith("find_table")
    page.get_by_role("button", name="Earlier step").click()
    page.locator(".message").nth(3).wait_for(state="detached")  # it repeats the text of the one before
    page.locator(".message.is-new", has_text="A table at Ramiro").wait_for()
    assert page.locator(".message").count() == 3
    other = open_page(page.url)
    other.locator(".message.is-new", has_text="A table at Ramiro").wait_for()
    page.get_by_label("Find threads").fill("train")
    page.locator(".thread-list .result").nth(1).wait_for(state="detached")


def test_a_fork_of_a_thread_says_where_it_begins(url: str, store: holdall.Store, open_page: Callable[..., Any]) -> None:
    graph = chat(HoldallSaver(store))
    for text in ("one", "two", "three"):
        say(graph, "t", text)
    first = list(graph.get_state_history(thread("t")))[-2].config
    graph.update_state(first, {"messages": [HumanMessage("fork")]}, "model")
    page = open_page(f"{url}#/threads?thread=t")
    page.locator(".step-bar", has_text="Step 1 of 7 · update · forked from step 0").wait_for()
    assert page.locator(".message.is-new").locator("p").all_inner_texts() == ["fork"]
    page.get_by_role("button", name="Earlier step").click()
    page.locator(".step-bar", has_text="Step 7 of 7 · loop").wait_for()


def test_a_store_with_an_embedder_is_searched_by_text_by_meaning_and_by_both(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    url = server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False, embed="local")
    with server().open_directly(url) as store:
        store.put(("pets",), "a", {"text": "a small kitten sleeps on the sofa"})
        store.put(("pets",), "b", {"text": "the stock market fell on Monday"})
        page = open_page(f"{url}/#/search?q=cat&mode=lexical")
        page.get_by_text("Nothing found.").wait_for()
        page.get_by_role("button", name="Meaning").click()
        page.locator(".result").first.wait_for()
        assert page.locator(".result-key").first.inner_text() == "a"
        assert page.locator(".score").count() > 0
        page.get_by_role("button", name="Both").click()
        page.locator('[aria-pressed="true"]', has_text="Both").wait_for()


def test_names_that_cannot_be_seen_are_shown_as_codes(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    names = {" ": "␣", "\u200b": "\\u{200b}", "\u202egnp.exe": "\\u{202e}gnp.exe", "a b 👩\u200d🔬": "a b 👩\u200d🔬"}
    for name in names:
        store.put((name,), name, {"n": 1})
    page = open_page(f"{url}#/browse?pane=main")
    page.locator(".key-name").nth(3).wait_for()
    assert sorted(page.locator(".key-name").all_inner_texts()) == sorted(names.values())
    assert sorted(page.locator(".tree-name").all_inner_texts()[1:]) == sorted(names.values())
    page.get_by_role("row", name="u{202e}gnp.exe").click()
    page.get_by_role("heading", name="\\u{202e}gnp.exe", level=2).wait_for()
    assert "\u202e" not in page.title()


def test_namespaces_whose_labels_have_commas_are_not_confused(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.put(("a", "b"), "one", {"text": "green tea"})
    store.put(("a,b",), "other", {"text": "green tea"})
    page = open_page(f"{url}#/search?q=tea&ns=a/b")
    page.locator(".result-key", has_text="one").wait_for()
    page.evaluate("location.hash = '#/search?q=tea&ns=a%252Cb'")
    page.locator(".result-key", has_text="other").wait_for()


def test_the_tree_shows_more_of_a_namespace_that_has_entries_and_many_below(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.execute([Put(("users", f"user-{number:03}"), "k", {"n": number}) for number in range(450)])
    store.put(("users",), "own", {"n": 1})
    page = open_page(url)
    page.get_by_role("treeitem", name="users").click()
    expected = ["All entries", "users", *(f"user-{number:03}" for number in range(450))]
    for _ in range(2):
        page.get_by_role("button", name="Show more").click()
    page.locator(".tree-name", has_text="user-449").wait_for()
    page.get_by_role("button", name="Show more").wait_for(state="detached")
    assert page.locator(".tree-name").all_inner_texts() == expected
    store.put(("users", "user-450"), "k", {"n": 1})
    page.locator(".tree-name", has_text="user-450").wait_for()
    assert page.locator(".tree-name").all_inner_texts() == [*expected, "user-450"]


@pytest.mark.parametrize(
    "address",
    [
        "#/browse?ns=%25&entry=%25",
        "#/browse?filter=5",
        "#/browse?filter={",
        "#/browse?folder=/../../items/",
        "#/browse?order=odd&tab=odd",
        "#/nothing",
    ],
)
def test_a_damaged_address_shows_the_whole_store(
    url: str, filled: holdall.Store, open_page: Callable[..., Any], address: str
) -> None:
    page = open_page(f"{url}{address}")
    page.get_by_text("5 entries").wait_for()
    assert page.locator(".toast").count() == 0
    page.goto(f"{url}#/history?since=yesterday")
    page.get_by_text("5 entries differ").wait_for()
    page.goto(f"{url}#/search?q=peanuts&mode=semantic")
    page.get_by_text("2 found in").wait_for()


def test_an_address_that_cannot_be_shown_says_why(
    url: str, filled: holdall.Store, open_page: Callable[..., Any]
) -> None:
    page = open_page(f"{url}#/browse?at=garbage&ns=users")
    page.locator(".empty", has_text="not a cursor of this store").wait_for()
    page.get_by_role("link", name="Back to now").click()
    page.get_by_text("5 entries").wait_for()


def test_the_history_of_a_key_that_no_path_can_have_is_not_that_of_another_entry(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.put(("a", "b", ".."), "k", {"text": "wanted"})
    store.put(("a",), "k", {"text": "another"})
    page = open_page(f"{url}#/browse?ns=a&entry=a/b/../k")
    page.get_by_role("link", name='"wanted"').wait_for()
    page.get_by_role("button", name="History").click()
    page.locator(".empty", has_text="use the command line").wait_for()
    assert "another" not in page.locator(".detail-pane").inner_text()


def test_a_line_far_down_a_long_file_is_shown(url: str, store: holdall.Store, open_page: Callable[..., Any]) -> None:
    lines = [f"line {number} of a log" for number in range(1, 100_001)]
    lines[79_999] = "the needle"
    store.files(("logs",)).write("/long.log", "\n".join(lines))
    page = open_page(f"{url}#/browse?ns=logs&folder=/")
    page.get_by_label("Find lines in these files").fill("needle")
    page.get_by_role("link", name="the needle").click()
    page.locator(".code .is-marked", has_text="the needle").wait_for()
    assert page.locator(".code .is-marked").get_attribute("data-line") == "80000"
    assert page.locator('.detail-pane [data-line="80001"]').inner_text() == "line 80001 of a log"


def test_a_step_of_a_long_thread_is_shown_by_its_address(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    add_threads(store, turns=20)
    steps = list(HoldallSaver(store).list({"configurable": {"thread_id": "train"}}))
    assert len(steps) == 100
    page = open_page(f"{url}#/threads?thread=train&step={steps[-3].checkpoint['id']}")
    page.locator(".step-bar", has_text="Step 1 of 98").wait_for()


def test_a_huge_text_is_shown_in_parts(url: str, store: holdall.Store, open_page: Callable[..., Any]) -> None:
    store.put(("notes",), "huge", {"text": "lorem ipsum " * 300_000})
    store.put(("notes",), "huge", {"text": "lorem ipsum " * 300_001})
    page = open_page(f"{url}#/browse?ns=notes&entry=notes/huge")
    more = page.get_by_role("button", name="Show more (3,590,014 characters left)")
    more.click()
    assert len(page.locator(".json-string").inner_text()) == 20_000
    page.get_by_role("button", name="History").click()
    page.locator(".diff", has_text="characters more").wait_for()
    assert len(page.locator(".diff").inner_text()) < 25_000


def test_an_entry_shows_how_many_vectors_it_has(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    url = server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False)
    with server().open_directly(url, embed=embed) as store:
        store.put(("notes",), "found", {"notes": ["green tea", "a walk"]}, search_fields=["notes[*]"])
        store.put(("notes",), "not", {"n": 1})
    page = open_page(f"{url}/#/browse?ns=notes&entry=notes/found")
    page.locator(".facts > div", has_text="Vectors").get_by_text("2").wait_for()
    page.get_by_role("row", name="n: 1").click()
    page.locator(".facts > div", has_text="Vectors").get_by_text("none").wait_for()


def test_operation_says_what_entries_are_hidden(url: str, store: holdall.Store, open_page: Callable[..., Any]) -> None:
    store.put(("notes",), "a", {"n": 1})
    put_empty(HoldallSaver(store), "t")
    page = open_page(f"{url}#/operation")
    chart = page.locator(".chart", has=page.get_by_role("heading", name="Entries by root"))
    chart.wait_for()
    assert chart.locator("dt").all_inner_texts() == ["notes", "hidden (.holdall…)"]
    assert chart.locator(".bar-text").all_inner_texts() == ["1 entry", "3 entries"]
    assert page.locator(".card", has_text="Entries").locator("dd").inner_text() == "4"


def test_operation_shows_the_size_of_each_root(url: str, filled: holdall.Store, open_page: Callable[..., Any]) -> None:
    filled.files(("papers",)).write("/large", b"x" * 20_000)
    page = open_page(f"{url}#/operation")
    chart = page.locator(".chart", has=page.get_by_role("heading", name="Size by root"))
    chart.wait_for()
    assert chart.locator("dt").all_inner_texts() == ["papers", "users"], "the largest first"
    assert chart.locator(".bar-text").first.inner_text() == "20.0 kB"


def test_the_tree_counts_each_entry_once(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    url = server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False) + "/"
    with server().open_directly(url.rstrip("/")) as store:
        store.execute([Put((f"root-{number:03}",), "k", {}) for number in range(210)])
        page = open_page(url)
        whole = page.locator(".tree-row", has_text="All entries").locator(".tree-count")
        page.locator(".tree-row", has_text="root-199").locator(".tree-count", has_text="1").wait_for()
        assert whole.inner_text() == "210"
        page.get_by_role("button", name="Show more").click()
        page.locator(".tree-row", has_text="root-209").locator(".tree-count", has_text="1").wait_for()
        assert whole.inner_text() == "210"


@pytest.mark.parametrize(
    ("slow", "quick", "shown"),
    [
        ("browse?ns=slow&folder=/", "browse?ns=quick&folder=/", ".files"),
        ("browse?ns=slow&folder=/&list=history", "browse?ns=quick&folder=/&list=history", ".files"),
        ("browse?entry=slow/key-slow&tab=history", "browse?entry=quick/key-quick&tab=history", ".comparison"),
        ("history?ns=slow&since=NOW", "history?ns=quick&since=NOW", ".results"),
    ],
    ids=["folder", "folder's history", "entry's history", "differences"],
)
def test_an_answer_that_comes_late_does_not_replace_what_was_chosen_since(
    slow: str, quick: str, shown: str, url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    for name in ("slow", "quick"):
        store.put((name,), f"key-{name}", {"text": f"value-{name}"})
        store.files((name,)).write(f"/file-{name}.txt", "x")
    page = open_page(f"{url}#/threads")
    page.locator(".thread-list").wait_for()
    waiting: list[Any] = []
    of_slow = re.compile(r"/v1/(files|file-history|history|diff).*slow")
    page.route(of_slow, lambda route: waiting.append(route))  # noqa: PLW0108  # Playwright takes no built-in
    show = "view => { location.hash = `#/${view}` }"
    with page.expect_request(of_slow):
        page.evaluate(show, slow.replace("NOW", now))
    page.evaluate(show, quick.replace("NOW", now))
    page.locator(shown, has_text="quick").wait_for()
    for route in waiting:
        route.continue_()
    page.wait_for_timeout(300)
    assert "slow" not in page.locator(shown).inner_text()


def test_markdown_that_is_made_to_take_long_does_not(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    texts = ["# a" + " " * 4_000 + "b", "[a](" * 1_200, "![a](" * 900, "|\n" + "-" * 60_000 + "x"]
    store.files(("f",)).write("/a.md", "\n\n".join([*texts, "[last](https://a.b/ 'x')"]))
    page = open_page(f"{url}#/browse?ns=f&entry=f/%252Fa.md")
    page.get_by_role("link", name="last").wait_for(timeout=5_000)


def test_operation_goes_on_after_a_request_that_failed(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    page = open_page(f"{url}#/threads")
    page.route("**/v1/stats", lambda route: route.abort(), times=1)
    page.get_by_role("link", name="Operation").click()
    page.get_by_text("Leases held").wait_for(timeout=5_000)
    assert "undefined" not in page.locator(".toasts").inner_text()


def test_the_moment_of_a_history_and_a_difference_that_is_opened_stay_in_sight(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.execute([Put(("notes",), f"k{number:02}", {"text": "line\n" * 5, "n": number}) for number in range(40)])
    page = open_page(f"{url}#/history?ns=notes")
    last = page.get_by_role("button", name="k39")
    last.scroll_into_view_if_needed()
    last.click()
    height = page.viewport_size["height"]
    open_it = page.get_by_role("button", name="Open the entry").bounding_box()
    assert open_it["y"] + open_it["height"] <= height
    moment = page.get_by_label("What changed since").bounding_box()
    assert 0 <= moment["y"] <= height / 2, "what the button 'Rewind to then' means is in sight"
    assert page.locator(".diff thead th").all_inner_texts() == ["Then: it did not exist", "Now"]


def test_the_bytes_of_a_file_fit_beside_the_list_and_are_not_edited(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.files(("files",)).write("/a.bin", bytes(range(256)))
    for width, lines in ((1440, 32), (2200, 16)):
        page = open_page(
            f"{url}#/browse?ns=files&folder=/&entry=files/%252Fa.bin", viewport={"width": width, "height": 900}
        )
        content = page.locator(".hex")
        content.wait_for()
        assert content.evaluate("node => node.scrollWidth <= node.clientWidth")
        assert len(content.inner_text().splitlines()) == lines
        assert page.locator(".detail-place").inner_text() == "files: /a.bin"
        assert page.get_by_role("button", name="Download").or_(page.get_by_role("link", name="Download")).count() == 1
        assert page.get_by_role("button", name="Edit").count() == 0


def test_operation_shows_no_latency_of_requests_that_were_not_made(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.put(("notes",), "a", {"n": 1})
    page = open_page(f"{url}#/operation")
    chart = page.locator(".chart", has=page.get_by_role("heading", name="Mean latency"))
    chart.wait_for()
    assert re.search(r"Reads ([\d.]+ m?s|none)", chart.inner_text())
    assert "Writes none" in chart.inner_text()


@pytest.mark.parametrize("width", [1280, 390])
def test_names_of_any_length_push_nothing_out_of_the_page(
    width: int, url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    label = "l" * 900
    store.put((label,), "k" * 1500, {"text": "w" * 3000})
    page = open_page(url, viewport={"width": width, "height": 760})
    views = ("browse", "history", "live", "search?q=w")
    for view in (f"{name}{'&' if '?' in name else '?'}ns={label}&pane=main" for name in views):
        page.goto("about:blank")
        page.goto(f"{url}#/{view}")
        page.locator(".view-head").wait_for()
        page.wait_for_timeout(200)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), view
    filter = '{"text":"' + "w" * 3000 + '"}'
    page.goto(f"{url}#/browse?ns={label}&filter={filter}&pane=main")
    remove = page.get_by_role("button", name="Remove the filter text").bounding_box()
    assert 0 <= remove["x"] <= width - remove["width"]


def test_all_views_can_be_chosen_on_a_narrow_phone(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.put(("notes",), "a", {"n": 1})
    page = open_page(url, viewport={"width": 360, "height": 700})
    tabs = page.get_by_role("navigation", name="Views")
    assert tabs.get_by_role("link").all_inner_texts() == ["Browse", "Live", "History", "Threads", "Operation"]
    assert tabs.evaluate("node => node.scrollWidth <= node.clientWidth")
