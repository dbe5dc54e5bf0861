"""Private names of Inductor that a PyTorch lacks: they cost a feature, and programs are right."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Decline, PluginError
from tj_inductor import draws, executor, kernels
from tj_inductor.adapter import calls, compiling, libraries, modules, names, priority, vectors
from tj_inductor.adapter.features import FEATURES, TABLE
from tj_inductor.adapter.names import NAMES
from tj_inductor.compiler import Compiler
from tj_torch.capture import lost_features as lost
from tj_torch.torch_private.lookup import find

BY_NAME = {f.name: f for f in FEATURES}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing has been looked for, and nothing said, before a test or after it."""
    monkeypatch.setattr(TABLE, "lost", {})
    monkeypatch.setattr(TABLE, "looked", False)
    monkeypatch.setattr(TABLE, "settled", False)
    monkeypatch.setattr(lost, "_said", set())
    names.forget()
    yield
    names.forget()
    compiling._strides_pass.cache_clear()
    calls.extern_call.cache_clear()


def program(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w).gather(1, i) / 2 + x[:, :2]


def is_right() -> tuple[list[str], str]:
    """See that results and gradients are eager's; the warnings, and the program that has run."""
    x, w = torch.rand(4, 8, requires_grad=True), torch.rand(8, 3)
    i = torch.tensor([[0, 2]] * 4)
    session = tj.Session(["inductor", "autograd", "torch"], overrides={"strict": False})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mine = tj.jit(program, session=session)
        results = [mine(x, w, i) for _ in range(2)]
        again = tj.jit(lambda x, w, i: program(x, w, i) * 1, session=session)  # what is known now
        results.append(again(x, w, i))
        gradients = [torch.autograd.grad(r.square().sum(), x)[0] for r in results]
    expected = program(x, w, i)
    for result, gradient in zip(results, gradients, strict=True):
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(
            gradient, torch.autograd.grad(program(x, w, i).square().sum(), x)[0]
        )
    said = [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]
    return said, tj.last_trace(again).python()


def take_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be no such name: where tj looks for it, or on the class that has it."""
    known = NAMES[name]
    owner, _, member = name.rpartition(".")
    found = NAMES[owner].find() if owner else None
    if isinstance(found, types.ModuleType):  # PyTorch needs, or does not let go of, its members
        monkeypatch.setitem(vars(names), owner, Lacking(found, member))
    elif owner:
        base = next(cls for cls in found.__mro__ if member in vars(cls))
        monkeypatch.delattr(base, member)
        return
    monkeypatch.setitem(NAMES, name, dataclasses.replace(known, path="torch._no.such"))


class Lacking:
    """A module without one of its members."""

    def __init__(self, module: Any, member: str) -> None:
        self.module, self.member = module, member

    def __getattr__(self, name: str) -> Any:
        if name == self.member:
            raise AttributeError(name)
        return getattr(self.module, name)


def test_all_names_are_there() -> None:
    assert TABLE.missing() == {}


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", [n for n in NAMES if "." not in n])
def test_a_missing_name_costs_its_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(name, monkeypatch)
    said, text = is_right()
    assert TABLE.lost.keys() == {*NAMES[name].features}
    for feature in NAMES[name].features:
        (one,) = (s for s in said if f": {feature}: " in s)
        assert torch.__version__ in one
        assert BY_NAME[feature].without in one
        assert "Please tell the issue tracker of tj-inductor" in one
    assert len(said) == len(NAMES[name].features)
    essential = any(BY_NAME[f].essential for f in NAMES[name].features)
    assert ("inductor.region" in text) is not essential


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", [n for n in NAMES if "." in n])
def test_a_missing_member_is_no_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor itself may need it: then regions fail, and their operations run one by one."""
    take_away(name, monkeypatch)
    assert TABLE.missing().keys() == {*NAMES[name].features}
    said, _ = is_right()
    assert [s for s in said if f": {NAMES[name].features[0]}: no {NAMES[name].path}; " in s]


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", BY_NAME)
def test_programs_are_right_without_a_feature(name: str) -> None:
    TABLE.lost[name] = "planted"
    said, text = is_right()
    assert len(said) == 1
    assert f"{name}: planted; {BY_NAME[name].without}" in said[0]
    assert ("inductor.region" in text) is not BY_NAME[name].essential


def test_calls_that_need_what_is_lost_stand_in_no_region() -> None:
    TABLE.lost[names.KERNELS] = "planted"
    _, text = is_right()
    outside = [line for line in text.splitlines() if "#|" not in line]
    assert any("gather" in line for line in outside)
    assert "inductor.region" in text


def test_a_formula_that_inductor_has_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    names.forget()
    known = dict(find("torch._inductor.decomposition.select_decomp_table")())
    del known[torch.ops.aten.index_add.default]
    monkeypatch.setattr("torch._inductor.decomposition.select_decomp_table", lambda: known)
    x = torch.ones(4)

    def adds(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).index_add(0, torch.tensor([0, 1]), x[:2]) + 1

    session = tj.Session(["inductor", "torch"], overrides={"strict": False})
    with pytest.warns(tj.TjWarning, match="formulas of operators: .* aten.index_add.default"):
        assert torch.equal(tj.jit(adds, session=session)(x), adds(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(tj.jit(adds, session=session)(x), adds(x))


# --------------------------------------------------------------------------------- probes

BEFORE_2_13 = {
    names.LOW: "it rounds between operations on GPUs only",
}
"""Features that probes find lost in PyTorch 2.10 to 2.12."""


@pytest.mark.probe
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", BY_NAME)
def test_a_probe_passes(name: str) -> None:
    probe = BY_NAME[name].probe
    assert probe is not None
    expected = torch.__version__ < "2.13" and name in BEFORE_2_13
    with pytest.raises(AssertionError) if expected else contextlib.nullcontext():
        probe()


def _idle(*args: Any, **kwargs: Any) -> Any:
    return None


FAULTS: dict[str, tuple[Any, str, Any]] = {
    names.REGIONS: (executor, "can_fuse", lambda call: Decline("planted")),
    names.STRIDES: (compiling, "_asked", lambda *_: contextlib.nullcontext()),
    names.FORMULAS: (compiling, "formulas", lambda known: {}),
    names.KERNELS: (kernels, "_replace", _idle),
    names.ONE_FILE: (kernels, "_replace", _idle),
    names.FAST: (kernels, "_replace", _idle),
    names.FOUND_AGAIN: (libraries, "_loaded", _idle),
    names.VECTORS: (vectors, "Vectors", lambda kinds: [kind for kind in kinds if kind]),
    names.LINKED: (libraries, "link_flags", lambda: ()),
    names.FINISHED: (compiling, "_is_whole", lambda made: False),
    names.VERSIONS: (modules, "_new", lambda source: []),
    names.LOW: (Compiler, "settings", {"emulate_precision_casts": False}),
    names.COPIES: (compiling, "in_one_place", lambda outputs, written: []),
    names.PLACES: (compiling, "exact_propagation", contextlib.nullcontext),
    names.IMAGES: (compiling, "layouts_of_images", contextlib.nullcontext),
    names.PRIORITY: (priority, "lower_priority", contextlib.nullcontext),
    names.READERS: (compiling, "in_one_loop", contextlib.nullcontext),
    names.ROWS: (compiling, "vectors_along_rows", contextlib.nullcontext),
    names.DRAWS: (draws, "Compilation", _idle),
    names.READS: (compiling, "read_before", lambda graph: None),
    names.SYMBOLS: (executor, "can_fuse", lambda call: Decline("planted")),
    names.EQUAL: (compiling, "is_lost", lambda name: name == names.EQUAL),
    names.IN_PLACE: (compiling, "write", _idle),
}
"""Replacements by which a feature has no effect. A call of oneDNN's is right without one, too."""


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", FAULTS)
def test_a_probe_finds_that_a_feature_has_no_effect(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, idle = FAULTS[name]
    monkeypatch.setattr(owner, attribute, idle)
    probe = BY_NAME[name].probe
    assert probe is not None
    with pytest.raises((AssertionError, PluginError)):
        probe()


def test_each_feature_has_a_fault() -> None:
    assert BY_NAME.keys() - FAULTS.keys() == {names.ONEDNN}


# --------------------------------------------------------------------------------- a new process

PROGRAM = """
import importlib, sys, warnings
import torch
module, _, name = sys.argv[1].rpartition(".")
delattr(importlib.import_module(module), name)
import tj_core as tj

def f(x, w):
    return torch.nn.functional.gelu(x @ w) / 2 + 1

x, w = torch.rand(4, 8, requires_grad=True), torch.rand(8, 3)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    mine = tj.jit(f, session=tj.Session(["...", "autograd", "torch"], disable=["example_fuser"]))
    result = mine(x, w)
    again = mine(x, w)
torch.testing.assert_close(result, f(x, w))
torch.testing.assert_close(again, f(x, w))
grads = (torch.autograd.grad(r.square().sum(), x) for r in (result, f(x, w)))
torch.testing.assert_close(*grads)
said = [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]
assert any("inductor" in s for s in said), said
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name",
    [
        "torch._inductor.codecache.CppPythonBindingsCodeCache",
        "torch._inductor.compile_fx.compile_fx_inner",
        "torch._inductor.lowering.fallback_handler",
        "torch._inductor.decomposition.select_decomp_table",
    ],
)
def test_a_name_that_is_gone_is_no_error(name: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, name]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TJ_")}
    done = subprocess.run(
        command, capture_output=True, text=True, env={**environ, "TJ_CACHE_DIR": "none"}
    )
    assert done.returncode == 0, done.stderr
