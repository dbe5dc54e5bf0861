"""Programs that call ``torch.autograd.grad``: captured whole, and equal to eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import grad
from torch.utils._pytree import tree_leaves

PLUGINS = ("autograd", "autocast", "torch")

NET = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
NORMED = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
DROPPED = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.3), nn.SiLU(), nn.Linear(8, 1))
PARAMETERS = [*NET.parameters(), *NORMED.parameters(), *DROPPED.parameters()]
BUFFERS = [*NORMED.buffers()]


def energies(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    energy = NET(x).sum()
    return energy, -grad(energy, x)[0]


def detached_energies(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    energy = NET(x).sum()
    return energy.detach(), grad(energy, x)[0]


def training_forces(x: torch.Tensor) -> Any:
    x = x.clone().detach().requires_grad_(True)
    energy = NET(x).sum()
    return energy, grad(energy, x, create_graph=True)[0]


def of_an_argument(x: torch.Tensor) -> Any:
    x = x * 1 if x.requires_grad else x.detach().requires_grad_()
    y = NET(x)
    return (grad(y, x, torch.ones_like(y), create_graph=True)[0] ** 2).sum() + y.sum()


def penalty(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    y = NORMED(x)
    (g,) = grad(y.sum(), x, create_graph=True, retain_graph=True, only_inputs=True)
    return ((g.norm(2, dim=1) - 1) ** 2).mean() + y.mean()


def dropped(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    y = DROPPED(x)
    return grad(y.sum(), x, create_graph=True)[0].square().sum() + y.sum() + torch.rand(())


def laplacian(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    u = NET(x)
    (first,) = grad(u.sum(), x, create_graph=True)
    second = [grad(first[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(2)]
    return torch.stack(second).sum(0).square().mean(), u


def without_grad(x: torch.Tensor) -> Any:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (g,) = grad(NET(x).pow(2).sum(), x)
    return g * 2


def then_without_grad(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    y = NET(x).sin()
    with torch.no_grad():
        z = y * 2
    return grad((y * z).sum(), x, create_graph=True)[0].sum() * y.mean()


def hidden(x: torch.Tensor) -> Any:
    h = torch.tanh(NET[0](x))
    (g,) = grad(NET[2](h).sum(), h, create_graph=True)
    return (g * h).sum()


def of_parameters(x: torch.Tensor) -> Any:
    loss = NET(x).square().mean()
    return loss.detach(), grad(loss, [*NET.parameters()])


def inner_loop(x: torch.Tensor) -> Any:
    a, b, c, d = NET.parameters()
    for _ in range(2):
        loss = F.linear(torch.tanh(F.linear(x, a, b)), c, d).square().mean()
        steps = grad(loss, [a, b, c, d], create_graph=True)
        a, b, c, d = (p - 0.1 * g for p, g in zip([a, b, c, d], steps, strict=True))
    return F.linear(torch.tanh(F.linear(x, a, b)), c, d).square().mean()


def two_leaves(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    (a,) = grad(x.sin().sum(), x)
    z = x.detach().clone().requires_grad_()
    (b,) = grad(NET(z).sum(), z, create_graph=True)
    return a, b.square().sum()


def retained(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    y = NET(x)
    (a,) = grad(y[:, 0].sum(), x, retain_graph=True)
    return a * grad(y.exp().sum(), x)[0]


def unused(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    z = x.detach().clone().requires_grad_()
    found = grad(NET(x).sum(), [x, z], allow_unused=True)
    assert found[1] is None
    return found[0], *grad(NET(x).sum(), [x, z], allow_unused=True, materialize_grads=True)


def after_it(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    energy = NET(x).sum()
    (g,) = grad(energy, x, create_graph=True)
    return (x * 2 + g).sum() * energy


def in_place(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    y = x * 2
    y.mul_(x)
    b = torch.zeros_like(y)
    b[1:] = y[1:]
    return (grad(b.sin().sum(), x, create_graph=True)[0] * NET[0].weight[0]).sum()


def copies(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    wide = torch.zeros(3, x.shape[0], 2)
    wide.copy_(x * x)
    wide[0].zero_()
    wide[1].uniform_()
    turned = torch.zeros(2, x.shape[0], dtype=torch.double)
    turned.t().copy_(x * wide[2])
    (g,) = grad(wide.sin().sum() + turned.exp().sum(), x, create_graph=True)
    return (g * NET[0].weight[0]).sum()


def autocast(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        energy = NET(x).sum()
    return (grad(energy, x, create_graph=True)[0] ** 2).sum()


def within_autocast(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        (g,) = grad(NET(x).sum(), x, create_graph=True)
        y = (g @ torch.ones(2, 3)).sum()
    return y.float() + g.sum()


def sizes(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    n = x.shape[0]
    (g,) = grad((NET(x) / n).sum(), x, create_graph=True)
    return (g * n).pow(2).sum() / x.numel()


def integrator(x: torch.Tensor) -> Any:
    z = x.detach().requires_grad_()
    for _ in range(2):
        z = z - 0.1 * grad(NET(z).sum(), z)[0].detach()
    return z.detach()


def parts_of_a_leaf(x: torch.Tensor) -> Any:
    q, v = x.detach().requires_grad_().split(1, -1)
    a, b = grad(NET(torch.cat([q, v * v], 1)).sum(), (q, v), create_graph=True)
    return (a * b).sum()


def iterator_of_parameters(x: torch.Tensor) -> Any:
    return grad(NET(x).square().sum(), NET.parameters())  # type: ignore[arg-type]  # an iterator


def partly_used_up(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    u = NET(x)
    (first,) = grad(u.sum(), x, create_graph=True)
    return u, first, grad(first[:, 0].sum(), x)[0]


WHOLE = [
    energies, detached_energies, training_forces, of_an_argument, penalty, dropped, laplacian,
    without_grad, then_without_grad, hidden, of_parameters, inner_loop, two_leaves, retained,
    unused, after_it, in_place, copies, autocast, within_autocast, sizes, integrator,
    parts_of_a_leaf, iterator_of_parameters, partly_used_up,
]  # fmt: skip


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # one result
        return g * 7 * ctx.saved_tensors[0]


def function(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    return grad(Cubed.apply(NET(x)).sum(), x)  # type: ignore[no-untyped-call]  # of PyTorch


def checkpointed(x: torch.Tensor) -> Any:
    from torch.utils.checkpoint import checkpoint

    x = x.detach().requires_grad_()
    y = checkpoint(DROPPED, x, use_reentrant=False)
    return grad(y.sum(), x, create_graph=True)[0].square().sum()


def hook(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    h = NET[0](x)
    h.register_hook(lambda g: g * 3)
    return grad(NET[2](h.tanh()).sum(), x)


def batched(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    y = NET(x)[:3, 0]
    return grad(y, x, torch.eye(3), is_grads_batched=True)


def returned_leaf(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    return (*grad(NET(x).sum(), x), x)


def only_own_leaves(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    y = (x.sin() * 2).sum()
    return y, grad(y, x, create_graph=True)[0]


def depends_on_data(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    return grad(NET(x[x[:, 0] > 0]).sum(), x)


def tagged(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    h = tj.tag(NET[0](x), "PREFER_RECOMPUTE")
    return grad(NET[2](h.tanh()).sum(), x, create_graph=True)[0].square().sum()


def overlapping(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    memory = torch.zeros(4)
    front = memory[:2]
    y = NET(x).sum()
    memory.add_(1)
    return grad(y * front.sum(), x, create_graph=True)[0].sum() + memory.sum()


def twice(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    y = NET(x).sin()
    return grad(y.sum(), x), grad(y.sum(), x)


def no_history(x: torch.Tensor) -> Any:
    return grad(NET(x.detach()).sum(), [x])


@torch.library.custom_op("tj_tests::cubes", mutates_args=())
def cubes(x: torch.Tensor) -> torch.Tensor:
    return x**3


@cubes.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _cubes_backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    return g * 3.5 * cubes(x) / x


cubes.register_autograd(
    _cubes_backward,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def operator_of_an_extension(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    y = cubes(NET(x)).sin().sum()
    return y, grad(y, x, create_graph=True)[0].square().sum()


def leaves_of_zeros(x: torch.Tensor) -> Any:
    other = NORMED[0].weight
    return grad(NET(x).sum(), [NET[0].weight, other], create_graph=True, materialize_grads=True)


def norms_that_pytorch_clamps(x: torch.Tensor) -> Any:
    h = NET[0](x)
    s = F.cosine_similarity(h, h.exp(), dim=1).sum()
    return s, grad(s, h, create_graph=True)[0].square().sum()


def clamped_without_grad(x: torch.Tensor) -> Any:
    z = NET[0](x).clone()
    with torch.no_grad():
        z.clamp_(-0.1, 0.1)
    return grad(z.square().sum(), z, create_graph=True)


def written_through_detach(x: torch.Tensor) -> Any:
    z = NET[0](x) * 1
    z.detach().mul_(2)
    return grad(z.square().sum(), z, create_graph=True)


def projected_steps(x: torch.Tensor) -> Any:
    z = x.clone().requires_grad_()
    for _ in range(2):
        z = z - 0.1 * grad(NET(z).tanh().sum(), z, create_graph=True)[0]
        with torch.no_grad():
            z.clamp_(-1, 1)
    return NET(z).sum()


BROKEN = [
    function, checkpointed, hook, batched, returned_leaf, only_own_leaves, depends_on_data, tagged,
    overlapping, twice, no_history, leaves_of_zeros, norms_that_pytorch_clamps,
    operator_of_an_extension, clamped_without_grad, written_through_detach, projected_steps,
]  # fmt: skip


def outcome(f: Callable[..., Any], n: int, requires_grad: bool, grad_mode: bool) -> list[Any]:
    """Results, their facts, gradients, buffers with their versions, and the next random number."""
    torch.manual_seed(3)
    NORMED[1].reset_running_stats()  # type: ignore[operator]  # a BatchNorm1d
    x = torch.randn(n, 2).requires_grad_(requires_grad)
    versions = [b._version for b in BUFFERS]
    for p in PARAMETERS:
        p.grad = None
    try:
        with torch.set_grad_enabled(grad_mode):
            results = [t for t in tree_leaves(f(x)) if isinstance(t, torch.Tensor)]
    except RuntimeError as error:
        return [str(error)]
    found: list[Any] = [
        (t.detach().clone(), t.requires_grad, t.is_leaf, t.stride()) for t in results
    ]
    try:
        if wanted := [t.sum() for t in results if t.requires_grad]:
            torch.stack(wanted).sum().backward()  # type: ignore[no-untyped-call]  # of PyTorch
    except RuntimeError as error:
        found.append(str(error))
    found += [p.grad for p in (x, *PARAMETERS)]
    found += [(b.clone(), b._version - v) for b, v in zip(BUFFERS, versions, strict=True)]
    return [*found, torch.rand(())]


def check(f: Callable[..., Any], jitted: Callable[..., Any], *given: Any) -> None:
    wanted, found = outcome(f, *given), outcome(jitted, *given)
    if any(isinstance(x, str) for x in (*wanted, *found)):
        texts = [[x for x in part if isinstance(x, str)] for part in (wanted, found)]
        assert texts[0] == texts[1]
        wanted, found = ([x for x in o if not isinstance(x, str)] for o in (wanted, found))
    # The second derivative of a part of a program is that of the part run again.
    rounds = f in (norms_that_pytorch_clamps, operator_of_an_extension)
    exact = {} if rounds else {"rtol": 0.0, "atol": 0.0}
    torch.testing.assert_close(found, wanted, equal_nan=True, **exact)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("f", WHOLE, ids=lambda f: f.__name__)
def test_captured_whole(f: Callable[..., Any], requires_grad: bool, grad_mode: bool) -> None:
    jitted = tj.jit(f, session=tj.Session(PLUGINS, overrides={"strict": True}))
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        for n in (5, 5, 7, 3):
            check(f, jitted, n, requires_grad, grad_mode)
    assert not tj.stats(jitted).fallbacks


@pytest.mark.sampled(12)
@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("f", BROKEN, ids=lambda f: f.__name__)
def test_graph_breaks(f: Callable[..., Any], grad_mode: bool) -> None:
    jitted = tj.jit(f, session=tj.Session(PLUGINS))
    for n in (5, 5, 7):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tj.TjWarning)
            check(f, jitted, n, False, grad_mode)


def test_the_operators_are_in_the_program() -> None:
    jitted = tj.jit(training_forces, session=tj.Session(PLUGINS))
    jitted(torch.randn(5, 2))
    program = str(tj.last_traces(jitted)[0])
    assert "aten.tanh_backward" in program
    assert "autograd.grad" not in program


def test_a_result_that_is_used_up_is_no_view_and_can_be_written() -> None:
    jitted = tj.jit(energies, session=tj.Session(PLUGINS))
    x = torch.randn(5, 2)
    for f in (energies, jitted):
        energy = f(x)[0]
        assert energy.requires_grad
        assert energy._base is None
        energy += 1
        torch.testing.assert_close(energy.detach(), NET(x).sum().detach() + 1)
        with pytest.raises(RuntimeError, match="second time"):
            grad(energy, NET[0].weight)
        with pytest.raises(RuntimeError, match="to not have been used"):
            grad(energy, torch.zeros(2, requires_grad=True))


def test_a_result_whose_history_is_used_up_in_part() -> None:
    scale, shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def f(x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        energy = (NET(x) * scale + shift).sum()
        return energy, -grad(energy, x)[0]

    jitted, x = tj.jit(f, session=tj.Session(PLUGINS, overrides={"strict": True})), torch.ones(3, 2)
    for g in (f, jitted, jitted):
        energy, forces = g(x)
        torch.testing.assert_close(forces, f(x)[1], rtol=0, atol=0)
        with pytest.raises(RuntimeError, match="second time"):
            energy.backward()
    assert not tj.stats(jitted).fallbacks


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["slope", "limit", "cutoff", "factor", "exponent"])
def test_numbers_that_differ_between_calls(name: str) -> None:
    programs: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
        "slope": lambda y, p: F.leaky_relu(y, p).sum(),
        "limit": lambda y, p: y.clamp(-p, p).sum(),
        "cutoff": lambda y, p: (y * (y < p * p) * (1 - y / 3**p)).sum(),
        "factor": lambda y, p: (y * p).sum() + (y**2).sum() * p,
        "exponent": lambda y, p: (y**p).sum() + y.sum(),
    }
    numbers = (5, 4, 0, 1, 2) if name == "exponent" else (0.1, 0.2, 0.0, 1.0, 0.3)
    inner = programs[name]

    def f(x: torch.Tensor, p: Any) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (g,) = grad(inner(x, p), x, create_graph=True)
        return grad(g.sum() + (x * 0).sum(), x)[0]

    jitted, x = tj.jit(f, session=tj.Session(PLUGINS)), torch.tensor([0.0, 1.0, -0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        for p in numbers:
            torch.testing.assert_close(jitted(x, p), f(x, p), rtol=0, atol=0, equal_nan=True)


class Forces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = NET
        self.calls = 0

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        self.calls += 1
        x = x.detach().requires_grad_()
        energy = self.net(x).pow(2).sum()
        (g,) = grad(energy, x, create_graph=self.training)
        return {"energy": energy, "forces": -g, "calls": self.calls}


@pytest.mark.parametrize("training", [True, False])
def test_a_module(training: bool) -> None:
    eager, module = Forces().train(training), Forces().train(training)
    jitted = tj.jit(module, session=tj.Session(PLUGINS))
    for n in (4, 4, 6):
        check(eager, jitted, n, False, True)
    assert module.calls == eager.calls == 3


def gradient(x: torch.Tensor) -> torch.Tensor:
    return grad(NET(x).sin().sum(), x, create_graph=True)[0]


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("quiet")
def test_hooks_of_what_is_differentiated() -> None:
    jitted = tj.jit(gradient, session=tj.Session(PLUGINS))
    x = torch.randn(5, 2, requires_grad=True)
    torch.testing.assert_close(jitted(x), gradient(x))
    handle = x.register_hook(lambda g: g * 10)
    torch.testing.assert_close(jitted(x), gradient(x))
    handle.remove()
    torch.testing.assert_close(jitted(x), gradient(x))


@pytest.mark.usefixtures("quiet")
def test_hooks_on_saved_tensors_and_anomalies() -> None:
    seen: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.dim())
        return x * 2 if x.is_floating_point() else x

    def roots(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return grad(((x * 0).sqrt() * 0).sum(), x)[0]

    jitted, other = (tj.jit(f, session=tj.Session(PLUGINS)) for f in (energies, roots))
    x = torch.randn(5, 2)
    for observed in (False, True, False):
        found, counts = [], []
        for f, g in ((energies, roots), (jitted, other)):
            seen.clear()
            hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
            if not observed:
                found.append([y.detach() for y in f(x)] + [g(x)])
                continue
            with hooks:
                found.append([y.detach() for y in f(x)])
            counts.append(len(seen))
            with (
                torch.autograd.set_detect_anomaly(True),
                pytest.raises(RuntimeError, match="nan values"),
            ):
                g(x)
        torch.testing.assert_close(found[1], found[0], equal_nan=True)
        assert len({*counts}) <= 1


def test_parameters_that_are_frozen_between_calls() -> None:
    jitted = tj.jit(energies, session=tj.Session(PLUGINS))
    try:
        for requires_grad in (True, False, True):
            NET.requires_grad_(requires_grad)
            for grad_mode in (True, False):
                check(energies, jitted, 5, False, grad_mode)
    finally:
        NET.requires_grad_(True)


def test_what_is_asked_for_as_a_whole() -> None:
    jitted = tj.jit(energies, session=tj.Session(PLUGINS), fullgraph=True)
    check(energies, jitted, 5, False, True)
    broken = tj.jit(function, session=tj.Session(PLUGINS), fullgraph=True)
    with pytest.raises(tj.TjError, match="autograd_function_apply in what is differentiated"):
        broken(torch.randn(5, 2))
