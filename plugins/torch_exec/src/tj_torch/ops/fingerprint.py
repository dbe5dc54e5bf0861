"""What the meaning of PyTorch's operations depends on, for finished programs that are kept on disk.

PyTorch decides by its version, the processor and settings of the process which kernel an operation
calls, what its results are laid out like, and what its gradient saves.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from tj_core.extend import Symbol

from tj_torch.ops.memo.modes import Modes

__all__ = ["fingerprint"]

OWN = ("ops.aten.", "ops.higher_order.", "ops.prims.")
"""Operators by their way from ``torch`` that PyTorch defines itself."""


def fingerprint(symbols: Collection[Symbol]) -> str | None:
    """PyTorch's build, the machine and the settings; None if ``symbols`` name others' operators."""
    operators = (s.path for s in symbols if s.namespace == "torch" and s.path.startswith("ops."))
    if not all(path.startswith(OWN) for path in operators):
        return None
    facts = (
        torch.__version__,
        torch.version.git_version,
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
        Modes.current().key,
        _cuda(),
    )
    return repr(facts)


def _cuda() -> tuple[str, ...]:
    """The CUDA devices that the process uses; it is not made to use them here."""
    if not torch.cuda.is_initialized():
        return ()
    return tuple(map(str, map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))))
