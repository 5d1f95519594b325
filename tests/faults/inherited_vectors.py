"""A put without vectors that leaves those of the entry before it."""

from dataclasses import replace

from holdall.engines.memory import MemoryEngine

write = MemoryEngine._write


def inherit(self, place, record, undo):
    old = self._entries.get(place)
    if record.value is not None and record.vectors is None and old is not None:
        record = replace(record, vectors=old.vectors)
    write(self, place, record, undo)


MemoryEngine._write = inherit
