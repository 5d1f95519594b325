"""The command `holdall`, and `python -m holdall`. It reports a missing package of `holdall[cli]` as an error."""

from __future__ import annotations

import sys

from .errors import MissingExtra


def main() -> int:
    """Run the command with the arguments of the process, and return its exit code."""
    try:
        from .faces.cli.app import run
    except MissingExtra as error:
        sys.stderr.write(f"holdall: {error}\n")
        return 3
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
