"""Cost against size as one SVG: a panel for each question, both axes logarithmic, with as many decades in each.

The colours follow the reader's light or dark theme. Lines also differ by their dashes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape

from ..harness import OURS
from .costs import Costs

_COLUMNS, _WIDTH, _HEIGHT = 4, 240, 200
_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 28, 14, 26  # margins of a panel, for its labels
_LEGEND = 34
_STYLE = """
    svg { color: #1f2328; font: 11px system-ui, sans-serif; }
    text { fill: currentColor; }
    .title { font-weight: 600; }
    .grid { stroke: currentColor; opacity: 0.15; }
    .line { fill: none; stroke-width: 1.5; }
    .line-0 { stroke: #0969da; stroke-width: 2.5; } .dot-0 { fill: #0969da; }
    .line-1 { stroke: #bc4c00; stroke-dasharray: 6 3; } .dot-1 { fill: #bc4c00; }
    .line-2 { stroke: #1a7f37; stroke-dasharray: 2 3; } .dot-2 { fill: #1a7f37; }
    .line-3 { stroke: #8250df; stroke-dasharray: 8 3 2 3; } .dot-3 { fill: #8250df; }
    @media (prefers-color-scheme: dark) {
        svg { color: #e6edf3; }
        .line-0 { stroke: #4493f8; } .dot-0 { fill: #4493f8; }
        .line-1 { stroke: #f0883e; } .dot-1 { fill: #f0883e; }
        .line-2 { stroke: #3fb950; } .dot-2 { fill: #3fb950; }
        .line-3 { stroke: #ab7df8; } .dot-3 { fill: #ab7df8; }
    }
"""


def draw(costs: Costs) -> str:
    """The plot of all costs that are known at two sizes or more."""
    questions = {
        question: {name: points for name, points in lines.items() if len(points) > 1}
        for question, lines in costs.seconds.items()
        if any(len(points) > 1 for points in lines.values())
    }
    if not questions:
        raise ValueError("a plot needs costs at two sizes or more: pass --entries 1000,10000")
    contenders = list(dict.fromkeys([OURS, *(name for lines in questions.values() for name in lines)]))
    every = [size for lines in questions.values() for points in lines.values() for size in points]
    sizes = range(math.floor(math.log10(min(every))), math.ceil(math.log10(max(every))) + 1)
    decades = max(len(_decades(lines)) - 1 for lines in questions.values())
    rows = math.ceil(len(questions) / _COLUMNS)
    width, height = _COLUMNS * _WIDTH, _LEGEND + rows * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Seconds that each question takes, by the number of entries in the store</title>",
        f"<style>{_STYLE}</style>",
        *_legend(contenders),
    ]
    for place, (question, lines) in enumerate(questions.items()):
        left, top = place % _COLUMNS * _WIDTH, _LEGEND + place // _COLUMNS * _HEIGHT
        low = _decades(lines)[0]
        panel = _Panel(sizes, range(low, low + decades + 1))
        parts.append(f'<g transform="translate({left} {top})">')
        parts.append(f'<text class="title" x="{_LEFT}" y="{_TOP - 10}">{escape(question)}</text>')
        parts.extend(panel.axes())
        for name, points in lines.items():
            parts.extend(panel.line(contenders.index(name), points))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(lines: Mapping[str, Mapping[int, float]]) -> range:
    """The powers of ten around all costs of a panel."""
    every = [math.log10(seconds) for points in lines.values() for seconds in points.values()]
    return range(math.floor(min(every)), math.ceil(max(every)) + 1)


def _legend(contenders: list[str]) -> Iterator[str]:
    left = _LEFT
    for place, name in enumerate(contenders):
        yield f'<path class="line line-{place}" d="M{left} 16h28"/>'
        yield f'<text x="{left + 34}" y="20">{escape(name)}</text>'
        left += 60 + 7 * len(name)


class _Panel:
    """One question: from powers of ten to places in the drawing."""

    def __init__(self, sizes: range, decades: range) -> None:
        self._sizes, self._decades = sizes, decades

    def axes(self) -> Iterator[str]:
        for power in self._decades:
            y = self._y(10.0**power)
            yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
            yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_seconds(power)}</text>'
        for power in self._sizes:
            x = self._x(10**power)
            yield f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_count(power)}</text>'

    def line(self, place: int, points: Mapping[int, float]) -> Iterator[str]:
        dots = [(self._x(size), self._y(points[size])) for size in sorted(points)]
        yield f'<path class="line line-{place}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in dots)}"/>'
        yield from (f'<circle class="dot-{place}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in dots)

    def _x(self, size: float) -> float:
        part = (math.log10(size) - self._sizes[0]) / max(1, len(self._sizes) - 1)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, seconds: float) -> float:
        part = (math.log10(seconds) - self._decades[0]) / max(1, len(self._decades) - 1)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


def _seconds(power: int) -> str:
    for unit, least in (("s", 0), ("ms", -3), ("µs", -6)):
        if power >= least:
            return f"{10 ** (power - least):,} {unit}"
    return f"10^{power} s"


def _count(power: int) -> str:
    return f"{10 ** (power - 6)}M" if power >= 6 else f"{10 ** (power - 3)}k"
