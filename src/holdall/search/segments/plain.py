"""The kernel without numpy."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import accumulate, chain, compress, groupby, islice, repeat
from operator import add, attrgetter
from typing import Any, TypeAlias

from ..ranking import sort_by_score
from ..scoring import MOST_TIMES, TermWeights, Weights
from ..tokens import Numbering
from .documents import decode_forward, encode_forward, pack, unpack
from .kernel import (
    CHUNK,
    DOCUMENT,
    DOCUMENT_MASK,
    MOST_UNPACKED,
    PACKED,
    PART,
    SEVERAL,
    TERM,
    Counts,
    Forms,
    Found,
    Scored,
    find_forms,
    find_range,
)

_ZEROS = repeat(0.0)
#: Bounds of scores allow for the rounding of sums in another order, which is much less.
_MARGIN = 1e-9
#: A list is searched for documents, not decoded, if it has so many times as many.
_FEW = 2
#: So many postings for each result are read to estimate the lowest score of the results.
_SAMPLE = 8
#: How many results are searched at first, and how many times as many whenever those before were not enough.
_FIRST, _GROWTH = 32, 8
_BITS = [bytes(byte >> bit & 1 for bit in range(8)) for byte in range(256)]


class PlainKernel:
    """Arithmetic on lists of Python's numbers."""

    def count(self, documents: Sequence[Sequence[int]]) -> list[int]:
        found: list[int] = []
        for number, terms in enumerate(documents):
            moved = number << DOCUMENT
            for term, times in Counter(terms).items():
                capped = min(times, MOST_TIMES)
                found.append(term << TERM | (capped > 1) << SEVERAL | moved | capped)
        found.sort()
        return found

    def forward(self, postings: list[int], documents: int) -> list[bytes]:
        once: list[list[int]] = [[] for _ in range(documents)]
        several: list[list[int]] = [[] for _ in range(documents)]
        counts = [bytearray() for _ in range(documents)]
        for posting in postings:
            number, times = posting >> DOCUMENT & DOCUMENT_MASK, posting & 255
            if times > 1:
                several[number].append(posting >> TERM)
                counts[number].append(times)
            else:
                once[number].append(posting >> TERM)
        return [encode_forward(*document) for document in zip(once, several, counts, strict=True)]

    def encode(self, postings: list[int], documents: int, size: int) -> list[tuple[int, bytes]]:
        blocks: list[tuple[int, bytes]] = []
        pending: list[tuple[int, list[int], list[int], bytes]] = []
        room, forms = size - 4, find_forms(documents, documents > MOST_UNPACKED)
        for term, group in groupby(postings, lambda posting: posting >> TERM):
            members = list(group)
            once = [posting >> DOCUMENT & DOCUMENT_MASK for posting in members if not posting >> SEVERAL & 1]
            others = members[len(once) :]
            several = [posting >> DOCUMENT & DOCUMENT_MASK for posting in others]
            needed = 8 + 2 * (forms.words(len(once)) + forms.words(len(several))) + len(others)
            if pending and needed > room:
                blocks.append((pending[0][0], _encode(pending, forms)))
                pending, room = [], size - 4
            pending.append((term, once, several, bytes([posting & 255 for posting in others])))
            room -= needed
        if pending:
            blocks.append((pending[0][0], _encode(pending, forms)))
        return blocks

    def parse(self, block: bytes, documents: int) -> PlainBlock:
        return PlainBlock(block, documents)

    def move(self, postings: list[int], numbers: Sequence[int], part: int) -> list[int]:
        kept = ~(DOCUMENT_MASK << DOCUMENT)
        moved: list[int] = []
        for posting in postings:
            number = numbers[posting >> DOCUMENT & DOCUMENT_MASK]
            if number >= 0:
                into, inside = divmod(number, part)
                moved.append(posting & kept | into << PART | inside << DOCUMENT)
        return moved

    def join(self, several: Sequence[list[int]]) -> list[int]:
        return sorted(chain.from_iterable(several))

    def split(self, postings: list[int]) -> list[tuple[int, list[int]]]:
        mask = (1 << PART) - 1
        return [
            (part, [posting & mask for posting in group])
            for part, group in groupby(postings, lambda posting: posting >> PART)
        ]

    def between(self, postings: list[int], low: int, high: int) -> list[int]:
        return postings[bisect_left(postings, low << TERM) : bisect_left(postings, high << TERM)]

    def count_terms(self, postings: list[int]) -> Counts:
        counts = Counter([posting >> TERM for posting in postings])
        return list(counts), list(counts.values())

    def add_counts(self, several: Sequence[Counts]) -> tuple[bytes, bytes]:
        sums: Counter[int] = Counter()
        for terms, counts in several:
            for term, count in zip(terms, counts, strict=True):
                sums[term] += count
        changed = sorted(term for term, count in sums.items() if count)
        return pack("I", changed), pack("i", [sums[term] for term in changed])

    def find_terms(self, forward: Sequence[bytes], terms: Sequence[int]) -> list[Found]:
        numbers: list[list[int]] = [[] for _ in terms]
        counts: list[list[int]] = [[] for _ in terms]
        for number, data in enumerate(forward):
            found = dict(zip(*decode_forward(data), strict=True))
            for index, term in enumerate(terms):
                if term in found:
                    numbers[index].append(number)
                    counts[index].append(found[term])
        return [Found(index, [], numbers[index], counts[index]) for index in range(len(terms))]

    def count_removed(self, forward: Sequence[bytes]) -> Counts:
        counts = Counter(chain.from_iterable(decode_forward(data)[0] for data in forward))
        terms = sorted(counts)
        return terms, [-counts[term] for term in terms]

    def read_list(
        self, documents: array[int], counts: bytearray, removed: array[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        if not removed:
            return documents, counts
        absent = set(removed)
        left = [number not in absent for number in documents]
        return list(compress(documents, left)), list(compress(counts, left))

    def select(
        self, documents: Sequence[int], counts: Sequence[int], few: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        places = [(index, bisect_left(documents, number), number) for index, number in enumerate(few)]
        here = [(index, at) for index, at, number in places if at < len(documents) and documents[at] == number]
        return [index for index, _ in here], [counts[at] for _, at in here]

    def scores(self, weights: Weights) -> PlainScores:
        return PlainScores(weights)

    def numbering(self) -> Numbering:
        return Numbering()


def _encode(lists: list[tuple[int, list[int], list[int], bytes]], forms: Forms) -> bytes:
    lengths = [len(once) for _, once, _, _ in lists] + [len(several) for _, _, several, _ in lists]
    is_packed = any(forms.numbers < length <= forms.packed for length in lengths)
    count = len(lists) | (PACKED if is_packed else 0)
    parts = [pack("I", [count, *(term for term, _, _, _ in lists)])]
    parts.append(pack("H", lengths))
    parts.extend(_encode_list(numbers, forms) for _, once, several, _ in lists for numbers in (once, several))
    parts.extend(counts for _, _, _, counts in lists)
    return b"".join(parts)


def _encode_list(numbers: list[int], forms: Forms) -> bytes:
    if len(numbers) <= forms.numbers:
        return pack("H", numbers)
    if len(numbers) <= forms.packed:
        counts = bytearray(forms.chunks)
        for number in numbers:
            counts[number // CHUNK] += 1
        inside = bytes([number % CHUNK for number in numbers])
        return (bytes(counts) + inside).ljust(2 * forms.words(len(numbers)), b"\x00")
    bits = bytearray(2 * forms.bits)
    for number in numbers:
        bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)


class PlainBlock:
    """A parsed block. Its lists are decoded only when they are read."""

    def __init__(self, data: bytes, documents: int) -> None:
        self._data, self._documents = data, documents
        [count] = unpack("I", data[:4])
        self._forms = find_forms(documents, count >= PACKED)
        count &= PACKED - 1
        self._terms = unpack("I", data[4 : 4 + 4 * count])
        lengths = unpack("H", data[4 + 4 * count : 4 + 8 * count])
        self._once, self._several = lengths[:count], lengths[count:]
        sizes = map(add, self._bytes_of(self._once), self._bytes_of(self._several))
        self._starts = list(accumulate(sizes, initial=4 + 8 * count))
        self._counts = list(accumulate(self._several, initial=self._starts[-1]))

    def _bytes_of(self, lengths: array[int]) -> Iterable[int]:
        """Return how many bytes lists of these lengths take."""
        numbers, words = self._forms.numbers, self._forms.words
        return [2 * length if length <= numbers else 2 * words(length) for length in lengths]

    def find(self, term: int, start: int, stop: int) -> tuple[_List, _List, Sequence[int]] | None:
        index = bisect_left(self._terms, term)
        if index == len(self._terms) or self._terms[index] != term:
            return None
        return self._list(index, start, stop)

    def postings(self, low: int, high: int) -> list[int]:
        found: list[int] = []
        for index in range(bisect_left(self._terms, low), bisect_left(self._terms, high)):
            term = self._terms[index] << TERM
            once, several, counts = self._list(index, 0, self._documents)
            found += [term | number << DOCUMENT | 1 for number in once]
            term |= 1 << SEVERAL
            found += [term | number << DOCUMENT | times for number, times in zip(several, counts, strict=True)]
        return found

    def _list(self, index: int, start: int, stop: int) -> tuple[_List, _List, bytes]:
        at, count = self._starts[index], self._counts[index]
        once, _ = self._numbers(at, self._once[index], start, stop)
        at += 2 * self._forms.words(self._once[index])
        several, before = self._numbers(at, self._several[index], start, stop)
        return once, several, self._data[count + before : count + before + len(several)]

    def _numbers(self, at: int, length: int, start: int, stop: int) -> tuple[_List, int]:
        """Return the numbers of a list that are in a range, from its start on, and how many precede the range."""
        forms = self._forms
        if length <= forms.numbers:
            numbers = unpack("H", self._data[at : at + 2 * length])
            before = bisect_left(numbers, start)
            return _Numbers(numbers[before : bisect_left(numbers, stop, before)], start), before
        if length <= forms.packed:
            _, before, end = find_range(self._data, at, forms, start, stop)
            if before == end:
                return _Numbers(()), before
            inside = at + forms.chunks
            return _Packed(self._data[at:inside], self._data[inside : inside + end], before, start), before
        bits = int.from_bytes(self._data[at : at + (stop + 7) // 8], "little") & (1 << stop) - 1
        if not start:
            return _Bits(bits, stop), 0
        return _Bits(bits >> start, stop - start), (bits & (1 << start) - 1).bit_count()


class _Numbers:
    """A list of documents, as sorted numbers. They are stored from another start on."""

    def __init__(self, numbers: Sequence[int], start: int = 0) -> None:
        self._numbers, self._start = numbers, start

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        start = self._start
        return iter([number - start for number in self._numbers] if start else self._numbers)

    def find(self, wanted: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield those of some sorted documents that are in the list, and at which index."""
        numbers, start, at = self._numbers, self._start, 0
        if numbers:
            last = numbers[-1] - start
            for number in wanted:
                if number > last:
                    return
                at = bisect_left(numbers, number + start, at)
                if numbers[at] == number + start:
                    yield number, at


class _Packed:
    """A list of documents, packed: how many of each chunk it has, and their numbers in the chunk."""

    def __init__(self, counts: bytes, inside: bytes, before: int, start: int) -> None:
        self._counts, self._inside, self._before, self._start = counts, inside, before, start

    def __len__(self) -> int:
        return len(self._inside) - self._before

    def __iter__(self) -> Iterator[int]:
        first = range(-self._start, len(self._counts) * CHUNK - self._start, CHUNK)
        return islice(map(add, chain.from_iterable(map(repeat, first, self._counts)), self._inside), self._before, None)

    def find(self, wanted: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield those of some sorted documents that are in the list, and at which index."""
        inside, starts = self._inside, list(accumulate(self._counts, initial=0))
        for number in wanted:
            chunk, rest = divmod(number + self._start, CHUNK)
            stop = min(starts[chunk + 1], len(inside))
            at = bisect_left(inside, rest, min(starts[chunk], stop), stop)
            if at < stop and inside[at] == rest:
                yield number, at - self._before


class _Bits:
    """A list of documents, as bits."""

    def __init__(self, bits: int, size: int) -> None:
        self._data, self._size, self._count = bits.to_bytes((size + 7) // 8, "little"), size, bits.bit_count()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return compress(range(self._size), b"".join(map(_BITS.__getitem__, self._data)))

    def find(self, wanted: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield those of some sorted documents that are in the list, and at which index."""
        data, before, counted = self._data, 0, 0
        for number in wanted:
            at, bit = number >> 3, 1 << (number & 7)
            if data[at] & bit:
                before += int.from_bytes(data[counted:at], "little").bit_count()
                counted = at
                yield number, before + (data[at] & bit - 1).bit_count()


_List: TypeAlias = _Numbers | _Packed | _Bits


class _Lists:
    """The posting lists of a term, by part: of the documents in which it occurs once, or of the others."""

    def __init__(self, term: int, most: float, weigh: Callable[[Any], float]) -> None:
        self.term, self.most, self._weigh = term, most, weigh  # `most` is the most that the term adds to a score
        self.parts: dict[int, tuple[_List, Sequence[int] | None]] = {}  # documents, and counts; None if it is once

    def add(self, part: int, scores: dict[int, float], lengths: Sequence[int], floor: float = 0.0) -> None:
        """Add what the term adds to the scores of a part. New documents with less than `floor` are left out."""
        numbers, counts = self.parts[part]
        weigh, before = self._weigh, scores.get
        if floor > self.most and _FEW * len(scores) < len(numbers):
            for number, index in numbers.find(sorted(scores)):
                length = lengths[number]
                scores[number] += weigh(length if counts is None else (counts[index], length))
            return
        listed = [*numbers]
        of_length: Iterable[Any] = map(lengths.__getitem__, listed)
        added = map(weigh, of_length if counts is None else zip(counts, of_length, strict=True))
        if floor > 0:
            pairs = zip(listed, added, strict=True)
            scores.update(
                [(number, before(number, 0.0) + more) for number, more in pairs if more >= floor or number in scores]
            )
        else:
            summed = map(add, map(before, listed, _ZEROS), added) if scores else added
            scores.update(zip(listed, summed, strict=True))


class PlainScores:
    """Finds the best documents without scoring all, by the method known as MaxScore.

    In each part, the lists are read in the order of what they can add to a score, the rare terms first. A document is
    left out as soon as the other lists could not lift it among the best. So long lists are only searched for a few
    documents. Those that are left get their exact scores. If many more results are read, all documents are scored.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._lists: list[_Lists] = []
        for term, idf in enumerate(weights.idfs):
            # `times / (times + base + slope * length)` is below 1, and at most this if the term occurs once.
            self._lists.append(_Lists(term, idf / (1 + weights.base), _WeightsOfOnce(weights, term).__getitem__))
            self._lists.append(_Lists(term, idf, TermWeights(weights, term).__getitem__))
        self._lengths: list[array[int]] = []
        self._versions: list[array[int]] = []
        self._scored: dict[int, float] = {}

    def add(self, documents: Scored, start: int, stop: int, found: Sequence[Found]) -> None:
        part = len(self._lengths)
        self._lengths.append(documents.lengths[start:stop])
        self._versions.append(documents.versions[start:stop])
        for term, once, several, counts in found:
            for lists, numbers, times in zip(self._lists[2 * term :], (once, several), (None, counts), strict=False):
                if len(numbers):
                    lists.parts[part] = numbers if isinstance(numbers, _List) else _Numbers(numbers), times

    def add_scored(self, scores: dict[int, float]) -> None:
        self._scored.update(scores)

    def ranked(self) -> Iterator[tuple[int, float]]:
        size = sum(len(numbers) for lists in self._lists for numbers, _ in lists.parts.values())
        bound, want = math.inf, _FIRST
        while _SAMPLE * want <= size:
            best = self._find_best(want, size)
            if best is None:
                break
            yield from ((version, score) for score, version in best if score < bound)
            if len(best) < want:
                return
            bound, want = best[-1][0], want * _GROWTH
        for version, score in self._rank_all():
            if score < bound:
                yield version, score

    def _find_best(self, want: int, size: int) -> list[tuple[float, int]] | None:
        """Return the best scores with their versions: so many, and those that are equal to the last; or all.

        None if so many are equal that it takes longer than to score all: more look-ups than there are postings.
        """
        lists = sorted((lists for lists in self._lists if lists.parts), key=attrgetter("most"), reverse=True)
        steps = [
            (each, _sum_most([other for other in lists[index:] if other.term != each.term]), _sum_most(lists[index:]))
            for index, each in enumerate(lists, 1)
        ]
        least = self._estimate_least(lists, want)
        best: list[float] = []
        kept: list[dict[int, float]] = []
        for part, lengths in enumerate(self._lengths):
            scores: dict[int, float] = {}
            for each, others, rest in steps:
                if part in each.parts:
                    each.add(part, scores, lengths, least - others)
                    if least > rest:
                        scores = {number: score for number, score in scores.items() if score >= least - rest}
            kept.append(scores)
            best = nlargest(want, chain(best, scores.values()))
            if len(best) == want:
                least = max(least, best[-1] * (1 - _MARGIN))
        kept = [{number: score for number, score in scores.items() if score >= least} for scores in kept]
        if sum(map(len, kept)) * len(self._lists) > size:
            return None
        found = sorted([*self._score_exactly(kept), *((score, version) for version, score in self._scored.items())])
        found.reverse()
        return found if len(found) <= want else [pair for pair in found if pair[0] >= found[want - 1][0]]

    def _estimate_least(self, lists: Sequence[_Lists], want: int) -> float:
        """Return a score that so many documents have or exceed: the best of a sample that has the rarest terms."""
        scores: list[dict[int, float]] = [{} for _ in self._lengths]
        read = 0
        for each, part in [(one, part) for one in lists for part in one.parts]:
            each.add(part, scores[part], self._lengths[part])
            read += len(each.parts[part][0])
            if read >= _SAMPLE * want:
                break
        sample: list[dict[int, float]] = [{} for _ in self._lengths]
        for score, part, number in nlargest(
            want, ((score, part, number) for part, own in enumerate(scores) for number, score in own.items())
        ):
            sample[part][number] = score
        exact = [score for score, _ in self._score_exactly(sample)]
        return min(exact) * (1 - _MARGIN) if len(exact) == want else 0.0

    def _score_exactly(self, chosen: Sequence[Iterable[int]]) -> Iterator[tuple[float, int]]:
        """Yield scores and versions of some documents of each part: the same operations in the same order as numpy."""
        for part, (some, lengths, versions) in enumerate(zip(chosen, self._lengths, self._versions, strict=True)):
            numbers = sorted(some)
            counts = {number: [0] * len(self._weights.idfs) for number in numbers}
            for lists in self._lists if numbers else ():
                if part in lists.parts:
                    listed, times = lists.parts[part]
                    for number, index in listed.find(numbers):
                        counts[number][lists.term] = 1 if times is None else times[index]
            for number, of_terms in counts.items():
                yield self._weights.score(of_terms, lengths[number]), versions[number]

    def _rank_all(self) -> Iterator[tuple[int, float]]:
        joined: dict[int, float] = {}
        versions: array[int] = array("q")
        for part, lengths in enumerate(self._lengths):
            scores: dict[int, float] = {}
            for lists in self._lists:  # in the order of the query
                if part in lists.parts:
                    lists.add(part, scores, lengths)
            first = len(versions)
            versions.extend(self._versions[part].tolist())
            joined.update({first + number: score for number, score in scores.items()} if first else scores)
        joined.update(enumerate(self._scored.values(), len(versions)))
        versions.extend(self._scored)
        return sort_by_score(joined, versions)


def _sum_most(lists: Sequence[_Lists]) -> float:
    """Return the most that lists add to a score; the first adds most. A document is in one of both lists of a term."""
    return sum({each.term: each.most for each in reversed(lists)}.values()) * (1 + _MARGIN)


class _WeightsOfOnce(dict[int, float]):
    """`TermWeights` by the length alone, for documents that have the term once, which is most of them."""

    __slots__ = ("_pairs",)

    def __init__(self, weights: Weights, term: int) -> None:
        self._pairs = TermWeights(weights, term)

    def __missing__(self, length: int) -> float:
        weight = self[length] = self._pairs[1, length]
        return weight
