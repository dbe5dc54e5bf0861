"""The command: ``python tests/tj_suites autocast [COMPILERS...]``, all programs by each of them.

Compilers are ``tj`` and backends of ``torch.compile``; the exit status is 1 if ``tj`` differs.
"""

from __future__ import annotations

from tj_conformance.oracle.compilers import run_compilers

from tj_suites.autocast.case import entered
from tj_suites.autocast.programs import PROGRAMS

if __name__ == "__main__":
    raise SystemExit(run_compilers(PROGRAMS, str(__doc__), own=entered))
