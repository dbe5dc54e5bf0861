"""Sizes that are symbols: one compiled region serves many sizes, and what it decided holds."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.models import MODELS, step
from tj_conformance.sampling import FULL
from tj_core.extend import Session
from tj_inductor import adapter
from tj_inductor.variants import MOST, Variant, Variants

SIZES = (5, 9, 300, 3, 17)


def session(**options: Any) -> Session:
    overrides = {"check": 2, "strict": True, "inductor": options}
    return Session(("inductor", "autograd", "torch"), overrides=overrides)


def variants(within: Session) -> list[Variants]:
    """What runs the regions of ``within``."""
    kernels = within.regions.kernels.values()
    assert all(k.failure is None for k in kernels)
    return [k.fused.function for k in kernels if isinstance(k.fused.function, Variants)]


def regions(g: Any, name: str = "computation") -> list[str]:
    found = tj.last_trace(g) if name == "computation" else tj.last_trace(g, name)
    return [c.symbol.path.partition("_")[0] for c in found.calls]


def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product, rows, a view with sizes that are computed, and a sum over it."""
    y = torch.nn.functional.gelu(x @ w) * 2
    z = (y.softmax(-1) + y.sin()).reshape(-1, 4, 8)
    return z.sum(1) + 1


def sliced(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.cat([x.sin(), x[1:].cos()]) @ w
    return torch.nn.functional.pad(y, (1, 0))[: x.shape[0]].exp() / x.shape[0]


def labelled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    labels = torch.nn.functional.pad(torch.arange(x.shape[0]) % 7, (0, 1), value=-100)[1:]
    return torch.nn.functional.cross_entropy((x @ w).tanh(), labels)


def expanded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w).unsqueeze(1).expand(-1, x.shape[0], -1)
    return (y - y.transpose(0, 1)).square().mean((0, 1))


@pytest.mark.parametrize("program", [mixed, sliced, labelled, expanded])
def test_one_region_serves_many_sizes(program: Callable[..., torch.Tensor]) -> None:
    here = session()
    g = tj.jit(program, session=here, dynamic=True)
    w = torch.randn(16, 32, requires_grad=True)
    for rows in SIZES:
        x = torch.randn(rows, 16)
        expected, got = program(x, w), g(x, w)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
        want, have = (torch.autograd.grad(y.square().sum(), w)[0] for y in (expected, got))
        torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)
    assert tj.stats(g).misses == 1
    assert regions(g) == ["region"]
    assert sum(len(each.made) for each in variants(here)) <= 2 * len(variants(here))


def test_the_backward_reads_each_size_once_and_is_one_region() -> None:
    g = tj.jit(mixed, session=session(), dynamic=True)
    w = torch.randn(16, 32, requires_grad=True)
    g(torch.randn(5, 16), w).sum().backward()
    backward = tj.last_trace(g, "backward")
    sizes = [c.outputs.expr for c in backward.calls if c.symbol.path.startswith("sym_size")]
    assert len(sizes) == len(set(sizes))
    assert [name for name in regions(g, "backward") if name != "sym"] == ["region"]


def test_what_was_decided_on_sizes_is_asked_of_others() -> None:
    """Each function is for sizes with one remainder; after the last, operations run one by one."""
    region = compiled_region()
    made: list[int] = []

    def compile(sizes: Any) -> Variant:
        (n,) = sizes.values()
        made.append(n)
        name = next(iter(sizes))
        return Variant(
            lambda box: (f"for {n}",), (f"Eq(Mod({name}, 16), {n % 16})", f"{name} >= 2")
        )

    run = Variants(region, compile)
    first = made[0]

    def ran(rows: int) -> Any:
        (result,) = run([torch.ones(rows)])
        return result

    assert ran(first) == ran(first + 16) == f"for {first}"
    assert [ran(first + n) for n in range(1, MOST + 1)] == [
        f"for {first + n}" for n in range(1, MOST + 1)
    ]
    assert len(made) == MOST + 1
    for rows in (first + MOST + 1, 1, 0):  # too many; sizes that the compiler takes for others
        assert ran(rows).shape == (rows,)
    assert len(made) == MOST + 1


def test_a_region_that_does_not_compile_for_other_sizes_runs_one_by_one() -> None:
    def compile(sizes: Any) -> Variant:
        (n,) = sizes.values()
        if n == 7:
            raise RuntimeError("not for seven")
        return Variant(lambda box: ("compiled",), (f"Eq({next(iter(sizes))}, {n})",))

    run = Variants(compiled_region(), compile)
    with pytest.warns(tj.TjWarning, match="not for seven") as caught:
        for _ in range(2):
            (result,) = run([torch.ones(7)])
            torch.testing.assert_close(result, (torch.ones(7).sin() + 1).exp())
    assert len(caught) == 1


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_region_that_failed_leaves_a_script(
    dynamic: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("there is no C++ compiler")

    here = Session(("inductor", "autograd", "torch"), overrides={"strict": False})
    with monkeypatch.context() as patch, pytest.warns(tj.TjWarning, match="shows it") as caught:
        patch.setattr(adapter, "compiled", broken)
        tj.jit(mixed, session=here, dynamic=dynamic)(torch.randn(5, 16), torch.randn(16, 32))
    (script,) = re.findall(r"python (\S+\.py) shows it", str(caught[0].message))
    monkeypatch.setenv("TJ_PLUGINS", "inductor,autograd,torch")
    runpy.run_path(script)
    assert "returns what its operations return" in capsys.readouterr().out


def compiled_region() -> Any:
    here = session()
    g = tj.jit(lambda x: (x.sin() + 1).exp(), session=here, dynamic=True)
    g(torch.randn(6))
    (kernel,) = here.regions.kernels.values()
    return kernel.region


def test_a_size_that_no_input_has_is_declined() -> None:
    g = tj.jit(lambda x: torch.cat([x, x])[: x.shape[0] + 1].sin().cos(), session=session())
    h = tj.jit(lambda x: x[torch.nonzero(x > 0).squeeze(1)].sin().cos(), session=session())
    for n in (4, 5, 6):
        x = torch.linspace(-1, 1, n)
        torch.testing.assert_close(g(x), torch.cat([x, x])[: n + 1].sin().cos())
        torch.testing.assert_close(h(x), x[x > 0].sin().cos())
    declined = [reason for claim in tj.explain(h).claims for _, reason in claim.declined]
    assert any("depend on data" in reason for reason in declined), declined


@pytest.mark.skipif(not FULL, reason="TJ_FULL=1 compiles models for many sizes; it takes minutes")
@pytest.mark.parametrize("name", MODELS)
def test_models_train_at_many_sizes(name: str) -> None:
    model = MODELS[name].build().train()
    here = session()
    jitted = tj.jit(model, session=here, dynamic=True)
    length = {"vit": 16, "mamba": 6}.get(name)  # others these models serve with other programs
    for seed, (rows, n) in enumerate([(2, 8), (3, 11), (4, 16)]):
        batch = MODELS[name].batch(rows, length or n)
        expected, got = step(model, model, batch, seed), step(model, jitted, batch, seed)
        torch.testing.assert_close(got["grads"], expected["grads"], rtol=1e-3, atol=1e-4)
    assert tj.stats(jitted).misses == 1 and tj.stats(jitted).fallbacks == ()
    assert variants(here)
