"""Embedders: the user's `embed=` argument as an object that turns texts into vectors.

The store runs these programs before its transaction begins. Every engine stores a vector as little-endian float32
bytes. Each number that a model returns is checked: a NaN in an index would break every later ranking.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import operator
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from ..errors import EmbeddingError, InvalidInput, MissingExtra, shown
from ..runtime.programs import IS_ASYNC, Call, StoreProgram, Work

__all__ = ["METRICS", "Embedder", "Metric", "check_metric", "is_same_model"]

#: How vectors are compared: cosine similarity, inner product, or L2 distance.
Metric: TypeAlias = Literal["cosine", "dot", "l2"]
METRICS: tuple[Metric, ...] = get_args(Metric)

#: The most texts in one call of the model.
_BATCH = 256
#: The text whose vector identifies a model.
_PROBE = "Which model made these vectors? The quick brown fox jumps over the lazy dog."
#: The least cosine of two probes of one model: other machines and batches change less, other models more.
_SAME = 0.99

_ACCEPTED = (
    "embed= takes a function of a list of texts, sync or async, an object with embed_documents and embed_query, "
    "or 'local' for the model that comes with holdall[local]"
)


class Embedder:
    """A model that makes vectors. All have `dims` dimensions, or as many as the first one."""

    def __init__(self, given: Any, dims: int | None = None) -> None:
        if dims is not None and (type(dims) is not int or dims < 1):
            raise InvalidInput(f"dims is a number of dimensions, at least 1, not {shown(dims)}")
        self.dims = dims
        self._of_texts, self._of_query = _functions(given)
        _require("an embedder", "vectors", "numpy")  # now rather than at the first search

    def embed_documents(self, texts: Sequence[str]) -> StoreProgram[list[bytes]]:
        """Embed texts; return the vectors in the same order. Equal texts are embedded once."""
        distinct = list(dict.fromkeys(texts))
        vectors: dict[str, bytes] = {}
        for start in range(0, len(distinct), _BATCH):
            batch = distinct[start : start + _BATCH]
            try:
                reply = yield from self._of_texts.call(batch)
                vectors.update(zip(batch, self._check_reply(reply, len(batch)), strict=True))
            except EmbeddingError as error:
                raise EmbeddingError(f"{error}; nothing was written") from error.__cause__
        return [vectors[text] for text in texts]

    def embed_query(self, text: str) -> StoreProgram[bytes]:
        """Embed a query. Lone surrogates are replaced by `?`."""
        text = text.encode("utf-8", "replace").decode("utf-8")
        if self._of_query is None:
            return self._check_reply((yield from self._of_texts.call([text])), 1)[0]
        return self._check_reply([(yield from self._of_query.call(text))], 1)[0]

    def embed_probe(self) -> StoreProgram[bytes]:
        """Embed a fixed text, for `is_same_model`."""
        return (yield from self.embed_documents([_PROBE]))[0]

    def check_vectors(self, vectors: Sequence[Sequence[float]]) -> list[bytes]:
        """Check vectors that the caller has; `EmbeddingError` if one is malformed or has other dimensions."""
        return self._check_reply(vectors, len(vectors)) if vectors else []

    def _check_reply(self, reply: Any, count: int) -> list[bytes]:
        """Check a model's reply and return it as vectors; `EmbeddingError` if it is malformed."""
        if not _is_sequence(reply):
            raise EmbeddingError(f"the embedder must return a list with a vector for each text, not {shown(reply)}")
        if len(reply) != count:
            raise EmbeddingError(f"the embedder returned {len(reply)} vectors for {count} texts")
        numbers = [_numbers(vector) for vector in reply]
        dims = self.dims or len(numbers[0])
        for vector in numbers:
            if len(vector) != dims:
                raise EmbeddingError(f"the embedder returned a vector of {len(vector)} dimensions instead of {dims}")
        self.dims = dims
        return [_to_bytes(vector) for vector in numbers]


def check_metric(metric: Any) -> Metric:
    """Check a metric."""
    if metric not in METRICS:
        raise InvalidInput(f"metric is one of {', '.join(map(repr, METRICS))}, not {shown(metric)}")
    return metric  # type: ignore[no-any-return]  # one of them


def is_same_model(old: bytes, new: bytes) -> bool:
    """Whether two probes are of one model: equal dimensions, and almost equal directions."""
    if len(old) != len(new) or old == new:  # vectors of zeros have no direction
        return old == new
    ours, theirs = _from_bytes(old), _from_bytes(new)
    product = _dot(ours, theirs)
    return product > _SAME * math.sqrt(_dot(ours, ours)) * math.sqrt(_dot(theirs, theirs))


# The user's argument -------------------------------------------------------------------------------------------------


class _Function:
    """A function of a model: sync, async, or both."""

    def __init__(self, sync: Callable[[Any], Any] | None, awaited: Callable[[Any], Any] | None = None) -> None:
        if inspect.iscoroutinefunction(sync) or inspect.iscoroutinefunction(type(sync).__call__):
            sync, awaited = None, awaited or sync
        self.sync = sync
        self.awaited = awaited

    def call(self, argument: Any) -> StoreProgram[Any]:
        """Call the function. An async driver calls a sync one in a thread, so that it does not block the event loop."""
        is_awaited = yield IS_ASYNC
        if self.sync is None and not is_awaited:
            raise _only_async()
        try:
            if is_awaited and self.awaited is not None:
                return (yield Call(self.awaited, (argument,)))
            reply = yield Work(self.sync, (argument,))  # type: ignore[arg-type]  # one of the two is there
            if is_awaited and inspect.isawaitable(reply):
                reply = yield Call(_itself, (reply,))
        except Exception as error:
            raise EmbeddingError(f"the embedder failed: {type(error).__name__}: {error}") from error
        if inspect.isawaitable(reply):
            if inspect.iscoroutine(reply):
                reply.close()
            raise _only_async()
        return reply


def _functions(given: Any) -> tuple[_Function, _Function | None]:
    """The functions that embed texts and, if it is another one, a query."""
    if isinstance(given, str) and given == "local":
        return _Function(_local()), None
    if isinstance(given, type):
        raise InvalidInput(f"{given.__name__} is a class; make an object of it. {_ACCEPTED}")
    if (of_texts := _method(given, "embed_documents")) is not None:
        return of_texts, _method(given, "embed_query")
    if not callable(given):
        raise InvalidInput(f"{shown(given)} is no embedder; {_ACCEPTED}")
    return _Function(given), None


def _method(given: Any, name: str) -> _Function | None:
    """The method of this name, its async `a…` form, or both."""
    sync, awaited = getattr(given, name, None), getattr(given, "a" + name, None)
    return _Function(sync, awaited) if callable(sync or awaited) else None


def _local() -> Callable[[list[str]], Any]:
    """The local model. It is loaded on first use; that its packages exist is checked now."""
    _require("embed='local'", "local", "numpy", "safetensors", "tokenizers", "wordllama")
    from . import local_model

    return local_model.embed


def _require(what: str, extra: str, *packages: str) -> None:
    """Raise `MissingExtra` if a package is not installed. Nothing is imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"{what} needs {package}: pip install 'holdall[{extra}]'", name=package)


def _itself(awaitable: Any) -> Any:
    return awaitable


def _only_async() -> InvalidInput:
    return InvalidInput("the embedder is async only; call the method with an 'a' before its name (aput, asearch, …)")


# Vectors and their bytes ---------------------------------------------------------------------------------------------


def _numbers(vector: Any) -> array[float]:
    """Convert a vector to float32 numbers."""
    if not _is_sequence(vector):
        raise EmbeddingError(f"the embedder must return each vector as a list of numbers, not {shown(vector)}")
    try:
        given = vector.tolist() if hasattr(vector, "tolist") else vector
        numbers = array("f", given)
    except (TypeError, OverflowError) as error:
        raise EmbeddingError(f"the embedder returned a vector that holds no numbers: {shown(vector)}") from error
    if not numbers:
        raise EmbeddingError("the embedder returned a vector of no dimensions")
    if not math.isfinite(sum(numbers)):  # a sum of finite float32 numbers cannot overflow
        wrong = next(number for number, kept in zip(given, numbers, strict=True) if not math.isfinite(kept))
        raise EmbeddingError(f"the embedder returned a vector with {wrong!r} in it, which float32 cannot hold")
    return numbers


def _is_sequence(thing: Any) -> bool:
    """Whether a value is a list, a tuple, an array or a tensor: it has a length and an order."""
    unordered = isinstance(thing, str | bytes | bytearray | memoryview | Mapping)
    return hasattr(thing, "__len__") and hasattr(thing, "__getitem__") and not unordered


def _to_bytes(numbers: array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _from_bytes(vector: bytes) -> array[float]:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _dot(ours: array[float], theirs: array[float]) -> float:
    return math.fsum(map(operator.mul, ours, theirs))
