"""Corrections of how Dynamo sees tensors; a part of `tj_torch.capture.dynamo.corrections`.

A capture runs on fake tensors, once. What the program reads of a tensor must be the same in every
call that takes the program, follow what the program does to the tensor, or not be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import torch

from tj_torch.capture.dynamo import versions
from tj_torch.capture.dynamo.noticed import Noticed
from tj_torch.capture.dynamo.patches import replace, stop

__all__ = [
    "UNSEEN",
    "compute_attributes_once",
    "leave_overriding_subclasses",
    "leave_the_unseen",
    "notice_subclasses",
    "own_bases",
]

UNSEEN: Mapping[str, str] = MappingProxyType(
    {
        "_version": "versions count writes, and a program has none of its own until it returns",
        "storage_type": "capture has no storage",
        "data_ptr": "capture has no memory",
        "const_data_ptr": "capture has no memory",
    }
)
"""Attributes and methods of tensors that only a real tensor has, to the reason."""


def compute_attributes_once(stack: ExitStack) -> None:
    """Return a view like ``x.T`` or ``x.data`` as the program made it, for this capture only.

    Dynamo would read such an attribute of an input again after the graph has run: outside of the
    program's grad mode, after its writes, and as an object that the program has not written to.
    """
    from tj_torch.torch_private.dynamo import TensorVariable

    def once(original: Callable[..., Any]) -> Callable[..., Any]:
        def var_getattr(self: Any, tx: Any, name: str) -> Any:
            result = original(self, tx, name)
            if isinstance(result, TensorVariable) and result is not self:
                node = result.as_proxy().node
                if node.op != "placeholder":  # as ``x.grad`` is
                    result.source = None
            return result

        return var_getattr

    versions.attributes(stack, TensorVariable, once)


def leave_the_unseen(stack: ExitStack) -> None:
    """Break the graph where the program reads what fake tensors do not have, or have otherwise."""
    from tj_torch.torch_private.dynamo import TensorVariable

    def seen(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if name in UNSEEN:
                stop(f"Tensor.{name}: {UNSEEN[name]}")
            if name in ("grad_fn", "_grad_fn") and self.source is not None and self.requires_grad:
                stop("Tensor.grad_fn of an input: guards do not know whose result it is")
            return original(self, tx, name, *args, **kwargs)

        return read

    versions.attributes(stack, TensorVariable, seen)
    replace(stack, TensorVariable, "call_method", seen, inherited=True)


_OWN_MEMBERS = frozenset(
    {"__init__", "__new__", "__repr__", "__slotnames__", *vars(type("_", (), {}))}
)
"""Members that a subclass may have of its own, and be what `torch.Tensor` is to an operation.

Copying gives a class ``__slotnames__``.
"""


def _overriding(kind: type) -> str | None:
    """A member by which ``kind``, a subclass of `torch.Tensor`, changes what operations mean."""
    for base in own_bases(kind):
        for name in vars(base):
            if hasattr(torch.Tensor, name) and name not in _OWN_MEMBERS:
                return f"{base.__qualname__}.{name}"
    return None


def own_bases(kind: type) -> list[type]:
    """The classes, none of PyTorch's, that ``kind`` is made of before it is a `torch.Tensor`."""
    before = kind.__mro__[: kind.__mro__.index(torch.Tensor)]
    return [base for base in before if base.__module__.partition(".")[0] != "torch"]


def leave_overriding_subclasses(stack: ExitStack) -> None:
    """Break the graph at operations of subclasses that give them another meaning in Python.

    Dynamo looks past an overridden operator, and what it has inlined of ``__torch_function__`` runs
    on tensors that would dispatch to it once more.
    """
    from tj_torch.torch_private.dynamo import TensorVariable, TensorWithTFOverrideVariable

    def plain(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            member = None
            if isinstance(self, TensorWithTFOverrideVariable):
                member = _overriding(self.class_type)
            if member is not None:
                stop(f"{member} gives an operation of PyTorch another meaning")

        return init

    replace(stack, TensorVariable, "__init__", plain)


def notice_subclasses(stack: ExitStack, noticed: Noticed) -> None:
    """Note the classes of tensors; their methods run in fake tensors, where Dynamo is blind."""
    from tj_torch.torch_private.dynamo import TensorVariable

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            value = self.proxy.node.meta.get("example_value")
            for kind in (self.class_type, type(value)):
                if isinstance(kind, type) and issubclass(kind, torch.Tensor):
                    noticed.subclasses.update(dict.fromkeys(own_bases(kind)))

        return init

    replace(stack, TensorVariable, "__init__", noting)
