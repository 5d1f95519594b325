"""Cost against size, as SVG."""

from __future__ import annotations

from .costs import Costs


def draw(costs: Costs) -> str:
    return str(costs.seconds)
