"""State that FastMCP and others keep through py-key-value, in a store where plain holdall finds it.

    python examples/key_value_settings.py                     in a file that is gone afterwards
    python examples/key_value_settings.py postgresql://…      ... or there, with nothing else changed

It needs holdall[key-value].
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import holdall
from holdall.faces.key_value import HoldallKeyValue


async def main(url: str) -> None:
    with holdall.open(url) as store:
        state = HoldallKeyValue(store)
        await state.put("ada", {"theme": "dark"}, collection="settings", ttl=3600)
        print("through py-key-value:", await state.get("ada", collection="settings"))
        [hit] = store.search(("key-value",), query="dark")
        print("through holdall:", hit.namespace, hit.key)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder) / "agent.db")))
