"""Optimizers written by hand: operators on lists of tensors, which are written in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_inductor.repeated.finding import equal_parts

Tensors = list[torch.Tensor]
Step = Callable[[Tensors, Tensors, Tensors, float], Any]


def momentum(ps: Tensors, gs: Tensors, ms: Tensors, lr: float) -> None:
    torch._foreach_mul_(ms, 0.9)
    torch._foreach_add_(ms, gs, alpha=0.1)
    torch._foreach_add_(ps, ms, alpha=-lr)


def in_a_loop(ps: Tensors, gs: Tensors, ms: Tensors, lr: float) -> None:
    for p, g, m in zip(ps, gs, ms, strict=True):
        m.mul_(0.9).add_(g, alpha=0.1)
        p.add_(m, alpha=-0.1)


def adam(ps: Tensors, gs: Tensors, ms: Tensors, lr: float) -> None:
    torch._foreach_lerp_(ms, gs, 0.1)
    roots = torch._foreach_sqrt(torch._foreach_mul(gs, gs))
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(ps, ms, roots, -lr)


def numbers(ps: Tensors, gs: Tensors, ms: Tensors, lr: float) -> Any:
    torch._foreach_mul_(ps, [1.0 + i for i in range(len(ps))])
    torch._foreach_addcmul_(ps, gs, ms, [0.5 * i for i in range(len(ps))])
    torch._foreach_div_(ms, lr)
    torch._foreach_addcmul_(ms, gs, gs, lr)
    torch._foreach_sub_(ps, lr)
    torch._foreach_mul_(gs, lr)
    torch._foreach_add_(gs, ps)
    torch._foreach_maximum_(ms, gs)
    torch._foreach_lerp_(ms, gs, lr)
    return torch._foreach_abs(ms)


def clipped(ps: Tensors, gs: Tensors, ms: Tensors, lr: float) -> Any:
    norm = torch.stack(torch._foreach_norm(gs)).norm()
    torch._foreach_mul_(gs, (1 / (norm + 1e-6)).clamp(max=1.0))
    torch._foreach_sub_(ps, gs, alpha=0.1)
    return norm


STEPS = (momentum, in_a_loop, adam, numbers, clipped)


def plain(seed: int) -> list[Tensors]:
    torch.manual_seed(seed)
    return [[torch.rand(3, 4) + 0.5 for _ in range(5)] for _ in range(3)]


def transposed(seed: int) -> list[Tensors]:
    ps, gs, ms = plain(seed)
    return [[p.t().contiguous().t() for p in ps], gs, [torch.rand(3, 8)[:, ::2] for _ in ms]]


def one_twice(seed: int) -> list[Tensors]:
    ps, gs, ms = plain(seed)
    return [[*ps[:4], ps[0]], gs, [*ms[:4], ms[1]]]


def overlapping(seed: int) -> list[Tensors]:
    ps, gs, ms = plain(seed)
    memory = torch.rand(30)
    ps[:2] = memory[:12].view(3, 4), memory[6:18].view(3, 4)
    return [ps, gs, [*ms[:4], gs[0]]]


def parameters(seed: int) -> list[Tensors]:
    ps, gs, ms = plain(seed)
    return [[torch.nn.Parameter(p) for p in ps], gs, ms]


def mixed(seed: int) -> list[Tensors]:
    ps, gs, ms = plain(seed)
    ps[0], ps[1], ms[2] = ps[0].double(), ps[1].bfloat16(), ms[2].double()
    return [ps, gs, ms]


def few(seed: int) -> list[Tensors]:
    torch.manual_seed(seed)
    return [[torch.rand(shape) + 0.5 for shape in [(0,), (1,), (), (2, 1)]] for _ in range(3)]


def integers(seed: int) -> list[Tensors]:
    ps, gs, ms = plain(seed)
    return [ps, [(g * 8).long() for g in gs], ms]


KINDS = (plain, transposed, one_twice, overlapping, parameters, mixed, few, integers)


def outcome(f: Step, given: Sequence[Tensors], lr: float) -> Any:
    before = [[t._version for t in tensors] for tensors in given]
    try:
        with torch.no_grad():
            found = f(*given, lr)
    except Exception as error:
        found = str(error)
    after = [[t._version for t in tensors] for tensors in given]
    return found, [[t.detach() for t in tensors] for tensors in given], before, after


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_step_is_that_of_eager(step: Step, kind: Callable[..., Any], fusing: Any) -> None:
    g = fusing(step)
    for seed, lr in enumerate((0.1, 0.1, 0.3, 0.7)):
        wanted, found = (outcome(h, kind(seed), lr) for h in (step, g))
        if isinstance(wanted[0], str):
            assert found[0] == wanted[0]
        else:
            torch.testing.assert_close(found[0], wanted[0])
        torch.testing.assert_close(found[1:], wanted[1:])


@pytest.mark.parametrize("step", [momentum, in_a_loop, adam], ids=lambda step: step.__name__)
def test_nothing_is_copied(step: Step, fusing: Any) -> None:
    g = fusing(step)
    for seed, lr in enumerate((0.1, 0.2, 0.3)):  # the last program is for any number
        with torch.no_grad():
            g(*plain(seed), lr)
    regions = tj.explain(g).regions
    assert all(use.kernel.region.overwritten for use in regions)
    assert not any("empty_strided_cpu((" in use.kernel.fused.source for use in regions)
    assert "_foreach_" not in tj.last_trace(g).python(bodies=False, sources=False).replace(
        "v_foreach_", ""
    )
    assert tj.last_trace(g, "epilogue").python(bodies=False, sources=False).count("copy_all(") == 1


def test_what_becomes_of_one_tensor_stands_together(fusing: Any) -> None:
    g = fusing(momentum)
    with torch.no_grad():
        g(*[[torch.rand(4) for _ in range(12)] for _ in range(3)], 0.1)
    (use,) = tj.explain(g).regions
    assert use.calls == 1
    (equal,) = equal_parts(use.kernel.region) or ()
    assert len(equal.inputs) == 12
    names = [call.symbol.path for call in use.kernel.region.body.calls]
    assert names == ["mul.Tensor", "add.Tensor", "add.Tensor"] * 12
