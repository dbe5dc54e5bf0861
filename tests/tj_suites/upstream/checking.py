"""A model compiled and in eager: all that a call gives, compared within what a data type allows.

It takes the place of the function by which Inductor's tests check a model, and its arguments.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_conformance.oracle.nearness import as_near, doubled
from torch.utils._pytree import tree_flatten, tree_leaves

__all__ = ["Check", "Tolerance", "ours"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The tolerance of values and gradients; None is what a test case takes for a data type."""

    atol: float | None = None
    rtol: float | None = None
    exact_dtype: bool = True

    def arguments(self) -> dict[str, Any]:
        """As keywords of ``assertEqual``."""
        return {
            "atol": self.atol,
            "rtol": self.rtol,
            "exact_dtype": self.exact_dtype,
            "equal_nan": True,
        }


@dataclass
class _Ran:
    """The state after a call."""

    results: Any
    inputs: Sequence[Any]
    gradients: list[Any] = field(default_factory=list)

    def leaves(self) -> list[Any]:
        """The parts of the results."""
        return list(tree_leaves(self.results))

    def all(self) -> list[Any]:
        """Results, arguments and gradients, numbers and states of generators as tensors."""
        found = [*self.leaves(), *map(_state, self.inputs), *self.gradients]
        return [torch.tensor(x) if isinstance(x, bool | int | float) else x for x in found]


@dataclass
class Check:
    """One model with its arguments, compiled by ``jit``, in a test case."""

    case: Any
    jit: Callable[[Any], Any]
    model: Any
    inputs: Sequence[Any]
    keywords: dict[str, Any]
    tolerance: Tolerance
    gradient_tolerance: Tolerance
    values: bool = True

    def run(self, *, gradients: bool, whole: bool) -> None:
        """Compare a call as it is given, and one of which gradients are asked.

        ``whole`` says that nothing in the model is a graph break.
        """
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self._compare(self.inputs, gradients)
            wanting = None if gradients else _wanting(self.inputs)
            if wanting is not None and self._differentiates(wanting):
                self._compare(wanting, True)
        said = ours(told)
        if said and whole:
            self.case.fail(f"equal to eager, but: {said[0]}")

    def _compare(self, inputs: Sequence[Any], gradients: bool) -> None:
        model = _copied(self.model)
        expected = self._ran(model, inputs, gradients)
        actual = self._ran(self.jit(self.model), inputs, gradients)
        self._same_form(expected, actual)
        if self.values:
            self._close(
                expected, actual, lambda: self._ran(_wide(model), doubled(inputs), gradients)
            )

    def _ran(self, function: Any, inputs: Sequence[Any], gradients: bool) -> _Ran:
        given = [_twin(x) for x in inputs]
        torch.manual_seed(0)
        ran = _Ran(function(*given, **self.keywords), given)
        if gradients:
            ran.gradients = _gradients(ran)
        return ran

    def _differentiates(self, inputs: Sequence[Any]) -> bool:
        """Tell whether eager takes gradients of this call."""
        try:
            found = self._ran(_copied(self.model), inputs, True).gradients
        except Exception:
            return False
        return any(g is not None for g in found)

    def _same_form(self, expected: _Ran, actual: _Ran) -> None:
        self.case.assertIs(type(actual.results), type(expected.results))
        self.case.assertEqual(tree_flatten(actual.results)[1], tree_flatten(expected.results)[1])
        for ours, theirs in zip(actual.leaves(), expected.leaves(), strict=True):
            if isinstance(theirs, torch.Tensor):
                self.case.assertEqual(_form(ours), _form(theirs))

    def _close(self, expected: _Ran, actual: _Ran, exact: Callable[[], _Ran]) -> None:
        """Near to eager, or where rounding is amplified, as near as eager to double precision."""
        try:
            self._near(expected, actual)
        except AssertionError:
            if not as_near(actual.all(), expected.all(), lambda: exact().all()):
                raise

    def _near(self, expected: _Ran, actual: _Ran) -> None:
        near, equal = self.tolerance.arguments(), self.case.assertEqual
        equal(actual.leaves(), expected.leaves(), **near)
        equal(list(map(_state, actual.inputs)), list(map(_state, expected.inputs)), **near)
        equal(actual.gradients, expected.gradients, **self.gradient_tolerance.arguments())


def ours(told: Sequence[warnings.WarningMessage]) -> list[str]:
    """The warnings of tj: that it ran something as it is."""
    names = ("TjWarning",)
    return [str(w.message) for w in told if any(c.__name__ in names for c in w.category.__mro__)]


def _form(x: Any) -> tuple[Any, ...]:
    """The metadata of a tensor; strides of dimensions that have a stride."""
    if x.layout is not torch.strided:
        return x.shape, x.dtype, x.layout, x.device
    strides = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]
    return tuple(x.shape), x.dtype, strides if x.numel() else [], x.device, x.requires_grad


def _twin(x: Any) -> Any:
    """A copy of an argument with its strides, that asks for gradients as it does."""
    if isinstance(x, torch.Generator):
        return x.clone_state()
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return x
    storage = x.detach().as_strided((x.untyped_storage().size() // x.element_size(),), (1,), 0)
    twin = storage.clone().as_strided(x.size(), x.stride(), x.storage_offset())
    return twin.requires_grad_(x.requires_grad)


def _state(x: Any) -> Any:
    """The facts of an argument that are compared."""
    return x.get_state() if isinstance(x, torch.Generator) else x


def _wanting(inputs: Sequence[Any]) -> list[Any] | None:
    """The arguments, with gradients asked of all that may; None if there are none."""
    twins = [_twin(x) for x in inputs]
    fit = [x for x in twins if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for x in fit:
        x.requires_grad_()
    return twins if fit else None


def _gradients(ran: _Ran) -> list[Any]:
    """Gradients of the results, of tangents that differ from element to element."""
    outputs = [x for x in ran.leaves() if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = [x for x in tree_leaves(ran.inputs) if isinstance(x, torch.Tensor)]
    inputs = [x for x in leaves if x.requires_grad]
    if not outputs or not inputs:
        return []
    torch.manual_seed(1)
    tangents = [torch.rand_like(x, dtype=x.dtype) for x in outputs]
    return list(torch.autograd.grad(outputs, inputs, tangents, allow_unused=True))


def _copied(model: Any) -> Any:
    """A model of its own for eager, which may change its state."""
    try:
        return copy.deepcopy(model) if isinstance(model, torch.nn.Module) else model
    except Exception:
        return model


def _wide(model: Any) -> Any:
    """A model in double precision; of a function, its arguments alone are."""
    return copy.deepcopy(model).double() if isinstance(model, torch.nn.Module) else model
