"""An engine too simple to be wrong: a list of rows, which every op scans from the beginning.

It shares only the ops, the filter matcher and `Entry` with the real engines.
"""

from __future__ import annotations

from typing import Any

from holdall import ops
from holdall.engine import Capabilities, Options, conflict
from holdall.errors import CursorExpired
from holdall.model import filters
from holdall.model.keys import matches
from holdall.model.values import decode, to_datetime
from holdall.ops import Change, Entry, Hit, Page


class NaiveEngine:
    capabilities = Capabilities(durable=False, multiprocess=False)

    def __init__(self, options: Options) -> None:
        self.clock = options.clock
        self.rows: list[dict[str, Any]] = []  # one for each entry that ever existed
        self.version = 0
        self.forgotten = 0

    def execute(self, batch: Any) -> list[Any]:
        before = [dict(row) for row in self.rows]
        try:
            return [getattr(self, "_" + type(op).__name__.lower())(op) for op in batch]
        except BaseException:
            self.rows = before
            raise

    async def aexecute(self, batch: Any) -> list[Any]:
        return self.execute(batch)

    def setup(self) -> None: ...

    async def asetup(self) -> None: ...

    def close(self) -> None: ...

    def before_fork(self) -> None: ...

    def after_fork(self, in_child: bool) -> None: ...

    # Rows ------------------------------------------------------------------------------------------------------------

    def _live(self, prefix: Any = ()) -> list[dict[str, Any]]:
        now = self.clock()
        return [
            row
            for row in self.rows
            if row["kind"] == "put"
            and (row["expires"] is None or row["expires"] > now)
            and row["namespace"][: len(prefix)] == tuple(prefix)
        ]

    def _find(self, op: Any) -> dict[str, Any] | None:
        return next((row for row in self._live() if (row["namespace"], row["key"]) == (op.namespace, op.key)), None)

    def _expect(self, op: Any) -> dict[str, Any] | None:
        row = self._find(op)
        actual = row["version"] if row else None
        wanted = {ops.ANY: actual, ops.ABSENT: None}.get(op.expect, op.expect)
        if actual != wanted:
            raise conflict(op, actual)
        return row

    def _change(self, row: dict[str, Any], **changes: Any) -> None:
        self.version += 1
        row.update(changes, version=self.version, updated=self.clock())

    def _entry(self, row: dict[str, Any], kind: Any = Entry) -> Any:
        times = [row[name] and to_datetime(row[name]) for name in ("created", "updated", "expires")]
        return kind(row["namespace"], row["key"], decode(row["value"]), row["version"], *times)

    # Ops -------------------------------------------------------------------------------------------------------------

    def _get(self, op: Any) -> Any:
        row = self._find(op)
        return row and self._entry(row)

    def _put(self, op: Any) -> Any:
        row = self._expect(op)
        ttl = row and row["ttl"] if op.ttl is ops.KEEP else op.ttl and max(1, round(op.ttl * 1e6))
        expires = row and row["expires"] if op.ttl is ops.KEEP else ttl and self.clock() + ttl
        if row is None:
            self.rows = [r for r in self.rows if (r["namespace"], r["key"]) != (op.namespace, op.key)]
            row = {"namespace": op.namespace, "key": op.key, "created": self.clock()}
            self.rows.append(row)
        self._change(row, value=op.value, ttl=ttl, expires=expires, kind="put")
        return self._entry(row)

    def _delete(self, op: Any) -> bool:
        row = self._expect(op)
        if row:
            self._change(row, kind="delete", expires=None)
        return row is not None

    def _check(self, op: Any) -> None:
        self._expect(op)

    def _refresh(self, op: Any) -> bool:
        row = self._find(op)
        if row is None or row["ttl"] is None:
            return False
        row["expires"] = self.clock() + row["ttl"]
        return True

    def _deletetree(self, op: Any) -> int:
        removed = self._live(op.namespace)
        for row in removed:
            self._change(row, kind="delete", expires=None)
        return len(removed)

    def _sweep(self, op: Any) -> int:
        now = self.clock()
        due = [row for row in self.rows if row["expires"] is not None and row["expires"] <= now][: op.limit]
        for row in due:
            self._change(row, kind="expire", expires=None)
        return len(due)

    def _purgetombstones(self, op: Any) -> bool:
        newest = self.clock() - op.age * 1_000_000
        gone = [row for row in self.rows if row["kind"] != "put" and row["updated"] <= newest]
        self.rows = [row for row in self.rows if row not in gone]
        self.forgotten = max([self.forgotten, *(row["version"] for row in gone)])
        return False

    def _matching(self, op: Any) -> list[dict[str, Any]]:
        return [
            row
            for row in self._live(op.prefix)
            if (op.recursive or row["namespace"] == op.prefix) and filters.matches(op.filter, decode(row["value"]))
        ]

    def _search(self, op: Any) -> Page[Hit]:
        """A cursor holds the versions that remain, and the version after which entries are new."""
        rows = sorted(self._matching(op), key=lambda row: -row["version"])
        if op.cursor is None:
            rest, since = [row["version"] for row in rows[op.offset :]], self.version
        else:
            left, since = (op.cursor.split("|")[0].split(","), int(op.cursor.split("|")[1]))
            rest = [int(version) for version in left if version]
        known = {row["version"]: row for row in rows}
        old = [known[version] for version in rest if version in known]
        new = sorted((row for row in rows if row["version"] > since), key=lambda row: row["version"])
        page = (old + (new if op.cursor else []))[: op.limit]
        if len(page) == len(old) + (len(new) if op.cursor else 0):
            return Page([self._entry(row, Hit) for row in page])
        given = {row["version"] for row in page}
        since = max([since, *(version for version in given if version > since)])
        left = ",".join(str(row["version"]) for row in old if row["version"] not in given)
        return Page([self._entry(row, Hit) for row in page], f"{left}|{since}")

    def _count(self, op: Any) -> int:
        return len(self._matching(op))

    def _scan(self, op: Any) -> Page[Entry]:
        rows = sorted(self._live(op.prefix), key=lambda row: (row["namespace"], row["key"]))
        rows = [row for row in rows if op.after is None or (row["namespace"], row["key"]) > op.after]
        page = [self._entry(row) for row in rows[: op.limit]]
        return Page(page, page[-1].key if len(rows) > op.limit else None)

    def _namespaces(self, op: Any) -> list[Any]:
        inside = [row["namespace"][len(op.base) :] for row in self._live(op.base)]
        found = sorted({namespace[: op.max_depth] for namespace in inside if matches(namespace, op.prefix, op.suffix)})
        return found[op.offset : op.offset + op.limit]

    def _changes(self, op: Any) -> Page[Change]:
        since = int(op.since or 0)
        if op.since is not None and since < self.forgotten:
            raise CursorExpired("forgotten")
        rows = [row for row in self.rows if row["version"] > since and row["namespace"][: len(op.prefix)] == op.prefix]
        rows = [row for row in rows if not row["expires"] or row["expires"] > self.clock()]
        rows.sort(key=lambda row: row["version"])
        changes = [
            Change(row["version"], row["namespace"], row["key"], row["kind"], str(row["version"])) for row in rows
        ]
        return Page(changes[: op.limit], str(self.version))
