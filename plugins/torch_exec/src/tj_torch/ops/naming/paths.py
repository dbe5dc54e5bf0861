"""From a function to the dotted name it is known by, and back."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from tj_torch.torch_private.runtime import TENSOR_BASE

__all__ = ["FUNCTIONS", "own_path", "public_names", "walk"]

# Where PyTorch shows its functions to users. Names are the preferred spelling in this order of
# ranks, then by their number of dots and letters.
_PUBLIC = (
    "torch",
    "torch.linalg",
    "torch.fft",
    "torch.special",
    "torch.nn.functional",
    "torch.signal.windows",
    "torch.sparse",
    "torch.nested",
)
_CLASSES = ("torch.Tensor",)
# What ``torch`` itself was filled from; some of it lies under a Python function of the same name.
_HIDDEN = ("torch._C._VariableFunctions",)

FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
"""The kinds of objects that PyTorch's functions and methods are."""


def walk(path: str) -> Any:
    """What ``path`` evaluates to; modules on the way are imported where need be.

    :raises LookupError: if that is nothing.
    """
    first, *rest = path.split(".")
    try:
        value: Any = importlib.import_module(first)
        done = first
        for part in rest:
            done = f"{done}.{part}"
            value = _attribute(value, part, done)
    except (AttributeError, ImportError, RuntimeError) as error:
        raise LookupError(path) from error
    return value


def _attribute(value: Any, name: str, path: str) -> Any:
    if isinstance(value, types.ModuleType) and name not in vars(value):
        found = getattr(value, name, None)
        return importlib.import_module(path) if found is None else found
    return getattr(value, name)


def own_path(function: Any) -> str | None:
    """The dotted name under which ``function`` says it can be found, if it is found there."""
    for path in _claims(function):
        if _loaded(path, function):
            return path
    return None


def _claims(function: Any) -> Iterator[str]:
    """The names by which a function of each kind may call itself."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, types.GetSetDescriptorType):  # ``torch.Tensor.T.__get__``
        for path in _claims(owner):
            yield f"{path}.{function.__name__}"
        return
    if isinstance(owner, type):  # a class method
        yield f"{owner.__module__}.{owner.__qualname__}.{getattr(function, '__name__', '')}"
    home = getattr(function, "__objclass__", None)
    if home is not None:
        if home is TENSOR_BASE:
            yield f"torch.Tensor.{function.__name__}"
        yield f"{home.__module__}.{home.__qualname__}.{function.__name__}"
    module = getattr(function, "__module__", None)
    for name in ("__qualname__", "__name__"):
        if module and isinstance(text := getattr(function, name, None), str):
            yield f"{module}.{text}"


def _loaded(path: str, function: Any) -> bool:
    """Whether ``path`` leads to ``function`` through modules that are loaded already."""
    if "<" in path:
        return False
    parts = path.split(".")
    cut = next((n for n in range(len(parts) - 1, 0, -1) if ".".join(parts[:n]) in sys.modules), 0)
    found: Any = sys.modules.get(".".join(parts[:cut]))
    if found is None or not all(map(str.isidentifier, parts)):
        return False
    for part in parts[cut:]:
        found = getattr(found, part, None)
    # Bound methods and descriptors' wrappers are made anew at each access.
    fresh = isinstance(function, types.MethodType | types.MethodWrapperType)
    return found is function or (fresh and type(found) is type(function) and found == function)


def public_names() -> dict[Callable[..., Any], str]:
    """The name to print for each function that PyTorch shows under more names than its own."""
    found: dict[Callable[..., Any], tuple[tuple[int, int, int, str], str]] = {}
    for rank, homes in enumerate((_PUBLIC, _CLASSES, _HIDDEN)):
        for home in homes:
            for name, function in _members(home, hidden=rank > 0):
                path = f"{home}.{name}"
                entry = ((rank, path.count("."), len(path), path), path)
                if function not in found or entry < found[function]:
                    found[function] = entry
    return {function: path for function, (_, path) in found.items()}


def _members(home: str, hidden: bool) -> Iterator[tuple[str, Callable[..., Any]]]:
    owner = walk(home)
    for name in dir(owner) if hidden else vars(owner):
        if hidden or not name.startswith("_"):
            value = getattr(owner, name, None)
            if isinstance(value, FUNCTIONS) and _is_torch(value):
                yield name, value


def _is_torch(function: Any) -> bool:
    """Whether PyTorch made it, and did not merely import it."""
    home = getattr(function, "__objclass__", function)
    module = getattr(home, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] == "torch"
