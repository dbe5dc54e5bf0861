"""Compiled regions in packages: a library and modules that need no Inductor when they run."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.extend import PackageError

if TYPE_CHECKING:
    from pathlib import Path

PLUGINS = ["torch", "inductor"]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> Any:
        self.calls.add_(1)
        y = torch.softmax(F.gelu(self.linear(x)), -1) + 1
        return y, torch.tanh(x).sum(-1), (table[index] * 2 + self.calls).relu()


def inputs() -> tuple[torch.Tensor, ...]:
    return torch.rand(8, 16), torch.rand(4, 3), torch.tensor([0, 3, -1, 2])


@pytest.fixture(scope="module")
def made() -> Any:
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:  # as `_not_disabled` does, which comes later
        patch.delenv("TJ_DISABLE", raising=False)
        patch.setenv("TJ_CACHE_DIR", "none")
        return tj.export(Block(), inputs(), plugins=PLUGINS)


@pytest.fixture
def file(made: Any, tmp_path: Path) -> Path:
    made.save(tmp_path / "block.tjp")
    return tmp_path / "block.tjp"


ELSEWHERE = """
import json, sys
import torch, tj_core as tj
package = tj.load(sys.argv[1])
torch.manual_seed(1)
given = torch.rand(8, 16), torch.rand(4, 3), torch.tensor([0, 3, -1, 2])
results = [x.tolist() for _ in range(2) for x in package(*given)]
imported = {".".join(m.split(".")[:2]) for m in sys.modules}
compilers = sorted(imported & {"torch._dynamo", "torch._inductor", "sympy"})
try:
    package(*given[:2], torch.tensor([0, 4, 1, 2]))
except Exception as error:
    failure = type(error).__name__
print(json.dumps([compilers, results, failure]))
"""


def test_another_process_runs_the_same_kernels(made: Any, file: Path) -> None:
    """Values, a buffer that is written, and the error of an index, without a compiler."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(file)], capture_output=True, text=True, check=True
    )
    compilers, results, failure = json.loads(done.stdout)
    assert compilers == []
    assert failure == "IndexError"
    torch.manual_seed(1)
    given = inputs()
    here = [x for _ in range(2) for x in made(*given)]
    torch.manual_seed(0)
    block = Block()
    with torch.no_grad():
        eager = [x for _ in range(2) for x in block(*given)]
    for got, ours, theirs in zip(results, here, eager, strict=True):
        assert torch.equal(torch.tensor(got), ours)
        torch.testing.assert_close(ours, theirs)


def test_its_members(file: Path) -> None:
    package = tj.load(file)
    names = {name for name in package.members if name.startswith("executors/inductor/")}
    kinds = {name.rpartition(".")[2] for name in names}
    assert kinds == {"so", "cpp", "json", "py"}
    for name in names:
        if name.endswith(".py"):
            assert b"_inductor" not in package.members[name]
    assert package.manifest["executors"]["inductor"]["distribution"] == "tj-inductor"
    assert "tj-inductor" in package.manifest["made"]


def test_damage_in_each_member_is_found(file: Path) -> None:
    data = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert len(members) >= 8
    for content in members.values():
        changed = bytearray(data)
        changed[data.index(content) + len(content) // 2] ^= 1
        file.write_bytes(changed)
        with pytest.raises(PackageError, match="is damaged"):
            tj.load(file)


def test_a_kernel_that_does_what_its_trace_does_not_say(file: Path) -> None:
    package = tj.load(file)
    members = dict(package.members)
    changed = 0
    for name, data in members.items():
        if name.endswith(".py"):
            other = b"call = lambda args: [x.double() for x in runner.call(args)]"
            members[name] = data.replace(b"call = runner.call", other)
            changed += members[name] != data
    assert changed
    wrong = type(package)(package.manifest, members)
    with pytest.raises(PackageError, match="failed on region"):
        wrong(*inputs())


@pytest.mark.slow
def test_sizes_that_are_symbols(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 2 + 1).sum(-1) * x.shape[0]

    tj.export(program, (torch.rand(6, 8),), dynamic=True, plugins=PLUGINS).save(tmp_path / "p.tjp")
    package = tj.load(tmp_path / "p.tjp")
    for rows in (6, 9, 3):
        x = torch.rand(rows, 8)
        torch.testing.assert_close(package(x), program(x))


def test_an_executor_without_packages_is_named() -> None:
    with pytest.raises(PackageError, match=r"executor 'example_fuser' of plugin .* takes no part"):
        tj.export(lambda x: x * 2 + 1, (torch.rand(4),), plugins=["torch", "example_fuser"])


@pytest.mark.slow
def test_steps_with_kernels(tmp_path: Path) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(torch.tanh(x * 2) @ w).square().mean()

    given = torch.rand(8, 16, requires_grad=True), torch.rand(16, 16, requires_grad=True)
    plugins = [*PLUGINS, "autograd"]
    tj.export(program, given, training=True, plugins=plugins).save(tmp_path / "step.tjp")
    package = tj.load(tmp_path / "step.tjp")
    assert len(package.manifest["regions"]) >= 2
    for _ in range(2):
        ours = torch.autograd.grad(package(*given), given)
        torch.testing.assert_close(ours, torch.autograd.grad(program(*given), given))


class Images(torch.nn.Module):
    """Inductor lays out what is saved for the backward in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.last = torch.nn.Conv2d(4, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.gelu(self.norm(self.first(x)))).softmax(1).square().mean()


@pytest.mark.slow
def test_a_training_step_whose_saved_values_are_laid_out_for_convolutions(tmp_path: Path) -> None:
    def gradients(f: Any, owner: Any) -> list[torch.Tensor]:
        x = torch.linspace(-1, 1, 3 * 3 * 9 * 9).view(3, 3, 9, 9).requires_grad_()
        f(x).backward()
        return [x.grad, *(p.grad for p in owner.parameters())]  # type: ignore[list-item]

    torch.manual_seed(0)
    net = Images()
    plugins = [*PLUGINS, "autograd"]
    x = torch.rand(3, 3, 9, 9).requires_grad_()
    made = tj.export(net, (x,), plugins=plugins, training=True)
    made.save(tmp_path / "images.tjp")
    package = tj.load(tmp_path / "images.tjp")
    texts = [data.decode() for name, data in made.members.items() if name.endswith(".py")]
    assert any("(196, 1, 28, 4)" in text for text in texts), "nothing is in channels_last"
    for a, b in zip(gradients(package, package), gradients(net, net), strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


class Scaled(torch.nn.Module):
    """Each of many inputs by itself: one part of the program is compiled."""

    def forward(self, xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [(x * 3 + 1).sin() / 2 for x in xs]


def test_equal_parts(tmp_path: Path) -> None:
    xs = [torch.randn(3, 4) for _ in range(20)]
    tj.export(Scaled(), (xs,), plugins=PLUGINS).save(tmp_path / "scaled.tjp")
    with zipfile.ZipFile(tmp_path / "scaled.tjp") as files:
        assert len([n for n in files.namelist() if n.endswith(".py")]) == 1
    loaded = tj.load(tmp_path / "scaled.tjp")
    torch.testing.assert_close(loaded(xs), Scaled()(xs))
