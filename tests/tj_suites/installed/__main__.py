"""The command: ``python tests/tj_suites installed [FAMILIES...]``.

As ``python -m tj_conformance.installed``, with the families of this repository's tests as well.
With ``--interpret``, PyTorch's kernels run the regions that Inductor would compile
(`tj_suites.upstream.interpreting`): all else is as installed, in a tenth of the time.
"""

from __future__ import annotations

import sys

from tj_conformance.installed.__main__ import main

from tj_suites.installed.families import FAMILIES
from tj_suites.upstream.interpreting import install

INTERPRET = "--interpret"


def run(arguments: list[str]) -> int:
    """Run what ``arguments`` say; 1 if anything is wrong that is not listed."""
    families = [given for given in arguments if given != INTERPRET]
    interpret = len(families) < len(arguments)
    if interpret:
        install()
    return main(families, FAMILIES, rehearse=not interpret)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
