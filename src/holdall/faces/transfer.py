"""Bytes in and out of a store for the command line: from and to local files, stdin and stdout, in flat memory."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from ..errors import InvalidInput
from ..files import Files
from ..ops import FileInfo

_PIECE = 1 << 20
_AT_ONCE = 64 << 20  # a file up to this size is read in one go, so that writers meanwhile do not matter


class Sink(Protocol):
    """Whatever bytes can be written to."""

    def write(self, data: bytes, /) -> object: ...


def copy_to_local(files: Files, path: str, place: Path) -> None:
    if place.is_dir():
        raise IsADirectoryError(f"{str(place)!r} is a folder")
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name[:40]}.", delete=False) as part:
        try:
            copy_out(files, path, part)
            part.close()
            os.chmod(part.name, 0o666 & ~_umask())  # noqa: PTH101  # as any new file; a temporary one is private
            os.replace(part.name, place)  # noqa: PTH105  # it is a str
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def copy_out(files: Files, path: str, sink: Sink) -> None:
    if files.stat(path).size <= _AT_ONCE:
        sink.write(files.read(path))
        return
    with files.open(path, "rb") as file:
        while piece := file.read(_PIECE):
            sink.write(piece)


def local_files(source: Path) -> Iterator[Path]:
    """A file, or those in a folder and below it; links to folders are not followed, and what is no file is left."""
    if not source.is_dir():
        yield source
        return
    for folder, folders, names in os.walk(source):
        folders.sort()
        yield from (place for name in sorted(names) if (place := Path(folder, name)).is_file())


def copy_in(files: Files, path: str, source: Any) -> FileInfo:
    # read1 and not read: between the reads of a pipe, Ctrl-C is heard.
    first = b""
    while len(first) < _PIECE:
        piece = source.read1(_PIECE)
        if not piece:
            return files.write(path, first)
        first += piece
    with files.open(path, "wb") as file:
        file.write(first)
        while piece := source.read1(_PIECE):
            file.write(piece)
    return files.stat(path)


def lines_in_pieces(source: Any) -> Iterator[bytes]:
    """What can be read just now, up to its last line's end; a line that is longer than a piece comes in several."""
    rest = b""
    while piece := source.read1(_PIECE):
        rest += piece
        end = rest.rfind(b"\n") + 1 if len(rest) < _PIECE else len(rest)
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def local_name(path: str) -> str:
    """A path's end, for this system, where a name must not lead elsewhere."""
    if os.sep != "/" and re.search(r"[\\:]", path):
        raise InvalidInput(f"{path!r} cannot be a file's name on this system")
    return path.rpartition("/")[2] if path.startswith("/") else path
