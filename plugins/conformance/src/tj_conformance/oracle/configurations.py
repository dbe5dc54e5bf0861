"""The two configurations that programs are run in: to the bit, and as users have them installed.

*Exact*: PyTorch's kernels run each operation, and all is equal to eager's to the bit. *Installed*:
all plugins of this project, no option, nothing verified, failures are fallbacks; regions are
compiled, so that values may be rounded otherwise, within the tolerance of their data type.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from unittest.mock import patch

import tj_core as tj
from tj_core.extend import TjWarning

__all__ = [
    "EXACT",
    "INSTALLED",
    "OTHERS",
    "Configuration",
    "configured",
    "current",
    "tolerant",
    "warnings_of_tj",
]

OTHERS = ("example_exec", "example_fuser", "example_subclass")
"""Plugins that are examples: an environment of the tests has them, a user does not."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """``rounds``: values may differ by as much as `torch.testing.assert_close` allows.

    Where ``tolerance`` is set, they may differ by this share of the largest value of a tensor.
    """

    name: str
    rounds: bool = False
    tolerance: float | None = None


EXACT = Configuration("exact")
INSTALLED = Configuration("installed", rounds=True)

# Set in a block of one thread alone (`configured`).
_current: ContextVar[Configuration] = ContextVar("configuration", default=EXACT)


def current() -> Configuration:
    """The configuration in which results are compared."""
    return _current.get()


@contextlib.contextmanager
def configured(session: tj.Session | None = None) -> Iterator[tj.Session]:
    """Run and compare programs as installed, in ``session`` or in a new one.

    It is the session of `tj.jit` without options; variables ``TJ_...`` do not count.
    """
    mine = {k: v for k, v in os.environ.items() if not k.startswith("TJ_")}
    token = _current.set(INSTALLED)
    try:
        with patch.dict(os.environ, mine | {"TJ_CACHE_DIR": "none"}, clear=True):
            session = session or tj.Session(disable=OTHERS)
            with patch("tj_core.host.session._current", session):
                yield session
    finally:
        _current.reset(token)


@contextlib.contextmanager
def tolerant(tolerance: float | None) -> Iterator[None]:
    """Let values differ by ``tolerance``; None changes nothing."""
    if tolerance is None:
        yield
        return
    token = _current.set(replace(current(), rounds=True, tolerance=tolerance))
    try:
        yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def warnings_of_tj() -> Iterator[list[str]]:
    """Collect the texts of all warnings of tj in a list, also of those that are not shown.

    Programs are compared with warnings switched off, and Python shows one for each place.
    """
    said: list[str] = []
    original = TjWarning.__init__

    def noted(warning: TjWarning, *args: object) -> None:
        original(warning, *args)
        said.append(str(warning))

    with patch.object(TjWarning, "__init__", noted):
        yield said
