"""Architectures against eager: an inference, and two training steps, in both configurations."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch
from tj_conformance.models import contents
from tj_conformance.oracle.compare import differences
from tj_conformance.oracle.configurations import configured
from tj_conformance.oracle.nearness import as_near, doubled
from torch import nn
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from tj_suites.architectures.architecture import Architecture

__all__ = ["MODES", "Report", "compared", "within_rounding"]

Jit = Callable[[nn.Module], Any]
STEPS = 2


@dataclass(frozen=True, slots=True)
class Report:
    """Where one run of an architecture differs from eager, what tj warned of, and the seconds."""

    problems: tuple[str, ...]
    warned: tuple[str, ...]
    seconds: float

    @property
    def text(self) -> str:
        """One cell of the table."""
        if self.problems:
            return f"differs: {self.problems[0]}"
        return f"equal, {len(self.warned)} breaks" if self.warned else "equal"


def compared(architecture: Architecture, mode: str, *, installed: bool) -> Report:
    """Run ``architecture`` in eager and under tj.

    Exact, all is equal to the bit. As installed, each value is eager's within the tolerance of its
    data type, or as near to the network in double precision as eager is (`as_near`). That is asked
    of the exact one, too, where it is in several programs after a graph break: autograd adds what
    they give for one tensor, in another order than the tangents of one program.
    """
    run = _RUNS[mode]
    if installed:
        with configured():
            return within_rounding(architecture, mode, tj.jit)
    expected = list(run(architecture, _itself, dropout=True))
    with _noted() as said:
        start = time.perf_counter()
        got = list(run(architecture, _exact, dropout=True))
    seconds = time.perf_counter() - start
    problems = tuple(str(d) for d in differences(got, expected))
    if problems and (said or architecture.rounds):
        return within_rounding(architecture, mode, _exact)
    return Report(problems, tuple(said), seconds)


def within_rounding(architecture: Architecture, mode: str, jit: Jit) -> Report:
    """Compare what ``jit`` makes of the network with eager, without dropout."""
    run = _RUNS[mode]
    expected = list(run(architecture, _itself))
    with _noted() as said:
        start = time.perf_counter()
        got = list(run(architecture, jit))
    seconds = time.perf_counter() - start
    return Report(tuple(_apart(architecture, run, got, expected)), tuple(said), seconds)


def _apart(architecture: Architecture, run: Any, got: Any, expected: Any) -> Iterator[str]:
    """Differences of ``got`` beyond rounding; double precision decides.

    The error may also be that of eager in channels_last, in which regions with convolutions
    compute: there PyTorch's own batch norm adds up in float32, else in float64.
    """
    got, expected = (pytree.tree_map_only(torch.Tensor, _usual, tree) for tree in (got, expected))
    found = differences(got, expected)
    yield from (str(d) for d in found if not d.rounding and "differ" not in d.what)
    if all(d.rounding for d in found):
        return
    exact = functools.cache(lambda: list(run(architecture, _itself, double=True)))
    near = functools.partial(as_near, got, exact=exact, amplified=10)
    with contextlib.suppress(RuntimeError):  # as for a view that channels_last does not have
        if near(expected) or near(list(run(architecture, _itself, last=True))):
            return
    yield next(str(d) for d in found if not d.rounding)


def _usual(x: torch.Tensor) -> torch.Tensor:
    """``x``, whose dimensions of one element have the stride 1: they may have any."""
    if x.layout is not torch.strided:
        return x
    sizes = zip(x.shape, x.stride(), strict=True)
    return x.as_strided(x.shape, [1 if size == 1 else stride for size, stride in sizes])


def _itself(model: nn.Module) -> nn.Module:
    return model


def _exact(model: nn.Module) -> Any:
    return tj.jit(model, plugins=["torch", "autograd"])


class _noted(warnings.catch_warnings):
    """Inside, the texts of tj's warnings go to the list."""

    def __init__(self) -> None:
        super().__init__(record=True)

    def __enter__(self) -> Any:
        self.caught = super().__enter__()
        warnings.simplefilter("always")
        self.said: list[str] = []
        return self.said

    def __exit__(self, *error: Any) -> None:
        self.said += [
            str(w.message) for w in self.caught or () if issubclass(w.category, tj.TjWarning)
        ]
        super().__exit__(*error)


def _network(architecture: Architecture, *, dropout: bool, double: bool, last: bool) -> nn.Module:
    """The network; without dropout where its random numbers would differ between data types."""
    model = architecture.made()
    if not dropout:
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
    choose: Any = getattr(model, "set_experts_implementation", None)
    if double and choose is not None:
        choose("eager")  # PyTorch's grouped products take no float64
    if last:
        moved: Any = model  # its stub lacks this argument alone
        moved.to(memory_format=torch.channels_last)
    return model.double() if double else model


def _given(architecture: Architecture, seed: int, double: bool, last: bool) -> Any:
    """The arguments of a call; of pictures, with the channels ``last``."""
    given = architecture.given(seed)
    given = pytree.tree_map_only(torch.Tensor, _channels_last, given) if last else given
    return doubled(given) if double else given


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _inference(
    architecture: Architecture,
    jit: Jit,
    *,
    dropout: bool = False,
    double: bool = False,
    last: bool = False,
) -> Iterator[Any]:
    """The results of two calls, of which the second finds a program."""
    model = _network(architecture, dropout=dropout, double=double, last=last).eval()
    run = jit(model)
    with torch.no_grad():
        for seed in range(STEPS):
            yield _snapshot(contents(run(**_given(architecture, seed, double, last))))


def _training(
    architecture: Architecture,
    jit: Jit,
    *,
    dropout: bool = False,
    double: bool = False,
    last: bool = False,
) -> Iterator[Any]:
    """The state after each of two steps of SGD."""
    model = _network(architecture, dropout=dropout, double=double, last=last).train()
    run = jit(model)
    stepper = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for seed in range(STEPS):
        out = run(**_given(architecture, seed, double, last))
        _loss(out).backward()
        grads = {n: p.grad for n, p in model.named_parameters()}
        if not any(g is not None and g.abs().sum() > 0 for g in grads.values()):
            raise AssertionError("nothing got a gradient: the step shows nothing")
        stepper.step()
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        yield _snapshot({"out": contents(out), "grads": grads, "state": state})
        stepper.zero_grad()


def _loss(out: Any) -> torch.Tensor:
    """The loss that a network computes, or the mean of the squares of what it returns."""
    known = getattr(out, "loss", None)
    if isinstance(known, torch.Tensor):
        return known
    floating = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
    wanted = [t.square().mean() for t in floating if t.is_floating_point() and t.requires_grad]
    return torch.stack(wanted).sum()


_RUNS = {"inference": _inference, "training": _training}
MODES = tuple(_RUNS)


def _snapshot(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), tree)
