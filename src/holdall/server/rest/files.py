"""Files: their bytes at their paths, listings, globs and grep. The argument `namespace` names the volume."""

from __future__ import annotations

import mimetypes
import re
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from ... import FileInfo, Files, Match, ops
from ...core import face_api
from ...errors import Conflict, FileNotFound, InvalidInput, IsADirectory
from ..exchange import CONDITIONS, FLAG, NUMBER, TEXT, Call, Handler, answer, decode_json, no_content, takes
from ..problems import HttpError
from .documents import FILESYSTEM, etag, expectation, lease_argument, namespace_argument

_START = "/v1/files"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
#: Images that a browser draws, and that cannot contain scripts.
RASTER = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp")
_OPEN = re.compile(r"text/|application/(json|xml|yaml|toml|javascript|x-sh)")


def _files(call: Call) -> Files:
    files: Files = call.store.files(namespace_argument(call, FILESYSTEM))
    return files


def _path(call: Call) -> str:
    segments = call.segments(_START)
    if any("/" in segment for segment in segments):
        raise InvalidInput("a name in a path cannot contain '/': %2F is not allowed here")
    return "/".join(segments) or "/"


@takes(
    "if-none-match",
    "range",
    "if-range",
    namespace=TEXT,
    version=NUMBER,
    at=TEXT,
    prefix=TEXT,
    limit=NUMBER,
    after=TEXT,
)
async def get_file(call: Call) -> Response:
    """Read a file, or a part of it with Range; or list a folder, whose path ends in '/'."""
    files, path = _files(call), _path(call)
    if path.endswith("/"):
        return await _list(call, files, path, prefix=call.text("prefix") or "")
    old: bytes | None = None
    if call.text("version") is not None:
        call.access.require("history")
        version = call.number("version", 0)
        old = await files.aread(path, version=version)
        info = FileInfo(path, size=len(old), version=version)
    else:
        info = await files.astat(path)
    if info.is_dir:
        raise IsADirectory(f"{path!r} is a folder; to list it, write '/' at the end")
    tag = etag(info.version)
    if call.has_tag(tag.get("ETag")):
        return Response(status_code=304, headers=tag)
    headers = {**tag, **_safe_headers(path), "Accept-Ranges": "bytes"}
    start, end, status = _range(call, info)
    if end - start > call.service.limits.body:
        raise HttpError(413, f"read a file in parts of at most {call.service.limits.body:,} bytes, with Range")
    if status == 206:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{info.size}"
    content = b""
    if call.request.scope["method"] == "HEAD":
        headers["Content-Length"] = str(end - start)
    elif old is not None:
        content = old[start:end]
    elif end > start:
        content = await _read_part(call.store, files, info, start, end)
    return Response(content, status, headers)


async def _read_part(store: Any, files: Files, info: FileInfo, start: int, end: int) -> bytes:
    """Read a part of the version that was described: another one must not be sent with its ETag."""
    assert info.version is not None  # only folders have none
    check = ops.Check(files.namespace, info.path, info.version)
    part = ops.ReadRange(files.namespace, info.path, start, end)
    try:
        content: bytes = (await store.aexecute([check, part]))[1]
    except Conflict as error:
        detail = f"{info.path!r} has changed while it was read; read it again"
        raise HttpError(409, detail, title="Conflict") from error
    return content


def _range(call: Call, info: FileInfo) -> tuple[int, int, int]:
    """The part to send, and the status: 206 if it is a part."""
    text = call.request.headers.get("range")
    if text is None or call.request.headers.get("if-range", f'"{info.version}"') != f'"{info.version}"':
        return 0, info.size, 200
    match = _RANGE.fullmatch(text.replace(" ", ""))
    if match is None or not (match[1] or match[2]) or len(text) > 50:
        return 0, info.size, 200  # several ranges, or another unit: RFC 9110 lets a server ignore them
    if match[1] and match[2] and int(match[2]) < int(match[1]):
        return 0, info.size, 200  # not a range, so it is ignored
    if match[1]:
        start, end = int(match[1]), min(int(match[2]) + 1 if match[2] else info.size, info.size)
    else:
        start, end = max(0, info.size - int(match[2])), info.size
    if start >= info.size or end <= start:
        raise HttpError(416, f"the file has {info.size} bytes", {"Content-Range": f"bytes */{info.size}"})
    return start, end, 206


def _safe_headers(path: str) -> dict[str, str]:
    """Headers with which nothing that is stored runs in a browser."""
    name = path.rpartition("/")[2]
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self'"}
    if kind in RASTER:
        headers["Content-Type"] = kind
    elif _OPEN.match(kind) or (kind == "application/octet-stream" and "." not in name):
        headers["Content-Type"] = "text/plain; charset=utf-8"
    else:
        headers["Content-Type"] = "application/octet-stream"
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name)}"
    headers["X-Holdall-Content-Type"] = kind
    return headers


class FilePage(msgspec.Struct):
    """Files and folders; `next` is the argument `after` of the page that follows, or null."""

    files: list[FileInfo]
    next: str | None


async def _list(call: Call, files: Files, path: str, *, prefix: str = "", deep: bool = False) -> Response:
    limit = call.number("limit", call.service.limits.page, call.service.limits.page)
    listed = face_api.list_files(files, path, call.text("after"), limit, prefix=prefix, deep=deep)
    page = await face_api.arun(call.store, listed)
    return answer(FilePage(page, page.next))


@takes(*CONDITIONS, namespace=TEXT)
async def put_file(call: Call) -> Response:
    """Create or replace a file with the body."""
    info = await _files(call).awrite(
        _path(call), await call.body(), expect=expectation(call), lease=lease_argument(call)
    )
    return answer(info, headers=etag(info.version))


class Edit(msgspec.Struct, forbid_unknown_fields=True):
    """A text to replace."""

    old: str
    new: str
    replace_all: bool = False


class Appended(msgspec.Struct):
    """Where the appended bytes begin."""

    offset: int


class Edited(msgspec.Struct):
    """How often a text was replaced."""

    replaced: int


@takes(*CONDITIONS, namespace=TEXT, op={"enum": ["append", "edit"]})
async def patch_file(call: Call) -> Response:
    """Append the body to a file (`?op=append`), or edit it: the body is `{"old", "new", "replace_all"}`."""
    files, path, how = _files(call), _path(call), call.text("op") or "edit"
    conditions: Any = {"expect": expectation(call), "lease": lease_argument(call)}
    if how == "append":
        return answer(Appended(await files.aappend(path, await call.body(), **conditions)))
    if how != "edit":
        raise InvalidInput("op is 'append' or 'edit'")
    given = decode_json(await call.body(), Edit)
    count = await files.aedit(path, given.old, given.new, replace_all=given.replace_all, **conditions)
    return answer(Edited(count))


@takes(*CONDITIONS, namespace=TEXT, recursive=FLAG)
async def delete_file(call: Call) -> Response:
    """Delete a file; with `recursive`, a folder and everything in it."""
    path, recursive = _path(call), call.flag("recursive")
    expect, lease = expectation(call), lease_argument(call)
    count = await _files(call).adelete(path, recursive=recursive, expect=expect, lease=lease)
    if not count:
        raise FileNotFound(f"there is no {path!r}")
    return no_content()


@takes(namespace=TEXT, path=TEXT, at=TEXT)
async def stat_file(call: Call) -> Response:
    """Describe a file or folder."""
    info = await _files(call).astat(call.text("path") or "/")
    return answer(info, headers=etag(info.version))


@takes(namespace=TEXT, path=TEXT, offset=NUMBER, limit=NUMBER, at=TEXT)
async def read_lines(call: Call) -> Response:
    """Read some lines of a file."""
    limit = call.number("limit", 2000, 100_000)
    window = await _files(call).aread_lines(call.text("path") or "/", call.number("offset", 0), limit)
    return answer(window)


class FileList(msgspec.Struct):
    """Files, and whether there are more of them."""

    files: list[FileInfo]
    more: bool


@takes(namespace=TEXT, pattern=TEXT, path=TEXT, limit=NUMBER, offset=NUMBER, at=TEXT)
async def glob(call: Call) -> Response:
    """Find files by their paths."""
    found = await _files(call).aglob(call.text("pattern") or "", call.text("path") or "/")
    limit, offset = call.number("limit", call.service.limits.page, call.service.limits.page), call.number("offset", 0)
    return answer(FileList(found[offset : offset + limit], len(found) > offset + limit))


@takes(namespace=TEXT, path=TEXT, limit=NUMBER, after=TEXT, at=TEXT)
async def walk(call: Call) -> Response:
    """List every file below a folder, in path order."""
    return await _list(call, _files(call), call.text("path") or "/", deep=True)


class Matches(msgspec.Struct):
    """Lines, and whether there are more of them."""

    matches: list[Match]
    more: bool


@takes(namespace=TEXT, pattern=TEXT, path=TEXT, glob=TEXT, regex=FLAG, ignore_case=FLAG, limit=NUMBER, at=TEXT)
async def grep(call: Call) -> Response:
    """Find lines in files."""
    limit = call.number("limit", 100, call.service.limits.grep)
    found = await _files(call).agrep(
        call.text("pattern") or "",
        call.text("path") or "/",
        glob=call.text("glob"),
        regex=call.flag("regex"),
        ignore_case=call.flag("ignore_case"),
        limit=limit + 1,
    )
    return answer(Matches(found[:limit], len(found) > limit))


class Transfer(msgspec.Struct, forbid_unknown_fields=True):
    """From where to where."""

    src: str
    dst: str


@takes(*CONDITIONS, namespace=TEXT)
async def move_file(call: Call) -> Response:
    """Move a file or folder."""
    given = await call.json(Transfer)
    expect, lease = expectation(call), lease_argument(call)
    return answer(await _files(call).amove(given.src, given.dst, expect=expect, lease=lease))


@takes("holdall-lease", namespace=TEXT)
async def copy_file(call: Call) -> Response:
    """Copy a file or folder."""
    given = await call.json(Transfer)
    return answer(await _files(call).acopy(given.src, given.dst, lease=lease_argument(call)))


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    "/v1/files/{path:path}": {
        "GET": (get_file, "read"),
        "PUT": (put_file, "write"),
        "PATCH": (patch_file, "write"),
        "DELETE": (delete_file, "write"),
    },
    "/v1/stat": {"GET": (stat_file, "read")},
    "/v1/lines": {"GET": (read_lines, "read")},
    "/v1/glob": {"GET": (glob, "read")},
    "/v1/walk": {"GET": (walk, "read")},
    "/v1/grep": {"GET": (grep, "read")},
    "/v1/move": {"POST": (move_file, "write")},
    "/v1/copy": {"POST": (copy_file, "write")},
}
