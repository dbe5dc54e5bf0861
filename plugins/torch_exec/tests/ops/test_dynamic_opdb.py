"""Conformance of expansions with symbolic sizes, over PyTorch's database of operator samples.

Every size of at least two of a sample's tensors is a symbol; equal sizes are one. The call is
expanded, its metadata compared with eager's at the sample's own sizes, and its body run there and
at other sizes, on which the guards of the expansion hold, and compared with eager at those.

By default the first sample of every third operator; ``TJ_FULL=1`` takes the first three of all.
The tables of exceptions may only shrink: an entry that is no longer needed fails its test.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tj_conformance.sizes import actual_sizes, same_metadata, symbol_values
from tj_core.ir.proxy import Proxy, TensorProxy
from tj_core.ir.sizes import evaluate_size
from tj_core.ir.symbol import Context
from tj_core.ir.tree import leaves
from tj_torch.ops.convert import tensor_proxy, to_core, to_core_tree
from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.expansion.expander import Expansion
from tj_torch.ops.expansion.replay import replay
from tj_torch.ops.memo.memo import Memo
from tj_torch.ops.sizes.program import Sizes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    op_db: list[Any] = pytest.importorskip(
        "torch.testing._internal.common_methods_invocations", exc_type=ImportError
    ).op_db

FULL = os.environ.get("TJ_FULL") == "1"
SAMPLES = 3 if FULL else 1
SEED = 42

VALUE = "Python code inside decides on data"
SHAPE = "the fake kernel has no symbol for the output's shape"
KERNEL = "no kernel for fake tensors; with static sizes PyTorch runs the real one on zeros"
INPUT = "an input is not strided"
RESIZE = "functionalization cannot give a tensor a symbolic size in place"

UNEXPANDED: dict[str, str] = {
    "allclose": VALUE,
    "corrcoef": VALUE,
    "cov": VALUE,
    "equal": VALUE,
    "geqrf": KERNEL,
    "histogram": KERNEL,
    "histogramdd": KERNEL,
    "istft": VALUE,
    "linalg.lstsq": SHAPE,
    "linalg.lstsq.grad_oriented": SHAPE,
    "narrow": "it checks a storage offset, which depends on data",
    "nn.functional.ctc_loss": SHAPE,
    "nn.functional.gaussian_nll_loss": VALUE,
    "nn.functional.one_hot": VALUE,
    "resize_": RESIZE,
    "resize_as_": RESIZE,
    "sparse.mm.reduce": INPUT,
    "sparse.sampled_addmm": INPUT,
    "tensor_split": VALUE,
    "to_sparse": KERNEL,
}
"""Operators of which a sample does not expand, and why."""

ELSEWHERE_INVALID = {"nn.functional.embedding_bag": "offsets repeated are out of order"}
"""Operators whose samples, their elements repeated to other sizes, are not valid arguments."""

UNINITIALISED = frozenset(
    ["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"]
)


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


# ---------------------------------------------------------------------------- calls


@dataclass
class Call:
    """A sample's call, its tensors' sizes as symbols, and what the symbols are elsewhere."""

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
        if not isinstance(leaf, torch.Tensor):
            return to_core(leaf)
        if id(leaf) not in self.proxies:
            kinds = [DimDynamic.DUCK] * leaf.ndim
            context = StatelessSymbolicContext(kinds) if leaf.layout is torch.strided else None
            fake = self.mode.from_tensor(leaf, symbolic_context=context)
            name = f"x{len(self.proxies)}"
            self.proxies[id(leaf)] = tensor_proxy(name, fake, self.sizes.dim).replace(
                requires_grad=leaf.requires_grad
            )
        return self.proxies[id(leaf)]

    def actual(self, value: Callable[[str], int]) -> tuple[Any, dict[int, torch.Tensor]]:
        """The arguments where symbols have those values, and the tensors by flat index."""
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


def _assert_same(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Equal up to rounding: bodies hold PyTorch's decompositions in Python."""
    a, b = (t.detach().resolve_conj().resolve_neg() for t in (mine, theirs))
    a, b = (t.to_dense() if t.layout is not torch.strided else t for t in (a, b))
    torch.testing.assert_close(a, b, equal_nan=True)


class EagerFails(Exception):
    """The sample does not run there at all."""


def run(
    call: Call,
    fn: Any,
    expand: Callable[[], Expansion],
    name: str,
    other: dict[str, int] | None = None,
) -> Expansion:
    """Compare eager with the expansion, at the sample's sizes or ``other`` ones.

    :raises EagerFails: if eager raises.
    """
    value = other.__getitem__ if other else call.sizes.hint
    (args, kwargs), inputs = call.actual(value)
    before = {
        i: _resized(t, t.shape, t.stride()) if t.layout is torch.strided else t
        for i, t in inputs.items()
    }
    torch.manual_seed(SEED)
    try:
        outputs = to_core_tree(fn(*args, **kwargs), lambda leaf: leaf)
    except Exception as error:
        raise EagerFails from error
    expansion = expand()
    mine = list(leaves(expansion.outputs))
    theirs = list(leaves(outputs))
    assert len(mine) == len(theirs)
    known = {name: value(name) for name in expansion.symbols}
    known = symbol_values(expansion.outputs, outputs, known)
    for a, b in zip(mine, theirs, strict=True):
        assert same_metadata(a, b, known), f"{a} is not {b} at {known}"
    if expansion.body is None or name in UNINITIALISED:
        return expansion
    torch.manual_seed(SEED)
    with torch.no_grad():
        again, updates = replay(expansion.body, before)
    for a, b in zip(leaves(again), theirs, strict=True):
        if isinstance(a, torch.Tensor):
            _assert_same(a, b)
        else:
            assert a == b or a != a
    for i, t in updates.items():
        _assert_same(t, inputs[i])
    return expansion


# ---------------------------------------------------------------------------- the tests


def samples(op: Any) -> list[Any]:
    supported = op.supported_dtypes("cpu")
    if not supported:
        return []
    dtype = torch.float32 if torch.float32 in supported else sorted(supported, key=str)[0]
    torch.manual_seed(0)
    grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    found = op.sample_inputs("cpu", dtype, requires_grad=grad)
    return list(itertools.islice(found, SAMPLES))


@pytest.fixture(scope="module")
def memo() -> Memo:
    return Memo()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", op_db if FULL else op_db[::3], ids=_name)
def test_sample_expands_and_replays_at_other_sizes(op: Any, memo: Memo) -> None:
    name = _name(op)
    if name.startswith("jiterator"):
        pytest.skip("needs a GPU")
    failed = []
    for sample in samples(op):
        call = Call(((sample.input, *sample.args), dict(sample.kwargs)))
        try:
            expansion = run(call, op.op, lambda c=call: expanded(memo, op, c), name)
        except EagerFails:
            continue
        except CannotExpand as error:
            failed.append(error)
            continue
        for step in (1, 2) if name not in ELSEWHERE_INVALID else ():
            other = {n: call.sizes.hint(n) + step for n in expansion.symbols}
            if all(evaluate_size(guard, other.__getitem__) for guard in expansion.guards):
                with contextlib.suppress(EagerFails):
                    run(call, op.op, lambda e=expansion: e, name, other)
    assert not failed or name in UNEXPANDED, failed
    assert failed or name not in UNEXPANDED or not FULL, "expands now; remove it"


def expanded(memo: Memo, op: Any, call: Call) -> Expansion:
    args, kwargs = call.symbolic
    return memo.expand(op.op, args, kwargs, Context.of(grad=True), sizes=call.sizes)
