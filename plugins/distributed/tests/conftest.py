from __future__ import annotations

from collections.abc import Iterator

import pytest
from tj_distributed.testing import Ranks


@pytest.fixture(scope="session")
def _ranks() -> Iterator[list[Ranks]]:
    found: list[Ranks] = []
    yield found
    for each in found:
        each.close()


@pytest.fixture
def ranks(_ranks: list[Ranks]) -> Ranks:
    """Two processes on gloo; new ones after a test in which one has ended."""
    if not _ranks or not _ranks[-1].alive:
        _ranks.append(Ranks())
    return _ranks[-1]


@pytest.fixture
def mortal() -> Iterator[Ranks]:
    """Two processes on gloo, for a test after which some have ended."""
    found = Ranks()
    yield found
    found.close()


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    """Four processes on gloo."""
    found = Ranks(4)
    yield found
    found.close()
