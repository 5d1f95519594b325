"""Random requests that follow the OpenAPI document, and random ones that do not, made by schemathesis: no 500."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import holdall
from server.conftest import connect

SCHEMATHESIS = Path(sys.prefix) / "fuzz/bin/schemathesis"


@pytest.mark.not_short
@pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="'make test-all' installs schemathesis in .venv/fuzz")
def test_no_request_is_answered_with_500(
    url: str, new_token: Callable[..., str], store: holdall.Store, tmp_path: Path
) -> None:
    store.put(("kept",), "k", {"n": 1})
    document = tmp_path / "openapi.json"
    with connect(url, None) as client:
        document.write_bytes(client.get("/openapi.json").content)
    done = subprocess.run(
        [
            SCHEMATHESIS,
            "run",
            document,
            f"--url={url}",
            f"--header=Authorization: Bearer {new_token(scope=('fuzz',))}",
            "--checks=not_a_server_error,content_type_conformance,status_code_conformance,response_schema_conformance",
            "--exclude-path-regex=changes",  # streams do not end
            "--phases=examples,coverage,fuzzing",
            "--max-examples=30",
            "--request-timeout=20",
            "--continue-on-failure",
            "--no-color",
            "--seed=1",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
    assert store.get(("kept",), "k") is not None
    assert httpx.get(f"{url}/healthz").status_code == 200
