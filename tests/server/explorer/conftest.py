"""A Chromium of the system, driven by Playwright, and a store that is served to it.

Without Playwright or Chromium the tests are skipped: `make ui-test` says what to install.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdall
from support.chromium import FLAGS, find_chromium
from support.served import server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDE = {"width": 1440, "height": 900}


@pytest.fixture(scope="module")  # until it stops, Playwright has an event loop running, in which other tests fail
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: run make ui-test")
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("there is no Chromium: apt install chromium, or its like on your system")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The address of a page, on a store that keeps history. It is not at the root of its server."""
    return served(tmp_path)


def served(folder: Path, **options: Any) -> str:
    settings = {"history": 3600.0} | options
    return server().serve(f"sqlite:///{folder}/store.db", has_clock=False, **settings) + "/"


@pytest.fixture
def store(url: str) -> Iterator[holdall.Store]:
    """The store itself, as an agent has it open."""
    with server().open_directly(url.rstrip("/")) as store:
        yield store


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open an address in a window of its own. A test fails if a script of a page fails, or breaks the CSP."""
    contexts, problems = [], []

    def open(address: str, **options: Any) -> Page:
        context = browser.new_context(**({"viewport": WIDE} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if "Content Security Policy" in line.text else None)
        page.goto(address)
        return page

    yield open
    for context in contexts:
        context.close()
    assert not problems
