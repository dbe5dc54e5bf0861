"""The command: ``python -m tj_conformance.executor NAME``, as ``tj conformance executor NAME``."""

from __future__ import annotations

import sys

from tj_conformance.executor.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
