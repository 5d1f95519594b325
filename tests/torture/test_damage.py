"""Damaged bytes in a SQLite file: whatever they hit, only our own errors come out, and other entries stay readable."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
from holdall.errors import Corrupt, HoldallError
from holdall.testing import embed
from holdall.testing.caller import Caller
from support.processes import report, run

OPTIONS: dict[str, Any] = {"embed": embed, "filter_fields": ["n"], "sweep_interval": None, "timeout": 2.0}

#: Every way to read, by name.
READS: dict[str, Callable[[holdall.Store], object]] = {
    "get": lambda store: [store.get(("home", "a"), f"key{number}") for number in range(12)],
    "get of a file": lambda store: [store.get(("filesystem",), f"/folder/{number}.txt") for number in range(6)],
    "scan": lambda store: list(store.scan()),
    "scan of one": lambda store: list(store.scan(("home", "b"))),
    "search": lambda store: store.search(limit=100),
    "search of one": lambda store: store.search(("home", "b"), limit=100),
    "search by filter": lambda store: store.search(("home",), filter={"text": {"$gt": "a"}}, limit=100),
    "search by index": lambda store: store.search(filter={"n": 3}, limit=100),
    "search by text": lambda store: store.search(query="brown fox", mode="lexical", limit=100),
    "search by vector": lambda store: store.search(query="brown fox", mode="semantic", limit=100),
    "count": lambda store: store.count(filter={"n": {"$gte": 2}}),
    "namespaces": lambda store: store.namespaces(),
    "changes": lambda store: list(changes(store)),
    "ls": lambda store: store.files().ls("/folder"),
    "walk": lambda store: list(store.files().walk()),
    "stat": lambda store: store.files().stat("/folder/1.txt"),
    "read": lambda store: [store.files().read(f"/folder/{number}.txt") for number in range(6)],
    "glob": lambda store: store.files().glob("**/*.txt"),
    "grep": lambda store: store.files().grep("line 3"),
}


def changes(store: holdall.Store) -> Any:
    return store._engine_handle.engine.execute([holdall.ops.Changes()])[0]


def fill(path: str) -> None:
    with holdall.open(path, **OPTIONS) as store:
        for number in range(12):
            for label in "ab":
                store.put(("home", label), f"key{number}", {"n": number, "text": f"the quick brown fox {number}"})
        store.put(("home", "a"), "dated", {"n": [1, {"deep": None}]}, ttl=1000)
        store.delete(("home", "b"), "key11")
        for number in range(6):
            store.files().write(f"/folder/{number}.txt", "".join(f"line {line}\n" for line in range(number * 40)))
        store._engine_handle.engine.execute([holdall.ops.IndexTexts()])
        while store._engine_handle.engine.execute([holdall.ops.Maintain()])[0]:
            pass
    connection = apsw.Connection(path)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def test_damaged_bytes_give_errors_of_ours_or_answers(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    path, rounds = str(tmp_path / "agent.db"), scaled(60, 5000)
    fill(path)
    [result] = run(damage_at_random, deadline=60 + rounds, path=path, seed=1, rounds=rounds)
    assert result["raised"] == {}
    assert result["answered"] > result["refused"] > 0


def damage_at_random(path: str, seed: int, rounds: int) -> None:
    chance, raised, answered, refused = random.Random(seed), Counter[str](), 0, 0
    intact = Path(path).read_bytes()
    used = [place for place, byte in enumerate(intact) if byte]  # much of a page is empty
    for number in range(rounds):
        damaged = bytearray(intact)
        for place in chance.sample(used, chance.choice([1, 1, 1, 4, 40])):
            damaged[place] ^= chance.choice([1 << chance.randrange(8), chance.randrange(1, 256)])
        copy = f"{path}-{number}.db"
        Path(copy).write_bytes(damaged)
        store = holdall.open(copy, **OPTIONS)
        for name, read in READS.items():
            try:
                read(store)
                answered += 1
            except HoldallError:
                refused += 1
            except Exception as error:  # whatever it is, it is not ours
                raised[f"{name}: {type(error).__name__} {error}"[:200]] += 1
        store.close()
        for suffix in ("", "-wal", "-shm"):
            Path(copy + suffix).unlink(missing_ok=True)
    report({"raised": raised, "answered": answered, "refused": refused})


# One entry that is damaged -------------------------------------------------------------------------------------------

#: What becomes of a row, as SQL.
DAMAGES = {
    "bytes that are no text": "value = CAST(x'7b2261223a22ff227d' AS TEXT)",
    "a key that is no text": "value = CAST(x'7b22ff223a317d' AS TEXT)",
    "no JSON": "value = '{\"n\": 1'",
    "JSON, and no object": "value = '[1]'",
    "a number": "value = 5",
    "a blob": "value = x'00ff'",
    "a time that is text": "created = 'x'",
    "a time that is too late": "updated = 1 << 62",
    "a file's size": "size = 5",
}


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_named_and_the_others_stay_readable(tmp_path: Path, damage: str, awaited: bool) -> None:
    path = str(tmp_path / "agent.db")
    home, other = ("home", "a"), ("home", "b")
    with holdall.open(path, sweep_interval=None) as store:
        for namespace in (home, other):
            store.execute([holdall.ops.Put(namespace, f"key{number}", {"n": number}) for number in range(5)])
    connection = apsw.Connection(path)
    connection.execute(f"UPDATE holdall_entries SET {DAMAGES[damage]} WHERE ns = 'home\x01a\x01' AND key = 'key2'")
    connection.close()
    with holdall.open(path, sweep_interval=None) as store, asyncio.Runner() as runner:
        caller = Caller(store, runner if awaited else None)
        wanted = {"filter": {"n": {"$gte": 1}}, "limit": 100}
        for read in (
            lambda: caller.get(home, "key2"),
            caller.scan,
            lambda: caller.scan(home),
            lambda: caller.search(home),
        ):
            with pytest.raises(Corrupt, match=r"'key2' in \('home', 'a'\)"):
                read()
        try:
            assert len(caller.search(home, **wanted)) == 3
        except Corrupt as error:  # the damaged one may match
            assert "'key2' in ('home', 'a')" in str(error)
        assert [caller.get(home, f"key{number}").value for number in (0, 1, 3, 4)] == [{"n": n} for n in (0, 1, 3, 4)]
        assert [entry.key for entry in caller.scan(other)] == [f"key{number}" for number in range(5)]
        assert len(caller.search(other)) == 5
        assert len(caller.search(other, **wanted)) == 4
        assert caller.count(other, filter={"n": {"$gte": 1}}) == 4
        assert caller.count() == 10
        assert len(changes(store)) == 10
        assert caller.delete(home, "key2")
        caller.put(home, "key2", {"n": 2})
        assert len(caller.scan()) == 10
        assert len(caller.search(home, **wanted)) == 4


def test_a_write_that_meets_damage_leaves_nothing_behind_and_the_others_of_its_group_are_written(
    tmp_path: Path,
) -> None:
    """A put keeps the time of creation of what it replaces: here there is none to keep."""
    path = str(tmp_path / "agent.db")
    with holdall.open(path, sweep_interval=None) as store:
        for number in range(5):
            store.put(("home",), f"key{number}", {"n": 0})
    connection = apsw.Connection(path)
    connection.execute("UPDATE holdall_entries SET created = 'x' WHERE key = 'key2'")

    async def put_at_once(store: holdall.Store) -> list[Any]:
        puts = [store.aput(("home",), f"key{number}", {"n": 1}, expect=number + 1) for number in range(5)]
        connection.execute("BEGIN IMMEDIATE")  # they gather behind this
        tasks = [asyncio.create_task(put) for put in puts]
        await asyncio.sleep(0.1)
        connection.execute("ROLLBACK")
        return await asyncio.gather(*tasks, return_exceptions=True)

    with holdall.open(path, sweep_interval=None) as store:
        outcomes = asyncio.run(put_at_once(store))
        assert [type(outcome) for outcome in outcomes].count(Corrupt) == 1
        assert isinstance(outcomes[2], Corrupt)
        found = connection.execute("SELECT key, value FROM holdall_entries ORDER BY key").fetchall()
        assert found == [(f"key{number}", '{"n":0}' if number == 2 else '{"n":1}') for number in range(5)]
    connection.close()


def test_a_damaged_piece_of_a_file_is_corrupt_and_other_files_stay_readable(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    with holdall.open(path, sweep_interval=None) as store:
        store.files().write("/damaged", b"x" * 300_000)
        store.files().write("/whole", b"y" * 300_000)
    connection = apsw.Connection(path)
    connection.execute("UPDATE holdall_chunks SET data = CAST(data AS TEXT) WHERE hex(substr(data, 1, 3)) = '787878'")
    assert connection.changes()
    connection.close()
    with holdall.open(path, sweep_interval=None) as store:
        for read in (lambda: store.files().read("/damaged"), lambda: store.get(("filesystem",), "/damaged")):
            with pytest.raises(Corrupt, match="damaged"):
                read()
        assert store.files().read("/whole") == b"y" * 300_000
