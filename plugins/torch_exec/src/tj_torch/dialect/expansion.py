"""Expansion: what a call computes, does and decomposes into, read off one run on fake tensors.

The function runs as PyTorch runs it: autograd first, then functionalization, below it the
recorder, below that the fake tensors::

    autograd -> functionalization -> recorder -> fake tensors

so that views and writes behave as in eager while what is recorded is functional.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from tj_core.expand import Expanded
from tj_core.proxy import Proxy, TensorProxy
from tj_core.symbol import NO_EFFECTS, PLAIN_CONTEXT, Body, Constant, Context, Effects
from tj_core.tree import leaves, map_tree

from tj_torch.dialect import private
from tj_torch.dialect.arguments import (
    Argument,
    distinct_proxies,
    make_fake,
    mentions_missing_device,
)
from tj_torch.dialect.autogradinfo import NonLeaf, may_require_grad, runs_python
from tj_torch.dialect.body import BodyBuilder, alias_facts
from tj_torch.dialect.context import expansion_context, surroundings
from tj_torch.dialect.convert import is_symbolic, tensor_proxy, to_core, to_core_tree
from tj_torch.dialect.denied import denial, watching
from tj_torch.dialect.errors import CannotExpand, ExpansionError
from tj_torch.dialect.ops import OpTable
from tj_torch.dialect.recorder import NeedsPythonDispatcher, Recorded, Recorder, Ref

__all__ = ["Expander", "Expansion", "Kind", "Run", "Traced", "expand", "generators_untouched"]

T = TypeVar("T")
Kind = Literal["COMPOSITE", "KERNEL"]
"""``KERNEL``: recorded below autograd, so gradients must not be taken through the body."""


@dataclass(frozen=True)
class Expansion:
    """What one call computes, does and decomposes into; plain data, shared by equal calls.

    ``outputs``, ``effects`` and ``body`` are as in `BoundSymbol` and `Body`, under formal names.
    ``captured`` says that the body holds a tensor which is no argument (one of a closure).
    """

    outputs: Any
    effects: Effects = NO_EFFECTS
    body: Body | None = None
    kind: Kind = "COMPOSITE"
    captured: bool = False

    @cached_property
    def facts(self) -> Expanded:
        """The same as the core's record."""
        return Expanded(self.outputs, self.effects, self.body)


class Expander:
    """Expands calls. A session has one: it owns the mode that all fake tensors belong to."""

    __slots__ = ("_mode", "_table", "_usable")

    def __init__(self) -> None:
        self._mode: Any = None
        self._table = OpTable()
        self._usable: dict[str, bool] = {}

    def expand(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        context: Context = PLAIN_CONTEXT,
    ) -> Expansion:
        """What ``fn(*args, **kwargs)`` does under ``context``.

        ``args`` and ``kwargs`` are trees of core proxies and constants. Keys that ``context``
        lacks are as in a new process: gradients on, no autocast. The state of random number
        generators stays as it is.

        :raises CannotExpand: if the call works, but not on fake tensors.
        :raises ExpansionError: if PyTorch raises for these arguments; caused by what it raised.
        """
        return self.run(lambda run: run.expansion(), fn, args, kwargs, context)

    def run(
        self,
        work: Callable[[Run], T],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]],
        context: Context,
    ) -> T:
        """What ``work`` makes of the run of a call; it is repeated where PyTorch asks for that.

        Arguments and errors as those of `expand`.
        """
        reason = denial(fn)
        if reason is not None:
            raise CannotExpand(reason)
        tree = (tuple(args), dict(kwargs))
        arguments = distinct_proxies(tree)
        self._mode = self._mode or private.fake_mode()
        run = Run(self._mode, self._table, fn, tree, arguments, context)
        if mentions_missing_device(fn, tree, self.usable):
            run.autograd = False
        with generators_untouched(), private.quiet():
            return self._attempt(run, work)

    def _attempt(self, run: Run, work: Callable[[Run], T]) -> T:
        """Work, again in another way where PyTorch asks for it."""
        try:
            return work(run)
        except NeedsPythonDispatcher:
            run.decompose = True
            return self._attempt(run, work)
        except RuntimeError as error:
            if run.nonleaf or "leaf Variable that requires grad" not in str(error):
                raise _classified(run, error) from error
            run.nonleaf = True
            return self._attempt(run, work)
        except CannotExpand:
            raise
        except Exception as error:
            raise _classified(run, error) from error

    def usable(self, kind: str) -> bool:
        """False for the type of a device that this machine lacks; True for any other word."""
        if not kind.isidentifier():
            return True
        known = self._usable.get(kind)
        if known is None:
            known = self._usable[kind] = _usable(kind)
        return known


def expand(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    context: Context = PLAIN_CONTEXT,
) -> Expansion:
    """`Expander.expand` by an expander of its own."""
    return Expander().expand(fn, args, kwargs, context)


def _usable(kind: str) -> bool:
    try:
        torch.device(kind)
    except RuntimeError:
        return True  # names no device
    try:
        return kind in ("cpu", "meta") or bool(torch.get_device_module(kind).is_available())
    except (RuntimeError, AttributeError):
        return False


@contextlib.contextmanager
def generators_untouched() -> Iterator[None]:
    """Leave PyTorch's generator as it was found."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _classified(run: Run, error: Exception) -> CannotExpand | ExpansionError:
    """Whether the call is wrong, or only running it this way: the plain call on fakes decides."""
    if reason := private.fake_reason(error):
        return CannotExpand(reason)
    try:
        run.plain()
    except NotImplementedError as plain:
        reason = private.fake_reason(plain) or f"fake tensors do not: {_first_line(plain)}"
        return CannotExpand(reason)
    except Exception as plain:
        if reason := private.fake_reason(plain):
            return CannotExpand(reason)
        return ExpansionError(f"{type(plain).__name__}: {_first_line(plain)}")
    return CannotExpand(f"functionalization fails: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


@dataclass(frozen=True, slots=True)
class Traced:
    """What a function returned, and its arguments afterwards.

    ``outputs`` is the tree of what it returned, ``tensors`` those in it, ``inner`` the tree with a
    reference for each; ``after`` the arguments' values by name, ``mutated`` the names written.
    """

    outputs: Any
    tensors: list[torch.Tensor]
    inner: Any
    after: Mapping[str, Ref]
    mutated: tuple[str, ...]


@dataclass
class Run:
    """One run of one call.

    ``autograd`` lets fakes require gradients; ``nonleaf`` gives the function tensors that are no
    leaves of the autograd graph; ``decompose`` uses PyTorch's Python decompositions.
    """

    mode: Any
    table: OpTable
    fn: Callable[..., Any]
    tree: tuple[tuple[Any, ...], dict[str, Any]]
    arguments: Mapping[str, Argument]
    context: Context
    autograd: bool = True
    nonleaf: bool = False
    decompose: bool = False
    wrapped: dict[str, torch.Tensor] = field(default_factory=dict)
    leaves: dict[str, torch.Tensor] = field(default_factory=dict)
    refs: dict[str, Ref] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.grad, self.rest = expansion_context(self.context)

    # ------------------------------------------------------------------ running

    def expansion(self) -> Expansion:
        """Run the function under the recorder and describe what happened."""
        recorder = Recorder(self.table, hidden_writes=self.decompose)
        with surroundings(self.grad, self.rest):
            self.wrap(recorder)
            with self.modes(recorder):
                traced = self.trace(recorder)
        return self.describe(recorder, traced, recorder.calls)

    @contextlib.contextmanager
    def modes(self, recorder: Recorder) -> Iterator[None]:
        """The layers that a call runs on: functionalization, recorder, fake tensors."""
        with (
            self.mode,
            private.python_dispatcher(self.decompose),
            recorder,
            private.functionalization(),
        ):
            yield

    def trace(self, recorder: Recorder) -> Traced:
        """Call the function, inside of `modes`."""
        with watching(self.fn):
            result = self._call()
        outputs = _output_tree(result)
        after = {n: recorder.ref(private.unwrapped(w)) for n, w in self.wrapped.items()}
        tensors = [x for x in leaves(outputs) if isinstance(x, torch.Tensor)]
        refs = iter([recorder.ref(private.unwrapped(t)) for t in tensors])
        inner = map_tree(lambda _: next(refs), outputs, torch.Tensor)
        mutated = tuple(n for n, r in after.items() if r != self.refs[n] and self._written(n))
        return Traced(outputs, tensors, inner, after, mutated)

    def wrap(self, recorder: Recorder) -> None:
        """Make the tensors that the function is called with."""
        for name, argument in self.arguments.items():
            fake = make_fake(self.mode, argument.proxy)
            self.refs[name] = recorder.define(fake)
            self.wrapped[name] = self._functional(name, fake, argument.proxy)

    def _functional(self, name: str, fake: torch.Tensor, proxy: TensorProxy) -> torch.Tensor:
        tensor = private.functionalized(fake)
        if proxy.requires_grad and self.autograd:
            self.leaves[name] = tensor.requires_grad_()
            if self.nonleaf:
                tensor = NonLeaf.of(tensor, lambda: private.functionalized(fake))
        private.deny_data_pointer(tensor)
        return tensor

    def _call(self) -> Any:
        args, kwargs = map_tree(self._actual, self.tree)
        return self.fn(*args, **kwargs)

    def _actual(self, leaf: Any) -> Any:
        if isinstance(leaf, Proxy):
            return self.wrapped[leaf.name]
        return leaf.value if isinstance(leaf, Constant) else leaf

    def plain(self) -> None:
        """Run the function on plain fake tensors, to see whether that raises."""
        with surroundings(self.grad, self.rest):
            self.wrapped = {n: make_fake(self.mode, a.proxy) for n, a in self.arguments.items()}
            with self.mode:
                self._call()

    # ------------------------------------------------------------------ describing

    def body(
        self,
        recorder: Recorder,
        traced: Traced,
        calls: Sequence[Recorded],
        hidden: Sequence[Ref] | None = None,
    ) -> Body:
        """The call's body; its outputs are a pair with ``hidden`` values if those are given."""
        inputs = [(self.refs[n], a.formal) for n, a in self.arguments.items()]
        builder = BodyBuilder(recorder, inputs, self.grad, self.context)
        updates = [(self.arguments[n].index, traced.after[n]) for n in traced.mutated]
        outputs = map_tree(_constant, traced.inner)
        return builder.build(
            outputs if hidden is None else (outputs, tuple(hidden)), updates, calls
        )

    def describe(self, recorder: Recorder, traced: Traced, calls: Sequence[Recorded]) -> Expansion:
        """What happened in ``calls``, which `trace` recorded."""
        body = self.body(recorder, traced, calls)
        mutated, tensors = traced.mutated, traced.tensors
        now = {n: self._afterwards(n, n in mutated) for n in self.arguments}
        changes = [(a.index, now[n]) for n, a in self.arguments.items() if now[n] != a.formal]
        effects = Effects(
            tuple(self.arguments[n].index for n in mutated),
            tuple(changes),
            alias_facts(tensors, {self.arguments[n].index: w for n, w in self.wrapped.items()}),
            _ordered(body),
        )
        kernel = any(not c.facts.builtin for c in calls)
        kernel = kernel or runs_python([*tensors, *(self.wrapped[n] for n in mutated)])
        return Expansion(
            self._proxies(traced.outputs, now),
            effects,
            body,
            "KERNEL" if kernel else "COMPOSITE",
            recorder.captured,
        )

    def _written(self, name: str) -> bool:
        """Whether an argument whose value differs was written, not only reshaped."""
        tensor = self.wrapped[name]
        if private.data_mutated(tensor):
            return True
        if private.metadata_mutated(tensor):
            return False
        raise CannotExpand("an argument is given other storage")

    def _afterwards(self, name: str, written: bool) -> TensorProxy:
        """What an argument is after the call, under its formal name."""
        argument = self.arguments[name]
        proxy = tensor_proxy(f"a{argument.index}", self.wrapped[name])
        if self.autograd:
            return proxy
        requires = argument.proxy.requires_grad or (written and self._requires_grad(proxy))
        return proxy.replace(requires_grad=requires)

    def _proxies(self, outputs: Any, now: Mapping[str, TensorProxy]) -> Any:
        """The outputs as proxies: an argument under its formal name, else ``_0``, ``_1``, ..."""
        formal = {id(self.wrapped[n]): proxy for n, proxy in now.items()}
        count = iter(range(1 << 30))

        def proxy(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return _constant(leaf)
            name = f"_{next(count)}"
            return formal.get(id(leaf)) or self._result(name, leaf)

        return map_tree(proxy, outputs)

    def _result(self, name: str, tensor: torch.Tensor) -> TensorProxy:
        proxy = tensor_proxy(name, tensor)
        if self.autograd:
            return proxy
        return proxy.replace(requires_grad=self._requires_grad(proxy))

    def _requires_grad(self, proxy: TensorProxy) -> bool:
        arguments = [a.proxy for a in self.arguments.values()]
        return may_require_grad(self.grad, arguments, proxy.dtype)


def _output_tree(result: Any) -> Any:
    """``result`` in the core's containers.

    :raises CannotExpand: if it holds anything but tensors and constants.
    """

    def leaf(value: Any) -> Any:
        if is_symbolic(value) and _static(value) is None:
            raise CannotExpand("a result is a number that depends on data")
        if isinstance(value, torch.Tensor) and hasattr(type(value), "__tensor_flatten__"):
            raise CannotExpand("a result is a tensor subclass")
        return value

    return to_core_tree(result, leaf)


def _static(value: Any) -> Any:
    return value.node.maybe_as_int()


def _constant(leaf: Any) -> Any:
    """An output's core leaf; references and tensors are not touched.

    :raises CannotExpand: for an object that no text denotes.
    """
    if isinstance(leaf, Ref | torch.Tensor):
        return leaf
    found = to_core(leaf)
    if isinstance(found, Constant) and not found.named:
        raise CannotExpand(f"a result is a {type(leaf).__name__}")
    return found


def _ordered(body: Body) -> tuple[str, ...]:
    """The generators and process groups that a call uses."""
    resources = (r for call in body.calls for r in call.effects.ordered if r != "side_effect")
    return tuple(dict.fromkeys(resources))
