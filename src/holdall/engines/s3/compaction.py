"""Compaction: records become segments, and objects that are not needed any more are deleted.

After `RECORDS` records, or `BYTES` of them, a machine merges them to a segment, and creates the next floor, which lists
it. Machines may do that at once: the first to create the floor has done it, and the others delete their segments. Eight
segments of one level are merged to one of the next, so a new machine reads few. Large ones are not merged; when they
have grown to twice of what is stored, `rewrite` writes everything again.

The objects that a floor replaces (its part of the log, and merged segments) are deleted `COLLECT_AFTER` seconds later
by the machine that creates another floor. Now and then a floor also lists objects that nothing uses: blobs to which no
row refers, and segments of machines that were killed. They are deleted only if a floor lists them. A machine may sleep
after it has looked for them, and then it fails to create the floor, because others have created some.

A machine that slept for longer than that looks for a newer floor before it relies on anything (`bucket.py`).

`load` builds a cache from the newest floor: on a new machine, or when the one that is there cannot be used. Parts of
segments are fetched at the same time, and written in one transaction. The log follows.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter

from ...errors import Corrupt, HoldallError
from ...runtime.signals import restart_if_signaled
from ..sqlite.connection import Connection
from . import bucket as bucket_module
from .bucket import Bucket
from .effects import Effects, Position, read_position
from .objects import (
    HINT,
    Damaged,
    Floor,
    Header,
    Rows,
    Segment,
    decode_floor,
    decode_lines,
    decode_rows,
    encode_lines,
    encode_struct,
    erase_record,
    floor_name,
    is_blob,
    is_segment,
    log_name,
    merge_lines,
    segment_name,
    stream_lines,
)

logger = logging.getLogger("holdall")

#: How much of the log is merged to a segment.
RECORDS, BYTES = 256, 4 << 20
#: How many segments of one level are merged to one of the next.
TIER = 8
#: Larger segments are not merged: that would need as much memory.
LARGEST_MERGED = 64 << 20
_WHOLE = 100  # the level of segments that `rewrite` has made
_WHOLE_BYTES = 32 << 20  # of text in one of them
_AT_ONCE = 8
_PART = 4 << 20  # bytes of a segment that are fetched at once
_SLOW = 2.0  # seconds, after which progress is logged


def is_due(records: int, size: int) -> bool:
    """Whether so many records since the last floor, of so many bytes, should be merged."""
    return records >= RECORDS or size >= BYTES


def needs_rewrite(floor: Floor) -> bool:
    """Whether segments that are not merged any more have as much as everything had when it was written last."""
    whole = sum(segment.size for segment in floor.segments if segment.level == _WHOLE)
    return sum(segment.size for segment in floor.segments) - whole > max(whole, LARGEST_MERGED)


def rewrite(
    bucket: Bucket, floor: Floor, header: Header, lines: Iterable[bytes], referenced: set[str], patience: float
) -> Floor | None:
    """Replace all segments of a floor with new ones, which have the same state and nothing of the past.

    `lines` are the effects of that state, and `referenced` the blobs that its rows refer to. Newer floors may be
    created in the meantime. Returns the new floor; None if one of them has merged segments that this should replace,
    or took the new ones for unused: this machine may have slept.
    """
    whole = [_write(bucket, header, part, 1, floor.upto, _WHOLE, time.monotonic() + patience) for part in _cut(lines)]
    names, seen = {segment.name for segment in whole}, floor.number
    unused = _find_unused_blobs(bucket, floor.upto, referenced, time.monotonic() + patience)
    while True:
        deadline = time.monotonic() + patience
        newest = bucket.find_newest_floor(deadline)
        added = newest.segments[len(floor.segments) :]
        between = [bucket.fetch_floor(number, deadline) for number in range(seen + 1, newest.number + 1)]
        if newest.segments[: len(floor.segments)] != floor.segments or any(names & {*one.replaced} for one in between):
            _delete(bucket, [*names], deadline)
            return None
        seen = newest.number
        left = _find_unused_segments(bucket, {*names, *(segment.name for segment in newest.segments)}, deadline)
        replaced = [*unused, *left, *(segment.name for segment in floor.segments)]
        now = int(bucket.client.clock.now() * 1e6)
        number, upto = newest.number + 1, newest.upto
        made = Floor(number, upto, now, [*whole, *added], replaced, upto + 1, newest.collected)
        if _create_floor(bucket, made, deadline):
            return made


def _cut(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Return lines in parts of about `_WHOLE_BYTES`."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size > _WHOLE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def purge(bucket: Bucket, newest: Floor, patience: float) -> None:
    """Delete the objects that floors have replaced, at once.

    Numbers of the log must not get free, so of records the headers stay. Machines that lack them build their caches
    again; so do those that are reading a segment that is deleted.
    """
    client = bucket.client

    def erase(seq: int) -> None:
        deadline = time.monotonic() + patience
        record = client.get(log_name(seq), deadline)
        if record is not None and (header := erase_record(record)) != record:  # an earlier erasure may have done it
            client.put(log_name(seq), header, deadline)

    with ThreadPoolExecutor(_AT_ONCE, "holdall-collect") as executor:
        for number in range(newest.collected + 1, newest.number + 1):
            floor = bucket.fetch_floor(number, time.monotonic() + patience)
            list(executor.map(erase, range(floor.first, floor.upto + 1)))
            list(executor.map(lambda name: client.delete(name, time.monotonic() + patience), floor.replaced))


def compact(
    bucket: Bucket, floor: Floor, records: list[bytes], find_referenced: Callable[[], set[str]], patience: float
) -> Floor | None:
    """Merge the records after a floor, all that the log has up to some number, and create the next floor.

    `find_referenced` returns the blobs that rows of the cache refer to, at that number or later. `patience` is how many
    seconds each request may take. Returns the new floor; None if another machine was faster.
    """

    def until() -> float:
        return time.monotonic() + patience

    client, first, last = bucket.client, floor.upto + 1, floor.upto + len(records)
    header, lines = merge_lines((decode_lines(record) or (Header(), b"") for record in records), bool(floor.segments))
    segments, replaced = [*floor.segments], []
    created = [_write(bucket, header, lines, first, last, 0, until())]
    segments += created
    has_merged = False
    while _can_merge(segments):
        merged, segments = segments[-TIER:], segments[:-TIER]
        sources = [fetch_segment(bucket, segment, until()) for segment in merged]
        header, lines = merge_lines(sources, keeps_absent=bool(segments))
        below = segments[-1].last if segments else 0
        segments.append(_write(bucket, header, lines, below + 1, last, merged[0].level + 1, until()))
        created.append(segments[-1])
        replaced += [segment.name for segment in merged]
        has_merged = True
    now = int(client.clock.now() * 1e6)
    if has_merged:
        replaced += _find_unused_blobs(bucket, floor.upto, find_referenced(), until())
        replaced += _find_unused_segments(bucket, {*replaced, *(segment.name for segment in segments)}, until())
    made = Floor(floor.number + 1, last, now, segments, replaced, first, floor.collected)
    due = _find_due(bucket, made, until())
    # First, so that the next compactor does it if this one is killed.
    if _delete(bucket, [name for old in due for name in _find_replaced(old)], until()):
        made.collected += len(due)
    if not _create_floor(bucket, made, until()):
        _delete(bucket, [segment.name for segment in created], until())
        return None
    return made


def _create_floor(bucket: Bucket, made: Floor, deadline: float) -> bool:
    """Create a floor; return False if another machine was faster."""
    client, body = bucket.client, encode_struct(made)
    if not client.create(floor_name(made.number), body, deadline) and (
        client.get(floor_name(made.number), deadline) != body
    ):
        return False
    bucket.use_floor(made)
    with contextlib.suppress(HoldallError):
        client.put(HINT, str(made.number).encode(), deadline)
    return True


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


def _find_replaced(floor: Floor) -> list[str]:
    """Return the objects that a floor replaces."""
    return [*map(log_name, range(floor.first, floor.upto + 1)), *floor.replaced]


def _find_due(bucket: Bucket, newest: Floor, deadline: float) -> list[Floor]:
    """Return the floors whose replaced objects may be deleted now."""
    due: list[Floor] = []
    while newest.collected + len(due) + 1 < newest.number:
        found = bucket.client.get_dated(floor_name(newest.collected + len(due) + 1), deadline)
        if found is None:
            break
        body, written = found
        floor = decode_floor(body)
        # Its own time may be much earlier: a compactor may sleep before it creates a floor.
        age = newest.t / 1e6 - max(floor.t / 1e6, written)
        if age < bucket_module.COLLECT_AFTER or len(due) >= _AT_ONCE:
            break
        due.append(floor)
    return due


def _find_unused_blobs(bucket: Bucket, upto: int, referenced: set[str], deadline: float) -> list[str]:
    """Return the blobs of old commits, and of attempts that failed, to which no row refers."""
    found: list[str] = []
    after, end = "", f"blob/{upto + 1:010d}"
    while page := bucket.client.list("blob/", after, deadline):
        for name, _ in page:
            if name >= end:  # its record may be under way
                return found
            if is_blob(name) and name.removeprefix("blob/") not in referenced:
                found.append(name)
        after = page[-1][0]
    return found


def _find_unused_segments(bucket: Bucket, used: set[str], deadline: float) -> list[str]:
    """Return the segments of compactors that were killed before they created a floor."""
    found: list[str] = []
    after, old = "", bucket.client.clock.now() - bucket_module.COLLECT_AFTER
    while page := bucket.client.list("seg/", after, deadline):
        found += [name for name, written in page if is_segment(name) and written < old and name not in used]
        after = page[-1][0]
    return found


def _delete(bucket: Bucket, names: list[str], deadline: float) -> bool:
    """Delete objects; return whether all are gone. Others stay, and nothing reads them."""

    def delete(name: str) -> None:
        bucket.client.delete(name, max(deadline, time.monotonic() + 5))

    try:
        with ThreadPoolExecutor(_AT_ONCE, "holdall-collect") as executor:
            list(executor.map(delete, names))
    except HoldallError as error:
        logger.warning("cannot delete objects of %s that are not needed: %s", bucket.client.address.shown, error)
        return False
    return True


def load(
    bucket: Bucket, writer: Connection, before: Position, effects: Effects, obey_history: Callable[[], None]
) -> None:
    """Replace what is in the cache with the state of the newest floor.

    Do nothing if the cache is not where it was `before`: another process has brought it on, and it must not go back,
    because reads rely on what they have once found in it.
    """
    while True:
        floor = bucket.find_newest_floor(bucket.make_deadline())
        try:
            _load_floor(bucket, floor, writer, before, effects, obey_history)
            return
        except Corrupt:  # or an erasure has just deleted its segments
            if bucket.find_newest_floor(bucket.make_deadline()).number == floor.number:
                raise


def _load_floor(
    bucket: Bucket,
    floor: Floor,
    writer: Connection,
    before: Position,
    effects: Effects,
    obey_history: Callable[[], None],
) -> None:
    began = time.monotonic()
    reader = SegmentReader(bucket, floor.segments[::-1])
    writer.execute("BEGIN IMMEDIATE")
    try:
        if read_position(writer) != before:
            writer.execute("ROLLBACK")
            return
        rows = effects.load(reader.read())
        obey_history()
        writer.execute(
            "INSERT OR REPLACE INTO holdall_bucket VALUES (1, ?, ?, ?, ?)",
            (bucket.store, floor.upto, reader.t, floor.upto),
        )
        writer.execute("INSERT OR REPLACE INTO holdall_log VALUES (0, ?)", (encode_struct(floor),))
        writer.execute("COMMIT")
    except BaseException:
        if writer.in_transaction:  # after some errors SQLite has rolled back already
            writer.execute("ROLLBACK")
        raise
    finally:
        reader.close()
    seconds = time.monotonic() - began
    level = logging.INFO if seconds > _SLOW else logging.DEBUG
    logger.log(level, "built the cache of %s: %d rows in %.1f s", bucket.client.address.shown, rows, seconds)


class SegmentReader:
    """Reads segments, in this order. It fetches parts of them ahead, so the memory that it needs is bounded.

    Threads fetch; another one decodes, while the caller does something with what was decoded before.
    """

    def __init__(self, bucket: Bucket, segments: list[Segment]) -> None:
        self._bucket, self._segments = bucket, segments
        self._fetchers = ThreadPoolExecutor(_AT_ONCE, "holdall-fetch")
        self._decoder = ThreadPoolExecutor(1, "holdall-decode")
        self.t = 0  # of the newest record so far
        self._size, self._done = sum(segment.size for segment in segments), 0
        self._logged = time.monotonic()

    def close(self) -> None:
        for executor in (self._decoder, self._fetchers):
            executor.shutdown(cancel_futures=True)

    def read(self) -> Iterator[tuple[str, dict[str, list[str]], Rows]]:
        """Return some rows at a time, with the name of the segment and the columns."""
        decoded = self._decode()
        following = self._decoder.submit(next, decoded, None)
        while (found := following.result()) is not None:
            following = self._decoder.submit(next, decoded, None)
            restart_if_signaled()
            self._report()
            yield found

    def _decode(self) -> Iterator[tuple[str, dict[str, list[str]], Rows]]:
        for segment, parts in groupby(self._fetch(), itemgetter(0)):
            try:
                for header, text in stream_lines(part for _, part in parts):
                    self.t = max(self.t, header.t)
                    yield segment.name, header.columns, decode_rows(text)
            except Damaged:
                raise _damaged(self._bucket, segment) from None

    def _fetch(self) -> Iterator[tuple[Segment, bytes]]:
        waiting: deque[tuple[Segment, Future[bytes]]] = deque()
        for segment in self._segments:
            for start in range(0, segment.size, _PART):
                waiting.append((segment, self._fetchers.submit(self._fetch_part, segment, start)))
                if len(waiting) > _AT_ONCE:
                    yield self._take(*waiting.popleft())
        while waiting:
            yield self._take(*waiting.popleft())

    def _take(self, segment: Segment, part: Future[bytes]) -> tuple[Segment, bytes]:
        found = part.result()
        self._done += len(found)
        return segment, found

    def _fetch_part(self, segment: Segment, start: int) -> bytes:
        end = min(start + _PART, segment.size)
        found = self._bucket.client.get(segment.name, self._bucket.make_deadline(), (start, end))
        if found is None or len(found) != end - start:
            raise _damaged(self._bucket, segment)
        return found

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._logged > _SLOW:
            self._logged = now
            where = self._bucket.client.address.shown
            logger.info("reading %s: %d of %d MB", where, self._done >> 20, self._size >> 20)


def fetch_segment(bucket: Bucket, segment: Segment, deadline: float) -> tuple[Header, bytes]:
    """Return the header and the lines of a segment."""
    data = bucket.client.get(segment.name, deadline)
    found = None if data is None else decode_lines(data)
    if found is None:
        raise _damaged(bucket, segment)
    return found


def _damaged(bucket: Bucket, segment: Segment) -> Corrupt:
    where = bucket.client.address.shown
    return Corrupt(f"the segment {segment.name!r} of {where} is missing or damaged; restore the bucket")
