"""Where this version of PyTorch breaks a graph and newer ones do not, the warning fails no test."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tj_conformance.oracle.versions import reasons_of_this_version

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Ignore the warnings of such graph breaks: results are compared still."""
    for reason in reasons_of_this_version():
        pattern = re.escape(reason).replace(":", ".")  # filters are written with colons
        config.addinivalue_line("filterwarnings", f"ignore:tj. .*{pattern}:tj_core.TjWarning")
