"""Names that tests of an older PyTorch use and the installed one lacks, or has otherwise.

Without a name that it imports, a whole file would not load. A decorator that only chose when to
run a test, or with which settings, becomes one that runs it; any other name fails where a test uses
it.
"""

from __future__ import annotations

import importlib
import re
import unittest
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["GONE", "Gone", "adapt", "missing", "supply"]


def _as_is(function: Any) -> Any:
    return function


def _with_settings(*settings: Any, **named: Any) -> Callable[[Any], Any]:
    return _as_is


def _entry(*settings: Any, **named: Any) -> None:
    """An entry of a list of exceptions that nobody reads."""


GONE: dict[str, Any] = {
    "HAS_CUDA": False,
    "disable_translation_validation_if_dynamic_shapes": _as_is,
    "requiresPy310": _as_is,
    "requires_cuda": unittest.skip("requires CUDA"),
    "bf32_on_and_off": _with_settings,
    "skip": _entry,
    "skipOps": _with_settings,
    "tf32_is_not_fp32": lambda: False,
    "xfail": _entry,
}
"""Stand-ins by name."""


MADE = {"new_module_tests": "get_new_module_tests"}
"""Values that are now made by a function of the same module, by its name."""


class Gone:
    """Stands for a name that is no longer there; whoever uses it fails."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self) -> NoReturn:
        raise ImportError(f"{self._name} is not in the installed PyTorch")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse; as a decorator, make the test refuse."""
        if len(args) == 1 and not kwargs and getattr(args[0], "__name__", "").startswith("test"):
            return self._refusing()
        self._refuse()

    def _refusing(self) -> Callable[..., None]:
        def refusing(*args: Any, **kwargs: Any) -> None:
            self._refuse()

        return refusing


_MESSAGE = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


def missing(error: ImportError) -> tuple[str, str] | None:
    """The module and the name that an import lacked, if a module of PyTorch lacked a name."""
    found = _MESSAGE.search(str(error))
    if found is None or found[2].partition(".")[0] not in ("torch", "functorch"):
        return None
    return found[2], found[1]


def supply(module: str, name: str) -> None:
    """Put ``name`` into ``module``: as a function there makes it now, or a stand-in."""
    scope: Any = importlib.import_module(module)
    maker = getattr(scope, MADE.get(name, ""), None)
    setattr(scope, name, maker() if maker else GONE.get(name, Gone(name)))


def adapt(module: ModuleType) -> None:
    """Change test classes of a loaded file that PyTorch would now call in another way."""
    for case in vars(module).values():
        for name, arguments in HOOKS.items():
            if isinstance(case, type) and name in vars(case):
                setattr(case, name, _shortened(vars(case)[name], arguments))


HOOKS = {"guard_manager_clone_hook_fn": 3}
"""Methods that Dynamo calls, with so many arguments, the instance counted, in the older version."""


def _shortened(method: Callable[..., Any], arguments: int) -> Callable[..., Any]:
    return lambda *given: method(*given[:arguments])
