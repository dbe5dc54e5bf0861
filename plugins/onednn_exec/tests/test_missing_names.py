"""Private names of PyTorch in tj-onednn: without one, the features that need it are lost."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_onednn import adapter, kernels, names, operators, packing
from tj_onednn.names import CONVOLUTIONS, INT8, NAMES, PACKED, PRODUCTS, TABLE
from tj_torch.extend import MissingNameError

BY_NAME = {f.name: f for f in TABLE.features}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing has been looked for, and nothing said, before a test or after it."""
    monkeypatch.setattr(TABLE, "lost", {})
    monkeypatch.setattr(TABLE, "looked", False)
    monkeypatch.setattr("tj_torch.capture.lost_features._said", set())
    yield
    names.forget()


def program(x: torch.Tensor, w: torch.Tensor, images: torch.Tensor, k: torch.Tensor) -> Any:
    return F.linear(x, w).relu(), torch.conv2d(images, k).relu()


def outcome() -> tuple[list[str], str]:
    """Check that results are eager's; the warnings, and the program that has run."""
    torch.manual_seed(0)
    args = torch.randn(8, 16), torch.randn(4, 16), torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3)
    overrides = {"strict": True, "onednn": {"choose": "always", "epilogues": True}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = tj.Session(("onednn", "autograd", "torch"), overrides=overrides)
        jitted = tj.jit(program, session=session)
        for found in (jitted(*args), jitted(*args)):
            for mine, theirs in zip(found, program(*args), strict=True):
                torch.testing.assert_close(mine, theirs)
    said = [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]
    return said, str(tj.last_trace(jitted))


def outside(text: str) -> set[str]:
    """Layers that stand in no region."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return {name for name in ("linear", "conv2d") if any(f".{name}(" in line for line in lines)}


def test_all_names_are_there() -> None:
    assert TABLE.missing() == {}
    said, text = outcome()
    assert said == []
    assert outside(text) == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_name_costs_its_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = NAMES[name]
    monkeypatch.setitem(NAMES, name, dataclasses.replace(known, path="torch._no.such"))
    said, text = outcome()
    assert TABLE.lost.keys() == {*known.features}
    assert len(said) == len(known.features)
    for feature, one in zip(known.features, said, strict=True):
        assert f"{feature}: no torch._no.such; {BY_NAME[feature].without}" in one
        assert torch.__version__ in one
    assert outside(text) == {
        PRODUCTS: {"linear", "conv2d"},
        CONVOLUTIONS: {"conv2d"},
    }.get(known.features[0], set())


def test_weights_are_not_packed_without_what_packs_them() -> None:
    TABLE.lost[PACKED] = "planted"
    layer, x = torch.nn.Linear(16, 4), torch.randn(8, 16)
    overrides = {"strict": True, "onednn": {"choose": "always", "freeze": True}}
    with pytest.warns(tj.TjWarning, match="packed weights: planted; weights stay as they are"):
        session = tj.Session(("onednn", "autograd", "torch"), overrides=overrides)
    jitted = tj.jit(layer, session=session)
    with torch.no_grad():
        torch.testing.assert_close(jitted(x), layer(x))
    assert "onednn_packed" not in str(tj.last_trace(jitted))


def test_layers_do_not_run_in_int8_without_its_products() -> None:
    TABLE.lost[INT8] = "planted"
    layer, x = torch.nn.Linear(16, 4), torch.randn(8, 16)
    with pytest.warns(tj.TjWarning, match="products of int8: planted; they run in"):
        jitted = tj.jit(layer, plugins=["onednn", "torch"], onednn={"int8": ["*"]})
    with torch.no_grad():
        torch.testing.assert_close(jitted(x), layer(x))
    assert "this PyTorch lacks: products of int8" in str(tj.explain(jitted))


def test_a_missing_name_is_imported_and_raises_where_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = NAMES["LINEAR"]
    monkeypatch.setitem(NAMES, "LINEAR", dataclasses.replace(known, path="torch._no.such"))
    names.forget()
    with pytest.raises(MissingNameError, match="no torch"):
        names.LINEAR(torch.ones(1), torch.ones(1))


@pytest.mark.probe
@pytest.mark.parametrize("name", BY_NAME)
def test_a_probe_passes(name: str) -> None:
    probe = BY_NAME[name].probe
    assert probe is not None
    probe()


def saturated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As processors without instructions for int8 add."""
    return (a.int() @ b.int()).clamp(-(2**15), 2**15 - 1)


def without_activation(x: Any, w: Any, b: Any, padding: Any, stride: Any, *how: Any) -> Any:
    return torch.conv2d(x, w, b, stride, padding, *how[:2])


FAULTS: dict[str, tuple[Any, str, Any]] = {
    PRODUCTS: (operators, "LINEAR", lambda x, w, b, *post: F.linear(x, w, b)),
    CONVOLUTIONS: (
        kernels,
        "CONVOLUTION",
        without_activation,
    ),
    PACKED: (packing, "version", lambda x: 0),
    INT8: (adapter, "INT8_PRODUCT", saturated),
}
"""Replacements by which a feature has no effect."""


@pytest.mark.parametrize("name", BY_NAME)
def test_a_probe_finds_that_a_feature_has_no_effect(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, idle = FAULTS[name]
    monkeypatch.setattr(owner, attribute, idle)
    probe = BY_NAME[name].probe
    assert probe is not None
    with pytest.raises(AssertionError):
        probe()
