"""Expressions over symbols, as in a `SymDim` or a `NumberProxy`: parse, evaluate, compare.

An expression is text, ``s0*s1 + 2`` or ``Max(1, u0)``, in a part of Python's grammar: numbers,
symbols, arithmetic, comparisons, and functions by name. `parse_size` makes a tree of it,
`evaluate_size` computes it over numbers or the values of another algebra.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any, TypeAlias

from tj_core.errors import ParseError

__all__ = [
    "NUMBERS",
    "Operation",
    "SizeTree",
    "evaluate_size",
    "normal_size",
    "normal_stride",
    "parse_size",
    "same_size",
    "size_symbols",
    "symbol_and_number",
]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation in an expression: ``add``, ``floordiv``, ``lt``, or a function, ``Max``."""

    name: str
    args: tuple[SizeTree, ...]


SizeTree: TypeAlias = "Operation | str | int | float"
"""A parsed expression; a ``str`` is a symbol."""

_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.BitAnd: "and",
    ast.BitOr: "or",
}
_COMPARISONS = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
_UNARY = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "not", ast.Not: "not"}


@lru_cache(maxsize=4096)
def parse_size(text: str) -> SizeTree:
    """The tree of the expression ``text``.

    :raises ParseError: if it is not an expression over symbols.
    """
    try:
        return _tree(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError, RecursionError) as error:  # KeyError: an unknown operator
        raise ParseError(f"{text!r} is not an expression over sizes") from error


def _tree(node: ast.expr) -> SizeTree:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=op, right=right):
            return Operation(_BINARY[type(op)], (_tree(left), _tree(right)))
        case ast.UnaryOp(op=op, operand=operand):
            return _negated(Operation(_UNARY[type(op)], (_tree(operand),)))
        case ast.BoolOp(op=op, values=values):
            name = "and" if isinstance(op, ast.And) else "or"
            return reduce(lambda a, b: Operation(name, (a, b)), map(_tree, values))
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [_tree(left), *map(_tree, others)]
            pairs = zip(ops, sides, sides[1:], strict=False)
            tests = [Operation(_COMPARISONS[type(op)], (a, b)) for op, a, b in pairs]
            return reduce(lambda a, b: Operation("and", (a, b)), tests)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return Operation(name, tuple(map(_tree, args)))
        case ast.Tuple(elts=items):
            return Operation("pair", tuple(map(_tree, items)))
    raise KeyError(type(node))


def _negated(tree: Operation) -> SizeTree:
    (inner,) = tree.args
    # Python parses ``-2`` as a negation of 2.
    return -inner if tree.name == "neg" and isinstance(inner, int | float) else tree


@lru_cache(maxsize=4096)
def size_symbols(text: str) -> tuple[str, ...]:
    """The symbols in ``text``, each once, in order of appearance."""
    return tuple(dict.fromkeys(_symbols(parse_size(text))))


def _symbols(tree: SizeTree) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Operation):
        for arg in tree.args:
            yield from _symbols(arg)


@lru_cache(maxsize=4096)
def symbol_and_number(text: str) -> tuple[str, int] | None:
    """The symbol and the number that are added in ``text``, as in ``n + 1`` or ``n - 2``.

    None for another expression.
    """
    tree = parse_size(text)
    if isinstance(tree, Operation) and tree.name in ("add", "sub"):
        match tree.args:
            case (str(name), int(number)):
                return name, number if tree.name == "add" else -number
            case (int(number), str(name)) if tree.name == "add":
                return name, number
    return None


# ---------------------------------------------------------------------------- computing


def evaluate_size(
    text: str | SizeTree,
    symbol: Callable[[str], Any],
    algebra: Mapping[str, Callable[..., Any]] | None = None,
    number: Callable[[int | float], Any] = lambda value: value,
) -> Any:
    """The value of an expression, with ``symbol`` giving the value of each symbol.

    ``algebra`` maps operations to functions (on Python's numbers by default), ``number`` converts
    the numbers in the text. ``text`` may be a tree already; a ``str`` is parsed in any case.

    :raises ParseError: for an operation that ``algebra`` lacks.
    """
    operations = NUMBERS if algebra is None else algebra

    def value(tree: SizeTree) -> Any:
        if isinstance(tree, str):
            return symbol(tree)
        if not isinstance(tree, Operation):
            return number(tree)
        found = operations.get(tree.name)
        if found is None:
            raise ParseError(f"{tree.name!r} of sizes is not supported")
        return found(*[value(arg) for arg in tree.args])

    result = value(parse_size(text) if isinstance(text, str) else text)
    if isinstance(result, Fraction) and result.denominator == 1:
        return int(result)
    return result


def _divided(a: Any, b: Any) -> Any:
    """Divide, exactly for integers: a quotient in a size is a rational coefficient."""
    return a / b if isinstance(a, float) or isinstance(b, float) else Fraction(a) / b


def _where(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


_FUNCTIONS = (
    *("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh"),
)

NUMBERS: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": _divided,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "pos": operator.pos,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "not": operator.not_,
    **{name: getattr(operator, name) for name in _COMPARISONS.values()},
    "Eq": operator.eq,
    "Ne": operator.ne,
    "Abs": abs,
    "Max": max,
    "Min": min,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "ModularIndexing": lambda a, b, c: a // b % c,
    "PowByNatural": operator.pow,
    "FloatPow": lambda a, b: float(a) ** float(b),
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: float(a) / float(b),
    "BitwiseFn_bitwise_and": operator.and_,
    "BitwiseFn_bitwise_or": operator.or_,
    "BitwiseFn_bitwise_xor": operator.xor,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
    "ToFloat": float,
    "TruncToInt": math.trunc,
    "TruncToFloat": lambda a: float(math.trunc(a)),
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "RoundToInt": round,
    "RoundDecimal": round,
    "Identity": lambda a: a,
    "Where": _where,
    "Piecewise": lambda *pairs: next(value for value, condition in pairs if condition),
    "pair": lambda *items: items,
    "sqrt": math.sqrt,
    **{f"OpaqueUnaryFn_{name}": getattr(math, name) for name in _FUNCTIONS},
}
"""The algebra of Python's numbers: each operation of an expression as a function."""


# ---------------------------------------------------------------------------- comparing


def same_size(a: str, b: str, renamed: Mapping[str, str] | None = None) -> bool:
    """Test if two expressions are one polynomial, with ``renamed`` put for symbols of ``a``.

    Functions and rounding divisions are unknowns of the polynomial, equal if their arguments are.
    ``0 <= s0`` is ``s0 >= 0``.
    """
    names = renamed or {}
    return (a == b and not names) or normal_size(a, names) == normal_size(b)


def same_stride(a: str, b: str, renamed: Mapping[str, str] | None = None) -> bool:
    """Test if two expressions are one stride of a tensor that has elements.

    None of its sizes is 0, so that ``Max(1, s0)``, as PyTorch writes in some strides, is ``s0``.
    """
    return bool(normal_stride(a, renamed) == normal_stride(b))


def _of_elements(tree: SizeTree) -> SizeTree:
    if not isinstance(tree, Operation):
        return tree
    args = tuple(map(_of_elements, tree.args))
    others = [arg for arg in args if arg != 1]
    if tree.name == "Max" and len(args) == 2 and len(others) == 1:
        return others[0]
    return Operation(tree.name, args)


def normal_size(text: str, renamed: Mapping[str, str] | None = None) -> Any:
    """A comparable form of ``text`` that equal polynomials share.

    ``renamed`` maps symbols to the expressions that take their places.
    """
    return _frozen(_polynomial(parse_size(text), renamed or {}))


def normal_stride(text: str, renamed: Mapping[str, str] | None = None) -> Any:
    """A comparable form of ``text`` that equal strides share; see `same_stride`."""
    return _frozen(_polynomial(_of_elements(parse_size(text)), renamed or {}))


_Polynomial: TypeAlias = "dict[tuple[Any, ...], Fraction]"
"""Coefficients by product: a sorted tuple of unknowns."""


def _polynomial(tree: SizeTree, names: Mapping[str, str]) -> _Polynomial:
    if isinstance(tree, str):
        if tree in names:
            return _polynomial(parse_size(names[tree]), {})
        return {(("symbol", tree),): Fraction(1)}
    if not isinstance(tree, Operation):
        if type(tree) is int:
            return {(): Fraction(tree)} if tree else {}
        return {(("number", repr(tree)),): Fraction(1)}
    tree = _canonical(tree)
    parts = [_polynomial(arg, names) for arg in tree.args]
    found = _combined(tree, parts)
    if found is None:
        found = _computed(tree.name, parts)
    if found is None:
        args = [_frozen(part) for part in parts]
        args = sorted(args, key=repr) if tree.name in _SYMMETRIC else args
        found = {((tree.name, *args),): Fraction(1)}
    return found


_TURNED = {"gt": "lt", "ge": "le"}
_SPELLINGS = {"Mod": "mod", "PythonMod": "mod", "FloorDiv": "floordiv", "CleanDiv": "floordiv"}
_SYMMETRIC = frozenset({"Max", "Min", "and", "or", "eq", "ne", "Eq", "Ne"})
# Powers are multiplied out: of a sum, each factor multiplies the terms.
_LARGEST_POWER = 8


def _canonical(tree: Operation) -> Operation:
    """``tree`` under one name for each operation that PyTorch spells in several ways."""
    if tree.name in _TURNED:
        return Operation(_TURNED[tree.name], tree.args[::-1])
    return Operation(_SPELLINGS.get(tree.name, tree.name), tree.args)


def _combined(tree: Operation, parts: list[_Polynomial]) -> _Polynomial | None:
    """The polynomial that an operation makes of polynomials; None for other operations."""
    match tree.name, parts:
        case "add", [a, b]:
            return _sum(a, b)
        case "sub", [a, b]:
            return _sum(a, _product(b, {(): Fraction(-1)}))
        case "neg", [a]:
            return _product(a, {(): Fraction(-1)})
        case "pos", [a]:
            return a
        case "mul", [a, b]:
            return _product(a, b)
        case "truediv", [a, b] if set(b) == {()}:
            return _product(a, {(): 1 / b[()]})
        case "floordiv", [a, b] if len(b) == 1 and set(b) != {()}:
            return _quotient(a, b)
        case "pow", [a, _] if type(n := tree.args[1]) is int and 0 <= n <= _LARGEST_POWER:
            return reduce(_product, [a] * n, {(): Fraction(1)})
    return None


def _computed(name: str, parts: list[_Polynomial]) -> _Polynomial | None:
    """The integer that an operation makes of integers; None for other operands or results."""
    if name not in NUMBERS or not all(set(part) <= {()} for part in parts):
        return None
    numbers = [part.get((), Fraction(0)) for part in parts]
    if not all(n.denominator == 1 for n in numbers):
        return None
    try:
        value = NUMBERS[name](*map(int, numbers))
    except ArithmeticError:  # as a division by 0
        return None
    if type(value) is not int:
        return None
    return {(): Fraction(value)} if value else {}


def _sum(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    total = {k: a.get(k, Fraction(0)) + b.get(k, Fraction(0)) for k in {**a, **b}}
    return {k: v for k, v in total.items() if v}


def _product(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    result: _Polynomial = {}
    for ka, va in a.items():
        for kb, vb in b.items():
            # By text: unknowns of several kinds have no order in Python.
            result = _sum(result, {tuple(sorted((*ka, *kb), key=repr)): va * vb})
    return result


def _quotient(a: _Polynomial, b: _Polynomial) -> _Polynomial | None:
    """Quotient of ``a`` by the monomial ``b``; None unless ``b`` divides each term of ``a``."""
    ((unknowns, coefficient),) = b.items()
    found: _Polynomial = {}
    for product, value in a.items():
        left = list(product)
        for unknown in unknowns:
            if unknown not in left:
                return None
            left.remove(unknown)
        found[tuple(left)] = value / coefficient
    return found if all(value.denominator == 1 for value in found.values()) else None


def _frozen(polynomial: _Polynomial) -> Any:
    return tuple(sorted(((k, v) for k, v in polynomial.items()), key=repr))
