"""Calls on tensor subclasses: dense bodies, gradients of whole calls, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tj_core.extend import Proxy, TensorProxy, leaves
from tj_subclass.kind import rules
from tj_suites.subclasses.kinds import Counted, Labeled, Lower, Packed, Scaled
from tj_torch.ops.errors import CannotExpand, ExpansionError
from tj_torch.ops.expansion.derive import derive
from tj_torch.ops.expansion.expander import Expander
from tj_torch.ops.expansion.kinds import Kinds
from tj_torch.ops.values.convert import tensor_proxy
from tj_torch.runtime.subclasses import flatten, unflatten
from torch.testing._internal.two_tensor import TwoTensor


@pytest.fixture
def expander() -> Expander:
    return Expander(kinds=Kinds(rules()))


def two(*shape: int, grad: bool = False) -> Any:
    return TwoTensor(torch.randn(*shape), torch.randn(*shape)).requires_grad_(grad)


def expansion(expander: Expander, fn: Callable[..., Any], *values: Any) -> Any:
    return expander.expand(fn, arguments(values))


def arguments(values: Any) -> tuple[Any, ...]:
    count = iter("xyzw")
    return tuple(tensor_proxy(next(count), v) if isinstance(v, torch.Tensor) else v for v in values)


def calls(body: Any) -> list[Any]:
    """Innermost calls of a body: on dense tensors, and flatten and unflatten calls."""
    inner = ([call] if call.body is None else calls(call.body) for call in body.calls)
    return [call for found in inner for call in found]


def operators(body: Any) -> list[str]:
    return [call.symbol.qualname for call in calls(body)]


def test_a_body_has_operators_on_the_subclass_with_dense_bodies(expander: Expander) -> None:
    made = expansion(expander, torch.addcmul, two(3), two(3), two(3))
    (whole,) = made.body.calls
    assert whole.symbol.qualname == "aten.addcmul.default"
    assert whole.on_subclass
    assert [p.name for p in whole.body.inputs] == ["a0", "a1", "a2"]
    assert not any(call.on_subclass for call in whole.body.calls)
    linear = expansion(expander, torch.nn.functional.linear, two(3), two(2, 3), two(2))
    levels = [call.symbol.qualname for call in linear.body.calls]
    assert len(levels) > 1
    assert all(call.on_subclass for call in linear.body.calls)
    assert operators(linear.body).count("tj.unflatten") == len(levels)


def test_operators_on_what_a_subclass_holds_are_beside_those_on_it(expander: Expander) -> None:
    def twice(x: Any) -> Any:
        return Labeled(x.held * 2, x.label) + x

    twice.__module__ = "torch"  # others are not to ask for offsets, as constructors do
    made = expansion(expander, twice, Labeled(torch.ones(3), "a"))
    levels = [call.symbol.qualname for call in made.body.calls]
    assert levels == ["tj.flatten", "aten.mul.Tensor", "tj.unflatten", "aten.add.Tensor"]
    assert [call.body is None for call in made.body.calls] == [True, True, True, False]


def test_the_backward_has_operators_on_the_subclass(expander: Expander) -> None:
    args = arguments([two(3, grad=True), two(3, grad=True)])
    body = derive(expander, torch.mul, args).backward.body
    assert body is not None
    names = [call.symbol.qualname for call in body.calls]
    assert names == ["aten.mul.Tensor"] * 2
    assert all(call.on_subclass for call in body.calls)


def test_a_body_is_dense(expander: Expander) -> None:
    made = expansion(expander, torch.mul, two(3), two(3))
    two_each = ["tj.flatten", "tj.flatten", "aten.mul.Tensor", "aten.mul.Tensor", "tj.unflatten"]
    assert operators(made.body) == two_each
    assert made.outputs.subclass.type.endswith(".TwoTensor")
    dense = [p for call in calls(made.body)[2:4] for p in (*call.flat_args, *call.flat_outs)]
    assert all(isinstance(p, TensorProxy) and p.subclass is None for p in dense)


def test_what_kinds_nest_is_taken_apart_to_the_ground(expander: Expander) -> None:
    made = expansion(expander, torch.sin, TwoTensor(two(3), two(3)))
    assert operators(made.body).count("aten.sin.default") == 4


def test_a_context_goes_with_the_result(expander: Expander) -> None:
    made = expansion(expander, torch.sin, Counted(torch.ones(2), 4))
    assert made.outputs.subclass.context == "(5,)"
    joined = expansion(
        expander, torch.add, Labeled(torch.ones(2), "a"), Labeled(torch.ones(2), "b")
    )
    assert "a+b" in joined.outputs.subclass.context


def test_a_plain_result_is_plain(expander: Expander) -> None:
    weight = Scaled.of(torch.randn(3, 4))
    made = expansion(expander, torch.nn.functional.linear, torch.randn(2, 4), weight)
    assert made.outputs.subclass is None
    assert made.outputs.shape == (2, 3)


def test_a_class_that_is_called(expander: Expander) -> None:
    made = expansion(expander, TwoTensor, torch.ones(2), torch.ones(2))
    assert operators(made.body) == ["tj.unflatten"]


def test_metadata_are_those_of_the_whole(expander: Expander) -> None:
    made = expansion(expander, torch.mul, Lower(torch.ones(2)), 2.0)
    assert made.outputs.dtype.name == "float32"
    assert "aten._to_copy.default" in operators(made.body)


@pytest.mark.parametrize(
    "fn", [torch.Tensor.mul_, lambda x, y: x.zero_()], ids=["in place", "a Python function"]
)
def test_a_write_is_an_update_and_an_effect(expander: Expander, fn: Callable[..., Any]) -> None:
    made = expansion(expander, fn, two(3), two(3))
    assert made.effects.mutates == (0,)
    assert [index for index, _ in made.body.updates] == [0]
    assert operators(made.body)[-1] == "tj.unflatten"


def test_an_error_of_the_call_is_one_of_the_user(expander: Expander) -> None:
    with pytest.raises(ExpansionError):
        expansion(expander, torch.matmul, two(3, 3), two(4, 4))


def test_a_kind_that_is_known_by_name_only_is_refused(expander: Expander) -> None:
    p = tensor_proxy("x", two(3))
    assert p.subclass is not None
    text = type(p.subclass)(p.subclass.type, p.subclass.inner, p.subclass.context)
    assert text == p.subclass  # what it is made of takes no part in equality
    with pytest.raises(CannotExpand, match="not known here"):
        expander.expand(torch.sin, (p.replace(subclass=text),))


def test_gradients_are_of_the_whole_call(expander: Expander) -> None:
    args = arguments([two(3, grad=True), two(3, grad=True)])
    made = derive(expander, torch.mul, args)
    assert made.gradients == (0, 1)
    assert all(p.subclass is not None for p in made.backward.outputs)
    assert operators(made.backward.body).count("aten.mul.Tensor") == 4


def test_an_operator_without_derivative_may_stand_inside(expander: Expander) -> None:
    x = Packed(torch.randn(3, 3)).requires_grad_()
    made = derive(expander, torch.mm, arguments([x, Packed(torch.randn(3, 3)).requires_grad_()]))
    inner = [name for name in operators(made.backward.body) if "packed_mm" in name]
    assert len(inner) == 2
    assert made.gradients == (0, 1)


def test_the_gradient_of_a_plain_tensor_may_be_of_a_subclass(expander: Expander) -> None:
    args = arguments([two(3), torch.ones(3, requires_grad=True)])
    made = derive(expander, torch.mul, args)
    (gradient,) = made.backward.outputs
    assert made.gradients == (1,)
    assert gradient.subclass is not None


def test_states_of_one_text_are_told_apart() -> None:
    class Mute:
        """Objects that are unequal but print alike."""

        def __repr__(self) -> str:
            return "mute"

    first, second = Mute(), Mute()
    proxies = [tensor_proxy("x", Labeled(torch.ones(2), label)) for label in (first, second, first)]
    contexts = [p.subclass.context for p in proxies if p.subclass is not None]
    assert contexts[0] == contexts[2] != contexts[1]


def test_taken_apart_and_put_together() -> None:
    x = TwoTensor(two(3), two(3))
    parts = flatten(x)
    assert len(parts) == 4
    assert parts[2] is x.b.a
    p = tensor_proxy("x", x)
    made = Expander(kinds=Kinds(rules())).expand(torch.clone, (p,))
    (call,) = (c for c in calls(made.body) if c.symbol.name == "unflatten")
    again = unflatten(call.args[0].value, parts)
    assert [t is u for t, u in zip(flatten(again), parts, strict=True)] == [True] * 4


def test_formals_are_the_only_inputs(expander: Expander) -> None:
    made = expansion(expander, torch.sin, two(3))
    names = [p.name for p in made.body.inputs]
    used = {p.name for call in made.body.calls for p in leaves(call.args) if isinstance(p, Proxy)}
    assert names == ["a0"]
    assert "a0" in used
