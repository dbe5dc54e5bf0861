"""Warnings that a session gives once, about the installed plugins."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.errors import TjWarning
from tj_core.ir.proxy import requires_grad
from tj_core.ir.stage import Stage
from tj_core.ir.tree import leaves

if TYPE_CHECKING:
    from tj_core.compile.transforms import Ranked
    from tj_core.contract.executors import Executor
    from tj_core.ir.trace import Trace

__all__ = ["UnfusedTraining"]


@dataclass
class UnfusedTraining:
    """The warning that executors cannot fuse programs that need gradients.

    Without a transform that makes stage JOINT, PyTorch's autograd differentiates the program, so
    that PyTorch's kernels have to run it.
    """

    given: bool = False
    lock: Any = field(default_factory=threading.Lock)

    def look_at(
        self, acquired: Trace, executors: Sequence[Executor], transforms: Sequence[Ranked]
    ) -> None:
        """Warn at the first program that needs gradients, if no transform takes them."""
        if self.given or any(t.transform.produces is Stage.JOINT for t in transforms):
            return
        fusing = [e.name for e in executors if e.fusion is not None]
        if not fusing or not any(map(requires_grad, leaves(acquired.outputs))):
            return
        # Two threads may compile their first programs at once.
        with self.lock:
            given, self.given = self.given, True
        if not given:
            text = (
                f"tj: {', '.join(fusing)} cannot fuse programs that need gradients: no plugin in "
                "use takes gradients, so PyTorch's kernels run these programs; "
                "pip install tj-autograd, or enable it"
            )
            warnings.warn(TjWarning(text), stacklevel=2)
