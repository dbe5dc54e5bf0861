"""Guards of methods that are values, as ``torch.Tensor.sin`` is, which Dynamo leaves out."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["guard_descriptors"]


def guard_descriptors(stack: ExitStack) -> None:
    """Guard which method of a class of PyTorch's a program reads, until ``stack`` is left."""
    from tj_torch.torch_private.dynamo import TorchInGraphFunctionVariable

    replace(stack, TorchInGraphFunctionVariable, "create_with_source", _guarded, inherited=True)


def _guarded(original: Any) -> Any:
    create: Callable[..., Any] = original.__func__

    def create_with_source(cls: Any, value: Any, source: Any) -> Any:
        from tj_torch.torch_private.dynamo import GuardBuilder, install_guard

        if isinstance(value, MethodDescriptorType | WrapperDescriptorType):
            install_guard(source.make_guard(GuardBuilder.ID_MATCH))
        return create(cls, value, source)

    return classmethod(create_with_source)
