"""Guards on answers of classes: ``isinstance`` and ``issubclass``.

Dynamo asks while it captures, and guards at most the type of the object. Later a class may be
registered at an abstract class, get other bases, or come to fulfil a protocol.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta, get_cache_token
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import ref

from tj_torch.capture.dynamo.metaclasses import kinds_in
from tj_torch.capture.dynamo.own_methods import may_change
from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.lookup import MissingNameError
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations
    from tj_torch.guards.conditions import Conditions

__all__ = ["guard_answers"]


def guard_answers(stack: ExitStack, noticed: Observations) -> None:
    """Guard what ``isinstance``, ``issubclass`` and ``callable`` answer to the program."""
    from tj_torch.torch_private.dynamo import BuiltinVariable

    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            found = original(self, tx, args, kwargs)
            see = next((see for function, see in _SEEN if function is self.fn), None)
            if see is not None:
                given = [variable.realize() for variable in args]
                see(noticed.conditions(tx.output), *given, found.as_python_constant())
            elif self.fn is callable and may_change(args[0].python_type()):
                noticed.classes[args[0].python_type()] = None
            return found

        return call_function

    replace(stack, BuiltinVariable, "call_function", asking)
    _look_at_slots_anew(stack)


def _look_at_slots_anew(stack: ExitStack) -> None:
    """Look in each capture which special methods classes have: from 2.13 on Dynamo remembers."""
    from tj_torch.torch_private.dynamo import base

    places = [(base, name) for name in ("_tp_type", "_compute_slotdefs")]  # from 2.14 on
    with suppress(MissingNameError):
        from tj_torch.torch_private.dynamo import object_protocol

        places.append((object_protocol, "_get_cached_slots"))
    for owner, name in places:
        if has(owner, name):
            replace(stack, owner, name, _anew)


def _anew(remembering: Callable[[type], Any]) -> Callable[[type], Any]:
    """Keep what is found of classes of the program for one capture."""
    look, found = inspect.unwrap(remembering), dict[type, Any]()

    def slots(cls: type) -> Any:
        if cls not in found:
            found[cls] = (look if may_change(cls) else remembering)(cls)
        return found[cls]

    return slots


# --------------------------------------------------------------------------- what is asked


def _see_object(conditions: Conditions, variable: Any, kinds: Any, answer: bool) -> None:
    of, asked = variable.python_type(), kinds.as_python_constant()
    # What has neither a dict nor a class that changes fulfils a protocol for good.
    if may_change(of) or of.__dictoffset__:
        for kind in filter(_is_protocol, kinds_in(asked)):
            _guard_protocol(conditions, variable, kind, asked, answer)
    _see_classes(conditions, of, asked, answer)


def _see_class(conditions: Conditions, variable: Any, kinds: Any, answer: bool) -> None:
    _see_classes(conditions, variable.as_python_constant(), kinds.as_python_constant(), answer)


_SEEN: tuple[tuple[Callable[..., bool], Callable[..., None]], ...] = (
    (isinstance, _see_object),
    (issubclass, _see_class),
)


def _see_classes(conditions: Conditions, of: type, kinds: Any, answer: bool) -> None:
    """Guard that ``of`` is derived from the first of the ``kinds`` that it is, or from none."""
    changes, denied = may_change(of), list[type]()
    for kind in kinds_in(kinds):
        abstract, is_one = isinstance(kind, ABCMeta), _is_one(of, kind)
        if abstract and not is_one:
            denied.append(kind)
        # An abstract class remembers for good that it has said yes.
        elif not abstract and changes and is_one is answer:
            # Strong references would keep classes for as long as the code that is guarded.
            names = f"{conditions.bind('c', ref(of))}(), {conditions.bind('c', ref(kind))}()"
            text = f"issubclass({_name(of)}, {_name(kind)}) is {answer}"
            conditions.add(f"issubclass({names}) is {answer}", text, of_objects=False)
        if is_one:
            break
    if denied and not answer:
        _guard_denials(conditions, of, denied)


def _is_one(of: type, kind: type) -> bool:
    try:
        return issubclass(of, kind)
    except TypeError:  # of a protocol of data, which only objects can be asked about
        return False


# --------------------------------------------------------------------------- protocols


def _is_protocol(kind: type) -> bool:
    return isinstance(kind, ABCMeta) and bool(getattr(kind, "_is_protocol", False))


def _guard_protocol(
    conditions: Conditions, variable: Any, kind: type, asked: Any, answer: bool
) -> None:
    """Guard that an object has what a protocol asks for, or that it lacks it."""
    from tj_torch.torch_private.dynamo import UserDefinedObjectVariable

    if variable.is_tensor() and not may_change(variable.python_type()):
        known = _says_of_classes(kind)
    else:
        plain = isinstance(variable, UserDefinedObjectVariable) and variable.source is not None
        known = plain and not _is_modified(variable) and isinstance(variable.value, asked) is answer
    if not known:
        stop(f"whether an object is a {kind.__qualname__}, which is a protocol")
    if not variable.is_tensor():
        object_, fulfils = variable.source.name, isinstance(variable.value, kind)
        code = f"isinstance({object_}, {conditions.bind('c', ref(kind))}()) is {fulfils}"
        conditions.add(code, f"isinstance({object_}, {_name(kind)}) is {fulfils}")


def _says_of_classes(kind: type) -> bool:
    """Test for a protocol of methods alone, which classes fulfil."""
    try:
        issubclass(object, kind)
    except TypeError:
        return False
    return True


def _is_modified(variable: Any) -> bool:
    from tj_torch.torch_private.dynamo import InstructionTranslator

    effects = InstructionTranslator.current_tx().output.side_effects
    return variable.mutation_type is not None and bool(effects.is_modified(variable))


# --------------------------------------------------------------------------- denials


class _Denied:
    """Pairs of a class and of an abstract class that it is none of.

    An abstract class changes its mind only after `abc.ABCMeta.register` was called for any class.
    """

    __slots__ = ("pairs", "registrations")

    def __init__(self) -> None:
        self.pairs: dict[tuple[ref[type], ref[type]], None] = {}
        self.registrations = get_cache_token()

    def hold(self) -> bool:
        """Ask again, since something was registered."""
        registrations = get_cache_token()
        for first, second in self.pairs:
            of, kind = first(), second()
            if of is None or kind is None or _is_one(of, kind):
                return False
        self.registrations = registrations
        return True


def _guard_denials(conditions: Conditions, of: type, kinds: list[type]) -> None:
    denied: _Denied = conditions.scope.setdefault("denied", _Denied())
    denied.pairs |= {(ref(of), ref(kind)): None for kind in kinds}
    pairs = [(first(), second()) for first, second in denied.pairs]
    text = " and ".join(f"not issubclass({_name(a)}, {_name(b)})" for a, b in pairs)
    code = "denied.registrations == registrations() or denied.hold()"
    conditions.add(code, text, of_objects=False, registrations=get_cache_token)


def _name(cls: type | None) -> str:
    return "" if cls is None else cls.__qualname__
