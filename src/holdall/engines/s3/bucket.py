"""The log of a store in its bucket: reading it, appending to it, and the floors below which it may be gone.

No object that holds data is overwritten, and a record is created under the condition that its slot is free. So the
first writer of a slot has it, and every machine reads the same records in the same order.

The log below a floor is deleted some time after the floor was created (`COLLECT_AFTER`). Whoever relies on a slot being
free, or on a record being there, must have looked for a newer floor a short time before (`LOOK_AFTER`). A machine that
slept in between looks again.
"""

from __future__ import annotations

import threading
import time
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
    log_name,
    make_nonce,
)

#: Seconds after which the objects that a floor replaces are deleted.
COLLECT_AFTER = 24 * 3600.0
#: Seconds after which the newest floor is looked up again.
LOOK_AFTER = 60.0
_WINDOW = 8  # records that are fetched at once


class SlotTaken(Exception):  # not an error: the transaction runs again
    """Another writer has the slot; `record` is what it wrote, if that is known."""

    def __init__(self, seq: int, record: bytes | None) -> None:
        super().__init__(seq)
        self.seq = seq
        self.record = record


class Bucket:
    """The objects of one store."""

    def __init__(self, client: Client, timeout: float) -> None:
        self.client = client
        self._timeout = timeout
        self.floor = Floor()  # the newest that is known
        self._looked = (-1e18, -1e18)  # when, by the monotonic and by the wall clock
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

    def read_from(self, seq: int, deadline: float, pool: ThreadPoolExecutor | None = None) -> list[bytes]:
        """Return some records from a number on; fewer than there are, but none only if the first slot is free."""
        first = self.read(seq, deadline)
        if first is None:
            return []
        records = [first]
        with pool or ThreadPoolExecutor(_WINDOW, "holdall-fetch") as executor:
            while True:
                numbers = range(seq + len(records), seq + len(records) + _WINDOW)
                for record in list(executor.map(lambda number: self.read(number, deadline), numbers)):
                    if record is None:
                        return records
                    records.append(record)
                if sum(map(len, records)) > 8 << 20:
                    return records

    def append(self, seq: int, record: bytes, deadline: float) -> None:
        """Write a record to a slot. Raises `SlotTaken` if another has it, `OutcomeUnknown` if that is not known."""
        while True:
            if self.client.create(log_name(seq), record, deadline):
                break
            try:
                found = self.read(seq, deadline)
            except OutcomeUnknown:
                raise
            except HoldallError as error:
                raise OutcomeUnknown(f"{error}; the write may have happened: read before you write again") from error
            if found == record:  # the reply to an earlier try was lost
                break
            if found is not None:
                raise SlotTaken(seq, found)
            # A conflict with a write that did not succeed; or a slot below a floor, whose record was just deleted.
            if self.look(deadline).upto >= seq:
                raise SlotTaken(seq, None)
            if time.monotonic() > deadline:
                raise OutcomeUnknown(
                    f"{self.client.address.shown} was busy for {self._timeout} s; the write may have happened: read"
                    " before you write again"
                )
            time.sleep(0.01)
        if self.is_look_due() and self.look(deadline).upto >= seq:  # this machine slept, and the slot was used before
            raise SlotTaken(seq, None)

    # Floors ----------------------------------------------------------------------------------------------------------

    def is_look_due(self) -> bool:
        """Whether it was some time ago that the newest floor was looked up."""
        monotonic, wall = self._looked
        return time.monotonic() - monotonic > LOOK_AFTER or abs(time.time() - wall) > LOOK_AFTER

    def look(self, deadline: float) -> Floor:
        """Find the newest floor, and check that the bucket still has this store."""
        with self._lock:
            began = time.monotonic(), time.time()
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
        self.floor = decode_floor(found)
        return True

    def has_log_since(self, seq: int) -> bool:
        """Whether no record after this one can have been deleted, by the newest floor that is known."""
        if self.floor.upto <= seq:
            return True
        if self.floor.first > seq + 1:  # several floors ago
            return False
        return self.client.clock.now() - self.floor.t / 1e6 < COLLECT_AFTER / 2

    def make_deadline(self) -> float:
        restart_if_signaled()
        return time.monotonic() + self._timeout
