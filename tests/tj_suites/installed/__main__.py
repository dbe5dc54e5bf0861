"""The command: ``python tests/tj_suites installed [FAMILIES...]``.

As ``python -m tj_conformance.installed``, with the families of this repository's tests as well.
"""

from __future__ import annotations

import sys

from tj_conformance.installed.__main__ import main

from tj_suites.installed.families import FAMILIES

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], FAMILIES))
