"""Finished programs on disk: a later session finds them, and they are the programs they were."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.extend import Stage, Transform
from torch import nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from pathlib import Path

PLUGINS = ("inductor", "autocast", "autograd", "torch")
Tensors = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def _folder(_not_disabled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path / "cache"))


def programs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "programs").glob("*.json"))


def jitted(f: Any, plugins: tuple[Any, ...] = PLUGINS, **more: Any) -> Any:
    """``f`` in a session of its own, which verifies all and raises what fails."""
    torch.compiler.reset()
    overrides = {"check": 2, "strict": True}
    return tj.jit(f, session=tj.Session(plugins, overrides=overrides), **more)


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)


# ---------------------------------------------------------------------------- programs


def plain(x: torch.Tensor, w: torch.Tensor) -> Any:
    return F.gelu(x @ w).sum()


def rows(x: torch.Tensor, w: torch.Tensor) -> Any:
    """No loss: its backward is made in the first backward."""
    return F.gelu(x @ w)


def several(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Autograd sees two nodes: each result is differentiated by itself."""
    return (F.layer_norm(x @ w, (6,)) ** 2).sum(), (x * w.sum()).sin()


def written(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x.clone()
    z = y.mul_(2).view(-1)
    z[3:5] = w.sum()
    return y.exp(), z[1:]


def drawn(x: torch.Tensor, w: torch.Tensor) -> Any:
    return F.dropout(torch.relu(x @ w), 0.5) * torch.rand_like(x)


def nothing_needs_it(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x.detach().sin().argmax(1), (w.detach() + 1).exp()


def checkpointed(x: torch.Tensor, w: torch.Tensor) -> Any:
    inner: Any = checkpoint(lambda x, w: (x @ w).sin().exp(), x, w, use_reentrant=False)
    return (inner * x).tanh()


def tagged(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (tj.tag((x @ w).exp(), "RECOMPUTE").sin() * tj.tag(x.tanh(), "SAVE")).sum()


def under_autocast(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.relu(x @ w) @ w
    return y.float().softmax(-1)


def attending(x: torch.Tensor, w: torch.Tensor) -> Any:
    q, k, v = (t.view(1, 2, 2, -1) for t in (x, x @ w, x * 2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).sin()


def chosen(x: torch.Tensor, w: torch.Tensor) -> Any:
    picked = torch.cond(x.sum() > 0, lambda a: a.sin() + 1, lambda a: a.cos() * 2, (x @ w,))
    return picked.exp() * 2


def convolved(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Saved values have the strides that Inductor chose."""
    images = x.view(1, 2, 3, 4).relu()
    return F.conv2d(F.conv2d(images, w.view(9, 2, 2, 1)).relu(), w.view(4, 9, 1, 1)).sigmoid()


def with_constants(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Bodies hold a tensor: one number, and a row."""
    hidden = torch.where(x > 0, x @ w, torch.tensor(-3.0))
    return hidden.exp() * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def structured(x: torch.Tensor, w: torch.Tensor) -> Any:
    return {"of": [x.sin() * 2, (w, 3)], "max": (x + 1).exp().max(1)}


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 3


def through_a_function(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (Triple.apply(x) @ w).sin().exp()


def indexed(x: torch.Tensor, w: torch.Tensor) -> Any:
    target = torch.arange(x.shape[0])
    return F.cross_entropy(x @ w, target) + F.embedding(target, w).exp().sum()


PROGRAMS: tuple[Callable[..., Any], ...] = (
    plain,
    several,
    written,
    drawn,
    nothing_needs_it,
    checkpointed,
    tagged,
    under_autocast,
    attending,
    chosen,
    convolved,
    with_constants,
    structured,
    through_a_function,
    indexed,
)


def leaves(tree: Any) -> Iterator[torch.Tensor]:
    found, _ = torch.utils._pytree.tree_flatten(tree)
    yield from (x for x in found if isinstance(x, torch.Tensor))


def step(f: Any, orders: int = 1) -> list[torch.Tensor]:
    """Results and gradients, of gradients too."""
    x, w = arguments()
    made = list(leaves(f(x, w)))
    found = [t.detach() for t in made]
    terms = [t for t in made if t.requires_grad]
    for order in range(orders if terms else 0):
        loss: Any = sum((t * (i + 1)).sum() for i, t in enumerate(terms))
        again = order + 1 < orders
        grads = torch.autograd.grad(loss, [x, w], create_graph=again, allow_unused=True)
        terms = [g for g in grads if g is not None and (not again or g.requires_grad)]
        found += [g.detach() for g in grads if g is not None]
    return found


def facts(g: Any) -> tuple[Any, ...]:
    """Observable facts of a compiled program."""
    compilation = g.__tj__.last.compilation
    backwards = {n: t.traces for n, t in compilation.others.items() if hasattr(t, "traces")}
    kept, compiled = "kept on disk", "compiled    "
    lines = [line.replace(kept, compiled).rstrip() for line in str(tj.explain(g)).splitlines()]
    rows = [line[:60] if "region_" in line else line for line in lines]  # without its seconds
    return (
        list(map(str, tj.last_traces(g))),
        {name: list(map(str, traces)) for name, traces in backwards.items()},
        rows,
        [text for text in sorted(map(str, tj.guards(g))) if "size()" in text],
    )


@pytest.mark.sampled(18)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbols"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_later_session_finds_the_program(program: Callable[..., Any], dynamic: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eager's `cond` is one of Dynamo's programs
        expected = step(program)
    near = 2e-2 if program is under_autocast else 1e-4
    runs = []
    for _ in range(2):
        g = jitted(program, dynamic=dynamic)
        got = step(g)
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=near, atol=near)
        runs.append((got, facts(g), tj.stats(g)))
    (one, shown, first), (two, shown_again, second) = runs
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert shown_again == shown
    assert first.program_kept == 0
    assert second.program_kept > 0
    assert second.region_misses == 0
    backward = set() if program is chosen else {"backward: claim"}  # it holds what PyTorch saved
    assert not ({"joint", "split", "claim"} | backward) & second.seconds.keys()
    assert not first.fallbacks + second.fallbacks


@pytest.mark.slow
@pytest.mark.parametrize("program", [plain, several], ids=lambda f: f.__name__)
def test_gradients_of_gradients(program: Callable[..., Any]) -> None:
    expected = step(program, 2)
    for _ in range(2):
        g = jitted(program)
        for mine, theirs in zip(step(g, 2), expected, strict=True):
            torch.testing.assert_close(mine, theirs)
    assert tj.stats(g).program_kept > 1


@pytest.mark.slow
def test_other_tangents_and_calls_that_need_none() -> None:
    """Backwards for tangents that are laid out otherwise, or that do not exist, are found too."""

    def two(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        return (x @ w).sin() * 2, (x * 3).exp() + 1

    def use(f: Any) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for terms in ("y.sum()", "(y * y).sum()", "z.t().contiguous().sum()", "y.sum() + z.sum()"):
            x, w = arguments()
            y, z = f(x, w)
            eval(terms, {"y": y, "z": z}).backward()
            found += [t.grad for t in (x, w) if t.grad is not None]
        with torch.no_grad():
            found += f(*arguments())
        return found

    expected, kept = use(two), []
    for _ in range(2):
        g = jitted(two)
        for mine, theirs in zip(use(g), expected, strict=True):
            torch.testing.assert_close(mine, theirs)
        kept.append(tj.stats(g).program_kept)
    assert kept[0] == 0
    assert kept[1] >= 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + F.gelu(self.norm(layer(x)))
        return x


@pytest.mark.slow
def test_a_module_is_trained_as_in_eager() -> None:
    def train(wrap: Callable[[nn.Module], Any]) -> tuple[list[torch.Tensor], Any]:
        net = Net()
        f = wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for seed in range(3):
            torch.manual_seed(seed)
            optimizer.zero_grad()
            f(torch.randn(8, 6)).pow(2).mean().backward()
            optimizer.step()
        return [*net.state_dict().values()], f

    expected, _ = train(lambda net: net)
    for kept in (0, 2):
        got, g = train(jitted)
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs)
        assert tj.stats(g).program_kept == kept


@pytest.mark.slow
def test_what_was_decided_on_a_number_is_no_reason_to_warn() -> None:
    """The gradient of a power decides on its exponent, a symbol from the second call on."""

    def power(x: torch.Tensor, a: float) -> torch.Tensor:
        return (x + 1.5) ** a  # type: ignore[no-any-return]

    for second in (0.0, 1.0):
        g = jitted(power)
        for a in (2.5, second):
            x, y = (torch.linspace(0, 1, 4, requires_grad=True) for _ in range(2))
            g(x, a).sum().backward()
            power(y, a).sum().backward()
            torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.slow
def test_arguments_that_share_memory_get_their_own_program() -> None:
    def adding(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return (y * 2).exp()

    def use(f: Any) -> Tensors:
        base = torch.linspace(-1, 1, 8)
        return f(base[:6], base[2:]), f(base[:3], base[4:7]), base

    expected = use(adding)
    for _ in range(2):
        g = jitted(adding)
        for mine, theirs in zip(use(g), expected, strict=True):
            torch.testing.assert_close(mine, theirs)
    assert tj.stats(g).program_kept >= 1


def test_the_backward_may_run_in_another_thread() -> None:
    for kept in (0, 2):
        g, (x, w) = jitted(plain), arguments()
        loss = g(x, w)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        y, v = arguments()
        plain(y, v).backward()
        torch.testing.assert_close((x.grad, w.grad), (y.grad, v.grad))
        assert tj.stats(g).program_kept == kept


# ---------------------------------------------------------------------------- what counts


def kept(f: Callable[..., Any] = plain, **more: Any) -> bool:
    """Test if a session of its own finds ``f`` finished."""
    g = jitted(f, **more)
    g(*arguments())
    return bool(tj.stats(g).program_kept)


def test_settings_of_the_process_count() -> None:
    assert (kept(), kept()) == (False, True)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert not kept()
    finally:
        torch.set_num_threads(threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of Intel's GPUs
        with torch.backends.mkldnn.flags(enabled=False):
            assert not kept()
    torch.use_deterministic_algorithms(True)
    try:
        assert not kept()
    finally:
        torch.use_deterministic_algorithms(False)
    assert kept()


def test_options_and_plugins_count() -> None:
    assert (kept(), kept()) == (False, True)
    assert not kept(plugins=("inductor", "autograd", "torch"))
    session = tj.Session(PLUGINS, overrides={"autograd": {"memory_budget": 0.5}})
    g = tj.jit(plain, session=session)
    g(*arguments())
    assert not tj.stats(g).program_kept
    assert kept()


def test_grad_mode_and_what_needs_gradients_count() -> None:
    assert (kept(), kept()) == (False, True)
    with torch.no_grad():
        assert (kept(), kept()) == (False, True)
    g = jitted(plain)
    x, w = arguments()
    g(x.detach(), w)
    assert not tj.stats(g).program_kept


@pytest.mark.slow
def test_values_of_symbols_count() -> None:
    """Decisions of passes depend on the sizes of the compiled call."""

    def rows(count: int) -> int:
        g = jitted(plain, dynamic=True)
        x, w = torch.ones(count, 6), arguments()[1]
        torch.testing.assert_close(g(x, w), plain(x, w))
        found = tj.stats(g).program_kept
        for other in (3, 9):
            x = torch.ones(other, 6)
            torch.testing.assert_close(g(x, w), plain(x, w))
        return found

    assert [rows(4), rows(4), rows(5), rows(5)] == [0, 1, 0, 1]


def test_a_users_transform_is_not_kept(tmp_path: Path) -> None:
    seen = []
    mine = Transform("mine", lambda t, c: seen.append(t) or t, Stage.FUNCTIONAL)
    assert not any(kept(transforms=(mine,)) for _ in range(2))
    assert len(seen) == 2
    assert programs(tmp_path) == []


@torch.library.custom_op("tj_finished::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: (twice(x.detach()) @ w).sin().exp(),
        lambda x, w: torch.arange(int(x.detach().sum().abs() * 0) + 2).float().sin().exp() + 1,
    ],
    ids=["an operator", "a size that depends on data"],
)
def test_what_no_text_stands_for_is_not_kept(program: Any, tmp_path: Path) -> None:
    """The code of an operator may change, and nothing on disk would tell."""
    import torch._dynamo as dynamo

    with dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        for _ in range(2):
            g = tj.jit(program, session=tj.Session(PLUGINS))
            torch.testing.assert_close(g(*arguments()), program(*arguments()))
            assert not tj.stats(g).program_kept
    assert programs(tmp_path) == []


class Inline:
    """A plugin that is an object of the program."""

    tj_name = "inline"


def test_plugins_that_are_objects_keep_nothing(tmp_path: Path) -> None:
    assert not any(kept(plugins=(*PLUGINS, Inline())) for _ in range(2))
    assert programs(tmp_path) == []


def test_a_broken_entry_is_compiled_with_a_warning(tmp_path: Path) -> None:
    kept(rows)
    (path,) = programs(tmp_path)
    path.write_text(path.read_text()[:400])
    with pytest.warns(tj.TjWarning, match="cannot be used, and is made again"):
        assert not kept(rows)
    assert kept(rows)


def test_a_program_is_found_where_its_regions_are_gone(tmp_path: Path) -> None:
    kept(rows)
    for path in (tmp_path / "cache" / "regions").glob("*"):
        path.unlink()
    g = jitted(rows)
    x, w = arguments()
    torch.testing.assert_close(g(x, w), rows(x, w))
    assert (tj.stats(g).program_kept, tj.stats(g).region_misses) == (1, 1)


@pytest.mark.slow
def test_the_code_of_a_function_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not kept(through_a_function)
    assert kept(through_a_function)
    monkeypatch.setattr(Triple, "backward", staticmethod(lambda ctx, g: g * 4))
    g = jitted(through_a_function)
    x, w = arguments()
    g(x, w).sum().backward()
    y, v = arguments()
    through_a_function(y, v).sum().backward()
    torch.testing.assert_close((x.grad, w.grad), (y.grad, v.grad))
    assert not tj.stats(g).program_kept
