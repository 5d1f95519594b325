"""Ranked search: what a query finds by words, by vectors and by both, and that it is never out of date."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ...errors import InvalidInput, Unsupported
from ...ops import DeleteTree, Page, Put
from ..caller import Caller
from ..clock import Clock
from ..embedder import embed
from .base import Contract, Opener, forked
from .items import many

NS = ("notes",)
MODES = ["lexical", "semantic", "hybrid"]

#: What databases, query languages and regular expressions take for something else than text.
HOSTILE = [
    '"', "'", "''", '""', '"apple', 'apple"', "\\", "%", "_", "*", "apple*", "app:le", "title:apple", "-apple",
    "apple AND", "OR", "NOT apple", "NEAR(apple, 2)", "(apple", "apple)", "{apple}", "^apple", "apple & | ! <-> :*",
    "'; DROP TABLE holdall_entries; --", "$1", ":term", "?1", "%s", "{0}", "\x00", "apple\x00pie", "\ud800apple",
    "🍎", "a\u0301", "ﬁ", "ẞ", "İ", "\u202e", "apple" * 1000, "\n\t", "—", "$eq", "[apple]", "//", "http://apple.com/?q=1",
]  # fmt: skip


def keys_of(page: Page[Any]) -> list[str]:
    return [hit.key for hit in page]


def ranking(store: Caller) -> Caller:
    """Return a store whose engine ranks, and skip the test for an engine that does not."""
    if not store.store._engine_handle.engine.capabilities.ranks:
        for asked in ({"query": "tea"}, {"query": "tea", "mode": "semantic"}, {"query": "tea", "filter": {"a": 1}}):
            with pytest.raises(Unsupported):
                store.search(**asked)
        pytest.skip("this engine does not rank")
    return store


class RankContract(Contract):
    @pytest.fixture
    def ranked(self, opened: Opener) -> Caller:
        """A store with an embedder."""
        return ranking(opened(embed=embed))

    def found(self, store: Caller, query: str, mode: str | None = "lexical", **options: Any) -> list[str]:
        return keys_of(store.search(options.pop("ns", ()), query=query, mode=mode, **options))

    # Words -----------------------------------------------------------------------------------------------------------

    def test_words_are_found_however_they_are_written(self, ranked: Caller) -> None:
        notes = {
            "run": "She was RUNNING late.",
            "café": "Le Café de l'Étoile",
            "kyoto": "京都に行きたい",
            "москва": "Москва — столица",
            "arabic": "اللغة العربية",
            "digits": "invoice 2024-117",
            "who": "The Who",
            "apostrophe": "Alice's rabbit doesn't talk",
        }
        ranked.execute([Put(NS, key, {"text": text}) for key, text in notes.items()])
        for query, key in [
            ("runs", "run"), ("the run", "run"), ("CAFE", "café"), ("etoile", "café"), ("cafe\u0301", "café"),
            ("京都", "kyoto"), ("行きたい", "kyoto"), ("МОСКВА", "москва"), ("العربية", "arabic"), ("117", "digits"),
            ("the who", "who"), ("Alice", "apostrophe"), ("rabbits", "apostrophe"),
        ]:  # fmt: skip
            assert self.found(ranked, query) == [key], query
        for query in ("the", "was", "zebra", "大阪", "run!ning?", "!!!"):
            assert self.found(ranked, query) in ([], ["run"], ["who"]), query
        assert self.found(ranked, "zebra") == self.found(ranked, "大阪") == self.found(ranked, "!!!") == []

    def test_the_best_match_comes_first_with_its_score(self, ranked: Caller) -> None:
        ranked.put(NS, "long", {"text": "tea " + "and many other words that say little " * 5})
        ranked.put(NS, "both", {"text": "green tea"})
        ranked.put(NS, "one", {"text": "black tea"})
        ranked.put(NS, "none", {"text": "coffee"})
        page = ranked.search(NS, query="green tea", mode="lexical")
        assert keys_of(page) == ["both", "one", "long"]
        scores = [hit.score for hit in page]
        assert scores == sorted(scores, reverse=True)
        assert all(isinstance(score, float) and score > 0 for score in scores)
        entry = ranked.get(NS, "both")
        hit = page[0]
        assert (hit.namespace, hit.key, hit.value, hit.version) == (NS, "both", entry.value, entry.version)
        assert (hit.created_at, hit.updated_at, hit.expires_at) == (entry.created_at, entry.updated_at, None)

    @pytest.mark.parametrize("mode", MODES)
    def test_of_those_alike_the_newest_comes_first(self, ranked: Caller, mode: str) -> None:
        for key in "abcde":
            ranked.put(NS, key, {"text": "green tea"})
        ranked.put(NS, "b", {"text": "green tea"})
        page = ranked.search(NS, query="tea", mode=mode)
        assert keys_of(page) == ["b", "e", "d", "c", "a"]
        assert len({hit.score for hit in page}) == 1

    def test_quoted_words_must_occur_as_a_phrase(self, ranked: Caller) -> None:
        ranked.put(NS, "phrase", {"text": "a cup of green tea, please"})
        ranked.put(NS, "words", {"text": "tea in a green cup"})
        ranked.put(NS, "apart", {"one": "green", "two": "tea"})
        ranked.put(NS, "stem", {"text": "two cups of green teas"})
        assert sorted(self.found(ranked, '"green tea"')) == ["phrase", "stem"]
        assert self.found(ranked, '"cup of green"') in (["phrase", "stem"], ["stem", "phrase"])
        assert sorted(self.found(ranked, '"tea in a" cup')) == ["words"]
        assert sorted(self.found(ranked, 'green "')) == ["apart", "phrase", "stem", "words"]
        assert sorted(self.found(ranked, '"green tea"', "hybrid")) == ["phrase", "stem"]
        assert len(self.found(ranked, '"green tea"', "semantic")) == 4

    def test_no_query_is_an_error(self, ranked: Caller) -> None:
        ranked.put(NS, "k", {"text": "an apple pie"})
        ranked.put(("other",), "k", {"text": "an apple pie"})
        for query in HOSTILE:
            for mode in MODES:
                for hit in ranked.search(NS, query=query, mode=mode):
                    assert hit.namespace == NS
        assert self.found(ranked, "NEAR(apple, 2)") == self.found(ranked, '"apple') == ["k", "k"]
        assert self.found(ranked, " ".join(f"w{n}" for n in range(40_000)) + " apple", ns=NS) == ["k"]

    @many
    @given(query=st.text(max_size=20), mode=st.sampled_from(MODES))
    def test_any_characters_can_be_searched_for(self, ranked: Caller, query: str, mode: str) -> None:
        ranked.put(NS, "k", {"text": query.encode(errors="ignore").decode()})
        assert self.found(ranked, query, mode) in ([], ["k"])

    def test_a_blank_query_is_none(self, ranked: Caller) -> None:
        """Without a query nothing is ranked: the newest entries come first."""
        for key in "abc":
            ranked.put(NS, key, {"text": "tea"})
        for query in ("", "  ", "\n"):
            page = ranked.search(NS, query=query)
            assert (keys_of(page), page[0].score) == (["c", "b", "a"], None)

    def test_what_is_asked_wrongly_is_refused(self, opened: Opener, ranked: Caller) -> None:
        plain, wordless = opened(), opened(full_text=False)
        ranked.put(NS, "k", {"text": "tea"})
        attempts: list[tuple[Caller, dict[str, Any], str]] = [
            (ranked, {"query": 5}, "query is a str"),
            (ranked, {"query": ["tea"]}, "query is a str"),
            (ranked, {"query": b"tea"}, "query is a str"),
            (ranked, {"query": "tea", "mode": "fuzzy"}, "mode is"),
            (ranked, {"query": "tea", "mode": ["lexical"]}, "mode is"),
            (ranked, {"mode": "lexical"}, "pass query="),
            (ranked, {"mode": "hybrid"}, "pass query="),
            (plain, {"query": "tea", "mode": "semantic"}, "embed="),
            (plain, {"query": "tea", "mode": "hybrid"}, "embed="),
            (wordless, {"query": "tea"}, "full text or an embedder"),
            (wordless, {"query": "tea", "mode": "lexical"}, "full_text=False"),
            (ranked, {"query": "tea", "cursor": "x.y"}, "cursor"),
            (ranked, {"query": "tea", "offset": -1}, "offset"),
            (ranked, {"query": "tea", "limit": 1.5}, "limit"),
        ]
        for store, asked, why in attempts:
            with pytest.raises(InvalidInput, match=why):
                store.search(NS, **asked)
        assert self.found(plain, "tea", None) == ["k"]

    def test_a_query_without_an_embedder_is_not_ignored(self, opened: Opener, ranked: Caller) -> None:
        """LangGraph's stores ignored a query without an index of vectors, and gave whatever was newest."""
        store = opened()
        for key, text in {"tea": "green tea", "coffee": "black coffee", "newest": "nothing of the kind"}.items():
            store.put(NS, key, {"text": text})
        page = store.search(NS, query="coffee or tea")
        assert sorted(keys_of(page)) == ["coffee", "tea"]
        assert all(hit.score > 0 for hit in page)

    def test_without_full_text_vectors_rank_alone(self, opened: Opener, ranked: Caller) -> None:
        wordless = opened(full_text=False, embed=embed)
        wordless.put(NS, "k", {"text": "tea"})
        assert self.found(wordless, "coffee", None) == self.found(wordless, "coffee", "semantic") == ["k"]
        assert self.found(ranked, "coffee", "lexical") == []
        assert self.found(ranked, "tea", "lexical") == ["k"]

    # Where, and what -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("mode", MODES)
    def test_a_search_stays_in_its_namespace(self, ranked: Caller, mode: str) -> None:
        namespaces = [("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("a.b",), ("b",), ("a", "bc")]
        for namespace in namespaces:
            ranked.put(namespace, "/".join(namespace), {"text": "tea"})

        def found(ns: Any, **options: Any) -> list[str]:
            return sorted(self.found(ranked, "tea", mode, ns=ns, **options))

        assert found(()) == sorted("/".join(namespace) for namespace in namespaces)
        assert found(("a",)) == ["a", "a/b", "a/b/c", "a/bc"]
        assert found(("a", "b")) == ["a/b", "a/b/c"]
        assert found(("a",), recursive=False) == ["a"]
        assert found(("a", "b"), recursive=False) == ["a/b"]
        assert found(("ab",)) == ["ab"]
        assert found((), recursive=False) == found(("c",)) == []
        for scope, inside in ((("a",), ["a", "a/b", "a/b/c", "a/bc"]), (("ab",), ["ab"]), (("none",), [])):
            hits = ranked.scoped(scope).search(query="tea", mode=mode)
            assert sorted(keys_of(hits)) == inside
            assert all((*scope, *hit.namespace) in namespaces for hit in hits)
        assert ranked.scoped(("a",)).search(("b",), query="tea", mode=mode)[0].namespace[0] == "b"

    @pytest.mark.parametrize("mode", MODES)
    def test_a_filter_comes_first_and_costs_no_match(self, ranked: Caller, mode: str) -> None:
        """Better matches that the filter excludes take no rank from the others, even if there are thousands of them."""
        puts = [Put(NS, f"best{n}", {"text": "green tea", "n": n}) for n in range(2500)]
        puts += [
            Put(NS, f"rare{n}", {"text": f"tea number {n} in a long list of teas", "rare": True}) for n in range(3)
        ]
        ranked.put(("other",), "rare", {"text": "green tea", "rare": True})
        for start in range(0, len(puts), 500):
            ranked.execute(puts[start : start + 500])
        rare = ["rare0", "rare1", "rare2"]
        assert sorted(self.found(ranked, "green tea", mode, ns=NS, filter={"rare": True})) == rare
        assert sorted(self.found(ranked, "green tea", mode, filter={"rare": {"$exists": True}})) == ["rare", *rare]
        last = ranked.search(NS, query="green tea", mode=mode, filter={"n": {"$gte": 2490}}, limit=3, offset=8)
        assert keys_of(last) == ["best2491", "best2490"]
        deep = ranked.search(NS, query="green tea", mode=mode, limit=4, offset=2498)
        assert keys_of(deep)[:2] == ["best1", "best0"]
        assert (len(deep), deep.next is None) == (4, False)
        assert len(ranked.search(NS, query="green tea", mode=mode, limit=10, cursor=deep.next)) == 1

    @pytest.mark.parametrize("mode", MODES)
    def test_paging_loses_nothing_and_gives_nothing_twice(self, ranked: Caller, mode: str) -> None:
        """LangGraph's vector search lost items past page 2."""
        ranked.execute(
            [
                Put((*NS, str(n % 3)), str(n), {"text": f"tea {'cup ' * (n % 5)} {n}", "even": n % 2 == 0})
                for n in range(40)
            ]
        )
        for filter, count in ((None, 40), ({"even": True}, 20)):
            asked: dict[str, Any] = {"query": "cup of tea", "mode": mode, "filter": filter}
            everything = ranked.search(NS, limit=100, **asked)
            assert (len(everything), everything.next) == (count, None)
            pages = [ranked.search(NS, limit=7, **asked)]
            while pages[-1].next is not None:
                pages.append(ranked.search(NS, limit=7, cursor=pages[-1].next, **asked))
            assert [len(page) for page in pages] == [min(7, count - at) for at in range(0, count, 7)]
            assert [hit for page in pages for hit in page] == everything
            for offset in (0, 1, 13, count - 1, count, 1000):
                page = ranked.search(NS, limit=5, offset=offset, **asked)
                assert page == everything[offset : offset + 5]
                assert (page.next is None) == (offset + 5 >= count)
            assert ranked.search(NS, limit=0, **asked) == []

    @pytest.mark.parametrize("mode", MODES)
    def test_with_rest_every_entry_is_returned(self, ranked: Caller, mode: str) -> None:
        """LangGraph's face needs it: there, a query ranks all entries and excludes none."""
        for n in range(20):
            ranked.put((*NS, str(n % 3)), str(n), {"text": "tea"} if n % 4 == 0 else {"n": n, "even": n % 2 == 0})
        ranked.put(("other",), "k", {"n": 1})
        asked: dict[str, Any] = {"query": "tea", "mode": mode, "rest": True}
        everything = ranked.search(NS, limit=100, **asked)
        assert keys_of(everything) == ["16", "12", "8", "4", "0", *(str(n) for n in range(19, 0, -1) if n % 4)]
        assert [hit.score is None for hit in everything] == [False] * 5 + [True] * 15
        for offset in range(0, 24, 3):
            assert ranked.search(NS, limit=4, offset=offset, **asked) == everything[offset : offset + 4]
        pages = [ranked.search(NS, limit=3, **asked)]
        while pages[-1].next is not None:
            pages.append(ranked.search(NS, limit=3, cursor=pages[-1].next, **asked))
        assert [hit for page in pages for hit in page] == everything
        odd = ranked.search(NS, filter={"even": False}, **asked)
        assert keys_of(odd) == [str(n) for n in range(19, 0, -2)], "filters hold for the rest, too"

    def test_a_cursor_belongs_to_one_query(self, ranked: Caller) -> None:
        for key in "abc":
            ranked.put(NS, key, {"text": "tea"})
        asked: dict[str, Any] = {"query": "tea", "mode": "lexical", "limit": 1}
        mark = ranked.search(NS, **asked).next
        for other in (
            {"query": "coffee"},
            {"mode": "semantic"},
            {"mode": "hybrid"},
            {"filter": {"a": 1}},
            {"recursive": False},
            {"rest": True},
            {"exact": True},
        ):
            with pytest.raises(InvalidInput, match="another search"):
                ranked.search(NS, cursor=mark, **{**asked, **other})
        with pytest.raises(InvalidInput, match="another search"):
            ranked.search(NS, cursor=mark, limit=1)
        assert keys_of(ranked.search(NS, cursor=mark, **{**asked, "limit": 9})) == ["b", "a"]

    # Never out of date -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("mode", MODES)
    def test_what_changed_is_found_as_it_is_now(self, opened: Opener, ranked: Caller, clock: Clock, mode: str) -> None:
        """Changes from any store count at once: deleted, overwritten, expired or moved entries are in no result."""
        other = opened(embed=embed, timeout=29)  # an engine of its own, where engines can be

        def found() -> list[str]:
            answers = [sorted(self.found(store, "green tea", mode)) for store in (ranked, other)]
            assert answers[0] == answers[1]
            return answers[0]

        for store, key in ((ranked, "a"), (other, "b"), (ranked, "c"), (other, "d")):
            store.put(NS, key, {"text": "green tea"})
        assert found() == ["a", "b", "c", "d"]
        ranked.delete(NS, "a")
        assert found() == ["b", "c", "d"]
        other.put(NS, "b", {"text": ""})
        assert found() == ["c", "d"]
        ranked.put(NS, "c", {"text": "green tea"}, search_fields=False)
        assert found() == ["d"]
        other.put(NS, "a", {"text": "green tea"}, ttl=5)
        ranked.execute([Put((*NS, "below"), "e", {"text": "tea"}), Put((*NS, "below"), "f", {"text": "green"})])
        assert found() == ["a", "d", "e", "f"]
        clock.advance(6)
        assert found() == ["d", "e", "f"]
        other.sweep()
        assert found() == ["d", "e", "f"]
        ranked.delete_tree((*NS, "below"))
        assert found() == ["d"]
        other.update(NS, "d", lambda value: {"text": ""})
        ranked.update(NS, "c", lambda value: {"text": "tea"})
        assert found() == []  # as it was put
        ranked.put(NS, "c", {"text": "tea"})
        assert found() == ["c"]
        ranked.execute([DeleteTree(NS), Put(NS, "g", {"text": "green tea"})])
        assert found() == ["g"]

    def test_statistics_are_of_what_is_there(self, opened: Opener, ranked: Caller, clock: Clock) -> None:
        """Deleted entries do not influence scores: they are those of a new store with the same entries."""
        for n in range(30):
            ranked.put(NS, str(n % 7), {"text": f"tea {'green ' * (n % 4)}"})
            if n % 5 == 0:
                self.found(ranked, "tea")
        ranked.put(NS, "brief", {"text": "tea time"}, ttl=1)
        self.found(ranked, "tea")
        ranked.delete_tree(NS)
        clock.advance(2)
        ranked.sweep()
        ranked.put(NS, "one", {"text": "green tea"})
        ranked.put(NS, "two", {"text": "black tea with milk"})
        scores = [hit.score for hit in ranked.search(NS, query="green tea", mode="lexical")]
        idf = [0.6931471805599453, 0.1823215567939546]  # of a word in one of two, and in both
        length = (2 + 3) / 2
        weights = [1 / (1 + 0.9 * (0.6 + 0.4 * tokens / length)) for tokens in (2, 3)]
        assert scores == pytest.approx([sum(idf) * weights[0], idf[1] * weights[1]])

    @pytest.mark.parametrize("mode", MODES)
    def test_what_expires_in_the_middle_of_a_search_is_no_error(self, opened: Opener, mode: str) -> None:
        class Hasty(Clock):
            """A clock that moves each time it is read."""

            def __call__(self) -> int:
                self.advance(0.25)
                return super().__call__()

        store = ranking(opened(embed=embed, clock=Hasty()))
        store.execute([Put(NS, f"{n:02}", {"text": "tea"}) for n in range(3)])
        seen = set()
        for n in range(1, 20):
            store.put(NS, "brief", {"text": "tea"}, ttl=0.25 * n)
            found = self.found(store, "tea", mode)
            assert set(found) - {"brief"} == {"00", "01", "02"}
            seen.add("brief" in found)
        assert seen == {False, True}

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    def test_a_forked_child_searches_as_its_parent_does(self, ranked: Caller) -> None:
        store = ranked.store
        ranked.execute([Put(NS, str(n), {"text": f"tea {n}"}) for n in range(30)])
        asked: list[dict[str, Any]] = [{"query": "tea 7", "mode": mode} for mode in MODES]
        before = [ranked.search(**one) for one in asked]

        def search() -> None:
            assert [store.search(**one) for one in asked] == before
            store.put(NS, "child", {"text": "tea 7"})
            for one in asked:
                assert store.search(**one)[0].key == "child"

        assert forked(search) == 0
        is_one = store._engine_handle.engine.capabilities.multiprocess
        for one, answer in zip(asked, before, strict=True):
            assert ranked.search(**one)[0].key == ("child" if is_one else answer[0].key)

    # Files -----------------------------------------------------------------------------------------------------------

    def test_files_are_found_by_their_text(self, ranked: Caller) -> None:
        volume = ranked.files(NS)
        volume.write("/a.md", "green tea\n")
        volume.write("/binary", b"green tea \xff\xfe")
        volume.write("/ends-badly", b"green tea\xff")
        volume.write("/nul", b"green\x00 tea")
        volume.write("/empty", b"")
        assert self.found(ranked, "tea") == ["/a.md"]
        assert ranked.search(query="tea", mode="lexical")[0].value["content"] == "green tea\n"
        volume.append("/a.md", "and a biscuit")
        volume.append("/log", "a biscuit tin")
        assert sorted(self.found(ranked, "biscuits")) == ["/a.md", "/log"]
        assert self.found(ranked, '"tea and a biscuit"') == ["/a.md"]
        volume.edit("/a.md", "green", "black")
        assert self.found(ranked, "green") == []
        volume.copy("/a.md", "/copy/b.md")
        volume.move("/a.md", "/moved/a.md")
        assert sorted(self.found(ranked, "black")) == ["/copy/b.md", "/moved/a.md"]
        assert sorted(self.found(ranked, "biscuit", "hybrid")) == ["/copy/b.md", "/log", "/moved/a.md"]
        assert self.found(ranked, "biscuit", filter={"content": {"$contains": "tin"}}) == ["/log"]
        volume.delete("/copy", recursive=True)
        with volume.open("/moved/a.md", "wb") as file:
            file.write(b"white ")
            file.write(b"tea")
        assert self.found(ranked, "black") == []
        assert self.found(ranked, "white") == ["/moved/a.md"]
        volume.write("/moved/a.md", b"\xff")
        assert self.found(ranked, "white") == []

    def test_of_a_large_file_the_beginning_is_found(self, ranked: Caller) -> None:
        volume = ranked.files(NS)
        volume.write("/large", "first " + "é" * (1 << 19) + " last")
        for piece in ("begun ", "x" * 700_000, " middle ", "y" * 700_000, " end"):
            volume.append("/grown", piece)
        assert self.found(ranked, "first") == ["/large"]
        assert self.found(ranked, "begun") == self.found(ranked, "middle") == ["/grown"]
        assert self.found(ranked, "last") == self.found(ranked, "end") == []
        ranked.put(NS, "/shaped", {"content": "initial " + "é" * (1 << 20)}, search_fields=["content"])
        assert self.found(ranked, "initial") == ["/shaped"]

    def test_files_as_items_are_found_by_their_text(self, ranked: Caller) -> None:
        ranked.put(NS, "/text", {"content": "green tea", "encoding": "utf-8"})
        ranked.put(NS, "/lines", {"content": ["black", "tea"], "created_at": "t", "modified_at": "t"})
        ranked.put(NS, "/base64", {"content": "AP8A", "encoding": "base64"})
        ranked.put(NS, "/item", {"content": "white tea", "more": "fields"})
        assert sorted(self.found(ranked, "tea")) == ["/item", "/lines", "/text"]
        assert self.found(ranked, "utf 8") == self.found(ranked, "AP8A") == []
        assert sorted(self.found(ranked, "tea", "semantic")) == ["/item", "/lines", "/text"]
        volume = ranked.files(NS)
        volume.move("/text", "/moved")
        volume.copy("/lines", "/copied")
        assert sorted(self.found(ranked, "tea", "semantic")) == ["/copied", "/item", "/lines", "/moved"]
        volume.append("/moved", " leaves")
        assert sorted(self.found(ranked, "tea", "semantic")) == ["/copied", "/item", "/lines"]
        assert self.found(ranked, "leaves") == ["/moved"]
        assert ranked.reindex() == 1
        assert sorted(self.found(ranked, "tea", "semantic")) == ["/copied", "/item", "/lines", "/moved"]

    # Which texts -----------------------------------------------------------------------------------------------------

    def test_a_put_chooses_its_search_fields(self, ranked: Caller) -> None:
        value = {"title": "green tea", "notes": [{"text": "black coffee"}, {"text": "white milk"}], "n": 5}

        def found() -> str:
            words = {"tea": "t", "coffee": "c", "milk": "m"}
            lexical = "".join(letter for word, letter in words.items() if self.found(ranked, word))
            best = [ranked.search(query=word, mode="semantic") for word in ("green tea", "black coffee", "white milk")]
            near = "".join(letter for hits, letter in zip(best, "tcm", strict=True) if hits and hits[0].score > 0.99)
            assert lexical == near or near == ""
            return lexical

        ranked.put(NS, "k", value)
        assert found() == "tcm"
        ranked.put(NS, "k", value, search_fields=["title"])
        assert found() == "t"
        ranked.put(NS, "k", value, search_fields=["notes[*].text"])
        assert found() == "cm"
        ranked.put(NS, "k", value, search_fields=["notes[-1].text", "title"])
        assert found() == "tm"
        ranked.put(NS, "k", value, search_fields=["nowhere"])
        assert found() == ""
        ranked.put(NS, "k", value, search_fields=False)
        assert found() == ""
        ranked.put(NS, "k", value)
        assert found() == "tcm"
        ranked.execute([Put(NS, "k", value, search_fields=["notes[0].text"])])
        assert found() == "c"
        ranked.update(NS, "k", lambda old: old)
        assert found() == "c"
        ranked.put(NS, "k", value, search_fields=False)
        ranked.update(NS, "k", lambda old: old)
        assert found() == ""
        ranked.update(NS, "new", lambda old: old, default=value)
        assert found() == "tcm"

    def test_search_fields_of_the_store_hold_for_every_put(self, opened: Opener, ranked: Caller) -> None:
        """`fields` was ignored by LangGraph's SqliteStore."""
        titled = opened(embed=embed, search_fields=["title", "tags[*]"])
        value = {"title": "green tea", "tags": ["hot"], "body": "black coffee"}
        titled.put(NS, "k", value)
        for store in (titled, ranked):
            assert self.found(store, "tea") == self.found(store, "hot") == ["k"]
            assert self.found(store, "coffee") == []
            assert store.search(query="hot", mode="semantic")[0].score == pytest.approx(1)
            assert store.search(query="black coffee", mode="semantic")[0].score < 0.99
        titled.put(NS, "k", value, search_fields=["body"])
        assert (self.found(ranked, "tea"), self.found(ranked, "coffee")) == ([], ["k"])
        titled.put(NS, "k", value)
        assert (self.found(ranked, "tea"), self.found(ranked, "coffee")) == (["k"], [])
        ranked.put(NS, "k", value)
        assert (self.found(titled, "tea"), self.found(titled, "coffee")) == (["k"], ["k"])
        titled.files(NS).write("/file", "camomile")
        titled.put(NS, "/shaped", {"content": "camomile too"})
        assert sorted(self.found(titled, "camomile")) == ["/file", "/shaped"]

    def test_paths_that_lead_nowhere_are_refused(self, opened: Opener, ranked: Caller) -> None:
        for bad in ("title", [], ["a["], ["a..b"], ["$.a"], [5], 5, True, ["{a"], [""]):
            with pytest.raises(InvalidInput):
                ranked.put(NS, "k", {"title": "tea"}, search_fields=bad)
            with pytest.raises(InvalidInput):
                opened(search_fields=bad)
            with pytest.raises(InvalidInput):
                opened().put(NS, "k", {"title": "tea"}, search_fields=bad)
        assert ranked.get(NS, "k") is None
