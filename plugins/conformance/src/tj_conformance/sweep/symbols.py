"""Expansions whose sizes are symbols: at the sample's own sizes, and at others.

Every size of at least two of a sample's tensors is a symbol; equal sizes are one. Metadata and
what the body computes are compared at the sample's sizes, and at other sizes on which the guards of
the expansion hold.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    CannotExpandError,
    Context,
    Proxy,
    TensorProxy,
    evaluate_size,
    leaves,
)
from tj_torch.extend import Expansion, Sizes, tensor_proxy, to_core_tree
from tj_torch.internal import Memo, replay, to_core
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from tj_conformance.databases.known import ELSEWHERE_INVALID, IDLE_STRIDES
from tj_conformance.databases.sizes import actual_sizes, same_metadata, symbol_values
from tj_conformance.oracle.compare import seeded
from tj_conformance.oracle.device import seed
from tj_conformance.oracle.result import Kind, Problem, Result
from tj_conformance.sweep.expansion import with_idle_strides

if TYPE_CHECKING:
    from tj_conformance.sweep.sample import Sample

__all__ = ["hold_symbols"]

SEED = 11
"""Seed of `oracle.seeded`."""


def hold_symbols(sample: Sample, result: Result) -> None:
    """Compare the expansion with symbols with eager, at the sample's sizes and at larger ones."""
    call = Call((sample.args, sample.kwargs))
    try:
        args, kwargs = call.symbolic
        expansion = _memo().expand(
            sample.op.op, args, kwargs, Context.of(grad=True), sizes=call.sizes
        )
    except CannotExpandError as error:
        result.falls_back(sample.where, [str(error)])
        return
    steps = [1, 2] if sample.name not in ELSEWHERE_INVALID else []
    for step in [0, *steps]:
        sizes = {n: call.sizes.hint(n) + step for n in expansion.symbols}
        if step and not all(evaluate_size(g, sizes.__getitem__) for g in expansion.guards):
            continue
        with contextlib.suppress(EagerFails):
            try:
                _compare(sample, call, expansion, sizes if step else None)
            except AssertionError as error:
                what = f"sizes {sizes}: {error}"
                result.problems.append(Problem(Kind.RESULT, sample.where, what))


@functools.cache
def _memo() -> Memo:
    return Memo()


class EagerFails(Exception):
    """The call does not run at these sizes."""


@dataclass
class Call:
    """A sample's call with symbols for its tensors' sizes, and other values of the symbols."""

    tree: Any
    env: ShapeEnv = field(default_factory=ShapeEnv)
    proxies: dict[int, TensorProxy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mode = FakeTensorMode(shape_env=self.env)
        self.sizes = Sizes(self.env)
        self.symbolic = to_core_tree(self.tree, self.proxy)
        flat = [p for p in leaves(self.symbolic) if isinstance(p, Proxy)]
        self.index = {p.name: i for i, p in reversed(list(enumerate(flat)))}

    def proxy(self, leaf: Any) -> Any:
        """The proxy of ``leaf`` in the expanded call."""
        if not isinstance(leaf, torch.Tensor):
            return to_core(leaf)
        if id(leaf) not in self.proxies:
            kinds = [DimDynamic.DUCK] * leaf.ndim
            context: Any = StatelessSymbolicContext(kinds) if leaf.layout is torch.strided else None
            fake = self.mode.from_tensor(leaf, symbolic_context=context)
            name = f"x{len(self.proxies)}"
            self.proxies[id(leaf)] = tensor_proxy(name, fake, self.sizes.dim).replace(
                requires_grad=leaf.requires_grad
            )
        return self.proxies[id(leaf)]

    def actual(self, value: Callable[[str], int]) -> tuple[Any, dict[int, torch.Tensor]]:
        """Arguments for the given values of symbols, and the tensors by flat index."""
        made: dict[int, torch.Tensor] = {}

        def leaf(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            proxy = self.proxies[id(x)]
            at = self.index[proxy.name]
            if at not in made:
                made[at] = _resized(
                    x, actual_sizes(proxy.shape, value), actual_sizes(proxy.strides, value)
                )
            return made[at]

        return to_core_tree(self.tree, leaf), made


def _resized(tensor: torch.Tensor, shape: Any, strides: Any) -> torch.Tensor:
    """A tensor of these sizes with the elements of ``tensor``, repeated where there are more."""
    if tensor.layout is not torch.strided:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    with torch.no_grad():
        found = tensor.detach().resolve_conj().resolve_neg()
        for dim, size in enumerate(shape):
            count = max(1, found.shape[dim])
            found = found.index_select(dim, torch.arange(size) % count) if size else found
        made = torch.empty_strided(shape, strides, dtype=tensor.dtype)
        if 0 not in made.shape:
            made.copy_(found.conj() if tensor.is_conj() else found)
        made = made.conj() if tensor.is_conj() else made
    return made.requires_grad_(tensor.requires_grad)


def _compare(
    sample: Sample, call: Call, expansion: Expansion, elsewhere: dict[str, int] | None
) -> None:
    """Compare with eager at the sample's sizes, or ``elsewhere``.

    :raises EagerFails: if eager raises there.
    :raises AssertionError: saying what differs.
    """
    value = elsewhere.__getitem__ if elsewhere else call.sizes.hint
    (args, kwargs), inputs = call.actual(value)
    before = {
        i: _resized(t, t.shape, t.stride()) if t.layout is torch.strided else t
        for i, t in inputs.items()
    }
    try:
        outputs = to_core_tree(seeded(sample.op.op, args, kwargs), lambda leaf: leaf)
    except Exception as error:
        raise EagerFails from error
    known = {name: value(name) for name in expansion.symbols}
    known = symbol_values(expansion.outputs, outputs, known)
    theirs = list(leaves(outputs))
    for declared, b in zip(leaves(expansion.outputs), theirs, strict=True):
        a = with_idle_strides(declared, b) if sample.name in IDLE_STRIDES else declared
        assert same_metadata(a, b, known), f"{a} is not {b}"
    if expansion.body is None or not sample.defined:
        return
    seed(SEED)
    with torch.no_grad():
        again, updates = replay(expansion.body, before)
    for a, b in zip(leaves(again), theirs, strict=True):
        if isinstance(a, torch.Tensor):
            _assert_close(a, b)
        else:
            assert a == b or a != a, f"{a} is not {b}"
    for i, t in updates.items():
        _assert_close(t, inputs[i])


def _assert_close(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Check that values are equal up to rounding: some bodies are PyTorch's decompositions in
    Python.
    """
    a, b = (t.detach().resolve_conj().resolve_neg() for t in (mine, theirs))
    a, b = (t.to_dense() if t.layout is not torch.strided else t for t in (a, b))
    torch.testing.assert_close(a, b, equal_nan=True)
