"""Programs compiled with a memo that knows them and without one, and the comparison of the two."""

from __future__ import annotations

import ast
import itertools
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tj_core as tj
import torch
from tj_core.internal import jitted_of

from tj_conformance.oracle.compare import seeded
from tj_conformance.oracle.twins import clone_tree

__all__ = ["Comparison", "Compiled", "compare_memo", "compiled", "described"]

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Compiled:
    """Outcome of one jit: traces and guards by entry, and the memo's counts."""

    traces: tuple[tuple[str, ...], ...]
    guards: tuple[tuple[str, ...], ...]
    hits: int
    misses: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """One program: compiled into an empty memo, again from that, and without a memo."""

    first: Compiled
    again: Compiled
    without: Compiled

    @property
    def problems(self) -> list[str]:
        """Differences that must not be, and wrong counts; empty without any."""
        found = []
        for name in ("traces", "guards"):
            without = getattr(self.without, name)
            for each in (self.first, self.again):
                if getattr(each, name) != without:
                    found.append(f"{name} differ: {_difference(getattr(each, name), without)}")
        if self.without.hits:
            found.append("hits without a memo")
        for each in (self.first, self.again):
            if each.hits + each.misses != self.without.misses:
                found.append("the memo was asked for other calls")
        return found


def compare_memo(make: Callable[[], Any], calls: Iterable[Call]) -> Comparison:
    """Compile what ``make`` returns for ``calls``, each time anew; calls may raise."""
    calls = list(calls)
    remembering = tj.Session(plugins=["torch"], overrides={"memo": True})
    forgetful = tj.Session(plugins=["torch"], overrides={"memo": False})
    return Comparison(*(compiled(s, make(), calls) for s in (remembering, remembering, forgetful)))


def compiled(session: Any, program: Any, calls: Iterable[Call]) -> Compiled:
    """Jit ``program``, make ``calls``, and return the outcome."""
    torch.compiler.reset()  # what Dynamo learns of dynamic sizes, the next one must not know
    jitted = tj.jit(program, session=session)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args, kwargs in calls:
            try:
                seeded(jitted, *clone_tree((args, kwargs)))
            except Exception:  # samples of errors are samples, too
                continue
    return described(jitted)


def described(jitted: Any) -> Compiled:
    """Outcome of a jitted callable."""
    entries, stats = jitted_of(jitted).entries, tj.stats(jitted)
    return Compiled(
        tuple(tuple(map(_anonymous, e.compilation.traces)) for e in entries if e.compilation),
        tuple(_in_one_form(list(map(_anonymous, e.guards()))) for e in entries),
        stats.memo_hits,
        stats.memo_misses,
    )


def _difference(ones: tuple[tuple[str, ...], ...], others: tuple[tuple[str, ...], ...]) -> str:
    """The first texts that differ."""
    for texts in itertools.zip_longest(ones, others, fillvalue=()):
        for one, other in itertools.zip_longest(*texts):
            if one != other:
                return f"{one!r} and without a memo {other!r}"
    return "nothing"  # pragma: no cover - asked for texts that differ


_MAXIMUM = re.compile(r"max\(1, (?P<maximum>.*)\) == \((?P=maximum)\)|\((?P<one>.*)\) == 1")


def _in_one_form(guards: list[str]) -> tuple[str, ...]:
    """``guards`` with ``(n)`` for ``max(1, n)`` where a guard says so, and in order of their texts.

    Such a guard is ``max(1, n) == (n)`` or ``(n) == 1``. PyTorch writes ``n`` in the guards after
    that one, and leaves out those that others imply. It depends on the order in which it is
    asked, and a memo changes the order. The order of factors depends on that, too, and the
    order of guards on serial numbers in Dynamo's names.
    """
    found = [match for guard in guards if (match := _MAXIMUM.fullmatch(guard))]
    for size in [match["maximum"] or match["one"] for match in found]:
        maximum = f"max(1, {size})"
        guards = [g.replace(maximum, f"({size})") for g in guards if g != f"{maximum} == ({size})"]
    return tuple(sorted(set(map(_products_in_order, guards))))


class _Factors(ast.NodeTransformer):
    """Factors of products in the order of their texts."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult):
            left, right = sorted((node.left, node.right), key=ast.unparse)
            return ast.BinOp(left, node.op, right)
        return node


def _products_in_order(guard: str) -> str:
    """``guard`` with the factors of each product in order; other texts as they are."""
    if "*" not in guard:
        return guard
    try:
        return ast.unparse(_Factors().visit(ast.parse(guard, mode="eval")))
    except SyntaxError:  # not all guards are expressions
        return guard


_CHANGING = re.compile(
    r"\b\d{9,}\b|(?<=0x)[0-9a-f]+|(?<=tj_root_)\d+|(?<=___)\d+"
    r"|_\d{9,}_c\d+"  # a name that Dynamo gives a global, with the number of the compilation
    r"|(?<=___dict_contains\()\d+"  # the number of a hook's handle
)


def _anonymous(thing: object) -> str:
    """Text of ``thing`` without addresses and serial numbers, which change each time."""
    return re.sub(_CHANGING, "N", str(thing))
