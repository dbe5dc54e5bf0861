"""Conformance of expansions with PyTorch itself, over its own database of operator samples.

For each sample: the call is expanded from metadata alone, its body is run on the real inputs, and
values (bit for bit), mutated inputs, output metadata and alias facts are compared with eager's.

By default the first float32 sample of each operator; ``TJ_FULL=1`` takes all samples in seven data
types. The tables of exceptions may only shrink: an entry that is no longer needed fails its test.
"""

from __future__ import annotations

import itertools
import os
import warnings
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tj_conformance.known import DTYPES
from tj_conformance.oracle import same_bits
from tj_conformance.sizes import same_metadata, symbol_values
from tj_conformance.twins import twin
from tj_core.ir.proxy import Proxy, TensorProxy
from tj_core.ir.symbol import Context
from tj_core.ir.tree import leaves
from tj_torch.ops import private
from tj_torch.ops.convert import tensor_proxy, to_core, to_core_tree
from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.expansion.expander import Expander, Expansion
from tj_torch.ops.expansion.replay import replay

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    op_db: list[Any] = pytest.importorskip(
        "torch.testing._internal.common_methods_invocations", exc_type=ImportError
    ).op_db

FULL = os.environ.get("TJ_FULL") == "1"
SAMPLES = None if FULL else 1
SEED = 42  # random samples of the database seed themselves, with this

SHAPE = "the output's shape depends on data"
VALUE = "Python code inside looks at data"
INPUT = "an input is not strided"

# Operators of which no sample expands, to the reason.
UNEXPANDED = {
    "allclose": VALUE,
    "corrcoef": VALUE,
    "cov": VALUE,
    "equal": VALUE,
    "istft": VALUE,
    "linalg.lstsq": SHAPE,
    "linalg.lstsq.grad_oriented": SHAPE,
    "nn.functional.ctc_loss": SHAPE,
    "nn.functional.gaussian_nll_loss": VALUE,
    "nn.functional.one_hot": VALUE,
    "sparse.mm.reduce": INPUT,
    "sparse.sampled_addmm": INPUT,
}
# Operators of which some samples do not: those whose sizes or indices are tensors.
PARTLY_UNEXPANDED = {
    "narrow": VALUE,
    "tensor_split": VALUE,
}
UNEXPANDED_IN_PLACE = {"polygamma": "functionalization has no kernel for it"}

# Fake tensors differ from eager in strides that mean nothing: of one element along a dimension, or
# of no elements at all.
IDLE_STRIDES = frozenset(["einsum", "nn.functional.rms_norm"])

# Results that are uninitialised memory: nothing to compare.
UNINITIALISED = frozenset(
    ["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"]
)

# Operators whose outputs PyTorch declares not to be views, although they are.
DECLARED_FRESH = frozenset(["unsafe_chunk", "unsafe_split"])


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


# ---------------------------------------------------------------------------- one call, twice


@dataclass
class Tensors:
    """The distinct tensors of a call, in order, and the proxies that stand for them."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def proxy(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return to_core(leaf)
        name = self.names.setdefault(id(leaf), f"x{len(self.names)}")
        self.tensors[name] = leaf
        return tensor_proxy(name, leaf)


@dataclass
class Trial:
    """One sample: what eager gave, and what the expansion says."""

    expansion: Expansion
    before: dict[int, torch.Tensor]
    inputs: dict[int, torch.Tensor]
    outputs: Any

    def mismatches(self, *, values: bool, aliases: bool, idle_strides: bool = True) -> list[str]:
        found = self.metadata(idle_strides)
        if aliases:
            found += self.aliases()
        return found + (self.replayed() if values else [])

    def metadata(self, idle_strides: bool) -> list[str]:
        values = symbol_values(self.expansion.outputs, self.outputs, {})
        pairs = self.pairs() if idle_strides else map(_with_eagers_idle_strides, self.pairs())
        return [
            f"output {j}: {mine} is not {theirs}"
            for j, (mine, theirs) in enumerate(pairs)
            if not same_metadata(mine, theirs, values)
        ] + [
            f"argument {i} afterwards: {mine} is not {self.inputs[i]}"
            for i, mine in self.expansion.effects.rebinds
            if not same_metadata(mine, self.inputs[i], values)
        ]

    def pairs(self) -> list[tuple[Any, Any]]:
        mine, theirs = list(leaves(self.expansion.outputs)), list(leaves(self.outputs))
        assert len(mine) == len(theirs)
        return list(zip(mine, theirs, strict=True))

    def aliases(self) -> list[str]:
        tensors = [t for t in leaves(self.outputs) if isinstance(t, torch.Tensor)]
        stated = {a.output: a for a in self.expansion.effects.aliases}
        found = []
        for j, out in enumerate(tensors):
            earlier = [("arg", i, t) for i, t in self.inputs.items()]
            earlier += [("out", i, t) for i, t in enumerate(tensors[:j])]
            same = next(((k, i) for k, i, t in earlier if t is out), None)
            shared = same or next(((k, i) for k, i, t in earlier if _share(t, out)), None)
            alias = stated.get(j)
            said = (alias.kind, alias.index) if alias and alias.kind != "internal" else None
            if said != shared or (said and alias and alias.identical != (same is not None)):
                found.append(f"output {j}: shares {shared}, said to share {alias}")
        return found

    def replayed(self) -> list[str]:
        assert self.expansion.body is not None
        torch.manual_seed(SEED)
        with torch.no_grad():
            outputs, updates = replay(self.expansion.body, self.before)
        found = []
        pairs = zip(leaves(outputs), leaves(self.outputs), strict=True)
        for j, (mine, theirs) in enumerate(pairs):
            if isinstance(mine, torch.Tensor) and not _same_bits(mine, theirs):
                found.append(f"output {j}: {mine} is not {theirs}")
        rebound = {i for i, _ in self.expansion.effects.rebinds} - set(updates)
        for i, theirs in self.inputs.items():
            if i in rebound:
                continue  # its elements stay where they are, seen through other sizes
            mine = updates.get(i, self.before[i])
            if not _same_bits(mine, theirs):
                found.append(f"argument {i} afterwards: {mine} is not {theirs}")
        return found


def _with_eagers_idle_strides(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    """The pair, its first with the second's strides where no element is reached by them."""
    mine, theirs = pair
    if isinstance(mine, TensorProxy) and isinstance(theirs, torch.Tensor):
        sizes = zip(theirs.shape, theirs.stride(), mine.strides or (), strict=True)
        idle = theirs.numel() == 0
        mine = mine.replace(strides=tuple(t if idle or n == 1 else m for n, t, m in sizes))
    return mine, theirs


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return private.storage_id(a) == private.storage_id(b)


def _same_bits(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return False
    return same_bits(mine, theirs)


def trial(expander: Expander, fn: Any, args: Any, kwargs: Any, grad: bool = True) -> Trial:
    """Expand a call and run it.

    :raises EagerFails: if eager raises.
    """
    tensors = Tensors()
    tree = to_core_tree((tuple(args), dict(kwargs)), tensors.proxy)
    flat = [p for p in leaves(tree) if isinstance(p, Proxy)]
    index = {p.name: i for i, p in reversed(list(enumerate(flat)))}
    live = {name: twin(t) for name, t in tensors.tensors.items()}
    actual = to_core_tree(
        (tuple(args), dict(kwargs)),
        lambda x: live[tensors.names[id(x)]] if isinstance(x, torch.Tensor) else x,
    )
    torch.manual_seed(SEED)
    try:
        with torch.set_grad_enabled(grad):
            outputs = fn(*actual[0], **actual[1])
    except Exception as error:
        raise EagerFails from error
    expansion = expander.expand(fn, tree[0], tree[1], Context.of(grad=grad))
    return Trial(
        expansion,
        {index[n]: twin(t) for n, t in tensors.tensors.items()},
        {index[n]: t for n, t in live.items()},
        to_core_tree(outputs, lambda leaf: leaf),
    )


class EagerFails(Exception):
    """The sample does not run here at all."""


# ---------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def expander() -> Expander:
    return Expander()


def samples(op: Any, dtype: torch.dtype | None = None) -> list[Any]:
    """The samples in ``dtype``: float32, or another one of an operator without."""
    supported = op.supported_dtypes("cpu")
    if not supported:
        return []
    first = torch.float32 if torch.float32 in supported else sorted(supported, key=str)[0]
    dtype = first if dtype is None else dtype
    torch.manual_seed(0)
    grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), SAMPLES))


def cases() -> list[tuple[Any, torch.dtype | None]]:
    if not FULL:
        return [(op, None) for op in op_db]
    dtypes = [getattr(torch, name) for name in DTYPES]
    return [(op, d) for d in dtypes for op in op_db if d in op.supported_dtypes("cpu")]


def _case(value: Any) -> str:
    return str(value) if value is None or isinstance(value, torch.dtype) else _name(value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "dtype"), cases(), ids=_case)
def test_sample_expands_and_replays(op: Any, dtype: torch.dtype | None, expander: Expander) -> None:
    name = _name(op)
    if name.startswith("jiterator"):
        pytest.skip("needs a GPU")
    outcomes = set()
    for sample in samples(op, dtype):
        try:
            done = trial(expander, op.op, (sample.input, *sample.args), sample.kwargs)
        except EagerFails:
            continue
        except CannotExpand:
            outcomes.add(False)
            continue
        outcomes.add(True)
        assert not done.mismatches(
            values=name not in UNINITIALISED,
            aliases=op.name not in DECLARED_FRESH,
            idle_strides=name not in IDLE_STRIDES,
        )
    if name in UNEXPANDED:
        assert outcomes <= {False}, f"expands now; remove it: {UNEXPANDED[name]}"
    elif name in PARTLY_UNEXPANDED:
        reason = PARTLY_UNEXPANDED[name]
        assert not FULL or False in outcomes, f"expands now; remove it: {reason}"
    else:
        assert outcomes <= {True}, "no longer expands"


WITH_IN_PLACE = [op for op in op_db if op.inplace_variant is not None]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", WITH_IN_PLACE, ids=_name)
def test_in_place_variant_expands_and_replays(op: Any, expander: Expander) -> None:
    reason = next((r for n, r in UNEXPANDED_IN_PLACE.items() if op.name.startswith(n)), "")
    for sample in samples(op):
        if sample.broadcasts_input:
            continue
        args = (sample.input, *sample.args)
        try:
            done = trial(expander, op.inplace_variant, args, sample.kwargs, grad=False)
        except EagerFails:
            continue
        except CannotExpand:
            assert reason, "no longer expands"
            continue
        assert not reason, f"expands now; remove it: {reason}"
        assert not done.mismatches(values=True, aliases=True)
        assert all(i in done.expansion.effects.mutates for i in _written(done))


def _written(done: Trial) -> list[int]:
    same_shape = [i for i, t in done.before.items() if t.shape == done.inputs[i].shape]
    return [i for i in same_shape if not _same_bits(done.before[i], done.inputs[i])]
