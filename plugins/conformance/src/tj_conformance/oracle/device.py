"""The device that samples and models are made on, and the random numbers of all devices."""

from __future__ import annotations

import torch

__all__ = ["device", "random_state", "restore_random_state", "seed"]


def device() -> str:
    """Type of PyTorch's default device: ``cpu``, or what a ``with torch.device(...)`` says."""
    return torch.get_default_device().type


def seed(number: int) -> None:
    """Seed the generators of the CPU, and of each GPU that is in use.

    `torch.manual_seed` formats the caller's stack for each kind of device that is not in use: a
    millisecond below pytest.
    """
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def random_state() -> list[torch.Tensor]:
    """State of PyTorch's random numbers: that of the CPU, and of each GPU that is in use."""
    found = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *found]


def restore_random_state(state: list[torch.Tensor]) -> None:
    """Set the state that `random_state` returned."""
    host, *others = state
    torch.set_rng_state(host)
    if others:
        torch.cuda.set_rng_state_all(others)
