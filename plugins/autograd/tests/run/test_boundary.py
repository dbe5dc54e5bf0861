"""The boundary to PyTorch's autograd: all uses of a backward, as in eager."""

from __future__ import annotations

import builtins
import gc
import keyword
import threading
import weakref
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.host.jitted import jitted_of
from torch import nn
from torch.nn import functional as F


def f(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = torch.tanh(x @ w)
    return y.sum(0), (y * x.sum()).exp(), (x > 0).sum()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 3, requires_grad=True), torch.randn(3, 5, requires_grad=True)


@pytest.fixture
def jitted() -> Any:
    return tj.jit(f)


def programs(jitted: Any) -> set[str]:
    return set(jitted_of(jitted).last.compilation.others)


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_some_tangents(jitted: Any, which: tuple[int, ...]) -> None:
    """An input that the used outputs do not depend on has no gradient, not a zero one."""

    def run(fn: Any) -> Any:
        x, w = inputs()
        outs = fn(x, w)
        sum(outs[i].sum() for i in which).backward()
        return x.grad, w.grad

    for _ in range(2):
        for mine, theirs in zip(run(jitted), run(f), strict=True):
            assert torch.equal(mine, theirs)


def test_the_backward_of_some_tangents_runs_what_they_need() -> None:
    def g(x: torch.Tensor, w: torch.Tensor) -> Any:
        return (x @ w).sin(), (x * 2).exp().cos()

    jitted = tj.jit(g)
    x, w = inputs()
    jitted(x, w)[1].sum().backward()
    ran = {call.parent for call in tj.last_trace(jitted, "backward.1").calls}
    assert "exp" in ran
    assert not {"matmul", "sin"} & ran


def test_none_stays_none() -> None:
    def g(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2, y * 3

    x, y = inputs()
    a, b = tj.jit(g)(x, y)
    assert torch.autograd.grad(a.sum(), [x, y], allow_unused=True)[1] is None
    b.sum().backward()
    assert x.grad is None
    assert y.grad is not None


@pytest.mark.parametrize("layout", ["expanded", "transposed", "sliced"])
def test_tangents_of_any_layout(jitted: Any, layout: str) -> None:
    def tangent(out: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        if layout == "expanded":
            return torch.randn(()).expand_as(out)
        if layout == "transposed":
            return torch.randn(out.shape[::-1]).t()
        return torch.randn(out.shape[0], 2 * out.shape[1])[:, ::2]

    def run(fn: Any) -> Any:
        x, w = inputs()
        out = fn(x, w)[1]
        return torch.autograd.grad(out, [x, w], tangent(out))

    for mine, theirs in zip(run(jitted), run(f), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()


def test_no_more_than_a_few_backward_programs(jitted: Any) -> None:
    x, w = inputs()
    for n in range(2, 20):
        out = jitted(x, w)[1]
        torch.autograd.grad(out, x, torch.randn(4, 5 * n)[:, ::n])
    assert len([name for name in programs(jitted) if name.startswith("backward.2")]) == 9


def test_backward_twice(jitted: Any) -> None:
    x, w = inputs()
    loss = jitted(x, w)[0].sum()
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    loss.backward()
    assert torch.equal(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradients_accumulate(jitted: Any) -> None:
    x, w = inputs()
    for _ in range(3):
        jitted(x, w)[0].sum().backward()
    reference, other = inputs()
    for _ in range(3):
        f(reference, other)[0].sum().backward()
    assert torch.equal(x.grad, reference.grad)


def test_one_output_after_the_other(jitted: Any) -> None:
    """Saved values of both outputs are freed with the first
    backward, unless the graph is retained.
    """

    def run(fn: Any, retain: bool) -> Any:
        x, w = inputs()
        a, b, _ = fn(x, w)
        a.sum().backward(retain_graph=retain)
        b.sum().backward()
        return x.grad

    torch.testing.assert_close(run(jitted, True), run(f, True))
    for fn in (jitted, f):
        with pytest.raises(RuntimeError, match="a second time"):
            run(fn, False)


def test_backward_in_other_threads(jitted: Any) -> None:
    x, w = inputs()
    f(x, w)[0].sum().backward()
    expected, found = x.grad, []
    leaves = [inputs() for _ in range(6)]
    losses = [jitted(*pair)[0].sum() for pair in leaves]

    def work(i: int) -> None:
        losses[i].backward()
        found.append(torch.equal(leaves[i][0].grad, expected))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6


def test_hooks_on_tensors_and_their_order() -> None:
    def run(fn: Any) -> Any:
        seen: list[str] = []
        x, w = inputs()
        x.register_hook(lambda g: seen.append("x") or g * 2)
        w.register_hook(lambda g: seen.append("w"))
        x.register_post_accumulate_grad_hook(lambda t: seen.append("accumulated"))
        out = fn(x, w)[0]
        out.register_hook(lambda g: seen.append("out") or g + 1)
        out.sum().backward()
        return sorted(seen[1:]), seen[0], x.grad, w.grad

    mine, theirs = run(tj.jit(f)), run(f)
    assert mine[:2] == theirs[:2]
    assert torch.equal(mine[2], theirs[2])
    assert torch.equal(mine[3], theirs[3])


def test_hooks_on_parameters_and_modules() -> None:
    def run(wrap: Any) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        seen: list[Any] = []
        model[0].weight.register_hook(lambda g: seen.append(g.shape) or g * 3)
        compiled = wrap(model)
        compiled(inputs()[0]).sum().backward()
        return seen, [p.grad for p in model.parameters()]

    mine, theirs = run(tj.jit), run(lambda m: m)
    assert mine[0] == theirs[0]
    assert all(torch.equal(a, b) for a, b in zip(mine[1], theirs[1], strict=True))


def test_a_saved_input_written_before_the_backward(jitted: Any) -> None:
    def run(fn: Any) -> None:
        x, w = inputs()
        y = x * 1
        loss = fn(y, w)[0].sum()
        with torch.no_grad():
            w.add_(1)
        loss.backward()

    for fn in (f, jitted):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run(fn)


def test_a_saved_output_written_before_the_backward() -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp()

    for fn in (g, tj.jit(g)):
        out = fn(inputs()[0])
        total = out.sum()
        with torch.no_grad():
            out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()


def test_saved_tensor_hooks_see_what_is_saved(jitted: Any) -> None:
    packed: list[torch.Tensor] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        packed.append(t)
        return t

    x, w = inputs()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = jitted(x, w)[0].sum()
    loss.backward()
    assert packed
    assert x.grad is not None


def test_saved_tensor_hooks_see_nothing_of_compiling(jitted: Any) -> None:
    def packed() -> int:
        seen: list[torch.Tensor] = []
        x, w = inputs()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
            loss = jitted(x, w)[0].sum()
            loss.backward()
        return len(seen)

    assert packed() == packed()


def test_what_is_saved_is_freed_with_the_graph(jitted: Any) -> None:
    """Once the backward has run, nothing keeps what was saved for it."""
    kept: list[Any] = []
    x, w = inputs()

    def pack(t: torch.Tensor) -> torch.Tensor:
        kept.append(weakref.ref(t))
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = jitted(x, w)[1].sum()
    hidden = [r for r in kept if r() is not None and r() is not x and r() is not w]
    assert hidden
    loss.backward()
    del loss
    gc.collect()
    assert all(r() is None for r in hidden)


def test_entries_without_gradients_do_without_a_boundary(jitted: Any) -> None:
    x, w = inputs()
    with torch.no_grad():
        out = jitted(x, w)[0]
    assert not out.requires_grad
    assert programs(jitted) == set()
    assert jitted(x.detach(), w.detach())[0].grad_fn is None
    assert jitted(x, w)[0].grad_fn is not None


def test_only_what_needs_a_gradient_crosses() -> None:
    def g(x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
        return (x * y).sum() * n

    x, y = inputs()[0], torch.randn(4, 3)
    out = tj.jit(g)(x, y, 3)
    assert len(out.grad_fn.next_functions) == 1
    out.backward()
    assert torch.equal(x.grad, y * 3)


def test_train_steps_with_an_optimizer() -> None:
    def train(wrap: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
        compiled = wrap(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        data = torch.randn(6, 3)
        for _ in range(4):
            optimizer.zero_grad()
            F.mse_loss(compiled(data), torch.ones(6, 2)).backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    for mine, theirs in zip(train(tj.jit), train(lambda m: m), strict=True):
        assert torch.equal(mine, theirs)


def test_anomaly_mode_and_the_error_of_a_backward_without_gradients(jitted: Any) -> None:
    x, w = inputs()
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        jitted(x, w)[0].sum().backward()
    assert x.grad is not None
    with pytest.raises(RuntimeError, match="does not require grad"):
        jitted(x.detach(), w.detach())[0].sum().backward()


def test_a_weight_used_twice_under_autocast() -> None:
    """Eager casts it once and adds its gradients in low precision; tj adds them in full."""

    def g(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return ((x @ w).relu() @ w).float().sin().sum()

    def run(fn: Any) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
        out = fn(x, w)
        out.backward()
        assert w.grad is not None
        return out, w.grad

    (mine, gradient), (theirs, expected) = run(tj.jit(g)), run(g)
    assert torch.equal(mine, theirs)
    torch.testing.assert_close(gradient, expected, rtol=2**-7, atol=2**-5)


def test_the_order_of_hooks_is_eagers_for_what_comes_before_and_after(jitted: Any) -> None:
    """Around the one node that the program is: modules, tensors, gradients, in this order."""

    def run(fn: Any) -> list[str]:
        seen: list[str] = []
        layer = nn.Linear(3, 3)
        layer.register_full_backward_hook(lambda *_: seen.append("module"))
        x, w = inputs()
        y = layer(x)
        y.register_hook(lambda g: seen.append("argument"))
        x.register_post_accumulate_grad_hook(lambda t: seen.append("x"))
        torch.autograd.graph.register_multi_grad_hook((y, w), lambda gs: seen.append("both"))
        out = fn(y, w)[0]
        out.register_hook(lambda g: seen.append("first"))
        out.register_hook(lambda g: seen.append("second"))
        out.retain_grad()
        out.sum().backward()
        assert out.grad is not None
        return seen

    assert run(jitted) == run(f)


def test_double_backward_in_another_thread(jitted: Any) -> None:
    def run(fn: Any) -> list[torch.Tensor]:
        x, w = inputs()
        found: list[torch.Tensor] = []

        def work() -> None:
            (g,) = torch.autograd.grad(fn(x, w)[0].sum(), x, create_graph=True)
            found.extend(torch.autograd.grad((g**2).sum(), [x, w]))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found

    mine, theirs = run(jitted), run(f)
    assert len(mine) == 2
    assert all(map(torch.equal, mine, theirs))


def test_gradients_accumulate_in_place(jitted: Any) -> None:
    def run(fn: Any) -> tuple[bool, torch.Tensor, torch.Tensor]:
        x, w = inputs()
        x.grad = torch.ones_like(x)
        before = x.grad
        loss = fn(x, w)[0].sum()
        loss.backward(retain_graph=True, inputs=[x])
        assert w.grad is None
        loss.backward()
        return x.grad is before, x.grad, w.grad

    mine, theirs = run(jitted), run(f)
    assert mine[0] == theirs[0]
    assert torch.equal(mine[1], theirs[1])
    assert torch.equal(mine[2], theirs[2])


def test_a_node_is_called_and_knows_the_next(jitted: Any) -> None:
    """As eager's nodes; what it has saved goes by no names."""

    def run(fn: Any) -> Any:
        x = inputs()[0]
        y = fn(x * 2)
        assert y.grad_fn.next_functions[0][0].name() == "MulBackward0"
        return y.grad_fn(torch.ones_like(x))

    mine, theirs = run(tj.jit(torch.exp)), run(torch.exp)
    assert torch.equal(mine, theirs)
    assert not hasattr(jitted(*inputs())[0].grad_fn, "_saved_self")


def test_a_program_whose_inputs_get_no_gradient() -> None:
    """The result requires one, and the gradient of each input is None, as in eager."""
    x = torch.rand(3, 3, requires_grad=True)
    for f in (lambda x: torch.norm(x, 0), lambda x: (torch.norm(x, 0), x * 2)):
        jitted = tj.jit(f, plugins=["torch", "autograd"])
        mine, eager = jitted(x), f(x)
        first = mine[0] if isinstance(mine, tuple) else mine
        other = eager[0] if isinstance(eager, tuple) else eager
        assert first.requires_grad
        assert other.requires_grad
        got = torch.autograd.grad(first, x, allow_unused=True)
        assert (got[0] is None) == (torch.autograd.grad(other, x, allow_unused=True)[0] is None)


def test_a_compiled_node_takes_as_many_gradients_as_there_are_results() -> None:
    x = torch.ones(2, requires_grad=True)
    node = tj.jit(lambda x: x.sin())(x).grad_fn
    for tangents in ((), (x.detach(), x.detach())):
        with pytest.raises(TypeError, match=f"expected 1 arguments, got {len(tangents)} instead"):
            node(*tangents)


def test_what_a_backward_warns_of_is_warned_of() -> None:
    x = torch.zeros((), requires_grad=True)
    y = tj.jit(lambda x: torch._C._nn._test_warn_in_autograd(x))(x)
    with pytest.warns(UserWarning, match="Warn from backward"):
        y.backward()


def _detached_by_the_caller(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def _detached_inside(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x * 2
    y = h.sin()
    h.detach_()
    return y, h


def test_what_is_detached_in_place_is_no_saved_value_any_more() -> None:
    leaf = torch.ones(2, requires_grad=True)
    for wrap in (lambda f: f, tj.jit):
        x = leaf * 1
        y = wrap(_detached_by_the_caller)(x)
        x.detach_()
        with pytest.raises(RuntimeError, match="has been detached in-place"):
            y.sum().backward()
        y, _ = wrap(_detached_inside)(leaf)
        with pytest.raises(RuntimeError, match="has been detached in-place"):
            y.sum().backward()


def test_a_leaf_that_needs_no_gradient_any_more_was_saved_all_the_same() -> None:
    found = []
    for wrap in (lambda f: f, tj.jit):
        x, w = (torch.ones(2, requires_grad=True) for _ in range(2))
        y = wrap(lambda x, w: (x * w).sin())(x, w)
        x.requires_grad_(False)
        y.sum().backward()
        found.append((x.grad, w.grad))
    assert found[0][0] is None
    assert found[1][0] is None
    assert torch.equal(found[0][1], found[1][1])


BUILTINS = [n for n in dir(builtins) if n[0] != "_" and not keyword.iskeyword(n)]


@pytest.mark.parametrize("dynamic", [None, True])
def test_values_with_the_names_of_builtin_functions(dynamic: bool | None) -> None:
    """Programs that tj writes call builtin functions by other names."""
    scope: dict[str, Any] = {"torch": torch}
    text = f"def f({', '.join(BUILTINS)}):\n    Warning.mul_(2)\n"
    text += "    sum = zip.sin() * len\n"
    text += f"    type = torch.stack([{', '.join(BUILTINS)}]).exp()\n"
    text += "    return type.sum(0), sum, map.view(-1), tuple[0], type[3:].cos()\n"
    exec(text, scope)

    def outcome(program: Any) -> list[Any]:
        torch.manual_seed(0)
        values = {n: torch.randn(3, requires_grad=n not in ("Warning", "map")) for n in BUILTINS}
        results = program(**values)
        sum(r.square().sum() for r in results if r.requires_grad).backward()
        return [*results, values["Warning"], *(v.grad for v in values.values())]

    jitted = tj.jit(scope["f"], dynamic=dynamic)
    for _ in range(2):
        for mine, eager in zip(outcome(jitted), outcome(scope["f"]), strict=True):
            assert mine is eager or torch.equal(mine, eager)
