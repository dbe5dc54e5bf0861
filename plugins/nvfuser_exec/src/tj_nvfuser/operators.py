"""Calls that may be in a region, decided by metadata alone; nvFuser is not loaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tj_core.extend import (
    BoundSymbol,
    Decline,
    NumberProxy,
    Proxy,
    SymDim,
    TensorProxy,
    leaves,
    makes_views,
    sizes_are_bound,
)
from tj_torch.extend import is_on

from tj_nvfuser.definition import COMMON
from tj_nvfuser.layouts import dense_order
from tj_nvfuser.operations.table import OPERATIONS
from tj_nvfuser.refusal import Refused
from tj_nvfuser.translate import states, tried, without_tensors

if TYPE_CHECKING:
    from tj_nvfuser.bindings import Target
    from tj_nvfuser.operations.call import Operation
    from tj_nvfuser.options import Options

__all__ = ["Operators"]

FLOAT8_SINCE = 8, 9
"""Least compute capability of devices with 8-bit floats."""

MOST_DIMENSIONS = 8
"""Largest number of dimensions of a tensor in nvFuser's kernels."""


@dataclass(frozen=True, slots=True)
class Operators:
    """Decisions of an executor with ``options``, for tensors on the devices of ``target``."""

    options: Options
    target: Target

    def can_fuse(self, call: BoundSymbol) -> bool | Decline:
        """Decide if ``call`` has a definition."""
        operation = OPERATIONS.get(call.symbol.qualname)
        if operation is None:
            return Decline("nvFuser has no such operation")
        if operation.option and not getattr(self.options, operation.option):
            return Decline(f"[tool.tj.nvfuser] {operation.option} is not on")
        if operation.option == "scans" and (reason := self.target.no_scans()):
            return Decline(reason)
        # Autocast casts what goes into PyTorch's operators, and these would not run.
        if is_on(call.context):
            return Decline("it runs under autocast")
        try:
            self.metadata(call, operation)
            tried(call)
        except Refused as refused:
            return Decline(str(refused))
        return True

    def metadata(self, call: BoundSymbol, operation: Operation) -> None:
        """Check that a region takes the values of ``call``.

        :raises Refused: if not.
        """
        dtypes = (*COMMON, *operation.dtypes)
        seeded = states([call])
        for p in without_tensors(call).flat_args:
            if p.name not in seeded:
                self.value(p, dtypes, number=operation.computes)
        made = [
            p
            for i, p in enumerate(leaves(call.outputs))
            if isinstance(p, Proxy) and (operation.makes is None or i in operation.makes)
        ]
        for p in made:
            self.value(p, dtypes, number=False)
            if isinstance(p, TensorProxy) and not makes_views(call):
                dense_order(p)
        if not any(isinstance(p, TensorProxy) for p in made):
            raise Refused("it returns no tensor")

    def value(self, p: Proxy, dtypes: Collection[str], number: bool) -> None:
        """Check that a region takes ``p`` in a call that takes ``dtypes``.

        With ``number``, it may be a tensor on the CPU without dimensions, which nvFuser reads as a
        number. Where it would be spread alone, nvFuser leaves the result on the CPU, and stops.

        :raises Refused: if not.
        """
        if isinstance(p, NumberProxy):
            if p.hint is None:
                raise Refused(f"{p.name} depends on data")
            return
        if not isinstance(p, TensorProxy):
            raise Refused(f"{p.name} is no tensor")
        if p.subclass is not None or p.layout != "strided" or p.flags:
            raise Refused(f"{p.name} is no plain tensor")
        self._tensor(p, dtypes, number)

    def _tensor(self, p: TensorProxy, dtypes: Collection[str], number: bool) -> None:
        read = number and p.device.type == "cpu" and not p.shape
        if p.device.type not in self.target.devices and not read:
            raise Refused(f"{p.name} is on {p.device}")
        if p.dtype.name not in dtypes:
            raise Refused(f"no kernels for {p.dtype.name}")
        if p.dtype.name.startswith("float8") and self.target.capability(p.device) < FLOAT8_SINCE:
            raise Refused(f"{p.device} computes with no {p.dtype.name}")
        if any(isinstance(n, SymDim) and n.hint is None for n in (*p.shape, *p.strides)):
            raise Refused(f"the sizes of {p.name} depend on data")
        if 0 in p.shape:
            raise Refused(f"{p.name} has no elements")
        if p.ndim > MOST_DIMENSIONS:
            raise Refused(f"{p.name} has more than {MOST_DIMENSIONS} dimensions")

    def is_kernel(self, call: BoundSymbol) -> bool:
        """Check that ``call`` shares a kernel with its neighbours."""
        operation = OPERATIONS.get(call.symbol.qualname)
        return operation is not None and operation.joins

    def check(self, calls: Sequence[BoundSymbol]) -> bool | Decline:
        """Decide if ``calls`` are worth a region: they compute, on one device, from tensors."""
        if not any(OPERATIONS[call.symbol.qualname].computes for call in calls):
            return Decline("they place elements, and compute nothing")
        devices = {p.device for call in calls for p in call.flat_outs if isinstance(p, TensorProxy)}
        if len(devices) != 1:
            return Decline("they are on several devices")
        made = {p.name for call in calls for p in call.flat_outs}
        taken = (p for call in calls for p in call.flat_args if p.name not in made)
        if not any(isinstance(p, TensorProxy) and p.device in devices for p in taken):
            return Decline("they take no tensor, which would say where to run")
        return sizes_are_bound(calls)
