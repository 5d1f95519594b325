"""An entry that is still there after its time."""

from holdall.engines import memory, sql

memory._is_live = lambda record, now: record.value is not None
init = sql.Sql.__init__


def timeless(self, dialect, clock):
    init(self, dialect, lambda: 0)


sql.Sql.__init__ = timeless
