"""Packages as users make them: all plugins, no options; run in a process that compiles nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.oracle.configurations import configured
from tj_torch.package.tensors import packed, unpacked

if TYPE_CHECKING:
    from pathlib import Path


class Language(torch.nn.Module):
    """Its embedding, products and loss are no part of a region: operators run them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(20, 8), torch.nn.Embedding(16, 8)
        self.mix, self.norm = torch.nn.Linear(8, 24), torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> Any:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        q, k, v = self.mix(self.norm(h)).unsqueeze(1).chunk(3, -1)
        h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        logits = self.head(h)
        return {
            "loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten()),
            "logits": logits,
        }


class Images(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.last = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.norm(self.first(x))).mean((2, 3)))


class Layers(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))


def words(*shape: int) -> torch.Tensor:
    return torch.randint(0, 20, shape)


PROGRAMS: dict[str, tuple[Any, Any, dict[str, Any], Any]] = {
    "steps of a language model": (
        Language, lambda: words(3, 7), {"dynamic": {"x": (0, 1)}, "training": True},
        lambda: words(2, 9),
    ),
    "images": (lambda: Images().eval(), lambda: torch.randn(2, 3, 8, 8), {}, None),
    "frozen": (Layers, lambda: torch.randn(4, 64), {"freeze": True}, None),
    "int8": (Layers, lambda: torch.randn(4, 64), {"onednn": {"int8": ["*"]}}, None),
    "weights in int8": (
        Layers, lambda: torch.randn(1, 64), {"onednn": {"int8_weights": ["*"]}}, None,
    ),
}  # fmt: skip
"""A module, its argument, what `tj.export` gets, and an argument of another shape."""

ELSEWHERE = """
import json, sys, time
import torch
from pathlib import Path
begun = time.process_time()
import tj_core as tj
from tj_torch.package.tensors import packed, unpacked
packages = [tj.load(path) for path in sys.argv[1:]]
spent = time.process_time() - begun
for path, package in zip(sys.argv[1:], packages):
    (x,) = unpacked(Path(path + ".in").read_bytes()).values()
    found = package(x)
    found = found if isinstance(found, dict) else {"y": found}
    if "loss" in found:
        found["loss"].backward()
        found |= {f"grad {name}": p.grad for name, p in package.named_parameters()}
    Path(path + ".out").write_bytes(packed({k: v.detach() for k, v in found.items()}))
compilers = {"torch._dynamo", "torch._inductor"} & sys.modules.keys()
print(json.dumps([sorted(compilers), spent]))
"""


def expected(module: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
    found = module(x)
    found = found if isinstance(found, dict) else {"y": found}
    if "loss" in found:
        module.zero_grad()
        found["loss"].backward()
        found |= {f"grad {name}": p.grad for name, p in module.named_parameters()}
    return {name: value.detach() for name, value in found.items()}


@pytest.mark.slow
def test_another_process_compiles_nothing(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{i}.tjp" for i, name in enumerate(PROGRAMS)}
    modules = {}
    for name, (make, given, options, other) in PROGRAMS.items():
        torch.manual_seed(0)
        modules[name] = make()
        with configured():
            package = tj.export(modules[name], (given(),), **options)
        assert package.manifest["executors"], name  # something is fused, or in int8
        package.save(files[name])
        x = (other or given)()
        (tmp_path / f"{files[name].name}.in").write_bytes(packed({"x": x}))
    run = [sys.executable, "-c", ELSEWHERE, *map(str, files.values())]
    users = {k: v for k, v in os.environ.items() if not k.startswith("TJ_")}
    done = subprocess.run(run, env=users, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compilers, spent = json.loads(done.stdout)
    assert compilers == []
    assert spent < 5  # of the CPU's time: half a second on an idle machine
    for name, file in files.items():
        (x,) = unpacked((tmp_path / f"{file.name}.in").read_bytes()).values()
        mine = unpacked((tmp_path / f"{file.name}.out").read_bytes())
        theirs = expected(modules[name], x)
        assert mine.keys() == theirs.keys(), name
        tolerance = 0.05 if "int8" in name else 1e-4
        for key, value in theirs.items():
            torch.testing.assert_close(
                mine[key], value, rtol=tolerance, atol=tolerance, msg=f"{name}: {key}"
            )
