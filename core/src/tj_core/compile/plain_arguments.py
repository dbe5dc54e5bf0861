"""Kernels get their arguments apart from differentiation: what requires a gradient is detached.

A program that is differentiated as a whole runs below autograd, and yet its inputs are the user's,
whose flags are their own. Libraries refuse such tensors (DLPack does). Whether an input requires a
gradient may differ from call to call; which values may require one is known when code is generated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tj_core.compile.generated import define
from tj_core.ir.proxy import Proxy, TensorProxy, requires_grad
from tj_core.ir.runtime import RuntimeValues
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.ir.tree import map_tree

__all__ = ["differentiable", "with_plain_arguments"]


def differentiable(trace: Trace) -> frozenset[str]:
    """The names of the values that may require a gradient when the program of ``trace`` runs.

    They are its inputs, what is one of them, and what the trace says requires one.
    """
    names = {p.name for p in trace.inputs if isinstance(p, TensorProxy)}
    for call in trace.calls:
        names.update(p.name for p in call.flat_outs if requires_grad(p))
        for alias in call.effects.aliases:
            if alias.identical and alias.kind != "internal":
                values = call.flat_args if alias.kind == "arg" else call.flat_outs
                if values[alias.index].name in names:
                    names.add(call.flat_outs[alias.output].name)
    return frozenset(names)


def with_plain_arguments(
    kernel: Callable[..., Any],
    call: BoundSymbol,
    names: Collection[str],
    runtime: tuple[RuntimeValues, ...],
) -> Callable[..., Any]:
    """``kernel``, as ``call`` calls it, with those arguments plain that are called ``names``.

    What it returns of its arguments are these themselves, as ``call`` declares.
    """
    plain = next((d.plain for d in runtime if d.plain is not None), None)
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
        f"    return {_returned(call, identical)}",
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


def _returned(call: BoundSymbol, identical: Mapping[int, str]) -> str:
    """What ``call`` returns of ``_result``, but for outputs that are arguments."""
    if not identical:
        return "_result"
    count = iter(range(len(call.flat_outs)))
    texts = {
        text: identical.get(next(count), text)
        for p, text in _places(call.outputs, "_result")
        if isinstance(p, Proxy)
    }
    return _tree(call.outputs, "_result", texts)


def _tree(tree: Any, text: str, texts: Mapping[str, str]) -> str:
    if not isinstance(tree, tuple | list):
        return texts.get(text, text)
    items = "".join(f"{_tree(item, f'{text}[{i}]', texts)}, " for i, item in enumerate(tree))
    return f"({items})" if isinstance(tree, tuple) else f"[{items}]"
