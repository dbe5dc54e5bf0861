"""Guards of the order of keys in a dict that was there before.

``move_to_end`` of an ``OrderedDict`` changes it, and no guard of Dynamo's sees that: these walk the
plain dict inside, whose order stays. The order counts for loops, for copies and for ``==`` of two
such dicts. Of any dict, Dynamo does not guard the order where it is copied (``{**d}``, ``f(**d)``),
unpacked or printed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from tj_torch.capture.dynamo.patches import stop, with_subclasses
from tj_torch.capture.dynamo.read_values import value_of
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["guard_empty", "guard_orders"]


def guard_orders(stack: ExitStack, noticed: Observations) -> None:
    """Guard the order of each such dict whose keys the program walks through."""
    from tj_torch.torch_private.dynamo import (
        BaseListVariable,
        ConstDictVariable,
        ListVariable,
        VariableBuilder,
        user_defined,
    )

    orders = _Orders(noticed)
    replace(stack, VariableBuilder, "_wrap", _noting(orders))
    replace(stack, ConstDictVariable, "install_dict_keys_match_guard", _walking(orders))
    for name in _WALKS:
        for owner in with_subclasses(ConstDictVariable):
            if has(owner, name):
                replace(stack, owner, name, _walking(orders, of_all=True))
    guard_empty(stack)
    replace(stack, ConstDictVariable, "is_python_constant", _probing(orders), inherited=True)
    replace(stack, ConstDictVariable, "as_python_constant", _folding(orders))
    replace(stack, ListVariable, "call_method", _extending, inherited=True)
    for owner, name in (
        (ConstDictVariable, "dict_copy"),
        (ConstDictVariable, "dict_update"),
        (BaseListVariable, "list_extend"),
    ):
        if has(owner, name):  # from 2.15 on: `d | {}` and `items += d` call no method
            replace(stack, owner, name, _handling(of_self=name == "dict_copy"))
    ordered = getattr(user_defined, "OrderedDictVariable", ConstDictVariable)
    for owner in {ordered, ConstDictVariable}:
        replace(stack, owner, "call_method", _taking(orders), inherited=True)


def guard_empty(stack: ExitStack) -> None:
    """Guard an empty dict as one without an order, until ``stack`` is left.

    Of an empty dict with an order, Dynamo's guard looks at nothing else: neither at the
    ``default_factory`` nor at attributes.
    """
    from tj_torch.torch_private.dynamo import GuardBuilder

    def with_items(original: Callable[..., bool]) -> Callable[..., bool]:
        def requires_key_order_guarding(self: Any, source: Any) -> bool:
            return original(self, source) and len(value_of(self, source)) > 0

        return requires_key_order_guarding

    replace(stack, GuardBuilder, "requires_key_order_guarding", with_items)


_WALKS = (
    *("tp_iter_impl", "unpack_var_sequence", "keys_as_python_constant"),
    *("repr_impl", "tp_repr_impl"),  # the latter from 2.14 on
)
"""Methods of Dynamo's dicts, each in some releases, that walk through the items."""


class _Orders:
    """The keys of the dicts of one capture, by the expressions that these are read from.

    ``probing`` counts calls in which Dynamo only asks if a dict is a constant.
    """

    def __init__(self, noticed: Observations) -> None:
        self.noticed = noticed
        self.keys: dict[str, list[Callable[[], object]]] = {}
        self.probing = 0

    def guard(self, source: Any) -> None:
        """Guard the order of the dict at ``source``, if it is one of these."""
        from tj_torch.torch_private.dynamo import InstructionTranslator

        keys = None if source is None else self.keys.get(source.name)
        if keys is None:
            return
        conditions = self.noticed.conditions(InstructionTranslator.current_tx().output)
        code = f"in_order({source.name}, {conditions.bind('keys', keys)})"
        text = f"the keys of {source.name} are in the same order"
        conditions.add(code, text, in_order=_in_order)


def _noting(orders: _Orders) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def _wrap(self: Any, value: Any) -> Any:
            if isinstance(value, OrderedDict) and len(value) > 1 and self.source is not None:
                # Of derived classes, Dynamo does not call their own methods either.
                keys: Any = OrderedDict.__iter__(value)
                orders.keys[self.source.name] = [*map(_held, keys)]
            return original(self, value)

        return _wrap

    return noting


def _walking(
    orders: _Orders, *, of_all: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Guard the order where a method walks through the keys; with ``of_all``, of all dicts."""

    def walking(original: Callable[..., Any]) -> Callable[..., Any]:
        def walk(self: Any, *args: Any) -> Any:
            orders.guard(self.source)
            if of_all:
                _guard_order(self)
            return original(self, *args)

        return walk

    return walking


def _probing(orders: _Orders) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def probing(original: Callable[..., Any]) -> Callable[..., Any]:
        def is_python_constant(self: Any) -> Any:
            orders.probing += 1
            try:
                return original(self)
            finally:
                orders.probing -= 1

        return is_python_constant

    return probing


def _folding(orders: _Orders) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Guard the order where a builtin function is computed for a dict of constants."""

    def folding(original: Callable[..., Any]) -> Callable[..., Any]:
        def as_python_constant(self: Any) -> Any:
            if not orders.probing:
                _guard_order(self)
            return original(self)

        return as_python_constant

    return folding


def _extending(original: Callable[..., Any]) -> Callable[..., Any]:
    """Guard the keys that a list is extended by, as in ``[*d]``."""

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "extend":
            for arg in args:
                _guard_order(arg.realize())
        return original(self, tx, name, args, kwargs)

    return call_method


def _handling(*, of_self: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Guard the order of the dict that a handler of a method copies: its own, or the argument."""

    def handling(original: Callable[..., Any]) -> Callable[..., Any]:
        def handler(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            for copied in [self] if of_self else args:
                _guard_order(copied.realize())
            return original(self, tx, args, kwargs)

        return handler

    return handling


def _guard_order(variable: Any) -> None:
    """Let Dynamo guard the order, too, where it guards the keys of a dict that was there before."""
    from tj_torch.torch_private.dynamo import ConstDictVariable, InstructionTranslator

    if isinstance(variable, ConstDictVariable) and variable.source is not None:
        variable.install_dict_keys_match_guard()
        InstructionTranslator.current_tx().output.guard_on_key_order.add(variable.source)


def _taking(orders: _Orders) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from tj_torch.torch_private.dynamo import ConstDictVariable

    def taking(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name == "popitem":
                orders.guard(self.source)
                # Of a copy, Dynamo takes the last item, whichever end the program asks for.
                if (args or kwargs) and type(self) is ConstDictVariable:
                    stop("popitem() from one end of a copy of an OrderedDict")
            for copied in _copied(self, name, args):
                _guard_order(copied)
            return original(self, tx, name, args, kwargs)

        return call_method

    return taking


def _copied(variable: Any, method: str, args: Any) -> Sequence[Any]:
    """The dicts whose items a method of the dict ``variable`` copies in their order."""
    if method == "update":
        return [arg.realize() for arg in args]
    if method in ("__or__", "__ior__"):  # up to 2.11
        return [variable, *(arg.realize() for arg in args)]
    return [variable] if method == "copy" else ()


_PLAIN = (str, int, float, bool, bytes, type(None))


def _held(key: object) -> Callable[[], object]:
    """Function that returns ``key``, through a weak reference if it has one."""
    if type(key) not in _PLAIN:
        try:
            return ref(key)
        except TypeError:
            pass
    return lambda: key


def _in_order(found: Any, keys: Sequence[Callable[[], object]]) -> bool:
    """Test if a dict has these keys in this order."""
    if len(found) != len(keys):
        return False
    pairs = zip(OrderedDict.__iter__(found), keys, strict=True)
    return all(key is wanted() or key == wanted() for key, wanted in pairs)
