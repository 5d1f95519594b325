"""spoon_ai's persistent files, with spoon_ai or without: `python examples/spoon_files.py [URL]`.

The URL may be a file (the default is one in a temporary folder) or a PostgreSQL.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from holdall.faces.spoon import SQLiteStore, StoreBackend


def main(url: str) -> None:
    store = SQLiteStore(url)
    backend = StoreBackend(store, namespace=("examples", "spoon"), assistant_id="agent-001")
    backend.write("/notes/todo.md", "- call the bank\n- buy tea\n")
    backend.edit("/notes/todo.md", "tea", "almonds")
    print(backend.read("/notes/todo.md"))
    print([info["path"] for info in backend.ls_info("/")])
    for match in backend.grep_raw("buy"):
        print(match)
    store.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder) / "agent_files.db"))
