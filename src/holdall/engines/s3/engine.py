"""The object-store engine: a bucket is the truth, and a SQLite file on local disk is a cache of it.

It is the SQLite engine with three additions. Before a transaction commits, its effects are written to the bucket, as
the next record of a log (`bucket.py`). If another machine has written that record first, the transaction is rolled back
and runs again. Before a read, the engine polls the log, and applies new records to the cache (`effects.py`). From time
to time it merges records to segments, from which a new machine builds its cache (`compaction.py`).

One transaction at a time holds the lock of SQLite's file until its record is written. So the processes of one machine
queue, and only machines compete.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import apsw

from ...engine import Options
from ...errors import Corrupt, HoldallError, InvalidInput, OutcomeUnknown, StoreClosed, Timeout, Unavailable, shown
from ...model.values import duration_seconds
from ...ops import IndexOrder, IndexTexts, LearnFields, Maintain, Op, Scrub, Scrubbed, SetHistory, replace
from ...runtime.programs import drive
from ...runtime.signals import disallow_restart, restart_if_signaled
from ..sql.text_index import PreparedIndexTexts
from ..sqlite.connection import Connection, pragma
from ..sqlite.dialect import MIGRATIONS
from ..sqlite.engine import SqliteEngine
from ..sqlite.group_commit import Submission, wake_callers
from ..sqlite.vectors.ranker import PublishIndex
from . import compaction
from .bucket import Bucket, SlotTaken
from .client import AccessRefused, Address, Client
from .contents import Contents, Reference, S3Dialect, find_referenced, join_heads, join_pieces
from .credentials import find_region, find_source
from .effects import SCHEMA, Effects, Position, move_triggers, read_floor, read_position
from .listener import LogListener
from .objects import (
    Effect,
    Header,
    decode_effects,
    decode_lines,
    encode_effect,
    encode_lines,
    encode_struct,
    floor_name,
    log_name,
    make_nonce,
)

T = TypeVar("T")

logger = logging.getLogger("holdall")

#: Ops that change only derived data, so they need not poll the log.
_LOCAL = frozenset({IndexOrder, IndexTexts, LearnFields, Maintain, PreparedIndexTexts, PublishIndex})
_CONTENDED = 2.0  # seconds after a lost slot during which a writer polls the log first, and lets others write
_LONGEST_TURN = 0.5  # seconds
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # its name, and that of a region
_UNUSABLE = re.compile(r"[?#@\x00-\x1f\x7f\ud800-\udfff]")  # in a prefix or an endpoint


@dataclass(frozen=True, slots=True)
class S3Options:
    """The options that only this engine has."""

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    credentials: Callable[[], Any] | None = None
    cache: str | os.PathLike[str] | None = None
    stale: float = 0.0

    def __post_init__(self) -> None:
        for name in ("endpoint", "region", "profile"):
            value = getattr(self, name)
            if not (value is None or (isinstance(value, str) and value)):
                raise InvalidInput(f"{name} is a non-empty str, not {shown(value)}")
        if self.credentials is not None and not callable(self.credentials):
            raise InvalidInput(
                f"credentials is a function that returns (access key, secret key), not {shown(self.credentials)}"
            )
        object.__setattr__(self, "stale", duration_seconds("stale", self.stale, least=0))
        if self.cache is not None:
            if not isinstance(self.cache, str | os.PathLike) or not str(self.cache) or "\0" in str(self.cache):
                raise InvalidInput(f"cache is the path of a folder, not {shown(self.cache)}")
            object.__setattr__(self, "cache", os.path.realpath(os.fspath(self.cache)))


def find_address(url: str, options: S3Options) -> Address:
    """Return where the bucket of a URL is."""
    rest = url.partition("://")[2]
    bucket, _, prefix = rest.partition("/")
    labels = prefix.strip("/").split("/")
    is_prefix = not {".", ".."} & {*labels} and "" not in labels[1:] and _UNUSABLE.search(prefix) is None
    if not is_prefix or _BUCKET.fullmatch(bucket) is None:
        raise InvalidInput(
            f"{shown(url)} is not s3://bucket or s3://bucket/prefix; options and credentials are keyword arguments of"
            " open(), or come from the environment, no part of a prefix is empty, '.' or '..', and a bucket's name has"
            " at most 63 letters, digits, '.', '-' and '_'"
        )
    region = options.region or find_region(options.profile) or "us-east-1"
    if _BUCKET.fullmatch(region) is None:
        raise InvalidInput(f"a region is a name such as 'eu-west-1', not {shown(region)}")
    endpoint = (
        options.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    ).rstrip("/")
    is_path_style = bool(endpoint) or "." in bucket
    endpoint = endpoint or f"https://s3.{region}.amazonaws.com"
    _check_endpoint(endpoint)
    prefix = prefix.strip("/")
    return Address(endpoint, bucket, f"{prefix}/" if prefix else "", region, is_path_style)


def _check_endpoint(endpoint: str) -> None:
    try:
        url = urlsplit(endpoint)
        host = (url.hostname or "").encode("idna")  # as it is done when a connection is made
        is_valid = url.scheme in ("http", "https") and bool(host) and url.username is None and url.port != 0
    except ValueError:  # such as a port that is not a number, or a host with an empty label
        is_valid = False
    if not is_valid or _UNUSABLE.search(endpoint) or not endpoint.isascii():
        raise InvalidInput(f"endpoint is a URL such as 'https://minio.example:9000', not {shown(endpoint)}")


class _CatchUp(Op, frozen=True):
    """Apply the records of others. Only this engine sends it, to itself, so that the thread that writes does the work.

    `first` is the record after `seq`, if it was read already.
    """

    seq: int = 0
    first: bytes | None = None


class _Erased(Exception):  # not an error: the cache is built again
    """Only segments have the effects of a record."""


class S3Engine(SqliteEngine):
    """Entries in a bucket."""

    #: A record is as large as its transaction, and each takes a request: a move is one.
    capabilities = replace(SqliteEngine.capabilities, moves_in_slices=False)
    dialect = S3Dialect
    _commits_in_loop = False  # a commit sends a request
    _dialect: S3Dialect

    def __init__(self, address: Address, options: Options, own: S3Options) -> None:
        self._own = own
        self._client = Client(address, find_source(own.credentials, own.profile))
        folder = _cache_folder(own.cache, address)
        self._bucket = Bucket(self._client, options.timeout)
        self._contents = Contents(folder / "contents", self._client, options.timeout)
        self._last_t = 0
        super().__init__(str(folder / f"cache-{len(MIGRATIONS)}.db"), options)
        self._dialect.contents = self._contents
        if options.clock is None:
            self._clock = self._read_clock
            self._sql._clock = self._sql.ranker._clock = self._read_clock

    def _reset(self) -> None:
        super()._reset()
        self._client.forget()
        self._bucket = Bucket(self._client, self._options.timeout)
        self._effects: Effects | None = None
        self._polling = threading.Lock()
        self._polled = -1e18  # when the last complete poll of the log began
        self._lost_at = -1e18  # when another machine last took a slot that this one wanted
        self._machine = make_nonce()  # the name of this process in records
        self._others: dict[str, float] = {}  # when the last record of each other one was applied
        self._turns_of_others = 0  # records of others since our last one
        self._append_seconds = 0.01  # about how long it takes to write a record
        self._applied = 0  # records of others
        self._log_records = self._log_bytes = 0  # about: of the log since the last floor
        self._is_compacting = False
        self._deadline = 0.0  # of the transaction under way
        self._has_won = False  # the record of the transaction under way is written
        self._written: list[tuple[Reference, bytes]] = []  # contents of the transaction under way

    def _read_clock(self) -> int:
        """Return the time of the server, which is never before that of the last record."""
        return max(int(self._client.clock.now() * 1e6), self._last_t)

    @property
    def _synchronous(self) -> str:
        return "NORMAL"  # commits that a power cut takes from the cache are in the bucket

    # The engine's methods --------------------------------------------------------------------------------------------

    def setup(self) -> None:
        super().setup()
        with contextlib.suppress(AccessRefused):  # credentials that may only read can overwrite nothing
            self._bucket.check_conditions(self._bucket.make_deadline())

    async def asetup(self) -> None:
        import asyncio

        await asyncio.to_thread(self.setup)

    def close(self) -> None:
        super().close()
        self._client.close()

    def before_fork(self) -> None:
        super().before_fork()
        self._client.close()

    def listen(self, notify: Callable[[], None]) -> LogListener:  # type: ignore[override]  # a listener too
        self._ensure_fresh()
        return LogListener(super().listen(notify), self._poll_for_changes)

    def _poll_for_changes(self) -> bool:
        """Poll the log; return whether it had something new."""
        before = self._applied
        self._poll_log()
        return self._applied != before

    # Reading ---------------------------------------------------------------------------------------------------------

    def _read(self, batch: Sequence[Op]) -> list[Any]:
        self._ensure_fresh()
        return super()._read(batch)

    def look_up(self, batch: Sequence[Op]) -> list[Any] | None:
        return super().look_up(batch) if self._is_fresh() else None

    def _answer(self, submissions: list[Submission]) -> None:
        """Run reads, after one poll of the log for all of them."""
        try:
            self._ensure_fresh()
        except Exception as error:  # any error: each caller gets it
            for submission in submissions:
                submission.error = error
            wake_callers(submissions)
            return
        for submission in submissions:
            if not submission.cancelled:
                try:
                    submission.results = super()._read(submission.batch)
                except Exception as error:  # any error belongs to this caller alone
                    submission.error = error
        wake_callers(submissions)

    def _is_fresh(self) -> bool:
        """Whether the last poll of the log is recent enough for a read."""
        return self._own.stale > 0 and time.monotonic() - self._polled < self._own.stale

    def _ensure_fresh(self) -> None:
        """Bring the cache to the state that the bucket had when this was called, or `stale` seconds before."""
        if not self._is_fresh():
            self._poll_log()

    def _poll_log(self) -> None:
        """Bring the cache to the state that the bucket had when this was called.

        All callers that came before a poll began share it.
        """
        asked = time.monotonic()
        deadline = asked + self._options.timeout
        while not self._polling.acquire(timeout=0.1):
            restart_if_signaled()
            if time.monotonic() > deadline:
                raise Timeout(f"{self._client.address.shown} did not answer for {self._options.timeout} s")
        try:
            if self._polled >= asked:
                return
            began = time.monotonic()
            self._apply_new_records(deadline)
            self._polled = began
        finally:
            self._polling.release()

    def _apply_new_records(self, deadline: float) -> None:
        """Read the records that the cache lacks, and apply them."""
        position = self._read_cache(read_position)
        found = self._bucket.read(position.seq + 1, deadline)
        if found is not None or not self._bucket.has_log_since(position.seq, deadline):
            self._commits.submit([_CatchUp(position.seq, found)])

    def _read_cache(self, read: Callable[[Connection], T]) -> T:
        """Read what only this engine has in the cache."""
        reader = self._readers.take()
        try:
            with self._translating():
                return read(reader)
        finally:
            self._readers.give_back(reader)

    # Writing ---------------------------------------------------------------------------------------------------------

    def _transact(self, members: list[Submission]) -> None:
        """Run batches in one transaction, once the cache is up to date where others write at the same time."""
        writer = self._writer or self._open()
        catch_ups = [member.batch[0] for member in members if isinstance(member.batch[0], _CatchUp)]
        batches = [member for member in members if not isinstance(member.batch[0], _CatchUp)]
        # To build the cache may take longer than the timeout, and must not leave a write without time.
        deadline = max(members[0].began, time.monotonic() - self._options.timeout / 2) + self._options.timeout
        self._deadline = writer.busy_wait.deadline = deadline
        try:
            with self._translating():
                if catch_ups:  # one look is for all of them
                    self._catch_up(writer, deadline, catch_ups[0].seq, catch_ups[0].first)
                if batches:
                    self._commit_to_bucket(writer, batches, deadline)
        except (OutcomeUnknown, Unavailable) as error:  # for all of them: each alone would wait for as long again
            for member in members:
                if not member.finished:
                    member.error = member.error or error
        for member in members:
            member.finished = True

    def _commit_to_bucket(self, writer: Connection, batches: list[Submission], deadline: float) -> None:
        if time.monotonic() - self._lost_at < _CONTENDED:
            self._catch_up(writer, deadline)
            self._let_others_write(writer, deadline)
        while True:
            self._has_won, self._written = False, []
            assert self._effects is not None
            if not self._effects.has_all_triggers():
                self._effects.install_triggers()
            self._last_t = max(self._last_t, read_position(writer).t)  # another process may have written
            try:
                super()._transact(batches)
                break
            except SlotTaken as taken:
                self._lost_at = time.monotonic()
                if time.monotonic() > deadline:
                    raise Timeout(
                        f"other machines wrote to {self._client.address.shown} for {self._options.timeout} s without a"
                        " pause; nothing was written: try again"
                    ) from None
                self._catch_up(writer, deadline, taken.seq - 1, taken.record)
            except Exception as error:  # any error: a record that is in the bucket must not be written twice
                if not self._has_won:
                    if not isinstance(error, HoldallError) or isinstance(error, Unavailable):
                        raise
                    if not self._has_more(writer, deadline):
                        raise
                    continue  # the cache was not up to date, so the error may be wrong
                # The record is in the bucket, so the batches are committed; the cache gets it when it can.
                logger.warning("cannot write to the cache %r, trying again later: %s", self._path, error)
                self._polled = -1e18  # so that the next read gets the record from the bucket, or fails
                for member in batches:
                    member.finished = True
                break
        for reference, data in self._written:
            self._contents.keep(reference, data)
        self._written = []
        if self._has_won and not self._is_compacting and compaction.is_due(self._log_records, self._log_bytes):
            self._start_compacting()

    def _let_others_write(self, writer: Connection, deadline: float) -> None:
        """Wait until the other machines that write have written since our last record, so that all get their turns.

        Otherwise chance decides, and the slower a machine is, the less often it wins. The wait is short: a machine may
        have nothing more to write.
        """
        now = time.monotonic()
        self._others = {name: then for name, then in self._others.items() if now - then < _CONTENDED}
        end = min(deadline, now + min(_LONGEST_TURN, 2 * self._append_seconds * len(self._others)))
        while self._turns_of_others < len(self._others) and time.monotonic() < end:
            time.sleep(self._append_seconds / 2)
            self._catch_up(writer, deadline)

    def _before_commit(self, writer: Connection, members: list[Submission]) -> None:
        """Write the effects of the transaction to the next slot of the log."""
        assert self._effects is not None
        deadline, seq = self._deadline, read_position(writer).seq
        disallow_restart()
        if any(type(op) is SetHistory for member in members for op in member.batch):
            self._obey_history(self._effects)
        elif not self._effects.has_all_triggers():  # another process has just moved one, which should have run
            raise SlotTaken(seq + 1, None)
        put = lambda name, body: self._bucket.put_blob(name, body, deadline)  # noqa: E731  # one line that is used once
        self._written = self._contents.move_to_blobs(writer, seq + 1, put)
        effects = self._effects.collect()
        if not effects:
            if all(type(op) in _LOCAL for member in members for op in member.batch):
                return
            # The result of a call depends on the state of the cache, so it must be the newest.
            found = self._bucket.read(seq + 1, deadline)
            if found is not None or not self._bucket.has_log_since(seq, deadline):
                raise SlotTaken(seq + 1, found)
            return
        now = self._read_clock()
        header = Header(f"{self._machine}-{make_nonce()}", now, self._effects.columns_of(effects))
        record = encode_lines(header, map(encode_effect, effects))
        began = time.monotonic()
        self._bucket.append(seq + 1, record, deadline)
        self._append_seconds += (time.monotonic() - began - self._append_seconds) / 8
        self._has_won, self._turns_of_others = True, 0
        self._advance(writer, seq + 1, now, record)

    def _advance(self, writer: Connection, seq: int, t: int, record: bytes) -> None:
        """Note in the cache that it has a record."""
        self._last_t = max(self._last_t, t)
        writer.execute("UPDATE holdall_bucket SET seq = ?, t = ?", (seq, self._last_t))
        writer.execute("INSERT OR REPLACE INTO holdall_log VALUES (?, ?)", (seq, record))
        self._log_records += 1
        self._log_bytes += len(record)

    # The records of others -------------------------------------------------------------------------------------------

    def _catch_up(self, writer: Connection, deadline: float, seq: int = -1, first: bytes | None = None) -> None:
        """Apply all records that the cache lacks. `first` is the one after `seq`, if it was read already."""
        while True:
            position = read_position(writer)
            here = position.seq
            if first is not None and seq == here:
                records, first = [first], None
            else:
                records = self._bucket.read_from(here + 1, deadline)
            if position.store != self._bucket.store or not self._bucket.has_log_since(here, deadline):
                self._rebuild(writer, position)
                continue
            if not records:
                break
            try:
                self._apply(writer, here, records)
            except _Erased:
                self._rebuild(writer, position)
        if self._bucket.floor.upto > position.upto:
            self._trim_log(writer)

    def _has_more(self, writer: Connection, deadline: float) -> bool:
        """Apply the records that the cache lacks; return whether there were any."""
        before = read_position(writer).seq
        self._catch_up(writer, deadline)
        return read_position(writer).seq != before

    def _apply(self, writer: Connection, seq: int, records: list[bytes]) -> None:
        """Apply the records after a sequence number, in one transaction."""
        assert self._effects is not None
        writer.execute("BEGIN IMMEDIATE")
        try:
            here = read_position(writer).seq
            for number, record in enumerate(records, seq + 1):
                if number != here + 1:  # another process was faster
                    continue
                found = decode_lines(record)
                if found is None:  # an unusable slot, unless the record was damaged in transit
                    record = self._bucket.read(number, self._bucket.make_deadline()) or record  # noqa: PLW2901  # as it is
                    found = decode_lines(record)
                header, text = (Header(), b"") if found is None else found
                if header.is_erased:
                    raise _Erased
                effects = decode_effects(text)
                self._index_tombstones(writer, effects)
                self._effects.apply(effects, header.columns)
                if any(effect.table == "holdall_state" for effect in effects):
                    self._obey_history(self._effects)
                self._advance(writer, number, header.t, record)
                here = number
                self._applied += 1
                self._turns_of_others += 1
                self._others[header.by.partition("-")[0]] = time.monotonic()
            writer.execute("COMMIT")
        except BaseException:
            self._roll_back(writer)
            raise
        self._sql.trees.needs_clearing = bool(writer.execute("SELECT 1 FROM holdall_trees LIMIT 1").fetchall())

    def _obey_history(self, effects: Effects) -> None:
        effects.obey_history(self._dialect.start_history, self._dialect.stop_history)

    def _index_tombstones(self, writer: Connection, effects: list[Effect]) -> None:
        """Before tombstones are removed: have the text index of this cache take note of them."""
        if any(effect.table == "holdall_entries" and not effect.rows for effect in effects):
            drive(self._sql.index_all_tombstones(), writer.run)

    def _load(self, connection: Connection, before: Position, effects: Effects) -> None:
        compaction.load(self._bucket, connection, before, effects, lambda: self._obey_history(effects))

    def _rebuild(self, writer: Connection, before: Position) -> None:
        """Build the cache again from the bucket, unless another process has done it since the cache was there."""
        assert self._effects is not None
        self._load(writer, before, self._effects)
        self._sql.ranker.forget()
        self._sql.trees.needs_clearing = bool(writer.execute("SELECT 1 FROM holdall_trees LIMIT 1").fetchall())

    # Compaction ------------------------------------------------------------------------------------------------------

    def _start_compacting(self) -> None:
        self._is_compacting = True
        try:
            self._spawn(self._compact, "compactor", 1)
        except StoreClosed as error:  # no thread can start; what was written is done all the same
            self._is_compacting = False
            logger.warning("cannot compact the log of %s: %s", self._client.address.shown, error)

    def _compact(self) -> None:
        """Merge the log since the last floor to a segment, in the background."""
        try:
            self._merge_log()
            if compaction.needs_rewrite(self._bucket.floor):
                self._rewrite()
            self._commits.submit([_CatchUp()])
        except StoreClosed:
            pass
        except Exception as error:  # any error: the log only grows, and a later commit tries again
            logger.warning("cannot compact the log of %s, trying again later: %s", self._client.address.shown, error)
        finally:
            self._log_records = self._log_bytes = 0
            self._is_compacting = False

    def _merge_log(self) -> None:
        floor = self._bucket.floor
        log = "SELECT seq, data FROM holdall_log WHERE seq > ? ORDER BY seq"
        records: list[Any] = self._read_cache(lambda reader: reader.execute(log, (floor.upto,)).fetchall())
        if [seq for seq, _ in records] != [*range(floor.upto + 1, floor.upto + 1 + len(records))] or not records:
            return
        texts, find = [data for _, data in records], lambda: self._read_cache(find_referenced)
        if compaction.compact(self._bucket, floor, texts, find, self._patience) is None:
            self._bucket.find_newest_floor(time.monotonic() + self._patience)

    def _rewrite(self) -> None:
        """Write all segments again, without the past.

        They come from the bucket, through a database that is made for it: the cache is never the source.
        """
        while True:
            path = f"{self._path}-rewrite-{make_nonce()}"
            with self._build_file(path, is_temporary=True) as (connection, effects):
                floor = read_floor(connection)
                header = Header(make_nonce(), read_position(connection).t, effects.columns)
                referenced, lines = find_referenced(connection), effects.dump(connection)
                if compaction.rewrite(self._bucket, floor, header, lines, referenced, self._patience) is not None:
                    return

    @property
    def _patience(self) -> float:
        """How many seconds a request of a compactor may take: no caller waits for it."""
        return max(self._options.timeout, 60.0)

    def _scrub(self, op: Scrub) -> Scrubbed:
        """Erase from the bucket, too: removed rows are in the log, in segments and in blobs."""
        while self._commits.submit([Maintain()])[0]:
            pass
        self._ensure_fresh()
        seq = self._read_cache(read_position).seq
        while self._bucket.find_newest_floor(time.monotonic() + self._patience).upto < seq:
            self._merge_log()
        if self._bucket.floor.number:
            with self._translating():
                self._rewrite()
            compaction.purge(self._bucket, self._bucket.floor, self._patience)
        self._commits.submit([_CatchUp()])  # drops the copies of records
        self._contents.clear()
        self._remove_other_caches()
        scrubbed = super()._scrub(op)
        return Scrubbed(
            (*scrubbed.cleared, "the log, the segments and the contents in the bucket"),
            (
                *scrubbed.beyond,
                "caches of other machines, until you delete them",
                "objects that a killed process has not finished, for a day",
                "backups of the bucket, and old versions of its objects, if it keeps them",
            ),
        )

    def _trim_log(self, writer: Connection) -> None:
        """Drop the local copies of records that a floor has replaced."""
        floor = self._bucket.floor
        writer.execute("BEGIN IMMEDIATE")
        try:
            writer.execute("UPDATE holdall_bucket SET upto = ?", (floor.upto,))
            writer.execute("DELETE FROM holdall_log WHERE seq <= ?", (floor.upto,))
            writer.execute("INSERT INTO holdall_log VALUES (0, ?)", (encode_struct(floor),))
            writer.execute("COMMIT")
        except BaseException:
            self._roll_back(writer)
            raise
        self._measure_log(writer)

    def _measure_log(self, writer: Connection) -> None:
        measure = "SELECT count(*), coalesce(sum(length(data)), 0) FROM holdall_log"
        rows: Any = writer.execute(f"{measure} WHERE seq > (SELECT upto FROM holdall_bucket)").fetchall()
        [(self._log_records, self._log_bytes)] = rows

    # Connections -----------------------------------------------------------------------------------------------------

    def _connect_writer(self) -> Connection:
        deadline = self._bucket.make_deadline()
        self._bucket.open(deadline)
        with contextlib.suppress(OSError):  # it exists, or is refused below
            Path(self._path).parent.mkdir(mode=0o700, parents=True)
        writer = super()._connect_writer()
        try:
            self._effects = Effects(writer)
            position = read_position(writer)
            self._last_t = position.t
            if position.store != self._bucket.store or self._has_other_log(writer, position, deadline):
                self._rebuild(writer, position)
            self._measure_log(writer)
        except BaseException:
            writer.close()
            raise
        return writer

    def _has_other_log(self, writer: Connection, position: Position, deadline: float) -> bool:
        """Whether the bucket lacks the end of the cache: it was restored to an older state, or has deleted it."""
        if position.seq == 0:
            return False
        log = "SELECT seq, data FROM holdall_log WHERE seq IN (0, ?) ORDER BY seq DESC LIMIT 1"
        rows: list[Any] = writer.execute(log, (position.seq,)).fetchall()
        for seq, held in rows:
            floor = read_floor(writer)
            name, last = (log_name(seq), seq) if seq else (floor_name(floor.number), floor.upto)
            if last == position.seq and self._client.get(name, deadline) == held:
                return False
        where = self._client.address.shown
        logger.info("the end of the cache %r is not in %s any more, so it is built again", self._path, where)
        return True

    def _open_file(self) -> Connection:
        if self._damage_note.exists():
            self._remove_cache()
        self._build_cache()
        try:
            return super()._open_file()
        except (apsw.NotADBError, apsw.CorruptError, Corrupt, InvalidInput):
            self._remove_cache()
            self._build_cache()
            return super()._open_file()

    def _build_cache(self) -> None:
        """Build a cache that does not exist, in a file that gets its name when it is whole."""
        path, new = Path(self._path), Path(self._path + "-new")
        if path.exists():
            return
        try:
            for old in (new, *(Path(self._path + suffix) for suffix in ("-wal", "-shm"))):  # SQLite would read them
                old.unlink(missing_ok=True)
            with self._build_file(str(new)) as (connection, _):
                connection.close()
                with new.open("rb+") as file:
                    os.fsync(file.fileno())  # otherwise a power cut could leave a file of which parts are missing
                new.replace(path)
        except OSError as error:
            raise Unavailable(f"cannot build the cache {self._path!r}: {error.strerror}; nothing is lost") from error

    @contextlib.contextmanager
    def _build_file(self, path: str, is_temporary: bool = False) -> Iterator[tuple[Connection, Effects]]:
        """Make a database with what the newest floor has. In the end it is deleted, unless it has another name."""
        connection = Connection(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, self._options.timeout)
        try:
            if is_temporary:
                Path(path).unlink()  # now, so that it does not stay if this process is killed
            # In memory: a segment may be gone while it is read. Pages that are new need no journal, so it stays small.
            pragma(connection, "journal_mode", "memory")
            connection.set_synchronous("OFF")
            self._migrate(connection)
            effects = Effects(connection)
            self._load(connection, Position(), effects)
            yield connection, effects
        finally:
            connection.close()
            with contextlib.suppress(OSError):
                Path(path).unlink(missing_ok=True)

    def _migrate(self, writer: Connection) -> None:
        super()._migrate(writer)
        if not writer.execute("SELECT 1 FROM sqlite_schema WHERE name = 'holdall_moved_triggers'").fetchall():
            writer.execute("BEGIN IMMEDIATE")
            writer.execute(SCHEMA)
            move_triggers(writer)
            writer.execute("COMMIT")

    def _remove_cache(self) -> None:
        """Remove a cache that cannot be used."""
        logger.warning("the cache %r cannot be used, and is built again", self._path)
        for path in (*(Path(self._path + suffix) for suffix in ("", "-wal", "-shm")), self._damage_note):
            with contextlib.suppress(OSError):
                path.unlink()

    def _remove_other_caches(self) -> None:
        """Remove the caches of other releases, whose schemas differ. A release that is still in use builds its own."""
        own = Path(self._path)
        try:
            for path in [*own.parent.glob("cache-*.db*")]:
                if not path.name.startswith(own.name):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"cannot delete {error.filename!r}: {error.strerror}; call erase again") from error

    @property
    def _damage_note(self) -> Path:
        """A file whose presence means that the cache is damaged."""
        return Path(self._path + "-damaged")

    def _translate_error(self, error: Exception) -> HoldallError:
        translated = super()._translate_error(error)
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            with contextlib.suppress(OSError):
                self._damage_note.touch()
            return Corrupt(f"{translated}; this is only a cache: open the store again, and it is built from the bucket")
        if isinstance(error, apsw.FullError):
            return Unavailable(
                f"the disk is full, so the cache {self._path!r} cannot take what is in the bucket; nothing was written,"
                " and nothing is lost: free space, or open the store with another cache="
            )
        return translated

    def _lost(self) -> Unavailable:
        return Unavailable(
            f"the cache {self._path!r}, or its -wal or -shm file, was deleted, moved or replaced while it was open;"
            " close every store on it in this process, and open it again: it is built from the bucket"
        )

    def _connect(self, flags: int) -> Connection:
        connection = super()._connect(flags)
        connection.create_aggregate_function("holdall_joined", lambda: join_pieces(self._dialect), 1)
        connection.create_aggregate_function("holdall_head", lambda: join_heads(self._dialect), 1)
        return connection


def _cache_folder(given: Any, address: Address) -> Path:
    """Return the folder of the cache of a store."""
    if given is None:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        try:
            given = Path(base).expanduser() / "holdall"
        except RuntimeError as error:
            raise InvalidInput("this user has no home folder for the cache of the bucket; pass cache=") from error
    name = hashlib.sha256(f"{address.endpoint}/{address.bucket}/{address.prefix}".encode()).hexdigest()[:16]
    return Path(given) / name
