"""The client of a bucket: slow transfers, gateways that interfere, and input that no server may get."""

from __future__ import annotations

import itertools
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.engines.s3 import client as client_module
from holdall.engines.s3.client import Client
from holdall.errors import InvalidInput, OutcomeUnknown, Unavailable
from support.bucket_checks import check_caches, engine_of
from support.extent import IS_SHORT
from support.http_proxy import Fault, HttpProxy
from support.servers import s3_credentials, s3_server

pytestmark = pytest.mark.timed

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"s3://tests/client{next(_numbers)}"


@pytest.fixture
def client() -> Iterator[Client]:
    found = s3_server().client(f"client-objects{next(_numbers)}/")
    yield found
    found.close()


def open_at(url: str, cache: Path, **options: Any) -> holdall.Store:
    return holdall.open(url, **{**s3_server().options, "cache": cache, "sweep_interval": None, **options})


def test_a_process_with_thousands_of_open_files_uses_a_bucket(client: Client) -> None:
    """`select` fails for files from number 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        deadline = time.monotonic() + 10
        client.put("k", b"1", deadline)
        assert max(connection.sock.fileno() for connection in client._idle) > 1024, "this showed nothing"
        assert client.get("k", deadline) == b"1"
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def slow_link(bytes_a_second: int) -> Iterator[str]:
    """Yield the address of a server behind a link that carries so many bytes in each direction."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                time.sleep(len(data) / bytes_a_second)
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", s3_server().port))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@pytest.mark.skipif(IS_SHORT, reason="in make test-all: it takes seven seconds, and a busy machine may delay a reply")
def test_a_transfer_may_take_longer_than_a_reply_while_it_goes_on(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout of a socket is for everything that is sent at once: large contents never got through."""
    monkeypatch.setattr(client_module, "REPLY_SECONDS", 2.0)
    content = os.urandom(12 << 20)
    with slow_link(4 << 20) as endpoint, open_at(url, tmp_path / "one", endpoint=endpoint) as store:
        began, sent = time.monotonic(), engine_of(store)._client.requests["PUT"]
        store.files().write("/large", content)
        assert time.monotonic() - began > 2.0, "this showed nothing"
        assert engine_of(store)._client.requests["PUT"] - sent == 2, "it was sent again and again"
    with slow_link(4 << 20) as endpoint, open_at(url, tmp_path / "two", endpoint=endpoint) as store:
        assert store.files().read("/large") == content


def test_a_transfer_ends_at_the_deadline(url: str, tmp_path: Path) -> None:
    content = os.urandom(8 << 20)
    with open_at(url, tmp_path / "one") as store:
        store.files().write("/large", content)
    with slow_link(1 << 20) as endpoint, open_at(url, tmp_path / "two", endpoint=endpoint, timeout=1.5) as store:
        assert store.files().stat("/large") is not None
        began = time.monotonic()
        with pytest.raises(Unavailable, match="timeout="):
            store.files().read("/large")
        with pytest.raises(Unavailable, match="timeout=") as caught:
            store.files().write("/other", content)
        assert not isinstance(caught.value, OutcomeUnknown), "no record was sent, so nothing can have been written"
        assert time.monotonic() - began < 8
        assert store.files().exists("/other") is False


def forward(method: str, path: str) -> Fault:
    return None


def answers_with(status: int) -> list[Any]:
    """Answers of gateways. In the short form only the one of this status, since each is tried until the timeout."""
    answers = ((404, {}, ""), (409, {}, "OperationAborted"), (412, {}, "PreconditionFailed"))
    return [pytest.param(one, marks=[pytest.mark.not_short] * (one[0] != status)) for one in answers]


@pytest.mark.parametrize("answer", answers_with(409))
def test_contents_that_the_server_did_not_take_are_no_file(
    url: str, tmp_path: Path, answer: tuple[int, dict[str, str], str]
) -> None:
    """Only success is success: otherwise a record would refer to a blob that is not there."""
    with (
        HttpProxy(s3_server().port, forward) as proxy,
        open_at(url, tmp_path / "one", endpoint=proxy.endpoint, timeout=1) as store,
    ):
        store.put(("a",), "k", {})
        proxy.choose = lambda method, path: answer if method == "PUT" and "/blob/" in path else None
        with pytest.raises(Unavailable):
            store.files().write("/f", b"x" * 20_000)
        proxy.choose = forward
        assert store.files().exists("/f") is False
        store.files().write("/f", b"y" * 20_000)
    with open_at(url, tmp_path / "two") as store:
        assert store.files().read("/f") == b"y" * 20_000


@pytest.mark.parametrize("answer", answers_with(404))
def test_an_answer_that_is_not_of_the_bucket_is_not_taken_for_a_record(
    url: str, tmp_path: Path, answer: tuple[int, dict[str, str], str]
) -> None:
    """A gateway that answers 404 does not mean that the log has ended, and its page is not a burned slot."""
    with (
        HttpProxy(s3_server().port, forward) as proxy,
        open_at(url, tmp_path / "one") as one,
        open_at(url, tmp_path / "two", endpoint=proxy.endpoint, timeout=1) as two,
    ):
        two.put(("a",), "k", {"n": 1})
        one.put(("a",), "k", {"n": 2})
        proxy.choose = lambda method, path: answer if method == "GET" and "/log/" in path else None
        with pytest.raises(Unavailable):
            two.get(("a",), "k")
        proxy.choose = forward
        found = two.get(("a",), "k")
        assert found is not None
        assert found.value == {"n": 2}
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


def test_a_record_that_is_damaged_on_its_way_is_read_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise this machine would skip what the others have."""
    with open_at(url, tmp_path / "one") as one, open_at(url, tmp_path / "two") as two:
        two.put(("a",), "k", {"n": 1})
        one.put(("a",), "k", {"n": 2})
        here = engine_of(two)._client
        get, damaged = here.get, []

        def damage_once(name: str, *rest: Any) -> bytes | None:
            found: bytes | None = get(name, *rest)
            if found and name.startswith("log/") and not damaged:
                damaged.append(name)
                return found[:-1] + b"x"
            return found

        monkeypatch.setattr(here, "get", damage_once)
        found = two.get(("a",), "k")
        assert damaged, "this showed nothing"
        assert found is not None
        assert found.value == {"n": 2}
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


def test_a_write_whose_condition_is_dropped_on_the_way_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is signed. Otherwise such a gateway would have writers overwrite each other."""
    from http.client import HTTPConnection

    deadline = time.monotonic() + 10
    assert client.create("k", b"first", deadline)
    putheader = HTTPConnection.putheader

    def drop(self: HTTPConnection, name: str, *values: Any) -> None:
        if name != "if-none-match":
            putheader(self, name, *values)

    monkeypatch.setattr(HTTPConnection, "putheader", drop)
    with pytest.raises(Unavailable, match="SignatureDoesNotMatch"):
        client.create("k", b"second", deadline)
    monkeypatch.undo()
    assert client.get("k", deadline) == b"first"


@pytest.mark.parametrize("code", ["", "PreconditionFailed"])
def test_a_condition_that_does_not_hold_needs_no_reason(url: str, tmp_path: Path, code: str) -> None:
    """Some servers answer 412 without a body."""
    with (
        HttpProxy(s3_server().port, forward) as proxy,
        open_at(url, tmp_path, endpoint=proxy.endpoint, timeout=5) as store,
    ):
        store.put(("a",), "k", {})
        answers: list[Fault] = [(412, {}, code)]
        proxy.choose = lambda method, path: answers.pop() if answers and method == "PUT" else None
        store.put(("a",), "other", {})
        assert not answers, "this showed nothing"
        assert store.count() == 2
        check_caches(url, tmp_path, engine_of(store))


def test_a_busy_gateway_may_have_passed_a_write_on(url: str, tmp_path: Path) -> None:
    """503 without S3's own words: the server may have got the write."""
    with (
        HttpProxy(s3_server().port, forward) as proxy,
        open_at(url, tmp_path, endpoint=proxy.endpoint, timeout=0.5) as store,
    ):
        store.put(("a",), "k", {})
        proxy.choose = lambda method, path: (503, {}, "") if method == "PUT" else None
        with pytest.raises(OutcomeUnknown):
            store.put(("a",), "other", {})


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("s3://buc ket/x", {}),
        ("s3://b:80/x", {}),
        (f"s3://{'b' * 64}/x", {}),
        ("s3://bücket/x", {}),
        ("s3://bucket/a\nb", {}),
        ("s3://bucket/\ud800", {}),
        ("s3://bucket/x", {"endpoint": "http://"}),
        ("s3://bucket/x", {"endpoint": "http://host:port"}),
        ("s3://bucket/x", {"endpoint": "http://.example.com"}),
        ("s3://bucket/x", {"endpoint": f"http://{'h' * 64}.example.com"}),
        ("s3://bucket/x", {"region": "eu..west"}),
        ("s3://bucket/x", {"endpoint": "http://me:word@host"}),
        ("s3://bucket/x", {"endpoint": "http://host\r\nx: y"}),
        ("s3://bucket/x", {"region": "eu\r\nx: y"}),
        ("s3://bucket/x", {"cache": 5}),
        ("s3://bucket/x", {"cache": "a\0b"}),
    ],
)
def test_input_that_no_server_may_get_is_refused_at_once(where: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        holdall.open(where, credentials=s3_credentials, **options)


def test_an_endpoint_of_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "minio:9000")
    with pytest.raises(InvalidInput, match="endpoint is a URL"):
        holdall.open("s3://bucket/x", credentials=s3_credentials)


@pytest.mark.parametrize("keys", [("key\n", "secret"), ("key", "secret\n"), ("kéy", "secret"), ("key", "secret", 5)])
def test_a_key_with_a_line_break_is_refused(url: str, tmp_path: Path, keys: tuple[Any, ...]) -> None:
    """As from a file whose last line ends with one."""
    store = open_at(url, tmp_path, credentials=lambda: keys)
    with pytest.raises(InvalidInput, match="credentials"):
        store.get(("a",), "k")
    store.close()
