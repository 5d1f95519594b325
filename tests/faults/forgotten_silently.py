"""A history that is cleared away, without a word of it."""

from faults import replace_in_scripts
from holdall.engines.memory import engine as memory
from holdall.engines.redis import walks
from holdall.engines.sql.feed import SqlFeed

feed_from = memory.feed_from


def as_if_nothing_were_forgotten(since, newest, forgotten):
    return feed_from(since, newest, 0)


def nothing_was_purged(self):
    return 0
    yield


memory.feed_from = walks.feed_from = as_if_nothing_were_forgotten
SqlFeed.purge_mark = nothing_was_purged
replace_in_scripts("cursor < tonumber(last_purged) or ", "")
