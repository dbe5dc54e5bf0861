"""Settings of Sphinx for the documentation; ``scripts/site/build.py`` says where the pages are."""

from __future__ import annotations

import re
from pathlib import Path

_core = Path(__file__).resolve().parent.parent.parent / "core" / "pyproject.toml"
_version = re.search(r'^version = "(.+)"$', _core.read_text("utf-8"), re.MULTILINE)

project = "tj"
author = copyright = "the authors of tj"
release = version = _version[1] if _version else ""
extensions = ["myst_parser"]
myst_heading_anchors = 6  # as GitHub makes them; links to one that does not exist are warnings
highlight_language = "none"  # blocks without a language are commands and their output
html_theme = "furo"
html_title = f"tj {release}"
html_copy_source = False
html_show_copyright = False
