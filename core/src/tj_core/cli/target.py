"""Targets of ``tj trace`` and ``tj explain``: a function of the user's, by file or by module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tj_core.errors import TjError, did_you_mean

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["load_target"]

_FORM = "a target is file.py:function or package.module:function"


def load_target(text: str) -> Callable[[], Any]:
    """Import the function that ``text`` names, as Python would from the working directory.

    :raises TjError: if there is no such file, module or function.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise TjError(f"{text!r} is no target", hint=_FORM)
    module = _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise TjError(
            f"{place} has no function {name!r}.{did_you_mean(name, vars(module))}", hint=_FORM
        )
    return function  # type: ignore[no-any-return]


def _from_file(path: Path) -> ModuleType:
    path = path.absolute()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise TjError(f"there is no file {path}", hint=_FORM)
    _put_first(path.parent)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look a class's module up by name.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    _put_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A missing import of the user's own module is the user's error, not a bad target.
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise
        raise TjError(f"there is no module {name!r}", hint=_FORM) from error


def _put_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
