"""History, where the store keeps it: versions, differences, restore and rewind. `?at=` elsewhere reads the past."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from ...errors import InvalidInput
from ...ops import Diff, Version
from ..exchange import CONDITIONS, NUMBER, TEXT, Call, Handler, answer, parse_moment, takes
from .documents import (
    FILESYSTEM,
    etag,
    expectation,
    item_address,
    lease_argument,
    namespace_argument,
)


class Versions(msgspec.Struct):
    """Versions, newest first."""

    versions: list[Version]


@takes(limit=NUMBER)
async def list_versions(call: Call) -> Response:
    """List the versions of an entry, newest first."""
    namespace, key = item_address(call, "/v1/history/")
    found = await call.store.ahistory(namespace, key, limit=call.number("limit", 100, call.service.limits.page))
    return answer(Versions(found))


@takes(namespace=TEXT, path=TEXT, limit=NUMBER)
async def list_file_versions(call: Call) -> Response:
    """List the versions of a file, newest first; or of all files below a folder, whose path ends in '/'."""
    files = call.store.files(namespace_argument(call, FILESYSTEM))
    limit = call.number("limit", 100, call.service.limits.page)
    found = await files.ahistory(call.text("path") or "/", limit=limit)
    return answer(Versions(found))


class Restore(msgspec.Struct, forbid_unknown_fields=True):
    """A version to bring back: of an entry (`key`), or of a file (`path`)."""

    version: int
    namespace: list[str] = []
    key: str | None = None
    path: str | None = None


@takes(*CONDITIONS)
async def restore(call: Call) -> Response:
    """Write an old version again, as a new change."""
    given = await call.json(Restore)
    call.access.require("history")
    if (given.key is None) == (given.path is None):
        raise InvalidInput("pass key, for an entry, or path, for a file")
    conditions: Any = {"expect": expectation(call), "lease": lease_argument(call)}
    if given.path is not None:
        files = call.store.files(tuple(given.namespace) or FILESYSTEM)
        info = await files.arestore(given.path, given.version, **conditions)
        return answer(info, headers=etag(info.version))
    entry = await call.store.arestore(tuple(given.namespace), given.key, given.version, **conditions)
    return answer(entry, headers=etag(entry.version))


class Diffs(msgspec.Struct):
    """Entries that differ, and whether there are more of them."""

    differences: list[Diff]
    more: bool


@takes(namespace=TEXT, since=TEXT, until=TEXT, limit=NUMBER)
async def diff(call: Call) -> Response:
    """List the entries that differ between two moments."""
    since = call.text("since")
    if since is None:
        raise InvalidInput("the argument since is missing: a time, or a cursor")
    until = call.text("until")
    limit = call.number("limit", 100, call.service.limits.page)
    found: list[Diff] = []
    differences = call.store.adiff(
        namespace_argument(call), parse_moment("since", since), None if until is None else parse_moment("until", until)
    )
    async for one in differences:
        found.append(one)
        if len(found) > limit:
            break
    await differences.aclose()
    return answer(Diffs(found[:limit], len(found) > limit))


class Rewind(msgspec.Struct, forbid_unknown_fields=True):
    """To which moment a namespace is brought back."""

    when: str
    namespace: list[str] = []
    dry_run: bool = False
    sliced: bool = False


@takes("holdall-lease")
async def rewind(call: Call) -> Response:
    """Bring a namespace back to how it was; with `dry_run`, say what would change."""
    given = await call.json(Rewind)
    call.access.require("history")
    if not given.dry_run:
        call.access.require("write")
    done = await call.store.arewind(
        tuple(given.namespace),
        parse_moment("when", given.when),
        dry_run=given.dry_run,
        sliced=given.sliced,
        lease=lease_argument(call),
    )
    return answer(done)


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    "/v1/history/{address:path}": {"GET": (list_versions, "history")},
    "/v1/file-history": {"GET": (list_file_versions, "history")},
    "/v1/restore": {"POST": (restore, "write")},
    "/v1/diff": {"GET": (diff, "history")},
    "/v1/rewind": {"POST": (rewind, "history")},
}
