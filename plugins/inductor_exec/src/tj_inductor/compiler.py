"""Compiles regions: those of one program together."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from tj_core.extend import Fused, FusionRegion, TensorProxy, interpreter, symbols_in
from tj_torch.extend import RunSymbols, SymbolFacts

from tj_inductor import adapter
from tj_inductor.graph import example_inputs, reads_strides, relaid
from tj_inductor.kernels import Collected, collecting
from tj_inductor.options import Options
from tj_inductor.variants import Variant, Variants

__all__ = ["Compiler"]


class Compiler:
    """Compiles regions with ``options``."""

    def __init__(self, options: Options) -> None:
        self.options = options

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Inside, C++ kernels are collected; on exit, all are compiled at once."""
        if not self.options.one_compile or not Collected.supported():
            yield
            return
        with collecting():
            yield

    def compile(self, region: FusionRegion) -> Fused:
        """The region as one function of a list of its inputs."""
        if symbols_in(region.inputs):
            return self.fused(region, Variants(region, functools.partial(self.variant, region)))
        return self.fused(region, self.made(region, adapter.FakeTensorMode()))

    def restore(self, region: FusionRegion, text: str) -> Fused:
        """The region, from the text that was kept of it."""
        source, strides, same, conditions = json.loads(text)
        fixed = [None if s is None else tuple(s) for s in strides]
        made = adapter.restored(source, fixed, same)
        if not symbols_in(region.inputs):
            return self.fused(region, made)
        first, again = _variant(made, conditions), functools.partial(self.variant, region)
        return self.fused(region, Variants(region, again, first))

    def fused(self, region: FusionRegion, made: adapter.Compiled | Variants) -> Fused:
        """What the core is told of a compiled region."""
        if isinstance(made, Variants):
            first = made.made[0]
            return Fused(made, True, first.source, kept=first.kept)
        found = ((i, made.strides[i], region.outputs[i]) for i in sorted(region.flexible))
        strides = {
            i: chosen
            for i, chosen, p in found
            if chosen is not None and isinstance(p, TensorProxy) and chosen != p.strides
        }
        return Fused(made.function, True, made.source, strides=strides, kept=_kept(made))

    def fingerprint(self) -> str | None:
        """What the text of compiled regions depends on, beside the region."""
        return adapter.fingerprint(self.settings)

    def variant(self, region: FusionRegion, sizes: Mapping[str, int]) -> Variant:
        """``region``, compiled for symbols that have values like ``sizes``.

        These are its first inputs: what PyTorch keeps of compiled graphs names them by that.
        """
        facts = [SymbolFacts(name, True, (2, None)) for name in sizes]
        symbols = RunSymbols(facts, sizes)
        made = self.made(region, symbols.mode, symbols, sizes)
        return _variant(made, [*symbols.guards, *(f"{name} >= 2" for name in sizes)])

    def made(
        self,
        region: FusionRegion,
        mode: adapter.FakeTensorMode,
        symbols: RunSymbols | None = None,
        names: Collection[str] = (),
    ) -> adapter.Compiled:
        """``region``, compiled for inputs of fixed sizes, or of ``symbols``, called ``names``."""
        run = interpreter(region)
        taken = region.inputs
        if reads_strides(region):
            run, taken = relaid(region, run), region.actual_inputs
        with torch.no_grad(), adapter.settings(self.settings):
            with mode:
                inputs = example_inputs(taken, symbols)
            if symbols is not None:
                inputs = [*map(symbols.number, names), *inputs]
            graph = adapter.traced(lambda *args: run(*args[len(names) :]), inputs, mode)
            if region.strides:  # the graph is that of the strides declared; its inputs are not
                with mode:
                    inputs = example_inputs(region.actual_inputs)
            visible = _visible(region)
            return adapter.compiled(graph, inputs, mode, visible, backward=region.backward)

    @property
    def settings(self) -> dict[str, object]:
        """Inductor's settings; tj checks the first run, so assertions are off."""
        return {
            "size_asserts": False,
            "alignment_asserts": False,
            "scalar_asserts": False,
            "emulate_precision_casts": self.options.emulate_precision,
            "cpp.use_decompose_tanh": self.options.decompose_tanh,
        }


def _visible(region: FusionRegion) -> dict[int, Any]:
    """The outputs whose strides are not free, and what these are; None for what needs no word."""
    chosen = bool(region.flexible or region.strides)
    outputs = {i: p for i, p in enumerate(region.outputs) if i not in region.flexible}
    return {
        i: p.strides if chosen and isinstance(p, TensorProxy) else None for i, p in outputs.items()
    }


def _variant(made: adapter.Compiled, conditions: Sequence[str]) -> Variant:
    return Variant(made.function, tuple(conditions), made.source, _kept(made, conditions))


def _kept(made: adapter.Compiled, conditions: Sequence[str] = ()) -> str:
    """A compiled graph as text for other processes; empty if its text is not all."""
    parts = (made.source, made.strides, made.same, list(conditions))
    return json.dumps(parts) if made.whole else ""
