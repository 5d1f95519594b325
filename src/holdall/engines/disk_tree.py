"""The folder of a `disk:` store: reading, writing and walking plain files, and never through a symbolic link.

A path is relative to the folder, its parts joined by "/". Whatever changes something goes to its place one folder at a
time, by handles that follow no link, so that nobody can have us write elsewhere by putting a link in the way. A *stamp*
is how a file is known again: its inode, the time of its last change, its size. A *reference* is a stamp and a path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..errors import Corrupt, InvalidInput, Unavailable
from .disk_names import OWN, is_foreign

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not keep us waiting
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_PIECE = 1 << 20
#: Where files are staged.
STAGED = f"{OWN}/new/"


class Stale(Exception):
    """A file is not what the catalogue says of it: somebody has changed it, just now or outside."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def stamp(state: os.stat_result) -> str:
    return f"{state.st_ino}.{state.st_mtime_ns}.{state.st_size}"


def size_of(known: str) -> int:
    """The size that a stamp says; "" is that of a file of which nothing is known."""
    return int(known.rpartition(".")[2] or 0)


def is_same_file(known: str, state: os.stat_result) -> bool:
    """Whether a file is the one that a stamp is of, though it may have grown since."""
    return known.partition(".")[0] == str(state.st_ino)


def is_edited(there: os.stat_result | None, *known: str | None) -> bool:
    """Whether it is a file, and none of these stamps'."""
    return there is not None and stat.S_ISREG(there.st_mode) and stamp(there) not in known


class _Folder:
    """A folder that was gone to, one at a time and through no link: as far as there are folders on the way."""

    __slots__ = ("errno", "handle", "path", "reached")

    def __init__(self, path: str, root: int) -> None:
        self.path = path  # that was meant, with a "/" at its end
        self.reached = ""
        self.handle = root
        self.errno = 0  # why it went no further


class Tree:
    """The files below one folder."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._temporary = f"{root}/{STAGED}"
        self._device = 0  # the file system
        self._lenient = threading.local()
        self._held: _Folder | None = None
        self.folds = False  # whether "A" and "a" are one name here

    def folded(self, path: str) -> str:
        """What the file system takes a path for."""
        if not self.folds:
            return path
        return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())  # nor "é" of one and of two

    def make(self) -> None:
        """The folder, and ours in it."""
        own = Path(self.root, OWN)
        try:
            if (link := next((there for there in (own, *own.glob("*")) if there.is_symlink()), None)) is not None:
                raise InvalidInput(f"Path traversal blocked: {str(link)!r} is a symbolic link, which is not followed")
            new = Path(self._temporary)
            missing = [there for there in (new, *new.parents) if not there.exists()]
            new.mkdir(parents=True, exist_ok=True)
            for there in missing:
                handle = os.open(there.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    _fsync(handle)
                finally:
                    os.close(handle)
            ignore = own / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
            self.folds = Path(self.root, OWN.upper()).exists()
            self._device = own.stat().st_dev
        except OSError as error:
            raise Unavailable(f"cannot make the folder {self.root!r} for the store: {error.strerror}") from error

    # Reading ---------------------------------------------------------------------------------------------------------

    def read(self, reference: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes `[start, end)` of a file, if it is still the one that is meant."""
        known, _, path = reference.partition("/")
        self._check(path)
        try:
            return self._read_at(path, known, start, end)
        except Stale:
            waiting = next((one for one in self.all_staged() if self.staged_stamp(one) == known), None)
            if waiting is None:
                raise
            try:  # committed, and on its way to its place
                return self._read(os.open(self.staged(waiting), _READ), known, path, start, end)
            except OSError as error:
                raise self._unreadable(path, error) from error

    def _read_at(self, path: str, known: str, start: int, end: int | None) -> bytes:
        # In one step and not folder by folder: whoever puts a link in the way cannot have this inode at its end.
        try:
            try:
                file = os.open(f"{self.root}/{path}", _READ)
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                with self.folder(path) as folder:
                    file = os.open(path.rpartition("/")[2], _READ, dir_fd=folder)
        except OSError as error:
            raise self._unreadable(path, error) from error
        return self._read(file, known, path, start, end)

    def _read(self, file: int, known: str, path: str, start: int, end: int | None) -> bytes:
        try:
            state = os.fstat(file)
            if stamp(state) != known:
                grown: set[str] | None = getattr(self._lenient, "grown", None)
                if grown is None or not is_same_file(known, state) or state.st_size < size_of(known):
                    raise Stale(path)
                grown.add(path)
            size = size_of(known)
            end = size if end is None else min(end, size)
            data = os.pread(file, max(end - start, 0), start)
            if len(data) < end - start:  # more than a call gives at a time; or it has been cut off meanwhile
                pieces = [data]
                while data and start + sum(map(len, pieces)) < end:
                    place = start + sum(map(len, pieces))
                    pieces.append(data := os.pread(file, end - place, place))
                data = b"".join(pieces)
                if len(data) < end - start:
                    raise Stale(path)
            return data
        finally:
            os.close(file)

    @contextlib.contextmanager
    def growing(self) -> Iterator[set[str]]:
        """Have this thread read files that have grown as they were before; takes the paths of such.

        For the last tries only. One that was written anew in place, and not just appended to, looks the same.
        """
        self._lenient.grown = grown = set[str]()
        try:
            yield grown
        finally:
            self._lenient.grown = None

    @staticmethod
    def _unreadable(path: str, error: OSError) -> Exception:
        if error.errno in (*_MISSING, errno.EACCES):
            return Stale(path)
        return Unavailable(f"cannot read the file {path!r} of the store: {error.strerror}")

    def stat(self, path: str) -> os.stat_result | None:
        """What is at a path, unless it is behind a link."""
        try:
            with self.folder(path) as folder:
                return os.stat(path.rpartition("/")[2] or ".", dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno in _MISSING:
                return None
            raise

    def is_known(self, path: str, known: str) -> bool:
        """Whether the file at a path is still the one that a stamp is of; "" is that of none."""
        try:
            return stamp(os.lstat(f"{self.root}/{path}")) == known
        except OSError:
            return not known

    def is_edited(self, path: str, *known: str | None) -> bool:
        """Whether there is a file at a path, and it is none of these stamps'."""
        return is_edited(self.there(path), *known)

    def current(self, path: str, start: int = 0, limit: int = -1) -> bytes | None:
        """The bytes that are at a path now; None where there is no file, or none that may be read."""
        try:
            with self.folder(path) as folder:
                file = os.open(path.rpartition("/")[2], _READ, dir_fd=folder)
        except OSError:
            return None
        with os.fdopen(file, "rb") as opened:
            opened.seek(start)
            return opened.read(limit)

    def scan(self, path: str, entering: Callable[[str], None]) -> Iterator[tuple[str, os.stat_result]]:
        """The file at a path, or all below it; links, what is not ours and what we may not read are passed over.

        `entering` is called with each folder before it is read.
        """
        if path and any(map(is_foreign, path.split("/"))):
            return
        try:
            state = self.stat(path)
        except PermissionError:  # as below
            return
        if state is None:
            return
        if not stat.S_ISDIR(state.st_mode):
            if stat.S_ISREG(state.st_mode):
                with contextlib.suppress(FileNotFoundError), self.folder(path) as folder:
                    if _is_readable(state, path.rpartition("/")[2], folder):
                        yield path, state
            return
        folders = [path]
        while folders:
            path = folders.pop()
            entering(path)
            try:
                with self.folder(f"{path}/" if path else "") as folder, os.scandir(folder) as found:
                    for entry in found:
                        inside = f"{path}/{entry.name}" if path else entry.name
                        if is_foreign(entry.name):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(inside)
                        elif entry.is_file(follow_symlinks=False):
                            with contextlib.suppress(FileNotFoundError):
                                state = entry.stat(follow_symlinks=False)
                                if _is_readable(state, entry.name, folder):
                                    yield inside, state
            except OSError as error:  # gone meanwhile; or one that we may not read, which is none of ours then
                if error.errno not in (*_MISSING, errno.EACCES):
                    raise

    def is_empty(self) -> bool:
        """Whether nobody has put anything there yet."""
        return all(there.name == OWN for there in Path(self.root).iterdir())

    # Writing ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """A handle on the folder that a path is in."""
        folder = self._go(path)
        try:
            if folder.errno:
                raise OSError(folder.errno, os.strerror(folder.errno), path)
            yield folder.handle
        finally:
            os.close(folder.handle)

    def _go(self, path: str, make: set[str] | None = None) -> _Folder:
        """Go to the folder that a path is in. `make` has missing ones made, and takes the paths of where."""
        self._check(path)
        folder = _Folder(_folder_of(path), os.open(self.root, _FOLDER))
        try:
            for name in path.split("/")[:-1]:
                try:
                    inner = os.open(name, _FOLDER, dir_fd=folder.handle)
                except OSError as error:
                    if make is None or error.errno != errno.ENOENT:
                        folder.errno = error.errno or errno.EIO
                        break
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=folder.handle)
                    make.add(folder.reached)
                    inner = os.open(name, _FOLDER, dir_fd=folder.handle)
                outer, folder.handle = folder.handle, inner
                os.close(outer)
                folder.reached += name + "/"
        except BaseException:
            os.close(folder.handle)
            raise
        return folder

    def _hold(self, path: str, make: set[str] | None = None) -> _Folder:
        """Go to the folder that a path is in, and stay there: to write a file takes several steps there.

        For the one thread that writes, which lets go of it in the end. If the folder is moved meanwhile, what is
        written goes along, as if it had been there before.
        """
        held = self._held
        if held is None or held.path != _folder_of(path) or (make is not None and held.errno):
            self.let_go()
            held = self._held = self._go(path, make)
        return held

    def let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            os.close(held.handle)

    def there(self, path: str) -> os.stat_result | None:
        """What is at a path, for who writes there."""
        folder = self._hold(path)
        if folder.errno:
            return None
        try:
            return os.stat(path.rpartition("/")[2], dir_fd=folder.handle, follow_symlinks=False)
        except OSError:
            return None

    def _check(self, path: str) -> None:
        """Refuse what leads out of the folder: a catalogue that came with it may be anybody's."""
        if ".." in path and ".." in path.split("/"):
            raise Corrupt(f"the catalogue of {self.root!r} names {path!r}, which is outside; delete its {OWN!r}")

    def is_free(self, path: str) -> bool:
        """Whether a file can be put at a path and nothing but missing folders made for it."""
        folder = self._hold(path)
        if folder.errno:
            return folder.errno == errno.ENOENT
        try:
            os.stat(path.rpartition("/")[2], dir_fd=folder.handle, follow_symlinks=False)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False

    def refuse_unwritable(self, path: str, is_new: bool) -> None:
        """Raise an `OSError` where no file can be taken from a path, or put there: better now than when it is promised.

        Files come by renaming, which leads to no other file system than that of the folder.
        """
        folder = self._hold(path)
        if folder.errno and folder.errno not in _MISSING:
            where = path[: path.index("/", len(folder.reached))]
            raise OSError(folder.errno, f"{where!r}: {os.strerror(folder.errno)}")
        if is_new and os.fstat(folder.handle).st_dev != self._device:
            raise OSError(errno.EXDEV, f"{folder.reached!r} is on another file system")
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder.handle):
            raise PermissionError(errno.EACCES, f"{folder.reached or '.'!r}: {os.strerror(errno.EACCES)}")

    def obstacles(self, path: str, is_file: bool) -> list[str]:
        """What is in the way of a file, or else of a folder, at a path: the paths of what would have to go first.

        A link is not passed, and not replaced by a folder.
        """
        state = self.stat(path)
        if state is None or stat.S_ISDIR(state.st_mode) is not is_file:
            return []
        if not is_file:
            if stat.S_ISLNK(state.st_mode):
                raise InvalidInput(f"Path traversal blocked: {path!r} is a symbolic link, which is not followed")
            return [path]
        found: list[str] = []
        folders = [path]
        while folders:
            path = folders.pop()
            with self.folder(path + "/") as folder, os.scandir(folder) as inside:
                for entry in inside:
                    is_folder = entry.is_dir(follow_symlinks=False) and not is_foreign(entry.name)
                    (folders if is_folder else found).append(f"{path}/{entry.name}")
        return found

    def staged(self, version: int) -> str:
        return f"{self._temporary}{version}"

    def staged_stamp(self, version: int) -> str | None:
        """Of a temporary file, if it is there."""
        try:
            return stamp(os.lstat(self.staged(version)))
        except FileNotFoundError:
            return None

    def stage(
        self, version: int, pieces: Iterable[bytes | tuple[str, int]], sync: bool, like: os.stat_result | None
    ) -> str:
        """Write a temporary file whole, of bytes and of files with the size that they had; its stamp.

        It gets the rights of another file, if there is one: a script stays one, and what is private, too.
        """
        try:
            file = os.open(self.staged(version), _NEW, 0o666)
        except PermissionError:  # of one that a killed process has left, and that may not be written to
            self.unstage(version)
            file = os.open(self.staged(version), _NEW, 0o666)
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
            return stamp(os.fstat(file))
        finally:
            os.close(file)

    def _copy(self, path: str, size: int, to: int) -> None:
        """As much of it as there is: somebody may remove it in this moment."""
        try:
            with self.folder(path) as folder:
                source = os.open(path.rpartition("/")[2], _READ, dir_fd=folder)
        except OSError as error:
            if error.errno in _MISSING:
                return
            raise
        try:
            place = 0
            while place < size and (data := os.pread(source, min(_PIECE, size - place), place)):
                _write(to, data)
                place += len(data)
        finally:
            os.close(source)

    def stage_link(self, version: int, path: str) -> bool:
        """Have a file under a temporary name too; whether that can be done."""
        self.unstage(version)
        try:
            with self.folder(path) as folder:
                os.link(path.rpartition("/")[2], self.staged(version), src_dir_fd=folder, follow_symlinks=False)
        except OSError:
            return False
        return True

    def settle(self, version: int, path: str, touched: set[str], is_link: bool = False) -> None:
        """Bring a temporary file to its place."""
        try:
            self._rename(version, path, touched)
        except FileNotFoundError:  # the folder was removed after we had gone there
            self.let_go()
            self._rename(version, path, touched)
        if is_link:  # two names of one file, perhaps: then renaming does nothing
            self.unstage(version)
        touched.add(_folder_of(path))

    def _rename(self, version: int, path: str, touched: set[str]) -> None:
        folder = self._hold(path, touched)
        if folder.errno:
            raise OSError(folder.errno, os.strerror(folder.errno), path)
        name = path.rpartition("/")[2]
        try:
            os.rename(self.staged(version), name, dst_dir_fd=folder.handle)
        except IsADirectoryError:  # of empty ones, that nobody needs
            self._remove_folders(path)
            os.rename(self.staged(version), name, dst_dir_fd=folder.handle)

    def _remove_folders(self, path: str) -> None:
        with self.folder(path + "/") as folder, os.scandir(folder) as inside:
            names = [entry.name for entry in inside]
        for name in names:
            self._remove_folders(f"{path}/{name}")
        with self.folder(path) as folder:
            os.rmdir(path.rpartition("/")[2], dir_fd=folder)

    def append(self, path: str, data: bytes, sync: bool) -> str:
        """Write on at the end of a file; the stamp that it then has."""
        with self.folder(path) as folder:
            how = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(path.rpartition("/")[2], how, dir_fd=folder)
        try:
            _write(file, data)
            if sync:
                _fsync(file)
            return stamp(os.fstat(file))
        finally:
            os.close(file)

    def remove(self, path: str, touched: set[str]) -> None:
        """Remove a file. A link goes itself, not what it leads to."""
        # Before we were killed it may have gone already, and something else may have come there.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            with self.folder(path) as folder:
                os.unlink(path.rpartition("/")[2], dir_fd=folder)
            touched.add(_folder_of(path))

    def prune(self, path: str, touched: set[str]) -> None:
        """Remove the folders that are empty without a file that was at a path."""
        while path := path.rpartition("/")[0]:
            try:
                with self.folder(path) as folder:
                    os.rmdir(path.rpartition("/")[2], dir_fd=folder)
            except OSError:  # mostly: it is not empty
                return
            touched.discard(path + "/")
            touched.add(_folder_of(path))

    def sync(self, folders: Iterable[str]) -> None:
        """Have the names in these folders survive a power cut."""
        for path in folders:
            folder = self._hold(path)
            if not folder.errno:
                _fsync(folder.handle)
            elif folder.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise OSError(folder.errno, os.strerror(folder.errno), path)

    def sync_staged(self) -> None:
        handle = os.open(self._temporary, _FOLDER)
        try:
            _fsync(handle)
        finally:
            os.close(handle)

    def all_staged(self) -> list[int]:
        """The versions that there are temporary files of."""
        return [int(name) for name in os.listdir(self._temporary) if name.isdecimal()]  # noqa: PTH208  # the quickest

    def unstage(self, version: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.staged(version))  # noqa: PTH108  # as above


def _folder_of(path: str) -> str:
    """The folder that a path is in, with a "/" at its end; "" for the topmost."""
    return path[: path.rfind("/") + 1]


def _is_readable(state: os.stat_result, name: str, folder: int) -> bool:
    return state.st_mode & 0o444 == 0o444 or os.access(name, os.R_OK, dir_fd=folder)


def _fsync(handle: int) -> None:
    """An fsync that reaches the disk, on macOS too."""
    import fcntl

    if (full := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
        with contextlib.suppress(OSError):  # a file system that knows it not
            fcntl.fcntl(handle, full)
            return
    os.fsync(handle)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
