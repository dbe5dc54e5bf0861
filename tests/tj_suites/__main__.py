"""The command: ``python tests/tj_suites NAME [ARGUMENTS...]``, one suite as a program.

Names are those of folders beside this file that have a ``__main__.py``, and of modules below, as
``subclasses.distributed``. Without a name they are listed.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run the suite that the first argument names, with the arguments after it."""
    if len(sys.argv) < 2:
        print(*sorted(p.parent.name for p in HERE.glob("*/__main__.py")), sep="\n")
        return
    # Python puts the folder that it runs on its path: modules of it would be top-level ones.
    sys.path[0] = str(HERE.parent)
    del sys.argv[0]
    runpy.run_module(f"tj_suites.{sys.argv[0]}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
