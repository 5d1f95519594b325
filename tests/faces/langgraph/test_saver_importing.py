"""`HoldallSaver.import_from`: threads of LangGraph's own savers."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from holdall import errors
from holdall.faces.langgraph import HoldallSaver
from support.extent import IS_SHORT
from support.langgraph_threads import chat, say, texts, thread
from support.servers import postgres_url


def test_threads_of_sqlite_saver_are_imported_and_continue(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        graph = chat(theirs)
        say(graph, "t1", "one", user_id="u")
        say(graph, "t1", "two")
        say(graph, "t2", "three")
        before = [(found.checkpoint, found.metadata, found.parent_config) for found in theirs.list(thread("t1"))]
        writes = [found.pending_writes for found in theirs.list(thread("t1"))]
    with HoldallSaver(str(tmp_path / "ours.db")) as saver:
        calls: list[tuple[int, int]] = []

        def stop_early(done: int, total: int) -> None:
            calls.append((done, total))
            if done == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            saver.import_from(tmp_path / "theirs.db", progress=stop_early)
        assert calls[-1] == (4, 9)
        imported = saver.import_from(tmp_path / "theirs.db")
        assert (imported.total, imported.present, imported.imported) == (9, 4, 5)
        ours = [(found.checkpoint, found.metadata, found.parent_config) for found in saver.list(thread("t1"))]
        assert ours == before
        assert [found.pending_writes for found in saver.list(thread("t1"))] == writes
        say(chat(saver), "t1", "four")
        assert texts(chat(saver), "t1")[-2:] == ["four", "answer to four"]
        with pytest.raises(errors.FileNotFound):
            saver.import_from(tmp_path / "missing.db")
        (tmp_path / "text.db").write_text("not a database, but long enough to look at")
        with pytest.raises(errors.InvalidInput, match="SqliteSaver"):
            saver.import_from(tmp_path / "text.db")


def test_imported_threads_are_listed_as_if_they_had_always_been_here(tmp_path: Path) -> None:
    """In the order of their newest checkpoints, and with their times, also after a second import."""
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        graph = chat(theirs)
        times: dict[str, list[Any]] = {}
        with HoldallSaver(str(tmp_path / "ours.db")) as saver:
            for order in (("b", "c", "a"), ("a", "d", "b")):
                for name in order:
                    say(graph, name, "hello")
                    found = [datetime.fromisoformat(each.checkpoint["ts"]) for each in theirs.list(thread(name))]
                    times[name] = [found[-1], found[0]]
                saver.import_from(tmp_path / "theirs.db")
                listed = saver.threads()
                assert [each.id for each in listed] == sorted(times, key=lambda name: times[name][1], reverse=True)
                assert {each.id: [each.created_at, each.updated_at] for each in listed} == times


def test_imported_writes_of_a_task_are_numbered_as_langgraph_numbers_them(tmp_path: Path) -> None:
    checkpoint = empty_checkpoint()
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        config: Any = theirs.put(thread("t"), checkpoint, {}, {})
        theirs.put_writes(config, [("__resume__", "yes")], "task")
        theirs.put_writes(config, [("a", 1)], "task")
    with HoldallSaver(str(tmp_path / "ours.db")) as saver:
        saver.import_from(tmp_path / "theirs.db")
        saver.put_writes(config, [("a", 2)], "task")  # the same write again: the first counts
        found = saver.get_tuple(config)
        assert found is not None
        assert found.pending_writes == [("task", "__resume__", "yes"), ("task", "a", 1)]


def test_an_import_that_is_run_again_adds_later_writes_of_a_checkpoint(tmp_path: Path) -> None:
    """As for an app that still runs on their saver during the first import."""
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        config: Any = theirs.put(thread("t"), empty_checkpoint(), {}, {})
        theirs.put_writes(config, [("a", 1)], "task-1", "1")
        with HoldallSaver(str(tmp_path / "ours.db")) as saver:
            assert saver.import_from(tmp_path / "theirs.db").imported == 1
            theirs.put_writes(config, [("a", 2), ("b", 3)], "task-2", "2")
            assert saver.import_from(tmp_path / "theirs.db").imported == 1
            assert saver.import_from(tmp_path / "theirs.db").present == 1
            ours = saver.get_tuple(config)
            expected = theirs.get_tuple(config)
            assert ours is not None
            assert expected is not None
            assert (
                ours.pending_writes
                == expected.pending_writes
                == [("task-1", "a", 1), *[("task-2", "a", 2), ("task-2", "b", 3)]]
            )


def test_a_database_of_an_old_version_of_sqlite_saver_is_imported(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        config: Any = theirs.put(thread("t"), empty_checkpoint(), {}, {})
        theirs.put_writes(config, [("a", 1)], "task")
        theirs.conn.execute("ALTER TABLE writes DROP COLUMN task_path")
        theirs.conn.commit()
    with HoldallSaver(str(tmp_path / "ours.db")) as saver:
        saver.import_from(tmp_path / "theirs.db")
        found = saver.get_tuple(config)
        assert found is not None
        assert found.pending_writes == [("task", "a", 1)]


def test_a_thread_that_cannot_be_stored_does_not_end_an_import(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        for name in ("", "__holdall__", "t" * 1100, "z"):
            theirs.put(thread(name), empty_checkpoint(), {}, {})
    with HoldallSaver(str(tmp_path / "ours.db")) as saver:
        imported = saver.import_from(tmp_path / "theirs.db")
        assert (imported.total, imported.imported) == (4, 1)
        assert [each.namespace[0] for each in imported.refused] == ["", "__holdall__", "t" * 1100]
        assert [each.id for each in saver.threads()] == ["z"]


@pytest.mark.skipif(IS_SHORT, reason="in make test-all")
def test_threads_of_postgres_saver_are_imported(tmp_path: Path) -> None:
    with PostgresSaver.from_conn_string(postgres_url()) as theirs:
        theirs.setup()
        say(chat(theirs), "imported", "one")
        before = [(found.checkpoint, found.metadata) for found in theirs.list(thread("imported"))]
    with HoldallSaver(str(tmp_path / "ours.db")) as saver:
        assert saver.import_from(postgres_url()).imported == 3
        assert [(found.checkpoint, found.metadata) for found in saver.list(thread("imported"))] == before
