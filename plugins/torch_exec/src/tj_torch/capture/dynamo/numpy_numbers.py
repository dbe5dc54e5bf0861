"""NumPy's numbers of constants: ``x / np.sqrt(64)``, ``np.prod(x.shape[1:])``.

Dynamo makes tensors without dimensions of them, and computes with PyTorch's kernels. Here NumPy
computes them once for all calls, and PyTorch's functions take numbers.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack
    from types import CodeType

__all__ = ["MOVES", "compute_numbers"]

MOVES = frozenset({
    *("T", "array", "asarray", "astype", "broadcast_to", "concatenate", "copy", "expand_dims"),
    *("flatten", "flip", "full", "full_like", "getitem", "hstack", "moveaxis", "ones", "ones_like"),
    *("ravel", "repeat", "reshape", "roll", "squeeze", "stack", "swapaxes", "tile", "transpose"),
    *("vstack", "zeros", "zeros_like"),
})  # fmt: skip
"""Functions, methods, operators and attributes that only move data."""

_FUNCTIONS = frozenset({
    *("amax", "amin", "average", "clip", "max", "mean", "median", "min", "prod", "ptp", "round"),
    *("std", "sum", "var"),
})  # fmt: skip
"""Functions without side effects, beside the universal ones and the types."""

_METHODS = frozenset({
    *("astype", "conj", "conjugate", "is_integer", "item", "max", "mean", "min", "prod", "round"),
    *("sum", "tolist"),
})  # fmt: skip

_ATTRIBUTES = frozenset({"T", "imag", "itemsize", "nbytes", "ndim", "real", "shape", "size"})

_OPERATORS = frozenset({
    *(value for name, value in vars(operator).items() if name.startswith("__") and callable(value)),
    *(abs, bool, complex, divmod, float, format, hash, int, max, min, pow, repr, round, str, sum),
})  # fmt: skip

_BY_TYPE = frozenset({
    *("as_tensor", "asarray", "from_numpy", "new_tensor", "scalar_tensor", "tensor"),
})  # fmt: skip
"""Functions of PyTorch's that look at the type of a number, which may be NumPy's."""


def compute_numbers(stack: ExitStack) -> None:
    """Let NumPy compute numbers from constants; break the graph where it computes with arrays."""
    from tj_torch.torch_private.dynamo import (
        BuiltinVariable,
        ConstantVariable,
        NumpyVariable,
        SourcelessBuilder,
        TensorVariable,
        TorchInGraphFunctionVariable,
        VariableBuilder,
        utils,
    )

    replace(stack, VariableBuilder, "_wrap", _wrapping)
    replace(stack, NumpyVariable, "call_function", _computing)
    recorded = (utils.numpy_to_tensor_wrapper, utils.numpy_method_wrapper)
    for kind in (*recorded, utils.numpy_operator_wrapper):
        replace(stack, kind, "__init__", _recording)
    replace(stack, ConstantVariable, "create", _creating)
    replace(stack, SourcelessBuilder, "create", _building)
    replace(stack, BuiltinVariable, "call_function", _operating)
    replace(stack, TorchInGraphFunctionVariable, "call_function", _taking)
    replace(stack, TensorVariable, "call_method", _taking_in_methods)


def _wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take a number of NumPy's that an attribute or a global is for a constant, with a guard.

    An argument, or what was another number before, stays an input of the graph: it may change in
    each call. Guards compare by ``==``, which does not tell signs of zero, and not NaN.
    """
    from tj_torch.torch_private.dynamo import ConstantVariable, GuardBuilder

    def _wrap(self: Any, value: Any) -> Any:
        if type(value) is float and _is_of_mathematics(self.source, value):
            self.install_guards(GuardBuilder.EQUALS_MATCH)
            return ConstantVariable.create(value, source=self.source)
        if not _is_number(value) or value == 0 or value != value or _may_change(self, value):
            return original(self, value)
        self.install_guards(GuardBuilder.TYPE_MATCH, GuardBuilder.EQUALS_MATCH)
        return _number_class()(value, source=self.source)

    return _wrap


_OF_MATHEMATICS = {"pi": math.pi, "e": math.e, "tau": math.tau}


def _is_of_mathematics(source: Any, value: float) -> bool:
    """Test for `numpy.pi` and the like, which are symbols to Dynamo with ``dynamic=True``."""
    from tj_torch.torch_private.dynamo import AttrSource

    return isinstance(source, AttrSource) and _OF_MATHEMATICS.get(source.member) == value


_known: weakref.WeakKeyDictionary[CodeType, dict[str, Any]] = weakref.WeakKeyDictionary()
"""Numbers that a program was captured with, by the text of their places."""


def _may_change(builder: Any, value: Any) -> bool:
    from tj_torch.torch_private.dynamo import LocalSource

    if isinstance(builder.source, LocalSource):
        return True
    root = builder.tx.output.root_tx or builder.tx
    known = _known.setdefault(root.f_code, {})
    return bool(known.setdefault(builder.get_source().name, value) != value)


def _computing(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(self.value, "__name__", "")
        if _is_computed(self.value, name):
            found = _result(self.value, args, kwargs)
            if _is_number(found):
                return _number_class()(found)
        return original(self, tx, args, kwargs)

    return call_function


def _recording(original: Callable[..., None]) -> Callable[..., None]:
    """Break the graph at a call that may have another result by PyTorch's kernels."""

    def initialise(self: Any, called: Any) -> None:
        original(self, called)
        name = self.__name__.removeprefix("wrapped_")
        if name not in MOVES:
            stop(f"NumPy's {name}, which PyTorch may compute otherwise")

    return initialise


def _creating(original: Callable[..., Any]) -> Any:
    def create(value: Any, **kwargs: Any) -> Any:
        return _number_class()(value, **kwargs) if _is_number(value) else original(value, **kwargs)

    return staticmethod(create)


def _building(original: Callable[..., Any]) -> Any:
    def create(tx: Any, value: Any) -> Any:
        return _number_class()(value) if _is_number(value) else original(tx, value)

    return staticmethod(create)


def _operating(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compute operators and builtin functions of NumPy's numbers as NumPy does."""
    from tj_torch.torch_private.dynamo import SourcelessBuilder

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        number, constants = _number_class(), (*args, *kwargs.values())
        computed = any(isinstance(v.realize(), number) for v in args) and self.fn in _OPERATORS
        if not computed or not all(v.is_python_constant() for v in constants):
            return original(self, tx, args, kwargs)
        found = _result(self.fn, args, kwargs)
        if found is None:
            stop(f"{self.fn.__name__} of a number of NumPy's warns, or raises")
        return SourcelessBuilder.create(tx, found)

    return call_function


def _taking(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.value in (torch.tensor, torch.as_tensor) and args:
            args, kwargs = _with_type(args, kwargs)
        _look(getattr(self.value, "__name__", ""), (*args, *kwargs.values()))
        return original(self, tx, args, kwargs)

    return call_function


def _with_type(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments of `torch.tensor`: for a number of NumPy's, Python's number and the data type."""
    from tj_torch.torch_private.dynamo import ConstantVariable

    first = args[0].realize()
    if not isinstance(first, _number_class()):
        return args, kwargs
    data = torch.as_tensor(first.value)
    known = {"dtype": ConstantVariable.create(data.dtype), **kwargs}
    return [ConstantVariable.create(data.item()), *args[1:]], known


def _taking_in_methods(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        _look(name, (*args, *kwargs.values()))
        return original(self, tx, name, args, kwargs)

    return call_method


def _look(name: str, variables: Iterable[Any]) -> None:
    if name in _BY_TYPE and any(map(_has_number, variables)):
        stop(f"torch.{name} of a number of NumPy's")


def _has_number(variable: Any) -> bool:
    from tj_torch.torch_private.dynamo import BaseListVariable

    variable = variable.realize()
    if isinstance(variable, BaseListVariable):
        return any(map(_has_number, variable.items))
    return isinstance(variable, _number_class())


def _is_computed(function: Any, name: str) -> bool:
    import numpy as np  # optional for PyTorch, and here since a program calls it

    if isinstance(function, type):
        return issubclass(function, np.number | np.bool_)
    named = name in _FUNCTIONS and getattr(np, name, None) is function
    return named or isinstance(function, np.ufunc)


def _result(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of ``function`` for constants; None for other arguments, or if it raises."""
    import numpy as np

    if "out" in kwargs or not all(v.is_python_constant() for v in (*args, *kwargs.values())):
        return None
    given = [v.as_python_constant() for v in args]
    named = {key: v.as_python_constant() for key, v in kwargs.items()}
    try:
        # What NumPy would warn about, it warns about in each call.
        with np.errstate(all="raise"), warnings.catch_warnings():
            warnings.simplefilter("error")
            return function(*given, **named)
    except Exception:  # of the program's: it is raised where Python runs the call
        return None


@functools.cache
def _number_class() -> Any:
    """The class of variables of NumPy's numbers, which are constants to Dynamo."""
    from tj_torch.torch_private.dynamo import ConstantVariable, SourcelessBuilder, VariableTracker

    class NumPyNumber(ConstantVariable):  # type: ignore[misc]
        def __init__(self, value: Any = None, **kwargs: Any) -> None:
            VariableTracker.__init__(self, **kwargs)
            self.value = value

        def as_proxy(self) -> Any:
            found = self.value.item()
            if isinstance(found, bool):  # PyTorch adds it to integers as a float (2.13)
                stop("a bool of NumPy's in a call of PyTorch's")
            return found

        def is_symnode_like(self) -> bool:
            return False

        def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            found = _result(getattr(self.value, name), args, kwargs) if name in _METHODS else None
            if found is None:
                stop(f"{type(self.value).__name__}.{name}()")
            return SourcelessBuilder.create(tx, found)

        def var_getattr(self, tx: Any, name: str) -> Any:
            if name in _ATTRIBUTES:
                return SourcelessBuilder.create(tx, getattr(self.value, name))
            return super().var_getattr(tx, name)

        def reconstruct(self, codegen: Any) -> None:
            codegen.append_output(codegen.create_load_const_unchecked(self.value))

    return NumPyNumber


def _is_number(value: Any) -> bool:
    # NumPy is imported where a program has one of its numbers.
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.number, numpy.bool_))
