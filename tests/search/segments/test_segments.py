"""Segments against a plain model: what is encoded is found again, merging loses nothing, and numpy changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdall.search.scoring import Weights
from holdall.search.segments import arrays, merging, plain
from holdall.search.segments import kernel as kernels
from holdall.search.segments import state as sizes
from holdall.search.segments.arrays import ArrayKernel
from holdall.search.segments.documents import (
    Document,
    Documents,
    decode_directory,
    decode_forward,
    encode,
    make_directory,
    pack,
    unpack,
)
from holdall.search.segments.kernel import Found, Kernel
from holdall.search.segments.merging import LargeMerge, SmallSegment, make_small, merge_small
from holdall.search.segments.plain import PlainKernel
from holdall.search.segments.state import Merge, Segment, State, find_merge, row_id

ARRAYS, PLAIN = ArrayKernel(), PlainKernel()
KERNELS: list[Kernel] = [ARRAYS, PLAIN]
ALL_TERMS = 1 << 31

#: Few terms make long lists, which are stored as bits; the large numbers take one to five bytes.
terms = st.integers(1, 4) | st.sampled_from([1, 127, 128, 16_383, 16_384, 1 << 21, 1 << 28, ALL_TERMS - 1])
#: The terms of each document; one of them may occur more often than a byte can say.
documents = st.lists(
    st.lists(terms, min_size=1, max_size=12) | st.just([3] * 300) | st.lists(terms, min_size=130, max_size=140),
    min_size=1,
    max_size=40,
)


def counts_of(found: list[int]) -> dict[int, int]:
    return {term: min(times, 255) for term, times in Counter(found).items()}


def number_list(found: tuple[Any, Any, Any] | None) -> dict[int, int]:
    """A posting list as a dict of documents and counts."""
    if found is None:
        return {}
    once, several, counts = found
    return {int(number): 1 for number in once} | {
        int(number): int(times) for number, times in zip(several, counts, strict=True)
    }


@given(documents, st.sampled_from([20, 100, 1 << 40]), st.data())
def test_blocks_have_every_list_and_any_range_of_it(documents: list[list[int]], size: int, data: st.DataObject) -> None:
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(documents))] * 2)))
    low, high = sorted(data.draw(st.tuples(terms, terms)))
    encoded = [one.encode(one.count(documents), len(documents), size) for one in KERNELS]
    assert encoded[0] == encoded[1]
    for one in KERNELS:
        blocks = [one.parse(block, len(documents)) for _, block in encoded[0]]
        again = [int(posting) for block in blocks for posting in block.postings(0, ALL_TERMS)]
        assert again == [int(posting) for posting in one.count(documents)]
        between = [int(posting) for block in blocks for posting in block.postings(low, high)]
        assert between == [int(posting) for posting in one.between(one.count(documents), low, high)]
        for term in {low, high}:
            expected = {
                number - start: counts_of(found)[term]
                for number, found in enumerate(documents)
                if start <= number < stop and term in found
            }
            parts = [number_list(block.find(term, start, stop)) for block in blocks]
            assert {number: times for part in parts for number, times in part.items()} == expected


@pytest.fixture
def small_parts_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (arrays, plain):
        monkeypatch.setattr(module, "MOST_UNPACKED", 0)


@pytest.mark.usefixtures("small_parts_are_packed")
@pytest.mark.parametrize("size", [1, 250, 254, 255, 256, 510, 2000, 6000])
def test_lists_of_any_length_are_stored_in_the_shortest_form(size: int) -> None:
    """Terms in one document up to all, at random, and in runs that fill a chunk."""
    random = Random(size)
    listed = [sorted(random.sample(range(size), length)) for length in {*(int(size * 0.6**n) for n in range(18))} - {0}]
    listed += [[*range(first, min(first + 255, size))] for first in range(0, size, 255)]
    forms = kernels.find_forms(size, True)
    for once, several in ((listed, listed[::-1]), (listed, [[]] * len(listed))):
        postings = []
        for term, (first, second) in enumerate(zip(once, several, strict=True)):
            postings += [term << 25 | number << 8 | 1 for number in first if number not in set(second)]
            postings += [term << 25 | 1 << 24 | number << 8 | 2 + number % 100 for number in second]
        lengths = [Counter(posting >> 24 for posting in postings)[key] for key in range(2 * len(listed))]
        [(_, data)], [(_, same)] = (
            ARRAYS.encode(np.array(postings), size, 1 << 40),
            PLAIN.encode(postings, size, 1 << 40),
        )
        assert data == same
        shortest = [min(length, (size + 15) // 16, (length + -(-size // 255) + 1) // 2) for length in lengths]
        assert [forms.words(length) for length in lengths] == shortest
        assert len(data) == 4 + 8 * len(listed) + 2 * sum(shortest) + sum(lengths[1::2])
        known: list[dict[int, int]] = [{} for _ in listed]
        for posting in postings:
            known[posting >> 25][posting >> 8 & 0xFFFF] = posting & 255
        for one in KERNELS:
            block = one.parse(data, size)
            assert [*map(int, block.postings(0, ALL_TERMS))] == postings
            for start, stop in [(0, size), *(sorted(random.choices(range(size + 1), k=2)) for _ in range(4))]:
                for term, found in enumerate(known):
                    inside = {number - start: times for number, times in found.items() if start <= number < stop}
                    lists = block.find(term, start, stop)
                    assert number_list(lists) == inside
                    if one is PLAIN and lists is not None:
                        wanted = sorted(random.sample(range(stop - start), min(stop - start, 20)))
                        for numbers in lists[:2]:
                            every = [*numbers]
                            at = [(number, every.index(number)) for number in wanted if number in every]
                            assert [*numbers.find(wanted)] == at


def test_blocks_without_packed_lists_of_an_earlier_version_are_read() -> None:
    size = 20_000
    numbers = [*range(0, size, 40)]
    data = pack("I", [1, 7]) + pack("H", [len(numbers), 0, *numbers])
    for one in KERNELS:
        assert number_list(one.parse(data, size).find(7, 40, size)) == dict.fromkeys(range(0, size - 40, 40), 1)


@given(documents)
def test_forward_lists_have_every_term_and_its_count(documents: list[list[int]]) -> None:
    forward = [one.forward(one.count(documents), len(documents)) for one in KERNELS]
    assert forward[0] == forward[1]
    decoded = [decode_forward(data) for data in forward[0]]
    assert [dict(zip(*pair, strict=True)) for pair in decoded] == list(map(counts_of, documents))
    wanted = [1, 2, 300, 16_384, ALL_TERMS - 1]
    fewer = {term: -sum(term in words for words in documents) for words in documents for term in words}
    for one in KERNELS:
        removed, counts = one.count_removed(forward[0])
        assert dict(zip(map(int, removed), map(int, counts), strict=True)) == fewer
        assert [len(part) for part in one.count_removed([])] == [0, 0]
        for term, found in zip(wanted, one.find_terms(forward[0], wanted), strict=True):
            assert number_list(found[1:]) == {
                number: counts_of(words)[term] for number, words in enumerate(documents) if term in words
            }


@pytest.fixture(scope="module")
def few_results() -> Iterator[None]:
    """Few results are searched at first, so the kernel without numpy leaves documents out."""
    with (
        mock.patch.multiple(plain, _FIRST=1, _SAMPLE=2, _SAMPLED=1, _LOOKED_UP=1, _FEW_FOUND=2, _MANY=1, _GROWTH=3),
        mock.patch.multiple(arrays, FIRST_SORTED=1, _GROWTH=3),
    ):
        yield


@pytest.mark.usefixtures("few_results")
@given(documents, st.lists(st.integers(1, 4), min_size=1, max_size=4, unique=True))
def test_scores_are_the_same_to_the_last_bit(documents: list[list[int]], query: list[int]) -> None:
    lengths = [len(found) for found in documents]
    weights = Weights([sum(term in found for found in documents) for term in query], len(documents), sum(lengths))
    expected = [
        (version, weights.score([counts_of(found).get(term, 0) for term in query], len(found)))
        for version, found in enumerate(documents, 100)
        if not set(query).isdisjoint(found)
    ]
    expected.sort(key=lambda pair: (pair[1], pair[0]), reverse=True)
    listed = Documents.of([*range(100, 100 + len(documents))], lengths)
    for one in KERNELS:
        block = one.parse(one.encode(one.count(documents), len(documents), 1 << 40)[0][1], len(documents))
        for cuts in ([0, len(documents)], [0, len(documents) // 2, len(documents)]):
            scores = one.scores(weights)
            for start, stop in pairwise(cuts):
                lists = [(index, block.find(term, start, stop)) for index, term in enumerate(query)]
                scores.add(listed, start, stop, [Found(index, *found) for index, found in lists if found is not None])
            assert list(scores.ranked()) == expected


@pytest.mark.usefixtures("few_results", "small_parts_are_packed")
@pytest.mark.parametrize("seed", range(40))
def test_rankings_are_the_same_where_most_documents_are_left_out(seed: int) -> None:
    """Frequent and rare terms, several parts and ranges, lists in each form, and many equal scores."""
    random = Random(seed)
    vocabulary = [int(2 ** random.uniform(0, 9)) for _ in range(300)]  # the lower, the more frequent
    parts = []
    for _ in range(random.randint(1, 4)):
        lengths = [random.choice([3, 8, 40]) for _ in range(random.randint(1, 250))]
        parts.append([random.choices(vocabulary, k=length) for length in lengths])
    query = random.sample(sorted(set(vocabulary)), random.choice([1, 2, 6]))
    every = [document for part in parts for document in part]
    weights = Weights([sum(term in found for found in every) for term in query], len(every), sum(map(len, every)))
    versions = random.sample(range(10_000), len(every) + 2)
    scored = dict(zip(versions[len(every) :], (0.5, weights.idfs[0]), strict=True))
    start = random.choice([0, 0, random.randint(0, 20)])
    rankings = []
    for one in KERNELS:
        scores, first = one.scores(weights), 0
        for part in parts:
            [(_, data)] = one.encode(one.count(part), len(part), 1 << 40)
            block = one.parse(data, len(part))
            listed = Documents.of(versions[first : first + len(part)], [*map(len, part)])
            first += len(part)
            stop = len(part) - start // 2
            if start < stop:
                lists = [(index, block.find(term, start, stop)) for index, term in enumerate(query)]
                scores.add(listed, start, stop, [Found(index, *found) for index, found in lists if found is not None])
        scores.add_scored(scored)
        rankings.append(list(scores.ranked()))
    assert rankings[0] == rankings[1]
    assert rankings[0] == sorted(rankings[0], key=lambda pair: (pair[1], pair[0]), reverse=True)
    assert len(rankings[0]) >= 2


def test_a_search_without_numpy_decodes_rare_terms_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20,000 documents with a frequent term, only those that also have the rare one are scored."""
    one = PlainKernel()
    documents = [[1] * (1 + number % 3) + [2] * (number % 100 == 0) for number in range(20_000)]
    block = one.parse(one.encode(one.count(documents), len(documents), 1 << 40)[0][1], len(documents))
    decoded: list[int] = []
    for kind in (plain._Numbers, plain._Packed, plain._Bits):
        iterate = kind.__iter__
        monkeypatch.setattr(kind, "__iter__", lambda own, to=iterate: (decoded.append(len(own)), to(own))[1])
    scores = one.scores(Weights([20_000, 200], 20_000, 40_000))
    lists = [Found(index, *(block.find(term, 0, 20_000) or ())) for index, term in enumerate((1, 2))]
    scores.add(Documents.of([*range(20_000)], [*map(len, documents)]), 0, 20_000, lists)
    assert len(list(islice(scores.ranked(), 20))) == 20
    assert set(decoded) == {200}


@pytest.mark.parametrize("query", [[1], [1, 2]])
def test_a_search_for_frequent_terms_without_numpy_decodes_no_list(
    query: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20,000 documents that have each term, those are scored that have one of them often."""
    random = Random(1)
    documents = [[term for term in (1, 2, 3) for _ in range(int(random.expovariate(0.5)) + 2)] for _ in range(20_000)]
    documents = [[*found, *[4] * (60 - len(found))] for found in documents]
    lengths = [*map(len, documents)]
    weights = Weights([18_000, 17_000][: len(query)], 20_000, sum(lengths))
    rankings = []
    for one in KERNELS:
        block = one.parse(one.encode(one.count(documents), len(documents), 1 << 40)[0][1], len(documents))
        lists = [Found(index, *(block.find(term, 0, 20_000) or ())) for index, term in enumerate(query)]
        scores = one.scores(weights)
        scores.add(Documents.of([*range(20_000)], lengths), 0, 20_000, lists)
        if one is PLAIN:
            monkeypatch.setattr(plain._Bits, "__iter__", lambda own: pytest.fail(f"{len(own)} documents are decoded"))
        rankings.append([*islice(scores.ranked(), 30)])
    assert rankings[0] == rankings[1]


# Merging -------------------------------------------------------------------------------------------------------------

entries = st.lists(
    st.tuples(st.sampled_from(["a\x01", "b\x01", "b\x01c\x01"]), st.lists(st.integers(1, 9), min_size=1, max_size=6)),
    min_size=1,
    max_size=12,
)
several = st.lists(entries, min_size=1, max_size=5)


def make_segments(groups: list[list[tuple[str, list[int]]]]) -> tuple[list[SmallSegment], dict[int, Any]]:
    """Small segments, and what is in them: namespace and terms by version."""
    segments, known = [], {}
    for group in groups:
        listed = []
        for ns, found in sorted(group, key=lambda entry: entry[0]):
            known[len(known)] = ns, found
            listed.append(Document(ns, len(known) - 1, len(found)))
        postings = kernels.kernel().count([known[document.version][1] for document in listed])
        segments.append(SmallSegment(make_small(listed, postings, [kernels.kernel().count_terms(postings)])))
    return segments, known


def read_part(part: Documents, blocks: list[Any]) -> dict[int, Any]:
    """What is in a part: namespace and counts by version."""
    namespaces = {number: ns for ns, start, stop in part.ranges() for number in range(start, stop)}
    found: dict[int, Any] = {part.versions[number]: (namespaces[number], {}) for number in range(len(part))}
    for block in blocks:
        for term in range(1, 10):
            for number, times in number_list(block.find(term, 0, len(part))).items():
                found[part.versions[number]][1][term] = times
    return found


@pytest.fixture(params=KERNELS, ids=["numpy", "plain"])
def use(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kernels, merging):
        monkeypatch.setattr(module, "kernel", lambda: request.param)


@pytest.mark.usefixtures("use")
class TestMerging:
    def test_small_segments(self, check: Callable[..., None]) -> None:
        check(self.merge_small)

    def test_large_segments(self, check: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sizes, "PART", 4)
        monkeypatch.setattr(merging, "BLOCK", 30)
        check(self.merge_large)

    @pytest.fixture
    def check(self) -> Callable[..., None]:
        def run(test: Callable[[Any, Any], None]) -> None:
            @given(several, st.sets(st.integers(0, 20)))
            def examples(groups: Any, dead: Any) -> None:
                test(groups, dead)

            examples()

        return run

    @staticmethod
    def merge_small(groups: list[list[tuple[str, list[int]]]], dead: set[int]) -> None:
        segments, known = make_segments(groups)
        count, data = merge_small(segments, dead)
        merged = SmallSegment(data)
        alive = {version: entry for version, entry in known.items() if version not in dead}
        assert count == len(merged.documents) == len(alive)
        assert merged.documents.namespaces == sorted({ns for ns, _ in alive.values()})
        assert read_part(merged.documents, [merged.block]) == {
            version: (ns, counts_of(found)) for version, (ns, found) in alive.items()
        }
        # The counts are those of all inputs: what was removed is subtracted where it is known to be gone.
        for term in range(1, 10):
            assert merged.count(term) == sum(term in found for _, found in known.values())

    @staticmethod
    def merge_large(groups: list[list[tuple[str, list[int]]]], dead: set[int]) -> None:
        """First of small segments, then of the large one and the small ones again."""
        segments, known = make_segments(groups)
        alive = {version: (ns, counts_of(found)) for version, (ns, found) in known.items() if version not in dead}
        first = LargeMerge(1, 10, [], segments, dead)
        rows = run_merge(first, [])
        assert read_large(1, rows) == alive
        parts = [
            (row_id(1, number, 0), decode_directory(rows[row_id(1, sizes.DIRECTORIES, number)]))
            for number in range(first.part_count)
        ]
        blocks = [[data for id, data in rows.items() if id >> 32 == shelf >> 32] for shelf, _ in parts]
        second = LargeMerge(2, 10, parts, [], set(list(alive)[::2]))
        assert read_large(2, run_merge(second, blocks)) == dict(list(alive.items())[1::2])
        pages = merging.add_to_pages({}, first.counts)
        counts = unpack("i", pages[0][1])
        assert [counts[term] for term in range(1, 10)] == [
            sum(term in found for _, found in known.values()) for term in range(1, 10)
        ]


def run_merge(merge: LargeMerge, blocks: list[list[bytes]]) -> dict[int, bytes]:
    rows = [row for low in range(0, 10, 3) for row in merge.step(low, min(low + 3, 10), blocks)]
    assert len(dict(rows)) == len(rows)
    return dict(sorted([*rows, *merge.directories]))


def read_large(segment: int, rows: dict[int, bytes]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    last = ""
    for number in range(sizes.DIRECTORIES):
        directory = rows.get(row_id(segment, sizes.DIRECTORIES, number))
        if directory is None:
            break
        part = decode_directory(directory)
        assert 0 < len(part) <= sizes.PART
        assert part.namespaces == sorted(part.namespaces)
        assert last <= part.namespaces[0]
        last = part.namespaces[-1]
        blocks = [
            kernels.kernel().parse(data, len(part))
            for id, data in rows.items()
            if id >> 32 == row_id(segment, number, 0) >> 32
        ]
        found |= read_part(part, blocks)
    return found


@given(entries, st.sampled_from(["", "a\x01", "b\x01", "b\x01c\x01", "z\x01"]))
def test_a_namespace_is_one_range_of_documents(group: list[tuple[str, list[int]]], ns: str) -> None:
    listed = [Document(ns, version, 1) for version, (ns, _) in enumerate(sorted(group, key=lambda entry: entry[0]))]
    part = decode_directory(encode(make_directory(listed)))
    start, stop = part.range_of(ns, ns[:-1] + "\x02" if ns else None)
    assert [*range(start, stop)] == [number for number, one in enumerate(listed) if one.ns.startswith(ns)]
    start, stop = part.range_of(ns, ns + "\x00")
    assert [*range(start, stop)] == [number for number, one in enumerate(listed) if one.ns == ns]


# Which segments are merged -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5000), max_size=300), st.booleans())
def test_segments_stay_few(slices: list[int], is_idle: bool) -> None:
    """However large the slices are, each size has fewer segments than are merged at once; and merging ends."""
    state = State()
    for number, count in enumerate(slices, 1):
        state = state.change(segments=(*state.segments, Segment(number, count, 0)), count=state.count + count)
        while chosen := find_merge(state, is_idle):
            assert len(chosen) > 1
            merged = Segment(-number, sum(segment.documents for segment in chosen), 0)
            assert merged.documents <= sizes.PART * sizes.MOST_PARTS
            state = state.change(segments=(*(one for one in state.segments if one not in chosen), merged))
    assert len(state.segments) < 6 * sizes.FACTOR // (2 if is_idle else 1)


def test_half_as_many_segments_are_merged_while_nothing_waits_to_be_indexed() -> None:
    segments = tuple(Segment(number, 512, 0) for number in range(1, sizes.FACTOR))
    assert find_merge(State(count=sizes.FACTOR * 512, segments=segments)) == []
    assert find_merge(State(count=sizes.FACTOR * 512, segments=segments), is_idle=True) == [*segments]
    few = segments[: sizes.FACTOR // 2 - 1]
    assert find_merge(State(count=sizes.FACTOR * 512, segments=few), is_idle=True) == []


def test_what_loading_has_left_in_several_sizes_is_merged_while_nothing_waits_to_be_indexed() -> None:
    counts = [32768, 4096, 32768, 3504, 4096, 32768]
    segments = tuple(Segment(number, count, count // 32768) for number, count in enumerate(counts, 1))
    assert find_merge(State(count=110_000, segments=segments)) == []
    assert sorted(find_merge(State(count=110_000, segments=segments), is_idle=True)) == [*segments]
    # 1,010,000 documents: two segments are left, of the most that one may have.
    million = tuple(
        Segment(number, count, count // 16384)
        for number, count in enumerate([262_144, 262_144, 2384, 24_576, 262_144, 196_608])
    )
    assert len(find_merge(State(count=1_010_000, segments=million), is_idle=True)) == 5
    rest = (Segment(1, 131_072, 3), Segment(2, 4096, 0), Segment(3, 4096, 0), Segment(4, 736, 0))
    assert sorted(find_merge(State(count=140_000, segments=rest), is_idle=True)) == [*rest[1:]]
    one_part = (Segment(1, 32_768, 1), Segment(2, 20_480, 1), Segment(3, 1752, 0))  # one part takes less space
    assert sorted(find_merge(State(count=55_000, segments=one_part), is_idle=True)) == [*one_part]
    two_parts = (Segment(1, 42_768, 1), Segment(2, 22_768, 1))
    assert find_merge(State(count=65_536, segments=two_parts), is_idle=True) == []
    large = (Segment(1, 9000, 1), Segment(2, 500_000, 8))  # to add so few, so many would be written again
    assert find_merge(State(count=509_000, segments=large), is_idle=True) == []
    # Together with the others, the last one would have more than the most parts.
    full = (Segment(1, 300_000, 5), Segment(2, 300_000, 5), Segment(3, 300_000, 5), Segment(4, 400_000, 7))
    assert sorted(find_merge(State(count=1_300_000, segments=full), is_idle=True)) == [*full[:3]]


def test_segments_with_many_removed_documents_are_merged_and_those_of_a_merge_are_left_alone() -> None:
    segments = (Segment(1, 9000, 1), Segment(2, 9000, 1))
    assert find_merge(State(count=18_000, segments=segments)) == []
    assert find_merge(State(count=1000, segments=segments)) == [*segments]
    # Another merge has to end first: merged alone, the second would be there again, as large as before, for ever.
    assert find_merge(State(count=1000, segments=segments, merge=Merge((1,), 3, 4, 0, 0, 0.0))) == []
