"""Comparisons of values with elements chosen from them, for which each bit counts.

The gradient of ``tanh(x).amax()`` is where the maximum is equal to ``tanh(x)``. Two kernels may
round a function in two ways, as vector and scalar code do: if a kernel computes the function again,
no element may be equal. So the function runs once wherever a choice of elements (`SELECTING`) and
all elements meet in a decision.

Each value has origins: the calls whose rounding the value depends on. Arithmetic that IEEE 754
defines to the last bit keeps origins (`EXACT`). Any other call that rounds is an origin itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from tj_core.extend import BoundSymbol, Constant, Proxy, TensorProxy, leaves, makes_views, map_tree

__all__ = ["decided", "read_apart"]

EXACT = frozenset({
    "_to_copy", "abs", "add", "cat", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd",
    "copy", "detach", "div", "flip", "floor", "fmax", "fmin", "gather", "hardtanh", "index",
    "index_select", "masked_fill", "maximum", "minimum", "mul", "neg", "relu", "repeat", "roll",
    "round", "rsub", "select_scatter", "sgn", "sign", "slice_scatter", "sqrt", "square", "stack",
    "sub", "threshold", "trunc", "ceil", "where", "empty", "empty_like", "full", "full_like",
    "ones", "ones_like", "scalar_tensor", "zeros", "zeros_like", "arange",
})  # fmt: skip
"""Operators without rounding, or with one that IEEE 754 defines."""

SELECTING = frozenset({
    "adaptive_max_pool2d", "adaptive_max_pool3d", "amax", "amin", "aminmax", "argmax", "argmin",
    "argsort", "cummax", "cummin", "index_reduce", "kthvalue", "max", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "median", "min", "mode", "nanmedian", "scatter_reduce",
    "segment_reduce", "sort", "topk",
})  # fmt: skip
"""Operators that return some elements of their arguments, or the places of these."""

NORMS = frozenset({"linalg_vector_norm", "norm"})
"""Norms, which select if their order is infinite."""

DECIDING = frozenset({
    "acos", "acosh", "asin", "atanh", "ceil", "floor", "hardtanh_backward", "leaky_relu_backward",
    "log", "log10", "log2", "relu", "round", "sgn", "sign", "sqrt", "threshold_backward", "trunc",
})  # fmt: skip
"""Operators that jump, or leave their domain, where their argument is a little larger or smaller.

So do operators that return integers or bools for floats, as comparisons.
"""


class Origins(NamedTuple):
    """Labels of the calls whose rounding a value depends on.

    ``plain``: by exact arithmetic alone. ``chosen``: by a selection of elements, too.
    """

    plain: frozenset[str] = frozenset()
    chosen: frozenset[str] = frozenset()


NONE = Origins()

Decides = Callable[[frozenset[str]], bool]
"""Called with the origins that a call compares; true if the call's result is computed once."""


def decided(
    calls: Iterable[BoundSymbol],
    rounds: Callable[[BoundSymbol], bool],
    is_backward: Callable[[BoundSymbol], bool],
) -> frozenset[str]:
    """Labels of the calls of a joint trace whose results the backward must not compute again.

    Decisions of the forward between values and elements chosen among these values, and the origins
    of values that the backward compares so. Origins are the calls that ``rounds`` accepts.
    """
    found: set[str] = set()
    origins: dict[str, Origins] = {}
    first: dict[object, str] = {}
    equal: dict[str, str] = {}
    for call in calls:
        # Equal calls are one origin: they become one call later.
        label = equal[call.label] = first.setdefault(_key(call), call.label)
        back = is_backward(call)

        def decides(both: frozenset[str], label: str = label, back: bool = back) -> bool:
            found.update(both if back else (label,))
            return not back

        _follow(call, origins, label if rounds(call) else None, decides)
    return frozenset(label for label, one in equal.items() if one in found)


def read_apart(
    calls: Sequence[BoundSymbol],
    outputs: Iterable[Proxy],
    rounds: Callable[[BoundSymbol], bool],
) -> frozenset[str]:
    """Names of the results of ``calls`` that are read by a selection of elements and by others.

    ``calls`` are operators of a region, which returns ``outputs``; only results of calls that
    ``rounds`` accepts count. A reader of exact arithmetic on a result is a reader of the result.
    """
    origins: dict[str, Origins] = {}
    for call in calls:
        _follow(call, origins, call.label if rounds(call) else None, lambda _: False)
    readers = Counter(name for call in calls for name in {p.name for p in call.flat_args})
    readers.update({p.name for p in outputs})

    def behind(names: Iterable[str]) -> frozenset[str]:
        return frozenset().union(*(origins.get(name, NONE).plain for name in names))

    selecting = filter(_selects, calls)
    found = behind(p.name for call in selecting for p in call.flat_args)
    found &= behind(name for name, count in readers.items() if count > 1)
    return frozenset(p.name for call in calls if call.label in found for p in call.flat_outs)


def _key(call: BoundSymbol) -> object:
    """A key that is equal for calls that compute the same."""
    if call.effects.ordered:
        return call.label
    return call.symbol, *(repr(map_tree(_name, tree, Proxy)) for tree in (call.args, call.kwargs))


def _name(p: Proxy) -> str:
    return f"%{p.name}"


def _follow(
    call: BoundSymbol, origins: dict[str, Origins], label: str | None, decides: Decides
) -> None:
    """Add the origins of the results of ``call``, from those of its arguments, to ``origins``.

    ``label`` is the label of the call at the top; None if that call does not round.
    """
    if call.body is None or not call.body.calls:
        found = _operator(call, origins, label, decides)
        origins.update((p.name, found if _is_float(p) else NONE) for p in call.flat_outs)
        return
    given = dict.fromkeys(p.name for p in call.flat_args)
    pairs = zip(call.body.inputs, given, strict=True)
    inside = {formal.name: origins[name] for formal, name in pairs if name in origins}
    for part in call.body.calls:
        _follow(part, inside, label, decides)
    results = [p for p in leaves(call.body.outputs) if isinstance(p, Proxy)]
    for p, result in zip(call.flat_outs, results, strict=False):
        origins[p.name] = inside.get(result.name, NONE)


def _operator(
    call: BoundSymbol, origins: Mapping[str, Origins], label: str | None, decides: Decides
) -> Origins:
    """The origins of the results of an operator."""
    mine = NONE if label is None else Origins(frozenset({label}))
    if call.symbol.namespace != "aten":
        return mine
    taken = [origins.get(p.name, NONE) for p in call.flat_args]
    plain = frozenset[str]().union(*(o.plain for o in taken))
    chosen = frozenset[str]().union(*(o.chosen for o in taken))
    name = _short(call)
    if _selects(call):
        return Origins(frozenset(), plain | chosen)
    deciding = name in DECIDING or not any(map(_is_float, call.flat_outs))
    if deciding and plain & chosen and decides(plain & chosen):
        return NONE
    return Origins(plain, chosen) if name in EXACT or makes_views(call) else mine


def _selects(call: BoundSymbol) -> bool:
    name = _short(call)
    if name in NORMS:
        # An infinity has no literal: it is a constant.
        return any(o.value in (inf, -inf) for o in call.args[1:2] if isinstance(o, Constant))
    return name in SELECTING and call.symbol.path not in ("max.other", "min.other")


def _short(call: BoundSymbol) -> str:
    return call.symbol.path.partition(".")[0]


def _is_float(p: Proxy) -> bool:
    return isinstance(p, TensorProxy) and p.dtype.kind == "float"
