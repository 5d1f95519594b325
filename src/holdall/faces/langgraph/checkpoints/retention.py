"""Which checkpoints of a thread are kept, and the background thread that has the others deleted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ....core import face_api
from ....errors import HoldallError, InvalidInput, StoreClosed
from ....ops import Ttl
from .known_logs import Loader
from .log import Log

logger = logging.getLogger("holdall")

#: Chooses the checkpoints to keep, of all of a log, the newest first.
Choose: TypeAlias = Callable[[Loader, Sequence[str]], Sequence[str]]


def choose_to_retain(keep_last: int | None, older_than: Ttl) -> Choose:
    """Return the function that chooses what `retain` keeps."""
    if keep_last is None and older_than is None:
        raise InvalidInput("retain needs keep_last= or older_than=")
    if keep_last is not None:
        face_api.check_count("keep_last", keep_last, least=1)
    age = None if older_than is None else face_api.duration_seconds("older_than", older_than, least=0, most=None)

    def choose(loader: Loader, ids: Sequence[str]) -> Sequence[str]:
        first = 1 if keep_last is None else keep_last
        if age is None:
            return ids[:first]
        oldest = time.time() - age
        return [id for number, id in enumerate(ids) if number < first or loader.time(id) >= oldest]

    return choose


def add_delta_ancestors(loader: Loader, log: Log, kept: Sequence[str]) -> set[str]:
    """Return the checkpoints to keep, and the ancestors that the values of their delta channels are made from."""
    needed = set(kept)
    for id in kept:
        counters = loader.metadata(id).get("counters_since_delta_snapshot") or {}
        remaining = set(counters) - log.checkpoint(id).pointers.keys()
        for ancestor in log.ancestors(id):
            if not remaining:
                break
            needed.add(ancestor)
            remaining -= log.checkpoint(ancestor).pointers.keys()
    return needed


class Retention:
    """A background thread that calls a function at an interval, in seconds."""

    def __init__(self, function: Callable[[], object], interval: float) -> None:
        self._function, self._interval = function, interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="holdall-retention", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a call that runs."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _repeat(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._function()
            except StoreClosed:
                return
            except HoldallError as error:
                logger.warning("old checkpoints were not deleted, will be tried again later: %s", error)
