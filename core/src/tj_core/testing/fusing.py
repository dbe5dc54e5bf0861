"""An executor that fuses vectors of `tj_core.testing.numeric`: one loop for many operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tj_core.compile.codegen import generate
from tj_core.compile.function_text import define
from tj_core.contract.decline import Decline
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.fusion import Fused, Fusion, FusionRegion
from tj_core.contract.rules import RuleTable
from tj_core.edit.editor import TraceEditor
from tj_core.host.hookspecs import hookimpl
from tj_core.text.printer import call_text

if TYPE_CHECKING:
    from tj_core.ir.proxy import TensorProxy
    from tj_core.ir.symbol import Constant
    from tj_core.ir.trace import BoundSymbol

__all__ = ["LoopPlugin", "as_text", "loop_text", "one_by_one", "region_text"]

SCALAR = {
    "num.add": "{} + {}",
    "num.mul": "{} * {}",
    "num.neg": "-{}",
    "num.over": "{1} or {0}",
    "num.reciprocal": "1 / {}",
}


class LoopPlugin:
    """An executor that fuses additions, products, negatives, reciprocals and `over` into one loop.

    ``compiled`` has the compiled regions, in order, ``batches`` the number of each batch.
    ``change``, if given, gets and returns the function of a region, to plant faults. For
    ``overwrites`` and ``consumes`` see `Fusion`.
    """

    def __init__(
        self,
        name: str = "loop",
        *,
        minimum: int = 2,
        hosts: bool = False,
        operations: Sequence[str] = tuple(SCALAR),
        change: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        boxed: bool = False,
        overwrites: Callable[[TensorProxy], bool] | None = None,
        consumes: bool = False,
    ) -> None:
        self.tj_name = name
        self.minimum, self.hosts, self.operations = minimum, hosts, operations
        self.change = change or (lambda function: function)
        self.boxed, self.overwrites, self.consumes = boxed, overwrites, consumes
        self.compiled: list[FusionRegion] = []
        self.batches: list[int] = []

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        fusion = Fusion(
            self.can_fuse,
            self.fuse,
            minimum=self.minimum,
            hosts=self.hosts,
            check=self.check,
            together=self.together,
            overwrites=self.overwrites,
            consumes=self.consumes,
        )
        return (Executor(self.tj_name, claims, fusion=fusion),)

    def can_fuse(self, call: BoundSymbol) -> bool | Decline:
        """Accept operations that have a loop."""
        name = call.symbol.qualname
        return True if name in self.operations else Decline(f"has no loop for {name}")

    def check(self, calls: Sequence[BoundSymbol]) -> bool | Decline:
        """Accept calls on vectors of one size, which a loop needs."""
        sizes = {getattr(p, "shape", None) for call in calls for p in call.flat_outs}
        return True if len(sizes) == 1 else Decline("a loop has one size")

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Count the regions that are compiled together."""
        before = len(self.compiled)
        yield
        self.batches.append(len(self.compiled) - before)

    def fuse(self, region: FusionRegion) -> Fused:
        """A loop over the elements, which runs all operations for each element."""
        self.compiled.append(region)
        source = loop_text(region)
        scope = {f"call{i}": region.resolve(c) for i, c in enumerate(region.body.calls)}
        loop = define(source, "loop", scope, f"loop {region.key}")
        return Fused(self.change(loop), self.boxed, source)


def one_by_one(region: FusionRegion) -> Fused:
    """Run the operations of a region one by one: a ``fuse`` function for any dialect."""
    trace = TraceEditor.program_of(region.body, region.language, "one_by_one")
    return Fused(generate(trace, region.implementations, boxed=True).function, boxed=True)


def as_text(region: FusionRegion) -> Fused:
    """Compile a region to Python with its formal names: a ``fuse`` function for any dialect.

    Each formal name is a variable, so that a name with two values computes a wrong result, as in
    the generated code of a compiler.
    """
    scope = {f"call{i}": region.resolve(c) for i, c in enumerate(region.body.calls)}
    source = region_text(region, scope)
    function = define(source, "region", scope, f"region {region.key}")
    return Fused(function, source=source, kept=source)


def region_text(region: FusionRegion, scope: dict[str, Any]) -> str:
    """The text of a function that runs the calls of ``region``; ``scope`` gets its constants."""

    def constant(c: Constant) -> str:
        name = f"constant{len(scope)}"
        scope[name] = c.value
        return name

    lines = [f"def region({', '.join(p.name for p in region.inputs)}):"]
    for i, call in enumerate(region.body.calls):
        lines.append(f"    {call_text(call, str, f'call{i}', constant)}")
    results = "".join(f"{p.name}, " for p in region.outputs)
    return "\n".join([*lines, f"    return ({results})"])


def loop_text(region: FusionRegion) -> str:
    """The text of a function that computes ``region`` element by element."""
    names = ", ".join(p.name for p in region.inputs)
    lines = [f"def loop({names}):", "    rows = []", f"    for {names}, in zip({names}):"]
    for place, call in enumerate(region.body.calls):
        lines.append(f"        {call.label} = {_scalar(place, call)}")
    results = "".join(f"{p.name}, " for p in region.outputs)
    lines += [f"        rows.append(({results}))"]
    return "\n".join([*lines, "    return [list(column) for column in zip(*rows)]", ""])


def _scalar(place: int, call: BoundSymbol) -> str:
    args = [p.name for p in call.flat_args]
    if call.symbol.qualname in SCALAR:
        return SCALAR[call.symbol.qualname].format(*args)
    return f"call{place}({', '.join(f'[{a}]' for a in args)})[0]"
