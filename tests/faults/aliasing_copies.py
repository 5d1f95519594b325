"""A copy that grows with the file that it was made of."""

from holdall import keys
from holdall.engines.memory import MemoryEngine
from holdall.engines.sql_files import SqlFiles

append, init = MemoryEngine._append, SqlFiles.__init__


def in_place(self, op, now, undo):
    old = self._live((keys.encode(op.namespace), op.key), now)
    if old is not None and old.body is not None:
        del old.body[old.size :]
    return append(self, op, now, undo)


def unaware(self, *args):
    init(self, *args)
    self._grow = self._grow.replace("size, shared", "size, NULL")


MemoryEngine._append = in_place
SqlFiles.__init__ = unaware
