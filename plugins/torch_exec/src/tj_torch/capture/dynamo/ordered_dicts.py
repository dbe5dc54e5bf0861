"""Guards of the order of keys in an ``OrderedDict`` that was there before.

``move_to_end`` changes it, and no guard of Dynamo's sees that: these walk the plain dict inside,
whose order stays. The order counts for loops, for copies and for ``==`` of two such dicts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["guard_orders"]


def guard_orders(stack: ExitStack, noticed: Observations) -> None:
    """Guard the order of each such dict whose keys the program walks through."""
    from tj_torch.torch_private.dynamo import ConstDictVariable, VariableBuilder, user_defined

    orders = _Orders(noticed)
    replace(stack, VariableBuilder, "_wrap", _noting(orders))
    for name in ("install_dict_keys_match_guard", "tp_iter_impl", "unpack_var_sequence"):
        if has(ConstDictVariable, name):
            replace(stack, ConstDictVariable, name, _walking(orders))
    ordered = getattr(user_defined, "OrderedDictVariable", ConstDictVariable)
    for owner in {ordered, ConstDictVariable}:
        replace(stack, owner, "call_method", _taking(orders), inherited=True)


class _Orders:
    """The keys of the dicts of one capture, by the expressions that these are read from."""

    def __init__(self, noticed: Observations) -> None:
        self.noticed = noticed
        self.keys: dict[str, list[Callable[[], object]]] = {}

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


def _walking(orders: _Orders) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def walking(original: Callable[..., Any]) -> Callable[..., Any]:
        def walk(self: Any, *args: Any) -> Any:
            orders.guard(self.source)
            return original(self, *args)

        return walk

    return walking


def _taking(orders: _Orders) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from tj_torch.torch_private.dynamo import ConstDictVariable

    def taking(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name == "popitem":
                orders.guard(self.source)
                # Of a copy, Dynamo takes the last item, whichever end the program asks for.
                if (args or kwargs) and type(self) is ConstDictVariable:
                    stop("popitem() from one end of a copy of an OrderedDict")
            return original(self, tx, name, args, kwargs)

        return call_method

    return taking


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
