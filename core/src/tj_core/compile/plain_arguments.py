"""Kernels get their arguments apart from differentiation: what requires a gradient is detached.

A program that is differentiated as a whole runs below autograd, and yet its inputs are the user's,
whose flags are their own. Libraries refuse such tensors (DLPack does). Whether an input requires a
gradient may differ from call to call; which values may require one is known when code is generated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tj_core.compile.generated import define
from tj_core.ir.proxy import Proxy, TensorProxy, requires_grad
from tj_core.ir.runtime import RuntimeValues
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.ir.tree import leaves, map_tree

__all__ = ["differentiable", "plain_of", "with_plain_arguments"]


def differentiable(trace: Trace) -> frozenset[str]:
    """The names of the values that may require a gradient when the program of ``trace`` runs.

    They are its inputs, what is one of them or a view of one (PyTorch says of a view that it
    requires what its base does, also where no gradients are recorded), and what the trace says
    requires one, from its making or from a later call on.
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
    """What makes a value plain; None where no dialect says so."""
    return next((d.plain for d in runtime if d.plain is not None), None)


def with_plain_arguments(
    kernel: Callable[..., Any],
    call: BoundSymbol,
    names: Collection[str],
    runtime: tuple[RuntimeValues, ...],
) -> Callable[..., Any]:
    """``kernel``, as ``call`` calls it, with those arguments plain that are called ``names``.

    What it returns of its arguments are these themselves, as ``call`` declares.
    """
    plain = plain_of(runtime)
    if plain is None or not any(p.name in names for p in call.flat_args):
        return kernel
    takes = {f"_{i}": tree for i, tree in enumerate(call.args)} | dict(call.kwargs)
    places = [(p, text) for name, tree in takes.items() for p, text in _places(tree, name)]
    values = [text for p, text in places if isinstance(p, Proxy)]
    own = {text.partition("[")[0] for p, text in places if _called(p, names)}
    gives = [_plain(name, tree) if name in own else name for name, tree in takes.items()]
    count = len(call.args)
    keywords = [f"{name}={given}" for name, given in zip(takes, gives, strict=True)][count:]
    parameters = [*takes][:count] + (["*", *[*takes][count:]] if keywords else [])
    identical = {
        a.output: values[a.index] for a in call.effects.aliases if a.identical and a.kind == "arg"
    }
    lines = [
        f"def plainly({', '.join(parameters)}):",
        f"    _result = _kernel({', '.join([*gives[:count], *keywords])})",
        *_returned(call, identical),
    ]
    scope = {"_kernel": kernel, "_plain": plain, "_plain_tree": lambda t: map_tree(plain, t)}
    return define("\n".join(lines), "plainly", scope)


def _called(p: Any, names: Collection[str]) -> bool:
    return isinstance(p, Proxy) and p.name in names


def _plain(name: str, tree: Any) -> str:
    return f"_plain({name})" if isinstance(tree, Proxy) else f"_plain_tree({name})"


def _places(tree: Any, text: str) -> Iterator[tuple[Any, str]]:
    """The leaves of ``tree``, which ``text`` evaluates to, each with what it is in there."""
    if isinstance(tree, tuple | list):
        for i, item in enumerate(tree):
            yield from _places(item, f"{text}[{i}]")
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _places(item, f"{text}[{key!r}]")
    else:
        yield tree, text


def _returned(call: BoundSymbol, identical: Mapping[int, str]) -> Iterator[str]:
    """The lines that return ``_result``, but for outputs of ``call`` that are arguments.

    Another tree than that of the outputs is returned as it is, and so is None in an argument's
    place: results are held against the trace after this.
    """
    if not identical:
        yield "    return _result"
        return
    count = itertools.count()
    outs = map_tree(lambda p: next(count) if isinstance(p, Proxy) else None, call.outputs)
    yield "    try:"
    yield f"        {_tree(outs, _out)} = _result"
    yield "    except (TypeError, ValueError):"
    yield "        return _result"

    def given(leaf: Any) -> str:
        out = _out(leaf)
        mine = identical.get(leaf) if isinstance(leaf, int) else None
        return out if mine is None else f"{mine} if {out} is not None else None"

    yield f"    return {_tree(outs, given)}"


def _out(leaf: Any) -> str:
    """What an output is called; ``leaf`` is its number, or a dict of numbers."""
    return f"_out_{next(leaves(leaf), None)}"


def _tree(tree: Any, leaf: Callable[[Any], str]) -> str:
    if not isinstance(tree, tuple | list):
        return leaf(tree)
    items = "".join(f"{_tree(item, leaf)}, " for item in tree)
    return f"({items})" if isinstance(tree, tuple) else f"[{items}]"
