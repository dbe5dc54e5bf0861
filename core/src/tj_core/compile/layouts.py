"""Values between programs with strides of an executor's choice, and copies with declared ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tj_core.compile.codegen import Program
from tj_core.compile.region_kernels import RegionKernel
from tj_core.ir.proxy import Proxy, TensorProxy
from tj_core.passes.fuse.layouts import Choice

if TYPE_CHECKING:
    from tj_core.compile.outcome import Assembly
    from tj_core.contract.fusion import Boxed
    from tj_core.ir.runtime import RuntimeValues
    from tj_core.ir.symbol import Symbol
    from tj_core.ir.trace import BoundSymbol, Trace

__all__ = ["choices", "declared", "readers", "relaid", "taking"]


def readers(assembly: Assembly, runtime: Sequence[RuntimeValues]) -> dict[str, list[BoundSymbol]]:
    """The values whose strides may be chosen, by name, with the calls that read them later.

    Empty if a dialect cannot copy values to other strides (`RuntimeValues.laid_out`).
    """
    if any(dialect.laid_out is None for dialect in runtime):
        return {}
    found: dict[str, list[BoundSymbol]] = {name: [] for name in assembly.flexible}
    for trace in assembly.others.values():
        for call in trace.calls:
            for p in call.flat_args:
                if p.name in found:
                    found[p.name].append(call)
    return found


def choices(trace: Trace, implementations: Mapping[Symbol, Any]) -> dict[str, Choice]:
    """The values of ``trace`` whose strides its regions' executors have chosen, by name."""
    found = {}
    for call in trace.calls:
        kernel = implementations.get(call.symbol)
        if isinstance(kernel, RegionKernel):
            outputs = call.flat_outs
            for i, strides in kernel.strides.items():
                found[outputs[i].name] = Choice(kernel.executor, strides)
    return found


def declared(inputs: Sequence[Proxy], places: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """The declared strides of the tensors among ``inputs`` at ``places``, by index."""
    return {i: p.strides for i in places if isinstance(p := inputs[i], TensorProxy)}  # type: ignore[misc]


def relaid(
    function: Boxed, strides: Mapping[int, tuple[int, ...]], runtime: Sequence[RuntimeValues]
) -> Boxed:
    """``function`` for inputs of any strides: copies them to ``strides``, by index, first."""
    if not strides:
        return function

    def run(box: list[Any]) -> Any:
        for i, wanted in strides.items():
            box[i] = _dialect(box[i], runtime)(box[i], wanted)
        return function(box)

    return run


def _dialect(value: Any, runtime: Sequence[RuntimeValues]) -> Callable[[Any, Sequence[int]], Any]:
    found = next(d.laid_out for d in runtime if d.observe(value) is not None)
    assert found is not None
    return found


def taking(
    program: Program, trace: Trace, come: Mapping[str, Choice], taken: Mapping[str, Choice]
) -> Program:
    """``program`` of ``trace`` for inputs that ``come`` with chosen strides.

    Inputs in ``taken`` are passed as they are; others are copied to the declared strides first.
    """
    places = {p.name: i for i, p in enumerate(trace.inputs) if p.name in come}
    if not places:
        return program
    others = declared(trace.inputs, [i for name, i in places.items() if name not in taken])
    inputs = tuple(
        p.replace(strides=come[p.name].strides) if p.name in places else p for p in trace.inputs
    )
    function = relaid(program.function, others, trace.language.runtime)
    return Program(function, program.source, program.file, program.lines, inputs)
