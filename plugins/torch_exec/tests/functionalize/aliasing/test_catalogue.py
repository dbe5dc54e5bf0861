"""More of the programs of PyTorch's own catalogue of tests (test_aotdispatch.py), by its groups."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tj_conformance.programs.aliasing import Program
from tj_conformance.programs.cases import Table, run_case
from tj_conformance.programs.scenes import base_and_row, one, overlapping, pair, viewed

case = Table()
GRAD = ("leaf", "inner")
LEAF = ("leaf",)
ALL = ("plain", "leaf", "inner")


def three(new):
    """Three matrices; the caller keeps a view of the last."""
    x, y, z = new(2, 3), new(2, 3), new(2, 3)
    return new.scene(x, y, z, watched=(z[0],))


def strided(*layouts):
    """Scene of two views of one base of 25 elements, each by sizes, strides and offset."""

    def layout(first, second):
        def make(new):
            base = new(25)
            return new.scene(base.as_strided(*first), base.as_strided(*second), watched=(base,))

        return make

    return [layout(first, second) for first, second in layouts]


APART = strided(
    (((2, 3), (5, 1), 0), ((2, 3), (5, 1), 10)),  # blocks, one after the other
    (((3, 2), (5, 1), 0), ((3, 2), (5, 1), 2)),  # blocks of columns
    (((3, 2), (5, 2), 0), ((3, 2), (5, 2), 1)),  # every other column
    (((2, 2), (10, 2), 0), ((2, 2), (10, 2), 11)),  # every other row and column
    (((5,), (5,), 0), ((5,), (5,), 1)),  # two columns
    (((2, 2), (5, 1), 3), ((2, 2), (5, 1), 1)),  # the second one first
)
CROSSING = strided(
    (((2, 3), (5, 1), 0), ((2, 3), (5, 1), 2)),
    (((5,), (5,), 0), ((5,), (1,), 0)),  # a column and a row
    (((2, 2), (10, 2), 0), ((2, 2), (10, 2), 2)),
)


def unsqueezed(new):
    """Vector, and a view of it as a matrix of one row."""
    x = new(3)
    return new.scene(x, x.unsqueeze(0))


def bases_out_of_order(new):
    """Views of two bases, not in the bases' order, with a separate matrix between them."""
    first, second = new(2, 2), new(2, 2)
    args = second.view(-1), first.view(-1), new(4), second[1], first[0]
    return new.scene(*args, watched=(first, second))


def numbers_beside(new):
    base = new(6)
    return new.scene(base[:4], base[2:], 2, 2)


def batch(new):
    return new.scene(new(2, 3, 4), new(5, 4))


def table_of_rows(new):
    return new.scene(new(4, 3), torch.tensor([1, 3, 1]))


# --------------------------------------------------------------------------- input data mutation


@case("T:input data mutation", layouts=(pair, viewed), raises=LEAF)
def rrelu_and_its_noise(x, y):
    noise = torch.zeros_like(x)
    z = torch.ops.aten.rrelu_with_noise(x * 1, noise, 0.2, 0.8, True)
    x.mul_(2)
    return z, noise, x


@case("T:input data mutation", layouts=(pair,), raises=ALL)
def out_is_of_a_type_that_cannot_be(x, y):
    y.detach().add_(1)
    return torch.aminmax(x, out=(torch.zeros((), dtype=torch.int64), torch.zeros(())))


@case("T:input data mutation", layouts=(viewed,), raises=LEAF)
def squeezed_and_written(x, y):
    z = (x * 2).unsqueeze(0)
    z.squeeze(0).add_(y)
    x.unsqueeze(1).squeeze(1)[0].mul_(3)
    return z.squeeze(), x


@case("T:input data mutation", layouts=(pair, viewed), raises=LEAF)
def some_written_some_returned(x, y):
    y.add_(1)
    x[0].mul_(y)
    return y, x[0], x.sum() * y.sum()


# --------------------------------------------------------------------------- metadata mutation


@case("T:metadata mutation", layouts=(three,), breaks=True, raises=LEAF)
def one_written_one_transposed_all_viewed(x, y, z):
    y.mul_(2)
    z.t_()
    return x.view(-1), y.view(3, 2), z.view(3, 2)


@case("T:metadata mutation", layouts=(three,), breaks=True, raises=LEAF)
def diagonal_of_what_was_transposed(x, y, z):
    y.transpose_(1, 0)
    z.add_(1)
    return x + 1, y.diagonal(0), z


@case("T:metadata mutation", layouts=(three,), breaks=True, raises=LEAF)
def all_kinds_of_aliases(x, y, z):
    z.transpose_(1, 0)
    w = x * 2
    return w.view(-1), w.unsqueeze(0), y.view(-1), z, z.view(3, 2), w


# --------------------------------------------------------------------------- set_ and resize_


@case("T:set_ and resize_", layouts=(pair,), kinds=("plain",), breaks=True)
def storage_emptied_then_set(x, y):
    x.untyped_storage().resize_(0)
    x.set_(y * 2)
    return x + 1


# --------------------------------------------------------------------------- no_grad


@case("T:no_grad", layouts=(pair, viewed))
def views_with_and_without_gradients(x, y):
    with torch.no_grad():
        with torch.enable_grad():
            z = x * y
            v = z.view(-1)
        w = v[1:]
    return z, v, w


@case("T:no_grad", layouts=(pair,))
def graph_with_detached_outputs(x, y):
    z = x * y
    return z.detach(), z.view(-1).detach(), z.sin().detach(), z.sum()


# --------------------------------------------------------------------------- outputs of inputs


@case("T:outputs of inputs", layouts=(overlapping, base_and_row))
def each_views_its_own(x, y):
    return x.view(-1), y.view(-1), x[1], y[:2]


@case("T:outputs of inputs", layouts=(pair,))
def expanded_by_a_size(x, y):
    return y.expand(x.shape[0], *y.shape), {"x": x, "views": {"y": y[1:]}}


@case("T:outputs of inputs", layouts=(table_of_rows,), kinds=GRAD)
def sparse_gradient(table, rows):
    return F.embedding(rows, table, sparse=True), table.view(-1)[2:]


# ------------------------------------------------------------------------- outputs of intermediates


@case("T:outputs of intermediates", layouts=(pair,))
def result_twice_and_views(x, y):
    z = x * y
    return z, z.view(-1), z, z[0].detach(), z.unsqueeze(-1)


@case("T:outputs of intermediates", layouts=(batch,))
def product_of_a_batch_is_written(x, w):
    z = F.linear(x, w)
    z.mul_(2)
    v = z.view(-1)
    v[0].add_(1)
    return z, v, z * 1


@case("T:outputs of intermediates", layouts=(one,))
def chunks_and_all_of_it(x):
    z = x * 2
    return *z.unbind(1), z.view(-1), *z.split(1)


@case("T:outputs of intermediates", layouts=(one,))
def views_of_an_output_that_is_a_view(x):
    z = x * 2
    v = z.t()
    return v, v[0], v[0][1:], z.view(-1).view(3, 2)


# --------------------------------------------------------------------------- synthetic base


@case("S5", "T:synthetic base", layouts=APART, raises=LEAF)
def false_aliasing(x, y):
    x.add_(2)
    return x * 2, y + 1


@case("S1", "T:synthetic base", layouts=CROSSING, raises=LEAF)
def true_aliasing(x, y):
    x.add_(2)
    return x * 2, y + 1, y


@case("S2", "T:synthetic base", layouts=(unsqueezed,), raises=LEAF)
def unsqueezed_argument_is_written(x, row):
    row.mul_(2)
    return x + 1, row, x.unsqueeze(0)


@case("S9", "T:synthetic base", layouts=(bases_out_of_order,), raises=LEAF)
def groups_in_another_order(b, a, c, d, e):
    d.mul_(2)
    a.add_(1)
    return b + 1, c * d.sum(), e, a.view(2, 2)


@case("S9", "T:synthetic base", layouts=(bases_out_of_order,), breaks=True, raises=LEAF)
def groups_in_another_order_unsqueezed(b, a, c, d, e):
    d.unsqueeze_(0)
    a.mul_(2)
    return b * 1, c, d + 1, e


@case("S1", "I22", "T:synthetic base", layouts=(numbers_beside,), raises=LEAF)
def equal_numbers_beside_overlap(x, y, m, n):
    x.mul_(m)
    return y.view(n, 2) * m, x[n:]


# --------------------------------------------------------------------------- mutation in backward


class ZeroesInBackward(torch.autograd.Function):
    """Function that keeps its argument on the context, and writes to it in the backward."""

    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.buffer.zero_()
        return grad * 2, None


@case.stateful("I24", "T:mutation in backward", layouts=(pair,), kinds=GRAD)
def buffer_zeroed_in_backward():
    buffer = torch.ones(3)

    def program(x, y):
        with torch.no_grad():
            buffer.add_(1)
        return ZeroesInBackward.apply(x * y, buffer)

    return Program(program, lambda: buffer)


# --------------------------------------------------------------------------- autograd boundary


@case("T:autograd boundary", layouts=(pair,))
def numbers_are_no_roots(x, y):
    z = x * y
    return z.shape[0], z, y.argmax(), z.requires_grad, (z > 1)


@case("T:autograd boundary", layouts=(pair,), kinds=GRAD)
def hook_on_a_result(x, y):
    z = x * y
    z.register_hook(lambda grad: grad * 2)
    return z.sum()


@case("T:random", layouts=(pair,), raises=LEAF)
def dropout_around_writes(x, y):
    z = F.dropout(x, 0.5)
    x.mul_(z.detach())
    F.dropout(x, 0.5, inplace=True)
    return z, x, torch.rand(2)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(**case.parameters())
def test_catalogue(case, kind) -> None:
    run_case(case, kind)
