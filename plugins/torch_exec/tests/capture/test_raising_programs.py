"""Errors that only data cause: they are Python's own, and the program's handlers catch them."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_conformance.programs.assigning import assigning_programs
from tj_conformance.programs.observations import SeenProgram, differences_seen, warned
from tj_conformance.programs.raising import raising_programs
from torch._dynamo import symbolic_convert, utils
from torch._dynamo.variables import builtin

pytestmark = pytest.mark.usefixtures("lenient")

RAISING = {p.name: p for p in raising_programs()}
ASSIGNING = {p.name: p for p in assigning_programs()}


@pytest.mark.sampled(120)
@pytest.mark.parametrize("name", RAISING)
def test_errors_of_data_are_pythons(name: str) -> None:
    assert differences_seen(RAISING[name]) == []


@pytest.mark.sampled(80)
@pytest.mark.parametrize("name", ASSIGNING)
def test_attributes_that_are_refused(name: str) -> None:
    assert differences_seen(ASSIGNING[name]) == []


@pytest.mark.parametrize(
    "name",
    [
        "assert, plain, there, grad",
        "assert with text, plain, inside, grad",
        "two asserts, no_grad, there, no grad",
        "assert after a write, plain, there, no grad",
    ],
)
def test_assertions_are_captured(name: str) -> None:
    assert warned(RAISING[name]) == []
    assert differences_seen(RAISING[name]) == []


@pytest.mark.sampled(16)
@pytest.mark.parametrize("around", ["except", "suppress", "generator"])
@pytest.mark.parametrize("call", ["index", "embedding", "cholesky", "division", "assert"])
def test_a_handler_costs_one_warning(call: str, around: str) -> None:
    program = RAISING[f"{call}, {around}, there, grad"]
    assert differences_seen(program) == []
    found = warned(program)
    if around == "generator":  # its `finally` catches nothing: the calls raise in eager, too
        assert found == []
    else:
        assert len(found) == 1
        assert "some calls run in eager" in found[0]


@pytest.mark.parametrize(
    "name", ["setitem, raise from, there, grad", "setitem, else, inside, no grad"]
)
def test_a_handler_sees_a_write_of_a_number(name: str) -> None:
    """PyTorch 2.10 does not run such a write on fake tensors."""
    assert differences_seen(RAISING[name]) == []
    assert warned(RAISING[name]) == []


@pytest.mark.parametrize("around", ["plain", "no_grad", "record_function"])
@pytest.mark.parametrize("call", ["index", "embedding", "cholesky"])
def test_without_a_handler_the_program_is_captured(call: str, around: str) -> None:
    assert warned(RAISING[f"{call}, {around}, there, grad"]) == []


QUIET = """\
import torch

def program(x, w):
    try:
        y = torch.nn.functional.layer_norm((x @ w).softmax(-1)[:, :2] * 2, [2])
        y = torch.cat([y, y.mean(0, keepdim=True)]).masked_fill(x[:1, :1] > 0, 0.0)
    except RuntimeError:
        return x
    return y.transpose(0, 1).flatten()
"""


def test_calls_that_cannot_raise_stay_in_the_graph() -> None:
    args = ("(torch.rand(3, 4).requires_grad_(), torch.rand(4, 4))",) * 2
    program = SeenProgram("quiet", QUIET, args)
    assert warned(program) == []
    assert differences_seen(program) == []


def test_a_handler_of_a_class_that_data_does_not_raise_breaks_nothing() -> None:
    """Transformers' caches have such handlers."""
    source = QUIET.replace("RuntimeError", "(NotImplementedError, KeyError)").replace(
        "y.transpose(0, 1).flatten()", "y.flatten()"
    )
    source = source.replace("[:, :2] * 2", "[torch.tensor([0, 2])][:, :2]")
    args = ("(torch.rand(3, 4).requires_grad_(), torch.rand(4, 4))",) * 2
    program = SeenProgram("of no kernel", source, args)
    assert warned(program) == []
    assert differences_seen(program) == []
    parts = source.replace("    try", "    torch._dynamo.graph_break()\n    try")
    (found,) = warned(SeenProgram("parts", parts, args))
    assert "graph_break" in found


EXPANDED = """\
import torch

def program(x):
    y = x.sin()
    try:
        y[0].expand(2, 3).{call}
    except RuntimeError as error:
        y = y + len(str(error))
    return y.cos()
"""


@pytest.mark.parametrize("call", ["add_(1)", "copy_(x[:2])", "mul_(x[1:])", "clamp_(min=0)"])
def test_a_handler_sees_a_write_to_an_expanded_tensor(call: str) -> None:
    """Fake kernels write there, and real ones raise."""
    program = SeenProgram("expanded", EXPANDED.format(call=call), ("(torch.rand(3, 3),)",) * 2)
    assert differences_seen(program) == []
    assert len(warned(program)) == 1


@pytest.mark.slow
def test_an_assertion_after_a_side_effect_sees_it() -> None:
    log: list[int] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        log.append(len(log))
        assert x.sum() > 0, "negative"
        return x * 2

    jitted = tj.jit(program)
    jitted(torch.ones(2))
    with pytest.raises(AssertionError, match="negative"):
        jitted(-torch.ones(2))
    assert log == [0, 1]
    assert tj.stats(jitted).fallbacks == ()


# What each correction takes of Dynamo may be missing in another version: that costs the programs
# that it corrects, and no others.


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


@pytest.mark.parametrize(
    ("owner", "name", "program"),
    [
        (symbolic_convert, "_detect_and_normalize_assert_statement", "assert, plain, there, grad"),
        (utils, "run_node", "index, except, there, grad"),
        (symbolic_convert.InstructionTranslatorBase, "enter_ctx", "index, except, inside, grad"),
        (builtin.BuiltinVariable, "call_delattr", "delete 3 to a of Slots(), caught"),
    ],
)
def test_a_missing_name_costs_one_correction(
    owner: object, name: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in vars(owner):
        pytest.skip(f"this PyTorch has no {name}: that is the case already")
    monkeypatch.setattr("tj_torch.torch_private.replacement.has", _without(owner, name))
    for module in ("handlers", "asserts", "releases"):
        monkeypatch.setattr(f"tj_torch.capture.dynamo.{module}.has", _without(owner, name))
    found = {**RAISING, **ASSIGNING}[program]
    assert differences_seen(found) == []
    assert len(warned(found)) == 1
    jitted = tj.jit(plain)
    jitted(torch.ones(2))
    assert not tj.stats(jitted).fallbacks


def _without(owner: object, name: str) -> object:
    def has(where: object, what: str) -> bool:
        return what in vars(where) and (where, what) != (owner, name)

    return has
