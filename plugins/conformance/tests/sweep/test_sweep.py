"""PyTorch's ``op_db``: each sample runs once in eager, and all ways of tj are compared with that.

By default the expansion and the name of one sample of each operation in float32, and everything
(`tj_conformance.sweep.ways.WAYS`) for a share of the operations, in seven data types. Names' hashes
choose; ``TJ_SAMPLE=1``, ``2`` and so on choose others. ``TJ_FULL=1`` (``tox -e long``) runs all
samples in all ways, which takes hours: ``-k`` picks a data type (``-k complex64``) or operations.
Differences must be in the tables of `tj_conformance.databases.known`, and in a full run the tables
must be exact.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tj_conformance.databases import known
from tj_conformance.databases.op_db import full_name, operations
from tj_conformance.oracle.result import Kind
from tj_conformance.sampling import FULL
from tj_conformance.sweep import expansion, symbols, ways
from tj_conformance.sweep.ways import WAYS, run_sweep, sweep_disagreements
from tj_torch.extend import Expander

pytestmark = pytest.mark.sampled(12)

SAMPLE = int(os.environ.get("TJ_SAMPLE", "0"))
FAST = ("expansion", "in place", "names")
"""Ways in which each operation is compared with eager in every run."""

DTYPES = [getattr(torch, name) for name in known.DTYPES]


def case_name(dtype: torch.dtype, op: Any) -> str:
    return f"{str(dtype).removeprefix('torch.')}-{full_name(op)}"


def is_sampled(name: str, share: int) -> bool:
    return FULL or (zlib.crc32(name.encode()) + SAMPLE) % share == 0


def cases() -> Iterator[Any]:
    """Data type, operation, number of samples, ways."""
    for dtype in DTYPES:
        for op in operations(dtype):
            name = case_name(dtype, op)
            if is_sampled(name, 16 if dtype is torch.float32 else 144):
                yield pytest.param(dtype, op, None if FULL else 2, WAYS, id=name)
            elif dtype is torch.float32:
                yield pytest.param(dtype, op, 1, FAST, id=f"fast-{name}")


def assert_known(op: Any, dtype: torch.dtype, count: int | None, wanted: Any) -> None:
    found = []
    for way, result in run_sweep(op, dtype, count, wanted):
        said = sweep_disagreements(way, dtype, result, complete=count is None)
        found += [f"{way}: {what}" for what in said]
    assert not found, "\n".join(found)


@pytest.mark.sampled(40)
@pytest.mark.parametrize(("dtype", "op", "count", "wanted"), list(cases()))
def test_operation(dtype: torch.dtype, op: Any, count: int | None, wanted: Any) -> None:
    assert_known(op, dtype, count, wanted)


@pytest.mark.parametrize("wanted", ["bool-item", "float32-tensor_split", "bool-masked_select"])
def test_what_once_differed(wanted: str) -> None:
    """All samples of operations that were found to be wrong, whatever the share is."""
    dtype = getattr(torch, wanted.partition("-")[0])
    op = next(op for op in operations(dtype) if case_name(dtype, op) == wanted)
    assert_known(op, dtype, None, ("jit",))


# --------------------------------------------------------------------------- it can fail


def named(name: str) -> Any:
    return next(op for op in operations() if full_name(op) == name)


def kinds(op: Any, way: str) -> set[Kind]:
    return {k for name, r in run_sweep(op, ways=[way]) if name == way for k in r.kinds}


@pytest.mark.parametrize("way", ["jit", "jit dynamic", "autograd"])
def test_a_wrong_result_is_found(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ways.program_of

    def wrong(op: Any) -> Any:
        return lambda *args: right(op)(*args) + 1.0

    assert kinds(named("sigmoid"), way) == set()
    monkeypatch.setattr(ways, "program_of", wrong)
    assert Kind.RESULT in kinds(named("sigmoid"), way)


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ways.program_of

    def wrong(op: Any) -> Any:
        return lambda x: right(op)(x) + 0.5 * (x - x.detach())

    monkeypatch.setattr(ways, "program_of", wrong)
    assert Kind.RESULT in kinds(named("sin"), "autograd")


@pytest.mark.parametrize(
    ("module", "way"), [(expansion, "expansion"), (expansion, "in place"), (symbols, "symbols")]
)
def test_a_wrong_body_is_found(module: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = module.replay

    def wrong(body: Any, inputs: Any, *rest: Any) -> Any:
        outputs, updates = right(body, inputs, *rest)
        return outputs + 1 if isinstance(outputs, torch.Tensor) else outputs, updates

    monkeypatch.setattr(module, "replay", wrong)
    assert kinds(named("sin"), way) == {Kind.RESULT}


@pytest.mark.parametrize("what", ["strides", "requires_grad", "dtype"])
def test_wrong_metadata_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Expander.expand

    def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = right(self, *args, **kwargs)
        out = found.outputs
        values = {
            "strides": tuple(n + 1 for n in out.strides),
            "requires_grad": not out.requires_grad,
            "dtype": type(out.dtype)("int8", 8, "int"),
        }
        object.__setattr__(found, "outputs", out.replace(**{what: values[what]}))
        return found

    monkeypatch.setattr(Expander, "expand", wrong)
    assert kinds(named("t"), "expansion") == {Kind.RESULT}


def test_a_name_of_another_operation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tj_conformance.sweep import names

    monkeypatch.setattr(names, "resolve", lambda symbol: torch.cos)
    assert kinds(named("sin"), "names") == {Kind.RESULT}


def test_a_memo_that_mixes_up_calls_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tj_torch.ops.memo import memo

    monkeypatch.setattr(memo, "call_key", lambda fn, *rest: ((id(fn),), (fn,)))
    assert Kind.RESULT in {
        k for _, r in run_sweep(named("sum"), ways=["jit dynamic", "memo"]) for k in r.kinds
    }


def test_executors_that_are_installed_take_part() -> None:
    found = {name for name, _ in run_sweep(named("nn.functional.silu"), ways=["executor"])}
    assert found == {f"executor {name}" for name in ways.executors()}
