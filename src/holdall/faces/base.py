"""What all faces share: base classes, which open a store and close what they opened, and programs that read all pages.

`Face` is the base of all. Most faces keep their data in one namespace (`NamespaceFace`) or in its files (`FilesFace`).
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import holdall

from .. import Files, Hit, Store
from ..core import face_api
from ..core.face_api import StoreProgram
from ..errors import HoldallError, InvalidInput, MissingExtra, shown
from ..ops import Namespace

T = TypeVar("T")

NEIGHBOURS = 0.3  # for searches of messages: an answer is found beside its question, which is another message
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


def read_namespaces(store: Store, **how: Any) -> StoreProgram[list[Namespace]]:
    """Return all namespaces that `Store.namespaces` finds. `how` is passed to it: a prefix, for example."""
    found: list[Namespace] = []
    while True:
        page = yield from face_api.namespaces(store, limit=_PAGE, offset=len(found), **how)
        found += page
        if len(page) < _PAGE:
            return found


@contextmanager
def translate_errors(ours: type[HoldallError], theirs: type[Exception]) -> Iterator[None]:
    """Raise an error of holdall as one of the framework, with the same message."""
    try:
        yield
    except ours as error:
        raise theirs(str(error)) from error


def explain_missing(missing: ModuleNotFoundError, what: str, extra: str) -> MissingExtra:
    """Return the error for a face whose framework is not installed."""
    return MissingExtra(f"{what} needs the package {missing.name!r}: pip install 'holdall[{extra}]'", name=missing.name)


class Face:
    """Runs programs on a store, and closes the store if it was opened here. A context manager, sync and async."""

    _store: Store
    _owned_store: Store | None  # the store to close with this face

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


class NamespaceFace(Face):
    """A face with all its data in one namespace of a store and in those below it."""

    #: The `holdall.Store` that this face runs on.
    store: Store
    _namespace: Namespace

    def _open_namespace(self, store_or_url: Any, namespace: Namespace, **options: Any) -> None:
        """Set the store and the namespace that this face runs on."""
        self._namespace = face_api.check_namespace(namespace)
        self.store = self._open(store_or_url, **options)

    def _inside(self, *labels: str) -> Namespace:
        """Return a namespace below that of this face."""
        return (*self._namespace, *labels)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._namespace!r} in {self.store!r}>"


class FilesFace(Face):
    """A face whose data is the files of one namespace of a store."""

    #: The `holdall.Store` that this face runs on.
    store: Store
    #: The same files with all methods of holdall, sync and async.
    files: Files

    def _open_files(self, store_or_url: Any, namespace: Namespace, **options: Any) -> None:
        """Set the store and the files that this face runs on."""
        self.store = self._open(store_or_url, **options)
        self.files = self.store.files(namespace)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.files.namespace!r} in {self.store!r}>"
