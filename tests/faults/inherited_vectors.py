"""A put without vectors that leaves those of the entry before it."""

from dataclasses import replace

from faults import replace_in_scripts, replaced
from holdall.engines.memory import MemoryEngine
from holdall.engines.postgres import entries as postgres_sql
from holdall.engines.sql.entries import SqlEntries
from holdall.engines.sqlite import engine as sqlite

write, upsert = MemoryEngine._write, SqlEntries._upsert


def inherit(self, place, record, undo):
    old = self._entries.get(place)
    if record.value is not None and record.vectors is None and old is not None:
        record = replace(record, vectors=old.vectors)
    write(self, place, record, undo)


def inherit_model(self, source, following, **options):
    sql = upsert(self, source, following, **options)
    if "vectors" not in following:
        return sql
    return replaced(sql, "vectors = excluded.vectors", "vectors = coalesce(excluded.vectors, old.vectors)")


def take_along(migrations, table):
    """The vectors of what is overwritten become those of the new version."""
    forgotten = f"DELETE FROM {table} WHERE version = old.version"
    assert any(forgotten in migration for migration in migrations)
    kept = f"UPDATE {table} SET version = new.version WHERE version = old.version"
    return type(migrations)(migration.replace(forgotten, kept) for migration in migrations)


MemoryEngine._write, SqlEntries._upsert = inherit, inherit_model
sqlite.MIGRATIONS = take_along(sqlite.MIGRATIONS, "holdall_vectors")
postgres_sql.MIGRATIONS = take_along(postgres_sql.MIGRATIONS, "{schema}.vectors")
replace_in_scripts(
    "body = body, model = model,\n  }",
    "body = body, model = model ~= '-' and model or old and old.model or '-',\n  }",
)
