"""Install every distribution of the workspace into this Python's environment, editable.

All are built with the installed packages of group ``build`` of pyproject.toml; pip would make an
environment for each, one after the other. Nothing is done if they are installed as they are now.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Install, and record in the environment what was installed."""
    projects = [ROOT / "core", *sorted(ROOT.glob("plugins/*")), *sorted(ROOT.glob("examples/*"))]
    files = [path / "pyproject.toml" for path in projects if (path / "pyproject.toml").exists()]
    text = "".join(f"{path}\n{path.read_text('utf-8')}" for path in files)
    now = hashlib.sha256(text.encode()).hexdigest()
    note = Path(sys.prefix) / "workspace"
    if note.exists() and note.read_text() == now:
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation"]
    # Where nothing is installed to build with, pip refuses to be told in which version.
    environ = {k: v for k, v in os.environ.items() if k != "PIP_BUILD_CONSTRAINT"}
    subprocess.run([*command, *(f"-e{path.parent}" for path in files)], check=True, env=environ)
    note.write_text(now)


if __name__ == "__main__":
    main()
