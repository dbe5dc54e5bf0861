"""Find the dotted name of a function, and the function of a dotted name."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tj_torch.torch_private.eager import NAMES
from tj_torch.torch_private.runtime import TENSOR_BASE

__all__ = ["FUNCTIONS", "function_at", "leads_to", "own_path", "public_names", "walk"]

# Namespaces of PyTorch's public functions. Of several names, the lowest rank (public, classes,
# hidden) is preferred, then fewer dots, then fewer letters.
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
# Source of ``torch``'s own functions; a Python function of the same name hides some of them.
_HIDDEN = (NAMES["_VariableFunctions"].path,)

FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
"""Types of PyTorch's functions and methods."""


def walk(path: str) -> Any:
    """Object at the dotted ``path``; modules on the way are imported where needed.

    :raises LookupError: if there is none.
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
        # First the attribute, which a lazy module (`__getattr__`) may have; then a submodule.
        found = getattr(value, name, None)
        return importlib.import_module(path) if found is None else found
    return getattr(value, name)


def function_at(path: str) -> Callable[..., Any] | None:
    """Function at the dotted ``path``; None if this PyTorch or the package lacks it."""
    try:
        found = walk(path)
    except LookupError:
        return None
    return found if callable(found) else None


def own_path(function: Any) -> str | None:
    """Dotted name by ``function``'s own attributes, if the function is found there; else None."""
    for path in _claims(function):
        if leads_to(path, function):
            return path
    return None


def _claims(function: Any) -> Iterator[str]:
    """Candidates for the dotted name, from the attributes of each kind of function."""
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


def leads_to(path: str, function: Any) -> bool:
    """Test if ``path`` leads to ``function`` through modules that are already loaded."""
    # `<locals>` and `<lambda>` are in no module.
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


@functools.cache
def public_names() -> Mapping[Callable[..., Any], str]:
    """Preferred public name of each function of PyTorch.

    Made once per process, since it is of PyTorch and of no session; its size is that of PyTorch. A
    function may be replaced later: `leads_to` says if a name is still right. The 2,650 names are
    looked at in one loop without calls of Python functions, in the first call of a program.
    """
    found: dict[Callable[..., Any], tuple[tuple[int, int, int, str], str]] = {}
    for rank, homes in enumerate((_PUBLIC, _CLASSES, _HIDDEN)):
        for home in homes:
            owner, length = walk(home), len(home) + 1
            dots = home.count(".") + 1  # names of attributes have none
            for name in dir(owner) if rank else vars(owner):
                if not rank and name.startswith("_"):
                    continue
                value = getattr(owner, name, None)
                if not isinstance(value, FUNCTIONS):
                    continue
                # PyTorch's own functions, not those that it imports.
                module = getattr(getattr(value, "__objclass__", value), "__module__", None)
                if module != "torch" and not (module and module.startswith("torch.")):
                    continue
                path = f"{home}.{name}"
                entry = ((rank, dots, length + len(name), path), path)
                if value not in found or entry < found[value]:
                    found[value] = entry
    return {function: path for function, (_, path) in found.items()}
