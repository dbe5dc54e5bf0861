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
    Dim,
    Effects,
    NumberProxy,
    Proxy,
    SubclassInfo,
    Symbol,
    SymDim,
    TensorProxy,
    leaves,
    map_tree,
)

from tj_torch.ops import private
from tj_torch.ops.autograd_marks import autograd_marks
from tj_torch.ops.context import surroundings
from tj_torch.ops.convert import State, tensor_proxy, to_core_tree, value_proxy
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

Parts = tuple[Any, ...]
"""The references of the dense values that a tensor consists of: one for a plain tensor. Of a
symbolic number that no operator returned, it itself."""


@dataclass(frozen=True, slots=True)
class Called:
    """What a function returned: its tree, the tensors and numbers in it, and the parts of each.

    ``after`` are the parts of the arguments that it wrote, by name, ``versions`` how often each of
    these was counted to be written.
    """

    outputs: Any
    values: list[Any]
    parts: list[Parts]
    after: Mapping[str, Parts]
    versions: Mapping[str, int]

    @property
    def tensors(self) -> list[tuple[int, torch.Tensor]]:
        """The tensors, and their positions among all values."""
        return [(j, v) for j, v in enumerate(self.values) if isinstance(v, torch.Tensor)]


@dataclass
class WrappedRun(Run):
    """A run of a call that takes or returns tensor subclasses.

    ``parts`` are the dense values of each argument.

    It is not for writes that autograd has to see.
    """

    parts: dict[str, Parts] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> WrappedRun:
        """The same as ``run``, which found that the call makes a tensor subclass."""
        given = run.mode, run.table, run.denied, run.fn, run.tree, run.arguments, run.context
        made = cls(*given, run.sizes, run.autograd, run.nonleaf, run.decompose)
        if run.symbolic is not None:
            made.make_symbolic()
        return made

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
        for name, argument in self.arguments.items():
            if isinstance(argument.proxy, NumberProxy):
                number = self.numbers[name] = self._number(argument.proxy)
                self.parts[name] = (recorder.define(number),)
                continue
            tensor, self.parts[name] = self.made(recorder, argument.proxy)
            if argument.proxy.requires_grad and self.autograd:
                self.leaves[name] = tensor.requires_grad_()
            self.wrapped[name] = tensor

    def made(self, recorder: Recorder, proxy: TensorProxy) -> tuple[torch.Tensor, Parts]:
        """A tensor with the metadata of ``proxy``, and its parts."""
        fakes = self.dense_fakes(proxy)
        parts = tuple(recorder.define(fake) for fake in fakes)
        tensors = [private.functionalized(fake) for fake in fakes]
        for tensor in tensors:
            private.deny_data_pointer(tensor)
        return self.assembled(proxy, tensors), parts

    def dense_fakes(self, proxy: TensorProxy) -> list[torch.Tensor]:
        """Fake tensors with the metadata of the dense tensors that ``proxy`` consists of."""
        return [make_fake(self.mode, p, self.size) for p in dense_proxies(proxy)]

    def assembled(self, proxy: TensorProxy, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor with the metadata of ``proxy`` that consists of ``parts``."""
        if proxy.subclass is None:
            return parts[0]
        return unflatten(layout_of(proxy), parts, self.sizes_of(proxy))

    def sizes_of(self, proxy: Proxy) -> tuple[Any, ...]:
        """The numbers that are symbols where ``proxy`` is put together."""
        return tuple(self.size(n.name) for n in symbols_of_layout(proxy))

    def plainly(self, *, autograd: bool = False) -> None:
        """Make subclasses of plain fakes; with ``autograd`` they require gradients as those."""
        for name, argument in self.arguments.items():
            if isinstance(argument.proxy, NumberProxy):
                self.numbers[name] = self._number(argument.proxy)
                continue
            tensor = self.assembled(argument.proxy, self.dense_fakes(argument.proxy))
            grad = autograd and argument.proxy.requires_grad
            self.wrapped[name] = tensor.requires_grad_() if grad else tensor

    def called(self, recorder: Recorder) -> Called:
        """Call the function, inside of `modes`.

        :raises CannotExpand: if it writes what autograd knows, or gives an argument other parts.
        """
        before = {n: (w._version, [*dense_tensors(w)]) for n, w in self.wrapped.items()}
        with self.denied.watching(self.fn, self.wrapped.values()):
            outputs = to_core_tree(self.call(), plain)
        values = [x for x in leaves(outputs) if isinstance(x, torch.Tensor) or is_symbolic(x)]
        versions = {n: w._version - before[n][0] for n, w in self.wrapped.items()}
        after = {n: self.refs_of(recorder, w) for n, w in self.wrapped.items()}
        written = [n for n, now in after.items() if versions[n] or now != self.parts[n]]
        for name in written:
            self.check_write(name, before[name][1])
        return Called(
            outputs,
            values,
            [self.refs_of(recorder, v) for v in values],
            {n: after[n] for n in written},
            {n: versions[n] for n in written},
        )

    def check_write(self, name: str, parts: Sequence[torch.Tensor]) -> None:
        """See that argument ``name``, which consisted of ``parts``, is written and else the same.

        :raises CannotExpand: if it is not, or autograd has to see the write.
        """
        tensor, formal = self.wrapped[name], self.formals[name]
        if self.grad and self.leaves:
            raise CannotExpand("it writes to an argument, beside a tensor that needs a gradient")
        now = tensor_proxy(formal.name, tensor)
        same = [old is new for old, new in zip(parts, dense_tensors(tensor), strict=False)]
        if not all(same) or not now.replace(requires_grad=formal.requires_grad).same_meta(formal):
            raise CannotExpand("it makes another tensor subclass of an argument")

    def refs_of(self, recorder: Recorder, tensor: Any) -> Parts:
        """The values that ``tensor`` consists of; a number is its own."""
        if not isinstance(tensor, torch.Tensor):
            return (tensor,)
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
            if not isinstance(leaf, torch.Tensor) and not is_symbolic(leaf):
                return constant_leaf(leaf)
            known = formal.get(id(leaf)) or made.get(id(leaf))
            found = known or value_proxy(f"_{len(made)}", leaf)
            return made.setdefault(id(leaf), found)

        outputs = map_tree(proxy, called.outputs)
        proxies = [p for p in leaves(outputs) if isinstance(p, Proxy)]
        first = len(made)
        extra = [value_proxy(f"_{first + i}", recorder.values[r.index]) for i, r in enumerate(kept)]
        inputs = [(self.formals[n], self.parts[n]) for n in self.arguments]
        new = {
            self.formals[n].name: self.formals[n].replace(name=f"_{first + len(kept) + i}")
            for i, n in enumerate(called.after)
        }
        results = [
            *((new.get(p.name) or p, ps) for p, ps in zip(proxies, called.parts, strict=True)),
            *((p, (r,)) for p, r in zip(extra, kept, strict=True)),
            *zip(new.values(), called.after.values(), strict=True),
        ]
        checks = self.symbolic.checks if self.symbolic else {}
        body, found = self.body_of(
            recorder, inputs, results, calls, self.grad, self.context, checks
        )
        values = iter(found)
        tree = map_tree(lambda p: next(values), outputs, Proxy)
        beside = tuple(itertools.islice(values, len(kept)))
        returned = (tree, beside) if kept else tree
        written = tuple(self.arguments[n].index for n in called.after)
        updates = tuple(zip(written, values, strict=True))
        versions = {self.arguments[n].index: count for n, count in called.versions.items()}
        at = {self.arguments[n].index: w for n, w in self.wrapped.items()}
        everything = [*called.values, *(recorder.values[r.index] for r in kept)]
        body = replace(body, outputs=returned, updates=updates)
        ordered = {r: None for c in body.calls for r in c.effects.ordered if r != "side_effect"}
        marks = tuple(autograd_marks(versions, ()))
        effects = Effects(written, (), shared(everything, at), tuple(ordered), marks)
        return Expansion(
            (outputs, tuple(extra)) if kept else outputs,
            effects,
            body,
            "KERNEL",
            recorder.captured,
            self.symbols,
            self.symbolic.made if self.symbolic else (),
            self.symbolic.guards if self.symbolic else (),
        )

    def body_of(
        self,
        recorder: Recorder,
        inputs: Sequence[tuple[Proxy, Parts]],
        results: Sequence[tuple[Proxy, Parts]],
        calls: Sequence[Recorded],
        grad: bool,
        context: Context,
        checks: Mapping[str, str] | None = None,
    ) -> tuple[Body, list[Any]]:
        """The body over ``inputs``, and the values in it that are ``results``.

        It asserts ``checks``: conditions on sizes, with messages.
        """
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
        formals = {p.name: p for p, _ in inputs}
        flat = [(parts, () if p.name in formals else self.sizes_of(p)) for p, parts in results]
        builder = self.builder(recorder, pairs, grad, context, checks or {})
        builder.defined = next(count)
        body = builder.build(tuple(flat), calls=calls)
        count = itertools.count(builder.defined)
        tail: list[BoundSymbol] = []
        found: list[Any] = []
        known: dict[str, Proxy] = {}
        for (p, _), (mine, sizes) in zip(results, body.outputs, strict=True):
            if p.name in formals:
                found.append(formals[p.name])
            elif isinstance(p, TensorProxy) and p.subclass is not None:
                if p.name not in known:
                    tail.append(unflatten_call(_plain(p, fresh()), mine, sizes))
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


def unflatten_call(
    proxy: TensorProxy, parts: Iterable[Proxy], sizes: Iterable[Any] = ()
) -> BoundSymbol:
    """The call that makes ``proxy`` of its dense ``parts``, with ``sizes`` where it has symbols."""
    layout = layout_of(proxy)
    described = repr(_unnamed(proxy)).encode()
    kind = layout.kind.__name__
    text = f"_{kind}_{hashlib.sha256(described).hexdigest()[:12]}"
    constant = Constant(text, _LAYOUTS.setdefault(text, layout), named=False)
    sizes = tuple(sizes)
    args = (constant, tuple(parts), sizes) if sizes else (constant, tuple(parts))
    return BoundSymbol(UNFLATTEN, args, outputs=proxy)


def _unnamed(proxy: TensorProxy) -> tuple[Any, ...]:
    """What tells the layout of ``proxy`` from others."""
    p = proxy.map_symbols(lambda _: SymDim("?"))
    return p.subclass, p.shape, p.strides


def layout_of(proxy: TensorProxy) -> Layout:
    """How a tensor like ``proxy`` is made of its parts.

    :raises CannotExpand: if that is not known, or depends on a size that is a symbol.
    """
    info = proxy.subclass
    assert isinstance(info, SubclassInfo)
    if not isinstance(info.state, State):
        raise CannotExpand(f"how a {info.type} is made is not known here")
    parts = tuple((n, None if p.subclass is None else layout_of(p)) for n, p in info.inner)
    state = info.state
    rest = tuple(state.rest.items())
    shape, strides = _known(proxy.shape), _known(proxy.strides)
    return Layout(state.kind, parts, state.context, rest, shape, strides)


def _known(dims: tuple[Dim, ...]) -> tuple[int | None, ...]:
    return tuple(n if isinstance(n, int) else None for n in dims)


def symbols_of_layout(proxy: Proxy) -> Iterator[SymDim]:
    """What the layout of ``proxy`` leaves open, in the order that `unflatten` takes it."""
    if not isinstance(proxy, TensorProxy) or proxy.subclass is None:
        return
    yield from (n for n in (*proxy.shape, *proxy.strides) if isinstance(n, SymDim))
    for _, part in proxy.subclass.inner:
        yield from symbols_of_layout(part)
