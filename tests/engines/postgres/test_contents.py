"""PostgreSQL's index of what files contain: whatever becomes of its parts, `grep` finds what is there."""

from __future__ import annotations

import random
from typing import Any

import psycopg

import holdall
from holdall.ops import Maintain
from support.servers import postgres_url

LETTERS = "abcdeäß\n \t🎒"


def opened(schema: str) -> holdall.Store:
    return holdall.open(postgres_url(), schema=schema, sweep_interval=None)  # maintenance runs only in the test


def found(files: holdall.Files, text: str, **how: Any) -> list[str]:
    return sorted({match.path for match in files.grep(text, **how)})


def has_line_with(content: str, text: str) -> bool:
    return any(text in line for line in content.split("\n"))


def administer(statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def parts(schema: str) -> list[tuple[int, ...]]:
    return administer(f"SELECT level, width, files, gone FROM {schema}.parts ORDER BY start")


def test_grep_finds_what_is_there_while_parts_are_made_joined_and_given_up() -> None:
    chance = random.Random(5)
    there: dict[str, str] = {}
    with opened("index_life") as store:
        files, engine = store.files(), store._engine_handle.engine
        levels = set()
        for turn in range(60):
            for _ in range(chance.randrange(1, 9)):
                path = f"/{chance.randrange(120)}"
                if path in there and chance.random() < 0.4:
                    files.delete(path, recursive=True)
                    del there[path]
                else:
                    there[path] = "".join(chance.choices(LETTERS, k=chance.randrange(60)))
                    files.write(path, there[path])
            if chance.random() < 0.9:
                while engine.execute([Maintain(chance.choice((1, 3, 20)))])[0]:
                    pass
            levels |= {level for level, *_ in parts("index_life")}
            for _ in range(5):
                text = "".join(chance.choices(LETTERS.replace("\n", ""), k=chance.randrange(1, 5)))
                wanted = sorted(path for path, content in there.items() if has_line_with(content, text))
                assert found(files, text) == wanted, (turn, text)
        assert levels == {0, 1}
        files.delete("/", recursive=True)
        while engine.execute([Maintain()])[0]:
            pass
        assert parts("index_life") == []
        for table in ("contents", "grams", "unindexed"):
            assert administer(f"SELECT count(*) FROM index_life.{table}") == [(0,)], table


def test_the_index_answers_a_grep_of_what_few_contain() -> None:
    with opened("index_use") as store:
        files, engine = store.files(), store._engine_handle.engine
        for number in range(70):
            files.write(f"/{number}", f"common text {number}\nneedle {number}" if number % 30 == 7 else "common text")
        while engine.execute([Maintain(8)])[0]:
            pass
        assert parts("index_use") == [(1, 8, 64, 0), (0, 1, 6, 0)]
        administer("UPDATE index_use.chunks SET data = convert_to('needle here too', 'UTF8') WHERE length(data) < 12")
        assert found(files, "needle") == ["/37", "/67", "/7"], "nothing was read that the index knows not to have it"
        assert found(files, "NEEDLE", ignore_case=True) == ["/37", "/67", "/7"]
        assert len(found(files, "common text")) == 3
        assert found(files, "needle 6") == ["/67"]


def test_what_changes_while_it_is_indexed_is_indexed_again() -> None:
    with opened("index_race") as store, opened("index_race") as other:
        files, engine = store.files(), store._engine_handle.engine
        files.write("/a", "the old needle")
        files.write("/b", "another needle")
        learn = engine._sql._dialect.index_contents

        def changed_meanwhile(texts: list[tuple[int, str]]) -> Any:
            other.files().write("/a", "the new pin")
            return learn(texts)

        engine._sql._dialect.index_contents = changed_meanwhile
        try:
            engine.execute([Maintain()])
        finally:
            del engine._sql._dialect.index_contents
        assert found(files, "needle") == ["/b"]
        assert found(files, "pin") == ["/a"]
        while engine.execute([Maintain()])[0]:
            pass
        assert administer("SELECT count(*) FROM index_race.unindexed") == [(0,)]
        assert administer("SELECT count(*) FROM index_race.contents") == [(2,)], "what was there before is forgotten"
        assert found(files, "needle") == ["/b"]
        assert found(files, "pin") == ["/a"]
