"""Building a cache from the bucket: on a new machine, or when the one that is there cannot be used.

The segments of the newest floor are fetched at the same time, merged, and written in one transaction. The log follows.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor

from ...errors import Corrupt
from ..sqlite.connection import Connection
from .bucket import Bucket
from .effects import Effects
from .objects import Floor, Header, decode_effect, decode_lines, merge_lines

logger = logging.getLogger("holdall")

_AT_ONCE = 8
_SLOW = 2.0  # seconds, after which progress is logged


def load(bucket: Bucket, writer: Connection, effects: Effects, deadline: float) -> None:
    """Replace what is in the cache with the state of the newest floor."""
    began = time.monotonic()
    floor = bucket.look(deadline)
    sources = fetch_segments(bucket, floor, deadline)
    header, lines = merge_lines(sources, keeps_absent=False)
    if time.monotonic() - began > _SLOW:
        logger.info("fetched %d segments of %s", len(sources), bucket.client.address.shown)
    writer.execute("BEGIN IMMEDIATE")
    try:
        effects.clear()
        effects.apply(map(decode_effect, lines), header.columns)
        writer.execute(
            "INSERT OR REPLACE INTO holdall_bucket VALUES (1, ?, ?, ?, ?)",
            (bucket.store, floor.upto, header.t, floor.upto),
        )
        writer.execute("COMMIT")
    except BaseException:
        writer.execute("ROLLBACK")
        raise
    seconds = time.monotonic() - began
    level = logging.INFO if seconds > _SLOW else logging.DEBUG
    logger.log(level, "built the cache of %s: %d rows in %.1f s", bucket.client.address.shown, len(lines), seconds)


def fetch_segments(bucket: Bucket, floor: Floor, deadline: float) -> list[tuple[Header, list[bytes]]]:
    """Return the headers and lines of the segments of a floor, the oldest first."""
    names = [segment.name for segment in floor.segments]
    with ThreadPoolExecutor(_AT_ONCE, "holdall-fetch") as executor:
        return [*executor.map(lambda name: fetch_segment(bucket, name, deadline), names)]


def fetch_segment(bucket: Bucket, name: str, deadline: float) -> tuple[Header, list[bytes]]:
    data = bucket.client.get(name, deadline)
    found = None if data is None else decode_lines(data)
    if found is None:
        raise Corrupt(
            f"the segment {name!r} of {bucket.client.address.shown} is missing or damaged; restore the bucket"
        )
    return found
