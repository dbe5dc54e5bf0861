"""The command: ``python -m tj_conformance.autocast [COMPILERS...]``, all programs by each of them.

Compilers are ``tj`` and backends of ``torch.compile``; the exit status is 1 if ``tj`` differs.
"""

from __future__ import annotations

from tj_conformance.autocast.case import entered
from tj_conformance.autocast.programs import PROGRAMS
from tj_conformance.oracle.compilers import run_compilers

if __name__ == "__main__":
    raise SystemExit(run_compilers(PROGRAMS, str(__doc__), own=entered))
