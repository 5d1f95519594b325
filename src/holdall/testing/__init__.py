"""For tests: a clock that they move, an embedder that needs no model, and the suite that every engine must pass.

`StoreContract`, `store_machine`, `file_machine` and `ranking_machine` need pytest and Hypothesis
(`pip install 'holdall[testing]'`); `Clock` and `embed` do not.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from .clock import Clock
from .embedder import embed

if TYPE_CHECKING:
    from .contract import StoreContract
    from .machine import store_machine
    from .search_machine import ranking_machine
    from .volume_machine import file_machine

__all__ = ["Clock", "StoreContract", "embed", "file_machine", "ranking_machine", "store_machine"]

_MODULES = {
    "StoreContract": "contract",
    "file_machine": "volume_machine",
    "ranking_machine": "search_machine",
    "store_machine": "machine",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest

        modules = [f"{__name__}.{module}" for module in _MODULES.values()]
        pytest.register_assert_rewrite(*(module for module in modules if module not in sys.modules))
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        from ..errors import MissingExtra

        raise MissingExtra(
            f"the suite needs {error.name!r}: pip install 'holdall[testing]'", name=error.name
        ) from error
