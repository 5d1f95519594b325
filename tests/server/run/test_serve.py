"""The command `serve`: tokens, MCP over HTTP, metrics, logs without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import Implementation

import holdall
from holdall.errors import InvalidInput
from holdall.faces.cli.app import run as run_here
from holdall.runtime import signals
from holdall.server import app
from holdall.server.run.serve import Settings, load_settings, make_app
from holdall.server.run.serve import run as serve
from support.serve_command import serving


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    if arguments[1] == "token":  # which needs no process of its own
        out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_here(list(arguments))
        out.flush()
        return subprocess.CompletedProcess(arguments, code, out.buffer.getvalue().decode(), err.getvalue())  # type: ignore[attr-defined]  # of `BytesIO`
    return subprocess.run([sys.executable, "-m", "holdall", *arguments], capture_output=True, text=True, check=False)


def test_the_command_serves_with_tokens_mcp_metrics_and_quiet_logs(tmp_path: Path) -> None:
    database = f"{tmp_path}/store.db"
    with serving(database, tmp_path) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
            assert client.put("/v1/items/a/secret-key", json={"text": "secret-value"}).status_code == 200
            assert client.get("/readyz").status_code == 200
            made = json.loads(
                run(database, "token", "create", "--scope", "users/ada", "--expires", "1d", "--json").stdout
            )
            scoped = {"Authorization": f"Bearer {made['token']}"}
            assert client.put("/v1/items/notes/k", json={"x": 1}, headers=scoped).status_code == 200
            assert client.get("/v1/items/users/ada/notes/k").json()["value"] == {"x": 1}
            assert client.get("/metrics", headers=scoped).status_code == 403
            asyncio.run(use_mcp(server.url, made["token"]))
            refused = client.post("/mcp", content=b"not JSON").status_code
            assert refused >= 400
            assert client.get("/v1/items/users/ada/facts/tea").json()["value"] == {"text": "green"}
            with holdall.open(database, sweep_interval=None) as store:
                assert [one.author for one in store.history(("users", "ada", "facts"), "tea")] == ["client tests"]
            assert "users/ada" in run(database, "token", "list").stdout
            assert run(database, "token", "revoke", made["id"]).returncode == 0
            time.sleep(1)
            for _ in range(8):  # both workers
                assert client.get("/v1/me", headers=scoped).status_code == 401
            time.sleep(1.2)
            metrics = client.get("/metrics").text
            counted = [line for line in metrics.splitlines() if 'method="PUT"' in line and "requests_total" in line]
            assert sum(int(line.rsplit(" ", 1)[1]) for line in counted) == 2, "summed over the workers"
            assert "holdall_workers 2" in metrics
            assert 'holdall_requests_total{method="POST",route="/mcp",status="200"}' in metrics
            assert f'holdall_requests_total{{method="POST",route="/mcp",status="{refused}"}} 1' in metrics
        log = (tmp_path / "serve.err").read_text()
        assert '"route":"/v1/items/{address:path}"' in log
        assert '"route":"/mcp"' in log
        assert not any(secret in log for secret in ("secret-key", "secret-value", server.token, made["token"]))
        assert all(json.loads(line)["level"] for line in log.splitlines()), "no library writes lines of its own"
        remote = holdall.open(server.url, token=server.token)
        assert remote.get(("a",), "secret-key") is not None
        remote.close()


def test_an_app_leaves_the_root_logger_to_the_user() -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers.clear()  # those of pytest, beside which MCP's SDK would add none
    try:
        root.setLevel("ERROR")
        with holdall.open("memory:") as store:
            app(store)
        assert (root.handlers, root.level) == ([], logging.ERROR)
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])


async def use_mcp(url: str, token: str) -> None:
    async with (
        httpx_client(token) as http,
        Client(
            streamable_http_client(f"{url}/mcp", http_client=http),
            client_info=Implementation(name="tests", version="1"),
        ) as client,
    ):
        put = {"namespace": ["facts"], "key": "tea", "value": {"text": "green"}}
        assert not (await client.call_tool("memory_put", put)).is_error
        found = (await client.call_tool("memory_search", {"query": "green"})).structured_content
        assert [one["key"] for one in found["memories"]] == ["tea"]


def httpx_client(token: str) -> httpx.AsyncClient:
    import httpx2

    return httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["memory:", "serve", "--workers", "2", "--auth", "none"], "memory: store of its own"),
        pytest.param(
            ["x.db", "serve", "--auth", "none", "--host", "0.0.0.0"], "--insecure", marks=pytest.mark.not_short
        ),
        pytest.param(["x.db", "serve", "--auth", "some"], "--auth", marks=pytest.mark.not_short),
        pytest.param(["x.db", "serve", "--tls-cert", "a"], "belong together", marks=pytest.mark.not_short),
        (["x.db", "token", "create", "--allow", "everything"], "rights"),
        (["x.db", "token", "create", "--expires", "soon"], "--expires"),
        (["x.db", "token", "create", "--expires", "999999999999w"], "too long"),
        pytest.param(["x.db", "token", "create", "--expires", "9999999w"], "year 10000", marks=pytest.mark.not_short),
        (["x.db", "token", "revoke", "none"], "no token"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    url = arguments[0] if arguments[0] == "memory:" else f"{tmp_path}/{arguments[0]}"
    done = run(url, *arguments[1:])
    assert done.returncode != 0
    assert message in done.stderr


def test_options_of_the_command_line_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('url = "agent.db"\n[options]\nhistory = 60\nttl = 1\n')
    settings = load_settings(config, options={"ttl": 2}, port=1)
    assert (settings.url, settings.port, settings.options) == ("agent.db", 1, {"history": 60, "ttl": 2})


@pytest.mark.parametrize("package", ["starlette", "mcp", "uvicorn", "httptools"])
def test_a_missing_package_of_the_server_is_named(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from holdall.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "memory:", "serve"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"the package '{package}" in done.stderr
    assert done.stderr.endswith("pip install 'holdall[server]'\n")


@pytest.mark.parametrize("port", [0, -1, 65536, 99_999_999])
def test_a_port_that_does_not_exist_is_refused(port: int) -> None:
    with pytest.raises(InvalidInput, match="--port is a number from 1 to 65535"):
        serve(Settings(url="memory:port", port=port))


@pytest.mark.not_short
def test_a_worker_that_is_killed_while_it_is_asked_whether_it_lives_is_replaced_at_once(tmp_path: Path) -> None:
    """uvicorn would wait for its answer for the minute that a busy worker has."""
    with serving(f"{tmp_path}/store.db", tmp_path, workers=2) as running:
        main = psutil.Process(running.process.pid)
        stopped = find_workers(main)[0]
        stopped.suspend()
        time.sleep(2)  # uvicorn asks every half second
        stopped.kill()
        deadline = time.monotonic() + 30
        while len(found := find_workers(main)) < 2 or stopped in found:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def find_workers(main: psutil.Process) -> list[psutil.Process]:
    found = []
    for one in main.children():
        with contextlib.suppress(psutil.Error):  # it has ended
            if "spawn_main" in " ".join(one.cmdline()):
                found.append(one)
    return found


def test_the_signal_handlers_of_the_server_only_set_flags_and_are_not_deferred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "_trusted", [])
    monkeypatch.setenv("HOLDALL_SERVE", msgspec.json.encode(Settings(url="memory:", auth="none")).decode())
    server = uvicorn.Server(uvicorn.Config(make_app()))
    seen: list[bool] = []

    def stop() -> None:
        signal.raise_signal(signal.SIGTERM)
        seen.append(server.should_exit)
        server._captured_signals.clear()  # which it would raise again

    with server.capture_signals():
        assert not {signal.SIGINT, signal.SIGTERM} & {number for number, _ in signals._find_handlers()}
        signals.defer_signals(stop)
    assert seen == [True]
