"""Run higher-order operations on fake tensors, with their regions as operand functions.

For metadata of operations whose outputs are not those of a region: a scan, a loop, an attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    Constant,
    Expanded,
    Proxy,
    Subprogram,
    TensorProxy,
    formal_value,
    generate,
    leaves,
    map_tree,
)

from tj_torch.ops.errors import CannotExpand, internal_error
from tj_torch.ops.expansion.arguments import distinct_proxies, make_fake
from tj_torch.ops.sizes.program import Sizes, symbols_in
from tj_torch.ops.values.convert import tensor_proxy, to_core_tree
from tj_torch.torch_private import ops as private

__all__ = ["expand_operation"]


def expand_operation(call: BoundSymbol, function: Callable[..., Any], sizes: Sizes) -> Expanded:
    """Expand ``call`` of ``function`` again for its current arguments and regions.

    Shapes and types are new; effects and ``requires_grad`` of its outputs are kept. What the
    operation decides on the symbols of ``sizes`` becomes a guard.

    :raises CannotExpand: if it cannot run on fake tensors.
    """
    tree = call.args, dict(call.kwargs)
    run = sizes.of_run(symbols_in(tree))
    fakes: dict[str, Any] = {}
    for name, argument in distinct_proxies(tree).items():
        proxy = argument.proxy
        if isinstance(proxy, TensorProxy):
            fakes[name] = make_fake(run.mode, proxy, run.number)
        else:
            fakes[name] = run.number(proxy.expr, proxy.kind)

    def actual(leaf: Any) -> Any:
        if isinstance(leaf, Subprogram):
            return generate(leaf.program).function
        if isinstance(leaf, Proxy):
            return fakes[leaf.name]
        return leaf.value if isinstance(leaf, Constant) else leaf

    args, kwargs = map_tree(actual, tree)
    try:
        with run.mode, torch.no_grad(), private.quiet():
            result = function(*args, **kwargs)
    except Exception as error:
        if internal := internal_error(error, call.symbol.qualname):
            internal.warn()
            raise internal from error
        raise CannotExpand(f"{call.symbol}: {error}") from error
    for condition in run.guards:
        sizes.assume(condition)
    count = iter(range(1 << 30))
    outputs = to_core_tree(result, lambda leaf: _proxy(leaf, count, sizes))
    if {facts.name for facts in run.made}.intersection(symbols_in(outputs)):
        raise CannotExpand(f"{call.symbol}: sizes of its results depend on data")
    said = leaves(call.outputs)
    return Expanded(map_tree(lambda p: _with_autograd(p, next(said)), outputs), call.effects)


def _proxy(leaf: Any, count: Iterator[int], sizes: Sizes) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return tensor_proxy(formal_value(next(count)), leaf, sizes.dim)


def _with_autograd(p: Any, said: Any) -> Any:
    if isinstance(p, TensorProxy) and isinstance(said, TensorProxy):
        return p.replace(requires_grad=said.requires_grad)
    return p
