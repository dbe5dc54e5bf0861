"""Guards on the identity of objects that a program compares or changes.

Dynamo evaluates ``h.now is h.a`` for the objects of the captured call. It guards a positive result
only for objects that the program may change, and a negative one only for tensors.
"""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo import releases
from tj_torch.capture.dynamo.apart import Apart, type_of
from tj_torch.capture.dynamo.patches import replace_instruction, stop
from tj_torch.capture.dynamo.result_caches import see_identity
from tj_torch.capture.dynamo.symbols import settled_truth
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["add_last", "correct"]


def correct(stack: ExitStack) -> None:
    """Guard identities that a program depends on, until ``stack`` is left."""
    releases.last_guards(stack)
    apart = Apart()
    apart.note_keys(stack)
    _guard_comparisons(stack, apart)
    _guard_calls(stack)
    _guard_changed_objects(stack, apart)
    _guard_each_duplicate(stack)
    _guard_classes_of_closures(stack)


# --------------------------------------------------------------------------- comparisons


def _guard_comparisons(stack: ExitStack, apart: Apart) -> None:
    """Guard results of ``is``, and of ``==`` for objects that compare by identity."""

    def note(left: Any, right: Any) -> None:
        if left is not right and left.is_tensor() and right.is_tensor():
            apart.note(left)
            apart.note(right)

    def comparing(original: Callable[..., Any]) -> Callable[..., Any]:
        def instruction(self: Any, inst: Any) -> None:
            left, right = self.stack[-2:] = [_known(operand) for operand in self.stack[-2:]]
            see_identity(left, right)
            original(self, inst)
            if not (_is_one_of_a_kind(left) or _is_one_of_a_kind(right)):
                left, right = left.realize(), right.realize()
                note(left, right)
                # The argument of IS_OP is 1 for `is not`.
                _compared(left, right, self.stack[-1], inst.argval == 0)

        return instruction

    replace_instruction(stack, "IS_OP", comparing)
    releases.default_equality(stack, _equality, _compared)


def _guard_calls(stack: ExitStack) -> None:
    """Decide symbols in ``operator.is_``, and break the graph at comparisons of bound methods."""
    from tj_torch.torch_private.dynamo import BuiltinVariable, UserDefinedObjectVariable

    replace(stack, BuiltinVariable, "call_function", _asking)
    for name in ("richcompare_impl", "tp_richcompare_impl"):  # the latter from 2.14 on
        if has(UserDefinedObjectVariable, name):  # methods that are arguments are such objects
            replace(stack, UserDefinedObjectVariable, name, _equating)


def _asking(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn in (operator.is_, operator.is_not):
            args = [*map(settled_truth, args)]
            see_identity(*args)
        elif self.fn is hash and not all(map(_is_value, args)):
            stop("the hash of an object")
        return original(self, tx, args, kwargs)

    return call_function


def _is_value(variable: Any) -> bool:
    return variable.is_python_constant() or type_of(variable) in _VALUES


def _equating(original: Callable[..., Any]) -> Callable[..., Any]:
    def richcompare_impl(self: Any, tx: Any, other: Any, op: str) -> Any:
        _leave_methods(type_of(self), type_of(other))
        return original(self, tx, other, op)

    return richcompare_impl


def _is_one_of_a_kind(variable: Any) -> bool:
    """Test for None, a bool or another singleton; the variable may be lazy."""
    from tj_torch.torch_private.dynamo import ConstantVariable

    return isinstance(variable, ConstantVariable) and not isinstance(variable.value, _VALUES)


_VALUES = (int, float, complex, str, bytes)
_BY_VALUE = (*_VALUES, tuple, frozenset)
"""Types that Dynamo tracks by value, not by identity."""


def _known(operand: Any) -> Any:
    """Read an attribute that Dynamo has not read, and decide a symbol: it takes both for no object.

    The docstring of a function is read, which a ``contextlib.contextmanager`` compares with None
    (PyTorch 2.11; Dynamo reads it itself in 2.13). Other attributes break the graph.
    """
    from tj_torch.torch_private.dynamo import ConstantVariable, GetAttrVariable

    operand = settled_truth(operand)  # `(n > 2) is True`
    if not isinstance(operand, GetAttrVariable) or type_of(operand) is not None:
        return operand
    function = getattr(operand.obj, "fn", None)
    if operand.name == "__doc__" and isinstance(function, FunctionType):
        return ConstantVariable.create(function.__doc__)
    stop(f"an attribute, {operand.name}, is compared by identity")


def _compared(left: Any, right: Any, answer: Any, sense: bool = True) -> None:
    """Guard the result of a comparison of two objects.

    ``answer`` is Dynamo's result; ``sense`` is False for ``is not``.
    """
    # Tensors are `Apart`, and one variable is one object.
    if left is right or left.is_tensor() or right.is_tensor():
        return
    kind = type_of(left)
    # Types are guarded, and objects of two types are never one.
    if kind is not type_of(right) or kind is None:
        return
    _leave_methods(kind, kind)
    if issubclass(kind, _BY_VALUE):
        _leave_equal(left, right, kind)
    elif answer is not None and answer.is_python_constant() and left.source and right.source:
        same = answer.as_python_constant() is sense
        _guard(left.source, right.source, _one if same else _several)


def _leave_methods(kind: type | None, other: type | None) -> None:
    """Break the graph where bound methods are compared.

    They are made anew where they are read, and equal by object and function; Dynamo compares
    functions.
    """
    if kind is MethodType and other is MethodType:
        stop("whether one bound method is another")


def _equality(left: Any, right: Any, answer: Any) -> None:
    """`_compared` for ``==``, which compares identity for objects without an ``__eq__``.

    Values such as numbers are guarded by Dynamo.
    """
    kind = type_of(left)
    if kind is None or not issubclass(kind, _BY_VALUE):
        _compared(left, right, answer)


def _leave_equal(left: Any, right: Any, kind: type) -> None:
    try:
        one, other = left.as_python_constant(), right.as_python_constant()
        equal = one == other
        # CPython has one object for each int from -5 to 256.
        singular = kind is bool or (kind is int and equal and -5 <= one <= 256)
    except NotImplementedError:  # as for tensors or symbolic sizes
        equal, singular = True, kind is bool
    if equal and not singular:
        stop(f"whether one {kind.__name__} is another that equals it")


# --------------------------------------------------------------------------- changes


def _guard_changed_objects(stack: ExitStack, apart: Apart) -> None:
    """Guard that an object changed by the program is none of its other objects.

    So are objects that it tells ``apart``.
    """
    from tj_torch.torch_private.dynamo import OutputGraph

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_subgraph(self: Any, *args: Any, **kwargs: Any) -> Any:
            for sources in (*_kept_apart(self.side_effects), *apart.different(self)):
                _guard(*sources, _several)
            for sources in apart.same(self):
                _guard(*sources, _one)
            return original(self, *args, **kwargs)

        return compile_subgraph

    replace(stack, OutputGraph, "compile_subgraph", ending)


def _kept_apart(effects: Any) -> Iterator[list[Any]]:
    """Sources of all input objects of a type, for each type with a changed object."""
    groups: dict[type, list[Any]] = defaultdict(list)
    changed: set[type] = set()
    for variable in effects.id_to_variable.values():
        kind = type_of(variable) if _is_input(variable) else None
        if kind is not None:
            groups[kind].append(variable.source)
            if effects.is_modified(variable):
                changed.add(kind)
    for kind in changed:
        # A write to the only object of a type is seen through no other name.
        if len(groups[kind]) > 1:
            yield groups[kind]


def _is_input(variable: Any) -> bool:
    """Test for an object that guards can read; dicts of a module are not shared."""
    from tj_torch.torch_private.dynamo import CellVariable

    source = variable.source
    return (
        source is not None
        and variable.mutation_type is not None
        and not variable.is_tensor()
        and not isinstance(variable, CellVariable)
        and _is_readable(source)
    )


def _is_readable(source: Any) -> bool:
    """Test for a source that guards can read, and that is not a dict of a module."""
    try:
        return not source.name.endswith(_OF_MODULES)
    except NotImplementedError:  # as of a mode that the program makes
        return False


_OF_MODULES = ("_parameters", "_buffers", "_modules", "_hooks", "_hooks_with_kwargs", "__dict__")


def _guard_each_duplicate(stack: ExitStack) -> None:
    """Guard that two sources read one object, where Dynamo does not: one of them is global."""
    from tj_torch.torch_private.dynamo import builder

    def of_both(original: Callable[..., Any]) -> Callable[..., Any]:
        def make_dupe_guard(source: Any, other: Any) -> Any:
            guard = original(source, other)
            if guard is None and other is not None and source != other:
                return functools.partial(_one, others=(other,))
            return guard

        return make_dupe_guard

    replace(stack, builder, "make_dupe_guard", of_both)


def _guard_classes_of_closures(stack: ExitStack) -> None:
    """Guard classes that functions find in their closures, where Dynamo guards those of globals.

    It leaves them out for the sake of ``__class__``, the cell that ``super()`` reads.
    """
    from tj_torch.torch_private.dynamo import builder

    def asked(original: Callable[..., bool]) -> Callable[..., bool]:
        def is_from_closure_source(source: Any) -> bool:
            return getattr(source, "freevar_name", None) == "__class__" and original(source)

        return is_from_closure_source

    replace(stack, builder, "is_from_closure_source", asked)


# --------------------------------------------------------------------------- guards


def _guard(first: Any, *rest: Any) -> None:
    """Install a guard on the given sources; the last argument is the function that makes it."""
    from tj_torch.torch_private.dynamo import install_guard

    *others, create = rest
    install_guard(first.make_guard(functools.partial(create, others=tuple(others))))


def _one(builder: Any, guard: Any, others: tuple[Any, ...]) -> None:
    """Guard that ``others`` and the guard's source read the same object."""
    names = _names(builder, guard, others)
    add_last(builder, guard, " and ".join(f"{name} is {names[0]}" for name in names[1:]))


def _several(builder: Any, guard: Any, others: tuple[Any, ...]) -> None:
    """Guard that ``others`` and the guard's source read different objects."""
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
    """Add ``code`` after all other guards, so that the objects in the expression exist."""
    known = builder.object_aliasing_guard_codes
    if code and all(code != other for other, _ in known):
        from tj_torch.torch_private.dynamo import get_verbose_code_parts

        known += [(code, verbose) for verbose in get_verbose_code_parts([code], guard)]
