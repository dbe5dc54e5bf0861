from __future__ import annotations

from collections.abc import Iterator

import pytest
from tj_distributed.testing import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Two processes on gloo."""
    found = Ranks()
    yield found
    found.close()
