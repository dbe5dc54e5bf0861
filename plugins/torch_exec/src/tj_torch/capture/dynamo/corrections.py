"""Corrections of TorchDynamo, for the time of one capture; a part of its adapter.

Each is about something that Dynamo would get wrong without a word: a condition that it reads and
does not guard, a value that it loses, a draw of random numbers that it makes once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from tj_torch.capture.dynamo import (
    containers,
    draws,
    exceptions,
    identity,
    iterators,
    remembering,
    symbols,
    tensors,
    versions,
    zeros,
)
from tj_torch.capture.dynamo import globals as own_globals
from tj_torch.capture.dynamo.applied import exactly
from tj_torch.capture.dynamo.asserts import keep_assertions
from tj_torch.capture.dynamo.assigned import leave_unassignable
from tj_torch.capture.dynamo.handlers import leave_handled_calls
from tj_torch.capture.dynamo.noticed import Lookup, Noticed
from tj_torch.capture.dynamo.patches import replace, stop
from tj_torch.ops.fake_modes import corrected_fake_kernels

__all__ = ["corrected"]


@contextlib.contextmanager
def corrected() -> Iterator[Noticed]:
    """Let Dynamo record what the program says. To be entered under the lock.

    What is given is filled while programs are captured.
    """
    noticed = Noticed()
    with ExitStack() as stack:
        with versions.known_names():
            versions.last_guards(stack)
            _notice_lookups(stack, noticed)
            _refuse_uninitialized_modules(stack, noticed)
            _guard_missing_keys(stack)
            versions.context_variables(stack)
            _keep_dicts_of_new_objects(stack)
            exceptions.correct(stack)
            _take_fast_paths(stack)
            _keep_contexts_in_frames(stack)
            tensors.correct(stack, noticed)
            own_globals.correct(stack)
            for room in _OF_PYTHON:
                room.correct(stack)
            _keep_calls_whole(stack)
            keep_assertions(stack, leave_handled_calls(stack))
            leave_unassignable(stack)
            stack.enter_context(exactly())  # calls of Functions
            stack.enter_context(corrected_fake_kernels())
        yield noticed


_OF_PYTHON = (identity, draws, symbols, zeros, iterators, remembering, containers)
"""Modules that correct what Dynamo makes of Python's own objects, each a kind of them."""


# --------------------------------------------------------------------------- class members


def _notice_lookups(stack: ExitStack, noticed: Noticed) -> None:
    """Note where members of classes are found: Dynamo guards their code, not where they are."""
    from torch._dynamo.variables import user_defined
    from torch._dynamo.variables.misc import SuperVariable

    def of_object(original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(self: Any, *args: Any) -> object:
            name = args[-1]
            if not _assigned(self, name):
                noticed.look_up(type(self.value), name, instance=self.value)
            return original(self, *args)

        return lookup

    def of_class(original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(self: Any, *args: Any) -> object:
            noticed.look_up(self.value, args[-1], fixed=fixed)
            return original(self, *args)

        return lookup

    def of_super(original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(self: Any, tx: Any, name: str) -> Any:
            found = _after(self, name)
            if found is not None:
                noticed.lookups.setdefault((found.cls, name), found)
            return original(self, tx, name)

        return lookup

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            noticed.classes[self.value_type] = None

        return init

    replace(stack, user_defined.UserDefinedObjectVariable, "__init__", made)
    of_objects, of_classes = versions.member_lookups()
    fixed = not versions.guards_class_constants()
    for owner, name in of_objects:
        replace(stack, owner, name, of_object)
    for owner, name in of_classes:
        replace(stack, owner, name, of_class)
    versions.refuse_setters(stack)
    replace(stack, SuperVariable, "_resolved_getattr_and_source", of_super)


def _assigned(variable: Any, name: str) -> bool:
    """Whether the program has set this attribute of an object that it makes itself."""
    from torch._dynamo.side_effects import AttributeMutationNew
    from torch._dynamo.symbolic_convert import InstructionTranslator

    if not isinstance(variable.mutation_type, AttributeMutationNew):
        return False
    effects = InstructionTranslator.current_tx().output.side_effects
    pending: bool = effects.has_pending_mutation_of_attr(variable, name)
    return pending


def _after(variable: Any, name: str) -> Lookup | None:
    """What ``super()`` finds: in the classes after its own, in the order of resolution."""
    owner = variable.objvar.python_type()
    if issubclass(owner, type):
        owner = variable.objvar.value
    classes = owner.__mro__
    own = variable.typevar.as_python_constant()
    start = classes.index(own) + 1 if own in classes else 0
    for i, cls in enumerate(classes[start:], start):
        if name in vars(cls):
            return Lookup(cls, name, vars(cls)[name], classes[start:i])
    return None


# --------------------------------------------------------------------------- modules


def _refuse_uninitialized_modules(stack: ExitStack, noticed: Noticed) -> None:
    """Stop at a lazy module: Dynamo would initialise it and give the random numbers back."""
    from torch._dynamo import exc
    from torch._dynamo.variables import nn_module

    def refuse(original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(tx: Any, mod: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if hasattr(mod, "_initialize_hook"):
                noticed.uninitialized = True
                raise exc.Unsupported(f"{type(mod).__name__} gets its parameters in this call")
            original(tx, mod, args, kwargs)

        return initialize

    replace(stack, nn_module, "initialize_lazy_module", refuse)


# --------------------------------------------------------------------------- dicts


def _guard_missing_keys(stack: ExitStack) -> None:
    """Guard on a key that ``d[key]`` does not find, where the program catches the error."""
    from torch._dynamo.variables.dicts import ConstDictVariable

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        def getitem(self: Any, tx: Any, arg: Any) -> Any:
            if not versions.is_key_of(self, arg):
                self.install_dict_contains_guard(tx, [arg])
            return original(self, tx, arg)

        return getitem

    replace(stack, ConstDictVariable, "getitem_const_raise_exception_if_absent", guarded)


def _keep_dicts_of_new_objects(stack: ExitStack) -> None:
    """Return ``vars(x)`` of an object that the program makes as that object's, filled."""
    from torch._dynamo.variables.dicts import ConstDictVariable

    dunder = versions.own_dicts()
    if dunder is None:
        return

    def owned(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, vt: Any, *args: Any, **kwargs: Any) -> None:
            original(self, vt, *args, **kwargs)
            self.owner = vt  # by which Dynamo sees that the object is still needed

        return init

    def of_owner(original: Callable[..., Any]) -> Callable[..., Any]:
        def reconstruct(self: Any, codegen: Any) -> None:
            owner = getattr(self, "owner", None)
            if owner is None:
                original(self, codegen)
                return
            codegen(owner)
            codegen.append_output(codegen.create_load_attr("__dict__"))

        return reconstruct

    replace(stack, dunder, "__init__", owned)
    replace(stack, ConstDictVariable, "reconstruct", of_owner)


# --------------------------------------------------------------------------- attention


def _take_fast_paths(stack: ExitStack) -> None:
    """Let modules for attention run the kernels they run in eager, whose last bits differ.

    Dynamo tells them that they are traced to operators.
    """
    from torch._dynamo.variables.torch import tracing_state_functions
    from torch.nn.modules import activation

    answers: dict[Any, Any] = tracing_state_functions()
    asked = activation._is_make_fx_tracing
    if asked in answers:
        stack.callback(answers.__setitem__, asked, answers[asked])
        answers[asked] = False


# --------------------------------------------------------------------------- context managers


def _keep_contexts_in_frames(stack: ExitStack) -> None:
    """Refuse a frame in which a graph breaks where a context manager is entered or left by hand.

    Dynamo would make another object of its class, once for the call and once for what comes after:
    neither restores what was there before. Of gradients, making one already changes the mode.
    """
    from torch._dynamo.variables.ctx_manager import ContextWrappingVariable, GradModeVariable
    from torch._dynamo.variables.misc import GetAttrVariable

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def reconstruct(self: Any, codegen: Any) -> None:
            methods = (v for v in codegen.tx.stack if isinstance(v, GetAttrVariable))
            if isinstance(self, GradModeVariable) or any(v.obj is self for v in methods):
                stop(f"{self.module_name()}.{self.fn_name()} is entered or left by hand")
            original(self, codegen)

        return reconstruct

    replace(stack, ContextWrappingVariable, "reconstruct", refusing)


# --------------------------------------------------------------------------- calls


_REPLACED = (torch.addcdiv, torch._foreach_lerp_)


def _keep_calls_whole(stack: ExitStack) -> None:
    """Record calls that Dynamo would replace by others, which round and write otherwise.

    It does so for Inductor's sake, lest a factor that is a tensor be read on the host.
    """
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    handlers = TorchInGraphFunctionVariable._get_handlers()
    replaced = {f: handlers.pop(f) for f in _REPLACED if f in handlers}  # none within a capture
    stack.callback(handlers.update, replaced)
    versions.undecomposed(stack)
