"""A history that is cleared away, without a word of it."""

from holdall.engines import memory, sql

feed_from = memory.feed_from
memory.feed_from = sql.feed_from = lambda since, newest, forgotten: feed_from(since, newest, 0)
