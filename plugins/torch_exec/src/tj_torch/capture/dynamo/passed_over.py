"""Nothing of tj is ever captured: Dynamo passes over tj's own code, and over what it generates.

A backward runs, and may be compiled, where PyTorch's hook is on, which would look for tensor
programs in all Python code that runs there.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["pass_over_own", "pass_over_package", "program_of", "uncaptured"]

_GENERATED = "<tj "
"""What the names of generated programs' files begin with. The functions that stand for jitted ones
are in files that are called otherwise: they are captured."""

_PROGRAMS = ("demo.py", "dispatch/module.py", "dispatch/autocast.py")
"""What is in tj's packages and is captured like any program: the demo's, and
the calls of jitted modules, which are part of the programs around them."""


@functools.cache
def pass_over_own() -> None:
    """Make Dynamo pass over the core and this plugin, and over all generated programs."""
    from tj_torch.torch_private.dynamo import trace_rules

    trace_rules.SKIP_DIRS.append(_GENERATED)
    trace_rules._recompile_re()
    pass_over_package("tj_core")
    pass_over_package("tj_torch")


@functools.cache
def pass_over_package(name: str) -> None:
    """Make Dynamo pass over the code of the package ``name``, but not the programs in it."""
    from tj_torch.torch_private.dynamo import trace_rules

    spec = importlib.util.find_spec(name)
    for folder in spec.submodule_search_locations or () if spec else ():
        trace_rules.FORCE_SKIP_FILES |= _own_code(Path(folder))


def _own_code(folder: Path) -> set[str]:
    """The files below ``folder`` that are no programs."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    return {path.as_posix() for name, path in files.items() if not name.startswith(_PROGRAMS)}


def program_of(call: Callable[..., Any]) -> Callable[..., Any]:
    """The program that Dynamo looks through where it meets ``call``: see `inlined_as`."""
    return call._torchdynamo_inline  # type: ignore[attr-defined, no-any-return]


def uncaptured(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``; in its calls nothing is captured, nor in what these call, whosever it is.

    That costs nothing where PyTorch's hook is off.
    """
    from tj_torch.torch_private.dynamo import FrameAction, FrameExecStrategy, set_code_exec_strategy

    skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skip)
    return function
