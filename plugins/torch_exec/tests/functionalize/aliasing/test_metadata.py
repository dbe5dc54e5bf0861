"""Changes of one argument's metadata, storage and autograd flags: in-place views, set_, resize_."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_conformance.programs.cases import Table, run_case
from tj_conformance.programs.scenes import (
    base_and_row,
    halves,
    one,
    overlapping,
    pair,
    placed,
    rows,
    same,
    viewed,
)

case = Table()
GRAD = ("leaf", "inner")
LEAF = ("leaf",)


def square(new):
    return new.scene(new(3, 3))


def with_ones(new):
    """Scene with a tensor of shape ``(1, 2, 1, 3)``, for ``squeeze_``."""
    return new.scene(new(1, 2, 1, 3), new(3))


# --------------------------------------------------------------------------- in-place views


@case("I7", "T:metadata mutation", layouts=(one, viewed), breaks=True, raises=LEAF)
def transpose(x, *_):
    x.transpose_(0, 1)
    return x * 2


@case("I7", layouts=(pair, viewed, rows), breaks=True, raises=LEAF)
def t_returned(x, y):
    return x.t_(), y


@case("I7", layouts=(pair, viewed, rows), breaks=True, raises=LEAF)
def unsqueeze(x, y):
    y.unsqueeze_(0)
    return y + x


@case("I7", layouts=(with_ones,), breaks=True, raises=LEAF)
def squeeze(x, y):
    x.squeeze_()
    return x * y, x


@case("I7", layouts=(with_ones,), breaks=True, raises=LEAF)
def squeeze_one_dimension(x, y):
    x.squeeze_(2).swapaxes_(0, 1)
    return x


@case("I7", layouts=(viewed,), breaks=True, raises=LEAF)
def as_strided_in_place(x, y):
    x.as_strided_((2, 2), (1, 1))
    return x * 1


@case("I8", "T:metadata mutation", layouts=(pair, viewed), breaks=True, raises=LEAF)
def transpose_then_write(x, y):
    x.t_()
    x.mul_(2)
    return x + 1


@case("I8", layouts=(pair, viewed), breaks=("plain", "inner"), raises=LEAF)
def write_then_transpose(x, y):
    x.mul_(2)
    x.t_()
    return x + 1, x


@case("I8", layouts=(one,), breaks=True, raises=LEAF)
def write_a_row_after_transposing(x):
    x.t_()
    x[0].mul_(2)
    return x.reshape(2, 3)


@case("I9", layouts=(pair, viewed), breaks=True, raises=LEAF)
def twice_transposed(x, y):
    x.t_()
    x.t_()
    return x * 2


@case("I7", layouts=(viewed,), breaks=True, raises=LEAF)
def views_before_and_after(x, y):
    before = x.view(-1)
    x.t_()
    return before, x, x[0]


@case("I7", layouts=(pair, overlapping), breaks=True, raises=LEAF)
def data_of_one_metadata_of_other(x, y):
    x.mul_(2)
    y.unsqueeze_(0)
    return x.view(-1), y, x + y


# --------------------------------------------------------------------------- in-place views inside


@case("O:in-place view", kinds=GRAD)
def in_place_view_of_result(x, y):
    z = x * 2
    z.t_()
    return z


@case("O:in-place view")
def in_place_view_of_written_result(x, y):
    z = x + 1
    z.mul_(2)
    z.unsqueeze_(1)
    return z, z * y.sum()


@case("O:view, in-place view, view", "T:outputs of intermediates")
def views_around_in_place_view(x, y):
    z = x * 2
    v = z.unsqueeze(0)
    z.t_()
    return v, z, z.unsqueeze(0)


@case("O:in-place view")
def in_place_view_of_detached(x, y):
    z = x * 2
    d = z.detach()
    d.t_()
    return z, d


@case("O:in-place view")
def shape_is_read_under_a_second_name(x, y):
    """Dynamo keeps the shape of ``z`` as it was; torch.compile returns the wrong one silently."""
    z = x.clone()
    z.mul_(2).t_()
    return z, z.shape


# --------------------------------------------------------------------------- set_ and resize_


@case("I11", "T:set_ and resize_", layouts=(pair, viewed), breaks=True)
def set_under_no_grad(x, y):
    with torch.no_grad():
        x.set_(y * 2)
    return x * y


@case("I11", layouts=(square,), breaks=True)
def set_to_another(x):
    other = torch.ones(2)
    with torch.no_grad():
        x.set_(other)
    return x, other


@case("I12", layouts=(pair,), kinds=("plain",), breaks=True)
def set_then_write_the_other(x, y):
    x.set_(y)
    y.mul_(2)
    return x + y


@case("I12", layouts=(pair,), kinds=("plain",), breaks=True)
def set_to_a_slice(x, y):
    x.set_(y[1:])
    x.add_(1)
    return x, y * 2


@case("I12", layouts=(pair,), kinds=("plain",), breaks=True)
def write_what_was_left_behind(x, y):
    old = x.view(-1)
    x.set_(y)
    old.mul_(2)
    return old, x


@case("I13", layouts=(pair,), kinds=("plain",), breaks=True)
def set_there_and_back(x, y):
    old = x.detach()
    x.set_(y)
    x.set_(old)
    return x * 2


@case("I11", "T:set_ and resize_", layouts=(pair,), kinds=GRAD, breaks=True)
def set_and_visible_write(x, y):
    z = x * 1
    with torch.no_grad():
        z.set_(torch.ones(2, 3))
    z.mul_(y)
    return z


@case("I14", layouts=(pair,), kinds=("plain",), breaks=True)
def resize_smaller(x, y):
    x.resize_(2, 2)
    return x + 1


@case("I15", layouts=(pair,), kinds=("plain",), breaks=True)
def resize_larger(x, y):
    x.resize_(3, 4)
    x.fill_(2)
    return x + 1


@case("I14", layouts=(pair,), raises=GRAD, breaks=("plain",))
def resize_what_needs_a_gradient(x, y):
    x.resize_(2, 2)
    return x


@case("I15", breaks=True)
def resize_of_a_new_tensor(x, y):
    z = torch.empty(0)
    z.resize_(x.shape)
    return z.copy_(x)


@case("I16", "T:set_ and resize_", layouts=(pair,), kinds=("plain",))
def storage_freed_and_filled(x, y):
    z = x.clone()
    z.untyped_storage().resize_(0)
    z.untyped_storage().resize_(24)
    z.fill_(3)
    return z


@case("I16", layouts=(pair,), kinds=("plain",), breaks=True)
def storage_of_an_argument(x, y):
    size = x.untyped_storage().nbytes()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(size)
    x.copy_(y)
    return x * 2


# --------------------------------------------------------------------------- autograd flags


@case("I17", "T:metadata mutation", kinds=("plain", "leaf"), breaks=("plain",))
def needs_a_gradient_from_here_on(x, y):
    x.requires_grad_()
    return x * y


@case("I17", kinds=("plain",), layouts=(viewed,), breaks=True)
def a_view_needs_a_gradient(x, y):
    v = x.view(-1)
    v.requires_grad_()
    return v, v * 2


@case("I17", kinds=("leaf",), breaks=True)
def needs_no_gradient_any_more(x, y):
    x.requires_grad_(False)
    return x * y


@case("I17", kinds=("inner",), raises=("inner",))
def only_leaves_can_stop(x, y):
    x.requires_grad_(False)
    return x * y


@case("I17", breaks=True)
def a_result_needs_a_gradient(x, y):
    z = x.detach().clone()
    z.requires_grad_()
    return z * y


@case("I18", layouts=(pair,), breaks=True)
def detach_in_place(x, y):
    x.detach_()
    return x * y


@case("I18", layouts=(viewed,), raises=("plain", "leaf", "inner"))
def detach_a_view_in_place(x, y):
    x[0].detach_()
    return x * y


@case("I18")
def detach_a_result_in_place(x, y):
    z = x * 2
    z.detach_()
    return z


@case("I6", breaks=True)
def data_is_replaced(x, y):
    z = x + 1
    z.data = y
    return z


@case("I6", layouts=(pair, viewed), breaks=True)
def data_of_an_argument_is_replaced(x, y):
    x.data = y.data
    return x * 2, y


@case("I6", "T:outputs of inputs", layouts=(pair, viewed))
def attributes_that_are_views(x, y):
    with torch.no_grad():
        hidden = x.T
    return x.mT, hidden, x.data, x.real, x.T


@case("I6", layouts=(pair, viewed))
def data_written_and_transposed(x, y):
    d = x.data
    d.add_(1)
    d.t_()
    return d, x


@case("I7", "I9", layouts=(same, base_and_row, halves), breaks=True, raises=LEAF)
def metadata_of_arguments_that_share(x, y):
    x.t_()
    u = x * 1
    y.unsqueeze_(0)
    return u, y * 1, x, y


@pytest.mark.sampled(12)
@pytest.mark.parametrize(**case.parameters())
def test_metadata(case, kind) -> None:
    run_case(case, kind)


def shape_that_a_branch_saw(x, y):
    """Dynamo keeps one fake tensor for both, and changes its shape."""
    z = x.clone()
    w = torch.cond(x.sum() > y.sum(), torch.sin, torch.cos, (z,))
    z.t_()
    return w, z.shape


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (shape_that_a_branch_saw, "another shape than Python saw"),
        (data_of_an_argument_is_replaced, "replaces a tensor's storage"),
    ],
)
def test_a_refused_capture_says_why(program, reason) -> None:
    with pytest.warns(tj.TjWarning, match=reason):
        tj.jit(program)(*placed(pair, "plain")().args)


def test_a_part_whose_capture_is_refused_runs_as_it_is() -> None:
    """After a graph break, earlier parts have run, so the whole cannot run again."""
    steps = []

    def program(x, y):
        torch._dynamo.graph_break()
        steps.append(1)
        return shape_that_a_branch_saw(x, y)

    f = tj.jit(program)
    with pytest.warns(tj.TjWarning) as said:
        got = f(*placed(pair, "plain")().args)
    assert [str(w.message).splitlines()[0].split(":")[2].strip() for w in said] == [
        "graph break",
        "not captured",
    ]
    assert got[1] == (3, 2)
    assert steps == [1]
