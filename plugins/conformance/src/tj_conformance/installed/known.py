"""Differences as installed that are listed, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tj_conformance.installed.holding import Verdict

__all__ = ["LISTED", "Listed", "table", "unlisted"]


@dataclass(frozen=True, slots=True)
class Listed:
    """Programs by their names, and the accepted problems: those that contain ``text``."""

    reason: str
    text: str
    programs: tuple[str, ...]


LISTED: Mapping[str, tuple[Listed, ...]] = {
    "aliasing": (
        Listed(
            "gradients before a batch norm, whose sums cancel: of 100 other inputs the mean error "
            "is 1.2 times eager's, the largest of a weight the same, of a bias 1.1 times eager's",
            "['0.weight'].grad: values",
            tuple(f"batch_norm_in_a_stack-{kind}" for kind in ("plain", "leaf", "inner")),
        ),
    ),
    "autocast": (
        Listed(
            "gradients that are summed in bfloat16 are rounded in other places: of 16 elements the "
            "largest error is eager's, the mean one 1.1 times that, the median one 3 times",
            "not equal",
            ("a_leaf_both_ways",),
        ),
        Listed(
            "a loss of probabilities in bfloat16, which are rounded once less often: of 300 inputs "
            "the mean error is 0.7 times eager's, the largest 0.6 times",
            "not equal",
            ("losses",),
        ),
        Listed(
            "gradients of a weight that several products use are added in float32, not in "
            "bfloat16: of 200 inputs the mean error is 0.97 times eager's, the largest the same",
            "not equal",
            ("function_between_products",),
        ),
        Listed(
            "the gradient of a bias before a batch norm is zero but for rounding in bfloat16: of "
            "100 inputs its mean error is 1.9 times eager's, that of all others at most 1.2 times",
            "not equal",
            ("normalised",),
        ),
    ),
    "generated": (
        Listed(
            "a result is written before the backward: tj saved it, to compute from it what eager "
            "saved; the backward raises as for a saved tensor",
            "raises RuntimeError instead of None",
            ("9037.71", "9037.72"),
        ),
    ),
    "op_db bfloat16": (
        Listed(
            "gradients that two programs give, before and after a graph break, are added in "
            "another order: of 200 others the mean error is 1.3 times eager's, the largest 1.02",
            "gradients[1]: Tensor-likes are not equal",
            ("sparse.mm.reduce",),
        ),
    ),
    "op_db float32": (
        Listed(
            "a matrix that is nearly singular: of 200 others the mean and the largest error of "
            "result and gradient are eager's",
            "result[1]",
            ("linalg.cond",),
        ),
    ),
    "own_backwards": (
        Listed(
            "an exponential of values of about 7 amplifies their rounding: the largest difference "
            "is 1.7e-6 of a gradient, the tolerance of float32 is 1.3e-6",
            "gradients of 0",
            ("651",),
        ),
        Listed(
            "the sum of values less their mean is rounding alone, about 1e-6, and so are the "
            "gradients of that loss",
            "gradients of",
            ("234", "309", "544", "698"),
        ),
        Listed(
            "gradients of the size of 30 to 1000, some of them differences of large values: they "
            "differ by at most 7e-7 of the largest",
            "gradients of 0",
            ("255", "432", "555", "853", "927"),
        ),
    ),
    "states": (
        Listed(
            "gradients before a batch norm, whose sums cancel: in float64 they are equal",
            "n0.weight.grad",
            ("450873",),
        ),
        Listed(
            "five times `tanh` of values whose derivative, `1 - y**2`, cancels: in float64 the "
            "gradients are equal",
            ".weight.grad",
            ("451200",),
        ),
        Listed(
            "`torch.compile` captures the module whole: an error of batch norm comes before its "
            "count is written, and its result has other strides than PyTorch's kernel gives",
            "b1",
            ("451003", "451992"),
        ),
        Listed(
            "`torch.compile` does not guard hooks before the forward: tj calls them, as eager does",
            "LOG",
            ("451910",),
        ),
        Listed(
            "a part of a program raises, and what it has changed before is lost, with a warning "
            "(docs/limits.md)",
            ".seen0",
            ("450564",),
        ),
        Listed(
            "anomaly detection names the node of autograd, which is the compiled program's",
            "returned nan values",
            ("451964",),
        ),
    ),
    "subclasses": (
        Listed(
            "gradients of a norm, multiplied by a large deviation: of 40 others the largest error "
            "is 0.8 times eager's, the mean one is eager's",
            "symbolic_sizes_nested[2]",
            ("symbolic_sizes_nested",),
        ),
    ),
}
"""Listed differences by family."""


def unlisted(verdict: Verdict) -> list[str]:
    """The problems of a program that no entry accepts."""
    subject = verdict.subject
    mine = [e for e in LISTED.get(subject.family, ()) if subject.name in e.programs]
    return [p for p in verdict.problems if not any(e.text in p for e in mine)]


def table() -> str:
    """The entries as text, one reason after the other."""
    lines: list[str] = []
    for family, entries in LISTED.items():
        for entry in entries:
            lines += [f"{family}: {entry.reason}", *(f"    {name}" for name in entry.programs)]
    return "\n".join(lines) or "nothing is listed"
