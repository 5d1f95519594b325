"""The base class of faces: it opens the store that a face runs on, and closes it with the face."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import holdall

from .. import Hit, Store, ops
from ..core import face_api
from ..core.face_api import StoreProgram, before_retry
from ..errors import Conflict, InvalidInput, MissingExtra, shown
from ..ops import Namespace

T = TypeVar("T")
_PAGE = 1000


def open_store(store_or_url: Any, **options: Any) -> tuple[Store, bool]:
    """Return the store for a URL, a store or a face, and whether it was opened here, so that the face must close it.

    `options` are passed to `holdall.open` if it is called.
    """
    if store_or_url is None or isinstance(store_or_url, str | os.PathLike):
        return holdall.open(store_or_url, **options), True
    found = store_or_url
    while not isinstance(found, Store):  # a face may run on another face
        inner = getattr(found, "store", None)
        if inner is None or inner is found:
            raise InvalidInput(
                f"expected a URL, a holdall.Store or an object with one in .store, not {shown(store_or_url)}"
            )
        found = inner
    return found, False


def read_all(store: Store, prefix: Namespace, **how: Any) -> StoreProgram[list[Hit]]:
    """Return everything that a search without a query finds. `how` is passed to it: a filter, for example."""
    found: list[Hit] = []
    cursor: str | None = None
    while True:
        page = yield from face_api.search(store, prefix, limit=_PAGE, cursor=cursor, **how)
        found += page
        cursor = page.next
        if cursor is None:
            return found


def write_unchanged(store: Store, prepare: Callable[[], StoreProgram[tuple[list[ops.PointOp], T]]]) -> StoreProgram[T]:
    """Run the batch that `prepare` makes from what it reads, and return its second result.

    If a check of the batch fails, because another has written in the meantime, both are done again. An empty batch
    writes nothing.
    """
    for tries in itertools.count(1):
        batch, result = yield from prepare()
        try:
            if batch:
                yield from face_api.execute(store, batch)
        except Conflict as conflict:
            yield from before_retry(conflict, tries)
        else:
            return result
    raise AssertionError("unreachable")


def explain_missing(missing: ModuleNotFoundError, what: str, extra: str) -> MissingExtra:
    """Return the error for a face whose framework is not installed."""
    return MissingExtra(f"{what} needs the package {missing.name!r}: pip install 'holdall[{extra}]'", name=missing.name)


class Face:
    """Runs programs on a store, and closes the store if it was opened here. A context manager, sync and async."""

    _store: Store
    _owned_store: Store | None = None  # the store to close with this face

    def _open(self, store_or_url: Any, **options: Any) -> Store:
        """Set the store that this face runs on, and return it."""
        self._store, is_ours = open_store(store_or_url, **options)
        self._owned_store = self._store if is_ours else None
        return self._store

    def _run(self, program: StoreProgram[T]) -> T:
        return face_api.run(self._store, program)

    def _arun(self, program: StoreProgram[T]) -> Coroutine[Any, Any, T]:
        return face_api.arun(self._store, program)

    def close(self) -> None:
        """Close the store, if it was opened here. It may be called twice."""
        if self._owned_store is not None:
            self._owned_store.close()

    async def aclose(self) -> None:
        """`close`, awaited."""
        if self._owned_store is not None:
            await self._owned_store.aclose()

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
