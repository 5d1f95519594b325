"""Networks and servers that fail, and machines that sleep: nothing acknowledged is lost, and nothing is there twice."""

from __future__ import annotations

import itertools
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.engines.s3 import bucket, client, compaction
from holdall.engines.s3.effects import read_position
from holdall.engines.s3.objects import log_name, segment_name
from holdall.errors import LeaseHeld, OutcomeUnknown, StoreClosed, Unavailable
from holdall.ops import ReadStats
from support.bucket_checks import check_caches, engine_of
from support.http_proxy import Fault, HttpProxy
from support.servers import s3_credentials, s3_server

pytestmark = pytest.mark.timed

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"s3://tests/faults{next(_numbers)}"


@pytest.fixture
def objects(url: str) -> Iterator[client.Client]:
    """The objects of the store."""
    found = s3_server().client(url.removeprefix("s3://tests/") + "/")
    yield found
    found.close()


def open_machine(url: str, folder: Path, name: str, **options: Any) -> holdall.Store:
    """Open a store as one machine does."""
    given = {**s3_server().options, "cache": folder / name, "sweep_interval": None, **options}
    return holdall.open(url, **given)


def count_up(store: holdall.Store, name: str, times: int) -> int:
    """Increment a counter and append to a log, which all machines share; return how many outcomes are unknown."""
    unknown = 0
    for step in range(times):
        try:
            store.put(("own", name), str(step), {"step": step})
            store.update(("shared",), "counter", lambda value: {"n": value["n"] + 1}, default={"n": 0})
            store.files().append("/log", f"{name} {step}\n")
        except OutcomeUnknown:
            unknown += 1
    return unknown


#: How often each fault happens to a request.
MIX: dict[Fault, float] = {
    "lose": 0.08,
    "refuse": 0.05,
    "late": 0.005,
    "delay": 0.01,
    "cut reply": 0.02,
    "cut request": 0.02,
    "twice": 0.03,
}


def choose_by(mix: dict[Fault, float], seed: int) -> Callable[[str, str], Fault]:
    dice, lock = random.Random(seed), threading.Lock()

    def choose(method: str, path: str) -> Fault:
        with lock:
            [fault] = dice.choices([*mix, None], [*mix.values(), 1 - sum(mix.values())])
        return fault

    return choose


def test_two_machines_behind_a_bad_network_lose_nothing_and_double_nothing(
    url: str, tmp_path: Path, scaled: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost replies, 503s, late replies, cut bodies, duplicated and late requests, while the log is compacted."""
    monkeypatch.setattr(client, "REPLY_SECONDS", 0.5)
    monkeypatch.setattr(compaction, "RECORDS", 16)
    monkeypatch.setattr(compaction, "TIER", 3)
    times = scaled(24, 2000)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    names = ("one", "two")
    with (
        HttpProxy(s3_server().port, choose_by(MIX, seed), seconds=1.5) as proxy,
        open_machine(url, tmp_path, "one", endpoint=proxy.endpoint) as one,
        open_machine(url, tmp_path, "two", endpoint=proxy.endpoint) as two,
    ):
        with ThreadPoolExecutor(2) as pool:
            unknown = sum(pool.map(lambda store, name: count_up(store, name, times), (one, two), names))
        assert sum(proxy.faults.values()) > times / 4, "hardly a fault: this showed nothing"
        proxy.choose = lambda method, path: None
        time.sleep(1.6)  # until no request is under way
        lines = one.files().read_text("/log").split("\n")[:-1]
        assert unknown == 0, "30 s were not enough"
        assert sorted(lines) == sorted(f"{name} {step}" for name in names for step in range(times))
        counter = two.get(("shared",), "counter")
        assert counter is not None
        assert counter.value == {"n": 2 * times}
        for name in names:
            steps = [entry.value["step"] for entry in two.scan(("own", name))]
            assert sorted(steps) == [*range(times)]
        newest = max(change.version for change in engine_changes(one))
        assert newest == 6 * times, "versions have gaps, or were given twice"
        check_caches(url, tmp_path, engine_of(one), engine_of(two), endpoint=proxy.endpoint)


def engine_changes(store: holdall.Store) -> Iterator[Any]:
    from holdall.ops import Changes

    since = None
    while True:
        [page] = engine_of(store).execute([Changes(since=since)])
        if not page:
            return
        yield from page
        since = page.next


def test_a_write_whose_reply_never_comes_has_an_unknown_outcome(url: str, tmp_path: Path) -> None:
    """And it is not done twice, nor lost: the next read finds out."""
    is_deaf = False

    def choose(method: str, path: str) -> Fault:
        return "lose" if is_deaf else None

    with (
        HttpProxy(s3_server().port, choose) as proxy,
        open_machine(url, tmp_path, "one", endpoint=proxy.endpoint, timeout=0.3) as store,
    ):
        store.put(("a",), "before", {})
        is_deaf = True
        with pytest.raises(OutcomeUnknown, match="read before you write again"):
            store.put(("a",), "k", {})
        with pytest.raises(Unavailable, match="cannot be reached"):
            store.get(("a",), "k")
        is_deaf = False
        assert [entry.key for entry in store.scan(("a",))] == ["before", "k"]
        assert store.put(("a",), "after", {}).version == 3
        check_caches(url, tmp_path, engine_of(store))


def test_a_write_that_no_server_got_is_unavailable_and_not_written(url: str, tmp_path: Path) -> None:
    is_busy = False
    with (
        HttpProxy(s3_server().port, lambda method, path: "refuse" if is_busy else None) as proxy,
        open_machine(url, tmp_path, "one", endpoint=proxy.endpoint, timeout=0.3) as store,
    ):
        store.put(("a",), "before", {})
        is_busy = True
        with pytest.raises(Unavailable, match="SlowDown") as caught:
            store.put(("a",), "k", {})
        assert not isinstance(caught.value, OutcomeUnknown)
        is_busy = False
        assert [entry.key for entry in store.scan(("a",))] == ["before"]


def test_a_write_without_a_connection_is_unavailable_and_not_written(url: str, tmp_path: Path) -> None:
    proxy = HttpProxy(s3_server().port, lambda method, path: None)
    with open_machine(url, tmp_path, "one", endpoint=proxy.endpoint, timeout=0.3) as store:
        store.put(("a",), "before", {})
        proxy.__exit__()
        engine_of(store)._client.close()
        with pytest.raises(Unavailable, match="cannot be reached") as caught:
            store.put(("a",), "k", {})
        assert not isinstance(caught.value, OutcomeUnknown)


def test_a_write_whose_reply_was_lost_before_the_certificate_expired_has_an_unknown_outcome(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: HTTPConnection) -> None:
        raise ssl.SSLCertVerificationError("certificate has expired")

    def lose(method: str, path: str) -> Fault:
        monkeypatch.setattr(HTTPConnection, "connect", refuse)
        return "lose"

    with (
        HttpProxy(s3_server().port, lambda method, path: None) as proxy,
        open_machine(url, tmp_path, "one", endpoint=proxy.endpoint, timeout=5) as store,
    ):
        store.put(("a",), "before", {})
        connect = HTTPConnection.connect
        proxy.choose = lose
        with pytest.raises(OutcomeUnknown, match="certificate has expired"):
            store.put(("a",), "k", {})
        monkeypatch.setattr(HTTPConnection, "connect", connect)
        proxy.choose = lambda method, path: None
        assert [entry.key for entry in store.scan(("a",))] == ["before", "k"]


def test_a_write_that_is_refused_after_a_lost_reply_has_an_unknown_outcome(url: str, tmp_path: Path) -> None:
    faults: list[Fault] = []
    with (
        HttpProxy(s3_server().port, lambda method, _: faults.pop() if faults and method == "PUT" else None) as proxy,
        open_machine(url, tmp_path, "one", endpoint=proxy.endpoint) as store,
    ):
        store.put(("a",), "before", {})
        faults = [(403, {}, "ExpiredToken"), "lose"]
        with pytest.raises(OutcomeUnknown, match="an earlier try of the write may have happened"):
            store.put(("a",), "k", {})
        assert [entry.key for entry in store.scan(("a",))] == ["before", "k"]


def test_a_slot_that_is_busy_until_the_deadline_is_a_timeout_and_free_again_later(url: str, tmp_path: Path) -> None:
    """AWS answers 409 while another conditional write to the same name is under way."""
    busy: Fault = (409, {}, "ConditionalRequestConflict")
    with (
        HttpProxy(s3_server().port, lambda method, path: None) as proxy,
        open_machine(url, tmp_path, "one", endpoint=proxy.endpoint, timeout=0.3) as store,
    ):
        store.put(("a",), "before", {})
        proxy.choose = lambda method, path: busy if method == "PUT" and "/log/" in path else None
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown, match=r"was busy for 0\.3 s"):
            store.put(("a",), "k", {})
        assert 0.2 < time.monotonic() - began < 5
        assert proxy.faults["ConditionalRequestConflict"] > 3, "it did not try again"
        proxy.choose = lambda method, path: None
        assert [entry.key for entry in store.scan(("a",))] == ["before"]
        assert store.put(("a",), "after", {}).version == 2
        check_caches(url, tmp_path, engine_of(store))


def test_credentials_that_cannot_be_renewed_are_an_error_until_they_can(url: str, tmp_path: Path) -> None:
    fails = False

    def renew() -> tuple[str, str]:
        if fails:
            raise ConnectionError("the vault is closed")
        return s3_credentials()

    with open_machine(url, tmp_path, "one", credentials=renew) as store:
        store.put(("a",), "before", {})
        fails = True
        for call in (lambda: store.put(("a",), "k", {}), lambda: store.get(("a",), "before")):
            began = time.monotonic()
            with pytest.raises(Unavailable, match=r"cannot be renewed.*the vault is closed") as caught:
                call()
            assert not isinstance(caught.value, OutcomeUnknown)
            assert time.monotonic() - began < 5, "it was taken for a lost connection"
        fails = False
        store.put(("a",), "after", {})
        assert [entry.key for entry in store.scan(("a",))] == ["after", "before"]


@pytest.mark.not_short
def test_segments_of_compactors_that_were_killed_are_deleted_after_a_while(
    url: str, objects: client.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those that a compactor has just written: its floor may come."""
    monkeypatch.setattr(compaction, "TIER", 2)
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 2.0)
    left, deadline = segment_name(1, 2), time.monotonic() + 30
    with open_machine(url, tmp_path, "one") as store:
        store.put(("a",), "0", {})
        objects.put(left, b"of a compactor that was killed", deadline)
        began, number = time.monotonic(), 0
        while objects.get(left, deadline) is not None:
            assert time.monotonic() < deadline, "it was not deleted"
            number += 1
            store.put(("a",), str(number), {})
            engine_of(store)._compact()
            time.sleep(0.1)
        assert time.monotonic() - began > 3, "it was deleted while a floor could still have come"
        assert store.count() == number + 1
        check_caches(url, tmp_path, engine_of(store))


@pytest.mark.parametrize("torn", [b"", b"holdall 1 0123 plain\n{}", b"half of a rec"])
def test_a_slot_without_a_valid_record_is_burned(url: str, objects: client.Client, tmp_path: Path, torn: bytes) -> None:
    """SeaweedFS keeps what it got of a write that was cut off, unless the write has a checksum."""
    with open_machine(url, tmp_path, "one") as one, open_machine(url, tmp_path, "two") as two:
        one.put(("a",), "first", {})
        seq = read_position(engine_of(one)._writer).seq
        assert objects.create(log_name(seq + 1), torn, time.monotonic() + 5)
        assert one.put(("a",), "second", {}).version == 2
        assert two.put(("a",), "third", {}).version == 3
        assert [entry.key for entry in one.scan(("a",))] == ["first", "second", "third"]
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


def test_a_writer_that_slept_until_its_slot_was_collected_writes_after_the_others(
    url: str, objects: client.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SlateDB #352 and #1622, Lance #6699: a slot that was freed again is won by a sleeping writer."""
    monkeypatch.setattr(compaction, "RECORDS", 4)
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.2)
    monkeypatch.setattr(bucket, "LOOK_AFTER", 0.1)
    with open_machine(url, tmp_path, "one") as one, open_machine(url, tmp_path, "two") as two:
        one.put(("a",), "k", {"by": "one"})
        two.get(("a",), "k")
        engine, wait = engine_of(two), threading.Event()
        append = engine._bucket.append
        slots: list[int] = []

        def sleep_first(seq: int, *rest: Any) -> None:
            slots.append(seq)
            if len(slots) == 1:
                wait.wait(20)
            append(seq, *rest)

        monkeypatch.setattr(engine._bucket, "append", sleep_first)
        with ThreadPoolExecutor(1) as pool:
            asleep = pool.submit(two.put, ("a",), "late", {"by": "two"})
            while not slots:
                time.sleep(0.01)
            deadline = time.monotonic() + 20
            number = 0
            while objects.get(log_name(slots[0]), deadline) is not None or number == 0:
                assert time.monotonic() < deadline, "the slot was not collected"
                one.put(("a",), f"k{number}", {"by": "one"})
                number += 1
                time.sleep(0.02)
            wait.set()
            assert asleep.result().version == number + 2
        assert len(slots) > 1, "it won a slot below the floor"
        assert [entry.key for entry in one.scan(("a",))] == sorted(["k", "late", *(f"k{n}" for n in range(number))])
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


def test_a_writer_that_slept_within_a_write_until_its_slot_was_collected_does_not_know_the_outcome(
    url: str, objects: client.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.2)
    monkeypatch.setattr(bucket, "LOOK_AFTER", 0.1)
    with open_machine(url, tmp_path, "one") as one, open_machine(url, tmp_path, "two") as two:
        one.put(("a",), "0", {})
        create, number = engine_of(one)._client.create, 0

        def sleep_first(name: str, *rest: Any) -> bool:
            nonlocal number
            while number == 0 or objects.get(name, time.monotonic() + 5) is not None:
                number += 1
                two.put(("a",), str(number), {})
                engine_of(two)._compact()
                time.sleep(0.05)
            return bool(create(name, *rest))

        monkeypatch.setattr(engine_of(one)._client, "create", sleep_first)
        with pytest.raises(OutcomeUnknown, match="this machine slept"):
            one.put(("a",), "late", {})
        monkeypatch.setattr(engine_of(one)._client, "create", create)
        assert one.put(("a",), "later", {}).version == number + 2
        assert {entry.key for entry in two.scan(("a",))} == {"later", *map(str, range(number + 1))}
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


def test_a_machine_that_was_paused_until_its_slot_was_collected_writes_after_the_others(
    url: str, objects: client.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No clock of a virtual machine goes on while it is paused: only replies show the time."""
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.2)
    with open_machine(url, tmp_path, "one") as one, open_machine(url, tmp_path, "two") as two:
        one.put(("a",), "0", {})
        seq, number = read_position(engine_of(one)._writer).seq, 0
        deadline = time.monotonic() + 20
        while number == 0 or objects.get(log_name(seq + 1), deadline) is not None:
            assert time.monotonic() < deadline, "the slot was not collected"
            number += 1
            two.put(("a",), str(number), {})
            engine_of(two)._compact()
            time.sleep(0.05)
        time.sleep(0.3)
        here = engine_of(one)._client
        now, create = here.clock.now, here.create
        paused = 100.0
        monkeypatch.setattr(here.clock, "now", lambda: now() + paused)

        def create_late(*rest: Any) -> bool:
            nonlocal paused
            is_created = bool(create(*rest))
            paused = 200.0  # the reply has set the clock right
            return is_created

        monkeypatch.setattr(here, "create", create_late)
        engine_of(one)._bucket._looked = now() + paused  # it was just opened
        assert one.put(("a",), "late", {}).version == number + 2
        assert {entry.key for entry in two.scan(("a",))} == {"late", *map(str, range(number + 1))}
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


@pytest.mark.parametrize("floors", [1, 3])
def test_a_write_that_another_machine_compacts_at_once_is_done_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, floors: int
) -> None:
    """A floor that has the slot does not always mean that the slot was used before."""
    with open_machine(url, tmp_path, "one") as one, open_machine(url, tmp_path, "two") as two:
        one.files().append("/log", "first\n")
        create = engine_of(one)._client.create

        def create_slowly(name: str, *rest: Any) -> bool:
            is_created = bool(create(name, *rest))
            for number in range(floors):
                two.put(("a",), str(number), {})
                engine_of(two)._compact()
            monkeypatch.undo()
            monkeypatch.setattr(engine_of(one)._bucket, "_looked", -1e18)  # as if the last look was long ago
            return is_created

        monkeypatch.setattr(engine_of(one)._client, "create", create_slowly)
        one.files().append("/log", "second\n")
        assert engine_of(one)._bucket.floor.number == floors, "this showed nothing"
        assert two.files().read_text("/log") == "first\nsecond\n"
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


def test_a_write_that_the_cache_cannot_take_is_done_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is in the bucket, so no error, of whatever kind, may have it written again."""
    with open_machine(url, tmp_path, "one") as one:
        one.files().append("/log", "first\n")

        def fail(*_: Any) -> None:
            monkeypatch.undo()
            raise MemoryError

        monkeypatch.setattr(engine_of(one), "_advance", fail)
        one.files().append("/log", "second\n")
        assert one.files().read_text("/log") == "first\nsecond\n"
        check_caches(url, tmp_path, engine_of(one))


def test_a_write_after_which_no_compaction_can_start_is_done(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "RECORDS", 2)
    with open_machine(url, tmp_path, "one") as one:

        def refuse(*_: Any) -> None:
            raise StoreClosed("as if no thread could start")

        with monkeypatch.context() as full:
            full.setattr(engine_of(one), "_spawn", refuse)
            for number in range(4):
                one.put(("a",), str(number), {})
        one.put(("a",), "4", {})
        deadline = time.monotonic() + 10
        while engine_of(one)._bucket.floor.number == 0:
            assert time.monotonic() < deadline, "no later write compacted"
            time.sleep(0.01)


def test_a_write_that_was_won_but_not_confirmed_has_an_unknown_outcome(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_busy = False
    with (
        HttpProxy(s3_server().port, lambda method, path: "refuse" if is_busy and "/floor/" in path else None) as proxy,
        open_machine(url, tmp_path, "one", endpoint=proxy.endpoint, timeout=0.3) as store,
    ):
        store.put(("a",), "before", {})
        is_busy = True
        monkeypatch.setattr(engine_of(store)._bucket, "_looked", -1e18)
        with pytest.raises(OutcomeUnknown, match="the write may have happened"):
            store.put(("a",), "k", {})
        is_busy = False
        assert [entry.key for entry in store.scan(("a",))] == ["before", "k"]
        check_caches(url, tmp_path, engine_of(store))


def test_a_machine_that_slept_until_the_log_was_collected_builds_its_cache_again(
    url: str, objects: client.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "RECORDS", 4)
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.2)
    monkeypatch.setattr(bucket, "LOOK_AFTER", 0.1)
    with open_machine(url, tmp_path, "one") as one, open_machine(url, tmp_path, "two") as two:
        one.put(("a",), "k", {})
        two.files().write("/old", b"x" * 20_000)
        assert one.files().read("/old") == b"x" * 20_000
        two.files().write("/old", b"y" * 20_000)
        seq = read_position(engine_of(one)._writer).seq
        deadline = time.monotonic() + 20
        while objects.get(log_name(seq + 1), deadline) is not None:
            assert time.monotonic() < deadline, "the log was not collected"
            two.put(("a",), f"k{random.random()}", {})
            time.sleep(0.02)
        assert one.count() == two.count()
        assert one.files().read("/old") == b"y" * 20_000
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


def test_two_compactors_at_once_make_one_floor(
    url: str, objects: client.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_machine(url, tmp_path, "one") as one, open_machine(url, tmp_path, "two") as two:
        for number in range(20):
            (one if number % 2 else two).put(("a",), str(number), {})
        engines = [engine_of(one), engine_of(two)]
        for engine in engines:
            engine.execute([ReadStats()])
        meet = threading.Barrier(2)
        create = engines[0]._client.create

        def create_together(name: str, *rest: Any) -> bool:
            if name.startswith("floor/"):
                meet.wait(10)
            return bool(create(name, *rest))

        for engine in engines:
            monkeypatch.setattr(engine._client, "create", create_together)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda engine: engine._compact(), engines))
        assert [engine._bucket.floor.number for engine in engines] == [1, 1]
        assert engines[0]._bucket.floor == engines[1]._bucket.floor
        segments = [name for name, _ in objects.list("seg/", "", time.monotonic() + 5)]
        assert segments == [segment.name for segment in engines[0]._bucket.floor.segments], "the loser left its segment"
        check_caches(url, tmp_path, *engines)


def test_blobs_that_no_file_refers_to_are_deleted_after_a_while(
    url: str, objects: client.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "RECORDS", 4)
    monkeypatch.setattr(compaction, "TIER", 2)
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.1)
    monkeypatch.setattr(bucket, "LOOK_AFTER", 0.05)
    with open_machine(url, tmp_path, "one") as store:
        store.files().write("/kept", b"k" * 10_000)
        store.files().copy("/kept", "/copy")
        store.files().delete("/kept")
        for number in range(3):
            store.files().write("/replaced", bytes([number]) * 10_000)
        deadline = time.monotonic() + 20
        while len(blobs := objects.list("blob/", "", deadline)) > 2:
            assert time.monotonic() < deadline, blobs
            store.put(("a",), "k", {})
            time.sleep(0.02)
    with open_machine(url, tmp_path, "two") as store:
        assert store.files().read("/copy") == b"k" * 10_000
        assert store.files().read("/replaced") == b"\x02" * 10_000


@pytest.mark.parametrize("fault", ["killed", "refused"])
def test_what_a_compactor_has_not_deleted_is_deleted_by_the_next(
    url: str, objects: client.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """It was killed when it had created its floor, or the server refused to delete."""
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.0)
    with open_machine(url, tmp_path, "one") as store:
        here = engine_of(store)._client
        create = here.create

        def create_and_die(name: str, *rest: Any) -> bool:
            is_created = bool(create(name, *rest))
            if name.startswith("floor/"):
                raise RuntimeError("as if it was killed")
            return is_created

        def refuse(name: str, deadline: float) -> None:
            raise Unavailable("as if the server refused")

        for number in range(8):
            store.put(("a",), str(number), {})
            with monkeypatch.context() as broken:
                if number in (3, 4):
                    if fault == "killed":
                        broken.setattr(here, "create", create_and_die)
                    else:
                        broken.setattr(here, "delete", refuse)
                engine_of(store)._compact()
                engine_of(store)._bucket.find_newest_floor(time.monotonic() + 5)
        assert engine_of(store)._bucket.floor.number == 8
        left = [name for name, _ in objects.list("log/", "", time.monotonic() + 5)]
        assert left == [log_name(8)], "the log that the newest floor replaces may still be needed; no other one is"
        check_caches(url, tmp_path, engine_of(store))


@pytest.mark.parametrize("minutes", [-20, 20])
def test_a_machine_whose_clock_is_wrong_writes_the_time_of_the_server(
    url: str, tmp_path: Path, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    with open_machine(url, tmp_path, "right") as right:
        right.put(("a",), "k", {}, ttl=600)
        monkeypatch.setattr(time, "time", lambda: real() + minutes * 60)
        with open_machine(url, tmp_path, "wrong") as wrong:
            assert wrong.get(("a",), "k") is not None, "it took the entry to be expired"
            entry = wrong.put(("a",), "other", {}, ttl=600)
            assert abs(entry.updated_at.timestamp() - real()) < 5
            with wrong.lease("job", 10), pytest.raises(LeaseHeld):
                right.lease("job", 10).acquire()
