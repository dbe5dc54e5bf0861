"""The form of packages of PyTorch's programs, as a record; it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tj_core.extend import PackageFormat

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.extend import Jitted

__all__ = ["package_format"]


def package_format() -> PackageFormat:
    """Make the record."""
    return PackageFormat("torch", _export, _load, _accepts)


def _export(
    jitted: Jitted, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any, training: bool
) -> Any:
    from tj_torch.package.exporting import export

    return export(jitted, args, kwargs, dynamic, training)


def _load(path: Path) -> Any:
    from tj_torch.package.program import Package

    return Package.load(path)


def _accepts(path: Path) -> bool:
    # Damage is told by `load`, in its own words.
    return True
