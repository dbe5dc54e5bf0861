"""The executor: the calls that it fuses, and the compilation of a program's regions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tj_core.extend import (
    BoundSymbol,
    Decline,
    Executor,
    Fusion,
    Packaging,
    TensorProxy,
    makes_views,
)

from tj_inductor.adapter.features import is_lost
from tj_inductor.adapter.names import IN_PLACE
from tj_inductor.alone import pays_alone
from tj_inductor.compiler import Compiler
from tj_inductor.decompositions import decompositions
from tj_inductor.draws import claims
from tj_inductor.operators import can_fuse, convolves, is_kernel
from tj_inductor.packaging import members, restore
from tj_inductor.repeated.finding import repeats
from tj_inductor.variants import sizes_are_read

if TYPE_CHECKING:
    from tj_inductor.options import Options

__all__ = ["inductor_executor"]


def is_worth_it(calls: Sequence[BoundSymbol]) -> bool | Decline:
    """Decide if a region of ``calls`` fuses anything, or is one call that is faster in a region.

    Products and convolutions are kernels of their own, which eager calls with less overhead.
    """
    if len(calls) == 1:
        if not pays_alone(calls[0]):
            return Decline("it is one call, which PyTorch's kernel runs as fast")
    elif not any(is_kernel(call) and not makes_views(call) for call in calls):
        return Decline("each of its calls is a kernel of its own")
    elif not any(isinstance(p, TensorProxy) for call in calls for p in call.flat_args):
        return Decline("its calls read no tensor, and PyTorch's kernels fill one as fast")
    return sizes_are_read(calls)


def is_on_cpu(p: TensorProxy) -> bool:
    """Check that a region may write to ``p``: not on a GPU, where a
    CUDA graph may hold the region.
    """
    return p.device.type == "cpu" and not is_lost(IN_PLACE)


def stays_whole(calls: Sequence[BoundSymbol]) -> bool:
    """Decide if ``calls`` are one region, though parts of them are equal."""
    return convolves(calls) or repeats(calls)


def inductor_executor(options: Options) -> Executor:
    """Make the executor, which fuses, and claims draws alone."""
    compiler = Compiler(options)
    fusion = Fusion(
        can_fuse,
        compiler.compile,
        kernel=is_kernel,
        check=sizes_are_read if options.minimum == 1 else is_worth_it,
        minimum=1 if options.minimum == 2 else options.minimum,
        hosts=True,
        together=compiler.together,
        whole=stays_whole,
        restore=compiler.restore,
        fingerprint=compiler.fingerprint,
        detached=False,
        overwrites=is_on_cpu,
        consumes=True,
        begin=functools.partial(compiler.together, goes_on=True),
    )
    packaging = Packaging(functools.partial(members, compiler), restore)
    made = decompositions()
    return Executor("inductor", claims(), fusion=fusion, decompositions=made, packaging=packaging)
