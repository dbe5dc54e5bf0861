"""`tj.compare` on tensors."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import tj_core as tj
import torch
from tj_torch.differences import figures


@dataclass
class Record:
    loss: torch.Tensor
    name: str


class Pair(NamedTuple):
    left: torch.Tensor
    right: int


def program(x: torch.Tensor, scale: float = 1.0) -> Any:
    record = Record(x.sum(), "sum")
    return {"y": (x * scale, [x + 1]), "pair": Pair(x, 3), "record": record, "none": None}


def off(x: torch.Tensor, scale: float = 1.0) -> Any:
    return program(x + 0.5, scale)


def test_figures_are_those_of_numpy() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(7, 5), torch.randn(7, 5)
    found, d, e = figures(a, b), (a - b).double(), b.double()
    assert found.largest == d.abs().max().item()
    assert found.mean == pytest.approx(d.abs().mean().item())
    assert found.relative == pytest.approx((d.norm() / e.norm()).item())
    cosine = torch.nn.functional.cosine_similarity(a.double().view(-1), e.view(-1), 0)
    assert found.cosine == pytest.approx(cosine.item())
    assert found.snr == pytest.approx(10 * math.log10(e.square().sum() / d.square().sum()))


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("got", "expected", "largest", "relative", "cosine"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 2]), 0, 0, 1),
        (torch.tensor([NAN, INF, 1.0]), torch.tensor([NAN, INF, 1.0]), 0, 0, 1),
        (torch.tensor([1.0, 1.0]), torch.tensor([NAN, 1.0]), NAN, NAN, NAN),
        (torch.tensor([INF, 1.0]), torch.tensor([1.0, 1.0]), INF, INF, NAN),
        (torch.tensor([1.0]), torch.tensor([0.0]), 1, INF, 0),
        (torch.tensor([0.0]), torch.tensor([2.0]), 2, 1, 0),
        (torch.tensor([3 + 4j]), torch.tensor([3 - 4j]), 8, 8 / 5, -7 / 25),
        (torch.tensor([True]), torch.tensor([False]), 1, INF, 0),
        (torch.empty(0, 3), torch.empty(0, 3), 0, 0, 1),
        (torch.tensor([1.0]).bfloat16(), torch.tensor([2.0]), 1, 0.5, 1),
        (torch.eye(2).to_sparse(), torch.eye(2) * 2, 1, 0.5, 1),
    ],
)
def test_edges(got: Any, expected: Any, largest: float, relative: float, cosine: float) -> None:
    found = figures(got, expected)
    for mine, theirs in zip(found, (largest, None, relative, cosine), strict=True):
        assert theirs is None or mine == pytest.approx(theirs, nan_ok=True)


def test_results_are_trees() -> None:
    x = torch.ones(4, requires_grad=True)
    found = tj.compare(off, program, (x,), keywords={"scale": 2.0})
    assert [d.output for d in found.outputs] == ["y.0", "y.1.0", "pair.left", "record.loss"]
    assert [d.figures.largest for d in found.outputs] == [1, 0.5, 0.5, 2]
    assert found.worst.output == "y.0"
    assert "y.1.0        0.5            0.5         0.25      1.000000  12.0" in str(found)
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["outputs"][3]["relative"] == 0.5
    assert "<td" in found._repr_html_()
    assert repr(found) == "<tj comparison: 4 outputs>"
    exact = tj.compare(program, program, (x,))
    assert exact.as_dict()["outputs"][0]["snr"] == "inf"


def test_a_value_that_is_not_finite_is_the_worst() -> None:
    found = tj.compare(
        lambda: [torch.tensor(NAN), torch.zeros(1)], lambda: [torch.ones(()), torch.ones(1)]
    )
    assert found.worst.output == "0"
    assert found.as_dict()["outputs"][0]["relative"] == "nan"


@pytest.mark.parametrize(
    ("got", "said"),
    [
        ((torch.ones(2), 1), "the result differs in structure: [0, 1] and [0, 1, 2]"),
        ((torch.ones(3), 1, "a"), "output 0 differs in shape: (3,) and (2,)"),
        ((torch.ones(2), 2, "a"), "output 1 differs: 2 and 1"),
        ((torch.ones(2), True, "a"), "output 1 differs: True and 1"),
        ((1.0, 1, "a"), "output 0 differs: 1.0 and tensor([1., 1.])"),
    ],
)
def test_other_results_are_an_error(got: Any, said: str) -> None:
    with pytest.raises(tj.TjError) as found:
        tj.compare(lambda: got, lambda: (torch.ones(2), 1, "a"))
    assert said in str(found.value)


def test_a_jitted_functions_declines_are_remarks() -> None:
    jitted = tj.jit(lambda x: torch.exp(x), plugins=["torch", "autograd"])
    found = tj.compare(jitted, torch.exp, (torch.ones(2),))
    assert found.worst.figures.relative == 0
    assert str(found).splitlines()[2:] == [*tj.explain(jitted).remarks()]
