"""What a derived gradient of a call is: its forward, its backward, and what goes between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tj_core.extend import PLAIN_CONTEXT, NumberProxy, TensorProxy, size_symbols

from tj_torch.ops.convert import tensor_proxy, value_proxy
from tj_torch.ops.expansion.recorder import Recorder, Ref
from tj_torch.ops.expansion.run import Expansion, Run
from tj_torch.ops.sizes.program import row_major, symbols_in
from tj_torch.ops.sizes.shape_env import SymbolFacts
from tj_torch.torch_private import ops as private

__all__ = ["Derivation", "Slot", "default_tangent", "missing_symbols"]


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A value of a differentiated call.

    ``arg``: an argument proxy, by flat index; ``out``: an output proxy, by flat index;
    ``update``: the new value of a mutated argument; ``intermediate``: a value inside of the call.

    An argument's tangent is the gradient that it has from elsewhere, to which that of this call is
    added, in the order in which PyTorch adds.
    """

    kind: Literal["arg", "out", "update", "intermediate"]
    index: int


@dataclass(frozen=True)
class Derivation:
    """A call with its gradient.

    ``forward`` has as outputs the pair of the call's outputs and the ``intermediates`` that only
    the backward needs. ``backward`` takes the values of ``saved``, then the tangents of
    ``tangents``; its outputs are the gradients of the arguments in ``gradients``, by flat index,
    each with the metadata of its argument. An argument that ``gradients`` lacks has none.
    ``repeated`` are those whose gradient is a sum. Between saved values and tangents the backward
    takes ``numbers``: the symbols in sizes that it cannot read off these. ``once`` says that
    PyTorch's autograd saves something, read or not: it can go back through the call once.

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
        """Whether a body holds a tensor which is no argument (one of a closure)."""
        return self.forward.captured

    @property
    def outputs(self) -> Any:
        """What the call returns, without the intermediates."""
        return self.forward.outputs[0]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the arguments."""
        return self.forward.symbols

    @property
    def made(self) -> tuple[SymbolFacts, ...]:
        """The symbols that the call makes."""
        return self.forward.made

    @property
    def guards(self) -> tuple[str, ...]:
        """The conditions under which all this holds."""
        return self.forward.guards


def missing_symbols(
    run: Run, recorder: Recorder, texts: Iterable[str], refs: Iterable[Ref], outputs: Any
) -> tuple[str, ...]:
    """The symbols in expressions ``texts`` that no size of the values ``refs`` tells.

    ``outputs`` are those of the call, as proxies. Other symbols than theirs and the arguments' are
    born in a call of the backward, which can be asked.
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
    """A tangent laid out like ``tensor`` where that is dense, else contiguous."""
    proxy = tensor_proxy("tangent", tensor).replace(requires_grad=False, flags=())
    if private.is_dense(tensor):
        return proxy
    return proxy.replace(strides=row_major(proxy.shape))
