"""A filter's key that becomes part of the statement."""

from holdall.engines.postgres.dialect import PostgresDialect
from holdall.engines.sql.narrowing import json_path
from holdall.engines.sqlite.dialect import SqliteDialect

SqliteDialect._json_path = lambda self, path, bind: f"'{json_path(path)}'"
PostgresDialect._at = lambda self, path, arrow, bind: f"projection #{arrow} '{{{','.join(path)}}}'::text[]"
