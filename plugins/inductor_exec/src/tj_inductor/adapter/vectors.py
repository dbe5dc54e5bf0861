"""The processor's vectors: Inductor is to try no kind of them that it does not ask for.

To know if the compiler, PyTorch's headers and the processor have a kind of vectors, Inductor
builds a small library and loads it in a process of its own. It does so for all kinds before it
takes the first that works, once in each folder of built files: three of these libraries read all of
PyTorch's headers for vectors, 3 s of CPU time each.
"""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from tj_inductor.adapter.features import is_lost
from tj_inductor.adapter.names import VECTORS

__all__ = ["Vectors", "several_kinds", "try_few"]


class Vectors(Sequence[Any]):
    """The kinds among ``kinds`` that are true, which is tried when they are asked for.

    Each kind remembers its truth.
    """

    def __init__(self, kinds: Sequence[Any]) -> None:
        self.kinds = kinds

    def __iter__(self) -> Iterator[Any]:
        return (kind for kind in self.kinds if kind)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int) or index < 0:
            return [*self][index]
        for kind in islice(self, index, None):
            return kind
        raise IndexError(index)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)


def several_kinds() -> bool:
    """Tell whether processors of this kind may have several kinds of vectors for Inductor."""
    return platform.machine() in ("x86_64", "AMD64") and sys.platform in ("linux", "win32")


def try_few() -> None:
    """Let Inductor try kinds of vectors one after the other, until it has what it asks for.

    What it finds is the same, for torch.compile, too.
    """
    if is_lost(VECTORS) or not several_kinds():
        return
    from tj_inductor.adapter.names import cpu_vec_isa

    if cpu_vec_isa.valid_vec_isa_list is not _kinds:
        cpu_vec_isa.valid_vec_isa_list = _kinds


@functools.cache
def _kinds() -> Any:
    """Inductor's function of the kinds that work, which the processor has."""
    from tj_inductor.adapter.names import cpu_vec_isa

    has = cpu_vec_isa.x86_isa_checker()
    kinds = cpu_vec_isa.supported_vec_isa_list
    return Vectors([kind for kind in kinds if all(flag in has for flag in str(kind).split())])
