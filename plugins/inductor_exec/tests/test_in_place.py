"""Regions that write to arguments: the caller sees what eager writes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.models import MODELS
from tj_core import extend
from tj_inductor.adapter import compiling, modules
from torch import nn

Program = Callable[..., Any]
PLUGINS = ("inductor", "autograd", "torch")


def copied_to_an_index(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.index_copy_(2, at, k * 2)
    return (c * 3).sum(-1)


def set_at_an_index(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c[:, :, at] = k * 2
    return (c * 3).sum(-1)


def set_at_a_place(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c[:, :, 3:4] = k * 2
    return (c * 3).sum(-1), c.clone()


def copies_are_returned(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.index_copy_(2, at, k * 2)
    return c.clone(), c.view(-1).clone(), c


def overwritten(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.copy_(k * 2)
    return (c * 3).sum(-1), c


def zeroed(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.zero_()
    return (k * 3).sum(-1), c[0]


def scattered(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.scatter_(2, at.expand(4, 4, 1, 8), k * 2)
    return (c * 3).sum(-1)


def masked(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.masked_fill_(k > 0, 1.5)
    return (c * 3).sum(-1)


def twice(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.index_copy_(2, at, k * 2)
    c[:, :, 5:6] = k * 3
    return (c * 3).sum(-1)


def filled(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.index_fill_(2, at, 1.5)
    return (c * 3).sum(-1) + k[..., 0]


def added(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.add_(k)
    return (c * 3).sum(-1)


def accumulated(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.index_put_((torch.arange(4), torch.arange(4), at), k[:, 0, 0], accumulate=True)
    return (c * 3).sum(-1)


def read_before(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    old = c.sum(-1)
    c.index_copy_(2, at, k * 2)
    return old, (c * 3).sum(-1)


def moved(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c[:, :, 3:4] = c[:, :, 4:5] + k
    return (c * 3).sum(-1)


def index_is_computed(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.index_copy_(2, at + 0, k * 2)
    return (c * 3).sum(-1)


def index_is_random(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    c.index_copy_(2, at + torch.randint(0, 1, (1,)), k * 2)
    return (c * 3).sum(-1)


def after_an_index(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
    found = (k * 2).gather(3, (at + 1).expand(4, 4, 1, 1))
    c.copy_(k * 2)
    return found, c


IN_PLACE = (
    copied_to_an_index, set_at_an_index, set_at_a_place, overwritten, zeroed, scattered, masked,
    twice, filled, index_is_computed, after_an_index, copies_are_returned,
)  # fmt: skip
CONSUMED = (added,)
"""Programs whose writes a second run would repeat."""

COPIED_BACK = (accumulated, read_before, moved, index_is_random)


def arguments(place: int = 3, n: int = 64) -> tuple[torch.Tensor, ...]:
    return torch.randn(4, 4, n, 8), torch.tensor([place]), torch.randn(4, 4, 1, 8)


def outcome(f: Program, args: tuple[torch.Tensor, ...]) -> Any:
    """Results or error of a call, and the arguments after it."""
    before = [a._version for a in args]
    try:
        found = f(*args)
    except Exception as error:
        found = (type(error), str(error))
    counts = [a._version - b for a, b in zip(args, before, strict=True)]
    return found, args, counts


def check(f: Program, g: Program, args: tuple[torch.Tensor, ...]) -> None:
    """Hold a call of ``g`` against one of ``f``."""
    with torch.no_grad():
        wanted, found = (outcome(h, tuple(a.clone() for a in args)) for h in (f, g))
    torch.testing.assert_close(found[1:], wanted[1:])
    if isinstance(wanted[0], tuple) and isinstance(wanted[0][0], type):
        assert found[0] == wanted[0]
    else:
        torch.testing.assert_close(found[0], wanted[0])


def overwrites(g: Any) -> list[bool]:
    """For each region of ``g``, True if it writes to an argument."""
    return [bool(use.kernel.region.overwritten) for use in tj.explain(g).regions]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("f", [*IN_PLACE, *CONSUMED, *COPIED_BACK], ids=lambda f: f.__name__)
def test_arguments_are_written_as_in_eager(f: Program, level: int) -> None:
    g = tj.jit(f, session=tj.Session(PLUGINS, overrides={"check": level, "strict": True}))
    for place in (3, 3, 5, 63, 64, -1, -70, 0):
        check(f, g, arguments(place))
    assert any(overwrites(g)) is (f not in COPIED_BACK)
    assert ("CONSUMES" in str(tj.last_trace(g))) is (f in CONSUMED)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("f", [*IN_PLACE, *CONSUMED, *COPIED_BACK], ids=lambda f: f.__name__)
def test_the_first_index_is_out_of_bounds(f: Program, fusing: Any) -> None:
    g = fusing(f)
    for place in (64, 3, 64):
        check(f, g, arguments(place))


def test_nothing_is_copied(fusing: Any) -> None:
    g = fusing(copied_to_an_index)
    c, at, k = arguments()
    with torch.no_grad():
        g(c, at, k)
    (use,) = tj.explain(g).regions
    assert "empty_strided_cpu((4, 4, 64, 8)" not in use.kernel.fused.source
    assert str(tj.last_trace(g)).count("mutates=(") == 1


@pytest.mark.slow
def test_arguments_that_share_memory(fusing: Any) -> None:
    def f(c: torch.Tensor, d: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
        c.index_copy_(2, at, k * 2)
        return (c * 3 + d).sum(-1), d.sum()

    g, at = fusing(f), torch.tensor([2])
    k = torch.randint(-8, 9, (4, 4, 1, 8)).float()
    for _ in range(2):
        for sliced in (False, True):
            # Integers, so that sums are exact in whichever order threads add.
            base = torch.randint(-8, 9, (5, 4, 64, 8)).float()
            results = []
            for h in (f, g):
                mine = base.clone()
                pair = (mine[:4], mine[1:]) if sliced else (mine[:4], base[:4].clone())
                with torch.no_grad():
                    results.append((h(*pair, at, k), mine))
            torch.testing.assert_close(*results)


def test_the_argument_itself_is_returned_and_views_see_it(fusing: Any) -> None:
    g = fusing(overwritten)
    for _ in range(2):
        c, at, k = arguments()
        row = c[0]
        with torch.no_grad():
            _, returned = g(c, at, k)
        assert returned is c
        torch.testing.assert_close(row, (k * 2).expand_as(c)[0])


def test_elements_that_share_memory_are_refused(fusing: Any) -> None:
    def f(c: torch.Tensor, k: torch.Tensor) -> Any:
        c.copy_(k * 2)
        return k + 1

    g = fusing(f)
    for h in (f, g):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            h(torch.zeros(1, 3).expand(4, 3), torch.ones(4, 3))


@pytest.mark.slow
def test_gradients_see_old_values(fusing: Any) -> None:
    def f(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
        c.index_copy_(2, at, k * 2)
        return (c * k).sum()

    g = fusing(f)
    for _ in range(2):
        c, at, k = arguments()
        found = []
        for h in (f, g):
            mine, leaf = c.clone(), k.clone().requires_grad_()
            h(mine, at, leaf).backward()
            found.append((leaf.grad, mine.detach()))
        torch.testing.assert_close(*found)


@pytest.mark.slow
@pytest.mark.parametrize("grad", [False, True])
def test_parameters_are_written_without_gradients(grad: bool, fusing: Any) -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = nn.Parameter(torch.zeros(8, 4), requires_grad=grad)
            self.register_buffer("rows", torch.zeros(8, 4))

        def forward(self, at: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            self.kept.index_copy_(0, at, k * 2)
            self.rows[at] = k * 3
            return self.kept.exp() + self.rows

    plain, model = Cache(), Cache()
    g = fusing(model)
    for place in (0, 3, 8, 7):
        at, k = torch.tensor([place]), torch.randn(1, 4)
        with torch.no_grad():
            found = [outcome(h, (at, k))[0] for h in (plain, g)]
        if place < 8:
            torch.testing.assert_close(*found)
        assert place < 8 or found[0] == found[1]
        torch.testing.assert_close(model.state_dict(), plain.state_dict())
        assert model.kept._version == plain.kept._version
    assert any(overwrites(g))


@pytest.mark.slow
def test_sizes_that_are_symbols(fusing: Any) -> None:
    def f(c: torch.Tensor, at: torch.Tensor, k: torch.Tensor) -> Any:
        c.index_copy_(1, at, k * 2)
        return (c * 3).sum(-1)

    g = fusing(f, dynamic=True)
    for n in (4, 7, 300, 5):
        for place in (2, 64):
            args = torch.randn(n, 64, 8), torch.tensor([place]), torch.randn(n, 1, 8)
            check(f, g, args)


FAULTS: dict[str, Callable[..., Any]] = {
    "raises before": lambda run: lambda box: 1 / 0,
    "raises after": lambda run: lambda box: [run(box), 1 / 0],
    "returns another type": lambda run: lambda box: [x.double() for x in run(box)],
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("f", [copied_to_an_index, set_at_a_place, zeroed, added, moved])
def test_a_region_that_fails_is_survived(
    f: Program, fault: str, fusing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compiling.compiled

    def broken(*args: Any, **kwargs: Any) -> Any:
        made = compiled(*args, **kwargs)
        return modules.Compiled(FAULTS[fault](made.function), made.source, made.strides)

    monkeypatch.setattr(compiling, "compiled", broken)
    g = fusing(f, strict=False)
    with pytest.warns(tj.TjWarning, match="failed on region"):
        check(f, g, arguments())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(f, g, arguments())


def raise_after_regions(g: Any) -> None:
    """Let each region of ``g`` raise a `ZeroDivisionError` once it has run."""
    for use in tj.explain(g).regions:
        kernel = use.kernel
        run = kernel.function
        kernel.function = lambda box, run=run: [run(box), 1 / 0]
        for program, name in kernel.places:
            program().__globals__[name] = kernel.function


@pytest.mark.slow
@pytest.mark.parametrize("f", [copied_to_an_index, set_at_a_place, zeroed])
def test_an_error_after_the_write_happens_again_in_eager(f: Program, fusing: Any) -> None:
    """Memory runs out, say: the program runs again, on what was written."""
    g = fusing(f)
    check(f, g, arguments())
    raise_after_regions(g)
    with pytest.warns(tj.TjWarning, match="functional form of a program raised ZeroDivisionError"):
        check(f, g, arguments())


@pytest.mark.parametrize("f", CONSUMED)
def test_an_error_after_a_write_is_raised_where_it_would_be_repeated(
    f: Program, fusing: Any
) -> None:
    g = fusing(f)
    check(f, g, arguments())
    raise_after_regions(g)
    args = arguments()
    written = tuple(a.clone() for a in args)
    with torch.no_grad(), pytest.raises(ZeroDivisionError):
        g(*args)
    with torch.no_grad():
        f(*written)
    torch.testing.assert_close(args, written)


def test_it_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path / "cache"))
    found = []
    for _ in range(2):
        g = tj.jit(copied_to_an_index, session=tj.Session(PLUGINS))
        for place in (3, 64, 5):
            check(copied_to_an_index, g, arguments(place))
        stats = tj.stats(g)
        found.append((stats.region_misses, stats.region_kept, stats.program_kept))
        assert overwrites(g) == [True]
    assert found == [(1, 0, 0), (0, 1, 1)]


def test_a_script_shows_what_failed(
    fusing: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = compiling.compiled
    monkeypatch.setattr(compiling, "compiled", lambda *args, **kwargs: 1 / 0)
    g = fusing(copied_to_an_index, strict=False)
    with pytest.warns(tj.TjWarning, match="shows it") as caught:
        check(copied_to_an_index, g, arguments())
    monkeypatch.setattr(compiling, "compiled", compiled)
    text = str(caught[0].message)
    path = text.partition("; python ")[2].removesuffix(" shows it")
    script = Path(path).read_text("utf-8")
    assert "overwritten={" in script
    reproduce, here = extend.reproduce, tj.Session(PLUGINS)
    monkeypatch.setattr(extend, "reproduce", lambda *a, **k: reproduce(*a, **k, session=here))
    exec(compile(script, path, "exec"), {"__name__": "__main__"})
    assert "compiles, and returns what its operations return" in capsys.readouterr().out


@pytest.mark.slow
def test_caches_of_transformers_are_not_copied(fusing: Any) -> None:
    from transformers import StaticCache

    model = MODELS["llama"].build().eval()
    config = model.config

    def decoded(f: Any) -> Any:
        cache = StaticCache(config=config, max_cache_len=16)
        tokens, logits = torch.arange(10).view(2, 5), []
        with torch.no_grad():
            for _ in range(6):
                out = f(tokens, past_key_values=cache, use_cache=True).logits[:, -1:]
                tokens = out.argmax(-1)
                logits.append(out)
        return logits, [(x.keys, x.values, x.keys._version) for x in cache.layers]

    g = fusing(model)
    torch.testing.assert_close(decoded(g), decoded(model))
    written = [
        use.kernel.region.overwritten for use in tj.explain(g).regions for _ in range(use.calls)
    ]
    assert sum(map(len, written)) == 2 * config.num_hidden_layers


def test_a_view_that_autograd_refuses_is_refused_where_nobody_needs_the_call(fusing: Any) -> None:
    """One of several views, whose memory is written through another argument."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([b], 1)
        a * a
        return a

    g = fusing(f)
    for run in (f, g, g):
        base = torch.ones(1, requires_grad=True) * 1
        with pytest.raises(RuntimeError, match="a function that returns multiple views"):
            run(base.unbind(0)[0], base[:1])


def viewed_before(a: torch.Tensor, b: torch.Tensor) -> Any:
    """The view of an argument that a write gives a gradient."""
    view = a.t()
    view.t().mul_(b)
    return b * 3, view, torch.stack([view, view]).mean(0)


def averaged(a: torch.Tensor, b: torch.Tensor) -> Any:
    view = a[1:]
    a.mul_(b)
    return (view.sin() * 2 + view).sum(), a, view


@pytest.mark.parametrize("f", [viewed_before, averaged], ids=lambda f: f.__name__)
def test_what_a_write_gives_a_gradient(f: Any, fusing: Any) -> None:
    found = []
    for g in (fusing(f), f):
        torch.manual_seed(0)
        a, b = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
        outs = g(a, b)
        (gradient,) = torch.autograd.grad(sum(o.sin().sum() for o in outs), b)
        found.append(([*outs, gradient], [o.requires_grad for o in (*outs, a)]))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def moved(pos: torch.Tensor, vel: torch.Tensor, dt: float) -> None:
    vel.add_(pos)
    pos.add_(vel).mul_(dt)


def moved_twice(pos: torch.Tensor, vel: torch.Tensor, dt: float) -> None:
    for _ in range(2):
        vel.add_(pos)
        pos.add_(vel).mul_(dt)


def test_a_graph_that_writes_is_another_to_inductors_cache(
    fusing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache knows a graph by its code, which does not follow changes of the graph."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for f in (moved, moved_twice, moved):
        jitted = fusing(f)
        for n, dt in ((5, 4.0), (9, 3.0), (7, 2.0)):
            pos, vel = torch.rand(n, 2), torch.rand(n, 2)
            wanted = pos.clone(), vel.clone()
            f(*wanted, dt)
            jitted(pos, vel, dt)
            torch.testing.assert_close((pos, vel), wanted)
