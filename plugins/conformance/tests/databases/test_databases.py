"""PyTorch's databases beside `sweep/test_sweep.py`: modules, calls that must raise, derivatives.

The default run takes a sample, chosen by the names' hash, and ``TJ_SAMPLE=1``, ``2`` and so on take
others; ``TJ_FULL=1`` (``tox -e long``) runs everything. What differs from eager has to be in the
tables of `tj_conformance.databases.known`, and in a full run the tables have to be right.
"""

from __future__ import annotations

import functools
import itertools
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.databases import known
from tj_conformance.databases.errors import failing_operations, run_error_inputs
from tj_conformance.databases.graphs import ORIGINS, module_graphs
from tj_conformance.databases.memo import compare_memo
from tj_conformance.databases.module_db import module_calls, modules, run_module
from tj_conformance.databases.op_db import full_name, operations, run_operation, sample_arguments
from tj_conformance.databases.tally import Part, Tally, tally_dtype
from tj_conformance.gradients import known as gradients
from tj_conformance.gradients import tally as gradient_tally
from tj_conformance.gradients.gradients import (
    differentiable_operations,
    run_gradients,
    run_second,
)
from tj_conformance.gradients.numerical import run_gradcheck
from tj_conformance.oracle.compare import differences, seeded
from tj_conformance.oracle.result import Kind, Result
from tj_conformance.oracle.twins import clone_tree
from tj_conformance.sampling import FULL
from tj_conformance.sweep.ways import GRADIENTS, TORCH, session

pytestmark = pytest.mark.sampled(10)

SAMPLE = int(os.environ.get("TJ_SAMPLE", "0"))
DTYPES = [getattr(torch, name) for name in known.DTYPES]
OPERATIONS = operations()
FAILING = failing_operations()
MODULES = modules()
COUNT = 3 if FULL else 2
SECOND, CHECKED = "second float32", "gradcheck float64"

DATA_DEPENDENT_MODULES = {
    "nn.BatchNorm1d",
    "nn.BatchNorm2d",
    "nn.BatchNorm3d",
    "nn.CTCLoss",
    "nn.GaussianNLLLoss",
}
"""Graphs of these fall back; batch norms in training with ``momentum=None`` read their counter."""


def with_gradients(program: Any) -> Any:
    return tj.jit(program, session=session(GRADIENTS), dynamic=False)


def name(value: Any) -> str:
    return full_name(value) if hasattr(value, "variant_test_name") else value.name


def sampled(entries: list[Any], step: int) -> list[Any]:
    """All entries, or by default about one of ``step``: which, depends on no other entry."""
    chosen = (e for e in entries if (zlib.crc32(name(e).encode()) + SAMPLE) % step == 0)
    return entries if FULL else list(chosen)


def check(result: Result, table: Iterable[known.Known], case: str) -> None:
    found = list(known.disagreements(result, table, case, complete=FULL))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("after_a_break", [False, True], ids=["whole", "after a break"])
@pytest.mark.parametrize("op", sampled(FAILING, 8), ids=full_name)
def test_error_inputs(op: Any, after_a_break: bool) -> None:
    result = run_error_inputs(op, after_a_break=after_a_break)
    case = "after a break" if after_a_break else "whole"
    check(result, known.ERRORS, case)


@pytest.mark.sampled(24)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # transformers say it when made
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("info", sampled(MODULES, 10), ids=lambda m: m.name)
def test_module(info: Any, training: bool) -> None:
    """Called, in training with gradients of parameters; as a leaf of a graph; remembered."""
    for plugins in (TORCH, GRADIENTS):
        jit = functools.partial(tj.jit, session=session(plugins))
        result = run_module(info, training=training, jit=jit)
        check(result, known.MODULES, "train" if training else "eval")
    for make, args in module_graphs(info, training=training):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            leaf_module(info, make, args)
    for make, call in module_calls(info, training=training):
        found = compare_memo(make, [call])
        assert found.problems == []
        # PyTorch chooses between two kinds of max pooling in closures, which no key stands for.
        remembered = "maxpool" not in info.name.lower()
        assert found.again.hits > 0 or not found.without.misses or not remembered


def leaf_module(info: Any, make: Any, args: Any) -> None:
    """A graph that calls the module, through the frontend ``fx``: results and state."""
    reference, module = make(), make()
    try:
        seeded(make(), clone_tree(args), {})
    except Exception:
        return  # the sample is of an error
    jitted = tj.jit(module, frontend="fx")
    # A lazy module runs in eager once: that makes the parameters that are then captured.
    for _ in range(3 if "Lazy" in info.name else 2):
        mine, theirs = (seeded(f, clone_tree(args), {}) for f in (jitted, reference))
        assert differences(mine, theirs) == []
        state = dict(reference.state_dict())
        assert differences(dict(module.state_dict()), state, "state") == []
    fallbacks = tj.stats(jitted).fallbacks
    assert not fallbacks or info.name in DATA_DEPENDENT_MODULES, fallbacks
    assert tj.stats(jitted).hits == 1 or fallbacks


# --------------------------------------------------------------------------- derivatives


def differentiable(dtype: torch.dtype, step: int, *, second: bool = False) -> list[Any]:
    return sampled(differentiable_operations(dtype, second=second), step)


@pytest.mark.parametrize("op", differentiable(torch.float32, 37, second=True), ids=full_name)
def test_second_derivatives(op: Any) -> None:
    result = run_second(op, torch.float32, COUNT, jit=with_gradients)
    assert list(known.disagreements(result, gradients.OPERATIONS, SECOND, complete=False)) == []


@pytest.mark.parametrize("op", differentiable(torch.float64, 43), ids=full_name)
def test_finite_differences(op: Any) -> None:
    result = run_gradcheck(op, torch.float64, COUNT, jit=with_gradients)
    assert list(known.disagreements(result, gradients.OPERATIONS, CHECKED, complete=False)) == []


def test_a_wrong_gradient_is_found() -> None:
    op = next(op for op in differentiable_operations(torch.float64) if op.name == "sin")

    def wrong(fn: Any) -> Any:
        return with_gradients(lambda x: fn(x) + 0.5 * (x - x.detach()))

    for run in (run_gradients, run_second):
        result = run(op, torch.float64, 1, jit=wrong)
        assert result.kinds == {Kind.RESULT}
        assert result.samples == 1
    assert run_gradcheck(op, torch.float64, 1, jit=wrong).kinds == {Kind.RESULT}


def test_the_command_of_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = differentiable_operations(torch.float32)
    index = [full_name(op) for op in wanted].index("sin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tj_core.host.session._current", session(GRADIENTS))
        case = f"first:float32:{index}/{len(wanted)}"
        assert gradient_tally.main([case, "--samples", "2"]) == 0
    assert capsys.readouterr().out == "| first float32 | 1 | 1 | 0 | 0 | 0 |\n"
    assert Part.parse("2/8") == Part(2, 8)


# --------------------------------------------------------------------------- the tables


def tables() -> Iterator[tuple[known.Known, set[str], set[str]]]:
    """Each record, with the entries and cases that its table may name."""
    names = {full_name(op) for dtype in DTYPES for op in operations(dtype)}
    records = (*known.EXPANSIONS, *known.IN_PLACE, *known.SYMBOLS, *known.OPERATIONS)
    forward = {*known.DTYPES, "dynamic", *(f"dynamic {name}" for name in known.DTYPES)}
    yield from ((k, names, forward) for k in records)
    yield from ((k, names, set(ORIGINS)) for k in known.GRAPHS)
    failing = {full_name(op) for op in FAILING}
    yield from ((k, failing, {"whole", "after a break"}) for k in known.ERRORS)
    yield from ((k, {m.name for m in MODULES}, {"eval", "train"}) for k in known.MODULES)


def test_the_tables_name_what_there_is() -> None:
    for record, names, cases in tables():
        assert set(record.entries) <= names
        assert set(record.cases) <= cases
    assert {full_name(op) for op in OPERATIONS} >= known.UNDEFINED


def wrong(value: float) -> Any:
    """An operation and a jit that is off by ``value``."""

    def jit(program: Any) -> Any:
        jitted = tj.jit(lambda *args, **kwargs: program(*args, **kwargs) + value)
        return jitted

    return jit


@pytest.mark.parametrize(("value", "kind"), [(1e-6, Kind.ROUNDING), (1.0, Kind.RESULT)])
def test_a_difference_is_found_and_must_be_listed(value: float, kind: Kind) -> None:
    sigmoid = next(op for op in OPERATIONS if op.name == "sigmoid")
    result = run_operation(sigmoid, jit=wrong(value))
    assert result.kinds == {kind}
    assert "not in the table" in next(known.disagreements(result, (), "float32", complete=False))
    listed = known.Known(kind, "off on purpose", ("sigmoid",))
    assert not list(known.disagreements(result, (listed,), "float32", complete=True))


def test_an_entry_that_no_longer_differs_must_go() -> None:
    sigmoid = next(op for op in OPERATIONS if op.name == "sigmoid")
    result = run_operation(sigmoid)
    listed = known.Known(Kind.ROUNDING, "once upon a time", ("sigmoid",), ("float32",))
    (said,) = known.disagreements(result, (listed,), "float32", complete=True)
    assert "no longer differs" in said
    assert not list(known.disagreements(result, (listed,), "float64", complete=True))
    assert not list(known.disagreements(result, (listed,), "float32", complete=False))


def test_another_error_than_eagers_is_found() -> None:
    op = next(op for op in FAILING if op.name == "gather")

    def jit(program: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return program(*args, **kwargs)
            except RuntimeError as error:
                raise ValueError(str(error)) from None

        return run

    result = run_error_inputs(op, jit=jit)
    assert result.kinds == {Kind.ERROR}
    assert any("no note names" in p.what for p in result.problems)
    assert any(p.what.startswith("ValueError") for p in result.problems)


# --------------------------------------------------------------------------- the figures


def test_a_tally_counts_samples_by_the_worst_that_differs() -> None:
    sigmoid = next(op for op in OPERATIONS if op.name == "sigmoid")
    tally = Tally("float32")
    assert not tally.add(run_operation(sigmoid, count=1), (), "float32")
    (told,) = tally.add(run_operation(sigmoid, count=1, jit=wrong(1.0)), (), "float32")
    assert told.startswith("sigmoid [float32]: not in the table: sample 0: result: ")
    assert tally.disagreements == [told]
    assert str(tally) == "| float32 | 2 | 1 | 1 result | 0 | 0 |"


def test_a_tally_is_of_all_samples() -> None:
    (tally,) = tally_dtype("bool", Part.parse("3/349"))
    assert isinstance(tally, Tally)
    op = operations(torch.bool)[3]
    samples = len(list(sample_arguments(op, torch.bool, None, grad=False)))
    assert (tally.entries, tally.samples + tally.not_compared) == (1, samples)
    assert samples > 3


def test_parts_make_up_the_whole() -> None:
    entries = list(range(10))
    parts = [Part.parse(f"{i}/3").of(entries) for i in range(3)]
    assert sorted(itertools.chain(*parts)) == entries
    with pytest.raises(ValueError, match="0 to 2"):
        Part.parse("3/3")
