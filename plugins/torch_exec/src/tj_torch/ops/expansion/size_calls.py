"""Compute the symbolic arguments of an operator in a body from the body's values.

An operator recorded with a symbolic argument, ``aten.view(x, [s0*s1])``, is preceded in the body by
calls that compute it: ``aten.sym_size.int(x, 0)``, ``operator.mul``. So a body runs by itself, and
a size is used like any other value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from tj_core.extend import BoundSymbol, NumberProxy, Symbol, size_symbols
from tj_core.internal import Operation, SizeTree, normal_size, parse_size

from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.expansion.recorder import Ref
from tj_torch.ops.sizes.shape_env import expression, is_symbolic, number_text

__all__ = ["SizeCalls"]

_CALLS = {
    "add": "operator.add",
    "sub": "operator.sub",
    "mul": "operator.mul",
    "floordiv": "operator.floordiv",
    "mod": "operator.mod",
    "pow": "operator.pow",
    "neg": "operator.neg",
    "eq": "operator.eq",
    "ne": "operator.ne",
    "lt": "operator.lt",
    "le": "operator.le",
    "gt": "operator.gt",
    "ge": "operator.ge",
    "Eq": "operator.eq",
    "Ne": "operator.ne",
    "and": "operator.and_",
    "or": "operator.or_",
    "not": "torch.sym_not",
    "Abs": "operator.abs",
    "Max": "torch.sym_max",
    "Min": "torch.sym_min",
    "Mod": "operator.mod",
    "PythonMod": "operator.mod",
    "FloorDiv": "operator.floordiv",
    "CleanDiv": "operator.floordiv",
    "PowByNatural": "operator.pow",
    "FloatPow": "operator.pow",
    "IntTrueDiv": "operator.truediv",
    "FloatTrueDiv": "operator.truediv",
    "ToFloat": "torch.sym_float",
    "TruncToInt": "math.trunc",
    "FloorToInt": "math.floor",
    "CeilToInt": "math.ceil",
    "OpaqueUnaryFn_sqrt": "torch.sym_sqrt",
    "Piecewise": "torch.sym_ite",
}
"""Function for each operation of a size expression; the two print their results alike."""

_FLOAT = frozenset({"ToFloat", "IntTrueDiv", "FloatTrueDiv", "FloatPow", "OpaqueUnaryFn_sqrt"})
_INTEGER = frozenset({"TruncToInt", "FloorToInt", "CeilToInt"})
_TRUTH = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "Eq", "Ne", "and", "or", "not"})


@dataclass(frozen=True, slots=True)
class _Origin:
    """Source of a number: size (or stride, by ``query``) ``index`` of a tensor."""

    ref: Ref
    query: str
    index: int


@dataclass
class SizeCalls:
    """Numbers known in one body, and calls that compute others from them.

    ``symbols`` are sympy symbols by name; ``proxy`` gives the value for a reference, ``fresh`` a
    new name. ``origins`` has the source of each known number, ``computed`` the results so far.
    """

    symbols: Mapping[str, Any]
    proxy: Callable[[Ref], Any]
    fresh: Callable[[], str]
    calls: list[BoundSymbol] = field(default_factory=list)
    origins: dict[str, _Origin | NumberProxy | Ref] = field(default_factory=dict)
    computed: dict[str, NumberProxy] = field(default_factory=dict)

    # ------------------------------------------------------------------ what is there

    def number(self, value: Any, origin: NumberProxy | Ref) -> None:
        """Register a number of the body."""
        if is_symbolic(value):
            self.origins.setdefault(number_text(value), origin)

    def tensor(self, ref: Ref, tensor: torch.Tensor, made: Container[str] | None = None) -> None:
        """Register sizes of a tensor of the body, and those strides that are plain symbols.

        A stride that is an expression is computed from sizes instead, since another kernel may give
        its result other strides. With ``made``, only the symbols in it, which the tensor's call
        makes.
        """
        strides = tensor.stride() if tensor.layout is torch.strided else ()
        for query, sizes in (("size", tensor.shape), ("stride", strides)):
            for index, size in enumerate(sizes):
                if not is_symbolic(size):
                    continue
                text = number_text(size)
                usable = query == "size" or size_symbols(text) == (text,)
                if usable if made is None else text in made:
                    self.origins.setdefault(text, _Origin(ref, query, index))

    def needs(self, text: str) -> Iterator[Ref]:
        """References to the values that computing ``text`` reads.

        :raises CannotExpand: if the known numbers do not determine it.
        """
        origin = self.origins.get(text)
        if isinstance(origin, _Origin):
            yield origin.ref
        elif isinstance(origin, Ref):
            yield origin
        elif origin is None:
            for part in self._parts(text):
                yield from self.needs(part)

    def _parts(self, text: str) -> list[str]:
        """Subexpressions from which ``text`` can be computed."""
        tree = parse_size(text)
        if isinstance(tree, str):
            return [self._linear(tree)[0]]
        found = tree.args if isinstance(tree, Operation) else ()
        return [self._text(arg) for arg in found if isinstance(arg, Operation | str)]

    def _text(self, tree: SizeTree) -> str:
        """``tree`` as PyTorch prints it; the pairs of a `Piecewise` are printed as tuples."""
        if isinstance(tree, Operation) and tree.name == "pair":
            return f"({', '.join(self._text(arg) for arg in tree.args)})"
        return str(expression(tree, self.symbols))

    def _linear(self, name: str) -> tuple[str, int, int]:
        """Known number of the form ``a * name + b``, with ``a`` and ``b``.

        :raises CannotExpand: if there is none.
        """
        for text in self.origins:
            if size_symbols(text) != (name,):
                continue
            terms = dict(normal_size(text))
            factor, constant = terms.pop((("symbol", name),), None), terms.pop((), Fraction(0))
            if not terms and factor and factor.denominator == constant.denominator == 1:
                return text, int(factor), int(constant)
        raise CannotExpand(f"size {name} cannot be computed from the arguments")

    # ------------------------------------------------------------------ computing

    def compute(self, text: str) -> Any:
        """Value of ``text`` in the body; adds the calls that compute it.

        :raises CannotExpand: if the values at hand do not determine it.
        """
        found = self.computed.get(text)
        if found is None:
            found = self.computed[text] = self._computed(text)
        return found

    def _computed(self, text: str) -> Any:
        origin = self.origins.get(text)
        if isinstance(origin, _Origin):
            query = Symbol("aten", f"sym_{origin.query}.int")
            return self._call(query, (self.proxy(origin.ref), origin.index), text)
        if isinstance(origin, Ref):
            return self.proxy(origin)
        if origin is not None:
            return origin
        tree = parse_size(text)
        return self._solved(tree) if isinstance(tree, str) else self._tree(tree)

    def _solved(self, name: str) -> Any:
        text, factor, constant = self._linear(name)
        value = self.compute(text)
        if constant:
            value = self._operation("sub", value, constant)
        # Exact: the known number is a multiple of the factor, after the constant is taken off.
        return self._operation("floordiv", value, factor) if factor != 1 else value

    def _tree(self, tree: SizeTree) -> Any:
        if not isinstance(tree, Operation):
            return self.compute(tree) if isinstance(tree, str) else tree
        if (text := self._text(tree)) in self.origins:
            return self.compute(text)
        if tree.name == "Piecewise":
            return self._piecewise(tree.args)
        args = [self._tree(arg) for arg in tree.args]
        if tree.name in ("Max", "Min"):  # sympy's take any number, and the functions two
            return functools.reduce(functools.partial(self._operation, tree.name), args)
        return self._operation(tree.name, *args)

    def _piecewise(self, pairs: tuple[Any, ...]) -> Any:
        """Value of the first (value, condition) pair whose condition holds, as nested `sym_ite`."""
        value, condition = pairs[0].args
        if condition is True:
            return self._tree(value)
        rest = self._piecewise(pairs[1:])
        return self._operation("Piecewise", self._tree(condition), self._tree(value), rest)

    def _operation(self, name: str, *args: Any) -> Any:
        if name not in _CALLS:
            raise CannotExpand(f"no function computes {name!r} of sizes")
        trees = tuple(parse_size(a.expr) if isinstance(a, NumberProxy) else a for a in args)
        if name == "Piecewise":
            trees = Operation("pair", trees[1::-1]), Operation("pair", (trees[2], True))
        text = self._text(Operation(name, trees))
        found = self.computed.get(text)
        if found is None:
            symbol = Symbol.parse(_CALLS[name])
            found = self.computed[text] = self._call(symbol, args, text, _kind(name, args))
        return found

    def _call(
        self, symbol: Symbol, args: tuple[Any, ...], text: str, kind: str = "int"
    ) -> NumberProxy:
        out = NumberProxy(self.fresh(), kind, text)
        self.calls.append(BoundSymbol(symbol, args, outputs=out))
        return out


def _kind(name: str, args: tuple[Any, ...]) -> str:
    if name in _TRUTH:
        return "bool"
    if name in _FLOAT or name in _INTEGER:
        return "float" if name in _FLOAT else "int"
    kinds = [a.kind if isinstance(a, NumberProxy) else type(a).__name__ for a in args]
    return "float" if "float" in kinds else "int"
