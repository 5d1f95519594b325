"""An embedder for tests: deterministic, with nothing to install or to load."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

_DIMS = 32


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Return a vector of 32 dimensions and length 1 for each text, from hashed trigrams of its words.

    Texts that share words, or parts of words, are near each other. A text without a word gives the zero vector.
    """
    return [_embed_text(text) for text in texts]


def _embed_text(text: str) -> list[float]:
    vector = [0.0] * _DIMS
    for word in text.casefold().split():
        padded = f" {word} "
        for at in range(len(padded) - 2):
            hashed = zlib.crc32(padded[at : at + 3].encode("utf-8", "surrogatepass"))
            vector[hashed % _DIMS] += 1.0 if hashed & 0x80000000 else -1.0
    length = math.sqrt(sum(number * number for number in vector))
    return [number / length for number in vector] if length else vector
