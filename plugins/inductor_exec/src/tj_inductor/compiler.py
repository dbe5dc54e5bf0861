"""Compiles regions: those of one program together."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Collection, Iterator, Mapping

import torch
from tj_core.extend import Fused, FusionRegion, interpreter, symbols_in
from tj_torch.extend import RunSymbols, SymbolFacts

from tj_inductor import adapter
from tj_inductor.graph import example_inputs
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
        start = time.perf_counter()
        if symbols_in(region.inputs):
            variants = Variants(region, functools.partial(self.variant, region))
            seconds = time.perf_counter() - start
            return Fused(variants, True, variants.source, seconds)
        made = self.made(region, adapter.FakeTensorMode())
        strides = {i: found for i in region.flexible if (found := made.strides[i]) is not None}
        seconds = time.perf_counter() - start
        return Fused(made.function, True, made.source, seconds, strides)

    def variant(self, region: FusionRegion, sizes: Mapping[str, int]) -> Variant:
        """``region``, compiled for symbols that have values like ``sizes``.

        These are its first inputs: what PyTorch keeps of compiled graphs names them by that.
        """
        facts = [SymbolFacts(name, True, (2, None)) for name in sizes]
        symbols = RunSymbols(facts, sizes)
        made = self.made(region, symbols.mode, symbols, sizes)
        conditions = (*symbols.guards, *(f"{name} >= 2" for name in sizes))
        return Variant(made.function, conditions, made.source)

    def made(
        self,
        region: FusionRegion,
        mode: adapter.FakeTensorMode,
        symbols: RunSymbols | None = None,
        names: Collection[str] = (),
    ) -> adapter.Compiled:
        """``region``, compiled for inputs of fixed sizes, or of ``symbols``, called ``names``."""
        run = interpreter(region)
        with torch.no_grad(), adapter.settings(self.settings(region)):
            with mode:
                inputs = example_inputs(region, symbols)
            if symbols is not None:
                inputs = [*map(symbols.number, names), *inputs]
            graph = adapter.traced(lambda *args: run(*args[len(names) :]), inputs, mode)
            visible = [i for i in range(len(region.outputs)) if i not in region.flexible]
            return adapter.compiled(graph, inputs, mode, visible, backward=region.backward)

    def settings(self, region: FusionRegion) -> dict[str, object]:
        """Inductor's settings for ``region``; tj checks the first run, so assertions are off."""
        return {
            "size_asserts": False,
            "alignment_asserts": False,
            "scalar_asserts": False,
            "emulate_precision_casts": self.options.emulate_precision,
            "cpp.use_decompose_tanh": self.options.decompose_tanh,
        }
