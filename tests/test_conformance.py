"""PyTorch's own databases through tj, forward, eager as the oracle.

The default run takes a sample; ``TJ_FULL=1`` (``tox -e conformance``) runs everything. Operations
may break the graph only where torch.compile does too; those are listed.
"""

from __future__ import annotations

import os

import pytest
from tj_torch.conformance.breaks import MODULE_BREAKS, OPERATION_BREAKS
from tj_torch.conformance.module_db import modules, run_module
from tj_torch.conformance.op_db import full_name, operations, run_operation

FULL = os.environ.get("TJ_FULL") == "1"
OPERATIONS = operations()
MODULES = modules()


@pytest.mark.parametrize("op", OPERATIONS if FULL else OPERATIONS[::12], ids=full_name)
def test_operation(op: object) -> None:
    result = run_operation(op)
    assert result.samples + result.eager_errors > 0
    assert result.ok, "\n".join(result.problems)
    assert bool(result.fallbacks) == (result.name in OPERATION_BREAKS), result.fallbacks


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("info", MODULES if FULL else MODULES[::6], ids=lambda m: m.name)
def test_module(info: object, training: bool) -> None:
    result = run_module(info, training=training)
    assert result.ok, "\n".join(result.problems)
    assert not result.fallbacks or result.name in MODULE_BREAKS, result.fallbacks
