"""Accessibility, by axe-core, and the budgets of the page."""

from __future__ import annotations

import gzip
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.ops import Put
from support.explorer_views import VIEWS, fill_store
from support.served import server

pytestmark = pytest.mark.not_short

AXE = Path(__file__).parents[3] / ".venv/node/node_modules/axe-core/axe.min.js"
STATIC = Path(__file__).parents[3] / "src/holdall/server/explorer/static"
PHONE = {"width": 390, "height": 844}
ROUNDS = 5
ATTEMPTS = 4


def find_violations(page: Any) -> list[str]:
    """What axe-core finds on a page, as it is now."""
    page.evaluate(AXE.read_text())  # the policy of the page forbids an added script, but not the driver's own
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    result = page.evaluate("rules => axe.run({runOnly: rules})", rules)
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:150] for node in one['nodes'][:3]]}"
        for one in result["violations"]
    ]


@pytest.fixture
def axe() -> Callable[[Any], list[str]]:
    if not AXE.exists():
        pytest.skip("axe-core is not installed, since there is no npm: run make ui-test")
    return find_violations


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", ["wide", "phone"])
def test_axe_finds_no_violation_on_any_view(
    url: str,
    store: holdall.Store,
    open_page: Callable[..., Any],
    axe: Callable[[Any], list[str]],
    theme: str,
    size: str,
) -> None:
    fill_store(store)
    options = {"viewport": PHONE} if size == "phone" else {}
    page = open_page(url, color_scheme=theme, reduced_motion="reduce", **options)
    found = {}
    for name, view in VIEWS.items():
        view.open(page, url, store)
        found[name] = axe(page)
    assert {name: violations for name, violations in found.items() if violations} == {}


def test_axe_finds_no_violation_in_the_sign_in(
    tmp_path: Path, browser: Any, open_page: Callable[..., Any], axe: Callable[[Any], list[str]]
) -> None:
    url = server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False, app={"auth": "tokens"})
    page = open_page(f"{url}/")
    page.get_by_label("Token").wait_for()
    assert axe(page) == []


def test_axe_does_find_violations(open_page: Callable[..., Any], url: str, axe: Callable[[Any], list[str]]) -> None:
    page = open_page(f"{url}#/browse?pane=main")
    page.get_by_text("This store is empty.").wait_for()
    page.evaluate("document.querySelector('#search').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('#search').removeAttribute('placeholder')")
    assert any(one.startswith("label:") for one in axe(page))


def test_the_page_is_small() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in STATIC.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 200_000


def test_all_that_the_first_view_loads_is_small(url: str, store: holdall.Store, open_page: Callable[..., Any]) -> None:
    fill_store(store)
    page = open_page(f"{url}#/browse?ns=users&pane=main")
    page.get_by_role("row").nth(2).wait_for()
    entries = "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))"
    assert page.evaluate(f"{entries}.reduce((sum, one) => sum + one.transferSize, 0)") < 200_000
    hosts = page.evaluate("performance.getEntriesByType('resource').map(one => new URL(one.name).host)")
    assert set(hosts) == {url.split("/")[2]}


def find_least_median(limit: float, measure: Callable[[], float]) -> float:
    """The median of 5 runs. Other processes can only add to it, so it is tried again if it is too high."""
    medians: list[float] = []
    while not medians or (min(medians) > limit and len(medians) < ATTEMPTS):
        medians.append(statistics.median(measure() for _ in range(ROUNDS)))
    return min(medians)


FIRST_VIEW = """() => new Promise(resolve => {
  const isThere = () => document.querySelector('.grid-body .key-name') && document.querySelector('.tree-count');
  const look = () => isThere() ? requestAnimationFrame(() => resolve(performance.now())) : setTimeout(look, 1);
  look();
})"""


def test_the_first_view_takes_less_than_300_ms(url: str, store: holdall.Store, browser: Any) -> None:
    fill_store(store)

    def open_first_view() -> float:
        context = browser.new_context()  # with an empty cache
        page = context.new_page()
        page.goto(f"{url}#/browse?ns=users&pane=main", wait_until="commit")
        taken: float = page.evaluate(FIRST_VIEW)
        context.close()
        return taken

    open_first_view()  # warms the server
    assert find_least_median(300, open_first_view) < 300


SCROLL = """async () => {
  const tasks = [];
  const note = list => tasks.push(...list.getEntries().map(one => one.duration));
  new PerformanceObserver(note).observe({type: 'longtask'});
  const grid = document.querySelector('.grid');
  const rows = 100_000 * 36;
  let frames = 0;
  for (let step = 0; step < 120; step++) {
    grid.scrollTop = step < 60 ? step * 400 : rows * (step - 60) / 60;
    await new Promise(requestAnimationFrame);
    frames++;
  }
  await new Promise(resolve => setTimeout(resolve, 1500));
  return {longest: Math.max(0, ...tasks), frames};
}"""


def test_no_task_takes_more_than_50_ms_while_100_000_rows_are_scrolled(
    url: str, store: holdall.Store, open_page: Callable[..., Any]
) -> None:
    for first in range(0, 100_000, 1000):
        store.execute([Put(("notes",), f"{n:06}", {"text": f"note {n} " * 10}) for n in range(first, first + 1000)])

    def find_longest_task() -> float:
        page = open_page(f"{url}#/browse?ns=notes&pane=main")
        page.get_by_text("100,000 entries").wait_for()
        page.wait_for_timeout(500)
        longest: float = page.evaluate(SCROLL)["longest"]
        page.close()
        return longest

    assert find_least_median(50, find_longest_task) <= 50
