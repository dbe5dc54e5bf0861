"""Differences of Dynamo between releases of PyTorch: one function per correction.

Releases are told apart by the names that exist, never by number. If none of the known names exists,
`MissingNameError` is raised; programs then run in eager, with one warning.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from tj_torch.capture.dynamo.patches import (
    is_pytorchs,
    replace_instruction,
    stop,
    with_subclasses,
)
from tj_torch.capture.dynamo.settings import with_settings
from tj_torch.torch_private.replacement import has, replace
from tj_torch.torch_private.texts import WHERE_IMPORTED

__all__ = [
    "ambient_state",
    "attribute_changes",
    "attributes",
    "captures_functions_in_steps",
    "captures_hooks_of_values",
    "captures_writes_of_functions",
    "context_variables",
    "decomposing_handlers",
    "default_equality",
    "errors_of_fakes",
    "guards_class_constants",
    "is_of_fakes",
    "last_guards",
    "lstm_states",
    "member_lookups",
    "own_dicts",
    "products_of_symbols",
    "refuse_setters",
    "refused_operators",
    "reorderings",
    "resync",
    "seen_constructors",
    "undecomposed",
]


# --------------------------------------------------------------------------- guards and state


def last_guards(stack: ExitStack) -> None:
    """Make Dynamo build the guards that are checked after all others, until ``stack`` is left.

    With a setting, the default from 2.14 on, it checks identities in another way and drops these.
    """
    from tj_torch.torch_private.dynamo import dynamo

    if hasattr(dynamo.config, "use_lamba_guard_for_object_aliasing"):
        stack.enter_context(with_settings({"use_lamba_guard_for_object_aliasing": True}))


@contextmanager
def ambient_state() -> Iterator[None]:
    """Make Dynamo guard on the thread's current modes inside.

    Up to 2.10, its hook leaves behind the modes of the last frame it saw.
    """
    from tj_torch.torch_private.dynamo import convert_frame

    with ExitStack() as stack:
        replace(stack, convert_frame, "initial_global_state", lambda _: None)
        yield


# --------------------------------------------------------------------------- class members


def member_lookups() -> tuple[list[tuple[Any, str]], list[tuple[Any, str]]]:
    """Methods of Dynamo that look up members: in the classes of objects, and in classes.

    Up to 2.10 there are no such methods; those that read attributes are returned instead.
    """
    from tj_torch.torch_private.dynamo import user_defined

    of_objects = user_defined.UserDefinedObjectVariable
    of_classes = user_defined.UserDefinedClassVariable
    base = "_maybe_get_baseclass_method"
    owner = user_defined.UserDefinedVariable
    methods = (owner if has(owner, base) else of_objects, base)
    if has(of_objects, "lookup_class_mro_attr"):
        found = [(of_objects, "lookup_class_mro_attr"), methods]
        return found, [(of_classes, "lookup_cls_mro_attr")]
    return [(of_objects, "_getattr_static"), methods], [(of_classes, "var_getattr")]


def guards_class_constants() -> bool:
    """Test if Dynamo guards constants that it reads from classes, as it does after 2.10."""
    from tj_torch.torch_private.dynamo import user_defined

    return has(user_defined.UserDefinedClassVariable, "lookup_cls_mro_attr")


def refuse_setters(stack: ExitStack) -> None:
    """Break the graph at a set property where Dynamo does not run the setter (up to 2.10).

    Attributes set by the setter would keep their old values.
    """
    from tj_torch.torch_private.dynamo import user_defined

    owner = user_defined.UserDefinedObjectVariable
    if not has(owner, "try_get_descritor_and_setter_py_func"):
        return

    def running(original: Callable[..., Any]) -> Callable[..., Any]:
        def found(self: Any, name: str) -> Any:
            if isinstance(getattr(type(self.value), name, None), property):
                stop(f"{type(self.value).__qualname__}.{name} is set by a property")
            return original(self, name)

        return found

    replace(stack, owner, "try_get_descritor_and_setter_py_func", running)


def attributes(
    stack: ExitStack,
    owner: Any,
    make: Callable[[Callable[..., Any]], Any],
    *,
    subclasses: bool = False,
) -> None:
    """Replace the method that reads attributes of variables of the class ``owner``.

    Up to 2.13 it is ``var_getattr``, later a slot, which a base may have.

    :param subclasses: replace overriding methods of subclasses, too.
    """
    name = "var_getattr" if has(owner, "var_getattr") else "tp_getattro_impl"
    replace(stack, owner, name, make, inherited=name != "var_getattr")
    for cls in with_subclasses(owner) if subclasses else ():
        if cls is not owner and has(cls, name):
            replace(stack, cls, name, make)
    table = "lookup_tp_getset_member"
    if subclasses and hasattr(owner, table):
        replace(stack, owner, table, _of_table(make), inherited=True)


def _of_table(make: Callable[[Callable[..., Any]], Any]) -> Callable[[Callable[..., Any]], Any]:
    """Apply ``make`` to attributes in the tables of classes, too.

    From 2.14 on these are found before the slot is called: ``name`` of an AttributeError.
    """

    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup_tp_getset_member(self: Any, name: str) -> Any:
            entry = original(self, name)
            if entry is None:
                return None
            asked = make(lambda self, tx, _: entry.getter(self, tx))
            return dataclasses.replace(entry, getter=lambda self, tx: asked(self, tx, name))

        return lookup_tp_getset_member

    return looking


def attribute_changes(name: str) -> tuple[Any, str] | None:
    """Class and method with which Dynamo runs all ``setattr`` or ``delattr``.

    After 2.10 the builtins have classes of their own. None if this Dynamo has neither form.
    """
    from tj_torch.torch_private.dynamo import builtin

    own = {"setattr": "SetAttrBuiltinVariable", "delattr": "DelAttrBuiltinVariable"}[name]
    owners = ((getattr(builtin, own, None), "_"), (builtin.BuiltinVariable, ""))
    found = ((owner, f"{prefix}call_{name}") for owner, prefix in owners if owner is not None)
    return next((place for place in found if has(*place)), None)


def context_variables(stack: ExitStack) -> None:
    """Break the graph at a `contextvars.ContextVar` without a value, which has no guard.

    From 2.14 on Dynamo traces the program's handling of it; up to 2.13 it breaks the graph itself.
    """
    from tj_torch.torch_private.dynamo import misc

    def known(original: Callable[..., Any]) -> Callable[..., Any]:
        def _get_value(self: Any, tx: Any, has_default: bool, *default: Any) -> Any:
            missing = object()
            # PyTorch's settings are such variables, too (2.14: each collective reads one).
            asked = not has_default and not is_pytorchs(tx.f_code)
            if asked and self.cv_obj.get(missing) is missing:
                stop(f"the context variable {self.cv_obj.name} has no value")
            return original(self, tx, has_default, *default)

        return _get_value

    owner = getattr(misc, "ContextVarVariable", None)
    if owner is not None:
        replace(stack, owner, "_get_value", known)


# --------------------------------------------------------------------------- identity


def default_equality(
    stack: ExitStack,
    see: Callable[[Any, Any, Any], None],
    see_is: Callable[[Any, Any, Any], None],
) -> None:
    """Call ``see`` with the operands and the result of each ``==`` that compares identity.

    ``see_is`` is called for explicit comparisons of identity, as by ``operator.is_``.

    Dynamo has a function for these; up to 2.10, all comparison instructions are examined.
    """
    from tj_torch.torch_private.dynamo import (
        UserDefinedObjectVariable,
        UserMethodVariable,
        builtin,
    )

    def identity(
        seeing: Callable[[Any, Any, Any], None],
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def compare(left: Any, right: Any) -> Any:
                answer = original(left, right)
                seeing(left, right, answer)
                return answer

            return compare

        return make

    def comparing(original: Callable[..., Any]) -> Callable[..., Any]:
        def instruction(self: Any, inst: Any) -> None:
            left, right = (variable.realize() for variable in self.stack[-2:])
            original(self, inst)
            both = all(isinstance(v, UserDefinedObjectVariable) for v in (left, right))
            equality: Any = object.__eq__
            if both and type(left.value).__eq__ is equality and inst.argval == "==":
                see(left, right, self.stack[-1])
            # Bound methods have an `==` of their own, of which these versions know nothing.
            methods = any(isinstance(v, UserMethodVariable) for v in (left, right))
            if methods and inst.argval in ("==", "!="):
                see(left, right, self.stack[-1])

        return instruction

    if has(builtin, "vt_identity_compare"):
        from tj_torch.torch_private.dynamo import object_protocol

        replace(stack, object_protocol, "vt_identity_compare", identity(see))
        replace(stack, builtin, "vt_identity_compare", identity(see_is))
    else:
        replace_instruction(stack, "COMPARE_OP", comparing)


# --------------------------------------------------------------------------- numbers


def refused_operators(stack: ExitStack, see: Callable[[tuple[Any, ...]], None]) -> None:
    """Call ``see`` with the operands of an operator before Dynamo raises a TypeError for it.

    Up to 2.10, Dynamo breaks the graph instead.
    """
    from tj_torch.torch_private.dynamo import builtin

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def binop_type_error(tx: Any, v: Any, w: Any, *args: Any) -> Any:
            see((v, w))
            return original(tx, v, w, *args)

        return binop_type_error

    if has(builtin, "vt_identity_compare"):
        from tj_torch.torch_private.dynamo import object_protocol

        replace(stack, object_protocol, "binop_type_error", refusing)


def products_of_symbols(stack: ExitStack, see: Callable[[Any, Any], None]) -> None:
    """Call ``see`` with the factors of a product before Dynamo computes it.

    Products of numbers have a method; up to 2.12, the instructions are examined.
    """
    from tj_torch.torch_private.dynamo import InstructionTranslatorBase, SymNodeVariable

    def multiplying(original: Callable[..., Any]) -> Callable[..., Any]:
        def nb_multiply_impl(self: Any, tx: Any, other: Any, *rest: Any, **kwargs: Any) -> Any:
            see(self, other)
            return original(self, tx, other, *rest, **kwargs)

        return nb_multiply_impl

    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def instruction(self: Any, inst: Any) -> Any:
            if inst.opname != "BINARY_OP" or inst.arg in _PRODUCTS:
                see(*(variable.realize() for variable in self.stack[-2:]))
            return original(self, inst)

        return instruction

    if has(SymNodeVariable, "nb_multiply_impl"):
        replace(stack, SymNodeVariable, "nb_multiply_impl", multiplying)
        return
    for name in ("BINARY_OP", "BINARY_MULTIPLY", "INPLACE_MULTIPLY"):
        if name in dis.opmap and has(InstructionTranslatorBase, name):
            replace_instruction(stack, name, looking)


_PRODUCTS = frozenset(
    n for n, (_, sign) in enumerate(getattr(dis, "_nb_ops", ())) if sign in ("*", "*=")
)
"""Arguments with which the instruction BINARY_OP multiplies, in Pythons that have it."""


# --------------------------------------------------------------------------- dicts


def reorderings(stack: ExitStack, see: Callable[[Any], None]) -> None:
    """Call ``see`` with an `OrderedDict` before the program moves one of its keys."""
    from tj_torch.torch_private.dynamo import dicts, user_defined

    def calling(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if name == "move_to_end":
                see(self)
            return original(self, tx, name, *args, **kwargs)

        return call_method

    ordered = getattr(user_defined, "OrderedDictVariable", dicts.ConstDictVariable)
    replace(stack, ordered, "call_method", calling, inherited=True)  # of a base from 2.15 on


def own_dicts() -> Any | None:
    """Dynamo's class for ``vars(x)``; None up to 2.10, which reads it from ``x`` again."""
    from tj_torch.torch_private.dynamo import dicts

    return getattr(dicts, "DunderDictVariable", None)


# --------------------------------------------------------------------------- tensors


def resync(stack: ExitStack) -> None:
    """Update sizes and strides of a tensor after in-place calls such as ``x.unsqueeze_(0)``.

    Dynamo does so only for calls that take other tensors (up to 2.13), or never (up to 2.10).
    """
    from tj_torch.torch_private.dynamo import TensorVariable

    def always(original: Callable[..., Any]) -> Callable[..., Any]:
        def sync(self: Any, tx: Any, version_before: int | None, *has_tensor_arg: bool) -> None:
            original(self, tx, version_before, *(True for _ in has_tensor_arg))  # none from 2.14 on

        return sync

    def after(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            before = _writes(self)
            result = original(self, tx, name, *args, **kwargs)
            if before is not None and _writes(self) != before:
                self.synchronize_attributes(tx)
            return result

        return call_method

    if has(TensorVariable, "_sync_if_inplace_mutation"):
        replace(stack, TensorVariable, "_sync_if_inplace_mutation", always)
    else:
        replace(stack, TensorVariable, "call_method", after, inherited=True)


def lstm_states(stack: ExitStack) -> None:
    """Give the final states of an LSTM the shapes of the initial ones.

    Up to 2.10, PyTorch's decomposition removes another dimension than it has added.
    """
    from tj_torch.torch_private.dynamo import decompositions

    def shaped(original: Callable[..., Any]) -> Callable[..., Any]:
        def layer(inp: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
            out, states = original(inp, hidden, *args, **kwargs)
            pairs = zip(states, hidden, strict=True)
            return out, tuple(state.reshape(first.shape) for state, first in pairs)

        return layer

    replace(stack, decompositions, "one_layer_lstm", shaped)


def seen_constructors(stack: ExitStack) -> None:
    """Let modes, such as ``torch.device("cuda")``, see the functions that make tensors.

    Before 2.13, they see ``torch.ones`` and few others: Dynamo makes the tensor of ``torch.arange``
    on the CPU, and its graph makes it on the device.
    """
    from tj_torch.torch_private.dynamo import variables_of_torch
    from tj_torch.torch_private.ops import factories

    def seeing(original: Callable[..., Any]) -> Callable[..., Any]:
        return functools.cache(lambda: original() | factories())

    replace(stack, variables_of_torch, "get_overridable_functions", seeing)


def _writes(variable: Any) -> tuple[int, bool] | None:
    """Version and ``requires_grad`` of the fake tensor of a variable; None without one."""
    value = variable.proxy.node.meta.get("example_value")
    return (value._version, value.requires_grad) if isinstance(value, torch.Tensor) else None


# --------------------------------------------------------------------------- calls

_DECOMPOSING = ("method_add_", "method_addcdiv_", "method_addcmul_")


def undecomposed(stack: ExitStack) -> None:
    """Record methods of tensors that Dynamo decomposes by default."""
    if not decomposing_handlers():
        stack.enter_context(with_settings({"enable_dynamo_decompositions": False}))


def decomposing_handlers() -> tuple[str, ...]:
    """Names of handlers that decompose methods, up to 2.10; later there is a setting."""
    from tj_torch.torch_private.dynamo import dynamo

    return () if hasattr(dynamo.config, "enable_dynamo_decompositions") else _DECOMPOSING


def errors_of_fakes(stack: ExitStack) -> None:
    """End the capture where a call raises on fake tensors, even if the program catches errors.

    From 2.14 on, Dynamo raises a RuntimeError with its own message in the program, though eager
    may raise another class with another message.
    """
    from tj_torch.torch_private.dynamo import exc

    if has(exc, _OF_FAKES):
        replace(stack, exc, _OF_FAKES, lambda _: exc.TorchRuntimeError)


def is_of_fakes(error: Exception) -> bool:
    """Test for Dynamo's error for a call that raises on fake tensors."""
    from tj_torch.torch_private.dynamo import exc

    return isinstance(error, (exc.TorchRuntimeError, getattr(exc, _OF_FAKES, ())))


_OF_FAKES = "FakeTensorObservedException"


# --------------------------------------------------------------------------- functions


def captures_functions_in_steps() -> bool:
    """Test if Dynamo captures a `torch.autograd.Function` in several methods, which can be patched.

    Up to 2.10 there is one long method.
    """
    from tj_torch.torch_private.dynamo import AutogradFunctionApplyVariable

    return has(AutogradFunctionApplyVariable, "trace_forward_graph")


def captures_writes_of_functions() -> bool:
    """Test if Dynamo knows which arguments a `torch.autograd.Function` writes: from 2.13 on."""
    from tj_torch.torch_private.dynamo import AutogradFunctionContextVariable

    init: Any = AutogradFunctionContextVariable.__init__
    return "dirty_tensors" in inspect.signature(init).parameters


def captures_hooks_of_values() -> bool:
    """Test if Dynamo has an operation for ``register_hook`` of computed tensors.

    Up to 2.10, such hooks are captured for compiled autograd alone.
    """
    return find_spec(WHERE_IMPORTED["register_hook"].path) is not None
