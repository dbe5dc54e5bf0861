"""Fingerprint of all that PyTorch's operations depend on, for finished programs kept on disk.

The kernel of an operation, the strides of its results and the tensors that its gradient saves
depend on PyTorch's version, on the processor, and on settings of the process.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from tj_torch.ops.settings.modes import Modes

if TYPE_CHECKING:
    from tj_core.extend import Symbol

__all__ = ["fingerprint"]

OWN = (
    "ops.aten.", "ops.higher_order.", "ops.prims.",
    "ops._c10d_functional.", "ops._c10d_functional_autograd.",
)  # fmt: skip
"""Prefixes, after ``torch.``, of operators that PyTorch itself defines."""


def fingerprint(symbols: Collection[Symbol]) -> str | None:
    """Text of PyTorch's build, the machine and the settings; None for operators of extensions."""
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
    """Properties of the CUDA devices; () if CUDA is not initialized, which this does not do."""
    if not torch.cuda.is_initialized():
        return ()
    return tuple(map(str, map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))))
