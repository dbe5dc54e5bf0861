"""Packages with sizes that are symbols, of exported programs, and the command ``tj package``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_core.cli.main import main
from tj_core.extend import PackageError
from tj_torch.package.tensors import packed

if TYPE_CHECKING:
    from pathlib import Path


class Halves(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, n: int = 2) -> Any:
        y = self.linear(x)
        left, right = y.chunk(2)
        return left.flatten() + 1, right, y.repeat(n, 1).sum(0)


X = torch.rand(6, 4)


@pytest.fixture(scope="module")
def halves() -> Halves:
    torch.manual_seed(0)
    return Halves()


@pytest.fixture(scope="module")
def file(halves: Halves, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sizes") / "halves.tjp"
    tj.export(halves, (X, 3), dynamic=True, plugins=["torch"]).save(path)
    return path


def test_sizes_and_numbers_that_are_symbols(halves: Halves, file: Path) -> None:
    package = tj.load(file)
    for rows, n in ((6, 3), (9, 2), (4, 7)):
        x = torch.rand(rows, 4)
        with torch.no_grad():
            pairs = zip(package(x, n), halves(x, n), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    cases: list[tuple[Any, Any, str]] = [
        (torch.rand(1, 4), 3, "the package is for sizes with"),
        (torch.rand(2, 4), 3, "the package is for sizes with Ne(((s"),
        (torch.rand(6, 5), 3, "x: expected a tensor, cpu f32[s"),
        (torch.rand(4, 6).t(), 3, "x: expected a tensor, cpu f32[s"),
        (X, True, "n: expected an int, got True"),
        (X, -1, "the package is for sizes with"),
    ]
    for x, n, text in cases:
        with pytest.raises(PackageError) as caught:
            package(x, n)
        assert text in caught.value.message, text


def test_dimensions_by_name(halves: Halves) -> None:
    package = tj.export(halves, (X,), dynamic={"x": 0}, plugins=["torch"])
    with torch.no_grad():
        assert torch.equal(package(X[:5])[2], halves(X[:5])[2])
    with pytest.raises(PackageError, match="dynamic: y is no argument"):
        tj.export(halves, (X,), dynamic={"y": 0}, plugins=["torch"])


def test_numbers_of_sizes() -> None:
    package = tj.export(lambda x: (x + 1, x.shape[0] * 2), (X,), dynamic=True, plugins=["torch"])
    assert [package(x)[1] for x in (X, X[:4])] == [12, 8]
    with pytest.raises(PackageError, match="may depend on sizes that are symbols"):
        tj.export(lambda x: (x + 1, 3), (X,), dynamic=True, plugins=["torch"])
    assert tj.export(lambda x: (x + 1, x.shape[0]), (X,), plugins=["torch"])(X)[1] == 6


def test_an_exported_program() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    shapes = ({0: torch.export.Dim("rows", max=8)},)
    program = torch.export.export(module, (X,), dynamic_shapes=shapes)
    package = tj.export(program, (X,), plugins=["torch"])
    with torch.no_grad():
        assert torch.equal(package(X[:5]), module(X[:5]))
    assert package.state_dict().keys() == {"0.weight", "0.bias"}
    with pytest.raises(PackageError, match="<= 8, not for"):
        package(torch.rand(9, 4))


def test_keywords_of_an_exported_program() -> None:
    def scaled(x: torch.Tensor, *, by: float) -> torch.Tensor:
        return x * by

    class Module(torch.nn.Module):
        forward = staticmethod(scaled)

    program = torch.export.export(Module(), (X,), {"by": 3.0})
    package = tj.export(program, (X,), keywords={"by": 3.0}, plugins=["torch"])
    assert torch.equal(package(X, by=3.0), X * 3)


@pytest.mark.parametrize(
    ("given", "dynamic", "text"),
    [
        ((X,), {"x": 2}, "x has 2 dimensions, and none 2"),
        ((X,), "x", "is neither a bool nor a dict"),
        ((X,), {"y": 0}, "these are: x"),
        (X, False, "the arguments are a Tensor"),
        ((X.to_sparse(),), False, "a tensor of layout torch.sparse_coo"),
    ],
)
def test_wrong_arguments(given: Any, dynamic: Any, text: str) -> None:
    with pytest.raises(PackageError) as caught:
        tj.export(lambda x: x + 1, given, dynamic=dynamic, plugins=["torch"])
    assert text in f"{caught.value.message} {caught.value.hint}"


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main(["--plugins", "torch", "package", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_show(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "show", str(file), "--traces")
    assert shown["name"] == "Halves"
    assert shown["made"]["torch"] == torch.__version__
    assert [*shown["arguments"]] == ["x", "n"]
    assert shown["members"].keys() == {"traces/computation.txt", "constants.safetensors"}
    assert "def computation(" in shown["traces"]["traces/computation.txt"]
    assert main(["--plugins", "torch", "package", "show", str(file)]) == 0
    assert "where s" in capsys.readouterr().out


def test_verify(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "verify", str(file)) == {"usable": True}
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "damaged.tjp").write_bytes(data)
    assert main(["--plugins", "torch", "package", "verify", str(tmp_path / "damaged.tjp")]) == 1
    assert "is damaged" in capsys.readouterr().out


def test_run(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = said(capsys, "run", str(file))
    assert ran["results"] == ["cpu f32[12]", "cpu f32[3, 4]", "cpu f32[4]"]
    (tmp_path / "x.safetensors").write_bytes(packed({"x": torch.rand(8, 4)}))
    ran = said(capsys, "run", str(file), "--inputs", str(tmp_path / "x.safetensors"))
    assert ran["results"] == ["cpu f32[16]", "cpu f32[4, 4]", "cpu f32[4]"]
    (tmp_path / "y.safetensors").write_bytes(packed({"y": torch.rand(8, 4)}))
    args = ["package", "run", str(file), "--inputs", str(tmp_path / "y.safetensors")]
    assert main(["--plugins", "torch", *args]) == 2
    assert "has no tensor x" in capsys.readouterr().err
