"""Writes to the elements of one argument: visible to autograd, hidden from it, refused by it."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.programs.cases import Table, run_case
from tj_conformance.programs.scenes import one, pair, placed, viewed

case = Table()
LEAF = ("leaf",)  # eager refuses to write to a leaf that needs a gradient


# --------------------------------------------------------------------------- layouts


def transposed(new):
    base = new(3, 2)
    return new.scene(base.t(), new(3), watched=(base,))


def strided(new):
    base = new(4, 6)
    return new.scene(base[::2, 1::2], base[3, 3:], watched=(base, base[0]))


def expanded(new):
    base = new(3)
    return new.scene(base.expand(2, 3), new(3), watched=(base,))


def view_of_view(new):
    base = new(3, 2, 3)
    return new.scene(base[1].view(-1)[:6].view(2, 3), new(3), watched=(base, base[1]))


def interleaved(new):
    x, y = new(2, 3), new(3)
    return new.scene(None, x, 3, y, "mean", (y, 2.0), {"k": x.detach()})


def only_second_needs_grad(new):
    return new.scene(torch.ones(2, 3), new(3))


def scalars(new):
    return new.scene(new(), new())


def doubles_0d(new):
    return new.scene(new(dtype=torch.float64), new(dtype=torch.float64))


def empties(new):
    return new.scene(new(0, 3), new(3))


def integers(new):
    return new.scene(new(2, 3, dtype=torch.int64), new(3, dtype=torch.int64))


def booleans(new):
    return new.scene(new(2, 3) > 2, new(3) > 1)


def complexes(new):
    return new.scene(new(2, 3, dtype=torch.complex64), new(3, dtype=torch.complex64))


def half(new):
    return new.scene(new(2, 3, dtype=torch.bfloat16), new(3, dtype=torch.bfloat16))


EVERYWHERE = (pair, viewed, transposed, strided, view_of_view, empties, half, complexes)


# --------------------------------------------------------------------------- visible writes


@case("I1", "I2", "I3", "I20", "I21", "T:input data mutation", layouts=EVERYWHERE, raises=LEAF)
def mul_then_use(x, y):
    x.mul_(2)
    return x * 3


@case("I1", "I3", layouts=(pair, viewed, strided), raises=LEAF)
def returns_nothing(x, y):
    x.mul_(2)


@case("I1", "I2", layouts=(pair, viewed, transposed), raises=LEAF)
def written_input_is_returned(x, y):
    x.mul_(2)
    x.mul_(3)
    return x


@case("I1", layouts=(pair, viewed), raises=LEAF)
def written_input_twice_among_outputs(x, y):
    return x, x.mul_(y), y, x


@case("I1", layouts=(pair, viewed), raises=LEAF)
def both_are_written(x, y):
    x.mul_(2)
    y.add_(x.sum())
    return x * y


@case("I1", layouts=(pair,), raises=LEAF)
def chain(x, y):
    x.mul_(2).add_(y).relu_()


@case("I1", raises=LEAF)
def old_value_is_used(x, y):
    old = x * y
    x.add_(1)
    return old, x * old


@case("I1", raises=LEAF)
def swap(x, y):
    old = x.clone()
    x.copy_(y.expand_as(x))
    return old


@case("I1", layouts=(pair,), raises=LEAF)
def only_on_the_second_line(x, y):
    z = x + y
    z.mul_(2)
    x.copy_(z)
    return z


@case("I2", layouts=(integers, booleans), kinds=("plain",))
def whole_numbers(x, y):
    x.logical_xor_(y)
    return x, x + y


@case("I2", layouts=(scalars, doubles_0d), raises=LEAF)
def zero_dimensions(x, y):
    x.mul_(3)
    return x * x


@case("I1", layouts=(expanded,), raises=("plain", "leaf", "inner"))
def expanded_cannot_be_written(x, y):
    x.mul_(2)
    return x


@case("I1", layouts=(pair,), raises=LEAF)
def augmented(x, y):
    x += y
    x *= 2
    return x


@case("I1", layouts=(viewed, strided), raises=LEAF)
def through_a_view(x, y):
    row = x[0]
    row.mul_(3)
    return x.sum()


@case("I1", layouts=(viewed, strided), raises=LEAF)
def through_a_view_of_a_view(x, y):
    x.t()[1:].t().mul_(3)
    return x, x.sum()


@case("I1", layouts=(viewed,), raises=LEAF)
def base_written_view_read(x, y):
    column = x[:, 0]
    x.add_(10)
    return column * 2


@case("I1", layouts=(viewed,), raises=LEAF)
def view_written_other_view_read(x, y):
    flat, column = x.view(-1), x[:, 1]
    flat[1:3].mul_(2)
    return column, flat * 2


@case("I1", layouts=(viewed,), raises=LEAF)
def append_views(x, y):
    found = []
    for i in range(2):
        x[i].add_(i)
        found.append(x[i])
    return found


@case("I10", layouts=(only_second_needs_grad,))
def begins_to_need_a_gradient(x, y):
    x.add_(y)
    return x * 2


@case("I10", layouts=(only_second_needs_grad,))
def a_view_makes_it_need_a_gradient(x, y):
    x[0].mul_(y)
    return x


@case("I22", layouts=(interleaved,), raises=LEAF)
def nothing_and_numbers_between(nothing, x, n, y, word, nested, named):
    x.mul_(n)
    named["k"].add_(1)
    return nested, n, x * y, nothing, word, named["k"]


# --------------------------------------------------------------------------- hidden writes


@case("I4", "I19", "T:no_grad", layouts=(pair, viewed, strided))
def under_no_grad(x, y):
    with torch.no_grad():
        x.mul_(3)
    return x * x


@case("I4", layouts=(pair, viewed))
def under_no_grad_returned(x, y):
    with torch.no_grad():
        x.mul_(3)
        y.copy_(x[0])
    return x, y, x * y


@case("I4", layouts=(pair, viewed))
@torch.no_grad()
def all_under_no_grad(x, y):
    x.mul_(3)
    return x * y, x


@case("I19", layouts=(viewed,))
def view_written_under_no_grad(x, y):
    v = x.view(-1)
    with torch.no_grad():
        v.mul_(2)
    return v, x * y


@case("I19", layouts=(viewed,))
def view_made_and_written_under_no_grad(x, y):
    with torch.no_grad():
        v = x[1]
        v.mul_(2)
    return v, x * y


@case("I5", "T:no_grad", layouts=(pair, viewed, strided))
def through_detach(x, y):
    x.detach().mul_(3)
    return x * y


@case("I5", layouts=(pair, viewed))
def detach_of_a_view(x, y):
    d = x[0].detach()
    d.add_(1)
    return d, x * y


@case("I6", layouts=(pair, viewed, strided))
def through_data(x, y):
    x.data.mul_(2)
    return x + y


@case("I6", layouts=(pair,))
def data_is_kept(x, y):
    d = x.data
    d.add_(1)
    d.mul_(2)
    return d, x * x


@case("I4", "I5", "T:no_grad", layouts=(pair, viewed), raises=LEAF)
def hidden_and_visible(x, y):
    y.detach().add_(1)
    with torch.no_grad():
        x.add_(1)
    z = x * y
    x.mul_(2)
    return z * x


@case("I5", raises=LEAF)
def detached_before_a_visible_write(x, y):
    tmp = x.detach()
    x.mul_(2)
    return x, tmp


@case("I4")
def a_hidden_write_to_what_was_saved(x, y):
    z = x * y
    with torch.no_grad():
        x.mul_(2)
    return z


@case("I6")
def data_of_what_was_saved(x, y):
    z = x * y
    x.data.mul_(2)
    return z


# --------------------------------------------------------------------------- statistics


def statistics(new):
    return new.scene(new(4, 3), torch.zeros(3), torch.ones(3))


@case("I26", "T:input data mutation", layouts=(statistics,))
def batch_norm_training(x, mean, var):
    return F.batch_norm(x, mean, var, training=True), mean


@case("I26", layouts=(statistics,))
def batch_norm_inference(x, mean, var):
    return F.batch_norm(x, mean, var, training=False)


@case("I26", layouts=(statistics,))
def statistic_used_before_and_after(x, mean, var):
    y = x * mean
    with torch.no_grad():
        mean.add_(x.mean(0))
    return y + x * mean


@case("I26", layouts=(statistics,))
def saved_statistic_is_overwritten(x, mean, var):
    y = x * var
    var.mul_(2)
    return y


@case("I4", layouts=(one,))
def max_norm_renormalises_the_weight(x):
    return F.embedding(torch.tensor([1, 0]), x, max_norm=1.0)


@case("I1", layouts=(one,), raises=LEAF)
def rrelu_in_place(x):
    return F.rrelu(x, training=True, inplace=True)


@case("I1", layouts=(one,), raises=LEAF)
def relu_in_place(x):
    return F.relu(x, inplace=True)


@case("I1", layouts=(one,), raises=LEAF)
def dropout_in_place(x):
    return F.dropout(x, 0.5, training=True, inplace=True)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(**case.parameters())
def test_input(case, kind) -> None:
    run_case(case, kind)


def test_a_hidden_write_to_a_leaf_has_the_known_gradient() -> None:
    """Checked against known numbers, not only eager: value 9, gradient 6."""
    x = torch.tensor(1.0, requires_grad=True)

    def f(x):
        with torch.no_grad():
            x.mul_(3)
        return x * x

    out = tj.jit(f)(x)
    out.backward()
    assert (out.item(), x.grad.item()) == (9, 6)


@pytest.mark.parametrize("program", [mul_then_use, through_a_view, relu_in_place, augmented])
def test_a_write_to_a_leaf_is_eagers_error(program) -> None:
    args = placed(one if program is relu_in_place else pair, "leaf")
    with pytest.raises(RuntimeError) as expected:
        program(*args().args)
    with pytest.raises(RuntimeError) as raised:
        tj.jit(program)(*args().args)
    assert str(raised.value) == str(expected.value)
