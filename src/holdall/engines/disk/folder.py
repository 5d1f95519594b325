"""The folder of a `disk:` store: reading, writing and listing plain files, without following symbolic links.

The engine, the catalogue and the import of external edits make all their file system calls here.

A path is relative to the folder, its names joined by "/". Every change opens the folders on its path one by one, with
handles that follow no link. So a link in the path cannot make the store write outside of its folder.

A file is written in two steps, so that no program sees half of it: it is *staged* as `.holdall/new/VERSION`, and then
*published*, which means renamed to its path. Stamps are described in `stamps.py`, references in `dialect.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ...errors import Corrupt, SymbolicLink, Unavailable
from .file_names import HOLDALL_FOLDER, is_excluded
from .reserved_space import ReservedSpace
from .stamps import get_size, has_same_inode, is_edited, is_unreadable, make_stamp, mark_unreadable

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a named pipe must not block
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_MISSING_OR_HIDDEN = (*_MISSING, errno.EACCES, errno.ENAMETOOLONG)
_COPY_BYTES = 1 << 20  # at a time
#: Where files are staged.
STAGING_FOLDER = f"{HOLDALL_FOLDER}/new/"
_VERSION = re.compile("[1-9][0-9]{0,17}")  # the name of a staged file; any other file there is left alone
_CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota of this user is used up",
    errno.EMFILE: "this process has no file handles left",
    errno.ENFILE: "the system has no file handles left",
}


def to_unavailable(root: str, error: OSError) -> Unavailable:
    """Translate an error of the file system."""
    cause = _CAUSES.get(error.errno or 0, "the folder cannot be used")
    return Unavailable(f"{cause}: {root!r}: {error.strerror or error}")


class FileChanged(Exception):
    """A plain file is not as the catalogue describes it: another program or another process has just changed it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class _OpenFolder:
    """An open handle on a folder; if some folders on its path are missing, on the last one that exists."""

    __slots__ = ("errno", "handle", "path", "reached")

    def __init__(self, path: str, root: int) -> None:
        self.path = path  # the requested folder, with a "/" at its end
        self.reached = ""  # the folder of the handle, in the same form
        self.handle = root
        self.errno = 0  # why the next folder could not be opened


class Folder:
    """The files below one folder."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._staging = f"{root}/{STAGING_FOLDER}"
        self.reserved_space = ReservedSpace(f"{root}/{HOLDALL_FOLDER}/reserve")
        self._device = 0  # the file system
        self._reading = threading.local()  # how this thread reads: `allow_growth`, `skip_unreadable`
        self._held: _OpenFolder | None = None
        # Identifies this folder among its copies: the inode and the ctime of a file that is written once. Any tool that
        # copies the folder gives that file a new ctime. A chmod does so too, which is harmless: the next comparison of
        # all files then ignores inodes.
        self.identity = ""
        self.is_case_insensitive = False

    def fold(self, path: str) -> str:
        """Return a form of a path that is the same for all paths that the file system treats as equal."""
        if not self.is_case_insensitive:
            return path
        # Such file systems also ignore whether "é" is one code point or two.
        return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())

    def create(self) -> None:
        """Create the folder and `.holdall` in it, if they are missing, and find out how the file system behaves."""
        own = Path(self.root, HOLDALL_FOLDER)
        try:
            if (link := next((path for path in (own, *own.glob("*")) if path.is_symlink()), None)) is not None:
                raise SymbolicLink(f"Path traversal blocked: {str(link)!r} is a symbolic link, which is not followed")
            staging = Path(self._staging)
            missing = [path for path in (staging, *staging.parents) if not path.exists()]
            staging.mkdir(parents=True, exist_ok=True)
            for path in missing:
                handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    _fsync(handle)
                finally:
                    os.close(handle)
            ignore = own / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
            state = ignore.stat()
            self.identity = f"{state.st_ino}.{state.st_ctime_ns}"
            self.is_case_insensitive = Path(self.root, HOLDALL_FOLDER.upper()).exists()
            self._device = own.stat().st_dev
        except OSError as error:
            raise Unavailable(f"cannot create the folder {self.root!r} for the store: {error.strerror}") from error
        self.reserved_space.reserve()

    # Reading ---------------------------------------------------------------------------------------------------------

    def read(self, reference: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes `[start, end)` of a file. Raise `FileChanged` if it is not as the reference describes it."""
        stamp, _, path = reference.partition("/")
        self._check_inside(path)
        if is_unreadable(stamp) and (skipped := getattr(self._reading, "skipped", None)) is not None:
            skipped.add(path)
            return b""
        try:
            return self._read_at(path, stamp, start, end)
        except FileChanged:
            # A committed file may still be staged.
            version = next((version for version in self.list_staged() if self.get_staged_stamp(version) == stamp), None)
            if version is None:
                raise
            try:
                return self._read(os.open(self._staged_path(version), _READ), stamp, path, start, end)
            except OSError as error:
                raise self._translate_read_error(path, stamp, error) from error

    def _read_at(self, path: str, stamp: str, start: int, end: int | None) -> bytes:
        # One call, not one for each folder. If a link in the path leads elsewhere, the inode differs from the stamp's.
        try:
            try:
                file = os.open(f"{self.root}/{path}", _READ)
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                with self._open_parent(path) as parent:
                    file = os.open(_name_of(path), _READ, dir_fd=parent)
        except OSError as error:
            raise self._translate_read_error(path, stamp, error) from error
        return self._read(file, stamp, path, start, end)

    def _read(self, file: int, stamp: str, path: str, start: int, end: int | None) -> bytes:
        try:
            state = os.fstat(file)
            if make_stamp(state) != stamp:
                grown: set[str] | None = getattr(self._reading, "grown", None)
                if grown is None or not has_same_inode(stamp, state) or state.st_size < get_size(stamp):
                    raise FileChanged(path)
                grown.add(path)
            size = get_size(stamp)
            end = size if end is None else min(end, size)
            data = os.pread(file, max(end - start, 0), start)
            if len(data) < end - start:  # one call returns at most 2 GB; or the file was truncated meanwhile
                pieces = [data]
                while data and start + sum(map(len, pieces)) < end:
                    offset = start + sum(map(len, pieces))
                    pieces.append(data := os.pread(file, end - offset, offset))
                data = b"".join(pieces)
                if len(data) < end - start:
                    raise FileChanged(path)
            return data
        finally:
            os.close(file)

    @contextlib.contextmanager
    def allow_growth(self) -> Iterator[set[str]]:
        """Let this thread read a file that has grown as it was before; yield a set that collects such paths.

        For the last attempts only: a file that was overwritten in place, not appended to, looks the same.
        """
        self._reading.grown = grown = set[str]()
        try:
            yield grown
        finally:
            self._reading.grown = None

    @contextlib.contextmanager
    def skip_unreadable(self) -> Iterator[set[str]]:
        """Let this thread read a file that it may not read as empty; yield a set that collects such paths."""
        self._reading.skipped = skipped = set[str]()
        try:
            yield skipped
        finally:
            self._reading.skipped = None

    @staticmethod
    def _translate_read_error(path: str, stamp: str, error: OSError) -> Exception:
        if error.errno in _MISSING or (error.errno == errno.EACCES and not is_unreadable(stamp)):
            return FileChanged(path)
        return Unavailable(f"cannot read the file {path!r} of the store: {error.strerror}")

    def stat(self, path: str) -> os.stat_result | None:
        """Return the state of what is at a path; None if there is nothing, or a link on the way."""
        try:
            with self._open_parent(path) as parent:
                return os.stat(_name_of(path) or ".", dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno in _MISSING:
                return None
            raise

    def has_stamp(self, path: str, stamp: str) -> bool:
        """Whether the file at a path has a stamp; for an empty stamp, whether there is no file."""
        try:
            return make_stamp(os.lstat(f"{self.root}/{path}")) == stamp
        except OSError:
            return not stamp

    def is_edited(self, path: str, *stamps: str | None) -> bool:
        """Whether there is a file at a path, and it has none of these stamps."""
        return is_edited(self.stat_before_write(path), *stamps)

    def read_current(self, path: str, start: int = 0, limit: int = -1) -> bytes | None:
        """Return the bytes of the file at a path, whatever its stamp; None if there is none. May raise `OSError`."""
        try:
            with self._open_parent(path) as parent:
                file = os.open(_name_of(path), _READ, dir_fd=parent)
        except OSError as error:
            if error.errno in _MISSING:
                return None
            raise
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            with os.fdopen(file, "rb", closefd=False) as opened:
                opened.seek(start)
                return opened.read(limit)
        finally:
            os.close(file)

    def scan(self, path: str, before_folder: Callable[[str], None]) -> Iterator[tuple[str, str | None]]:
        """Yield the path and stamp of the file at a path, or of all files below it. Skip links and excluded names.

        A stamp of None: this process may not see what is at this path and below it. `before_folder` is called with the
        path of each folder before it is listed.
        """
        if path and any(map(is_excluded, path.split("/"))):
            return
        try:
            state = self.stat(path)
        except PermissionError:
            yield path, None
            return
        if state is None:
            return
        if not stat.S_ISDIR(state.st_mode):
            if stat.S_ISREG(state.st_mode):
                with contextlib.suppress(FileNotFoundError), self._open_parent(path) as parent:
                    yield path, _stamp_found_file(state, _name_of(path), parent)
            return
        folders = [path]
        while folders:
            path = folders.pop()
            before_folder(path)
            try:
                with self._open_parent(f"{path}/" if path else "") as folder, os.scandir(folder) as found:
                    for entry in found:
                        inside = f"{path}/{entry.name}" if path else entry.name
                        if is_excluded(entry.name):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(inside)
                        elif entry.is_file(follow_symlinks=False):
                            with contextlib.suppress(FileNotFoundError):
                                yield inside, _stamp_found_file(entry.stat(follow_symlinks=False), entry.name, folder)
            except PermissionError:
                yield path, None
            except OSError as error:
                if error.errno not in _MISSING:  # not just removed
                    raise

    def is_empty(self) -> bool:
        """Whether there is nothing in the folder but `.holdall`."""
        return all(path.name == HOLDALL_FOLDER for path in Path(self.root).iterdir())

    # Opening folders -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _open_parent(self, path: str) -> Iterator[int]:
        """Open the folder that a path is in."""
        folder = self._open_folders(path)
        try:
            if folder.errno:
                raise OSError(folder.errno, os.strerror(folder.errno), path)
            yield folder.handle
        finally:
            os.close(folder.handle)

    def _open_folders(self, path: str, changed: set[str] | None = None) -> _OpenFolder:
        """Open the folders on a path one by one, as far as they exist.

        With `changed`, missing folders are created, and the folders that they are created in are added to it.
        """
        self._check_inside(path)
        folder = _OpenFolder(_parent_of(path), os.open(self.root, _OPEN_FOLDER))
        try:
            for name in path.split("/")[:-1]:
                try:
                    inner = os.open(name, _OPEN_FOLDER, dir_fd=folder.handle)
                except OSError as error:
                    if changed is None or error.errno != errno.ENOENT:
                        folder.errno = error.errno or errno.EIO
                        break
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=folder.handle)
                    changed.add(folder.reached)
                    inner = os.open(name, _OPEN_FOLDER, dir_fd=folder.handle)
                outer, folder.handle = folder.handle, inner
                os.close(outer)
                folder.reached += name + "/"
        except BaseException:
            os.close(folder.handle)
            raise
        return folder

    def _hold_parent(self, path: str, changed: set[str] | None = None) -> _OpenFolder:
        """Open the folder that a path is in, and keep it open: to write a file takes several calls.

        Only the thread that writes may call this; it calls `release_parent` at the end. If the folder is moved
        meanwhile, what is written moves with it, as if it had been written before.
        """
        held = self._held
        if held is None or held.path != _parent_of(path) or (changed is not None and held.errno):
            self.release_parent()
            held = self._held = self._open_folders(path, changed)
        return held

    def release_parent(self) -> None:
        """Close the folder that was kept open for writing."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held.handle)

    def stat_before_write(self, path: str) -> os.stat_result | None:
        """Return the state of what is at a path, with the folder that stays open for writing; None for nothing."""
        parent = self._hold_parent(path)
        if parent.errno:
            if parent.errno in _MISSING_OR_HIDDEN:
                return None
            raise OSError(parent.errno, os.strerror(parent.errno), path)
        try:
            return os.stat(_name_of(path), dir_fd=parent.handle, follow_symlinks=False)
        except OSError as error:
            if error.errno in _MISSING_OR_HIDDEN:
                return None
            raise

    def _check_inside(self, path: str) -> None:
        """Refuse a path that leads out of the folder: a catalogue that was copied with a folder may be forged."""
        if ".." in path and ".." in path.split("/"):
            raise Corrupt(
                f"the catalogue of {self.root!r} has the path {path!r}, which is outside of the folder;"
                f" delete its {HOLDALL_FOLDER!r}"
            )

    # Checks before a commit ------------------------------------------------------------------------------------------

    def is_free(self, path: str) -> bool:
        """Whether a file can be created at a path, where at most some folders have to be created for it."""
        parent = self._hold_parent(path)
        if parent.errno:
            return parent.errno == errno.ENOENT
        try:
            os.stat(_name_of(path), dir_fd=parent.handle, follow_symlinks=False)
        except FileNotFoundError:
            return True
        return False

    def check_writable(self, path: str, is_new: bool) -> None:
        """Raise an `OSError` if the file at a path could not be removed or, with `is_new`, published.

        Files are published by a rename, which cannot cross to another file system.
        """
        parent = self._hold_parent(path)
        if parent.errno and parent.errno not in _MISSING:
            refused = path[: path.index("/", len(parent.reached))]
            raise OSError(parent.errno, f"{refused!r}: {os.strerror(parent.errno)}")
        if is_new and os.fstat(parent.handle).st_dev != self._device:
            raise OSError(errno.EXDEV, f"{parent.reached!r} is on another file system")
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=parent.handle):
            raise PermissionError(errno.EACCES, f"{parent.reached or '.'!r}: {os.strerror(errno.EACCES)}")

    def find_obstacles(self, path: str, is_file: bool) -> list[str]:
        """Return the paths of all that must be removed before there can be a file, or else a folder, at a path.

        A link is never replaced by a folder.
        """
        state = self.stat(path)
        if state is None or stat.S_ISDIR(state.st_mode) is not is_file:
            return []
        if not is_file:
            if stat.S_ISLNK(state.st_mode):
                raise SymbolicLink(f"Path traversal blocked: {path!r} is a symbolic link, which is not followed")
            return [path]
        obstacles: list[str] = []
        folders = [path]
        while folders:
            path = folders.pop()
            with self._open_parent(path + "/") as folder, os.scandir(folder) as found:
                for entry in found:
                    is_folder = entry.is_dir(follow_symlinks=False) and not is_excluded(entry.name)
                    (folders if is_folder else obstacles).append(f"{path}/{entry.name}")
        return obstacles

    # Staging and publishing ------------------------------------------------------------------------------------------

    def _staged_path(self, version: int) -> str:
        return f"{self._staging}{version}"

    def get_staged_stamp(self, version: int) -> str | None:
        """Return the stamp of a staged file; None if there is none."""
        try:
            return make_stamp(os.lstat(self._staged_path(version)))
        except FileNotFoundError:
            return None

    def list_staged(self) -> list[int]:
        """Return the versions of all staged files."""
        return [int(name) for name in os.listdir(self._staging) if _VERSION.fullmatch(name)]  # noqa: PTH208  # quick

    def stage(
        self, version: int, pieces: Iterable[bytes | tuple[str, int]], sync: bool, like: os.stat_result | None
    ) -> str:
        """Write a staged file, and return its stamp.

        A piece is bytes, or the path of a file and how much of it to copy. The file gets the permissions of `like`, if
        that is a file: an executable or private file stays so when it is replaced.
        """
        try:
            file = os.open(self._staged_path(version), _CREATE, 0o666)
        except PermissionError:  # a killed process has left a read-only file of this name
            self.remove_staged(version)
            file = os.open(self._staged_path(version), _CREATE, 0o666)
        try:
            if like is not None and stat.S_ISREG(like.st_mode):
                os.fchmod(file, stat.S_IMODE(like.st_mode) & 0o777)
            for piece in pieces:
                if isinstance(piece, bytes):
                    _write(file, piece)
                else:
                    self._copy(piece[0], piece[1], file)
            if sync:
                _fsync(file)
            return make_stamp(os.fstat(file))
        finally:
            os.close(file)

    def _copy(self, path: str, size: int, target: int) -> None:
        """Copy as much of a file as there is: another program may truncate or remove it meanwhile."""
        try:
            with self._open_parent(path) as parent:
                source = os.open(_name_of(path), _READ, dir_fd=parent)
        except OSError as error:
            if error.errno in _MISSING:
                return
            raise
        try:
            offset = 0
            while offset < size and (data := os.pread(source, min(_COPY_BYTES, size - offset), offset)):
                _write(target, data)
                offset += len(data)
        finally:
            os.close(source)

    def stage_link(self, version: int, path: str) -> bool:
        """Stage a hard link to a file; return whether that was possible."""
        self.remove_staged(version)
        try:
            with self._open_parent(path) as parent:
                os.link(_name_of(path), self._staged_path(version), src_dir_fd=parent, follow_symlinks=False)
        except OSError:
            return False
        return True

    def publish(self, version: int, path: str, changed: set[str], may_be_link: bool = False) -> None:
        """Rename a staged file to its path. Add the folders whose names change to `changed`."""
        try:
            self._rename(version, path, changed)
        except FileNotFoundError:  # the folder was removed after it was opened
            self.release_parent()
            self._rename(version, path, changed)
        if may_be_link:  # a rename does nothing if both names are hard links to one file
            self.remove_staged(version)
        changed.add(_parent_of(path))

    def _rename(self, version: int, path: str, changed: set[str]) -> None:
        parent = self._hold_parent(path, changed)
        if parent.errno:
            raise OSError(parent.errno, os.strerror(parent.errno), path)
        name = _name_of(path)
        try:
            os.rename(self._staged_path(version), name, dst_dir_fd=parent.handle)
        except IsADirectoryError:  # `find_obstacles` found only empty folders there
            self._remove_folders(path)
            os.rename(self._staged_path(version), name, dst_dir_fd=parent.handle)

    def remove_staged(self, version: int) -> None:
        """Remove a staged file, if it exists."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(self._staged_path(version))  # noqa: PTH108  # as above

    # Other changes ---------------------------------------------------------------------------------------------------

    def _remove_folders(self, path: str) -> None:
        """Remove a folder that has nothing in it but empty folders."""
        with self._open_parent(path + "/") as folder, os.scandir(folder) as inside:
            names = [entry.name for entry in inside]
        for name in names:
            self._remove_folders(f"{path}/{name}")
        with self._open_parent(path) as parent:
            os.rmdir(_name_of(path), dir_fd=parent)

    def append(self, path: str, data: bytes, sync: bool) -> str:
        """Append bytes to a file, and return its new stamp."""
        with self._open_parent(path) as parent:
            file = os.open(_name_of(path), _APPEND, dir_fd=parent)
        try:
            _write(file, data)
            if sync:
                _fsync(file)
            return make_stamp(os.fstat(file))
        finally:
            os.close(file)

    def remove(self, path: str, changed: set[str]) -> None:
        """Remove a file or a link, if it is there. Add its folder to `changed`."""
        # A killed process may have removed it before, and another program may have created a folder there since.
        changed.add(_parent_of(path))
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError),
            self._open_parent(path) as parent,
        ):
            os.unlink(_name_of(path), dir_fd=parent)

    def remove_empty_parents(self, path: str, changed: set[str]) -> None:
        """Remove the folders on the path of a removed file that are empty now. Update `changed`."""
        while path := path.rpartition("/")[0]:
            try:
                with self._open_parent(path) as parent:
                    os.rmdir(_name_of(path), dir_fd=parent)
            except OSError:  # usually because it is not empty
                return
            changed.discard(path + "/")
            changed.add(_parent_of(path))

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Fsync folders, so that the names in them survive a power cut. Skip those that are gone."""
        for path in folders:
            folder = self._hold_parent(path)
            if not folder.errno:
                _fsync(folder.handle)
            elif folder.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise OSError(folder.errno, os.strerror(folder.errno), path)

    def sync_staging(self) -> None:
        """Fsync the folder of staged files."""
        handle = os.open(self._staging, _OPEN_FOLDER)
        try:
            _fsync(handle)
        finally:
            os.close(handle)


def _name_of(path: str) -> str:
    """Return the last name of a path."""
    return path.rpartition("/")[2]


def _parent_of(path: str) -> str:
    """Return the folder that a path is in, with a "/" at its end; "" for the outermost folder."""
    return path[: path.rfind("/") + 1]


def _stamp_found_file(state: os.stat_result, name: str, folder: int) -> str:
    is_readable = state.st_mode & 0o444 == 0o444 or os.access(name, os.R_OK, dir_fd=folder)
    return make_stamp(state) if is_readable else mark_unreadable(make_stamp(state))


def _fsync(handle: int) -> None:
    """Call fsync; on macOS, in the form that reaches the disk."""
    import fcntl

    if (full := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
        with contextlib.suppress(OSError):  # not every file system supports it
            fcntl.fcntl(handle, full)
            return
    os.fsync(handle)


def _write(file: int, data: bytes) -> None:
    """Write all bytes: one call may write only some."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
