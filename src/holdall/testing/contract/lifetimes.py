"""TTLs: an expired entry is absent everywhere, swept or not."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest

from ... import ABSENT, KEEP
from ...errors import Conflict, InvalidInput
from ...ops import Backdate, Changes, Check, Get, Put, Refresh
from ..caller import Caller
from ..clock import Clock
from .base import Contract, Opener

NS = ("lifetimes",)


class NoOffset(tzinfo):
    """A time zone without an offset: Python takes such a datetime for a naive one."""

    def utcoffset(self, _moment: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


class LifetimeContract(Contract):
    @pytest.mark.parametrize("swept", [False, True], ids=["unswept", "swept"])
    def test_an_expired_entry_is_absent_to_everything(self, store: Caller, clock: Clock, swept: bool) -> None:
        expired = store.put(NS, "k", {"n": 1}, ttl=10)
        store.put((*NS, "below"), "k", {"n": 1}, ttl=10)
        clock.advance(10)
        if swept:
            assert store.sweep() == 2
        assert store.get(NS, "k") is None
        assert store.execute([Get(NS, "k"), Check(NS, "k", ABSENT)]) == [None, None]
        assert store.search(NS) == []
        assert store.search(NS, filter={"n": 1}) == []
        assert store.count(NS) == 0
        assert store.count(NS, filter={"n": 1}) == 0
        assert store.scan(NS) == []
        assert store.namespaces() == []
        assert store.delete(NS, "k") is False
        assert store.delete_tree(NS) == 0
        with pytest.raises(Conflict):
            store.put(NS, "k", {}, expect=expired)
        assert store.execute([Refresh(NS, "k")]) == [False]
        clock.advance(1)
        entry = store.put(NS, "k", {"n": 2}, expect=ABSENT)
        assert entry.created_at == clock.now
        assert entry.expires_at is None
        assert entry.version > expired.version

    def test_an_entry_lives_until_its_last_microsecond(self, store: Caller, clock: Clock) -> None:
        entry = store.put(NS, "k", {}, ttl=0.5)
        assert entry.expires_at == clock.now + timedelta(seconds=0.5)
        clock.advance(0.499999)
        assert store.get(NS, "k") == entry
        clock.advance(0.000001)
        assert store.get(NS, "k") is None

    def test_a_short_ttl_is_not_rounded_away(self, store: Caller, clock: Clock) -> None:
        """`ttl=0.4` was truncated to 0 in LangGraph's PostgresStore, so that one read expired the item."""
        entry = store.put(NS, "k", {}, ttl=1e-9)
        assert entry.expires_at == clock.now + timedelta(microseconds=1)
        assert store.put(NS, "k", {}, ttl=timedelta(milliseconds=1)).expires_at == clock.now + timedelta(milliseconds=1)

    def test_default_none_and_overwrites(self, opened: Opener, clock: Clock) -> None:
        store = opened(ttl=timedelta(minutes=1))
        assert store.put(NS, "k", {}).expires_at == clock.now + timedelta(minutes=1)
        assert store.put(NS, "k", {}, ttl=None).expires_at is None
        assert store.put(NS, "k", {}, ttl=5).expires_at == clock.now + timedelta(seconds=5)
        clock.advance(1)
        assert store.put(NS, "k", {}).expires_at == clock.now + timedelta(minutes=1)
        [entry] = store.execute([Put(NS, "k", {})])
        assert entry.expires_at == clock.now + timedelta(minutes=1)
        plain = opened()
        assert plain.put(NS, "k", {}).expires_at is None

    def test_update_keeps_the_ttl(self, store: Caller, clock: Clock) -> None:
        entry = store.put(NS, "k", {"n": 1}, ttl=10)
        clock.advance(4)
        assert store.update(NS, "k", lambda value: {"n": 2}).expires_at == entry.expires_at
        store.get(NS, "k", refresh=True)
        assert store.get(NS, "k").expires_at == clock.now + timedelta(seconds=10)
        store.put(NS, "forever", {})
        assert store.update(NS, "forever", lambda value: value).expires_at is None

    def test_refresh_moves_the_expiry_and_nothing_else(self, store: Caller, clock: Clock) -> None:
        before = store.put(NS, "k", {}, ttl=10)
        clock.advance(6)
        store.get(NS, "k")
        assert store.get(NS, "k").expires_at == before.expires_at
        after = store.get(NS, "k", refresh=True)
        assert after == store.get(NS, "k")
        assert after.expires_at == clock.now + timedelta(seconds=10)
        assert (after.version, after.updated_at, after.created_at) == (
            before.version,
            before.updated_at,
            before.created_at,
        )
        assert store.put(NS, "k", {}, expect=before).version > before.version

    def test_refresh_on_read_is_a_choice_of_the_store(self, opened: Opener, clock: Clock) -> None:
        store = opened(refresh_on_read=True)
        store.put(NS, "k", {}, ttl=10)
        for _ in range(3):
            clock.advance(6)
            assert store.get(NS, "k") is not None
        store.get(NS, "k", refresh=False)
        clock.advance(6)
        assert store.get(NS, "k", refresh=False) is not None
        clock.advance(6)
        assert store.get(NS, "k") is None

    def test_refreshing_what_has_no_ttl_does_nothing(self, store: Caller) -> None:
        entry = store.put(NS, "k", {})
        assert store.execute([Refresh(NS, "k"), Refresh(NS, "missing")]) == [False, False]
        assert store.get(NS, "k", refresh=True) == entry

    def test_what_comes_from_elsewhere_can_keep_its_times(self, store: Caller, clock: Clock) -> None:
        created, updated = clock.now - timedelta(days=3), clock.now - timedelta(days=2, microseconds=7)
        dated = Backdate(NS, "k", created, updated, clock.now + timedelta(seconds=5))
        entry, done, undone = store.execute(
            [Put(NS, "k", {}, ttl=60), dated, Backdate(NS, "missing", created, updated)]
        )
        assert (done, undone) == (True, False)
        found = store.get(NS, "k")
        assert found == replace(entry, created_at=created, updated_at=updated, expires_at=dated.expires_at)
        assert store.execute([Backdate(NS, "k", updated, updated)]) == [True]
        assert store.get(NS, "k") == replace(found, created_at=updated), "the expiry is left as it is"
        assert store.get(NS, "k", refresh=True).expires_at == clock.now + timedelta(seconds=60)
        clock.advance(60)
        assert store.execute([Backdate(NS, "k", updated, updated, clock.now + timedelta(seconds=5))]) == [False]
        with pytest.raises(InvalidInput, match="created_at has no time zone"):
            store.execute([Put(NS, "k", {}), Backdate(NS, "k", updated.replace(tzinfo=None), updated)])
        assert store.get(NS, "k") is None

    @pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-5))], ids=str)
    def test_an_entry_expires_at_the_time_that_was_given(self, store: Caller, clock: Clock, zone: timezone) -> None:
        moment = clock.now + timedelta(seconds=10, microseconds=7)
        entry = store.put(NS, "k", {"n": 1}, expires_at=moment.astimezone(zone))
        assert entry.expires_at == moment
        assert store.get(NS, "k") == entry
        assert store.get(NS, "k", refresh=True) == entry, "a refresh does not move it"
        assert store.update(NS, "k", lambda value: {"n": 2}).expires_at == moment, "an update keeps it"
        clock.advance(timedelta(seconds=10, microseconds=6))
        assert store.get(NS, "k") is not None
        clock.advance(timedelta(microseconds=1))
        assert store.get(NS, "k") is None
        assert store.sweep() == 1

    def test_expires_at_replaces_the_ttl_that_was_there(self, opened: Opener, clock: Clock) -> None:
        store = opened(ttl=5)
        store.put(NS, "k", {})
        moment = clock.now + timedelta(days=1)
        assert store.put(NS, "k", {}, expires_at=moment).expires_at == moment
        clock.advance(5)
        assert store.get(NS, "k", refresh=True).expires_at == moment
        assert store.put(NS, "k", {}).expires_at == clock.now + timedelta(seconds=5)

    def test_an_expiry_that_has_passed_makes_the_entry_absent_at_once(self, store: Caller, clock: Clock) -> None:
        store.put(NS, "k", {"n": 1})
        for moment in (clock.now, clock.now - timedelta(days=1), datetime(1970, 1, 1, tzinfo=UTC)):
            assert store.put(NS, "k", {"n": 2}, expires_at=moment).expires_at == moment
            assert store.get(NS, "k") is None
            assert store.count(NS) == 0
        assert store.sweep() == 1

    def test_expires_at_is_conditional_and_atomic_as_any_put_is(self, store: Caller, clock: Clock) -> None:
        moment = clock.now + timedelta(seconds=10)
        store.put(NS, "k", {"n": 1})
        with pytest.raises(Conflict):
            store.put(NS, "k", {"n": 2}, expires_at=moment, expect=ABSENT)
        assert store.get(NS, "k").expires_at is None
        scoped = store.scoped(NS)
        assert scoped.put((), "k", {"n": 3}, expires_at=moment).namespace == ()
        assert store.get(NS, "k").expires_at == moment

    def test_what_is_no_expiry_is_refused(self, store: Caller, clock: Clock) -> None:
        moment = clock.now + timedelta(seconds=10)
        for ttl in (60, timedelta(1), None, KEEP):
            with pytest.raises(InvalidInput, match="not both"):
                store.put(NS, "k", {}, ttl=ttl, expires_at=moment)
        for wrong in (10, "2030-01-01", timedelta(seconds=10)):
            with pytest.raises(InvalidInput, match="expires_at is a datetime with a time zone, not"):
                store.put(NS, "k", {}, expires_at=wrong)
        for naive in (moment.replace(tzinfo=None), moment.replace(tzinfo=NoOffset())):
            with pytest.raises(InvalidInput, match=r"expires_at has no time zone; pass for example .*now\(UTC\)"):
                store.put(NS, "k", {}, expires_at=naive)
        assert store.get(NS, "k") is None

    def test_a_time_that_utc_does_not_have_is_refused(self, store: Caller) -> None:
        late = datetime.max.replace(tzinfo=timezone(timedelta(hours=-8)))
        early = datetime.min.replace(tzinfo=timezone(timedelta(hours=12)))
        with pytest.raises(InvalidInput, match="expires_at is outside of the years 1 to 9999 in UTC"):
            store.put(NS, "k", {}, expires_at=late)
        for moment in (late, early):
            for name in ("created_at", "updated_at", "expires_at"):
                with pytest.raises(InvalidInput, match=name):
                    store.execute([Put(NS, "k", {}), Backdate(NS, "k", **{name: moment})])
        assert store.scan() == []

    def test_the_first_and_the_last_time_are_kept(self, store: Caller) -> None:
        last = datetime.max.replace(tzinfo=UTC)
        entry = store.put(NS, "k", {}, expires_at=last.replace(tzinfo=timezone(timedelta(hours=8))))
        assert entry.expires_at == last - timedelta(hours=8)
        assert store.put(NS, "k", {}, expires_at=last).expires_at == last
        store.execute([Backdate(NS, "k", created_at=datetime.min.replace(tzinfo=UTC))])
        assert store.get(NS, "k").created_at == datetime.min.replace(tzinfo=UTC)
        assert store.get(NS, "k").expires_at == last

    def test_the_times_of_an_entry_can_be_set_one_by_one(self, store: Caller, clock: Clock) -> None:
        entry, moment = store.put(NS, "k", {}), clock.now - timedelta(days=1)
        assert store.execute([Backdate(NS, "k", created_at=moment)]) == [True]
        assert store.get(NS, "k") == replace(entry, created_at=moment)
        assert store.execute([Backdate(NS, "k", updated_at=moment)]) == [True]
        assert store.get(NS, "k") == replace(entry, created_at=moment, updated_at=moment)

    def test_sweep_clears_what_has_expired_and_nothing_else(self, store: Caller, clock: Clock) -> None:
        store.execute([Put(NS, str(i), {}, ttl=5 if i < 700 else 50 if i < 800 else None) for i in range(900)])
        assert store.sweep() == 0
        clock.advance(5)
        assert store.sweep() == 700
        assert store.sweep() == 0
        assert store.count() == 200

    def test_a_sweeper_runs_by_itself(self, opened: Opener) -> None:
        store = opened(sweep_interval=0.02, clock=None)
        store.put(NS, "k", {}, ttl=0.01)
        deadline = time.monotonic() + 10
        while True:
            # A tombstone in the feed is what sweeping leaves; nobody reads or writes the entry meanwhile.
            changes = store.store._engine_handle.engine.execute([Changes()])[0]
            if [change.kind for change in changes] == ["expire"]:
                break
            assert time.monotonic() < deadline, f"not swept within 10 s: {changes}"
            time.sleep(0.02)
