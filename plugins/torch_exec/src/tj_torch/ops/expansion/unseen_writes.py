"""Find writes to tensors with an autograd history that autograd does not see.

These change the value and leave the history as it is: a gradient goes past them. So do kernels of
PyTorch, such as that of ``cosine_similarity``, which writes norms under ``no_grad``. A recording of
operators has the new value, and would have its history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import Context, leaves

from tj_torch.ops.expansion.autograd_operators import run_below_autograd
from tj_torch.ops.facts.schema_effects import bound_arguments
from tj_torch.torch_private import ops as private
from tj_torch.torch_private.runtime import TorchDispatchMode

if TYPE_CHECKING:
    from tj_torch.ops.expansion.expander import Expander
    from tj_torch.ops.expansion.run import Run
    from tj_torch.ops.sizes.program import Sizes

__all__ = ["writes_unseen"]


def writes_unseen(
    expander: Expander,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    context: Context,
    sizes: Sizes,
) -> bool:
    """Run ``fn`` on fakes of ``args``, which are proxies; see if it makes such a write.

    :raises CannotExpandError: if it does not run.
    :raises ExpansionError: if PyTorch raises.
    """

    def work(run: Run, kind: Any) -> bool:
        watching = _Watching()
        run_below_autograd(run, watching)
        return watching.found

    return expander.run(work, fn, args, {}, context, sizes)


class _Watching(TorchDispatchMode):
    """Mode that looks at writes; ``found`` is set by one that autograd does not see.

    ``tracked`` are tensors with a history, by storage, kept so that no other gets the number.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of PyTorch
        self.tracked: dict[int, torch.Tensor] = {}
        self.found = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``, and look at what it writes."""
        kwargs = kwargs or {}
        given = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        self.tracked |= {private.storage_id(x): x for x in given if x.requires_grad}
        for x in _written(func, args, kwargs):
            seen = x.requires_grad and torch.is_grad_enabled()
            self.found |= not seen and private.storage_id(x) in self.tracked
        return func(*args, **kwargs)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that the schema of ``func`` says it writes."""
    for argument, value in bound_arguments(func._schema, args, kwargs):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from (x for x in leaves(value) if isinstance(x, torch.Tensor))
