"""Exported programs: equal to the programs that made them, here and in other processes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import PackageError
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from .programs import Net, greatest, pair, write

if TYPE_CHECKING:
    from pathlib import Path

X = torch.rand(3, 4)
MORE = [{"more": torch.rand(4)}, {"more": torch.rand(3, 1)}]


def equal(got: Any, expected: Any) -> bool:
    """Test for equal trees, metadata of tensors included."""
    ours, structure = pytree.tree_flatten(got)
    theirs, other = pytree.tree_flatten(expected)
    pairs = zip(ours, theirs, strict=True)
    return structure == other and all(
        torch.equal(a, b) and a.stride() == b.stride() if isinstance(a, torch.Tensor) else a == b
        for a, b in pairs
    )


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def package(net: Net) -> Any:
    return tj.export(net, (X,), keywords={"scale": 2.0, "parts": MORE}, plugins=["torch"])


@pytest.fixture
def file(package: Any, tmp_path: Path) -> Path:
    package.save(tmp_path / "net.tjp")
    return tmp_path / "net.tjp"


def test_it_computes_what_the_module_does(net: Net, package: Any, file: Path) -> None:
    for run in (package, tj.load(file)):
        for x in (X, torch.rand(3, 4)):
            got = run(x, scale=2.0, parts=MORE)
            with torch.no_grad():
                assert equal(got, net(x, scale=2.0, parts=MORE))
            assert got["x"] is x
            assert not got["y"].requires_grad


ELSEWHERE = """
import sys
import torch, tj_core as tj
package = tj.load(sys.argv[1])
x = torch.arange(12.0).view(3, 4)
got = package(x, scale=2.0, parts=[{"more": torch.ones(4)}, {"more": torch.ones(3, 1)}])
imported = {".".join(m.split(".")[:2]) for m in sys.modules}
print(int(bool(imported & {"torch._dynamo", "torch._inductor", "sympy", "transformers"})))
print(got["y"].tolist())
"""


def test_another_process_needs_no_compiler(net: Net, file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(file)], capture_output=True, text=True, check=True
    )
    compilers, values = done.stdout.splitlines()
    assert compilers == "0"
    parts = [{"more": torch.ones(4)}, {"more": torch.ones(3, 1)}]
    with torch.no_grad():
        expected = net(torch.arange(12.0).view(3, 4), scale=2.0, parts=parts)["y"]
    assert torch.equal(torch.tensor(json.loads(values)), expected)


def test_other_arguments_are_refused(package: Any) -> None:
    given = {"scale": 2.0, "parts": MORE}
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((X.double(),), given, "x: expected a tensor, cpu f32[3, 4], got a tensor, cpu f64[3, 4]"),
        ((X[:2],), given, "x: expected a tensor, cpu f32[3, 4], got a tensor, cpu f32[2, 4]"),
        ((X.t().contiguous().t(),), given, "got a tensor, cpu f32[3, 4] strides=(1, 3)"),
        ((X.tolist(),), given, "x: expected a tensor, cpu f32[3, 4], got a list"),
        ((X,), {**given, "scale": 3.0}, "scale: expected 2.0, got 3.0"),
        ((X,), {**given, "scale": 2}, "scale: expected 2.0, got 2"),
        ((X,), {"scale": 2.0}, "parts is missing"),
        ((X,), {**given, "parts": MORE[:1]}, "parts: expected a list of 2, got a list"),
        ((X,), {**given, "parts": [MORE[0], {"less": X}]}, "parts[1]: expected a dict with the"),
        (
            (X,),
            {**given, "parts": [MORE[0], {"more": X[0]}]},
            "parts[1]['more']: expected a tensor",
        ),
        ((X, X), given, "argument 1 was not given when the package was made"),
        ((X,), {**given, "x": X}, "x is given twice"),
        ((X,), {**given, "other": 1}, "other was not given when the package was made"),
        ((torch.view_as_complex(torch.rand(3, 4, 2)).conj(),), given, "x: expected a tensor"),
    ]
    for args, kwargs, text in cases:
        with pytest.raises(PackageError, match=r".") as caught:
            package(*args, **kwargs)
        assert text in caught.value.message, text


def test_settings_are_those_of_the_export(package: Any) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(PackageError, match=r"get_default_dtype\(\) is torch.float64"):
            package(X, scale=2.0, parts=MORE)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (lambda: torch.device("meta"), "called under a default device"),
        (FakeTensorMode, "called under a dispatch mode"),
        (torch.overrides.TorchFunctionMode, "called under a __torch_function__ mode"),
        (torch.autograd.forward_ad.dual_level, "called under forward-mode AD"),
    ],
)
def test_modes_would_not_see_the_program(package: Any, mode: Any, text: str) -> None:
    with mode(), pytest.raises(PackageError, match=text):
        package(X, scale=2.0, parts=MORE)


def test_autocast_around_a_call_changes_nothing(net: Net, package: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = package(X, scale=2.0, parts=MORE)
    with torch.no_grad():
        assert equal(got, net(X, scale=2.0, parts=MORE))


def test_weights_are_replaced_while_it_runs(net: Net, file: Path) -> None:
    package, other = tj.load(file), Net()
    assert package.state_dict().keys() == net.state_dict().keys() - {"unused.weight", "unused.bias"}
    package.load_state_dict(other.state_dict())
    other.others, other.wide = net.others, net.wide  # not in a state dict
    with torch.no_grad():
        assert equal(package(X, scale=2.0, parts=MORE), other(X, scale=2.0, parts=MORE))
    state = dict(other.state_dict())
    del state["offset"]
    with pytest.raises(PackageError, match="offset is missing"):
        package.load_state_dict(state)
    with pytest.raises(PackageError, match=r"offset: expected torch\.float32 of shape"):
        package.load_state_dict({**state, "offset": torch.ones(5)})
    with pytest.raises(PackageError, match="new is no tensor of the program"):
        package.load_state_dict({**other.state_dict(), "new": torch.ones(5)})


def test_saved_weights_are_those_at_hand(file: Path, tmp_path: Path) -> None:
    package = tj.load(file)
    package.state_dict()["offset"].fill_(7)
    package.save(tmp_path / "again.tjp")
    assert torch.equal(
        tj.load(tmp_path / "again.tjp").state_dict()["offset"], torch.full((4,), 7.0)
    )


def test_tuples_with_names() -> None:
    got = tj.export(pair, (X,), plugins=["torch"])(X)
    assert got._fields == ("first", "second")
    assert got.second is X
    assert equal(tj.export(greatest, (X,), plugins=["torch"])(X), X.max(0))


def test_the_program_is_one_without_gradients(package: Any) -> None:
    text = package.members["traces/computation.txt"].decode()
    assert "def computation(first_weight, first_bias, " in text
    assert "context={'grad': False}" in text


def test_tensors_in_the_text() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.masked.cumprod(x, 1, mask=x > 0.5)

    package = tj.export(program, (X,), plugins=["torch"])
    assert len(package.manifest["constants"]) == 1
    assert torch.equal(package(X), program(X))


def test_an_operator_that_is_not_registered_elsewhere(package: Any) -> None:
    name = "traces/computation.txt"
    text = package.members[name].replace(b"torch.nn.functional.gelu(", b"torch.ops.nobody.gelu(")
    assert text != package.members[name]
    with pytest.raises(PackageError, match=r"lacks: symbol 'torch\.ops\.nobody\.gelu'"):
        type(package)(package.manifest, {**package.members, name: text})


def test_writes_reach_the_caller() -> None:
    package = tj.export(write, (torch.ones(4), torch.ones(4)), plugins=["torch"])
    x, y = torch.rand(4), torch.rand(4)
    expected = write(x.clone(), y)
    wanted = x * 2
    assert torch.equal(package(x, y), expected)
    assert torch.equal(x, wanted)
    with pytest.raises(PackageError, match="two tensors share memory"):
        package(x, x)


class Counting(torch.nn.Module):
    """Counts its calls, which no package does."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + 1


def listed(x: torch.Tensor, seen: list[int] = []) -> torch.Tensor:  # noqa: B006
    seen.append(1)
    return x + 1


class Record:
    """An object that a program makes."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print(y.sum().item())
    return y


class Sharing(torch.nn.Module):
    """A module with two buffers in one memory, which writes to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.zeros(4))
        self.register_buffer("part", self.whole[1:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.whole.add_(1)
        return self.part * x.sum()


class Expanded(torch.nn.Module):
    """A buffer whose elements share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("same", torch.ones(1).expand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.same + x


@pytest.mark.parametrize(
    ("program", "inputs", "text"),
    [
        (Sharing(), (X,), "whole and part share memory"),
        (Expanded(), (X,), "elements of same share memory"),
        (Counting(), (X,), "changes"),
        (listed, (X,), "changes"),
        (broken, (X,), "cannot be captured whole"),
        (lambda x: x + 1, (object(),), "has no place in a package"),
        (lambda x: (x + 1, Record(x)), (X,), "the result[1] is a Record"),
        (lambda x, y: x + y, (X, X), "x and y share memory"),
        (lambda: 3, (), "computes nothing with tensors"),
    ],
)
def test_what_no_package_does_is_refused(program: Any, inputs: Any, text: str) -> None:
    with pytest.raises(PackageError) as caught:
        tj.export(program, inputs, plugins=["torch"])
    assert text in caught.value.message


class Forces(nn.Module):
    """Energies of places ``[n, 3]``, and the forces: a gradient inside of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.net(x).sum()
            return energy, -torch.autograd.grad(energy, x)[0]


def test_gradients_inside_of_the_program(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Forces(), torch.randn(5, 3)
    tj.export(net, (x,), plugins=["torch"]).save(tmp_path / "forces.tj")
    got, expected = tj.load(tmp_path / "forces.tj")(x), net(x)
    assert equal(got[0], expected[0].detach())
    assert equal(got[1], expected[1])


def test_operators_in_another_process(tmp_path: Path) -> None:
    """Their fastest functions are found by a mode, for which PyTorch would import Dynamo."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.mm.default(x, x.t()) + torch.ops.aten.sum.dim_IntList(x, [0])[:3]

    tj.export(program, (X,), plugins=["torch"]).save(tmp_path / "operators.tjp")
    code = "import sys, torch, tj_core as tj; x = tj.load(sys.argv[1])(torch.ones(3, 4)); "
    code += "print(x.sum().item(), 'torch._dynamo' in sys.modules)"
    run = [sys.executable, "-c", code, str(tmp_path / "operators.tjp")]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["63.0", "False"]


def test_a_dataclass_is_returned_as_its_fields() -> None:
    @dataclass
    class Result:
        y: torch.Tensor
        parts: list[torch.Tensor]

    package = tj.export(lambda x: Result(x + 1, [x * 2]), (X,), plugins=["torch"])
    found = package(X)
    assert torch.equal(found.y, X + 1)
    assert torch.equal(found["parts"][0], X * 2)
