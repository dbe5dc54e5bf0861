"""Sets in the order that Python walks through them, which depends on how they were made.

For Dynamo a set is in the order in which its items were added, and two equal sets are one. So each
operation of a program on a set of constants is repeated here on a set of Python's, which has the
order. A set that was there before is guarded to have the same order, where a program walks through
it. Sets that are computed from one, and ``pop`` of one, depend on more than this order. A program
that walks through such a set runs as it is: after a graph break, the set would be made anew.
Objects that are hashed by their address have any order.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import forget_handlers, leave_program, replace_instruction
from tj_torch.capture.dynamo.read_values import name_of
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["keep_orders"]

WRITES = frozenset(
    {
        *("add", "clear", "difference_update", "discard", "intersection_update", "remove"),
        *("symmetric_difference_update", "update", "__iand__", "__ior__", "__isub__", "__ixor__"),
    }
)
MAKES = frozenset(
    {
        *("copy", "difference", "intersection", "symmetric_difference", "union"),
        *("__and__", "__or__", "__sub__", "__xor__"),
    }
)
ASKS = frozenset({"__contains__", "__len__", "isdisjoint", "issubset", "issuperset"})
OPERATORS = {"and": operator.and_, "or": operator.or_, "subtract": operator.sub,
             "xor": operator.xor}  # fmt: skip
IN_PLACE = {"and": operator.iand, "or": operator.ior, "subtract": operator.isub,
            "xor": operator.ixor}  # fmt: skip
WALKS = ("tp_iter_impl", "unpack_var_sequence", "repr_impl", "tp_repr_impl")
ASK = ("hash_impl", "is_python_constant", "is_python_equal", "richcompare_impl", "sq_contains",
       "sq_contains_impl", "tp_richcompare_impl")  # fmt: skip
"""Methods of Dynamo's sets for which the order does not matter."""

ORDERLESS = (all, any, len, max, min, sorted)
"""Builtin functions with one result for all orders of distinct whole numbers or texts."""

UNKNOWN: Any = object()

_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def keep_orders(stack: ExitStack, noticed: Observations) -> None:
    """Keep the order of each set of constants."""
    from tj_torch.torch_private.dynamo import (
        BaseListVariable,
        BuiltinVariable,
        ListVariable,
    )

    kinds = _kinds()
    sets = _Sets(noticed, kinds)
    changes = {
        **dict.fromkeys(WALKS, sets.walking),
        **dict.fromkeys(ASK, sets.asking),
        "as_python_constant": sets.folding,
        "call_method": sets.calling,
        "reconstruct": sets.making,
        "set_items": sets.listing,
    }
    for owner, (name, change) in itertools.product(kinds, changes.items()):
        if has(owner, name):
            replace(stack, owner, name, change)
    for name in ("call_method", "is_python_constant"):  # of the base of all kinds, in some releases
        if not any(has(owner, name) for owner in kinds):
            replace(stack, kinds[0], name, changes[name], inherited=True)
    for owner, word in itertools.product(kinds, OPERATORS):
        for name, operation in (
            (f"nb_{word}_impl", OPERATORS),
            (f"nb_inplace_{word}_impl", IN_PLACE),
        ):
            if has(owner, name):
                replace(stack, owner, name, sets.operating(operation[word]))
    replace(stack, ListVariable, "call_method", sets.extending, inherited=True)
    if has(BaseListVariable, "list_extend"):  # `items += s` calls no method from 2.15 on
        replace(stack, BaseListVariable, "list_extend", sets.adding)
    replace_instruction(stack, "BUILD_SET", sets.building)
    forget_handlers(stack, frozenset)
    replace(stack, BuiltinVariable, "call_frozenset", sets.freezing)
    replace(stack, BuiltinVariable, "call_function", sets.computing, inherited=True)


def _kinds() -> tuple[Any, ...]:
    """Dynamo's classes of sets, bases first; from 2.15 on, one more is the base of both others."""
    from tj_torch.torch_private.dynamo import FrozensetVariable, SetVariable, VariableTracker

    kinds = dict.fromkeys((*reversed(SetVariable.__mro__), *reversed(FrozensetVariable.__mro__)))
    return tuple(k for k in kinds if issubclass(k, VariableTracker) and k is not VariableTracker)


class _Sets:
    """The sets of one capture.

    ``known`` has those that the program made or changed, by the dict of their items: with the same
    items in a set of Python's, or None if that is unknown. ``orders`` has the items of others, by
    the expressions that these are read from. ``quiet`` counts the calls in which the
    order does not matter; ``made`` is the set that code is written for.
    """

    def __init__(self, noticed: Observations, kinds: tuple[Any, ...]) -> None:
        self.noticed, self.kinds = noticed, kinds
        self.known: dict[int, tuple[Any, Any]] = {}
        self.orders: dict[str, list[Any]] = {}
        self.quiet = 0
        self.made: Any = None

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1

    def twin(self, variable: Any) -> Any:
        """A set of Python's that was made as the one of ``variable`` was; None if unknown."""
        known = self.known.get(id(variable.items))
        if known is not None:
            return known[1]
        values = None if variable.source is not None else _values(variable)
        if values is None:
            return None
        made = variable.python_type()(values)
        return made if [*made] == values else None

    def put(self, variable: Any, twin: Any) -> None:
        """Note what a set has become, if ``twin`` has its items."""
        values = _values(variable)
        fits = twin is not None and values is not None and {*values} == twin
        self.known[id(variable.items)] = variable.items, twin if fits else None

    def operand(self, variable: Any) -> Any:
        """The argument of an operation as a value of Python's, or `UNKNOWN`."""
        from tj_torch.torch_private.dynamo import ConstDictVariable

        variable = variable.realize()
        if isinstance(variable, self.kinds):
            twin = self.twin(variable) if _is_plain(variable) else None
            return UNKNOWN if twin is None else twin
        if type(variable) is ConstDictVariable:
            values = _values(variable)
            return UNKNOWN if values is None else dict.fromkeys(values)
        with contextlib.suppress(Exception):
            found = variable.as_python_constant()
            return found if type(found) in (*_PLAIN, list, tuple, range) else UNKNOWN
        return UNKNOWN

    def see_order(self, variable: Any) -> None:
        """Put the items in order, and guard it; or leave the program."""
        from tj_torch.torch_private.dynamo import InstructionTranslator

        values = None if self.quiet or not _is_plain(variable) else _values(variable)
        if values is None or len(values) < 2:
            return
        if variable.source is not None and id(variable.items) not in self.known:
            conditions = self.noticed.conditions(InstructionTranslator.current_tx().output)
            name = name_of(variable.source)
            order = conditions.bind("items", self.orders.setdefault(name, values))
            conditions.add(f"[*{name}] == {order}", f"the items of {name} are in the same order")
            return
        if id(variable.items) not in self.known:  # a constant
            return
        twin = self.twin(variable)
        if twin is None:
            leave_program("a walk through a set that the program changes or makes of others")
        by_value = dict(zip(values, variable.items, strict=True))
        items = {by_value[value]: variable.items[by_value[value]] for value in twin}
        variable.items.clear()
        variable.items.update(items)

    def see_orders(self, given: Any) -> None:
        """`see_order` of the sets among the arguments ``given``, whose items are taken in turn."""
        for argument in filter(_is_set, given):
            self.see_order(argument.realize())

    def walking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def walk(variable: Any, *args: Any) -> Any:
            self.see_order(variable)
            return original(variable, *args)

        return walk

    def asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            with self.quietly():
                return original(*args, **kwargs)

        return ask

    def folding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def as_python_constant(variable: Any) -> Any:
            found = original(variable)
            if self.quiet or not _is_plain(variable) or len(found) < 2:
                return found
            self.see_order(variable)
            values, twin = _values(variable), self.twin(variable)
            made = type(found)(values or found)
            if [*made] == values:
                return made
            if twin is None or [*(made := twin.copy())] != values:
                leave_program("a set whose order is not that of its items")
            return made

        return as_python_constant

    def calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name in ASKS and _is_plain(variable):
                with self.quietly():
                    return original(variable, tx, name, args, kwargs)
            if name not in WRITES | MAKES | {"pop"} or not _is_plain(variable):
                return original(variable, tx, name, args, kwargs)
            if name == "pop":
                return self.popped(variable, tx, original, args, kwargs)
            twin = None if self.quiet else self.twin(variable)
            operands = [] if twin is None else [*map(self.operand, args)]
            if operands == [UNKNOWN] and name == "update" and _is_read_in_order(args[0]):
                # The items are added one by one.
                name, operands = "items", []
            with self.quietly():
                result = original(variable, tx, name.replace("items", "update"), args, kwargs)
            if name == "items":
                self.put(variable, _added(twin, _values(variable) or ()))
            elif name in WRITES:
                self.put(variable, _written(twin, name, operands))
            elif _is_plain(result) and result is not variable:  # as a copy of a frozen set is
                self.put(result, _result(twin, name, operands))
            return result

        return call_method

    def popped(
        self, variable: Any, tx: Any, original: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """An item that ``pop`` takes."""
        values, twin = _values(variable), self.twin(variable)
        if len(variable.items) < 2 or args or kwargs:
            result = original(variable, tx, "pop", args, kwargs)
            self.put(variable, None if twin is None or self.quiet else _written(twin, "pop", ()))
            return result
        if values is None or twin is None or self.quiet:
            leave_program("which item of a set pop() takes")
        by_value = dict(zip(values, variable.items, strict=True))
        taken = by_value[twin.pop()]
        variable.should_reconstruct_all = True
        tx.output.side_effects.mutation(variable)
        variable.items.pop(taken)
        self.put(variable, twin)
        return taken.vt

    def operating(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def operate(variable: Any, tx: Any, other: Any, *reverse: Any, **more: Any) -> Any:
                both = [variable, other]
                if (more.get("reverse", False), *reverse)[-1]:
                    both.reverse()
                twins = [] if self.quiet else [*map(self.operand, both)]
                with self.quietly():
                    result = original(variable, tx, other, *reverse, **more)
                if result is variable:
                    variable.should_reconstruct_all = True
                if _is_plain(result):
                    known = twins and all(isinstance(twin, set | frozenset) for twin in twins)
                    self.put(result, operation(*twins) if known else None)
                return result

            return operate

        return make

    def making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Write code that adds the items in an order which gives the set its own."""

        def reconstruct(variable: Any, codegen: Any) -> Any:
            values = _values(variable) if _is_plain(variable) else None
            if values is None or len(values) < 2:
                return original(variable, codegen)
            self.see_order(variable)
            values = _values(variable)
            if [*variable.python_type()(values)] != values:
                leave_program("a set whose order is not that of its items")
            self.made, outer = variable, self.made
            try:
                return original(variable, codegen)
            finally:
                self.made = outer

        return reconstruct

    def listing(self, original: Any) -> Any:
        def set_items(variable: Any) -> Any:
            return [*variable.items] if self.made is variable else original.fget(variable)

        return property(set_items)

    def extending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name == "extend":
                self.see_orders(args)
            return original(variable, tx, name, args, kwargs)

        return call_method

    def adding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def list_extend(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            self.see_orders(args)
            return original(variable, tx, args, kwargs)

        return list_extend

    def building(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def BUILD_SET(tx: Any, instruction: Any) -> Any:
            result = original(tx, instruction)
            made = tx.stack[-1].realize()
            values = _values(made) if _is_plain(made) else None
            if values is not None:
                self.put(made, _added(set(), values))
            return result

        return BUILD_SET

    def freezing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_frozenset(builtin: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            given: Any = UNKNOWN if self.quiet or not args else self.operand(args[0])
            with self.quietly():
                result = original(builtin, tx, *args, **kwargs)
            if _is_plain(result) and all(result is not arg for arg in args) and args:
                values = _values(result)
                if given is UNKNOWN and values is not None and _is_read_in_order(args[0]):
                    given = values
                self.put(result, None if given is UNKNOWN else frozenset(given))
            return result

        return call_frozenset

    def computing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(builtin: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            if builtin.fn in ORDERLESS and len(args) == 1 and not kwargs and _is_set(args[0]):
                values = _values(args[0].realize()) or ()
                if builtin.fn in (all, any, len) or {*map(type, values)} in ({int}, {str}):
                    with self.quietly():
                        return original(builtin, tx, args, kwargs)
            return original(builtin, tx, args, kwargs)

        return call_function


def _is_plain(variable: Any) -> bool:
    """Test for a set of Python's own classes."""
    from tj_torch.torch_private.dynamo import FrozensetVariable, SetVariable

    return type(variable) in (SetVariable, FrozensetVariable)


def _is_set(variable: Any) -> bool:
    return _is_plain(variable.realize())


def _values(variable: Any) -> list[Any] | None:
    """The items of a set, or keys of a dict, as values of Python's; None if one is no constant."""
    found = []
    for item in variable.items:
        try:
            value = item.vt.as_python_constant()
        except Exception:  # Dynamo has several for what is no constant
            return None
        if not _is_value(value):
            return None
        found.append(value)
    return found


def _is_value(value: object) -> bool:
    """Test for a constant whose hash is that of its value."""
    if type(value) is tuple:
        return all(map(_is_value, value))
    return type(value) in _PLAIN


def _added(twin: Any, values: Any) -> Any:
    for value in values:
        twin.add(value)
    return twin


def _is_read_in_order(variable: Any) -> bool:
    """Test for an iterable that a set adds the items of one by one, as it does of a list."""
    try:
        return not issubclass(variable.realize().python_type(), set | frozenset | dict)
    except Exception:  # as above, where it does not know the type
        return False


def _written(twin: Any, name: str, operands: Any) -> Any:
    """``twin`` after a method that writes; None if that is unknown."""
    if twin is None:
        return set() if name == "clear" else None
    if any(operand is UNKNOWN for operand in operands):
        return None
    with contextlib.suppress(Exception):
        result = getattr(twin, name)(*operands)
        return result if name.startswith("__i") else twin
    return None


def _result(twin: Any, name: str, operands: Any) -> Any:
    if twin is None or any(operand is UNKNOWN for operand in operands):
        return None
    with contextlib.suppress(Exception):
        return getattr(twin, name)(*operands)
    return None
