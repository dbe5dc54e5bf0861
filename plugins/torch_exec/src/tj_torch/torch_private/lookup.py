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


_NOTHING: Any = object()
_ABSENT = "_absent"
"""Global of a module with a `finder`: paths of the names that were looked for in vain."""


@dataclass(frozen=True, slots=True)
class Name:
    """A private name of PyTorch: its path, a clause on its use, the features that need it.

    ``moved`` are paths at which newer versions have it, each with the first such version.
    ``newer``: some versions, mostly the oldest, lack it, and nothing is lost there.
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
    called: Mapping[str, str] | None = None,
) -> dict[str, Name]:
    """Names by what they are called, from the uses of those in each module.

    A name with a dot is that of a class's member: it is looked for, and imported by nobody.

    :param moved: newer paths of some names, each with the version that moved it.
    :param feature: what needs the names whose use says nothing of features.
    :param called: what some names are called, where that is not as PyTorch does.
    """
    return {
        (called or {}).get(name, name): Name(
            f"{module}.{name}", use, features or (feature,), (moved or {}).get(name, ())
        )
        for module, uses in modules.items()
        for name, (use, *rest) in uses.items()
        for features in (tuple(rest),)
    }


def find(path: str) -> Any:
    """The object at ``path``, a module's or what is in one: ``torch._dynamo.exc.Unsupported``.

    :raises MissingNameError: if there is none.
    """
    names = path.split(".")
    for most in (lambda module: module in sys.modules, _imported):  # what is imported is quick
        end = len(names)
        while end and not most(".".join(names[:end])):
            end -= 1
        if end:
            found: Any = sys.modules[".".join(names[:end])]
            for name in names[end:]:
                found = getattr(found, name, _NOTHING)
            if found is not _NOTHING:
                return found
    raise MissingNameError(path)


def finder(
    scope: dict[str, Any], names: Mapping[str, Name], stand_ins: Mapping[str, Any] | None = None
) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that finds ``names`` once, and keeps them in it.

    :param scope: the module's globals.
    :param stand_ins: what serves for missing names; with it, any other missing name is a class
        that raises `MissingNameError` where it is used, instead of where it is imported.
    """
    absent: dict[str, str] = {}
    scope[_ABSENT] = absent

    def getattribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {scope['__name__']!r} has no attribute {name!r}")
        if name in absent:
            raise MissingNameError(absent[name])
        try:
            found = names[name].find()
        except MissingNameError as error:
            if stand_ins is None:
                absent[name] = error.path
                raise
            found = stand_ins[name] if name in stand_ins else _lacking(error.path)
        scope[name] = found
        return found

    return getattribute


class _Lacking(type):
    """The class of stand-ins: classes of which nothing is an instance, and that make none."""

    path: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise MissingNameError(cls.path)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or "path" not in vars(cls):  # of a class that derives from it
            raise AttributeError(name)
        raise MissingNameError(cls.path)


def _lacking(path: str) -> Any:
    """A stand-in for the missing name at ``path``, which other classes may derive from."""
    return _Lacking("Lacking", (), {"path": path})


def forget(scope: dict[str, Any], names: Mapping[str, Name]) -> None:
    """Look for all ``names`` again when they are next imported from the module."""
    scope[_ABSENT].clear()
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
