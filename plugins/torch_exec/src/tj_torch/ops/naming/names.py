"""Canonical names of operations in captured graphs.

One operation has many spellings: ``x + y``, ``x.add(y)``, ``torch.add(x, y)``. `Names.symbol` gives
all of them one symbol, with arguments in that symbol's order, where they compute the same; a
spelling that might differ in some case keeps a name of its own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from tj_core.extend import (
    Constant,
    NumberProxy,
    OpaqueProxy,
    Symbol,
    TensorProxy,
    leaves,
)

from tj_torch.ops.naming.aliases import aliases
from tj_torch.ops.naming.methods import (
    INT,
    NUMBER,
    OTHER,
    TENSOR,
    Arrange,
    function_arrangement,
    is_function,
    method_form,
)
from tj_torch.ops.naming.operators import BINARY, INPLACE, ITEMS, REFLECTED, UNARY, operator_name
from tj_torch.ops.naming.paths import FUNCTIONS, leads_to, own_path, public_names, walk
from tj_torch.ops.naming.resolve import ROOTS, resolve
from tj_torch.ops.values.convert import State
from tj_torch.torch_private import ops as private
from tj_torch.torch_private.runtime import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
)

__all__ = ["Named", "Names", "is_tensor_proxy"]


class Named(NamedTuple):
    """Call in canonical form, which runs as ``function(*args, **kwargs)``."""

    symbol: Symbol
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Naming of all calls of one target with the same kinds of arguments.

    A plan that is not ``lasting`` must not be cached.
    """

    symbol: Symbol
    function: Callable[..., Any]
    arrange: Arrange | None = None
    lasting: bool = True

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Named:
        """Canonical call with these arguments."""
        arranged = self.arrange(args) if self.arrange else args
        return Named(self.symbol, arranged, dict(kwargs), self.function)


def _has_spellings(value: Any) -> bool:
    """Test for a tensor subclass that may treat ``x + y`` and ``torch.add(x, y)`` differently.

    A subclass that overrides none of PyTorch's operations in Python does not.
    """
    if not isinstance(value, TensorProxy) or value.subclass is None:
        return False
    state = value.subclass.state
    return not isinstance(state, State) or _overrides(state.kind)


class _Bare:
    """Class with an annotation and no members; its ``vars`` are what every class has."""

    held: object


_MADE_OF = frozenset(
    {"__init__", "__new__", "__repr__", "__slotnames__", "__torch_dispatch__", *vars(_Bare)}
)
"""Members that every wrapper subclass may define; ``copy`` adds ``__slotnames__`` to a class."""


def _overrides(kind: type) -> bool:
    """Test if ``kind`` overrides operations of `torch.Tensor` at present."""
    for base in kind.__mro__[: kind.__mro__.index(torch.Tensor)]:
        own = {n for n in vars(base) if hasattr(torch.Tensor, n)} - _MADE_OF
        if base.__dict__.get("__torch_function__") is not None and _is_disabled(base):
            own -= {"__torch_function__"}
        if own:
            return True
    return False


def _is_disabled(kind: Any) -> bool:
    return kind.__torch_function__ is private.disabled_torch_function()


def is_tensor_proxy(value: Any) -> bool:
    """Test for a tensor proxy."""
    return isinstance(value, TensorProxy)


class Names:
    """Canonical forms of calls, cached by target and kinds of arguments."""

    def __init__(self) -> None:
        self._plans: dict[Any, _Plan] = {}

    def symbol(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        is_tensor: Callable[[Any], bool] = is_tensor_proxy,
    ) -> Named:
        """Canonical form of a call.

        :param target: an FX node's target: a callable, or a method's name.
        :param args: its arguments, trees of proxies and constants; a method's object comes first.
        :param is_tensor: the test for leaves that are tensors.
        """
        if any(map(_has_spellings, leaves((args, list(kwargs.values()))))):
            return self._spelled(target).named(args, kwargs)
        kinds = tuple([_kind(x, is_tensor) for x in args])
        key = (target, kinds, tuple(kwargs))
        try:
            plan = self._plans.get(key)
        except TypeError:  # a callable object without a hash
            plan = _outside(target)
        if plan is None:
            plan = self._plan(target, args, kinds, key[2])
            if plan.lasting:
                self._plans[key] = plan
        return plan.named(args, kwargs)

    def _spelled(self, target: Any) -> _Plan:
        """Plan that keeps the user's spelling of ``target``, for tensor subclasses."""
        if isinstance(target, str):
            return _by_method_name(target)
        if getattr(target, "__module__", None) == "_operator":
            symbol = Symbol("operator", target.__name__)
            return _Plan(symbol, target) if _names(symbol, target) else _outside(target)
        if (plan := _operator_of_library(target)) is not None:
            return plan
        path = self._path(target)
        return _outside(target) if path is None else _Plan(Symbol.parse(path), target)

    def _plan(
        self, target: Any, args: tuple[Any, ...], kinds: tuple[str, ...], keywords: tuple[str, ...]
    ) -> _Plan:
        if isinstance(target, str):
            if kinds[:1] == (TENSOR,):
                return self._method(target, kinds, keywords)
            return _foreign_method(target, args[0] if args else None)
        if getattr(target, "__module__", None) == "_operator":
            return self._operator(target, kinds, keywords)
        return _operator_of_library(target) or self._function(target, kinds, keywords)

    # ------------------------------------------------------------------ operators

    def _operator(self, target: Any, kinds: tuple[str, ...], keywords: tuple[str, ...]) -> _Plan:
        name = getattr(target, "__name__", "")
        method = ITEMS.get(name)
        if method is not None and kinds[0] == TENSOR:
            return self._own_method(method)
        if (plan := self._operation(name, kinds, keywords)) is not None:
            return plan
        symbol = Symbol("operator", name)
        return _Plan(symbol, target) if _names(symbol, target) else _outside(target)

    def _operation(
        self, name: str, kinds: tuple[str, ...], keywords: tuple[str, ...] = ()
    ) -> _Plan | None:
        """``x op y`` as a call, None if no operand is a tensor or one is of another kind."""
        if keywords or TENSOR not in kinds or OTHER in kinds:
            return None
        if len(kinds) == 1:
            return self._torch(UNARY.get(name))
        if len(kinds) != 2:
            return None
        if kinds[0] == TENSOR:
            return self._inplace(name, kinds) or self._torch(BINARY.get(_plain(name)))
        return self._reflected(_plain(name))

    def _inplace(self, name: str, kinds: tuple[str, ...]) -> _Plan | None:
        return self._own_method(INPLACE[name]) if name in INPLACE else None

    def _reflected(self, name: str) -> _Plan | None:
        # `1 / x` is `x.reciprocal() * 1` in PyTorch, which rounds twice; `torch.div` rounds once.
        if name == "truediv":
            return self._own_method("__rtruediv__", _swapped)
        function, swapped = REFLECTED.get(name, (None, False))
        return self._torch(function, _swapped if swapped else None)

    def _torch(self, name: str | None, arrange: Arrange | None = None) -> _Plan | None:
        function = None if name is None else is_function(name)
        return None if function is None else self._canonical(function, (), arrange)

    # ------------------------------------------------------------------ methods

    def _method(self, name: str, kinds: tuple[str, ...], keywords: tuple[str, ...]) -> _Plan:
        """``x.name(...)`` of a tensor."""
        if not hasattr(torch.Tensor, name):  # a method of a subclass
            return _by_method_name(name)
        operator = operator_name(name)
        if operator is not None:
            return self._dunder(operator, name, kinds, keywords)
        form = method_form(name, kinds, keywords)
        if form.function is None:
            base = is_function(name[:-1]) if name.endswith("_") else None
            return self._own_method(aliases().canonical_method(name, base), form.arrange)
        return self._canonical(form.function, keywords, form.arrange)

    def _dunder(
        self,
        operator: tuple[str, bool],
        method: str,
        kinds: tuple[str, ...],
        keywords: tuple[str, ...],
    ) -> _Plan:
        """``x.__add__(y)``; it stays a method for arguments for which it returns NotImplemented."""
        name, reflected = operator
        found = None
        if not reflected:
            found = self._operation(name, kinds, keywords)
        elif len(kinds) == 2 and OTHER not in kinds and not keywords:
            found = self._reflected(name)
            if found is not None:
                found = _Plan(found.symbol, found.function, None if found.arrange else _swapped)
        return found or self._own_method(method)

    def _own_method(self, name: str, arrange: Arrange | None = None) -> _Plan:
        return _Plan(Symbol("torch", f"Tensor.{name}"), getattr(torch.Tensor, name), arrange)

    # ------------------------------------------------------------------ functions

    def _function(self, target: Any, kinds: tuple[str, ...], keywords: tuple[str, ...]) -> _Plan:
        path = self._path(target)
        if path is None:
            return _outside(target)
        owner, _, name = path.rpartition(".")
        if owner == "torch.Tensor" and kinds[:1] == (TENSOR,):
            return self._method(name, kinds, keywords)
        known = is_function(name) is target
        arrange = function_arrangement(name, kinds, keywords) if known else None
        return self._canonical(target, keywords, arrange)

    def _canonical(
        self, function: Any, keywords: tuple[str, ...], arrange: Arrange | None = None
    ) -> _Plan:
        """Plan for ``function``, which has a name, under the name of its canonical alias."""
        if isinstance(function, types.BuiltinFunctionType):
            other = aliases().canonical(function, keywords)
            if other is not function and self._path(other) is not None:
                function = other
        symbol = Symbol.parse(self._path(function) or "")
        return _Plan(symbol, function, arrange)

    def _path(self, function: Any) -> str | None:
        """Name to print for ``function``, None if it has none that programs can use."""
        shown = public_names().get(function) if isinstance(function, FUNCTIONS) else None
        if shown is not None and not leads_to(shown, function):
            shown = None  # replaced since, by whoever patches PyTorch
        paths = [p for p in (shown, own_path(function)) if p is not None and _usable(p)]
        return min(paths, key=_preference, default=None)


def _preference(path: str) -> tuple[bool, int, int, str]:
    private = any(p.startswith("_") and not p.endswith("__") for p in path.split("."))
    # The path itself last, so that the choice is the same in every process.
    return private, path.count("."), len(path), path


def _usable(path: str) -> bool:
    """Test for a dotted path whose first part is no namespace of another meaning here."""
    namespace = path.partition(".")[0]
    return "." in path and (namespace in ("torch", "builtins") or namespace not in ROOTS)


def _names(symbol: Symbol, target: Any) -> bool:
    try:
        return resolve(symbol) is target
    except LookupError:
        return False


def _plain(name: str) -> str:
    """Name of the plain operator for an in-place one, which ``x += y`` is if ``x`` is no tensor."""
    return name[1:] if name in INPLACE or name == "imatmul" else name


def _swapped(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args[1], args[0]


# ---------------------------------------------------------------------------- everything else


def _operator_of_library(target: Any) -> _Plan | None:
    """Plan for an operator in ``torch.ops``; those of ``aten`` have a namespace of their own."""
    if isinstance(target, OpOverloadPacket) and len(target.overloads()) == 1:
        target = getattr(target, target.overloads()[0])  # the overload that a call runs
    symbol = _library_symbol(target)
    return _Plan(symbol, target) if symbol is not None and _names(symbol, target) else None


def _library_symbol(target: Any) -> Symbol | None:
    if isinstance(target, OpOverload | OpOverloadPacket):
        namespace, _, name = str(target).partition(".")
        return Symbol("aten", name) if namespace == "aten" else Symbol("torch", f"ops.{target}")
    if isinstance(target, HigherOrderOperator):
        return Symbol("torch", f"ops.higher_order.{target.__name__}")
    return None


def _foreign_method(name: str, value: Any) -> _Plan:
    """Plan for a method of an object that is no tensor, by its class if the type is known."""
    if isinstance(value, OpaqueProxy):
        path = f"{value.type}.{name}"
        try:
            found = walk(path)
        except LookupError:
            found = None
        if callable(found) and _usable(path):
            return _Plan(Symbol.parse(path), found, lasting=False)
    return _by_method_name(name)


def _by_method_name(name: str) -> _Plan:
    symbol = Symbol("tj", "method")
    return _Plan(symbol, resolve(symbol), lambda args: (name, *args), lasting=False)


def _outside(target: Any) -> _Plan:
    """Plan for a function without a dotted name, which becomes an argument of ``tj.call``."""
    name = getattr(target, "__name__", None) or type(target).__name__
    word = "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_") or "function"
    constant = Constant(f"_{word}", target, named=False)
    symbol = Symbol("tj", "call")
    # Not cached, as that would keep closures and their contents alive.
    return _Plan(symbol, resolve(symbol), lambda args: (constant, *args), lasting=False)


# ---------------------------------------------------------------------------- arguments


def _kind(value: Any, is_tensor: Callable[[Any], bool]) -> str:
    known = _KINDS.get(type(value))
    if known is not None:
        return known
    if is_tensor(value):
        return TENSOR
    if isinstance(value, NumberProxy):
        return INT if value.kind == "int" else NUMBER
    if isinstance(value, Constant):
        return _KINDS.get(type(value.value), OTHER)
    return OTHER


_KINDS = {
    int: INT,
    torch.SymInt: INT,
    bool: NUMBER,
    float: NUMBER,
    complex: NUMBER,
    torch.SymFloat: NUMBER,
    torch.SymBool: NUMBER,
    str: OTHER,
    tuple: OTHER,
    list: OTHER,
    type(None): OTHER,
    slice: OTHER,
}
