"""Shape environments of PyTorch: all private names that symbolic sizes rely on.

An expansion runs in a shape environment of its own, `RunSymbols`, with just the symbols of the
call's arguments and their facts. So its decisions on sizes, and the guards these leave, depend on
the call alone and not on what the program's environment has learned before. The guards are then
added to the program's environment.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from tj_core.extend import ParseError, evaluate_size, size_symbols

from tj_torch.ops.fakes.modes import fake_mode
from tj_torch.ops.sizes.corrections import know_integers, replaces_data
from tj_torch.ops.sizes.equalities import replaced, solved
from tj_torch.ops.sizes.lazy_sympy import sympy

if TYPE_CHECKING:
    from tj_core.internal import SizeTree

__all__ = [
    "RunSymbols",
    "SymbolFacts",
    "assume",
    "conditions",
    "deferred",
    "expression",
    "facts_of",
    "hint_of",
    "is_symbolic",
    "is_unbacked",
    "kind_of",
    "known_so_far",
    "next_symbol",
    "number_text",
    "numbered",
    "plain",
    "prefix_of",
    "settled",
    "shape_environment",
    "spelled",
    "symbol_called",
    "symbols_of",
]

_NAME = re.compile(r"(s|u|zf|zuf)(\d+)")

_OF_NEW = re.compile(r"EmptyTensor\.h:\d+")
"""Message of an assertion on a size of a new tensor."""

# By environment: `known_so_far` at that time, and the substitutions from its equality guards.
# An entry is a fact about the environment, a PyTorch object without a place for it. It belongs to
# the one program that is captured there, and is freed with the environment.
_SOLVED: WeakKeyDictionary[Any, tuple[Any, Mapping[Any, Any]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class SymbolFacts:
    """Facts of a symbol that an expansion may rely on.

    ``positive`` is None if the sign is unknown; ``bounds`` are inclusive, None for no bound; a
    ``sizelike`` unbacked symbol may be assumed to be at least 2 where that only skips a special
    case (as in PyTorch's ``guard_size_oblivious``).
    """

    name: str
    positive: bool | None = True
    bounds: tuple[int | None, int | None] = (None, None)
    sizelike: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """The facts with the prefix of the name in place of the name."""
        return (prefix_of(self.name), self.positive, self.bounds, self.sizelike)


def prefix_of(name: str) -> str:
    """Prefix of a symbol: ``s`` for a backed integer, ``u`` unbacked; ``zf``, ``zuf`` if float."""
    match = _NAME.fullmatch(name)
    return match[1] if match else ""


def is_unbacked(name: str) -> bool:
    """Test for an unbacked symbol, whose value depends on data."""
    return prefix_of(name) in ("u", "zuf")


def kind_of(value: Any) -> str:
    """Run-time type of a symbolic number: ``int``, ``float`` or ``bool``."""
    return {"SymInt": "int", "SymFloat": "float", "SymBool": "bool"}[type(value).__name__]


def is_symbolic(value: object) -> bool:
    """Test for a symbolic number whose value is not known."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return False
    return value.node.maybe_as_int() is None and not value.node.expr.is_number


def plain(value: Any) -> Any:
    """``value``, converted to a Python number if it is a symbolic one with a known value."""
    if is_symbolic(value) or not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    expr = value.node.expr
    return {"int": int, "float": float, "bool": bool}[kind_of(value)](expr)


def number_text(value: Any) -> str:
    """Expression of a symbolic number as text.

    Whole factors of floats are printed as integers, as PyTorch has ``2.0*ToFloat(s)`` for
    a product and ``2*ToFloat(s)`` for a sum of two.
    """
    expr = value.node.expr
    if isinstance(expr, sympy.Basic) and expr.has(sympy.Float) and expr.has(_algebra()["ToFloat"]):
        expr = expr.replace(lambda e: e.is_Mul, _with_whole_factor)
    return str(expr)


def _with_whole_factor(product: Any) -> Any:
    floats = any(isinstance(f, _algebra()["ToFloat"]) for f in product.args)
    factors = (
        sympy.Integer(f) if f.is_Float and float(f).is_integer() else f for f in product.args
    )
    return sympy.Mul(*factors) if floats else product


# ---------------------------------------------------------------------------- text and sympy


@cache
def _algebra() -> dict[str, Any]:
    """Sympy function for each operation in a size expression, by name."""
    from tj_torch.torch_private.shapes import functions

    named = {n: f for n, f in vars(functions).items() if isinstance(f, type)}
    return {
        **{n: f for n, f in named.items() if issubclass(f, sympy.Basic)},
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "truediv": operator.truediv,
        "pow": operator.pow,
        "neg": operator.neg,
        "pos": operator.pos,
        "floordiv": functions.FloorDiv,
        "mod": functions.Mod,
        "and": sympy.And,
        "or": sympy.Or,
        "not": sympy.Not,
        "Abs": sympy.Abs,
        "sqrt": sympy.sqrt,
        "Piecewise": sympy.Piecewise,
        "pair": lambda *items: items,
        "Eq": sympy.Eq,
        "Ne": sympy.Ne,
        "eq": sympy.Eq,
        "ne": sympy.Ne,
        "lt": sympy.Lt,
        "le": sympy.Le,
        "gt": sympy.Gt,
        "ge": sympy.Ge,
    }


def _number(value: int | float) -> Any:
    return sympy.sympify(value)


def expression(text: str | SizeTree, symbols: Mapping[str, Any]) -> Any:
    """Sympy expression of ``text`` over ``symbols``.

    :raises ParseError: if ``text`` is no such expression.
    """
    try:
        return evaluate_size(text, symbols.__getitem__, _algebra(), _number)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ParseError(f"{text!r} is not an expression over sizes") from error


@lru_cache(maxsize=4096)
def spelled(text: str) -> str:
    """``text`` as PyTorch prints it."""
    symbols = {n: sympy.Symbol(n, integer=True, positive=True) for n in size_symbols(text)}
    return str(expression(text, symbols))


def numbered(text: str, names: tuple[str, ...]) -> str:
    """``text`` with ``names`` replaced by their positions, so that it is independent of names."""
    stand_ins = {name: sympy.Symbol(f"${i:03}") for i, name in enumerate(names)}
    return str(expression(text, stand_ins))


# ---------------------------------------------------------------------------- programs


def shape_environment(graph: torch.fx.GraphModule) -> Any:
    """Shape environment of the symbols in a captured graph; None if there are none."""
    for node in graph.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return value.node.shape_env
        if (mode := getattr(value, "fake_mode", None)) is not None:
            return mode.shape_env
    return None


def symbols_of(env: Any) -> dict[str, Any]:
    """Symbols of a shape environment, by name."""
    return {str(s): s for s in env.var_to_range}


def facts_of(env: Any, name: str, symbol: Any) -> SymbolFacts:
    """Facts of ``symbol`` in ``env`` on which expansions depend.

    For a backed symbol, only facts from its creation: later ones are guards already, which the
    guards of another expansion may repeat.
    """
    lower, upper = (_bound(env.var_to_range[symbol], end) for end in ("lower", "upper"))
    if not is_unbacked(name):
        return SymbolFacts(name, symbol.is_positive, (2 if (lower or 0) >= 2 else None, None))
    return SymbolFacts(name, symbol.is_positive, (lower, upper), symbol in env.size_like)


def _bound(found: Any, end: str) -> int | None:
    value = getattr(found, end)
    return int(value) if value.is_Integer else None


def deferred(env: Any, symbols: Iterable[Any]) -> tuple[str, ...]:
    """Run-time assertions of the program on unbacked ``symbols``, as text."""
    found = (r.expr for s in symbols for r in env.deferred_runtime_asserts.get(s, ()))
    return tuple(dict.fromkeys(map(str, found)))


def taken_for_true(env: Any) -> tuple[str, ...]:
    """Assertions of ``env`` on symbols that it has since replaced, as text."""
    found = (r for s in env.replacements for r in env.deferred_runtime_asserts.get(s, ()))
    return tuple(dict.fromkeys(str(r.expr) for r in found))


def assume(env: Any, condition: Any) -> bool:
    """Evaluate ``condition`` in the traced call; add it to ``env`` as a guard unless known."""
    return bool(env.evaluate_expr(condition))


def conditions(env: Any) -> tuple[str, ...]:
    """Guards of ``env`` so far, as text."""
    return tuple(str(guard.expr) for guard in env.guards)


def settled(env: Any, size: Any, hint: int | None) -> int | str | None:
    """Number or other expression that ``env`` knows ``size`` to equal; None if there is none.

    ``hint`` is its value in the traced call; a guard may imply that value without giving any
    single symbol one.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    found = env.replace(size)
    if not found.is_Integer and (known := _equalities(env)):
        found = replaced(found, known)
    if found.is_Integer:
        return int(found)
    equal = sympy.false if hint is None else sympy.Eq(found, hint)
    if equal == sympy.true or (
        equal != sympy.false and statically_known_true(env.create_symboolnode(equal))
    ):
        return hint
    return None if found == size else str(found)


def _equalities(env: Any) -> Mapping[Any, Any]:
    """Substitutions from equality guards of ``env`` that PyTorch does not make itself."""
    now = known_so_far(env)
    before, known = _SOLVED.get(env, (None, {}))
    if before != now:
        known = solved(env.replace(g.expr) for g in env.guards if isinstance(g.expr, sympy.Eq))
        _SOLVED[env] = now, known
    return known


def known_so_far(env: Any) -> tuple[int, int]:
    """Numbers of guards and replacements in ``env``, to detect that it has learned more."""
    return len(env.guards), len(env.replacements)


def hint_of(env: Any, symbol: Any) -> Any:
    """Value of ``symbol`` in the traced call."""
    read = getattr(env, "guarding_hint_or_throw", None) or env.size_hint  # before PyTorch 2.11
    kind = float if prefix_of(str(symbol)) == "zf" else int
    return kind(read(symbol))


def symbol_called(name: str) -> Any:
    """Unbacked symbol ``name``, as a shape environment would make it.

    :raises ParseError: if this is no name of an unbacked symbol.
    """
    from tj_torch.torch_private.shapes import SymT, make_symbol

    match = _NAME.fullmatch(name)
    if match is None or not is_unbacked(name):
        raise ParseError(f"{name!r} is no name of a symbol")
    if match[1] == "u":
        return make_symbol(SymT.UNBACKED_INT, int(match[2]), integer=True)
    return make_symbol(SymT.UNBACKED_FLOAT, int(match[2]))


def next_symbol(env: Any, prefix: str) -> str:
    """Reserve the name of a new unbacked symbol in ``env``."""
    counter = "unbacked_symint_counter" if prefix == "u" else "unbacked_symfloat_counter"
    number = getattr(env, counter)
    setattr(env, counter, number + 1)
    return f"{prefix}{number}"


# ---------------------------------------------------------------------------- expansions


class RunSymbols:
    """Shape environment and fake tensor mode of one expansion.

    ``facts`` describe its symbols, ``hints`` are their values in the traced call, ``asserted``
    conditions on unbacked ones. Symbols that the run makes are numbered after these.
    """

    def __init__(
        self,
        facts: Iterable[SymbolFacts] = (),
        hints: Mapping[str, Any] | None = None,
        asserted: Iterable[str] = (),
    ) -> None:
        self.hints = dict(hints or {})
        self.env = _environment()(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
        self.mode = fake_mode(shapes=self.env)
        self.mode.cache_enabled = False  # a global cache: it has symbols of other environments
        self.symbols = {f.name: self._symbol(f) for f in facts}
        self._given = frozenset(self.symbols)
        used = [int(m[2]) for n in self.symbols if (m := _NAME.fullmatch(n))]
        for number in ("unbacked_symint_counter", "unbacked_symfloat_counter"):
            setattr(self.env, number, max(used, default=-1) + 1)
        for text in asserted:
            self.env.guard_or_defer_runtime_assert(expression(text, self.symbols), "asserted")
        self._asserted = frozenset(self._deferred())

    def _symbol(self, facts: SymbolFacts) -> Any:
        match = _NAME.fullmatch(facts.name)
        if match is None:
            raise ParseError(f"{facts.name!r} is no name of a symbol")
        if is_unbacked(facts.name):
            return self._unbacked(facts, match[1], int(match[2]))
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        from tj_torch.torch_private.shapes import ConstantSource

        lower = facts.bounds[0]
        return self.env.create_symbol(
            self.hints[facts.name],
            source=ConstantSource(facts.name),
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=None,
            positive=facts.positive,
            do_not_specialize_zero_one=lower is None or lower < 2,
        )

    def _unbacked(self, facts: SymbolFacts, prefix: str, number: int) -> Any:
        if prefix == "zuf":
            self.env.unbacked_symfloat_counter = number
            return self.env.create_unbacked_symfloat().node.expr
        self.env.unbacked_symint_counter = number
        symbol = self.env.create_unbacked_symint().node.expr
        lower, upper = facts.bounds
        if facts.sizelike:
            self.env._constrain_range_for_size(symbol, lower, upper)
        elif facts.bounds != (None, None):
            from tj_torch.torch_private.shapes import ValueRanges, int_oo

            self.env.var_to_range[symbol] = ValueRanges(
                -int_oo if lower is None else lower, int_oo if upper is None else upper
            )
        return symbol

    def number(self, text: str, kind: str = "int") -> Any:
        """Symbolic number for the expression ``text``, or a plain one if it is constant.

        :raises ParseError: if ``text`` is no expression over its symbols.
        """
        made = any(name not in self.symbols for name in size_symbols(text))
        symbols = {**symbols_of(self.env), **self.symbols} if made else self.symbols
        expr = expression(text, symbols)
        if kind == "bool":
            known = expr in (sympy.true, sympy.false)
            return bool(expr) if known else self.env.create_symboolnode(expr)
        if expr.is_number:
            return float(expr) if kind == "float" else int(expr)
        known = all(n in self.hints for n in size_symbols(text))
        hint = evaluate_size(text, self.hints.__getitem__) if known else None
        if kind == "float" and hint is not None:  # sums of floats may be whole
            hint = float(hint)
        make = {"int": self.env.create_symintnode, "float": self.env.create_symfloatnode}[kind]
        return make(expr, hint=hint)

    def known_true(self, text: str) -> bool:
        """Test if condition ``text`` holds for all values of its symbols."""
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(self.number(text, "bool"))

    @property
    def guards(self) -> tuple[str, ...]:
        """Conditions on sizes that the run has decided on, each true in the traced call."""
        return tuple(dict.fromkeys(str(guard.expr) for guard in self.env.guards))

    @property
    def checks(self) -> dict[str, str]:
        """Messages of the run's assertions on unbacked symbols, by condition.

        Without those on sizes of new tensors: kernels check theirs, and some are of fake tensors
        alone (the memory of ``n`` elements with gaps of three has ``3*n - 2``, also for n = 0).
        """
        found = self._deferred().items()
        return {k: v for k, v in found if k not in self._asserted and not _OF_NEW.search(v)}

    def _deferred(self) -> dict[str, str]:
        found = (r for rs in self.env.deferred_runtime_asserts.values() for r in rs)
        return {str(r.expr): str(r.msg) for r in found}

    @property
    def made(self) -> tuple[SymbolFacts, ...]:
        """Facts of the unbacked symbols that the run made."""
        found = symbols_of(self.env)
        return tuple(
            facts_of(self.env, name, symbol)
            for name, symbol in found.items()
            if name not in self._given
        )


@cache
def _environment() -> type:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    know_integers()

    class Environment(ShapeEnv):
        """Environment that numbers a symbol by the digits in its source name."""

        def _generate_unique_id(self, source_name: str) -> int:
            match = re.search(r"\d+", source_name)
            return int(match[0]) if match else super()._generate_unique_id(source_name)

        def _maybe_guard_rel(self, expr: Any) -> None:  # type: ignore[override]  # theirs is cached
            if not replaces_data(expr):
                super()._maybe_guard_rel(expr)

    return Environment
