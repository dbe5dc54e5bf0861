"""sympy, imported at its first use: that takes longer than loading a program of fixed sizes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["sympy"]


class _Later:
    """A module that is imported when an attribute of it is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


if TYPE_CHECKING:
    import sympy
else:
    sympy = _Later("sympy")
