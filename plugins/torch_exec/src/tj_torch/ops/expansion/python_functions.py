"""The calls of PyTorch's functions that an operation makes which is itself written in Python.

``multi_head_attention_forward`` calls ``linear``, ``softmax`` and ``dropout``; its body as it is
expanded consists of operators, of which nobody can tell which of them were a ``linear``. This is
the level between: the function runs on fake tensors, and what it calls is written down.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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

from tj_torch.ops.context import surroundings
from tj_torch.ops.convert import to_core, to_core_tree
from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.expansion.expander import Expander
from tj_torch.ops.expansion.run import Run
from tj_torch.ops.names import Names

__all__ = ["is_python", "python_body"]


def is_python(fn: Callable[..., Any]) -> bool:
    """Whether ``fn`` is written in Python."""
    return isinstance(fn, types.FunctionType)


def python_body(
    call: BoundSymbol,
    fn: Callable[..., Any],
    names: Names,
    expander: Expander,
    expand: Callable[[BoundSymbol], Expanded],
) -> Body:
    """The body of ``call``, which runs ``fn``, made of the functions that ``fn`` calls.

    Their metadata are those that ``expand`` says. They compute what the call does, in its order,
    and autograd sees the same.

    :raises CannotExpand: if it does anything else, or its sizes are symbols.
    """
    ran = expander.run(_watched, fn, call.args, call.kwargs, call.context)
    return _Builder(call, names, expand, ran).body()


# ---------------------------------------------------------------------------- watching


@dataclass(frozen=True, slots=True)
class _Made:
    """One call that the function made."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any


@dataclass(frozen=True, slots=True)
class _Ran:
    """A run of the function: the arguments' values by name, what it called and returned."""

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
        """Run ``func`` and note it, unless it is only a question.

        :raises CannotExpand: for what no call in a body says.
        """
        kwargs = kwargs or {}
        if _state() != self.state:
            raise CannotExpand("it switches gradients or autocast")
        result = func(*args, **kwargs)
        if not any(isinstance(x, torch.Tensor) for x in leaves(result)):
            if func.__name__ == "__set__":
                raise CannotExpand("it sets an attribute of a tensor")
            return result
        if func.__name__ == "__get__":
            raise CannotExpand("it reads a tensor off an attribute")
        self.calls.append(_Made(func, args, kwargs, result))
        return result


def _state() -> tuple[Any, ...]:
    """What calls depend on that a function may switch."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )


def _watched(run: Run) -> _Ran:
    if run.symbolic is not None:
        raise CannotExpand("its sizes are symbols")
    with surroundings(run.grad, run.rest):
        run.plainly(autograd=True)
        run.fn = _without_overrides(run.fn)
        watcher = _Watcher()
        with run.mode, watcher:
            result = run.call()
    return _Ran(run.wrapped, tuple(watcher.calls), result)


def _without_overrides(fn: Any) -> Callable[..., Any]:
    """``fn`` that does not ask who overrides it: the watcher is for what it calls."""
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
    """Describes a run; ``known`` are the tensors met so far, by id."""

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
        """One call, its outputs known from here on."""
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
            raise CannotExpand("a tensor comes from nowhere")
        return self.known[id(value)]


def _target(function: Any) -> Any:
    """``function`` as a graph would name it: methods of tensors by name."""
    name = getattr(function, "__name__", "")
    return name if getattr(torch.Tensor, name, None) is function else function


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _itself(value: Any) -> Any:
    return value
