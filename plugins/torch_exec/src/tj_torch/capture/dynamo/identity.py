"""Guards on who is who: objects that a program compares, or changes, are the same ones or others.

Dynamo answers ``h.now is h.a`` for the objects of the call that it captures. That two objects are
one, it guards only of those that it may change; that they are two, of tensors only.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from tj_torch.capture.dynamo import versions
from tj_torch.capture.dynamo.patches import replace, replace_instruction, stop

__all__ = ["add_last", "correct"]


def correct(stack: ExitStack) -> None:
    """Guard identities that a program depends on, until ``stack`` is left."""
    versions.last_guards(stack)
    _guard_comparisons(stack)
    _guard_changed_objects(stack)
    _guard_each_duplicate(stack)


# --------------------------------------------------------------------------- comparisons


def _guard_comparisons(stack: ExitStack) -> None:
    """Guard what ``is`` finds, and ``==`` of objects that have no other equality."""

    def comparing(original: Callable[..., Any]) -> Callable[..., Any]:
        def instruction(self: Any, inst: Any) -> None:
            left, right = self.stack[-2:]
            original(self, inst)
            if not (_is_one_of_a_kind(left) or _is_one_of_a_kind(right)):
                _compared(left.realize(), right.realize(), self.stack[-1], inst.argval == 0)

        return instruction

    replace_instruction(stack, "IS_OP", comparing)
    versions.default_equality(stack, _equality, _compared)


def _is_one_of_a_kind(variable: Any) -> bool:
    """Tell whether a value, which may be lazy, is None, a bool or another singleton."""
    from tj_torch.torch_private.dynamo import ConstantVariable

    return isinstance(variable, ConstantVariable) and not isinstance(variable.value, _VALUES)


_VALUES = (int, float, complex, str, bytes)
_BY_VALUE = (*_VALUES, tuple, frozenset)
"""Types of which Dynamo knows the values, and not which of several equal objects one is."""


def _compared(left: Any, right: Any, answer: Any, sense: bool = True) -> None:
    """See that a comparison of these two objects has the same result in each call.

    ``answer`` is Dynamo's; ``sense`` is False if it is to whether they are two.
    """
    if left is right or left.is_tensor() or right.is_tensor():
        return
    kind = _type(left)
    if kind is not _type(right) or kind is None:
        return
    if issubclass(kind, _BY_VALUE):
        _leave_equal(left, right, kind)
    elif answer is not None and answer.is_python_constant() and left.source and right.source:
        same = answer.as_python_constant() is sense
        _guard(left.source, right.source, _one if same else _several)


def _equality(left: Any, right: Any, answer: Any) -> None:
    """The same of ``==``, which is of identity for some; numbers and the like have their values.

    Python asks first whether two elements of tuples are one, and then whether they are equal.
    """
    kind = _type(left)
    if kind is None or not issubclass(kind, _BY_VALUE):
        _compared(left, right, answer)


def _leave_equal(left: Any, right: Any, kind: type) -> None:
    try:
        one, other = left.as_python_constant(), right.as_python_constant()
        equal = one == other
        singular = kind is bool or (kind is int and equal and -5 <= one <= 256)
    except NotImplementedError:  # of tensors, say, or of sizes that differ between calls
        equal, singular = True, kind is bool
    if equal and not singular:
        stop(f"whether one {kind.__name__} is another that equals it")


def _type(variable: Any) -> type | None:
    try:
        kind: type = variable.python_type()
    except NotImplementedError:
        return None
    return kind


# --------------------------------------------------------------------------- changes


def _guard_changed_objects(stack: ExitStack) -> None:
    """Guard that an object which the program changes is none of the others that it uses."""
    from tj_torch.torch_private.dynamo import OutputGraph

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_subgraph(self: Any, *args: Any, **kwargs: Any) -> Any:
            for sources in _kept_apart(self.side_effects):
                _guard(*sources, _several)
            return original(self, *args, **kwargs)

        return compile_subgraph

    replace(stack, OutputGraph, "compile_subgraph", ending)


def _kept_apart(effects: Any) -> Iterator[list[Any]]:
    """The sources of objects of each type of which one is changed."""
    groups: dict[type, list[Any]] = defaultdict(list)
    changed: set[type] = set()
    for variable in effects.id_to_variable.values():
        kind = _type(variable) if _is_input(variable) else None
        if kind is not None:
            groups[kind].append(variable.source)
            if effects.is_modified(variable):
                changed.add(kind)
    for kind in changed:
        if len(groups[kind]) > 1:
            yield groups[kind]


def _is_input(variable: Any) -> bool:
    """Tell whether guards find the object; dicts of a module are its own."""
    from tj_torch.torch_private.dynamo import CellVariable

    source = variable.source
    return (
        source is not None
        and variable.mutation_type is not None
        and not variable.is_tensor()
        and not isinstance(variable, CellVariable)
        and not source.name.endswith(_OF_MODULES)
    )


_OF_MODULES = ("_parameters", "_buffers", "_modules", "_hooks", "_hooks_with_kwargs", "__dict__")


def _guard_each_duplicate(stack: ExitStack) -> None:
    """Guard that one object is found in two places where Dynamo does not: one of them global."""
    from tj_torch.torch_private.dynamo import builder

    def of_both(original: Callable[..., Any]) -> Callable[..., Any]:
        def make_dupe_guard(source: Any, other: Any) -> Any:
            guard = original(source, other)
            if guard is None and other is not None and source != other:
                return functools.partial(_one, others=(other,))
            return guard

        return make_dupe_guard

    replace(stack, builder, "make_dupe_guard", of_both)


# --------------------------------------------------------------------------- guards


def _guard(first: Any, *rest: Any) -> None:
    """Guard the sources in front by the function at the end."""
    from tj_torch.torch_private.dynamo import install_guard

    *others, create = rest
    install_guard(first.make_guard(functools.partial(create, others=tuple(others))))


def _one(builder: Any, guard: Any, others: tuple[Any, ...]) -> None:
    """Let what ``others`` read be the object that the guard's source reads."""
    names = _names(builder, guard, others)
    add_last(builder, guard, " and ".join(f"{name} is {names[0]}" for name in names[1:]))


def _several(builder: Any, guard: Any, others: tuple[Any, ...]) -> None:
    """Let what ``others`` and the guard's source read be different objects."""
    names = _names(builder, guard, others)
    if len(names) == 2:
        add_last(builder, guard, f"{names[0]} is not {names[1]}")
    elif names:
        ids = ", ".join(f"id({name})" for name in names)
        add_last(builder, guard, f"len({{{ids}}}) == {len(names)}")


def _names(builder: Any, guard: Any, others: Iterable[Any]) -> list[str]:
    from tj_torch.torch_private.dynamo import is_from_skip_guard_source

    sources = (guard.originating_source, *others)
    return [builder.arg_ref(s.name) for s in sources if not is_from_skip_guard_source(s)]


def add_last(builder: Any, guard: Any, code: str) -> None:
    """Check ``code`` after all other guards, which know that what it reads is there."""
    known = builder.object_aliasing_guard_codes
    if code and all(code != other for other, _ in known):
        from tj_torch.torch_private.dynamo import get_verbose_code_parts

        known += [(code, verbose) for verbose in get_verbose_code_parts([code], guard)]
