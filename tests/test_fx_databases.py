"""PyTorch's databases as FX graphs, through the frontend ``fx``; eager is the oracle.

The default run takes a sample; ``TJ_FULL=1`` (``tox -e conformance``) runs everything.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import tj_core as tj
from tj_conformance.graphs import ORIGINS, module_graphs, run_graphs
from tj_conformance.module_db import modules
from tj_conformance.op_db import full_name, operations
from tj_conformance.oracle import differences, seeded
from tj_conformance.twins import clone_tree

FULL = os.environ.get("TJ_FULL") == "1"
OPERATIONS = operations()
MODULES = modules()

DATA_DEPENDENT = {
    "allclose",
    "corrcoef",
    "cov",
    "equal",
    "linalg.lstsq",
    "linalg.lstsq.grad_oriented",
    "nn.functional.ctc_loss",
    "nn.functional.gaussian_nll_loss",
    "sparse.mm.reduce",
    "sparse.sampled_addmm",
    "tensor_split",
}
"""Operations whose metadata depend on data, or that take sparse tensors: the original runs."""

DATA_DEPENDENT_MODULES = {
    "nn.BatchNorm1d",
    "nn.BatchNorm2d",
    "nn.BatchNorm3d",
    "nn.CTCLoss",
    "nn.GaussianNLLLoss",
}
"""The same of modules; batch norms in training with ``momentum=None`` read their counter."""


def jit(program: Any) -> Any:
    return tj.jit(program, frontend="fx")


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("op", OPERATIONS if FULL else OPERATIONS[::6], ids=full_name)
def test_operation(op: Any, origin: str) -> None:
    result = run_graphs(op, origin, jit=jit)
    assert result.samples + result.eager_errors > 0
    assert result.ok, "\n".join(map(str, result.problems))
    assert not result.fallbacks or full_name(op) in DATA_DEPENDENT, result.fallbacks


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("info", MODULES if FULL else MODULES[::4], ids=lambda m: m.name)
def test_leaf_module(info: Any, training: bool) -> None:
    for make, args in module_graphs(info, training=training):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference, module = make(), make()
            try:
                seeded(make(), clone_tree(args), {})
            except Exception:
                continue  # the sample is of an error
            jitted = jit(module)
            # A lazy module runs in eager once: that makes the parameters that are then captured.
            for _ in range(3 if "Lazy" in info.name else 2):
                mine, theirs = (seeded(f, clone_tree(args), {}) for f in (jitted, reference))
                assert differences(mine, theirs) == []
                state = dict(reference.state_dict())
                assert differences(dict(module.state_dict()), state, "state") == []
        fallbacks = tj.stats(jitted).fallbacks
        assert not fallbacks or info.name in DATA_DEPENDENT_MODULES, fallbacks
        assert tj.stats(jitted).hits == 1 or fallbacks
