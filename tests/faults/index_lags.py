"""An index of texts that says it is up to date, and knows only what the first search found."""

from holdall.engines.memory_search import MemoryRanker
from holdall.engines.sql_texts import SqlTexts

catch_up, behind = MemoryRanker._catch_up, SqlTexts.behind


def catch_up_once(self):
    if not self._seen:
        catch_up(self)


def behind_once(self):
    return 0 if (yield from self.is_begun()) else (yield from behind(self)) or 1


def nothing(self, state):
    return None
    yield


MemoryRanker._catch_up, SqlTexts.behind, SqlTexts._late = catch_up_once, behind_once, nothing
