"""The index of file contents in PostgreSQL, for grep: which files contain a group of three bytes (a *gram*).

    contents   place -> version: indexed files are numbered as they come; a changed file loses its number
    parts      start, width -> files, gone, level: the files numbered from `start` on, 8 * `width` numbers
    grams      part, gram -> bits: which files of a part contain a gram, one bit a file, the first in the lowest bit

A file has many hundreds of grams, so a GIN index needs milliseconds to add one file. Here, a slice of files is turned
into bits at once and becomes a part, with one row for each gram in any of its files. Eight small parts are merged into
one, so that a search reads few rows. A part that has lost half of its files is dropped, and its other files are indexed
again.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from ...sql.dialect import MOST_FOUND, ContentQuery, choose_grams
from ...sql.statements import Rows, SqlProgram, Statement

#: The largest width of a merged part, in bytes: the bits of a gram must fit in their row.
_MAX_WIDTH = 1024
_MERGED_AT_ONCE = 8


class TrigramIndex:
    """The index, as programs that yield statements. One process at a time changes it: it executes `lock` first."""

    def __init__(self, schema: str) -> None:
        self._contents, self._parts, self._grams = (f"{schema}.{name}" for name in ("contents", "parts", "grams"))
        self._unindexed = f"{schema}.unindexed"
        self.lock: Statement = ("SELECT pg_advisory_xact_lock(hashtext(:p0))", {"p0": f"holdall {schema} contents"})

    def add(self, texts: list[tuple[int, str]]) -> SqlProgram[None]:
        """Index the contents of versions, as a new part."""
        [[(start,)]] = yield [(f"SELECT coalesce(max(start + 8 * width), 0) FROM {self._parts}", {})]
        bits = _find_grams([text for _, text in texts])
        width = -(-len(texts) // 8)
        versions = "unnest(:all_numbers::bigint[]) WITH ORDINALITY AS row (version, number)"
        yield [
            (
                f"INSERT INTO {self._contents} (place, version) SELECT :start + number - 1, version FROM {versions}"
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
        yield from self._merge()

    def _merge(self) -> SqlProgram[None]:
        """Merge eight parts of one level, if there are as many, into one of the next."""
        [parts] = yield [(f"SELECT start, width, level FROM {self._parts} ORDER BY start", {})]
        by_level: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for start, width, level in parts:
            by_level[level].append((start, width))
        for level, found in by_level.items():
            merged = found[:_MERGED_AT_ONCE]
            starts = [start for start, _ in merged]
            width = (starts[-1] - starts[0]) // 8 + merged[-1][1]
            if len(merged) < _MERGED_AT_ONCE or width > _MAX_WIDTH:
                continue
            # The bits of each part, padded with zeros up to the start of the next part; the last one as it is.
            bits = [f"coalesce(string_agg(bits, '') FILTER (WHERE part = {start:d}), '')" for start in starts]
            for number, (start, following) in enumerate(itertools.pairwise(starts)):
                bits[number] = f"substr({bits[number]} || :zeros, 1, {(following - start) // 8:d})"
            params = {"all_numbers": starts}
            yield [
                (
                    f"WITH old AS (DELETE FROM {self._grams} WHERE part = ANY(:all_numbers::bigint[]) RETURNING *)"
                    f" INSERT INTO {self._grams} (part, gram, bits)"
                    f" SELECT {starts[0]:d}, gram, {' || '.join(bits)} FROM old GROUP BY gram",
                    {**params, "zeros": bytes(width)},
                ),
                (
                    f"WITH old AS (DELETE FROM {self._parts} WHERE start = ANY(:all_numbers::bigint[]) RETURNING *)"
                    f" INSERT INTO {self._parts} (start, width, level, files, gone)"
                    f" SELECT {starts[0]:d}, {width:d}, {level + 1:d}, sum(files), sum(gone) FROM old",
                    params,
                ),
            ]
            return

    def remove(self, versions: list[int]) -> SqlProgram[bool]:
        """Remove versions -> whether other versions have to be indexed again, and wait in `unindexed`."""
        sql = f"""
            WITH lost AS (DELETE FROM {self._contents} WHERE version = ANY(:all_numbers::bigint[]) RETURNING place),
            counted AS (
                SELECT (SELECT max(start) FROM {self._parts} WHERE start <= place) AS part, count(*) AS files
                FROM lost GROUP BY 1
            )
            UPDATE {self._parts} SET gone = gone + counted.files FROM counted WHERE start = counted.part
            RETURNING start, start + 8 * width, 2 * gone > {self._parts}.files"""
        [rows] = yield [(sql, {"all_numbers": versions})]
        dropped = [(start, end) for start, end, is_half_empty in rows if is_half_empty]
        for start, end in dropped:
            params = {"start": start, "end": end}
            kept = f"DELETE FROM {self._contents} WHERE place >= :start AND place < :end RETURNING version"
            requeue = f"INSERT INTO {self._unindexed} (version) SELECT version FROM kept ON CONFLICT DO NOTHING"
            yield [
                (f"WITH kept AS ({kept}) {requeue}", params),
                (f"DELETE FROM {self._grams} WHERE part = :start", params),
                (f"DELETE FROM {self._parts} WHERE start = :start", params),
            ]
        return bool(dropped)

    def find(self, substrings: list[str]) -> ContentQuery | None:
        """Return how to find the versions that may contain all these texts; None if the texts have no gram."""
        grams = list(dict.fromkeys(gram for text in substrings for gram in _find_grams([text])))
        if not grams:
            return None
        grams = choose_grams(grams)
        sql = (
            f"SELECT part, bits FROM {self._grams} WHERE part = ANY(ARRAY(SELECT start FROM {self._parts}))"
            f" AND gram = ANY(:all_grams::int[])"
        )
        return (sql, {"all_grams": grams}), lambda rows: self._find_versions(rows, len(grams))

    def _find_versions(self, rows: Rows, gram_count: int) -> Statement | None:
        """Return the query for the versions that have all grams, from the bits of each; None if they are too many."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for part, bits in rows:
            found[part].append(int.from_bytes(bits, "little"))
        numbers: list[int] = []
        for part, bits_of_grams in found.items():
            if len(bits_of_grams) == gram_count:
                in_all = bits_of_grams[0]
                for bits in bits_of_grams[1:]:
                    in_all &= bits
                if len(numbers) + in_all.bit_count() >= MOST_FOUND:
                    return None
                numbers += _to_numbers(part, in_all)
        sql = f"SELECT version FROM {self._contents} WHERE place = ANY(:all_numbers::bigint[])"
        return sql, {"all_numbers": numbers}


def _find_grams(texts: list[str]) -> dict[int, int]:
    """Map each gram of the texts, in lower case and as a number, to the bits of the texts that contain it."""
    found: defaultdict[Any, int] = defaultdict(int)
    for number, text in enumerate(texts):
        data, bit = text.encode().lower(), 1 << number
        for gram in set(zip(data, data[1:], data[2:], strict=False)):
            found[gram] |= bit
    return {first << 16 | second << 8 | third: found[first, second, third] for first, second, third in sorted(found)}


def _to_numbers(start: int, bits: int) -> list[int]:
    """Return the numbers of the files whose bits are set, in a part that begins at `start`."""
    numbers: list[int] = []
    while bits:
        lowest = bits & -bits
        numbers.append(start + lowest.bit_length() - 1)
        bits ^= lowest
    return numbers
