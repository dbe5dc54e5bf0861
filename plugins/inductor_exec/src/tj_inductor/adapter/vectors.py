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

__all__ = ["Vectors", "try_few"]


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


@functools.cache
def try_few() -> None:
    """Let Inductor try kinds of vectors one after the other, until it has what it asks for.

    What it finds is the same, for torch.compile, too.
    """
    # Elsewhere there is one kind, or none.
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform not in ("linux", "win32"):
        return
    if is_lost(VECTORS):
        return
    from tj_inductor.adapter.names import cpu_vec_isa

    @functools.cache
    def valid_vec_isa_list() -> Any:
        has = cpu_vec_isa.x86_isa_checker()
        kinds = cpu_vec_isa.supported_vec_isa_list
        return Vectors([kind for kind in kinds if all(flag in has for flag in str(kind).split())])

    cpu_vec_isa.valid_vec_isa_list = valid_vec_isa_list
