"""Networks of packages that others wrote, and two steps of training, compared with eager's."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tj_core as tj
import torch
from tj_conformance.oracle.compare import Difference, differences
from tj_conformance.oracle.nearness import doubled, judged
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tj_suites.packages.torchvision import declare_what_torchvision_lacks

__all__ = ["OPTIMIZERS", "Network", "Package", "Report", "module", "train", "train_twins"]

Make = Callable[[], Any]
Jit = Callable[[nn.Module], Callable[..., Any]]

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.001),
}
"""Makers of optimizers, by name."""


@dataclass(frozen=True, slots=True)
class Network:
    """A small network with random weights, and the arguments that it is called with.

    ``breaks`` are parts of the warnings that say why a part of it is left to eager.
    ``compiled`` says what its code computes in another way where it sees a compiler: then
    ``torch.compile`` with backend "eager" is what it has to be equal to.
    """

    name: str
    build: Make
    batch: Callable[[], tuple[Any, ...]]
    breaks: tuple[str, ...] = ()
    compiled: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution in the version that was tried, and networks that it is made of."""

    name: str
    version: str
    networks: tuple[Network, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Where training differs from eager, and the warnings of tj."""

    problems: tuple[str, ...]
    tj_warnings: tuple[str, ...]


def module(name: str, attribute: str) -> Callable[..., Make]:
    """Makes functions that call ``attribute`` of the module ``name``, which is imported then."""

    def with_arguments(*args: Any, **kwargs: Any) -> Make:
        def build() -> Any:
            declare_what_torchvision_lacks()  # timm and others import it
            return getattr(importlib.import_module(name), attribute)(*args, **kwargs)

        return build

    return with_arguments


def train_twins(network: Network, jit: Jit, optimizer: str) -> Report:
    """Train the network and its twin under ``jit``; compare all that the steps leave behind.

    Where the configuration rounds, a step may also be as near as eager's to double precision's.
    """
    reference = _compiled_by_dynamo if network.compiled else _as_it_is
    expected, known = _recorded(network, reference, optimizer)
    got, warned = _recorded(network, jit, optimizer)
    problems = [f"warns: {w.message}" for w in warned if str(w.message) not in map(_text, known)]
    ours = tuple(str(w.message) for w in warned if issubclass(w.category, tj.TjWarning))
    different = list(_where(got, expected))
    left = judged(different, got, expected, lambda: _exact(network, optimizer))
    found = map(str, left)
    return Report((*found, *(p for p in problems if p[7:] not in ours)), ours)


def _exact(network: Network, optimizer: str) -> list[dict[str, Any]]:
    """The state after eager's steps in double precision."""
    wide = Network(network.name, lambda: network.build().double(), lambda: doubled(network.batch()))
    return _recorded(wide, _as_it_is, optimizer)[0]


def train(
    model: nn.Module, run: Callable[..., Any], batch: Make, optimizer: str, steps: int = 2
) -> Iterator[dict[str, Any]]:
    """Observations of each training step of ``model`` leaves behind; ``run`` is called for it."""
    parameters = list(model.parameters())
    stepper = OPTIMIZERS[optimizer](parameters) if parameters else None
    for seed in range(steps):
        torch.manual_seed(seed)
        given = batch()
        leaves = [t.requires_grad_() for t in _floating(given)]
        out = run(*given)
        loss = sum(t.square().mean() for t in _floating(out) if t.requires_grad)
        if not isinstance(loss, torch.Tensor):
            raise AssertionError("no result needs a gradient: the step shows nothing")
        loss.backward()
        found = {"out": out, "loss": loss, "leaves": [t.grad for t in leaves]}
        found["grads"] = {n: p.grad for n, p in model.named_parameters()}
        if stepper is not None:
            stepper.step()
            found["optimizer"] = stepper.state_dict()["state"]
            stepper.zero_grad()
        found["parameters"] = dict(model.named_parameters())
        found["buffers"] = dict(model.named_buffers())
        found["random"] = torch.rand(3)
        yield pytree.tree_map_only(torch.Tensor, _snapshot, found)


def _snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that later steps do not write to, with the strides of ``tensor``."""
    if is_traceable_wrapper_subclass(tensor):
        return tensor.detach().clone()
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return copy.copy_(tensor.detach()).requires_grad_(tensor.requires_grad)


def _floating(tree: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(tree)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _recorded(
    network: Network, jit: Jit, optimizer: str
) -> tuple[list[dict[str, Any]], list[warnings.WarningMessage]]:
    torch.manual_seed(0)
    model = network.build().train()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        return list(train(model, jit(model), network.batch, optimizer)), warned


def _where(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> Iterator[Difference]:
    for step, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        for name, value in theirs.items():
            yield from differences(mine[name], value, f"step {step}: {name}")


def _text(warning: warnings.WarningMessage) -> str:
    return str(warning.message)


def _as_it_is(model: nn.Module) -> nn.Module:
    return model


def _compiled_by_dynamo(model: nn.Module) -> Callable[..., Any]:
    return torch.compile(model, backend="eager")
