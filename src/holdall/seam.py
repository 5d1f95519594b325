"""What faces stand on: the whole of the core that they use beside its public names.

A face's methods are programs, as the store's own are (`holdall.programs`), so that each is written once and runs sync
and async. Inside of one, `yield from seam.search(store, …)` is what `store.search(…)` is outside; `seam.run` and
`seam.arun` run it. Faces touch nothing private of the core; a test holds that.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from . import shapes
from .batches import Batching
from .files import Files
from .ops import Namespace, Op
from .programs import Program
from .settings import Settings
from .store import Store

T = TypeVar("T")

# The store's methods, as programs. They take the store first.
put = Store._put
search = Store._search
count = Store._count
namespaces = Store._namespaces
delete_tree = Store._delete_tree
sweep = Store._sweep

# The files' methods, as programs. They take the files first.
ls = Files._ls
glob = Files._glob
grep = Files._grep
read_text = Files._read_text
write = Files._write
edit = Files._edit
delete = Files._delete
write_each = Files._write_each
read_each = Files._read_each


def run(store: Store, program: Program[T]) -> T:
    """Run a program on a store."""
    return store._run(program)


def arun(store: Store, program: Program[T]) -> Coroutine[Any, Any, T]:
    """`run`, awaited."""
    return store._arun(program)


def written(store: Store, batch: list[Any]) -> Program[list[Any]]:
    """Run a batch of ops, as `Store.execute` does, with those that are not for users: puts with vectors, and dates."""
    return store._embedded(batch, None)


def check(store: Store, op: Op) -> None:
    """`InvalidInput`, if a store would refuse an op whatever is in it."""
    store._prepared(op)


def settings(store: Store) -> Settings:
    """What a store was opened with."""
    return store._settings


def is_same_storage(one: Batching, other: Batching) -> bool:
    """Whether two stores stand on one engine, so that what is in the one can be checked in a batch of the other."""
    return one._shared is other._shared


def files_as_lines(store: Store, namespace: Namespace) -> Files:
    """`store.files(namespace)`; what is written there reads as a list of lines where it is read as an item."""
    return Files(store, store.files(namespace).namespace, shapes.LINES)
