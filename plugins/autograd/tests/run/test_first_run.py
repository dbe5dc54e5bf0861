"""Results of an executor's kernels, compared with the trace when a program first runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import (
    BoundSymbol,
    Claim,
    Decline,
    Executor,
    Fused,
    Fusion,
    FusionRegion,
    Pair,
    PluginError,
    RuleTable,
    hookimpl,
    interpreter,
)


class Acme:
    tj_name = "acme"

    def __init__(self, **claims: Claim) -> None:
        self.claims = claims

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        table: RuleTable[Claim] = RuleTable("claim")
        for name, claim in self.claims.items():
            table.set(f"torch.{name}", claim)
        return (Executor("acme", table),)


def jitted(f: Callable[..., Any], **claims: Claim) -> Any:
    return tj.jit(f, plugins=[Acme(**claims), "torch", "autograd"])


WRONG = {
    "dtype": (lambda x: x.exp().double(), "result 0 has dtype f64, not f32"),
    "shape": (lambda x: x.exp()[:1], r"result 0 has shape \(1, 3\), not \(2, 3\)"),
    "strides": (lambda x: x.exp().t().contiguous().t(), r"strides \(1, 2\), not \(3, 1\)"),
    "a gradient": (lambda x: x.exp().requires_grad_(), "result 0 requires a gradient"),
    "kind": (lambda x: None, "result 0 is a NoneType, not a plain tensor"),
    "a tuple": (lambda x: (x.exp(), x), "result 0 is a tuple, not a plain tensor"),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("what", WRONG)
def test_a_kernel_that_returns_something_else_is_named(what: str) -> None:
    kernel, message = WRONG[what]
    program = jitted(lambda x: x.exp() + 1, exp=Claim(kernel))
    for _ in range(2):  # it is not believed the second time either
        with pytest.raises(
            PluginError, match=f"executor 'acme' .* ran torch.exp for .*{message}"
        ) as e:
            program(torch.rand(2, 3))
        assert e.value.source is not None
        assert "x.exp() + 1" in e.value.source.text


def test_a_kernel_with_several_results_returns_as_many() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        mean, variance = torch.var_mean(x)
        return mean + variance

    for kernel, shown in (
        (lambda x: x.mean(), "one value, a Tensor"),
        (lambda x: (x,), "1 values"),
    ):
        with pytest.raises(PluginError, match=f"it returned {shown}, not 2 values"):
            jitted(program, var_mean=Claim(kernel))(torch.rand(3))


def test_strides_that_lead_nowhere_are_anybodys() -> None:
    kernel = Claim(lambda x: x.exp().as_strided(x.shape, (7, 1)))
    assert jitted(lambda x: x.exp(), exp=kernel)(torch.zeros(1, 3)).stride() == (7, 1)
    empty = Claim(lambda x: x.new_empty(0, 3).as_strided((0, 3), (9, 9)))
    assert jitted(lambda x: x.exp(), exp=empty)(torch.zeros(0, 3)).shape == (0, 3)


def test_each_call_is_compared_once_and_then_runs_directly() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    f = lambda x, y: (x + 1).exp() + (y + 1).exp()  # noqa: E731
    program = jitted(f, exp=Claim(kernel))
    x, y = torch.rand(2), torch.rand(2)
    torch.testing.assert_close(program(x, y), f(x, y))
    bound = program.__tj__.last.compilation.program.function.__globals__
    assert [v for k, v in bound.items() if k.startswith("acme")] == [kernel, kernel]
    torch.testing.assert_close(program(x, y), f(x, y))


def test_the_plugin_and_its_distribution_are_named() -> None:
    program = jitted(lambda x: x.exp(), exp=Claim(lambda x: None))
    with pytest.raises(PluginError, match=r"^executor 'acme' of plugin 'acme' \(inline\) ran"):
        program(torch.rand(2))


# ------------------------------------------------------------------------------- memory


def by_torch(x: torch.Tensor) -> torch.Tensor:
    return x.neg_().neg().exp()


def by_pointer(x: torch.Tensor) -> torch.Tensor:
    result = x.exp()
    x.numpy()[...] = 0  # no version is counted
    return result


@pytest.mark.parametrize("kernel", [by_torch, by_pointer])
@pytest.mark.parametrize("size", [3, 100_003])
def test_a_kernel_that_writes_to_its_argument_is_named(kernel: Any, size: int) -> None:
    program = jitted(lambda x: x.exp() + 1, exp=Claim(kernel))
    with pytest.raises(PluginError, match="and it wrote to argument 'x', which the trace"):
        program(torch.rand(size))


def test_a_write_beside_a_view_is_none_to_it() -> None:
    memory = torch.rand(5, 7)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        memory[0, 0] = memory[0, 0] + 1
        return x.exp()

    for view in (memory[1:, ::2], memory[1:, 1], memory[1:, 1:].t()):
        program = jitted(lambda x: (x + 0).exp() + 1, exp=Claim(kernel))
        program(view)


def test_results_share_memory_as_declared_only() -> None:
    message = "and result 0 is in the memory of its argument 'x', which the trace"
    with pytest.raises(PluginError, match=message):
        jitted(lambda x: x.exp(), exp=Claim(lambda x: x.view(3)))(torch.rand(3))
    flat = jitted(lambda x: torch.reshape(x, (4,)) + 1, reshape=Claim(lambda x, s: x.view(s)))
    assert flat(torch.zeros(2, 2)).tolist() == [1] * 4


def test_a_region_that_overwrites_a_result_in_use_is_an_error_wherever_it_stands() -> None:
    """The region's second call runs the same function, which was found right at the first."""
    runs, buffers = itertools.count(), [torch.empty(3), torch.empty(3)]

    def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: [buffers[next(runs) % 2].copy_(run(x)[0])]

    def program(x: torch.Tensor) -> Any:
        y = x.exp() * 2
        return y, (y.sin()).exp() * 2

    session = tj.Session(plugins=[Fuser(wrap), "torch"], overrides={"check": 0, "strict": False})
    with pytest.raises(PluginError, match="memory of an earlier result that is still in use"):
        tj.jit(program, session=session)(torch.rand(3))


def test_a_buffer_that_is_returned_twice_is_found() -> None:
    buffer = torch.empty(3)
    claim = Claim(lambda x: torch.exp(x, out=buffer))
    with pytest.raises(PluginError, match="for 'exp_1', and result 0 is in the memory of an ear"):
        jitted(lambda x, y: x.exp() + y.exp(), exp=claim)(torch.rand(3), torch.rand(3))


def test_every_kind_of_tensor_can_be_looked_at() -> None:
    real, complex_ = torch.rand(2, 3), torch.rand(4, dtype=torch.complex64)
    for x in (
        torch.rand(100_000)[1:],
        real.t(),
        complex_.conj(),
        complex_.imag,
        real.bool(),
        torch.rand(0, 2),
        real[1:, 1],
        real.expand(2, 2, 3),
        torch.tensor(1.0),
        real.half()[0, 1:],
    ):
        program = jitted(lambda x: torch.add(x, x), add=Claim(lambda x, y: x + y))
        torch.testing.assert_close(program(x), x + x)
        assert tj.explain(program).counts()["acme"] == 1


# ------------------------------------------------------------------------------- gradients


def test_a_kernel_never_sees_a_tensor_that_requires_a_gradient() -> None:
    def through_dlpack(x: torch.Tensor) -> torch.Tensor:
        return torch.from_dlpack(x.__dlpack__()).exp()

    program = jitted(lambda x: x.exp().sum(), exp=Claim(through_dlpack))
    x = torch.rand(3, requires_grad=True)
    for _ in range(2):
        program(x).backward()
        with torch.no_grad():
            torch.testing.assert_close(program(x), x.exp().sum())
            torch.testing.assert_close(program(x.detach()), x.exp().sum())
    torch.testing.assert_close(x.grad, 2 * x.exp().detach())


def test_views_of_what_requires_a_gradient_are_detached_too() -> None:
    seen = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.requires_grad)
        return x.exp()

    def program(x: torch.Tensor) -> torch.Tensor:
        later = (x.detach() * 2).requires_grad_()
        return x.view(2, 2).t().exp() + x[None, :2].exp() + later[:2].exp()

    f = jitted(program, exp=Claim(kernel))
    x = torch.rand(4, requires_grad=True)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(f(x), program(x))
    assert seen == [False] * 6


class Fuser:
    """Runs regions of ATen operators by ``wrap`` of their interpreter."""

    tj_name = "fuser"

    def __init__(self, wrap: Callable[[Any], Any], **options: Any) -> None:
        self.wrap, self.options = wrap, options

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        fusion = Fusion(can_fuse, self.fuse, **self.options)
        return (Executor("fuser", RuleTable("claim"), fusion=fusion),)

    def fuse(self, region: FusionRegion) -> Fused:
        return Fused(self.wrap(interpreter(region)))


def can_fuse(call: BoundSymbol) -> bool | Decline:
    mine = call.symbol.qualname in ("aten.exp.default", "aten.mul.Tensor", "aten.t.default")
    return True if mine else Decline("not in this test")


@pytest.mark.parametrize("detached", [True, False])
def test_a_region_gets_inputs_that_require_no_gradient_unless_it_does_not_look(
    detached: bool,
) -> None:
    seen: set[bool] = set()

    def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*inputs: torch.Tensor) -> Any:
            seen.update(x.requires_grad for x in inputs)
            return run(*inputs)

        return noted

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (w.t() * x).exp() * 2

    plugins = [Fuser(wrap, detached=detached), "torch", "autograd"]
    f = tj.jit(program, session=tj.Session(plugins=plugins, overrides={"strict": True}))
    x, w = torch.rand(2), torch.nn.Parameter(torch.rand(2, 2))
    for _ in range(2):
        f(x, w).sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(f(x, w), program(x, w))
    assert w.grad is not None
    torch.testing.assert_close(w.grad, 2 * torch.autograd.grad(program(x, w).sum(), w)[0])
    assert seen == ({False} if detached else {False, True})


def test_arguments_in_lists_and_by_name_are_detached_too() -> None:
    seen = []

    def kernel(tensors: Any, dim: int = 0) -> torch.Tensor:
        seen.extend(t.requires_grad for t in tensors)
        return torch.cat(list(tensors), dim=dim)

    program = jitted(lambda x, y: torch.cat([x, y, x + 1], dim=0), cat=Claim(kernel))
    x, y = torch.rand(2, requires_grad=True), torch.rand(2)
    for _ in range(2):
        program(x, y).sum().backward()
    assert seen == [False] * 6


def test_what_a_kernel_returns_of_its_arguments_is_the_argument() -> None:
    program = jitted(
        lambda x: (x.contiguous(), *torch.broadcast_tensors(x, x + 1)),
        **{"Tensor.contiguous": Claim(lambda x: x)},
        broadcast_tensors=Claim(lambda a, b: (a, b)),
    )
    x = torch.rand(2, requires_grad=True)
    with torch.no_grad():
        for _ in range(2):
            assert program(x)[0] is x


# ------------------------------------------------------------------------------- values


def verified(f: Callable[..., Any], **claims: Claim) -> Any:
    return tj.jit(f, plugins=[Acme(**claims), "torch", "autograd"], check=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_are_compared_in_every_run(dtype: torch.dtype) -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 1, 0, x.exp() * (1 + torch.finfo(dtype).eps))

    program = verified(lambda x: (x * 1).exp(), exp=Claim(kernel))
    for _ in range(2):
        program(torch.rand(2, 3, dtype=dtype))
    message = (
        "executor 'acme' of .* ran torch.exp for 'exp', and result 0 has other values: 6 of 6, b"
    )
    with pytest.raises(PluginError, match=message):
        program(torch.rand(2, 3, dtype=dtype) + 2)


def test_kernels_that_are_right_are_left_alone() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, at: torch.Tensor) -> Any:
        y = (x.t() @ w).exp()
        return torch.cat([y, y], dim=1), y.argmax(), torch.nn.functional.embedding(at, w)

    claims = {
        "exp": Claim(torch.exp),
        "matmul": Claim(torch.matmul),
        "cat": Claim(torch.cat),
        "argmax": Claim(torch.argmax),
        "nn.functional.embedding": Claim(torch.nn.functional.embedding),
    }
    program = verified(f, **claims)
    x, w = torch.rand(4, 3), torch.rand(4, 5, requires_grad=True)
    at = torch.tensor([1, 2])
    for given in (x, x.bfloat16(), torch.rand(3, 4).t()):
        args = given, w.to(given.dtype), at
        torch.testing.assert_close(program(*args), f(*args))


def test_backward_calls_are_compared_with_their_bodies() -> None:
    def forward(x: torch.Tensor) -> Any:
        return (y := x.exp()), (y,)

    def backward(saved: Any, grad: torch.Tensor) -> Any:
        return (grad * saved[0] * (2 if (grad == 1).all() else 1),)

    def right(saved: Any, grad: torch.Tensor) -> Any:
        return (grad * saved[0],)

    pair = Pair(forward, backward, meta=(forward, right))
    loss = verified(lambda x: x.exp().sum(), exp=Claim(torch.exp, pair=pair))(
        torch.rand(3, requires_grad=True)
    )
    with pytest.raises(PluginError, match=r"'acme' .* ran torch\.exp\.backward .* other values"):
        loss.backward()


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("wrong", ["forward", "backward"])
def test_a_pair_is_compared_with_the_operation_and_its_gradient(
    wrong: str, described: bool
) -> None:
    factor = {wrong: 1.01}

    def forward(x: torch.Tensor) -> Any:
        y = x.exp() * factor.get("forward", 1)
        return y, (x.exp(),)

    def backward(saved: Any, grad: torch.Tensor) -> Any:
        return (grad * saved[0] * factor.get("backward", 1),)

    pair = Pair(forward, backward, meta=(forward, backward) if described else None)
    x = torch.rand(3, requires_grad=True)
    program = verified(lambda x: x.exp().sum(), exp=Claim(torch.exp, pair=pair))
    message = {
        "forward": "result 0 has other values: 3 of 3, by up to 0.0.., as the operation computes",
        "backward": "its backward's gradient of 'x' has other values: 3 of 3",
    }
    with pytest.raises(PluginError, match=rf"'acme' .* ran torch.exp.forward .*{message[wrong]}"):
        program(x)
    factor.clear()
    right = verified(lambda x: x.exp().sum(), exp=Claim(torch.exp, pair=pair))
    right(x).backward()
    torch.testing.assert_close(x.grad, x.exp().detach())


def test_a_first_run_is_repeated_with_other_values() -> None:
    claim = Claim(lambda x: x.exp() if x.max() > 0.9 else x.exp() + 1)
    program = verified(lambda x: x.exp(), exp=claim)
    with pytest.raises(PluginError, match="4 of 4, by up to 1, in a second run with other values"):
        program(torch.linspace(0, 1, 4))


@pytest.mark.parametrize("place", ["claim", "region"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another thread"])
def test_drawing_random_numbers_is_found_where_values_are_compared(
    place: str, beside: bool
) -> None:
    def noted(run: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*inputs: torch.Tensor) -> Any:
            if beside:
                another.submit(torch.rand, ()).result()
            if wrong:
                torch.rand(())
            return run(*inputs)

        return kernel

    wrong = False
    plugin = Acme(exp=Claim(noted(torch.exp))) if place == "claim" else Fuser(noted)
    program = tj.jit(lambda x: x.exp() * 2, plugins=[plugin, "torch"], check=3)
    with ThreadPoolExecutor(1) as another:
        program(torch.rand(3))
        wrong = True
        with pytest.raises(PluginError, match="it drew random numbers, which the trace does not"):
            program(torch.rand(3))


def test_random_calls_draw_once() -> None:
    claim = Claim(torch.nn.functional.dropout)
    program = verified(
        lambda x: torch.nn.functional.dropout(x, 0.5), **{"nn.functional.dropout": claim}
    )
    x = torch.ones(100)
    torch.manual_seed(0)
    found = program(x), program(x)
    torch.manual_seed(0)
    for each in found:
        torch.testing.assert_close(each, torch.nn.functional.dropout(x, 0.5))


def test_sizes_that_are_symbols_are_any_number() -> None:
    program = tj.jit(lambda x: x.exp(), plugins=[Acme(exp=Claim(torch.exp)), "torch"], dynamic=True)
    for n in (3, 5):
        assert program(torch.rand(n, 2)).shape == (n, 2)


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (None, "it returned one value, a NoneType, not 2 values"),
        ((torch.ones(3), ()), "it returned 0 values, not 1 values"),
        ((torch.ones(3), (None,)), "result 1 is a NoneType, not a plain tensor"),
    ],
)
def test_a_forward_that_returns_nothing_of_what_it_saves_is_named(
    returned: Any, problem: str
) -> None:
    def meta(x: torch.Tensor) -> Any:
        return x.exp(), (x,)  # saved is the argument itself

    def backward(saved: Any, grad: torch.Tensor) -> Any:
        return (grad * saved[0].exp(),)

    pair = Pair(lambda x: returned, backward, meta=(meta, backward))
    program = jitted(lambda x: x.exp().sum(), exp=Claim(torch.exp, pair=pair))
    with pytest.raises(PluginError, match=rf"'acme' .* ran torch\.exp\.forward .*{problem}"):
        program(torch.rand(3, requires_grad=True))


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_both_halves_of_a_pair_are_compared(half: str) -> None:
    def forward(x: torch.Tensor) -> Any:
        y = x.exp()
        return (y.double() if half == "forward" else y), (y,)

    def backward(saved: Any, grad: torch.Tensor) -> Any:
        gradient = grad * saved[0]
        return (gradient.double() if half == "backward" else gradient,)

    def right_forward(x: torch.Tensor) -> Any:
        y = x.exp()
        return y, (y,)

    def right_backward(saved: Any, grad: torch.Tensor) -> Any:
        return (grad * saved[0],)

    pair = Pair(forward, backward, meta=(right_forward, right_backward))
    program = jitted(lambda x: x.exp().sum(), exp=Claim(torch.exp, pair=pair))
    x = torch.rand(3, requires_grad=True)
    with pytest.raises(PluginError, match=r"'acme' .* ran torch\.exp.*has dtype f64, not f32"):
        program(x).backward()
