"""What a face is given: a URL, a store, or another face."""

from __future__ import annotations

import os
from typing import Any

import holdall

from ..errors import InvalidInput, shown
from ..store import Store


def opened(store_or_url: Any, **options: Any) -> tuple[Store, bool]:
    """The store that is meant, and whether it was opened here: then closing it is up to the face, too.

    `options` are for `holdall.open`, where it is called at all.
    """
    if store_or_url is None or isinstance(store_or_url, str | os.PathLike):
        return holdall.open(store_or_url, **options), True
    found = store_or_url
    while not isinstance(found, Store):  # a face may stand on another
        beneath = getattr(found, "store", None)
        if beneath is None or beneath is found:
            raise InvalidInput(
                f"expected a URL, a holdall.Store or something with one in .store: {shown(store_or_url)}"
            )
        found = beneath
    return found, False
