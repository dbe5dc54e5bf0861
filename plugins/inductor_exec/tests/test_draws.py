"""Random bits that a kernel draws: PyTorch's numbers, and its generator's state afterwards."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_inductor import draws
from tj_inductor.draws import BERNOULLI, FEW, Drawn, bernoulli, drawn, may_draw_by_mkl
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled(2)

DTYPES = list(draws.ONES)


@pytest.fixture(scope="module")
def kernel() -> Drawn:
    made = drawn()
    if not made.wait() and may_draw_by_mkl():
        pytest.skip("PyTorch draws by MKL on this processor, and tj leaves it to that")
    return made


def both(n: int, p: float, dtype: torch.dtype, before: int) -> None:
    """Compare ``n`` numbers, the state after them, and the next number with PyTorch's."""
    found = []
    for draw in (torch.ops.aten.bernoulli.p, bernoulli):
        torch.manual_seed(n)
        torch.rand(before)
        out = draw(torch.empty(n, dtype=dtype), p)
        found.append((out, torch.get_rng_state(), torch.rand(3), torch.randn(20)))
    for mine, expected in zip(*found, strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("p", [0.0, 1e-300, 0.1, 1 / 3, 0.5, 0.9, math.nextafter(1, 0), 1.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers(dtype: torch.dtype, p: float, kernel: Drawn) -> None:
    for n in (0, 1, 2, 311, 312, 313, 624, 5001):
        for before in (0, 1, 2, 623, 624):
            both(n, p, dtype, before)


def test_many_numbers_are_drawn_as_often(kernel: Drawn) -> None:
    both(1_000_003, 0.3, torch.float32, 5)


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan, math.inf])
def test_what_is_no_probability_is_refused_as_in_eager(p: float, kernel: Drawn) -> None:
    with pytest.raises(RuntimeError) as expected:
        torch.ops.aten.bernoulli.p(torch.empty(9000), p)
    with pytest.raises(RuntimeError) as found:
        bernoulli(torch.empty(9000), p)
    assert str(found.value) == str(expected.value)


FORMS: dict[str, Any] = {
    "transposed": lambda: torch.empty(80, 90).t(),
    "with gaps": lambda: torch.empty(80, 180)[:, ::2],
    "expanded": lambda: torch.empty(80, 1).expand(80, 90),
    "whole numbers": lambda: torch.empty(80, 90, dtype=torch.int64),
    "channels last": lambda: torch.empty(2, 8, 30, 20).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_are_pytorchs(form: str, kernel: Drawn) -> None:
    found = []
    for draw in (torch.ops.aten.bernoulli.p, bernoulli):
        torch.manual_seed(1)
        found.append(draw(FORMS[form](), 0.4))
    assert torch.equal(*found)
    assert found[0].stride() == found[1].stride()


def test_under_vmap_the_numbers_are_pytorchs(kernel: Drawn) -> None:
    x, found = torch.ones(3, FEW), []
    for draw in (torch.ops.aten.bernoulli.p, bernoulli):
        torch.manual_seed(1)
        found.append(torch.vmap(lambda row, draw=draw: draw(row, 0.4), randomness="different")(x))
    assert torch.equal(*found)


def test_threads_draw_each_number_once(kernel: Drawn) -> None:
    torch.manual_seed(3)
    whole = torch.rand(8 * FEW * 2, dtype=torch.float64)  # two numbers of 32 bits for each, too
    torch.manual_seed(3)
    drawn_by: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: drawn_by.append(bernoulli(torch.empty(2 * FEW), 0.5)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(int(t.sum()) for t in drawn_by) == int((whole < 0.5).sum())


# --------------------------------------------------------------------------------- programs


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x * 2, 0.3).tanh() + 1


def claimed(jitted: Any) -> bool:
    return any(str(c.symbol) == f"inductor.{BERNOULLI}" for c in tj.last_trace(jitted).calls)


PROGRAMS: dict[str, Any] = {
    "dropout": dropped,
    "twice": lambda x: dropped(dropped(x)),
    "of channels": lambda x: F.dropout2d(x.view(32, 32, 4, 4), 0.2).sum() * x,
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(2, 4, -1, 16)] * 3, None, 0.2),
    "within a checkpoint": lambda x: checkpoint(dropped, x, use_reentrant=False) * 3,
    "bernoulli": lambda x: torch.bernoulli(x.detach(), 0.25) * x,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, kernel: Drawn, fusing: Any) -> None:
    program, found = PROGRAMS[name], []
    for f in (program, fusing(program)):
        torch.manual_seed(5)
        x = torch.linspace(0, 1, 128 * 128).view(128, 128).requires_grad_()
        for _ in range(2):
            y = f(x)
            y.square().sum().backward()
        found.append((y, x.grad, torch.get_rng_state()))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert claimed(f) == (name != "of channels"), "few numbers are PyTorch's"


def test_few_numbers_are_drawn_by_pytorch(kernel: Drawn, fusing: Any) -> None:
    few = fusing(dropped)
    few(torch.ones(FEW - 1))
    assert not claimed(few)


def test_numbers_until_the_kernel_is_built(monkeypatch: pytest.MonkeyPatch, kernel: Drawn) -> None:
    waiting = Drawn()
    monkeypatch.setattr(waiting, "begin", lambda: None)
    monkeypatch.setattr(draws, "drawn", lambda: waiting)
    both(5000, 0.3, torch.float32, 1)
    assert waiting.right is None


def test_other_numbers_than_pytorchs_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Drawn()
    monkeypatch.setattr(other.kernel, "source", draws.TEXT.replace("<< 15", "<< 14"))
    assert not other.wait()
    monkeypatch.setattr(draws, "drawn", lambda: other)
    both(5000, 0.3, torch.float32, 1)


LATER = """
import sys, torch, tj_core as tj
import torch.nn.functional as F

def dropped(x):
    return F.dropout(x * 2, 0.3).tanh() + 1

f = tj.jit(dropped, session=tj.Session(("inductor", "autograd", "torch")))
x = torch.ones(100, 100)
torch.manual_seed(0)
torch.testing.assert_close(f(x), (torch.manual_seed(0), dropped(x))[1])
from tj_inductor.draws import may_draw_by_mkl, drawn
assert drawn().wait() or may_draw_by_mkl()
print(tj.stats(f).program_kept)
"""


@pytest.mark.slow
def test_a_later_process_finds_the_program_and_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path))
    said = [
        subprocess.run(
            [sys.executable, "-c", LATER], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.split()[-1]
        for _ in range(2)
    ]
    assert said == ["0", "1"]
