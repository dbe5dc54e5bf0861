"""Detached arguments for kernels: values that require a gradient are detached first.

A program that is differentiated as a whole runs below autograd, but its inputs are the user's
tensors with their own flags. Some libraries refuse tensors that require a gradient (DLPack does).
The flag of an input may differ from call to call; the values that may have it are known when code
is generated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tj_core.compile.function_text import define
from tj_core.ir.names import Namer, formal_value
from tj_core.ir.proxy import Proxy, TensorProxy, requires_grad
from tj_core.ir.tree import leaves, map_tree
from tj_core.text.printer import is_name, keyword_text

if TYPE_CHECKING:
    from tj_core.ir.runtime import RuntimeValues
    from tj_core.ir.symbol import Context
    from tj_core.ir.trace import BoundSymbol, Trace

__all__ = ["differentiable", "plain_of", "records", "with_plain_arguments"]


def differentiable(trace: Trace) -> frozenset[str]:
    """The names of the values that may require a gradient when the program of ``trace`` runs.

    These are its inputs, their views (in PyTorch, a view requires grad if its base does, also where
    no gradients are recorded), outputs that are one of them, and values that require a gradient
    according to the trace, from the start or from a later call on.
    """
    names = {p.name for p in trace.inputs if isinstance(p, TensorProxy)}
    for call in trace.calls:
        names.update(p.name for p in call.flat_outs if requires_grad(p))
        names.update(p.name for _, p in call.effects.rebinds if requires_grad(p))
        for alias in call.effects.aliases:
            if alias.kind != "internal":
                values = call.flat_args if alias.kind == "arg" else call.flat_outs
                if values[alias.index].name in names:
                    names.add(call.flat_outs[alias.output].name)
    return frozenset(names)


def plain_of(runtime: tuple[RuntimeValues, ...]) -> Callable[[Any], Any] | None:
    """The first dialect's function that makes a value plain, or None."""
    return next((d.plain for d in runtime if d.plain is not None), None)


def records(context: Context, runtime: tuple[RuntimeValues, ...]) -> bool:
    """Test if autograd records calls in ``context``."""
    return any(d.records is not None and d.records(context) for d in runtime)


def with_plain_arguments(
    kernel: Callable[..., Any],
    call: BoundSymbol,
    names: Collection[str],
    runtime: tuple[RuntimeValues, ...],
) -> Callable[..., Any]:
    """``kernel`` for the arguments of ``call``, with those called ``names`` made plain.

    Outputs that ``call`` declares to be an argument are the argument itself, not its plain form.
    """
    plain = plain_of(runtime)
    if plain is None or not any(p.name in names for p in call.flat_args):
        return kernel
    text = _Text(call, frozenset(names))
    scope = {text.kernel: kernel, text.plain: plain, text.tree: lambda t: map_tree(plain, t)}
    return define("\n".join(text.lines()), "plainly", scope)


class _Text:
    """The text of a function with the parameters of ``call``, and no clash with its keywords."""

    def __init__(self, call: BoundSymbol, names: frozenset[str]) -> None:
        self.call, self.names = call, names
        self.own = Namer(name for name, _ in call.kwargs).own
        self.kernel, self.plain, self.tree = map(self.own, ("_kernel", "_plain", "_plain_tree"))
        self.result, self.more = self.own("_result"), self.own("_more")
        self.outs: dict[Any, str] = {}

    def lines(self) -> Iterator[str]:
        keywords = [name for name, _ in self.call.kwargs]
        places = [self.own(formal_value(i)) for i in range(len(self.call.args))]
        texts = [n if is_name(n) else f"{self.more}[{n!r}]" for n in keywords]
        trees = [*self.call.args, *(tree for _, tree in self.call.kwargs)]
        takes = [*zip([*places, *texts], trees, strict=True)]
        gives = [self.given(text, tree) for text, tree in takes]
        count = len(places)
        given = [*gives[:count], *map(keyword_text, keywords, gives[count:])]
        plain = [name for name in keywords if is_name(name)]
        more = [f"**{self.more}"] if len(plain) < len(keywords) else []
        parameters = [*places, *(["*", *plain] if plain else []), *more]
        yield f"def plainly({', '.join(parameters)}):"
        yield f"    {self.result} = {self.kernel}({', '.join(given)})"
        found = [place for text, tree in takes for place in _places(tree, text)]
        values = [text for p, text in found if isinstance(p, Proxy)]
        aliases = self.call.effects.aliases
        yield from self.returned(
            {a.output: values[a.index] for a in aliases if a.identical and a.kind == "arg"}
        )

    def given(self, text: str, tree: Any) -> str:
        """The text of an argument for the kernel: plain if it may require a gradient."""
        if not any(_called(p, self.names) for p in leaves(tree)):
            return text
        return f"{self.plain if isinstance(tree, Proxy) else self.tree}({text})"

    def returned(self, identical: Mapping[int, str]) -> Iterator[str]:
        """The lines that return the result, with ``identical`` outputs replaced by arguments.

        A result of another structure is returned unchanged, and so is None in the place of an
        argument: the check against the trace comes later, and must see them.
        """
        if not identical:
            yield f"    return {self.result}"
            return
        count = itertools.count()
        outs = map_tree(lambda p: next(count) if isinstance(p, Proxy) else None, self.call.outputs)
        yield "    try:"
        yield f"        {_tree(outs, self.out)} = {self.result}"
        yield "    except (TypeError, ValueError):"
        yield f"        return {self.result}"

        def given(leaf: Any) -> str:
            out = self.out(leaf)
            mine = identical.get(leaf) if isinstance(leaf, int) else None
            return out if mine is None else f"{mine} if {out} is not None else None"

        yield f"    return {_tree(outs, given)}"

    def out(self, leaf: Any) -> str:
        """The variable for an output; ``leaf`` is the output's number, or a dict of numbers."""
        number = next(leaves(leaf), None)
        if number not in self.outs:
            self.outs[number] = self.own(f"_out_{number}")
        return self.outs[number]


def _called(p: Any, names: Collection[str]) -> bool:
    return isinstance(p, Proxy) and p.name in names


def _places(tree: Any, text: str) -> Iterator[tuple[Any, str]]:
    """The leaves of ``tree``, the value of expression ``text``, each with its own expression."""
    if isinstance(tree, tuple | list):
        for i, item in enumerate(tree):
            yield from _places(item, f"{text}[{i}]")
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _places(item, f"{text}[{key!r}]")
    else:
        yield tree, text


def _tree(tree: Any, leaf: Callable[[Any], str]) -> str:
    if not isinstance(tree, tuple | list):
        return leaf(tree)
    items = "".join(f"{_tree(item, leaf)}, " for item in tree)
    return f"({items})" if isinstance(tree, tuple) else f"[{items}]"
