"""The composability table: programs that show which features of PyTorch and Python `tj.jit`
supports.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from tj_suites.composability import (
    distributed,
    hooks,
    modules,
    python,
    tensors,
    tooling,
    training,
    world,
)
from tj_suites.composability.row import Report, Row, Status, run_row

__all__ = ["ROWS", "Report", "Row", "Status", "run_row"]

_MODULES: Mapping[str, tuple[ModuleType, ...]] = {
    "Modules": (modules, hooks),
    "Training": (training, distributed),
    "Kinds of tensors": (tensors,),
    "Tools of PyTorch": (tooling,),
    "Python": (python, world),
}

ROWS: Mapping[str, tuple[Row, ...]] = MappingProxyType(
    {
        title: tuple(
            value
            for module in modules
            for value in vars(module).values()
            if isinstance(value, Row) and value.program.__module__ == module.__name__
        )
        for title, modules in _MODULES.items()
    }
)
"""Rows by subject."""
