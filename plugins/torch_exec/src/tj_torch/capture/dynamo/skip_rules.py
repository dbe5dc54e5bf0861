"""Make Dynamo skip tj's own code and its generated programs.

A backward runs, and may be compiled, while PyTorch's eval-frame hook is active, which would capture
all Python code that runs there.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tj_torch.torch_private.lookup import MissingNameError

__all__ = ["pass_over_own", "pass_over_package", "program_of", "uncaptured"]

_GENERATED = "<tj "
"""Prefix of the file names of generated programs. The roots of jitted functions have another one,
as they are to be captured."""

_PROGRAMS = (
    "demo.py",
    "dispatch/module.py",
    "dispatch/autocast.py",
    "layer_outputs.py",
    "capture/checked_programs.py",
)
"""Files in tj's packages that are captured like any program: the demo, calls of jitted modules,
which are part of the programs around them, the hooks of modules that are observed, and what is
captured in place of a function of PyTorch's."""


@functools.cache
def pass_over_own() -> None:
    """Make Dynamo skip the core, this plugin, and all generated programs."""
    with contextlib.suppress(MissingNameError):
        from tj_torch.torch_private.dynamo import SKIP_DIRS, _recompile_re

        # Dynamo looks for these in names of files (`_recompile_re`), which generated code has, too.
        SKIP_DIRS.append(_GENERATED)
        _recompile_re()
    pass_over_package("tj_core")
    pass_over_package("tj_torch")


@functools.cache
def pass_over_package(name: str) -> None:
    """Make Dynamo skip the code of the package ``name``, except the programs in it.

    Where this PyTorch lacks the name for it, nothing is captured.
    """
    try:
        from tj_torch.torch_private.dynamo import FORCE_SKIP_FILES
    except MissingNameError:
        return
    spec = importlib.util.find_spec(name)
    for folder in spec.submodule_search_locations or () if spec else ():
        FORCE_SKIP_FILES.update(_own_code(Path(folder)))


def _own_code(folder: Path) -> set[str]:
    """Files below ``folder`` that are no programs."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    return {path.as_posix() for name, path in files.items() if not name.startswith(_PROGRAMS)}


def program_of(call: Callable[..., Any]) -> Callable[..., Any]:
    """Program that Dynamo traces in place of ``call``, see `inlined_as`."""
    return call._torchdynamo_inline  # type: ignore[attr-defined, no-any-return]


def uncaptured(function: Callable[..., Any]) -> Callable[..., Any]:
    """Disable capture in calls of ``function``, nested calls included; return ``function``.

    Without cost where PyTorch's hook is off; with a little where names of it are missing.
    """
    try:
        from tj_torch.torch_private.dynamo import (
            FrameAction,
            FrameExecStrategy,
            set_code_exec_strategy,
        )
    except MissingNameError:
        # It does the same, and enters a context at each call.
        disabled: Callable[..., Any] = torch.compiler.disable(function)
        return disabled
    skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skip)
    return function
