"""`tj demo`: its printed configuration, and the tolerance it allows there."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import pytest
import tj_core as tj
import tj_torch.demo
import torch
from tj_core.extend import Claim, Executor, RuleTable, hookimpl
from tj_torch.demo import demo_command

pytest.importorskip("transformers")


class Scaled:
    """Executor whose ``silu`` is off by a factor."""

    tj_name = "scaled"

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @hookimpl
    def tj_executors(self) -> Any:
        claims: RuleTable[Any] = RuleTable("claim")
        silu = torch.nn.functional.silu
        claims.set("torch.nn.functional.silu", Claim(lambda x, *_, **__: silu(x) * self.factor))
        return (Executor("scaled", claims),)


def demo(plugins: list[Any], capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    """The exit status, the text and the JSON (None without ``--json``)."""
    parser = argparse.ArgumentParser()
    demo_command().configure(parser)
    arguments = parser.parse_args(["--layers=1", *options])
    code = demo_command().run(arguments, tj.Session(plugins=plugins))
    out, err = capsys.readouterr()
    return code, " ".join((err or out).split()), json.loads(out) if options else None


@pytest.mark.slow
def test_pytorchs_kernels_compute_the_same_bits(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = demo(["torch"], capsys)
    assert code == 0
    assert "executors: PyTorch alone" in said
    assert "maximum difference to eager: 0 (allowed: none): passed" in said


@pytest.mark.slow
def test_other_kernels_may_round_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, data = demo(["torch", Scaled(1 + 2**-22)], capsys, "--json")
    assert code == 0
    assert data["passed"]
    assert 0 < data["difference"] < 1e-3
    assert data["executors"] == ["torch", "scaled"]
    assert {"operation": "torch.nn.functional.silu", "executor": "scaled", "calls": 1} in (
        data["claims"]
    )
    assert "executors: scaled" in said
    assert "maximum difference to eager: 0 " not in said
    assert "(allowed: 1.3e-06 of eager's, and 1e-05): passed" in said


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_what_is_wrong_fails(factor: float, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, data = demo(["torch", Scaled(factor)], capsys, "--json")
    assert code == 1
    assert "FAILED" in said
    assert not data["passed"]
    assert (data["difference"] is None) is math.isnan(factor), "JSON has no NaN"


def test_json_of_a_small_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tj_torch.demo, "PROMPT", (1, 4))
    monkeypatch.setattr(tj_torch.demo, "NEW_TOKENS", 0)
    code, _, data = demo(["torch"], capsys, "--json")
    assert code == 0
    assert data["layers"] == 1
    assert data["allowed"] == {"relative": 0.0, "absolute": 0.0}
    assert data["difference"] == 0
    assert data["steps"][0]["step"] == "building the model"
    assert data["statistics"]["calls"] == data["statistics"]["hits"] + data["statistics"]["misses"]
    assert data["trace"].startswith("import torch")
    assert sum(claim["calls"] for claim in data["claims"]) > 10
