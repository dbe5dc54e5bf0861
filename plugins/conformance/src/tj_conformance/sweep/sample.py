"""A sample of an operation, and the one run in eager that all else is compared with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tj_conformance.databases.known import UNDEFINED
from tj_conformance.databases.op_db import full_name, sample_arguments
from tj_conformance.gradients.gradients import first_gradients
from tj_conformance.oracle.compare import seeded
from tj_conformance.oracle.device import device
from tj_conformance.oracle.twins import clone_tree, twin

__all__ = ["Eager", "Sample", "samples"]


@dataclass(frozen=True)
class Eager:
    """Results of one run; ``gradients`` is None where eager has none."""

    arguments: Any
    result: Any
    gradients: list[Any] | None


@dataclass(frozen=True)
class Sample:
    """One call of an operation, and eager's run of it (None: eager raises)."""

    op: Any
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    eager: Eager | None

    @property
    def where(self) -> str:
        """Name of the sample in a result."""
        return f"sample {self.number}"

    @property
    def name(self) -> str:
        """Name of the operation, unique in op_db."""
        return full_name(self.op)

    @property
    def defined(self) -> bool:
        """True if the operation defines the values of its results."""
        return self.name not in UNDEFINED

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies, for a call that may write them."""
        return clone_tree((self.args, self.kwargs))  # type: ignore[no-any-return]

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
        """The same call on tensors that ``change`` returns, such as copies in another layout."""
        args, kwargs = pytree.tree_map_only(torch.Tensor, change, (self.args, self.kwargs))
        return Sample(self.op, self.number, args, kwargs, _eager(self.op, args, kwargs))


def samples(op: Any, dtype: torch.dtype, count: int | None) -> Iterator[Sample]:
    """The first ``count`` samples of ``op`` (None: all); every other one needs gradients.

    Of operations that have none in ``dtype``, none does.
    """
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes(device())
    for number, (args, kwargs) in enumerate(sample_arguments(op, dtype, count, differentiable)):
        if number % 2:
            args, kwargs = pytree.tree_map(_without_gradients, (args, kwargs))
        yield Sample(op, number, args, kwargs, _eager(op, args, kwargs))


def _without_gradients(value: Any) -> Any:
    return twin(value.detach()) if isinstance(value, torch.Tensor) else value


def _eager(op: Any, args: Any, kwargs: Any) -> Eager | None:
    given = clone_tree((args, kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = seeded(op.op, *given)
        except Exception:
            return None
        try:
            return Eager(given, result, first_gradients(result, given))
        except Exception:
            return Eager(given, result, None)
