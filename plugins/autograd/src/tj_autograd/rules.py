"""Gradient rules: a forward that returns what it saves, and the backward that uses it.

A rule is two functions in plain PyTorch, like an ``autograd.Function`` without the class::

    def forward(x, normalized_shape, weight=None, bias=None, eps=1e-05):
        out, mean, rstd = torch.native_layer_norm(x, normalized_shape, weight, bias, eps)
        return out, (x, weight, bias, mean, rstd)

    def backward(saved, grad):
        ...
        return grad_x, None, grad_weight, grad_bias

They are run on fake tensors and become the bodies of the forward and the backward call, so that
executors may take these whole or in parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.errors import PluginError
from tj_core.proxy import Proxy, TensorProxy
from tj_core.records import Decline
from tj_core.rules import Rule
from tj_core.symbol import BoundSymbol
from tj_core.tree import leaves
from tj_torch.dialect.derive import Derivation, Slot
from tj_torch.dialect.errors import ExpansionError
from tj_torch.dialect.expansion import Expander, Expansion

__all__ = ["GradRule", "apply_rule"]


@dataclass(frozen=True, slots=True)
class GradRule:
    """How one operation is differentiated.

    ``forward`` takes the operation's arguments and returns a pair: what the operation returns, and
    a sequence of values to save. What it saves of its arguments and results costs no memory of its
    own. ``backward`` takes that sequence as a tuple and a tangent for each tensor that the
    operation returns, None for one without, and returns a gradient for each argument, in order, as
    ``autograd.Function.backward`` does: None where there is none, a sequence for a list of tensors;
    trailing Nones may be left out. ``check`` answers True, or a `Decline` with the reason why
    the rule is not for a call; None means that it is for all.
    """

    forward: Callable[..., tuple[Any, Sequence[Any]]]
    backward: Callable[..., Sequence[Any]]
    check: Callable[[BoundSymbol], bool | Decline] | None = None


def apply_rule(
    rule: Rule[GradRule],
    call: BoundSymbol,
    tangents: Mapping[Slot, TensorProxy],
    expander: Expander,
) -> Derivation:
    """The gradient of ``call`` by ``rule``.

    :raises PluginError: if the rule's functions do not fit the call.
    :raises CannotExpandError: if they depend on data.
    """
    return _Application(rule, call, tangents, expander).derivation()


@dataclass(frozen=True, slots=True)
class _Kept:
    """One saved value: where it is found, or, where it is no tensor, itself."""

    slot: Slot | None
    constant: Any = None


@dataclass
class _Application:
    """One rule applied to one call."""

    rule: Rule[GradRule]
    call: BoundSymbol
    tangents: Mapping[Slot, TensorProxy]
    expander: Expander

    def derivation(self) -> Derivation:
        kept, forward = self.forward()
        hidden = tuple(forward.outputs[1])
        slots = list(dict.fromkeys(k.slot for k in kept if k.slot is not None))
        given = [*map(self.places(forward).__getitem__, slots), *self.tangents.values()]
        positions, backward = self.backward(kept, slots, given)
        return Derivation(
            forward, hidden, tuple(slots), tuple(self.tangents), backward, tuple(positions)
        )

    def places(self, forward: Expansion) -> dict[Slot, TensorProxy]:
        """The proxies of all values that may be saved."""
        hidden = forward.outputs[1]
        return {
            **{Slot("arg", i): p for i, p in enumerate(self.call.flat_args)},
            **{Slot("out", i): p for i, p in enumerate(self.call.flat_outs)},
            **{Slot("hidden", i): p for i, p in enumerate(hidden)},
        }  # type: ignore[return-value]

    # ------------------------------------------------------------------ forward

    def forward(self) -> tuple[list[_Kept], Expansion]:
        """What is saved, and the forward, which returns the outputs and the hidden values."""
        kept: list[_Kept] = []

        def run(*args: Any, **kwargs: Any) -> Any:
            kept.clear()  # the run may be repeated
            returned = self.rule.value.forward(*args, **kwargs)
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise self.misfit("its forward must return a pair, (outputs, saved)")
            outputs, saved = returned
            places = _places((args, kwargs), "arg") | _places(outputs, "out")
            hidden: dict[int, torch.Tensor] = {}
            for value in saved:
                if isinstance(value, torch.Tensor) and id(value) not in places:
                    places[id(value)] = Slot("hidden", len(hidden))
                    hidden[id(value)] = value
                tensor = isinstance(value, torch.Tensor)
                kept.append(_Kept(places[id(value)]) if tensor else _Kept(None, value))
            return outputs, tuple(hidden.values())

        made = self.expand(run, self.call.args, self.call.kwargs, self.call.context)
        self.check_outputs(made)
        return kept, made

    def check_outputs(self, made: Expansion) -> None:
        """The rule's forward must return what the operation returns, metadata included."""
        mine = [p for p in leaves(made.outputs[0]) if isinstance(p, Proxy)]
        theirs = self.call.flat_outs
        if len(mine) != len(theirs) or not all(
            a.replace(name=b.name, tags=b.tags) == b for a, b in zip(mine, theirs, strict=True)
        ):
            raise self.misfit(f"its forward returns {mine}, the operation {list(theirs)}")

    # ------------------------------------------------------------------ backward

    def backward(
        self, kept: Sequence[_Kept], slots: Sequence[Slot], given: Sequence[Proxy]
    ) -> tuple[list[int], Expansion]:
        """The arguments that get a gradient, and the backward over saved values and tangents."""
        positions: list[int] = []
        count = len(slots)

        def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            at = dict(zip(slots, values, strict=False))
            saved = tuple(k.constant if k.slot is None else at[k.slot] for k in kept)
            tangents = dict(zip(self.tangents, values[count:], strict=True))
            outs = [Slot("out", i) for i in range(len(self.call.flat_outs))]
            returned = self.rule.value.backward(saved, *(tangents.get(s) for s in outs))
            positions.clear()
            found = []
            for index, gradient in self.gradients(returned):
                if gradient is not None:
                    positions.append(index)
                    found.append(gradient)
            return tuple(found)

        context = self.call.context.with_("grad", False)
        made = self.expand(run, tuple(given), (), context)
        self.check_gradients(positions, made)
        return positions, made

    def gradients(self, returned: Any) -> Iterator[tuple[int, Any]]:
        """Pairs of the flat index of an argument that needs a gradient, and its gradient."""
        if not isinstance(returned, tuple | list):
            raise self.misfit("its backward must return a sequence with a gradient per argument")
        bound = inspect.signature(self.rule.value.forward).bind(
            *self.call.args, **dict(self.call.kwargs)
        )
        names = list(bound.signature.parameters)
        if len(returned) > len(names):
            raise self.misfit(
                f"its backward returns {len(returned)} gradients, its forward has {len(names)} "
                f"parameters"
            )
        by_name = {n: g for n, g in zip(names, returned, strict=False) if n in bound.arguments}
        index = 0
        for name, argument in bound.arguments.items():
            proxies = [p for p in leaves(argument) if isinstance(p, Proxy)]
            parts = self.parts(name, by_name.get(name), len(proxies))
            for proxy, part in zip(proxies, parts, strict=True):
                if isinstance(proxy, TensorProxy) and proxy.requires_grad:
                    yield index, part
                index += 1

    def parts(self, name: str, gradient: Any, count: int) -> list[Any]:
        """The gradient of one argument, which holds ``count`` values, as one for each."""
        parts = list(gradient) if isinstance(gradient, tuple | list) else [gradient] * count
        if len(parts) != count:
            raise self.misfit(f"its backward returns {len(parts)} gradients for {name!r}")
        return parts

    def check_gradients(self, positions: Sequence[int], made: Expansion) -> None:
        for index, gradient in zip(positions, leaves(made.outputs), strict=True):
            argument = self.call.flat_args[index]
            assert isinstance(argument, TensorProxy)
            if (gradient.shape, gradient.dtype) != (argument.shape, argument.dtype):
                raise self.misfit(
                    f"its backward returns {gradient.dtype}{list(gradient.shape)} for argument "
                    f"{argument.name!r}, {argument.dtype}{list(argument.shape)}"
                )

    def expand(self, *call: Any) -> Expansion:
        try:
            return self.expander.expand(*call)
        except ExpansionError as error:
            if isinstance(error.__cause__, PluginError):
                raise error.__cause__ from None
            raise self.misfit(error.message) from error

    def misfit(self, problem: str) -> PluginError:
        rule = self.rule
        return PluginError(
            f"the gradient rule for {rule.key!r} of plugin {rule.plugin!r} does not fit: {problem}",
            source=self.call.source,
            hint=f"the rule is at {rule.origin}",
        )


def _places(tree: Any, kind: Any) -> dict[int, Slot]:
    """The first place of each tensor in ``tree``, by its id."""
    tensors = [x for x in leaves(tree) if isinstance(x, torch.Tensor)]
    return {id(t): Slot(kind, i) for i, t in reversed(list(enumerate(tensors)))}
