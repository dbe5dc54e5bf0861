"""Targets of ``tj trace``, ``tj explain`` and ``tj report``: a user's program, and its inputs.

A target is ``file.py:name`` or ``package.module:name``. The name is a function or a module, jitted
or not, or a function without parameters that runs a program or makes one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tj_core.cli.inputs import Inputs, annotated_inputs, given_inputs, required_parameters
from tj_core.errors import TjError, did_you_mean
from tj_core.host.jitted import Jitted

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Program", "as_environment", "find_program"]

_FORM = "a target is file.py:function or package.module:function"


@dataclass(frozen=True, slots=True)
class Program:
    """The program of a target, and the ``inputs`` to run it with.

    ``function`` is jitted or not. ``inputs`` are None for a jitted function that has run, where the
    target is a function that runs it, or the file itself does.
    """

    target: str
    function: Any
    inputs: Inputs | None

    @property
    def original(self) -> Any:
        """The function as the user wrote it, not jitted."""
        state = _state(self.function)
        return self.function if state is None else state.fn

    def run(self, **options: Any) -> Any:
        """Run the program unless it has run; return it jitted.

        ``options`` are those of `tj.jit`, for a program that is not jitted yet.
        """
        from tj_core.api import jit

        if self.inputs is None:
            return self.function
        jitted = jit(self.function, **options) if _state(self.function) is None else self.function
        self.inputs.call(jitted)
        return jitted


def find_program(target: str, inputs: str | None = None) -> Program:
    """Import what ``target`` names, and find the inputs to run it with.

    Inputs are ``inputs``, the text of arguments (``"torch.rand(4, 8), k=3"``), evaluated in the
    target's module; else made from the annotations of the parameters (``x: "cpu f32[4, 8]"``, as in
    printed traces). A function without parameters is run: the program is the callable that it
    returns, else the jitted function of its file that it has called, else the function itself.

    :raises TjError: if there is no such target, or nothing says with what to run it.
    """
    module, function = _load(target)
    if _state(function) is None and required_parameters(function) == ():
        function = _ran(target, module, function)
        if inputs is None and _has_run(function):
            return Program(target, function, None)
    if inputs is not None:
        return Program(target, function, given_inputs(target, function, inputs, vars(module)))
    found = annotated_inputs(_plain(function), vars(module))
    if found is None and _has_run(function):
        return Program(target, function, None)
    if found is None:
        raise _no_inputs(target, _plain(function))
    return Program(target, function, found)


@contextlib.contextmanager
def as_environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Put global options into the environment, for sessions of the user's program."""
    changes = {name: value for name, value in changes.items() if value is not None}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update({name: value for name, value in changes.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# ------------------------------------------------------------------------------- programs


def _state(function: object) -> Jitted | None:
    found = getattr(function, "__tj__", None)
    return found if isinstance(found, Jitted) else None


def _plain(function: Any) -> Any:
    state = _state(function)
    return function if state is None else state.fn


def _has_run(function: object) -> bool:
    state = _state(function)
    return state is not None and state.last is not None


def _ran(target: str, module: ModuleType, function: Any) -> Any:
    """The program that ``function``, which takes nothing, makes or runs."""
    before = _calls(module)
    result = function()
    if callable(result):
        return result
    ran = [name for name, count in _calls(module).items() if count > before.get(name, 0)]
    if len(ran) > 1:
        raise TjError(
            f"{target} runs several jitted functions: {', '.join(ran)}",
            hint="name one of them as the target, or return the one to be shown",
        )
    if ran:
        return getattr(module, ran[0])
    if result is None:
        raise TjError(
            f"{target} returned nothing, and runs no jitted function of its file",
            hint="it must return what tj.jit returned",
        )
    return function


def _calls(module: ModuleType) -> dict[str, int]:
    """The number of calls of each jitted function in ``module``; each under its first name."""
    found: dict[int, tuple[str, Jitted]] = {}
    for name, value in vars(module).items():
        if (state := _state(value)) is not None:
            found.setdefault(id(state), (name, state))
    for _, state in found.values():
        state.count()
    return {name: state.stats.calls for name, state in found.values()}


def _no_inputs(target: str, function: Any) -> TjError:
    needed = required_parameters(function) or ()
    takes = " and ".join(filter(None, (", ".join(needed[:-1]), *needed[-1:])))
    return TjError(
        f"{target} takes {takes}, and nothing says with what to run it"
        if needed
        else f"{target} has not run, and nothing says with what to run it",
        hint='give --inputs "torch.rand(4, 8), ...", annotate each parameter as traces print it '
        '(x: "cpu f32[4, 8]"), or name a function without parameters that runs it',
    )


# ------------------------------------------------------------------------------- importing


def _load(text: str) -> tuple[ModuleType, Any]:
    """The module that ``text`` names, and the callable in it.

    The import is as Python's from the working directory.

    :raises TjError: if there is no such file, module or function.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise TjError(f"{text!r} is no target", hint=_FORM)
    module = _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    function: Any = module
    for part in name.split("."):
        if not hasattr(function, part):
            raise TjError(
                f"{place} has no function {name!r}.{did_you_mean(part, dir(function))}", hint=_FORM
            )
        function = getattr(function, part)
    if not callable(function):
        kind = type(function).__qualname__
        raise TjError(f"{name!r} of {place} is no function, but of type {kind}", hint=_FORM)
    return module, function


def _from_file(path: Path) -> ModuleType:
    path = path.absolute()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise TjError(f"there is no file {path}", hint=_FORM)
    _put_first(path.parent)  # as `python file.py` does
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look a class's module up by name.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    _put_first(Path.cwd())  # as `python -m` does
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
