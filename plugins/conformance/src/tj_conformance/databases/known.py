"""Known differences of jitted programs from eager, by entry of PyTorch's databases, with reasons.

The tests compare with these tables in both directions: an unlisted difference fails, and so does an
entry that no longer differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tj_conformance.oracle.result import Kind, Result

__all__ = [
    "DECLARED_FRESH",
    "DTYPES",
    "ELSEWHERE_INVALID",
    "ERRORS",
    "EXPANSIONS",
    "GRAPHS",
    "IDLE_STRIDES",
    "IN_PLACE",
    "LAPACK",
    "MODULES",
    "OPERATIONS",
    "SYMBOLS",
    "UNDEFINED",
    "UNREMEMBERED",
    "Known",
    "disagreements",
    "table",
]

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "bool", "complex64")
"""Data types that operations are run in."""


@dataclass(frozen=True, slots=True)
class Known:
    """Entries with one kind of difference and one reason.

    ``cases`` are the differing ones of the entry's test, all if empty: for operations names of data
    types, ``"dynamic"`` (through one callable, with sizes that vary) or ``"dynamic complex64"``;
    for modules ``"eval"`` and ``"train"``. With ``sometimes`` the difference need not occur in
    every run.
    """

    kind: Kind
    reason: str
    entries: tuple[str, ...]
    cases: tuple[str, ...] = ()
    sometimes: bool = False


_WARNS = "the implementation warns in a way that Dynamo does not capture"

LAPACK = Known(
    Kind.ROUNDING,
    "LAPACK's last bits depend on where the operands lie in memory, in eager too",
    ("linalg.lstsq", "linalg.lstsq.grad_oriented"),
    sometimes=True,
)

OPERATIONS = (
    LAPACK,
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
        ("complex64", "dynamic complex64"),
    ),
    Known(Kind.BREAK, "Dynamo does not capture resizing", ("resize_", "resize_as_")),
    Known(
        Kind.BREAK,
        _WARNS,
        (
            "nn.functional.linear_cross_entropy.chunked",
            "nn.functional.linear_cross_entropy.chunked_none",
        ),
    ),
)
"""Differences in op_db, forward."""

ERRORS: tuple[Known, ...] = ()
"""Differences in op_db's calls that must raise; cases ``"whole"`` and ``"after a break"``."""

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
)
"""Differences in module_db, with gradients, and buffers in training."""

_VALUE = "Python code inside decides on data"
_SHAPE = "the output's shape depends on data"
_SPARSE = "an input is not strided"

EXPANSIONS = (
    Known(
        Kind.BREAK,
        "fake tensors have no symbols for complex numbers",
        ("item",),
        ("complex64",),
    ),
    Known(
        Kind.RESULT,
        "the body computes the singular values with the vectors, which rounds otherwise",
        ("linalg.cond", "linalg.matrix_norm", "linalg.norm", "linalg.svdvals", "norm.nuc"),
        sometimes=True,
    ),
    Known(
        Kind.BREAK,
        _VALUE,
        (
            "allclose",
            "corrcoef",
            "cov",
            "equal",
            "istft",
            "nn.functional.gaussian_nll_loss",
            "nn.functional.one_hot",
        ),
    ),
    Known(
        Kind.BREAK,
        "sizes or indices are tensors",
        ("narrow", "tensor_split"),
    ),
    Known(
        Kind.BREAK,
        _SHAPE,
        ("linalg.lstsq", "linalg.lstsq.grad_oriented", "nn.functional.ctc_loss"),
    ),
    Known(Kind.BREAK, _SPARSE, ("sparse.mm.reduce", "sparse.sampled_addmm")),
)
"""Calls in op_db that are not expanded."""

IN_PLACE = (
    Known(
        Kind.BREAK,
        "functionalization has no kernel for it",
        tuple(f"polygamma.polygamma_n_{n}" for n in range(5)),
        sometimes=True,  # those of integers have no in-place variant
    ),
)
"""In-place variants in op_db that are not expanded."""

SYMBOLS = (
    *(k for k in EXPANSIONS if k.reason != "sizes or indices are tensors"),
    Known(
        Kind.BREAK,
        "no kernel for fake tensors; with static sizes PyTorch runs the real one on zeros",
        ("geqrf", "histogram", "histogramdd", "to_sparse"),
    ),
    Known(Kind.BREAK, "it looks at a storage offset or at data", ("narrow", "tensor_split")),
    Known(
        Kind.BREAK,
        "functionalization cannot give a tensor a symbolic size in place",
        ("resize_", "resize_as_"),
    ),
)
"""Calls in op_db that are not expanded with symbolic sizes."""

GRAPHS = (
    LAPACK,
    Known(Kind.BREAK, "it replaces a tensor's storage", ("resize_", "resize_as_"), sometimes=True),
    Known(
        Kind.BREAK,
        "metadata depend on data, or a tensor is sparse",
        (
            "allclose",
            "corrcoef",
            "cov",
            "equal",
            "linalg.lstsq",
            "linalg.lstsq.grad_oriented",
            "nn.functional.ctc_loss",
            "nn.functional.gaussian_nll_loss",
            "sparse.mm.reduce",
            "sparse.sampled_addmm",
            "tensor_split",
        ),
        sometimes=True,  # as one of the two kinds of graph
    ),
    Known(
        Kind.BREAK,
        _WARNS,
        (
            "nn.functional.linear_cross_entropy.chunked",
            "nn.functional.linear_cross_entropy.chunked_none",
        ),
        sometimes=True,
    ),
)
"""Calls in op_db that run in eager as FX graphs."""

ELSEWHERE_INVALID = {"nn.functional.embedding_bag": "offsets repeated are out of order"}
"""Operators whose samples are invalid when resized by repeating elements."""

UNREMEMBERED = frozenset({"lu", "unique", "unique_consecutive"})
"""Operators whose expansions are not remembered: PyTorch implements them in closures."""

IDLE_STRIDES = frozenset({"einsum", "nn.functional.rms_norm"})
"""Operators whose expansions differ in strides of dimensions with at most one element."""

DECLARED_FRESH = frozenset({"unsafe_chunk", "unsafe_split"})
"""Operators whose outputs PyTorch declares not to be views, although they are."""

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
"""Operations that return uninitialized memory: all but their values is compared."""


def disagreements(
    result: Result, known: Iterable[Known], case: str, *, complete: bool
) -> Iterator[str]:
    """Disagreements between ``result`` and the table ``known``, for an entry in ``case``.

    Only a ``complete`` result, one of all samples, can disprove a listed difference.
    """
    cases = {case, case.partition(" ")[0]}
    listed = [k for k in known if result.name in k.entries and cases & set(k.cases or cases)]
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
