"""A filter's key that becomes part of the statement."""

from holdall.engines.narrowing import json_path
from holdall.engines.sqlite_sql import SqliteDialect

SqliteDialect._where = lambda self, path, bind: f"'{json_path(path)}'"
