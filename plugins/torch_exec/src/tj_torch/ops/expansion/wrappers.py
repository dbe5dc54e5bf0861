"""Calls on tensor subclasses: run on fake ones, whose inner tensors are recorded.

The operators of a subclass run above functionalization::

    autograd -> __torch_dispatch__ -> functionalization -> recorder -> fake tensors

so a body is dense: it flattens the arguments, computes with what is in them, and puts the results
together. The leaves of the autograd graph are the subclasses themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tj_core.extend import (
    Alias,
    Body,
    BoundSymbol,
    Constant,
    Context,
    Effects,
    Proxy,
    SubclassInfo,
    Symbol,
    TensorProxy,
    leaves,
    map_tree,
)

from tj_torch.ops import private
from tj_torch.ops.context import surroundings
from tj_torch.ops.convert import State, tensor_proxy, to_core_tree
from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.expansion.arguments import make_fake
from tj_torch.ops.expansion.body import alias_facts
from tj_torch.ops.expansion.recorder import Recorded, Recorder, Ref
from tj_torch.ops.expansion.run import Expansion, Run, constant_leaf
from tj_torch.ops.sizes.shape_env import is_symbolic, plain
from tj_torch.runtime.subclasses import Layout, dense_tensors, unflatten

__all__ = ["FLATTEN", "UNFLATTEN", "Parts", "WrappedRun", "shared"]

FLATTEN, UNFLATTEN = Symbol("tj", "flatten"), Symbol("tj", "unflatten")

_LAYOUTS: weakref.WeakValueDictionary[str, Layout] = weakref.WeakValueDictionary()
"""The layouts that programs hold, by name: one object for equal ones."""

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

    ``parts`` are the dense values of each argument.

    Writes to arguments, sizes that are symbols, and calls that return numbers are not for it.
    """

    parts: dict[str, Parts] = field(default_factory=dict)

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
        return self.described(recorder, called, recorder.calls)

    def functionalization(self) -> contextlib.AbstractContextManager[None]:
        """Functionalization with subclasses above it."""
        return private.functionalization_below_subclasses()

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
        with self.denied.watching(self.fn, self.wrapped.values()):
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
        calls: Sequence[Recorded],
        kept: Sequence[Ref] = (),
    ) -> Expansion:
        """What happened in ``calls``; ``kept`` are values that are returned beside the outputs."""
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
        body, found = self.body_of(recorder, inputs, results, calls, self.grad, self.context)
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
        calls: Sequence[Recorded],
        grad: bool,
        context: Context,
    ) -> tuple[Body, list[Proxy]]:
        """The body over ``inputs``, and the values in it that are ``results``."""
        count = itertools.count()

        def fresh() -> str:
            return f"_{next(count)}"

        head: list[BoundSymbol] = []
        pairs: list[tuple[Ref, Proxy]] = []
        for formal, parts in inputs:
            values: Sequence[Proxy] = (formal,)
            if isinstance(formal, TensorProxy) and formal.subclass is not None:
                head.append(flatten_call(formal, fresh))
                values = head[-1].flat_outs
            pairs += zip(parts, values, strict=True)
        flat = [ref for _, parts in results for ref in parts]
        builder = self.builder(recorder, pairs, grad, context, {})
        builder.defined = next(count)
        body = builder.build(tuple(flat), calls=calls)
        count = itertools.count(builder.defined)
        inner = iter(body.outputs)
        tail: list[BoundSymbol] = []
        found: list[Proxy] = []
        formals = {p.name: p for p, _ in inputs}
        known: dict[str, Proxy] = {}
        for p, parts in results:
            mine = [next(inner) for _ in parts]
            if p.name in formals:
                found.append(formals[p.name])
            elif isinstance(p, TensorProxy) and p.subclass is not None:
                if p.name not in known:
                    tail.append(unflatten_call(_plain(p, fresh()), mine))
                    known[p.name] = tail[-1].flat_outs[0]
                found.append(known[p.name])
            else:
                found.append(mine[0])
        inputs_ = tuple(p for p, _ in inputs)
        return Body(inputs_, (*head, *body.calls, *tail), None), found


def shared(
    outputs: Sequence[torch.Tensor], arguments: Mapping[int, torch.Tensor]
) -> tuple[Alias, ...]:
    """Which of ``outputs`` share memory with ``arguments`` or each other, as wholes.

    Views of what others hold are no views to autograd.
    """
    return tuple(a for a in alias_facts(outputs, arguments) if a.kind != "internal")


def dense_proxies(proxy: TensorProxy) -> Iterator[TensorProxy]:
    """The dense tensors that ``proxy`` consists of, called like the attributes; or itself."""
    if proxy.subclass is None:
        yield proxy
        return
    for _, part in proxy.subclass.inner:
        yield from dense_proxies(part)


def _plain(proxy: TensorProxy, name: str) -> TensorProxy:
    return proxy.replace(name=name, requires_grad=False)


def flatten_call(proxy: TensorProxy, fresh: Callable[[], str]) -> BoundSymbol:
    """The call that takes ``proxy`` apart, into values that ``fresh`` names."""
    outputs = tuple(_plain(p, fresh()) for p in dense_proxies(proxy))
    aliases = tuple(Alias(i, "arg", 0) for i in range(len(outputs)))
    return BoundSymbol(FLATTEN, (proxy,), outputs=outputs, effects=Effects(aliases=aliases))


def unflatten_call(proxy: TensorProxy, parts: Iterable[Proxy]) -> BoundSymbol:
    """The call that makes ``proxy`` of its dense ``parts``."""
    parts = tuple(parts)
    layout = layout_of(proxy)
    described = repr((proxy.subclass, proxy.shape, proxy.strides)).encode()
    kind = layout.kind.__name__
    text = f"_{kind}_{hashlib.sha256(described).hexdigest()[:12]}"
    constant = Constant(text, _LAYOUTS.setdefault(text, layout), named=False)
    return BoundSymbol(UNFLATTEN, (constant, parts), outputs=proxy)


def layout_of(proxy: TensorProxy) -> Layout:
    """How a tensor like ``proxy`` is made of its parts.

    :raises CannotExpand: if that is not known, or a size is a symbol.
    """
    info = proxy.subclass
    assert isinstance(info, SubclassInfo)
    if not isinstance(info.state, State):
        raise CannotExpand(f"how a {info.type} is made is not known here")
    if any(not isinstance(n, int) for n in (*proxy.shape, *proxy.strides)):
        raise CannotExpand("a tensor subclass has a size that is a symbol")
    parts = tuple((n, None if p.subclass is None else layout_of(p)) for n, p in info.inner)
    state = info.state
    rest = tuple(state.rest.items())
    return Layout(state.kind, parts, state.context, rest, proxy.shape, proxy.strides)  # type: ignore[arg-type]


def _assembled(proxy: TensorProxy, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if proxy.subclass is None else unflatten(layout_of(proxy), parts)
