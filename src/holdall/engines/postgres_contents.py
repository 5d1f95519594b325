"""The index of what files contain, in PostgreSQL: which of them have a group of three bytes (a *gram*).

    contents   place -> version: files are numbered as they come, and forgotten when they change
    parts      start, width -> files, gone, level: a run of places, 8 * width from `start` on
    grams      part, gram -> bits: which files of a part have it, a bit for each, the first in the lowest

A file has many hundred grams, so PostgreSQL's own index for such things takes milliseconds to take one in. Here a slice
of files is turned into bits in one go, and becomes a part: a row for each gram that any of them has. Of small parts,
eight become one, so that a search reads few rows however the files came. A part that has lost half of its files is
given up, and what is left of it is taken in anew.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from ..programs import Program
from .dialect import MOST_FOUND, Mentions
from .statements import Rows, Statement

#: How wide a part becomes by joining others: the bits of a gram are to fit their row.
_WIDEST = 1024
_JOINED_AT_ONCE = 8
#: How many grams of a text are looked up: those of most files will not be next to each other.
_MOST_ASKED = 8


class Contents:
    """The index as programs over statements; one process at a time changes it."""

    def __init__(self, schema: str) -> None:
        self._contents, self._parts, self._grams = (f"{schema}.{name}" for name in ("contents", "parts", "grams"))
        self._unindexed = f"{schema}.unindexed"
        self.lock: Statement = ("SELECT pg_advisory_xact_lock(hashtext(:p0))", {"p0": f"holdall {schema} contents"})

    def learn(self, texts: list[tuple[int, str]]) -> Program[None]:
        """Take in the contents of versions, as a part."""
        [[(start,)]] = yield [(f"SELECT coalesce(max(start + 8 * width), 0) FROM {self._parts}", {})]
        bits = _bits([text for _, text in texts])
        width = -(-len(texts) // 8)
        numbered = "unnest(:all_numbers::bigint[]) WITH ORDINALITY AS row (version, number)"
        yield [
            (
                f"INSERT INTO {self._contents} (place, version) SELECT :start + number - 1, version FROM {numbered}"
                f" ON CONFLICT (version) DO UPDATE SET place = excluded.place",
                {"start": start, "all_numbers": [version for version, _ in texts]},
            ),
            (
                f"INSERT INTO {self._parts} (start, width, level, files, gone) VALUES (:start, {width}, 0, :size, 0)",
                {"start": start, "size": len(texts)},
            ),
            (
                f"INSERT INTO {self._grams} (part, gram, bits)"
                f" SELECT :start, * FROM unnest(:all_grams::int[], :all_bits::bytea[])",
                {
                    "start": start,
                    "all_grams": list(bits),
                    "all_bits": [which.to_bytes(-(-which.bit_length() // 8), "little") for which in bits.values()],
                },
            ),
        ]
        yield from self._join()

    def _join(self) -> Program[None]:
        """Make one part of eight that have become as many in the same way."""
        [parts] = yield [(f"SELECT start, width, level FROM {self._parts} ORDER BY start", {})]
        by_level: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for start, width, level in parts:
            by_level[level].append((start, width))
        for level, found in by_level.items():
            first = found[:_JOINED_AT_ONCE]
            starts = [start for start, _ in first]
            width = (starts[-1] - starts[0]) // 8 + first[-1][1]
            if len(first) < _JOINED_AT_ONCE or width > _WIDEST:
                continue
            # Each one's bits, with zeros up to where the next begins; the last one's as they are.
            pieces = [f"coalesce(string_agg(bits, '') FILTER (WHERE part = {start:d}), '')" for start in starts]
            for place, (start, following) in enumerate(itertools.pairwise(starts)):
                pieces[place] = f"substr({pieces[place]} || :data, 1, {(following - start) // 8:d})"
            among = {"all_numbers": starts}
            yield [
                (
                    f"WITH old AS (DELETE FROM {self._grams} WHERE part = ANY(:all_numbers::bigint[]) RETURNING *)"
                    f" INSERT INTO {self._grams} (part, gram, bits)"
                    f" SELECT {starts[0]:d}, gram, {' || '.join(pieces)} FROM old GROUP BY gram",
                    {**among, "data": bytes(width)},
                ),
                (
                    f"WITH old AS (DELETE FROM {self._parts} WHERE start = ANY(:all_numbers::bigint[]) RETURNING *)"
                    f" INSERT INTO {self._parts} (start, width, level, files, gone)"
                    f" SELECT {starts[0]:d}, {width:d}, {level + 1:d}, sum(files), sum(gone) FROM old",
                    among,
                ),
            ]
            return

    def forget(self, versions: list[int]) -> Program[bool]:
        """Take versions out; whether others are to be taken in anew."""
        sql = f"""
            WITH lost AS (DELETE FROM {self._contents} WHERE version = ANY(:all_numbers::bigint[]) RETURNING place),
            counted AS (
                SELECT (SELECT max(start) FROM {self._parts} WHERE start <= place) AS part, count(*) AS files
                FROM lost GROUP BY 1
            )
            UPDATE {self._parts} SET gone = gone + counted.files FROM counted WHERE start = counted.part
            RETURNING start, start + 8 * width, 2 * gone > {self._parts}.files"""
        [rows] = yield [(sql, {"all_numbers": versions})]
        given_up = [(start, end) for start, end, is_hollow in rows if is_hollow]
        for start, end in given_up:
            inside = {"start": start, "end": end}
            kept = f"DELETE FROM {self._contents} WHERE place >= :start AND place < :end RETURNING version"
            anew = f"INSERT INTO {self._unindexed} (version) SELECT version FROM kept ON CONFLICT DO NOTHING"
            yield [
                (f"WITH kept AS ({kept}) {anew}", inside),
                (f"DELETE FROM {self._grams} WHERE part = :start", inside),
                (f"DELETE FROM {self._parts} WHERE start = :start", inside),
            ]
        return bool(given_up)

    def mentions(self, grams: list[str]) -> Mentions | None:
        """How to find the versions whose contents may have all these parts; None where they say nothing."""
        numbers = list(dict.fromkeys(gram for part in grams for gram in _bits([part])))
        if not numbers:
            return None
        if len(numbers) > _MOST_ASKED:
            numbers = [numbers[place * len(numbers) // _MOST_ASKED] for place in range(_MOST_ASKED)]
        sql = (
            f"SELECT part, bits FROM {self._grams} WHERE part = ANY(ARRAY(SELECT start FROM {self._parts}))"
            f" AND gram = ANY(:all_grams::int[])"
        )
        return (sql, {"all_grams": numbers}), lambda rows: self._mentioned(rows, len(numbers))

    def _mentioned(self, rows: Rows, asked: int) -> Statement | None:
        found: defaultdict[int, list[int]] = defaultdict(list)
        for part, bits in rows:
            found[part].append(int.from_bytes(bits, "little"))
        places: list[int] = []
        for part, those in found.items():
            if len(those) == asked:
                both = those[0]
                for bits in those[1:]:
                    both &= bits
                if len(places) + both.bit_count() >= MOST_FOUND:
                    return None
                places += _places(part, both)
        return f"SELECT version FROM {self._contents} WHERE place = ANY(:all_places::bigint[])", {"all_places": places}


def _bits(texts: list[str]) -> dict[int, int]:
    """The groups of three bytes in texts, whatever the case of their letters, as numbers; and which texts have each."""
    found: defaultdict[Any, int] = defaultdict(int)
    for place, text in enumerate(texts):
        data, bit = text.encode().lower(), 1 << place
        for gram in set(zip(data, data[1:], data[2:], strict=False)):
            found[gram] |= bit
    return {first << 16 | second << 8 | third: found[first, second, third] for first, second, third in sorted(found)}


def _places(start: int, bits: int) -> list[int]:
    places: list[int] = []
    while bits:
        lowest = bits & -bits
        places.append(start + lowest.bit_length() - 1)
        bits ^= lowest
    return places
