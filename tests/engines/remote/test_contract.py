"""The remote engine through a real server with two workers: the contract, and the state machines against memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import holdall
from holdall.engine import Count
from holdall.server import Tokens
from holdall.testing import Clock, StoreContract, contract, file_machine, store_machine
from support.extent import IS_SHORT
from support.postgres_schemas import empty_schema
from support.served import SharedClock, server
from support.servers import postgres_url

SERVED: dict[str, Any] = {"durability": "relaxed", "sweep_interval": None, "feed_retention": 0}
#: All in the long form, and in the short one what the protocol does in its own way.
SHORT: tuple[type, ...] = (contract.BatchContract, contract.ScopeContract, contract.FeedContract)
ALL: tuple[type, ...] = (StoreContract,)
_numbers = itertools.count()


class Served:
    """How the contract opens a store that the server serves."""

    @pytest.fixture
    def clock(self, url: str) -> Clock:
        return server().clock(url)

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        clock = options.get("clock")
        if clock is None or (isinstance(clock, Clock) and not isinstance(clock, SharedClock)):
            server().clock(url).follow(clock)
        if "filter_fields" in options:
            server().change_options(url, filter_fields=options["filter_fields"])
        return holdall.open(url, **options)

    @staticmethod
    def _hidden(store: Any) -> int:
        """Count the uploads: the server also has entries of its own."""
        engine = store.store._engine_handle.engine
        with server().open_directly(engine._url.geturl()) as direct:
            namespace = ("__holdall__", "filesystem", "uploads")
            return int(direct._engine_handle.engine.execute([Count(namespace)])[0])


class TestRemote(Served, *(SHORT if IS_SHORT else ALL)):  # type: ignore[misc]  # chosen as it is imported
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return server().serve(f"sqlite:///{tmp_path}/store.db", **SERVED)


class TestScopedToken(Served, *((contract.LeaseContract,) if IS_SHORT else ALL)):  # type: ignore[misc]  # as above
    """With a token of a scope."""

    # Tombstones and old values belong to the whole store: the server purges them, and no token of a scope does.
    test_old_versions_are_purged_after_their_time = None
    test_a_cursor_older_than_the_purged_tombstones_has_expired = None
    test_tombstones_are_purged_in_slices = None
    test_the_feed_can_be_read_from_its_beginning_after_tombstones_are_purged = None
    test_deletions_stay_in_the_feed_for_the_retention = None
    test_the_sweeper_purges_tombstones = None
    # So do the setting of its history and its embedding model, which a token of a scope cannot replace.
    test_the_setting_is_the_stores_and_open_stores_obey_it = None
    test_another_model_is_refused_until_reindex = None
    test_writing_with_a_replaced_model_is_refused = None
    # The statistics of a scope have no fields, and no progress of the text index.
    test_stats_have_the_declared_fields = None
    test_stats_have_the_lag_of_the_text_index = None

    if IS_SHORT:  # twenty times each: they are about the store, and not about the protocol
        test_every_change_is_made_while_the_lease_is_held = None
        test_every_change_is_refused_when_the_lease_is_lost = None

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return server().serve(f"sqlite:///{tmp_path}/store.db", app={"auth": "tokens"}, **SERVED)

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        history = options.pop("history", None)  # which only a token for the whole store may turn on
        own = {"sweep_interval": None, "history": history, "clock": options.get("clock")}
        with server().open_directly(url, **own) as direct:
            rights = ["read", "write", "watch", "lease", "history", "erase"]
            _, text = Tokens(direct).create(scope=("tenants", "42"), allow=rights)
        return super().open_store(url, token=text, **options)  # type: ignore[misc]  # of `Served`


if not IS_SHORT:

    class TestRemotePostgres(Served, StoreContract):  # type: ignore[misc]  # as above
        @pytest.fixture
        def url(self) -> Iterator[str]:
            with empty_schema() as schema:
                url = server().serve(postgres_url(), schema=schema, sweep_interval=None, feed_retention=0, pool_max=4)
                yield url
                server().close(url)


def open_store(folder: Path, clock: Clock) -> holdall.Store:
    url = server().serve(f"sqlite:///{folder}/store.db", **SERVED)
    server().clock(url).mirror(clock)
    return holdall.open(url, clock=clock, sweep_interval=None)


TestMachine = store_machine(open_store).TestCase
TestAsyncMachine = store_machine(open_store, use_async=True).TestCase
TestFileMachine = file_machine(open_store).TestCase
TestAsyncFileMachine = file_machine(open_store, use_async=True).TestCase
for _machine in (TestMachine, TestAsyncMachine, TestFileMachine, TestAsyncFileMachine):
    _machine.settings = settings(_machine.settings, max_examples=2 if IS_SHORT else 30, deadline=None)
    if IS_SHORT:
        _machine.settings = settings(_machine.settings, stateful_step_count=20)
del _machine  # or it would run once more
for _machine in (TestAsyncMachine, TestFileMachine):
    pytest.mark.not_short(_machine)
del _machine
