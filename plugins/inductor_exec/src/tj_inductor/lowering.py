"""Tracing and compilation of a region; this module imports Inductor, which takes long."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    BoundSymbol,
    Context,
    FusionRegion,
    Proxy,
    TensorProxy,
    interpreter,
    makes_views,
)
from tj_torch.extend import surroundings
from tj_torch.internal import read_apart

from tj_inductor.adapter import compiling
from tj_inductor.adapter.features import is_lost, need, ready
from tj_inductor.adapter.names import FAST, IN_PLACE, REGIONS, SYMBOLS
from tj_inductor.adapter.settings import settings
from tj_inductor.graph import as_declared, example_inputs, reads_strides, relaid
from tj_inductor.loops import is_in_loops
from tj_inductor.operators import needs, operator_of

if TYPE_CHECKING:
    from tj_torch.internal import RunSymbols

    from tj_inductor.adapter.modules import Compiled

__all__ = ["lowered"]


def lowered(
    region: FusionRegion,
    options: Mapping[str, object],
    symbols: RunSymbols | None,
    sizes: Mapping[str, int],
) -> Compiled:
    """Compile ``region`` for inputs of fixed sizes, or of ``symbols`` with hints ``sizes``.

    ``options`` are settings of Inductor.

    :raises LostError: if it needs a feature that this PyTorch lacks.
    """
    ready()
    need({REGIONS, *(feature for call in region.body.calls for feature in needs(call))})
    need([IN_PLACE] if region.overwritten else [])
    need([SYMBOLS] if symbols is not None else [])
    from tj_inductor.adapter.names import FakeTensorMode

    seen = {p.name for i, p in enumerate(region.outputs) if i not in region.flexible}
    run = interpreter(region, _rounded_once(region, as_declared(symbols, seen)))
    taken = region.inputs
    if reads_strides(region):
        run, taken = relaid(region, run), region.actual_inputs
    mode = FakeTensorMode() if symbols is None else symbols.mode
    # The caller's autocast is not the region's: its calls run without, after casts of their own.
    # Inductor's lowerings use what PyTorch deprecates, and the program's filters may make errors of
    # warnings.
    with surroundings(False, Context()), settings(options), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mode:
            inputs = example_inputs(taken, symbols)
        if symbols is not None:
            inputs = [*map(symbols.number, sizes), *inputs]
        graph = compiling.traced(lambda *args: run(*args[len(sizes) :]), inputs, mode)
        if region.strides:  # the graph is that of the strides declared; its inputs are not
            with mode:
                inputs = example_inputs(region.actual_inputs)
        visible = _visible(region)
        written = {i: place + len(sizes) for i, place in region.overwritten.items()}
        return compiling.compiled(
            graph, inputs, mode, visible, written=written, backward=region.backward
        )


def _rounded_once(
    region: FusionRegion, found: Callable[[Proxy, Any], Any]
) -> Callable[[Proxy, Any], Any]:
    """``found``, which also has values written to memory that are chosen from and read beside.

    Inductor computes a value in each of the loops that read it, and a loop over vectors rounds
    otherwise than the rest of a row: a number was less than the least one.
    """
    apart = read_apart(region.body.calls, region.outputs, _rounds)
    if not apart or is_lost(FAST):
        return found

    def written(p: Proxy, value: Any) -> Any:
        value = found(p, value)
        return compiling.in_memory(value) if p.name in apart else value

    return written


def _rounds(call: BoundSymbol) -> bool:
    operator = operator_of(call.symbol)
    return operator is not None and not makes_views(call) and is_in_loops(operator)


def _visible(region: FusionRegion) -> dict[int, Any]:
    """Required strides of the outputs whose layout is not free; None where Inductor may choose."""
    chosen = bool(region.flexible or region.strides)
    outputs = {i: p for i, p in enumerate(region.outputs) if i not in region.flexible}
    return {
        i: p.strides if chosen and isinstance(p, TensorProxy) else None for i, p in outputs.items()
    }
