"""Adapt a memoized expansion to a program: rename its symbols, set hints, add its guards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    Body,
    BoundSymbol,
    Dim,
    NumberProxy,
    Proxy,
    TensorProxy,
    formal_input,
    leaves,
    map_tree,
)

from tj_torch.ops.expansion.arguments import distinct_proxies
from tj_torch.ops.sizes.shape_env import is_symbolic, number_text

if TYPE_CHECKING:
    from tj_torch.ops.expansion.derive import Derivation
    from tj_torch.ops.expansion.expansion import Expansion
    from tj_torch.ops.sizes.program import Sizes

__all__ = ["derivation_instance", "instance"]


def instance(
    expansion: Expansion, tree: Any, names: Sequence[str], sizes: Sizes, value: Any = None
) -> Expansion:
    """Adapt ``expansion`` to a call with arguments ``tree``, whose symbols are ``names`` in order.

    Its guards become guards of the program. Unbacked symbols that the call makes are named as in
    ``value``, the call's result at capture, or else anew, so that no two calls make the same one.

    :raises CannotExpand: if it has guards and there is no program to guard.
    """
    if not expansion.symbols and not expansion.made:
        return expansion
    given = dict(zip(expansion.symbols, names, strict=True))
    for guard in expansion.guards:
        sizes.assume(sizes.renamed(guard, given))
    if expansion.made:
        return _Renaming(sizes, {**given, **_made(expansion, value, sizes)}, tree).apply(expansion)
    key = id(expansion), tuple(names)
    if key not in sizes.instances:
        made = _Renaming(sizes, given, tree).apply(expansion)
        sizes.instances[key] = made, expansion  # the latter so that its id stays its own
    found: Expansion = sizes.instances[key][0]
    return found


def derivation_instance(
    derivation: Derivation, tree: Any, names: Sequence[str], sizes: Sizes, value: Any = None
) -> Derivation:
    """`instance` for a derivation."""
    if not derivation.symbols and not derivation.made:
        return derivation
    given = dict(zip(derivation.symbols, names, strict=True))
    for guard in derivation.guards:
        sizes.assume(sizes.renamed(guard, given))
    if derivation.made:
        given |= _made(replace(derivation.forward, outputs=derivation.outputs), value, sizes)
    forward = _Renaming(sizes, given, tree)
    backward = _Renaming(sizes, given, ())
    return replace(
        derivation,
        forward=forward.apply(derivation.forward),
        intermediates=tuple(map(forward.renamed, derivation.intermediates)),
        backward=backward.apply(derivation.backward),
        numbers=tuple(sizes.renamed(name, given) for name in derivation.numbers),
    )


def _made(expansion: Expansion, value: Any, sizes: Sizes) -> dict[str, str]:
    """Names for the symbols that a call makes, by their names in the expansion."""
    seen = dict(_pairs(expansion.outputs, value))
    found = {f.name: seen.get(f.name) or sizes.fresh(f) for f in expansion.made}
    for facts in expansion.made:
        sizes.born(found[facts.name], facts)
    return found


def _pairs(outputs: Any, value: Any) -> Iterator[tuple[str, str]]:
    """Pairs of expressions: a size or number of ``outputs``, and the one in ``value``."""
    mine, theirs = list(leaves(outputs)), list(leaves(value))
    if value is None or len(mine) != len(theirs):
        return
    for proxy, actual in zip(mine, theirs, strict=True):
        if isinstance(proxy, NumberProxy):
            yield proxy.expr, _text(actual)
        elif isinstance(proxy, TensorProxy) and isinstance(actual, torch.Tensor | TensorProxy):
            for dim, size in zip(proxy.shape, actual.shape, strict=False):
                yield str(dim), _text(size)


def _text(value: Any) -> str:
    if isinstance(value, NumberProxy):
        return value.expr
    return number_text(value) if is_symbolic(value) else str(value)


@dataclass
class _Renaming:
    """Renaming of the symbols in all metadata of an expansion."""

    sizes: Sizes
    names: Mapping[str, str]
    tree: Any
    done: dict[int, Any] = field(default_factory=dict)

    def apply(self, expansion: Expansion) -> Expansion:
        arguments = distinct_proxies(self.tree).values()
        self.formals = {formal_input(a.index): a.formal for a in arguments}
        self.before = {p.name: p for p in expansion.body.inputs} if expansion.body else {}
        effects = expansion.effects
        rebinds = tuple((i, self.proxy(p)) for i, p in effects.rebinds)
        return replace(
            expansion,
            outputs=map_tree(self.proxy, expansion.outputs, Proxy),
            effects=replace(effects, rebinds=rebinds) if rebinds else effects,
            body=self.body(expansion.body),
        )

    def body(self, body: Body | None) -> Body | None:
        if body is None:
            return None
        return Body(
            tuple(map(self.proxy, body.inputs)),
            tuple(map(self.call, body.calls)),
            map_tree(self.proxy, body.outputs, Proxy),
            tuple((i, map_tree(self.proxy, v, Proxy)) for i, v in body.updates),
        )

    def call(self, call: BoundSymbol) -> BoundSymbol:
        made = call.map_proxies(self.proxy)
        # Operators on tensor subclasses have bodies of their own.
        return made if call.body is None else made.replace(body=self.body(call.body))

    def proxy(self, p: Proxy) -> Any:
        """``p`` with the program's symbols; an unchanged formal is the argument itself."""
        if id(p) not in self.done:
            unchanged = p.name in self.formals and self.before.get(p.name) == p
            self.done[id(p)] = self.formals[p.name] if unchanged else self.renamed(p)
        return self.done[id(p)]

    def renamed(self, p: Any) -> Any:
        if isinstance(p, NumberProxy):
            return self.sizes.number(p.replace(expr=self.sizes.renamed(p.expr, self.names)))
        if not isinstance(p, TensorProxy):
            return p
        return p.map_symbols(lambda size: self.dim(size.name))

    def dim(self, name: str) -> Dim:
        text = self.sizes.renamed(name, self.names)
        return int(text) if text.lstrip("-").isdigit() else self.sizes.dim(text)
