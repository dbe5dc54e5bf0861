"""Hooks of tj-nvfuser, an executor that fuses on CUDA devices.

The hooks import torch and nvFuser when called; this module does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core.extend import hookimpl

from tj_nvfuser.options import Options

if TYPE_CHECKING:
    from tj_core.extend import Executor, Transform

TJ_PLUGIN_API = 1

TJ_PRIORITY = 5  # asked before Inductor, where a project does not say otherwise


@hookimpl
def tj_available() -> str | None:
    from importlib.util import find_spec

    from tj_torch.installation import has_no_cuda_device

    from tj_nvfuser.availability import MODULE, state

    # Asked before `state`, which imports PyTorch: listing plugins should not take that long.
    if find_spec("torch") and find_spec(MODULE) and has_no_cuda_device():
        return "PyTorch finds no CUDA device"
    return state().reason


@hookimpl
def tj_options() -> type[Any]:
    return Options


@hookimpl
def tj_executors(options: Options) -> tuple[Executor, ...]:
    from tj_nvfuser.bindings import NvFuser
    from tj_nvfuser.executor import nvfuser_executor

    return (nvfuser_executor(options, NvFuser()),)


@hookimpl
def tj_transforms(options: Options) -> tuple[Transform, ...]:
    if not options.draws:
        return ()
    from tj_nvfuser.bindings import NvFuser
    from tj_nvfuser.random import own_numbers

    return (own_numbers(NvFuser.devices),)
