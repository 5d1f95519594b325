"""The embedding model of a store: it embeds entries before they are written, and queries.

A store records which model made its vectors, in an entry of holdall's own: the entry has the probe of the model (the
vector of a fixed text), and its version is the number of the model. So a changed model is detected on first use.
`reindex` replaces that entry, and then the vectors of all entries.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Literal

from .. import ops
from ..errors import Conflict, Corrupt, EmbeddingError, InvalidInput
from ..model import field_paths, file_values, keys
from ..model.values import decode, to_plain_object
from ..ops import ABSENT, KEEP, Entry, Namespace, replace
from ..runtime.programs import Call, StoreProgram, pause_before_retry
from .embedders import Embedder, Metric, is_same_model

#: The entry that records the model: its namespace in the engine, and its key.
MODEL_NAMESPACE, MODEL_KEY = (keys.RESERVED, "embedding"), "model"
_HOME, _KEY = keys.Reserved(("embedding",)), MODEL_KEY
_SLICE = 100


class EmbeddingModel:
    """An embedder, and the number of its model in the store."""

    def __init__(self, embedder: Embedder, metric: Metric) -> None:
        self._embedder = embedder
        self._metric = metric
        self._model: int | None = None
        self._probe: bytes | None = None

    def embed_batch(self, batch: list[Any], default: tuple[str, ...]) -> StoreProgram[list[Any]]:
        """Add vectors to the puts of a batch that have none."""
        for index, op in enumerate(batch):
            if type(op) is ops.Put and op.ttl is KEEP and op.search_fields is None:
                paths: str | None = (yield [ops.GetSearchFields(op.namespace, op.key)])[0]
                if paths is not None:
                    known: Any = decode(paths)
                    batch[index] = replace(op, search_fields=known or False)
        texts = [_texts(op, default) for op in batch]
        if not any(texts):
            return batch
        try:
            model = yield from self.get_model()
            vectors = yield from self._embedder.embed_documents(list(chain.from_iterable(texts)))
        except EmbeddingError as error:
            # If the model itself fails, a caller that coalesced this batch need not try its parts one by one.
            error._fails_for_all_texts = len(batch) > 1 and not (yield from self._is_working())
            raise
        return _with_vectors(batch, texts, model, vectors, self._metric)

    def _is_working(self) -> StoreProgram[bool]:
        """Whether the model works: it can still embed the probe."""
        if self._probe is None:
            return False
        try:
            yield from self._embedder.embed_probe()
        except EmbeddingError:
            return False
        return True

    @staticmethod
    def has_vectors(batch: list[Any]) -> bool:
        return any(type(op) is ops.Put and op.vectors is not None for op in batch)

    def write_if_current(
        self, batch: list[Any], write: Callable[[list[Any]], StoreProgram[list[Any]]]
    ) -> StoreProgram[list[Any]]:
        """Write a batch with vectors; if the store has another model by now, refuse."""
        tries = 0
        while True:
            model = yield from self.get_model()
            try:
                return (yield from write([ops.Check(_HOME, _KEY, model), *_with_model(batch, model)]))[1:]
            except Conflict as conflict:
                if conflict.namespace[:1] != (keys.RESERVED,) or conflict.key != _KEY:
                    raise
                self._model = None  # another number, if the store was emptied meanwhile; or another model
                tries += 1
                yield from pause_before_retry(conflict, tries)

    def embed_query(self, query: str) -> StoreProgram[ops.Vector]:
        """Embed a query."""
        model = yield from self._find_model()
        return ops.Vector(model, (yield from self._embedder.embed_query(query)), self._metric)

    def use_query(self, vector: Sequence[float]) -> StoreProgram[ops.Vector]:
        """Check the vector of a query that the caller has computed with this model."""
        model = yield from self._find_model()
        return ops.Vector(model, self._embedder.check_vectors([vector])[0], self._metric)

    def use_vectors(self, puts: list[ops.Put], vectors: list[Sequence[float]]) -> StoreProgram[list[Any]]:
        """Add to each put the vector that the caller has computed with this model."""
        model = yield from self.get_model()
        return _with_vectors(puts, [[""]] * len(puts), model, self._embedder.check_vectors(vectors), self._metric)

    def _find_model(self) -> StoreProgram[int]:
        """Return the number of this model; 0 if the store has none yet."""
        recorded: Entry | None = (yield [ops.Get(_HOME, _KEY)])[0]  # each time: another process may have replaced it
        if self._model is None or recorded is None or recorded.version != self._model:
            self._model = (yield from self._identify("find")) or None
        return self._model or 0

    def reindex(
        self, scope: Namespace, default: tuple[str, ...], progress: Callable[[int, int], object] | None
    ) -> StoreProgram[int]:
        """Embed all entries in a scope that have no vectors of this model; return how many.

        For the whole store, this model replaces the recorded one. `progress(done, total)` is called after each slice.
        """
        model = self._model = yield from self._identify("record" if scope else "replace")
        done = seen = 0
        total: int = 0 if progress is None else (yield [ops.Count(scope, unembedded=model)])[0]
        walk = ops.Unembedded(model, scope, limit=_SLICE)
        while True:
            if progress is not None:
                yield Call(progress, (seen, max(seen, total)))
            found: ops.Page[tuple[Entry, str | None]] = (yield [walk])[0]
            texts = [_texts_of(entry.key, entry.value, _paths(given, default)) for entry, given in found]
            vectors = iter((yield from self._embedder.embed_documents(list(chain.from_iterable(texts)))))
            batch = [
                ops.Embed(
                    entry.namespace[len(scope) :],
                    entry.key,
                    entry.version,
                    ops.Vectors(model, tuple(next(vectors) for _ in own), self._metric),
                )
                for (entry, _), own in zip(found, texts, strict=True)
                if own
            ]
            if batch:
                done += sum((yield batch))
            seen += len(found)
            if found.next is None:
                if progress is not None:
                    yield Call(progress, (seen, max(seen, total)))
                return done
            last = found[-1][0]
            walk = replace(walk, after=(last.namespace, last.key))

    def embed_documents(self, texts: list[str]) -> StoreProgram[list[bytes]]:
        """Embed texts."""
        return self._embedder.embed_documents(texts)

    def get_model(self) -> StoreProgram[int]:
        """Return the number of this model in the store. The first model is recorded."""
        if self._model is None:
            self._model = yield from self._identify("record")
        return self._model

    def _identify(self, do: Literal["find", "record", "replace"]) -> StoreProgram[int]:
        """Return the number of this model; `InvalidInput` if the store has the vectors of another one.

        If the store has none yet, "find" returns 0, so that a search writes nothing; "record" records this one.
        "replace" also records it in place of another.
        """
        probe = self._probe
        if probe is None:
            probe = self._probe = yield from self._embedder.embed_probe()
        while True:
            entry: Entry | None = (yield [ops.Get(_HOME, _KEY)])[0]
            if entry is not None:
                known = read_probe(entry.value)
                if is_same_model(known, probe):
                    return entry.version
                if do != "replace":
                    raise InvalidInput(
                        f"the vectors in this store were made by another model ({len(known) // 4} dimensions; this one"
                        f" has {len(probe) // 4}): to replace them, run reindex() on the whole store, or 'holdall URL"
                        " reindex'"
                    )
            elif do == "find":
                return 0
            value = {"probe": base64.b64encode(probe).decode()}
            try:
                return (yield [ops.Put(_HOME, _KEY, value, None, ABSENT if entry is None else entry)])[0].version  # type: ignore[no-any-return]  # an Entry
            except Conflict:  # another process was faster
                continue


def read_probe(value: dict[str, Any]) -> bytes:
    """Read the probe of a recorded model."""
    try:
        return base64.b64decode(value["probe"])
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt("the record of this store's model is damaged; restore a copy of the store") from error


def _texts(op: Any, default: tuple[str, ...]) -> list[str]:
    if (
        type(op) is not ops.Put
        or op.vectors is not None
        or op.search_fields is False
        or file_values.is_written_as_file(op.value)
    ):
        return []
    paths = default if op.search_fields is None else field_paths.check_paths(op.search_fields)
    return _texts_of(op.key, to_plain_object(op.value), paths)


def _texts_of(key: Any, value: dict[str, Any], paths: tuple[str, ...]) -> list[str]:
    """The texts of a value to embed; for one that is stored as a file, its text, and none if it is binary."""
    if paths == field_paths.WHOLE and isinstance(key, str) and key.startswith("/") and keys.is_path(key):
        file = file_values.to_stored(key, value)
        if isinstance(file, ops.File):
            text = file_values.to_text(file.content) or ""
            return [text] if text.strip() else []
    return field_paths.find_texts(value, paths)


def _paths(search_fields: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    return default if search_fields is None else field_paths.check_paths(decode(search_fields))


def _with_model(batch: list[Any], model: int) -> list[Any]:
    """Set the number of the model in the vectors of a batch."""
    return [
        replace(op, vectors=replace(op.vectors, model=model))
        if type(op) is ops.Put and op.vectors is not None and op.vectors.model != model
        else op
        for op in batch
    ]


def _with_vectors(
    batch: list[Any], texts: Sequence[list[str]], model: int, vectors: list[bytes], metric: Metric
) -> list[Any]:
    given = iter(vectors)
    return [
        replace(op, vectors=ops.Vectors(model, tuple(next(given) for _ in own), metric)) if own else op
        for op, own in zip(batch, texts, strict=True)
    ]
