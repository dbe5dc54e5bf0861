"""Capture of ``torch.autograd.grad`` in programs, which Dynamo leaves out by default.

The graph breaks there, as without this, where the importer cannot take the call, and at
``Tensor.backward``, which accumulates into tensors from outside of the program.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from tj_torch.capture.dynamo.patches import replace_handler, stop
from tj_torch.capture.dynamo.settings import with_settings
from tj_torch.capture.inner_gradients import (
    USED_UP,
    asks,
    differentiated,
    inputs_behind,
    leaves_behind,
    reason_against,
)
from tj_torch.ops.expansion.autograd_info import autograd_nodes, freed
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["capture_gradients", "not_captured"]

_SETTING = "trace_autograd_ops"


def capture_gradients(stack: ExitStack) -> None:
    """Let calls of ``torch.autograd.grad`` be nodes of graphs, until ``stack`` is left."""
    from tj_torch.torch_private.dynamo import (
        OutputGraph,
        TensorVariable,
        dynamo,
    )

    if not hasattr(dynamo.config, _SETTING):  # an older PyTorch
        return
    replace(stack, TensorVariable, "method_backward", _breaking)
    replace(stack, OutputGraph, "_check_requires_grad_intermediate_outputs", _returning)
    replace(stack, OutputGraph, "_validate_outputs_safe_for_autograd_nodes", _checking)
    replace(stack, OutputGraph, "compile_and_call_fx_graph", _starting_again)
    replace_handler(stack, torch.autograd.grad, _deciding)
    stack.enter_context(with_settings({_SETTING: True}))


def not_captured(reason: str) -> Exception:
    """Exception with which a backend makes Dynamo break the graph at the gradients in it."""
    made: Exception = _not_captured()(reason)
    return made


@functools.cache
def _not_captured() -> Any:
    from tj_torch.torch_private.dynamo import exc

    return type("NotCaptured", (exc.SkipFrame,), {})


def _breaking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Break the graph at ``Tensor.backward``, as without the setting."""

    def method_backward(*args: Any, **kwargs: Any) -> Any:
        with with_settings({_SETTING: False}):
            return original(*args, **kwargs)

    return method_backward


_BATCHED = [*inspect.signature(torch.autograd.grad).parameters].index("is_grads_batched")


def _deciding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Break the graph at calls that fail on fake tensors, as those for batches of tangents do."""
    from tj_torch.torch_private.dynamo import exc

    def grad(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        reason = getattr(tx.speculation_log, _REASON, None)
        if "is_grads_batched" in kwargs or len(args) > _BATCHED:
            reason = "is_grads_batched"
        if "materialize_grads" in kwargs and "create_graph" in kwargs:
            reason = "zeros that are leaves"
        args = (*args[:1], *(_listed(tx, each) for each in args[1:2]), *args[2:])
        if reason is None:
            try:
                return original(self, tx, *args, **kwargs)
            except exc.TorchRuntimeError as error:
                if any(text in str(error) for text in _REFUSED):
                    raise
                reason = str(error).partition("\n")[0]
        stop(f"torch.autograd.grad: {reason}")

    return grad


def _listed(tx: Any, inputs: Any) -> Any:
    """``inputs``, or a tuple of what a generator such as ``module.parameters()`` yields."""
    from tj_torch.torch_private.dynamo import VariableTracker

    inputs = inputs.realize()
    if inputs.python_type() is not GeneratorType:
        return inputs
    return VariableTracker.build(tx, tuple).call_function(tx, [inputs], {})


_REASON = "tj_reason_against_gradients"
"""Attribute of Dynamo's log of attempts at a frame: why gradients are not captured in the next."""

_REFUSED = ("does not require grad", "appears to not have been used")
"""Texts in errors of ``torch.autograd.grad`` that the program gets in eager as well."""


def _starting_again(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile_and_call_fx_graph(self: Any, tx: Any, *rest: Any) -> Any:
        try:
            return original(self, tx, *rest)
        except _not_captured() as error:
            reason = str(error)
        _restart(tx, reason)

    return compile_and_call_fx_graph


def _restart(tx: Any, reason: str) -> NoReturn:
    """Have Dynamo begin again, and break the graph at the gradients."""
    from tj_torch.torch_private.dynamo import exc

    setattr(tx.speculation_log, _REASON, reason)
    raise exc.AutogradGradRestartAnalysis(restart_reason=reason)


def _returning(original: Callable[..., Any]) -> Callable[..., Any]:
    """Allow results of tensors that the program made leaves, if others have gradients as well.

    Nobody outside of the program has such a leaf, so that nobody asks for its gradient. Results
    whose history has been used up are detached, and marked.
    """

    def check(self: Any, results: list[Any], tx: Any) -> Any:
        if not any(map(asks, self.graph.nodes)):
            return original(self, results, tx)
        for i, result in enumerate(results):
            fake = _fake(result)
            if (text := _used_up(fake)) is not None:
                results[i] = result.call_method(tx, "detach", [], {})
                node = results[i].as_proxy().node
                node.meta[USED_UP] = text, inputs_behind(self.graph, fake)
        own = {_fake(v) for v in self.leaf_var_creation_order if not v.source}
        kept = [v for v in results if own and own.issuperset(leaves_behind(_fake(v)))]
        return original(self, kept, tx)

    return check


def _checking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Break the graph where the importer cannot take gradients; guard that inputs have no hooks."""

    def check(self: Any, results: list[Any], tx: Any) -> None:
        original(self, results, tx)
        asked = [node for node in self.graph.nodes if asks(node)]
        if not asked:
            return
        if reason := reason_against(self.graph.nodes):
            _restart(tx, reason)
        for node in {n: None for call in asked for n in differentiated(call)}:
            if node.op == "placeholder":
                _guard_hooks(tx, node)

    return check


# --------------------------------------------------------------------------- history


def _fake(variable: Any) -> Any:
    """Fake tensor of a variable of Dynamo's; None for other values."""
    proxy = variable.as_proxy() if hasattr(variable, "requires_grad") else None
    return None if proxy is None else proxy.node.meta.get("example_value")


def _used_up(tensor: Any) -> str | None:
    """Error of a backward from ``tensor``, if something behind it has freed what it had saved."""
    errors = map(freed, autograd_nodes([] if tensor is None else [tensor]))
    return next((text for text in errors if text is not None), None)


# --------------------------------------------------------------------------- hooks


_HOOKS = "_backward_hooks"
"""Attribute of tensors with the hooks that ``torch.autograd.grad`` runs for those given to it."""


def _guard_hooks(tx: Any, node: torch.fx.Node) -> None:
    from tj_torch.torch_private.dynamo import AttrSource, GuardBuilder, install_guard

    argument = node.meta.get("grapharg")
    tensor, source = getattr(argument, "example", None), getattr(argument, "source", None)
    if source is None or getattr(tensor, _HOOKS, None) is not None:
        _restart(tx, "a hook of a tensor")
    install_guard(AttrSource(source, _HOOKS).make_guard(GuardBuilder.CONSTANT_MATCH))
