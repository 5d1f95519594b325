"""File objects, which read or write a file in pieces, so that memory use does not depend on its size.

A reader reads its pieces at the version that the file had when it was opened. A writer appends its pieces to a hidden
upload, and moves that to the path when it is closed. An upload that is never finished expires.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import secrets
import warnings
import weakref
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .. import ops
from ..errors import FileNotFound, HoldallError, InvalidInput, IsADirectory, Unavailable, shown
from ..model import keys
from ..ops import DEFAULT, FileInfo
from ..runtime.closers import start_closer
from ..runtime.programs import StoreProgram
from ..runtime.signals import defer_signals

if TYPE_CHECKING:
    from ..live.leases import Lease
    from .volume import Files

_PIECE = 1 << 20
_UPLOAD_TTL = 24 * 3600.0

logger = logging.getLogger("holdall")


class OpenFile:
    """One open file: its programs, which the sync and the async file object run."""

    def __init__(self, files: Files, path: str, mode: str, lease: Lease | None) -> None:
        if mode not in ("rb", "wb", "ab"):
            raise InvalidInput(f'a file is opened with "rb", "wb" or "ab", not {shown(mode)}')
        self.files, self.mode, self.lease = files, mode, lease
        self.path = keys.check_path(path)
        self.info: FileInfo | None = None
        self._upload = "/" + secrets.token_hex(16)
        self._begun = False
        self._failure: BaseException | None = None
        self._process = os.getpid()

    def begin(self) -> StoreProgram[None]:
        """Check that the path can be read or written, so that opening fails and not the first piece."""
        namespace = self.files.namespace
        if self.mode != "rb":
            yield from self.files._change([ops.CheckPath(namespace, self.path)], self.lease)
            return
        self.info = (yield [ops.Stat(namespace, self.path)])[0]
        if self.info is None:
            raise FileNotFound(f"there is no file {self.path!r}")
        if self.info.is_dir:
            raise IsADirectory(f"{self.path!r} is a folder")

    def read(self, start: int, size: int) -> StoreProgram[bytes]:
        assert self.info is not None
        assert self.info.version is not None
        namespace = self.files.namespace
        check = ops.Check(namespace, self.path, self.info.version)
        content: bytes = (yield [check, ops.ReadRange(namespace, self.path, start, start + size)])[1]
        return content

    def write(self, data: bytes) -> StoreProgram[None]:
        self._check_complete()
        self._begun = True
        try:
            if self.mode == "ab":
                yield from self.files._append(self.path, data, lease=self.lease)
            else:
                yield [ops.Append(self._upload_namespace, self._upload, data, ttl=_UPLOAD_TTL)]
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Write no other piece: the last one may have been written or not."""
        self._failure = self._failure or error

    @property
    def has_failed(self) -> bool:
        return self._failure is not None or self.is_inherited

    @property
    def is_inherited(self) -> bool:
        """Whether the file was opened before a fork. Its buffer and its upload belong to the parent process."""
        return os.getpid() != self._process

    def finish(self) -> StoreProgram[None]:
        """Make what "wb" has written visible at its path. Raises an error if a piece could not be written.

        A file that was opened for writing exists afterwards, also if nothing was written.
        """
        if self.has_failed:
            with contextlib.suppress(HoldallError):
                yield from self.discard()
        self._check_complete()
        namespace = self.files.namespace
        if not self._begun and (self.mode == "wb" or (yield [ops.Stat(namespace, self.path)])[0] is None):
            yield from self.write(b"")
        if self.mode == "wb":
            move = ops.Move(namespace, self._upload, self.path, self._upload_namespace, DEFAULT)
            try:
                yield from self.files._change([ops.CheckPath(namespace, self.path), move], self.lease)
            except HoldallError:
                with contextlib.suppress(HoldallError):
                    yield from self.discard()
                raise

    def discard(self) -> StoreProgram[None]:
        """Delete what "wb" has written so far."""
        if self._begun and self.mode == "wb" and not self.is_inherited:
            yield [ops.Delete(self._upload_namespace, self._upload)]

    def _check_complete(self) -> None:
        if self.is_inherited:
            raise InvalidInput(
                f"{self.path!r} was opened before a fork, so only the parent process can write to it; open it again in"
                " this process"
            )
        if self._failure is None:
            return
        next_step = "nothing of it is kept; write it again" if self.mode == "wb" else "no other follows; read the file"
        raise Unavailable(
            f"a piece of {self.path!r} could not be written, so {next_step}: {self._failure!r}"
        ) from self._failure

    @property
    def _upload_namespace(self) -> keys.Reserved:
        return keys.Reserved(("uploads", *self.files.namespace))


class _Raw(io.RawIOBase):
    """The unbuffered part of a sync file object."""

    def __init__(self, open_file: OpenFile) -> None:
        self._open_file = open_file
        self._at = 0
        self.is_complete = False  # set by `_Writer.close`, when all was written
        open_file.files._run(open_file.begin())
        self.name, self.mode = open_file.path, open_file.mode

    def readable(self) -> bool:
        return self._open_file.mode == "rb"

    def writable(self) -> bool:
        return self._open_file.mode != "rb"

    def seekable(self) -> bool:
        return self.readable()

    def readinto(self, buffer: Any) -> int:
        data = self._open_file.files._run(self._open_file.read(self._at, len(buffer)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if not self.readable():
            raise io.UnsupportedOperation("seek works only on a file opened with 'rb'")
        assert self._open_file.info is not None
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._open_file.info.size}[whence]
        if base + offset < 0:
            raise InvalidInput(f"cannot seek to {base + offset}, before the beginning")
        self._at = base + offset
        return self._at

    def write(self, data: Any) -> int:
        try:
            content = bytes(data)
            length = len(content)
            self._open_file.files._run(self._open_file.write(content))
        except BaseException as error:  # an interrupt may come after the last step of the program, too
            self._open_file.fail(error)
            raise
        # No call from here on: an interrupt would leave the piece in the buffer, to be written again.
        self._at += length
        return length

    def tell(self) -> int:
        return self._at

    @property
    def has_failed(self) -> bool:
        return self._open_file.has_failed

    @property
    def is_inherited(self) -> bool:
        return self._open_file.is_inherited

    @property
    def owner(self) -> object:
        """The store that waits, when it is closed, until the file is closed."""
        return self._open_file.files.store._root

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self.writable():
                open_file = self._open_file
                open_file.files._run(open_file.finish() if self.is_complete else open_file.discard())
        finally:
            super().close()

    def __del__(self) -> None:
        """Do not close: the file object does that, and an interrupt may have left none."""


class _Writer(io.BufferedWriter):
    """The file object of "wb" and "ab". After an exception in its `with` block, "wb" writes nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._is_to_discard():
            self._discard()  # the first exception is the one to raise
        else:
            self.close()

    def close(self) -> None:
        if not self.closed:
            try:
                self.flush()
            except BaseException:  # an error of closing must not replace it: it may be a KeyboardInterrupt
                self._discard()
                raise
            cast(_Raw, self.raw).is_complete = True
        super().close()

    def __del__(self) -> None:
        """Close in another thread: a finalizer runs at any point, and may be called in the engine itself.

        What was written to "wb" is lost.
        """
        with contextlib.suppress(RuntimeError, ValueError):  # the program is ending, or `detach` was called
            if not self.closed:
                start_closer(self.close_unclosed, owner=cast(_Raw, self.raw).owner)

    def close_unclosed(self) -> None:
        """Close a file object that its user has left open. What is in the buffer of "ab" is written."""
        if cast(_Raw, self.raw).is_inherited:  # the parent closes it; a thread of the parent may hold its lock
            return
        try:
            self._discard() if self._is_to_discard() else self.close()
        except HoldallError as error:
            logger.warning("a file was not closed, and the last part of %r is lost: %s", self.name, error)
        except ValueError:  # an interrupted `close` has written all, and released the buffer
            pass

    def _is_to_discard(self) -> bool:
        """Whether what is in the buffer is lost if an exception ends the use of the file."""
        return self.mode == "wb" or cast(_Raw, self.raw).has_failed

    def _discard(self) -> None:
        cast(_Raw, self.raw).is_complete = False  # `close` may have been interrupted
        with contextlib.suppress(Exception):
            super().close()


BinaryFile: TypeAlias = io.BufferedReader | io.BufferedWriter


def open_sync(files: Files, path: str, mode: str, lease: Lease | None) -> BinaryFile:
    """Open a file for `Files.open`."""
    raw = _Raw(OpenFile(files, path, mode, lease))
    if mode == "rb":
        return io.BufferedReader(raw, _PIECE)
    _register_exit_hook()
    writer = _Writer(raw, _PIECE)
    _writers.add(writer)
    return writer


_writers: weakref.WeakSet[_Writer] = weakref.WeakSet()


@cache
def _register_exit_hook() -> None:
    """Have the file objects closed that are open when the program ends.

    Not before a store exists: functions that are registered later run earlier, and the engines must still be open.
    """
    atexit.register(_close_writers)


def _close_writers() -> None:
    for writer in list(_writers):
        with contextlib.suppress(ValueError):  # `detach` was called
            if not writer.closed:
                defer_signals(writer.close_unclosed)


class AsyncFile:
    """A binary file for async code: `read`, `write`, `seek` and `close`; use it with `async with`."""

    def __init__(self, open_file: OpenFile) -> None:
        self._open_file = open_file
        self._at = 0
        self._buffer = bytearray()
        self.closed = False

    async def read(self, size: int = -1) -> bytes:
        """Read up to that many bytes, or all that are left. Returns `b""` at the end."""
        self._check("rb")
        assert self._open_file.info is not None
        left = max(self._open_file.info.size - self._at, 0)
        data = await self._do(self._open_file.read(self._at, left if size is None or size < 0 else min(size, left)))
        self._at += len(data)
        return cast(bytes, data)

    def seek(self, offset: int) -> int:
        """Move to a byte offset."""
        self._check("rb")
        if offset < 0:
            raise InvalidInput(f"cannot seek to {offset}, before the beginning")
        self._at = offset
        return offset

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._at

    async def write(self, data: bytes) -> int:
        """Write bytes. They are sent in pieces."""
        self._check("wb", "ab")
        self._buffer += data
        self._at += len(data)
        if len(self._buffer) >= _PIECE:
            await self._flush()
        return len(data)

    async def close(self) -> None:
        """Close the file. What "wb" has written becomes visible."""
        if self.closed:
            return
        self.closed = True
        try:
            await self._flush()
        except GeneratorExit:  # nothing can be awaited any more
            raise
        except BaseException:
            with contextlib.suppress(Exception):  # the first exception is the one to raise
                await self._do(self._open_file.discard())
            raise
        await self._do(self._open_file.finish())

    async def __aenter__(self) -> AsyncFile:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not (self._open_file.mode == "wb" or self._open_file.has_failed):
            await self.close()
        elif not self.closed:
            self.closed = True
            with contextlib.suppress(Exception):  # the first exception is the one to raise
                await self._do(self._open_file.discard())

    def __del__(self) -> None:
        """Warn as a plain file does. Nothing can be awaited here, so what was not sent is lost."""
        open_file = self._open_file
        if not self.closed and open_file.mode != "rb" and not open_file.is_inherited:
            lost = "nothing of it is kept" if open_file.mode == "wb" else f"the last {len(self._buffer)} bytes are lost"
            text = f"{open_file.path!r} was not closed, so {lost}; use `async with`, or await close()"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    async def _flush(self) -> None:
        if self._buffer:
            data, self._buffer = bytes(self._buffer), bytearray()
            await self._do(self._open_file.write(data))

    async def _do(self, program: StoreProgram[Any]) -> Any:
        return await self._open_file.files._arun(program)

    def _check(self, *modes: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._open_file.mode not in modes:
            raise io.UnsupportedOperation(f"not possible with a file opened with {self._open_file.mode!r}")


async def open_async(files: Files, path: str, mode: str, lease: Lease | None) -> AsyncFile:
    """Open a file for `Files.aopen`."""
    open_file = OpenFile(files, path, mode, lease)
    await files._arun(open_file.begin())
    return AsyncFile(open_file)
