"""Where jitted programs differ from eager, entry by entry of PyTorch's databases, and why.

The tests compare with these tables in both directions: a difference that is not listed fails, and
so does an entry that no longer differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tj_conformance.result import Kind, Result

__all__ = [
    "DTYPES",
    "ERRORS",
    "MODULES",
    "OPERATIONS",
    "UNDEFINED",
    "Known",
    "disagreements",
    "table",
]

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "bool", "complex64")
"""The data types that operations are run in."""


@dataclass(frozen=True, slots=True)
class Known:
    """Entries that differ in one way for one reason.

    ``cases`` are those of the entry's test that do, all if empty: for operations names of data
    types, or ``"dynamic"`` (float32, through one callable, with sizes that vary); for modules
    ``"eval"`` and ``"train"``. With ``sometimes`` no run has to show the difference.
    """

    kind: Kind
    reason: str
    entries: tuple[str, ...]
    cases: tuple[str, ...] = ()
    sometimes: bool = False


OPERATIONS = (
    Known(
        Kind.ROUNDING,
        "LAPACK's last bits depend on where the operands lie in memory, in eager too",
        ("linalg.lstsq", "linalg.lstsq.grad_oriented"),
        sometimes=True,
    ),
    Known(
        Kind.BREAK,
        "a Python value depends on a tensor's data",
        (
            "allclose",
            "corrcoef",
            "cov",
            "equal",
            "nn.functional.gaussian_nll_loss",
            "nn.functional.one_hot",
        ),
    ),
    Known(
        Kind.BREAK,
        "a shape depends on a tensor's data",
        (
            "combinations",
            "linalg.lstsq",
            "linalg.lstsq.grad_oriented",
            "nn.functional.ctc_loss",
        ),
    ),
    Known(
        Kind.BREAK,
        "Dynamo does not capture sparse tensors",
        ("sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse"),
    ),
    Known(
        Kind.BREAK,
        "the operation does not run on fake tensors whose sizes are symbols",
        ("geqrf", "histogram", "histogramdd"),
        ("dynamic",),
    ),
    Known(
        Kind.BREAK,
        "Dynamo has no symbols for complex numbers",
        ("item",),
        ("complex64",),
    ),
    Known(Kind.BREAK, "Dynamo does not capture resizing", ("resize_", "resize_as_")),
    Known(
        Kind.BREAK,
        "the implementation warns in a way that Dynamo does not capture",
        (
            "nn.functional.linear_cross_entropy.chunked",
            "nn.functional.linear_cross_entropy.chunked_none",
        ),
    ),
)
"""op_db, forward."""

ERRORS: tuple[Known, ...] = ()
"""op_db, calls that must raise; cases ``"whole"`` and ``"after a break"``."""

MODULES = (
    Known(
        Kind.BREAK,
        "a Python value depends on a tensor's data (with momentum=None)",
        ("nn.BatchNorm1d", "nn.BatchNorm2d", "nn.BatchNorm3d"),
        ("train",),
    ),
    Known(
        Kind.BREAK,
        "a Python value depends on a tensor's data",
        ("nn.CTCLoss", "nn.GaussianNLLLoss"),
    ),
    Known(
        Kind.BREAK,
        "Dynamo does not capture recurrent modules",
        ("nn.GRU", "nn.LSTM", "nn.RNN"),
    ),
)
"""module_db, with gradients and buffers in training."""

UNDEFINED = frozenset(
    {
        "as_strided.partial_views",
        "as_strided_copy",
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)
"""Operations that return memory as it happens to be: all but their values is compared."""


def disagreements(
    result: Result, known: Iterable[Known], case: str, *, complete: bool
) -> Iterator[str]:
    """Where ``result`` and the table ``known`` say different things of an entry in ``case``.

    Only a ``complete`` result, one of all samples, can lack what the table lists.
    """
    listed = [k for k in known if result.name in k.entries and case in (k.cases or (case,))]
    for problem in result.problems:
        if problem.kind not in {k.kind for k in listed}:
            yield f"not in the table: {problem}"
    for k in listed if complete and result.samples else ():
        if not k.sometimes and k.kind not in result.kinds:
            yield f"no longer differs, remove it from the table: {k.kind.value}, {k.reason}"


def table(known: Iterable[Known]) -> str:
    """The entries as text, one reason after the other."""
    return "\n".join(line for k in known for line in _lines(k)) or "nothing differs"


def _lines(k: Known) -> Iterator[str]:
    yield f"{k.kind.value}{' (sometimes)' if k.sometimes else ''}: {k.reason}"
    where = f"  [{', '.join(k.cases)}]" if k.cases else ""
    for entry in k.entries:
        yield f"    {entry}{where}"
