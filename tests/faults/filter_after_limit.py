"""A ranked page that is cut first and filtered afterwards."""

from dataclasses import replace

from holdall.engines import memory, sql
from holdall.ranking import ranked


def cut_first(ranker, op, older):
    page = yield from ranked(ranker, replace(op, filter=None), older)
    if op.filter is not None and not isinstance(page, int):
        page[:] = [hit for hit in page if op.filter.matches(hit.value)]
    return page


memory.ranked = sql.ranked = cut_first
