"""Check that the backward of a segment frees its graph, so that it can run once.

It does if tj saves a tensor for it. It also does where PyTorch's autograd would save a tensor that
tj's backward needs not: a constant index, or a value that the backward recomputes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_core.extend import Proxy, TensorProxy, Trace, leaves

from tj_autograd.joint.derivation_calls import ONCE
from tj_autograd.split.halves import is_backward

if TYPE_CHECKING:
    from tj_autograd.joint.segments import Cut

__all__ = ["frees"]


def frees(joint: Trace, cut: Cut, index: int) -> bool:
    """Check that PyTorch's autograd would save any tensor for the
    segment at ``index`` of ``cut``.
    """
    ahead = [call for call in joint.calls if not is_backward(call)]
    mine = {call.label for call in ahead if cut.segment(call) == index}
    if any(ONCE.name in call.tags for call in ahead if call.label in mine):
        return True
    known = {p.name for p in joint.inputs if not is_backward(p)}
    known.update(p.name for call in ahead for p in call.flat_outs)
    back = (call for call in joint.calls if is_backward(call) and call.parent in mine)
    read = [p for call in back for p in call.flat_args]
    gradients = joint.outputs[1] if cut.whole else joint.outputs[1][index]
    read += (p for p in leaves(gradients) if isinstance(p, Proxy))
    return any(isinstance(p, TensorProxy) and p.name in known for p in read)
