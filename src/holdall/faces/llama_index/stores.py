"""LlamaIndex' stores on any engine.

    storage_context = StorageContext.from_defaults(docstore=HoldallDocumentStore("agent.db"))
    memory = ChatMemoryBuffer.from_defaults(chat_store=HoldallChatStore("agent.db"), chat_store_key="ada")

A collection of the key-value store is a namespace, and a value is an item in it. A chat is a message log
(`holdall.faces.message_log`).
"""

from __future__ import annotations

from typing import Any

try:
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.storage.chat_store.base import BaseChatStore
    from llama_index.core.storage.docstore.keyval_docstore import KVDocumentStore
    from llama_index.core.storage.kvstore.types import DEFAULT_COLLECTION, BaseKVStore
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a store for LlamaIndex", "llama-index") from missing

from ... import Entry, Store, ops
from ...core import face_api
from ...core.face_api import StoreProgram, async_method, sync_method
from ...ops import Namespace
from ..base import Face, NamespaceFace, read_all
from ..message_log import MessageLog, is_head

_BATCH = 1000


class HoldallKVStore(NamespaceFace, BaseKVStore):
    """Dicts by key, in collections below one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given.
    """

    def __init__(self, store_or_url: Any = None, *, namespace: Namespace = ("llama-index",), **options: Any) -> None:
        self._open_namespace(store_or_url, namespace, **options)

    def _put(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> StoreProgram[None]:
        """Put a dict."""
        yield from self._put_all([(key, val)], collection)

    put = sync_method(_put)
    aput = async_method(_put)

    def _put_all(
        self,
        kv_pairs: list[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = _BATCH,
    ) -> StoreProgram[None]:
        """Put several dicts, `batch_size` of them in a transaction."""
        face_api.check_count("batch_size", batch_size, least=1)
        puts = [ops.Put(self._inside(collection), key, value) for key, value in kv_pairs]
        for start in range(0, len(puts), batch_size):
            yield from face_api.execute(self.store, puts[start : start + batch_size])

    put_all = sync_method(_put_all)
    aput_all = async_method(_put_all)

    def _get(self, key: str, collection: str = DEFAULT_COLLECTION) -> StoreProgram[dict[str, Any] | None]:
        """Return a dict, or None."""
        entry: Entry | None
        [entry] = yield [ops.Get(self._inside(collection), key)]
        return None if entry is None else entry.value

    get = sync_method(_get)
    aget = async_method(_get)

    def _get_all(self, collection: str = DEFAULT_COLLECTION) -> StoreProgram[dict[str, dict[str, Any]]]:
        """Return all dicts of a collection, by key."""
        found = yield from read_all(self.store, self._inside(collection), recursive=False)
        return {hit.key: hit.value for hit in reversed(found)}  # in the order of change

    get_all = sync_method(_get_all)
    aget_all = async_method(_get_all)

    def _delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> StoreProgram[bool]:
        """Delete a dict. Returns whether it was there."""
        deleted: bool
        [deleted] = yield from face_api.execute(self.store, [ops.Delete(self._inside(collection), key)])
        return deleted

    delete = sync_method(_delete)
    adelete = async_method(_delete)


class HoldallDocumentStore(Face, KVDocumentStore):
    """Documents and nodes of LlamaIndex, in one namespace of a holdall store: a `KVDocumentStore`."""

    def __init__(self, store_or_url: Any = None, *, namespace: Namespace = ("llama-index",), **options: Any) -> None:
        #: The `holdall.Store` that this face runs on.
        self.store: Store = self._open(store_or_url, **options)
        super().__init__(HoldallKVStore(self.store, namespace=namespace), batch_size=_BATCH)


class HoldallChatStore(Face, BaseChatStore):
    """Chats of LlamaIndex, by key, in one namespace of a holdall store."""

    _store: Store = PrivateAttr()
    _owned_store: Store | None = PrivateAttr()
    _namespace: Namespace = PrivateAttr()

    def __init__(
        self, store_or_url: Any = None, *, namespace: Namespace = ("llama-index-chats",), **options: Any
    ) -> None:
        super().__init__()
        self._open(store_or_url, **options)
        self._namespace = face_api.check_namespace(namespace)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class, for LlamaIndex."""
        return "HoldallChatStore"

    @property
    def store(self) -> Store:
        """The `holdall.Store` that this face runs on."""
        return self._store

    def _log(self, key: str) -> MessageLog:
        return MessageLog.below(self._store, self._namespace, key)

    def _set_messages(self, key: str, messages: list[ChatMessage]) -> StoreProgram[None]:
        """Replace the messages of a chat."""
        yield from self._log(key).replace([_dump(message) for message in messages])

    set_messages = sync_method(_set_messages)
    aset_messages = async_method(_set_messages)

    def _get_messages(self, key: str) -> StoreProgram[list[ChatMessage]]:
        """Return the messages of a chat, in order."""
        _, messages = yield from self._log(key).read()
        return [ChatMessage.model_validate(message) for message in messages]

    get_messages = sync_method(_get_messages)
    aget_messages = async_method(_get_messages)

    def _add_message(self, key: str, message: ChatMessage) -> StoreProgram[None]:
        """Add a message to the end of a chat."""
        yield from self._log(key).append([_dump(message)])

    add_message = sync_method(_add_message)
    async_add_message = async_method(_add_message)

    def _delete_messages(self, key: str) -> StoreProgram[list[ChatMessage] | None]:
        """Delete a chat, and return its messages; None if there is none."""
        taken = yield from self._log(key).take_all()
        return None if taken is None else [ChatMessage.model_validate(message) for message in taken]

    delete_messages = sync_method(_delete_messages)
    adelete_messages = async_method(_delete_messages)

    def _delete_message(self, key: str, idx: int) -> StoreProgram[ChatMessage | None]:
        """Delete a message by its number, from the end if it is negative, and return it; None if there is none."""
        removed = yield from self._log(key).remove(idx)
        return None if removed is None else ChatMessage.model_validate(removed)

    delete_message = sync_method(_delete_message)
    adelete_message = async_method(_delete_message)

    def _delete_last_message(self, key: str) -> StoreProgram[ChatMessage | None]:
        """Delete the last message, and return it; None if there is none."""
        removed = yield from self._log(key).pop()
        return None if removed is None else ChatMessage.model_validate(removed)

    delete_last_message = sync_method(_delete_last_message)
    adelete_last_message = async_method(_delete_last_message)

    def _get_keys(self) -> StoreProgram[list[str]]:
        """Return the keys of all chats."""
        heads = yield from read_all(self._store, self._namespace, recursive=False)
        return [head.key for head in reversed(heads) if is_head(head)]

    get_keys = sync_method(_get_keys)
    aget_keys = async_method(_get_keys)


def _dump(message: ChatMessage) -> dict[str, Any]:
    dumped: dict[str, Any] = message.model_dump(mode="json")
    return dumped
