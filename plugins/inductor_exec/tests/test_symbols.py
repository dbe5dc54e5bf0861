"""Symbolic sizes: one compiled region serves many sizes, and its
decisions on sizes hold for them.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.models import MODELS, step
from tj_conformance.sampling import FULL
from tj_core.extend import Session
from tj_inductor.adapter import compiling
from tj_inductor.variants import MOST, Variant, Variants

pytestmark = pytest.mark.sampled(10)

SIZES = (5, 9, 300, 3, 17)


def session(**options: Any) -> Session:
    overrides = {"check": 2, "strict": True, "inductor": options}
    return Session(("inductor", "autograd", "torch"), overrides=overrides)


def variants(within: Session) -> list[Variants]:
    """Runners of the regions of ``within``."""
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


@pytest.mark.slow
@pytest.mark.parametrize("program", [mixed, sliced, labelled, expanded])
def test_one_region_serves_many_sizes(program: Callable[..., torch.Tensor]) -> None:
    here = session()
    g = tj.jit(program, session=here, dynamic=True)
    torch.manual_seed(0)
    w = torch.randn(16, 32, requires_grad=True)
    for rows in SIZES:
        x = torch.randn(rows, 16)
        expected, got = program(x, w), g(x, w)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        assert got.stride() == expected.stride()
        want, have = (torch.autograd.grad(y.square().sum(), w)[0] for y in (expected, got))
        torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)
    assert tj.stats(g).misses == 1
    assert regions(g) == ["region"]
    assert sum(len(each.made) for each in variants(here)) <= 2 * len(variants(here))


@pytest.mark.slow
def test_strides_that_are_squares() -> None:
    """Of three equal sizes, which Inductor's formula of the operator makes anew."""

    def squared(x: torch.Tensor) -> Any:
        out, index = torch.nn.functional.max_pool1d(x * 1, 3, 1, 1, return_indices=True)
        return (out + 1) * out, index + 1

    g = tj.jit(squared, session=session(), dynamic=True)
    for n in (3, 4, 6):
        x = torch.rand(n, n, n)
        for got, expected in zip(g(x), squared(x), strict=True):
            torch.testing.assert_close(got, expected)
            assert got.stride() == expected.stride()
    assert tj.stats(g).misses == 1
    assert regions(g) == ["region"]


@pytest.mark.slow
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


def rows_and_sums(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1).exp().t().contiguous()


def served(here: Session) -> Callable[[int], torch.Tensor]:
    """A program whose regions serve sizes up to the one that was compiled for."""
    g = tj.jit(rows_and_sums, session=here, dynamic=True)

    def run(rows: int) -> torch.Tensor:
        x = torch.randn(rows, 6)
        expected, got = rows_and_sums(x), g(x)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
        return got

    run(5)
    (made,) = variants(here)
    made.made[0].conditions += (f"{made.names[0]} <= 5",)
    return run


def planted(
    fault: str, calls: list[int] | None = None
) -> Callable[[list[Any]], tuple[torch.Tensor, ...]]:
    """A function of a region that is wrong: of the values of its symbols, then of the input."""

    def run(box: list[Any]) -> tuple[torch.Tensor, ...]:
        *sizes, x = box
        box.clear()
        if calls is not None:
            calls.append(sizes[0])
        if fault == "raises":
            raise RuntimeError("no kernel for today")
        if fault == "writes":
            x.add_(1)
        result = (x.sin() + 1).exp().t()
        return (result[:, 1:].contiguous(),) if fault == "shape" else (result,)

    return run


SAID = {
    "raises": "RuntimeError: no kernel for today",
    "strides": r"result 0 has strides \(1, 6\), not \(9, 1\)",
    "shape": r"result 0 has shape \(6, 8\), not \(6, 9\)",
    "compile": "RuntimeError: there is no C\\+\\+ compiler",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", SAID)
def test_what_is_compiled_for_other_sizes_is_held_against_the_trace(fault: str) -> None:
    here = Session(("inductor", "autograd", "torch"), overrides={"strict": False})
    run = served(here)
    (made,) = variants(here)
    name, ran = made.names[0], []

    def compile(sizes: Any) -> Variant:
        if fault == "compile":
            raise RuntimeError("there is no C++ compiler")
        return Variant(planted(fault, ran), (f"{name} <= 20",))

    made.compile = compile
    with pytest.warns(tj.TjWarning, match=SAID[fault]) as caught:
        for rows in (9, 9, 5):
            run(rows)
    assert len(caught) == 1
    said = str(caught[0].message)
    assert "'inductor'" in said
    assert f" for {name} = 9, " in said
    assert "one by one" in said
    (script,) = re.findall(r"python (\S+\.py) shows it", said)
    assert f"{name!r}: 9, " in Path(script).read_text("utf-8")
    if fault != "compile":
        run(11)  # the same function serves it: it has run once, and does not run again
        assert ran == [9]


def test_a_later_function_that_writes_to_an_input_is_an_error() -> None:
    here = session()
    run = served(here)
    (made,) = variants(here)
    made.compile = lambda sizes: Variant(planted("writes"))
    with pytest.raises(tj.TjError, match="wrote to argument"):
        run(9)


def test_a_later_failure_is_an_error_in_strict_mode() -> None:
    here = session()
    run = served(here)
    (made,) = variants(here)
    made.compile = lambda sizes: Variant(planted("raises"))
    with pytest.raises(tj.TjError, match="no kernel for today"):
        run(9)


def test_a_function_that_ran_once_is_called_directly() -> None:
    here = session()
    run = served(here)
    (made,) = variants(here)
    held: list[Any] = []
    first_run = made.first_run
    made.first_run = lambda make, box: held.append(box[0].shape[0]) or first_run(make, box)
    for rows in (9, 9, 11, 5, 9):
        run(rows)
    assert held == [9]


def test_what_was_compiled_first_and_runs_later_is_held_too() -> None:
    here = Session(("inductor", "autograd", "torch"), overrides={"strict": False})
    run = served(here)
    (made,) = variants(here)
    made.made[0].ran = False
    made.made[0].function = planted("raises")
    made.chosen.clear()
    with pytest.warns(tj.TjWarning, match="no kernel for today"):
        run(5)


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_region_that_failed_leaves_a_script(
    dynamic: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("there is no C++ compiler")

    here = Session(("inductor", "autograd", "torch"), overrides={"strict": False})
    with monkeypatch.context() as patch, pytest.warns(tj.TjWarning, match="shows it") as caught:
        patch.setattr(compiling, "compiled", broken)
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


@pytest.mark.slow
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
    assert tj.stats(jitted).misses == 1
    assert tj.stats(jitted).fallbacks == ()
    assert variants(here)


def test_a_region_that_cannot_tell_a_symbol_is_declined() -> None:
    """It reads ``start`` and ``start + length``, and a size of the result is ``length``."""

    def f(x, start, length):
        y = torch.narrow(x * 1, 1, start, length)
        return y, (y + 1) * y

    jitted = tj.jit(f, dynamic=True, session=session())
    for start, length in ((2, 2), (1, 3)):
        x = torch.rand(4, 5, 5, requires_grad=True)
        for got, expected in zip(jitted(x, start, length), f(x, start, length), strict=True):
            torch.testing.assert_close(got, expected)


def grown(c: torch.Tensor, k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    keys = torch.cat([c, k], 2).repeat_interleave(4, 1)
    return ((q @ keys.transpose(-1, -2) / 2.8).softmax(-1) * 2).sin()


def cut(c: torch.Tensor, k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (c[:, :, 2:] @ q.mT).cumsum(2).clone().softmax(2) * 3


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("f", [grown, cut])
def test_a_size_that_is_a_symbol_and_a_number(f: Callable[..., Any], grad: bool) -> None:
    """The values after a cache grows have no size that is the symbol alone."""
    jitted = tj.jit(f, session=session())
    k, q = torch.rand(2, 2, 1, 8), torch.rand(2, 8 if f is grown else 2, 1, 8)
    for n in (4, 7, 3, 5, 2, 64, 9):
        given = [torch.rand(2, 2, n, 8).requires_grad_(grad) for _ in range(2)]
        given[1].data.copy_(given[0].data)
        wanted, found = (g(c, k, q) for g, c in zip((f, jitted), given, strict=True))
        torch.testing.assert_close(found, wanted)
        if grad:
            wanted.sum().backward()
            found.sum().backward()
            torch.testing.assert_close(given[1].grad, given[0].grad)
    assert regions(jitted) or grad
