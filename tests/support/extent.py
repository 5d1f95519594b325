"""How much the tests do: little in `make test`, everything in `make test-all`, for a long time in `make torture`."""

from __future__ import annotations

import os

EXTENT = os.environ.get("HOLDALL_TESTS", "short")
assert EXTENT in ("short", "all", "long"), f"HOLDALL_TESTS is short, all or long, not {EXTENT!r}"

#: Leave out what is run by `make test-all`.
IS_SHORT = EXTENT == "short"
#: Options of a store where durability is not what is tested: fewer fsyncs in the short form.
FEW_FSYNCS = {"durability": "relaxed"} if IS_SHORT else {}
#: Race, kill and try at random for longer.
IS_LONG = EXTENT == "long"
