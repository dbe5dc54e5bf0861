"""The fingerprint of what a fusion depends on that says nothing of it: its libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tj_core.host.discovery import installed_version
from tj_core.host.session import Session

if TYPE_CHECKING:
    from tj_core.testing.plugins import FakeDist

pytestmark = pytest.mark.usefixtures("own_project")

EXECUTOR = """
@hookimpl
def tj_executors(): return (Executor("mine", RuleTable("claim")),)
"""


def test_the_libraries_of_an_executor_are_those_of_its_distribution(fake_dist: FakeDist) -> None:
    fake_dist("a", EXECUTOR, distribution="tj-fp-a", requires=["pluggy>=1", "no-such-library"])
    session = Session(plugins=["a"])
    (executor,) = session.executors
    found = session._libraries(executor)
    assert found == f"no-such-library None\npluggy {installed_version('pluggy')}"
