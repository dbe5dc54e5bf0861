"""Values in unusual forms at the boundary between autograd and fused programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.autograd import forward_ad

Program = Callable[..., torch.Tensor]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``tj.jit`` in a session that nobody configured."""
    monkeypatch.setenv("TJ_PLUGINS", "inductor,autograd,subclass,torch")
    monkeypatch.delenv("TJ_CHECK", raising=False)
    monkeypatch.delenv("TJ_STRICT", raising=False)
    return lambda f, **options: tj.jit(f, session=tj.Session(), **options)


def eager(f: Program) -> Program:
    return f


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(shape or (4,), **options).requires_grad_()


def chain(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x.exp() + 1


# --------------------------------------------------------------------------------- tangents


def negative(y: torch.Tensor) -> None:
    (torch.complex(torch.ones(4), y).conj() * (1 + 2j)).real.sum().backward()


def of_zeros(y: torch.Tensor) -> None:
    y.backward(torch._efficientzerotensor(4))


def sparse(y: torch.Tensor) -> None:
    y.backward(torch.tensor([0.0, 2, 0, 3]).to_sparse())


def expanded(y: torch.Tensor) -> None:
    y.backward(torch.tensor(3.0).expand(4))


def overlapping(y: torch.Tensor) -> None:
    y.backward(torch.randn(8)[::2])


def wider(y: torch.Tensor) -> None:
    y.backward(torch.randn(4, dtype=torch.float64))


def with_gradient(y: torch.Tensor) -> None:
    y.backward(torch.randn(4, requires_grad=True))


def changed_by_a_hook(y: torch.Tensor) -> None:
    y.grad_fn.register_prehook(lambda tangents: (tangents[0].double(),))  # type: ignore[union-attr]
    y.backward(torch.randn(4))


TANGENTS = [
    negative,
    of_zeros,
    sparse,
    expanded,
    overlapping,
    wider,
    with_gradient,
]


@pytest.mark.slow
def test_tangents_of_any_form(installed: Any) -> None:
    jitted = installed(chain)
    for give in TANGENTS:
        found = []
        for f in (chain, jitted):
            torch.manual_seed(0)
            x = leaf()
            give(f(x))
            assert x.grad is not None
            found.append(x.grad)
        assert found[0].layout is found[1].layout, give.__name__
        torch.testing.assert_close(found[1], found[0], msg=give.__name__)


def test_a_hook_may_not_change_the_type_of_a_tangent(installed: Any) -> None:
    """PyTorch refuses it, in eager too."""
    for f in (chain, installed(chain)):
        with pytest.raises(RuntimeError, match="has changed the type of value"):
            changed_by_a_hook(f(leaf()))


def test_tangents_whose_conjugate_bit_is_set() -> None:
    """PyTorch's own kernels, too, see the bit, and refuse some such tensors."""
    found = []
    for f in (eager, lambda f: tj.jit(f, plugins=["autograd", "torch"])):
        torch.manual_seed(0)
        x = leaf()
        f(lambda x: torch.complex(x, x).conj())(x).abs().sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def batched(y: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)


def mapped(y: torch.Tensor, x: torch.Tensor) -> Any:
    tangents = torch.eye(4)
    return torch.vmap(lambda v: torch.autograd.grad(y, x, 2 * v, retain_graph=True))(tangents)


def batched_again(y: torch.Tensor, x: torch.Tensor) -> Any:
    (first,) = torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True, create_graph=True)
    return torch.autograd.grad(first.sin().sum(), x)


def forward_over_reverse(y: torch.Tensor, x: torch.Tensor) -> Any:
    with forward_ad.dual_level(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, when it first makes a dual number
        tangent = forward_ad.make_dual(torch.ones(4), torch.arange(4.0))
        (found,) = torch.autograd.grad(y, x, tangent)
        return tuple(forward_ad.unpack_dual(found))


def random(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x.sin(), 0.5) * 2


@pytest.mark.parametrize("program", [chain, random])
def test_tangents_that_stand_for_several(installed: Any, program: Program) -> None:
    jitted = installed(program)
    ways = [batched, mapped, batched_again, forward_over_reverse]
    for way in ways:
        found = []
        for f in (program, jitted):
            torch.manual_seed(0)
            x = leaf()
            found.append((way(f(x), x), torch.rand(3)))
        torch.testing.assert_close(found[1], found[0], msg=way.__name__)


# ------------------------------------------------------------------------------ saved values


def as_double(packed: torch.Tensor) -> torch.Tensor:
    return packed.double()


def as_negative(packed: torch.Tensor) -> torch.Tensor:
    return torch.complex(torch.zeros_like(packed), -packed).conj().imag


def with_gaps(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed, packed], -1)[..., 0]


def test_saved_values_that_hooks_change_in_form(installed: Any) -> None:
    jitted = installed(chain)
    for pack in (as_double, as_negative, with_gaps):
        found = []
        for f in (chain, jitted):
            torch.manual_seed(0)
            x = leaf()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
                y = f(x)
            y.sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(found[1], found[0], msg=pack.__name__)


def test_saved_values_that_hooks_make_smaller_are_refused(installed: Any) -> None:
    x = leaf(4)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t[:2], lambda packed: packed):
        y = installed(chain)(x)
    with pytest.raises(RuntimeError, match="has unpacked one of another shape"):
        y.sum().backward()


# -------------------------------------------------------------------------------- arguments


def test_views_of_parameters_where_gradients_are_recorded(installed: Any) -> None:
    def f(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return w.detach() @ (x + 1)

    w, x = leaf(3, 3), torch.randn(3, 2)
    jitted = installed(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(jitted(w, x), f(w, x))
    kernels = jitted.__tj__.session.regions.kernels.values()
    assert [kernel.failure for kernel in kernels] == [None]


@pytest.mark.slow
def test_factors_of_zero(installed: Any) -> None:
    """A term multiplied by zero is not read, be it NaN."""

    def f(x: Any, a: Any, b: Any, beta: int) -> torch.Tensor:
        scaled = torch.addmm(a[0, 0], a.cos(), b, beta=2, alpha=0)
        return torch.addmm(x, a, b, beta=beta) + scaled + 1

    jitted = installed(f)
    nan, a, b = torch.full((2,), torch.nan), torch.ones(1, 4), torch.ones(4, 2)
    for beta in (0, 1, 0):
        torch.testing.assert_close(jitted(nan, a, b, beta), f(nan, a, b, beta), equal_nan=True)
    b[0] = torch.inf
    torch.testing.assert_close(jitted(nan, a, b, 0), f(nan, a, b, 0), equal_nan=True)


# ------------------------------------------------------------------------------ collectives


@pytest.fixture
def processes(tmp_path: Any) -> Any:
    """A process group of two, whose collectives never end: their results are only waited for."""
    distributed = pytest.importorskip("torch.distributed")
    testing = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=testing.FakeStore(), rank=0, world_size=2)
    yield distributed.device_mesh.init_device_mesh("cpu", (2,))
    distributed.destroy_process_group()


def test_regions_run_when_collectives_have_ended(installed: Any, processes: Any) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate

    running = torch._C._distributed_c10d._get_work_registry_size  # type: ignore[attr-defined]

    def f(x: Any) -> torch.Tensor:
        y: torch.Tensor = x.redistribute(placements=[Replicate()], async_op=True).to_local()
        return y.sin() * 2

    jitted = installed(f)
    x = DTensor.from_local(torch.ones(4), processes, [Partial()])
    for _ in range(2):
        before = running()
        jitted(x)
        assert running() == before
    assert any(c.executor == "inductor" for c in tj.last_trace(jitted).calls)
