"""Checkpoints of the Agent Framework's workflows on any engine: `HoldallCheckpointStorage` is a `CheckpointStorage`.

    workflow = WorkflowBuilder(start_executor=first, checkpoint_storage=HoldallCheckpointStorage("agent.db")).build()

The framework's own storages pickle. Here a checkpoint is plain JSON (`inert_values`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

try:
    from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException

    from .inert_values import InertValues
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a checkpoint storage for the Agent Framework", "agent-framework") from missing

from ... import ABSENT, Entry, ops
from ...core import face_api
from ...core.face_api import StoreProgram, retry_conflicts
from ...errors import InvalidInput
from ...ops import Namespace
from ..base import NamespaceFace, read_all, translate_errors


class HoldallCheckpointStorage(NamespaceFace):
    """Checkpoints of workflows, in one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `types` are the classes of your own
    that checkpoints contain: dataclasses, pydantic models, enums. `options` are passed to `holdall.open` if a URL is
    given.
    """

    def __init__(
        self,
        store_or_url: Any = None,
        *,
        namespace: Namespace = ("checkpoints",),
        types: Iterable[type] = (),
        **options: Any,
    ) -> None:
        self._values = InertValues(types)
        self._open_namespace(store_or_url, namespace, **options)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint, and return its id. A value that is not plain data is `WorkflowCheckpointException`."""
        with _translate():
            await self._arun(self._save(checkpoint))
        return checkpoint.checkpoint_id

    def _save(self, checkpoint: WorkflowCheckpoint) -> StoreProgram[None]:
        key, workflow = checkpoint.checkpoint_id, checkpoint.workflow_name
        value = {"workflow": workflow, "checkpoint": self._values.encode(checkpoint)}

        def attempt() -> StoreProgram[None]:
            old: Entry | None
            [old] = yield [ops.Get(self._namespace, key)]
            batch: list[ops.PointOp] = [
                ops.Put(self._namespace, key, value, expect=ABSENT if old is None else old, search_fields=False),
                ops.Put(self._inside(workflow), key, {"timestamp": checkpoint.timestamp}, search_fields=False),
            ]
            if old is not None and old.value["workflow"] != workflow:
                batch.append(ops.Delete(self._inside(old.value["workflow"]), key))
            yield from face_api.execute(self.store, batch)

        yield from retry_conflicts(attempt)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint. A missing one is `WorkflowCheckpointException`."""
        with _translate():
            # Without a refresh: with `refresh_on_read=`, a checkpoint would outlive its place in the lists.
            entry = await self.store.aget(self._namespace, checkpoint_id, refresh=False)
            if entry is None:
                raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
            return self._decode(entry)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, the first saved first."""
        ids = await self.list_checkpoint_ids(workflow_name=workflow_name)
        with _translate():
            entries = await self.store.aexecute([ops.Get(self._namespace, one) for one in ids])
            return [self._decode(entry) for entry in entries if entry is not None]

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow, the first saved first."""
        return [entry.key for entry in await self._list(workflow_name)]

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint of a workflow with the latest timestamp; None if there is none."""
        found = await self._list(workflow_name)
        for latest in sorted(found, key=lambda one: datetime.fromisoformat(one.value["timestamp"]), reverse=True):
            entry = await self.store.aget(self._namespace, latest.key, refresh=False)
            if entry is not None:  # it was not deleted, by `delete` or by other means
                with _translate():
                    return self._decode(entry)
        return None

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint. Returns whether it was there."""
        with _translate():
            return await self._arun(self._delete(checkpoint_id))

    def _delete(self, key: str) -> StoreProgram[bool]:
        def attempt() -> StoreProgram[bool]:
            old: Entry | None
            [old] = yield [ops.Get(self._namespace, key)]
            if old is None:
                return False
            index = ops.Delete(self._inside(old.value["workflow"]), key)
            yield from face_api.execute(self.store, [ops.Delete(self._namespace, key, expect=old), index])
            return True

        return (yield from retry_conflicts(attempt))

    async def _list(self, workflow: str) -> list[Any]:
        with _translate():
            found = await self._arun(read_all(self.store, self._inside(workflow), recursive=False))
        return sorted(found, key=lambda entry: (entry.created_at, entry.version))

    def _decode(self, entry: Entry) -> WorkflowCheckpoint:
        checkpoint = self._values.decode(entry.value["checkpoint"])
        assert isinstance(checkpoint, WorkflowCheckpoint)
        return checkpoint


def _translate() -> AbstractContextManager[None]:
    return translate_errors(InvalidInput, WorkflowCheckpointException)
