"""Packages with gradients: steps equal to eager's to the bit, and what is declined."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.cli.main import main
from tj_core.extend import PackageError

if TYPE_CHECKING:
    from pathlib import Path

PLUGINS = ["torch", "autograd"]


class Net(torch.nn.Module):
    """A module with a parameter that gets no gradient, and buffers that a step writes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 1)
        self.frozen = torch.nn.Parameter(torch.rand(8), requires_grad=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        hidden = F.gelu(self.norm(self.first(x))) * self.frozen
        return F.mse_loss(self.last(hidden), y), hidden.detach().mean()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(6, 4, requires_grad=True), torch.rand(6, 1)


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def file(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("training") / "net.tjp"
    before = copy.deepcopy(net.state_dict())
    drawn = torch.get_rng_state()
    tj.export(net, inputs(), training=True, plugins=PLUGINS).save(path)
    after = net.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())
    assert not torch.equal(torch.get_rng_state(), drawn)  # by `inputs` alone:
    torch.set_rng_state(drawn)
    inputs()
    return path


def test_steps_are_those_of_eager(net: Net, file: Path) -> None:
    package, module = tj.load(file), copy.deepcopy(net)
    ours = torch.optim.SGD(package.parameters(), 0.1, momentum=0.9)
    theirs = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        x, y = inputs()
        mine = x.detach().clone().requires_grad_()
        ours.zero_grad()
        theirs.zero_grad()
        loss, mean = package(mine, y)
        expected, expected_mean = module(x, y)
        loss.backward()
        expected.backward()
        ours.step()
        theirs.step()
        assert torch.equal(loss, expected)
        assert torch.equal(mean, expected_mean)
        assert mine.grad is not None
        assert x.grad is not None
        assert torch.equal(mine.grad, x.grad)
        state = package.state_dict()
        assert state.keys() == module.state_dict().keys()
        assert all(torch.equal(state[k], v) for k, v in module.state_dict().items())


def test_without_gradients_around_it(net: Net, file: Path) -> None:
    package, (x, y) = tj.load(file), inputs()
    with torch.no_grad():
        loss, _ = package(x, y)
        assert torch.equal(loss, copy.deepcopy(net)(x, y)[0])
    assert not loss.requires_grad


def test_arguments_require_gradients_as_they_did(file: Path) -> None:
    x, y = inputs()
    with pytest.raises(PackageError, match=r"x: expected a tensor, cpu f32\[6, 4\] requires_grad"):
        tj.load(file)(x.detach(), y)


def test_gradients_of_gradients_are_refused(file: Path) -> None:
    x, y = inputs()
    loss, _ = tj.load(file)(x, y)
    with pytest.raises(PackageError, match="cannot be differentiated"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_tangents_in_any_layout() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x

    x = torch.rand(3, 4, requires_grad=True)
    package = tj.export(program, (x,), training=True, plugins=PLUGINS)
    weight = torch.rand(4, 3)
    for pick in (
        torch.sum,
        lambda r: (r.t() * weight).sum(),
        lambda r: r[0].prod(),
        torch.Tensor.mean,
    ):
        ours = torch.autograd.grad(pick(package(x)), x)
        theirs = torch.autograd.grad(pick(program(x)), x)
        assert torch.equal(ours[0], theirs[0])


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        return tangents[0] * 3


def view(x: torch.Tensor) -> Any:
    y = x.sin()
    first = y[0]
    return y, first, first.exp()


X = torch.rand(3, 4, requires_grad=True)


@pytest.mark.parametrize(
    ("program", "options", "text"),
    [
        (lambda x: Own.apply(x) + 1, {}, "a backward that the user wrote"),
        (lambda x: x.sin(), {"plugins": ["torch"]}, "has no backward program"),
        (view, {}, "one of several results is a view"),
        (lambda x: x.detach() + 1, {}, "has no backward program"),
    ],
)
def test_what_is_declined(program: Any, options: Any, text: str) -> None:
    with pytest.raises(PackageError) as caught:
        tj.export(program, (X,), training=True, **{"plugins": PLUGINS, **options})
    assert text in caught.value.message


def test_random_numbers_of_a_step() -> None:
    program = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    package = tj.export(program, (X,), training=True, plugins=PLUGINS)
    found = []
    for run in (package, program):
        torch.manual_seed(3)
        loss = run(X).sum()
        (gradient,) = torch.autograd.grad(loss, X)
        found.append((loss, gradient, torch.rand(2)))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


def three(x: torch.Tensor) -> Any:
    y = x.sin()
    return {"y": y, "loss": y.exp().sum(), "log": (x * 2).log()}


@pytest.mark.parametrize("names", [("loss",), ("y",), ("loss", "y"), ("y", "loss", "log")])
def test_each_of_several_results_has_its_gradients(names: tuple[str, ...], tmp_path: Path) -> None:
    x = torch.rand(3, 4).requires_grad_()
    x.data[0, 0] = 0  # the gradient of its logarithm is infinite: one that is not asked for is none
    tj.export(three, (x,), training=True, plugins=PLUGINS).save(tmp_path / "three.tjp")
    package = tj.load(tmp_path / "three.tjp")
    for _ in range(2):
        mine, theirs = package(x), three(x)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        for name in names:  # one by one: each has a graph of its own
            ours, expected = (
                torch.autograd.grad(r[name].sum(), x, retain_graph=True) for r in (mine, theirs)
            )
            assert torch.equal(ours[0], expected[0])
        ours, expected = (
            torch.autograd.grad(sum(r[n].sum() for n in names), x) for r in (mine, theirs)
        )
        assert torch.equal(ours[0], expected[0])


def test_a_parameter_of_another_result_gets_no_gradient() -> None:
    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = torch.nn.Linear(4, 2), torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            right = self.right(x)  # read first: parameters are in the order of the module
            return self.left(x), right

    package = tj.export(Heads(), (torch.rand(2, 4),), training=True, plugins=PLUGINS)
    package(torch.rand(2, 4))[1].sum().backward()
    names = [name for name, _ in package.named_parameters()]
    assert names == ["left.weight", "left.bias", "right.weight", "right.bias"]
    assert [p.grad is None for p in package.parameters()] == [True, True, False, False]


def test_steps_with_sizes_that_are_symbols(tmp_path: Path) -> None:
    class Padded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> Any:
            hidden = F.gelu(self.first(x)).transpose(0, 1)
            return self.last(hidden) / x.shape[1], hidden.mean(-1)

    torch.manual_seed(0)
    module = Padded()
    file, dims = tmp_path / "padded.tjp", {"x": (0, 1)}
    x = torch.rand(3, 5, 4)
    tj.export(module, (x,), dynamic=dims, training=True, plugins=PLUGINS).save(file)
    package = tj.load(file)
    for shape in ((3, 5, 4), (2, 7, 4), (6, 3, 4)):
        x = torch.rand(shape)
        for run in (package, module):
            for p in run.parameters():
                p.grad = None
            first, second = run(x)
            (first.square().sum() + second.t().sin().sum()).backward()
        pairs = zip(package.parameters(), module.parameters(), strict=True)
        for mine, theirs in pairs:
            assert theirs.grad is not None
            assert mine.grad is not None
            assert torch.equal(mine.grad, theirs.grad)
    with pytest.raises(PackageError, match="is for sizes with"):
        package(torch.rand(1, 5, 4))


def test_the_command_runs_a_step(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["package", "run", str(file)]) == 0
    assert "cpu f32[] requires_grad" in capsys.readouterr().out
