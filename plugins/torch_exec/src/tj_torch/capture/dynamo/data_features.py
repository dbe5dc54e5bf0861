"""Features of a capture for numbers that depend on data, a part of the table of corrections."""

from __future__ import annotations

from tj_torch.capture.dynamo import outer_probes
from tj_torch.capture.dynamo.asserted_sizes import keep_sizes
from tj_torch.capture.dynamo.checked_functions import capture_checked
from tj_torch.capture.dynamo.class_features import unnoticed
from tj_torch.capture.dynamo.constant_tensors import read_constants
from tj_torch.capture.dynamo.distributions import capture_distributions
from tj_torch.capture.dynamo.inner_gradients import capture_gradients
from tj_torch.capture.dynamo.refused_data import check_refused
from tj_torch.capture.dynamo.undecided import leave_undecided
from tj_torch.torch_private.features import Correction, Needs

__all__ = ["NUMBERS_OF_DATA"]

NUMBERS_OF_DATA: tuple[Correction, ...] = (
    Correction(
        "undecided numbers",
        "a program that decides on a number of data is captured for most, or in parts",
        "programs that decide on sizes of data run as they are",
        apply=leave_undecided,
        probe=outer_probes.undecided,
        needs=Needs(),
    ),
    Correction(
        "constant tensors",
        "numbers of a tensor that the program makes from constants are constants",
        "programs that take dimensions from torch.arange break the graph",
        apply=unnoticed(read_constants),
        probe=outer_probes.constant_tensors,
        needs=Needs(),
    ),
    Correction(
        "asserted sizes",
        "a size of data is tested where the program asserts that it is another number",
        "programs that assert sizes of data run as they are",
        apply=unnoticed(keep_sizes),
        probe=outer_probes.asserted,
        needs=Needs(),
    ),
    Correction(
        "refused data",
        "a program that raises for some data is captured for the rest",
        "the graph breaks where a program raises for some data",
        apply=check_refused,
        probe=outer_probes.refused_data,
        needs=Needs(),
    ),
    Correction(
        "checked functions",
        "functions of PyTorch's that decide on data, as on masks, are captured for most data",
        "the graph breaks where a transformer of torch.nn looks at its mask",
        apply=capture_checked,
        probe=outer_probes.causal,
        needs=Needs(),
    ),
    Correction(
        "distributions",
        "torch.distributions are captured, and check their arguments",
        "the graph breaks at torch.distributions, unless they check nothing",
        apply=unnoticed(capture_distributions),
        probe=outer_probes.distributions,
        needs=Needs(),
    ),
    Correction(
        "gradients in programs",
        "torch.autograd.grad in a program is captured",
        "the graph breaks at torch.autograd.grad",
        apply=unnoticed(capture_gradients),
        probe=outer_probes.gradients,
        needs=Needs(),
    ),
)
