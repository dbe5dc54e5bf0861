"""The kit as tests, one for each operation, of the executor that ``--tj-executor`` names."""

from __future__ import annotations

import pytest

from tj_conformance.executor.kit import AMOUNTS, Kit
from tj_conformance.executor.operations import Operation, matching
from tj_conformance.executor.subject import Subject, subject


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each operation."""
    name = metafunc.config.getoption("tj_executor", None)
    tested = subject(name) if name else None
    region = tested is not None and tested.executor.fusion is not None
    found = matching(metafunc.config.getoption("tj_op"), region=region) if tested else []
    given = [pytest.param(tested, operation, id=operation.name) for operation in found]
    metafunc.parametrize(("tested", "operation"), given)


def test_operation(tested: Subject, operation: Operation, pytestconfig: pytest.Config) -> None:
    """The executor does what eager does, or declines."""
    kit = Kit(tested, AMOUNTS[pytestconfig.getoption("tj_amount")])
    for _ in kit.run([operation]):
        pass
    assert not kit.report.findings, "\n\n".join(map(str, kit.report.findings))
    if not any(cell.takes for cell in kit.report.cells):
        reasons = {why for cell in kit.report.cells for why in cell.declined}
        pytest.skip(f"{tested.name} takes no sample: {'; '.join(sorted(reasons)) or 'no claim'}")
