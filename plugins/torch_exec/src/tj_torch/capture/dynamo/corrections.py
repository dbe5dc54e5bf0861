"""Corrections of TorchDynamo without a file of their own, see `tj_torch.capture.dynamo.features`.

Each corrects something that Dynamo silently gets wrong: a condition that it reads and does not
guard, a value that it loses, a draw of random numbers that it repeats.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo import releases
from tj_torch.capture.dynamo.patches import replace_handler, stop
from tj_torch.guards.members import Lookup
from tj_torch.ops.context.cast_cache import keeping_no_casts
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = [
    "cast_anew",
    "guard_missing_keys",
    "keep_calls_whole",
    "keep_contexts_in_frames",
    "keep_dicts_of_new_objects",
    "notice_lookups",
    "refuse_uninitialized_modules",
    "take_fast_paths",
]


# --------------------------------------------------------------------------- class members


def notice_lookups(stack: ExitStack, noticed: Observations) -> None:
    """Note in which class a member is found: Dynamo guards its code, not its class."""

    def of_object(original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(self: Any, *args: Any) -> object:
            name = args[-1]
            # What the program has set itself is found in the object, and in no class.
            if not _assigned(self, name):
                noticed.look_up(type(self.value), name, instance=self.value)
            return original(self, *args)

        return lookup

    def of_class(original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(self: Any, *args: Any) -> object:
            noticed.look_up(self.value, args[-1], fixed=fixed)
            if fixed:
                _guard_constant(self, args[-1])
            return original(self, *args)

        return lookup

    _notice_classes(stack, noticed)
    of_objects, of_classes = releases.member_lookups()
    fixed = not releases.guards_class_constants()
    for owner, name in of_objects:
        replace(stack, owner, name, of_object)
    for owner, name in of_classes:
        replace(stack, owner, name, of_class)
    releases.refuse_setters(stack)
    _notice_super(stack, noticed)


def _guard_constant(variable: Any, name: str) -> None:
    """Guard a constant of a class, for fragments of a program, too."""
    from tj_torch.torch_private.dynamo import (
        AttrSource,
        ConstantVariable,
        GuardBuilder,
        install_guard,
    )

    found = inspect.getattr_static(variable.value, name, None)
    if variable.source is not None and ConstantVariable.is_literal(found):
        source = AttrSource(variable.source, name)
        install_guard(source.make_guard(GuardBuilder.CONSTANT_MATCH))


def _notice_classes(stack: ExitStack, noticed: Observations) -> None:
    """Note the classes of objects."""
    from tj_torch.torch_private.dynamo import user_defined

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            noticed.classes[self.value_type] = None

        return init

    replace(stack, user_defined.UserDefinedObjectVariable, "__init__", made)


def _notice_super(stack: ExitStack, noticed: Observations) -> None:
    """Note in which class ``super()`` finds a member."""
    from tj_torch.torch_private.dynamo import SuperVariable

    def of_super(original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(self: Any, tx: Any, name: str) -> Any:
            found = _after(self, name)
            if found is not None:
                noticed.lookups.setdefault((found.cls, name), found)
            return original(self, tx, name)

        return lookup

    replace(stack, SuperVariable, "_resolved_getattr_and_source", of_super)


def _assigned(variable: Any, name: str) -> bool:
    """Test if the program has set this attribute of an object that it makes itself."""
    from tj_torch.torch_private.dynamo import AttributeMutationNew, InstructionTranslator

    if not isinstance(variable.mutation_type, AttributeMutationNew):
        return False
    effects = InstructionTranslator.current_tx().output.side_effects
    pending: bool = effects.has_pending_mutation_of_attr(variable, name)
    return pending


def _after(variable: Any, name: str) -> Lookup | None:
    """Member that ``super()`` finds, in the classes after its own in the resolution order."""
    owner = variable.objvar.python_type()
    if issubclass(owner, type):
        # `super()` in a class method: the object is the class itself.
        owner = variable.objvar.value
    classes = owner.__mro__
    own = variable.typevar.as_python_constant()
    start = classes.index(own) + 1 if own in classes else 0
    for i, cls in enumerate(classes[start:], start):
        if name in vars(cls):
            return Lookup(cls, name, vars(cls)[name], classes[start:i])
    return None


# --------------------------------------------------------------------------- modules


def refuse_uninitialized_modules(stack: ExitStack, noticed: Observations) -> None:
    """Stop at a lazy module: Dynamo would initialize it and restore the random number generator."""
    from tj_torch.torch_private.dynamo import exc, nn_module

    def refuse(original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(tx: Any, mod: torch.nn.Module, args: Any, kwargs: Any) -> None:
            # Initialization deletes the hook (torch/nn/modules/lazy.py): who has it has no
            # parameters yet.
            if hasattr(mod, "_initialize_hook"):
                noticed.uninitialized = True
                raise exc.Unsupported(f"{type(mod).__name__} gets its parameters in this call")
            original(tx, mod, args, kwargs)

        return initialize

    replace(stack, nn_module, "initialize_lazy_module", refuse)


# --------------------------------------------------------------------------- dicts


def guard_missing_keys(stack: ExitStack) -> None:
    """Guard the absence of a key where ``d[key]`` raises and the program catches the error."""
    from tj_torch.torch_private.dynamo import ConstDictVariable, HashableTracker

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        def getitem(self: Any, tx: Any, arg: Any) -> Any:
            # The handler that the program runs now is not what it runs once the key is there.
            if HashableTracker(arg) not in self.items:
                self.install_dict_contains_guard(tx, [arg])
            return original(self, tx, arg)

        return getitem

    replace(stack, ConstDictVariable, "getitem_const_raise_exception_if_absent", guarded)


def keep_dicts_of_new_objects(stack: ExitStack) -> None:
    """Return ``vars(x)`` of an object that the program makes as that object's own dict."""
    from tj_torch.torch_private.dynamo import ConstDictVariable

    dunder = releases.own_dicts()
    if dunder is None:
        return

    def owned(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, vt: Any, *args: Any, **kwargs: Any) -> None:
            original(self, vt, *args, **kwargs)
            self.owner = vt  # a reference by which Dynamo keeps the object

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


def take_fast_paths(stack: ExitStack) -> None:
    """Let attention modules use their fast paths as in eager, whose kernels round differently.

    Dynamo tells the modules that `make_fx` is tracing. An encoder that is given padding makes a
    nested tensor, unless it is told that a program is compiled, and returns zeros for the padding.
    """
    from tj_torch.torch_private.dynamo import _is_make_fx_tracing, tracing_state_functions

    replace_handler(stack, torch.compiler.is_compiling, _leaving_encoders)
    # `tracing_state_functions` answers True since https://github.com/pytorch/pytorch/pull/164721.
    answers: dict[Any, Any] = tracing_state_functions()
    if _is_make_fx_tracing in answers:
        stack.callback(answers.__setitem__, _is_make_fx_tracing, answers[_is_make_fx_tracing])
        answers[_is_make_fx_tracing] = False


def _leaving_encoders(original: Callable[..., Any]) -> Callable[..., Any]:
    def answer(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if tx.f_code is torch.nn.TransformerEncoder.forward.__code__ and _may_nest(tx):
            stop("an encoder with padding looks at data, and makes nested tensors")
        return original(self, tx, *args, **kwargs)

    return answer


def _may_nest(tx: Any) -> bool:
    """Test for an encoder that may take its fast path: no gradient is needed."""
    encoder = getattr(tx.symbolic_locals["self"].realize(), "value", None)
    if not (isinstance(encoder, torch.nn.Module) and torch.is_grad_enabled()):
        return True
    return not any(p.requires_grad for p in encoder.parameters())


# --------------------------------------------------------------------------- context managers


def keep_contexts_in_frames(stack: ExitStack) -> None:
    """Refuse a frame with a graph break at ``__enter__`` or ``__exit__`` of a context manager.

    Dynamo would make new objects of its class, one for the call and one for the code after it, and
    neither restores the state from before. Making a grad mode object already changes the mode.
    """
    from tj_torch.torch_private.dynamo import (
        ContextWrappingVariable,
        GetAttrVariable,
        GradModeVariable,
    )

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def reconstruct(self: Any, codegen: Any) -> None:
            methods = (v for v in codegen.tx.stack if isinstance(v, GetAttrVariable))
            if isinstance(self, GradModeVariable) or any(v.obj is self for v in methods):
                stop(f"{self.module_name()}.{self.fn_name()} is entered or left by hand")
            original(self, codegen)

        return reconstruct

    replace(stack, ContextWrappingVariable, "reconstruct", refusing)


def cast_anew(stack: ExitStack) -> None:
    """Run operations on fake tensors without autocast's cache, which all threads share.

    Its mutex is waited for with the GIL held, below the Python dispatcher. A thread that leaves
    autocast empties the cache, and waits for the GIL with the mutex held, to free a fake tensor.
    """
    from tj_torch.torch_private.dynamo import utils

    def casting(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_node(*args: Any) -> Any:
            with keeping_no_casts():
                return original(*args)

        return run_node

    replace(stack, utils, "run_node", casting)


# --------------------------------------------------------------------------- calls


def keep_calls_whole(stack: ExitStack) -> None:
    """Record calls that Dynamo would decompose, whose parts round and write differently.

    It decomposes them for Inductor, so that a factor which is a tensor is not read on the host.
    """
    from tj_torch.torch_private.dynamo import TorchInGraphFunctionVariable, _foreach_lerp_

    handlers = TorchInGraphFunctionVariable._get_handlers()
    # `addcdiv(x, y, z, value=v)` becomes the sum of `x` and `y / z * v`, rounded three times.
    whole = (torch.addcdiv, _foreach_lerp_)
    replaced = {f: handlers.pop(f) for f in whole if f in handlers}  # empty if nested
    stack.callback(handlers.update, replaced)
    releases.undecomposed(stack)
