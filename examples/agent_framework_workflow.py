"""A workflow of Microsoft's Agent Framework that goes on from a checkpoint, with the history of its session beside it.

    python examples/agent_framework_workflow.py                     in a file that is gone afterwards
    python examples/agent_framework_workflow.py postgresql://…      ... or there, with nothing else changed

It needs holdall[agent-framework]. There is no model here.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agent_framework import Message, Workflow, WorkflowBuilder, WorkflowContext, executor

import holdall
from holdall.faces.agent_framework import HoldallCheckpointStorage, HoldallHistoryProvider


@dataclass
class Order:
    """A message between two steps. Its class is named in `types=`, so that it may be stored."""

    meal: str


@executor(id="order")
async def order(meal: str, context: WorkflowContext[Order]) -> None:
    await context.send_message(Order(meal))


@executor(id="cook")
async def cook(order: Order, context: WorkflowContext[None, str]) -> None:
    await context.yield_output(f"{order.meal} is ready")


def kitchen(checkpoints: HoldallCheckpointStorage) -> Workflow:
    builder = WorkflowBuilder(start_executor=order, checkpoint_storage=checkpoints, name="kitchen")
    return builder.add_edge(order, cook).build()


async def main(url: str) -> None:
    with holdall.open(url) as store:
        history = HoldallHistoryProvider(store)
        await history.save_messages("ada-1", [Message("user", ["I like soup."])])
        checkpoints = HoldallCheckpointStorage(store, types=[Order])
        print((await kitchen(checkpoints).run("soup")).get_outputs())

        saved = sorted(await checkpoints.list_checkpoints(workflow_name="kitchen"), key=lambda one: one.timestamp)
        resumed = await kitchen(checkpoints).run(checkpoint_id=saved[0].checkpoint_id)
        print("again from the first checkpoint:", resumed.get_outputs())
        print("messages:", [message.text for message in await history.get_messages("ada-1")])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder) / "agent.db")))
