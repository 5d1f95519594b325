"""What a face is given, a URL, a store or another face, and what becomes of it when the face is closed."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import holdall

from .. import seam
from ..errors import InvalidInput, shown
from ..programs import Program
from ..store import Store

T = TypeVar("T")


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


class Face:
    """What faces are: they run programs on a store, and close it if it was opened for them. A context manager, sync
    and async."""

    _beneath: Store
    _to_close: Store | None = None

    def _open(self, store_or_url: Any, **options: Any) -> Store:
        """Stand on what was given."""
        self._beneath, is_ours = opened(store_or_url, **options)
        self._to_close = self._beneath if is_ours else None
        return self._beneath

    def _run(self, program: Program[T]) -> T:
        return seam.run(self._beneath, program)

    def _arun(self, program: Program[T]) -> Coroutine[Any, Any, T]:
        return seam.arun(self._beneath, program)

    def close(self) -> None:
        """Close the store, if it was opened here. Closing twice is fine."""
        if self._to_close is not None:
            self._to_close.close()

    async def aclose(self) -> None:
        """`close`, awaited."""
        if self._to_close is not None:
            await self._to_close.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
