"""The memo returns an expander's results, faster, and never those of a different call."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tj_core.ir.proxy import SymDim, TensorProxy
from tj_core.ir.symbol import Constant, Context
from tj_torch.ops.errors import CannotExpand, ExpansionError
from tj_torch.ops.memo.memo import Memo
from tj_torch.ops.settings.modes import Modes
from tj_torch.ops.sizes.program import Sizes
from tj_torch.ops.values.convert import tensor_proxy, to_core
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext


def proxy(name: str, *shape: int, grad: bool = False, **options: Any) -> TensorProxy:
    return tensor_proxy(name, torch.empty(shape, requires_grad=grad, **options))


X, Y = proxy("x", 2, 3), proxy("y", 2, 3)
META = proxy("x", 2, 3, device="meta")


@pytest.fixture
def memo() -> Memo:
    return Memo()


def test_equal_calls_share_one_expansion(memo: Memo) -> None:
    first = memo.expand(torch.add, (X, Y))
    second = memo.expand(torch.add, (proxy("p", 2, 3), proxy("q", 2, 3)), {}, Context())
    assert first is second
    assert (memo.hits, memo.misses, len(memo)) == (1, 1, 1)
    assert memo.seconds > 0


DIFFERENT: list[tuple[Any, Any]] = [
    ((X, Y), (X, X)),
    ((X, 1), (X, True)),
    ((X, 1), (X, 1.0)),
    ((X, 0.0), (X, -0.0)),
    ((X, 2), (X, 2 + 0j)),
    ((X, Y), (X.replace(requires_grad=True), Y)),
    ((X, Y), (X, Y.replace(shape=(3, 2), strides=(1, 3)).replace(shape=(2, 3)))),
    ((X, Y), (X.replace(flags=("neg",)), Y)),
    ((X, Y), (X, proxy("y", 2, 3, dtype=torch.float64))),
    ((X, Y), (X, proxy("y", 2, 3, dtype=torch.int32))),
    ((X, X), (META, META)),
    ((X, Y), (X, proxy("y", 1, 3))),
    ((X, 0.5), (X, math.inf)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=str)
def test_different_calls_do_not_share(memo: Memo, one: Any, other: Any) -> None:
    for args in (one, other):
        memo.expand(torch.add, tuple(a if isinstance(a, TensorProxy) else to_core(a) for a in args))
    assert (memo.hits, memo.misses) == (0, 2)


def test_nan_hits(memo: Memo) -> None:
    for _ in range(2):
        memo.expand(torch.add, (X, to_core(math.nan)))
    assert memo.hits == 1


def test_context_and_modes_are_in_the_key(memo: Memo) -> None:
    modes = Modes.current()
    memo.expand(torch.add, (X, Y), {}, Context.of(grad=True), modes)
    memo.expand(torch.add, (X, Y), {}, Context.of(grad=False), modes)
    torch.set_default_dtype(torch.float64)
    try:
        changed = Modes.current()
    finally:
        torch.set_default_dtype(torch.float32)
    memo.expand(torch.add, (X, Y), {}, Context.of(grad=True), changed)
    assert (memo.hits, memo.misses) == (0, 3)
    memo.expand(torch.add, (X, Y), {}, Context.of(grad=True), Modes.current())
    assert memo.hits == 1


def test_kwargs_as_pairs_or_mapping(memo: Memo) -> None:
    memo.expand(F.softmax, (X,), {"dim": 1})
    memo.expand(F.softmax, (X,), (("dim", 1),))
    memo.expand(F.softmax, (X,), {"dim": 0})
    assert (memo.hits, memo.misses) == (1, 2)


def test_failures_are_remembered_only_if_ours(memo: Memo) -> None:
    for _ in range(2):
        with pytest.raises(CannotExpand, match="depends on data"):
            memo.expand(torch.equal, (X, X))
    assert (memo.hits, memo.misses) == (1, 1)
    for _ in range(2):
        with pytest.raises(ExpansionError, match="same reduction dim"):
            memo.expand(torch.mm, (X, Y))
    assert (memo.hits, memo.misses) == (1, 3)


def test_decisions_on_sizes_of_no_program_are_refused(memo: Memo) -> None:
    x = X.replace(shape=(SymDim("s0"), 8), strides=(8, 1))
    assert memo.expand(torch.sin, (x,)).outputs.shape == (SymDim("s0"), 8)
    with pytest.raises(CannotExpand, match="no program to guard"):
        memo.expand(torch.chunk, (x, 3))


def test_a_call_has_an_expansion_per_decision_on_its_sizes(memo: Memo) -> None:
    def made(rows: int) -> int:
        fake = FakeTensorMode(shape_env=(env := ShapeEnv())).from_tensor(
            torch.ones(rows, 3),
            symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC]),
        )
        sizes = Sizes(env)
        found = memo.expand(torch.chunk, (tensor_proxy("x", fake, sizes.dim), 4), sizes=sizes)
        assert found.guards
        assert env.guards
        return len(found.outputs)

    assert [made(n) for n in (8, 5, 12, 6, 2)] == [4, 3, 4, 3, 2]
    assert (memo.hits, memo.misses) == (2, 3)


def test_closures_and_mutable_objects_are_never_remembered(memo: Memo) -> None:
    scale = torch.ones(3)

    def scaled(x: Any) -> Any:
        return x * scale

    for _ in range(2):
        assert memo.expand(scaled, (X,)).captured
        memo.expand(_ignoring, (X, Constant("_list", object(), named=False)))
    assert (memo.hits, len(memo)) == (0, 0)


GLOBAL = torch.ones(3)


def _reads_global(x: Any) -> Any:
    return x * GLOBAL


def _ignoring(x: Any, _: Any) -> Any:
    return x * 2


def test_tensors_of_globals_are_never_remembered(memo: Memo) -> None:
    for _ in range(2):
        memo.expand(_reads_global, (X,))
    assert (memo.hits, len(memo)) == (0, 0)


def test_written_out_tensors_are_remembered(memo: Memo) -> None:
    for _ in range(2):
        memo.expand(torch.tensor, ([1.0, 2.0],))
    assert memo.hits == 1


def test_generators_are_known_by_identity(memo: Memo) -> None:
    generator = torch.Generator()
    for _ in range(2):
        memo.expand(torch.bernoulli, (X,), {"generator": to_core(generator)})
    memo.expand(torch.bernoulli, (X,), {"generator": to_core(torch.Generator())})
    assert (memo.hits, memo.misses) == (1, 2)


def test_least_recently_used_goes_first() -> None:
    memo = Memo(capacity=2)
    for size in (1, 2, 1, 3, 1):
        memo.expand(torch.sin, (proxy("x", size),))
    assert (memo.hits, len(memo)) == (2, 2)
    memo.expand(torch.sin, (proxy("x", 2),))
    assert memo.hits == 2


def test_capacity_zero_gives_equal_expansions(memo: Memo) -> None:
    off = Memo(capacity=0)
    for args in ((X, Y), (X, X), (X, 2)):
        on, again, without = (m.expand(torch.add, args) for m in (memo, memo, off))
        assert on is again
        assert on == without
    assert (off.hits, off.misses, len(off)) == (0, 3, 0)
