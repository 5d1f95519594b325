"""The command `holdall`, and `python -m holdall`: what there is to do before `holdall.faces.cli` can be imported."""

from __future__ import annotations

import sys

from .errors import MissingExtra


def main() -> int:
    """Run the command with the words it was given; its exit code."""
    try:
        from .faces.cli import run
    except MissingExtra as error:
        sys.stderr.write(f"holdall: {error}\n")
        return 3
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
