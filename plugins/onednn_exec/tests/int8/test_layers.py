"""Layers in int8: which run so, how near they are, and why others do not."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_onednn.int8 import layers
from tj_onednn.int8.kernels import DYNAMIC, QUANTISE, WEIGHTS
from tj_onednn.int8.transform import chosen

pytestmark = pytest.mark.sampled(8)

NARROW = {"int8_weights": ["*"]}


class Net(torch.nn.Module):
    """A layer, a product in the style of GPT-2, one with a transposed weight, and a head."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(64, 96, dtype=dtype)
        self.head = torch.nn.Linear(96, 32, bias=False, dtype=dtype)
        self.weight = torch.nn.Parameter(torch.randn(96, 96, dtype=dtype) / 10)
        self.bias = torch.nn.Parameter(torch.randn(96, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.first(x))
        flat = torch.addmm(self.bias, y.view(-1, 96), self.weight)
        return self.head((flat.view(y.shape) @ self.weight.t()).tanh())


def symbols(jitted: Any) -> list[str]:
    """The symbols of the calls of the executor, as they were before it had them."""
    calls = tj.last_trace(jitted).calls
    return [c.symbol.path for c in calls if c.symbol.namespace == "onednn_int8"]


def near(jitted: Any, f: Any, *args: Any, relative: float = 0.02, calls: int | None = None) -> None:
    """Check that results are those of ``f``, but for rounding, and that layers ran in int8."""
    with torch.no_grad():
        got, expected = jitted(*args), f(*args)
    assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, got.stride())
    figures = tj.compare(lambda: got, lambda: expected).worst.figures
    assert figures.relative < relative
    ran = [name for name in symbols(jitted) if name in (DYNAMIC, WEIGHTS)]
    assert len(ran) == (1 if calls is None else calls), ran
    if calls != 0:
        assert figures.relative > 1e-5, "it ran in floating point"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, NARROW], ids=["int8", "weights"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layers_of_all_kinds(dtype: torch.dtype, options: Any, rounding: Any) -> None:
    model = Net(dtype)
    jitted = rounding(model, **options)
    for sizes in ((2, 3, 64), (1, 1, 64)):
        near(jitted, model, torch.randn(sizes, dtype=dtype), relative=0.03, calls=4)
    rounded = symbols(jitted).count(QUANTISE)
    assert rounded == 4, "a weight that is multiplied from both sides is rounded twice"


def test_the_body_is_what_runs() -> None:
    overrides = {"check": 3, "strict": True, "onednn": {"int8": ["*", "!head"]}}
    overrides["onednn"]["int8_weights"] = ["head"]
    model = Net()
    jitted = tj.jit(model, session=tj.Session(("onednn", "torch"), overrides=overrides))
    for _ in range(2):
        near(jitted, model, torch.randn(2, 3, 64), calls=4)
    assert symbols(jitted).count(WEIGHTS) == 1


@pytest.mark.parametrize("sizes", [(64,), (5, 64), (0, 64), (2, 0, 64)])
def test_batches(sizes: tuple[int, ...], rounding: Any) -> None:
    layer, x = torch.nn.Linear(64, 48), torch.randn(sizes)
    jitted = rounding(layer)
    with torch.no_grad():
        got, expected = jitted(x), layer(x)
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, atol=0.05, rtol=0)
    assert DYNAMIC in symbols(jitted)


@pytest.mark.slow
def test_sizes_that_are_symbols(rounding: Any) -> None:
    for options in ({}, NARROW):
        model = Net()
        jitted = rounding(model, dynamic=True, **options)
        for rows in (5, 3, 4, 1, 0, 17):
            x = torch.randn(2, rows, 64)
            with torch.no_grad():
                torch.testing.assert_close(jitted(x), model(x), atol=0.05, rtol=0)
        assert len(symbols(jitted)) == 8
        assert tj.stats(jitted).entries <= 3  # PyTorch makes programs for no row and for one


@pytest.mark.slow
def test_any_sizes_of_weights(rounding: Any) -> None:
    for n, k in ((1, 1), (3, 5), (7, 33), (65, 17)):
        layer, x = torch.nn.Linear(k, n), torch.randn(4, k)
        jitted = rounding(layer)
        with torch.no_grad():
            torch.testing.assert_close(jitted(x), layer(x), atol=0.05, rtol=0)
        assert DYNAMIC in symbols(jitted)


@pytest.mark.slow
def test_inputs_laid_out_otherwise(rounding: Any) -> None:
    for options in ({}, NARROW):
        layer = torch.nn.Linear(64, 48)
        near(rounding(layer, **options), layer, torch.randn(64, 5).t())
        near(rounding(layer, **options), layer, torch.randn(1, 64).expand(5, 64))
        near(rounding(layer, **options), layer, torch.randn(5, 128)[:, ::2])


@pytest.mark.slow
def test_rows_do_not_depend_on_each_other(rounding: Any) -> None:
    layer, x = torch.nn.Linear(64, 48), torch.randn(6, 64)
    x[3] *= 1e4
    jitted = rounding(layer)
    with torch.no_grad():
        whole = jitted(x)
        for i in range(6):
            assert torch.equal(whole[i : i + 1], jitted(x[i : i + 1]))


def test_zeros_infinities_and_nan(rounding: Any) -> None:
    layer, x = torch.nn.Linear(64, 6), torch.randn(4, 64)
    with torch.no_grad():
        layer.weight[0] = 0
        layer.weight[1] = 1e-44  # its scale is no float32
        layer.weight[2, 3], layer.weight[3, 3] = float("inf"), float("nan")
        layer.weight[4] *= 1e30
    x[1], x[2, 0], x[3, 0] = 0, float("nan"), float("inf")
    for options in ({}, NARROW):
        jitted = rounding(layer, **options)
        with torch.no_grad():
            got, expected = jitted(x), layer(x)
        wrong = expected.isfinite().logical_not()
        assert bool(wrong[:, 2:4].all() and wrong[2:].all(1)[0])
        # An infinity of float32 may be NaN in int8, and is never a number.
        assert torch.equal(got.isfinite(), expected.isfinite() & got.isfinite())
        assert not bool((got.isfinite() & wrong).any())
        torch.testing.assert_close(got[:2, [0, 1, 5]], expected[:2, [0, 1, 5]], atol=0.05, rtol=0)
        torch.testing.assert_close(got[0, 4], expected[0, 4], atol=0, rtol=0.05)
        assert torch.equal(got[1, [0, 1, 4, 5]], layer.bias[[0, 1, 4, 5]])


@pytest.mark.slow
def test_a_tied_weight_is_rounded_once(rounding: Any) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(48, 64)
            self.middle, self.head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 48, bias=False)
            self.head.weight = self.table.weight

        def forward(self, at: torch.Tensor) -> torch.Tensor:
            x = self.middle(self.table(at))
            return self.head(x) + (x + 1) @ self.table.weight.t()

    model = Tied()
    jitted = rounding(model)
    near(jitted, model, torch.arange(5), calls=3)
    assert symbols(jitted).count(QUANTISE) == 2


class Integers(torch.nn.Module):
    """A layer whose weight is int8, as libraries make it that round weights."""

    def __init__(self, by_rows: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        weight = torch.randint(-127, 128, (48, 64), dtype=torch.int8)
        self.register_buffer("weight", weight if by_rows else weight.t().contiguous().t())
        self.register_buffer("scale", torch.rand(48, 1) / 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, self.weight.to(x.dtype).t()) * self.scale.view(-1)


@pytest.mark.slow
def test_a_weight_of_integers_is_taken_as_it_is(rounding: Any) -> None:
    model, x = Integers(), torch.randn(4, 64)
    for options, relative in ({}, 0.02), (NARROW, 0.005):
        jitted = rounding(model, **options)
        near(jitted, model, x, relative=relative)
        assert QUANTISE not in symbols(jitted)
        model.weight.neg_()
        near(jitted, model, x, relative=relative)


@pytest.mark.slow
def test_under_autocast(rounding: Any) -> None:
    model, x = Net(), torch.randn(2, 3, 64)
    cast = torch.autocast("cpu", torch.bfloat16)(model.forward)

    class Cast(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    jitted = rounding(Cast())
    with torch.no_grad():
        got, expected = jitted(x), cast(x)
    assert got.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, atol=0.08, rtol=0.05)
    assert symbols(jitted).count(DYNAMIC) == 4


@pytest.mark.slow
def test_without_tj_autocast_a_layer_under_autocast_stays() -> None:
    overrides = {"check": 2, "onednn": {"int8": ["*"]}}
    model, x = torch.nn.Linear(64, 48), torch.randn(3, 64)
    jitted = tj.jit(model, session=tj.Session(("onednn", "torch"), overrides=overrides))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(jitted(x), model(x))
    assert "it runs under autocast" in str(tj.explain(jitted))


def test_no_activations_are_rounded_where_sums_saturate(
    rounding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "sums_are_exact", lambda: False)
    layers.saturates.cache_clear()
    model, x = Net(), torch.randn(2, 3, 64)
    try:
        near(jitted := rounding(model), model, x, calls=0)
        assert "sums of int8 products saturate" in str(tj.explain(jitted))
        near(rounding(model, **NARROW), model, x, calls=4)
    finally:
        layers.saturates.cache_clear()


SATURATING = """
import torch, tj_core as tj
from tj_onednn.int8.kernels import sums_are_exact
print(sums_are_exact())
layer, x = torch.nn.Linear(256, 64), torch.randn(4, 256).abs()
f = tj.jit(layer, plugins=["onednn", "torch"], onednn={"int8": ["*"]})
with torch.no_grad():
    print(tj.compare(f, layer, (x,)).worst.figures.relative < 0.02)
print("saturate" in str(tj.explain(f)))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN is told to be on an older x86")
def test_a_processor_whose_sums_saturate() -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "TJ_CACHE_DIR": "none"}
    run = [sys.executable, "-c", SATURATING]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    exact, *found = done.stdout.split()
    if exact == "True":  # as with PyTorch 2.14 on a processor that has no VNNI itself
        pytest.skip("no sum of int8 saturates here, whatever oneDNN is told of the processor")
    assert found == ["True", "True"]


@pytest.mark.slow
def test_a_program_that_takes_gradients_has_none_in_int8(rounding: Any) -> None:
    model, x = Net(), torch.randn(2, 3, 64)
    jitted = rounding(model)
    got, expected = jitted(x), model(x)
    torch.testing.assert_close(got, expected)
    for mine, theirs in zip(
        torch.autograd.grad(got.sum(), model.parameters()),
        torch.autograd.grad(expected.sum(), model.parameters()),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
    assert "without onednn-int8: the program takes gradients" in str(tj.explain(jitted))
    assert symbols(jitted) == []
    near(jitted, model, x, calls=4)


def constant(x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, torch.ones(48, 64))


def scaled(weight: torch.nn.Parameter, x: torch.Tensor) -> torch.Tensor:
    return torch.addmm(weight[0, :48], x, weight[:, :48], alpha=2)


def truncated(weight: torch.nn.Parameter, x: torch.Tensor) -> torch.Tensor:
    return x @ (weight.to(torch.int32).to(torch.float32))


def nothing(weight: torch.nn.Parameter, x: torch.Tensor) -> torch.Tensor:
    return x @ weight[:, :0]


def table(weight: torch.nn.Parameter, x: torch.Tensor) -> torch.Tensor:
    return torch.addmm(weight[:4, :48], x, weight[:, :48])


PARAMETER = torch.nn.Parameter(torch.randn(64, 64))


class Of(torch.nn.Module):
    """A function of a parameter as a module."""

    def __init__(self, f: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.f = PARAMETER, f

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(self.weight, x)


DECLINED: dict[str, tuple[Any, Any]] = {
    "no pattern chooses the module ''": (torch.nn.Linear(64, 48), {"int8": ["blocks.*"]}),
    "is no parameter or buffer": (constant, {}),
    "it has factors other than 1": (Of(scaled), {}),
    "what is added is no row": (Of(table), {}),
    "float64 is not rounded": (torch.nn.Linear(64, 48, dtype=torch.float64), {}),
    "32 must divide it": (torch.nn.Linear(48, 64), NARROW),
    "for 12 rows, int8 weights alone gain nothing": (torch.nn.Linear(64, 48), NARROW),
    "not laid out by rows": (Integers(by_rows=False), {}),
    "its weight is no parameter": (Of(truncated), {}),
    "its weight has no elements": (Of(nothing), {}),
}


@pytest.mark.parametrize("said", DECLINED)
def test_why_a_layer_stays(said: str, rounding: Any) -> None:
    f, options = DECLINED[said]
    jitted = rounding(f, **options)
    x = torch.randn(4, getattr(f, "in_features", 64))
    x = x.expand(3, 4, -1) if "12 rows" in said else x
    x = x.double() if "float64" in said else x
    with torch.no_grad():
        torch.testing.assert_close(jitted(x), f(x))
    assert said in str(tj.explain(jitted))
    assert symbols(jitted) == []


@pytest.mark.slow
def test_inductor_fuses_rounding_and_scaling(rounding: Any) -> None:
    """Rounding of activations and scaling of sums are fused with the calls around a layer."""
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU()), torch.randn(3, 64)
    jitted = rounding(model, "inductor")
    with torch.no_grad():
        for _ in range(2):
            assert 1e-5 < tj.compare(jitted, model, (x,)).worst.figures.relative < 0.02
    (region,) = tj.explain(jitted).regions
    inside = {call.symbol.qualname for call in region.kernel.region.body.calls}
    assert inside >= {"aten.amax.default", "aten._int_mm.default", "aten.gelu.default"}
    assert symbols(jitted) == [QUANTISE]
    near(rounding(model, "inductor", **NARROW), model, x)


def test_the_last_pattern_that_fits_decides() -> None:
    every = functools.partial(chosen, patterns=["blocks.*", "!*.down", "blocks.3.down"])
    assert every("blocks.0.up")
    assert not every("blocks.0.down")
    assert every("blocks.3.down")
    assert not every("head")
    assert not chosen("head", [])


@pytest.mark.slow
def test_by_default_nothing_is_rounded() -> None:
    model, x = Net(), torch.randn(2, 3, 64)
    jitted = tj.jit(model, plugins=["onednn", "torch"])
    with torch.no_grad():
        torch.testing.assert_close(jitted(x), model(x))
    assert symbols(jitted) == []
    assert "onednn_int8" not in str(tj.explain(jitted))
