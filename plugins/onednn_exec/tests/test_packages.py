"""oneDNN's products in packages: alone and in regions, for inference and training."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.extend import PackageError

if TYPE_CHECKING:
    from pathlib import Path


class Net(torch.nn.Module):
    """A product, a convolution by one pixel, and a product of stacks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.mix = torch.nn.Linear(6, 6), torch.nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.mix(self.linear(x))).flatten(2)
        return (y @ y.mT).softmax(-1) + 1


def given() -> torch.Tensor:
    return torch.linspace(-1, 1, 2 * 3 * 6 * 6).view(2, 3, 6, 6)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    monkeypatch.setenv("TJ_CACHE_DIR", "none")
    monkeypatch.setenv("TJ_ONEDNN_CHOOSE", "always")


def made(training: bool, *plugins: str) -> tuple[Net, Any]:
    torch.manual_seed(0)
    net = Net()
    plugins = ("torch", "onednn", *plugins, *(("autograd",) if training else ()))
    x = given().requires_grad_(training)
    return net, tj.export(net, (x,), plugins=[*plugins], training=training)


ELSEWHERE = """
import sys, torch, tj_core as tj
package = tj.load(sys.argv[1])
found = package(torch.linspace(-1, 1, 2 * 3 * 6 * 6).view(2, 3, 6, 6))
print(found.sum().item(), "torch._inductor.graph" in sys.modules)
"""


@pytest.mark.parametrize(
    "fuser", [(), pytest.param(("inductor",), marks=pytest.mark.slow)], ids=["alone", "in a region"]
)
def test_another_process_runs_products(fuser: tuple[str, ...], tmp_path: Path) -> None:
    net, package = made(False, *fuser)
    file = tmp_path / "net.tjp"
    package.save(file)
    texts = [package.members[name] for name in package.members if name.startswith("traces/")]
    assert max(text.count(b"= onednn.") for text in texts) == 3
    with torch.no_grad():
        expected = net(given())
        torch.testing.assert_close(tj.load(file)(given()), expected)
    run = [sys.executable, "-c", ELSEWHERE, str(file)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    total, imported = done.stdout.split()
    assert float(total) == pytest.approx(expected.sum().item(), rel=1e-4)
    assert imported == "False"


@pytest.mark.slow
def test_gradients_of_products_in_regions(tmp_path: Path) -> None:
    net, package = made(True, "inductor")
    package.save(tmp_path / "net.tjp")
    loaded = tj.load(tmp_path / "net.tjp")
    x, y = given().requires_grad_(), given().requires_grad_()
    loaded(x).square().sum().backward()
    net(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.filterwarnings("ignore")  # `flags` sets one for other devices, too, and warns
def test_a_package_is_refused_without_onednn(tmp_path: Path) -> None:
    _, package = made(False)
    package.save(tmp_path / "net.tjp")
    said = r"tj-onednn.* cannot run here: .*mkldnn.enabled is false"
    with torch.backends.mkldnn.flags(enabled=False), pytest.raises(PackageError, match=said):
        tj.load(tmp_path / "net.tjp")
