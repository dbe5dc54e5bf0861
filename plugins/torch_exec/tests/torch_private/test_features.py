"""Features that use private names of PyTorch: probes find lost ones, and only these are lost.

Names are changed as a new PyTorch might: removed, renamed, without effect, or with another
signature. The user's call must be right each time, without an error.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture import eager_probe
from tj_torch.capture import lost_features as lost
from tj_torch.capture.dynamo import features
from tj_torch.capture.dynamo.features import FEATURES, TABLE
from tj_torch.capture.dynamo.foundations import FOUNDATIONS
from tj_torch.capture.dynamo.observations import Observations
from tj_torch.torch_private import dynamo, replacement
from tj_torch.torch_private.features import Correction, Needs, apply_features, missing
from tj_torch.torch_private.lookup import MissingNameError
from torch import nn

BY_NAME = {f.name: f for f in FEATURES}
PROBED = [f.name for f in FEATURES if f.probe is not None]
CORRECTED = [name for name in PROBED if BY_NAME[name] not in FOUNDATIONS]

RIGHT_ALONE = {
    "capture": "it is all the others together",
    "stances": "nothing of PyTorch is replaced: the stance is read",
    "graph breaks": "it replaces nothing, and reads what Dynamo notes",
    "states of an LSTM": "PyTorch is right by itself after 2.10",
    "calls that modes see": "PyTorch is right by itself from 2.13 on",
    "views that are attributes": "PyTorch 2.13 is right by itself where a program returns one",
    "signs of zero": "guards of signs are also made where guards are built",
    "autograd.Function": "without a plugin for gradients PyTorch runs the backward",
    "strides of kernels": "what an operator's kernel returns differs between processors",
    "sizes after writes": "PyTorch is right by itself from 2.14 on",
    "contexts entered by hand": "PyTorch is right by itself from 2.14 on",
    "attributes that fakes lack": "PyTorch breaks the graph by itself from 2.14 on",
    "globals of functions": "PyTorch is right by itself from 2.14 on",
    "checks of metaclasses": "PyTorch is right by itself from 2.14 on",
    "equal keys": "PyTorch is right by itself from 2.14 on",
    "text of containers": "PyTorch is right by itself from 2.14 on",
    "context variables": "PyTorch breaks the graph by itself up to 2.13",
    "members of classes": "PyTorch guards where a member is found from 2.15 on",
    "sharded modules": "its names are asked where a module is jitted, by no correction",
    "exceptions": "PyTorch has the texts of exceptions from 2.15 on",
    "unguarded reads": "an earlier program may have had PyTorch guard the annotations",
    "random numbers of Python": "PyTorch breaks the graph by itself from 2.15 on",
    "operators of symbols": "PyTorch is right by itself from 2.15 on",
    "classes derived from containers": "PyTorch is right by itself from 2.15 on",
    "tensors of a size": "PyTorch is right by itself from 2.15 on",
    "numbers in containers": "PyTorch compares symbols by itself from 2.15 on",
}
"""Features whose probes may pass without them in this environment, with the reasons."""


COMPARED = (
    "undecided numbers",
    "asserted sizes",
    "constant tensors",
    "refused data",
    "checked functions",
    "distributions",
    "numbers of NumPy",
    "gradients in programs",
)
"""Features whose probes compare results first, and then see that the program is captured whole."""


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    """Reset lost features and warnings before and after each test."""
    torch._dynamo.reset()
    lost._said.clear()
    yield
    TABLE.lost.clear()
    lost._said.clear()
    dynamo.forget()


@pytest.mark.probe
@pytest.mark.parametrize("name", PROBED)
def test_a_probe_passes(name: str) -> None:
    probe = BY_NAME[name].probe
    assert probe is not None
    probe()


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CORRECTED)
def test_a_probe_finds_that_a_feature_has_no_effect(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = dataclasses.replace(BY_NAME[name], apply=lambda stack, noticed: None)
    found = tuple(idle if f.name == name else f for f in FEATURES)
    monkeypatch.setattr(features, "FEATURES", found)
    assert idle.probe is not None
    try:
        idle.probe()
    except AssertionError:
        return
    assert name in RIGHT_ALONE


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [n for n in PROBED if not BY_NAME[n].essential])
def test_programs_that_need_a_lost_feature_run_as_they_are(name: str) -> None:
    TABLE.lost[name] = "planted"
    probe = BY_NAME[name].probe
    assert probe is not None
    if name in COMPARED:
        with pytest.raises(AssertionError, match=r"^(not captured|graph break): "):
            probe()
    else:
        probe()


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CORRECTED)
def test_a_feature_works_where_pytorch_has_compiled_before(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamo caches its methods to wrap and call values per process, here without tj's patches."""
    probe = BY_NAME[name].probe
    assert probe is not None
    with monkeypatch.context() as patch:
        patch.setattr(eager_probe, "jitted", lambda f, session: torch.compile(f, backend="eager"))
        with contextlib.suppress(Exception):
            probe()
    torch._dynamo.reset()
    probe()


# ------------------------------------------------------------------------------- names are taken


def replaced() -> list[tuple[Correction, str, Any, str]]:
    """Names of PyTorch that features replace, with their owners."""
    found = []
    with ExitStack() as stack:
        for feature in FEATURES:
            with replacement.noting() as seen:
                feature.apply(stack, Observations())
            paths = {f"{replacement.path_of(o)}.{n}": (o, n) for o, n in seen}
            found += [(feature, path, *place) for path, place in paths.items()]
    return found


PLACES = {
    path: (feature, owner, name)
    for feature, path, owner, name in replaced()
    if not path.endswith(".expect_true")  # PyTorch's own gradients need it
}


def example(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The README's program, which uses no special feature."""
    y = nn.functional.gelu(x @ w)
    return y / y.sum(-1, keepdim=True)


def outcome(program: Callable[..., Any], *calls: tuple[Any, ...]) -> tuple[list[Any], list[str]]:
    """Results of calls of ``program`` under tj, and tj's warnings."""
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jitted = tj.jit(
            program, session=tj.Session(["torch", "autograd"], overrides={"strict": False})
        )
        results = [jitted(*args) for args in calls]
    return results, [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]


def is_right(warned: int | None = None) -> list[str]:
    """Check that the example equals eager, with gradients; return the warnings."""
    x, w = torch.rand(3, 4), torch.rand(4, 4, requires_grad=True)
    (mine, again), said = outcome(example, (x, w), (x, w))
    torch.testing.assert_close(mine, example(x, w))
    torch.testing.assert_close(again, example(x, w))
    (mine_grad,) = torch.autograd.grad(mine.square().sum(), w)
    (grad,) = torch.autograd.grad(example(x, w).square().sum(), w)
    torch.testing.assert_close(mine_grad, grad)
    assert len(said) == len(set(said))
    return said


def test_there_are_thirty_names() -> None:
    assert len(PLACES) >= 30


@pytest.mark.sampled(12)
@pytest.mark.parametrize("path", PLACES)
def test_a_removed_name_costs_one_feature(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, owner, name = PLACES[path]
    original = vars(owner).get(name)
    if original is None:
        pytest.skip("a base has it in this PyTorch")
    monkeypatch.delattr(owner, name)
    said = is_right()
    assert not said or all(str(torch.__version__) in s or "graph break" in s or "not captured" in s
                           for s in said)  # fmt: skip
    monkeypatch.setattr(owner, f"{name}_renamed", original, raising=False)
    is_right()


@pytest.mark.sampled(12)
@pytest.mark.parametrize("path", PLACES)
def test_another_signature_is_no_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, owner, name = PLACES[path]
    original = vars(owner).get(name)
    if original is None or not callable(original):
        pytest.skip("no function of its own in this PyTorch")

    def changed(*args: Any, another: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, changed)
    is_right()


@pytest.mark.parametrize("name", TABLE.names)
def test_every_name_is_there(name: str) -> None:
    with contextlib.suppress(MissingNameError) if TABLE.names[name].newer else ExitStack():
        assert TABLE.names[name].find() is not None
    assert TABLE.missing() == {}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", dynamo.NAMES)
def test_a_missing_name_costs_the_features_that_the_table_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = dynamo.NAMES[name]
    monkeypatch.setitem(dynamo.NAMES, name, dataclasses.replace(known, path="torch._no.such"))
    dynamo.forget()
    lost = missing(FEATURES, Observations())
    assert lost.keys() <= {*known.features} or "capture" in known.features
    # One word on the version, and one where the program is among those that need the feature.
    said = [s for s in is_right() if "needs what this PyTorch lacks" not in s]
    assert len(said) <= 1 or all(str(torch.__version__) in s for s in said)


# ------------------------------------------------------------------------------- what becomes of it


def texts(x: torch.Tensor) -> tuple[torch.Tensor, str]:
    try:
        raise KeyError("q")
    except KeyError as error:
        return x + 1, f"{error}"


def test_functions_that_need_what_is_lost_run_as_they_are() -> None:
    TABLE.lost["exceptions"] = "it has no effect: said so"
    x = torch.ones(2)
    (result, again), said = outcome(texts, (x,), (x,))
    assert result[1] == again[1] == "'q'"
    assert [s for s in said if "exceptions: it has no effect: said so" in s]
    assert any("needs what this PyTorch lacks: exceptions" in s for s in said)
    assert not [s for s in outcome(example, (torch.rand(2, 2), torch.rand(2, 2)))[1]]


def test_one_lost_feature_is_said_once() -> None:
    TABLE.lost["exceptions"] = "no such name"
    first = is_right()
    assert len(first) == 1
    assert "functions that need it run in eager" in first[0]
    assert is_right() == []


def test_an_essential_feature_costs_all() -> None:
    TABLE.lost["identity"] = "it has no effect"
    said = is_right()
    assert len(said) == 1
    assert "identity: it has no effect" in said[0]


def test_a_feature_says_what_is_without_it() -> None:
    nothing: Any = lambda stack, noticed: None  # noqa: E731
    assert "eager" in Correction.of("a", "b", nothing, None).without
    assert "rounded" in Correction.of("a", "b", nothing, Needs()).without
    assert Correction.of("a", "b", nothing, None).essential


def test_corrections_leave_nothing_behind() -> None:
    """`torch._dynamo.config.patch` makes a context variable each time, which stays for good."""
    with features.corrected():
        pass
    before = len(contextvars.copy_context())
    with features.corrected():
        pass
    assert len(contextvars.copy_context()) == before


def test_a_feature_that_no_probe_has_found_lost_is_undone() -> None:
    done: list[str] = []

    def lacking(stack: ExitStack, noticed: Any) -> None:
        stack.callback(done.append, "undone")
        raise AttributeError("no such name")

    def there(stack: ExitStack, noticed: Any) -> None:
        stack.callback(done.append, "left")

    lost = Correction.of("lost", "", lacking, Needs())
    with ExitStack() as stack:
        found = apply_features((lost, Correction.of("found", "", there, Needs())), stack, None, {})
        assert found == [(lost, "AttributeError: no such name")]
        assert done == ["undone"]
    assert done == ["undone", "left"]
