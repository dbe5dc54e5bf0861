"""Derived gradient of a call as data: forward, backward, and the saved values between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tj_core.extend import PLAIN_CONTEXT, NumberProxy, TensorProxy, size_symbols

from tj_torch.ops.sizes.program import row_major, symbols_in
from tj_torch.ops.values.convert import tensor_proxy, value_proxy
from tj_torch.torch_private import ops as private

if TYPE_CHECKING:
    import torch

    from tj_torch.ops.expansion.expansion import Expansion
    from tj_torch.ops.expansion.recorder import Recorder, Ref
    from tj_torch.ops.expansion.run import Run
    from tj_torch.ops.sizes.shape_env import SymbolFacts

__all__ = ["Derivation", "Slot", "default_tangent", "missing_symbols"]


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """Value of a differentiated call.

    ``arg``: an argument proxy, by flat index; ``out``: an output proxy, by flat index;
    ``update``: the new value of a mutated argument; ``intermediate``: a value inside of the call.

    An argument's tangent is its gradient from other calls, to which the gradient of this call is
    added in PyTorch's order.
    """

    kind: Literal["arg", "out", "update", "intermediate"]
    index: int


@dataclass(frozen=True)
class Derivation:
    """Call with its gradient.

    ``forward`` returns the pair of the call's outputs and the ``intermediates`` that only the
    backward needs. ``backward`` takes the values of ``saved``, then the tangents of ``tangents``;
    it returns the gradients of the arguments in ``gradients``, by flat index, each with the
    metadata of its argument. Other arguments have no gradient. ``repeated`` are arguments whose
    gradient is a sum. Between saved values and tangents the backward takes ``numbers``, symbols in
    sizes that it cannot read off these. ``once``: PyTorch's autograd saves a tensor, used or not,
    so that the backward can run only once.

    ``symbols``, ``made`` and ``guards`` are as in `Expansion`.
    """

    forward: Expansion
    intermediates: tuple[TensorProxy | NumberProxy, ...]
    saved: tuple[Slot, ...]
    tangents: tuple[Slot, ...]
    backward: Expansion
    gradients: tuple[int, ...]
    repeated: tuple[int, ...] = ()
    numbers: tuple[str, ...] = ()
    once: bool = False

    @property
    def captured(self) -> bool:
        """True if a body holds a tensor that is no argument, such as one of a closure."""
        return self.forward.captured

    @property
    def outputs(self) -> Any:
        """Outputs of the call, without the intermediates."""
        return self.forward.outputs[0]

    @property
    def symbols(self) -> tuple[str, ...]:
        """Symbols of the arguments."""
        return self.forward.symbols

    @property
    def made(self) -> tuple[SymbolFacts, ...]:
        """Unbacked symbols that the call makes."""
        return self.forward.made

    @property
    def guards(self) -> tuple[str, ...]:
        """Conditions under which the derivation holds."""
        return self.forward.guards


def missing_symbols(
    run: Run, recorder: Recorder, texts: Iterable[str], refs: Iterable[Ref], outputs: Any
) -> tuple[str, ...]:
    """Symbols in expressions ``texts`` that cannot be computed from sizes of the values ``refs``.

    ``outputs`` are the call's, as proxies. Symbols in neither outputs nor arguments are made by a
    call in the backward, and are read there.
    """
    used = dict.fromkeys(name for text in texts for name in size_symbols(text))
    if not used:
        return ()
    named = [(ref, value_proxy("a", recorder.values[ref.index])) for ref in refs]
    builder = run.builder(recorder, named, False, PLAIN_CONTEXT, {})
    builder.note_numbers(())
    readable = {*run.symbols, *symbols_in(outputs)}
    return tuple(name for name in used if name in readable and not builder.knows(name))


def default_tangent(tensor: torch.Tensor) -> TensorProxy:
    """Tangent with the strides of ``tensor`` if that is dense, else contiguous."""
    proxy = tensor_proxy("tangent", tensor).replace(requires_grad=False, flags=())
    if private.is_dense(tensor):
        return proxy
    # As `empty_like` for a tensor with gaps or overlaps.
    return proxy.replace(strides=row_major(proxy.shape))
