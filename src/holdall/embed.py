"""Embedders: whatever a user gives as `embed=`, made into one thing that turns texts into vectors.

The store runs the programs here before its transaction begins. A vector is kept as the bytes of its little-endian
float32 numbers, on every engine. What comes back from a user's model is checked number by number: a NaN that got into
an index would spoil every ranking after it.
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

from .errors import EmbeddingError, InvalidInput, MissingExtra, shown
from .programs import AWAITED, Call, Program, Work

__all__ = ["METRICS", "Embedder", "Metric", "check_metric", "same_model"]

#: How vectors are compared: cosine similarity, inner product, or L2 distance.
Metric: TypeAlias = Literal["cosine", "dot", "l2"]
METRICS: tuple[Metric, ...] = get_args(Metric)

#: How many texts go to the model at a time.
_BATCH = 256
#: What is embedded to tell one model from another.
_PROBE = "Which model made these vectors? The quick brown fox jumps over the lazy dog."
#: How like its old self a model must be: above what another machine or batch changes, below any other model.
_SAME = 0.99

_ACCEPTED = (
    "embed= takes a function of a list of texts, sync or async, an object with embed_documents and embed_query, "
    "or 'local' for the model that comes with holdall[local]"
)


class Embedder:
    """A model that gives vectors, all of the same number of dimensions: `dims`, or as many as it gives first."""

    def __init__(self, given: Any, dims: int | None = None) -> None:
        if dims is not None and (type(dims) is not int or dims < 1):
            raise InvalidInput(f"dims is a number of dimensions, at least 1, not {shown(dims)}")
        self.dims = dims
        self._of_texts, self._of_query = _functions(given)

    def documents(self, texts: Sequence[str]) -> Program[list[bytes]]:
        """The texts' vectors, in their order; equal texts are embedded once."""
        distinct = list(dict.fromkeys(texts))
        vectors: dict[str, bytes] = {}
        for start in range(0, len(distinct), _BATCH):
            batch = distinct[start : start + _BATCH]
            try:
                reply = yield from self._of_texts.ask(batch)
                vectors.update(zip(batch, self._checked(reply, len(batch)), strict=True))
            except EmbeddingError as error:
                raise EmbeddingError(f"{error}; nothing was written") from error.__cause__
        return [vectors[text] for text in texts]

    def query(self, text: str) -> Program[bytes]:
        """The vector of what is searched for; characters that no encoding knows are searched for as `?`."""
        text = text.encode("utf-8", "replace").decode("utf-8")
        if self._of_query is None:
            return self._checked((yield from self._of_texts.ask([text])), 1)[0]
        return self._checked([(yield from self._of_query.ask(text))], 1)[0]

    def probe(self) -> Program[bytes]:
        """The vector of a fixed text, for `same_model`."""
        return (yield from self.documents([_PROBE]))[0]

    def _checked(self, reply: Any, count: int) -> list[bytes]:
        """A model's reply as vectors, or an EmbeddingError that says what is wrong with it."""
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
    """A metric, or InvalidInput."""
    if metric not in METRICS:
        raise InvalidInput(f"metric is one of {', '.join(map(repr, METRICS))}, not {shown(metric)}")
    return metric  # type: ignore[no-any-return]  # one of them


def same_model(old: bytes, new: bytes) -> bool:
    """Whether two vectors that `probe` gave are of one model: equal dimensions, and all but equal directions."""
    if len(old) != len(new) or old == new:  # as vectors of zeros can be, which have no direction
        return old == new
    ours, theirs = _from_bytes(old), _from_bytes(new)
    product = _dot(ours, theirs)
    return product > _SAME * math.sqrt(_dot(ours, ours)) * math.sqrt(_dot(theirs, theirs))


# What a user gives ---------------------------------------------------------------------------------------------------


class _Function:
    """A function of a model's that may be there as a sync one, an async one, or both."""

    def __init__(self, sync: Callable[[Any], Any] | None, awaited: Callable[[Any], Any] | None = None) -> None:
        if inspect.iscoroutinefunction(sync) or inspect.iscoroutinefunction(type(sync).__call__):
            sync, awaited = None, awaited or sync
        self.sync = sync
        self.awaited = awaited

    def ask(self, argument: Any) -> Program[Any]:
        """Call it: in a thread where somebody awaits and it is sync, so that no model holds an event loop up."""
        is_awaited = yield AWAITED
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
    """How to embed texts and, if that is another thing, a query."""
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
    """A method, its `a…` twin, or both."""
    sync, awaited = getattr(given, name, None), getattr(given, "a" + name, None)
    return _Function(sync, awaited) if callable(sync or awaited) else None


def _local() -> Callable[[list[str]], Any]:
    """The local model, loaded when it is first used. Its packages are looked for at once, and not yet imported."""
    for package in ("numpy", "safetensors", "tokenizers", "wordllama"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"embed='local' needs {package}: pip install 'holdall[local]'", name=package)
    from . import local

    return local.embed


def _itself(awaitable: Any) -> Any:
    return awaitable


def _only_async() -> InvalidInput:
    return InvalidInput("the embedder is async only; call the method with an 'a' before its name (aput, asearch, …)")


# Vectors and their bytes ---------------------------------------------------------------------------------------------


def _numbers(vector: Any) -> array[float]:
    """A vector as float32 numbers."""
    if not _is_sequence(vector):
        raise EmbeddingError(f"the embedder must return each vector as a list of numbers, not {shown(vector)}")
    try:
        given = vector.tolist() if hasattr(vector, "tolist") else vector
        numbers = array("f", given)
    except (TypeError, OverflowError) as error:
        raise EmbeddingError(f"the embedder returned a vector that holds no numbers: {shown(vector)}") from error
    if not numbers:
        raise EmbeddingError("the embedder returned a vector of no dimensions")
    if not math.isfinite(sum(numbers)):  # which finite float32s cannot make overflow
        wrong = next(number for number, kept in zip(given, numbers, strict=True) if not math.isfinite(kept))
        raise EmbeddingError(f"the embedder returned a vector with {wrong!r} in it, which float32 cannot hold")
    return numbers


def _is_sequence(thing: Any) -> bool:
    """Whether something is a list, a tuple, an array or a tensor: whatever has a length and an order."""
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
