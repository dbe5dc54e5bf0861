"""Calls on tensor subclasses: run on fake ones, whose inner tensors are recorded.

The operators of a subclass run above functionalization::

    autograd -> __torch_dispatch__ -> functionalization -> recorder -> fake tensors

so a body is one of operators on the subclass. Each of these has a dense body: it flattens the
arguments, computes with what is in them, and puts the results together. The leaves of the autograd
graph are the subclasses themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tj_core.extend import (
    Alias,
    Body,
    Context,
    Effects,
    Proxy,
    TensorProxy,
    leaves,
    map_tree,
)

from tj_torch.ops import private
from tj_torch.ops.context import surroundings
from tj_torch.ops.convert import tensor_proxy, to_core_tree
from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.expansion.arguments import make_fake
from tj_torch.ops.expansion.body import alias_facts
from tj_torch.ops.expansion.level_bodies import LevelBuilder
from tj_torch.ops.expansion.levels import Event, Levels, noting, value
from tj_torch.ops.expansion.recorder import Recorder, Ref
from tj_torch.ops.expansion.run import Expansion, Run, constant_leaf
from tj_torch.ops.expansion.wrapped_calls import dense_proxies, layout_of
from tj_torch.ops.sizes.shape_env import is_symbolic, plain
from tj_torch.runtime.subclasses import dense_tensors, unflatten

__all__ = ["Parts", "WrappedRun", "shared"]

Parts = tuple[Ref, ...]
"""The dense values that a tensor consists of; one for a plain tensor."""


@dataclass(frozen=True, slots=True)
class Called:
    """What a function returned: its tree, the tensors in it, and the parts of each."""

    outputs: Any
    tensors: list[torch.Tensor]
    parts: list[Parts]


@dataclass
class WrappedRun(Run):
    """A run of a call that takes or returns tensor subclasses.

    ``parts`` are the dense values of each argument; ``levels`` is what notes the operators.

    Writes to arguments, sizes that are symbols, and calls that return numbers are not for it.
    """

    parts: dict[str, Parts] = field(default_factory=dict)
    levels: Levels | None = None

    @classmethod
    def of(cls, run: Run) -> WrappedRun:
        """The same as ``run``, which found that the call makes a tensor subclass."""
        given = run.mode, run.table, run.denied, run.fn, run.tree, run.arguments, run.context
        return cls(*given, run.sizes, run.autograd, run.nonleaf, run.decompose)

    # ------------------------------------------------------------------ running

    def expansion(self) -> Expansion:
        """Run the function under the recorder and describe what happened."""
        recorder = Recorder(self.table, hidden_writes=self.decompose)
        with surroundings(self.grad, self.rest):
            self.wrap(recorder)
            with self.modes(recorder):
                called = self.called(recorder)
        return self.described(recorder, called, self.events(recorder))

    def events(self, recorder: Recorder, start: int = 0, stop: int | None = None) -> list[Event]:
        """What ran on both levels while the calls ``start`` to ``stop`` were recorded."""
        assert self.levels is not None
        return self.levels.events(start, len(recorder.calls) if stop is None else stop)

    @contextlib.contextmanager
    def modes(self, recorder: Recorder) -> Iterator[None]:
        """The layers that a call runs on, with subclasses above functionalization."""
        with (
            self.mode,
            private.python_dispatcher(self.decompose),
            recorder,
            noting(recorder) as self.levels,
        ):
            yield

    def wrap(self, recorder: Recorder) -> None:
        """Make the values that the function is called with."""
        if self.symbolic is not None:
            raise CannotExpand("a tensor subclass is here beside sizes that are symbols")
        for name, argument in self.arguments.items():
            assert isinstance(argument.proxy, TensorProxy)
            tensor, self.parts[name] = self.made(recorder, argument.proxy)
            if argument.proxy.requires_grad and self.autograd:
                self.leaves[name] = tensor.requires_grad_()
            self.wrapped[name] = tensor

    def made(self, recorder: Recorder, proxy: TensorProxy) -> tuple[torch.Tensor, Parts]:
        """A tensor with the metadata of ``proxy``, and its parts."""
        fakes = [make_fake(self.mode, p) for p in dense_proxies(proxy)]
        parts = tuple(recorder.define(fake) for fake in fakes)
        tensors = [private.functionalized(fake) for fake in fakes]
        for tensor in tensors:
            private.deny_data_pointer(tensor)
        return _assembled(proxy, tensors), parts

    def plainly(self, *, autograd: bool = False) -> None:
        """Make subclasses of plain fakes; with ``autograd`` they require gradients as those."""
        for name, argument in self.arguments.items():
            assert isinstance(argument.proxy, TensorProxy)
            made = [make_fake(self.mode, p) for p in dense_proxies(argument.proxy)]
            tensor = _assembled(argument.proxy, made)
            grad = autograd and argument.proxy.requires_grad
            self.wrapped[name] = tensor.requires_grad_() if grad else tensor

    def called(self, recorder: Recorder) -> Called:
        """Call the function, inside of `modes`.

        :raises CannotExpand: if it writes to an argument, or returns what is no tensor.
        """
        before = {n: w._version for n, w in self.wrapped.items()}
        with self.denied.watching(self.fn):
            outputs = to_core_tree(self.call(), plain)
        tensors = [leaf for leaf in leaves(outputs) if isinstance(leaf, torch.Tensor)]
        if any(map(is_symbolic, leaves(outputs))):
            raise CannotExpand("a number comes of a call on a tensor subclass")
        for name, tensor in self.wrapped.items():
            if (
                tensor._version != before[name]
                or self.refs_of(recorder, tensor) != self.parts[name]
            ):
                raise CannotExpand("it writes to an argument, and a tensor subclass is here")
        return Called(outputs, tensors, [self.refs_of(recorder, t) for t in tensors])

    def refs_of(self, recorder: Recorder, tensor: torch.Tensor) -> Parts:
        """The values that ``tensor`` consists of."""
        return tuple(recorder.ref(private.unwrapped(t)) for t in dense_tensors(tensor))

    # ------------------------------------------------------------------ describing

    def described(
        self,
        recorder: Recorder,
        called: Called,
        events: Sequence[Event],
        kept: Sequence[Ref] = (),
    ) -> Expansion:
        """What happened in ``events``; ``kept`` are values that are returned beside the outputs."""
        formal = {id(w): self.formals[n] for n, w in self.wrapped.items()}
        made: dict[int, Any] = {}

        def proxy(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return constant_leaf(leaf)
            known = formal.get(id(leaf)) or made.get(id(leaf))
            found = known or tensor_proxy(f"_{len(made)}", leaf)
            return made.setdefault(id(leaf), found)

        outputs = map_tree(proxy, called.outputs)
        proxies = [p for p in leaves(outputs) if isinstance(p, TensorProxy)]
        first = len(made)
        extra = [
            tensor_proxy(f"_{first + i}", recorder.values[r.index]) for i, r in enumerate(kept)
        ]
        inputs = [(self.formals[n], self.parts[n]) for n in self.arguments]
        results = [
            *zip(proxies, called.parts, strict=True),
            *((p, (r,)) for p, r in zip(extra, kept, strict=True)),
        ]
        body, found = self.body_of(recorder, inputs, results, events, self.grad, self.context)
        values = iter(found)
        tree = map_tree(lambda p: next(values), outputs, TensorProxy)
        returned = (tree, tuple(values)) if kept else tree
        at = {self.arguments[n].index: w for n, w in self.wrapped.items()}
        everything = [*called.tensors, *(recorder.values[r.index] for r in kept)]
        body = replace(body, outputs=returned)
        ordered = {r: None for c in body.calls for r in c.effects.ordered if r != "side_effect"}
        effects = Effects(aliases=shared(everything, at), ordered=tuple(ordered))
        return Expansion(
            (outputs, tuple(extra)) if kept else outputs,
            effects,
            body,
            "KERNEL",
            recorder.captured,
        )

    def body_of(
        self,
        recorder: Recorder,
        inputs: Sequence[tuple[Proxy, Parts]],
        results: Sequence[tuple[Proxy, Parts]],
        events: Sequence[Event],
        grad: bool,
        context: Context,
    ) -> tuple[Body, list[Proxy]]:
        """The body over ``inputs``, and the values in it that are ``results``."""
        given = [(value(p, parts), p) for p, parts in inputs]
        formals = {p.name: p for p, _ in inputs}
        builder = LevelBuilder(recorder, (), grad, context)
        wanted = [value(p, parts) for p, parts in results if p.name not in formals]
        body = builder.of_events(given, tuple(wanted), events)
        made = iter(body.outputs)
        found = [formals[p.name] if p.name in formals else next(made) for p, _ in results]
        return body, found


def shared(
    outputs: Sequence[torch.Tensor], arguments: Mapping[int, torch.Tensor]
) -> tuple[Alias, ...]:
    """Which of ``outputs`` share memory with ``arguments`` or each other, as wholes.

    Views of what others hold are no views to autograd.
    """
    return tuple(a for a in alias_facts(outputs, arguments) if a.kind != "internal")


def _assembled(proxy: TensorProxy, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if proxy.subclass is None else unflatten(layout_of(proxy), parts)
