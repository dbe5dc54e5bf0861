"""Bodies of operations written in Python, made of the functions of PyTorch that they call.

``multi_head_attention_forward`` calls ``linear``, ``softmax`` and ``dropout``; its expanded body
consists of operators, and does not show which of them were a ``linear``. Here the function runs on
fake tensors, and its calls are recorded at torch level.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    PLAIN_CONTEXT,
    Body,
    BoundSymbol,
    Expanded,
    Proxy,
    bind_outputs,
    canonical_body,
    formals,
    leaves,
)
from torch.overrides import TorchFunctionMode

from tj_torch.ops.context.entering import surroundings
from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.values.convert import to_core, to_core_tree

if TYPE_CHECKING:
    from tj_torch.ops.expansion.expander import Expander
    from tj_torch.ops.expansion.run import Run
    from tj_torch.ops.naming.names import Names

__all__ = ["is_python", "python_body"]


def is_python(fn: Callable[..., Any]) -> bool:
    """Test for a function written in Python."""
    return isinstance(fn, types.FunctionType)


def python_body(
    call: BoundSymbol,
    fn: Callable[..., Any],
    names: Names,
    expander: Expander,
    expand: Callable[[BoundSymbol], Expanded],
) -> Body:
    """Body of ``call``, which runs ``fn``, made of the functions that ``fn`` calls.

    Their metadata come from ``expand``. They compute the same as the call, in its order, and
    autograd sees the same operators.

    :raises CannotExpand: if ``fn`` does anything else, or sizes are symbolic.
    """
    ran = expander.run(_watched, fn, call.args, call.kwargs, call.context)
    return _Builder(call, names, expand, ran).body()


# ---------------------------------------------------------------------------- watching


@dataclass(frozen=True, slots=True)
class _Made:
    """Call that the function made."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any


@dataclass(frozen=True, slots=True)
class _Ran:
    """Run of the function: arguments by name, its calls, and its result."""

    given: Mapping[str, torch.Tensor]
    calls: tuple[_Made, ...]
    result: Any


@dataclass
class _Watcher(TorchFunctionMode):
    calls: list[_Made] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.state = _state()

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run ``func``; record it if it returns tensors.

        :raises CannotExpand: for an attribute of a tensor, or a change of grad mode or autocast.
        """
        kwargs = kwargs or {}
        if _state() != self.state:
            raise CannotExpand("it switches gradients or autocast")
        result = func(*args, **kwargs)
        if not any(isinstance(x, torch.Tensor) for x in leaves(result)):
            # As `x.data = y` or `x.grad = y`, which a body cannot say.
            if func.__name__ == "__set__":
                raise CannotExpand("it sets an attribute of a tensor")
            return result
        if func.__name__ == "__get__":
            raise CannotExpand("it reads a tensor off an attribute")
        self.calls.append(_Made(func, args, kwargs, result))
        return result


def _state() -> tuple[Any, ...]:
    """Modes that calls depend on and a function may switch."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )


def _watched(run: Run, _: Any) -> _Ran:
    if run.symbolic is not None:
        raise CannotExpand("its sizes are symbolic")
    with surroundings(run.grad, run.rest):
        # A function may ask for `requires_grad`, as for the fast path of attention.
        run.plainly(autograd=True)
        run.fn = _without_overrides(run.fn)
        watcher = _Watcher()
        with run.mode, watcher:
            result = run.call()
    return _Ran(run.wrapped, tuple(watcher.calls), result)


def _without_overrides(fn: Any) -> Callable[..., Any]:
    """``fn`` without its ``has_torch_function`` checks, which would pass ``fn`` to the mode."""
    asks = {name: _no for name in fn.__globals__ if name.startswith("has_torch_function")}
    names = {**fn.__globals__, **asks}
    made = types.FunctionType(fn.__code__, names, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


def _no(*_: Any) -> bool:
    return False


# ---------------------------------------------------------------------------- describing


@dataclass
class _Builder:
    """Builder of a body from a run; ``known`` are the proxies of tensors so far, by id."""

    call: BoundSymbol
    names: Names
    expand: Callable[[BoundSymbol], Expanded]
    ran: _Ran
    known: dict[int, Proxy] = field(default_factory=dict)
    count: int = 0

    def body(self) -> Body:
        inputs = formals(self.call)
        self.known = {id(t): inputs[name] for name, t in self.ran.given.items()}
        calls = tuple(map(self.bound, self.ran.calls))
        outputs = self.core(self.ran.result)
        if len(list(leaves(outputs))) != len(list(leaves(self.call.outputs))):
            raise CannotExpand("it returns something else")
        return canonical_body(Body(tuple(inputs.values()), calls, outputs))

    def bound(self, made: _Made) -> BoundSymbol:
        """Call for ``made``; registers its outputs."""
        args = tuple(self.core(made.args))
        named = self.names.symbol(_target(made.function), args, self.core(dict(made.kwargs)))
        plain = BoundSymbol(
            named.symbol, named.args, tuple(named.kwargs.items()), context=self.call.context
        )
        facts = self.expand(plain)
        effects = facts.effects
        if effects.mutates or effects.rebinds or "side_effect" in effects.ordered:
            raise CannotExpand(f"it calls {named.symbol}, which has effects")
        call = bind_outputs(plain, facts, lambda _: self.fresh())
        tensors = [x for x in leaves(to_core_tree(made.result, _itself)) if _is_tensor(x)]
        if len(tensors) != len(call.flat_outs):
            raise CannotExpand(f"it calls {named.symbol}, which returns something else")
        for tensor, out in zip(tensors, call.flat_outs, strict=True):
            self.known.setdefault(id(tensor), out)
        return call.replace(context=PLAIN_CONTEXT)

    def fresh(self) -> str:
        self.count += 1
        return f"_made{self.count}"

    def core(self, tree: Any) -> Any:
        """``tree`` with proxies for tensors, in the core's containers."""
        return to_core_tree(tree, self.leaf)

    def leaf(self, value: Any) -> Any:
        if not _is_tensor(value):
            return to_core(value)
        if id(value) not in self.known:
            raise CannotExpand("it uses a tensor that is neither given nor computed")
        return self.known[id(value)]


def _target(function: Any) -> Any:
    """Target of an FX node for ``function``: a method of tensors is its name."""
    name = getattr(function, "__name__", "")
    return name if getattr(torch.Tensor, name, None) is function else function


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _itself(value: Any) -> Any:
    return value
