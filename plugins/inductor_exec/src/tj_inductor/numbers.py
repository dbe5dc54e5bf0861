"""Floats that are known in each call only, as tensors: a region takes no such numbers.

PyTorch rounds a number to the data type of the tensor beside it, and so it does a tensor without
dimensions. Thus ``x * rate`` is fused where ``rate`` is an argument of the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    Constant,
    NumberProxy,
    PassContext,
    Replacement,
    RuleTable,
    Stage,
    TensorProxy,
    Trace,
    Transform,
)

from tj_inductor.opening import opened
from tj_inductor.operators import can_fuse

__all__ = ["Made", "UnfitError", "as_tensors", "tensors_of"]

EXACT = frozenset({"float32", "float64"})
"""Data types in which a number is rounded alike, whether it comes as one or as a tensor."""

FORMS = {
    **{f"{name}.Tensor": f"{name}.Tensor" for name in ("add", "sub", "mul", "div")},
    **{
        f"{name}.Scalar": f"{name}.Tensor"
        for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "lerp")
    },
    "addcmul.default": "addcmul.default", "addcdiv.default": "addcdiv.default",
    "clamp.default": "clamp.Tensor", "clamp_min.default": "clamp_min.Tensor",
    "clamp_max.default": "clamp_max.Tensor", "masked_fill.Scalar": "masked_fill.Tensor",
    "where.ScalarOther": "where.self", "where.ScalarSelf": "where.self",
}  # fmt: skip
"""Operators of ``aten``, each with the one that takes tensors in the place of numbers."""

REFUSING = frozenset({"clamp", "clamp_min", "clamp_max", "lerp", "masked_fill"})
"""Operators whose kernels refuse numbers that the data type does not hold; others make infinities
of them. Factors (``alpha``, ``value``) are refused by every kernel."""

FLOAT32 = Constant("torch.float32", torch.float32)
FLOAT64 = Constant("torch.float64", torch.float64)


def as_tensors() -> Transform:
    """Make the transform."""
    return Transform("inductor-numbers", _with_tensors, after=Stage.SPLIT, falls_back=True)


def _with_tensors(trace: Trace, context: PassContext) -> Trace:
    if trace.stage < Stage.SPLIT or not any(map(_takes_unknown, trace.calls)):
        return trace
    trace = opened(trace, context, _is_around_form)
    known = tensors_of(trace)

    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        form = _form(call)
        if form is None or not _takes_unknown(call):
            return None
        made = Made(call, edit, form, known)
        try:
            made.add(call.outputs, list(call.args), dict(call.kwargs))
        except UnfitError:
            return None
        return Replacement((*made.tensors.values(), *made.calls))

    rules: RuleTable[Any] = RuleTable("inductor-numbers")
    rules.set("*", rule)
    return context.rewrite(trace, rules, into_bodies=False, into_subprograms=False)


def _is_around_form(call: BoundSymbol) -> bool:
    """Test for a call whose body is one of `FORMS` alone, with a number that is not known."""
    inner = call.body.calls if call.body is not None else ()
    return len(inner) == 1 and _form(inner[0]) is not None and _takes_unknown(inner[0])


def tensors_of(trace: Trace) -> dict[str, TensorProxy]:
    """The tensors that floats are read from, by the floats' names."""
    return {
        call.outputs.name: call.args[0]
        for call in trace.calls
        if call.symbol.qualname in ("torch.Tensor.item", "aten._local_scalar_dense.default")
        and is_unknown(call.outputs)
        and call.args[0].dtype.name == "float64"
        and not call.args[0].shape
        and call.args[0].device.type == "cpu"
    }


def _form(call: BoundSymbol) -> str | None:
    return FORMS.get(call.symbol.path) if call.symbol.namespace == "aten" else None


def _takes_unknown(call: BoundSymbol) -> bool:
    return any(map(is_unknown, call.flat_args))


def is_unknown(x: Any) -> bool:
    """Test for a number that is known in each call only, and is no size."""
    return isinstance(x, NumberProxy) and x.kind == "float"


def _is_number(x: Any) -> bool:
    value = x.value if isinstance(x, Constant) else x  # infinities and NaN are constants
    return isinstance(value, (int, float, NumberProxy))


class UnfitError(Exception):
    """A call that takes tensors is not what the call that takes numbers is."""


class Made:
    """The ``calls`` of operator ``name`` that take the place of ``call``, for one of its results.

    ``tensors`` are calls that make tensors of its numbers; ``known`` has tensors that numbers are
    read from.
    """

    def __init__(
        self,
        call: BoundSymbol,
        edit: CallEditor,
        name: str,
        known: Mapping[str, TensorProxy],
    ) -> None:
        self.call, self.edit, self.name, self.known = call, edit, name, known
        self.calls: list[BoundSymbol] = []
        self.tensors: dict[tuple[str, Constant], BoundSymbol] = {}

    def add(self, out: Any, given: list[Any], named: dict[str, Any]) -> None:
        """Append the calls that make ``out`` of ``given`` and keywords ``named``.

        :raises UnfitError: if one cannot be fused, or makes another result.
        """
        if any(map(is_unknown, (*given, *named.values()))):
            name, given = self.with_tensors(out, given, named)
            self.put(out, name, *given)
        else:
            self.put(out, self.name, *given, **named)

    def with_tensors(
        self, out: Any, given: list[Any], named: dict[str, Any]
    ) -> tuple[str, list[Any]]:
        """The operator, and its arguments with tensors in the place of numbers."""
        tensors = [x for x in (out, *given) if isinstance(x, TensorProxy)]
        if not isinstance(out, TensorProxy) or not _is_exact(tensors):
            raise UnfitError
        operator = self.name.partition(".")[0]
        # A conversion raises the error of a kernel that refuses the number.
        single = FLOAT32 if "float32" in {x.dtype.name for x in tensors} else FLOAT64
        factor = self.tensor(named.pop("alpha", named.pop("value", 1)), single)
        if named:
            raise UnfitError
        # The operator of bounds that are tensors takes no other ones. Beside NaN, a bound may be
        # any number.
        known = operator == "clamp"
        if known and any(isinstance(x, Constant) and x.value != x.value for x in given):
            raise UnfitError
        dtype = single if operator in REFUSING else FLOAT64
        args = [self.tensor(x, dtype, known=known) for x in given]
        if not out.shape and single is not dtype:
            # Of tensors without dimensions the wider data type is that of the result.
            args = [a if a is x else self.rounded(a) for a, x in zip(args, given, strict=True)]
        if operator in ("addcdiv", "addcmul"):
            # In this order, as in PyTorch's kernel.
            product = self.step("mul.Tensor", args[1], factor)
            return "add.Tensor", [
                args[0],
                self.step(f"{operator.removeprefix('addc')}.Tensor", product, args[2]),
            ]
        if isinstance(factor, TensorProxy):
            if operator != "add":
                raise UnfitError
            return "add.Tensor", [args[0], self.step("mul.Tensor", args[1], factor)]
        if factor != 1:
            raise UnfitError
        return self.name, args

    def tensor(self, x: Any, dtype: Constant = FLOAT64, *, known: bool = False) -> Any:
        """``x``, or the tensor of a number that is not known yet, or of any if ``known``."""
        if not is_unknown(x) and not (known and _is_number(x)):
            return x
        name = x.name if isinstance(x, NumberProxy) else repr(x)
        if name in self.known and dtype is FLOAT64:
            return self.known[name]
        if (name, dtype) not in self.tensors:
            made = self.edit.call("aten.scalar_tensor.default", x, dtype=dtype)
            self.tensors[name, dtype] = made
        return self.tensors[name, dtype].outputs

    def rounded(self, x: Any) -> Any:
        """``x`` in float32; a number that is too large for it is infinite."""
        return self.step("_to_copy.default", x, dtype=FLOAT32)

    def step(self, name: str, *args: Any, **named: Any) -> Any:
        """The result of a call of ``name``, which is appended."""
        made = self.edit.call(f"aten.{name}", *args, **named)
        self.keep(made)
        return made.outputs

    def put(self, out: Any, name: str, *args: Any, **named: Any) -> None:
        """Append the call of operator ``name`` that makes ``out``."""
        made = self.edit.call(f"aten.{name}", *args, outputs=(out.name,), **named)
        result = made.outputs
        if not isinstance(result, TensorProxy) or not isinstance(out, TensorProxy):
            raise UnfitError
        if result.replace(tags=out.tags, requires_grad=out.requires_grad) != out:
            raise UnfitError
        self.keep(made.replace(outputs=out))

    def keep(self, made: BoundSymbol) -> None:
        """Append ``made``."""
        made = made.replace(tags=self.call.tags, body=None)
        if made.outputs.device.type != "cpu" or can_fuse(made) is not True:
            raise UnfitError
        self.calls.append(made)


def _is_exact(tensors: list[TensorProxy]) -> bool:
    """Test for one data type among ``tensors``, masks aside, in which numbers are rounded alike."""
    types = {x.dtype.name for x in tensors} - {"bool"}
    return len(types) == 1 and types <= EXACT
