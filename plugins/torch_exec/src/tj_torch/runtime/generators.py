"""States of random number generators: of a device's default one, and of those of a program.

``meta`` has none: random operations draw nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

__all__ = ["NO_STATES", "random_state", "random_states", "set_random_state", "set_random_states"]

States: TypeAlias = tuple[
    Sequence[tuple[str, torch.Tensor]], Sequence[tuple[torch.Generator, torch.Tensor]]
]
"""States of default generators by device, as ``cuda:0``, and of other generators."""

NO_STATES: States = ((), ())
"""The states of no generators."""


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


def random_states(devices: Sequence[str], generators: Sequence[torch.Generator]) -> States:
    """The states of the default generators of ``devices``, and of ``generators``."""
    return [(d, random_state(d)) for d in devices], [(g, g.get_state()) for g in generators]


def set_random_states(states: States) -> None:
    """Set generators to ``states``, which `random_states` has returned."""
    for device, state in states[0]:
        set_random_state(device, state)
    for generator, state in states[1]:
        generator.set_state(state)
