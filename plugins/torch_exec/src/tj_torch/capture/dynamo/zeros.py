"""Guards that tell 0.0 from -0.0, which are equal but divide, print and round differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo import releases
from tj_torch.capture.dynamo.identity import add_last
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct", "guard_signs"]


def correct(stack: ExitStack) -> None:
    """Make a zero a constant, not a symbol, which would lose its sign in sums and guards."""
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
    """Guard the sign of each zero among constants, until ``stack`` is left."""
    from tj_torch.torch_private.dynamo import GuardBuilder

    def of_equality(original: Callable[..., Any]) -> Callable[..., Any]:
        def EQUALS_MATCH(self: Any, guard: Any, *args: Any, **kwargs: Any) -> None:
            original(self, guard, *args, **kwargs)
            value = self.get(guard)
            if _has_zero(value):
                add_last(self, guard, f"repr({self.arg_ref(guard)}) == {repr(value)!r}")

        return EQUALS_MATCH

    releases.last_guards(stack)
    replace(stack, GuardBuilder, "EQUALS_MATCH", of_equality)


def _has_zero(value: Any) -> bool:
    """Test for a float or complex zero, or a tuple or list with one."""
    if type(value) is float:
        return value == 0
    if type(value) is complex:
        return value.real == 0 or value.imag == 0
    return type(value) in (tuple, list) and any(map(_has_zero, value))
