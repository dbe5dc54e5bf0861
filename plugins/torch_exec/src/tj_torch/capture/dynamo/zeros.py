"""Guards that tell 0.0 from -0.0, which are equal, and divide, print and round otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tj_torch.capture.dynamo import versions
from tj_torch.capture.dynamo.identity import add_last
from tj_torch.capture.dynamo.patches import replace

__all__ = ["correct", "guard_signs"]


def correct(stack: ExitStack) -> None:
    """Let no symbol stand for a zero, whose sign would be lost in sums, products and guards."""
    from tj_torch.torch_private.dynamo import ConstantVariable, GuardBuilder, VariableBuilder

    def of_float(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrap_symfloat(self: Any, value: float) -> Any:
            if value == 0:
                self.install_guards(GuardBuilder.CONSTANT_MATCH)
                return ConstantVariable.create(value=value, source=self.source)
            made = original(self, value)
            if not made.is_python_constant():
                self.install_guards(_is_not_zero)
            return made

        return wrap_symfloat

    guard_signs(stack)
    replace(stack, VariableBuilder, "wrap_symfloat", of_float)


def _is_not_zero(builder: Any, guard: Any) -> None:
    add_last(builder, guard, f"{builder.arg_ref(guard)} != 0")


def guard_signs(stack: ExitStack) -> None:
    """Guard the sign of each zero among constants, while guards are built."""
    from tj_torch.torch_private.dynamo import GuardBuilder

    def of_equality(original: Callable[..., Any]) -> Callable[..., Any]:
        def EQUALS_MATCH(self: Any, guard: Any, *args: Any, **kwargs: Any) -> None:
            original(self, guard, *args, **kwargs)
            value = self.get(guard)
            if _has_zero(value):
                add_last(self, guard, f"repr({self.arg_ref(guard)}) == {repr(value)!r}")

        return EQUALS_MATCH

    versions.last_guards(stack)
    replace(stack, GuardBuilder, "EQUALS_MATCH", of_equality)


def _has_zero(value: Any) -> bool:
    """Tell whether a constant is or holds a zero that has a sign."""
    if type(value) is float:
        return value == 0
    if type(value) is complex:
        return value.real == 0 or value.imag == 0
    return type(value) in (tuple, list) and any(map(_has_zero, value))
