"""Steps of optimizers in regions, which write parameters and averages in place."""

from __future__ import annotations

import copy
import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch import nn, optim

VARIANTS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-3},
    "SGD momentum": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "SGD maximize": {"momentum": 0.9, "dampening": 0.1, "maximize": True},
    "Adam": {"maximize": True, "weight_decay": 0.1},
    "AdamW": {},
    "AdamW amsgrad": {"amsgrad": True},
    "RMSprop": {"momentum": 0.9, "weight_decay": 0.1},
    "Adagrad": {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1},
    "Adadelta": {"weight_decay": 0.1},
    "Adamax": {"weight_decay": 0.1},
    "NAdam": {"weight_decay": 0.1, "decoupled_weight_decay": True},
}
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 33), nn.Tanh(), nn.Linear(33, 3, bias=False)).to(dtype)
    net.scale = nn.Parameter(torch.tensor(1.5, dtype=dtype))
    net.unused = nn.Parameter(torch.ones(2, 2, dtype=dtype))
    return net


def stepped(name: str, dtype: torch.dtype, foreach: bool, jit: Callable[..., Any]) -> Any:
    """Six steps: parameters, state, and what each step does to versions and objects."""
    net = network(dtype)
    first, *others = net.parameters()
    arguments = {"lr": 1e-2, "foreach": foreach} | VARIANTS[name]
    kind = getattr(optim, name.partition(" ")[0])
    optimizer = kind([{"params": [first]}, {"params": others, "lr": 2e-2}], **arguments)
    step = jit(optimizer.step)
    seen: list[Any] = []
    for i in range(6):
        optimizer.zero_grad(set_to_none=i % 2 == 0)
        if i == 3:
            optimizer.param_groups[0]["lr"] *= 0.5
        x = torch.randn(4, 9, generator=torch.Generator().manual_seed(i)).to(dtype)
        (net(x) * net.scale).square().mean().backward()
        held = _objects(optimizer)
        step()
        values = [*net.parameters(), *_tensors(optimizer)]
        seen.append([p._version for p in values])
        seen.append(i < 2 or [id(x) for x in held] == [id(x) for x in _objects(optimizer)])
        seen.append(all(p.is_leaf and p.requires_grad for p in net.parameters()))
    return [*net.parameters()], copy.deepcopy(_tensors(optimizer)), seen, step


def _objects(optimizer: optim.Optimizer) -> list[Any]:
    return [x for state in optimizer.state.values() for x in state.values()]


def _tensors(optimizer: optim.Optimizer) -> list[torch.Tensor]:
    return [x for x in _objects(optimizer) if isinstance(x, torch.Tensor)]


CASES = [
    pytest.param(name, dtype, foreach, id=f"{name}-{dtype}-{'lists' if foreach else 'each'}")
    for name, dtype, foreach in itertools.product(VARIANTS, TOLERANCE, (False, True))
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "dtype", "foreach"), CASES)
def test_steps(name: str, dtype: torch.dtype, foreach: bool, fusing: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        parameters, state, seen, step = stepped(name, dtype, foreach, fusing)
    wanted = stepped(name, dtype, foreach, lambda f: f)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        (parameters, state), wanted[:2], rtol=tolerance, atol=tolerance, check_stride=True
    )
    assert seen == wanted[2]
    assert "inductor.region_" in str(tj.last_trace(step))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_errors_of_halves(name: str, foreach: bool, fusing: Any) -> None:
    """Parameters in bfloat16 are as near to those of float64 as eager's are."""

    def after_six(dtype: torch.dtype, jit: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        ps = [torch.randn(33, 65, dtype=torch.bfloat16).to(dtype).requires_grad_() for _ in "ab"]
        kind = getattr(optim, name.partition(" ")[0])
        optimizer = kind(ps, **{"lr": 1e-2, "foreach": foreach} | VARIANTS[name])
        step = jit(optimizer.step)
        for _ in range(6):
            for p in ps:
                p.grad = torch.randn(33, 65, dtype=torch.bfloat16).to(dtype)
            step()
        return [p.detach().double() for p in ps]

    exact, wanted = (after_six(t, lambda f: f) for t in (torch.float64, torch.bfloat16))
    found = after_six(torch.bfloat16, fusing)
    for f, w, e in zip(found, wanted, exact, strict=True):
        assert (f - e).norm() <= 1.2 * (w - e).norm()


def test_a_step_is_one_region(fusing: Any) -> None:
    """Numbers of all parameters are computed first, and come to the region as one tensor."""
    net = nn.Sequential(nn.Linear(9, 33), nn.Linear(33, 3))
    net.scale = nn.Parameter(torch.tensor(1.5))
    optimizer = optim.AdamW(net.parameters())
    step = fusing(optimizer.step)
    for _ in range(2):
        (net(torch.ones(2, 9)) * net.scale).sum().backward()
        step()
    text = str(tj.last_trace(step))
    assert text.count("= inductor.region_") == 1
    assert text.count("tj.float64s(") == 1
    assert text.count("= tj.number_of_sum(") == 5
    assert not re.search(r"^    \S+ = aten\.", text, re.MULTILINE)
    assert "aten.scalar_tensor" not in text
    assert "CONSUMES" in text


def parameters() -> list[torch.Tensor]:
    return [torch.randn(5, 5).requires_grad_(), torch.randn(7).requires_grad_()]


def test_autograd_makes_no_nodes(fusing: Any) -> None:
    @torch.no_grad()
    def descend(ps: list[torch.Tensor]) -> Any:
        for p in ps:
            p -= 0.1 * p
        return ps[0], ps[1].view(-1)

    results: list[Any] = []
    for f in (descend, jitted := fusing(descend)):
        torch.manual_seed(0)
        ps = parameters()
        same, view = f(ps)
        assert same is ps[0]
        assert view._base is ps[1]
        facts = [(p._version, p.is_leaf, p.requires_grad, p.grad_fn) for p in (*ps, view)]
        results.append(([p.detach() for p in (*ps, view)], facts))
    torch.testing.assert_close(results[1][0], results[0][0])
    assert results[1][1] == results[0][1]
    assert "inductor.region_" in str(tj.last_trace(jitted))


def test_a_saved_parameter_is_written(fusing: Any) -> None:
    """Autograd finds the write, as in eager."""

    @torch.no_grad()
    def descend(ps: list[torch.Tensor]) -> None:
        for p in ps:
            p.mul_(0.9).sub_(1)

    ps = parameters()
    loss = ps[0].square().sum()
    fusing(descend)(ps)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameters_that_share_memory(fusing: Any) -> None:
    @torch.no_grad()
    def descend(p: torch.Tensor, q: torch.Tensor) -> None:
        p.mul_(2).sub_(1)
        q.sub_(p.sum())

    results = []
    for f in (descend, fusing(descend)):
        memory = torch.arange(9.0)
        p, q = memory[:7].detach().requires_grad_(), memory[2:].detach().requires_grad_()
        f(p, q)
        results.append(memory)
    torch.testing.assert_close(*results)


def test_an_error_comes_after_the_writes_before_it(fusing: Any) -> None:
    @torch.no_grad()
    def descend(ps: list[torch.Tensor], index: torch.Tensor) -> None:
        ps[0].mul_(2)
        ps[1].add_(1)
        row = ps[0].index_select(0, index)
        ps[0].add_(1)
        ps[1].add_(row.sum())

    jitted = fusing(descend)
    for place in (1, 2, 7, 1, 9):
        results: list[Any] = []
        for f in (descend, jitted):
            torch.manual_seed(0)
            ps, error = parameters(), ""
            try:
                f(ps, torch.tensor([place]))
            except IndexError as raised:
                error = str(raised).partition("\n")[0]
            results.append(([p.detach() for p in ps], error, [p._version for p in ps]))
        torch.testing.assert_close(results[1][0], results[0][0])
        assert results[1][1:] == results[0][1:]


def _once(p: torch.Tensor, q: torch.Tensor) -> None:
    p.mul_(2)


def _with_gradients(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        view = q.view(-1)
    p.add_(q).mul_(2)
    return view


@pytest.mark.parametrize("f", [_once, _with_gradients])
def test_what_runs_in_place_as_it_is(f: Any, fusing: Any) -> None:
    p, q = torch.randn(5, 5).requires_grad_(), torch.randn(5, 5)
    wanted, jitted = p.detach().clone(), fusing(torch.no_grad()(f))
    torch.no_grad()(f)(wanted, q)
    jitted(p, q)
    torch.testing.assert_close(p.detach(), wanted)
    assert "inductor.region_" not in str(tj.last_trace(jitted))


def test_gradients_that_are_sparse(fusing: Any) -> None:
    """A functional form would copy the table for the few rows that change."""

    def step(table: torch.Tensor, gradient: torch.Tensor) -> None:
        with torch.no_grad():
            table.add_(gradient, alpha=-0.1)
            table.mul_(0.5)

    table = torch.randn(50, 3).requires_grad_()
    gradient = torch.sparse_coo_tensor(
        [[1, 4]], torch.ones(2, 3), (50, 3), is_coalesced=True, check_invariants=True
    )
    wanted = (table.detach() - 0.1 * gradient.to_dense()) * 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)  # sparse tensors are not captured
        fusing(step, strict=False)(table, gradient)
    torch.testing.assert_close(table.detach(), wanted)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_kernels_for_whole_steps_are_called_in_place(amsgrad: bool, fusing: Any) -> None:
    """Version counters do not show their writes."""
    versions = []
    for jit in (lambda f: f, fusing):
        net = network(torch.float32)
        optimizer = optim.AdamW(net.parameters(), fused=True, amsgrad=amsgrad)
        step = jit(optimizer.step)
        for _ in range(3):
            net(torch.ones(2, 9)).sum().backward()
            step()
        versions.append([x._version for x in (*net.parameters(), *_tensors(optimizer))])
    assert versions[0] == versions[1]
