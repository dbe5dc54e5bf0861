"""PyTorch's databases and models, with every call that fits in a compiled region.

The default run takes a sample: each program is compiled by the C++ compiler. ``TJ_FULL=1`` takes
all operations, in low precision too, all modules and all models.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_conformance.databases.module_db import modules, run_module
from tj_conformance.databases.op_db import full_name
from tj_conformance.models import MODELS, step
from tj_conformance.oracle.result import Kind
from tj_conformance.sampling import FULL
from tj_conformance.sweep.exact import wrong
from tj_conformance.sweep.sample import samples
from torch.testing._internal.common_methods_invocations import op_db

if TYPE_CHECKING:
    from pathlib import Path

EVERY = 1 if FULL else 120
DTYPES = (torch.float32, torch.bfloat16, torch.float16) if FULL else (torch.float32,)


def jit(f: Any) -> Any:
    """Regions of single calls, too; what fails is an error."""
    overrides = {"check": 2, "strict": True, "inductor": {"minimum": 1}}
    session = tj.Session(("inductor", "autograd", "torch"), overrides=overrides)
    return tj.jit(f, session=session, dynamic=False)


OPERATIONS = [
    pytest.param(op, dtype, id=f"{full_name(op)}-{dtype}")
    for op in (op_db[7::EVERY] if EVERY > 1 else op_db)
    for dtype in DTYPES
    if dtype in op.supported_dtypes("cpu")
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("op", "dtype"), OPERATIONS)
def test_operations(op: Any, dtype: torch.dtype) -> None:
    torch.compiler.reset()
    jitted = jit(lambda *args, **kwargs: op.op(*args, **kwargs))
    found: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, dtype, 2):
            if sample.eager is not None:
                found += wrong(op, jitted, sample, sample.eager)
    assert found == []


NOT_KEPT = {
    # sizes that depend on data
    "argwhere",
    "combinations",
    "masked_select",
    "nonzero",
    "unique",
    "unique_consecutive",
    # operators of a library
    "nn.functional.linear_cross_entropy.chunked",
    "nn.functional.linear_cross_entropy.chunked_none",
}
"""Operations of which no program is kept; of all others at least one is."""


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("op", "dtype"), [p for p in OPERATIONS if p.values[1] is torch.float32])
def test_finished_programs_are_found(
    op: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A later session finds what the first made of an operation, and it is right."""
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path))
    found: list[list[str]] = []
    for _ in range(2):
        torch.compiler.reset()
        jitted = jit(lambda *args, **kwargs: op.op(*args, **kwargs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known = [s for s in samples(op, dtype, 2) if s.eager is not None]
            found.append([w for s in known for w in wrong(op, jitted, s, s.eager)])
    assert found == [[], []]
    if any(e.compilation is not None for e in jitted.__tj__.entries):
        assert (tj.stats(jitted).program_kept > 0) is (full_name(op) not in NOT_KEPT)


MODULES = modules() if FULL else modules()[3::40]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("info", MODULES, ids=lambda m: m.name)
def test_modules(info: Any, training: bool) -> None:
    """Results, gradients and what a step leaves in the module."""
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run_module(info, training=training, count=2, jit=jit)
    wrong = [str(p) for p in result.problems if p.kind in (Kind.RESULT, Kind.ERROR)]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("name", tuple(MODELS) if FULL else ("llama",))
def test_models_train(name: str) -> None:
    model = MODELS[name].build().train()
    batch = MODELS[name].batch()
    expected = step(model, model, batch, 0)
    session = tj.Session(("inductor", "autograd", "torch"), overrides={"check": 2, "strict": True})
    jitted = tj.jit(model, session=session)
    for _ in range(2):
        got = step(model, jitted, batch, 0)
        torch.testing.assert_close(got["grads"], expected["grads"], rtol=1e-3, atol=1e-4)
    assert tj.stats(jitted).fallbacks == ()
    assert tj.explain(jitted).declined == ()
    names = [c.symbol.path for c in tj.last_trace(jitted).calls]
    assert any(name.startswith("region_") for name in names)
