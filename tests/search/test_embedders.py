"""Embedders: each kind makes vectors of texts, and each failure has a clear error."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import math
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding

import holdall.search.embedders
from holdall.errors import EmbeddingError, HoldallError, InvalidInput
from holdall.runtime.programs import Call, StoreProgram, Work, adrive, drive
from holdall.search.embedders import Embedder, is_same_model
from holdall.testing import embed

TEXTS = ["tea", "coffee", "green tea"]
VECTORS = [array("f", vector).tobytes() for vector in embed(TEXTS)]


# What may be given ---------------------------------------------------------------------------------------------------


class Langchain:
    """As LangChain's: sync methods and async ones."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.called.append("embed_documents")
        return embed(texts)

    def embed_query(self, text: str) -> list[float]:
        self.called.append("embed_query")
        return embed([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        self.called.append("aembed_documents")
        return embed(texts)

    async def aembed_query(self, text: str) -> list[float]:
        self.called.append("aembed_query")
        return embed([text])[0]


class OnlySync:
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return embed(texts)


class OnlyAsync:
    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return embed(texts)


class AsyncUnderSyncNames:
    async def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return embed(texts)


class SyncCallable:
    def __call__(self, texts: list[str]) -> list[list[float]]:
        return embed(texts)


class AsyncCallable:
    async def __call__(self, texts: list[str]) -> list[list[float]]:
        return embed(texts)


async def aembed(texts: list[str]) -> list[list[float]]:
    await asyncio.sleep(0)
    return embed(texts)


def returns_coroutine(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is async without looking so."""

    def called(texts: list[str]) -> Any:
        return function(texts)

    return called


SYNC = {
    "function": embed,
    "partial": functools.partial(embed),
    "object": Langchain(),
    "sync methods only": OnlySync(),
    "callable": SyncCallable(),
    "numpy matrix": lambda texts: np.array(embed(texts)),
    "numpy vectors": lambda texts: [np.array(vector, np.float16).astype(np.float64) for vector in embed(texts)],
    "tuples": lambda texts: tuple(map(tuple, embed(texts))),
}
ASYNC = {
    "async function": aembed,
    "async partial": functools.partial(aembed),
    "a function that returns a coroutine": returns_coroutine(aembed),
    "async methods only": OnlyAsync(),
    "async methods under sync names": AsyncUnderSyncNames(),
    "async callable": AsyncCallable(),
}


@pytest.mark.parametrize("given", SYNC.values(), ids=SYNC)
def test_what_is_sync_serves_sync_and_async_callers(given: Any) -> None:
    expected = VECTORS if given is not SYNC["numpy vectors"] else run(Embedder(given).embed_documents(TEXTS))
    assert run(Embedder(given).embed_documents(TEXTS)) == expected
    assert arun(Embedder(given).embed_documents(TEXTS)) == expected
    assert run(Embedder(given).embed_query("coffee")) == arun(Embedder(given).embed_query("coffee")) == expected[1]


@pytest.mark.parametrize("given", ASYNC.values(), ids=ASYNC)
def test_what_is_async_serves_async_callers_and_the_error_for_sync_ones_names_the_method(given: Any) -> None:
    embedder = Embedder(given)
    assert arun(embedder.embed_documents(TEXTS)) == VECTORS
    assert arun(embedder.embed_query("coffee")) == VECTORS[1]
    for program in (embedder.embed_documents(TEXTS), embedder.embed_query("coffee"), embedder.embed_probe()):
        with pytest.raises(InvalidInput, match="async only; call the method with an 'a' before its name"):
            run(program)


@pytest.mark.parametrize("given", [given for name, given in ASYNC.items() if "returns" not in name])
def test_what_is_async_needs_no_thread(given: Any) -> None:
    async def on_the_loop(request: Any) -> Any:
        assert type(request) is Call
        return await request.function(*request.args)

    assert asyncio.run(adrive(Embedder(given).embed_documents(TEXTS), on_the_loop)) == VECTORS


def test_langchains_own_embeddings_serve() -> None:
    embedder = Embedder(DeterministicFakeEmbedding(size=8))
    assert run(embedder.embed_documents(["a", "b"])) == arun(embedder.embed_documents(["a", "b"]))
    assert embedder.dims == 8


def test_an_object_is_asked_in_the_way_the_caller_has() -> None:
    given = Langchain()
    run(Embedder(given).embed_documents(["a"]))
    run(Embedder(given).embed_query("a"))
    arun(Embedder(given).embed_documents(["a"]))
    arun(Embedder(given).embed_query("a"))
    assert given.called == ["embed_documents", "embed_query", "aembed_documents", "aembed_query"]


def test_a_sync_function_does_not_hold_up_the_event_loop() -> None:
    """It waits for what only the loop can do; were it called on the loop, this would never end."""
    freed = threading.Event()

    def blocking(texts: list[str]) -> list[list[float]]:
        assert freed.wait(30)
        return embed(texts)

    async def both() -> list[bytes]:
        asking = asyncio.create_task(adrive(Embedder(blocking).embed_documents(["tea"]), aperform))
        await asyncio.sleep(0)
        freed.set()
        return await asking

    assert asyncio.run(both()) == VECTORS[:1]


@pytest.mark.parametrize(
    "given", [None, 3, "openai:text-embedding-3-small", "Local", b"local", ["local"], {}, object(), Langchain, dict]
)
def test_what_is_no_embedder_is_refused_with_what_is_one(given: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Embedder(given)
    for accepted in ("a function of a list of texts", "sync or async", "embed_documents", "'local'"):
        assert accepted in str(caught.value)


@pytest.mark.parametrize("dims", [0, -1, 1.5, "32", True])
def test_dims_are_a_positive_number(dims: Any) -> None:
    with pytest.raises(InvalidInput, match="dims"):
        Embedder(embed, dims)


# How it is asked -----------------------------------------------------------------------------------------------------


@given(st.lists(st.text("ab", max_size=2), max_size=40))
def test_equal_texts_are_embedded_once_and_all_get_their_vectors(texts: list[str]) -> None:
    asked: list[str] = []
    embedder = Embedder(lambda batch: (asked.extend(batch), embed(batch))[1])
    assert run(embedder.embed_documents(texts)) == [array("f", vector).tobytes() for vector in embed(texts)]
    assert asked == list(dict.fromkeys(texts))


def test_texts_go_to_the_model_in_batches() -> None:
    sizes: list[int] = []
    embedder = Embedder(lambda batch: (sizes.append(len(batch)), embed(batch))[1])
    texts = [f"text {number}" for number in range(600)]
    assert run(embedder.embed_documents(texts)) == [array("f", vector).tobytes() for vector in embed(texts)]
    assert sizes == [256, 256, 88]


def test_no_texts_are_not_asked_for() -> None:
    assert run(Embedder(lambda texts: 1 / 0).embed_documents([])) == []


def test_a_query_that_no_encoding_knows_is_asked_as_one_that_it_does() -> None:
    asked: list[str] = []
    run(Embedder(lambda texts: (asked.extend(texts), embed(texts))[1]).embed_query("tea \ud800"))
    assert [text.encode() for text in asked] == [b"tea ?"]


# What goes wrong -----------------------------------------------------------------------------------------------------


def broken(texts: Any) -> Any:
    raise ConnectionError("no route to the model")


async def abroken(texts: Any) -> Any:
    raise ConnectionError("no route to the model")


@pytest.mark.parametrize("given", [broken, abroken, returns_coroutine(abroken)])
def test_a_failing_embedder_is_an_embedding_error_that_keeps_the_cause(given: Any) -> None:
    with pytest.raises(EmbeddingError, match="ConnectionError: no route to the model; nothing was written") as caught:
        arun(Embedder(given).embed_documents(TEXTS))
    assert isinstance(caught.value, HoldallError)
    assert isinstance(caught.value.__cause__, ConnectionError)
    with pytest.raises(EmbeddingError, match=r"no route to the model$"):
        arun(Embedder(given).embed_query("tea"))


def test_an_error_of_holdalls_own_out_of_an_embedder_is_no_bad_input() -> None:
    """Say an embedder keeps what it knows in a store of its own."""

    def cached(texts: list[str]) -> Any:
        raise InvalidInput("a bad key")

    with pytest.raises(EmbeddingError, match="a bad key"):
        run(Embedder(cached).embed_documents(TEXTS))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interrupt_stays_one(interrupt: type[BaseException]) -> None:
    def interrupted(texts: list[str]) -> Any:
        raise interrupt

    with pytest.raises(interrupt):
        run(Embedder(interrupted).embed_documents(TEXTS))


NAN, LARGE = [0.5, math.nan], [0.5, 1e39]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (None, "a list with a vector for each text, not None"),
        (0.5, "a list with a vector for each text"),
        ("text", "a list with a vector for each text"),
        ({"data": []}, "a list with a vector for each text"),
        ([], "0 vectors for 2 texts"),
        ([[1.0, 2.0]], "1 vectors for 2 texts"),
        ([[1.0], [1.0], [1.0]], "3 vectors for 2 texts"),
        ([0.5, 0.25], "each vector as a list of numbers, not 0.5"),
        ([b"12345678", b"12345678"], "each vector as a list of numbers"),
        ([{0: 1.0}, {0: 1.0}], "each vector as a list of numbers"),
        ([["a"], ["b"]], "holds no numbers"),
        ([[1j], [1j]], "holds no numbers"),
        ([[None], [None]], "holds no numbers"),
        ([[[1.0]], [[1.0]]], "holds no numbers"),
        (np.zeros((2, 2, 2)), "holds no numbers"),
        ([[10**400], [1.0]], "holds no numbers"),
        ([[], []], "a vector of no dimensions"),
        ([[1.0, 2.0], [1.0]], "1 dimensions instead of 2"),
        ([[0.5, 0.5], NAN], "nan in it"),
        ([[0.5, -math.inf], NAN], "-inf in it"),
        ([LARGE, LARGE], r"1e\+39 in it"),
        (np.array([NAN, LARGE]), "nan in it"),
    ],
)
def test_what_are_no_vectors_is_refused(reply: Any, why: str) -> None:
    with pytest.raises(EmbeddingError, match=why):
        run(Embedder(lambda texts: reply).embed_documents(["a", "b"]))


@pytest.mark.parametrize("reply", [[[1.0, 2.0]], None, [], "text", [1.0, math.nan], np.zeros((1, 2))])
def test_what_is_no_vector_of_a_query_is_refused(reply: Any) -> None:
    given = Langchain()
    given.embed_query = lambda text: reply  # type: ignore[method-assign]  # another answer
    with pytest.raises(EmbeddingError):
        run(Embedder(given).embed_query("a"))


def test_dimensions_are_held_to_what_was_said_or_came_first() -> None:
    with pytest.raises(EmbeddingError, match="32 dimensions instead of 64"):
        run(Embedder(embed, dims=64).embed_documents(["a"]))
    embedder = Embedder(lambda texts: [[1.0] * len(texts[0])] * len(texts))
    run(embedder.embed_documents(["abc"]))
    assert embedder.dims == 3
    with pytest.raises(EmbeddingError, match="4 dimensions instead of 3"):
        run(embedder.embed_query("abcd"))


def test_vectors_are_little_endian_float32() -> None:
    assert run(Embedder(lambda texts: [[1.0, -2.0]]).embed_documents(["a"])) == [b"\0\0\x80\x3f\0\0\0\xc0"]


# Which model made a vector -------------------------------------------------------------------------------------------


def test_a_model_is_recognised_by_its_probe() -> None:
    def other(texts: Sequence[str]) -> list[list[float]]:
        return [vector[::-1] for vector in embed(texts)]

    def elsewhere(texts: Sequence[str]) -> list[list[float]]:
        return [[number * 1.001 + 1e-4 for number in vector] for vector in embed(texts)]

    ours = run(Embedder(embed).embed_probe())
    assert ours == run(Embedder(embed).embed_probe())
    assert is_same_model(ours, run(Embedder(elsewhere).embed_probe()))
    assert not is_same_model(ours, run(Embedder(other).embed_probe()))
    assert not is_same_model(ours, run(Embedder(lambda texts: [vector[:16] for vector in embed(texts)]).embed_probe()))
    assert not is_same_model(
        ours, run(Embedder(lambda texts: [[*vector, 0.0] for vector in embed(texts)]).embed_probe())
    )
    assert not is_same_model(ours, bytes(len(ours)))


# The local model -----------------------------------------------------------------------------------------------------


def test_the_local_model_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a connection was made")

    holdall.search.embedders._local()  # so that its module is there
    sys.modules["holdall.search.local_model"]._model.cache_clear()
    monkeypatch.setattr(socket, "socket", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    assert [len(vector) for vector in run(Embedder("local").embed_documents(["tea"]))] == [4 * 256]


def test_the_local_model_finds_what_is_meant() -> None:
    embedder = Embedder("local")
    texts = ["The cat sat on the mat", "Quarterly revenue grew by ten percent", "A recipe for tomato soup"]
    vectors = run(embedder.embed_documents(texts))
    for query, best in (("kitten on a rug", 0), ("PROFITS OF THE COMPANY", 1), ("cooking vegetables", 2)):
        wanted = np.frombuffer(arun(embedder.embed_query(query)), "<f4")
        assert int(np.argmax([cosine(wanted, np.frombuffer(vector, "<f4")) for vector in vectors])) == best


def test_the_local_model_gives_the_means_that_wordllama_gives() -> None:
    """Their code is run elsewhere, for importing it sets up logging."""
    script = """if True:
        import json, sys, wordllama.inference
        from safetensors import safe_open
        from tokenizers import Tokenizer
        package = sys.modules["wordllama"].__path__[0]
        tokenizer = Tokenizer.from_file(f"{package}/tokenizers/l2_supercat_tokenizer_config.json")
        with safe_open(f"{package}/weights/l2_supercat_256.safetensors", framework="np") as weights:
            model = wordllama.inference.WordLlamaInference(weights.get_tensor("embedding.weight"), tokenizer)
        print(json.dumps(model.embed(json.loads(sys.argv[1])).tolist()))
    """
    texts = ["a cup of tea", "ünïcode and 茶, 🍵", "one", "again and again and again"]
    theirs = json.loads(subprocess.check_output([sys.executable, "-c", script, json.dumps(texts)]))
    ours = [np.frombuffer(vector, "<f4") for vector in run(Embedder("local").embed_documents(texts))]
    assert np.allclose(ours, theirs, atol=1e-6)


def test_the_local_model_ignores_case_and_survives_any_text() -> None:
    embedder = Embedder("local")
    assert run(embedder.embed_query("GREEN Tea")) == run(embedder.embed_query("green tea"))
    assert run(embedder.embed_documents(["", " \x00"]))[0] == bytes(4 * 256)
    [vector] = run(embedder.embed_documents(["tea " * 200_000]))
    assert cosine(np.frombuffer(vector, "<f4"), np.frombuffer(run(embedder.embed_query("tea tea")), "<f4")) > 0.95


@pytest.mark.parametrize("package", ["numpy", "tokenizers", "wordllama"])
def test_without_the_local_model_the_error_names_the_extra(package: str) -> None:
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from holdall.search.embedders import Embedder; from holdall.errors import MissingExtra\n"
        "try: Embedder('local')\n"
        "except MissingExtra as error: print(error.name, error)"
    )
    printed = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert printed.startswith(f"{package} embed='local' needs")
    assert "pip install 'holdall[local]'" in printed


# The test embedder ---------------------------------------------------------------------------------------------------


def test_the_test_embedder_gives_the_same_vectors_everywhere() -> None:
    """Were these numbers to change, so would the rankings that people's tests rely on."""
    [vector, nothing] = embed(["Tea", " "])
    assert [at for at, number in enumerate(vector) if number] == [18, 23]
    assert nothing == [0.0] * 32
    assert math.isclose(math.hypot(*vector), 1)


def test_the_test_embedder_puts_texts_that_share_words_near_each_other() -> None:
    tea, green, cars = (np.array(vector) for vector in embed(["green tea", "tea that is green", "fast cars"]))
    assert cosine(tea, green) > 0.5 > cosine(tea, cars)


# Running programs ----------------------------------------------------------------------------------------------------


def run(program: StoreProgram[Any]) -> Any:
    return drive(program, perform)


def arun(program: StoreProgram[Any]) -> Any:
    return asyncio.run(adrive(program, aperform))


def perform(request: Any) -> Any:
    result = request.function(*request.args)
    assert type(request) is Work or not inspect.isawaitable(result)
    return result


async def aperform(request: Any) -> Any:
    if type(request) is Call:
        result = request.function(*request.args)
        return await result if inspect.isawaitable(result) else result
    assert type(request) is Work
    return await asyncio.to_thread(request.function, *request.args)


def cosine(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> float:
    return float(ours @ theirs / (np.linalg.norm(ours) * np.linalg.norm(theirs)))
