"""Corrections of Dynamo's tracing of tensors, see `tj_torch.capture.dynamo.features`.

A capture runs once, on fake tensors. A fact of a tensor that the program reads must be the same in
every call that runs the entry, or follow from the program's operations; else the graph breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CellType, FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo import releases
from tj_torch.capture.dynamo.patches import stop
from tj_torch.guards.subclasses import lost_attribute, own_bases, same_attributes
from tj_torch.ops.facts.python_backwards import asked
from tj_torch.runtime.subclasses import is_wrapper
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations


__all__ = [
    "UNGUARDED",
    "UNSEEN",
    "compute_attributes_once",
    "leave_overriding_subclasses",
    "leave_reading_hooks",
    "leave_the_unseen",
    "notice_subclasses",
]

UNSEEN: Mapping[str, str] = MappingProxyType(
    {
        "_version": "versions count writes, and a program has none of its own until it returns",
        "storage_type": "capture has no storage",
        "data_ptr": "capture has no memory",
        "const_data_ptr": "capture has no memory",
    }
)
"""Reasons for attributes and methods of tensors that fake tensors do not have."""

UNGUARDED = frozenset(
    {
        "_backward_hooks",
        "_grad_fn",
        "_has_symbolic_sizes_strides",
        "_post_accumulate_grad_hooks",
        "grad_fn",
        "is_leaf",
        "output_nr",
        "retains_grad",
    }
)
"""Attributes that follow from operations where a program computes the tensor; of an input, guards
do not know them.
"""


def compute_attributes_once(stack: ExitStack) -> None:
    """Return a view like ``x.T`` or ``x.data`` as computed in the graph, for this capture only.

    Dynamo would read such an attribute of an input again after the graph: outside of the program's
    grad mode, after its writes, and as a new object without the program's writes to it.
    """
    from tj_torch.torch_private.dynamo import TensorVariable

    def once(original: Callable[..., Any]) -> Callable[..., Any]:
        def var_getattr(self: Any, tx: Any, name: str) -> Any:
            result = original(self, tx, name)
            if isinstance(result, TensorVariable) and result is not self:
                node = result.as_proxy().node
                if node.op != "placeholder":  # ``x.grad`` is a placeholder
                    result.source = None
            return result

        return var_getattr

    releases.attributes(stack, TensorVariable, once)


def leave_the_unseen(stack: ExitStack) -> None:
    """Break the graph at attributes that fake tensors lack, or have with other values."""
    from tj_torch.torch_private.dynamo import TensorVariable, UntypedStorageVariable

    def measured(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name == "size" and self.from_tensor.source is not None:
                stop("the size of an input's memory: guards know that of the tensor")
            return original(self, tx, name, args, kwargs)

        return call_method

    def seen(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if name in UNSEEN:
                stop(f"Tensor.{name}: {UNSEEN[name]}")
            if name in UNGUARDED and self.source is not None and not _is_known(self, name):
                stop(f"Tensor.{name} of an input: guards do not know what was done with it")
            return original(self, tx, name, *args, **kwargs)

        return read

    releases.attributes(stack, TensorVariable, seen)
    replace(stack, TensorVariable, "call_method", seen, inherited=True)
    replace(stack, UntypedStorageVariable, "call_method", measured, inherited=True)


def _is_known(variable: Any, name: str) -> bool:
    """Test for an attribute that an input has for its type, or since it needs no gradient."""
    if name == "is_leaf" and issubclass(variable.class_type, torch.nn.Parameter):
        return True
    return name in ("is_leaf", "grad_fn", "_grad_fn") and not variable.requires_grad


_OWN_MEMBERS = frozenset({
    *("__init__", "__new__", "__repr__", "__slotnames__", *vars(type("_", (), {}))),
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
})  # fmt: skip
"""Members that a subclass may define without changing operations.

``copy`` adds ``__slotnames__`` to a class. Python has annotations under several names (to 3.14).
"""


def _overriding(kind: type) -> str | None:
    """Member by which ``kind``, a subclass of `torch.Tensor`, overrides operations; else None."""
    for base in own_bases(kind):
        for name in vars(base):
            if hasattr(torch.Tensor, name) and name not in _OWN_MEMBERS:
                return f"{base.__qualname__}.{name}"
    return None


def leave_overriding_subclasses(stack: ExitStack) -> None:
    """Break the graph at tensors of subclasses that override operations in Python.

    Dynamo ignores an overridden operator, and calls that it has inlined from
    ``__torch_function__`` run on tensors that would dispatch to it a second time.
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


def notice_subclasses(stack: ExitStack, noticed: Observations) -> None:
    """Note the classes of tensors, whose methods run in fake tensors, unseen by Dynamo."""
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
    _guard_attributes(stack)


def _guard_attributes(stack: ExitStack) -> None:
    """Guard attributes of tensors of a user's class that its handlers read.

    Dynamo guards those that ``__tensor_flatten__`` returns, and makes fake tensors of them alone:
    the graph breaks at a tensor with others.
    """
    from tj_torch.torch_private.dynamo import (
        GuardBuilder,
        VariableBuilder,
        get_verbose_code_parts,
    )

    def guarding(original: Callable[..., Any]) -> Callable[..., Any]:
        def TENSOR_SUBCLASS_METADATA_MATCH(self: Any, guard: Any) -> None:
            original(self, guard)
            same = same_attributes(self.get(guard))
            if same is not None:
                text = "attributes that handlers read are unchanged"
                parts = get_verbose_code_parts(text, guard)
                self.get_guard_manager(guard).add_lambda_guard(same, parts, guard.user_stack)

        return TENSOR_SUBCLASS_METADATA_MATCH

    def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrap_tensor(self: Any, value: torch.Tensor) -> Any:
            made = original(self, value)
            fake = made.proxy.node.meta.get("example_value") if is_wrapper(value) else None
            if fake is not None and (name := lost_attribute(value, fake)):
                stop(f"{name}, which handlers read, is not in what __tensor_flatten__ returns")
            return made

        return wrap_tensor

    replace(stack, GuardBuilder, "TENSOR_SUBCLASS_METADATA_MATCH", guarding)
    replace(stack, VariableBuilder, "wrap_tensor", wrapping)


def leave_reading_hooks(stack: ExitStack) -> None:
    """Break the graph at a hook on a computed tensor that reads state, such as a global list.

    Dynamo captures the hook with the program, and it runs in the backward, where eager reads.
    """
    from tj_torch.torch_private.dynamo import TensorVariable

    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def _method_register_hook(self: Any, tx: Any, name: str, hook: Any) -> Any:
            function = _function_of(hook) if not self.source else None
            if function is not None:
                found = asked(function)
                if found.reason is not None or found.reads:
                    why = found.reason or f"it reads {found.reads[0].name}"
                    stop(f"the hook {function.__qualname__} runs later, and {why}")
            return original(self, tx, name, hook)

        return _method_register_hook

    replace(stack, TensorVariable, "_method_register_hook", looking)


def _function_of(hook: Any) -> FunctionType | None:
    """The function of a hook, with fixed values for variables of a program that makes it."""
    function, code = getattr(hook, "fn", None), getattr(hook, "code", None)
    if function is None and code is not None:
        made = code.as_python_constant()
        cells = tuple(CellType(...) for _ in made.co_freevars)
        function = FunctionType(made, hook.f_globals, closure=cells)
    return function if isinstance(function, FunctionType) else None
