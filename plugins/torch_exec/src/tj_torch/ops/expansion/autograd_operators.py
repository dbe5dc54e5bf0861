"""Record the operators that PyTorch's autograd sees in a call, on values that require grad.

A body is recorded below functionalization, which may replace operators: it has the gradients of its
call only if autograd sees the same operators. So the function runs on fake tensors once more, with
only an observer below autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import PLAIN_CONTEXT, BoundSymbol, Context, TensorProxy, leaves

from tj_torch.ops.context.entering import surroundings
from tj_torch.ops.facts.operators import op_symbol
from tj_torch.ops.fakes.modes import decompositions
from tj_torch.torch_private.runtime import TorchDispatchMode

if TYPE_CHECKING:
    from tj_torch.ops.expansion.expander import Expander
    from tj_torch.ops.expansion.run import Run
    from tj_torch.ops.sizes.program import Sizes

__all__ = ["Observed", "observed", "run_below_autograd", "same_operators"]


@dataclass(frozen=True, slots=True)
class Observed:
    """Operator by name, with the number of its arguments that require grad."""

    name: str
    count: int
    writes: bool = False


def observed(
    expander: Expander,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    context: Context = PLAIN_CONTEXT,
    sizes: Sizes | None = None,
) -> tuple[Observed, ...]:
    """Operators that autograd sees in ``fn(*args, **kwargs)``, in order.

    Arguments and errors as in `Expander.expand`.
    """
    return expander.run(_observe, fn, args, kwargs, context, sizes)


def same_operators(seen: Iterable[Observed] | None, calls: Iterable[BoundSymbol]) -> bool:
    """Test if ``calls``, with ``requires_grad`` in their metadata, have the gradients of ``seen``.

    They do if no operator in ``seen`` writes, and the differentiated ``calls`` are a subsequence
    of ``seen`` (the others were dead). False if ``seen`` is None, that is unknown.
    """
    seen = None if seen is None else tuple(seen)
    if seen is None or any(operator.writes for operator in seen):
        return False
    rest = iter(seen)
    wanted = (Observed(c.symbol.qualname, n) for c in calls if (n := _count(c.flat_args)))
    # `in` consumes the iterator: the operators have to come in this order.
    return all(operator in rest for operator in wanted)


def _count(values: Iterable[Any]) -> int:
    tensors = (x for x in values if isinstance(x, torch.Tensor | TensorProxy))
    return sum(x.requires_grad for x in tensors)


@dataclass(eq=False)
class _Observer(TorchDispatchMode):
    found: list[Observed] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` on the modes below, and record it."""
        kwargs = kwargs or {}
        if count := _count(leaves((args, kwargs))):
            name = op_symbol(func).qualname
            self.found.append(Observed(name, count, func._schema.is_mutable))
        return func(*args, **kwargs)


def _observe(run: Run, _: Any) -> tuple[Observed, ...]:
    observer = _Observer()
    run_below_autograd(run, observer)
    return tuple(observer.found)


def run_below_autograd(run: Run, observer: TorchDispatchMode) -> None:
    """Run the call on plain fakes that require grad as the arguments do; ``observer`` looks on."""
    with surroundings(run.grad, run.rest):
        run.plainly(autograd=True)
        with run.mode, decompositions(run.decompose), observer:
            run.call()
