"""Corrections of TorchDynamo, for the time of one capture; a part of `tj_torch.frontend.dynamo`.

Each is about something that Dynamo would get wrong without a word: a condition that it reads and
does not guard, a value that it loses, a draw of random numbers that it makes once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Absent", "Lookup", "Noticed", "as_written"]


class Absent:
    """What a lookup finds where there is nothing."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A member that the program reads from a class: ``found``, before any descriptor acts.

    `Absent` if there is none. ``without`` are the classes that were looked at before, and do not
    have it themselves.
    """

    cls: type
    name: str
    found: Any
    without: tuple[type, ...] = ()


@dataclass(slots=True)
class Noticed:
    """What one capture came across beside its graph; ``classes`` are those of objects it used."""

    lookups: dict[tuple[type, str], Lookup] = field(default_factory=dict)
    classes: dict[type, None] = field(default_factory=dict)
    uninitialized: bool = False

    def look_up(self, cls: type, name: str, *, instance: object = None) -> None:
        """Note that ``name`` was looked for in ``cls``, for ``instance``."""
        if (cls, name) in self.lookups:
            return
        without: list[type] = []
        for base in cls.__mro__:
            if name in vars(base):
                lookup = Lookup(cls, name, vars(base)[name], tuple(without))
                break
            without.append(base)
        else:
            if _has_itself(instance, name):
                return
            lookup = Lookup(cls, name, Absent)
        self.lookups[cls, name] = lookup


def _has_itself(instance: object, name: str) -> bool:
    """Whether an object has ``name`` whatever its class has; modules keep theirs in three dicts."""
    own: dict[str, Any] = getattr(instance, "__dict__", {})
    if name in own:
        return True
    members = (own.get(kind) for kind in ("_parameters", "_buffers", "_modules"))
    return isinstance(instance, torch.nn.Module) and any(name in (m or ()) for m in members)


@contextlib.contextmanager
def as_written() -> Iterator[Noticed]:
    """Let Dynamo record what the program says. To be entered under the lock.

    What is given is filled while programs are captured.
    """
    noticed = Noticed()
    with _attributes_computed_once(), _calls_kept_whole(), ExitStack() as stack:
        _notice_lookups(stack, noticed)
        _refuse_uninitialized_modules(stack, noticed)
        _guard_missing_keys(stack)
        _keep_dicts_of_new_objects(stack)
        _take_fast_paths(stack)
        yield noticed


def _replace(
    stack: ExitStack, owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]
) -> None:
    """Set ``owner.name`` to what ``make`` makes of it, until ``stack`` is left."""
    original = owner.__dict__[name]
    stack.callback(setattr, owner, name, original)
    setattr(owner, name, make(original))


# --------------------------------------------------------------------------- class members


def _notice_lookups(stack: ExitStack, noticed: Noticed) -> None:
    """Note where members of classes are found: Dynamo guards their code, not where they are."""
    from torch._dynamo.variables import user_defined
    from torch._dynamo.variables.misc import SuperVariable

    def of_object(original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(self: Any, name: str) -> object:
            if not _assigned(self, name):
                noticed.look_up(type(self.value), name, instance=self.value)
            return original(self, name)

        return lookup

    def of_class(original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(self: Any, name: str) -> object:
            noticed.look_up(self.value, name)
            return original(self, name)

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

    user = user_defined.UserDefinedObjectVariable
    _replace(stack, user, "__init__", made)
    _replace(stack, user, "lookup_class_mro_attr", of_object)
    _replace(stack, user_defined.UserDefinedVariable, "_maybe_get_baseclass_method", of_object)
    _replace(stack, user_defined.UserDefinedClassVariable, "lookup_cls_mro_attr", of_class)
    _replace(stack, SuperVariable, "_resolved_getattr_and_source", of_super)


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

    _replace(stack, nn_module, "initialize_lazy_module", refuse)


# --------------------------------------------------------------------------- dicts


def _guard_missing_keys(stack: ExitStack) -> None:
    """Guard on a key that ``d[key]`` does not find, where the program catches the error."""
    from torch._dynamo.variables.dicts import ConstDictVariable, HashableTracker

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        def getitem(self: Any, tx: Any, arg: Any) -> Any:
            if HashableTracker(arg) not in self.items:
                self.install_dict_contains_guard(tx, [arg])
            return original(self, tx, arg)

        return getitem

    _replace(stack, ConstDictVariable, "getitem_const_raise_exception_if_absent", guarded)


def _keep_dicts_of_new_objects(stack: ExitStack) -> None:
    """Return ``vars(x)`` of an object that the program makes as that object's, filled."""
    from torch._dynamo.variables.dicts import ConstDictVariable, DunderDictVariable

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

    _replace(stack, DunderDictVariable, "__init__", owned)
    _replace(stack, ConstDictVariable, "reconstruct", of_owner)


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


# --------------------------------------------------------------------------- calls


@contextlib.contextmanager
def _attributes_computed_once() -> Iterator[None]:
    """Return a view like ``x.T`` or ``x.data`` as the program made it, for this capture only.

    Dynamo would read such an attribute of an input again after the graph has run: outside of the
    program's grad mode, after its writes, and as an object that the program has not written to.
    """
    from torch._dynamo.variables.tensor import TensorVariable

    found = TensorVariable.var_getattr

    def var_getattr(self: Any, tx: Any, name: str) -> Any:
        result = found(self, tx, name)
        if isinstance(result, TensorVariable) and result is not self:
            node = result.as_proxy().node
            if node.op != "placeholder":  # as ``x.grad`` is
                result.source = None
        return result

    TensorVariable.var_getattr = var_getattr  # type: ignore[method-assign]
    try:
        yield
    finally:
        TensorVariable.var_getattr = found  # type: ignore[method-assign]


_REPLACED = (torch.addcdiv, torch._foreach_lerp_)


@contextlib.contextmanager
def _calls_kept_whole() -> Iterator[None]:
    """Record calls that Dynamo would replace by others, which round and write otherwise.

    It does so for Inductor's sake, lest a factor that is a tensor be read on the host.
    """
    import torch._dynamo as dynamo
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    handlers = TorchInGraphFunctionVariable._get_handlers()
    replaced = {f: handlers.pop(f) for f in _REPLACED if f in handlers}  # none within a capture
    try:
        with dynamo.config.patch(enable_dynamo_decompositions=False):  # of methods
            yield
    finally:
        handlers.update(replaced)
