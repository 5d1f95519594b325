"""An index of texts that says it is up to date, and knows only what the first search found."""

from holdall.engines.memory.ranker import MemoryRanker
from holdall.engines.redis.search.postings import Slice
from holdall.engines.redis.search.text_index import RedisTextIndex, _parse_state
from holdall.engines.sql.text_index import SqlTextIndex, _Unindexed
from holdall.search.text_index import TextIndex

catch_up, behind = MemoryRanker._catch_up, SqlTextIndex.index_lag


def catch_up_once(self):
    if not self._seen:
        catch_up(self)


def behind_once(self):
    return 0 if (yield from self.has_begun()) else (yield from behind(self)) or 1


def behind_once_in_redis(self):
    [reply] = yield from self._shards.run_on_each(self._shards.all, "postings")
    return 0 if _parse_state(reply).changes else reply[3]


def nothing(self, state, end):
    return _Unindexed()
    yield


def nothing_in_redis(self, shard, state, late_ids):
    return Slice(TextIndex(state.documents))
    yield


MemoryRanker._catch_up, SqlTextIndex.index_lag, SqlTextIndex._read_unindexed = catch_up_once, behind_once, nothing
RedisTextIndex.index_lag, RedisTextIndex._read_late = behind_once_in_redis, nothing_in_redis
