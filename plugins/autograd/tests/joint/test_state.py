"""State that an executor keeps for a call from run to run, as delayed scaling of float8 does."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.errors import PluginError
from tj_core.extend import BoundSymbol, Claim, Executor, Pair, RuleTable, hookimpl
from torch.utils.checkpoint import checkpoint


class Scale:
    """The largest elements that a call has seen, of its argument and of its tangent."""

    made: ClassVar[list[Scale]] = []

    def __init__(self, call: BoundSymbol | None = None) -> None:
        self.seen: list[Any] = [1.0]
        self.tangents: list[Any] = [1.0]
        self.call = "" if call is None else call.label
        if call is not None:
            self.made.append(self)


def rounded(x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
    """Round ``x`` by the largest element seen before, and record the one seen now."""
    step = seen[-1] / 16
    seen.append(x.detach().abs().max())
    return (x / step).round() * step


def forward(x: Any, w: Any, b: Any = None, *, state: Scale) -> Any:
    near = rounded(x, state.seen)
    return F.linear(near, w, b), (near, w)


def backward(saved: Any, g: Any, *, state: Scale) -> Any:
    near, w = saved
    g = rounded(g, state.tangents)
    return g @ w, g.t() @ near, g.sum(0)


def plain(x: Any, w: Any, b: Any = None, *, state: Scale) -> Any:
    return F.linear(rounded(x, state.seen), w, b)


def forward_meta(x: Any, w: Any, b: Any = None) -> Any:
    return F.linear(x, w, b), (torch.empty_like(x), w)


def backward_meta(saved: Any, g: Any) -> Any:
    near, w = saved
    return g @ w, g.t() @ near, g.sum(0)


def plugin(claim: Claim, key: str = "torch.nn.functional.linear") -> Any:
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set(key, claim)

    class Scaled:
        tj_name = "scaled"

        @hookimpl
        def tj_executors(self) -> tuple[Executor, ...]:
            return (Executor("scaled", claims),)

    return Scaled()


class Eager(torch.nn.Module):
    """The executor's computation as a `torch.autograd.Function`, with the state of each layer."""

    def __init__(self, net: torch.nn.Sequential) -> None:
        super().__init__()
        self.net, self.states = net, [Scale() for _ in net]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, state: Scale, x: Any, w: Any, b: Any) -> Any:
                out, saved = forward(x, w, b, state=state)
                ctx.state = state
                ctx.save_for_backward(*saved)
                return out

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return None, *backward(ctx.saved_tensors, g, state=ctx.state)

        for layer, state in zip(self.net, self.states, strict=True):
            x = Scaled.apply(state, x, layer.weight, layer.bias).tanh()
        return x


class Net(torch.nn.Module):
    def __init__(self, net: torch.nn.Sequential) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.net:
            x = layer(x).tanh()
        return x


def layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(3)))


@pytest.fixture(autouse=True)
def _none_made() -> None:
    Scale.made.clear()


def steps(model: Any, net: torch.nn.Sequential, count: int = 4) -> list[Any]:
    """Losses and gradients of steps whose inputs grow, so that what was seen before matters."""
    torch.manual_seed(1)
    found = []
    for i in range(count):
        net.zero_grad()
        out = model(torch.randn(5, 6) * (i + 1))
        (out * out).sum().backward()
        found.append((out.detach().clone(), [p.grad for p in net.parameters()]))
    return found


@pytest.mark.parametrize("budget", [1.0, 0.3])
def test_each_call_has_a_state_that_both_halves_see(budget: float) -> None:
    net = layers()
    claim = Claim(plain, pair=Pair(forward, backward), state=Scale)
    jitted = tj.jit(Net(net), plugins=[plugin(claim), "..."], autograd={"memory_budget": budget})
    eager = Eager(expected := layers())
    torch.testing.assert_close(steps(jitted, net), steps(eager, expected), rtol=0, atol=0)
    used = sorted((s for s in Scale.made if len(s.seen) == 5), key=lambda s: s.call)
    assert [s.seen for s in used] == [s.seen for s in eager.states]
    assert [s.tangents for s in used] == [s.tangents for s in eager.states]
    trace = tj.last_trace(jitted)
    assert str(trace).count("state=_pair_state_") == 3
    assert {c.effects.ordered for c in trace.calls if c.executor == "scaled"} == {("state:scaled",)}


def test_functions_for_metadata_take_no_state() -> None:
    net = layers()
    claim = Claim(plain, pair=Pair(forward, backward, (forward_meta, backward_meta)), state=Scale)
    jitted = tj.jit(Net(net), plugins=[plugin(claim), "..."])
    steps(jitted, net, 2)
    assert [len(s.seen) for s in Scale.made] == [3, 3, 3]


def test_without_a_gradient_the_state_is_the_implementations() -> None:
    net = layers()
    jitted = tj.jit(Net(net), plugins=[plugin(Claim(plain, state=Scale)), "..."])
    eager = Eager(net)
    with torch.no_grad():
        for i in range(3):
            x = torch.randn(5, 6) * (i + 1)
            assert torch.equal(jitted(x), eager(x))
    assert [s.seen for s in Scale.made] == [s.seen for s in eager.states]


@pytest.mark.parametrize("budget", [1.0, 0.1])
def test_a_call_with_state_runs_once_where_it_has_no_gradient_of_its_own(budget: float) -> None:
    """`aten.sin` costs so little that it would run again in the backward."""

    def sine(x: torch.Tensor, *, state: Scale) -> torch.Tensor:
        state.seen.append(float(x.sum()))
        return torch.sin(x)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin().exp() * x).sin().exp()

    made = plugin(Claim(sine, state=Scale), "aten.sin.default")
    jitted = tj.jit(f, plugins=[made, "..."], autograd={"memory_budget": budget})
    for i in range(1, 3):
        x = torch.randn(4, requires_grad=True)
        expected = torch.autograd.grad(f(x).sum(), x)
        torch.testing.assert_close(torch.autograd.grad(jitted(x).sum(), x), expected)
        assert [len(s.seen) for s in Scale.made] == [1 + i, 1 + i]


def test_a_checkpoint_does_not_run_it_again() -> None:
    net = layers()
    claim = Claim(plain, pair=Pair(forward, backward), state=Scale)

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(Net(net), x, use_reentrant=False)

    jitted = tj.jit(f, plugins=[plugin(claim), "..."])
    eager = Eager(expected := layers())
    torch.testing.assert_close(steps(jitted, net), steps(eager, expected), rtol=0, atol=0)


def test_programs_for_other_arguments_have_states_of_their_own() -> None:
    claim = Claim(plain, state=Scale)
    jitted = tj.jit(F.linear, plugins=[plugin(claim), "..."], dynamic=False)
    for n in (2, 3, 2):
        jitted(torch.randn(n, 4), torch.randn(4, 4))
    assert [len(s.seen) for s in Scale.made] == [3, 2]


def test_values_are_verified_at_the_highest_level() -> None:
    def wrong(x: Any, w: Any, b: Any = None, *, state: Scale) -> Any:
        state.seen.append(0.0)
        return F.linear(x, w, b) + (len(state.seen) > 2)

    jitted = tj.jit(F.linear, plugins=[plugin(Claim(wrong, state=Scale)), "..."], check=3)
    x, w = torch.randn(2, 4), torch.randn(4, 4)
    jitted(x, w)
    with pytest.raises(PluginError, match="as its body computes"):
        jitted(x, w)


def test_a_state_that_cannot_be_made_is_the_executors_fault() -> None:
    def make(call: BoundSymbol) -> None:
        raise ValueError("no memory left for it")

    jitted = tj.jit(F.linear, plugins=[plugin(Claim(plain, state=make)), "..."])
    with pytest.raises(PluginError, match=r"executor 'scaled'.*no memory left for it"):
        jitted(torch.randn(2, 4), torch.randn(4, 4))


def test_a_claim_with_state_is_not_traceable() -> None:
    with pytest.raises(PluginError, match="keeps state"):
        Claim(plain, state=Scale, traceable=True)
    with pytest.raises(PluginError, match="state"):
        Claim(plain, state=Scale())  # type: ignore[arg-type]


def test_backwards_for_other_tangents_share_it() -> None:
    """The backwards for expected and for other tangents share the state: a sum's tangent has
    strides of zero.
    """
    net, eager = layers(), Eager(expected := layers())
    claim = Claim(plain, pair=Pair(forward, backward), state=Scale)
    jitted = tj.jit(Net(net), plugins=[plugin(claim), "..."])
    tangents = [torch.randn(5, 6), torch.ones(()).expand(5, 6), torch.randn(6, 5).t()]
    for tangent in tangents:
        for model, module in ((jitted, net), (eager, expected)):
            module.zero_grad()
            torch.manual_seed(2)
            model(torch.randn(5, 6)).backward(tangent)
        for p, q in zip(net.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
    used = sorted((s for s in Scale.made if len(s.seen) == 4), key=lambda s: s.call)
    assert [s.tangents for s in used] == [s.tangents for s in eager.states]
