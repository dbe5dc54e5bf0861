"""Run one call on fake tensors, and describe it: outputs, effects and body.

The function runs as PyTorch runs it: autograd first, then functionalization, below it the
recorder, below that the fake tensors::

    autograd -> functionalization -> recorder -> fake tensors

so that views and writes behave as in eager while the recording is functional.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    Body,
    Constant,
    Context,
    Effects,
    NumberProxy,
    Proxy,
    TensorProxy,
    formal_input,
    formal_value,
    leaves,
    map_tree,
)

from tj_torch.ops.context.entering import expansion_context, surroundings
from tj_torch.ops.errors import CannotExpand, MakesSubclass
from tj_torch.ops.expansion.arguments import Argument, make_fake
from tj_torch.ops.expansion.autograd_info import NonLeaf, may_require_grad, runs_python
from tj_torch.ops.expansion.body import BodyBuilder, alias_facts
from tj_torch.ops.expansion.copies import without_copies
from tj_torch.ops.expansion.expansion import Expansion
from tj_torch.ops.expansion.recorder import Recorded, Recorder, Ref
from tj_torch.ops.expansion.refused_writes import refused_writes
from tj_torch.ops.facts.autograd_marks import autograd_marks
from tj_torch.ops.facts.schema_effects import schema_effects
from tj_torch.ops.fakes.modes import decompositions
from tj_torch.ops.sizes.program import Sizes, bare, symbols_in
from tj_torch.ops.sizes.shape_env import RunSymbols, is_symbolic, plain, symbols_of
from tj_torch.ops.values.convert import (
    dim_to_core,
    number_proxy,
    tensor_proxy,
    to_core,
    to_core_tree,
)
from tj_torch.runtime.functional import Functional, Inverse
from tj_torch.torch_private import ops as private

if TYPE_CHECKING:
    from tj_torch.ops.facts.denials import Denied
    from tj_torch.ops.facts.operators import OpTable

__all__ = ["Run", "Traced", "constant_leaf"]


@dataclass(frozen=True, slots=True)
class Traced:
    """Results of a function, and its arguments after the call.

    ``outputs`` is the tree of results, ``values`` the tensors and symbolic numbers in it, ``inner``
    the tree with a reference for each tensor. ``after`` has the arguments' values by name,
    ``mutated`` the names of written ones, ``events`` of those whose metadata changed without
    a write. ``versions`` has the bumps of the version counters of both, ``untracked`` the names of
    written ones whose write autograd does not see though gradients are on.
    """

    outputs: Any
    values: list[Any]
    inner: Any
    after: Mapping[str, Ref]
    mutated: tuple[str, ...]
    events: frozenset[str]
    versions: Mapping[str, int]
    untracked: frozenset[str]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Tensors in ``outputs``."""
        return [x for x in self.values if isinstance(x, torch.Tensor)]


@dataclass
class Run:
    """Run of one call.

    ``autograd``: fakes require grad as the arguments do; ``nonleaf``: the function gets non-leaf
    tensors; ``decompose``: PyTorch's Python decompositions run. ``symbolic`` has the symbols of
    a run with symbolic sizes. ``leaves`` are the leaves of the autograd graph, by argument.
    """

    mode: Any
    table: OpTable
    denied: Denied
    fn: Callable[..., Any]
    tree: tuple[tuple[Any, ...], dict[str, Any]]
    arguments: Mapping[str, Argument]
    context: Context
    sizes: Sizes
    autograd: bool = True
    nonleaf: bool = False
    decompose: bool = False
    symbolic: RunSymbols | None = None
    wrapped: dict[str, torch.Tensor] = field(default_factory=dict)
    leaves: dict[str, torch.Tensor] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    refs: dict[str, Ref] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.grad, self.rest = expansion_context(self.context)
        self.symbols = symbols_in(self.tree)
        self.formals = {n: bare(a.formal) for n, a in self.arguments.items()}

    def make_symbolic(self) -> None:
        """Use a new shape environment, with symbolic sizes and numbers."""
        self.symbolic = self.sizes.of_run(self.symbols)
        self.mode = self.symbolic.mode

    def again(self) -> None:
        """Drop the last attempt's decisions on symbols."""
        if self.symbolic is not None:
            self.make_symbolic()

    # ------------------------------------------------------------------ running

    def expansion(self) -> Expansion:
        """Run the function under the recorder; describe the recording as an expansion."""
        recorder = self.recorder()
        with surroundings(self.grad, self.rest):
            self.wrap(recorder)
            with self.modes(recorder):
                traced = self.trace(recorder)
        return self.describe(recorder, traced, self.needed(recorder, traced))

    def recorder(self) -> Recorder:
        """A recorder of the function's operators."""
        return Recorder(self.table, self.decompose, self.fn)

    def needed(self, recorder: Recorder, traced: Traced) -> list[Recorded]:
        """Recorded calls, without the copies that a functional form makes of its arguments."""
        if not isinstance(self.fn, Functional | Inverse):
            return recorder.calls
        returned = [leaf for leaf in leaves(traced.inner) if isinstance(leaf, Ref)]
        return without_copies(recorder, recorder.calls, [*returned, *traced.after.values()])

    @contextlib.contextmanager
    def modes(self, recorder: Recorder) -> Iterator[None]:
        """Enter the layers that a call runs on: functionalization, recorder, fake tensors."""
        with (
            self.mode,
            decompositions(self.decompose),
            recorder,
            self.functionalization(),
        ):
            yield

    def functionalization(self) -> contextlib.AbstractContextManager[None]:
        """Context that functionalizes operators above the recorder."""
        return private.functionalization()

    def trace(self, recorder: Recorder) -> Traced:
        """Call the function inside of `modes`.

        :raises CannotExpand: if the recording cannot describe what kernels do.
        """
        before = {n: (w._version, w.grad_fn) for n, w in self.wrapped.items()}
        with self.denied.watching(self.fn, self.wrapped.values(), wrappers=False):
            result = self.call()
        outputs = _output_tree(result)
        if reason := refused_writes(recorder, self.tree[1]):
            raise CannotExpand(reason)
        after = {n: recorder.ref(private.unwrapped(w)) for n, w in self.wrapped.items()}
        values = [x for x in leaves(outputs) if isinstance(x, torch.Tensor) or is_symbolic(x)]
        tensors = [x for x in values if isinstance(x, torch.Tensor)]
        refs = iter([recorder.ref(private.unwrapped(t)) for t in tensors])
        inner = map_tree(lambda _: next(refs), outputs, torch.Tensor)
        changed = [n for n, ref in after.items() if ref != self.refs[n]]
        idle = {n for n in self._counted(before) if _is_in_place(self.fn)} - set(changed)
        mutated = tuple(n for n in after if n in idle or (n in changed and self._mutated(n)))
        if self._outs() - {*changed, *idle}:
            raise CannotExpand("functionalization loses a write to out=")
        # An in-place metadata change to the same shape is an event, too: it bumps the version.
        events = frozenset(changed) - frozenset(mutated)
        # Fake tensors do not count writes to tensors in lists, as by foreach operators; eager does.
        if any(self._listed(n) > 1 for n in mutated):
            raise CannotExpand("functionalization writes only once to a tensor listed twice")
        versions = {
            n: self.wrapped[n]._version - before[n][0] or self._listed(n)
            for n in (*mutated, *events)
        }
        untracked = frozenset(n for n in mutated if self.is_untracked(n, before[n][1]))
        return Traced(outputs, values, inner, after, mutated, events, versions, untracked)

    def _outs(self) -> set[str]:
        """Names of the arguments given as ``out=``."""
        if isinstance(self.fn, Functional):
            return set()
        return {p.name for p in leaves(self.tree[1].get("out")) if isinstance(p, Proxy)}

    def _counted(self, before: Mapping[str, tuple[int, Any]]) -> Iterator[str]:
        """Names of the arguments whose version went up.

        Even without a write: ``conj_physical_`` of real numbers does nothing, and counts.
        """
        return (n for n, w in self.wrapped.items() if w._version > before[n][0])

    def _listed(self, name: str) -> int:
        """Number of times that an argument appears in lists."""
        args, kwargs = self.tree
        lists = [x for x in (*args, *kwargs.values()) if isinstance(x, tuple | list)]
        return sum(isinstance(x, Proxy) and x.name == name for x in leaves(lists))

    def is_untracked(self, name: str, history: Any) -> bool:
        """Test if autograd, with gradients on, does not see the write to an argument."""
        proxy = self.arguments[name].proxy
        assert isinstance(proxy, TensorProxy)
        if not (self.grad and self.autograd and proxy.requires_grad):
            return False
        # A write that autograd sees gives the tensor a new `grad_fn`.
        return self.wrapped[name].grad_fn is history

    def by_schema(self) -> Expansion:
        """Expansion with results from plain fakes, and effects from the operator's schema."""
        self.autograd = False
        with surroundings(self.grad, self.rest):
            self.plainly()
            with self.mode:
                outputs = _output_tree(self.call())
        effects = schema_effects(self.fn, *self.tree, outputs)
        mutated = set(effects.mutates)
        at = self.arguments
        now = {n: self._afterwards(n, at[n].index in mutated) for n in self.wrapped}
        changes = tuple((at[n].index, p) for n, p in now.items() if p != at[n].formal)
        return Expansion(
            self._proxies(outputs, now), replace(effects, rebinds=changes), None, "KERNEL"
        )

    def wrap(self, recorder: Recorder) -> None:
        """Make the arguments that the function is called with."""
        for name, argument in self.arguments.items():
            if isinstance(argument.proxy, NumberProxy):
                number = self.numbers[name] = self._number(argument.proxy)
                self.refs[name] = recorder.define(number)
                continue
            fake = make_fake(self.mode, argument.proxy, self.size)
            self.refs[name] = recorder.define(fake)
            self.wrapped[name] = self._functional(name, fake, argument.proxy)

    def size(self, text: str) -> Any:
        """Symbolic or plain number of this run for a size expression."""
        assert self.symbolic is not None
        return self.symbolic.number(text)

    def _number(self, proxy: NumberProxy) -> Any:
        assert self.symbolic is not None
        return self.symbolic.number(proxy.expr, proxy.kind)

    def _functional(self, name: str, fake: torch.Tensor, proxy: TensorProxy) -> torch.Tensor:
        tensor = private.functionalized(fake)
        if proxy.requires_grad and self.autograd:
            self.leaves[name] = tensor.requires_grad_()
            if self.nonleaf:
                # A write in place to a leaf that requires grad raises; to another tensor it does
                # not.
                tensor = NonLeaf.of(tensor, lambda: private.functionalized(fake))
        private.deny_data_pointer(tensor)
        return tensor

    def call(self) -> Any:
        """Call the function on the values made for its arguments."""
        args, kwargs = map_tree(self._actual, self.tree)
        run = self.fn.on_fakes if isinstance(self.fn, Functional) else self.fn
        return run(*args, **kwargs)

    def _actual(self, leaf: Any) -> Any:
        if isinstance(leaf, NumberProxy):
            return self.numbers[leaf.name]
        if isinstance(leaf, Proxy):
            return self.wrapped[leaf.name]
        return leaf.value if isinstance(leaf, Constant) else leaf

    def plainly(self, *, autograd: bool = False) -> None:
        """Make plain fakes for the arguments; with ``autograd``, they require grad as those do."""
        for name, argument in self.arguments.items():
            if isinstance(argument.proxy, NumberProxy):
                self.numbers[name] = self._number(argument.proxy)
                continue
            fake = make_fake(self.mode, argument.proxy, self.size)
            grad = autograd and argument.proxy.requires_grad
            self.wrapped[name] = fake.requires_grad_() if grad else fake

    def plain(self) -> None:
        """Run the function on plain fake tensors, to find out if that raises."""
        with surroundings(self.grad, self.rest):
            self.plainly()
            with self.mode, decompositions(self.symbolic is not None):
                self.call()

    # ------------------------------------------------------------------ describing

    def describe(self, recorder: Recorder, traced: Traced, calls: Sequence[Recorded]) -> Expansion:
        """Expansion for ``calls``, which `trace` recorded."""
        body = self.body(recorder, traced, calls)
        mutated = traced.mutated
        now = {n: self._afterwards(n, n in mutated) for n in self.wrapped}
        at = {name: argument.index for name, argument in self.arguments.items()}
        versions = {at[n]: count for n, count in traced.versions.items()}
        effects = Effects(
            tuple(at[n] for n in mutated),
            tuple(self._rebinds(now, traced.events)),
            alias_facts(
                traced.values, {self.arguments[n].index: w for n, w in self.wrapped.items()}
            ),
            _ordered(body, bool(traced.values or mutated)) if body else (),
            tuple(autograd_marks(versions, (at[n] for n in mutated if n in traced.untracked))),
        )
        kernel = any(not c.facts.builtin for c in calls)
        kernel = kernel or runs_python([*traced.tensors, *(self.wrapped[n] for n in mutated)])
        return Expansion(
            self._proxies(traced.outputs, now),
            effects,
            body,
            "KERNEL" if kernel else "COMPOSITE",
            recorder.captured,
            self.symbols,
            self.symbolic.made if self.symbolic else (),
            self.symbolic.guards if self.symbolic else (),
        )

    def body(
        self,
        recorder: Recorder,
        traced: Traced,
        calls: Sequence[Recorded],
        intermediates: Sequence[Ref] | None = None,
    ) -> Body | None:
        """Build the body; None for a function that computes only numbers or sizes.

        With ``intermediates``, its outputs are the pair of the call's outputs and these.
        """
        inner = map_tree(constant_leaf, traced.inner)
        if not calls and any(is_symbolic(leaf) for leaf in leaves(inner)):
            return None
        inputs = [(self.refs[n], self.formals[n]) for n in self.arguments]
        updates = [(self.arguments[n].index, traced.after[n]) for n in traced.mutated]
        outputs = inner if intermediates is None else (inner, tuple(intermediates))
        checks = self.symbolic.checks if self.symbolic else {}
        return self.builder(recorder, inputs, self.grad, self.context, checks).build(
            outputs, updates, calls
        )

    def builder(
        self,
        recorder: Recorder,
        inputs: Sequence[tuple[Ref, Proxy]],
        grad: bool,
        context: Context,
        checks: Mapping[str, str],
    ) -> BodyBuilder:
        """Builder of a body over ``inputs``, with the symbols of this run."""
        return BodyBuilder(recorder, inputs, grad, context, self.sympy_symbols(), checks)

    def sympy_symbols(self) -> Mapping[str, Any]:
        """Sympy symbols of this run, by name."""
        return symbols_of(self.symbolic.env) if self.symbolic else {}

    def _rebinds(
        self, now: Mapping[str, TensorProxy], events: Container[str]
    ) -> Iterator[tuple[int, TensorProxy]]:
        """Arguments whose metadata the call changed; a size fixed by a guard is no change."""
        for name, after in now.items():
            before = self.formals[name]
            if name in events or (after != before and after != self._fixed(before)):
                yield self.arguments[name].index, after

    def _fixed(self, proxy: TensorProxy) -> TensorProxy:
        if self.symbolic is None:
            return proxy
        return proxy.map_symbols(lambda size: dim_to_core(self.size(size.name)))

    def _mutated(self, name: str) -> bool:
        """Test if a changed argument was written, not only changed in metadata."""
        tensor = self.wrapped[name]
        if private.data_mutated(tensor):
            return True
        # `t_()` and the like: functionalization makes a new value for these, too.
        if private.metadata_mutated(tensor):
            return False
        # As by `x.set_(y)`, which is neither a write nor a change of metadata.
        raise CannotExpand("an argument is given other storage")

    def _afterwards(self, name: str, mutated: bool) -> TensorProxy:
        """Metadata of an argument after the call, under its formal name."""
        argument, tensor = self.arguments[name], self.wrapped[name]
        assert isinstance(argument.proxy, TensorProxy)
        proxy = tensor_proxy(formal_input(argument.index), tensor)
        if mutated and proxy.shape == argument.proxy.shape and not private.metadata_mutated(tensor):
            # The new value of functionalization has strides of its own; a write keeps them.
            proxy = proxy.replace(strides=argument.proxy.strides)
        if self.autograd:
            return proxy
        requires = argument.proxy.requires_grad or (mutated and self._requires_grad(proxy))
        return proxy.replace(requires_grad=requires)

    def _proxies(self, outputs: Any, now: Mapping[str, TensorProxy]) -> Any:
        """Outputs as proxies: an argument under its formal name, others as ``_0``, ``_1``, ..."""
        formal = {id(self.wrapped[n]): proxy for n, proxy in now.items()}
        count = iter(range(1 << 30))

        def proxy(leaf: Any) -> Any:
            if is_symbolic(leaf):
                return number_proxy(formal_value(next(count)), leaf)
            if not isinstance(leaf, torch.Tensor):
                return constant_leaf(leaf)
            name = formal_value(next(count))
            return formal.get(id(leaf)) or self._result(name, leaf)

        return map_tree(proxy, outputs)

    def _result(self, name: str, tensor: torch.Tensor) -> TensorProxy:
        proxy = tensor_proxy(name, tensor)
        if self.autograd:
            return proxy
        return proxy.replace(requires_grad=self._requires_grad(proxy))

    def _requires_grad(self, proxy: TensorProxy) -> bool:
        proxies = (a.proxy for a in self.arguments.values())
        arguments = [p for p in proxies if isinstance(p, TensorProxy)]
        return may_require_grad(self.grad, arguments, proxy.dtype)


def _is_in_place(fn: Callable[..., Any]) -> bool:
    """Test for the name of an in-place function, which ends with one underscore."""
    name = str(getattr(fn, "__name__", "")).partition(".")[0]
    return name.endswith("_") and not name.endswith("__")


def _output_tree(result: Any) -> Any:
    """``result`` in the core's containers.

    :raises CannotExpand: if it holds anything but tensors and constants.
    """

    def leaf(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and hasattr(type(value), "__tensor_flatten__"):
            raise MakesSubclass(type(value))
        return plain(value)

    return to_core_tree(result, leaf)


def constant_leaf(leaf: Any) -> Any:
    """Core leaf for an output's leaf; references, tensors and symbolic numbers stay.

    :raises CannotExpand: for an object without a literal form.
    """
    if isinstance(leaf, Ref | torch.Tensor) or is_symbolic(leaf):
        return leaf
    found = to_core(leaf)
    if isinstance(found, Constant) and not found.named:
        raise CannotExpand(f"a result is a {type(leaf).__name__}")
    return found


def _ordered(body: Body, returns: bool) -> tuple[str, ...]:
    """Ordered effects of a call: generators, process groups, and ``side_effect``.

    PyTorch's own checks on the way to a result do not count as side effects; operators of an
    extension without results do, and all of a call that ``returns`` nothing.
    """
    found = {
        resource: None
        for call in body.calls
        for resource in call.effects.ordered
        if resource != "side_effect" or not returns or call.symbol.namespace != "aten"
    }
    return tuple(found)
