"""The command: ``python tests/tj_suites subclasses [COMPILERS...]``, all programs by each.

Compilers are ``tj`` and backends of ``torch.compile``; the exit status is 1 if ``tj`` differs.
"""

from __future__ import annotations

from tj_conformance.oracle.compilers import run_compilers

from tj_suites.subclasses.programs import PROGRAMS

if __name__ == "__main__":
    raise SystemExit(run_compilers(PROGRAMS, str(__doc__)))
