"""Exceptions of C++ kernels: out of parallel loops, and with eager's type and message.

An index out of bounds throws. OpenMP terminates the process when an exception leaves a parallel
loop, and Inductor's kernels do not catch. Here each iteration of such a loop catches, and the
kernel rethrows the first exception after all its loops. It says nothing of the operation, so that
the region's operations run once more, and raise what they raise in eager.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tj_core.extend import Boxed, FusionRegion, interpreter

from tj_inductor.texts import ENTRY

__all__ = ["raising_as_eager", "thrown_again"]

THROWS = "TORCH_CHECK("
"""Text by which kernels throw where they find an error."""

DIVIDES = re.compile(r"\b(?:(?:floor_divide|remainder)_integral|mod)\(")
"""Calls of functions of Inductor's that note a division of an integer by zero.

From 2.13 on, the kernel throws after its loops.
"""

PARALLEL = re.compile(r"^[ \t]*#[ \t]*pragma omp (?:parallel for|for|single)\b(.*)$", re.MULTILINE)
"""Pragma before a loop whose iterations threads share, or a block that one of them runs."""

BRACE = re.compile("[{}]")

COLLAPSED = re.compile(r"\bcollapse\((\d+)\)")

FIRST_ERROR = """#include <exception>
#include <mutex>
struct FirstError {
    std::exception_ptr error;
    std::mutex mutex;
    void keep() {
        std::lock_guard<std::mutex> locked(mutex);
        if (!error) error = std::current_exception();
    }
    void throw_again() {
        if (error) std::rethrow_exception(error);
    }
};
"""


def raising_as_eager(region: FusionRegion, function: Boxed, source: str) -> Boxed:
    """``function``, compiled for ``region`` to ``source``, with eager's errors for refused values.

    Its inputs live until it returns, if the source throws, or is empty, as nothing is known yet.
    """
    if source and THROWS not in source and DIVIDES.search(source) is None:
        return function
    one_by_one = interpreter(region)

    def run(box: list[Any]) -> Sequence[Any]:
        inputs = list(box)
        try:
            return function(box)
        except RuntimeError as raised:
            error = raised
        try:
            one_by_one(*inputs)
            raise error  # the operations refuse nothing
        finally:
            del error  # its traceback holds this frame

    return run


def thrown_again(source: str) -> str:
    """Edit the kernel ``source``, to throw to its caller the errors of its parallel loops."""
    entry = ENTRY.search(source)
    if entry is None or THROWS not in source or "#pragma omp parallel" not in source:
        return source
    opened = source.index("{", entry.end())
    closed = _closing(source, opened)
    inserted = [
        (entry.start(), FIRST_ERROR),
        (opened + 1, "\nFirstError first_error;\n"),
        (closed, "first_error.throw_again();\n"),
    ]
    for start, end in _shared(source, opened, closed):
        if THROWS in source[start:end]:
            inserted.append((start + 1, " try {"))
            inserted.append((end, "} catch (...) { first_error.keep(); } "))
    return _with(source, inserted)


def _shared(source: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of the braces around the bodies of parallel loops and single blocks."""
    for found in PARALLEL.finditer(source, low, high):
        collapsed = COLLAPSED.search(found[1])
        opened = found.end()
        for _ in range(int(collapsed[1]) if collapsed else 1):
            # `collapse(2)` shares the iterations of two nested loops: the body is that of the inner
            # one.
            opened = source.index("{", opened + 1)
        yield opened, _closing(source, opened)


def _closing(source: str, opened: int) -> int:
    """Position of the brace that closes the one at ``opened``.

    Kernels have no braces in strings.
    """
    depth = 0
    for found in BRACE.finditer(source, opened):
        depth += 1 if found[0] == "{" else -1
        if not depth:
            return found.start()
    raise ValueError("a kernel has an open brace")


def _with(source: str, inserted: list[tuple[int, str]]) -> str:
    """Insert texts into ``source`` at their positions."""
    parts, last = [], 0
    for place, text in sorted(inserted):
        parts += [source[last:place], text]
        last = place
    return "".join([*parts, source[last:]])
