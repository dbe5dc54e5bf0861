"""Twelve faults of executors, each in three places: they show what the kit finds, and ``check=3``.

An executor that runs `torch.tanh` as PyTorch does, but for one fault: in the implementation of a
claim, in a claim's pair of forward and backward, or in the function compiled for a region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch
from tj_core.extend import (
    BoundSymbol,
    Claim,
    Decline,
    Executor,
    Fused,
    Fusion,
    FusionRegion,
    Pair,
    Proxy,
    RuleTable,
    hookimpl,
)

from tj_conformance.executor import probes
from tj_conformance.executor.kit import AMOUNTS, Kit
from tj_conformance.executor.layouts import laid_out
from tj_conformance.executor.operations import matching, operation
from tj_conformance.executor.subject import subject

if TYPE_CHECKING:
    from tj_conformance.executor.finding import Finding

__all__ = ["FAULTS", "PLACES", "Planted", "checked", "finding", "matrix", "table"]

NAME = "planted"
Kernel = Callable[..., torch.Tensor]


def value(right: Kernel) -> Kernel:
    """Return values that are one percent too large."""
    return lambda *args: right(*args) * 1.01


def dtype(right: Kernel) -> Kernel:
    """Return double precision."""
    return lambda *args: right(*args).double()


def stride(right: Kernel) -> Kernel:
    """Return the result in column-major order."""
    return lambda *args: right(*args).mT.contiguous().mT


def mutated_input(right: Kernel) -> Kernel:
    """Use the memory of the argument for something else."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = right(x)
        x.neg_()
        return out

    return kernel


def reused_buffer(right: Kernel) -> Kernel:
    """Return results of one shape in the same memory each time."""
    buffers: dict[Any, torch.Tensor] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = right(x)
        return buffers.setdefault((out.shape, out.stride()), torch.empty_like(out)).copy_(out)

    return kernel


def sometimes_an_alias(right: Kernel) -> Kernel:
    """Return the argument itself where it is zero everywhere."""
    return lambda x: right(x) if x.any() else x


def lost_gradient(right: Kernel) -> Kernel:
    """Return zeros."""
    return lambda *args: torch.zeros_like(right(*args))


def unsafe_state(right: Kernel) -> Kernel:
    """Keep the argument where another thread writes its own."""
    state: dict[str, torch.Tensor] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        state["x"] = x
        return right(state["x"])

    return kernel


def random_state(right: Kernel) -> Kernel:
    """Draw a random number."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        torch.rand(())
        return right(x)

    return kernel


def second_size(right: Kernel) -> Kernel:
    """Compute as many elements as the first argument had."""
    first: list[int] = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        first.append(x.numel())
        out = right(x)
        out.view(-1)[first[0] :] = 0
        return out

    return kernel


def contiguous_only(right: Kernel) -> Kernel:
    """Read memory as if the argument were contiguous."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        flat = x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())
        return torch.empty_like(x).copy_(right(flat))

    return kernel


FAULTS: Mapping[str, Callable[[Kernel], Kernel]] = {
    "value": value,
    "dtype": dtype,
    "stride": stride,
    "mutated input": mutated_input,
    "reused buffer": reused_buffer,
    "aliasing for some values only": sometimes_an_alias,
    "lost gradient": lost_gradient,
    "wrong gradient": value,
    "thread-unsafe state": unsafe_state,
    "consumed random state": random_state,
    "second size": second_size,
    "contiguous only": contiguous_only,
}
"""Faults by name: functions that make a wrong kernel of a right one."""

GRADIENT = "gradient"
"""The faults of this name are in the backward."""

PLACES = ("claim", "pair", "region")


class Planted:
    """A plugin whose executor has ``fault`` in ``place``; it is right without a fault."""

    tj_name = NAME

    def __init__(self, place: str, fault: str | None = None) -> None:
        wrong = FAULTS[fault] if fault else _right
        backward = fault is not None and GRADIENT in fault
        self.place = place
        self.forward = torch.tanh if backward else wrong(torch.tanh)
        self.backward = wrong(_tanh_backward) if backward else _tanh_backward

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        """Register the executor."""
        claims: RuleTable[Claim] = RuleTable("claim")
        fusion = None
        if self.place == "claim":
            claims.set("torch.tanh", Claim(self.forward))
            claims.set("aten.tanh_backward.default", Claim(self.backward))
        elif self.place == "pair":
            pair = Pair(self._forward, self._backward, meta=(_meta_forward, _meta_backward))
            claims.set("torch.tanh", Claim(torch.tanh, pair=pair))
        else:
            fusion = Fusion(_can_fuse, self._fuse, minimum=2)
        return (Executor(NAME, claims, fusion=fusion),)

    def _forward(self, x: torch.Tensor) -> Any:
        out = self.forward(x)
        return out, (out,)

    def _backward(self, saved: Any, grad: torch.Tensor) -> Any:
        return (self.backward(grad, saved[0]),)

    def _fuse(self, region: FusionRegion) -> Fused:
        mine = {
            "aten.tanh.default": self.forward,
            "aten.tanh_backward.default": self.backward,
        }
        steps = [(mine.get(c.symbol.qualname) or region.resolve(c), c) for c in region.body.calls]

        def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
            values: dict[str, Any] = dict(zip([p.name for p in region.inputs], inputs, strict=True))
            for function, call in steps:
                args = [values[a.name] if isinstance(a, Proxy) else a for a in call.args]
                values[call.outputs.name] = function(*args)
            return [values[p.name] for p in region.outputs]

        return Fused(run)


def _right(kernel: Kernel) -> Kernel:
    return kernel


def _tanh_backward(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.tanh_backward.default(grad, out)  # type: ignore[no-any-return]


def _meta_forward(x: torch.Tensor) -> Any:
    out = torch.tanh(x)
    return out, (out,)


def _meta_backward(saved: Any, grad: torch.Tensor) -> Any:
    return (_tanh_backward(grad, saved[0]),)


def _can_fuse(call: BoundSymbol) -> bool | Decline:
    names = ("tanh.default", "tanh_backward.default", "add.Tensor", "mul.Tensor")
    mine = call.symbol.qualname.removeprefix("aten.") in names
    return True if mine and not call.kwargs else Decline("is not in this region")


def finding(place: str, fault: str | None) -> Finding | None:
    """The first finding of the kit for ``fault`` in ``place``."""
    tested = subject(NAME, [Planted(place, fault), "torch", "autograd"])
    kit = Kit(tested, AMOUNTS["fast"], first=True, dtypes=("float32",))
    for _ in kit.run(matching(["tanh"], region=place == "region")):
        pass
    return next(iter(kit.report.findings), None)


def checked(place: str, fault: str | None) -> str | None:
    """The probe in which ``check=3`` first names the executor, without the kit's comparisons.

    Their programs run as a user's would; what only the comparison with eager finds counts for
    nothing.
    """
    overrides = {"check": 3, "strict": True, "cache_dir": "none"}
    session = tj.Session([Planted(place, fault), "torch", "autograd"], overrides=overrides)
    tested = operation("tanh", region=place == "region")
    call = next(tested.calls("float32", 1))
    tried = [(name, call) for name in probes.PROBES if name != "gradcheck"]
    for name, given in (*tried, ("calls", laid_out(call, "transposed"))):
        for kind in ("forward", "gradients"):
            try:
                probes.PROBES[name](_jit(session), tested.function(), given, kind)
            except Exception as error:  # also what the kit's comparison finds, which does not count
                if f"executor {NAME!r} of plugin {NAME!r}" in str(error):
                    return name
    return None


def _jit(session: tj.Session) -> Callable[..., Any]:
    return lambda f, **options: tj.jit(f, session=session, **options)


def matrix(find: Callable[[str, str], str | None]) -> Iterator[tuple[str, ...]]:
    """The rows of a matrix: a fault, and for each place the probe that finds it."""
    for fault in FAULTS:
        found = [find(place, fault) for place in PLACES]
        yield fault, *(f"`{probe}`" if probe else "not found" for probe in found)


def _by_the_kit(place: str, fault: str) -> str | None:
    found = finding(place, fault)
    return None if found is None else found.probe


def table(find: Callable[[str, str], str | None]) -> str:
    """A matrix for the documentation."""
    head = f"| fault | {' | '.join(PLACES)} |\n|---|---|---|---|"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in matrix(find))])


if __name__ == "__main__":
    print(table(_by_the_kit))
    print(table(checked))
