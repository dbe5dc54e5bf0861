"""Programs with functions inside: branches, loops, Functions that bring a backward, operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as tmap
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.autograd.function import once_differentiable

__all__ = [
    "BRANCHES",
    "DECLINED",
    "FUNCTIONS",
    "OPERATORS",
    "REFUSED",
    "SCANS",
    "Program",
    "inputs",
    "results",
]

Tensor = torch.Tensor
Program = Callable[[Tensor, Tensor], Any]

# ---------------------------------------------------------------------------- functions


class Scaled(torch.autograd.Function):
    """Saves arguments, a result and a number; one output cannot have a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, k: float) -> Any:
        y = x @ w
        index = y.argmax()
        ctx.save_for_backward(x, w, y)
        ctx.mark_non_differentiable(index)
        ctx.k = k
        return y * k, index

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        x, w, y = ctx.saved_tensors
        back = g * ctx.k * torch.cos(y)
        left = back @ w.t() if ctx.needs_input_grad[0] else None
        return left, x.t() @ back if ctx.needs_input_grad[1] else None, None


class SetUp(torch.autograd.Function):
    """Returns a gradient that is wrong on purpose, and that no other backward gives; writes in
    place.
    """

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        y = x.clone()
        y[y < 0] = 0
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        back = g.clone()
        back[x < 0] = 7
        return back


class Two(torch.autograd.Function):
    """Two outputs, of which programs use one: the tangent of the other is zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        return x.exp(), x.sum(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x + h * 2 + (h == 0) * 3


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(3)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 30


class Through(torch.autograd.Function):
    """Returns its argument, as a straight-through estimator does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


class Viewing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 5 * g.view(3, 4)


class Noted(torch.autograd.Function):
    """Writes to a saved tensor in its backward, which eager's caller sees."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.w = w
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        ctx.w.add_(1)
        return g * 2, None


def scaled(x: Tensor, w: Tensor) -> Any:
    y, index = Scaled.apply(x.sin(), w, 3.0)
    return y.cos(), index


def scaled_one_argument(x: Tensor, w: Tensor) -> Any:
    return Scaled.apply(x.detach(), w, 0.5)[0]


def set_up(x: Tensor, w: Tensor) -> Any:
    return SetUp.apply(x @ w) * 2


def first_of_two(x: Tensor, w: Tensor) -> Any:
    return Two.apply(x * 2)[0] @ w


def second_of_two(x: Tensor, w: Tensor) -> Any:
    return Two.apply(x * 2)[1] @ w


def both_of_two(x: Tensor, w: Tensor) -> Any:
    a, b = Two.apply(x @ w)
    return a + b


def of_a_function_twice(x: Tensor, w: Tensor) -> Any:
    return Once.apply(Once.apply(x) @ w)


def quantized(x: Tensor, w: Tensor) -> Any:
    return Through.apply(x * w.sum()).sum()


def viewing(x: Tensor, w: Tensor) -> Any:
    return Viewing.apply(x @ w) * 2


def of_one_function(x: Tensor, w: Tensor) -> Any:
    return Once.apply(x) @ w


def dirty(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    return Dirty.apply(y) + y


class DirtyFirst(torch.autograd.Function):
    """Two outputs, one of them its argument, which is saved after the write."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Any:
        double = x * 2
        x.sin_().mul_(3)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, w)
        return x, double @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * x + h @ w.t(), x.t() @ h


def dirty_of_two(x: Tensor, w: Tensor) -> Any:
    y = (x @ w) + 1
    a, b = DirtyFirst.apply(y, w)
    return y * a + b


def dirty_twice(x: Tensor, w: Tensor) -> Any:
    return Dirty.apply(Dirty.apply(x @ w)) @ w


def dirty_without_a_gradient(x: Tensor, w: Tensor) -> Any:
    return DirtyFirst.apply(x.detach() * 2, w)[0] * x


def dirty_alone(y: Tensor) -> Any:
    return Dirty.apply(y)


def dirty_returned(x: Tensor, w: Tensor) -> Any:
    return Dirty.apply(x @ w)


def dirty_of_a_view(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    z = y.t()
    return Dirty.apply(y) * 2 + z.t()


def dirty_and_written(x: Tensor, w: Tensor) -> Any:
    return Dirty.apply(x @ w).add_(1) * 2


def through_returned(x: Tensor, w: Tensor) -> Any:
    return Through.apply(x @ w)


def view_returned(x: Tensor, w: Tensor) -> Any:
    return Viewing.apply(x @ w)


def saved_and_dirty(x: Tensor, w: Tensor) -> Any:
    return Dirty.apply((x @ w).exp()) * 2


def through_and_written(x: Tensor, w: Tensor) -> Any:
    return Through.apply(x @ w).add_(1) * 2


def dirty_argument(x: Tensor, w: Tensor) -> Any:
    return Dirty.apply(x) @ w


# ---------------------------------------------------------------------------- operators


@torch.library.custom_op("tj_conformance::scale", mutates_args=())
def scale(x: Tensor, k: float) -> Tensor:
    return x * k


@scale.register_fake
def _(x: Tensor, k: float) -> Tensor:
    return torch.empty_like(x)


def _scale_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0], output)
    ctx.k = inputs[1]


def _scale_backward(ctx: Any, g: Tensor) -> Any:
    x, y = ctx.saved_tensors
    return g * ctx.k + 0.25 * x + 0.5 * y, None


scale.register_autograd(_scale_backward, setup_context=_scale_context)


@torch.library.custom_op("tj_conformance::split", mutates_args=())
def split(xs: list[Tensor], n: int) -> tuple[Tensor, Tensor]:
    return torch.cat(xs)[:n].clone(), torch.cat(xs)[n:].clone()


@split.register_fake
def _(xs: list[Tensor], n: int) -> tuple[Tensor, Tensor]:
    whole = torch.cat(xs)
    return torch.empty_like(whole[:n]), torch.empty_like(whole[n:])


def _split_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.sizes = [len(x) for x in inputs[0]]


def _split_backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
    return [3 * part.clone() for part in torch.cat([g, h]).split(ctx.sizes)], None


split.register_autograd(_split_backward, setup_context=_split_context)


def custom(x: Tensor, w: Tensor) -> Any:
    return torch.ops.tj_conformance.scale(x @ w, 3.0).sin() + scale(x, 2.0)


def custom_of_lists(x: Tensor, w: Tensor) -> Any:
    return torch.ops.tj_conformance.split([x, w, x.sin()], 4)[0] * 2


# ---------------------------------------------------------------------------- operations


def branches(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    return torch.cond(y.sum() > 0, lambda a: a.sin() @ w, lambda a: a.cos() @ w, (y,)) * 2


def nested_branches(x: Tensor, w: Tensor) -> Any:
    def inner(a: Tensor) -> Any:
        return torch.cond(a.mean() > 0, lambda b: b @ w.cos(), lambda b: b @ w, (a,))

    return torch.cond(x.sum() > 0, lambda a: a.sin() @ w, lambda a: inner(a) @ w, (x,))


def mapped(x: Tensor, w: Tensor) -> Any:
    # PyTorch annotates what is mapped as a TypeVarTuple, which no value has.
    return tmap(lambda row, v: (row @ v).sin(), x, w).cos()  # type: ignore[arg-type]


def scanned(x: Tensor, w: Tensor) -> Any:
    def step(carry: Tensor, row: Tensor) -> Any:
        return carry + row @ w, carry * row.sum()

    last, rows = scan(step, torch.zeros(4), x, dim=0)
    return last.sin(), rows * 2


def scanned_in_reverse(x: Tensor, w: Tensor) -> Any:
    """A scan of two values each, one of which carries no gradient."""

    def step(carry: Any, row: Tensor) -> Any:
        total, count = carry
        return ((total * w.sum()).sin() + row, count + 1), (row * total, count * 2)

    start = x[0].cos(), torch.zeros(())
    (last, count), (rows, _) = scan(step, start, x, dim=0, reverse=True)
    return last * count, rows.exp()


def scanned_branches(x: Tensor, w: Tensor) -> Any:
    def step(carry: Tensor, row: Tensor) -> Any:
        taken = torch.cond(row.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (carry + row @ w,))
        return taken, carry * 1

    last, rows = scan(step, torch.zeros(4), x, dim=0)
    return last.sum() + rows.sum()


def summed_up(x: Tensor, w: Tensor) -> Any:
    return associative_scan(lambda a, b: a + b, x @ w, 0, combine_mode="generic").sin()


def recurrence(x: Tensor, w: Tensor) -> Any:
    """A linear recurrence, over pairs."""

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    pair = (x @ w).sigmoid(), x.sin()
    return associative_scan(combine, pair, 1, reverse=True, combine_mode="generic")[1] * 2


def looped(x: Tensor, w: Tensor) -> Any:
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, (a @ w).sin()), (ZERO, x))[1] * 2


def looped_by_data(x: Tensor, w: Tensor) -> Any:
    """A loop whose number of iterations depends on values."""
    return while_loop(lambda a: a.sum() < 100, lambda a: (a * 2 + 1,), ((x * x) @ w.abs(),))[0]


def looped_without_gradients(x: Tensor, w: Tensor) -> Any:
    doubled = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (ZERO, x.detach()))[1]
    return doubled * x @ w


ZERO = torch.tensor(0)


@torch.compiler.nested_compile_region
def block(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w)


def repeated(x: Tensor, w: Tensor) -> Any:
    return block(block(x, w), w)


FUNCTIONS = [
    scaled,
    scaled_one_argument,
    set_up,
    first_of_two,
    second_of_two,
    both_of_two,
    of_a_function_twice,
    quantized,
    viewing,
    dirty,
    dirty_of_two,
    dirty_without_a_gradient,
]
OPERATORS = [custom, custom_of_lists]
SCANS = [scanned, scanned_in_reverse, scanned_branches, summed_up, recurrence]
BRANCHES = [branches, nested_branches, mapped, repeated, looped, looped_without_gradients]

DECLINED = {
    dirty_returned: "writes",
    dirty_of_a_view: "writes",
    dirty_and_written: "writes",
    dirty_twice: "writes",
    through_returned: "returns what it is given",
    view_returned: "returns what it is given",
    # What it returns may be what it was given, memory and all, if it never runs.
    looped_by_data: "returns what it is given",
}
"""Programs left to PyTorch's autograd, each with a part of the reason in `tj.explain`."""

REFUSED = [saved_and_dirty, through_and_written, dirty_argument]
"""Programs that eager refuses: they write a saved value, a view that a Function made, or a leaf."""


# ---------------------------------------------------------------------------- running them


def inputs(scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Arguments that require grad; another ``scale`` takes other branches."""
    torch.manual_seed(0)
    x, w = torch.randn(3, 4) * scale, torch.randn(4, 4)
    return x.requires_grad_(), w.requires_grad_()


def results(fn: Any, scale: float = 1.0) -> list[Tensor | None]:
    """Results of ``fn``, and the gradients of its arguments."""
    x, w = inputs(scale)
    returned = fn(x, w)
    outs = list(returned) if isinstance(returned, tuple) else [returned]
    sum(o.sum() for o in outs if o.requires_grad).backward()
    return [*outs, x.grad, w.grad]
