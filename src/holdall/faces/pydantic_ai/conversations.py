"""pydantic-ai's conversations on any engine: `HoldallConversationStore` implements `ConversationStore`.

    conversations = HoldallConversationStore("agent.db")
    conversation = await conversations.load("ada-1") or Conversation(conversation_id="ada-1")
    await conversations.save(await agent.run("Hello", conversation=conversation))

A record is one item, and so is each message: both can be searched. A save is one transaction. Each message names
several messages before it, so that a history is read in few steps, also where forks share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from pydantic import TypeAdapter
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a conversation store for pydantic-ai", "pydantic-ai") from missing

from ... import ABSENT, Entry, Hit, ops
from ...core import face_api
from ...core.face_api import StoreProgram, retry_conflicts
from ...ops import Expectation, Namespace
from ..base import NamespaceFace, read_all

_RECORD = TypeAdapter(ConversationRecord)
_ENTRY = TypeAdapter(ConversationEntry)
_EARLIER = 16  # how many messages before it a message names


class HoldallConversationStore(NamespaceFace, ConversationStore):
    """Conversations in one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given. Deleting a conversation deletes the messages that no other conversation shares.
    """

    def __init__(self, store_or_url: Any = None, *, namespace: Namespace = ("conversations",), **options: Any) -> None:
        self._open_namespace(store_or_url, namespace, **options)
        self._records, self._messages = self._inside("records"), self._inside("messages")

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None."""
        entry = await self.store.aget(self._records, conversation_id, refresh=False)  # it expires with its messages
        return None if entry is None else _RECORD.validate_python(entry.value["record"])

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records, or those of a scope, the last saved first."""
        filter = None if scope is None else {"record.scope": scope}
        if limit is None:
            hits = await self._arun(read_all(self.store, self._records, filter=filter))
        else:
            hits = await self.store.asearch(self._records, filter=filter, limit=limit)
        found = [_RECORD.validate_python(hit.value["record"]) for hit in hits]
        return sorted(found, key=lambda record: record.updated_at, reverse=True)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return one message."""
        entry = await self.store.aget(self._messages, entry_id, refresh=False)
        if entry is None:
            raise LookupError(f"there is no message {entry_id!r}")
        return _ENTRY.validate_python(entry.value["entry"])

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the messages from the first up to `head_id`, or the last `limit` of them.

        With `ttl=`, the first is the oldest that has not expired.
        """
        entries = await self._arun(self._read_history(head_id, limit))
        return [_ENTRY.validate_python(entry.value["entry"]) for entry in reversed(entries)]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new messages in one transaction, if the record has the expected revision."""
        await self._arun(self._write_record(record, new_entries, expected_revision))

    def _write_record(
        self, record: ConversationRecord, new_entries: Sequence[ConversationEntry], revision: str | None
    ) -> StoreProgram[None]:
        new = {entry.id for entry in new_entries}
        old_ids = {entry.parent_id for entry in new_entries} | {record.head_id}
        parents = sorted(one for one in old_ids if one is not None and one not in new)

        def attempt() -> StoreProgram[None]:
            stored = yield from self._check_revision(record.conversation_id, revision)
            entries: list[Entry | None] = yield [ops.Get(self._messages, key) for key in parents]
            family = record.conversation_id if stored is None else stored.value["family"]
            batch: list[ops.PointOp] = []
            earlier: dict[str | None, list[str]] = {None: []}  # by message: itself, and those before it
            for key, entry in zip(parents, entries, strict=True):
                if entry is None:
                    raise ConversationConflict(record.conversation_id)
                earlier[key] = [key, *entry.value["earlier"]]
                if stored is None:  # a fork
                    family = entry.value.get("family", record.forked_from)  # stores of older versions have none
                    # A new version of the parent: a deletion that has already looked for forks fails, and looks again.
                    batch.append(ops.Put(self._messages, key, entry.value, expect=entry))
                elif key == record.head_id and entry.expires_at is not None:  # a record needs its last message
                    batch.append(ops.Refresh(self._messages, key))
            for one in new_entries:
                before = earlier[one.parent_id][:_EARLIER]
                value = {"entry": _ENTRY.dump_python(one, mode="json"), "earlier": before, "family": family}
                batch.append(ops.Put(self._messages, one.id, value))
                earlier[one.id] = [one.id, *before]
            value = {"record": _RECORD.dump_python(record, mode="json"), "family": family}
            expect: Expectation = ABSENT if stored is None else stored
            batch.append(ops.Put(self._records, record.conversation_id, value, expect=expect))
            yield from face_api.execute(self.store, batch)

        # Done again if only the parent has changed: another fork is no conflict.
        yield from retry_conflicts(attempt)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation, and the messages that no other conversation shares."""
        await self._arun(self._delete_record(conversation_id, expected_revision))

    def _delete_record(self, conversation_id: str, revision: str) -> StoreProgram[None]:
        def attempt() -> StoreProgram[None]:
            stored = yield from self._check_revision(conversation_id, revision)
            if stored is None:
                raise ConversationConflict(conversation_id)
            own = yield from self._read_branches(stored)
            for relative in (yield from self._read_family(stored)):
                for shared in (yield from self._read_branches(relative)):
                    own.pop(shared, None)
            messages = [ops.Delete(self._messages, key, expect=entry) for key, entry in own.items()]
            record = ops.Delete(self._records, conversation_id, expect=stored)
            yield from face_api.execute(self.store, [record, *messages])

        yield from retry_conflicts(attempt)

    def _check_revision(self, conversation_id: str, revision: str | None) -> StoreProgram[Entry | None]:
        stored: Entry | None
        [stored] = yield [ops.Get(self._records, conversation_id)]
        if (None if stored is None else stored.value["record"]["revision"]) != revision:
            raise ConversationConflict(conversation_id)
        return stored

    def _read_family(self, stored: Entry) -> StoreProgram[list[Hit]]:
        """Return the other records that may share messages with this one: its fork, what it is a fork of, and so on."""
        found = yield from read_all(self.store, self._records, filter={"family": stored.value["family"]})
        return [hit for hit in found if hit.key != stored.key]

    def _read_branches(self, stored: Entry) -> StoreProgram[dict[str, Entry]]:
        """Return the messages of a record's history and of the branches that it has left."""
        found: dict[str, Entry] = {}
        record = stored.value["record"]
        for tip in [record["head_id"], *record["branches"]]:
            for entry in (yield from self._read_chain(tip, None)):
                found[entry.key] = entry
        return found

    def _read_history(self, tip: str | None, limit: int | None) -> StoreProgram[list[Entry]]:
        """`_read_chain`, or `LookupError` if the last message is not there, or was deleted while this read."""
        if tip is None:
            return []
        found = yield from self._read_chain(tip, limit)
        is_whole = len(found) == limit or (found and found[-1].value["entry"]["parent_id"] is None)
        if not is_whole and (yield [ops.Get(self._messages, tip)]) == [None]:
            raise LookupError(f"there is no message {tip!r}")
        return found

    def _read_chain(self, tip: str | None, limit: int | None) -> StoreProgram[list[Entry]]:
        """Return a message and those before it that have not expired, the last first."""
        found: list[Entry] = []
        wanted = [] if tip is None else [tip]
        while wanted and (limit is None or len(found) < limit):
            entries: list[Entry | None] = yield [ops.Get(self._messages, key) for key in wanted]
            for entry in entries:
                if entry is None:
                    return found if limit is None else found[:limit]
                found.append(entry)
            wanted = found[-1].value["earlier"]
        return found if limit is None else found[:limit]
