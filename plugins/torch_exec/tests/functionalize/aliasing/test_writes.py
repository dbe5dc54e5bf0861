"""Forms of writes: assignments to items, `out=`, indexed, foreach and random writes."""

from __future__ import annotations

import pytest
import torch
from tj_conformance.programs.aliasing import check, stateless
from tj_conformance.programs.cases import Table, run_case
from tj_conformance.programs.scenes import one, overlapping, pair, placed, same, viewed

pytestmark = pytest.mark.sampled(16)

case = Table()
GRAD = ("leaf", "inner")
LEAF = ("leaf",)
I64 = torch.int64


# --------------------------------------------------------------------------- x[key] = value


def cube(new):
    return new.scene(new(2, 3, 4), new(4))


KEYS = {
    "int": lambda x: 0,
    "negative": lambda x: -1,
    "int, int": lambda x: (1, 2),
    "all ints": lambda x: (1, 2, 3),
    "slice": lambda x: slice(1, None),
    "slice with step": lambda x: (slice(None), slice(None, None, 2)),
    "empty slice": lambda x: slice(1, 1),
    "ellipsis": lambda x: ...,
    "ellipsis, int": lambda x: (..., 0),
    "int, ellipsis, slice": lambda x: (0, ..., slice(1, 3)),
    "None": lambda x: (None, 0),
    "slice, None, int": lambda x: (slice(None), None, 1),
    "everything": lambda x: slice(None),
    "list": lambda x: [1, 0],
    "list, int": lambda x: ([0, 1], 2),
    "tensor": lambda x: torch.tensor([1, 0]),
    "0-d tensor": lambda x: torch.tensor(1),
    "tensor, slice, tensor": lambda x: (torch.tensor([0, 1]), slice(None), torch.tensor([3, 0])),
    "two tensors": lambda x: (torch.tensor([0, 1]), torch.tensor([2, 0])),
    "broadcast tensors": lambda x: (torch.tensor([[0], [1]]), torch.tensor([2, 0])),
    "repeated tensor": lambda x: torch.tensor([1, 1, 1]),
    "tensor, ellipsis": lambda x: (torch.tensor([0]), ..., 1),
    "slice, tensor": lambda x: (slice(1), torch.tensor([2, 0])),
    "mask": lambda x: x.detach() > 2,
    "mask of rows": lambda x: torch.tensor([True, False]),
    "mask of rows, int": lambda x: (torch.tensor([True, False]), 1),
    "slice, mask": lambda x: (slice(None), torch.tensor([True, False, True])),
    "True": lambda x: True,
    "False": lambda x: False,
    "bool list": lambda x: [True, False],
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("kind", ["plain", "inner"])
@pytest.mark.parametrize("value", ["number", "tensor", "0-d", "own"])
@pytest.mark.parametrize("key", KEYS)
def test_assignment_to_items(key, value, kind) -> None:
    make_key = KEYS[key]

    def program(x, y):
        k = make_key(x)
        if value == "number":
            x[k] = 7
        elif value == "tensor":
            x[k] = y.sum() if x[k].shape[-1:] != y.shape else y
        elif value == "0-d":
            x[k] = y[0]
        else:
            x[k] = x[k] * 2
        return x * 2, y

    report = check(stateless(program), [placed(cube, kind)])
    assert report.ok, str(report)
    reads_a_size_from_data = key == "mask" and value == "tensor"  # that of x[mask]
    assert bool(report.fallbacks) == reads_a_size_from_data, report.fallbacks


@case(layouts=(pair, viewed), raises=LEAF)
def items_one_after_another(x, y):
    x[0] = y
    x[1, 2] = 7.0
    x[:, 1:] += 5
    x[x > 6] = 0.0
    return x


@case(layouts=(viewed,), raises=LEAF)
def item_of_a_view(x, y):
    x.t()[1] = 3.0
    x.view(-1)[2:4] = y[:2]
    return x * 2


@case(layouts=(viewed,), raises=LEAF)
def shifted_onto_itself(x, y):
    """Silently wrong under Inductor."""
    y[1:] = y[:-1].clone()
    return x * y


@case(layouts=(pair,), kinds=("plain",))
def overlapping_onto_itself(x, y):
    y[:2] = y[:2].flip(0)
    return y


@case(layouts=(pair,))
def assigned_under_no_grad(x, y):
    with torch.no_grad():
        x[0] = y
    return x * 2


@case(layouts=(overlapping, same), raises=LEAF)
def item_of_an_overlapping_argument(x, y):
    x[0] = 5
    y[1] = 6
    return x, y


@case(raises=("plain", "leaf", "inner"))
def item_that_is_not_there(x, y):
    x.mul_(1) if not x.requires_grad else None
    x[5] = 1.0
    return x


@case(raises=("plain", "leaf", "inner"))
def value_of_the_wrong_shape(x, y):
    x[0] = torch.ones(7)
    return x


# --------------------------------------------------------------------------- indexed writes


def with_index(new):
    return new.scene(new(3, 3), new(3, 3), torch.tensor([2, 0, 1]))


@case(layouts=(with_index,), raises=LEAF)
def index_add_copy_fill(x, y, i):
    x.index_add_(0, i, y, alpha=2)
    x.index_copy_(1, i[:2], y[:, :2])
    x.index_fill_(1, i[:1], -1.0)
    return x * 2


@case(layouts=(with_index,), raises=LEAF)
def index_put(x, y, i):
    x.index_put_((i, i), y[0], accumulate=True)
    x.index_put_((i[:1],), y[:1])
    return x


@case(layouts=(with_index,), raises=LEAF)
def scatter(x, y, i):
    at = i.unsqueeze(1).expand(3, 2)
    x.scatter_(1, at, 9.0)
    x.scatter_add_(0, at, y)
    return x.gather(1, at)


@case(layouts=(with_index,), raises=LEAF)
def scatter_reduce(x, y, i):
    x.scatter_reduce_(0, i.unsqueeze(0), y, "sum")
    return x


@case(layouts=(with_index,), raises=LEAF)
def masked(x, y, i):
    x.masked_fill_(y > 3, -1.0)
    x.masked_scatter_(y > 4, y.flatten())
    return x


@case(layouts=(with_index,), raises=LEAF)
def take_put_and_diagonal(x, y, i):
    x.put_(i, y[0])
    x.fill_diagonal_(3.0)
    x.diagonal().mul_(2)
    return x.take(i)


@case(layouts=(with_index,), raises=LEAF)
def many_in_place(x, y, i):
    x.clamp_(1, 4).neg_().abs_().addcmul_(y, y).addmm_(y, y).lerp_(y, 0.5)
    x.tril_().cumsum_(0)
    return x.round_()


@case(layouts=(pair,), raises=LEAF)
def filled(x, y):
    x.zero_()
    y.fill_(4.0)
    return x + y


@case(layouts=(with_index,), kinds=("plain",))
def compared_in_place(x, y, i):
    x.eq_(y)
    i.bitwise_xor_(3)
    return x, i


# --------------------------------------------------------------------------- out=


@case("I2", layouts=(pair, viewed), raises=LEAF)
def counted_and_not_written(x, y):
    """``conj_physical_`` of real numbers changes nothing, but bumps the version counter."""
    z = x * y
    x.conj_physical_()
    return z, x, x * 2


@case("T:input data mutation", layouts=(pair,), kinds=("plain",))
def out_is_an_argument(x, y):
    return torch.mul(x, 3.0, out=x), y


@case(layouts=(overlapping, viewed), kinds=("plain",))
def out_is_a_view(x, y):
    torch.add(y, 1.0, out=x[0])
    return x, y


@case(layouts=(pair,), kinds=("plain",))
def out_is_new(x, y):
    out = torch.empty_like(x)
    result = torch.add(x, y, out=out)
    return out, result


@case(layouts=(one, one), kinds=("plain",))
def several_outs(x):
    values, indices = torch.empty(2), torch.empty(2, dtype=I64)
    got = torch.max(x, 1, out=(values, indices))
    return values, indices, got


@case(layouts=(one,), kinds=("plain",))
def cumulative_out(x):
    torch.cumsum(x, 0, out=x)
    return x


@case(layouts=(pair,), raises=GRAD)
def out_needs_a_gradient(x, y):
    torch.mul(x, y, out=x)
    return x


@case(layouts=(pair,), kinds=("plain",), raises=("plain",))
def out_has_the_wrong_type(x, y):
    out = torch.empty(2, 3, dtype=I64)
    torch.aminmax(x, out=(out, out))
    return out


@case(layouts=(pair,), kinds=("plain",), breaks=True)
def out_is_resized(x, y):
    out = torch.empty(0)
    torch.add(x, y, out=out)
    return out


# --------------------------------------------------------------------------- foreach


@case("T:input data mutation", layouts=(pair, viewed), raises=LEAF)
def foreach(x, y):
    torch._foreach_add_([x, y], 2.0)
    torch._foreach_mul_([x, y], [3.0, 4.0])
    return x + y


@case(layouts=(overlapping,), raises=LEAF)
def foreach_on_aliases(x, y):
    torch._foreach_mul_([x, y], 2.0)
    return x, y


@case(layouts=(same,), raises=LEAF)
def foreach_on_one_twice(x, y):
    torch._foreach_add_([x, y], 1.0)
    return x


@case(layouts=(pair,))
def foreach_under_no_grad(x, y):
    with torch.no_grad():
        torch._foreach_lerp_([x, y], [x + 1, y + 1], 0.5)
    return x * y


@case(layouts=(pair,), raises=LEAF)
def foreach_copy_and_zero(x, y):
    old = [x.clone(), y.clone()]
    torch._foreach_zero_([x])
    torch._foreach_copy_([x, y], old)
    return old, x


# --------------------------------------------------------------------------- random

RANDOM = {
    "uniform_": lambda t: t.uniform_(),
    "normal_": lambda t: t.normal_(1, 2),
    "bernoulli_": lambda t: t.bernoulli_(0.5),
    "bernoulli_ of tensor": lambda t: t.bernoulli_(torch.full_like(t, 0.5)),
    "exponential_": lambda t: t.exponential_(),
    "cauchy_": lambda t: t.cauchy_(),
    "log_normal_": lambda t: t.log_normal_(),
    "geometric_": lambda t: t.geometric_(0.3),
    "random_": lambda t: t.random_(0, 10),
    "init.normal_": lambda t: torch.nn.init.normal_(t),
    "init.kaiming_uniform_": lambda t: torch.nn.init.kaiming_uniform_(t),
    "dropout_": lambda t: torch.dropout_(t, 0.5, True),
    "alpha_dropout_": lambda t: torch.alpha_dropout_(t, 0.5, True),
    "rrelu_": lambda t: torch.rrelu_(t, training=True),
}


@pytest.mark.parametrize("kind", ["plain", "inner", "leaf"])
@pytest.mark.parametrize("name", RANDOM)
def test_random_writes(name, kind) -> None:
    fill = RANDOM[name]

    def program(x, y):
        before = torch.rand(2)
        with torch.no_grad():
            y.copy_(fill(x)[0])
        return before, x, y * 2, torch.rand(2)

    report = check(stateless(program), [placed(pair, kind)])
    assert report.ok, str(report)


@case("T:random", raises=LEAF, layouts=(pair, viewed))
def random_visible(x, y):
    x.uniform_()
    z = x.bernoulli_(0.5) * y
    return z, x


# --------------------------------------------------------------------------- errors


def impossible():
    """Write that raises at run time, and not at capture."""
    return torch.linalg.cholesky(-torch.eye(2)).sum()


@case("I2", kinds=("plain", "inner"), raises=("plain", "inner"))
def error_after_a_write(x, y):
    x.mul_(2)
    y.t_()
    x.add_(torch.rand_like(x))
    y.mul_(impossible())
    x.zero_()


@case("I6", kinds=("plain", "inner"), raises=("plain", "inner"))
def error_after_a_write_to_data(x, y):
    x.data.mul_(2)
    return y * impossible()


@case("I7", kinds=("plain", "inner"), raises=("plain", "inner"))
def error_after_a_change_of_metadata(x, y):
    x.t_()
    return y * impossible()


@pytest.mark.parametrize(**case.parameters())
def test_write(case, kind) -> None:
    run_case(case, kind)
