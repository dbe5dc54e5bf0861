"""Programs that differentiate what they compute: their results, and when they run as captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tj_torch.torch_private.runtime import DelayedError, saved_tensors_are_hooked

__all__ = ["ending", "is_unobserved"]


def is_unobserved() -> bool:
    """Test that nobody looks at the tensors that a backward saves, or computes.

    Hooks on saved tensors do, and anomaly detection, which raises for NaN.
    """
    return not (saved_tensors_are_hooked() or torch.is_anomaly_enabled())


def ending(
    function: Callable[..., Any], errors: Mapping[int, tuple[str, Sequence[int]]]
) -> Callable[..., Any]:
    """Make results of ``function``, by index in its sequence, raise errors in a backward.

    ``errors`` has the texts, and the indices of the arguments that the results depend on. These
    results require no gradient; what is returned in their place shares their memory.
    """
    if not errors:
        return function
    ends = [(i, DelayedError(text, 2 + len(used)), used) for i, (text, used) in errors.items()]
    leaf = torch.zeros((), requires_grad=True)  # a result requires a gradient if an argument does

    def ended(*args: Any) -> Any:
        results = [*function(*args)]
        for i, end, used in ends:
            results[i] = end(results[i], leaf, *[args[k] for k in used])[0]
        return tuple(results)

    return ended
