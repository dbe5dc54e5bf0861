"""Writes and aliases stay as the user wrote them: compared with eager, object by object.

Each program runs twice, eagerly and jitted, on equal inputs. What is compared is all a caller can
see: values, which results are which inputs, who shares memory, version counters, flags of
autograd, exceptions, gradients; and once more after the results have been written to.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

Inputs = Callable[[], tuple[torch.Tensor, ...]]


def plain() -> tuple[torch.Tensor, ...]:
    """A matrix and a vector that nothing else shares."""
    return torch.arange(6.0).reshape(2, 3), torch.arange(1.0, 4.0)


def leaves() -> tuple[torch.Tensor, ...]:
    """Two leaves that need gradients."""
    return tuple(t.requires_grad_() for t in plain())


def inner() -> tuple[torch.Tensor, ...]:
    """Two results of differentiable operations, so that in-place writes are allowed."""
    return tuple(t * 1 for t in leaves())


def overlapping() -> tuple[torch.Tensor, ...]:
    """Two rows' worth of one buffer, overlapping in its middle."""
    base = torch.arange(9.0)
    return base[:6].reshape(2, 3), base[4:7]


def same() -> tuple[torch.Tensor, ...]:
    """One tensor, given twice."""
    x = torch.arange(9.0).reshape(3, 3)
    return x, x


def base_and_view() -> tuple[torch.Tensor, ...]:
    """A tensor and a row of it."""
    x = torch.arange(6.0).reshape(2, 3)
    return x, x[1]


# --------------------------------------------------------------------------- the comparison


FACTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "offset": lambda t: t.storage_offset(),
    "stride": lambda t: t.stride(),
    "version": lambda t: t._version,
    "requires_grad": lambda t: t.requires_grad,
    "grad_fn": lambda t: type(t.grad_fn).__name__,
    "leaf": lambda t: t.is_leaf,
    "view": lambda t: t._is_view(),
}
"""What a caller can see of one tensor; looking may raise, where a view became invalid."""


def facts(inputs: Any, outcome: Any) -> dict[str, Any]:
    """All a caller can see of a call, apart from values."""
    leaves = pytree.tree_leaves((inputs, outcome))
    tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
    return {
        "structure": str(pytree.tree_structure(outcome)),
        "other": [t for t in leaves if not isinstance(t, torch.Tensor)],
        "identity": [[a is b for b in tensors] for a in tensors],
        "storage": [[_storage(a) == _storage(b) for b in tensors] for a in tensors],
        **{name: [run(look, (t,)) for t in tensors] for name, look in FACTS.items()},
    }


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def run(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Any:
    """The result, or the exception's type and message."""
    try:
        return fn(*inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        return type(error).__name__, str(error)


def same_calls(fn: Callable[..., Any], make: Inputs, calls: int = 2) -> None:
    """``fn`` and ``tj.jit(fn)`` cannot be told apart on the inputs that ``make`` makes."""
    jitted = tj.jit(fn)
    with pytest.warns(tj.TjWarning, match="graph break") if fn in BREAKS else nullcontext():
        _same_calls(fn, jitted, make, calls)
    assert bool(tj.stats(jitted).fallbacks) is (fn in BREAKS)


def _same_calls(fn: Callable[..., Any], jitted: Any, make: Inputs, calls: int) -> None:
    for _ in range(calls):  # compiled, then cached
        mine, theirs = make(), make()
        torch.manual_seed(0)
        expected = run(fn, theirs)
        torch.manual_seed(0)
        got = run(jitted, mine)
        compare(mine, got, theirs, expected)
        assert write(got) == write(expected)
        compare(mine, got, theirs, expected)


def compare(mine: Any, got: Any, theirs: Any, expected: Any) -> None:
    assert facts(mine, got) == facts(theirs, expected)
    torch.testing.assert_close(detached((mine, got)), detached((theirs, expected)), rtol=0, atol=0)


def detached(tree: Any) -> list[torch.Tensor]:
    found = pytree.tree_leaves(tree)
    return [t.detach().clone() for t in found if isinstance(t, torch.Tensor)]


def write(outcome: Any) -> list[Any]:
    """Change each result in place, as a caller might; what PyTorch says to that."""
    tensors = [t for t in pytree.tree_leaves(outcome) if isinstance(t, torch.Tensor)]
    said = [run(lambda t: t.mul_(2), (tensor,)) for tensor in tensors]
    return [None if isinstance(s, torch.Tensor) else s for s in said]


# --------------------------------------------------------------------------- programs


def add_in_place(x, y):
    x.add_(1)
    return x * y


def add_in_place_and_return(x, y):
    return x.add_(y)


def chain(x, y):
    x.mul_(2).add_(y).relu_()


def write_through_view(x, y):
    row = x[0]
    row.mul_(3)
    return x.sum()


def write_base_read_view(x, y):
    column = x[:, 0]
    x.add_(10)
    return column * 2


def returned_views(x, y):
    return x[0], x.t(), x.reshape(-1), y[1:]


def returned_view_of_result(x, y):
    z = x + y
    return z, z[0], z.view(-1)


def returned_chunks(x, y):
    return x.split(1), (x + 1).unbind(0)


def returned_inputs(x, y):
    return y, x, y


def same_result_twice(x, y):
    z = x * y
    return {"first": z, "again": z}


def setitem(x, y):
    x[0] = y
    return x


def setitem_scalar(x, y):
    x[1, 2] = 7.0
    return y + 1


def setitem_mask(x, y):
    x[x > 2] = 0.0
    return x + 0


def setitem_slice(x, y):
    x[:, 1:] += 5
    return x


def augmented(x, y):
    x += y
    x *= 2
    return x


def rebind_augmented(x, y):
    z = x + 0
    z += y
    z -= 1
    return z


def out_argument(x, y):
    out = torch.empty_like(x)
    result = torch.add(x, y, out=out)
    return out, result


def out_is_input(x, y):
    torch.mul(x, 3.0, out=x)
    return y + 1


def through_data(x, y):
    x.data.mul_(2)
    return x + y


def through_detach(x, y):
    x.detach().mul_(3)
    return x * y


def under_no_grad(x, y):
    with torch.no_grad():
        x.mul_(3)
    return x * x


def copy(x, y):
    x.copy_(y)
    return x


def fill_and_zero(x, y):
    x.zero_()
    y.fill_(4.0)
    return x + y


def transpose_in_place(x, y):
    x.t_()
    return x


def unsqueeze_in_place(x, y):
    y.unsqueeze_(0)
    return y + x


def requires_grad_in_place(x, y):
    z = x.detach().clone()
    z.requires_grad_()
    return z * y


def detach_in_place(x, y):
    z = x * 2
    z.detach_()
    return z


def swap(x, y):
    old = x.clone()
    x.copy_(y.expand_as(x))
    return old


def index_writes(x, y):
    index = torch.tensor([0])
    x.index_add_(0, index, y.unsqueeze(0))
    x.index_fill_(1, index, -1.0)
    return x


def scatter(x, y):
    x.scatter_(1, torch.tensor([[0], [1]]), 9.0)
    return x.gather(1, torch.tensor([[0], [1]]))


def masked(x, y):
    x.masked_fill_(x > 3, -1.0)
    return x


def clamp(x, y):
    return x.clamp_(1, 4)


def in_place_relu(x, y):
    return F.relu(x, inplace=True)


def in_place_dropout(x, y):
    return F.dropout(x, 0.5, training=True, inplace=True)


def batch_norm_stats(x, y):
    mean, var = torch.zeros(3), torch.ones(3)
    out = F.batch_norm(x, mean, var, training=True)
    return out, mean, var


def write_detached_result(x, y):
    z = x * 2
    z.detach().mul_(3)
    return z * 5


def expand_and_return(x, y):
    return y.expand(2, 3), y.unsqueeze(0)


def no_op_calls(x, y):
    return x.contiguous(), x.to(torch.float32), x.view_as(x), x.float(), y.reshape(3)


def random_in_place(x, y):
    x.uniform_()
    return x.bernoulli_(0.5)


def resize(x, y):
    z = torch.empty(0)
    z.resize_(x.shape)
    return z.copy_(x)


def as_strided(x, y):
    return x.as_strided((2, 2), (1, 1))


def complex_view(x, y):
    z = torch.complex(x, x)
    z.real.add_(1)
    return z, torch.view_as_real(z), z.conj(), z.imag


def append_views(x, y):
    rows = []
    for i in range(2):
        x[i].add_(i)
        rows.append(x[i])
    return rows


def cumulative_out(x, y):
    torch.cumsum(x, 0, out=x)
    return x


def set_data(x, y):
    z = x + 1
    z.data = y
    return z


def multi_output_view_write(x, y):
    first, _ = x.unbind(0)
    first.add_(1)
    return first


def write_saved(x, y):
    z = x.exp()
    z.add_(1)
    return z


def foreach(x, y):
    torch._foreach_add_([x, y], 2.0)
    return x + y


PROGRAMS = (
    add_in_place,
    add_in_place_and_return,
    chain,
    write_through_view,
    write_base_read_view,
    returned_views,
    returned_view_of_result,
    returned_chunks,
    returned_inputs,
    same_result_twice,
    setitem,
    setitem_scalar,
    setitem_mask,
    setitem_slice,
    augmented,
    rebind_augmented,
    out_argument,
    out_is_input,
    through_data,
    through_detach,
    under_no_grad,
    copy,
    fill_and_zero,
    transpose_in_place,
    unsqueeze_in_place,
    requires_grad_in_place,
    detach_in_place,
    swap,
    index_writes,
    scatter,
    masked,
    clamp,
    in_place_relu,
    in_place_dropout,
    batch_norm_stats,
    write_detached_result,
    expand_and_return,
    no_op_calls,
    random_in_place,
    resize,
    as_strided,
    complex_view,
    append_views,
    cumulative_out,
    set_data,
    multi_output_view_write,
    write_saved,
    foreach,
)


@pytest.mark.parametrize("make", [plain, leaves, inner], ids=lambda f: f.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_writes_and_aliases(program: Callable[..., Any], make: Inputs) -> None:
    same_calls(program, make)


BREAKS = frozenset(
    {resize, set_data, requires_grad_in_place, transpose_in_place, unsqueeze_in_place}
)
"""Programs that Dynamo captures in parts; tj runs those parts, and the whole is as right."""

SHAPE_CHANGING = (transpose_in_place, unsqueeze_in_place)
ALIASED = [p for p in PROGRAMS if p not in SHAPE_CHANGING]


@pytest.mark.parametrize("make", [overlapping, same, base_and_view], ids=lambda f: f.__name__)
@pytest.mark.parametrize("program", ALIASED, ids=lambda f: f.__name__)
def test_on_inputs_that_share_memory(program: Callable[..., Any], make: Inputs) -> None:
    same_calls(program, make, calls=1)


@pytest.mark.parametrize("program", [add_in_place, setitem, out_is_input, clamp])
def test_a_write_to_a_leaf_is_eagers_error(program: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError) as expected:
        program(*leaves())
    with pytest.raises(RuntimeError) as raised:
        tj.jit(program)(*leaves())
    assert str(raised.value) == str(expected.value)


def test_a_saved_value_that_was_written_to_fails_in_backward() -> None:
    def f(x):
        y = x.exp()
        y.add_(1)
        return y

    for fn in (f, tj.jit(f)):
        out = fn(torch.ones(3, requires_grad=True))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


HIDDEN = (through_data, through_detach, write_detached_result)


@pytest.mark.parametrize("program", [*HIDDEN, augmented, setitem, write_through_view, foreach])
def test_gradients_of_programs_that_write(program: Callable[..., Any]) -> None:
    def gradients(fn: Callable[..., Any]) -> Any:
        sources = leaves()
        inputs = tuple(t * 1 for t in sources)
        out = fn(*inputs)
        return torch.autograd.grad(out.sum() + inputs[0].sum(), sources, allow_unused=True)

    expected, got = gradients(program), gradients(tj.jit(program))
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)


def test_a_hidden_write_to_a_leaf() -> None:
    """The value has it, and so has what autograd saves."""

    def f(x):
        with torch.no_grad():
            x.mul_(3)
        return x * x

    x = torch.tensor(1.0, requires_grad=True)
    out = tj.jit(f)(x)
    out.backward()
    assert out.item() == 9
    assert x.grad is not None
    assert x.grad.item() == 6


# --------------------------------------------------------------------------- made-up programs

STEPS: tuple[Callable[[list[torch.Tensor]], Any], ...] = (
    lambda v: v.append(v[-1] * 2),
    lambda v: v.append(v[0] + v[-1]),
    lambda v: v[0].add_(1),
    lambda v: v[-1].mul_(2),
    lambda v: v.append(v[-1].view(-1)[:3]),
    lambda v: v.append(v[0].t()),
    lambda v: v.append(v[-1].reshape(-1)),
    lambda v: v[-1].copy_(v[-1].flip(0)),
    lambda v: v.append(v[-1].detach()),
    lambda v: v.append(v[-1].clone()),
    lambda v: v.pop(0) if len(v) > 2 else None,
)
"""What a program may do next to the values it has; eager's errors are as good as results."""


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=6), st.booleans())
def test_any_mix_of_views_writes_and_copies(steps: list[int], needs_grad: bool) -> None:
    def program(x):
        values = [x]
        for step in steps:
            STEPS[step](values)
        return values

    def make() -> tuple[torch.Tensor, ...]:
        x = torch.arange(9.0).reshape(3, 3)
        return (x.requires_grad_() * 1,) if needs_grad else (x,)

    same_calls(program, make)


def test_metadata_changed_under_a_second_name_runs_as_written() -> None:
    """Capture keeps the shape of ``y`` as it was; torch.compile returns the wrong one silently."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Size]:
        y = x.clone()
        y.mul_(2).t_()
        return y, y.shape

    g = tj.jit(f)
    x = torch.arange(6.0).reshape(2, 3)
    with pytest.warns(tj.TjWarning, match="metadata of a tensor that has two names"):
        got = g(x)
    assert got[1] == (3, 2)
    torch.testing.assert_close(got, f(x))
    torch.testing.assert_close(g(x + 1), f(x + 1))
