"""The kernel without numpy."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import accumulate, chain, compress, groupby, islice, repeat
from operator import add, attrgetter
from typing import Any, TypeAlias

from ..ranking import sort_by_score
from ..scoring import MOST_TIMES, TermWeights, Weights
from ..tokens import Numbering
from .documents import Sizes, decode_forward, encode_forward, pack, unpack
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
#: If so many documents of the first list would be scored, the lists of other terms are searched for candidates, too.
#: Of fewer documents, the lengths are not looked at.
_MANY = 512
#: How many terms share what a candidate must have (`_find_candidates`).
_MOST_SHARED = 4
#: Lengths that differ less do not matter for what a term can add.
_ALIKE = 1.25
#: So many documents are found in bits without summing up all bits before.
_FEW_FOUND = 128
#: To estimate the lowest score of the results, so many postings are read for each of them,
_SAMPLE = 8
#: and so many documents get their exact score for each of them,
_SAMPLED = 4
#: or more, as long as that takes at most so many look-ups,
_LOOKED_UP = 1 << 12
#: and at most one look-up for so many postings.
_POSTINGS = 64
#: How many results are searched at first, and how many times as many whenever those before were not enough.
_FIRST, _GROWTH = 32, 8
_BITS = [bytes(byte >> bit & 1 for bit in range(8)) for byte in range(256)]
_BIT_COUNTS = bytes(byte.bit_count() for byte in range(256))
#: For `bytes.translate`: 255 for the bytes that have a bit, for each bit.
_IS_SET = [bytes(255 * (byte >> bit & 1) for byte in range(256)) for bit in range(8)]
#: For each byte, which bits are set.
_PLACES = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]
_AT_MOST_15 = bytes(min(times, 15) for times in range(256))
#: For `bytes.translate`: counts up to some number, and which counts are at least some number.
_UP_TO = [bytes(range(most + 1)) for most in (64, 16, 8, 4, 2, 0)]
_AT_LEAST = [bytes(times >= least for times in range(256)) for least in range(MOST_TIMES + 1)]


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

    def select(self, values: bytes) -> bytes:
        """Select the bytes of these documents from those of all documents, none of which is 0."""
        return bytes(map(values.__getitem__, self))

    def pick(self, indexes: Iterable[int]) -> Iterator[int]:
        """Yield the documents at some sorted indexes."""
        return (self._numbers[index] - self._start for index in indexes)

    def find(self, wanted: Sequence[int]) -> Iterable[tuple[int, int]]:
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

    def select(self, values: bytes) -> bytes:
        return bytes(map(values.__getitem__, self))

    def pick(self, indexes: Iterable[int]) -> Iterator[int]:
        inside, starts, chunk = self._inside, list(accumulate(self._counts)), 0
        for index in indexes:
            at = index + self._before
            chunk = bisect_right(starts, at, chunk)
            yield chunk * CHUNK + inside[at] - self._start

    def find(self, wanted: Sequence[int]) -> Iterable[tuple[int, int]]:
        """Yield those of some sorted documents that are in the list, and at which index."""
        inside, starts = self._inside, list(accumulate(self._counts, initial=0))
        for number in wanted:
            chunk, rest = divmod(number + self._start, CHUNK)
            at = inside.find(rest, starts[chunk], starts[chunk + 1])
            if at >= 0:
                yield number, at - self._before


class _Bits:
    """A list of documents, as bits."""

    def __init__(self, bits: int, size: int) -> None:
        self._data, self._size, self._count = bits.to_bytes((size + 7) // 8, "little"), size, bits.bit_count()
        self._sums: list[int] = []

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return compress(range(self._size), b"".join(map(_BITS.__getitem__, self._data)))

    def _sum(self) -> list[int]:
        """Return how many documents precede each byte."""
        if not self._sums:
            self._sums = list(accumulate(self._data.translate(_BIT_COUNTS), initial=0))
        return self._sums

    def select(self, values: bytes) -> bytes:
        mask = bytearray(8 * len(self._data))  # 255 for each document of the list
        for bit, is_set in enumerate(_IS_SET):
            mask[bit::8] = self._data.translate(is_set)
        selected = int.from_bytes(mask, "little") & int.from_bytes(values, "little")
        return selected.to_bytes(len(mask), "little").translate(None, b"\x00")

    def pick(self, indexes: Iterable[int]) -> Iterator[int]:
        data, sums, byte = self._data, self._sum(), 0
        for index in indexes:
            byte = bisect_right(sums, index, byte) - 1
            yield 8 * byte + _PLACES[data[byte]][index - sums[byte]]

    def find(self, wanted: Sequence[int]) -> Iterable[tuple[int, int]]:
        """Yield those of some sorted documents that are in the list, and at which index."""
        data = self._data
        found = [number for number in wanted if data[number >> 3] & 1 << (number & 7)]
        if len(found) < _FEW_FOUND:
            return self._count_before(found)
        sums = self._sum()
        return [
            (number, sums[number >> 3] + (data[number >> 3] & (1 << (number & 7)) - 1).bit_count()) for number in found
        ]

    def _count_before(self, found: Iterable[int]) -> Iterator[tuple[int, int]]:
        data, before, counted = self._data, 0, 0
        for number in found:
            at = number >> 3
            before += int.from_bytes(data[counted:at], "little").bit_count()
            counted = at
            yield number, before + (data[at] & (1 << (number & 7)) - 1).bit_count()


_List: TypeAlias = _Numbers | _Packed | _Bits


class _Part:
    """The posting list of a term in a part."""

    def __init__(self, numbers: _List, counts: bytes | None, sizes: Sizes) -> None:
        self.numbers = numbers
        self.counts = counts  # how often the documents have the term; None if once
        self.most = 0.0  # the most that the term adds to a score
        self.sizes = sizes
        self._kinds = b""

    @property
    def kinds(self) -> bytes:
        """The class of each document's length, and in the lower four bits its count, at most 15."""
        if not self._kinds:
            self._kinds = selected = self.numbers.select(self.sizes.classes)
            if self.counts is not None:
                both = int.from_bytes(selected, "little") | int.from_bytes(self.counts.translate(_AT_MOST_15), "little")
                self._kinds = both.to_bytes(len(selected), "little")
        return self._kinds


class _Lists:
    """The posting lists of a term, by part: of the documents in which it occurs once, or of the others."""

    def __init__(self, weights: Weights, term: int, is_once: bool) -> None:
        self.term = term
        self.parts: dict[int, _Part] = {}
        self.most = 0.0  # the most that the term adds to a score in any part
        self._idf, self._base, self._slope = weights.idfs[term], weights.base, weights.slope
        kind = _WeightsOfOnce if is_once else TermWeights
        self._weigh: Callable[[Any], float] = kind(weights, term).__getitem__

    def append(self, part: int, numbers: _List, counts: Sequence[int] | None, sizes: Sizes) -> None:
        """Append the list of a part. `sizes` has the classes of the lengths of its documents."""
        own = _Part(numbers, None if counts is None else bytes(counts), sizes)
        own.most = self._bound(1 if own.counts is None else _find_most(own.counts), sizes.lowest[1])
        self.parts[part] = own
        self.most = max(self.most, own.most)

    def _bound(self, times: int, length: int) -> float:
        """Return the most that the term adds to the score of a document that has it so often and is not shorter."""
        return self._idf * times / (times + self._base + self._slope * length)

    def add(self, part: int, scores: dict[int, float], lengths: Sequence[int], floor: float) -> None:
        """Add what the term adds to the scores of a part. New documents with less than `floor` are left out."""
        found_in = self.parts[part]
        numbers, counts = found_in.numbers, found_in.counts
        weigh, before = self._weigh, scores.get
        chosen = self.choose(part, floor)
        times: Iterable[int] | None = counts
        if chosen is not None and len(scores) + chosen.count(1) < len(numbers):
            found = dict(numbers.find(sorted(scores)))
            if chosen:
                found.update(self.pick(part, chosen))
            listed = [*found]
            times = None if counts is None else map(counts.__getitem__, found.values())
        else:
            listed = [*numbers]
        of_length: Iterable[Any] = map(lengths.__getitem__, listed)
        added = map(weigh, of_length if times is None else zip(times, of_length, strict=True))
        if floor <= 0:
            summed = map(add, map(before, listed, _ZEROS), added) if scores else added
            scores.update(zip(listed, summed, strict=True))
            return
        pairs = zip(listed, added, strict=True)
        if scores:
            scores.update(
                [(number, before(number, 0.0) + more) for number, more in pairs if more >= floor or number in scores]
            )
        else:
            scores.update([pair for pair in pairs if pair[1] >= floor])

    def choose(self, part: int, floor: float) -> bytes | None:
        """Return a byte for each document of a list: 1 if the term may add so much to its score.

        None if all may, and an empty string if no one can.
        """
        own = self.parts[part]
        if floor > own.most:
            return b""
        if floor <= 0:
            return None
        lowest, bound = floor * (1 - _MARGIN), self._bound
        shortest, longest = own.sizes.lowest[1], own.sizes.lowest[-1]
        if own.counts is not None:
            least = next((times for times in range(1, MOST_TIMES) if bound(times, shortest) >= lowest), MOST_TIMES)
            chosen = own.counts.translate(_AT_LEAST[least])
            if longest < _ALIKE * shortest or chosen.count(1) < _MANY:
                return chosen
        times_of = [1] * 16 if own.counts is None else [*range(15), MOST_TIMES]
        table = [bound(times, length) >= lowest for length in own.sizes.lowest for times in times_of]
        return own.kinds.translate(bytes(table))

    def pick(self, part: int, chosen: bytes, most: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the chosen documents with their indexes, at most so many."""
        indexes = [*islice(_find_set(chosen), most)]
        return zip(self.parts[part].numbers.pick(indexes), indexes, strict=True)

    def sample(self, part: int, lengths: Sequence[int], most: int) -> list[tuple[int, float]]:
        """Return at most so many documents, of those that have the term often, with what it adds to their scores."""
        numbers, counts = self.parts[part].numbers, self.parts[part].counts
        if counts is None:
            return [(number, self._weigh(lengths[number])) for number in islice(numbers, most)]
        masks = (counts.translate(_AT_LEAST[least]) for least in (16, 8, 6, 5, 4, 3, 0))
        chosen = next((mask for mask in masks if mask.count(1) >= most), bytes([1]) * len(counts))
        return [
            (number, self._weigh((counts[index], lengths[number]))) for number, index in self.pick(part, chosen, most)
        ]


def _find_most(counts: bytes) -> int:
    """Return the highest count. Most are low: to drop those takes much less time than to compare all."""
    return next((max(left) for low in _UP_TO if (left := counts.translate(None, low))), 0)


def _find_set(chosen: bytes) -> Iterator[int]:
    """Yield the index of each byte that is 1."""
    at = chosen.find(1)
    while at >= 0:
        yield at
        at = chosen.find(1, at + 1)


class PlainScores:
    """Finds the best documents without scoring all, by the method known as MaxScore.

    In each part, the lists are read in the order of what they can add to a score, the rare terms first. A document is
    left out as soon as the other lists could not lift it among the best. So long lists are only searched for a few
    documents, and for those that have the term often. Those that are left get their exact scores. If many more results
    are read, all documents are scored.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        # For each term, the lists of the documents in which it occurs once, and of the others.
        self._lists = [_Lists(weights, term, is_once) for term in range(len(weights.idfs)) for is_once in (True, False)]
        self._lengths: list[array[int]] = []
        self._versions: list[array[int]] = []
        self._scored: dict[int, float] = {}

    def add(self, documents: Scored, start: int, stop: int, found: Sequence[Found]) -> None:
        part = len(self._lengths)
        lowest, classes = documents.sizes
        sizes = Sizes(lowest, classes[start:stop])
        self._lengths.append(documents.lengths[start:stop])
        self._versions.append(documents.versions[start:stop])
        for term, once, several, counts in found:
            for lists, numbers, times in zip(self._lists[2 * term :], (once, several), (None, counts), strict=False):
                if len(numbers):
                    lists.append(part, numbers if isinstance(numbers, _List) else _Numbers(numbers), times, sizes)

    def add_scored(self, scores: dict[int, float]) -> None:
        self._scored.update(scores)

    def ranked(self) -> Iterator[tuple[int, float]]:
        size = sum(len(each.numbers) for lists in self._lists for each in lists.parts.values())
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
        least = self._estimate_least(lists, want, size)
        best: list[float] = []
        kept: list[dict[int, float]] = []
        for part, lengths in enumerate(self._lengths):
            steps = self._order(part, lists)
            candidates = self._find_candidates(part, steps, least)
            scores = dict.fromkeys(sorted(candidates or ()), 0.0)
            for each, others, rest in steps:
                is_first = not scores  # then the floor has left out as many
                each.add(part, scores, lengths, least - others if candidates is None else math.inf)
                if least > rest and not is_first:
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

    def _order(self, part: int, lists: Sequence[_Lists]) -> list[tuple[_Lists, float, float]]:
        """Return the lists that a part has, those that can add most to a score first.

        With each comes the most that the later lists of other terms can add, and the most that all later lists can. A
        document is in one of both lists of a term.
        """
        own = sorted((each for each in lists if part in each.parts), key=lambda each: each.parts[part].most)
        most_of: dict[int, float] = {}
        steps: list[tuple[_Lists, float, float]] = []
        rest = 0.0
        for each in own:
            others = rest - most_of.get(each.term, 0.0)
            steps.append((each, others * (1 + _MARGIN), rest * (1 + _MARGIN)))
            most_of[each.term] = each.parts[part].most
            rest = others + most_of[each.term]
        steps.reverse()
        return steps

    def _find_candidates(self, part: int, steps: list[tuple[_Lists, float, float]], least: float) -> set[int] | None:
        """Return the documents that can be among the best; None if scoring from the first list alone is no more work.

        The terms that can add most share what the others cannot add to the lowest score. To each of the best, one of
        them adds its share or more. So a document must have one of several frequent terms very often.
        """
        if len(steps) < 2 or least <= 0:
            return None
        first, others, _ = steps[0]
        chosen = first.choose(part, least - others)
        limit = len(first.parts[part].numbers) if chosen is None else chosen.count(1)
        if limit < _MANY:
            return None
        most_of = {each.term: each.parts[part].most for each, _, _ in reversed(steps)}
        terms = sorted(most_of, key=most_of.__getitem__, reverse=True)
        found: list[tuple[_Lists, bytes]] = []
        for count in range(2, min(len(terms), _MOST_SHARED) + 1):
            shared = sum(most_of[term] for term in terms[:count])
            share = (least - sum(most_of[term] for term in terms[count:])) / shared
            own: list[tuple[_Lists, bytes]] = []
            total = 0
            for each in [each for each, _, _ in steps if each.term in terms[:count]]:
                chosen = each.choose(part, share * most_of[each.term])
                total += len(each.parts[part].numbers) if chosen is None else chosen.count(1)
                if chosen is None or total >= limit:
                    break
                own.append((each, chosen))
            else:
                found, limit = own, total
        return {number for each, chosen in found for number, _ in each.pick(part, chosen)} if found else None

    def _estimate_least(self, lists: Sequence[_Lists], want: int, postings: int) -> float:
        """Return a score that so many documents have or exceed: the best of some that have the rarest terms often."""
        scores: list[dict[int, float]] = [{} for _ in self._lengths]
        size = max(_SAMPLED * want, min(_LOOKED_UP, postings // _POSTINGS) // len(lists))
        left = max(_SAMPLE * want, size)
        for each, part in [(one, part) for one in lists for part in one.parts]:
            found = each.sample(part, self._lengths[part], left)
            for number, more in found:
                scores[part][number] = scores[part].get(number, 0.0) + more
            left -= len(found)
            if left <= 0:
                break
        sample: list[dict[int, float]] = [{} for _ in self._lengths]
        for score, part, number in nlargest(
            size, ((score, part, number) for part, own in enumerate(scores) for number, score in own.items())
        ):
            sample[part][number] = score
        exact = nlargest(want, (score for score, _ in self._score_exactly(sample)))
        return exact[-1] * (1 - _MARGIN) if len(exact) == want else 0.0

    def _score_exactly(self, chosen: Sequence[Iterable[int]]) -> Iterator[tuple[float, int]]:
        """Yield scores and versions of some documents of each part: the same operations in the same order as numpy."""
        for part, (some, lengths, versions) in enumerate(zip(chosen, self._lengths, self._versions, strict=True)):
            numbers = sorted(some)
            counts = {number: [0] * len(self._weights.idfs) for number in numbers}
            for lists in self._lists if numbers else ():
                if part in lists.parts:
                    listed, times = lists.parts[part].numbers, lists.parts[part].counts
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
                    lists.add(part, scores, lengths, 0.0)
            first = len(versions)
            versions.extend(self._versions[part].tolist())
            joined.update({first + number: score for number, score in scores.items()} if first else scores)
        joined.update(enumerate(self._scored.values(), len(versions)))
        versions.extend(self._scored)
        return sort_by_score(joined, versions)


class _WeightsOfOnce(dict[int, float]):
    """`TermWeights` by the length alone, for documents that have the term once, which is most of them."""

    __slots__ = ("_pairs",)

    def __init__(self, weights: Weights, term: int) -> None:
        self._pairs = TermWeights(weights, term)

    def __missing__(self, length: int) -> float:
        weight = self[length] = self._pairs[1, length]
        return weight
