"""Refusals of `shard`: what cannot be split, or would not be gathered where it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

__all__ = ["check"]


def check(model: nn.Module, mesh: DeviceMesh) -> None:
    """Check that ``model`` can be sharded over ``mesh``, before anything is changed.

    :raises ValueError: naming the parameter or module that cannot be sharded.
    :raises TypeError: if ``mesh`` is no `DeviceMesh`, or ``model`` is compiled already.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"shard takes a module, not a {type(model).__name__}")
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"shard takes a DeviceMesh, as of init_device_mesh, not a {type(mesh).__name__}"
        )
    if not distributed.is_initialized():
        raise ValueError("there is no process group any more: call init_process_group")
    if mesh.ndim > 2:
        dims = mesh.ndim
        raise ValueError(f"the mesh has {dims} dimensions; shards take one, replicas by shards two")
    for path, module in model.named_modules():
        _check_module(path or type(module).__name__, module)
        for name, parameter in module.named_parameters(path, recurse=False):
            _check_parameter(name, parameter, mesh)


def _check_module(path: str, module: nn.Module) -> None:
    # `_orig_mod` is an attribute of what `torch.compile` returns for a module.
    if hasattr(module, "__tj__") or hasattr(module, "_orig_mod"):
        raise TypeError(f"{path} is compiled already; compile what shard returns")
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(f"{path} is a script module, whose parameters are no attributes of Python")
    for name, value in vars(module).items():
        # As `_flat_weights` of recurrent networks, which their forward reads.
        if name != "_parameters" and any(isinstance(v, nn.Parameter) for v in _within(value)):
            raise ValueError(
                f"{path}.{name} holds a parameter beside the attribute that the module registers;"
                " it would stay whole"
            )


def _within(value: Any) -> Iterator[Any]:
    """``value``, or what it holds if it is a list, a tuple or a dict."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _within(one)
    else:
        yield value


def _check_parameter(name: str, parameter: nn.Parameter, mesh: DeviceMesh) -> None:
    if isinstance(parameter, DTensor):
        raise ValueError(f"{name} is sharded already, over {parameter.device_mesh}")
    if nn.parameter.is_lazy(parameter):
        raise ValueError(
            f"{name} has no size yet; call the model once, or its modules without Lazy"
        )
    if type(parameter) is not nn.Parameter:
        raise ValueError(f"{name} is a {type(parameter).__name__}, which DTensor does not split")
    if parameter.device.type not in (mesh.device_type, "meta"):
        raise ValueError(f"{name} is on {parameter.device}, and the mesh is of {mesh.device_type}")
    if parameter.ndim == 0:
        raise ValueError(f"{name} has no dimension to split; give it one, of size 1")
    if not parameter.is_contiguous():
        raise ValueError(f"{name} is not contiguous, and what is gathered is")
