"""Transformers models at many sizes: one entry serves them, with eager's results and gradients.

The default run takes a sample of models with symbols from the start, with sizes that become symbols
when they vary, and in training; ``TJ_FULL=1`` takes all.
"""

from __future__ import annotations

import os

import pytest
import tj_core as tj
import torch
from tj_conformance.models import MODELS, chosen, contents, step
from tj_conformance.oracle.compare import assert_equal
from tj_conformance.sampling import FULL
from tj_core.extend import Session

pytestmark = pytest.mark.sampled(4)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("transformers", reason="the models are transformers'")

SIZES = [(2, 8), (3, 11), (4, 16), (2, 13), (5, 31)]  # mistral's window is 8, a shorter text none
ONE_LENGTH = {
    "vit": 16,  # the configuration's size of images
    "mamba": 6,  # computes in a Python loop over the length
}


def sizes(name: str) -> list[tuple[int, int]]:
    """Numbers of rows and lengths that one program can serve."""
    return [(rows, ONE_LENGTH.get(name, length)) for rows, length in SIZES]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        *((n, True) for n in chosen("llama", "mamba", "vit")),
        *((n, None) for n in chosen("gpt2")),
    ],
)
def test_one_entry_serves_many_sizes(name: str, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    model = MODELS[name].build().eval()
    jitted = tj.jit(model, dynamic=dynamic)
    for shape in sizes(name):
        batch = MODELS[name].batch(*shape)
        with torch.no_grad():
            expected = contents(model(**batch))
            assert_equal(contents(jitted(**batch)), expected)
    assert tj.stats(jitted).misses == (1 if dynamic else 2)
    assert tj.stats(jitted).fallbacks == ()
    trace = tj.last_traces(jitted)[0]
    shapes = [str(d) for c in trace.calls for p in c.flat_outs for d in getattr(p, "shape", ())]
    assert len([d for d in shapes if d.startswith("s")]) > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "plugins", [*([("torch",)] if FULL else []), ("torch", "autograd")], ids=" ".join
)
@pytest.mark.parametrize("name", chosen("llama"))
def test_training_at_many_sizes(name: str, plugins: tuple[str, ...]) -> None:
    torch._dynamo.reset()
    model = MODELS[name].build().train()
    jitted = tj.jit(model, dynamic=True, plugins=plugins)
    for seed, shape in enumerate(sizes(name)[:3]):
        batch = MODELS[name].batch(*shape)
        expected = step(model, model, batch, seed)
        assert_equal(step(model, jitted, batch, seed), expected)
    assert tj.stats(jitted).misses == 1
    assert tj.stats(jitted).fallbacks == ()


@pytest.mark.slow
def test_a_second_capture_makes_no_expansions() -> None:
    session = Session(plugins=["torch"])
    batch = MODELS["llama"].batch(3, 9)
    made = []
    for _ in range(2):
        torch._dynamo.reset()
        jitted = tj.jit(MODELS["llama"].build().eval(), session=session, dynamic=True)
        with torch.no_grad():
            jitted(**batch)
        made.append(tj.stats(jitted).memo_misses)
    assert made[0] > 20
    assert made[1] == 0
