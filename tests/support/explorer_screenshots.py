"""Makes the pictures of the explorer for the documentation: `make screenshots`.

Each view is drawn in light and dark, on a wide screen, and some on a phone's. The pictures go to docs/explorer/.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from support.chromium import FLAGS, find_chromium
from support.explorer_views import VIEWS, fill_store
from support.served import server

TARGET = Path(__file__).parents[2] / "docs" / "explorer"
WIDE, PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 760}
ON_PHONE = ("entries", "entry", "search", "live", "thread")
COLOURS = 192  # of a picture: enough for a page, and small


def draw_all(browser: Any, theme: str, size: str) -> None:
    """Draw all views of a store of their own, since some change it."""
    with tempfile.TemporaryDirectory(prefix="holdall-screenshots-") as folder:
        url = server().serve(f"sqlite:///{folder}/agent.db", has_clock=False, history=86_400.0)
        with server().open_directly(url) as store:
            fill_store(store)
            viewport = PHONE if size == "phone" else WIDE
            page = browser.new_context(viewport=viewport, color_scheme=theme, reduced_motion="reduce").new_page()
            for name, view in VIEWS.items():
                if size == "wide" or name in ON_PHONE:
                    view.open(page, f"{url}/", store)
                    path = TARGET / f"{name}{'-phone' if size == 'phone' else ''}-{theme}.png"
                    page.screenshot(path=path)
                    # Not by median cut, which gives colours of few pixels to others: the green dot was grey.
                    drawn = Image.open(path).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
                    drawn.save(path, optimize=True)
        server().close(url)


def main() -> int:
    chromium = find_chromium()
    if chromium is None:
        sys.stderr.write("There is no Chromium: apt install chromium, or its like on your system\n")
        return 1
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        for theme in ("light", "dark"):
            for size in ("wide", "phone"):
                draw_all(browser, theme, size)
        browser.close()
    print(f"{len(list(TARGET.iterdir()))} pictures are in {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
