"""Models whose parameters are shards, and are gathered where a forward reads them.

A parameter is a `DTensor` that is split over the processes of a mesh. While a forward runs, the
attribute of its module is the whole tensor: ``redistribute`` gathers it, and the gradient is
averaged and split again. So one captured program has each gather and each reduction. Elsewhere
the attribute is the parameter, as with ``fully_shard``: for optimizers, initialisation, printing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional

from tj_distributed.accumulation import LEAVES, Accumulation, leading_to
from tj_distributed.adapter import in_backward
from tj_distributed.sharding_checks import check

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from torch.distributed.tensor import Placement

__all__ = ["shard"]

STATE = "_tj_sharding"
"""The attribute of a module of a sharded model with its `Sharding`."""

_TAGS = {True: "RECOMPUTE", False: "SAVE", None: None}


@dataclass(eq=False)
class Sharding:
    """State that the modules of one sharded model share.

    ``mesh`` has the sharded dimension first, so that a gradient is split before it is averaged
    over replicas. ``tag`` is for what is gathered. ``reading`` is true while a forward runs.
    """

    mesh: DeviceMesh
    tag: str | None
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    reading: bool = False
    gradients: Accumulation = field(init=False)

    def __post_init__(self) -> None:
        self.gradients = Accumulation(self.reduced)

    def read(self, shard: DTensor, leaf: torch.Tensor | None) -> torch.Tensor:
        """All of the parameter ``shard``, whose gradient goes to ``leaf`` if there is one."""
        if leaf is None:
            return self.gathered(shard)
        with torch.no_grad():
            whole = self.gathered(shard)
        led = leading_to(leaf, whole)
        return led if self.tag is None else tj.tag(led, self.tag)

    def reduced(self, total: torch.Tensor, shard: Any) -> torch.Tensor:
        """The part of the average of ``total`` that belongs to ``shard``."""
        # A reduction to shards takes parts of equal size.
        rows, count = shard.shape[0], self.mesh.size(0)
        padding = [0, 0] * (total.ndim - 1) + [0, -rows % count]
        summands = DTensor.from_local(
            functional.pad(total, padding),
            self.mesh,
            [Partial("avg")] * self.mesh.ndim,
            run_check=False,
        )
        placements = [Shard(0), Replicate()][: self.mesh.ndim]
        part = summands.redistribute(placements=placements).to_local()
        part = part.narrow(0, 0, shard.to_local().shape[0]).to(shard.dtype)
        return DTensor.from_local(
            part,
            shard.device_mesh,
            shard.placements,
            run_check=False,
            shape=shard.shape,
            stride=shard.stride(),
        )

    def gathered(self, shard: DTensor) -> torch.Tensor:
        """All of the parameter ``shard``, in the dtype to compute in."""
        forward, backward = self.dtypes(shard.dtype)
        replicated = self.even(shard).redistribute(
            placements=[Replicate()] * self.mesh.ndim,
            forward_dtype=forward,
            backward_dtype=backward,
        )
        if self.tag is not None:
            replicated = tj.tag(replicated, self.tag)
        whole: torch.Tensor = replicated.to_local(grad_placements=[Partial("avg")] * self.mesh.ndim)
        return whole if whole.shape[0] == shard.shape[0] else whole.narrow(0, 0, shard.shape[0])

    def even(self, shard: DTensor) -> DTensor:
        """``shard``, padded to the size of the first one, on this mesh.

        DTensor would pad, too, but no other rank knows that this one does. And it reduces over the
        first dimension of a mesh first, which over replicas would be whole gradients.
        """
        count = self.mesh.size(0)
        if self.mesh.ndim == 1 and shard.shape[0] % count == 0:
            return shard
        part = shard.to_local(grad_placements=shard.placements)
        missing = -(-shard.shape[0] // count) - part.shape[0]
        if missing:
            part = functional.pad(part, [0, 0] * (part.ndim - 1) + [0, missing])
        placements = [Shard(0), Replicate()][: self.mesh.ndim]
        return DTensor.from_local(part, self.mesh, placements, run_check=False)

    def dtypes(self, dtype: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
        """Data types of the gather and of the reduction, for a parameter of ``dtype``."""
        if not dtype.is_floating_point:
            return dtype, dtype
        forward = self.param_dtype or dtype
        return forward, self.reduce_dtype or forward


def shard(
    model: nn.Module,
    mesh: DeviceMesh,
    reshard: bool | None = True,
    policy: MixedPrecisionPolicy | None = None,
) -> nn.Module:
    """Split the parameters of ``model`` over ``mesh``, in place; returns ``model``.

    Each parameter becomes a `DTensor`, split in dimension 0; names stay. A mesh of two
    dimensions is of replicas by shards. Each process keeps its part of what its own parameters
    are; nothing is sent. Gradients are averages over the mesh, and add up in ``grad``.

    ``reshard`` says of compiled programs whether the backward gathers parameters again (True,
    ZeRO-3), or uses those of the forward (False, ZeRO-2); None leaves it to ``memory_budget``.
    ``policy`` says in which data types parameters are gathered and gradients reduced, and casts
    arguments and results of ``model``, as ``fully_shard`` does.

    :raises ValueError: naming the parameter or module that cannot be sharded.
    :raises TypeError: if ``mesh`` is no `DeviceMesh`, or ``model`` is compiled already.
    """
    check(model, mesh)
    if reshard not in _TAGS:
        raise ValueError(f"reshard is {reshard!r}, and one of True, False, None")
    param_dtype, reduce_dtype = (
        (policy.param_dtype, policy.reduce_dtype) if policy else (None, None)
    )
    shared = Sharding(_shards_first(mesh), _TAGS[reshard], param_dtype, reduce_dtype)
    _split(model, mesh)
    for module in model.modules():
        _set_class(module, shared, root=module is model)
    if policy is not None:
        _cast_at_boundary(model, policy)
    return model


def _shards_first(mesh: DeviceMesh) -> DeviceMesh:
    """``mesh``, with dimensions in the order of reductions."""
    if mesh.ndim == 1:
        return mesh
    names = mesh.mesh_dim_names
    return DeviceMesh.from_group(
        [mesh.get_group(1), mesh.get_group(0)],
        mesh.device_type,
        mesh=mesh.mesh.t().contiguous(),
        mesh_dim_names=None if names is None else names[::-1],
    )


def _split(model: nn.Module, mesh: DeviceMesh) -> None:
    """Replace the parameters of ``model``; one that several modules have stays one."""
    placements = (*[Replicate()] * (mesh.ndim - 1), Shard(0))
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, whole in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if whole not in made:
                made[whole] = _shard_of(whole, mesh, placements)
            setattr(module, name, made[whole])


def _shard_of(whole: nn.Parameter, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> Any:
    """This process's shard of ``whole``, which does not keep the memory of ``whole``."""
    value = whole.detach()
    # None: each rank splits what it has. By default, the first one would scatter its values.
    part = distribute_tensor(value, mesh, placements, src_data_rank=None).to_local().clone()
    found = DTensor.from_local(
        part, mesh, placements, run_check=False, shape=value.shape, stride=value.stride()
    )
    return nn.Parameter(found, requires_grad=whole.requires_grad)


def _set_class(module: nn.Module, shared: Sharding, root: bool) -> None:
    """Let ``module`` be of a class that gathers the parameters that it has."""
    names = tuple(
        name for name, _ in module.named_parameters(recurse=False, remove_duplicate=False)
    )
    # A subclass in the module's place: it stays the object that others hold, and of its type to
    # `isinstance`.
    cls: Any = type(module)  # which mypy takes for unhashable
    if names or root or _has_forward(cls):
        vars(module)[STATE] = shared
        module.__class__ = _sharded_class(cls, names, root)


def _has_forward(cls: type[nn.Module]) -> bool:
    return cls.forward is not nn.Module.forward


@functools.cache
def _sharded_class(cls: type[nn.Module], names: tuple[str, ...], root: bool) -> type[nn.Module]:
    """A subclass of ``cls`` in whose forwards the parameters ``names`` are whole."""
    members: dict[str, Any] = {name: _property(name) for name in names}
    if _has_forward(cls):
        members["forward"] = _forward(cls.forward)
    if root:
        members["set_requires_gradient_sync"] = _set_requires_gradient_sync
    members |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (cls,), members)


def _forward(forward: Any) -> Any:
    """``forward`` of a class, in which parameters are whole."""

    @functools.wraps(forward)
    def reading(self: Any, *args: Any, **kwargs: Any) -> Any:
        shared = vars(self)[STATE]
        if shared.reading:  # nothing is written: checkpointed code may not, where it is captured
            return forward(self, *args, **kwargs)
        shared.reading = True
        try:
            return forward(self, *args, **kwargs)
        finally:
            shared.reading = False

    return reading


def _set_requires_gradient_sync(self: Any, requires_gradient_sync: bool) -> None:
    """Let backwards reduce gradients, or add them up without communication.

    To be called before the forward. Sums are reduced in the next backward that synchronises.
    """
    shared = vars(self)[STATE]
    shared.gradients.set_sync(self, requires_gradient_sync, shared.dtypes)


def _property(name: str) -> property:
    """The parameter ``name``: whole while a forward runs, else what is registered."""

    def read(self: Any) -> Any:
        # A property of the class comes before `nn.Module.__getattr__`, which finds parameters.
        found = self._parameters[name]
        # `functional_call` and the like put plain tensors in the place of parameters.
        if not isinstance(found, DTensor):
            return found
        shared = vars(self)[STATE]
        if not (shared.reading or _runs_again()):
            return found
        leaves = vars(self).get(LEAVES, _NO_LEAVES) if shared.gradients.on else _NO_LEAVES
        return shared.read(found, leaves.get(name))

    return property(read)


def _runs_again() -> bool:
    """Test for a checkpointed part of a forward, which eager's backward runs again."""
    return not torch.compiler.is_compiling() and in_backward()


_NO_LEAVES: dict[str, torch.Tensor] = {}


def _cast_at_boundary(model: nn.Module, policy: MixedPrecisionPolicy) -> None:
    """Cast what goes into ``model``, and what comes out, as ``policy`` says."""
    dtype = policy.param_dtype
    if dtype is not None and policy.cast_forward_inputs:

        def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
            return _cast(args, dtype), _cast(kwargs, dtype)

        # Before hooks of the user's, as that of `fully_shard`.
        model.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
    output_dtype = policy.output_dtype
    if output_dtype is not None:

        def after(_: nn.Module, args: Any, result: Any) -> Any:
            return _cast(result, output_dtype)

        model.register_forward_hook(after)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """``values``, with floating-point tensors in tuples, lists and dicts of ``dtype``."""
    if isinstance(values, torch.Tensor):
        return values.to(dtype) if values.is_floating_point() else values
    if isinstance(values, dict):
        return {key: _cast(value, dtype) for key, value in values.items()}
    # No subclasses: a named tuple is made of its fields one by one.
    if type(values) in (tuple, list):
        return type(values)([_cast(value, dtype) for value in values])
    return values
