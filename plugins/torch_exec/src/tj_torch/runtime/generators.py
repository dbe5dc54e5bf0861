"""State of a device's default random number generator.

``meta`` has none: random operations draw nothing there.
"""

from __future__ import annotations

import torch

__all__ = ["random_state", "set_random_state"]


def random_state(device: str) -> torch.Tensor:
    """State of the default generator of ``device``, uint8 [bytes]."""
    kind = torch.device(device).type
    if kind == "cpu":
        return torch.get_rng_state()
    if kind == "meta":
        return torch.empty(0, dtype=torch.uint8)
    # With the index, since each device of a kind has a generator of its own.
    state: torch.Tensor = torch.get_device_module(kind).get_rng_state(device)
    return state


def set_random_state(device: str, state: torch.Tensor) -> None:
    """Set the default generator of ``device`` to a ``state`` from `random_state`."""
    kind = torch.device(device).type
    if kind == "cpu":
        torch.set_rng_state(state)
    elif kind != "meta":
        torch.get_device_module(kind).set_rng_state(state, device)
