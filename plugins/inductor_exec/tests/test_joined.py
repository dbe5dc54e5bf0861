"""Products of a loop's steps, made at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol, Trace

pytestmark = pytest.mark.sampled(5)

STEPS, N, D = 6, 3, 5


def products(trace: Trace) -> list[BoundSymbol]:
    """The matrix products of a program, also those inside of its regions."""

    def inside(calls: tuple[BoundSymbol, ...]) -> Iterator[BoundSymbol]:
        for call in calls:
            if call.symbol.qualname in ("aten.mm.default", "aten.addmm.default"):
                yield call
            elif call.body is not None:
                yield from inside(call.body.calls)

    return list(inside(trace.calls))


def rows(trace: Trace) -> list[int]:
    """The numbers of rows of the left factors of a program's products."""
    return [call.args[-2].shape[0] for call in products(trace)]


def terms(trace: Trace) -> list[int]:
    """The numbers of rows of the right factors of a program's products."""
    return [call.args[-1].shape[0] for call in products(trace)]


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A random tensor that requires a gradient where gradients are taken."""
    return torch.randn(*shape, dtype=dtype, requires_grad=torch.is_grad_enabled())


def hold(fusing: Any, f: Callable[..., Any], *args: Any, grad: bool = True) -> Any:
    """See that results and gradients are eager's, twice; the jitted function."""
    jitted = fusing(f)
    for _ in range(2):
        results, expected = jitted(*args), f(*args)
        torch.testing.assert_close(results, expected)
        if not grad:
            continue
        single = isinstance(expected, Tensor)
        leaves = [x for x in args if isinstance(x, Tensor) and x.requires_grad]
        leaves += list(f.parameters()) if isinstance(f, nn.Module) else []
        found, wanted = (
            torch.autograd.grad(sum(y.square().sum() for y in ([ys] if single else ys)), leaves)
            for ys in (results, expected)
        )
        torch.testing.assert_close(found, wanted)
        assert [g.stride() for g in found] == [g.stride() for g in wanted]
        assert all(g._base is None for g in found)
    return jitted


class Unrolled(nn.Module):
    """A recurrent cell over the first or the second dimension of its input."""

    def __init__(self, cell: type[nn.RNNCellBase], way: str, bias: bool = True) -> None:
        super().__init__()
        self.cell, self.way = cell(D, 2 * D, bias=bias).double(), way

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        found = []
        for t in range(x.shape[1] if self.way == "second" else x.shape[0]):
            state = self.cell(x[:, t] if self.way == "second" else x[t], state)
            found.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(found)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("way", ["first", "second"])
@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_cells(fusing: Any, cell: type[nn.RNNCellBase], way: str, bias: bool) -> None:
    model = Unrolled(cell, way, bias)
    x = leaf(N, STEPS, D) if way == "second" else leaf(STEPS, N, D)
    jitted = hold(fusing, model, x)
    # All inputs at once; the states one after the other, since each depends on the one before.
    assert sorted(rows(tj.last_trace(jitted))) == [*[N] * STEPS, STEPS * N]
    backward = tj.last_trace(jitted, "backward")
    assert terms(backward).count(STEPS * N) == 2, "gradients of both weights"


def test_inference_reads_the_input_without_a_copy(fusing: Any) -> None:
    model, x = Unrolled(nn.GRUCell, "first").eval(), torch.randn(STEPS, N, D, dtype=torch.float64)
    with torch.no_grad():
        jitted = hold(fusing, model, x, grad=False)
    trace = tj.last_trace(jitted)
    assert max(rows(trace)) == STEPS * N
    assert "cat" not in str(trace)


def test_products_that_are_returned_have_memory_of_their_own(fusing: Any) -> None:
    def f(x: Tensor, w: Tensor) -> list[Tensor]:
        return [row @ w for row in x]

    x, w = leaf(STEPS, N, D), leaf(D, D)
    jitted = hold(fusing, f, x, w)
    assert rows(tj.last_trace(jitted)) == [STEPS * N]
    results = jitted(x, w)
    assert len({y.untyped_storage().data_ptr() for y in results}) == STEPS
    assert all(y._base is None and y.storage_offset() == 0 for y in results)
    # One of them alone does not keep the product of all rows.
    alone = fusing(lambda x, w: [y.sin() for y in f(x, w)[1:]] + f(x, w)[:1])(x, w)
    assert {y.untyped_storage().nbytes() for y in (*results, *alone)} == {results[0].nbytes}
    with torch.no_grad():
        expected = results[1].clone()
        results[0].zero_()
    assert torch.equal(results[1], expected)


@pytest.mark.slow
def test_views_of_products_that_are_returned(fusing: Any) -> None:
    def f(x: Tensor, w: Tensor) -> list[Tensor]:
        return [(row @ w).view(-1)[1:] for row in x]

    x, w = leaf(STEPS, N, D), leaf(D, D)
    hold(fusing, f, x, w)
    jitted = fusing(f)
    with torch.no_grad():
        results = jitted(x, w)
        expected = [y.untyped_storage().nbytes() for y in f(x, w)]
    assert [y.untyped_storage().nbytes() for y in results] == expected
    assert len({y.untyped_storage().data_ptr() for y in results}) == STEPS


@pytest.mark.parametrize("turned", [True, False])
def test_a_sum_of_products_is_one(fusing: Any, turned: bool) -> None:
    """Terms of other kinds, and products that another call reads, stay as they are."""

    def f(*factors: Tensor) -> tuple[Tensor, Tensor]:
        total, other = factors[0].sum() * torch.ones(D, D, dtype=torch.float64), factors[0].sin()
        for a in factors:
            other = other * a.cos()
            total = total + (a.t() @ other if turned else a @ other.t())
        return total, other

    with torch.no_grad():
        factors = [leaf(N, D) if turned else leaf(D, N) for _ in range(STEPS)]
        jitted = hold(fusing, f, *factors, grad=False)
    assert terms(tj.last_trace(jitted)) == [STEPS * N]


@pytest.mark.slow
def test_terms_with_several_readers(fusing: Any) -> None:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        made = [a[i] @ b[i] for i in range(STEPS)]
        total = made[0]
        for term in made[1:]:
            total = total + term
        return total, made[0].exp() + made[-1]

    with torch.no_grad():
        jitted = hold(fusing, f, leaf(STEPS, D, N), leaf(STEPS, N, D), grad=False)
    found = terms(tj.last_trace(jitted))
    assert sorted(found) == [N, N, (STEPS - 2) * N]


@pytest.mark.slow
def test_a_running_sum_that_is_returned(fusing: Any) -> None:
    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        found = [a[0] @ b[0]]
        for i in range(1, STEPS):
            found.append(found[-1] + a[i] @ b[i])
        return found

    with torch.no_grad():
        jitted = hold(fusing, f, leaf(STEPS, D, N), leaf(STEPS, N, D), grad=False)
    assert terms(tj.last_trace(jitted)) == [N] * STEPS


@pytest.mark.slow
def test_long_sums_are_made_in_parts(fusing: Any) -> None:
    """A bound on the rows that wait for a product."""
    steps, n = 36, 60

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x[0]
        for t in range(steps):
            y = (y @ w).tanh() + x[t]
        return y

    jitted = hold(fusing, f, leaf(steps, n, D), leaf(D, D))
    found = sorted(terms(tj.last_trace(jitted, "backward")))
    assert found[-2:] == [17 * n, 17 * n]
    assert found.count(n) == 2


@pytest.mark.parametrize(
    "case",
    ["three", "many rows", "each after the other", "other weights", "a matrix is added", "alpha"],
)
def test_products_that_stay(fusing: Any, case: str) -> None:
    steps = 3 if case == "three" else STEPS
    n = 65 if case == "many rows" else N

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = total = x[0]
        for t in range(steps):
            if case == "each after the other":
                y = (y @ w).sin()
            elif case == "other weights":
                y = x[t] @ (w * (t + 1))
            elif case == "a matrix is added":
                y = torch.addmm(x[0].exp(), x[t], w)
            elif case == "alpha":
                y = torch.addmm(w[0], x[t], w, alpha=2)
            else:
                y = x[t] @ w
            total = total + y.cos()
        return total

    with torch.no_grad():
        jitted = hold(fusing, f, leaf(steps, n, D), leaf(D, D), grad=False)
    assert rows(tj.last_trace(jitted)) == [n] * steps


@pytest.mark.slow
def test_results_that_are_read_in_between(fusing: Any) -> None:
    """A product whose factor depends on an earlier one begins another group."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        first = sum((row @ w).sin() for row in x)
        return sum((row @ w).cos() for row in x * first)

    with torch.no_grad():
        jitted = hold(fusing, f, leaf(STEPS, N, D), leaf(D, D), grad=False)
    assert rows(tj.last_trace(jitted)) == [STEPS * N] * 2


@pytest.mark.slow
def test_a_product_of_a_product(fusing: Any) -> None:
    """A product whose factor is a product of the same weight comes later, with nothing between."""

    def f(x: Tensor, w: Tensor) -> list[Tensor]:
        found = []
        for row in x:
            once = row @ w
            found += [once @ w, torch.mm(row * 2, w)]
        return found

    with torch.no_grad():
        jitted = hold(fusing, f, leaf(STEPS, N, D), leaf(D, D), grad=False)
    assert sum(rows(tj.last_trace(jitted))) == 3 * STEPS * N


@pytest.mark.slow
def test_rows_of_different_numbers(fusing: Any) -> None:
    def f(w: Tensor, *parts: Tensor) -> list[Tensor]:
        return [F.linear(part, w * 2, w[:, 0]).relu() for part in parts]

    parts = [leaf(n, D) for n in (1, 4, 2, 7, 3)]
    jitted = hold(fusing, f, leaf(2 * D, D), *parts)
    assert rows(tj.last_trace(jitted)) == [17]


@pytest.mark.parametrize("order", ["forwards", "backwards", "evens", "twice"])
def test_places_in_any_order(fusing: Any, order: str) -> None:
    places = {
        "forwards": [*range(STEPS)],
        "backwards": [*range(STEPS)][::-1],
        "evens": [*range(0, STEPS, 2), *range(1, STEPS, 2)],
        "twice": [0, 1, 2, 2, 1, 0],
    }[order]

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = w[0]
        for t in places:
            y = (y + x[t] @ w).sin()
        return y

    jitted = hold(fusing, f, leaf(STEPS, N, D), leaf(D, D))
    assert STEPS * N in rows(tj.last_trace(jitted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_data_types(fusing: Any, dtype: torch.dtype) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return sum((row @ w).tanh() for row in x)

    x, w = leaf(STEPS, N, D, dtype=dtype), leaf(D, D, dtype=dtype)
    jitted = fusing(f)
    y, expected = jitted(x, w), f(x, w)
    torch.testing.assert_close(y, expected)
    assert rows(tj.last_trace(jitted)) == [STEPS * N]
    # The sum of products in bfloat16 is rounded once, and that of eager's with each step.
    exact = torch.autograd.grad(f(x.double(), w.double()).sum(), [x, w])
    found, wanted = (torch.autograd.grad(out.sum(), [x, w]) for out in (y, expected))
    for a, b, c in zip(found, wanted, exact, strict=True):
        assert (a - c).abs().max() <= 2 * (b - c).abs().max() + 1e-6


@pytest.mark.slow
def test_sizes_that_are_symbols(fusing: Any) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return sum((row @ w).tanh() for row in x)

    jitted = fusing(f, dynamic=True)
    w = leaf(D, D)
    for n in (2, 5, 9):
        x = leaf(STEPS, n, D)
        torch.testing.assert_close(jitted(x, w), f(x, w))


@pytest.mark.slow
def test_autocast_and_its_end(fusing: Any) -> None:
    """Products in one data type are joined; those under other surroundings are not among them."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        total = torch.zeros(N, D)
        for row in x:
            with torch.autocast("cpu", torch.bfloat16):
                total = total + (row @ w).float()
        return total + sum(row @ w for row in x)

    x, w = leaf(STEPS, N, D, dtype=torch.float32), leaf(D, D, dtype=torch.float32)
    session = tj.Session(
        ("inductor", "autocast", "autograd", "torch"), overrides={"check": 2, "strict": True}
    )
    jitted = tj.jit(f, session=session)
    torch.testing.assert_close(jitted(x, w), f(x, w), rtol=2e-2, atol=2e-2)
    kinds = sorted(call.args[-2].dtype.name for call in products(tj.last_trace(jitted)))
    assert kinds == ["bfloat16", "float32"]


@pytest.mark.slow
def test_without_gradients_as_a_transform(fusing: Any) -> None:
    """PyTorch's autograd differentiates the products as they are."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return sum((row @ w).tanh() for row in x)

    x, w = leaf(STEPS, N, D), leaf(D, D)
    jitted = tj.jit(f, session=tj.Session(("inductor", "torch"), overrides={"check": 2}))
    with pytest.warns(tj.TjWarning, match="gradient"):
        y = jitted(x, w)
    torch.testing.assert_close(y, f(x, w))
    found, wanted = (torch.autograd.grad(out.sum(), [x, w]) for out in (y, f(x, w)))
    torch.testing.assert_close(found, wanted)
    assert max(rows(tj.last_trace(jitted))) == N


@pytest.mark.slow
def test_weights_between_calls(fusing: Any) -> None:
    """Nothing of a weight is kept from one call to the next."""
    model, x = Unrolled(nn.LSTMCell, "first"), leaf(STEPS, N, D)
    jitted = fusing(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        y = jitted(x)
        torch.testing.assert_close(y, model(x))
        optimizer.zero_grad()
        y.square().sum().backward()
        optimizer.step()


@pytest.mark.slow
def test_factors_of_constants_that_print_alike(fusing: Any) -> None:
    """Nearly equal constants are no common factor."""
    near = [torch.full((D, D), 1 + 1e-9 * i, dtype=torch.float64) for i in range(STEPS)]

    def f(x: Tensor) -> Tensor:
        return sum(x[i] @ near[i].mul(2) for i in range(STEPS))

    with torch.no_grad():
        x = leaf(STEPS, N, D)
        torch.testing.assert_close(fusing(f)(x), f(x), rtol=1e-13, atol=1e-13)


def scattered(trace: Trace) -> list[str]:
    """The names of a program's operators that fill parts of tensors of zeros."""

    def inside(calls: tuple[BoundSymbol, ...]) -> Iterator[str]:
        for call in calls:
            name = call.symbol.path.partition(".")[0]
            if name in ("select_backward", "slice_backward", "embedding_dense_backward"):
                yield name
            elif call.body is not None:
                yield from inside(call.body.calls)

    return list(inside(trace.calls))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("places", ["all", "some", "negative", "one twice", "three"])
def test_gradients_of_places(fusing: Any, places: str, dim: int) -> None:
    chosen = {
        "all": [*range(STEPS)],
        "some": [4, 0, 1, 3],
        "negative": [-1, -3, 0, 1, 2],
        "one twice": [0, 1, 2, 0],
        "three": [0, 1, 2],
    }[places]

    def f(x: Tensor) -> Tensor:
        total = x.select(dim, 0).sin()
        for i, place in enumerate(chosen):
            total = total * x.select(dim, place).cos() + i
        return total + x.exp().sum(dim)

    sizes = [N, D, STEPS] if dim == -1 else ([N, STEPS, D] if dim else [STEPS, N, D])
    jitted = hold(fusing, f, leaf(*sizes))
    # The first place is read once more before the loop.
    number = {"one twice": 5, "three": 4}.get(places, 1)
    assert scattered(tj.last_trace(jitted, "backward")) == ["select_backward"] * number


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("case", ["all", "gaps", "overlap", "wide", "ends", "every other", "three"])
def test_gradients_of_slices(fusing: Any, case: str, dim: int) -> None:
    chosen, left = {
        "all": ([slice(2 * i, 2 * i + 2) for i in range(STEPS)], 0),
        "gaps": ([slice(2 * i, 2 * i + 2) for i in (4, 0, 2, 5)], 0),
        "overlap": ([slice(i, i + 2) for i in range(2 * STEPS - 1)], 0),
        "wide": ([slice(i, i + 5) for i in range(STEPS)], STEPS),
        "ends": ([slice(-2, None), slice(None, 2), slice(3, 5), slice(-4, -2), slice(5, 5)], 1),
        "every other": ([slice(i, i + 4, 2) for i in range(5)], 5),
        "three": ([slice(2 * i, 2 * i + 2) for i in range(3)], 3),
    }[case]

    def f(x: Tensor) -> Tensor:
        total = torch.ones((), dtype=x.dtype)
        for i, places in enumerate(chosen):
            part = x[(slice(None),) * (dim % 3) + (places,)]
            total = total + part.sum(dim) * part.exp().sum(dim) + i
        return total

    sizes = [N, D, D]
    sizes[dim] = 2 * STEPS
    jitted = hold(fusing, f, leaf(*sizes))
    assert scattered(tj.last_trace(jitted, "backward")) == ["slice_backward"] * left


@pytest.mark.parametrize("case", ["plain", "padding", "by frequency", "other lengths"])
def test_gradients_of_rows_of_a_table(fusing: Any, case: str) -> None:
    """Rows that are looked up in one step after the other."""

    def f(table: Tensor, index: Tensor) -> Tensor:
        y = torch.zeros(N, D, dtype=torch.float64)
        for t in range(STEPS):
            given = index[: (t % 2) + 1, t] if case == "other lengths" else index[:, t]
            row = F.embedding(
                given,
                table,
                padding_idx=2 if case == "padding" else None,
                scale_grad_by_freq=case == "by frequency",
            )
            y = (y + row.sum(0) if case == "other lengths" else y + row).tanh()
        return y

    index = torch.randint(0, 4, (N, STEPS))
    jitted = hold(fusing, f, leaf(4, D), index)
    number = {"by frequency": STEPS, "other lengths": STEPS}.get(case, 1)
    assert scattered(tj.last_trace(jitted, "backward")) == ["embedding_dense_backward"] * number
