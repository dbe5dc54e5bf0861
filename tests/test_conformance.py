"""PyTorch's own databases through tj, forward, eager as the oracle.

The default run takes a sample, chosen by the names' hash, and ``TJ_SAMPLE=1``, ``2`` and so on take
others; ``TJ_FULL=1`` (``tox -e conformance``) runs everything, which takes hours: ``-k`` picks a
data type (``-k complex64``) or operations. What differs from eager has to be
in the tables of `tj_conformance.known`, and in a full run the tables have to be right.
"""

from __future__ import annotations

import functools
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance import known
from tj_conformance.errors import failing_operations, run_error_inputs
from tj_conformance.module_db import modules, run_module
from tj_conformance.op_db import full_name, operations, run_operation, sample_arguments
from tj_conformance.result import Kind, Result
from tj_conformance.tally import Part, Tally, tally_dtype

FULL = os.environ.get("TJ_FULL") == "1"
SAMPLE = int(os.environ.get("TJ_SAMPLE", "0"))
DTYPES = [getattr(torch, name) for name in known.DTYPES]
OPERATIONS = operations()
CASES = [(dtype, op) for dtype in DTYPES for op in operations(dtype)]
FAILING = failing_operations()
MODULES = modules()


def name(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(map(name, value))
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return full_name(value) if hasattr(value, "variant_test_name") else value.name


def sampled(entries: list[Any], step: int) -> list[Any]:
    """All entries, or by default about one of ``step``: which, depends on no other entry."""
    chosen = (e for e in entries if (zlib.crc32(name(e).encode()) + SAMPLE) % step == 0)
    return entries if FULL else list(chosen)


def check(result: Result, table: Iterable[known.Known], case: str) -> None:
    found = list(known.disagreements(result, table, case, complete=FULL))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("op", sampled(OPERATIONS, 12), ids=full_name)
def test_operation_with_varying_sizes(op: Any) -> None:
    """Three samples through one callable: where sizes vary, Dynamo makes them symbols."""
    check(run_operation(op, count=3, grad=True), known.OPERATIONS, "dynamic")


@pytest.mark.parametrize(("dtype", "op"), sampled(CASES, 61), ids=name)
def test_operation(dtype: torch.dtype, op: Any) -> None:
    """Each size compiled for itself, a few to a callable, so that no entry is dropped."""
    jit = functools.partial(tj.jit, dynamic=False)
    result = run_operation(op, dtype, None if FULL else 3, per_callable=8, jit=jit)
    assert result.samples + result.eager_errors > 0
    check(result, known.OPERATIONS, name(dtype))


@pytest.mark.parametrize("wanted", ["bool-item", "float32-tensor_split", "bool-masked_select"])
def test_what_once_differed(wanted: str) -> None:
    """All samples of operations that were found to be wrong, whatever the sample is."""
    dtype, op = next(case for case in CASES if name(case) == wanted)
    jit = functools.partial(tj.jit, dynamic=False)
    result = run_operation(op, dtype, None, per_callable=8, jit=jit)
    assert result.samples
    assert not list(known.disagreements(result, known.OPERATIONS, name(dtype), complete=True))


@pytest.mark.parametrize("after_a_break", [False, True], ids=["whole", "after a break"])
@pytest.mark.parametrize("op", sampled(FAILING, 8), ids=full_name)
def test_error_inputs(op: Any, after_a_break: bool) -> None:
    result = run_error_inputs(op, after_a_break=after_a_break)
    case = "after a break" if after_a_break else "whole"
    check(result, known.ERRORS, case)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("info", sampled(MODULES, 6), ids=lambda m: m.name)
def test_module(info: Any, training: bool) -> None:
    check(run_module(info, training=training), known.MODULES, "train" if training else "eval")


# --------------------------------------------------------------------------- the tables


def tables() -> Iterator[tuple[known.Known, set[str], set[str]]]:
    """Each record, with the entries and cases that its table may name."""
    names = {full_name(op) for dtype in DTYPES for op in operations(dtype)}
    yield from ((k, names, {*known.DTYPES, "dynamic"}) for k in known.OPERATIONS)
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
