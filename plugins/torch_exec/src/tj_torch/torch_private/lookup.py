"""Objects of PyTorch found by their paths, and the error for those that a version lacks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from tj_core.extend import CaptureError

__all__ = ["TRACKER", "MissingNameError", "find", "finder", "paths_of"]

TRACKER = "the issue tracker of tj-torch"
"""The place for reports of names that a new PyTorch lacks."""


class MissingNameError(CaptureError):
    """This PyTorch has no such private name. ``path`` is the name that was looked for."""

    def __init__(self, path: str) -> None:
        super().__init__(f"tj-torch does not know PyTorch {torch.__version__}: no {path}")
        self.path = path


def find(path: str) -> Any:
    """The object at ``path``, a module's or what is in one: ``torch._dynamo.exc.Unsupported``.

    :raises MissingNameError: if there is none.
    """
    rest: list[str] = []
    module = path
    while not _imported(module):
        module, _, last = module.rpartition(".")
        rest.insert(0, last)
        if not module:
            raise MissingNameError(path)
    found: Any = sys.modules[module]
    for part in rest:
        if not hasattr(found, part):
            raise MissingNameError(path)
        found = getattr(found, part)
    return found


def paths_of(modules: Mapping[str, str]) -> dict[str, str]:
    """The paths of names, from the names in each module, which stand in one text."""
    return {name: f"{module}.{name}" for module, names in modules.items() for name in names.split()}


def finder(
    scope: dict[str, Any], paths: Mapping[str, str], moved: Mapping[str, str] = MappingProxyType({})
) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that finds the names of ``paths`` once, and keeps them in it.

    :param scope: the module's globals.
    :param moved: the paths at which newer versions of PyTorch have some of the names.
    """

    def getattribute(name: str) -> Any:
        if name not in paths:
            raise AttributeError(f"module {scope['__name__']!r} has no attribute {name!r}")
        try:
            found = find(paths[name])
        except MissingNameError:
            if name not in moved:
                raise
            found = find(moved[name])
        scope[name] = found
        return found

    return getattribute


def _imported(module: str) -> bool:
    """Import the module, if there is one of that name."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:  # of this module, or of one that it needs: it is as good as none
        return False
    return True
