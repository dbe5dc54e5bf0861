"""JOINT: the calls that get a backward, their metadata, and PyTorch's order of sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal, clone_tree, seeded
from tj_core.compile.transforms import Transform
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.rules import RuleTable
from tj_core.host.hookspecs import hookimpl
from tj_core.ir.stage import Stage
from tj_core.ir.tags import Tag, TagSet
from torch.nn import functional as F

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol


def gradients(f: Callable[..., Any], *args: Any, seed: int = 3) -> Any:
    """Results, and the gradients of arguments that require grad."""
    args = clone_tree(args)
    out = seeded(f, args, {})
    outs = [o for o in (out if isinstance(out, tuple) else (out,)) if isinstance(o, torch.Tensor)]
    outs = [o for o in outs if o.requires_grad]
    wrt = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    generator = torch.Generator().manual_seed(seed)
    tangents = [torch.randn(o.shape, generator=generator, dtype=o.dtype) for o in outs]
    return out, torch.autograd.grad(outs, wrt, tangents, allow_unused=True)


def same(f: Callable[..., Any], *args: Any) -> Any:
    """``f`` jitted, having the results and gradients of ``f``, twice, by a joint trace."""
    jitted = tj.jit(f)
    for _ in range(2):
        assert_equal(gradients(jitted, *args), gradients(f, *args))
    assert Stage.JOINT in {t.stage for t in tj.last_traces(jitted)}
    assert tj.stats(jitted).hits == 1
    return jitted


def calls(jitted: Any, *, backward: bool) -> list[BoundSymbol]:
    trace = tj.last_trace(jitted, stage="JOINT")
    return [c for c in trace.calls if ("BACKWARD" in c.tags) is backward]


def names(jitted: Any, *, backward: bool) -> list[str]:
    return [c.symbol.name for c in calls(jitted, backward=backward)]


X = torch.randn(4, 3, requires_grad=True)


def test_calls_without_a_gradient_stay_and_have_no_backward() -> None:
    def f(x: torch.Tensor) -> Any:
        size = x.shape[0] * 2
        i = x.argmax(1) + 1
        mask = (x > 0).to(torch.int64).cumsum(0) * 2
        detached = x.detach().exp()
        with torch.no_grad():
            quiet = x.sin()
        return (x * detached).sum() * size, i, mask, quiet

    jitted = same(f, X)
    assert {"argmax", "gt", "cumsum", "exp", "sin"} <= set(names(jitted, backward=False))
    assert {n.split(".")[0] for n in names(jitted, backward=True)} == {"mul", "sum"}


def test_some_outputs_of_many_unused() -> None:
    def f(x: torch.Tensor) -> Any:
        var, _ = torch.var_mean(x, 1)
        values, indices = x.topk(2, 1)
        first, *_ = x.unbind(0)
        return var.sum() + values.sum() + first.sum(), indices

    same(f, X)


def test_all_outputs_used_in_any_order() -> None:
    def f(x: torch.Tensor) -> Any:
        a, b, c = x.split(1, 1)
        q, r = torch.linalg.qr(x)
        return (c * a - b).sum() * q.abs().sum() * r.abs().sum()

    same(f, torch.randn(4, 3, dtype=torch.float64, requires_grad=True))


def test_tensors_in_lists() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.cat([x, y, x], 1).sin().sum() + torch.stack([y, x]).cos().sum()

    same(f, X, torch.randn(4, 3, requires_grad=True))


def test_complex() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return ((x * y.conj()).abs() ** 2).sum() + torch.view_as_real(y).sum() * x.real.sum()

    same(f, X, torch.randn(4, 3, dtype=torch.complex64, requires_grad=True))


def test_random_numbers_are_eagers() -> None:
    def f(x: torch.Tensor) -> Any:
        return (F.dropout(x, 0.4) * torch.rand_like(x)).sum() + F.dropout(x.sin(), 0.2).sum()

    same(f, X)


@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_summed_in_pytorchs_order(seed: int) -> None:
    """A value used several times, also within one operation: floating-point sums do not commute."""

    def f(x: torch.Tensor) -> Any:
        y = x * 2
        z = F.normalize(y, dim=0)
        return (z.sin() + y.exp() * y + y * y).sum() + torch.lerp(y, y, 0.3).cos().sum()

    torch.manual_seed(seed)
    same(f, torch.randn(50, requires_grad=True))


def test_an_input_returned_is_the_input() -> None:
    def f(x: torch.Tensor) -> Any:
        return x, (x * 2).sum()

    jitted = tj.jit(f)
    x = X.detach().requires_grad_()
    out, loss = jitted(x)
    loss.backward()
    assert out is x
    assert torch.equal(x.grad, torch.full((4, 3), 2.0))


def test_backward_calls_say_where_they_belong() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.sin()
        return (y * x).sum()

    jitted = same(f, X)
    forward = {c.label: c for c in calls(jitted, backward=False)}
    for call in calls(jitted, backward=True):
        assert call.parent in forward
        assert call.source is not None
        assert call.source == forward[call.parent].source
    backward = tj.last_trace(jitted, "backward")
    assert all(c.source is not None for c in backward.calls)
    assert {c.symbol.namespace for c in backward.calls} <= {"aten", "torch"}


def test_an_error_in_the_backward_names_the_users_line() -> None:
    def broken(grad: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no such gradient")

    class Plugin:
        TJ_PLUGIN_API = 1

        @staticmethod
        @hookimpl
        def tj_executors(options: Any) -> Any:
            claims: Any = RuleTable("claim")
            claims.set("aten.cos.default", Claim(broken))
            return (Executor("broken", claims),)

    jitted = tj.jit(lambda x: x.sin().sum(), session=tj.Session(["torch", "autograd", Plugin]))
    loss = jitted(X.detach().requires_grad_())
    with pytest.raises(ArithmeticError) as caught:
        loss.backward()
    assert any("test_joint.py" in note for note in caught.value.__notes__)


def tagging(name: str) -> Transform:
    """A transform that puts a tag on every call and on every value it makes."""

    def apply(trace: Any, context: Any) -> Any:
        def tagged(call: BoundSymbol) -> BoundSymbol:
            made = call.map_proxies(lambda p: p.replace(tags=p.tags.add(name)))
            return made.replace(tags=TagSet([name]))

        inputs = tuple(p.replace(tags=p.tags.add(name)) for p in trace.inputs)
        outputs = tuple(o.replace(tags=o.tags.add(name)) for o in trace.outputs)
        return trace.replace(inputs=inputs, calls=tuple(map(tagged, trace.calls)), outputs=outputs)

    return Transform("tagging", apply, after=Stage.ACQUIRED)


@pytest.mark.parametrize("travels", [False, True])
def test_tags_of_users_reach_the_last_traces_by_their_policy(travels: bool) -> None:
    class Plugin:
        TJ_PLUGIN_API = 1

        @staticmethod
        @hookimpl
        def tj_tags(options: Any) -> Any:
            return (Tag("MINE", to_backward=travels),)

    def f(x: torch.Tensor) -> Any:
        return (F.layer_norm(x, (3,)).exp() * x).sum()

    session = tj.Session(["torch", "autograd", Plugin])
    jitted = tj.jit(f, session=session, transforms=[tagging("MINE")])
    jitted(X.detach().requires_grad_()).backward()
    forward, backward = tj.last_trace(jitted), tj.last_trace(jitted, "backward")
    assert all("MINE" in c.tags for c in forward.calls)
    computed = [c for c in backward.calls if c.symbol.qualname != "aten.add.Tensor"]
    assert all(("MINE" in c.tags) is travels for c in computed)
    assert all("BACKWARD" in c.tags for c in backward.calls)
    assert all("BACKWARD" not in c.tags for c in forward.calls)


def test_every_stage_reads_back() -> None:
    jitted = same(lambda x: (F.layer_norm(x, (3,)) * x.exp()).sum(), X)
    traces = [*tj.last_traces(jitted), tj.last_trace(jitted, "backward")]
    for trace in traces:
        again = tj.Trace.parse(str(trace), language=trace.language, constants=trace.constants())
        assert again == trace


def test_an_argument_that_is_returned_is_one_value() -> None:
    """``x.to`` is ``x``: its gradients are added to those of ``x`` one by one, as they come."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.float32)
        return x.exp() / 3 + y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)

    jitted, found = tj.jit(f), []
    for fn in (jitted, f):
        torch.manual_seed(0)
        x = torch.randn(2, 16, 64, requires_grad=True)
        fn(x).pow(2).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)
    assert tj.explain(jitted).declined == ()


@pytest.mark.parametrize("last", [torch.clone, torch.conj])
def test_a_tangent_that_is_a_conjugate_has_a_backward_of_its_own(last: Any) -> None:
    """The same call with the same arguments, the one after it another: one session has both."""

    def f(z: torch.Tensor) -> Any:
        return last(torch.mul(z, 3)) * (1 + 2j)

    same(f, torch.randn(2, 3, dtype=torch.complex64, requires_grad=True))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x[:, :-1] + x[:, 1:]).cumsum(-1),
        lambda x: x.narrow(1, 0, 2) + x.narrow(1, 1, 2),
        lambda x: x.roll(1, 0) + x.roll(2, 0),
    ],
)
def test_equal_tangents_through_calls_with_other_constants(f: Any) -> None:
    """Two backward calls of one tangent, which differ by constants in their bodies only."""
    same(f, X)


def test_a_kernel_that_the_program_spells_out() -> None:
    """`torch.tensor` of numbers is expanded to a constant, not to a call that makes it."""

    def f(x: torch.Tensor) -> torch.Tensor:
        kernel = torch.tensor([[[-1.0, 0.0, 1.0]], [[0.5, 0.5, 0.5]]])
        return F.conv1d(x, kernel, padding=1) * kernel.sum()

    same(f, torch.randn(2, 1, 6, requires_grad=True))


def test_backwards_of_equal_layers_share_a_body() -> None:
    w = torch.randn(3, 3, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = F.layer_norm(x @ w, (3,))
        return x

    backward = calls(same(f, X), backward=True)
    norms = [c.body for c in backward if "layer_norm" in c.symbol.name]
    assert len(norms) == 4
    assert len({*map(id, norms)}) == 1
