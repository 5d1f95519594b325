"""PostgreSQL's views of archived conversations, and the queries of the how-to."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage

import holdall
from holdall.faces.conversations import ConversationRepository
from holdall.model.keys import Reserved
from support.langgraph_stores import Saver
from support.servers import postgres_url

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "archive-conversations.md"
_schemas = itertools.count()


@pytest.fixture
def store() -> Iterator[holdall.Store]:
    with holdall.open(postgres_url(), schema=f"views_{next(_schemas)}", sweep_interval=None) as opened:
        yield opened


def ask(store: holdall.Store, sql: str) -> list[tuple[Any, ...]]:
    schema = store._engine_handle.engine._own.schema  # type: ignore[attr-defined]  # PostgreSQL's
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"SET search_path TO {schema}")
        return connection.execute(sql).fetchall()


def test_every_live_entry_is_shown_as_it_is(store: holdall.Store) -> None:
    odd = ("a\x01b", "\x02", "\x02\x03", "\x01\x02\x02\x01", "ü.ber/x", "\x03")
    entries = [
        store.put(odd, "k", {"n": 1, "text": "x" * 3000, "z": [1.5, None, True]}),
        store.put(("b",), "nul", {"text": "a\x00b \\u0000 \\\\u0000 \\", "\x00": 1}),
        store.put(("b", "c"), "dated", {}, ttl=1000),
    ]
    store.files(("b",)).write("/file.txt", "hello")
    store.put(("b",), "gone", {})
    store.delete(("b",), "gone")
    store.put(("b",), "expired", {}, ttl=0.001)
    store.execute([holdall.ops.Put(Reserved(("secret", "b")), "k", {})])
    rows = {row[1]: row for row in ask(store, "SELECT * FROM holdall_entries")}
    assert set(rows) == {"k", "nul", "dated", "/file.txt"}
    for entry in entries:
        namespace, _, value, version, created, updated, expires, size = rows[entry.key]
        assert (tuple(namespace), version, size) == (entry.namespace, entry.version, None)
        assert (created, updated, expires) == (entry.created_at, entry.updated_at, entry.expires_at)
        if entry.key != "nul":
            assert value == entry.value
    assert rows["nul"][2] == {"text": "a\ufffdb \\u0000 \\\\u0000 \\", "\ufffd": 1}
    assert rows["/file.txt"][-1] == 5


COLUMNS = {
    "holdall_entries": {
        "namespace": "ARRAY",
        "key": "text",
        "value": "jsonb",
        "version": "bigint",
        "created_at": "timestamp with time zone",
        "updated_at": "timestamp with time zone",
        "expires_at": "timestamp with time zone",
        "size": "bigint",
    },
    "holdall_conversations": {
        "user_id": "text",
        "thread_id": "text",
        "key": "text",
        "checkpoint_id": "text",
        "checkpoint_at": "timestamp with time zone",
        "archived_at": "timestamp with time zone",
        "message_count": "integer",
        "messages": "jsonb",
    },
    "holdall_messages": {
        "user_id": "text",
        "thread_id": "text",
        "conversation": "text",
        "checkpoint_at": "timestamp with time zone",
        "archived_at": "timestamp with time zone",
        "position": "integer",
        "id": "text",
        "type": "text",
        "name": "text",
        "text": "text",
        "message": "jsonb",
    },
}


@pytest.mark.parametrize("view", COLUMNS)
def test_the_columns_stay_as_they_are(store: holdall.Store, view: str) -> None:
    """Others build on them: a change here is a break, and belongs into the changelog as one."""
    store.setup()
    columns = ask(
        store,
        "SELECT column_name, data_type FROM information_schema.columns"
        f" WHERE table_name = '{view}' AND table_schema = current_schema() ORDER BY ordinal_position",
    )
    assert dict(columns) == COLUMNS[view]
    for column in COLUMNS[view]:
        assert re.search(rf"`{column}`", PAGE.read_text()), f"{column} is not in the how-to"


def fill(store: holdall.Store) -> ConversationRepository:
    repository = ConversationRepository(store)
    now = datetime.now(UTC)
    for user, thread, days, texts in (
        ("ada", "trip", 0, ["I cannot eat peanuts", "Noted.", "Thanks"]),
        ("ada", "work", 3, ["Hello"]),
        ("bob@example.org", "trip", 40, [[{"type": "text", "text": "Look"}, {"type": "image"}], "I see."]),
    ):
        messages = [(AIMessage if n % 2 else HumanMessage)(text, id=str(n)) for n, text in enumerate(texts)]
        at = (now - timedelta(days=days)).isoformat()
        repository.archive(user, thread, Saver(messages, id=f"{user}-{thread}", ts=at))
    return repository


def test_conversations_and_messages_are_rows(store: holdall.Store) -> None:
    archived = {(one.user_id, one.thread_id): one for one in _all(fill(store))}
    rows = ask(store, "SELECT * FROM holdall_conversations")
    assert len(rows) == 3
    for user, thread, key, checkpoint_id, checkpoint_at, archived_at, count, messages in rows:
        one = archived[user, thread]
        assert (key, checkpoint_id, count) == (one.key, one.checkpoint_id, one.message_count)
        assert (checkpoint_at, archived_at, len(messages)) == (one.checkpoint_at, one.archived_at, count)
    texts = ask(store, "SELECT position, type, text FROM holdall_messages WHERE user_id = 'ada' AND thread_id = 'trip'")
    assert sorted(texts) == [(0, "human", "I cannot eat peanuts"), (1, "ai", "Noted."), (2, "human", "Thanks")]
    assert ask(store, "SELECT text FROM holdall_messages WHERE user_id LIKE 'bob%' AND position = 0") == [("Look",)]


def _all(repository: ConversationRepository) -> list[Any]:
    return [one for user in ("ada", "bob@example.org") for one in repository.conversations(user)]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"messages": "none", "thread_id": 1, "checkpoint_at": 2},
        {"messages": [], "thread_id": None, "checkpoint_at": "not a time"},
        {"messages": [1, None, "x", [], {"content": {"a": 1}}], "thread_id": "t", "checkpoint_at": "2026-99-99"},
        {"messages": {"0": "x"}, "thread_id": "t", "checkpoint_at": "now"},
    ],
)
def test_an_entry_that_only_resembles_a_conversation_breaks_no_query(
    store: holdall.Store, value: dict[str, Any]
) -> None:
    fill(store).put(("users", "ada", "conversations"), "odd", value)
    assert ask(store, "SELECT count(*) FROM holdall_conversations WHERE key <> 'odd' AND message_count > 0") == [(3,)]
    assert ask(store, "SELECT count(*) FROM holdall_messages WHERE conversation <> 'odd'") == [(6,)]
    ask(store, "SELECT * FROM holdall_conversations ORDER BY checkpoint_at, message_count")
    ask(store, "SELECT * FROM holdall_messages ORDER BY text, name, id, checkpoint_at")


def queries() -> list[str]:
    return [block.strip() for block in re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)]


def test_the_queries_of_the_how_to_run(store: holdall.Store) -> None:
    fill(store)
    schema = store._engine_handle.engine._own.schema  # type: ignore[attr-defined]  # PostgreSQL's
    assert len(queries()) >= 4
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS analyst")
        connection.execute("CREATE ROLE analyst")
        try:
            for block in queries():
                for query in filter(None, map(str.strip, block.split(";"))):
                    cursor = connection.execute(re.sub(r"\bholdall\b", schema, query))
                    if cursor.description is not None:
                        assert cursor.fetchall(), f"nothing found by {query}"
            connection.execute(f"SET ROLE analyst; SET search_path TO {schema}")
            assert len(connection.execute("SELECT * FROM holdall_messages").fetchall()) == 6
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT * FROM entries")
        finally:
            connection.execute("RESET ROLE")
            connection.execute("DROP OWNED BY analyst; DROP ROLE analyst")
