"""The demo runs, can be read outside a terminal, and fails when a claim does."""

import importlib.util
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import httpx
import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.not_short  # half a minute
def test_every_claim_of_the_demo_holds_and_its_output_is_plain_in_a_pipe() -> None:
    run = subprocess.run([sys.executable, DEMO, "--kills", "4"], check=False, capture_output=True, timeout=300)
    output = run.stdout.decode()
    assert run.returncode == 0, output + run.stderr.decode()
    assert "✗" not in output
    assert "\x1b" not in output
    assert output.count("Ada is allergic to peanuts") == 4, "by a filter and by words, on SQLite and on PostgreSQL"


@pytest.mark.not_short
def test_every_claim_of_the_demo_holds_in_a_bucket() -> None:
    command = [sys.executable, DEMO, "--kills", "2", "--url", "s3"]
    run = subprocess.run(command, check=False, capture_output=True, timeout=300)
    output = run.stdout.decode()
    assert run.returncode == 0, output + run.stderr.decode()
    assert "✗" not in output
    assert "s3://demo/agents" in output


def test_the_demo_fails_when_a_claim_does_not_hold(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acts = {"Good": lambda stage: stage.claim("water is wet", True), "Bad": lambda stage: stage.claim("2 is 3", False)}
    monkeypatch.setattr(demo, "ACTS", acts)
    assert demo.play(kills=0) == 1
    output = capsys.readouterr().out
    assert "✓ water is wet" in output
    assert "✗ BROKEN: 2 is 3" in output


ONE_ACT = """
import sys
sys.path.insert(0, sys.argv[1])
import demo, holdall
def remember(stage):
    with holdall.open(stage.url) as store:
        store.put(("agents", "ada"), "diet", {"text": "no peanuts"})
    stage.claim("it is stored", True)
demo.ACTS = {"One": remember}
sys.exit(demo.play(kills=0))
"""


def test_in_a_terminal_the_demo_ends_with_the_explorer_of_its_store() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", ONE_ACT, str(DEMO.parent)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, start_new_session=True) as process:
        os.close(theirs)
        output = b""
        while (found := re.search(rb"(http://127\.0\.0\.1:\d+/)\s*#\s*token=([\w-]{43})\r\n", output)) is None:
            output += os.read(ours, 1000)
        root, secret = found[1].decode(), found[2].decode()
        answer = httpx.get(f"{root}v1/items/agents/ada/diet", headers={"Authorization": f"Bearer {secret}"})
        assert answer.json()["value"] == {"text": "no peanuts"}
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    os.close(ours)


def test_the_demo_sees_an_acknowledged_entry_that_is_gone(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = demo.Stage(demo.Console(), f"sqlite:///{tmp_path / 'agents.db'}", kills=1)
    stage.acknowledged = {("cat-1", "0-0"): "a digest of what nobody stored"}
    demo.everything_acknowledged_is_there(stage)
    assert len(stage.failures) == 1
    assert "✗" in capsys.readouterr().out
