"""A ranked page that is cut first and filtered afterwards."""

from holdall.engines.memory import engine as memory
from holdall.engines.redis import walks
from holdall.engines.sql import entries as sql
from holdall.model import filters
from holdall.ops import IndexLag, replace
from holdall.search.ranking import rank_entries


def cut_first(ranker, op, older):
    page = yield from rank_entries(ranker, replace(op, filter=None), older)
    if op.filter is not None and not isinstance(page, IndexLag):
        page[:] = [hit for hit in page if filters.matches(op.filter, hit.value)]
    return page


memory.rank_entries = sql.rank_entries = walks.rank_entries = cut_first
