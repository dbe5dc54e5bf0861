"""Functional forms of operations: no argument is written, and results are the same."""

from __future__ import annotations

import itertools

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.ir.symbol import Symbol
from tj_torch.guards.branches import once
from tj_torch.guards.overlap import PATTERN_LIMIT, Group, dispatch_on_aliasing
from tj_torch.ops.facts.schema_effects import writes_nothing
from tj_torch.ops.naming.resolve import resolve
from tj_torch.runtime.counters import bump_version, versioned
from tj_torch.runtime.functional import Functional, Inverse, with_strides, with_value
from tj_torch.runtime.rollback import raising, unless_it_raises
from tj_torch.torch_private.ops import can_be_written


def made(*shape, **options):
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), **options).reshape(shape)


@pytest.mark.parametrize(
    ("fn", "args", "mutated"),
    [
        (torch.Tensor.mul_, (made(2, 3), 2), (0,)),
        (torch.Tensor.__setitem__, (made(2, 3), 0, 5.0), (0,)),
        (F.batch_norm, (made(4, 3), made(3), made(3), None, None, True), (1, 2)),
        (torch._foreach_add_, ([made(2), made(3)], 1), (0, 1)),
    ],
    ids=["mul_", "setitem", "batch_norm", "foreach"],
)
def test_writes_are_results(fn, args, mutated) -> None:
    def tensors(tree):
        return [t for x in tree for t in (x if isinstance(x, list) else [x]) if torch.is_tensor(t)]

    before = [t.clone() for t in tensors(args)]
    *news, result = Functional(fn)(*args, mutated=mutated)
    assert all(map(torch.equal, tensors(args), before))
    expected = fn(*args)
    assert all(map(torch.equal, news, [tensors(args)[i] for i in mutated]))
    if isinstance(expected, torch.Tensor):
        assert torch.equal(result, expected)


def test_a_tensor_given_twice_is_one() -> None:
    x = made(3)
    (new, result) = Functional(torch.sin)(x, out=x, mutated=(0,))
    assert result is new
    assert torch.equal(new, torch.sin(made(3)))
    assert torch.equal(x, made(3))


def test_strides_stay() -> None:
    x = torch.empty_strided((2, 3), (1, 4)).copy_(made(2, 3))
    (new, _) = Functional(torch.Tensor.mul_)(x, 2, mutated=(0,))
    assert new.stride() == x.stride()
    assert with_strides(made(2, 3), x).stride() == (1, 4)


@pytest.mark.parametrize(
    ("view", "args"),
    [
        (torch.Tensor.__getitem__, (0,)),
        (torch.t, ()),
        (torch.Tensor.view, ((-1,),)),
        (torch.narrow, (1, 1, 2)),
        (torch.diagonal, ()),
    ],
)
def test_the_inverse_of_a_view(view, args) -> None:
    x = made(2, 3)
    value = view(x, *args) * -1
    found = Inverse(view)(value, 0, 0, x, *args)
    expected = x.clone()
    view(expected, *args).copy_(value)
    assert torch.equal(found, expected)
    assert torch.equal(x, made(2, 3))


def test_the_inverse_of_one_of_several_views() -> None:
    x = made(2, 3)
    found = Inverse(torch.unbind)(torch.zeros(3), 1, 0, x)
    assert torch.equal(found, torch.stack([x[0], torch.zeros(3)]))


def test_with_value_is_the_identity_to_autograd() -> None:
    x, y = made(3).requires_grad_(), made(3).requires_grad_()
    out = with_value(x * 2, y * 3)
    out.backward(made(3))
    assert torch.equal(out, made(3) * 3)
    assert torch.equal(x.grad, made(3) * 2)
    assert y.grad is None


def test_versions() -> None:
    x = made(3).clone()
    bump_version(x, 2)
    assert x._version == 2
    assert versioned(x, 5) is x
    assert x._version == 5
    view = versioned(made(3).view(-1), 1)
    assert view._version == 1
    assert not view._is_view()


def test_what_schemas_say_of_writes() -> None:
    pure = [torch.istft, torch.ops.aten.istft.default, torch.nonzero]
    assert all(map(writes_nothing, pure))
    others = [torch._foreach_mul_, torch.Tensor.mul_, torch.Tensor.requires_grad_, torch.detach_]
    assert not any(map(writes_nothing, [*others, torch.Tensor.t, torch.ops.aten.view.default]))
    assert not any(map(writes_nothing, [F.relu, print]))  # nobody says


def test_names_of_forms() -> None:
    assert resolve(Symbol("torch", "Tensor.mul_", "functional")) == Functional(torch.Tensor.mul_)
    assert resolve(Symbol("torch", "t", "inverse")) == Inverse(torch.t)
    with pytest.raises(LookupError):
        resolve(Symbol("torch", "no_such_operation", "functional"))


def test_what_runs_where_memory_is_shared() -> None:
    made_others = []

    def otherwise():
        made_others.append(1)
        return lambda *args: "acquired"

    def run(*args):
        return "functional"

    def shared(found):
        return lambda *args: found

    acquired = once(otherwise)
    one = dispatch_on_aliasing(run, (0, 2), (2,), shared, acquired)
    a, b = made(4), made(4)
    assert one(a, None, b) == "functional"
    assert [one(a, None, a[1:])[0].places, one(b, 1, b)[0].places] == [(0, 2)] * 2
    assert not made_others
    seen = dispatch_on_aliasing(run, (0,), (0,), shared, acquired, [(0, can_be_written)])
    leaf = made(3).clone().requires_grad_()
    assert [seen(leaf), seen(leaf * 1), seen(made(3))] == [
        "acquired",
        "functional",
        "functional",
    ]
    assert [seen(leaf[1:]), seen((leaf * 1).unbind(0)[0])] == ["acquired"] * 2
    assert made_others == [1]
    third = dispatch_on_aliasing(run, (0, 1, 2), (2,), shared, acquired)
    assert third(a, a[1:], b) == "functional"  # those that share are not written
    two = dispatch_on_aliasing(run, range(5), (0, 3), shared, acquired)
    assert [g.places for g in two(a, b, a, b, b)] == [(0, 2), (1, 3, 4)]


def test_ways_of_sharing_memory() -> None:
    def groups(args, tensors, mutated):
        return dispatch_on_aliasing(
            lambda *args: (), tensors, mutated, lambda found: lambda *args: found, lambda *args: ()
        )(*args)

    x = torch.arange(12.0)
    rows, column = x.view(3, 4), x[::4]
    (views,) = groups((rows, column, made(3)), (0, 1, 2), (1,))
    assert views == Group((0, 1), (0, 0), None, ((12,), (1,)))
    (own,) = groups((x, None, x[2:]), (0, 2), (0,))
    assert own == Group((0, 2), (0, 2), 0, ((12,), (1,)))
    (memory,) = groups((x.detach()[1:], x[2:]), (0, 1), (0,))
    assert memory == Group((0, 1), (1, 2))  # for autograd they are views of two tensors
    assert groups((x[:2], x[2:], made(3)), (0, 1, 2), (2,)) == ()
    leaf = torch.ones(4).requires_grad_()
    (parts,) = groups((leaf * 1).split(2), (0, 1), (0,))
    assert parts.geometry is None  # autograd lets nobody write them
    seen: list[tuple[Group, ...]] = []

    def make(found):
        seen.append(found)
        count = len(seen)
        return lambda *args: count

    run = dispatch_on_aliasing(lambda *args: 0, (0, 1), (0,), make, lambda *args: "too many")
    calls = [run(x[:4], x[n:]) for n in (1, 2, 1, 2)]
    assert calls == [1, 2, 1, 2]
    assert [g.offsets for (g,) in seen] == [(0, 1), (0, 2)]
    calls = [run(x[:4], x[n:]) for n in (*range(3, 12), 2)]
    assert calls == [*range(3, PATTERN_LIMIT + 1), *["too many"] * 3, 2]


def test_ways_of_sharing_memory_are_told_apart_when_there_are_many() -> None:
    run = dispatch_on_aliasing(
        lambda *args: (), range(4), range(4), lambda found: lambda *args: found, lambda *args: None
    )
    tensors = [made(2) for _ in range(4)]
    known = 0
    for names in itertools.product(range(4), repeat=4):
        same = [tuple(i for i in range(4) if names[i] == n) for n in dict.fromkeys(names)]
        found = run(*(tensors[n] for n in names))
        assert found is None or [g.places for g in found] == [g for g in same if len(g) > 1]
        known += found is not None
    # The first eight ways have programs; the fewest calls that are of one way are four.
    assert known >= PATTERN_LIMIT * 4


def test_a_functional_program_that_raises_leaves_it_to_the_one_acquired() -> None:
    x, drawn = made(2).clone(), []

    def inner(x):
        drawn.append(torch.rand(()))
        raise ValueError("functional")

    def acquired(x):
        drawn.append(torch.rand(()))
        x.add_(1)
        raise ValueError("acquired")

    run = unless_it_raises(raising(inner), acquired, ["cpu"])
    with pytest.raises(ValueError, match="acquired") as raised:
        run(x)
    assert raised.value.__context__ is None
    assert torch.equal(x, made(2) + 1)
    assert torch.equal(*drawn)
    run = unless_it_raises(raising(inner), lambda x: "right", [])
    with pytest.warns(tj.TjWarning, match="functional form of a program raised ValueError"):
        assert run(x) == "right"
    run = unless_it_raises(acquired, lambda x: "right", [])
    with pytest.raises(ValueError, match="acquired"):  # of what stands around: it has written
        run(x)
