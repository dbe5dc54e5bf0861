"""Break the graph at uses of Python containers that Dynamo does not model exactly."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo import releases
from tj_torch.capture.dynamo.own_methods import is_own
from tj_torch.capture.dynamo.patches import (
    forget_builders,
    forget_handlers,
    replace_instruction,
    stop,
)
from tj_torch.capture.dynamo.symbols import settled, settled_truth
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = [
    "bound_deques",
    "compare_numbers_in_containers",
    "compare_tensors_in_lists",
    "guard_order",
    "leave_greatest_tensors",
    "leave_subclasses",
    "leave_texts",
    "mapped_sizes",
]


def guard_order(stack: ExitStack) -> None:
    """Break the graph where the program moves a key of an OrderedDict."""
    releases.reorderings(stack, _leave_reordering)


def bound_deques(stack: ExitStack) -> None:
    """Break the graph where Dynamo forgets the ``maxlen`` of a deque: of inputs and of copies."""
    from tj_torch.torch_private.dynamo import BaseListVariable, DequeVariable, VariableBuilder

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, items: Any, maxlen: Any = None, **kwargs: Any) -> None:
            bound = None if maxlen is None else maxlen.as_python_constant()
            if bound and not repeats:
                stop("a deque with a maxlen")
            # Dynamo keeps `items[-maxlen:]` (variables/lists.py), which is all of them for 0.
            original(self, [] if bound == 0 else items, maxlen, **kwargs)

        return init

    def repeating(original: Callable[..., Any]) -> Callable[..., Any]:
        def sq_repeat_impl(self: Any, *args: Any) -> Any:
            if isinstance(self, DequeVariable) and not self.maxlen.is_constant_none():
                stop("a product of a deque with a maxlen")
            return original(self, *args)

        return sq_repeat_impl

    repeats = has(BaseListVariable, "sq_repeat_impl")  # without it, no bounded deque is captured
    if repeats:
        replace(stack, BaseListVariable, "sq_repeat_impl", repeating)
    forget_builders(stack)
    replace(stack, VariableBuilder, "wrap_listlike", _bound_input)
    replace(stack, DequeVariable, "__init__", made)
    replace(stack, DequeVariable, "call_method", _bound_method, inherited=True)


def _bound_input(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrap_listlike(self: Any, value: Any) -> Any:
        # A list or a tuple comes here, too, and has no such attribute.
        if getattr(value, "maxlen", None) is not None:
            stop("a deque with a maxlen that was there before")
        return original(self, value)

    return wrap_listlike


def _bound_method(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_method(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        bound = self.maxlen.as_python_constant()
        if bound == 0 or (bound is not None and name in _COPYING):
            stop(f"{name}() of a deque with a maxlen")
        return original(self, tx, name, *args, **kwargs)

    return call_method


_COPYING = (
    *("copy", "__copy__", "__deepcopy__", "__reduce__"),
    *("__add__", "__mul__", "__rmul__", "__imul__"),
)
"""Methods of deques whose results lose ``maxlen`` in Dynamo."""


def leave_subclasses(stack: ExitStack) -> None:
    """Break the graph at objects of subclasses of ``set`` and ``deque``, and of some of ``list``.

    Dynamo loses additions to and removals from such a set, and guards the length that a list says
    it has. From 2.14 on, it reads items of such a deque by a name that guards do not have; up to
    2.13 it breaks the graph itself.
    """
    from tj_torch.torch_private.dynamo import user_defined

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, value: Any, *args: Any, **kwargs: Any) -> None:
            stop(f"{type(value).__name__} is a subclass of {type(value).__mro__[1].__name__}")

        return init

    replace(stack, user_defined.UserDefinedSetVariable, "__init__", made)
    deques = getattr(user_defined, "UserDefinedDequeVariable", None)
    if deques is not None:
        replace(stack, deques, "__init__", made)
    lists = getattr(user_defined, "UserDefinedListVariable", None)
    if lists is not None:
        replace(stack, lists, "__init__", _measured)


def _measured(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, value: Any, *args: Any, **kwargs: Any) -> None:
        length: Any = list.__len__
        if kwargs.get("source") is not None and type(value).__len__ is not length:
            stop(f"{type(value).__name__} is a list with a length of its own")
        original(self, value, *args, **kwargs)

    return init


def leave_texts(stack: ExitStack) -> None:
    """Break the graph at the text of an OrderedDict, or of another class derived from a container.

    Dynamo has the text of an object of its own, without the items that the program has put in.
    """
    from tj_torch.torch_private.dynamo import (
        BuiltinVariable,
        ConstantVariable,
        InstructionTranslatorBase,
    )

    def of_call(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_str(self: Any, tx: Any, arg: Any) -> Any:
            _leave_text(arg)
            return original(self, tx, arg)

        return call_str

    def of_format(original: Callable[..., Any]) -> Callable[..., Any]:
        def _format_value(self: Any, *given: Any) -> Any:
            _leave_text(self.stack[-1])
            return original(self, *given)

        return _format_value

    def of_method(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if isinstance(self.value, str) and name in ("format", "__mod__"):
                for arg in (*args, *kwargs.values()):
                    _leave_text(arg)
            return original(self, tx, name, args, kwargs)

        return call_method

    if has(BuiltinVariable, "call_str"):  # up to 2.13
        forget_handlers(stack, str)
        replace(stack, BuiltinVariable, "call_str", of_call)
        replace(stack, InstructionTranslatorBase, "_format_value", of_format)
        replace(stack, ConstantVariable, "call_method", of_method)


def _leave_text(variable: Any) -> None:
    from tj_torch.torch_private.dynamo import BaseListVariable, UserDefinedObjectVariable

    variable = variable.realize()
    if isinstance(variable, BaseListVariable):
        for item in variable.items:
            _leave_text(item)
    kind = getattr(variable, "user_cls", dict)  # up to 2.11 an OrderedDict has Dynamo's class
    if isinstance(variable, UserDefinedObjectVariable) and isinstance(variable.value, _CONTAINERS):
        kind = type(variable.value)
    if kind is not dict:
        stop(f"the text of an object of {kind.__qualname__}")


_CONTAINERS = (dict, list, set, frozenset, tuple, deque)


def _leave_reordering(variable: Any) -> None:
    """Refuse to reorder a dict of the caller's: Dynamo writes back only new entries."""
    if variable.source is not None:
        stop("move_to_end() of a dict that was there before")


def compare_tensors_in_lists(stack: ExitStack) -> None:
    """Make ``x in [y, z]`` compare by identity first, and break the graph where data decide.

    Python then evaluates ``bool(x == y)``, which depends on data.
    """
    from tj_torch.torch_private.dynamo import BaseListVariable, BuiltinVariable, RangeVariable

    replace_instruction(stack, "CONTAINS_OP", _in_an_instruction)
    replace(stack, BuiltinVariable, "call_function", _in_a_call)
    replace(stack, BaseListVariable, "call_method", _in_a_method, inherited=True)
    for owner in (BaseListVariable, RangeVariable):
        if has(owner, "sq_contains_impl"):  # called for `items.__contains__(x)` from 2.15 on
            replace(stack, owner, "sq_contains_impl", _in_a_slot)


def _in_an_instruction(original: Callable[..., Any]) -> Callable[..., Any]:
    def instruction(self: Any, inst: Any) -> None:
        wanted, container = self.stack[-2:]
        # The argument of CONTAINS_OP is 1 for `not in`.
        found = _answer(container, wanted, negated=inst.argval == 1)
        if found is None:
            original(self, inst)
            return
        self.popn(2)
        self.push(found)

    return instruction


def _in_a_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        asks = self.fn is operator.contains and len(args) == 2 and not kwargs
        found = _answer(*args) if asks else None
        return original(self, tx, args, kwargs) if found is None else found

    return call_function


def _in_a_method(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_method(self: Any, tx: Any, name: str, args: Any, *rest: Any) -> Any:
        if name == "count" and any(item.is_tensor() for item in (*args, *self.items)):
            stop("how many times a tensor is in a list depends on its data")
        found = _answer(self, *args) if name == "__contains__" and len(args) == 1 else None
        return original(self, tx, name, args, *rest) if found is None else found

    return call_method


def _in_a_slot(original: Callable[..., Any]) -> Callable[..., Any]:
    def sq_contains_impl(self: Any, tx: Any, item: Any) -> Any:
        found = _answer(self, item)
        return original(self, tx, item) if found is None else found

    return sq_contains_impl


def _answer(container: Any, wanted: Any, *, negated: bool = False) -> Any:
    """The answer to ``wanted in container`` for a list with tensors; None for others."""
    from tj_torch.torch_private.dynamo import BaseListVariable, ConstantVariable, RangeVariable

    container = container.realize()
    if not isinstance(container, BaseListVariable):
        return None
    wanted, items = wanted.realize(), [item.realize() for item in container.items]
    if isinstance(container, RangeVariable):
        found = _found_in_range(settled(wanted), [settled(item) for item in items])
        return None if found is None else ConstantVariable.create(found is not negated)
    _leave_own_equality(wanted, items)
    found = _found_tensor(wanted, items)
    return None if found is None else ConstantVariable.create(found is not negated)


def _found_in_range(wanted: Any, parts: list[Any]) -> bool | None:
    """Test for a number in a range; None for other objects.

    Dynamo 2.13 returns the count of the number in the range.
    """
    if not all(v.is_python_constant() for v in (wanted, *parts)):
        return None
    return wanted.as_python_constant() in range(*(v.as_python_constant() for v in parts))


def _leave_own_equality(wanted: Any, items: list[Any]) -> None:
    """Break the graph at ``3 in [o]`` if ``o`` has an ``__eq__``: Dynamo compares constants."""
    from tj_torch.torch_private.dynamo import ConstantVariable, UserDefinedObjectVariable

    variables = (wanted, *items)
    if any(isinstance(v, ConstantVariable) for v in variables):
        for v in variables:
            if isinstance(v, UserDefinedObjectVariable) and is_own(type(v.value), "__eq__"):
                stop(f"{type(v.value).__qualname__}.__eq__ says what is in a list")


def _found_tensor(wanted: Any, items: list[Any]) -> bool | None:
    """Test if ``wanted`` is among ``items``; None if no tensor is involved."""
    if not wanted.is_tensor() and not any(item.is_tensor() for item in items):
        return None
    for item in items:
        # As `list.__contains__`, which asks `is` before `==`.
        if item is wanted or (item.is_tensor() and wanted.is_tensor() and _same(item, wanted)):
            return True
        other = wanted if item.is_tensor() else item
        if (item.is_tensor() and wanted.is_tensor()) or not _is_never_equal(other):
            stop("whether a tensor is in a list depends on its data")
    return False


def _same(a: Any, b: Any) -> bool:
    return a.as_proxy().node is b.as_proxy().node


def _is_never_equal(variable: Any) -> bool:
    """Test for a constant that no tensor equals, as `Tensor.__eq__` does not accept its type."""
    return variable.is_python_constant() and not isinstance(
        variable.as_python_constant(), int | float | complex
    )


def compare_numbers_in_containers(stack: ExitStack) -> None:
    """Make ``2 in (n, 3)`` compare 2 with ``n``, too: Dynamo looks at constants alone (2.13)."""
    from tj_torch.torch_private.dynamo import lists, utils

    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        def iter_contains(items: Any, wanted: Any, tx: Any, *rest: Any, **keywords: Any) -> Any:
            found, wanted = [item.realize() for item in items], wanted.realize()
            _leave_own_equality(wanted, found)
            if not wanted.is_python_constant() or all(v.is_python_constant() for v in found):
                return original(found, wanted, tx, *rest, **keywords)
            return _found_number(tx, wanted, found)

        return iter_contains

    for module in (utils, lists):
        replace(stack, module, "iter_contains", asking)


def _found_number(tx: Any, wanted: Any, items: list[Any]) -> Any:
    """Answer ``wanted in items`` for a constant; comparisons with symbols are guarded."""
    from tj_torch.torch_private.dynamo import (
        BaseListVariable,
        BuiltinVariable,
        ConstantVariable,
        SymNodeVariable,
    )

    value = wanted.as_python_constant()
    if isinstance(value, bool):  # SymPy compares no symbol with a truth value
        wanted = ConstantVariable.create(int(value))
    for item in map(settled_truth, items):
        if item.is_python_constant():
            same = item.as_python_constant() in (value,)
        elif item.is_tensor() and not _is_never_equal(wanted):
            stop("whether a tensor is in a container depends on its data")
        elif not isinstance(item, SymNodeVariable | BaseListVariable):
            continue  # no constant equals it
        else:
            answer = BuiltinVariable(operator.eq).call_function(tx, [item, wanted], {})
            same = settled(answer).as_python_constant()
        if same:
            return ConstantVariable.create(True)
    return ConstantVariable.create(False)


def leave_greatest_tensors(stack: ExitStack) -> None:
    """Break the graph at ``max(x, y)`` of tensors: Python returns one of them, Dynamo a new one."""
    from tj_torch.torch_private.dynamo import BuiltinVariable, SymNodeVariable, TensorVariable

    def choosing(original: Callable[..., Any]) -> Callable[..., Any]:
        def _call_min_max_binary(self: Any, tx: Any, a: Any, b: Any) -> Any:
            # Dynamo calls `torch.maximum`, or `torch.clamp` beside a number: a new tensor, which is
            # NaN if either is, while Python asks `b > a` once and returns one of the two.
            given = [v.realize() for v in (a, b) if v is not None]
            if any(type(v) is TensorVariable for v in given):
                stop(f"which {self.fn.__name__} of tensors depends on their data")
            symbols = any(isinstance(v, SymNodeVariable) for v in given)
            if symbols and len({v.python_type() for v in given}) > 1:
                stop(f"the {self.fn.__name__} of numbers of two types has the type of one")
            return original(self, tx, a, b)

        return _call_min_max_binary

    replace(stack, BuiltinVariable, "_call_min_max_binary", choosing)


def mapped_sizes(stack: ExitStack) -> None:
    """Map the items of a ``torch.Size`` to a tuple, as `torch.utils._pytree` does."""
    from tj_torch.torch_private.dynamo import BaseListVariable, SizeVariable, TupleVariable

    def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
        def branch(self: Any, *args: Any) -> Any:
            made = original(self, *args)
            return TupleVariable(made.items) if isinstance(made, SizeVariable) else made

        return branch

    for name in ("call_tree_map_branch", "call_tree_map_with_path_branch"):
        if has(BaseListVariable, name):  # else Dynamo traces PyTorch's Python code
            replace(stack, BaseListVariable, name, wrapping)
