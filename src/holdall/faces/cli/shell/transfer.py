"""Copying files between a store and local files, stdin and stdout, in a bounded amount of memory."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from .... import FileInfo, Files
from ....errors import InvalidInput

_CHUNK_SIZE = 1 << 20
_MAX_WHOLE_READ = 64 << 20  # a file up to this size is read in one op, so that concurrent writes cannot mix in


class Sink(Protocol):
    """An object that bytes can be written to."""

    def write(self, data: bytes, /) -> object: ...


def copy_to_local(files: Files, path: str, target: Path) -> None:
    """Copy a file of the store to a local file, which is written completely or not at all."""
    if target.is_dir():
        raise IsADirectoryError(f"{str(target)!r} is a folder")
    if target.exists() and not target.is_file():  # a device would be replaced
        raise InvalidInput(f"{str(target)!r} is no regular file; '-' is stdout")
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name[:40]}.", delete=False) as part:
        try:
            copy_out(files, path, part)
            part.close()
            os.chmod(part.name, 0o666 & ~_umask())  # noqa: PTH101  # the mode of a new file; a temporary file is private
            os.replace(part.name, target)  # noqa: PTH105  # a str
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def copy_out(files: Files, path: str, sink: Sink) -> None:
    """Write a file of the store to a sink."""
    if files.stat(path).size <= _MAX_WHOLE_READ:
        sink.write(files.read(path))
        return
    with files.open(path, "rb") as file:
        while chunk := file.read(_CHUNK_SIZE):
            sink.write(chunk)


def local_files(source: Path) -> Iterator[Path]:
    """Yield a file, or all files in a folder and below it. Links to folders are not followed."""
    if not source.is_dir():
        yield source
        return
    for folder, folders, names in os.walk(source):
        folders.sort()
        yield from (path for name in sorted(names) if (path := Path(folder, name)).is_file())


def copy_in(files: Files, path: str, source: Any) -> FileInfo:
    """Write a binary stream to a file of the store."""
    # read1 and not read: Ctrl-C works between the reads of a pipe.
    first = b""
    while len(first) < _CHUNK_SIZE:
        chunk = source.read1(_CHUNK_SIZE)
        if not chunk:
            return files.write(path, first)
        first += chunk
    with files.open(path, "wb") as file:
        file.write(first)
        while chunk := source.read1(_CHUNK_SIZE):
            file.write(chunk)
    return files.stat(path)


def read_line_chunks(source: Any) -> Iterator[bytes]:
    """Yield whole lines as soon as they can be read. A line longer than a chunk is yielded in several parts."""
    rest = b""
    while chunk := source.read1(_CHUNK_SIZE):
        rest += chunk
        end = rest.rfind(b"\n") + 1 if len(rest) < _CHUNK_SIZE else len(rest)
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def local_name(path: str) -> str:
    """Return a relative path, or the name of an absolute one, if it is a safe file name on this system."""
    if os.sep != "/" and re.search(r"[\\:]", path):
        raise InvalidInput(f"{path!r} cannot be a file's name on this system")
    return path.rpartition("/")[2] if path.startswith("/") else path
