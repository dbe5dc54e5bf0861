"""The first run of claimed calls: what a kernel returns is held against what the trace says.

Calls after a claimed one rely on the metadata that the trace says it returns. A kernel that returns
something else is found when the program first runs; after that it is called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any
from weakref import ReferenceType

from tj_core.errors import PluginError
from tj_core.ir.proxy import Dim, Proxy, TensorProxy
from tj_core.ir.trace import BoundSymbol
from tj_core.ir.tree import leaves

__all__ = ["FirstRun", "Observe", "differences", "rebind"]

Observe = Callable[[Any], Proxy | None]
"""The metadata of a value at run time; None for a value that nobody knows."""


class FirstRun:
    """Stands for the implementation of ``call`` until that has run once, under ``name``.

    ``program`` is the function in whose globals it stands; a weak reference, so that the two are
    no cycle.
    """

    __slots__ = ("call", "implementation", "name", "observe", "program")

    def __init__(
        self, implementation: Callable[..., Any], call: BoundSymbol, observe: Observe, name: str
    ) -> None:
        self.implementation = implementation
        self.call = call
        self.observe = observe
        self.name = name
        self.program: ReferenceType[Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the implementation, and compare.

        :raises PluginError: if it returns something else than the trace says.
        """
        result = self.implementation(*args, **kwargs)
        for problem in differences(self.call, result, self.observe):
            raise PluginError(
                f"executor {self.call.executor!r} ran {self.call.symbol.path} for "
                f"{self.call.label!r}, and {problem}",
                source=self.call.source,
                hint="leave the executor out with tj.jit(..., executors=[...])",
            )
        rebind(self.program, self.name, self.implementation)
        return result


def rebind(program: ReferenceType[Any] | None, name: str, function: Callable[..., Any]) -> None:
    """Let ``program``, if it lives, call ``function`` under ``name``."""
    found = program() if program is not None else None
    if found is not None:
        found.__globals__[name] = function


def differences(call: BoundSymbol, result: Any, observe: Observe) -> Iterator[str]:
    """In what ``result`` is not what ``call`` says it returns."""
    if isinstance(call.outputs, tuple | list):
        if not isinstance(result, tuple | list) or len(result) != len(call.outputs):
            yield f"it returned {_count(result)}, not {len(call.outputs)} values"
            return
        said, got = list(leaves(call.outputs)), list(leaves(result))
    else:
        said, got = [call.outputs], [result]
    for index, (p, value) in enumerate(zip_longest(said, got)):
        if isinstance(p, TensorProxy) and p.subclass is None:
            for problem in _differs(p, observe(value), value):
                yield f"result {index} {problem}"


def _count(result: Any) -> str:
    if isinstance(result, tuple | list):
        return f"{len(result)} values"
    return f"one value, a {type(result).__name__}"


def _differs(p: TensorProxy, found: Proxy | None, value: Any) -> Iterator[str]:
    if found is None:
        return
    if not isinstance(found, TensorProxy) or found.subclass is not None:
        yield f"is a {type(value).__name__}, not a plain tensor"
        return
    for what in ("dtype", "device", "layout"):
        if getattr(p, what) != getattr(found, what):
            yield f"has {what} {getattr(found, what)}, not {getattr(p, what)}"
    if not _same(p.shape, found.shape):
        yield f"has shape {_shown(found.shape)}, not {_shown(p.shape)}"
    elif not _same(_strides(p, found), _strides(found, found)):
        yield f"has strides {_shown(found.strides)}, not {_shown(p.strides)}"


def _same(said: tuple[Dim, ...], found: tuple[Dim, ...]) -> bool:
    """Whether sizes agree; what is a symbol in the trace is any number here."""
    pairs = zip_longest(said, found)
    return all(a == b or not isinstance(a, int | None) for a, b in pairs)


def _strides(p: TensorProxy, found: TensorProxy) -> tuple[Dim, ...]:
    """The strides that lead somewhere: not those of empty tensors or sizes of one."""
    if 0 in found.shape:
        return ()
    return tuple(s for s, size in zip(p.strides, found.shape, strict=False) if size != 1)


def _shown(dims: tuple[Dim, ...]) -> str:
    return f"({', '.join(map(str, dims))})"
