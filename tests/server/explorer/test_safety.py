"""What an agent wrote is shown and never run, tokens keep their scope, and a lost server is found again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.server import Tokens
from support.serve_command import serving
from support.served import server

pytestmark = pytest.mark.not_short

#: Each would set window.hacked if it ran.
ATTACKS = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "<svg onload='window.hacked = 3'></svg>",
    "<iframe srcdoc='<script>parent.hacked = 4</script>'></iframe>",
    "<a href='javascript:window.hacked = 5' autofocus onfocus='window.hacked = 6'>x</a>",
    '"><script>window.hacked = 7</script>',
]
MARKDOWN = """# <script>window.hacked = 10</script>

[click](javascript:window.hacked=11) [tab](java\tscript:window.hacked=12) [data](data:text/html,<script>1</script>)
[upper](JaVaScRiPt:window.hacked=13) ![x](javascript:window.hacked=14) <javascript:window.hacked=15>
[quotes](https://example.com/"onmouseover="window.hacked=16)

<img src=x onerror="window.hacked=17">

| a |
|---|
| <img src=x onerror="window.hacked=18"> |

[good](https://example.com/)
"""
SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40" onload="window.hacked=20; top.hacked=20">
<script>window.hacked = 21; top.hacked = 21</script>
<rect width="60" height="40" fill="green" onclick="top.hacked = 22"/>
<image href="x" onerror="top.hacked = 23"/>
</svg>"""


#: Elements that the attacks would make if they were taken as markup, even where the policy of the page stops them.
MARKUP = "img[src=x], iframe, svg[onload], script:not([src]), a[autofocus], [onerror], [onfocus]"


def hacked(page: Any) -> Any:
    """What an attack has done to a page; None if nothing."""
    page.wait_for_timeout(300)
    return page.evaluate("markup => window.hacked ?? document.querySelector(markup)?.outerHTML ?? null", MARKUP)


def begin_history(store: holdall.Store) -> str:
    """Return a moment that the history of a store goes back to."""
    store.put(("other",), "first", {})
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def test_stored_markup_is_text_in_every_view(url: str, store: holdall.Store, open_page: Callable[..., Any]) -> None:
    since = begin_history(store)
    for number, attack in enumerate(ATTACKS):
        store.put((f"ns {attack}"[:60],), f"k{number}{attack}", {attack: attack, "text": attack, "list": [attack]})
        acting = store.acting(attack, reason=attack)
        acting.put(("all",), f"{number}", {"text": f"findme {attack}"})
    store.files(("f",)).write("/a.html", "\n".join(ATTACKS))
    for number, attack in enumerate(ATTACKS):
        store.files(("names",)).write(f"/{number}{attack.replace('/', '_')}.md", attack)
    page = open_page(f"{url}#/browse?pane=main")
    page.get_by_role("row", name="<script>window.hacked = 1</script>").first.wait_for()
    for row in range(len(ATTACKS)):
        page.get_by_role("row").nth(row + 1).click()
        page.locator(".detail-body").wait_for()
        assert hacked(page) is None
    views = (
        "browse?ns=f&folder=/&entry=f/%252Fa.html",
        "browse?ns=names&folder=/",
        "search?q=findme",
        f"history?since={since}",
        "browse?ns=all&entry=all/0&tab=history",
        "live",
        "threads",
        "operation",
    )
    for view in views:
        page.goto(f"{url}#/{view}")
        page.wait_for_timeout(200)
        assert hacked(page) is None, view
    acting = store.acting(ATTACKS[1], reason=ATTACKS[2])
    page.goto(f"{url}#/live")
    acting.put(("all",), "0", {"text": ATTACKS[0]})
    page.locator(".change").first.wait_for()
    assert hacked(page) is None


def test_stored_text_does_not_turn_around_what_is_beside_it(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    turned = "\u202eeb dluohs"
    since = begin_history(store)
    acting = store.acting(f"author{turned}", reason=f"reason{turned}")
    acting.put(("notes",), "a", {"text": f"value{turned}", f"name{turned}": 1})
    files = acting.files(("notes",))
    files.write(f"/a{turned}.txt", "x")
    page = open_page(f"{url}#/live")
    page.locator('[data-status="live"]').wait_for()
    acting.put(("notes",), "a", {"text": f"new value{turned}", f"name{turned}": 1})
    page.locator(".change .added").first.wait_for()
    for view in (
        "live",
        "browse?ns=notes&entry=notes/a",
        "browse?ns=notes&entry=notes/a&tab=history",
        "browse?ns=notes&folder=/&list=history",
        "search?q=value",
        f"history?since={since}",
    ):
        page.evaluate("view => { location.hash = `#/${view}` }", view)
        page.locator(".pane", has_text="u202e").or_(page.locator(".pane", has_text="u{202e}")).last.wait_for()
        page.wait_for_timeout(200)
        assert "\u202e" not in page.locator("body").inner_text(), view
    page.goto(f"{url}#/browse?ns=notes&entry=notes/a")
    page.get_by_role("button", name="Edit").click()
    field = page.get_by_label("Content", exact=True).and_(page.locator("textarea"))
    assert "\u202e" not in field.input_value()
    field.press("Control+Enter")
    page.get_by_text("Saved.", exact=True).wait_for()
    assert store.get(("notes",), "a").value == {"text": f"new value{turned}", f"name{turned}": 1}


def test_markdown_runs_nothing_and_links_only_to_the_web(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.files(("f",)).write("/a.md", MARKDOWN)
    page = open_page(f"{url}#/browse?ns=f&folder=/&entry=f/%252Fa.md")
    page.locator(".markdown").get_by_role("link", name="good").wait_for()
    targets = page.locator(".markdown a").evaluate_all("links => links.map(link => new URL(link.href).protocol)")
    assert set(targets) == {"https:"}
    assert page.locator(".markdown").locator("img, script, iframe, svg, [onmouseover], [onerror]").count() == 0
    for text in ("[click](javascript:", "[upper](JaVaScRiPt:"):
        page.locator(".markdown").get_by_text(text).first.click()
    assert hacked(page) is None


def test_an_svg_is_drawn_and_its_handlers_do_not_run(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    store.files(("f",)).write("/a.svg", SVG)
    page = open_page(f"{url}#/browse?ns=f&folder=/&entry=f/%252Fa.svg")
    image = page.locator(".stored-image")
    image.wait_for()
    green = "document.querySelector('canvas').getContext('2d').getImageData(9, 9, 1, 1).data.join()"
    assert page.evaluate(green) == "0,128,0,255"
    image.click()
    assert hacked(page) is None
    assert page.locator(".detail-body svg:not(.icon)").count() == 0
    assert page.evaluate("[...document.images].map(one => one.src)") == [f"{url}explorer/icon.svg"], (
        "no address is left that would run the SVG in a tab of its own"
    )


def test_the_attacks_of_these_tests_do_run_where_nothing_guards_against_them(browser: Any) -> None:
    page = browser.new_page()
    page.set_content(f"<body>{ATTACKS[0]}</body>")
    assert hacked(page) == 1
    page.set_content(f"<body>{SVG}</body>")
    assert hacked(page) is not None
    page.set_content('<body><a href="javascript:window.hacked=11">click</a></body>')
    page.evaluate("window.hacked = null")
    page.click("a")
    assert hacked(page) == 11
    page.close()


def test_a_token_shows_its_scope_and_hides_what_it_does_not_allow(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    database = f"{tmp_path}/store.db"
    with holdall.open(database, history=3600) as store:
        store.put(("users", "ada", "facts"), "diet", {"text": "no peanuts"})
        store.put(("users", "bob", "facts"), "diet", {"text": "secret of bob"})
        made = Tokens(store)
        reader = made.create(scope=("users", "ada"), allow=("read",), label="support")[1]
        writer = made.create(scope=("users", "ada"), allow=("read", "write", "watch", "history"), label="ada")[1]
        admin = made.create(allow=("read", "write", "watch", "history", "admin"), label="operator")[1]
        with serving(database, tmp_path, workers=1) as started:
            page = open_page(f"{started.url}/#/browse?ns=users/ada/facts&entry=users/ada/facts/diet")
            page.get_by_label("Token").fill("hold_wrong")
            page.get_by_role("button", name="Open").click()
            page.get_by_text("this is not a token of holdall").wait_for()
            page.get_by_label("Token").fill(reader)
            page.get_by_role("button", name="Open").click()
            page.get_by_role("link", name='"no peanuts"').wait_for()
            page.get_by_text("Scope: users / ada").wait_for()
            assert page.get_by_text("read only").is_visible()
            for name in ("Edit", "Delete", "New entry", "History"):
                assert page.get_by_role("button", name=name).count() == 0, name
            assert page.get_by_role("link", name="History").count() == 0
            assert "bob" not in page.content()
            assert page.locator('[data-status="off"]').count() == 1, "without the right to watch, it is not live"
            cookies = page.context.cookies()
            assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
            page.get_by_role("button", name="Sign out").click()
            page.get_by_label("Token").fill(writer)
            page.get_by_role("button", name="Open").click()
            page.get_by_role("button", name="Edit").wait_for()
            page.locator('[data-status="live"]').wait_for()
            page.goto(f"{started.url}/#/operation")
            page.get_by_text("need an admin token").wait_for()
            other = open_page(f"{started.url}/#token={admin}")
            other.get_by_role("treeitem", name="users").wait_for()
            assert "token" not in other.url, "the token is not left in the address"
            other.goto(f"{started.url}/#/operation")
            other.get_by_role("cell", name="operator").wait_for()
            assert admin not in other.content()


def test_an_address_leads_to_the_same_entry_with_another_scope_or_is_outside_it(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    database = f"{tmp_path}/store.db"
    with holdall.open(database) as store:
        for user in ("ada", "bob"):
            store.put(("users", user, "facts"), "diet", {"text": f"{user} likes tea"})
        made = Tokens(store)
        scopes = {"all": (), "users": ("users",), "ada": ("users", "ada"), "bob": ("users", "bob")}
        tokens = {name: made.create(scope=scope, allow=("read", "write"))[1] for name, scope in scopes.items()}
        with serving(database, tmp_path, workers=1) as started:
            pages = {name: open_page(f"{started.url}/#token={token}") for name, token in tokens.items()}
            for name, page in pages.items():
                page.get_by_role("row", name="diet").first.wait_for()
                page.goto(f"{started.url}/#/browse")
                assert name == "all" or page.get_by_text("Scope:").is_visible()
            pages["ada"].get_by_role("row", name="diet").click()
            pages["ada"].get_by_role("link", name='"ada likes tea"').wait_for()
            address = pages["ada"].url
            for name in ("all", "users"):
                pages[name].goto(address)
                pages[name].get_by_role("link", name='"ada likes tea"').wait_for()
                pages["bob"].goto("about:blank")
                pages["bob"].goto(pages[name].url)
                pages["bob"].get_by_text("outside the scope of your token").wait_for()
                pages["bob"].get_by_role("row", name="diet").wait_for()
                assert "ada" not in pages["bob"].content()
            pages["ada"].goto(f"{started.url}/#/live")
            pages["ada"].goto(f"{started.url}/#/browse?ns=users")
            pages["ada"].get_by_text("1 entry", exact=True).wait_for()


def test_a_page_whose_token_is_revoked_asks_for_another(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    database = f"{tmp_path}/store.db"
    with holdall.open(database) as store:
        store.put(("notes",), "a", {"n": 1})
        made = Tokens(store)
        token, secret = made.create(allow=("read", "watch"))
        with serving(database, tmp_path, workers=1) as started:
            page = open_page(f"{started.url}/#token={secret}")
            page.locator('[data-status="live"]').wait_for()
            made.revoke(token.id)
            page.get_by_label("Token").wait_for(timeout=60_000)
            assert "notes" not in page.content()


def test_what_needs_history_explains_that_there_is_none(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    database = f"{tmp_path}/store.db"
    with holdall.open(database) as store:
        store.put(("notes",), "a", {"n": 1})
        with serving(database, tmp_path, "--auth", "none", workers=1) as started:
            page = open_page(f"{started.url}/#/browse?at=2026-01-01T00:00:00Z&ns=notes&entry=notes/a")
            page.get_by_text("The past cannot be shown here").wait_for()
            page.get_by_role("button", name="Edit").wait_for()
            assert "at=" not in page.url
            page.keyboard.press("3")
            page.get_by_text("This store keeps no history.").wait_for()


def test_what_was_chosen_while_the_server_was_down_is_shown_once_it_is_back(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    database = f"{tmp_path}/store.db"
    with holdall.open(database) as store:
        store.put(("notes",), "first", {"n": 0})
        store.put(("other",), "second", {"n": 0})
        with serving(database, tmp_path, "--auth", "none", workers=1) as first:
            port = int(first.url.rpartition(":")[2])
            page = open_page(f"{first.url}/#/browse?ns=notes&pane=main")
            page.get_by_role("row", name="first").wait_for()
            os.killpg(first.process.pid, signal.SIGKILL)
            page.locator('[data-status="lost"]').wait_for()
        page.locator(".tree-row", has_text="other").click()
        page.get_by_text("This cannot be shown.").wait_for()
        assert page.get_by_role("row", name="first").count() == 0, "what is shown is not that of another namespace"
        with serving(database, tmp_path, "--auth", "none", workers=1, port=port):
            page.get_by_role("row", name="second").wait_for(timeout=60_000)
            page.get_by_role("link", name="Operation").click()
            page.get_by_text("Leases held").wait_for()


def test_a_page_that_was_hidden_for_longer_than_the_feed_goes_back_is_live_again(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    hide = """isHidden => {
        Object.defineProperty(document, "hidden", {configurable: true, value: isHidden});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    url = server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False, feed_retention=0) + "/"
    with server().open_directly(url.rstrip("/")) as store:
        store.put(("notes",), "first", {"n": 0})
        page = open_page(f"{url}#/browse?ns=notes&pane=main")
        page.locator('[data-status="live"]').wait_for()
        page.evaluate(hide, True)
        store.put(("notes",), "while-hidden", {"n": 1})
        store.delete(("notes",), "first")
        store.sweep()
        page.evaluate(hide, False)
        page.get_by_role("row", name="while-hidden").wait_for()
        store.put(("notes",), "after", {"n": 2})
        page.get_by_role("row", name="after").wait_for()


AGENT = """
import sys, holdall
with holdall.open(sys.argv[1]) as store:
    for number in range(5):
        store.put(("notes",), f"while-down-{number}", {"number": number})
"""


def test_after_the_server_was_killed_the_page_goes_on_and_has_missed_nothing(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    database = f"{tmp_path}/store.db"
    with holdall.open(database) as store:
        store.put(("notes",), "first", {"n": 0})
        with serving(database, tmp_path, "--auth", "none", workers=1) as first:
            port = int(first.url.rpartition(":")[2])
            page = open_page(f"{first.url}/#/live")
            page.locator('[data-status="live"]').wait_for()
            store.put(("notes",), "seen", {"n": 1})
            page.locator(".change", has_text="seen").wait_for()
            os.killpg(first.process.pid, signal.SIGKILL)
            page.locator('[data-status="lost"]').wait_for()
        subprocess.run([sys.executable, "-c", AGENT, database], check=True)
        with serving(database, tmp_path, "--auth", "none", workers=1, port=port):
            page.locator('[data-status="live"]').wait_for(timeout=60_000)
            page.locator(".change").nth(5).wait_for()
            keys = page.locator(".change-name").all_inner_texts()
            expected = ["notes / seen", *(f"notes / while-down-{number}" for number in range(5))]
            assert keys[::-1] == expected, "each change once, and in order"
            store.put(("notes",), "after", {"n": 2})
            page.locator(".change", has_text="after").wait_for()
