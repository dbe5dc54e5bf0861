"""Models train with every call that nvFuser takes in regions, on the reference."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.models import MODELS, Model, step
from tj_conformance.sampling import FULL
from tj_core.extend import makes_views

pytestmark = pytest.mark.sampled(10)

SIZES = ((2, 8), (3, 11), (4, 16))
SIZED = tuple(name for name in MODELS if name != "qwen2moe")
"""All models but one, whose gradients do not verify with sizes as floats."""

RESNET = Model(
    "ResNet",
    "ForImageClassification",
    {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 2], "num_labels": 5},
    functools.partial(MODELS["vit"].batch, length=32),
)

ALL = {**MODELS, "resnet": RESNET}

NAMES = tuple(ALL) if FULL else ("gpt2", "llama")


def operators(jitted: Any) -> tuple[Counter[str], Counter[str]]:
    """The operators in regions, and those that run outside of them, by name."""
    inside: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    for name in ("forward", "backward"):
        for call in tj.last_trace(jitted, name).calls:
            fused = call.symbol.path.startswith("region_")
            (inside if fused else outside).update(found(call))
    return inside, outside


def found(call: Any) -> Iterator[str]:
    """Operators in ``call``, without views, which take no time."""
    if call.symbol.namespace == "aten" or call.body is None:
        if not makes_views(call):
            yield call.symbol.qualname
    else:
        for inner in call.body.calls:
            yield from found(inner)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [{}, {"minimum": 1, "matmul": True, "scans": True, "indices": True}],
    ids=["default", "all"],
)
def test_models_train(name: str, options: dict[str, Any], fusing: Any) -> None:
    model = ALL[name].build().train()
    batch = ALL[name].batch()
    expected = step(model, model, batch, 0)
    jitted = fusing(model, options)
    for _ in range(2):
        got = step(model, jitted, batch, 0)
        torch.testing.assert_close(got["grads"], expected["grads"], rtol=1e-3, atol=1e-4)
    assert tj.stats(jitted).fallbacks == ()
    assert tj.explain(jitted).declined == ()
    assert all(use.kernel.failure is None for use in tj.explain(jitted).regions)
    inside, outside = operators(jitted)
    share = 0.75 if options else 0.4  # the rest: random numbers, attention's own kernels, products
    assert inside.total() > share * (inside + outside).total(), outside.most_common()


@pytest.mark.skipif(not FULL, reason="TJ_FULL=1 trains models at many sizes; it takes minutes")
@pytest.mark.parametrize("name", SIZED)
def test_models_train_at_many_sizes(name: str, fusing: Any) -> None:
    model = MODELS[name].build().train()
    jitted = fusing(model, {"matmul": True, "scans": True, "indices": True}, dynamic=True)
    length = {"vit": 16, "mamba": 6}.get(name)  # others these models serve with other programs
    for seed, (rows, n) in enumerate(SIZES):
        batch = MODELS[name].batch(rows, length or n)
        expected, got = step(model, model, batch, seed), step(model, jitted, batch, seed)
        torch.testing.assert_close(got["grads"], expected["grads"], rtol=1e-3, atol=1e-4)
    assert tj.stats(jitted).misses == 1
    assert tj.stats(jitted).fallbacks == ()
    found = tj.explain(jitted)
    assert found.regions or found.declined  # without joint gradients nothing is fused
