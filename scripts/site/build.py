"""Build the documentation: ``python scripts/site/build.py FOLDER [ADDRESS OF THE SOURCE]``.

The pages are laid out in ``FOLDER/source`` and built into ``FOLDER/html``; every warning of Sphinx
is an error, also of a link that leads nowhere or a page that the navigation lacks. Nothing is
fetched.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pages import stage
from sphinx.cmd.build import main as sphinx


def main(folder: Path, source: str = "") -> int:
    """Build; the exit status is Sphinx's."""
    shutil.rmtree(folder / "source", ignore_errors=True)
    stage(folder / "source", source.rstrip("/"))
    settings = str(Path(__file__).resolve().parent)
    strict = ["-W", "--keep-going", "-q", "-E", "-b", "html", "-c", settings]
    places = [str(folder / "source"), str(folder / "html")]
    status = sphinx([*strict, "-d", str(folder / "doctrees"), *places])
    if status == 0:
        print(f"built {folder / 'html' / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:3]))
