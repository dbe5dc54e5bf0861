"""Packages that others wrote train under tj as they do in eager, to the bit."""

from __future__ import annotations

import functools
import importlib.metadata

import pytest
import tj_core as tj
import torch
from tj_suites.packages import PACKAGES, Network, Package, train_twins

EVERY = [
    pytest.param(network, id=f"{package.name} {network.name}")
    for package in PACKAGES
    for network in package.networks
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_the_version_is_the_one_that_the_table_names(package: Package) -> None:
    assert importlib.metadata.version(package.name) == package.version


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("plugins", "optimizer"),
    [
        (("torch", "subclass"), "sgd"),
        (("torch", "autograd", "subclass"), "adam"),
    ],
    ids=str,
)
@pytest.mark.parametrize("network", EVERY)
def test_two_training_steps(network: Network, plugins: tuple[str, ...], optimizer: str) -> None:
    """Outputs, loss, all gradients, parameters, buffers, optimizer state, random numbers drawn."""
    torch.compiler.reset()
    report = train_twins(network, functools.partial(tj.jit, plugins=plugins), optimizer)
    assert not report.problems, "\n".join(report.problems)
    assert len(report.tj_warnings) == len(network.breaks), report.tj_warnings
    assert all(map(str.__contains__, report.tj_warnings, network.breaks)), report.tj_warnings
