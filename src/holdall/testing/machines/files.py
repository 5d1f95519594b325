"""A Hypothesis state machine that runs the files of any engine against a plain dict of bytes.

Every step is done to a volume and to the dict. They must answer alike, errors included; after it, everything that can
be listed or read is compared, and the feed must contain exactly the files that changed.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ... import ABSENT, ANY, ops
from ...core.store import Store
from ...errors import (
    AlreadyExists,
    AmbiguousMatch,
    Conflict,
    FileNotFound,
    HoldallError,
    InvalidInput,
    IsADirectory,
    NoMatch,
    NotADirectory,
    NotText,
)
from ..caller import Caller
from ..clock import Clock

NS = ("volume",)
# Names that sort right before and after "/", and that are folders of each other.
PATHS = ["/a", "/a/b", "/a/b/c", "/a/b0", "/a-", "/a0", "/ab", "/é/*", "/é/.h"]
FOLDERS = ["/", "/a", "/a/b", "/é"]
PIECES = {"nothing": b"", "crlf": b"ab\r\n", "nl": b"\n", "cr": b"b\rab", "feed": "é\x0c".encode(), "byte": b"\xff"}
PIECES |= {"a": b"a", "long": b"ab" * 40_000}  # more than one row of a database

file_paths = st.sampled_from(PATHS)
contents = st.lists(st.sampled_from(sorted(PIECES)), max_size=3)  # their names, which are shorter to show
expectations = st.sampled_from(["any", "any", "absent", "current", "stale"])
steps = st.sampled_from(["append", "append", "put", "copy", "move", "delete_tree", "check_path", "read"])


def file_machine(open_store: Callable[[Path, Clock], Store], *, use_async: bool = False) -> type[RuleBasedStateMachine]:
    """A state machine for the files of the stores that `open_store(folder, clock)` opens.

    Called again with the same folder, `open_store` must open the same store. In a test file:

        TestFiles = file_machine(lambda folder, clock: holdall.open(folder / "x.db", clock=clock)).TestCase
    """

    class Machine(_FileMachine):
        def open_subject(self, folder: Path, clock: Clock) -> Store:
            return open_store(folder, clock)

    Machine.use_async = use_async
    Machine.__qualname__ = Machine.__name__ = "FileMachine"
    return Machine


# The model -----------------------------------------------------------------------------------------------------------


class Refused(Exception):  # as the errors that it stands for
    """An error of the model, with the errors of a store that are equivalent."""

    def __init__(self, *errors: type[HoldallError]) -> None:
        super().__init__(*errors)
        self.errors = errors


@dataclass(frozen=True)
class File:
    data: bytes
    created: datetime
    expires: datetime | None = None


@dataclass
class Model:
    """A dict of files, one of plain items, and the paths that the last step changed."""

    clock: Clock
    files: dict[str, File] = field(default_factory=dict)
    items: dict[str, datetime] = field(default_factory=dict)  # when they were made
    touched: set[str] = field(default_factory=set)

    def expire(self) -> None:
        self.files = {
            path: file for path, file in self.files.items() if not file.expires or file.expires > self.clock.now
        }

    def check_path(self, path: str) -> None:
        errors: list[type[HoldallError]] = []
        if any(path.startswith(file + "/") for file in self.files):
            errors.append(NotADirectory)
        if any(file.startswith(path + "/") for file in self.files):
            errors.append(IsADirectory)
        if errors:
            raise Refused(*errors)

    def put(self, path: str, data: bytes, ttl: float | None = None) -> None:
        created = self.files[path].created if path in self.files else self.items.get(path, self.clock.now)
        expires = None if ttl is None else self.clock.now + timedelta(seconds=ttl)
        self.files[path] = File(data, created, expires)
        self.items.pop(path, None)
        self.touched.add(path)

    def append(self, path: str, data: bytes) -> int:
        if path in self.items:
            raise Refused(AlreadyExists)
        old = self.files.get(path)
        if old is None:
            self.put(path, data)
            return 0
        self.files[path] = replace(old, data=old.data + data)
        self.touched.add(path)
        return len(old.data)

    def tree(self, path: str) -> list[str]:
        return sorted(file for file in self.files if file == path or file.startswith(path.rstrip("/") + "/"))

    def delete_tree(self, path: str) -> int:
        removed = self.tree(path)
        for file in removed:
            del self.files[file]
        self.touched |= set(removed)
        return len(removed)

    def transfer(self, src: str, dst: str, *, keep: bool) -> bool:
        """Copy, or move if `keep`; return whether the target is a folder now."""
        if dst.startswith(src + "/"):
            raise Refused(InvalidInput)
        sources, there = self.tree(src), self.tree(dst)
        if not sources:
            raise Refused(FileNotFound)
        if src != dst:
            errors: list[type[HoldallError]] = []
            if any(file != dst for file in there):
                errors.append(IsADirectory)
            if dst in there and sources != [src]:
                errors.append(AlreadyExists)
            if any(dst.startswith(file + "/") for file in self.files):
                errors.append(NotADirectory)
            if errors:
                raise Refused(*errors)
            for path in sources:
                file = self.files.pop(path) if keep else replace(self.files[path], created=self.clock.now)
                target = dst + path[len(src) :]
                self.files[target] = file
                self.items.pop(target, None)
                self.touched |= {path, target} if keep else {target}
        return dst not in self.files


# The machine ---------------------------------------------------------------------------------------------------------


class _FileMachine(RuleBasedStateMachine):
    use_async = False

    def open_subject(self, folder: Path, clock: Clock) -> Store:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.folder = Path(tempfile.mkdtemp(prefix="holdall-machine-"))
        self.runner = asyncio.Runner() if self.use_async else None
        self.open()
        self.model = Model(self.clock)
        self.versions: dict[str, list[int]] = {}  # of each path, all that it had
        self.mark: str | None = None

    def open(self) -> None:
        self.store = Caller(self.open_subject(self.folder, self.clock), self.runner)
        self.volume = self.store.files(NS)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.store.store.close()
            if self.runner is not None:
                self.runner.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def both(self, subject: Callable[[], Any], model: Callable[[Model], Any]) -> Any:
        """Do a step to the store and to the model, and compare the results or errors."""
        after = copy.copy(self.model)
        after.files, after.items, after.touched = dict(self.model.files), dict(self.model.items), set()
        try:
            expected = model(after)
        except Refused as refused:
            try:
                answer = subject()
            except refused.errors:
                return None
            raise AssertionError(f"{answer!r}, where one of {refused.errors} was due") from None
        answer = subject()
        assert answer == expected or expected is ...
        self.model = after
        return answer

    def expectation(self, kind: str, path: str) -> tuple[Any, bool]:
        """Choose an expectation for a path; return it and whether it holds."""
        known, exists = self.versions.get(path, []), path in self.model.files
        if kind == "absent":
            return ABSENT, not exists and path not in self.model.items
        if kind == "current" and exists and known:
            return known[-1], True
        if kind == "stale" and len(known) > 1:
            return known[-2], False
        return ANY, True

    # Writing ---------------------------------------------------------------------------------------------------------

    @rule(path=file_paths, names=contents, expect=expectations)
    def write(self, path: str, names: list[str], expect: str) -> None:
        data = content_of(names)
        expected, holds = self.expectation(expect, path)

        def model(model: Model) -> Any:
            model.check_path(path)
            if not holds:
                raise Refused(Conflict)
            model.put(path, data)
            return ...

        info = self.both(lambda: self.volume.write(path, data, expect=expected), model)
        assert info is None or info == self.volume.stat(path)

    @rule(path=file_paths, names=contents, fails=st.booleans())
    def write_in_pieces(self, path: str, names: list[str], fails: bool) -> None:
        def subject() -> None:
            try:
                with self.volume.open(path, "wb") as file:
                    for name in names:
                        file.write(PIECES[name])
                    if fails:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass

        def model(model: Model) -> None:
            model.check_path(path)
            if not fails:
                model.put(path, content_of(names))

        self.both(subject, model)

    @rule(
        path=file_paths, names=contents, form=st.sampled_from(["text", "lines", "base64"]), ttl=st.none() | st.just(5)
    )
    def put(self, path: str, names: list[str], form: str, ttl: float | None) -> None:
        """Put an item at a path, which does not check whether a folder has that name."""
        data = content_of(names)
        try:
            content: Any = data.decode()
        except UnicodeDecodeError:
            form = "base64"
        if form == "lines":
            content = content.split("\n")
        value = {"content": base64.b64encode(data).decode() if form == "base64" else content}
        if form == "base64":
            value["encoding"] = "base64"

        def model(model: Model) -> Any:
            model.put(path, data, ttl)
            return value

        self.both(lambda: self.store.put(NS, path, value, ttl=ttl).value, model)

    @rule(path=file_paths)
    def put_a_plain_item(self, path: str) -> None:
        def model(model: Model) -> None:
            old = model.files.pop(path, None)
            model.items.setdefault(path, old.created if old else self.clock.now)
            model.touched.add(path)

        self.both(lambda: self.store.put(NS, path, {"content": 5}) and None, model)

    @rule(path=file_paths, names=contents)
    def append(self, path: str, names: list[str]) -> None:
        data = content_of(names)

        def model(model: Model) -> int:
            model.check_path(path)
            return model.append(path, data)

        self.both(lambda: self.volume.append(path, data), model)

    @rule(
        path=file_paths,
        old=st.sampled_from(["a", "ab", "é", "zz"]),
        new=st.sampled_from(["", "b", "a\n"]),
        all=st.booleans(),
    )
    def edit(self, path: str, old: str, new: str, all: bool) -> None:
        def model(model: Model) -> int:
            if path not in model.files:
                raise Refused(IsADirectory if model.tree(path) else FileNotFound)
            try:
                text = model.files[path].data.decode()
            except UnicodeDecodeError:
                raise Refused(NotText) from None
            count = text.count(old)
            if not count or (count > 1 and not all):
                raise Refused(AmbiguousMatch if count else NoMatch)
            model.files[path] = replace(model.files[path], data=text.replace(old, new).encode())
            model.touched.add(path)
            return count

        self.both(lambda: self.volume.edit(path, old, new, replace_all=all), model)

    @rule(path=file_paths | st.sampled_from(FOLDERS))
    def delete(self, path: str) -> None:
        self.both(lambda: self.volume.delete(path, recursive=True), lambda model: model.delete_tree(path))

    @rule(path=file_paths)
    def delete_a_file(self, path: str) -> None:
        def model(model: Model) -> int:
            if path not in model.files and model.tree(path):
                raise Refused(IsADirectory)
            if model.files.pop(path, None) is None:
                return 0
            model.touched.add(path)
            return 1

        self.both(lambda: self.volume.delete(path), model)

    @rule(path=file_paths)
    def delete_the_entry(self, path: str) -> None:
        def model(model: Model) -> bool:
            existed = model.files.pop(path, None) is not None or path in model.items
            model.items.pop(path, None)
            if existed:
                model.touched.add(path)
            return existed

        self.both(lambda: self.store.delete(NS, path), model)

    @rule(src=file_paths, dst=file_paths, move=st.booleans())
    def transfer(self, src: str, dst: str, move: bool) -> None:
        call = self.volume.move if move else self.volume.copy
        self.both(lambda: call(src, dst).is_dir, lambda model: model.transfer(src, dst, keep=move))

    @rule(batch=st.lists(st.tuples(steps, file_paths, file_paths, contents), min_size=1, max_size=5))
    def execute(self, batch: list[tuple[str, str, str, list[str]]]) -> None:
        """Run several ops in one batch: all are done or, if one is refused, none."""
        built: list[Any] = []
        for step, path, other, names in batch:
            data = content_of(names)
            match step:
                case "append":
                    built.append(ops.Append(NS, path, data))
                case "put":
                    built.append(ops.Put(NS, path, {"content": base64.b64encode(data).decode(), "encoding": "base64"}))
                case "copy":
                    built.append(ops.Copy(NS, path, other))
                case "move":
                    built.append(ops.Move(NS, path, other))
                case "delete_tree":
                    built.append(ops.DeleteTree(NS, path))
                case "check_path":
                    built.append(ops.CheckPath(NS, path))
                case "read":
                    built.append(ops.ReadRange(NS, path, 1, 5))

        def subject() -> list[Any]:
            results = self.store.execute(built)
            return [plain(op, result) for op, result in zip(built, results, strict=True)]

        def model(model: Model) -> list[Any]:
            results: list[Any] = []
            for step, path, other, names in batch:
                match step:
                    case "append":
                        results.append(model.append(path, content_of(names)))
                    case "put":
                        model.put(path, content_of(names))
                        results.append(None)
                    case "copy" | "move":
                        results.append(model.transfer(path, other, keep=step == "move"))
                    case "delete_tree":
                        results.append(model.delete_tree(path))
                    case "check_path":
                        model.check_path(path)
                        results.append(None)
                    case "read":
                        results.append(model.files[path].data[1:5] if path in model.files else None)
            return results

        if any(isinstance(op, ops.Copy | ops.Move) and op.dst.startswith(op.src + "/") for op in built):
            return  # refused before anything runs, whatever else is in the batch
        self.both(subject, model)

    @rule(seconds=st.sampled_from([1, 5]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.model.expire()

    @rule()
    def sweep(self) -> None:
        self.store.sweep()

    @precondition(lambda self: self.store.store._engine_handle.engine.capabilities.durable)
    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()

    # Reading ---------------------------------------------------------------------------------------------------------

    @rule(path=file_paths, start=st.integers(0, 12), size=st.none() | st.sampled_from([0, 1, 7, 70_000]))
    def read_range(self, path: str, start: int, size: int | None) -> None:
        end = None if size is None else start + size

        def model(model: Model) -> bytes:
            if path not in model.files:
                raise Refused(IsADirectory if model.tree(path) else FileNotFound)
            return model.files[path].data[start:end]

        self.both(lambda: self.volume.read_range(path, start, end), model)

    @rule(text=st.sampled_from(["a", "ab", "ba", "é", "bab", "zz"]), folder=file_paths | st.sampled_from(FOLDERS))
    def grep(self, text: str, folder: str) -> None:
        found = []
        for path in self.model.tree(folder):
            try:
                text_of = self.model.files[path].data.decode()
            except UnicodeDecodeError:
                continue
            lines = text_of.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            found += [(path, number, line) for number, line in enumerate(lines, 1) if text in line]
        assert [(match.path, match.line, match.text) for match in self.volume.grep(text, folder)] == found

    @rule(folder=st.sampled_from(FOLDERS))
    def glob(self, folder: str) -> None:
        assert [info.path for info in self.volume.glob("b*", folder)] == [
            path for path in self.model.tree(folder) if path.rsplit("/", 1)[1].startswith("b")
        ]

    @invariant()
    def the_volume_is_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        files = self.model.files
        infos = {info.path: info for info in self.volume.walk()}
        assert list(infos) == sorted(files)
        for path, file in files.items():
            info = infos[path]
            assert (info.size, info.created_at) == (len(file.data), file.created)
            assert self.volume.read(path) == file.data
            known = self.versions.setdefault(path, [])
            if known and path not in self.model.touched:
                assert info.version == known[-1]
            else:
                assert info.version is not None
                assert info.version > max(known, default=0)
                known.append(info.version)
        for folder in FOLDERS:
            start = len(folder.rstrip("/")) + 1
            inside = [path[start:] for path in self.model.tree(folder) if path != folder]
            names = {name.split("/")[0] + ("/" if "/" in name else "") for name in inside}
            assert [info.path[start:] for info in self.volume.ls(folder)] == sorted(names)
        assert self.store.count(NS) == len(files) + len(self.model.items)
        self.the_feed_has_what_was_touched()

    def the_feed_has_what_was_touched(self) -> None:
        page = self.store.store._engine_handle.engine.execute([ops.Changes(since=self.mark)])[0]
        self.mark = page.next
        assert {change.namespace for change in page} <= {NS}
        changed = {change.key: change.kind for change in page if change.kind != "expire"}
        assert changed.keys() == self.model.touched
        for path, kind in changed.items():
            assert (kind == "put") == (path in self.model.files or path in self.model.items)
        self.model.touched = set()


def plain(op: Any, result: Any) -> Any:
    """Convert the result of an op to the model's form."""
    if isinstance(op, ops.Put):
        return None
    return result.is_dir if isinstance(op, ops.Copy | ops.Move) else result


def content_of(names: list[str]) -> bytes:
    return b"".join(PIECES[name] for name in names)
