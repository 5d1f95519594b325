"""Clients that are slow, that lie about the length of a body, or that send broken requests; and TLS."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import psutil
import pytest
import uvicorn

import holdall
from holdall.server import RIGHTS, Tokens, app
from server.conftest import connect
from support.serve_command import Serving, serving
from support.servers import free_port

pytestmark = pytest.mark.timed


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with short time limits."""
    folder = tmp_path_factory.mktemp("served")
    config = folder / "config.toml"
    config.write_text("[limits]\nbody = 1000000\nbody_timeout = 1.0\nheader_timeout = 1.0\n")
    with serving(f"{folder}/store.db", folder, "--config", str(config)) as served:
        yield served


def talk(served: Serving, *parts: bytes, pause: float = 0.0, wait: float = 10.0) -> bytes:
    """Send raw bytes, and return all that is received until the server closes the connection, or is silent."""
    address = served.url.removeprefix("http://").split(":")
    received = b""
    with (
        socket.create_connection((address[0], int(address[1])), timeout=wait) as connection,
        contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError),
    ):
        for part in parts:
            connection.sendall(part)
            if select.select([connection], [], [], pause)[0]:
                break  # it has answered
        while chunk := connection.recv(65536):
            received += chunk
    return received


def head(served: Serving, method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {served.token}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def names(served: Serving) -> list[str]:
    with connect(served.url, served.token) as client:
        return [item["key"] for item in client.get("/v1/scan").json()["items"]]


@pytest.mark.not_short
@pytest.mark.parametrize(
    ("method", "path", "size"),
    [("PUT", "/v1/files/slow", 100_000), ("PUT", "/v1/items/a/%2Fslow", 1000), ("POST", "/mcp", 100_000)],
)
def test_a_slow_body_is_cut_off_and_writes_nothing(served: Serving, method: str, path: str, size: int) -> None:
    began = time.monotonic()
    sent = head(served, method, path, f"Content-Length: {size}", "Accept: application/json, text/event-stream")
    answer = talk(served, sent, *[b"x"] * 20, pause=0.2)
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert time.monotonic() - began < 8
    assert "/slow" not in names(served)


def test_a_body_may_come_after_its_head_also_behind_another_request(served: Serving) -> None:
    first = head(served, "PUT", "/v1/items/late/a", "Content-Length: 2") + b"{}"
    second = head(served, "PUT", "/v1/items/late/b", "Content-Length: 2")
    host, port = served.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        for part in (second, b"{}", first + second, b"{", b"}"):
            connection.sendall(part)
            time.sleep(0.1)
        while received.count(b"HTTP/1.1 200 ") < 3:
            chunk = connection.recv(65536)
            assert chunk, received
            received += chunk
    with connect(served.url, served.token) as client:
        assert {client.delete(f"/v1/items/late/{key}").status_code for key in "ab"} == {204}


@pytest.mark.not_short
def test_a_slow_head_is_cut_off(served: Serving) -> None:
    began = time.monotonic()
    assert talk(served, *[bytes([letter]) for letter in b"GET /v1/me HTTP/1.1\r\nHost: loc"], pause=0.1) == b""
    assert time.monotonic() - began < 8


@pytest.mark.not_short
def test_a_large_body_is_refused_without_reading_it(served: Serving) -> None:
    workers = psutil.Process(served.process.pid).children(recursive=True)
    before = sum(worker.memory_info().rss for worker in workers)
    declared = talk(served, head(served, "PUT", "/v1/files/large", "Content-Length: 99999999999"), wait=3)
    assert b" 413 " in declared.split(b"\r\n")[0]
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    chunked = talk(served, head(served, "PUT", "/v1/files/large", "Transfer-Encoding: chunked"), *[chunk] * 50, wait=3)
    assert not chunked or b" 413 " in chunked.split(b"\r\n")[0]
    assert "/large" not in names(served)
    assert sum(worker.memory_info().rss for worker in workers) - before < 50 << 20


@pytest.mark.not_short
@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Length: 5", "Content-Length: 60"],
        ["Content-Length: 5", "Content-Length: 5"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 5"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: identity, chunked"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding: \x0bchunked"],
        ["Transfer-Encoding : chunked"],
        ["Content-Length: +5"],
        ["Content-Length: 5, 5"],
        ["Content-Length: 5 5"],
        ["Content-Length: -1"],
        ["Content-Length: 0x5"],
        ["Content-Length:"],
        ["X: a", "  folded", "Content-Length: 5"],
        ["Transfer-Encoding:", "  chunked"],
        ["Content-Length:", "  5"],
        ["X: a\rTransfer-Encoding: chunked", "Content-Length: 5"],
        ["X: a\nContent-Length: 60"],
        ["X: a\n", "Content-Length: 5"],
        ["X\x00: a", "Content-Length: 5"],
        ["Host: localhost", "Content-Length: 5"],
    ],
)
def test_a_request_of_doubtful_length_is_refused(served: Serving, headers: list[str]) -> None:
    """The connection ends with it: neither it nor a request that is hidden in its body is executed."""
    for body in (b"0\r\n\r\n", b"{}   "):
        answer = talk(served, head(served, "PUT", "/v1/items/a/outer", *headers) + body + hidden(served), wait=2)
        assert answer.startswith(b"HTTP/1.1 400 "), (headers, answer)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert not executed(served)


@pytest.mark.not_short
@pytest.mark.parametrize(
    "body", [b"5\n{}   \n0\n\n", b"5\r\n{}   X\r\n0\r\n\r\n", b"0x5\r\n{}   \r\n0\r\n\r\n", b"5 \r\n{}   \r\n0\r\n\r\n"]
)
def test_nothing_follows_a_broken_chunk(served: Serving, body: bytes) -> None:
    sent = head(served, "PUT", "/v1/items/a/outer", "Transfer-Encoding: chunked") + body + hidden(served)
    answer = talk(served, sent, wait=2)
    assert b" 200 " not in answer, answer
    assert not executed(served)


@pytest.mark.not_short
def test_bare_line_feeds_are_refused(served: Serving) -> None:
    sent = head(served, "PUT", "/v1/items/a/outer", "Content-Length: 2").replace(b"\r\n", b"\n") + b"{}"
    assert talk(served, sent + hidden(served), wait=2).startswith(b"HTTP/1.1 400 ")
    assert not executed(served)


@pytest.mark.not_short
def test_two_whole_requests_are_both_executed(served: Serving) -> None:
    """The control of the tests above: they would see a request that was hidden."""
    first = head(served, "PUT", "/v1/items/a/outer", "Content-Length: 5") + b"{}   "
    assert talk(served, first + hidden(served), wait=2).count(b"HTTP/1.1 200 ") == 2
    assert executed(served) == {"/v1/items/a/outer", "/v1/items/smuggled/k"}


@pytest.mark.not_short
@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 5"],
        ["Transfer-Encoding: chunked", "Content-Length: 0"],
    ],
)
@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_an_app_in_another_server_refuses_a_request_with_two_lengths(
    tmp_path: Path, http: str, headers: list[str]
) -> None:
    """h11 accepts it, and reads on after the last chunk."""
    with holdall.open(tmp_path / "store.db") as store:
        _, token = Tokens(store).create(allow=RIGHTS)
        config = uvicorn.Config(app(store), port=free_port(), http=http, log_level="critical")  # type: ignore[arg-type]  # one of its names
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run)
        thread.start()
        served = Serving(f"http://127.0.0.1:{config.port}", token, None)  # type: ignore[arg-type]  # no process
        while not running.started:
            time.sleep(0.01)
        try:
            for body in (b"0\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\n"):
                answer = talk(
                    served, head(served, "PUT", "/v1/items/a/outer", *headers) + body + hidden(served), wait=2
                )
                assert answer.startswith(b"HTTP/1.1 400 "), answer
                assert not executed(served)
        finally:
            running.should_exit = True
            thread.join(20)


@pytest.mark.parametrize("path", ["/v1/items/a/k#1", "/v1/items/a/k?ttl=5#1", "/v1/files/f#1"])
def test_a_target_with_a_fragment_is_refused(served: Serving, path: str) -> None:
    """What follows would be ignored: a client that has forgotten to encode "a#1" would write to "a"."""
    answer = talk(served, head(served, "PUT", path, "Content-Length: 2", "Connection: close") + b"{}", wait=5)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert names(served) == []


def hidden(served: Serving) -> bytes:
    return head(served, "PUT", "/v1/items/smuggled/k", "Content-Length: 2") + b"{}"


def executed(served: Serving) -> set[str]:
    """Which of the two writes took effect; they are undone."""
    with connect(served.url, served.token) as client:
        paths = ("/v1/items/a/outer", "/v1/items/smuggled/k")
        return {path for path in paths if client.delete(path).status_code == 204}


@pytest.mark.not_short
def test_broken_requests_do_no_harm(served: Serving) -> None:
    for sent in [
        b"\x00" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/me HTTP/1.1\r\n" + b"X: y\r\n" * 100_000,
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        head(served, "GET", "/v1/items/%ff%fe/k"),
        head(served, "GET", "/v1/items/%/k"),
        head(served, "GET", "/v1/items/a/%00"),
        head(served, "GET", "/v1/files/..%2f..%2fetc/passwd"),
        head(served, "GET", "/v1/files/../../etc/passwd"),
        head(served, "GET", "/v1/items/__holdall__/tokens/x"),
        head(served, "GET", "/v1/scan?namespace=__holdall__"),
        head(served, "GET", "//v1/items/a/k"),
        head(served, "GET", "http://other.example/v1/me"),
        head(served, "OPTIONS", "*"),
        head(served, "CONNECT", "localhost:80"),
    ]:
        answer = talk(served, sent, wait=1)
        assert b" 500 " not in answer.split(b"\r\n")[0], sent[:80]
        assert b"hash" not in answer
    with connect(served.url, served.token) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "localhost@evil", ""])
def test_another_host_is_refused(served: Serving, host: str) -> None:
    sent = f"GET /v1/me HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {served.token}\r\nConnection: close\r\n\r\n"
    assert b" 421 " in talk(served, sent.encode()).split(b"\r\n")[0] or b" 400 " in talk(served, sent.encode())


def test_an_expired_token_ends_and_so_do_its_streams(
    url: str, store: holdall.Store, new_token: Callable[..., str]
) -> None:
    text = Tokens(store).create(allow=RIGHTS, expires=timedelta(seconds=1.5))[1]
    with connect(url, text) as client:
        assert client.get("/v1/me").status_code == 200
        with client.stream("GET", "/v1/changes") as events:
            lines = events.iter_lines()
            assert next(lines) == ": connected"
            time.sleep(1.6)
            store.put(("a",), "secret", {"n": 1})
            assert not any("secret" in line for line in lines), "nothing is sent after the end"
        assert client.get("/v1/me").status_code == 401


def test_forged_truncated_and_reordered_cursors_are_refused(
    url: str, store: holdall.Store, new_token: Callable[..., str]
) -> None:
    for number in range(30):
        store.put(("users", "bob"), f"k{number}", {"text": "plover"})
        store.put(("users", "ada"), f"k{number}", {"text": "tea"})
    with connect(url, new_token()) as admin, connect(url, new_token(scope=("users", "ada"))) as ada:
        ours = ada.post("/v1/search", json={"limit": 5}).json()["next"]
        theirs = admin.post("/v1/search", json={"namespace": ["users", "bob"], "limit": 5}).json()["next"]
        mark = admin.get("/v1/scan?namespace=users/bob&limit=5").json()["next"]
        for cursor in [
            theirs,
            ours[:-1],
            ours[::-1],
            ours + "x",
            "",
            ".",
            "0.0",
            theirs.split(".")[0] + ours,
            "9" * 500,
        ]:
            answer = ada.post("/v1/search", json={"limit": 5, "cursor": cursor})
            assert answer.status_code in (200, 400, 410), (cursor, answer.text)
            assert "plover" not in answer.text
        for after in [mark, mark[:-3], mark[::-1], "x", "W10=", "bnVsbA=="]:
            answer = ada.get("/v1/scan", params={"after": after})
            assert answer.status_code in (200, 400), (after, answer.text)
            assert "plover" not in answer.text
        for since in ["0", theirs.split(".")[0], "-1", "x", "9" * 30, "0.5", "1;2"]:
            with ada.stream("GET", "/v1/changes", params={"since": since}) as events:
                if events.status_code != 200:
                    assert events.status_code in (400, 410), since
                    continue
                store.put(("users", "bob"), "plover", {})
                store.put(("users", "ada"), "end", {})
                for line in events.iter_lines():
                    assert "plover" not in line, since
                    if '"key":"end"' in line:
                        break


@pytest.mark.not_short
def test_the_server_speaks_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
        f" -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {key} -out {cert}".split(),
        check=True,
        capture_output=True,
    )
    with serving(
        f"{tmp_path}/store.db", tmp_path, "--tls-cert", str(cert), "--tls-key", str(key), ca_file=cert
    ) as served:
        trusting = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=served.url, verify=trusting, headers={"x-api-key": served.token}) as client:
            cookie = client.post("/v1/session").headers["set-cookie"]
            assert all(part in cookie.lower() for part in ("secure", "httponly", "samesite=strict"))
        with holdall.open(served.url, token=served.token, ca_file=str(cert)) as store:
            store.put(("a",), "k", {"n": 1})
            assert store.get(("a",), "k") is not None
        with (
            pytest.raises(holdall.errors.Unavailable),
            holdall.open(served.url, token=served.token, timeout=1) as stranger,
        ):
            stranger.get(("a",), "k")
        assert json.dumps(served.token) not in (tmp_path / "serve.err").read_text()
