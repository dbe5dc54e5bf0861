"""Names of PyTorch outside of Dynamo: each is missing in turn, as tj-torch is loaded.

The user's calls must be right, with a warning that names what is lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tj_core.extend import CaptureError
from tj_torch.capture.dynamo import foundations
from tj_torch.capture.dynamo.features import FEATURES
from tj_torch.capture.dynamo.foundations import FOUNDATIONS, NAMES
from tj_torch.dispatch import dynamo as programs
from tj_torch.guards import ambient
from tj_torch.ops.context import tracker
from tj_torch.ops.context.ambient import ambient_context
from tj_torch.ops.facts import stateless
from tj_torch.runtime import forms, thread_state
from tj_torch.torch_private import eager, ops, runtime, texts
from tj_torch.torch_private.dynamo import NAMES as DYNAMOS
from tj_torch.torch_private.lookup import MissingNameError, finder, names_in

BY_NAME = {f.name: f for f in FEATURES}

Ask = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def without() -> Iterator[Ask]:
    """Ask for what becomes of programs in a process that lacks the name at a path."""
    script = Path(__file__).parent / "without_a_name.py"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TJ_")}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**environ, "TJ_CACHE_DIR": "none"},
    ) as process:  # fmt: skip

        def ask(path: str) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            print(path, file=process.stdin, flush=True)
            found: dict[str, Any] = json.loads(process.stdout.readline())
            return found

        yield ask
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.sampled(1000)
@pytest.mark.parametrize("name", NAMES)
def test_a_missing_name_costs_its_features(name: str, without: Ask) -> None:
    known = NAMES[name]
    features = [BY_NAME[f] for f in known.features]
    found = without(known.path)
    assert found["error"] == ""
    fallen = {program for program, reasons in found["fallbacks"].items() if reasons}
    if known.newer or "capture" in known.features:  # not each program needs it
        assert all(f"no {known.path}" in s for s in found["said"])
        assert fallen == (found["fallbacks"].keys() if found["said"] else set())
    elif any(f.essential for f in features):
        assert fallen == found["fallbacks"].keys()
        assert all(f"{torch.__version__}: no {known.path}" in s for s in found["said"])
    else:
        (feature,) = features
        said = [s for s in found["said"] if "is not fully known" in s]
        # A name of this table may be in that of Dynamo's, too, for a feature of the capture.
        others = {f for n in DYNAMOS.values() if n.path == known.path for f in n.features}
        assert len(said) == 1 + len(others)
        (one,) = [s for s in said if f"{feature.name}: no {known.path}; {feature.without}" in s]
        for other in others:
            assert any(f"{other}: no {known.path}" in s for s in said if s is not one)
        assert feature.name == eager.DEVICES or "example" not in fallen


def test_all_names_are_there() -> None:
    assert foundations.essential_missing() is None


def _unnoticed(self: Any, node: Any) -> None:
    self._saved[node] = self.current, self.cache


FAULTS: dict[str, tuple[Any, str, Any]] = {
    eager.MODES: (ambient, "tracing_state", lambda: None),
    eager.THREADS: (
        thread_state,
        "FACTS",
        tuple(f for f in thread_state.FACTS if f.name != "grad mode"),
    ),
    eager.OPERATORS: (runtime, "_dispatch_get_all_op_names", list),
    eager.RUNS: (ops, "_enable_functionalization", lambda **kwargs: None),
    eager.FORMS: (forms, "_has", lambda keys, names: names == ("Dense",)),
    eager.VIEWS: (ops, "base_of", lambda tensor: tensor),
    eager.GRADIENTS: (runtime, "_get_current_graph_task_keep_graph", lambda: True),
    eager.FLAGS: (programs, "flags_of", lambda trace, table: ()),
    eager.INFERENCE: (tracker.ContextTracker, "_enter_inference", _unnoticed),
    texts.NOTES: (stateless, "NOTE_FUNCTIONS", ()),
    eager.CONVOLUTIONS: (ops, "_select_conv_backend", lambda *args: torch.float32),
}
"""Replacements by which a feature has no effect."""

NO_FAULT = {
    eager.AUTOCAST: "Dynamo has seen another data type, and the program runs in eager",
    eager.DEVICES: "a program under another mode runs in eager, and is right",
    eager.ATTENTION: "on a CPU the kernels give equal results",
    texts.LEVELS: "the level is the operators that it runs, whatever its functions are called",
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", FAULTS)
def test_a_probe_finds_that_a_feature_has_no_effect(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(forms, "FORMS", {})
    monkeypatch.setattr(forms, "_known", {}.get)
    owner, attribute, idle = FAULTS[name]
    monkeypatch.setattr(owner, attribute, idle)
    probe = BY_NAME[name].probe
    assert probe is not None
    with pytest.raises((AssertionError, AttributeError)):
        probe()


def test_each_probe_has_a_fault() -> None:
    probed = {f.name for f in FOUNDATIONS if f.probe is not None}
    assert probed == FAULTS.keys() | NO_FAULT.keys()


def test_a_stand_in_raises_where_it_is_used() -> None:
    uses = {"torch": {"_no_such": ("a", "b"), "_other": ("a", "b")}}
    names = names_in(uses, called={"_other": "other"})
    scope: dict[str, Any] = {"__name__": "here"}
    found = finder(scope, names, {"other": 3})
    assert found("other") == 3
    lacking = found("_no_such")
    assert scope["_no_such"] is lacking

    class Derived(lacking):
        """A class of tj's own."""

        field: int

    assert not hasattr(Derived, "field")
    assert not isinstance(3, lacking)
    for use in (lacking, Derived, lambda: lacking.member):
        with pytest.raises(MissingNameError, match="no torch"):
            use()
    with pytest.raises(AttributeError):
        found("unknown")


def test_a_context_that_is_not_known_is_not_captured() -> None:
    graph = torch.fx.Graph()

    def _entered() -> None:
        """A function of PyTorch's that a newer version has."""

    _entered.__module__ = "torch.amp.autocast_mode"
    node = graph.call_function(_entered)
    context = tracker.ContextTracker(ambient_context())
    with pytest.raises(CaptureError, match="does not know the context"):
        context.handles(node)
