"""`tj demo`: its printed configuration, and the tolerance it allows there."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import tj_core as tj
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


def demo(plugins: list[Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    arguments = argparse.Namespace(layers=1, full_trace=False)
    code = demo_command().run(arguments, tj.Session(plugins=plugins))
    return code, " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_pytorchs_kernels_compute_the_same_bits(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = demo(["torch"], capsys)
    assert code == 0
    assert "executors: PyTorch alone" in said
    assert "maximum difference to eager: 0 (allowed: none): passed" in said


@pytest.mark.slow
def test_other_kernels_may_round_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = demo(["torch", Scaled(1 + 2**-22)], capsys)
    assert code == 0
    assert "executors: scaled" in said
    assert "maximum difference to eager: 0 " not in said
    assert "(allowed: 1.3e-06 of eager's, and 1e-05): passed" in said


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_what_is_wrong_fails(factor: float, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = demo(["torch", Scaled(factor)], capsys)
    assert code == 1
    assert "FAILED" in said
