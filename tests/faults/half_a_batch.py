"""A failed batch that keeps what it wrote before it failed."""

from faults import replace_in_scripts
from holdall.engines.memory import MemoryEngine
from holdall.engines.postgres import engine as postgres
from holdall.engines.postgres.entries import PostgresEntries
from holdall.engines.sql.entries import SqlEntries
from holdall.engines.sqlite import SqliteEngine

restore = MemoryEngine._restore


def write_only(self, place, record, undo):
    restore(self, place, record)


MemoryEngine._write = write_only


def keep(self, writer):
    if writer.in_transaction:
        writer.execute("COMMIT")


SqliteEngine._roll_back = keep
PostgresEntries._actual, postgres._ROLLBACK = SqlEntries._actual, ("COMMIT", {})
replace_in_scripts("local results, count = {}, 0", "local results, count, refused = {}, 0, nil")
refuse = "{ 'refused', count, unpack(refusal) }"
replace_in_scripts(f"return replica_error() or {refuse}", f"refused = {refuse} break")
replace_in_scripts("local answer = {", "local answer = refused or {")
