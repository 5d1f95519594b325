"""An entry that is still there after its time."""

from faults import replace_in_scripts
from holdall.engines.memory import engine as memory
from holdall.engines.sql import entries as sql

memory._is_live = lambda record, now: record.value is not None
init = sql.SqlEntries.__init__


def timeless(self, dialect, clock, *parts, **more):
    init(self, dialect, lambda: 0, *parts, **more)


sql.SqlEntries.__init__ = timeless
replace_in_scripts("return record.kind == 'p' and not is_past(record.expires)", "return record.kind == 'p'")
