"""The kernel without numpy."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, compress, groupby, repeat
from operator import add

from ..ranking import sort_by_score
from ..scoring import MOST_TIMES, TermWeights, Weights
from ..tokens import Numbering
from .documents import decode_forward, encode_forward, pack, unpack
from .kernel import DOCUMENT, DOCUMENT_MASK, PART, SEVERAL, TERM, Counts, Found, Scored, bitmap_words

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
        room, words = size - 4, bitmap_words(documents)
        for term, group in groupby(postings, lambda posting: posting >> TERM):
            members = list(group)
            once = [posting >> DOCUMENT & DOCUMENT_MASK for posting in members if not posting >> SEVERAL & 1]
            others = members[len(once) :]
            several = [posting >> DOCUMENT & DOCUMENT_MASK for posting in others]
            needed = 8 + 2 * (min(len(once), words) + min(len(several), words)) + len(others)
            if pending and needed > room:
                blocks.append((pending[0][0], _encode(pending, documents)))
                pending, room = [], size - 4
            pending.append((term, once, several, bytes([posting & 255 for posting in others])))
            room -= needed
        if pending:
            blocks.append((pending[0][0], _encode(pending, documents)))
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


def _encode(lists: list[tuple[int, list[int], list[int], bytes]], documents: int) -> bytes:
    words = bitmap_words(documents)
    parts = [pack("I", [len(lists), *(term for term, _, _, _ in lists)])]
    parts.append(pack("H", [len(once) for _, once, _, _ in lists] + [len(several) for _, _, several, _ in lists]))
    both = chain.from_iterable((once, several) for _, once, several, _ in lists)
    parts.extend(_encode_bits(numbers, words) if len(numbers) > words else pack("H", numbers) for numbers in both)
    parts.extend(counts for _, _, _, counts in lists)
    return b"".join(parts)


def _encode_bits(numbers: list[int], words: int) -> bytes:
    bits = bytearray(2 * words)
    for number in numbers:
        bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)


class PlainBlock:
    """A parsed block."""

    def __init__(self, data: bytes, documents: int) -> None:
        self._data, self._documents = data, documents
        [count] = unpack("I", data[:4])
        self._terms = unpack("I", data[4 : 4 + 4 * count])
        lengths = unpack("H", data[4 + 4 * count : 4 + 8 * count])
        self._once, self._several = lengths[:count], lengths[count:]
        words = bitmap_words(documents)
        sizes = [
            2 * (min(once, words) + min(several, words))
            for once, several in zip(self._once, self._several, strict=True)
        ]
        self._words = words
        self._starts = list(accumulate(sizes, initial=4 + 8 * count))
        self._counts = list(accumulate(self._several, initial=self._starts[-1]))

    def find(self, term: int, start: int, stop: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]] | None:
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

    def _list(self, index: int, start: int, stop: int) -> tuple[Sequence[int], Sequence[int], bytes]:
        at, count = self._starts[index], self._counts[index]
        once, _ = self._numbers(at, self._once[index], start, stop)
        at += 2 * min(self._once[index], self._words)
        several, before = self._numbers(at, self._several[index], start, stop)
        return once, several, self._data[count + before : count + before + len(several)]

    def _numbers(self, at: int, length: int, start: int, stop: int) -> tuple[Sequence[int], int]:
        """Return the numbers of a list that are in a range, from its start on, and how many precede the range."""
        if length <= self._words:
            numbers = unpack("H", self._data[at : at + 2 * length])
            before = bisect_left(numbers, start)
            found = numbers[before : bisect_left(numbers, stop, before)]
            return ([number - start for number in found] if start else found), before
        low = start // 8
        bits = b"".join(map(_BITS.__getitem__, self._data[at + low : at + (stop + 7) // 8]))
        before = int.from_bytes(self._data[at : at + low], "little").bit_count() + sum(bits[: start - 8 * low])
        return list(compress(range(stop - start), bits[start - 8 * low :])), before


class PlainScores:
    """Scores in a dict, which C code fills."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._scores: dict[int, float] = {}
        self._versions: array[int] = array("q")

    def add(self, documents: Scored, start: int, stop: int, found: Sequence[Found]) -> None:
        lengths, first = documents.lengths[start:stop].tolist(), len(self._versions)
        self._versions.extend(documents.versions[start:stop].tolist())
        scores: dict[int, float] = {}
        before = scores.get
        for term, once, several, counts in found:
            weigh, weigh_once = TermWeights(self._weights, term), _WeightsOfOnce(self._weights, term)
            added = map(weigh_once.__getitem__, map(lengths.__getitem__, once))
            for numbers in (once, several):
                summed = map(add, map(before, numbers, _ZEROS), added) if scores else added
                scores.update(zip(numbers, summed, strict=True))
                added = map(weigh.__getitem__, zip(counts, map(lengths.__getitem__, several), strict=True))
        if first:
            scores = {first + number: score for number, score in scores.items()}
        self._scores.update(scores)

    def add_scored(self, scores: dict[int, float]) -> None:
        first = len(self._versions)
        self._versions.extend(scores)
        self._scores.update(enumerate(scores.values(), first))

    def ranked(self) -> Iterator[tuple[int, float]]:
        return sort_by_score(self._scores, self._versions)


_ZEROS = repeat(0.0)


class _WeightsOfOnce(dict[int, float]):
    """`TermWeights` by the length alone, for documents that have the term once, which is most of them."""

    __slots__ = ("_pairs",)

    def __init__(self, weights: Weights, term: int) -> None:
        self._pairs = TermWeights(weights, term)

    def __missing__(self, length: int) -> float:
        weight = self[length] = self._pairs[1, length]
        return weight
