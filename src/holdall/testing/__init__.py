"""For tests: a clock to move, an embedder without a model, and the contract that every engine must fulfil.

`StoreContract` and the state machines need pytest and Hypothesis (`pip install 'holdall[testing]'`). `Clock` and
`embed` do not.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from .clock import Clock
from .embedder import embed

if TYPE_CHECKING:
    from .contract import StoreContract
    from .machines.files import file_machine
    from .machines.history import history_machine
    from .machines.ranking import ranking_machine
    from .machines.store import store_machine

__all__ = ["Clock", "StoreContract", "embed", "file_machine", "history_machine", "ranking_machine", "store_machine"]

_MODULES = {
    "StoreContract": "contract",
    "file_machine": "machines.files",
    "history_machine": "machines.history",
    "ranking_machine": "machines.ranking",
    "store_machine": "machines.store",
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
            f"the contract needs the package {error.name!r}: pip install 'holdall[testing]'", name=error.name
        ) from error
