"""PyTorch's databases of operations and modules as families of programs."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tj_conformance.databases import known
from tj_conformance.databases.module_db import modules, run_module
from tj_conformance.databases.op_db import full_name, operations
from tj_conformance.executor.running import continued
from tj_conformance.installed.subject import Jit, Subject
from tj_conformance.oracle.result import Kind
from tj_conformance.sweep.exact import wrong
from tj_conformance.sweep.sample import samples

if TYPE_CHECKING:
    from tj_conformance.databases.known import Known

__all__ = ["module_db", "op_db"]


class _Continued:
    """An operation of ``op_db`` whose results are used: one call alone makes no region."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def op(self, *args: Any, **kwargs: Any) -> Any:
        """The operation's results, and other values that are computed from them."""
        return continued(self._entry.op(*args, **kwargs))


def op_db(dtype: torch.dtype = torch.float32, count: int | None = 2) -> Iterator[Subject]:
    """Each operation with its first ``count`` samples (None: all), of which half need gradients."""
    name = str(dtype).removeprefix("torch.")
    for entry in operations(dtype):
        run = functools.partial(_operation, _Continued(entry), dtype, count)
        breaks = _breaks(known.OPERATIONS, full_name(entry), (name, "dynamic"))
        yield Subject(f"op_db {name}", full_name(entry), run, breaks)


def _breaks(table: Iterable[Known], name: str, cases: Iterable[str]) -> bool:
    return any(
        k.kind is Kind.BREAK and name in k.entries and (not k.cases or {*k.cases} & {*cases})
        for k in table
    )


def _operation(op: Any, dtype: torch.dtype, count: int | None, jit: Jit) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jitted = jit(lambda *args, **kwargs: op.op(*args, **kwargs))
        for sample in samples(op, dtype, count):
            if sample.eager is None:
                continue
            try:
                found = wrong(op, jitted, sample, sample.eager)
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            yield from (f"{sample.where}: {what}" for what in found)


def module_db(count: int = 2) -> Iterator[Subject]:
    """Each module, in training and not."""
    for info in modules():
        for case, training in (("train", True), ("eval", False)):
            run = functools.partial(_module, info, training, count)
            breaks = _breaks(known.MODULES, info.name, (case,))
            yield Subject("module_db", f"{info.name}, {case}", run, breaks)


def _module(info: Any, training: bool, count: int, jit: Jit) -> Iterator[str]:
    result = run_module(info, training=training, count=count, jit=jit)
    yield from (str(p) for p in result.problems if p.kind is not Kind.BREAK)
