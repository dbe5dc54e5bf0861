"""Programs of the scoreboard: each shows a known bug of some compiler.

A program is on the board if a call shows the bug, even if it is mended by now.
"""

from __future__ import annotations

import torch
from tj_conformance.programs.aliasing import Program
from tj_conformance.programs.cases import Board
from tj_conformance.programs.scenes import (
    base_and_row,
    one,
    overlapping,
    pair,
    rows,
    same,
    storage_only,
    viewed,
)
from torch.library import EffectType, _register_effectful_op

case = Board()
known, known_stateful = case.known, case.known_stateful

OURS = "found here"


# --------------------------------------------------------------------------- layouts


def around(new):
    """Scene of a tensor, then two views of another base."""
    base = new(2, 2)
    b = new(2, 2)
    return new.scene(b, base.view(2, 2), base.view(-1).view(2, 2), watched=(base,))


def double_0d(new):
    return new.scene(new(dtype=torch.float64))


def vector(new):
    return new.scene(new(5))


def detached_alias(new):
    x = new(2, 3)
    return new.scene(x, x.detach())


def square_twice(new):
    x = new(2, 2)
    return new.scene(x, x, new(2, 2))


def weight_needs_a_gradient(new):
    return new.scene(new(2, 3), new(2, 3).detach().requires_grad_())


def vector_and_tail(new):
    t = new(5)
    return new.scene(t, t[1:])


def overlapping_and_other(new):
    base = new(4)
    return new.scene(base[:3], base[1:], new(3), watched=(base,))


class Marked(torch.Tensor):
    """Subclass without methods."""


def marked(new):
    x, y = pair(new).args
    return new.scene(x.as_subclass(Marked), y)


# --------------------------------------------------------------------------- an operator


@torch.library.custom_op("tj_scoreboard::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    """Custom operator that copies, marked as effectful: the order of its calls counts."""
    return x.clone()


noted.register_fake(torch.empty_like)
noted.register_autograd(lambda ctx, grad: grad)
_register_effectful_op(noted._opoverload, EffectType.ORDERED)


# --------------------------------------------------------------------------- programs


@known("AOTAutograd, synthetic base", kind="inner", layouts=(around,))
def outputs_are_swapped(b, a, c):
    z = b + 1
    c.mul_(2)
    t, u = a + c, a * c
    return t.view(-1), t.unsqueeze(0), u.view(-1), u.unsqueeze(0), z


@known("AOTAutograd, synthetic base", kind="inner", layouts=(around,))
def one_intermediate_with_two_views(b, a, c):
    z = b + 1
    c.mul_(2)
    t = a + c
    return t.view(-1), t.unsqueeze(0), z


@known("AOTAutograd, dedupe", kind="inner", layouts=(square_twice,))
def duplicate_and_view_of_output(a, b, c):
    a.t_()
    z = c * 2
    return z, z.view(-1), a + b


@known("PyTorch issue 198095", layouts=(rows, overlapping))
def offset_of_a_view_is_lost(x, y):
    x.add_(100)
    return y[0]


@known("PyTorch issue 198095", layouts=(vector,))
def offset_of_a_slice_is_lost(x):
    t = x[1:]
    x.add_(100)
    return t[0]


@known("PyTorch issue 198095", layouts=(vector_and_tail,))
def offset_of_a_tail_is_lost(x, tail):
    x.add_(100)
    return tail[0]


@known("AOTAutograd, dedupe", layouts=(same,))
def cancelling_metadata(x, y):
    x.t_()
    u = x * 1
    y.t_()
    return u, y * 1


@known("AOTAutograd, dedupe", kind="leaf", layouts=(same, same))
def grad_mode_beside_duplicates(x, y):
    z = x * y
    x.detach().mul_(2)
    torch.set_grad_enabled(False)
    return z


@known("AOTAutograd, synthetic base", layouts=(overlapping, overlapping))
def grad_mode_beside_overlapping(x, y):
    z = x * y
    x.mul_(2)
    torch.set_grad_enabled(False)
    return z


@known("AOTAutograd, effect tokens", kind="inner", layouts=(square_twice,))
def effect_beside_duplicates(a, b, c):
    z = noted(c)
    a.mul_(2)
    return z * b


@known("AOTAutograd, effect tokens", kind="inner", layouts=(overlapping_and_other,))
def effect_beside_overlapping(a, b, c):
    z = noted(c)
    a.mul_(2)
    return z * b


@known("AOTAutograd, versions", layouts=(one,))
def transposed_there_and_back(x):
    x.t_()
    x.t_()
    return x * 2


@known("aot_function: no error", kind="leaf", raises=("leaf",))
def write_to_a_leaf(x, y):
    x.mul_(2)
    return x * 3


@known("AOTAutograd, versions")
def data_has_its_own_version(x, y):
    x.data.mul_(2)
    return x + y


@known("AOTAutograd, versions")
def one_write_is_one_version(x, y):
    x.mul_(2)
    return x + y


@known("AOTAutograd, not replayed", kind="inner")
def detached_argument(x, y):
    x.detach_()
    return x * y


@known("AOTAutograd, not replayed")
def argument_needs_a_gradient(x, y):
    x.requires_grad_()
    return x * y


@known("PyTorch issue 139789", layouts=(pair, overlapping))
def compiled_apart_called_overlapping(x, y):
    x.add_(1)
    return x * y.sum(), y * 1


@known("AOTAutograd, synthetic base", kind="leaf", layouts=(detached_alias,))
def stale_saved_value(x, y):
    z = x * x
    y.mul_(2)
    return z


@known("AOTAutograd, synthetic base", layouts=(storage_only,))
def versions_without_a_base(x, y):
    x.add_(1)
    return x + 1, y * 2


@known("AOTAutograd, synthetic base", layouts=(base_and_row,))
def returned_argument_shares_memory(x, y):
    x.add_(1)
    return y, x


@known("torch.compile, CPU scalars", layouts=(double_0d,))
def scalar_argument_is_written(x):
    x.mul_(3)
    return x * x


@known("Inductor", layouts=(vector,))
def shifted_by_one(x):
    x[1:] = x[:-1].clone()
    return x + 1


@known("PyTorch issue 90507")
def view_then_in_place_view(x, y):
    z = x * 2
    v = z.unsqueeze(0)
    z.t_()
    return v, z, z.unsqueeze(0)


@known("PyTorch issue 118739", kind="inner", layouts=(one,))
def backward_of_one_chunk_then_another(x):
    return x.unbind(0)


@known("AOTAutograd, intermediates", kind="inner")
def view_made_without_grad(x, y):
    z = x * 2
    with torch.no_grad():
        v = z.view(-1)
    return z.sum(), v


@known("AOTAutograd, in-place views", kind="inner", layouts=(one,))
def transposed_argument_has_its_grad_fn(x):
    x.t_()
    return x * 2


@known("AOTAutograd, in-place views", kind="inner")
def in_place_view_is_no_view(x, y):
    z = x * 2
    z.t_()
    return z


@known(f"Dynamo, {OURS}")
def shape_under_a_second_name(x, y):
    z = x.clone()
    z.mul_(2).t_()
    return z, z.shape


@known(f"Dynamo, {OURS}", kind="leaf")
def attribute_view_without_grad(x, y):
    with torch.no_grad():
        v = x.T
    return v, x * y


@known(f"Dynamo, {OURS}")
def data_is_returned_as_written(x, y):
    d = x.data
    d.add_(1)
    return d, y * 2


@known(f"Dynamo, {OURS}", layouts=(viewed,))
def lerp_of_lists_is_one_write(x, y):
    torch._foreach_lerp_([x, y], [x + 1, y + 1], 0.5)
    return x + y


@known(f"Dynamo, {OURS}")
def text_of_an_exception(x, y):
    try:
        raise KeyError("key")
    except KeyError as error:
        return x + y, str(error)


@known(f"Dynamo, {OURS}")
def context_entered_by_hand(x, y):
    c = torch.no_grad()
    c.__enter__()
    z = x * y
    c.__exit__(None, None, None)
    return z, x + y


@known("AOTAutograd", kind="inner", layouts=(pair,))
def hidden_write_between_uses(x, y):
    z = x * 2
    w = z * z
    z.detach().mul_(3)
    return w, z


@known("AOTAutograd, non-differentiable views", kind="inner", layouts=(storage_only,))
def views_of_other_bases(x, y):
    y.add_(1)
    return x * 2, y


@known("AOTAutograd, several dtypes", layouts=(base_and_row,))
def written_as_another_type(x, y):
    y.view(torch.int32).zero_()
    return x * 2


@known("AOTAutograd, frozen storage", layouts=(pair,))
def written_after_set_(x, y):
    old = x.view(-1)
    x.set_(y)
    old.mul_(2)
    return old, x


@known("AOTAutograd, storage out of bounds", layouts=(pair,))
def grown_and_filled(x, y):
    x.resize_(3, 4)
    x.fill_(2)
    return x + 1


@known("AOTAutograd", kind="inner", create_graph=True)
def gradients_of_gradients(x, y):
    return x * x * y


@known(
    "lightning-thunder: stale entry",
    layouts=(
        lambda new: new.scene(new(2, 3), None, ()),
        lambda new: new.scene(new(2, 3), 0, (0,)),
    ),
)
def none_then_zero(x, order, repeats):
    return torch.linalg.norm(x[0], ord=order), x[0, 0].repeat(repeats)


@known("lightning-thunder: gradients lost", kind="inner")
def tensors_in_a_list(x, y):
    return torch.vstack([x, y]), torch.hstack([y, y]), torch.column_stack([y, y])


@known(
    "lightning-thunder: gradients lost",
    kind="inner",
    layouts=(lambda new: new.scene(new(2, 3), (new(2, 3), new(3))),),
)
def state_in_a_tuple(x, state):
    hidden, cell = state
    return hidden * x + cell, cell * 2


@known("lightning-thunder: no requires_grad", kind="inner")
def rounding_needs_a_gradient(x, y):
    return x.ceil(), y.floor(), torch.bernoulli(x / x.detach())


@known("lightning-thunder: plain tuple")
def return_types(x, y):
    return x.max(1)


@known_stateful("lightning-thunder: baked in", layouts=(one, one))
def attribute_that_counts():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0

        def forward(self, x):
            self.n = self.n + 1
            return x * self.n

    module = Counts()
    return Program(module, lambda: module.n)


@known_stateful("lightning-thunder: not updated", layouts=(lambda new: new.scene(new(2, 3, 4)),))
def running_statistics():
    module = torch.nn.InstanceNorm1d(3, track_running_stats=True)
    return Program(module, lambda: dict(module.named_buffers()))


@known("lightning-thunder: traced as a tensor", layouts=(pair, marked, pair))
def subclass_after_a_tensor(x, y):
    return x + 1, y * 2


@known("lightning-thunder: traced as a tensor", layouts=(marked, pair))
def subclass_is_written(x, y):
    x.add_(1)
    return x * y


@known("AOT autograd, found here", kind="inner", layouts=(one,))
def view_of_a_view_without_gradients(x):
    with torch.no_grad():
        y = x.view(-1).view(x.shape)
    return y, (y.sin() * x).sum()


@known("AOT autograd, found here", layouts=(weight_needs_a_gradient,))
def write_that_brings_a_gradient(x, w):
    view = x[1:]
    x.mul_(w)
    return (view.sin() * 2 + view).sum(), x, view


@known("PyTorch's fake kernels, found here", layouts=(lambda new: new.scene(new(3, 4)),))
def table_of_transposed_places(x):
    return x[:, 0][(x.t() > 0).long()]


@known("PyTorch's fake kernels, found here", layouts=(lambda new: new.scene(new(4, 3)),))
def sizes_of_bags_up_to_a_last_offset(x):
    places, offsets = torch.tensor([0, 3, 1]), torch.tensor([0, 2, 3])
    return torch.embedding_bag(x, places, offsets, False, 1, False, None, True)[2].shape
