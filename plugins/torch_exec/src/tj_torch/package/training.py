"""A forward and its backward programs as nodes of PyTorch's autograd, in a package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import NumberProxy, PackageError, SymDim, TensorProxy, evaluate_size, meta_text
from tj_core.internal import parse_meta

from tj_torch.ops.sizes.program import is_sized
from tj_torch.ops.values.convert import device_to_torch, dtype_to_torch
from tj_torch.runtime.forms import Form, form_of

if TYPE_CHECKING:
    from tj_core.extend import Proxy, TrainingParts

__all__ = ["differentiable", "facts_of"]

Run = Callable[..., Any]


def facts_of(parts: TrainingParts, inputs: Sequence[Proxy]) -> dict[str, Any]:
    """``parts`` for the manifest; ``inputs`` are those of the forward."""
    known = {p.name: ["input", i] for i, p in enumerate(inputs)}
    for kind in ("roots", "rest"):
        known |= {p.name: [kind, i] for i, p in enumerate(getattr(parts, kind))}
    nodes = [
        {
            "name": node.name,
            "outputs": [known[p.name][1] for p in node.outputs],
            "tensors": [i for i in node.takes if isinstance(parts.saved[i], TensorProxy)],
            "takes": list(node.takes),
            "tangents": [meta_text(p) for p in node.tangents],
            "gradients": [[key, known[name]] for key, name in node.gradients],
        }
        for node in parts.nodes
    ]
    symbols = {p.expr: i for i, p in enumerate(inputs) if isinstance(p, NumberProxy)}
    return {
        "outputs": [None if p is None else known[p.name] for p in parts.outputs],
        "symbols": symbols,
        "nodes": nodes,
    }


@dataclass(frozen=True, slots=True)
class _Plan:
    """A backward program, and what goes where.

    ``first`` is true for the node that runs the program. ``outputs`` are the indices, among the
    roots, of those that the node returns; ``takes`` those, among the saved values, of what the
    backward takes, of which ``tensors`` are tensors; ``tangents`` has the metadata of tangents.
    ``keys`` are those of gradients in what the backward returns; they are of the values at ``wrt``,
    inputs or roots.
    """

    first: bool
    backward: Run
    outputs: tuple[int, ...]
    takes: tuple[int, ...]
    tensors: tuple[int, ...]
    tangents: tuple[TensorProxy, ...]
    keys: tuple[int | str, ...]
    wrt: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, facts: Mapping[str, Any], backward: Run, first: bool) -> _Plan:
        """The plan of a node's facts in the manifest."""
        tangents = tuple(parse_meta("tangent", text) for text in facts["tangents"])
        assert all(isinstance(p, TensorProxy) for p in tangents)
        return cls(
            first,
            backward,
            tuple(facts["outputs"]),
            tuple(facts["takes"]),
            tuple(facts["tensors"]),
            tangents,  # type: ignore[arg-type]
            tuple(key for key, _ in facts["gradients"]),
            tuple((kind, i) for _, (kind, i) in facts["gradients"]),
        )


class _Call:
    """State of one call beside autograd: inputs, values of symbols, the program's results."""

    __slots__ = ("forward", "inputs", "rest", "roots", "saved", "symbols")

    def __init__(self, forward: Run, inputs: Sequence[Any], symbols: Mapping[str, int]) -> None:
        self.forward, self.inputs, self.symbols = forward, inputs, symbols

    def run(self) -> None:
        """Run the program, below autograd."""
        self.roots, self.rest, self.saved = self.forward(*self.inputs)


class _Packaged(torch.autograd.Function):
    """A node of a packaged program, in one call."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, call: _Call, *wrt: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the node's roots; ``wrt`` are the values that get a gradient."""
        if plan.first:
            call.run()
        ctx.plan, ctx.symbols, saved = plan, call.symbols, call.saved
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*[saved[i] for i in plan.tensors])
        ctx.others = {i: saved[i] for i in plan.takes if i not in plan.tensors}
        return tuple([call.roots[i] for i in plan.outputs])

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients.

        :raises PackageError: if they are to be differentiated again: there is no program for that.
        """
        if torch.is_grad_enabled():
            raise PackageError(
                "gradients of a package cannot be differentiated (create_graph=True)"
            )
        plan: _Plan = ctx.plan
        if all(tangent is None for tangent in tangents):
            return (None,) * (len(plan.wrt) + 2)
        values = ctx.others | dict(zip(plan.tensors, ctx.saved_tensors, strict=True))
        expected = [_in_call(p, ctx.symbols) for p in plan.tangents]
        gradients = plan.backward(
            *[values[i] for i in plan.takes], *map(_laid_out, tangents, expected)
        )
        return None, None, *[gradients[key] for key in plan.keys]


def _in_call(p: TensorProxy, symbols: Mapping[str, int]) -> TensorProxy:
    """``p`` with its symbols replaced by their values."""

    def size(n: SymDim) -> int:
        return int(evaluate_size(n.name, symbols.__getitem__))

    return p.map_symbols(size) if is_sized(p) else p


def _laid_out(tangent: torch.Tensor | None, expected: TensorProxy) -> torch.Tensor:
    """``tangent`` with the type and the strides that the backward was compiled for."""
    dtype, strides = dtype_to_torch(expected.dtype), expected.strides
    if (
        tangent is not None
        and tangent.dtype is dtype
        and tangent.stride() == strides
        and form_of(tangent) is Form.PLAIN
    ):
        return tangent
    device = device_to_torch(expected.device)
    made = torch.empty_strided(expected.shape, strides, dtype=dtype, device=device)  # type: ignore[arg-type]
    return made.zero_() if tangent is None else made.copy_(tangent)


def differentiable(forward: Run, backwards: Mapping[str, Run], facts: Mapping[str, Any]) -> Run:
    """The function of the inputs that runs ``forward``, with the gradients of ``backwards``."""
    nodes = enumerate(facts["nodes"])
    plans = [_Plan.of(node, backwards[node["name"]], index == 0) for index, node in nodes]
    outputs, symbols = facts["outputs"], facts["symbols"]

    def run(*inputs: Any) -> tuple[Any, ...]:
        call = _Call(forward, inputs, {name: inputs[i] for name, i in symbols.items()})
        known: dict[str, Sequence[Any]] = {"input": inputs, "roots": ()}
        for plan in plans:
            wrt = [known[kind][i] for kind, i in plan.wrt]
            known["roots"] = *known["roots"], *_Packaged.apply(plan, call, *wrt)  # type: ignore[no-untyped-call]
        known["rest"] = call.rest
        return tuple(None if place is None else known[place[0]][place[1]] for place in outputs)

    return run
