"""Symbols of one program: facts, hints and guards.

The memo keeps expansions with the symbols of the program they were made in. `Sizes` adapts them to
another program: symbols get its names and hints, conditions become guards of its shape environment,
and unbacked symbols that a call makes get new names.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tj_core.extend import (
    Dim,
    NumberProxy,
    ParseError,
    Proxy,
    SymDim,
    TensorProxy,
    evaluate_size,
    leaves,
    same_size,
    size_symbols,
)
from tj_core.internal import size_expressions

from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.sizes import shape_env as shapeenv
from tj_torch.ops.sizes.shape_env import RunSymbols, SymbolFacts

__all__ = ["Sizes", "bare", "is_dense", "is_sized", "known_sizes", "row_major", "symbols_in"]

_ARBITRARY = 4099
"""Hint of sizes where there is no program; arbitrary, as decisions on these sizes are refused."""


def is_sized(proxy: Proxy) -> bool:
    """Test for symbols in the metadata of ``proxy``."""
    if isinstance(proxy, TensorProxy):
        if any(type(n) is SymDim for n in (*proxy.shape, *proxy.strides)):
            return True
        return proxy.subclass is not None and any(is_sized(p) for _, p in proxy.subclass.inner)
    return isinstance(proxy, NumberProxy)


def bare(proxy: Any) -> Any:
    """``proxy`` with the expressions of its sizes alone, without references to its program."""
    if isinstance(proxy, NumberProxy):
        return proxy.replace(hint=None)
    if not is_sized(proxy):
        return proxy
    return proxy.map_symbols(lambda size: SymDim(size.name))


def symbols_in(tree: Any) -> tuple[str, ...]:
    """Symbols in the metadata of the proxies in ``tree``, in order of appearance.

    Sizes that are a single symbol come first, since the order of terms in a sum depends on names.
    """
    found = [size_symbols(text) for leaf in leaves(tree) for text, _ in size_expressions(leaf)]
    return tuple(dict.fromkeys(name for names in sorted(found, key=_many) for name in names))


def known_sizes(proxy: TensorProxy, symbols: Sequence[str]) -> bool:
    """Test if the sizes and strides of ``proxy`` contain no symbols but ``symbols``."""
    return set(symbols_in(proxy)) <= set(symbols)


def _many(names: tuple[str, ...]) -> bool:
    return len(names) > 1


def row_major(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Strides of a contiguous tensor of ``shape``, in elements; sizes may be symbolic."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = _product(step, size if type(size) is SymDim or size else 1)
    return tuple(reversed(strides))


def _product(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if 1 in (a, b):
        return b if a == 1 else a
    hints = [x if isinstance(x, int) else x.hint for x in (a, b)]
    hint = None if None in hints else hints[0] * hints[1]  # type: ignore[operator]
    text = shapeenv.spelled(f"({a})*({b})")
    return SymDim(text, hint, settled=functools.partial(_settled_product, text, a, b))


def _settled_product(text: str, a: Dim, b: Dim) -> int | str | None:
    """Value or simpler expression that guards give the product ``text`` of ``a`` and ``b``."""
    settled = (x.settled() if isinstance(x, SymDim) and x.settled else None for x in (a, b))
    factors = [x if known is None else known for x, known in zip((a, b), settled, strict=True)]
    found = shapeenv.spelled(f"({factors[0]})*({factors[1]})")
    if found == text:
        return None
    return int(found) if found.isdigit() else found


def is_dense(proxy: TensorProxy) -> bool:
    """Test if the elements are known to fill a block of memory without gaps or overlap."""
    pairs = [(t, n) for t, n in zip(proxy.strides, proxy.shape, strict=True) if n != 1]
    hints = [t if isinstance(t, int) else t.hint for t, _ in pairs]
    if None in hints:
        return len(pairs) == 1
    order = sorted(range(len(pairs)), key=lambda i: hints[i])  # type: ignore[arg-type,return-value]
    expected: Dim = 1
    for i in order:
        stride, size = pairs[i]
        if not same_size(str(stride), str(expected)):
            return False
        expected = _product(expected, size)
    return True


class Sizes:
    """Symbols of the program whose shape environment is ``env``.

    Without an environment, only the kind of a symbol is known, and decisions on it are refused.
    """

    def __init__(self, env: Any = None) -> None:
        self.env = env
        self._symbols: dict[str, Any] = {}
        self._hints: dict[str, Any] = {}
        self._made: dict[str, SymbolFacts] = {}
        self._kept: dict[str, SymbolFacts] = {}
        self._settled: dict[str, int | str | None] = {}
        self._settled_at: tuple[int, int] | None = None
        self._dims: dict[str, SymDim] = {}
        self._assumed: dict[str, None] = {}
        self._born: dict[str, SymbolFacts] = {}
        self._fresh = 0
        self.instances: dict[Any, Any] = {}

    def close(self) -> None:
        """Release the shape environment, as its guards are built next; no more can be added.

        Facts and hints of the symbols are kept, for programs derived from it later.
        """
        if self.env is not None:
            names = tuple(shapeenv.symbols_of(self.env))
            for name in names:
                self._kept[name] = self.facts(name)
                self.hint(name)
            self._settled = {text: self.settled(text) for text in (*names, *self._dims)}
        self.env = None
        self.instances.clear()

    # ------------------------------------------------------------------ what is known

    def symbol(self, name: str) -> Any:
        """Symbol of the environment with this ``name``.

        :raises CannotExpand: if there is none.
        """
        if name not in self._symbols and self.env is not None:
            self._symbols.update(shapeenv.symbols_of(self.env))
        if name not in self._symbols:
            try:
                self._symbols[name] = shapeenv.symbol_called(name)
            except ParseError:
                raise CannotExpand(f"size {name} is of another program") from None
        return self._symbols[name]

    def facts(self, name: str) -> SymbolFacts:
        """Facts of symbol ``name`` that expansions may rely on."""
        if self.env is None:
            return self._kept.get(name) or _plain_facts(name)
        if name in self._made:
            return self._made[name]
        return shapeenv.facts_of(self.env, name, self.symbol(name))

    def asserted(self, names: Iterable[str]) -> tuple[str, ...]:
        """Run-time assertions of the program on the unbacked symbols among ``names`` alone."""
        names = tuple(names)
        unbacked = [n for n in names if shapeenv.is_unbacked(n) and n not in self._made]
        if self.env is None or not unbacked:
            return ()
        found = shapeenv.deferred(self.env, map(self.symbol, unbacked))
        return tuple(text for text in found if set(size_symbols(text)) <= set(names))

    def taken_for_true(self) -> tuple[str, ...]:
        """Assertions by which PyTorch replaced an unbacked symbol.

        Sizes of the capture then presume that the assertion holds.
        """
        return () if self.env is None else shapeenv.taken_for_true(self.env)

    def hint(self, name: str) -> Any:
        """Value of symbol ``name`` in the traced call; None if it depends on data."""
        if shapeenv.is_unbacked(name):
            return None
        if name in self._hints:
            return self._hints[name]
        if self.env is None:
            return self._hints.setdefault(name, _ARBITRARY + 7 * len(self._hints))
        return self._hints.setdefault(name, shapeenv.hint_of(self.env, self.symbol(name)))

    def value(self, text: str) -> Any:
        """Value of an expression in the traced call; None if it depends on data."""
        if any(self.hint(name) is None for name in size_symbols(text)):
            return None
        try:
            return evaluate_size(text, self.hint)
        except (ParseError, ArithmeticError):  # a function that the core does not know
            return None

    def of_run(self, names: Iterable[str]) -> RunSymbols:
        """Make the environment of one expansion over symbols ``names``."""
        names = tuple(names)
        hints = {n: hint for n in names if (hint := self.hint(n)) is not None}
        return RunSymbols(map(self.facts, names), hints, self.asserted(names))

    # ------------------------------------------------------------------ values

    def dim(self, size: Any) -> Dim:
        """Core size for an expression or a ``SymInt``, with its hint and a way to guard it."""
        if not isinstance(size, str):
            known = size.node.maybe_as_int()
            if known is not None:
                return int(known)
            size = shapeenv.number_text(size)
        found = self._dims.get(size)
        if found is None:
            hint = self.value(size) if self.env is not None or self._kept else None
            guard = None if hint is None else functools.partial(self._assume_equal, size)
            settled = functools.partial(self.settled, size)
            found = self._dims[size] = SymDim(size, hint, guard, settled)
        return found

    def settled(self, text: str) -> int | str | None:
        """Number or expression that ``text`` equals by the guards so far; None if there is none."""
        if self.env is not None:
            now = shapeenv.known_so_far(self.env)
            if now != self._settled_at:
                self._settled, self._settled_at = {}, now
            if text not in self._settled:
                expression, value = self._expression(text), self.value(text)
                self._settled[text] = shapeenv.settled(self.env, expression, value)
            return self._settled[text]
        if (whole := self._settled.get(text)) is not None:
            return whole
        found = {name: self._settled.get(name) for name in size_symbols(text)}
        known = {name: str(value) for name, value in found.items() if value is not None}
        if not known:
            return None
        expression = self.renamed(text, known)
        return int(expression) if expression.isdigit() else expression

    def number(self, proxy: NumberProxy) -> NumberProxy:
        """``proxy`` with its hint, where there is one."""
        if (self.env is None and not self._kept) or not proxy.expr:
            return proxy
        return proxy.replace(hint=self.value(proxy.expr))

    def born(self, text: str, facts: SymbolFacts) -> None:
        """Register facts of an unbacked symbol under its name ``text`` in the program.

        It has none of its own there if the program knows its number, as that of an argument.
        """
        if shapeenv.is_unbacked(text):
            self._born[text] = facts

    def certain(self, text: str) -> bool:
        """Test if a condition follows from the facts of its unbacked symbols.

        Assertions of the program are not used.
        """
        names = size_symbols(text)
        if not names or any(n not in self._born for n in names):
            return False
        facts = (dataclasses.replace(self._born[n], name=n) for n in names)
        return RunSymbols(facts).known_true(text)

    def fresh(self, facts: SymbolFacts) -> str:
        """Name of a new symbol with these ``facts``."""
        prefix = shapeenv.prefix_of(facts.name)
        if self.env is None:
            self._fresh += 1
            return f"{prefix}{_ARBITRARY + self._fresh}"
        name = shapeenv.next_symbol(self.env, prefix)
        self._made[name] = dataclasses.replace(facts, name=name)
        return name

    # ------------------------------------------------------------------ conditions

    def holds(self, conditions: Iterable[str], names: Mapping[str, str]) -> bool:
        """Test if ``conditions`` hold in the traced call, with symbols renamed by ``names``."""
        try:
            return all(evaluate_size(text, lambda n: self.hint(names[n])) for text in conditions)
        except (ParseError, ArithmeticError):  # a function that the core does not know
            return False

    def renamed(self, text: str, names: Mapping[str, str]) -> str:
        """``text``, as PyTorch prints it, with symbols replaced by the expressions in ``names``."""
        if all(names.get(n, n) == n for n in size_symbols(text)):
            return text
        symbols = {n: self._expression(names.get(n, n)) for n in size_symbols(text)}
        return str(shapeenv.expression(text, symbols))

    def _expression(self, text: str) -> Any:
        symbols = {n: self.symbol(n) for n in size_symbols(text)}
        return shapeenv.expression(text, symbols)

    def assume(self, text: str) -> None:
        """Make a condition that holds in the traced call a guard of the program.

        :raises CannotExpand: if there is no program to guard, or the condition does not hold.
        """
        if text in self._assumed:
            return
        if self.env is None:
            raise CannotExpand(f"it decides on {text}, and there is no program to guard")
        if not shapeenv.assume(self.env, self._expression(text)):
            raise CannotExpand(f"{text} does not hold in the traced call")
        self._assumed[text] = None

    @property
    def assumed(self) -> tuple[str, ...]:
        """Conditions that `assume` made guards."""
        return tuple(self._assumed)

    def known(self, names: Collection[str]) -> str | None:
        """Text of all that decisions on ``names`` depend on; None if a value depends on data.

        Names of unbacked symbols are numbered in one process, so the text would not last.
        """
        if any(map(shapeenv.is_unbacked, names)):
            return None
        conditions = () if self.env is None else shapeenv.conditions(self.env)
        return repr(([(n, self.facts(n).key, self.hint(n)) for n in names], conditions))

    def _assume_equal(self, text: str, value: int) -> None:
        if self.value(text) != value:
            raise ValueError(f"{text} is not {value} in the traced call")
        self.assume(f"Eq({text}, {value})")


def _plain_facts(name: str) -> SymbolFacts:
    if shapeenv.prefix_of(name) == "s":
        return SymbolFacts(name, True, (2, None))
    if shapeenv.prefix_of(name) == "u":
        return SymbolFacts(name, None, (0, None), sizelike=True)
    return SymbolFacts(name, None)
