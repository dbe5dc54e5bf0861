"""Find out what a user's Python backward depends on beside its arguments.

The backward is captured together with the forward, or when the gradient of a custom operator is
derived, with gradients off. That is exact for a backward that depends on its arguments alone. One
that reads other state (the grad mode, a list that the program appends to) would see the state at
capture. Its bytecode shows whether it reads any.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import function as autograd_function

from tj_torch.torch_private.runtime import set_gradients

__all__ = ["Asked", "Read", "asked", "changing"]

_ONCE = (autograd_function.__file__, "wrapper")  # the wrapper of once_differentiable
_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_FIXED = (type, types.ModuleType, enum.Enum, torch.layout, torch.memory_format, type(...))
_LIMIT = 64
"""Most functions that are searched from one backward."""

_OFF = (torch.no_grad, torch.is_grad_enabled)  # without effect where gradients are off
_ASKS: Mapping[Any, str] = {
    torch.no_grad: "it switches gradients",
    torch.enable_grad: "it switches gradients",
    torch.set_grad_enabled: "it switches gradients",
    torch.inference_mode: "it switches gradients",
    set_gradients: "it switches gradients",
    torch.is_grad_enabled: "it asks whether gradients are on",
    torch.is_inference_mode_enabled: "it asks whether gradients are on",
    torch.is_autocast_enabled: "it asks for the mode that it runs in",
    torch.get_autocast_dtype: "it asks for the mode that it runs in",
    torch.get_default_dtype: "it asks for the default type",
    torch.autograd.grad: "it takes gradients itself",
    torch.autograd.backward: "it takes gradients itself",
}


@dataclass(frozen=True, slots=True)
class Read:
    """Constant of the program that a backward reads each time it runs.

    ``value`` is the value at capture, ``current`` a function that reads the value now.
    """

    name: str
    value: Any
    current: Callable[[], Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Asked:
    """Dependences of a backward: ``reason`` tells why capture is not exact, None if it is.

    ``reads`` are constants; ``once``: the backward must not be differentiated.
    """

    reason: str | None = None
    reads: tuple[Read, ...] = ()
    once: bool = False

    def __deepcopy__(self, memo: object) -> Asked:
        return self  # copies of a graph share it


def is_once(backward: Callable[..., Any]) -> bool:
    """Test for a backward marked with `torch.autograd.function.once_differentiable`."""
    f: Any = backward
    while f is not None:
        code = getattr(f, "__code__", None)
        if code is not None and (code.co_filename, code.co_name) == _ONCE:
            return True
        f = getattr(f, "__wrapped__", None)
    return False


def asked(backward: Callable[..., Any]) -> Asked:
    """Dependences of ``backward`` beside its arguments, as its code shows them."""
    once = is_once(backward)
    search = _Search(_package(backward.__module__), _OFF if once else ())
    search.function(backward)
    return Asked(search.reason, tuple(search.reads.values()), once)


def changing(nodes: Iterable[Any]) -> str | None:
    """Reason why user code in one of these autograd ``nodes`` depends on state.

    None if it depends on its arguments alone.
    """
    for node in nodes:
        for f in _written(getattr(type(node), "_forward_cls", None)):
            search = _Search(_package(f.__module__), _OFF)
            search.function(f)
            if search.reason or search.reads:
                return search.reason or f"it reads {next(iter(search.reads))}"
    return None


def _written(kind: Any) -> Iterator[Callable[..., Any]]:
    """User functions in the Function ``kind``, which PyTorch makes of a custom operator."""
    for name in ("backward", "setup_context"):
        f = inspect.unwrap(getattr(kind, name, None) or _nothing)
        if _package(f.__module__) not in ("torch", "tj_torch", "tj_autograd"):
            yield f
        for cell in getattr(f, "__closure__", None) or ():
            info = _content(cell)
            parts = (getattr(info, n, None) for n in ("_backward_fn", "_setup_context_fn"))
            yield from (part for part in parts if isinstance(part, types.FunctionType))


def _nothing() -> None:
    """Stand-in for a method that a Function lacks."""


@dataclass
class _Search:
    """Search through the code of functions, and of functions that they call.

    ``package`` is that of the first function; helpers of other packages are assumed to compute
    only. ``ignored`` are queries whose answer is known.
    """

    package: str
    ignored: tuple[Any, ...] = ()
    reason: str | None = None
    reads: dict[str, Read] = field(default_factory=dict)
    seen: set[types.CodeType] = field(default_factory=set)

    def function(self, f: Any) -> None:
        """Search ``f``, and the functions that it wraps."""
        while f is not None:
            plain = getattr(f, "__func__", f)
            if isinstance(plain, types.FunctionType) and self.is_written_here(plain):
                cells = dict(zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True))
                self.code(plain.__code__, plain.__globals__, cells)
            f = getattr(f, "__wrapped__", None)

    def is_written_here(self, f: types.FunctionType) -> bool:
        package = _package(f.__globals__.get("__name__"))
        # In `site-packages` or `dist-packages`: helpers of other projects, assumed to compute only.
        installed = "-packages" in f.__code__.co_filename
        return not _is_library(package) and (package == self.package or not installed)

    def code(
        self, code: types.CodeType, names: dict[str, Any], cells: Mapping[str, types.CellType]
    ) -> None:
        # Functions may call each other, and a helper may lead into a whole framework.
        if code in self.seen or len(self.seen) >= _LIMIT:
            return
        self.seen.add(code)
        instructions = list(dis.get_instructions(code))
        for i, instruction in enumerate(instructions):
            operation, name = instruction.opname, str(instruction.argval)
            if name in cells and operation.endswith("_DEREF"):
                get: Callable[[], Any] = functools.partial(_content, cells[name])
            elif operation.endswith("_GLOBAL"):
                get = functools.partial(_global, names, name)
            else:
                continue
            if operation.startswith("LOAD"):
                self.variable(name, get, _attributes(instructions[i + 1 :]))
            else:
                self.stop(f"it sets {name}")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self.code(constant, names, cells)

    def variable(self, name: str, get: Callable[[], Any], path: Iterator[str]) -> None:
        """Search the value of ``name``, followed by the attributes ``path``."""
        value, library = get(), False
        for attribute in path:
            if not isinstance(value, types.ModuleType | type):
                break
            library = library or _is_library(_package(_module(value)))
            get = functools.partial(_attribute, get, attribute)
            name, value = f"{name}.{attribute}", get()
        if (why := _reason(value)) and value not in self.ignored:
            self.stop(why)
        elif _is_plain(value) or isinstance(value, torch.Tensor):
            # Attributes of PyTorch's modules do not change, settings in `torch.backends` aside.
            if not library or "backends" in name:
                self.constant(name, value, get)
        else:
            self.object(name, value)

    def constant(self, name: str, value: Any, get: Callable[[], Any]) -> None:
        """Record a read, checked at run time; only names in capitals count as constants."""
        self.reads[name] = Read(name, value, get)
        # A name in capitals is a constant by convention; it is compared when the backward runs.
        if not name.rpartition(".")[2].isupper():
            self.changes(name)

    def object(self, name: str, value: Any) -> None:
        if isinstance(value, functools.partial):
            self.object(name, value.func)
            if not all(map(_is_plain, (*value.args, *value.keywords.values()))):
                self.changes(name)
        elif isinstance(value, types.FunctionType | types.MethodType) or hasattr(
            value, "__wrapped__"
        ):
            self.function(value)
        elif not isinstance(value, _FIXED) and not _is_librarys(value):
            self.changes(name)

    def changes(self, name: str) -> None:
        self.stop(f"it reads {name}, which may have changed by then")

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason


def _attributes(instructions: list[dis.Instruction]) -> Iterator[str]:
    """Attributes that the next instructions read from the loaded value."""
    for instruction in instructions:
        if instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            return
        yield str(instruction.argval)


def _global(names: dict[str, Any], name: str) -> Any:
    return names.get(name, getattr(builtins, name, None))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _attribute(get: Callable[[], Any], name: str) -> Any:
    return getattr(get(), name, None)


def _reason(value: Any) -> str | None:
    try:
        return _ASKS.get(value)
    except TypeError:  # not hashable
        return None


def _is_plain(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _module(value: Any) -> str:
    return str(value.__name__ if isinstance(value, types.ModuleType) else value.__module__)


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _is_library(package: str) -> bool:
    return package == "torch" or package in sys.stdlib_module_names - {"__main__"}


def _is_librarys(value: Any) -> bool:
    """Test for a stateless callable of PyTorch or Python, such as an operator."""
    state = isinstance(value, torch.nn.Module | torch.Tensor)
    return callable(value) and not state and _is_library(_package(type(value).__module__))
