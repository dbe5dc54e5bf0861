"""Objects of PyTorch found by their paths, and the error for those that a version lacks."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.extend import CaptureError

__all__ = ["MissingNameError", "Name", "find", "finder", "forget", "names_in"]


class MissingNameError(CaptureError):
    """This PyTorch has no such private name. ``path`` is the name that was looked for."""

    def __init__(self, path: str) -> None:
        super().__init__(f"tj does not know PyTorch {torch.__version__}: no {path}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Name:
    """A private name of PyTorch: its path, a clause on its use, the features that need it.

    ``moved`` are paths at which newer versions have it, each with the first such version.
    ``newer``: the oldest versions lack it, and nothing is lost there.
    """

    path: str
    use: str
    features: tuple[str, ...]
    moved: tuple[tuple[str, str], ...] = ()
    newer: bool = False

    def find(self) -> Any:
        """The object, wherever this PyTorch has it.

        :raises MissingNameError: if it has none.
        """
        try:
            return find(self.path)
        except MissingNameError:
            for _, path in self.moved:
                try:
                    return find(path)
                except MissingNameError:
                    continue
            raise


Use = tuple[str, ...]
"""A clause on the use of a name, and the features that need it."""


def names_in(
    modules: Mapping[str, Mapping[str, Use]],
    moved: Mapping[str, tuple[tuple[str, str], ...]] | None = None,
    *,
    feature: str = "",
) -> dict[str, Name]:
    """Names by what they are called, from the uses of those in each module.

    A name with a dot is that of a class's member: it is looked for, and imported by nobody.

    :param moved: newer paths of some names, each with the version that moved it.
    :param feature: what needs the names whose use says nothing of features.
    """
    return {
        name: Name(f"{module}.{name}", use, features or (feature,), (moved or {}).get(name, ()))
        for module, uses in modules.items()
        for name, (use, *rest) in uses.items()
        for features in (tuple(rest),)
    }


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


def finder(scope: dict[str, Any], names: Mapping[str, Name]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that finds ``names`` once, and keeps them in it.

    :param scope: the module's globals.
    """

    def getattribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {scope['__name__']!r} has no attribute {name!r}")
        scope[name] = found = names[name].find()
        return found

    return getattribute


def forget(scope: dict[str, Any], names: Mapping[str, Name]) -> None:
    """Look for all ``names`` again when they are next imported from the module."""
    for name in names:
        scope.pop(name, None)


def _imported(module: str) -> bool:
    """Import the module, if there is one of that name."""
    try:
        with warnings.catch_warnings():  # PyTorch's own use of what it deprecates is no news
            warnings.simplefilter("ignore", DeprecationWarning)
            importlib.import_module(module)
    except ModuleNotFoundError:  # of this module, or of one that it needs: it is as good as none
        return False
    return True
