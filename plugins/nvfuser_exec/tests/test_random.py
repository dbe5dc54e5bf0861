"""Random numbers in regions: drawn once, from states that follow from the seed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import TjWarning
from tj_nvfuser import draws
from tj_nvfuser.testing.plugin import ReferencePlugin
from tj_nvfuser.testing.reference import Reference
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from tj_nvfuser.bindings import Run

F = torch.nn.functional
aten = torch.ops.aten

RANDOM = {"minimum": 1, "random": True}


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x * 3, 0.25) * 2


def native(x: torch.Tensor) -> torch.Tensor:
    return aten.native_dropout.default(x * 3, 0.25, True)[0] * 2


def checkpointed(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = checkpoint(dropped, x, use_reentrant=False)
    return found


def texts(jitted: Any) -> list[str]:
    return [use.kernel.fused.source for use in tj.explain(jitted).regions]


def fitting(jitted: Any, n: int = 400) -> torch.Tensor:
    """The mask of a run, by its result; its gradient must show the same mask."""
    x = torch.ones(n, requires_grad=True)
    out = jitted(x)
    out.sum().backward()
    kept = out != 0
    torch.testing.assert_close(out.detach(), kept * 8.0)
    torch.testing.assert_close(x.grad, kept * 8.0)
    assert abs(kept.float().mean() - 0.75) < 0.1
    return kept


@pytest.mark.parametrize("f", [dropped, native, checkpointed], ids=lambda f: f.__name__)
def test_dropout(f: Any, fusing: Any) -> None:
    jitted = fusing(f, RANDOM)
    torch.manual_seed(0)
    first, second = fitting(jitted), fitting(jitted)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(first, fitting(jitted))
    assert tj.stats(jitted).fallbacks == ()


@pytest.mark.usefixtures("on_reference")
def test_numbers_are_drawn_once_and_in_the_region(fusing: Any) -> None:
    jitted = fusing(dropped, RANDOM)
    fitting(jitted)
    (drawing,) = (text for text in texts(jitted) if "uniform" in text)
    assert drawing.count("fd.ops.uniform") == 1
    assert "fd.ops.lt" in drawing
    forward, backward = (tj.last_trace(jitted, name).calls for name in ("forward", "backward"))
    outside = [c.symbol.qualname for c in (*forward, *backward) if c.symbol.namespace != "nvfuser"]
    assert outside == [draws.DRAW]
    assert [c.effects.ordered for c in forward if c.effects.ordered] == [("random:cpu",)]


def test_each_call_has_numbers_of_its_own(fusing: Any) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand_like(x) + 0, torch.rand_like(x) + 0

    jitted = fusing(f, RANDOM)
    a, b = jitted(torch.zeros(50))
    assert not torch.equal(a, b)
    assert len([text for text in texts(jitted) if text.count("fd.ops.uniform") == 2]) == 1


def test_eagers_numbers_without_the_option(fusing: Any) -> None:
    jitted = fusing(dropped, {"minimum": 1})
    results = []
    for g in (dropped, jitted):
        torch.manual_seed(0)
        results.append(g(torch.ones(50)))
    assert torch.equal(*results)
    assert not any("uniform" in text for text in texts(jitted))


def test_eagers_numbers_where_values_are_compared() -> None:
    session = tj.Session(
        (ReferencePlugin(), "autograd", "torch"),
        overrides={"check": 3, "nvfuser_reference": RANDOM},
    )
    jitted = tj.jit(dropped, session=session)
    results = []
    for g in (dropped, jitted):
        torch.manual_seed(0)
        results.append(g(torch.ones(50)))
    assert torch.equal(*results)


@pytest.mark.usefixtures("on_reference")
def test_a_region_that_fails_draws_once_too() -> None:
    class Failing(Reference):
        def build(self, text: str) -> Run:
            if "uniform" in text:
                raise RuntimeError("no numbers")
            return super().build(text)

    overrides = {"strict": False, "nvfuser_reference": RANDOM}
    session = tj.Session((ReferencePlugin(Failing()), "autograd", "torch"), overrides=overrides)
    jitted = tj.jit(dropped, session=session)
    torch.manual_seed(0)
    with pytest.warns(TjWarning, match="no numbers"):
        first = fitting(jitted)
    torch.manual_seed(0)
    assert torch.equal(first, fitting(jitted))


def moments(x: torch.Tensor) -> tuple[float, float]:
    return x.double().mean().item(), x.double().std().item()


CALLS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[float, float]]] = {
    "rand_like": (torch.rand_like, (0.5, 12**-0.5)),
    "randn_like": (torch.randn_like, (0, 1)),
    "uniform_": (lambda x: (x * 1).uniform_(2, 5), (3.5, 3 * 12**-0.5)),
    "normal_": (lambda x: (x * 1).normal_(2, 5), (2, 5)),
    "bernoulli_": (lambda x: (x * 1).bernoulli_(0.2), (0.2, 0.4)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, dtype: torch.dtype, fusing: Any) -> None:
    f, expected = CALLS[name]
    jitted, x = fusing(lambda x: f(x) + 0, RANDOM), torch.zeros(40, 50, dtype=dtype)
    x = x if dtype is torch.bfloat16 else x.t()
    torch.manual_seed(0)
    found, eager = jitted(x), f(x) + 0
    assert (found.dtype, found.stride()) == (eager.dtype, eager.stride())
    assert moments(found) == pytest.approx(expected, abs=0.25 if expected[1] == 5 else 0.06)
    rounded = dtype is torch.bfloat16 and name in ("rand_like", "uniform_")
    inside = any("fd.ops.uniform" in text or "fd.ops.normal" in text for text in texts(jitted))
    assert inside is not rounded, "in 16 bits, 1 would be among the numbers"


def test_dynamic_sizes(fusing: Any) -> None:
    jitted = fusing(dropped, RANDOM, dynamic=True)
    for n in (300, 500, 700):
        assert fitting(jitted, n).numel() == n
    assert tj.stats(jitted).misses == 1
    assert any("uniform" in text for text in texts(jitted))


@pytest.mark.parametrize("f", [lambda x: x.bernoulli_(1.5), lambda x: x.normal_(0, -1)])
def test_what_pytorch_refuses_is_refused(f: Any, fusing: Any) -> None:
    jitted = fusing(lambda x: f(x * 1) + 1, RANDOM, strict=False)
    with pytest.raises(RuntimeError, match="expect"):
        jitted(torch.zeros(5))


@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_numbers_depend_on_the_state_alone(name: str) -> None:
    function = getattr(torch.ops.tj_nvfuser, name)
    x, state = torch.zeros(1000), torch.tensor([3, 0])
    first = function(state, x)
    assert torch.equal(first, function(state.clone(), x + 1))
    assert not torch.equal(first, function(torch.tensor([3, 4]), x))
    assert not torch.equal(first, function(torch.tensor([4, 0]), x))


def test_a_draw_moves_the_generator_of_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Played: the numbers of the stream from the offset on are for nobody else."""
    generator = torch.Generator()
    state = {"offset": 8}
    played = SimpleNamespace(
        initial_seed=lambda: 2**64 - 5,
        get_offset=lambda: state["offset"],
        set_offset=lambda n: state.update(offset=n),
    )
    monkeypatch.setattr(torch.cuda, "default_generators", (generator, played))
    like: Any = SimpleNamespace(device=torch.device("cuda", 1))
    assert draws.draw(like).tolist() == [-5, 8]
    assert draws.draw(like).tolist() == [-5, 12]
