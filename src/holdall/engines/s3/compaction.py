"""Compaction: records become segments, and what nobody needs any more is deleted.

After `RECORDS` records, or `BYTES` of them, a machine merges them to a segment, and creates the next floor, which lists
it. Machines may do that at once: the first to create the floor has done it, and the others delete their segments. Eight
segments of one level are merged to one of the next, so a new machine reads few.

What a floor replaces (its part of the log, and merged segments) is deleted `COLLECT_AFTER` seconds later by the machine
that creates another floor. So are blobs to which no row refers, which a floor lists now and then. A machine that slept
for longer than that looks for a newer floor before it relies on anything (`bucket.py`).

`load` builds a cache from the newest floor: on a new machine, or when the one that is there cannot be used. The
segments are fetched at the same time, merged, and written in one transaction. The log follows.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ...errors import Corrupt, HoldallError
from ..sqlite.connection import Connection
from . import bucket as bucket_module
from .bucket import Bucket
from .effects import Effects
from .objects import (
    HINT,
    Floor,
    Header,
    Segment,
    decode_effects,
    decode_floor,
    decode_lines,
    encode_lines,
    encode_struct,
    floor_name,
    log_name,
    merge_lines,
    segment_name,
)

logger = logging.getLogger("holdall")

#: How much of the log is merged to a segment.
RECORDS, BYTES = 256, 4 << 20
#: How many segments of one level are merged to one of the next.
TIER = 8
#: Larger segments are not merged: that would need as much memory.
LARGEST_MERGED = 256 << 20
_AT_ONCE = 8
_SLOW = 2.0  # seconds, after which progress is logged


def is_due(records: int, size: int) -> bool:
    """Whether so many records since the last floor, of so many bytes, should be merged."""
    return records >= RECORDS or size >= BYTES


def compact(bucket: Bucket, floor: Floor, records: list[bytes], referenced: set[str], deadline: float) -> Floor | None:
    """Merge the records after a floor, all that the log has up to some number, and create the next floor.

    `referenced` are the blobs that rows of the cache refer to, at that number or later. Returns the new floor; None if
    another machine was faster.
    """
    client, first, last = bucket.client, floor.upto + 1, floor.upto + len(records)
    header, lines = merge_lines((decode_lines(record) or (Header(), []) for record in records), bool(floor.segments))
    segments, replaced = [*floor.segments], []
    created = [_write(bucket, header, lines, first, last, 0, deadline)]
    segments += created
    has_merged = False
    while _can_merge(segments):
        merged, segments = segments[-TIER:], segments[:-TIER]
        sources = [fetch_segment(bucket, segment.name, deadline) for segment in merged]
        header, lines = merge_lines(sources, keeps_absent=bool(segments))
        below = segments[-1].last if segments else 0
        segments.append(_write(bucket, header, lines, below + 1, last, merged[0].level + 1, deadline))
        created.append(segments[-1])
        replaced += [segment.name for segment in merged]
        has_merged = True
    now = int(client.clock.now() * 1e6)
    if has_merged:
        replaced += _find_unused_blobs(bucket, floor.upto, referenced, deadline)
    made = Floor(floor.number + 1, last, now, segments, replaced, first, floor.collected)
    due, made.collected = _find_due(bucket, made, deadline)
    body = encode_struct(made)
    if not client.create(floor_name(made.number), body, deadline) and (
        client.get(floor_name(made.number), deadline) != body
    ):
        _delete(bucket, [segment.name for segment in created], deadline)
        return None
    with contextlib.suppress(HoldallError):
        client.put(HINT, str(made.number).encode(), deadline)
    for old in due:
        _delete(bucket, [*map(log_name, range(old.first, old.upto + 1)), *old.replaced], deadline)
    return made


def _write(
    bucket: Bucket, header: Header, lines: list[bytes], first: int, last: int, level: int, deadline: float
) -> Segment:
    name, body = segment_name(first, last), encode_lines(header, lines)
    bucket.client.put(name, body, deadline)
    return Segment(name, level, len(body), last)


def _can_merge(segments: list[Segment]) -> bool:
    newest = segments[-TIER:]
    return (
        len(newest) == TIER
        and len({segment.level for segment in newest}) == 1
        and sum(segment.size for segment in newest) <= LARGEST_MERGED
    )


def _find_due(bucket: Bucket, newest: Floor, deadline: float) -> tuple[list[Floor], int]:
    """Return the floors whose replaced objects may be deleted now, and the number of the last of them."""
    due: list[Floor] = []
    while newest.collected + len(due) + 1 < newest.number:
        found = bucket.client.get(floor_name(newest.collected + len(due) + 1), deadline)
        if found is None:
            break
        floor = decode_floor(found)
        if newest.t - floor.t < bucket_module.COLLECT_AFTER * 1e6 or len(due) >= _AT_ONCE:
            break
        due.append(floor)
    return due, newest.collected + len(due)


def _find_unused_blobs(bucket: Bucket, upto: int, referenced: set[str], deadline: float) -> list[str]:
    """Return the blobs of old commits, and of attempts that failed, to which no row refers."""
    found: list[str] = []
    after, end = "", f"blob/{upto + 1:010d}"
    while page := bucket.client.list("blob/", after, deadline):
        for name, _ in page:
            if name >= end:  # its record may be under way
                return found
            if name.removeprefix("blob/") not in referenced:
                found.append(name)
        after = page[-1][0]
    return found


def _delete(bucket: Bucket, names: list[str], deadline: float) -> None:
    """Delete objects. What cannot be deleted stays: nothing reads it."""

    def delete(name: str) -> None:
        bucket.client.delete(name, max(deadline, time.monotonic() + 5))

    try:
        with ThreadPoolExecutor(_AT_ONCE, "holdall-collect") as executor:
            list(executor.map(delete, names))
    except HoldallError as error:
        logger.warning("cannot delete objects of %s that are not needed: %s", bucket.client.address.shown, error)


def load(
    bucket: Bucket, writer: Connection, effects: Effects, deadline: float, obey_history: Callable[[], None]
) -> None:
    """Replace what is in the cache with the state of the newest floor."""
    began = time.monotonic()
    floor = bucket.look(deadline)
    sources = fetch_segments(bucket, floor, deadline)
    header, lines = merge_lines(sources, keeps_absent=False)
    if time.monotonic() - began > _SLOW:
        logger.info("fetched %d segments of %s", len(sources), bucket.client.address.shown)
    found = decode_effects(lines)
    writer.execute("BEGIN IMMEDIATE")
    try:
        effects.load(found, header.columns)
        obey_history()
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
