"""LangChain's cache of model answers on any engine: `HoldallCache` implements `BaseCache`.

    set_llm_cache(HoldallCache("agent.db", ttl=86400))

An answer is stored as plain JSON, and read back as one of two classes: no stored name decides what is imported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

try:
    from langchain_core.caches import BaseCache
    from langchain_core.messages import message_to_dict, messages_from_dict
    from langchain_core.outputs import ChatGeneration, Generation
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a cache for LangChain", "langchain") from missing

from ... import DEFAULT, Entry, ops
from ...core import face_api
from ...core.face_api import StoreProgram, async_method, sync_method
from ...ops import Namespace, TtlOrDefault
from ..base import NamespaceFace


class HoldallCache(NamespaceFace, BaseCache):
    """Answers of models, by prompt and model, in one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given. An answer expires after `ttl`: seconds, a timedelta, or None for never.
    """

    def __init__(
        self,
        store_or_url: Any = None,
        *,
        namespace: Namespace = ("llm-cache",),
        ttl: TtlOrDefault = DEFAULT,
        **options: Any,
    ) -> None:
        self._open_namespace(store_or_url, namespace, **options)
        self._ttl = ttl
        face_api.check_op(self.store, ops.Put(self._namespace, "ttl", {}, ttl))  # refuses a wrong ttl here

    def _lookup(self, prompt: str, llm_string: str) -> StoreProgram[Sequence[Generation] | None]:
        """Return the answer of a model to a prompt, or None."""
        entry: Entry | None
        [entry] = yield [ops.Get(self._namespace, _key(prompt, llm_string))]
        return None if entry is None else [_load(one) for one in entry.value["answer"]]

    lookup = sync_method(_lookup)
    alookup = async_method(_lookup)

    def _update(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> StoreProgram[None]:
        """Keep the answer of a model to a prompt."""
        value = {"prompt": prompt, "answer": [_dump(one) for one in return_val]}
        put = ops.Put(self._namespace, _key(prompt, llm_string), value, self._ttl, search_fields=False)
        yield from face_api.execute(self.store, [put])

    update = sync_method(_update)
    aupdate = async_method(_update)

    def _clear(self, /, **kwargs: Any) -> StoreProgram[None]:  # noqa: ARG002  # LangChain passes what a cache may use
        """Remove all answers."""
        yield from face_api.delete_tree(self.store, self._namespace)

    clear = sync_method(_clear)
    aclear = async_method(_clear)


def _key(prompt: str, llm_string: str) -> str:
    # What is not Unicode has a key, too: it is not found, and the store refuses to keep it, with its own error.
    text = f"{len(prompt)}:{prompt}{llm_string}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _dump(generation: Generation) -> dict[str, Any]:
    if isinstance(generation, ChatGeneration):
        return {"message": message_to_dict(generation.message), "info": generation.generation_info}
    return {"text": generation.text, "info": generation.generation_info}


def _load(stored: dict[str, Any]) -> Generation:
    if "message" in stored:
        [message] = messages_from_dict([stored["message"]])
        return ChatGeneration(message=message, generation_info=stored["info"])
    return Generation(text=stored["text"], generation_info=stored["info"])
