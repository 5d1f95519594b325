"""Vectors in a store: made of what is put, before its transaction begins, and of what is searched for.

A store knows which model made its vectors. The entry that says so is holdall's own: it has the vector of a fixed text,
and its version names the model. So a changed model is noticed on first use, whoever changed it; and `reindex` makes a
new entry, and then new vectors, entry by entry.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from . import fields, keys, ops, shapes
from .embed import Embedder, Metric, same_model
from .errors import Conflict, EmbeddingError, InvalidInput
from .ops import ABSENT, KEEP, Entry, Namespace
from .programs import Call, Program, before_retry
from .values import decode, plain_object

_HOME = keys.Reserved(("embedding",))
_KEY = "model"
_SLICE = 100


class Embedding:
    """An embedder, and which of the store's models it is."""

    def __init__(self, embedder: Embedder, metric: Metric) -> None:
        self._embedder = embedder
        self._metric = metric
        self._model: int | None = None
        self._probe: bytes | None = None

    def embedded(self, batch: list[Any], default: tuple[str, ...]) -> Program[list[Any]]:
        """A batch whose puts have their vectors; those that have some already keep them."""
        for place, op in enumerate(batch):
            if type(op) is ops.Put and op.ttl is KEEP and op.index is None:
                paths: str | None = (yield [ops.Indexing(op.namespace, op.key)])[0]
                if paths is not None:
                    known: Any = decode(paths)
                    batch[place] = replace(op, index=known or False)
        texts = [_texts(op, default) for op in batch]
        if not any(texts):
            return batch
        try:
            model = yield from self.known_model()
            vectors = yield from self._embedder.documents(list(chain.from_iterable(texts)))
        except EmbeddingError as error:
            # Is it a text, or the model? Who has gathered this batch would ask it once more for each part of it.
            error._is_the_model = len(batch) > 1 and not (yield from self._answers())
            raise
        return _with_vectors(batch, texts, model, vectors)

    def _answers(self) -> Program[bool]:
        """Whether the model can be asked for what it could be asked for before."""
        if self._probe is None:
            return False
        try:
            yield from self._embedder.probe()
        except EmbeddingError:
            return False
        return True

    @staticmethod
    def has_embedded(batch: list[Any]) -> bool:
        return any(type(op) is ops.Put and op.vectors is not None for op in batch)

    def checked(self, batch: list[Any], write: Callable[[list[Any]], Program[list[Any]]]) -> Program[list[Any]]:
        """Write what has vectors, unless another model was made the store's since they were begun."""
        tries = 0
        while True:
            model = yield from self.known_model()
            try:
                return (yield from write([ops.Check(_HOME, _KEY, model), *_numbered(batch, model)]))[1:]
            except Conflict as conflict:
                if conflict.namespace[:1] != (keys.RESERVED,) or conflict.key != _KEY:
                    raise
                self._model = None  # it has another number by now, where somebody emptied the store: or is another
                tries += 1
                yield from before_retry(conflict, tries)

    def vector(self, query: str) -> Program[ops.Vector]:
        noted: Entry | None = (yield [ops.Get(_HOME, _KEY)])[0]  # each time: somebody may have replaced it
        if self._model is None or noted is None or noted.version != self._model:
            self._model = (yield from self._this_model("look")) or None
        return ops.Vector(self._model or 0, (yield from self._embedder.query(query)), self._metric)

    def reindex(
        self, scope: Namespace, default: tuple[str, ...], progress: Callable[[int, int], object] | None
    ) -> Program[int]:
        model = self._model = yield from self._this_model("note" if scope else "replace")
        done = seen = 0
        total: int = 0 if progress is None else (yield [ops.Count(scope, unembedded=model)])[0]
        walk = ops.Unembedded(model, scope, limit=_SLICE)
        while True:
            if progress is not None:
                yield Call(progress, (seen, max(seen, total)))
            found: list[tuple[Entry, str | None]] = (yield [walk])[0]
            texts = [_texts_of(entry.key, entry.value, _paths(index, default)) for entry, index in found]
            vectors = iter((yield from self._embedder.documents(list(chain.from_iterable(texts)))))
            batch = [
                ops.Embed(
                    entry.namespace[len(scope) :],
                    entry.key,
                    entry.version,
                    ops.Vectors(model, tuple(next(vectors) for _ in own)),
                )
                for (entry, _), own in zip(found, texts, strict=True)
                if own
            ]
            if batch:
                done += sum((yield batch))
            seen += len(found)
            if len(found) < _SLICE:
                if progress is not None:
                    yield Call(progress, (seen, max(seen, total)))
                return done
            last = found[-1][0]
            walk = replace(walk, after=(last.namespace, last.key))

    def documents(self, texts: list[str]) -> Program[list[bytes]]:
        """Their vectors, by this model."""
        return self._embedder.documents(texts)

    def known_model(self) -> Program[int]:
        """The number by which the store knows this model: noted, where it is the first."""
        if self._model is None:
            self._model = yield from self._this_model("note")
        return self._model

    def _this_model(self, do: Literal["look", "note", "replace"]) -> Program[int]:
        """The number of this model: noted where it is the first, or in place of another, as it is wanted.

        Who only looks, where there is none yet, gets 0: the number of no model, so that a search writes nothing.
        """
        probe = self._probe
        if probe is None:
            probe = self._probe = yield from self._embedder.probe()
        while True:
            entry: Entry | None = (yield [ops.Get(_HOME, _KEY)])[0]
            if entry is not None:
                known = base64.b64decode(entry.value["probe"])
                if same_model(known, probe):
                    return entry.version
                if do != "replace":
                    raise InvalidInput(
                        f"the vectors in this store were made by another model ({len(known) // 4} dimensions; this one"
                        f" has {len(probe) // 4}): to make them anew, run reindex() on the whole store, or 'holdall URL"
                        " reindex'"
                    )
            elif do == "look":
                return 0
            value = {"probe": base64.b64encode(probe).decode()}
            try:
                return (yield [ops.Put(_HOME, _KEY, value, None, ABSENT if entry is None else entry)])[0].version  # type: ignore[no-any-return]  # an Entry
            except Conflict:  # somebody else was faster
                continue


def _texts(op: Any, default: tuple[str, ...]) -> list[str]:
    if type(op) is not ops.Put or op.vectors is not None or op.index is False or shapes.is_native(op.value):
        return []
    paths = default if op.index is None else fields.check_paths(op.index)
    return _texts_of(op.key, plain_object(op.value), paths)


def _texts_of(key: Any, value: dict[str, Any], paths: tuple[str, ...]) -> list[str]:
    """What is embedded of a value; of one that is stored as a file its text, and nothing of a binary one."""
    if paths == fields.WHOLE and isinstance(key, str) and key.startswith("/") and keys.is_path(key):
        file = shapes.stored(key, value)
        if isinstance(file, ops.File):
            text = shapes.to_text(file.content) or ""
            return [text] if text.strip() else []
    return fields.texts(value, paths)


def _paths(index: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    return default if index is None else fields.check_paths(decode(index))


def _numbered(batch: list[Any], model: int) -> list[Any]:
    """A batch whose vectors are this model's."""
    return [
        replace(op, vectors=replace(op.vectors, model=model))
        if type(op) is ops.Put and op.vectors is not None and op.vectors.model != model
        else op
        for op in batch
    ]


def _with_vectors(batch: list[Any], texts: Sequence[list[str]], model: int, vectors: list[bytes]) -> list[Any]:
    given = iter(vectors)
    return [
        replace(op, vectors=ops.Vectors(model, tuple(next(given) for _ in own))) if own else op
        for op, own in zip(batch, texts, strict=True)
    ]
