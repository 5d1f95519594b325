"""A filter's key that becomes part of the statement."""

from holdall.engines.sqlite_sql import SqliteDialect, _json_path

SqliteDialect._where = lambda self, path, bind: f"'{_json_path(path)}'"
