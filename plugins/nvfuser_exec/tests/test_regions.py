"""Programs whose calls run in regions of nvFuser, on the reference, compared with eager."""

from __future__ import annotations

import copy
import re
import runpy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Decline, Device, Session, Symbol, TjWarning
from tj_nvfuser.bindings import NvFuser, Run
from tj_nvfuser.executor import nvfuser_executor
from tj_nvfuser.operators import Operators
from tj_nvfuser.options import Options
from tj_nvfuser.testing.plugin import ReferencePlugin
from tj_nvfuser.testing.reference import Reference

pytestmark = pytest.mark.sampled(10)

F = torch.nn.functional
SIZES = (5, 9, 300, 3, 1, 0, 17)


def regions(jitted: Any) -> list[int]:
    """Number of operations in each region."""
    return [len(use.kernel.region.body.calls) for use in tj.explain(jitted).regions]


def texts(jitted: Any) -> list[str]:
    """The definitions of the regions."""
    return [use.kernel.fused.source for use in tj.explain(jitted).regions]


def X(*shape: int, grad: bool = True) -> torch.Tensor:
    return torch.randn(shape, requires_grad=grad)


def hold(jitted: Any, f: Callable[..., Any], *args: torch.Tensor) -> None:
    """Results, strides and gradients are eager's."""
    results = []
    for g in (f, jitted):
        mine = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        outs = g(*mine)
        outs = outs if isinstance(outs, tuple) else (outs,)
        total = sum(o.float().square().sum() for o in outs if o.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()
        strides = [o.stride() for o in outs]
        results.append(([o.detach() for o in outs], [a.grad for a in mine], strides))
    expected, got = results
    torch.testing.assert_close(got[:2], expected[:2], rtol=1e-3, atol=1e-4, equal_nan=True)
    assert got[2] == expected[2]


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "pointwise": (lambda x, y: (x * y + 1).tanh() / 3 - x.exp(), lambda: (X(5, 7), X(5, 7))),
    "softmax": (lambda x: F.softmax(x * 2, -1) * x + 1, lambda: (X(7, 9),)),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x * 2, (6,), w, b).relu() + 1,
        lambda: (X(5, 6), X(6), X(6)),
    ),
    "group norm": (lambda x: F.group_norm(x * 2, 2).sin() + 1, lambda: (X(3, 4, 5),)),
    "batch norm": (
        lambda x: F.batch_norm(x * 2, None, None, training=True).sin() + 1,
        lambda: (X(3, 4, 5),),
    ),
    "cross entropy": (
        lambda x: F.cross_entropy(x * 2, torch.tensor([1, -100, 3])),
        lambda: (X(3, 5),),
    ),
    "columns": (lambda x: (x.t() * 2).exp() + 1, lambda: (X(3, 4),)),
    "channels last": (
        lambda x: (x * 2).exp() + 1,
        lambda: (X(2, 3, 4, 5, grad=False).to(memory_format=torch.channels_last),),
    ),
    "expanded": (lambda x: (x.expand(4, 3) * 2).exp() + 1, lambda: (X(1, 3),)),
    "no dimensions": (lambda x, y: (x * y).exp() + x, lambda: (X(), X())),
    "gaps": (lambda x: (x[:, ::2] * 2).exp() + 1, lambda: (X(3, 8),)),
    "cat and pad": (
        lambda x, y: F.pad(torch.cat((x, y * 2)), (1, 2)).exp() + 1,
        lambda: (X(3, 2), X(3, 2)),
    ),
    "rotary": (
        lambda x, c: torch.cat((-x[..., 3:], x[..., :3]), -1) * c + x * c.sin(),
        lambda: (X(2, 4, 6), X(4, 6)),
    ),
    "embedding": (
        lambda w: F.embedding(torch.tensor([[1, 2], [0, 1]]), w) * 2 + w.sum(),
        lambda: (X(4, 3),),
    ),
    "indexed": (lambda x: (x[:, [0, -2]] * 2).sum(0) + 1, lambda: (X(5, 4),)),
    "masked": (lambda x: x.tril(-1).masked_fill(x > 0, 0.5).exp(), lambda: (X(5, 4),)),
    "moments": (lambda x: (x.var(0) + x.std(1).sum(), x.mean(-1)), lambda: (X(5, 4),)),
    "low precision": (
        lambda x: ((x.bfloat16() * 1.5 + 1).sum(-1) * 2, x.half().exp() * 2),
        lambda: (X(5, 4),),
    ),
    "double": (lambda x: (x.double() * 2).exp().sum(0) / 3, lambda: (X(5, 4),)),
    "integers": (
        lambda x: ((x * 4).int() // 3 + (x * 4).int() % 3 * 2).sum(0) * (x > 0),
        lambda: (X(5, 4, grad=False),),
    ),
    "sorted": (
        lambda x: (x * 2).sort(-1).values.cumsum(0) + x.topk(2, 0).values.sum(),
        lambda: (X(5, 4),),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_equal_to_eager(name: str, fusing: Any) -> None:
    f, arguments = PROGRAMS[name]
    torch.manual_seed(0)
    jitted = fusing(f, {"minimum": 2, "scans": True, "indices": True})
    hold(jitted, f, *arguments())
    assert tj.stats(jitted).fallbacks == ()
    assert regions(jitted), tj.explain(jitted)


def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product, rows, a view with sizes that are computed, and a mean over it."""
    y = F.gelu(x @ w) * 2
    z = (y.softmax(-1) + y.sin()).reshape(-1, 4, 8)
    return z.mean((0, 1)) + F.layer_norm(y, (32,)).sum(0)[:8]


def joined(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.cat([x.sin(), x.cos()]) @ w
    return F.pad(y, (1, 0))[: x.shape[0]].exp() / x.shape[0] + torch.ones(x.shape[0], 1)


@pytest.mark.slow
@pytest.mark.parametrize("program", [mixed, joined])
def test_one_definition_serves_many_sizes(program: Callable[..., Any], fusing: Any) -> None:
    """For sizes of 0 and 1, operations run one by one."""
    jitted = fusing(program, {"matmul": True, "scans": True, "indices": True}, dynamic=True)
    w = X(16, 32)
    for rows in SIZES[:3]:
        hold(jitted, program, X(rows, 16), w)
    assert tj.stats(jitted).misses == 1
    assert all("-1" in text for text in texts(jitted))
    for rows in SIZES[3:]:
        hold(jitted, program, X(rows, 16), w)


def test_equal_layers_are_defined_once(fusing: Any) -> None:
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 8))
              for _ in range(6)]  # fmt: skip
    model = torch.nn.Sequential(*blocks)
    eager = copy.deepcopy(model)
    jitted, x = fusing(model, {"minimum": 2}), torch.randn(4, 8)
    jitted(x).square().sum().backward()
    eager(x).square().sum().backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    found = [c.symbol for c in tj.last_trace(jitted).calls if "region_" in c.symbol.path]
    assert len(found) >= 3
    assert len(set(found)) <= 2


# ------------------------------------------------------------------------- what is put right


def test_results_are_never_in_the_memory_of_arguments(fusing: Any) -> None:
    """The reference returns views as nvFuser may: of an input, and of each other."""

    def f(x: torch.Tensor) -> Any:
        return x.clone(), (x * 2 + 1).sum(), x.clone().view(4, 3).clone()

    jitted, x = fusing(f, {"minimum": 1}), torch.randn(3, 4)
    first, _, second = jitted(x)
    hold(jitted, f, x)
    memory = {t.untyped_storage().data_ptr() for t in (x, first, second)}
    assert len(memory) == 3
    assert regions(jitted)


def test_what_is_spread_has_strides_of_its_own(fusing: Any) -> None:
    class Spread(Reference):
        """Returns a spread value with strides of 0, as nvFuser does."""

        def build(self, text: str) -> Run:
            run = super().build(text)
            return lambda inputs: [x[:1].expand(x.shape) for x in run(inputs)]

    overrides = {"check": 2, "strict": True, "nvfuser_reference": {"minimum": 2}}
    session = Session((ReferencePlugin(Spread()), "torch"), overrides=overrides)
    jitted = tj.jit(lambda x: (x.expand(4, 3) * 2).exp(), session=session)
    x = torch.randn(1, 3)
    assert jitted(x).stride() == (3, 1)
    torch.testing.assert_close(jitted(x), (x.expand(4, 3) * 2).exp())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_rounds_where_eager_rounds(dtype: torch.dtype, fusing: Any) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return ((x * 1.001 + y) * 3 - x) * y

    x, y = torch.randn(64, 64, dtype=dtype), torch.randn(64, 64, dtype=dtype)
    assert torch.equal(fusing(f)(x, y), f(x, y))
    fast = fusing(f, {"emulate_precision": False})
    exact = f(x.double(), y.double())
    assert (fast(x, y) - exact).abs().mean() < (f(x, y) - exact).abs().mean()


@pytest.mark.parametrize("emulate", [True, False])
def test_all_kinds_of_calls_in_low_precision(emulate: bool, fusing: Any) -> None:
    """Values that are not rounded between calls are, where a product or a result takes them."""

    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = torch.cat((x * 1.001, x.exp())) @ (w * 0.5)
        z = F.layer_norm(y.softmax(-1) + 1, (8,)).sum(0)
        best = (y * 3).topk(2, -1).values + (y > 0.1).sum(-1, keepdim=True)
        return z, best, y.cumsum(0) * 2, torch.where(y > 0, y * 2, x[:1, :1]).float()

    x = torch.randn(4, 8, dtype=torch.bfloat16)
    w = torch.randn(8, 8, dtype=torch.bfloat16)
    options = {"emulate_precision": emulate, "matmul": True, "scans": True, "indices": True}
    jitted = fusing(f, options)
    for got, exact in zip(jitted(x, w), f(x.double(), w.double()), strict=True):
        torch.testing.assert_close(got.double(), exact.double(), rtol=0.05, atol=0.2)
    assert len(regions(jitted)) == 1


# ------------------------------------------------------------------------- what is no region


def declined(jitted: Any) -> str:
    return str([reason for claim in tj.explain(jitted).claims for _, reason in claim.declined])


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (lambda x: (x.t().reshape(-1), torch.cat((x, x)), x.clone()), "compute nothing"),
        (lambda x: x.sin() + 1, "needs 3 calls"),
        (lambda x: torch.zeros(3).sin().cos().exp() + 1, "no tensor"),
        (lambda x: torch.polar(x, x) * 2 + 1, "complex"),
        (lambda x: (x.to(torch.int8) * 2 + 1).abs(), "int8"),
        (lambda x: x @ x.t() + 1, "matmul is not on"),
        (lambda x: (x[:0] * 2 + 1).sin(), "no elements"),
        (lambda x: torch.special.digamma(x), "no such operation"),
        (lambda x: torch.linalg.vector_norm(x, 3) + 1, "another norm"),
        (lambda x: (x.view(1, 1, 1, 1, 1, 1, 1, 3, 3) * 2 + 1).sin(), "more than 8 dimensions"),
    ],
)
def test_what_does_not_fit_runs_in_eager(f: Callable[..., Any], why: str, fusing: Any) -> None:
    x = torch.randn(3, 3)
    jitted = fusing(f)
    torch.manual_seed(0)
    expected = f(x)
    torch.manual_seed(0)
    torch.testing.assert_close(jitted(x), expected)
    assert why in declined(jitted), declined(jitted)
    assert "region_" not in str(tj.last_trace(jitted))


@pytest.mark.parametrize(
    ("f", "operator"),
    [
        (lambda x, i: x.gather(1, i).sin() * 2 + 1, "gather"),
        (lambda x, i: F.embedding(i, x).sin() * 2 + 1, "embedding"),
        (lambda x, i: x[i[0]].sin() * 2 + 1, "index"),
        (lambda x, i: F.cross_entropy(x.sin() * 2 + x.exp(), i[:, 0]), "nll_loss_forward"),
    ],
)
@pytest.mark.usefixtures("on_reference")  # on a GPU, eager's error ends the process
def test_an_index_out_of_bounds_is_an_error(fusing: Any, f: Any, operator: str) -> None:
    """nvFuser reads what lies there; so reads by index are an option."""
    x, inside, outside = torch.randn(3, 3), torch.ones(3, 3).long(), torch.full((3, 3), 23)
    jitted, with_indices = fusing(f), fusing(f, {"indices": True})
    torch.testing.assert_close(jitted(x, inside), f(x, inside))
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        jitted(x, outside)
    assert "indices is not on" in declined(jitted)
    torch.testing.assert_close(with_indices(x, inside), f(x, inside))
    assert f"aten.{operator}" in str(tj.explain(with_indices))


def test_scans_are_an_option(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0).sin() * 2 + x.exp()

    jitted, without = fusing(f, {"scans": True, "indices": True}), fusing(f)
    x = torch.randn(3, 3)
    torch.testing.assert_close(jitted(x), without(x))
    assert "cumsum" in texts(jitted)[0]
    assert "cumsum" not in texts(without)[0]


def test_scans_that_cannot_be_compiled_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reference, "no_scans", lambda self: "no headers")
    call = Operators(Options(scans=True), Reference()).can_fuse
    jitted = tj.jit(lambda x: x.cumsum(0), session=Session(("torch",)))
    jitted(torch.randn(3))
    (cumsum,) = (c for t in tj.last_trace(jitted).calls for c in (t.body.calls if t.body else (t,)))
    assert call(cumsum) == Decline("no headers")


def test_cuda_tensors_are_taken_and_others_are_not() -> None:
    """Decisions for nvFuser itself depend on metadata alone: no device is needed."""
    fusion = nvfuser_executor(Options(), NvFuser()).fusion
    jitted = tj.jit(lambda x, y: x * y, session=Session(("torch",)))
    jitted(torch.randn(3), torch.randn(()))
    (call,) = (c for t in tj.last_trace(jitted).calls for c in (t.body.calls if t.body else (t,)))

    def on(*types: str) -> Any:
        values = [*call.flat_args, *call.flat_outs]
        by_name = {p.name: Device.parse(t) for p, t in zip(values, types, strict=True)}
        return call.map_proxies(lambda p: p.replace(device=by_name[p.name]))

    assert fusion is not None
    assert fusion.check is not None
    assert fusion.can_fuse(on("cuda:0", "cuda:0", "cuda:0")) is True
    assert fusion.can_fuse(on("cuda:0", "cpu", "cuda:0")) is True, "a number on the CPU"
    assert isinstance(fusion.can_fuse(on("cpu", "cpu", "cpu")), Decline)
    assert isinstance(fusion.can_fuse(on("cpu", "cuda:0", "cuda:0")), Decline)
    spread = on("cuda:0", "cpu", "cuda:0").replace(symbol=Symbol.parse("aten.copy.default"))
    assert "is on cpu" in str(fusion.can_fuse(spread)), "nvFuser would leave it there"
    several = [on("cuda:0", "cuda:0", "cuda:0"), on("cuda:1", "cuda:1", "cuda:1")]
    assert "several devices" in str(fusion.check(several))


# ------------------------------------------------------------------------- what goes wrong


class Broken(Reference):
    """Fails as ``when`` says."""

    def __init__(self, when: str) -> None:
        self.when = when

    def build(self, text: str) -> Run:
        if self.when == "defined":
            raise RuntimeError("INTERNAL ASSERT FAILED")
        run = super().build(text)

        def broken(inputs: list[Any]) -> Sequence[Any]:
            if self.when == "run":
                raise RuntimeError("INTERNAL ASSERT FAILED")
            return [x.double() for x in run(inputs)]

        return broken


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).exp() + 1


@pytest.mark.usefixtures("on_reference")
@pytest.mark.parametrize(
    ("when", "said"), [("defined", "ASSERT"), ("run", "ASSERT"), ("typed", "dtype")]
)
def test_a_region_that_fails_runs_without_nvfuser(
    when: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once with a warning, which names a script that compiles it again."""
    session = Session((ReferencePlugin(Broken(when)), "torch"), overrides={"strict": False})
    jitted, x = tj.jit(chain, session=session), torch.randn(3, 4)
    with pytest.warns(TjWarning, match=said) as caught:
        torch.testing.assert_close(jitted(x), chain(x))
    (message,) = caught
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(jitted(x), chain(x))
    (script,) = re.findall(r"python (\S+\.py) shows it", str(message.message))
    whole = Session((ReferencePlugin(), "torch"))
    monkeypatch.setattr("tj_core.host.reproducing.Session", lambda: whole)
    runpy.run_path(script)
    assert "returns what its operations return" in capsys.readouterr().out


@pytest.mark.usefixtures("on_reference")
def test_other_sizes_that_fail_run_one_by_one() -> None:
    """nvFuser compiles a definition for other sizes when these come, and may fail then."""

    class Seven(Reference):
        def build(self, text: str) -> Run:
            run = super().build(text)

            def broken(inputs: list[Any]) -> Sequence[Any]:
                if any(7 in x.shape for x in inputs if isinstance(x, torch.Tensor)):
                    raise RuntimeError("not for seven")
                return run(inputs)

            return broken

    session = Session((ReferencePlugin(Seven()), "torch"), overrides={"strict": False})
    jitted = tj.jit(chain, session=session, dynamic=True)
    for rows in (5, 6):
        torch.testing.assert_close(jitted(x := torch.randn(rows, 4)), chain(x))
    with pytest.warns(TjWarning, match="not for seven") as caught:
        for rows in (7, 8, 7):
            torch.testing.assert_close(jitted(x := torch.randn(rows, 4)), chain(x))
    assert len(caught) == 1


def test_options_are_checked() -> None:
    for name in ("minimum", "cache"):
        with pytest.raises(ValueError, match=f"{name} is 0"):
            Options(**{name: 0})


@pytest.mark.usefixtures("on_reference")
def test_equal_definitions_are_built_once() -> None:
    built: list[str] = []

    class Counted(Reference):
        def build(self, text: str) -> Run:
            built.append(text)
            return super().build(text)

    session = Session((ReferencePlugin(Counted()), "torch"))
    for scale in (2, 2, 3):
        jitted = tj.jit(lambda x, s=scale: (x * s).exp() + 1, session=session)
        jitted(torch.randn(3))
    assert len(built) == len(set(built)) == 2


@pytest.mark.usefixtures("on_reference")
def test_what_it_leaves_another_executor_fuses() -> None:
    """Two executors that fuse, in one program: the first is asked first."""
    pytest.importorskip("tj_inductor")

    def f(x: torch.Tensor) -> Any:
        y = (x * 2 + 1).exp()
        return y, ((x * 9).to(torch.int8) * 2 + 1).abs() + y.sum()

    session = Session((ReferencePlugin(), "inductor", "torch"), overrides={"strict": True})
    jitted, x = tj.jit(f, session=session), torch.randn(5, 6)
    torch.testing.assert_close(jitted(x), f(x))
    owners = [c.executor for c in tj.last_trace(jitted).calls if "region_" in c.symbol.path]
    assert set(owners) == {"nvfuser", "inductor"}
