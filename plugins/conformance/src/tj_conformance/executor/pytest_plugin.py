"""Options of pytest for the kit: ``pytest --pyargs tj_conformance.executor --tj-executor=NAME``.

It is found by its entry point, and imports nothing of PyTorch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the kit's options."""
    group = parser.getgroup("tj_conformance", "tj: an executor against eager PyTorch")
    group.addoption("--tj-executor", metavar="NAME", help="the executor to hold against eager")
    group.addoption(
        "--tj-op", metavar="PATTERN", action="append", default=[], help="operations of op_db"
    )
    group.addoption(
        "--tj-amount", choices=("fast", "usual", "full"), default="fast", help="size of the run"
    )
