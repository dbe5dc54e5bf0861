"""Global flags that operations read when they run, on which programs are guarded.

Rule table ``flags``, open to plugins, maps a symbol to dotted paths of functions without arguments,
such as ``torch.backends.cuda.flash_sdp_enabled``. Dynamo guards none of these.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tj_core.extend import RuleTable, Trace

from tj_torch.ops.naming.paths import walk
from tj_torch.torch_private.eager import NAMES

__all__ = ["FLAGS", "flags_of", "rules"]

FLAGS = "flags"
"""Name of the rule table."""

_ATTENTION = (
    "torch.backends.cuda.flash_sdp_enabled",
    "torch.backends.cuda.math_sdp_enabled",
    "torch.backends.cuda.mem_efficient_sdp_enabled",
    "torch.backends.cuda.cudnn_sdp_enabled",
)
_PRODUCTS = tuple(
    NAMES[name].path for name in ("_get_float32_matmul_precision", "_get_mkldnn_enabled")
)
_CUDNN = tuple(NAMES[name].path for name in ("_get_cudnn_enabled", "_get_cudnn_deterministic"))

_READ: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("scaled_dot_product_attention multi_head_attention_forward", _ATTENTION),
    ("lstm gru rnn_tanh rnn_relu", (*_PRODUCTS, *_CUDNN)),
    ("conv1d conv2d conv3d convolution", (*_PRODUCTS, *_CUDNN)),
    ("linear bilinear matmul mm bmm mv addmm addmv addbmm baddbmm", _PRODUCTS),
    ("einsum tensordot chain_matmul multi_dot", _PRODUCTS),
)
_HOMES = ("torch", "torch.Tensor", "torch.nn.functional", "torch.linalg")


def rules() -> RuleTable[tuple[str, ...]]:
    """Flags of PyTorch's operations, under each of their names."""
    table: RuleTable[tuple[str, ...]] = RuleTable(FLAGS, rule_type=tuple)
    for names, paths in _READ:
        for name in names.split():
            for home in _HOMES:
                if hasattr(walk(home), name):
                    table.set(f"{home}.{name}", paths)
            for overload in _overloads(name):
                table.set(f"aten.{name}.{overload}", paths)
    return table


def _overloads(name: str) -> list[str]:
    packet = getattr(torch.ops.aten, name, None)
    return packet.overloads() if packet is not None else []


def flags_of(trace: Trace, table: RuleTable[tuple[str, ...]]) -> Iterator[str]:
    """Flags that the calls of ``trace`` read, each once."""
    found = (table.get(symbol) for symbol in dict.fromkeys(call.symbol for call in trace.walk()))
    yield from dict.fromkeys(path for rule in found if rule is not None for path in rule.value)
