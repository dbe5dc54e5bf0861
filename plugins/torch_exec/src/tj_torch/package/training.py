"""A forward and a backward program as one call of PyTorch's autograd, in a package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import PackageError, TensorProxy, meta_text
from tj_core.internal import parse_meta

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
    return {
        "outputs": [None if p is None else known[p.name] for p in parts.outputs],
        "tensors": [i for i in parts.takes if isinstance(parts.saved[i], TensorProxy)],
        "takes": list(parts.takes),
        "tangents": [meta_text(p) for p in parts.tangents],
        "places": list(parts.places),
    }


@dataclass(frozen=True, slots=True)
class _Plan:
    """The programs, and what goes where.

    ``takes`` are the indices, among the saved values, of those that the backward takes, of which
    ``tensors`` are tensors; ``tangents`` has the metadata of tangents, ``places`` are the inputs
    that get a gradient.
    """

    forward: Run
    backward: Run
    takes: tuple[int, ...]
    tensors: tuple[int, ...]
    tangents: tuple[TensorProxy, ...]
    places: tuple[int, ...]


class _Call:
    """Inputs of one call, and the results that autograd has no part in."""

    __slots__ = ("inputs", "rest")

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.inputs = inputs
        self.rest: Sequence[Any] = ()


class _Packaged(torch.autograd.Function):
    """One call of a packaged program."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, call: _Call, *wrt: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the roots; ``wrt`` are the inputs that get a gradient."""
        roots, call.rest, saved = plan.forward(*call.inputs)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*[saved[i] for i in plan.tensors])
        ctx.others = {i: saved[i] for i in plan.takes if i not in plan.tensors}
        return tuple(roots)

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
            return (None,) * (len(plan.places) + 2)
        values = ctx.others | dict(zip(plan.tensors, ctx.saved_tensors, strict=True))
        given = [*map(_laid_out, tangents, plan.tangents)]
        gradients = plan.backward(*[values[i] for i in plan.takes], *given)
        return None, None, *[gradients[i] for i in plan.places]


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


def differentiable(forward: Run, backward: Run, facts: Mapping[str, Any]) -> Run:
    """The function of the inputs that runs ``forward``, with the gradients of ``backward``."""
    tangents = [parse_meta("tangent", text) for text in facts["tangents"]]
    assert all(isinstance(p, TensorProxy) for p in tangents)
    plan = _Plan(
        forward,
        backward,
        tuple(facts["takes"]),
        tuple(facts["tensors"]),
        tuple(tangents),  # type: ignore[arg-type]
        tuple(facts["places"]),
    )
    outputs = facts["outputs"]

    def run(*inputs: Any) -> tuple[Any, ...]:
        call = _Call(inputs)
        roots = _Packaged.apply(plan, call, *[inputs[i] for i in plan.places])  # type: ignore[no-untyped-call]
        known = {"roots": roots, "rest": call.rest, "input": inputs}
        return tuple(None if place is None else known[place[0]][place[1]] for place in outputs)

    return run
