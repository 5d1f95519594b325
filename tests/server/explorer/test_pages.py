"""The files of the explorer as the server sends them, and the command `ui`. These tests need no browser."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import httpx
import pytest

STATIC = Path(__file__).parents[3] / "src/holdall/server/explorer/static"
MARKUP_FROM_TEXT = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
FILES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())


def test_the_page_and_its_files_are_sent_without_a_token_and_with_a_strict_policy(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        page = client.get("")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        for name in FILES:
            answer = client.get(f"explorer/{name}")
            assert answer.content == (STATIC / name).read_bytes()
            assert answer.headers["content-security-policy"] == "default-src 'self'; img-src 'self' blob:"
            assert answer.headers["x-content-type-options"] == "nosniff"
            tag = {"If-None-Match": answer.headers["etag"]}
            assert client.get(f"explorer/{name}", headers=tag).status_code == 304
        for name in ("../pages.py", "%2e%2e/pages.py", "nothing.js", ""):
            assert client.get(f"explorer/{name}").status_code == 404


def test_the_page_names_no_other_host_and_uses_no_markup_from_texts() -> None:
    for name in FILES:
        text = (STATIC / name).read_text()
        hosts = set(re.findall(r"https?://([\w.]+)", text))
        assert hosts <= {"www.w3.org"}, name  # the names of XML's languages, which are not loaded
        assert not MARKUP_FROM_TEXT.search(text), name


def test_the_modules_of_the_first_view_are_preloaded() -> None:
    page = (STATIC / "index.html").read_text()
    preloaded = set(re.findall(r'modulepreload" href="explorer/([^"]+)"', page))
    needed, open = set(), ["shell/main.js", "views/browse.js"]
    while open:
        name = open.pop()
        if name not in needed:
            needed.add(name)
            imports = re.findall(r'^(?:import|export) .*?from "([^"]+)";$', (STATIC / name).read_text(), re.MULTILINE)
            open += [(STATIC / name / ".." / one).resolve().relative_to(STATIC).as_posix() for one in imports]
    assert preloaded == needed - {"shell/main.js"}


@pytest.mark.not_short
def test_the_wheel_has_every_file_of_the_page(tmp_path: Path) -> None:
    root = STATIC.parents[4]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, root], check=True)
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"holdall/server/explorer/static/{name}" for name in FILES} <= set(names)


def test_the_command_ui_prints_an_address_whose_secret_opens_the_store(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdall", f"{tmp_path}/agent.db", "ui", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"(http://127\.0\.0\.1:\d+/)#token=([\w-]{43})\n", line)
            assert found, line
            root, secret = found.groups()
            with httpx.Client(base_url=root) as client:
                assert client.get("v1/me").status_code == 401
                assert client.post("v1/session", headers={"Authorization": f"Bearer {secret}"}).status_code == 204
                assert client.get("v1/me").json()["allow"][-1] == "admin"
                assert client.get("v1/tokens").json() == {"tokens": []}, "nothing is written to the store"
                wrong = {"Authorization": f"Bearer {secret[:-1]}"}
                assert urllib.request.urlopen(root).status == 200
                assert httpx.get(f"{root}v1/me", headers=wrong).status_code == 401
        finally:
            process.terminate()
