"""Lower limit of a workload's time: large kernels as fast as measured, the rest at memory speed.

The limit is the best measured time of each matrix product, convolution, attention and recurrent
layer, plus the time to move every other byte once: what other operations read of inputs and of
results of large kernels, and what they write for large kernels and for the user. Values between
them do not count, as if all of it were fused. Data in a processor's caches moves faster than that,
so that small workloads may be below their limit.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["limit"]

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
OTHERS = ("convolution", "convolution_backward", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")

LARGE = frozenset((*PRODUCTS, *OTHERS, ATTENTION, f"{ATTENTION}_backward"))
"""Operators that are kernels of their own."""

LOOKUPS = frozenset({"embedding", "index", "gather", "_embedding_bag", "select", "slice"})
"""Operators that read of their first argument only the elements that they return."""

Call = Callable[[], object]


class Recorder(TorchDispatchMode):
    """Records the large kernels of a program, with their number of runs, and the bytes of the rest.

    Storages are kept alive, so that no two have one address.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: dict[str, tuple[int, list[Call]]] = {}
        self.of_small: dict[int, Any] = {}
        self.moved: dict[int, Any] = {}
        self.extra = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given, made = _storages((args, kwargs)), _storages(result)
        if name in LARGE:
            self.moved |= {key: s for key, s in given.items() if key in self.of_small}
            self.note(func, args, kwargs or {})
        elif made.keys() - given.keys():  # else it is a view
            if name in LOOKUPS:
                self.extra += sum(s.nbytes() for s in made.values())
                given = dict(list(given.items())[1:])
            self.moved |= {key: s for key, s in given.items() if key not in self.of_small}
            self.of_small |= {key: s for key, s in made.items() if key not in given}
        return result

    def note(self, func: Any, args: Any, kwargs: Any) -> None:
        key = str((func, _described(args), _described(kwargs)))
        count, ways = self.kernels.get(key, (0, []))
        if not ways:
            ways = [lambda: func(*args, **kwargs), *_other_ways(func, args, kwargs)]
        self.kernels[key] = (count + 1, ways)

    def bytes(self, results: Any) -> int:
        """Bytes moved by operations other than large kernels;
        ``results`` are what the user gets.
        """
        given = {key: s for key, s in _storages(results).items() if key in self.of_small}
        return self.extra + sum(s.nbytes() for s in (self.moved | given).values())


def limit(run: Callable[[], Any], results: Callable[[], Any]) -> float:
    """Least CPU seconds for ``run``; ``results`` returns further results, such as gradients."""
    recorder = Recorder()
    with recorder:
        returned = run()
    moved = recorder.bytes((returned, results()))
    with torch.no_grad():
        large = sum(count * min(map(_seconds, ways)) for count, ways in recorder.kernels.values())
    return large + moved / bandwidth()


def _storages(tree: Any) -> dict[int, Any]:
    tensors = (x for x in tree_leaves(tree) if isinstance(x, torch.Tensor))
    storages = (x.untyped_storage() for x in tensors if x.layout is torch.strided)
    return {s._cdata: s for s in storages}


def _described(tree: Any) -> list[Any]:
    return [
        (x.shape, x.stride(), x.dtype) if isinstance(x, torch.Tensor) else x
        for x in tree_leaves(tree)
    ]


def _other_ways(func: Any, args: Any, kwargs: Any) -> Iterator[Call]:
    """Yield oneDNN's kernel for a matrix product, if it runs."""
    name = func.overloadpacket.__name__
    linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if linear is None or kwargs or name not in ("mm", "addmm") or len(args) != 2 + (name != "mm"):
        return
    *bias, x, weight = args
    way = functools.partial(linear, x, weight.t(), *(bias or [None]), "none", [], "")
    try:
        way()
    except RuntimeError:
        return
    yield way


def _seconds(run: Call) -> float:
    """CPU seconds of one call, the best of some; the first, which allocates, is left out."""
    run()
    best, start = float("inf"), time.process_time()
    for _ in range(50):
        before = time.process_time()
        run()
        now = time.process_time()
        best = min(best, now - before)
        if now - start > 0.2:
            break
    return best


@functools.cache
def bandwidth() -> float:
    """Bytes per CPU second of a copy of a large tensor."""
    x = torch.ones(1 << 25)
    y = torch.zeros_like(x)
    return 2 * x.nbytes / _seconds(lambda: y.copy_(x))
