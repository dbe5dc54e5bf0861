"""Features of the executor that rest on names of Inductor, and on what Inductor does.

Each has a probe in `tj_inductor.probes`. What is lost costs what `FEATURES` says, with one warning:
calls that need it stand in no region, and a region that has such a call is declined.
"""

from __future__ import annotations

from collections.abc import Iterable

from tj_torch.extend import Feature, Table, later, say_lost

from tj_inductor.adapter.names import (
    COPIES,
    DRAWS,
    EQUAL,
    FAST,
    FINISHED,
    FORMULAS,
    FOUND_AGAIN,
    IMAGES,
    IN_PLACE,
    KERNELS,
    LINKED,
    LOW,
    NAMES,
    ONE_FILE,
    ONEDNN,
    PLACES,
    PRIORITY,
    READERS,
    READS,
    REGIONS,
    ROWS,
    STRIDES,
    SYMBOLS,
    VECTORS,
    VERSIONS,
)
from tj_inductor.formulas import NEEDED

__all__ = ["FEATURES", "TABLE", "LostError", "is_lost", "need", "ready"]


def _feature(name: str, does: str, without: str, probe: str, essential: bool = False) -> Feature:
    return Feature(name, does, without, essential, later("tj_inductor.probes", probe))


FEATURES = (
    _feature(
        REGIONS,
        "calls that stand together are compiled by Inductor",
        "nothing is fused by Inductor",
        "regions",
        essential=True,
    ),
    _feature(
        STRIDES,
        "results have the strides that the program declares",
        "regions whose strides are asked for run one by one",
        "strides",
    ),
    _feature(
        FORMULAS,
        "divisions, truths of bytes and negative indices are eager's",
        "operators with such a formula stand in no region",
        "formulas",
    ),
    _feature(
        KERNELS,
        "an index out of bounds raises, where it would end the process",
        "operators that read indices stand in no region",
        "errors",
    ),
    _feature(
        ONE_FILE,
        "kernels of a program are compiled as one file",
        "each kernel is compiled alone, in more time",
        "one_file",
    ),
    _feature(
        FAST,
        "tanh, exp, bools, integers and batch norms take a fraction of the time",
        "they take the time that PyTorch's take",
        "elementary",
    ),
    _feature(
        FOUND_AGAIN,
        "a kernel that was built is found without asking the compiler",
        "each process asks the compiler, in more time",
        "found_again",
    ),
    _feature(
        VECTORS,
        "the first kind of vectors that works is taken",
        "all kinds of vectors are tried, in more time",
        "vectors",
    ),
    _feature(
        LINKED,
        "kernels are linked to libraries without functions",
        "the linker reads the names of all of PyTorch's functions, in more time",
        "linked",
    ),
    _feature(
        FINISHED,
        "another process makes a region of its text",
        "each process compiles its regions",
        "finished",
    ),
    _feature(
        VERSIONS,
        "the version of a new result is 0, as in eager",
        "products and convolutions stand in no region",
        "versions",
    ),
    _feature(
        LOW,
        "bfloat16 and float16 are rounded between operations, as in eager",
        "calls on such tensors stand in no region",
        "low_precision",
    ),
    _feature(
        COPIES,
        "a result that is a copy is in memory of its own",
        "all results are looked at in each run",
        "copies",
    ),
    _feature(
        ONEDNN,
        "calls that tj-onednn has claimed stand in regions as they are",
        "regions with such calls run one by one",
        "calls_of_onednn",
    ),
    _feature(
        SYMBOLS,
        "regions are compiled for sizes that are symbols",
        "calls with such sizes stand in no region",
        "symbols",
    ),
    _feature(
        EQUAL,
        "operators that are equal are computed once",
        "they are computed as often as they stand there",
        "equal",
    ),
    _feature(
        IN_PLACE,
        "a region writes to the argument that the program writes",
        "the program copies what it writes",
        "in_place",
    ),
    _feature(
        READS,
        "what a region still reads, or what shares memory, is copied before it writes there",
        "regions that read what they write, or write to shared memory, run one by one",
        "reads",
    ),
    _feature(
        PLACES,
        "what is made of an arange overflows, and is rounded, as in eager",
        "aranges and cumulative sums stand in no region",
        "places",
    ),
    _feature(
        IMAGES,
        "images beside convolutions are laid out for these, and nothing else is",
        "scores of attention are laid out as images, too, in more time",
        "images",
    ),
    _feature(
        PRIORITY,
        "compilers behind calls run with a lower priority than the process",
        "calls beside compilers take longer",
        "priority",
    ),
    _feature(
        READERS,
        "values whose readers meet in one operator are not written to memory",
        "they are, which takes longer",
        "readers",
    ),
    _feature(
        ROWS,
        "rows that an index picks are read by vectors where they are summed",
        "they are read element by element, in ten times the time",
        "rows",
    ),
    _feature(
        DRAWS,
        "a dropout's numbers are drawn by vectors",
        "PyTorch draws them, one by one on processors that are not Intel's",
        "draws",
    ),
)

TABLE = Table("tj-inductor", f"{__name__}:TABLE", "tj_inductor", NAMES, FEATURES)
"""The names and features of tj-inductor."""


class LostError(Exception):
    """A region needs a feature that is lost."""


def is_lost(name: str) -> bool:
    """Tell whether the feature is known to be lost."""
    return name in TABLE.lost


def need(names: Iterable[str]) -> None:
    """Check that none of these features is lost.

    :raises LostError: if one is.
    """
    for name in names:
        if name in TABLE.lost:
            raise LostError(f"this PyTorch lacks: {name}")


def ready() -> None:
    """Import Inductor; once in a process, look for its names and warn of features that are lost."""
    if TABLE.looked:
        return
    TABLE.look_once()
    if not is_lost(REGIONS):
        from tj_inductor.adapter.names import select_decomp_table

        known = select_decomp_table()
        for operator in NEEDED:
            if operator not in known:
                TABLE.lost.setdefault(FORMULAS, f"Inductor has no formula of {operator}")
    say_lost(TABLE, TABLE.lost)
