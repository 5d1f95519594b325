"""The kernel with numpy. Importing this module imports numpy, which takes long: only `kernel` does."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from ..scoring import FIRST_SORTED, MOST_TIMES, Weights
from .documents import split_forward
from .kernel import (
    CHUNK,
    DOCUMENT,
    DOCUMENT_MASK,
    MOST_UNPACKED,
    PACKED,
    PART,
    SEVERAL,
    TERM,
    TERM_MASK,
    Counts,
    Forms,
    Found,
    Scored,
    find_forms,
    find_range,
)
from .word_table import ArrayNumbering

_Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_Doubles: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_NONE: _Ints = np.empty(0, np.int64)
_NO_COUNTS: _Array = np.empty(0, np.uint8)
#: A block of a large segment has at most about so many terms.
_FEW_TERMS = 1024
#: Parts of at most so many documents are scored together.
_SHORT = 1 << 13
#: How many times as many results are sorted whenever those before were not enough.
_GROWTH = 16


class ArrayKernel:
    """Arithmetic on arrays."""

    def count(self, documents: Sequence[Sequence[int]]) -> _Ints:
        lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        postings: _Ints = np.concatenate([*map(_to_array, documents), _NONE])
        # One number for each occurrence of a term. Sorted, those of a term in a document are together, and are counted.
        postings <<= TERM
        postings |= np.repeat(np.arange(len(documents)) << DOCUMENT, lengths)
        postings.sort()
        first = _changes(postings)
        times = np.minimum(np.diff(first, append=len(postings)), MOST_TIMES)
        postings = postings[first] | times
        postings[times > 1] |= 1 << SEVERAL
        postings.sort()
        return postings

    def forward(self, postings: _Ints, documents: int) -> list[bytes]:
        # A *run* is the terms of a document that occur once, or those that occur several times: two for each document.
        # Sort by run, then by term: in one number, because numpy sorts numbers much faster than it finds their order.
        run = (postings >> DOCUMENT & DOCUMENT_MASK) << 1 | postings >> SEVERAL & 1
        ordered = run << 39 | (postings >> TERM) << 8 | postings & 255
        ordered.sort()
        run = ordered >> 39
        terms = ordered >> 8 & TERM_MASK
        gaps = np.diff(terms, prepend=0)  # the first of a run is the term itself
        first = _changes(run)
        gaps[first] = terms[first]
        lengths = np.bincount(run, minlength=2 * documents)
        # The numbers to store: both lengths, then the gaps, of each document. `header` is where the lengths are.
        before = np.cumsum(lengths) - lengths
        header = np.arange(2 * documents) + before[np.arange(2 * documents) // 2 * 2]
        numbers = np.empty(len(gaps) + 2 * documents, np.int64)
        numbers[header] = lengths
        numbers[np.arange(len(gaps)) + 2 * (run >> 1) + 2] = gaps
        # How many bytes each number takes, and where they begin: after the earlier numbers, and the counts of earlier
        # documents.
        widths = np.ones(len(numbers), np.int64)
        for bits in (7, 14, 21, 28):
            widths += numbers >= 1 << bits
        counted = lengths[1::2]
        of_number = np.repeat(np.arange(documents), lengths[::2] + counted + 2)
        count_bytes = np.cumsum(counted) - counted
        at = np.cumsum(widths) - widths + count_bytes[of_number]
        # Write the last byte of every number, then the bytes before it of longer ones.
        data = np.empty(int(widths.sum() + counted.sum()), np.uint8)
        data[at + widths - 1] = numbers >> 7 * (widths - 1)
        for byte in range(4):
            here = np.flatnonzero(widths > byte + 1)
            data[at[here] + byte] = numbers[here] >> 7 * byte & 127 | 128
        # The counts of a document are at its end.
        ends = np.cumsum(np.add.reduceat(widths, header[::2]) + counted) if documents else _NONE
        has_count = np.flatnonzero(run & 1)
        data[np.arange(len(has_count)) + np.repeat(ends - counted - count_bytes, counted)] = ordered[has_count] & 255
        whole, cuts = data.tobytes(), [0, *ends.tolist()]
        return [whole[start:end] for start, end in pairwise(cuts)]

    def encode(self, postings: _Ints, documents: int, size: int) -> list[tuple[int, bytes]]:
        if not len(postings):
            return []
        # For each term: where its postings begin, how many there are, and how many words its two lists take.
        terms = postings >> TERM
        first = _changes(terms)
        terms = terms[first]
        lengths = np.diff(first, append=len(postings))
        several = np.add.reduceat(postings >> SEVERAL & 1, first)
        once = lengths - several
        forms = find_forms(documents, documents > MOST_UNPACKED)
        once_words, several_words = _count_words(once, forms), _count_words(several, forms)
        list_words = once_words + several_words
        # Cut the terms into blocks, and find where each block starts and ends; a block begins at an even byte.
        sizes = 8 + 2 * list_words + several
        begin = np.array(_cut(np.cumsum(sizes).tolist(), size - 4))
        of_block = np.repeat(np.arange(len(begin)), np.diff(begin, append=len(terms)))
        count = np.diff(begin, append=len(terms))  # of terms, by block
        block_words = np.add.reduceat(list_words, begin)
        counts_bytes = np.add.reduceat(several, begin)
        sizes = 4 + 8 * count + 2 * block_words + counts_bytes + (counts_bytes & 1)
        end = np.cumsum(sizes)
        start = end - sizes
        # All blocks are written at once, as words of 2 bytes. `place` is where the next part of a block begins: first
        # by block, for the count of its terms, and then by term.
        data = np.zeros(int(end[-1]) // 2, np.uint16)
        place = start // 2
        data[place], data[place + 1] = count & 0xFFFF, count >> 16
        of_list = np.stack([once, several], 1)  # how many documents the two lists of each term have
        is_packed = ((of_list > forms.numbers) & (of_list <= forms.packed)).any(1)
        data[place[of_block[is_packed]] + 1] |= PACKED >> 16
        inside = np.arange(len(terms)) - begin[of_block]  # the index of a term in its block
        place = place[of_block] + 2
        data[place + 2 * inside], data[place + 2 * inside + 1] = terms & 0xFFFF, terms >> 16
        place += 2 * count[of_block]
        data[place + inside], data[place + count[of_block] + inside] = once, several
        place += 2 * count[of_block]
        # The lists of each term begin after those of the terms before it in its block.
        before = np.cumsum(list_words) - list_words
        place += before - before[begin][of_block]
        # Where the postings and the words of each list begin.
        of_list = of_list.ravel()
        list_first = np.cumsum(of_list) - of_list
        list_place = np.stack([place, place + once_words], 1).ravel()
        numbers = postings >> DOCUMENT & DOCUMENT_MASK
        at = np.arange(len(postings)) + np.repeat(list_place - list_first, of_list)
        as_bytes = data.view(np.uint8)
        if (of_list <= forms.numbers).all():
            data[at] = numbers
        else:
            is_number = np.repeat(of_list <= forms.numbers, of_list)
            data[at[is_number]] = numbers[is_number]
            for index in np.flatnonzero(of_list > forms.numbers).tolist():
                low, length, word = int(list_first[index]), int(of_list[index]), int(list_place[index])
                if length > forms.packed:
                    _set_bits(data, word, forms.bits, numbers[low : low + length])
                else:
                    _pack(as_bytes, 2 * word, forms.chunks, numbers[low : low + length])
        # The counts follow the lists of a block, a byte each.
        if counts_bytes.any():
            counts = (postings & 255)[(postings >> SEVERAL & 1).astype(bool)]
            of_count = np.repeat(of_block, several)
            base = start + 4 + 8 * count + 2 * block_words - (np.cumsum(counts_bytes) - counts_bytes)
            as_bytes[np.arange(len(counts)) + base[of_count]] = counts
        whole = data.tobytes()
        return [
            (term, whole[low:high])
            for term, low, high in zip(
                terms[begin].tolist(), start.tolist(), (end - (counts_bytes & 1)).tolist(), strict=True
            )
        ]

    def parse(self, block: bytes, documents: int) -> ArrayBlock:
        return ArrayBlock(block, documents)

    def move(self, postings: _Ints, numbers: Sequence[int], part: int) -> _Ints:
        new = np.asarray(numbers, np.int64)[postings >> DOCUMENT & DOCUMENT_MASK]
        if (new < 0).any():
            postings, new = postings[new >= 0], new[new >= 0]
        into = new // part
        moved: _Ints = postings & ~(DOCUMENT_MASK << DOCUMENT) | into << PART | (new - into * part) << DOCUMENT
        return moved

    def join(self, several: Sequence[_Ints]) -> _Ints:
        postings = np.concatenate([_NONE, *several])
        postings.sort()
        return postings

    def split(self, postings: _Ints) -> list[tuple[int, _Ints]]:
        if not len(postings):
            return []
        parts = range(int(postings[0] >> PART), int(postings[-1] >> PART) + 1)
        cuts = np.searchsorted(postings, [part << PART for part in (*parts, parts.stop)]).tolist()
        mask = (1 << PART) - 1
        return [
            (part, postings[low:high] & mask)
            for part, low, high in zip(parts, cuts[:-1], cuts[1:], strict=True)
            if low < high
        ]

    def between(self, postings: _Ints, low: int, high: int) -> _Ints:
        first, last = np.searchsorted(postings, [low << TERM, high << TERM]).tolist()
        return postings[first:last]

    def count_terms(self, postings: _Ints) -> Counts:
        terms = postings >> TERM
        first = _changes(terms)
        found: Any = terms[first], np.diff(first, append=len(postings))
        return found  # type: ignore[no-any-return]  # arrays are sequences

    def add_counts(self, several: Sequence[Counts]) -> tuple[bytes, bytes]:
        terms = np.concatenate([_NONE, *(np.asarray(terms, np.int64) for terms, _ in several)])
        counts = np.concatenate([_NONE, *(np.asarray(counts, np.int64) for _, counts in several)])
        if not len(terms):
            return b"", b""
        order = np.argsort(terms, kind="stable")
        terms, counts = terms[order], counts[order]
        first = _changes(terms)
        sums = np.add.reduceat(counts, first)
        changed = sums != 0
        return terms[first][changed].astype("<u4").tobytes(), sums[changed].astype("<i4").tobytes()

    def find_terms(self, forward: Sequence[bytes], terms: Sequence[int]) -> list[Found]:
        heads = list(map(split_forward, forward))
        found = _decode_forward(forward, heads)
        if not len(found):
            return []
        counts = np.frombuffer(
            b"".join([data[len(data) - several :] for data, (_, several, _) in zip(forward, heads, strict=True)]),
            np.uint8,
        )
        lengths = np.array(heads, np.int64)[:, :2].ravel()
        run = np.repeat(np.arange(len(lengths)), lengths)
        times = np.ones(len(found), np.int64)
        times[run & 1 == 1] = counts
        here_of = [np.flatnonzero(found == term) for term in terms]
        return [Found(index, _NONE, run[here] >> 1, times[here]) for index, here in enumerate(here_of)]

    def count_removed(self, forward: Sequence[bytes]) -> Counts:
        terms = _decode_forward(forward, list(map(split_forward, forward)))
        terms.sort()
        first = _changes(terms)
        found: Any = terms[first], -np.diff(first, append=len(terms))
        return found  # type: ignore[no-any-return]  # arrays are sequences

    def read_list(self, documents: array[int], counts: bytearray, removed: array[int]) -> tuple[_Ints, _Array]:
        numbers, times = np.array(documents, np.int64), np.frombuffer(bytes(counts), np.uint8)
        if not removed:
            return numbers, times
        left = ~np.isin(numbers, np.array(removed, np.int64))
        return numbers[left], times[left]

    def select(self, documents: _Ints, counts: _Array, few: Sequence[int]) -> tuple[_Ints, _Array]:
        if not len(documents):
            return _NONE, _NO_COUNTS
        wanted = np.array(few, np.int64)
        at = np.minimum(np.searchsorted(documents, wanted), len(documents) - 1)
        here = np.flatnonzero(documents[at] == wanted)
        return here, counts[at[here]]

    def scores(self, weights: Weights) -> ArrayScores:
        return ArrayScores(weights)

    def numbering(self) -> ArrayNumbering:
        return ArrayNumbering()


def _decode_forward(forward: Sequence[bytes], heads: Sequence[tuple[int, int, int]]) -> _Ints:
    """Return the terms of all forward lists, one list after the other. `heads` is what `split_forward` returns."""
    stream = np.frombuffer(
        b"".join([data[start : len(data) - several] for data, (_, several, start) in zip(forward, heads, strict=True)]),
        np.uint8,
    )
    if not len(stream):
        return _NONE
    last = np.flatnonzero(stream < 128)
    widths = np.diff(last, prepend=-1)
    numbers = stream[last].astype(np.int64)
    for byte in range(1, int(widths.max())):
        here = np.flatnonzero(widths > byte)
        numbers[here] = numbers[here] << 7 | stream[last[here] - byte] & 127
    lengths = np.array(heads, np.int64)[:, :2].ravel()
    sums = np.cumsum(numbers)
    starts = np.cumsum(lengths) - lengths
    terms: _Ints = sums - np.repeat(np.concatenate(([0], sums))[starts], lengths)
    return terms


def _to_array(numbers: Sequence[int]) -> _Ints:
    return np.asarray(numbers, np.int64)


def _cut(ends: list[int], size: int) -> list[int]:
    """Return the first of each group of terms whose lists fit a block. `ends` has where the list of each term ends."""
    begin, first, before = [0], 0, 0
    while (first := max(first + 1, bisect_right(ends, before + size, first))) < len(ends):
        begin.append(first)
        before = ends[first - 1]
    return begin


def _changes(numbers: _Ints) -> _Ints:
    """Return where a sorted array has another number than before."""
    return np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1]))) if len(numbers) else _NONE


def _set_bits(data: _Array, at: int, words: int, numbers: _Ints) -> None:
    """Write a list as bits."""
    bits = np.zeros(16 * words, np.uint8)
    bits[numbers] = 1
    data[at : at + words] = np.packbits(bits, bitorder="little").view(np.uint16)


def _pack(data: _Array, at: int, chunks: int, numbers: _Ints) -> None:
    """Write a list packed."""
    chunk = numbers // CHUNK
    data[at : at + chunks] = np.bincount(chunk, minlength=chunks)
    data[at + chunks : at + chunks + len(numbers)] = numbers - chunk * CHUNK


def _count_words(lengths: _Array, forms: Forms) -> _Array:
    """Return how many words lists of these lengths take."""
    return np.minimum(lengths, forms.bits) if forms.packed == forms.numbers else _list_words(forms)[lengths]


@lru_cache(16)
def _list_words(forms: Forms) -> _Array:
    """Return how many words a list takes, by its length."""
    words = np.minimum(np.arange(1 << 16), forms.bits)
    words[forms.numbers + 1 : forms.packed + 1] = (
        np.arange(forms.numbers + forms.chunks + 2, forms.packed + forms.chunks + 2) // 2
    )
    return words.astype(np.int32)


class ArrayBlock:
    """A parsed block."""

    def __init__(self, data: bytes, documents: int) -> None:
        self._data, self._documents = data, documents
        count = int.from_bytes(data[:4], "little")
        self._forms = find_forms(documents, count >= PACKED)
        count &= PACKED - 1
        self._view = memoryview(data)  # `bisect` in it takes a quarter of the time of numpy's `searchsorted`
        self._sorted_terms = self._view[4 : 4 + 4 * count].cast("I")
        self._terms = np.frombuffer(data, np.uint32, count, 4)
        self._lengths = np.frombuffer(data, np.uint16, 2 * count, 4 + 4 * count).reshape(2, count)
        #: Where the lists of each term begin, and its counts: of a small segment only, which is asked many times.
        self._places: _Ints | None = self._locate_all() if count > _FEW_TERMS else None

    def _locate_all(self) -> _Ints:
        count = len(self._terms)
        places = np.zeros((2, count + 1), np.int64)
        stored = _count_words(self._lengths, self._forms).sum(0, dtype=np.int64)
        np.cumsum(2 * stored, out=places[0, 1:])
        np.cumsum(self._lengths[1], dtype=np.int64, out=places[1, 1:])
        places[0] += 4 + 8 * count
        places[1] += places[0, -1]
        return places

    def _locate(self, index: int) -> tuple[int, int]:
        """Return where the lists of a term begin, and where its counts do."""
        if self._places is not None:
            at, count = self._places[:, index].tolist()
            return at, count
        first = 4 + 8 * len(self._terms)
        if len(self._terms) == 1 and not index:  # most blocks of frequent terms: nothing to sum
            once, several = self._lengths[:, 0].tolist()
            return first, first + 2 * (self._forms.words(once) + self._forms.words(several))
        stored = _count_words(self._lengths, self._forms)
        end = first + 2 * int(stored.sum(dtype=np.int64))
        before = int(self._lengths[1, :index].sum(dtype=np.int64))
        return first + 2 * int(stored[:, :index].sum(dtype=np.int64)), end + before

    def find(self, term: int, start: int, stop: int) -> tuple[_Ints, _Ints, _Array] | None:
        index = bisect_left(self._sorted_terms, term)
        if index == len(self._sorted_terms) or self._sorted_terms[index] != term:
            return None
        at, count = self._locate(index)
        length, others = self._lengths[:, index].tolist()
        once = self._numbers(at, length, start, stop)[0] if length else _NONE
        if not others:
            return (once, _NONE, _NO_COUNTS) if len(once) else None
        at += 2 * self._forms.words(length)
        several, first = self._numbers(at, others, start, stop)
        if first is None:
            first = self._count_before(at, start)
        return once, several, np.frombuffer(self._data, np.uint8, len(several), count + first)

    def _numbers(self, at: int, length: int, start: int, stop: int) -> tuple[_Ints, int | None]:
        """Return the numbers of a list that are in a range, from its start on, and how many precede the range.

        The latter is None for a list of bits, of which it would have to be counted.
        """
        if length > self._forms.packed:
            low = start // 8
            bits = np.unpackbits(
                np.frombuffer(self._data, np.uint8, (stop + 7) // 8 - low, at + low), bitorder="little"
            )[start - 8 * low : stop - 8 * low]
            return bits.view(bool).nonzero()[0], None
        if length > self._forms.numbers:
            return self._unpack(at, length, start, stop)
        if start == 0 and stop >= self._documents:
            return np.frombuffer(self._data, np.uint16, length, at).astype(np.int64), 0
        numbers = self._view[at : at + 2 * length].cast("H")
        first = bisect_left(numbers, start)
        last = bisect_left(numbers, stop, first)
        if first == last:  # as in most lists, if the range is a namespace
            return _NONE, first
        return np.frombuffer(self._data, np.uint16, last - first, at + 2 * first).astype(np.int64) - start, first

    def _unpack(self, at: int, length: int, start: int, stop: int) -> tuple[_Ints, int]:
        """Return the numbers of a packed list in a range, and how many precede it."""
        chunks, data = self._forms.chunks, self._data
        low, before, first, last = 0, 0, 0, length
        if start > 0 or stop < self._documents:
            before, first, last = find_range(data, at, self._forms, start, stop)
            if first == last:
                return _NONE, first
            low, chunks = start // CHUNK, -(-stop // CHUNK)
        counts = np.frombuffer(data, np.uint8, chunks - low, at + low)
        numbers = np.repeat(np.arange(low * CHUNK - start, chunks * CHUNK - start, CHUNK), counts)
        numbers = numbers[first - before : last - before]
        numbers += np.frombuffer(data, np.uint8, last - first, at + self._forms.chunks + first)
        return numbers, first

    def _count_before(self, at: int, start: int) -> int:
        """Return how many of the first bits of a list are set."""
        low = start // 8
        whole = int(np.bitwise_count(np.frombuffer(self._data, np.uint8, low, at)).sum(dtype=np.int64))
        return whole + int(self._data[at + low] & ((1 << start % 8) - 1)).bit_count()

    def postings(self, low: int, high: int) -> _Ints:
        first, last = np.searchsorted(self._terms, np.array([low, high], np.uint32)).tolist()
        if first == last:
            return _NONE
        lengths = self._lengths[:, first:last].T.astype(np.int64).ravel()  # of both lists of each term
        (at, count_at), (end_at, count_end) = self._locate(first), self._locate(last)
        words = np.frombuffer(self._data, np.uint16, (end_at - at) // 2, at)
        others = np.flatnonzero(lengths > self._forms.numbers)
        if len(others):
            stored = _count_words(lengths, self._forms)
            ends, starts = np.cumsum(lengths), np.cumsum(stored) - stored
            place = np.repeat(starts - (ends - lengths), lengths) + np.arange(int(ends[-1]))
            numbers = words[np.minimum(place, len(words) - 1)].astype(np.int64)
            for index in others.tolist():
                end = int(ends[index])
                found, _ = self._numbers(at + 2 * int(starts[index]), int(lengths[index]), 0, self._documents)
                numbers[end - len(found) : end] = found
        else:
            numbers = words.astype(np.int64)
        terms = self._terms[first:last].astype(np.int64) << TERM
        heads = np.stack([terms | 1, terms | 1 << SEVERAL], 1).ravel()
        postings = np.repeat(heads, lengths)
        postings |= numbers << DOCUMENT
        counts = np.frombuffer(self._data, np.uint8, count_end - count_at, count_at)
        postings[np.repeat(np.tile([False, True], last - first), lengths)] |= counts.astype(np.int64)
        return postings


class ArrayScores:
    """Scores in one array for each part."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._parts: list[tuple[_Doubles, _Array]] = []
        self._short: list[tuple[_Array, _Array, Sequence[Found]]] = []  # lengths, versions, postings

    def add(self, documents: Scored, start: int, stop: int, found: Sequence[Found]) -> None:
        if not found:
            return
        lengths: _Array = np.frombuffer(documents.lengths, documents.lengths.typecode)[start:stop]
        versions: _Array = np.frombuffer(documents.versions, documents.versions.typecode)[start:stop]
        if stop - start <= _SHORT:
            self._short.append((lengths, versions, found))
        else:
            self._parts.append((self._score(lengths, found), versions))

    def _score(self, lengths: _Array, found: Sequence[Found]) -> _Doubles:
        weights = self._weights
        scores = np.zeros(len(lengths))
        norms = weights.slope * lengths
        for term, once, several, counts in found:
            idf = weights.idfs[term]
            if len(once):
                scores[once] += idf / ((1 + weights.base) + norms[once])
            if len(several):
                times = np.asarray(counts, np.float64)
                scores[several] += idf * times / ((times + weights.base) + norms[several])
        return scores

    def _add_short(self) -> None:
        """Score short parts together: a namespace is one in each segment, and the overhead of numpy is that of one."""
        joined: dict[int, tuple[list[_Ints], list[_Ints], list[_Array]]] = {}
        first = 0
        for lengths, _, found in self._short:
            for term, once, several, counts in found:
                lists = joined.setdefault(term, ([], [], []))
                if len(once):
                    lists[0].append(once + first)
                if len(several):
                    lists[1].append(several + first)
                    lists[2].append(counts)
            first += len(lengths)
        lengths, versions = (np.concatenate([part[index] for part in self._short]) for index in (0, 1))
        several_parts = [
            Found(term, *(np.concatenate(parts) if parts else _NONE for parts in lists))
            for term, lists in sorted(joined.items())
        ]
        self._parts.append((self._score(lengths, several_parts), versions))
        self._short = []

    def add_scored(self, scores: dict[int, float]) -> None:
        count = len(scores)
        self._parts.append((np.fromiter(scores.values(), np.float64, count), np.fromiter(scores, np.int64, count)))

    def ranked(self) -> Iterator[tuple[int, float]]:
        if self._short:
            self._add_short()
        bound, want = math.inf, FIRST_SORTED
        while True:
            least = self._find_least(bound, want)
            if least is None:
                return
            found: list[tuple[float, int]] = []
            for scores, versions in self._parts:
                here = np.flatnonzero((scores >= least) & (scores < bound))
                if len(here):
                    found += zip(scores[here].tolist(), versions[here].tolist(), strict=True)
            found.sort(reverse=True)
            yield from ((version, score) for score, version in found)
            bound, want = least, want * _GROWTH

    def _find_least(self, bound: float, want: int) -> float | None:
        """Return the score of the last of the next `want` results; None if there are no more."""
        best: _Doubles = np.empty(0)
        floor = 0.0
        for scores, _ in self._parts:
            here = scores[scores > floor] if bound == math.inf else scores[(scores > floor) & (scores < bound)]
            if len(here):
                best = np.concatenate((best, here))
                if len(best) > want:
                    best = np.partition(best, len(best) - want)[-want:]
                    floor = float(best.min())
        return float(best.min()) if len(best) else None
