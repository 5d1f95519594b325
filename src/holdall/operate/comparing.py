"""Comparing two stores: both are read in key order, a page at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import ops
from ..core.dispatch import Dispatcher
from ..errors import Conflict
from ..model import keys
from ..ops import Namespace, Record, RecordPage
from ..runtime.programs import Call, StoreProgram
from .records import PIECE, execute, find_differences, find_model, read_piece
from .results import Comparison, Difference

_PROGRESS_STEP = 100  # entries
ONLY_FIRST, ONLY_SECOND = ("only in the first",), ("only in the second",)


class _Side:
    """One store, read record by record."""

    def __init__(self, store: Dispatcher, prefix: Namespace) -> None:
        self.store = store
        self.prefix = prefix
        self.record: Record | None = None
        self._page: list[Record] = []
        self._after: tuple[Namespace, str] | None = None
        self._more = True

    def advance(self) -> StoreProgram[None]:
        """Set `record` to the next one, None after the last."""
        while not self._page and self._more:
            found: RecordPage = (yield from execute(self.store, [ops.Records(self.prefix, self._after)]))[0]
            self._page, self._more = found.records[::-1], found.more
            if found.records:
                self._after = found.records[-1].namespace, found.records[-1].key
        self.record = self._page.pop() if self._page else None

    def address(self) -> tuple[str, str] | None:
        """The address of the record relative to the prefix, in the order of both stores."""
        if self.record is None:
            return None
        return keys.encode(self.record.namespace[len(self.prefix) :]), self.record.key


def compare(
    one: Dispatcher,
    other: Dispatcher,
    prefix: Namespace,
    other_prefix: Namespace,
    limit: int = 100,
    *,
    only_extra: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> StoreProgram[Comparison]:
    """Compare what is below two prefixes, given as the engines have them; find at most `limit` differences.

    With `only_extra`, find only what the first does not have. Vectors count if both stores have the same model.
    """
    first, second = _Side(one, prefix), _Side(other, other_prefix)
    models = (yield from find_model(one)), (yield from find_model(other))
    vectors = models[0] is not None and models[1] is not None and models[0][1] == models[1][1]
    found = Comparison()
    total = 0
    if progress is not None:
        for side in (first, second):
            total = max(total, (yield from execute(side.store, [ops.Count(side.prefix, hidden=True)]))[0])
    yield from first.advance()
    yield from second.advance()
    while (first.record or second.record) and len(found.differences) < limit:
        here, there = first.address(), second.address()
        found.entries += 1
        if progress is not None and found.entries % _PROGRESS_STEP == 0:
            yield Call(progress, (found.entries, max(found.entries, total)))
        if here == there:
            what: Any = () if only_extra else (yield from _compare_records(first, second, vectors))
            record, side = first.record, first
            yield from first.advance()
            yield from second.advance()
        elif there is None or (here is not None and here < there):
            what, record, side = () if only_extra else ONLY_FIRST, first.record, first
            yield from first.advance()
        else:
            what, record, side = ONLY_SECOND, second.record, second
            yield from second.advance()
        if what:
            assert record is not None
            found.differences.append(Difference(record.namespace[len(side.prefix) :], record.key, tuple(what)))
    return found


def _compare_records(first: _Side, second: _Side, vectors: bool) -> StoreProgram[list[str]]:
    one, other = first.record, second.record
    assert one is not None
    assert other is not None
    what = find_differences(one, other, vectors=vectors)
    if one.size is not None and one.content is None and not what:
        for start in range(0, one.size, PIECE):
            end = min(start + PIECE, one.size)
            try:
                left = yield from read_piece(first.store, one, start, end)
                right = yield from read_piece(second.store, other, start, end)
            except Conflict:  # one of them has changed meanwhile
                return ["value"]
            if left != right:
                return ["value"]
    return what
