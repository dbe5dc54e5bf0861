"""Compilation of regions; the C++ kernels of one program are compiled together."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tj_core.extend import Decline, Fused, FusionRegion, TensorProxy, symbols_in
from tj_torch.internal import RunSymbols, SymbolFacts

from tj_inductor.adapter.features import LostError
from tj_inductor.adapter.modules import Compiled, restored
from tj_inductor.adapter.settings import fingerprint
from tj_inductor.branches import without_branches
from tj_inductor.elementary import with_fast_erf, with_fast_exp, with_fast_tanh
from tj_inductor.kernels import Collected, collecting, repeated
from tj_inductor.loads import with_fast_loads
from tj_inductor.repeated.finding import equal_parts
from tj_inductor.repeated.running import all_parts
from tj_inductor.texts import with_wide_steps
from tj_inductor.thrown import raising_as_eager, thrown_again
from tj_inductor.variants import Variant, Variants, sizes_are_read, sizes_in

if TYPE_CHECKING:
    from tj_inductor.options import Options
    from tj_inductor.repeated.finding import Equal

__all__ = ["Compiler", "fused", "variant_of"]


class Compiler:
    """Compiles regions with ``options``."""

    def __init__(self, options: Options) -> None:
        self.options = options

    @contextlib.contextmanager
    def together(self, *, goes_on: bool = False) -> Iterator[None]:
        """Collect C++ kernels inside, and compile them on exit, in one run of the compiler if so
        chosen. If the compiler ``goes_on`` after exit, kernels wait for it.
        """
        if not Collected.supported():
            yield
            return
        one = self.options.one_compile
        with collecting(together=one, change=self.changed, goes_on=goes_on):
            yield

    def changed(self, kernel: str) -> str:
        """Edit the text of a C++ kernel before it is compiled: faster functions, wide integers,
        errors that leave loops.
        """
        kernel = with_wide_steps(kernel)
        if self.options.decompose_tanh:
            kernel = with_fast_tanh(kernel)
        kernel = with_fast_loads(with_fast_exp(with_fast_erf(kernel)))
        return thrown_again(without_branches(kernel))

    def compile(self, region: FusionRegion) -> Fused | Decline:
        """Compile the region to one function of a list of its inputs, if nothing for it is lost."""
        try:
            if symbols_in(region.inputs):
                # A number that was left out may have been the only one to tell a symbol.
                bound = sizes_are_read(region.body.calls)
                if isinstance(bound, Decline):
                    return bound
                return fused(region, Variants(region, functools.partial(self.variant, region)))
            parts = equal_parts(region)
            if parts is None:
                return fused(region, self.made(region))
            with repeated():
                return fused_parts(region, parts, [self.made(equal.region) for equal in parts])
        except LostError as error:
            return Decline(str(error))

    def restore(self, region: FusionRegion, text: str) -> Fused:
        """Make the region's function from ``text``, which `Fused.kept` holds."""
        parts = json.loads(text)
        if isinstance(parts, dict):
            equal = equal_parts(region)
            assert equal is not None
            with repeated():
                return fused_parts(region, equal, [_restored(*p) for p in parts["parts"]])
        made, conditions = _restored(*parts), parts[-1]
        if not symbols_in(region.inputs):
            return fused(region, made)
        first, again = variant_of(made, conditions), functools.partial(self.variant, region)
        return fused(region, Variants(region, again, first))

    def fingerprint(self) -> str | None:
        """Settings and versions that a compiled region depends on, beside the region itself."""
        return fingerprint(self.settings)

    def variant(self, region: FusionRegion, sizes: Mapping[str, int]) -> Variant:
        """Compile ``region`` for symbols with values like ``sizes``; see `Variants`.

        The symbols come first among the inputs: PyTorch's cache of compiled graphs names them by
        position.
        """
        big = sizes_in(region.inputs)
        facts = [
            SymbolFacts(n, True, (2, None)) if n in big else SymbolFacts(n, None) for n in sizes
        ]
        symbols = RunSymbols(facts, sizes)
        with self.together():
            made = self.made(region, symbols, sizes)
        return variant_of(made, [*symbols.guards, *(f"{n} >= 2" for n in sizes if n in big)])

    def made(
        self,
        region: FusionRegion,
        symbols: RunSymbols | None = None,
        sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> Compiled:
        """Compile ``region`` for inputs of fixed sizes, or of ``symbols`` with hints ``sizes``."""
        # Importing Inductor takes longer than all else in a process that compiles nothing.
        from tj_inductor.lowering import lowered

        return lowered(region, self.settings, symbols, sizes)

    @property
    def settings(self) -> dict[str, object]:
        """Inductor's settings; its assertions are off, since tj checks the first run."""
        return {
            "size_asserts": False,
            "alignment_asserts": False,
            "scalar_asserts": False,
            "emulate_precision_casts": self.options.emulate_precision,
        }


def fused(region: FusionRegion, made: Compiled | Variants) -> Fused:
    """Make the record of a compiled region for the core."""
    if isinstance(made, Variants):
        first = made.made[0] if made.made else Variant(made)
        function = raising_as_eager(region, made, first.source)
        return Fused(function, True, first.source, kept=first.kept)
    found = ((i, made.strides[i], region.outputs[i]) for i in sorted(region.flexible))
    strides = {
        i: chosen
        for i, chosen, p in found
        if chosen is not None and isinstance(p, TensorProxy) and chosen != p.strides
    }
    function = raising_as_eager(region, made.function, made.source)
    return Fused(function, True, made.source, strides=strides, kept=_kept(made))


def fused_parts(region: FusionRegion, parts: Sequence[Equal], made: Sequence[Compiled]) -> Fused:
    """Make the record of a region of equal ``parts``, each ``made`` once."""
    source = "\n\n".join(part.source for part in made)
    kept = [_kept(part) for part in made]
    function = raising_as_eager(region, all_parts(region, parts, made), source)
    text = json.dumps({"parts": [*map(json.loads, kept)]}) if all(kept) else ""
    return Fused(function, True, source, kept=text)


def variant_of(made: Compiled, conditions: Sequence[str]) -> Variant:
    """A compiled graph for sizes that meet ``conditions``."""
    return Variant(made.function, tuple(conditions), made.source, _kept(made, conditions))


def _restored(source: str, strides: Sequence[Any], same: Sequence[int], _: Any) -> Compiled:
    """The compiled graph that `_kept` has written."""
    return restored(source, [None if s is None else tuple(s) for s in strides], same)


def _kept(made: Compiled, conditions: Sequence[str] = ()) -> str:
    """A compiled graph as text for other processes; empty if it cannot be restored from text."""
    parts = (made.source, made.strides, made.same, list(conditions))
    # A graph with constants beside its text is compiled again in each process.
    return json.dumps(parts) if made.whole else ""
