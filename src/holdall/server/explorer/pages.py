"""Serves the files of the explorer. They contain nothing that is stored, so they need no token."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path

import msgspec
from starlette.responses import Response

from ..exchange import Call, Handler
from ..problems import HttpError

_FOLDER = Path(__file__).parent / "static"
_KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",  # a browser asks each time whether the file has changed
    "Vary": "Accept-Encoding",
}


class _Asset(msgspec.Struct, frozen=True):
    """A file of the page, as it is sent."""

    kind: str
    tag: str
    plain: bytes
    packed: bytes


@cache
def _load_assets() -> dict[str, _Asset]:
    """Read all files once, by their paths. A request can name nothing else."""
    assets = {}
    for path in sorted(_FOLDER.rglob("*")):
        if path.suffix in _KINDS:
            content = path.read_bytes()
            tag = hashlib.sha256(content).hexdigest()[:32]
            kind = f"{_KINDS[path.suffix]}; charset=utf-8"
            assets[path.relative_to(_FOLDER).as_posix()] = _Asset(kind, f'"{tag}"', content, gzip.compress(content, 9))
    return assets


async def get_page(call: Call) -> Response:
    """Send the page."""
    return _send(call, "index.html")


async def get_asset(call: Call) -> Response:
    """Send a module, a style or an image of the page."""
    return _send(call, call.request.path_params["path"])


def _send(call: Call, name: str) -> Response:
    asset = _load_assets().get(name)
    if asset is None:
        raise HttpError(404, f"the explorer has no file {name[:100]!r}", title="NotFound")
    headers = {**_HEADERS, "ETag": asset.tag}
    if call.has_tag(asset.tag):
        return Response(status_code=304, headers=headers)
    if "gzip" in call.request.headers.get("accept-encoding", ""):
        return Response(asset.packed, 200, {**headers, "Content-Encoding": "gzip"}, asset.kind)
    return Response(asset.plain, 200, headers, asset.kind)


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    "/": {"GET": (get_page, None)},
    "/explorer/{path:path}": {"GET": (get_asset, None)},
}
