"""Lists and deques that a program only adds to, such as ``losses.append(loss.item())``.

Dynamo guards the length of a list where it finds one, and writes all items anew after the graph has
run: each call finds a longer list, and would be a program of its own. Here the items are looked at,
and the length is guarded, where the program first reads them. Until then additions are kept apart,
and the program extends the list by them at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import forget_builders, stop
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["correct"]


def correct(stack: ExitStack, noticed: Observations) -> None:
    """Guard lists and deques where their items are read, until ``stack`` is left."""
    from tj_torch.torch_private.dynamo import (
        BaseListVariable,
        DequeVariable,
        ListVariable,
        OutputGraph,
        SideEffects,
        VariableBuilder,
    )

    end = _End()
    forget_builders(stack)
    replace(stack, VariableBuilder, "wrap_listlike", _wrapping(noticed))
    replace(stack, OutputGraph, "compile_subgraph", end.writing)
    replace(stack, SideEffects, "codegen_update_mutated", _updating)
    replace(stack, BaseListVariable, "clone", _cloning, inherited=True)
    for cls in (ListVariable, DequeVariable):
        replace(stack, cls, "call_method", _calling, inherited=True)
        replace(stack, cls, "as_python_constant", end.constants, inherited=True)
        if has(cls, "sq_inplace_concat_impl"):
            replace(stack, cls, "sq_inplace_concat_impl", _concatenating)
    _set(stack, BaseListVariable, "__getattr__", _missing)


def _set(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set a member that ``owner`` does not have, except in a capture around this one."""
    if name in vars(owner):
        stack.callback(setattr, owner, name, vars(owner)[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, value)


# --------------------------------------------------------------------------- lists not read yet


def _wrapping(noticed: Observations) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrap_listlike(self: Any, value: Any) -> Any:
            if type(value) not in (list, deque):
                return original(self, value)
            from tj_torch.torch_private.dynamo import GuardBuilder

            self.install_guards(GuardBuilder.TYPE_MATCH)
            made = _unread(value, self.source, original, noticed)
            return self.tx.output.side_effects.track_mutable(value, made)

        return wrap_listlike

    return wrapping


def _unread(value: Any, source: Any, wrap: Callable[..., Any], noticed: Observations) -> Any:
    """A variable of Dynamo's for ``value``, without the attributes that tell the items.

    ``added`` has what the program has added. ``wrap`` makes a variable with the items, and guards.
    """
    from tj_torch.torch_private.dynamo import DequeVariable, ListVariable, VariableTracker

    def wrapped() -> Any:
        if noticed.read is not None:
            noticed.read.note_length(source, value)
        return _wrapped(value, source, wrap)

    if noticed.read is not None:
        noticed.read.leave_length(source, value)
    cls = ListVariable if type(value) is list else DequeVariable
    made = cls.__new__(cls)
    VariableTracker.__init__(made, source=source)
    made.added, made.wrapped = [], wrapped
    return made


def _wrapped(value: Any, source: Any, wrap: Callable[..., Any]) -> Any:
    """The variable that ``wrap`` makes of ``value``, which is tracked already."""
    from tj_torch.torch_private.dynamo import (
        AttrSource,
        GuardBuilder,
        InstructionTranslator,
        VariableBuilder,
        install_guard,
    )

    tx = InstructionTranslator.current_tx()
    known = tx.output.side_effects.id_to_variable
    unread = known.pop(id(value), None)  # Dynamo refuses to track an object twice
    if type(value) is deque:  # and takes a bound for a constant
        install_guard(AttrSource(source, "maxlen").make_guard(GuardBuilder.CONSTANT_MATCH))
    try:
        return wrap(VariableBuilder(tx, source), value)
    finally:
        known.pop(id(value), None)
        if unread is not None:
            known[id(value)] = unread


def _is_unread(variable: Any) -> bool:
    return "wrapped" in vars(variable)


def _read(variable: Any) -> None:
    """Give ``variable`` its items, with guards on them."""
    if _is_unread(variable):
        items = variable.wrapped()
        added, own = variable.added, vars(variable)
        del variable.added, variable.wrapped
        own.update({name: value for name, value in vars(items).items() if name not in own})
        variable.items += added


def _missing(variable: Any, name: str) -> Any:
    """Read a list that is asked for an attribute which it gets then."""
    if name not in _OF_ITEMS or not _is_unread(variable):
        raise AttributeError(name)
    _read(variable)
    return getattr(variable, name)


_OF_ITEMS = ("items", "maxlen", "state")
"""Attributes of Dynamo's variables of lists and deques that tell the items."""


def _cloning(original: Callable[..., Any]) -> Callable[..., Any]:
    def clone(self: Any, **changed: Any) -> Any:
        _read(self)
        return original(self, **changed)

    return clone


# --------------------------------------------------------------------------- additions


def _calling(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if not _is_unread(self) or name not in _ADDING:
            return original(self, tx, name, args, kwargs)
        if name == "extend" and any(arg.realize() is self for arg in args):
            return original(self, tx, name, args, kwargs)
        with _collecting(self, tx) as new:
            return new.call_method(tx, name, args, kwargs)

    return call_method


def _concatenating(original: Callable[..., Any]) -> Callable[..., Any]:
    def sq_inplace_concat_impl(self: Any, tx: Any, other: Any) -> Any:
        if not _is_unread(self):
            return original(self, tx, other)
        self.call_method(tx, "extend", [other], {})  # from 2.15 on, Dynamo calls no method here
        return self

    return sq_inplace_concat_impl


_ADDING = ("append", "extend")


@contextmanager
def _collecting(grown: Any, tx: Any) -> Iterator[Any]:
    """An empty list, whose items are added to ``grown`` at exit, also after an error.

    What an iterator has given before it raises is in the list.
    """
    from tj_torch.torch_private.dynamo import ValueMutationNew

    before, new = len(grown.added), type(grown)([], mutation_type=ValueMutationNew())
    try:
        yield new
    finally:
        if not _is_unread(grown) or len(grown.added) != before:
            stop("a list that is used by what it is extended by")
        if new.items:
            tx.output.side_effects.mutation(grown)
            grown.added += new.items


# --------------------------------------------------------------------------- the end of a program


class _End:
    """Where Dynamo writes the end of a program, and asks of each result if it is a constant."""

    def __init__(self) -> None:
        self._written = False

    def writing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Note that the end is written."""

        def compile_subgraph(output: Any, *args: Any, **kwargs: Any) -> Any:
            self._written = True
            try:
                return original(output, *args, **kwargs)
            finally:
                self._written = False

        return compile_subgraph

    def constants(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Let a list that is not read be no constant there."""

        def as_python_constant(variable: Any) -> Any:
            if self._written and _is_unread(variable):
                raise NotImplementedError("a list that is not read")
            return original(variable)

        return as_python_constant


def _updating(original: Callable[..., Any]) -> Callable[..., Any]:
    """Extend lists that are not read, when all new values are made and with the other changes."""
    from tj_torch.torch_private.dynamo import create_call_method, create_instruction

    def codegen_update_mutated(self: Any, cg: Any, *rest: Any, **options: Any) -> None:
        grown = [v for v in self.id_to_variable.values() if _is_unread(v) and self.is_modified(v)]
        for variable in grown:
            cg(variable.source)
            cg.load_method("extend")
            cg.foreach(variable.added)
            cg.append_output(create_instruction("BUILD_LIST", arg=len(variable.added)))
        with _unmodified(grown):
            original(self, cg, *rest, **options)
        for _ in grown:
            cg.extend_output([*create_call_method(1), create_instruction("POP_TOP")])

    return codegen_update_mutated


@contextmanager
def _unmodified(variables: list[Any]) -> Iterator[None]:
    """Let Dynamo write no items of ``variables`` inside."""
    for variable in variables:
        variable.mutation_type.is_modified = False
    try:
        yield
    finally:
        for variable in variables:
            variable.mutation_type.is_modified = True
