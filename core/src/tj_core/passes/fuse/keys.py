"""Keys of regions: equal for regions that differ only in names."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tj_core.ir.proxy import Device, Dim, DType, NumberProxy, Proxy, TensorProxy
from tj_core.ir.sizes import size_symbols
from tj_core.ir.symbol import Constant
from tj_core.ir.tree import map_tree
from tj_core.text.metadata import meta_text

if TYPE_CHECKING:
    from tj_core.ir.trace import Body, BoundSymbol

__all__ = ["call_token", "region_key"]


def call_token(call: BoundSymbol) -> str:
    """A text that is equal for calls that differ only in the names of values."""
    words = _Words({})
    args = map_tree(words.operand, (call.args, call.kwargs))
    return repr((call.symbol.qualname, args, words.metadata(call.flat_outs)))


def region_key(body: Body, *facts: Any) -> str:
    """A short hash of ``body``, whose names are formal, and of ``facts`` with a stable `repr`.

    Symbols in sizes count by the order of their first appearance.
    """
    names = {p.name: p.name for p in body.inputs}
    names |= {p.name: p.name for call in body.calls for p in call.flat_outs}
    words = _Words(names)
    inputs = words.metadata(body.inputs)
    calls = [
        (
            call.symbol.qualname,
            call.executor,
            map_tree(words.operand, (call.args, call.kwargs)),
            [p.name for p in call.flat_outs],
            words.metadata(call.flat_outs),
        )
        for call in body.calls
    ]
    outputs = map_tree(words.operand, body.outputs)
    text = repr((facts, inputs, calls, outputs))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.lru_cache(1024)
def _plain_text(device: Device, dtype: DType, layout: str, flags: tuple[str, ...]) -> str:
    return meta_text(TensorProxy("", dtype=dtype, device=device, layout=layout, flags=flags))


class _Words:
    """Values, constants and metadata as text; values without an entry in ``names`` are unnamed."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names
        self.symbols: dict[str, str] = {}

    def operand(self, leaf: Any) -> Any:
        # By their first signs, a value, a constant and a text of one spelling differ.
        if isinstance(leaf, Proxy):
            return f"%{self.names.get(leaf.name) or self.meta(leaf)}"
        if isinstance(leaf, Constant):
            return f"!{leaf.text}"
        return (type(leaf).__name__, repr(leaf))

    def metadata(self, proxies: Iterable[Proxy]) -> list[str]:
        return [self.meta(p) for p in proxies]

    def meta(self, p: Proxy) -> str:
        """The metadata that a kernel depends on, without ``requires_grad``."""
        if isinstance(p, TensorProxy):
            if p.subclass is None:
                kind = _plain_text(p.device, p.dtype, p.layout, p.flags)
            else:  # not remembered, since that would keep the user's objects in it
                kind = meta_text(p.replace(requires_grad=False, shape=(), strides=()))
            return f"{kind} {self.dims(p.shape)} {self.dims(p.strides)}"
        if isinstance(p, NumberProxy):
            return f"{p.kind} {self.size(p.expr)}"
        return meta_text(p)

    def dims(self, dims: Sequence[Dim]) -> list[str]:
        return [str(n) if isinstance(n, int) else self.size(n.name) for n in dims]

    def size(self, text: str) -> str:
        for name in size_symbols(text) if text else ():
            self.symbols.setdefault(name, f"#{len(self.symbols)}")
        return re.sub(r"[A-Za-z_]\w*", lambda m: self.symbols.get(m[0], m[0]), text)
