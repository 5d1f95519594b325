"""Running the command on a terminal, to see what it shows there."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

#: The command with progress bars that are shown at once, and not after a second.
_AT_ONCE = [
    sys.executable,
    "-c",
    "import sys; from holdall.faces.cli import app; from holdall.faces.cli.shell import terminal;"
    " terminal.BAR_DELAY = -1; sys.exit(app.run(sys.argv[1:]))",
]


def read_bars(*words: str) -> tuple[str, bytes, int]:
    """Run the command; return what stderr shows on a terminal, stdout, and the exit code."""
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen([*_AT_ONCE, *words], stdout=subprocess.PIPE, stderr=theirs, env=env) as child:
        os.close(theirs)
        shown = read_terminal(ours)
        assert child.stdout is not None
        return shown, child.stdout.read(), child.wait(60)


def read_terminal(terminal: int) -> str:
    """Return what is written to a terminal, until its other end is closed."""
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 10_000)
        except OSError:
            os.close(terminal)
            return shown.decode()
