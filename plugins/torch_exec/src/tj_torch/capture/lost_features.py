"""Warnings of features that are lost in this PyTorch: once in a process for each."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from tj_core.extend import TjWarning

from tj_torch.capture.sources import users_stacklevel

if TYPE_CHECKING:
    from tj_torch.torch_private.tables import Table

__all__ = ["forget_said", "say_lost"]

# PyTorch is one for all sessions of the process, and one word on it is enough.
_said: set[tuple[str, str]] = set()


def say_lost(table: Table, lost: Mapping[str, str]) -> None:
    """Warn of each feature of ``table`` that is ``lost``, with its reason, once in a process."""
    for name, reason in lost.items():
        if (table.owner, name) in _said:
            continue
        _said.add((table.owner, name))
        warnings.warn(
            f"tj: PyTorch {torch.__version__} is not fully known to {table.owner}: {name}: "
            f"{reason}; {table.feature(name).without}. Please tell {table.tracker}.",
            TjWarning,
            stacklevel=users_stacklevel(),
        )


def forget_said(owners: Iterable[str]) -> None:
    """Warn again of what ``owners`` have lost; for tests."""
    _said.difference_update({key for key in _said if key[0] in set(owners)})
