"""The log of a store in its bucket: reading it, appending to it, and the floors below which it may be gone.

No object that holds data is overwritten, and a record is created under the condition that its slot is free. So the
first writer of a slot has it, and every machine reads the same records in the same order.

The log below a floor is deleted some time after the floor was created (`COLLECT_AFTER`). A slot below a floor that is
free, or that this machine has just won, means nothing. So the floor is compared after a slot was read or won, never
before: the machine may sleep in between. The floor that is known was the newest a short time ago (`LOOK_AFTER`), so
the objects that a newer one replaces cannot be deleted yet. That time is measured by the server's clock, which each
reply sets right: a machine that sleeps, or is paused, may not notice that time has passed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ...errors import HoldallError, OutcomeUnknown, Unavailable, Unsupported
from ...runtime.signals import restart_if_signaled
from .client import Client
from .objects import (
    FORMAT,
    HINT,
    LAYOUT,
    Floor,
    Format,
    decode_floor,
    decode_format,
    encode_struct,
    floor_name,
    is_same_commit,
    log_name,
    make_nonce,
)

#: Seconds after which the objects that a floor replaces are deleted.
COLLECT_AFTER = 24 * 3600.0
#: Seconds after which the newest floor is looked up again.
LOOK_AFTER = 60.0
_WINDOW = 8  # records that are fetched at once, at most


class SlotTaken(Exception):  # not an error: the transaction runs again
    """Another writer has the slot; `record` is what it wrote, if that is known."""

    def __init__(self, seq: int, record: bytes | None) -> None:
        super().__init__(seq)
        self.seq = seq
        self.record = record


@contextlib.contextmanager
def _raise_outcome_unknown() -> Iterator[None]:
    """Turn errors of the block into `OutcomeUnknown`: the write before the block may have happened."""
    try:
        yield
    except OutcomeUnknown:
        raise
    except HoldallError as error:
        raise OutcomeUnknown(f"{error}; the write may have happened: read before you write again") from error


class Bucket:
    """The objects of one store."""

    def __init__(self, client: Client, timeout: float) -> None:
        self.client = client
        self._timeout = timeout
        self.floor = Floor()  # the newest that is known
        self._looked = -1e18  # when, by the server's clock
        self._lock = threading.Lock()
        self.store = ""

    # The store -------------------------------------------------------------------------------------------------------

    def open(self, deadline: float) -> str:
        """Return the id of the store, which is created if there is none."""
        found = self.client.get(FORMAT, deadline)
        if found is None:
            self.check_conditions(deadline)
            self.client.create(FORMAT, encode_struct(Format(LAYOUT, make_nonce())), deadline)
            found = self.client.get(FORMAT, deadline)
        if found is None:
            raise Unavailable(f"{self.client.address.shown} does not keep what is written to it")
        self.store = decode_format(found).store
        return self.store

    def check_conditions(self, deadline: float) -> None:
        """Raise `Unsupported` if the server ignores the condition of a write."""
        name = f"probe/{make_nonce()}"
        try:
            self.client.create(name, b"first", deadline)
            is_created_twice = self.client.create(name, b"second", deadline)
            found = self.client.get(name, deadline)
        finally:
            self.client.delete(name, deadline)
        if is_created_twice or found != b"first":
            raise Unsupported(
                f"the server at {self.client.address.endpoint} ignores conditional writes (If-None-Match), so two"
                " writers would overwrite each other; use a service that has them, such as AWS S3, R2, MinIO or"
                " SeaweedFS"
            )

    # The log ---------------------------------------------------------------------------------------------------------

    def read(self, seq: int, deadline: float) -> bytes | None:
        """Return a record; None if its slot is free."""
        return self.client.get(log_name(seq), deadline)

    def read_from(self, seq: int, deadline: float) -> list[bytes]:
        """Return some records from a number on; fewer than there are, but none only if the first slot is free."""
        first = self.read(seq, deadline)
        if first is None:
            return []
        records, window = [first], 1  # most often there is only one
        with ThreadPoolExecutor(_WINDOW, "holdall-fetch") as executor:
            while True:
                numbers = range(seq + len(records), seq + len(records) + window)
                fetch = map if window == 1 else executor.map
                for record in fetch(lambda number: self.read(number, deadline), numbers):
                    if record is None:
                        return records
                    records.append(record)
                if sum(map(len, records)) > 8 << 20:
                    return records
                window = min(2 * window, _WINDOW)

    def put_blob(self, name: str, body: bytes, deadline: float) -> None:
        """Write contents, which no record names yet: if that fails, nothing was written."""
        try:
            self.client.put(name, body, deadline)
        except OutcomeUnknown as error:
            raise Unavailable(
                f"{len(body)} bytes of contents could not be sent to {self.client.address.shown} in {self._timeout} s;"
                f" nothing was written: try again, or pass a longer timeout= ({error.__cause__ or error})"
            ) from error

    def append(self, seq: int, record: bytes, deadline: float) -> None:
        """Write a record to a slot. Raises `SlotTaken` if another has it, `OutcomeUnknown` if that is not known."""
        began = self.client.clock.now()
        is_created = self.client.create(log_name(seq), record, deadline)
        while not is_created:
            with _raise_outcome_unknown():
                found = self.read(seq, deadline)
                if found is not None and is_same_commit(found, record):  # the reply to an earlier try was lost
                    break
                if found is not None:
                    raise SlotTaken(seq, found)
                # A conflict with a write that did not succeed; or a slot below a floor, whose record was just deleted.
                if self.find_newest_floor(deadline).upto >= seq:
                    self._check_awake(began)
                    raise SlotTaken(seq, None)
            if time.monotonic() > deadline:
                raise OutcomeUnknown(
                    f"{self.client.address.shown} was busy for {self._timeout} s; the write may have happened: read"
                    " before you write again"
                )
            time.sleep(0.01)
            with _raise_outcome_unknown():  # an earlier try may still be under way
                is_created = self.client.create(log_name(seq), record, deadline)
        with _raise_outcome_unknown():
            if self._was_collected(seq, began, deadline):
                raise SlotTaken(seq, None)

    def _was_collected(self, seq: int, began: float, deadline: float) -> bool:
        """Whether a slot that was written since then was free because its record had been deleted.

        If not, a floor that has the slot is younger, and has what was written.
        """
        newest = self._recent_floor(deadline)
        if newest.upto < seq:
            return False
        number = bisect_left(range(1, newest.number), seq, key=lambda one: self.fetch_floor(one, deadline).upto)
        if self.fetch_floor(number + 1, deadline).t / 1e6 < began - COLLECT_AFTER / 2:
            return True
        self._check_awake(began)
        return False

    def _check_awake(self, began: float) -> None:
        if self.client.clock.now() - began > COLLECT_AFTER / 2:
            raise OutcomeUnknown(
                f"this machine slept while it wrote to {self.client.address.shown}; the write may have happened: read"
                " before you write again"
            )

    # Floors ----------------------------------------------------------------------------------------------------------

    def _recent_floor(self, deadline: float) -> Floor:
        """Return the floor that was the newest a short time ago."""
        if abs(self.client.clock.now() - self._looked) > LOOK_AFTER:
            return self.find_newest_floor(deadline)
        return self.floor

    def find_newest_floor(self, deadline: float) -> Floor:
        """Find the newest floor, and check that the bucket still has this store."""
        with self._lock:
            began = self.client.clock.now()
            if self.floor.number == 0:
                hint = self.client.get(HINT, deadline)
                if hint is not None and hint.isdigit():
                    self._read_floor(int(hint), deadline)
            step = 1
            while step:
                number = self.floor.number + step
                step = step * 2 if self._read_floor(number, deadline) else step // 2
            found = self.client.get(FORMAT, deadline)
            if found is None or decode_format(found).store != self.store:
                raise Unavailable(
                    f"{self.client.address.shown} no longer has the store that was opened; close this store, and open"
                    " it again to use what is there now"
                )
            self._looked = began
            return self.floor

    def _read_floor(self, number: int, deadline: float) -> bool:
        found = self.client.get(floor_name(number), deadline)
        if found is None:
            return False
        self.use_floor(decode_floor(found))
        return True

    def fetch_floor(self, number: int, deadline: float) -> Floor:
        """Return a floor that exists."""
        return decode_floor(self.client.get(floor_name(number), deadline) or b"")

    def use_floor(self, floor: Floor) -> None:
        """Take a floor as the newest, unless a newer one is known."""
        if floor.number > self.floor.number:  # a thread that was faster may know a newer one
            self.floor = floor

    def has_log_since(self, seq: int, deadline: float) -> bool:
        """Whether no record after this one can have been deleted until now."""
        floor = self._recent_floor(deadline)
        if floor.upto <= seq:
            return True
        if floor.first > seq + 1:  # several floors ago
            return False
        return self.client.clock.now() - floor.t / 1e6 < COLLECT_AFTER / 2

    def make_deadline(self) -> float:
        restart_if_signaled()
        return time.monotonic() + self._timeout
