"""PyTorch's samples of products, and models, with every call that oneDNN can run run by it.

``TJ_FULL=1`` takes all samples and models, in regions of Inductor too; the default a few of each
operation, and one model.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.databases.op_db import full_name, operations
from tj_conformance.gradients.gradients import first_gradients
from tj_conformance.models import MODELS, step
from tj_conformance.oracle.compare import call_differences, differences, seeded
from tj_conformance.sampling import FULL
from tj_conformance.sweep.sample import samples

pytestmark = pytest.mark.sampled(10)

NAMES = {
    "mm", "addmm", "bmm", "baddbmm", "matmul", "__rmatmul__", "nn.functional.linear", "addbmm",
    "linalg.multi_dot", "einsum", "tensordot", "chain_matmul", "nn.functional.bilinear",
    "nn.functional.multi_head_attention_forward", "addmm.decomposed",
}  # fmt: skip
COUNT = None if FULL else 4
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OPERATIONS = [op for op in operations(None) if full_name(op) in NAMES]
ALWAYS = {"mm", "bmm", "matmul", "nn.functional.linear"}
"""Operations with samples that oneDNN can run."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPERATIONS, ids=full_name)
def test_samples(op: Any, dtype: torch.dtype, claiming: Any) -> None:
    if dtype not in op.supported_dtypes("cpu"):
        return
    torch.compiler.reset()
    jitted = claiming(lambda *args, **kwargs: op.op(*args, **kwargs), dynamic=False)
    found: list[str] = []
    used, cannot = 0, False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, dtype, COUNT):
            if sample.eager is None:
                continue
            mine, eager = sample.arguments(), sample.eager
            got = seeded(jitted, *mine)
            gradients = first_gradients(got, mine) if eager.gradients is not None else []
            wrong = call_differences(got, mine, eager.result, eager.arguments)
            wrong += differences(gradients, eager.gradients or [], "gradients")
            found += [f"{sample.where}: {d}" for d in wrong if not d.rounding]
            used += sum(c.symbol.namespace == "onednn" for c in tj.last_trace(jitted).calls)
            cannot = cannot or "oneDNN cannot" in str(tj.explain(jitted))
    assert found == []
    if op.name in ALWAYS:
        assert used or (cannot and dtype is not torch.float32), "processors differ"


@pytest.mark.slow
@pytest.mark.parametrize("before", [(), ("inductor",)] if FULL else [()])
@pytest.mark.parametrize("name", tuple(MODELS) if FULL else ("llama",))
def test_models_train(name: str, before: Any, claiming: Any) -> None:
    model = MODELS[name].build().train()
    batch = MODELS[name].batch()
    expected = step(model, model, batch, 0)
    jitted = claiming(model, *before)
    for _ in range(2):
        got = step(model, jitted, batch, 0)
        torch.testing.assert_close(got["grads"], expected["grads"], rtol=1e-3, atol=1e-4)
    assert tj.stats(jitted).fallbacks == ()
    explained = tj.explain(jitted)
    programs = (explained.claims, *explained.others.values())
    taken = [[r for r in records if r.executor == "onednn"] for records in programs]
    assert taken[0], "forward"
    assert any(taken[1:]), "backward"
