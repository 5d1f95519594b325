"""`python -m benchmarks.scale --only text --entries 100000`: this section, with options of its own."""

from __future__ import annotations

import os
import shlex
import sys

from ..__main__ import main
from . import OPTIONS, parser

if __name__ == "__main__":
    _, others = parser().parse_known_args()  # such as --json, which every section has
    left = list(others)
    os.environ[OPTIONS] = shlex.join(word for word in sys.argv[1:] if word not in left[:1] or not left.pop(0))
    sys.exit(main(["scale", *others]))
