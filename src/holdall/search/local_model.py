"""The local model, `embed="local"`: it needs no download and no service.

It uses the token vectors of wordllama: the vector of a text is the mean of those of its tokens. Only two files of its
wheel are used. Its code would access the network, configure logging, and pad batches to gigabytes.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def embed(texts: list[str]) -> list[Any]:
    """One vector a text, of 256 dimensions. Case is ignored: the model knows most words in lower case only."""
    tokenizer, table = _model()
    # One by one: a batch would start threads of its own, which a fork later complains of.
    encoded = (tokenizer.encode(text.lower(), add_special_tokens=False) for text in texts)
    return [_mean(table, tokens.ids) for tokens in encoded]


def _mean(table: np.ndarray[Any, Any], tokens: list[int]) -> np.ndarray[Any, Any]:
    """The mean of the tokens' vectors; zero for none. A long text repeats its tokens, so each is looked up once."""
    import numpy as np

    distinct, counts = np.unique(np.asarray(tokens, dtype=np.intp), return_counts=True)
    return counts.astype(np.float32) @ table[distinct].astype(np.float32) / np.float32(max(len(tokens), 1))


@functools.cache
def _model() -> tuple[Any, Any]:
    """The tokeniser and the table. Two threads that come first at once load it twice, which does no harm."""
    from safetensors import safe_open
    from tokenizers import Tokenizer

    spec = importlib.util.find_spec("wordllama")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    tokenizer = Tokenizer.from_file(str(package / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    with safe_open(str(package / "weights" / "l2_supercat_256.safetensors"), framework="np") as weights:
        return tokenizer, weights.get_tensor("embedding.weight")
