"""Programs as FX graphs: a symbolic tracer that also records writes, and changes of grad mode.

`torch.fx.symbolic_trace` refuses ``x[0] = 1`` and makes ``x += 1`` a sum; what ``torch.no_grad``
does, it does while tracing and forgets.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import Attribute
from torch.overrides import TorchFunctionMode

__all__ = ["Untraceable", "traced"]


class Untraceable(Exception):
    """The program does something that no graph of ours says."""


def traced(program: Callable[..., Any]) -> fx.GraphModule:
    """The graph of ``program``, a function of tensors.

    :raises Untraceable: if it depends on values or sizes, sets attributes, or is in inference mode.
    """
    grad = torch.is_grad_enabled()
    tracer = _Tracer()
    try:
        with _GradModes(tracer):
            graph = tracer.trace(program)
    except fx.proxy.TraceError as error:
        raise Untraceable(str(error)) from error
    finally:
        torch.set_grad_enabled(grad)
    return fx.GraphModule(tracer.root, graph)


def _augmented(function: Callable[[Any, Any], Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    def record(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return record


class _Recorded(fx.Proxy):
    """Variable of a program: values can be written to it."""

    def __getattr__(self, name: str) -> fx.Proxy:  # type: ignore[override]
        if inspect.isdatadescriptor(getattr(torch.Tensor, name, None)):  # read here, not when used
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return _Method(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(torch.Tensor, name):
            raise Untraceable(f"the attribute {name} is set")
        super().__setattr__(name, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})

    __iadd__ = _augmented(operator.iadd)
    __isub__ = _augmented(operator.isub)
    __imul__ = _augmented(operator.imul)
    __imatmul__ = _augmented(operator.imatmul)
    __itruediv__ = _augmented(operator.itruediv)
    __ifloordiv__ = _augmented(operator.ifloordiv)
    __imod__ = _augmented(operator.imod)
    __ipow__ = _augmented(operator.ipow)
    __iand__ = _augmented(operator.iand)
    __ior__ = _augmented(operator.ior)
    __ixor__ = _augmented(operator.ixor)
    __ilshift__ = _augmented(operator.ilshift)
    __irshift__ = _augmented(operator.irshift)


class _Method(_Recorded, Attribute):
    """A method of one that is about to be called."""


class _Tracer(fx.Tracer):
    """Makes values that may be written to."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Recorded(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if torch.is_inference_mode_enabled():
            raise Untraceable("inference mode")
        return super().create_node(*args, **kwargs)


class _GradModes(TorchFunctionMode):
    """Records changes of grad mode, and makes them."""

    def __init__(self, tracer: fx.Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch._C._set_grad_enabled:
            self.tracer.create_node("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))
