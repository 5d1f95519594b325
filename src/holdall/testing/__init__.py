"""For tests: a clock that they move, and the suite that every engine must pass.

`StoreContract` and `store_machine` need pytest and Hypothesis (`pip install 'holdall[testing]'`); `Clock` does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .clock import Clock

if TYPE_CHECKING:
    from .contract import StoreContract
    from .machine import store_machine

__all__ = ["Clock", "StoreContract", "store_machine"]


def __getattr__(name: str) -> Any:
    if name not in ("StoreContract", "store_machine"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest

        pytest.register_assert_rewrite("holdall.testing.contract", "holdall.testing.machine")
        if name == "StoreContract":
            from .contract import StoreContract

            return StoreContract
        from .machine import store_machine

        return store_machine
    except ModuleNotFoundError as error:
        from ..errors import MissingExtra

        raise MissingExtra(
            f"the suite needs {error.name!r}: pip install 'holdall[testing]'", name=error.name
        ) from error
