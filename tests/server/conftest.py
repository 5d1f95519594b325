"""A served store, for tests of the server's routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import holdall
from holdall.server import RIGHTS, Tokens
from support.served import server


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that needs tokens, at the server with two workers."""
    return server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False, app={"auth": "tokens"})


@pytest.fixture
def store(url: str) -> Iterator[holdall.Store]:
    """The store itself."""
    with server().open_directly(url) as store:
        yield store


@pytest.fixture
def new_token(store: holdall.Store) -> Callable[..., str]:
    """Make a token, and return its text."""

    def make(**arguments: Any) -> str:
        return Tokens(store).create(**({"allow": RIGHTS} | arguments))[1]

    return make


@pytest.fixture
def client(url: str, new_token: Callable[..., str]) -> Iterator[httpx.Client]:
    """A client with every right on the whole store."""
    with connect(url, new_token()) as client:
        yield client


def connect(url: str, token: str | None) -> httpx.Client:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, headers=headers, timeout=30)
