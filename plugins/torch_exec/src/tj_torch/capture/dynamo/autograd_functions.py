"""Make Dynamo's capture of a `torch.autograd.Function` exact, or break the graph with a reason.

Dynamo captures the forward and the backward of a call together. Its assumptions are checked here;
the call's node keeps the dependences of the backward. This file uses private names of Dynamo, as
`tj_torch.capture.dynamo.adapter` does.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any, NoReturn

import torch

from tj_torch.capture.dynamo.releases import (
    captures_functions_in_steps,
    decomposing_handlers,
    is_of_fakes,
)
from tj_torch.ops.facts.python_backwards import Asked, asked
from tj_torch.torch_private.lookup import MissingNameError
from tj_torch.torch_private.ops import no_autocast
from tj_torch.torch_private.replacement import has, path_of
from tj_torch.torch_private.runtime import forward_level, peek_interpreter_stack

__all__ = ["exactly", "install", "known"]

_META = "tj_torch.asked"
_BACKEND = "tj_torch.backend"
_WRAPPED = ("_torchdynamo_orig_backend", "compiler_fn", "__wrapped__")  # of wrapped backends


class _State:
    """State of the running capture, guarded by Dynamo's lock.

    ``wanted`` is positive while Dynamo captures for tj, ``backward`` in the backward of a Function.
    ``doubled`` counts the enclosing Functions that take one tensor twice.

    Only one capture runs at a time.
    """

    wanted = 0
    backward = 0
    doubled = 0


def known(node: torch.fx.Node) -> Asked | None:
    """Dependences of the backward of the Function that ``node`` applies; None if unknown."""
    found: Asked | None = node.meta.get(_META)
    return found


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Capture Functions exactly inside, or break the graph; to be entered under Dynamo's lock."""
    install()
    with _counted("wanted"):
        yield


@functools.cache
def install() -> None:
    """Wrap Dynamo's methods with checks, for captures by tj or for a backend of tj's.

    :raises MissingNameError: if Dynamo lacks one of these methods; then none is wrapped.
    """
    places = list(_places())
    for owner, name, _ in places:
        if not has(owner, name) and name != "call_method":  # a base class has it from 2.15 on
            # Before any is wrapped: half of the checks would let wrong captures through.
            raise MissingNameError(f"{path_of(owner)}.{name}")
    for place in places:
        _around(*place)


def _places() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Methods of Dynamo, by class and name, each with its wrapper."""
    from tj_torch.torch_private.dynamo import (
        AutogradFunctionApplyVariable,
        AutogradFunctionContextVariable,
        AutogradFunctionVariable,
        TensorVariable,
    )

    for handler in decomposing_handlers():
        yield TensorVariable, handler, _recorded
    yield AutogradFunctionVariable, "call_apply", _applying
    yield AutogradFunctionContextVariable, "call_method", _marking
    if not captures_functions_in_steps():
        yield AutogradFunctionApplyVariable, "call_function", _refusing
        return
    yield AutogradFunctionApplyVariable, "call_function", _capturing
    if has(AutogradFunctionApplyVariable, "prepare_fn_vt"):
        yield AutogradFunctionApplyVariable, "prepare_fn_vt", _preparing
    yield AutogradFunctionApplyVariable, "trace_forward_graph", _after_the_forward
    yield AutogradFunctionApplyVariable, "trace_backward_graph", _in_the_backward
    yield AutogradFunctionApplyVariable, "rewire_bwd_graph_outputs", _with_gradients


def _recorded(*call: Any, **kwargs: Any) -> None:
    """Return None, upon which Dynamo records the call without decomposing it."""


def _around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _wanted():
            return original(self, *args, **kwargs)
        return wrapper(functools.partial(original, self), self, *args, **kwargs)

    setattr(owner, name, wrapped)


def _wanted() -> bool:
    return _State.wanted > 0 or _is_backend(_compiler())


def _compiler() -> Any:
    """Backend that Dynamo captures for."""
    from tj_torch.torch_private.dynamo import InstructionTranslator

    return InstructionTranslator.current_tx().output.compiler_fn


def _is_backend(compiler: Any) -> bool:
    """Test for tj's backend, or a wrapper of it."""
    while compiler is not None:
        if getattr(compiler, "__module__", None) == _BACKEND:
            return True
        inner = (getattr(compiler, name, None) for name in _WRAPPED)
        compiler = next((c for c in inner if c is not None), None)
    return False


@contextlib.contextmanager
def _counted(name: str) -> Iterator[None]:
    setattr(_State, name, getattr(_State, name) + 1)
    try:
        yield
    finally:
        setattr(_State, name, getattr(_State, name) - 1)


def _stop(reason: str) -> NoReturn:
    from tj_torch.torch_private.dynamo import exc

    raise exc.Unsupported(f"a torch.autograd.Function is left to PyTorch: {reason}")


# --------------------------------------------------------------------------- what is looked at


def _applying(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """Check a Function before Dynamo traces it.

    Dynamo would inline the forward where gradients are off, as if it had no backward.
    """
    given = [*args, *kwargs.values()]
    if _State.backward and any(v.is_tensor() for v in given):
        _stop("another one applies it in its backward, where it may be differentiated again")
    if peek_interpreter_stack() is not None:
        _stop("a transform of torch.func is to use its rules")
    if forward_level() >= 0:
        _stop("forward-mode AD is to use its rules")
    result = original(tx, args, kwargs)
    returned = _nodes(given) & _nodes([result])
    if not torch.is_grad_enabled() and any(map(_is_tracked, returned)):
        _stop("it returns an argument, which is not what it was where gradients are off")
    if returned and self.fn_cls.setup_context is not torch.autograd.Function.setup_context:
        _stop(_SETUP_RETURNED)
    return result


_SETUP_RETURNED = "it has a setup_context, and returns an argument as it is"


def _nodes(variables: Iterable[Any]) -> set[torch.fx.Node]:
    """Nodes of the tensors in ``variables`` and in tuples among them."""
    return {v.as_proxy().node for v in _flat(variables) if v.is_tensor()}


def _is_tracked(node: torch.fx.Node) -> bool:
    return bool(node.meta["example_value"].requires_grad)


def _flat(variables: Iterable[Any]) -> list[Any]:
    """``variables`` with the items of tuples in their places."""
    from tj_torch.torch_private.dynamo import BaseListVariable

    flat: list[Any] = []
    for variable in variables:
        flat += variable.items if isinstance(variable, BaseListVariable) else [variable]
    return flat


def _preparing(original: Any, self: Any, tx: Any, ctx: Any, name: str, args: Any) -> Any:
    """Pass the class to a forward or backward that is a class method, once.

    Dynamo passes the type of the method, and twice (2.13 to 2.15).
    """
    from tj_torch.torch_private.dynamo import VariableTracker

    method = self.fwd_fn if name == "forward" else self.bwd_fn
    if not isinstance(method, MethodType):
        return original(tx, ctx, name, args)
    cls = VariableTracker.build(tx, method.__self__)
    return VariableTracker.build(tx, method.__func__), [cls, ctx, *args]


def _marking(original: Any, self: Any, tx: Any, name: str, *rest: Any) -> Any:
    """Refuse marks of outputs in a forward that PyTorch runs, as its captured parts lose them."""
    if name == "mark_non_differentiable" and not self.inference:
        _stop("its forward marks what it returns")
    return original(tx, name, *rest)


def _refusing(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> NoReturn:
    _stop("this PyTorch captures its forward and backward in one, where nothing can be checked")


def _capturing(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    found = asked(self.bwd_fn)
    if found.reason is not None:
        _stop(f"its backward runs later, and {found.reason}")
    given = _distinct(self, tx, args)
    doubled = any(a is not b for a, b in zip(given, args, strict=True))
    with _left_to_pytorch(), _counted("doubled") if doubled else contextlib.nullcontext():
        result = original(tx, given, kwargs)
    calls = (n for n in reversed(tx.output.graph.nodes) if n.op == "call_function")
    from tj_torch.torch_private.dynamo import autograd_function_apply

    next(n for n in calls if n.target is autograd_function_apply).meta[_META] = found
    return result


def _distinct(self: Any, tx: Any, args: Sequence[Any]) -> list[Any]:
    """``args`` with a view in place of a tensor that is passed a second time.

    Each gets a gradient of its own, and autograd adds them in the order of the arguments.
    """
    seen: set[torch.fx.Node] = set()
    found = []
    for arg in args:
        node = arg.as_proxy().node if arg.is_tensor() else None
        if node is not None and node in seen:
            if _compares_identity(self.fwd_fn):
                _stop("its forward asks what is what, and is given one tensor twice")
            # As Dynamo does for an argument that a forward returns.
            arg = arg.call_method(tx, "view_as", [arg], {})
        found.append(arg)
        seen.update([node] if node is not None else ())
    return found


def _compares_identity(function: Any) -> bool:
    """Test if ``function`` compares with ``is``, except with None."""
    if not hasattr(function, "__code__"):
        return True  # unknown
    pairs = itertools.pairwise(dis.get_instructions(function))
    return any(now.opname == "IS_OP" and last.argval is not None for last, now in pairs)


@contextlib.contextmanager
def _left_to_pytorch() -> Iterator[None]:
    """Turn an error of a Function at capture for the backend into a graph break.

    The program then raises the error itself. For programs that tj captures,
    `tj_torch.dispatch.dispatcher` does so.
    """
    from tj_torch.torch_private.dynamo import exc

    try:
        yield
    except Exception as error:
        # Of Dynamo's own errors, only this one means that an operation raises.
        other = isinstance(error, exc.TorchDynamoException)
        if _State.wanted or (other and not is_of_fakes(error)):
            raise
        reason = str(error).partition("\n")[0]
        _stop(f"capturing it raises {type(error).__name__}: {reason}")


def _after_the_forward(original: Any, self: Any, tx: Any, ctx: Any, *rest: Any) -> Any:
    result = original(tx, ctx, *rest)
    kept = tx.output.side_effects.store_attr_mutations.get(ctx, {})
    for name, value in kept.items():
        if name == "materialize_grads" and value.as_python_constant() is False:
            _stop("its backward asks which gradients are missing (set_materialize_grads)")
        if value.source is not None and not value.is_tensor() and _may_change(value):
            _stop(f"it keeps an object, ctx.{name}, which may have changed when its backward runs")
    if self.parent_source is None and any(map(_is_returned, result[2].nodes)):
        _stop(_SETUP_RETURNED)
    if ctx.non_differentiable and result[1].is_tensor():
        _stop("all that it returns is marked as not differentiable")
    if "dirty_tensors" in kept:  # up to 2.12, which traces `mark_dirty` as an ordinary method
        _stop("it writes an argument, which this PyTorch's capture forgets")
    dirty = getattr(ctx, "dirty_tensors", None)
    if dirty and _State.doubled:
        _stop("it writes an argument, and is given one tensor twice")
    if dirty and not all(v.is_tensor() for v in _flat([result[1]])):
        # To autograd, each is an output, and it refuses a written view among several outputs.
        _stop("it writes an argument, and not all that it returns are tensors")
    return result


def _is_returned(node: torch.fx.Node) -> bool:
    """Test for the ``view_as`` that Dynamo makes of an argument which a forward returns."""
    same = node.target == "view_as" and len(node.args) == 2 and node.args[0] is node.args[1]
    return same and isinstance(node.args[0], torch.fx.Node) and node.args[0].op == "placeholder"


def _may_change(value: Any) -> bool:
    from tj_torch.torch_private.dynamo import SymNodeVariable

    if isinstance(value, SymNodeVariable):  # a number that differs between calls
        return False
    return not value.is_python_constant() or not issubclass(
        value.python_type(), int | float | complex | str | bytes | tuple | type(None)
    )


def _in_the_backward(original: Any, self: Any, *args: Any) -> Any:
    # PyTorch runs the backward when it is called, outside of the forward's autocast.
    with _counted("backward"), no_autocast():
        return original(*args)


def _with_gradients(
    original: Any,
    self: Any,
    freevars: Any,
    found: Any,
    graph: Any,
    backward_freevars: Any,
    args: Any,
) -> Any:
    _check_gradients(found, args)
    given = {v.as_proxy() for v in args if v.is_tensor()}
    for proxy in freevars:
        example = proxy.node.meta.get("example_value")
        if proxy not in given and isinstance(example, torch.Tensor) and example.requires_grad:
            _stop("it uses a tensor that is none of its arguments, and that requires a gradient")
    return original(freevars, found, graph, backward_freevars, args)


def _check_gradients(found: Any, args: Any) -> None:
    """Check that PyTorch would accept these gradients of ``args``; else break the graph."""
    from tj_torch.torch_private.dynamo import TupleVariable

    gradients = list(found.items) if isinstance(found, TupleVariable) else [found]
    present = [g for g in gradients if not g.is_constant_none()]
    if not all(g.is_tensor() for g in present):
        _stop("its backward returns what is no gradient")
    while len(gradients) > len(args) and gradients[-1].is_constant_none():
        # PyTorch accepts surplus gradients that are None, too.
        gradients.pop()
    if len(gradients) != len(args):
        _stop(f"its backward returns {len(gradients)} gradients for {len(args)} arguments")
    if any(g in present and not a.is_tensor() for g, a in zip(gradients, args, strict=True)):
        _stop("its backward returns a gradient for an argument that is no tensor")
