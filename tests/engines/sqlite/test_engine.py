"""What is SQLite's own: the file, who may open it, who shares it, and what is left of it after closing."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import gc
import inspect
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
import holdall.engines.sqlite  # at once: a process that gave up its rights may not be able to import any more
from holdall.engine import Maintain
from holdall.engines.sql import text_index
from holdall.engines.sqlite.engine import MIGRATIONS
from holdall.engines.sqlite.group_commit import Submission
from holdall.errors import Corrupt, HoldallError, InvalidInput, OutcomeUnknown, SchemaTooNew, StoreClosed, Unavailable
from holdall.ops import Delete, IndexTexts, Put
from holdall.runtime.programs import Work, drive
from holdall.testing import embed
from support.processes import beginning, report, run, start
from support.threads import together


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "agent.db")


#: The ways to begin with a store.
WAYS: dict[str, Callable[[holdall.Store], Any]] = {
    "setup": lambda store: store.setup(),
    "get": lambda store: store.get(("home",), "key"),
    "put": lambda store: store.put(("home",), "key", {}),
    "search": lambda store: store.search(("home",)),
    "asetup": lambda store: asyncio.run(store.asetup()),
    "aget": lambda store: asyncio.run(store.aget(("home",), "key")),
    "aput": lambda store: asyncio.run(store.aput(("home",), "key", {})),
    "asearch": lambda store: asyncio.run(store.asearch(("home",))),
}
each_way = pytest.mark.parametrize("begin", WAYS.values(), ids=WAYS.keys())


# Files that are not ours ---------------------------------------------------------------------------------------------


@each_way
@pytest.mark.parametrize(
    "content", [b"hello\n", b"\x89PNG\r\n\x1a\n" + b"\x00" * 5000, b"SQLite format 4\x00" + b"?" * 8000], ids=len
)
def test_a_file_that_is_not_a_database_is_refused_and_left_alone(
    path: str, content: bytes, begin: Callable[[holdall.Store], Any]
) -> None:
    Path(path).write_bytes(content)
    store = holdall.open(path)
    with pytest.raises(Corrupt, match=r"not a SQLite database.*agent\.db"):
        begin(store)
    store.close()
    assert Path(path).read_bytes() == content
    assert names_in(Path(path).parent) == ["agent.db"]


def test_a_damaged_database_is_said_to_be_damaged(path: str) -> None:
    with holdall.open(path) as store:
        store.execute([Put(("home",), str(i), {"filler": "x" * 500}) for i in range(500)])
    content = bytearray(Path(path).read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    Path(path).write_bytes(content)
    store = holdall.open(path)
    with pytest.raises(Corrupt, match=r"damaged.*agent\.db"):
        list(store.scan())
    store.close()


@each_way
def test_a_newer_schema_is_refused_and_left_alone(path: str, begin: Callable[[holdall.Store], Any]) -> None:
    with holdall.open(path) as store:
        store.put(("home",), "key", {"kept": True})
    query(path, "UPDATE holdall_schema SET version = 1000")
    before = Path(path).read_bytes()
    store = holdall.open(path)
    with pytest.raises(SchemaTooNew, match=r"agent\.db.*1000.*upgrade"):
        begin(store)
    store.close()
    assert Path(path).read_bytes() == before


@each_way
def test_another_programs_database_is_refused_and_left_alone(path: str, begin: Callable[[holdall.Store], Any]) -> None:
    query(path, "CREATE TABLE theirs (id INTEGER PRIMARY KEY, name TEXT)", "INSERT INTO theirs VALUES (1, 'Ada')")
    before = Path(path).read_bytes()
    store = holdall.open(path)
    with pytest.raises(InvalidInput, match=r"agent\.db.*another program's database.*'theirs'.*name a new file"):
        begin(store)
    store.close()
    assert Path(path).read_bytes() == before
    assert names_in(Path(path).parent) == ["agent.db"]


def test_a_database_in_which_nothing_is_left_counts_as_empty(path: str) -> None:
    query(path, "CREATE TABLE theirs (id INTEGER PRIMARY KEY AUTOINCREMENT)", "DROP TABLE theirs")
    assert query(path, "SELECT name FROM sqlite_schema") == [("sqlite_sequence",)]
    with holdall.open(path) as store:
        assert store.put(("home",), "key", {}) == store.get(("home",), "key")


def test_tables_that_others_add_to_our_file_are_left_alone(path: str) -> None:
    with holdall.open(path) as store:
        store.put(("home",), "key", {"ours": True})
        query(path, "CREATE TABLE theirs (id INTEGER PRIMARY KEY, name TEXT)", "INSERT INTO theirs VALUES (1, 'Ada')")
    with holdall.open(path) as store:
        assert store.get(("home",), "key").value == {"ours": True}
        assert store.delete_tree(("home",)) == 1
    assert query(path, "SELECT name FROM theirs") == [("Ada",)]
    tables = {name for (name,) in query(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert all(name.startswith("holdall_") for name in tables - {"theirs", "sqlite_sequence"})


def test_a_migration_runs_once_however_many_open_the_file(path: str, statements: list[tuple[Any, str]]) -> None:
    stores = [holdall.open(path, timeout=20.0 + i, filter_fields=["type"]) for i in range(12)]  # no two share an engine
    barrier = threading.Barrier(len(stores))

    def begin(store: holdall.Store) -> None:
        barrier.wait()
        store.put(("home",), "key", {})

    together([lambda store=store: begin(store) for store in stores])
    for store in stores:
        store.close()
    made = [sql.split("(")[0].split() for _, sql in statements if sql.startswith("CREATE")]
    assert len({" ".join(words) for words in made}) == len(made)
    assert ["CREATE", "TABLE", "holdall_entries"] in made
    assert query(path, "SELECT version FROM holdall_schema") == [(len(MIGRATIONS),)]


def test_async_work_that_begins_when_the_program_ends_is_done_or_refused(path: str) -> None:
    """In a thread that outlives the main one: some releases of Python start no more threads by then."""
    [outcomes] = run(go_on_after_the_end, path=path)
    assert outcomes in (["Entry", "Entry", "Page"], ["StoreClosed"] * 3)


def go_on_after_the_end(path: str) -> None:
    store = holdall.open(path)
    store.setup()

    async def ask() -> list[str]:
        calls = (store.aput(("home",), "key", {}), store.aget(("home",), "key"), store.asearch(("home",)))
        return [await outcome(call) for call in calls]

    async def outcome(call: Coroutine[Any, Any, object]) -> str:
        try:
            return type(await call).__name__
        except StoreClosed:
            return "StoreClosed"

    def at_the_end() -> None:
        threading.main_thread().join()
        while not concurrent.futures.thread._shutdown:
            time.sleep(0.001)
        report(asyncio.run(ask()))

    threading.Thread(target=at_the_end).start()


# Places --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["two words.db", "Übung-日本-🗃.db", "a#b.db", "100%25.db", "it's;--.db", 'quo"te.db', "file:x.db", "a\nb"]
)
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new folder #1" / "50%" / name
    with holdall.open(path) as store:
        store.put(("home",), "key", {"in": name})
    assert path.is_file()
    with holdall.open(f"sqlite:///{path}") as store:
        assert store.get(("home",), "key").value == {"in": name}
    assert names_in(path.parent) == [name]


READ_ONLY = ["a folder without a file", "a file in its folder", "a file", "a folder for the folder"]


@pytest.mark.parametrize("what", READ_ONLY)
def test_what_is_read_only_is_unavailable(what: str) -> None:
    """In a process that gave up root's rights, if it had them: to root, nothing is read-only."""
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path, which lies where only its owner may look
        reported = run(begin_where_all_is_read_only, folder=folder, what=what)
    assert [way for way, _, _ in reported] == list(WAYS)
    for way, error, message in reported:
        if what == "a file" and "put" not in way:
            assert error is None, f"{way}: a file that cannot be written can be read"
        else:
            assert error == "Unavailable", f"{way}: {error} {message}"
            assert folder in message
            assert any(word in message for word in ("writable", "read-only", "Permission denied")), message


def begin_where_all_is_read_only(folder: str, what: str) -> None:
    path = Path(folder) / "agent.db"
    if what in ("a file", "a file in its folder"):
        with holdall.open(path) as store:
            store.put(("home",), "key", {})
        path.chmod(0o444)
    if what != "a file":
        path.parent.chmod(0o555)
    if what == "a folder for the folder":
        path = path.parent / "deeper" / "agent.db"
    give_up_root(Path(folder), Path(folder) / "agent.db")
    for name, begin in WAYS.items():
        store = holdall.open(path, timeout=5)
        try:
            begin(store)
            report([name, None, ""])
        except HoldallError as error:
            report([name, type(error).__name__, str(error)])
        store.close()


def give_up_root(*paths: Path) -> None:
    if os.geteuid() == 0:
        nobody = 65534
        for path in paths:
            if path.exists():
                os.chown(path, nobody, nobody)
        os.setegid(nobody)
        os.seteuid(nobody)


# Sharing and closing -------------------------------------------------------------------------------------------------


def test_stores_on_one_path_share_one_engine(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to(path)
    (tmp_path / "folder").mkdir()
    names = [path, "agent.db", "sqlite:///agent.db", f"sqlite:///{path}", "folder/../agent.db", "link.db", Path(path)]
    stores = [holdall.open(name) for name in names]
    assert len({id(store._engine_handle.engine) for store in stores}) == 1
    for store, following in zip(stores, [*stores[1:], None], strict=True):
        store.put(("home",), "key", {})
        store.close()
        with pytest.raises(StoreClosed):
            store.put(("home",), "key", {})
        if following is not None:
            following.put(("home",), "key", {})
    assert not files_open_in(tmp_path)


def test_engines_with_other_options_share_the_file(path: str) -> None:
    one, other = holdall.open(path, timeout=5), holdall.open(path, timeout=6)
    assert one._engine_handle.engine is not other._engine_handle.engine
    one.put(("home",), "key", {"by": "one"})
    assert other.get(("home",), "key").value == {"by": "one"}
    other.close()
    one.put(("home",), "key", {"by": "one, again"})  # closing the other has not taken our locks away
    with holdall.open(path) as third:
        assert third.get(("home",), "key").value == {"by": "one, again"}
    one.close()


CALLS: dict[str, tuple[Any, ...]] = {
    "put": (("home",), "key", {}),
    "get": (("home",), "key"),
    "update": (("home",), "key", dict),
    "delete": (("home",), "key"),
    "delete_tree": (("home",),),
    "search": (),
    "count": (),
    "stats": (),
    "scan": (),
    "namespaces": (),
    "execute": ([Put(("home",), "key", {})],),
    "sweep": (),
    "reindex": (),
    "setup": (),
    "watch": (),
    "cursor": (),
    "history": (("home",), "key"),
    "diff": (("home",), "1"),
    "restore": (("home",), "key", 1),
    "rewind": (("home",), "1"),
    "erase": (("home",),),
    "check": (),
    "backup": ("new.holdall",),
    "load": ("old.holdall",),
    "export_entries": ("new.jsonl",),
    "import_entries": ("old.jsonl",),
}
PUBLIC = [name for name, _ in inspect.getmembers(holdall.Store, callable) if not name.startswith("_")]


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in ("close", "aclose", "files", "at", "acting")])
def test_a_closed_store_refuses_everything(
    path: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = holdall.open(path)
    store.put(("home",), "key", {})
    monkeypatch.chdir(tmp_path)
    if name.endswith("load"):
        store.backup("old.holdall")
    if name.endswith("import_entries"):
        store.export_entries("old.jsonl")
    view = store.scoped(("home",))
    store.close()
    views = {"scoped": lambda: store.scoped(("home",)), "with_embedder": lambda: store.with_embedder(embed)}
    if name in views:
        with pytest.raises(StoreClosed):
            views[name]().get(("home",), "key")
        return
    if name in ("lease", "alease"):  # it is acquired later
        lease = getattr(store, name)("name", 10)
        with pytest.raises(StoreClosed):
            lease.acquire() if name == "lease" else asyncio.run(lease.aacquire())
        return
    for closed in (store, view):
        with pytest.raises(StoreClosed, match="closed"):
            call(closed, name)


def call(store: holdall.Store, name: str) -> None:
    """A method by its name, whatever kind of method it is."""
    function = getattr(store, name)
    args = CALLS[name if name in CALLS else name.removeprefix("a")]
    if name not in CALLS:
        asyncio.run(to_its_end(lambda: function(*args)))
    elif inspect.isgenerator(result := function(*args)):
        list(result)


async def to_its_end(function: Callable[[], Any]) -> None:
    result = function()
    if hasattr(result, "__anext__"):
        async for _ in result:
            pass
    else:
        await result


def test_closing_twice_is_fine(path: str) -> None:
    store = holdall.open(path)
    store.put(("home",), "key", {})
    store.close()
    store.close()
    asyncio.run(store.aclose())
    together([store.close] * 8)
    never_used = holdall.open(path)
    never_used.close()
    never_used.close()


@pytest.mark.parametrize("how", ["close", "aclose", "with", "async with"])
def test_closing_leaves_nothing_behind(path: str, tmp_path: Path, how: str) -> None:
    threads = set(threading.enumerate())
    store = used_store(path)
    assert files_open_in(tmp_path) and set(threading.enumerate()) > threads

    async def close_as_context() -> None:
        async with store:
            pass

    match how:
        case "close":
            store.close()
        case "aclose":
            asyncio.run(store.aclose())
        case "with":
            with store:
                pass
        case "async with":
            asyncio.run(close_as_context())
    assert not files_open_in(tmp_path)
    assert set(threading.enumerate()) <= threads
    assert names_in(tmp_path) == ["agent.db"], "the last to close a file removes its log"


@pytest.mark.parametrize("how", ["at once", "in a cycle"])
def test_a_forgotten_store_leaves_nothing_behind(path: str, tmp_path: Path, how: str) -> None:
    threads = set(threading.enumerate())
    store = used_store(path)
    if how == "in a cycle":
        store.itself = store  # type: ignore[attr-defined]  # only the collector can find it
    del store
    gc.collect()
    wait_until(lambda: not files_open_in(tmp_path), "files are still open")
    wait_until(lambda: set(threading.enumerate()) <= threads, "threads are still there")
    assert names_in(tmp_path) == ["agent.db"]


def used_store(path: str) -> holdall.Store:
    """A store that was used in all ways, so that it has readers, workers and a sweeper."""
    store = holdall.open(path)
    store.put(("home",), "key", {}, ttl=1000)
    together([lambda: store.search(("home",))] * 10)

    async def use() -> None:
        await asyncio.gather(*(store.aput(("home",), str(i), {}) for i in range(10)))
        await asyncio.gather(*(store.asearch(("home",)) for i in range(10)))

    asyncio.run(use())
    return store


def test_the_collector_may_find_a_forgotten_store_at_any_moment(tmp_path: Path) -> None:
    """A finaliser runs wherever the collector happens to be called: in this test, at nearly every allocation."""
    assert run(forget_stores, deadline=60, folder=str(tmp_path)) == ["done"]


def forget_stores(folder: str) -> None:
    async def use(store: holdall.Store) -> None:
        task = asyncio.create_task(store.aput(("home",), "other", {}))
        await store.aput(("home",), "key", {})
        task.cancel()

    gc.set_threshold(1, 1, 1)
    for i in range(150):
        store = holdall.open(f"{folder}/{i}.db", durability="relaxed")
        store.itself = store  # type: ignore[attr-defined]  # only the collector can find it
        if i % 5 == 0:
            asyncio.run(use(store))
        if i % 10 == 1:
            store.put(("home",), "key", {})
        if i % 10 == 2 and os.fork() == 0:
            store.put(("home",), "from a child", {})
            os._exit(0)
        del store
    gc.set_threshold(700)
    gc.collect()
    report("done")


def test_a_program_that_ends_without_closing_leaves_a_whole_file(path: str) -> None:
    """At its end, the interpreter closes what was forgotten: even the log is gone."""
    run(end_without_closing, path=path)
    assert names_in(Path(path).parent) == ["agent.db"]
    with holdall.open(path) as store:
        assert store.count() == 2


def end_without_closing(path: str) -> None:
    store = holdall.open(path)
    store.put(("home",), "key", {})
    asyncio.run(store.aput(("home",), "other", {}))
    sys.modules["kept alive"] = store


# What the tests ask of the machine -----------------------------------------------------------------------------------


@pytest.fixture
def statements() -> Iterator[list[tuple[Any, str]]]:
    """Every statement that any connection runs, with its connection, while the test runs."""
    seen: list[tuple[Any, str]] = []

    def watch(connection: apsw.Connection) -> None:
        connection.exec_trace = lambda cursor, sql, bindings: seen.append((connection, sql.strip())) or True

    apsw.connection_hooks.append(watch)
    yield seen
    apsw.connection_hooks.remove(watch)


def query(path: str, *statements: str) -> list[Any]:
    """Through a connection of SQLite's own, in this process but none of the store's; the last statement's rows."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(10_000)
    rows: list[Any] = []
    for sql in statements:
        rows = connection.execute(sql).fetchall()
    connection.close()
    return rows


def wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.005)


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def files_open_in(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    found = []
    for file in folder.iterdir():
        for handle in names_in(Path("/dev/fd")):
            with suppress(OSError):  # what was there when it was listed may have gone
                if os.path.samestat(file.stat(), os.fstat(int(handle))):
                    found.append(file.name)
    return found


def test_what_is_appended_at_once_can_be_read_in_parts(path: str) -> None:
    with holdall.open(path) as store:
        files = store.files()
        content = os.urandom(300_000)
        files.write("/a", b"begin")
        files.append("/a", content)
        files.append("/a", b"end")
        assert files.read("/a") == b"begin" + content + b"end"
        assert files.read_range("/a", 65_000, 200_000) == (b"begin" + content)[65_000:200_000]
    largest = "SELECT max(length(data)) FROM holdall_chunks"
    assert apsw.Connection(path).execute(largest).fetchall()[0][0] <= 1 << 16  # type: ignore[operator]  # a number


def test_a_put_is_done_once_whatever_was_inserted_before_it(path: str) -> None:
    """Its row's id may be that of the last row that was inserted elsewhere."""
    with holdall.open(path) as store:
        assert [store.put(("home",), str(n), {}).version for n in range(5)] == [1, 2, 3, 4, 5]
        files = store.files()
        for n in range(30):
            before = store.put(("home",), "last", {"n": n}).version
            files.append("/log", "x")
            assert store.put(("home",), f"new {n}", {}).version == before + 2


def as_item(text: str) -> dict[str, str]:
    return {"content": text, "encoding": "utf-8"}


@pytest.mark.parametrize("existing", [None, "live", "deleted", "in the batch"])
def test_files_in_a_batch_are_stored_in_order_whatever_was_there(path: str, existing: str | None) -> None:
    texts = {f"/f{number}": f"text number {number} " * number for number in (*range(40), 9000)}
    with holdall.open(path) as store:
        files = store.files(("home",))
        if existing in ("live", "deleted"):
            files.write("/f7", "before")
        if existing == "deleted":
            files.delete("/f7")
        batch = [Put(("home",), key, as_item(text), 3600) for key, text in texts.items()]
        if existing == "in the batch":
            batch.insert(0, Put(("home",), "/f7", as_item("before")))
        last = store.put(("other",), "key", {}).version
        entries = store.execute(batch)
        assert [entry.version - last for entry in entries] == [*range(1, len(batch) + 1)]
        for key, entry in {entry.key: entry for entry in entries}.items():  # the last of each key
            assert files.read_text(key) == texts[key]
            assert store.get(("home",), key) == entry
        for _ in range(2):  # before and after the index has them
            assert [match.path for match in files.grep("number 39")] == ["/f39"]
            while store._engine_handle.engine.execute([Maintain()])[0]:
                pass
        files.append("/f3", "more")  # a body of its own
        assert files.read_text("/f3") == texts["/f3"] + "more"
        assert files.read_text("/f4") == texts["/f4"]
        assert not store.check().faults


def test_a_put_may_leave_out_its_result(path: str) -> None:
    with holdall.open(path) as store:
        values = {"a": {"n": 1}, "/b": as_item("text"), "c": {"n": 2}, "d": {"n": 3}}
        for _ in range(2):  # new keys, then existing ones
            puts = [Put(("home",), key, value, returns_entry=False) for key, value in values.items()]
            assert store.execute(puts) == [None] * 4
            assert store.execute(puts[:1]) == [None]
        assert {entry.key: entry.value for entry in store.search(("home",))} == values


def test_what_was_written_is_not_kept_until_the_collector_comes(path: str) -> None:
    async def write_together() -> None:
        await asyncio.gather(*(store.aput(("home",), f"a{number}", {}) for number in range(20)))

    with holdall.open(path) as store:
        store.setup()
        gc.collect()
        gc.disable()
        try:
            store.put(("home",), "key", {})
            together([lambda: store.put(("home",), "key", {})] * 8)
            asyncio.run(write_together())
            store.close()
            assert [thing for thing in gc.get_objects() if type(thing) is Submission] == []
        finally:
            gc.enable()


def _delete(path: str) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(path + suffix).unlink()


def _replace(path: str) -> None:
    apsw.Connection(path + "-new").execute("CREATE TABLE t (x)")
    Path(path + "-new").replace(path)


@pytest.mark.parametrize("change", [_delete, _replace, lambda path: Path(path).rename(path + "-moved")])
def test_a_file_that_is_deleted_moved_or_replaced_in_use_is_missed(path: str, change: Callable[[str], None]) -> None:
    """Else all that is written until the store is closed would be acknowledged, and lost."""
    with holdall.open(path) as store:
        store.put(("home",), "before", {})
        assert store.get(("home",), "before")
        change(path)
        time.sleep(0.02)  # it is not looked for more often
        for write in (store.put, lambda *args: asyncio.run(store.aput(*args))):
            with pytest.raises(Unavailable, match="deleted, moved or replaced"):
                write(("home",), "after", {})
    for suffix in ("", "-wal", "-shm"):
        Path(path + suffix).unlink(missing_ok=True)
    with holdall.open(path) as store:
        assert store.put(("home",), "again", {}).version == 1


@pytest.mark.parametrize("engine", ["sqlite", "disk"])
@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_log_that_is_deleted_in_use_is_missed_and_nothing_acknowledged_is_lost(
    path: str, engine: str, suffix: str
) -> None:
    """An abrupt exit would lose all that went to a log without a name; and a new index would have new locks."""
    url = path if engine == "sqlite" else f"disk:///{path}-folder"
    [acknowledged] = run(delete_the_log, url=url, suffix=suffix)
    assert len(acknowledged) == 20
    with holdall.open(url) as store:
        assert {entry.key for entry in store.scan(("home",))} - {"after 0"} == set(acknowledged)


def delete_the_log(url: str, suffix: str) -> None:
    store = holdall.open(url)
    database = store._engine_handle.engine._path
    acknowledged = [store.put(("home",), f"before {number}", {}).key for number in range(20)]
    apsw.Connection(database).execute("PRAGMA wal_checkpoint(FULL)")
    Path(database + suffix).unlink()
    if suffix == "-shm":  # no write is lost with it; the path is checked every 10 ms
        time.sleep(0.02)
    for number in range(200):
        try:
            acknowledged.append(store.put(("home",), f"after {number}", {}).key)
        except Unavailable as error:
            assert "deleted, moved or replaced" in str(error)
            assert isinstance(error, OutcomeUnknown) <= (number == 0)
    report(acknowledged)
    os._exit(0)


def test_what_a_deleted_log_held_is_saved_by_closing(path: str) -> None:
    with holdall.open(path) as store:
        store.put(("home",), "before", {})
        assert store.get(("home",), "before")
        Path(path + "-wal").unlink()
        time.sleep(0.02)
        with pytest.raises(Unavailable, match="-wal"):
            store.put(("home",), "after", {})
        assert store.get(("home",), "before"), "a connection that is open reads on"
    with holdall.open(path) as store:
        assert [entry.key for entry in store.scan()] == ["before"]


def test_closing_leaves_the_log_alone_that_another_process_has_made(path: str) -> None:
    with holdall.open(path) as store:
        store.put(("home",), "before", {})
        apsw.Connection(path).execute("PRAGMA wal_checkpoint(FULL)")
        for suffix in ("-wal", "-shm"):
            Path(path + suffix).unlink()
        with beginning(start(write_and_wait, path=path)) as (other,):
            assert other.receive() == "written"
            other.kill()
        store.close()
    with holdall.open(path) as store:
        assert {entry.key for entry in store.scan()} == {"before", "other"}


def write_and_wait(path: str) -> None:
    holdall.open(path).put(("home",), "other", {})
    report("written")
    time.sleep(60)


@pytest.mark.parametrize("mode", ["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
def test_a_log_that_others_empty_is_not_missed(path: str, mode: str) -> None:
    with holdall.open(path) as store:
        for number in range(3):
            store.put(("home",), f"before {number}", {})
            run(checkpoint, path=path, mode=mode)
            time.sleep(0.02)
            store.put(("home",), f"after {number}", {})
        with holdall.open(path, timeout=29) as other:  # another engine
            other.put(("home",), "other", {})
        time.sleep(0.02)
        store.put(("home",), "last", {})
        assert store.count() == 8


def checkpoint(path: str, mode: str) -> None:
    connection = apsw.Connection(path)
    connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
    connection.close()
    with holdall.open(path) as store:  # another process, whose last connection closes
        store.count()


def test_a_file_is_not_missed_where_it_may_not_be_seen_or_the_folder_is_another(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(path).parent)
    with holdall.open(Path(path).name) as store:
        store.put(("home",), "before", {})
        monkeypatch.chdir("/")
        time.sleep(0.02)
        store.put(("home",), "after", {})

        def refused(*_: Any) -> Any:
            raise PermissionError

        time.sleep(0.02)
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", refused)
            store.put(("home",), "at last", {})
    with holdall.open(path) as store:
        assert store.count() == 3


# Indexing ------------------------------------------------------------------------------------------------------------


def test_searches_that_wait_for_the_index_at_once_share_its_steps(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each used to prepare every slice, and so did the sweeper: the first search after loading took twice as long."""
    with holdall.open(path, full_text=False) as store:
        for start_at in range(0, 10_000, 5_000):
            store.execute([Put(("n",), f"{n:05}", {"text": f"tea {n}"}) for n in range(start_at, start_at + 5_000)])
    with holdall.open(path) as store:
        store.setup()
        engine: Any = store._engine_handle.engine
        prepared, prepare = [], engine._sql._texts._prepare_slice

        def note_slice(*args: Any) -> Any:
            found = yield from prepare(*args)
            if found is not None:
                prepared.append(found.count)
            return found

        monkeypatch.setattr(engine._sql._texts, "_prepare_slice", note_slice)
        answers: list[list[holdall.Hit]] = []
        together([lambda: answers.append(store.search(query="tea", limit=3))] * 6)
        assert [[hit.key for hit in answer] for answer in answers] == [["09999", "09998", "09997"]] * 6
        assert sum(prepared) == 10_000, "a slice was prepared more than once, or the search did not wait for it"


def test_what_many_deletions_take_from_the_index_is_computed_in_a_worker_thread(path: str) -> None:
    """A slice that only removed documents was computed by the caller: in an event loop, on PostgreSQL."""
    with holdall.open(path, sweep_interval=None) as store:
        store.execute([Put(("n",), str(n), {"text": f"tea {n}"}) for n in range(400)])
        store.search(query="tea")
        store.execute([Delete(("n",), str(n)) for n in range(400)])
        engine: Any = store._engine_handle.engine
        reader, works = engine._readers.take(), []

        def run(request: Any) -> Any:
            if isinstance(request, Work):
                works.append(request.function)
            return reader.run(request)

        prepared = drive(engine._sql.prepare(IndexTexts()), run).prepared
        engine._readers.give_back(reader)
        assert prepared.count == 400
        assert works == [text_index._build_segment]
        assert store.search(query="tea") == []
