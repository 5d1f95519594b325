"""A conditional write that writes whatever is there."""

from dataclasses import replace

from holdall.engines import memory, sql
from holdall.ops import ANY

memory.check_expectation = lambda op, actual: None
batch = sql.Sql.batch


def forgetful(self, ops):
    return (yield from batch(self, [replace(op, expect=ANY) if hasattr(op, "expect") else op for op in ops]))


sql.Sql.batch = forgetful
