"""Comparison of expansions, which are made from metadata alone, with eager.

Compared are the metadata of outputs, their aliases, and, by running the body on the real arguments,
values and written arguments, bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    BoundSymbol,
    CannotExpandError,
    Context,
    Proxy,
    TensorProxy,
    leaves,
)
from tj_torch.extend import Expander, Expansion, storage_id, tensor_proxy, to_core_tree
from tj_torch.internal import replay, to_core

from tj_conformance.databases.known import DECLARED_FRESH, IDLE_STRIDES
from tj_conformance.databases.sizes import same_metadata, symbol_values
from tj_conformance.oracle.compare import same_bits, seeded
from tj_conformance.oracle.device import seed
from tj_conformance.oracle.result import Kind, Problem, Result
from tj_conformance.oracle.twins import clone_tree, twin

if TYPE_CHECKING:
    from tj_conformance.sweep.sample import Sample

__all__ = ["hold_expansion", "hold_in_place", "with_idle_strides"]

UNREAD = {(f"aten._embedding_bag{kind}.default", 1) for kind in ("", "_forward_only")}
"""Results that no program sees, only the backward's kernel: with other sizes than declared."""

SEED = 11
"""Seed of `oracle.seeded`."""


def hold_expansion(sample: Sample, result: Result) -> None:
    """Compare the expansion of a sample's call with eager's run."""
    assert sample.eager is not None
    tensors = Tensors()
    tree = to_core_tree((sample.args, sample.kwargs), tensors.proxy)
    trial = _trial(result, sample, sample.op.op, tensors, tree, sample.eager.arguments)
    if trial is None:
        return
    trial.outputs = to_core_tree(sample.eager.result, lambda leaf: leaf)
    _take_down(result, sample, trial.mismatches(sample))


def hold_in_place(sample: Sample, result: Result) -> None:
    """Compare the expansion of the operation's in-place variant, its writes included."""
    op = sample.op
    if op.inplace_variant is None or _broadcasts(sample):
        return
    args, kwargs = clone_tree((sample.args, sample.kwargs))
    tensors = Tensors()
    tree = to_core_tree((args, kwargs), tensors.proxy)
    live = clone_tree((args, kwargs))
    try:
        with torch.no_grad():
            outputs = seeded(op.inplace_variant, *live)
    except Exception:
        return
    _round_as_elsewhere(outputs, sample)
    trial = _trial(result, sample, op.inplace_variant, tensors, tree, live, grad=False)
    if trial is None:
        return
    trial.outputs = to_core_tree(outputs, lambda leaf: leaf)
    effects = trial.expansion.effects
    known = {*effects.mutates, *(i for i, _ in effects.rebinds)}
    silent = [i for i in trial.written() if i not in known]
    found = [*trial.mismatches(sample), *(f"argument {i} is written silently" for i in silent)]
    _take_down(result, sample, found)


def _broadcasts(sample: Sample) -> bool:
    """Check that the result has another shape than the argument to be written."""
    assert sample.eager is not None
    made, first = sample.eager.result, next(iter(sample.args), None)
    if not isinstance(made, torch.Tensor) or not isinstance(first, torch.Tensor):
        return False  # lists of tensors, and what else the variant may take
    return made.shape != first.shape


def _round_as_elsewhere(written: Any, sample: Sample) -> None:
    """Round complex numbers that eager has ``written`` in place as in a new tensor.

    Products and quotients are other loops in place (`addr`, `addcmul`, `div`), in the last bit. tj
    computes new values and copies them.
    """
    assert sample.eager is not None
    made = sample.eager.result
    if isinstance(written, torch.Tensor) and isinstance(made, torch.Tensor) and made.is_complex():
        torch.testing.assert_close(written, made.detach(), equal_nan=True)
        with torch.no_grad():
            written.copy_(made)


def _take_down(result: Result, sample: Sample, found: list[str]) -> None:
    result.problems += [Problem(Kind.RESULT, sample.where, what) for what in found]


@functools.cache
def _expander() -> Expander:
    return Expander()


def _trial(
    result: Result,
    sample: Sample,
    fn: Callable[..., Any],
    tensors: Tensors,
    tree: Any,
    after: Any,
    grad: bool = True,
) -> Trial | None:
    """Expand the call; one that cannot be expanded counts as a break."""
    flat = [p for p in leaves(tree) if isinstance(p, Proxy)]
    index = {p.name: i for i, p in reversed(list(enumerate(flat)))}
    try:
        expansion = _expander().expand(fn, tree[0], tree[1], Context.of(grad=grad))
    except CannotExpandError as error:
        result.falls_back(sample.where, [str(error)])
        return None
    found: list[torch.Tensor] = []
    to_core_tree(after, lambda x: found.append(x) if isinstance(x, torch.Tensor) else x)
    live = dict(zip((p.name for p in flat), found, strict=True))
    return Trial(
        expansion,
        {index[n]: twin(t) for n, t in tensors.tensors.items()},
        {index[n]: live[n] for n in tensors.tensors},
    )


@dataclass
class Tensors:
    """The distinct tensors of a call, in order, and their proxies."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def proxy(self, leaf: Any) -> Any:
        """The proxy of ``leaf`` in the expanded call."""
        if not isinstance(leaf, torch.Tensor):
            return to_core(leaf)
        name = self.names.setdefault(id(leaf), f"x{len(self.names)}")
        self.tensors[name] = leaf
        return tensor_proxy(name, leaf)


@dataclass
class Trial:
    """An expansion, the arguments before and after eager's run, and its outputs."""

    expansion: Expansion
    before: dict[int, torch.Tensor]
    inputs: dict[int, torch.Tensor]
    outputs: Any = None

    def mismatches(self, sample: Sample) -> list[str]:
        """All differences between the expansion and eager's run."""
        found = list(self.metadata(sample.name in IDLE_STRIDES))
        if sample.op.name not in DECLARED_FRESH:
            found += self.aliases()
        return found + (list(self.replayed()) if sample.defined else [])

    def metadata(self, any_idle_strides: bool) -> Iterator[str]:
        """Differences of outputs, and of arguments whose metadata changes."""
        values = symbol_values(self.expansion.outputs, self.outputs, {})
        pairs = zip(leaves(self.expansion.outputs), leaves(self.outputs), strict=True)
        for j, (mine, theirs) in enumerate(pairs):
            said = with_idle_strides(mine, theirs) if any_idle_strides else mine
            if not same_metadata(said, theirs, values):
                yield f"output {j}: {mine} is not {theirs}"
        for i, mine in self.expansion.effects.rebinds:
            if not same_metadata(mine, self.inputs[i], values):
                yield f"argument {i} afterwards: {mine} is not {self.inputs[i]}"

    def aliases(self) -> Iterator[str]:
        """Outputs that share memory with other tensors than the expansion says."""
        tensors = [t for t in leaves(self.outputs) if isinstance(t, torch.Tensor)]
        stated = {a.output: a for a in self.expansion.effects.aliases}
        for j, out in enumerate(tensors):
            earlier = [("arg", i, t) for i, t in self.inputs.items()]
            earlier += [("out", i, t) for i, t in enumerate(tensors[:j])]
            same = next(((k, i) for k, i, t in earlier if t is out), None)
            shared = same or next(((k, i) for k, i, t in earlier if _share(t, out)), None)
            alias = stated.get(j)
            said = (alias.kind, alias.index) if alias and alias.kind != "internal" else None
            if said != shared or (said and alias and alias.identical != (same is not None)):
                yield f"output {j}: shares {shared}, said to share {alias}"

    def replayed(self) -> Iterator[str]:
        """Differences in the values that the body computes, and in what it says of each."""
        assert self.expansion.body is not None
        found: list[str] = []

        def seen(call: BoundSymbol, said: Proxy, value: Any) -> None:
            place = [*leaves(call.outputs)].index(said)
            if _differs(said, value) and (str(call.symbol), place) not in UNREAD:
                found.append(f"{said} of {call.symbol}: is {tensor_proxy(said.name, value)}")

        seed(SEED)
        with torch.no_grad():
            outputs, updates = replay(self.expansion.body, self.before, seen)
        yield from found
        pairs = zip(leaves(outputs), leaves(self.outputs), strict=True)
        for j, (mine, theirs) in enumerate(pairs):
            if isinstance(mine, torch.Tensor) and not _same_bits(mine, theirs):
                yield f"output {j}: {mine} is not {theirs}"
        rebound = {i for i, _ in self.expansion.effects.rebinds} - set(updates)
        for i, theirs in self.inputs.items():  # of those rebound, the elements stay in their place
            if i not in rebound and not _same_bits(updates.get(i, self.before[i]), theirs):
                yield f"argument {i} afterwards: {updates.get(i)} is not {theirs}"

    def written(self) -> list[int]:
        """Indices of arguments whose elements have changed."""
        same_shape = [i for i, t in self.before.items() if t.shape == self.inputs[i].shape]
        return [i for i in same_shape if not _same_bits(self.before[i], self.inputs[i])]


def _differs(said: Proxy, value: Any) -> bool:
    """Test a value for another type, device or layout than its proxy has; symbols are free."""
    if not isinstance(said, TensorProxy) or not isinstance(value, torch.Tensor):
        return False
    real = tensor_proxy(said.name, value)
    kinds = [(p.dtype, p.device, p.layout, p.ndim) for p in (said, real)]
    if kinds[0] != kinds[1]:
        return True
    known = all(isinstance(n, int) for n in (*said.shape, *said.strides))
    if said.layout != "strided" or not known:
        return False
    mine = with_idle_strides(said, value) if said.shape == real.shape else said
    return (mine.shape, mine.strides) != (real.shape, real.strides)


def with_idle_strides(mine: Any, theirs: Any) -> Any:
    """``mine`` with the strides of ``theirs`` in dimensions of at most one element."""
    if not isinstance(mine, TensorProxy) or not isinstance(theirs, torch.Tensor):
        return mine
    sizes = zip(theirs.shape, theirs.stride(), mine.strides or (), strict=True)
    idle = theirs.numel() == 0
    return mine.replace(strides=tuple(t if idle or n == 1 else m for n, t, m in sizes))


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return storage_id(a) == storage_id(b)


def _same_bits(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    return mine.shape == theirs.shape and mine.dtype == theirs.dtype and same_bits(mine, theirs)
