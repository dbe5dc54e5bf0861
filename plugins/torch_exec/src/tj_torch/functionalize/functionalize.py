"""Functionalize a program: writes become calls that compute new values.

A call that writes becomes its functional form, which returns the new values of written arguments.
For a view, the inverses of the views on its path give the new value of the root; every other view
of the root is computed again from it at its next use. A write that autograd does not see changes
the value and keeps its autograd history: ``tj.with_value``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tj_core.extend import (
    FUNCTIONAL,
    BoundSymbol,
    Expand,
    Proxy,
    RuleTable,
    Symbol,
    Tag,
    TagRegistry,
    TagSet,
    TensorProxy,
    TjError,
    Trace,
    leaves,
    requires_grad,
    substituted,
)
from tj_core.internal import INVERSE, Place, ViewStep, reexpand

from tj_torch.functionalize.bases import MEMORY, members
from tj_torch.functionalize.emitter import WITH_STRIDES, Emitter
from tj_torch.functionalize.forms import (
    data,
    detach,
    maker,
    may_be_saved,
    on_behalf,
    out_of_place,
    output_place,
    problem,
    versioned,
)
from tj_torch.functionalize.inplace_argument import saves_what_it_writes
from tj_torch.functionalize.objects import (
    Objects,
    Unsuitable,
    cuts_gradients,
    goes_by_memory,
    is_metadata_change,
    overlaps_itself,
    reads_data,
    tensor_place,
)
from tj_torch.functionalize.subprograms import functional_subprograms
from tj_torch.ops.expansion.kinds import Kinds, NoTensorKind
from tj_torch.ops.facts.autograd_marks import UNTRACKED, VERSIONS
from tj_torch.ops.facts.metadata_mutation import detaches, is_autograd_change, why_not_functional

__all__ = ["OVERWRITTEN", "WITH_VALUE", "Functionalized", "Write", "functionalize"]

OVERWRITTEN = Tag(
    "OVERWRITTEN",
    "the acquired program writes to this value's memory later, so that autograd would refuse "
    "to use it for a gradient",
    carriers=frozenset({"proxy"}),
    into_body=False,
    through_views=True,
)

SETS_GRAD = "_C._set_grad_enabled"
VERSIONED = Symbol("tj", "versioned")
WITH_VALUE = Symbol("tj", "with_value")


@dataclass(frozen=True, slots=True)
class Write:
    """Last write through an object, which was at ``place`` at that time.

    ``position`` is the number of view-making calls before it; ``visible`` is true if autograd sees
    this write or an earlier one.
    """

    place: Place
    position: int
    visible: bool


def functionalize(
    trace: Trace, *, expand: RuleTable[Expand], tags: TagRegistry, kinds: Kinds, joint: bool
) -> Functionalized:
    """Make ``trace`` functional. ``kinds`` check writes to subclasses; `Emitter` says ``joint``.

    :raises Unsuitable: if it cannot be made functional.
    """
    try:
        for kind in kinds.in_trace(trace):
            kind.check_writes(trace)
    except NoTensorKind as error:
        raise Unsuitable(error.message) from error
    run = Functionalized(trace, expand, tags, kinds, joint)
    if run.differentiates and any(MEMORY.name in p.tags for p in trace.inputs):
        raise Unsuitable("autograd knows nothing of memory that arguments share")
    for p in trace.inputs:
        run.begin(p)
    for found in functional_subprograms(trace, expand, tags):
        try:
            run.call(found.call)
        except Unsuitable as error:
            raise Unsuitable(error.reason, found.call.source) from error
        for p in found.overwritten:
            run.overwrite(run.objects.place(p).root)
    run.objects.check_use(leaves(trace.outputs))
    run.versioned()
    return run


@dataclass
class Functionalized(Emitter):
    """State of functionalization; calls of ``trace`` are converted one by one.

    ``value`` returns the value at a place at the end; it may add calls to the ``editor``.
    ``writes`` are the last writes to each root, by the object written through; ``roots`` is the
    place of the root's own object at the last of these writes. ``views`` are the acquired calls
    that make views or change metadata, ``last`` the calls for the very end. The ``editor`` tags
    values whose memory is written later with `OVERWRITTEN`. ``autograd_changes`` are the calls that
    change autograd metadata of an input; ``cut`` are the roots that were detached in place and may
    have had views.

    ``values`` has the latest value computed for each place, with the root's version at that time;
    ``versions`` the number of writes to each root; ``twins`` other names of values; ``direct`` the
    names of values that were computed for a view itself, not read off its root.
    """

    objects: Objects = field(default_factory=Objects)
    writes: dict[str, dict[str, Write]] = field(default_factory=dict)
    roots: dict[str, Place] = field(default_factory=dict)
    last: list[BoundSymbol] = field(default_factory=list)
    autograd_changes: dict[str, list[BoundSymbol]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    views: list[BoundSymbol] = field(default_factory=list)
    values: dict[tuple[str, tuple[tuple[int, int], ...]], tuple[int, Proxy]] = field(
        default_factory=dict
    )
    versions: dict[str, int] = field(default_factory=dict)
    twins: dict[str, list[Proxy]] = field(default_factory=dict)
    direct: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.members = members(self.trace)
        self.given = frozenset(p.name for p in self.trace.inputs)
        outs = (p for call in self.trace.calls for p in call.flat_outs)
        self.differentiates = any(map(requires_grad, outs))

    # ------------------------------------------------------------------ values

    def begin(self, p: Proxy) -> None:
        """Add the root ``p``, which is its own value."""
        self.objects.begin(p)
        self.keep(self.objects.place(p), p)

    def keep(self, place: Place, p: Proxy) -> None:
        """Set the value at ``place`` to ``p`` until the root is written."""
        self.values[place.root, place.keys] = self.versions.get(place.root, 0), p

    def current(self, p: Proxy) -> Any:
        """Current value of the object ``p``."""
        return self.value(self.objects.place(p)) if p.name in self.objects.names else p

    def latest(self, place: Place) -> Proxy | None:
        """Current value at ``place`` if it has been computed, else None."""
        version, known = self.values.get((place.root, place.keys), (None, None))
        return known if version == self.versions.get(place.root, 0) else None

    def value(self, place: Place) -> Proxy:
        """Current value at ``place``; views are computed again if the root was written since."""
        if known := self.latest(place):
            return known
        *before, step = place.path
        viewed = self.value(Place(place.root, tuple(before)))
        made = self.view(step, viewed)
        for i, p in enumerate(made.flat_outs):
            self.keep(Place(place.root, (*before, ViewStep(step.call, step.argument, i))), p)
        return made.flat_outs[step.output]

    def view(self, step: ViewStep, viewed: Proxy) -> BoundSymbol:
        """Add the call of ``step`` again, on the value ``viewed``."""
        old = step.call.flat_args[step.argument]
        made = self.editor.renamed(self.moved(step.call, {old.name: viewed}))
        self.editor.append(made)
        return made

    def moved(self, call: BoundSymbol, env: dict[str, Any]) -> BoundSymbol:
        """``call`` expanded again with the current values of its arguments, or those in ``env``."""
        for p in call.flat_args:
            if p.name not in env:
                now = self.current(p)
                if now is not p:
                    env[p.name] = now
        try:
            return reexpand(call, env, self.expand, self.tags)
        except TjError as error:
            raise Unsuitable(f"{call.symbol}: {error}") from error

    def straight(self, place: Place) -> Proxy | None:
        """Current value at ``place`` if a call computed it directly, else None."""
        known = self.latest(place)
        return known if known and known.name in self.direct else None

    # ------------------------------------------------------------------ calls

    def call(self, call: BoundSymbol) -> None:
        """Add the functional form of ``call``.

        :raises Unsuitable: if it has none.
        """
        if reason := problem(call) or self.unsuited(call):
            raise Unsuitable(reason)
        self.objects.check_use(call.flat_args)
        if self.differentiates:
            self.objects.check_counted(call, self.given, self.versions)
        if self.last:
            raise Unsuitable("grad mode is changed between calls")
        if call.symbol.name == SETS_GRAD:
            # The program leaves another grad mode behind: set last, it changes no call here.
            self.last.append(call)
            return
        if reads_data(call):
            # `x.data` has a version counter of its own, which `detach` does not.
            made = data if self.differentiates else detach
            self.plain(call, made(call, self.expand))
        elif is_autograd_change(call):
            self.mutate_autograd_metadata(call)
        elif any(is_metadata_change(call, i) for i, _ in call.effects.rebinds):
            self.rebind(call)
        elif call.effects.mutates:
            self.write(call)
        else:
            self.plain(call, call)

    def unsuited(self, call: BoundSymbol) -> str | None:
        """Reason why ``call`` depends on memory addresses, not only on values; else None.

        Views of a base for shared arguments depend on values alone.
        """
        known = any(p.name in self.members for p in call.flat_outs)
        return None if known else goes_by_memory(call, self.objects, self.given)

    def plain(self, call: BoundSymbol, functional: BoundSymbol) -> None:
        """Add a call that writes nothing, in the form ``functional``."""
        if any(p.name in self.members and not requires_grad(p) for p in call.flat_outs):
            return self.argument(call)
        made = self.moved(functional, {})
        self.editor.append(made)
        self.objects.note(call)
        self.count_apart(call)
        is_view = any(a.kind == "arg" for a in call.effects.aliases) or reads_data(call)
        if is_view and not any(p.name in self.members for p in call.flat_outs):
            self.views.append(call)
        for old, new in zip(call.flat_outs, made.flat_outs, strict=True):
            if old.name in self.objects.names and old.name not in {p.name for p in call.flat_args}:
                place = self.objects.place(old)
                if known := self.latest(place):  # the call returned its argument
                    self.twins.setdefault(known.name, []).append(new)
                else:
                    self.keep(place, new)

    def argument(self, call: BoundSymbol) -> None:
        """Note the view of a base for a member that requires no grad: its value is the argument."""
        self.objects.note(call)
        self.count_apart(call)
        (p,) = call.flat_outs
        given = next(q for q in self.trace.inputs if q.name == self.members[p.name])
        self.keep(self.objects.place(p), given)

    def count_apart(self, call: BoundSymbol) -> None:
        """Give members of a `MEMORY` base version counters of their own."""
        for p in call.flat_outs:
            if p.name in self.members and MEMORY.name in call.flat_args[0].tags:
                self.objects.counter[p.name] = self.members[p.name]

    def rebind(self, call: BoundSymbol) -> None:
        """Add a call that changes only its argument's metadata, such as ``x.t_()``."""
        indices = [i for i, _ in call.effects.rebinds]
        if call.effects.mutates or len(indices) != 1:
            raise Unsuitable(f"{call.symbol} changes data and metadata")
        (index,) = indices
        if call.context.get("grad") is False and requires_grad(call.flat_args[index]):
            raise Unsuitable(f"{call.symbol} changes metadata, unseen by autograd")
        view = self.expanded(out_of_place(call), [call.flat_args[index].name])
        if [p.shape for p in view.flat_outs if isinstance(p, TensorProxy)] != [
            p.shape for _, p in call.effects.rebinds if isinstance(p, TensorProxy)
        ]:
            raise Unsuitable(f"{call.symbol} does not do what {view.symbol} does")
        made = self.moved(view, {})
        self.editor.append(made)
        self.count(call, index)
        self.objects.note(call)
        self.objects.rebind(call.flat_args[index], ViewStep(view, index, 0))
        self.views.append(call)
        self.keep(self.objects.place(call.flat_args[index]), made.flat_outs[0])

    def mutate_autograd_metadata(self, call: BoundSymbol) -> None:
        """Add a call like ``x.detach_()``, even if it changes nothing."""
        (tensor,) = call.flat_args
        place, name = self.objects.place(tensor), self.objects.names[tensor.name]
        given = name in self.given
        own = name == place.root and name not in self.objects.internal
        if reason := why_not_functional(call, own=own, given=given):
            raise Unsuitable(reason)
        # The caller sees it on the tensor: the call is made on that, too, after the program.
        if given and (detaches(call) or call.effects.rebinds):
            self.autograd_changes.setdefault(name, []).append(call)
        if not call.effects.rebinds:
            self.objects.note(call)
            return
        if detaches(call) and may_be_saved(self.current(tensor), self.editor.calls):
            raise Unsuitable("a tensor that autograd may have saved is detached in place")
        if given or any(at.root == name for n, at in self.objects.places.items() if n != name):
            self.cut.add(name)
        view = detach(call, self.expand)
        made = self.moved(view, {})
        self.editor.append(made)
        self.objects.note(call)
        self.objects.rebind(tensor, ViewStep(view, 0, 0))
        self.views.append(call)
        self.keep(self.objects.place(tensor), made.flat_outs[0])

    def write(self, call: BoundSymbol) -> None:
        """Add a call that writes.

        :raises Unsuitable: if its arguments overlap, or it writes to memory without a value.
        """
        mutated = tuple(dict.fromkeys(call.effects.mutates))
        places = [self.objects.place(call.flat_args[i]) for i in mutated]
        if len({p.root for p in places}) < len(places) or self.read_elsewhere(call, places):
            raise Unsuitable(f"{call.symbol} takes the same memory twice")
        if any(a.kind == "arg" and not a.identical for a in call.effects.aliases):
            raise Unsuitable(f"{call.symbol} writes, and returns a view of what it takes")
        # The epilogue could not write it back, and other views of it are unknown.
        if any(p.root in self.objects.internal for p in places):
            raise Unsuitable(f"{call.symbol} writes to a view of memory that has no name")
        if any(self.flagged(p.root) for p in places):
            text = "writes to an input with a lazy conjugate or negative bit"
            raise Unsuitable(f"{call.symbol} {text}")
        if any(overlaps_itself(call.flat_args[i]) for i in mutated):
            raise Unsuitable(f"{call.symbol} writes one element under two indices")
        if self.differentiates and saves_what_it_writes(call):
            raise Unsuitable(f"{call.symbol} writes an argument that its own gradient may need")
        made = self.functional(call, mutated)
        self.objects.note(call)
        # The outputs begin with the new values; what the call returns comes after them.
        for index, place, value in zip(mutated, places, made.flat_outs, strict=False):
            laid_out = self.laid_out(call, made, value, self.current(call.flat_args[index]))
            self.mutated(call, index, place, laid_out)
        known = {p.name for p in call.flat_args}
        for p in (p for p in call.flat_outs if p.name not in known):
            if p.name in self.objects.names and self.objects.place(p).root == p.name:
                self.keep(self.objects.place(p), p)

    def flagged(self, root: str) -> bool:
        """Test if ``root`` has a lazy conjugate or negative bit."""
        value = self.value(Place(root))
        return isinstance(value, TensorProxy) and bool(value.flags)

    def read_elsewhere(self, call: BoundSymbol, places: list[Place]) -> bool:
        """Test if ``call`` takes another object of a root that it writes."""
        roots = {p.root for p in places}
        names = {call.flat_args[i].name for i in call.effects.mutates}
        objects = {self.objects.names[n] for n in names}
        tensors = [p for p in call.flat_args if isinstance(p, TensorProxy)]
        return any(
            self.objects.place(p).root in roots and self.objects.names[p.name] not in objects
            for p in tensors
        )

    def mutated(self, call: BoundSymbol, index: int, place: Place, value: Proxy) -> None:
        """Record the new ``value`` of the argument at ``index``, an object at ``place``.

        :raises Unsuitable: if autograd would treat the write in another way than eager.
        """
        name = self.objects.names[call.flat_args[index].name]
        grad = call.context.get("grad")
        old, counter = self.value(Place(place.root)), self.objects.counter[name]
        if place.root in self.cut:
            # They keep their history in eager, and see the write in it.
            raise Unsuitable("a tensor that was detached in place is written, and has other views")
        detached = any(map(cuts_gradients, place.path))
        untracked = detached or grad is False
        if self.differentiates and self.objects.counters(place.root) != {counter}:
            raise Unsuitable("memory with several version counters is written, as of x and x.data")
        if detached and requires_grad(value):
            raise Unsuitable("a detached tensor comes to require a gradient")
        older = place.path and not (detached or requires_grad(call.flat_args[index]))
        if older and grad is not False and requires_grad(old):
            # In eager it requires grad from the base's write on; its metadata here do not change.
            raise Unsuitable("a view is written that was made before its base required grad")
        direct = value
        for i in reversed(range(len(place.path))):
            step = place.path[i]
            viewed = self.value(Place(place.root, place.path[:i]))
            if overlaps_itself(viewed):
                raise Unsuitable(f"{call.symbol} writes to a view of an expanded tensor")
            value = self.inverse(call, step, viewed, value)
        assert isinstance(old, TensorProxy)
        assert isinstance(value, TensorProxy)
        if grad is False and old.requires_grad:  # it keeps its `grad_fn`, and is one version on
            self.check_copy(old, value, call.context)
            context = call.context.with_("grad", True)
            direct = value = self.made(call, WITH_VALUE, (old, value), context)
        # Autograd looks at the counter: a write that does not count invalidates no saved tensor.
        if self.count(call, index) and counter == place.root:
            self.overwrite(place.root)
        self.versions[place.root] = self.versions.get(place.root, 0) + 1
        self.keep(Place(place.root), value)
        if direct is not value and direct.name not in self.given:
            self.keep(place, direct)
            self.direct.add(direct.name)
        writes = self.writes.setdefault(place.root, {})
        visible = any(w.visible for w in writes.values())
        visible = visible or not (untracked or index in call.effects.marked(UNTRACKED))
        # The dict is in the order of the last writes, which the epilogue reads off it.
        writes.pop(name, None)
        writes[name] = Write(place, len(self.views), visible)
        self.roots[place.root] = self.objects.places[place.root]

    def count(self, call: BoundSymbol, index: int) -> int:
        """Bump the version counter of argument ``index`` as eager does; return by how much."""
        bumps = call.effects.marked(VERSIONS).get(index, 1)
        return self.objects.bump(call.flat_args[index], bumps)

    def overwrite(self, root: str) -> None:
        """Tag the values of ``root`` and its views as `OVERWRITTEN`."""
        version = self.versions.get(root, 0)
        for (of, _), (known, p) in self.values.items():
            if of == root and known == version:
                for q in (p, *self.twins.get(p.name, ())):
                    self.editor.inherit(q, TagSet([OVERWRITTEN.name]))

    def versioned(self) -> None:
        """Set version counters of returned tensors that were written or changed in metadata.

        Right where they are made: autograd compares the counter at saving with that at use.
        """
        returned = [p for p in leaves(self.trace.outputs) if isinstance(p, TensorProxy)]
        for root in dict.fromkeys(self.objects.place(p).root for p in returned):
            count = self.objects.bumps.get(root, 0)
            unchanged = not count and root not in self.writes
            if unchanged or root in self.given:
                continue
            value = self.value(Place(root))
            at, source = maker(self.editor.calls, value), value
            if self.editor.calls[at].symbol == WITH_STRIDES:
                source = self.editor.calls[at].flat_args[0]
            by = maker(self.editor.calls, source)
            if "mutated" in dict(self.editor.calls[by].kwargs):
                self.editor.replace(by, versioned(self.editor.calls[by], source, count))
            beside = self.editor.calls[at]
            bare = on_behalf(beside, VERSIONED, (value, count), (), beside.context)
            made = self.expanded(bare, [value.name])
            self.editor.insert(at + 1, made)
            self.keep(Place(root), made.flat_outs[0])

    # ------------------------------------------------------------------ new calls

    def functional(self, call: BoundSymbol, mutated: tuple[int, ...]) -> BoundSymbol:
        """Add ``call`` in a form that writes nothing; its first outputs are the new values."""
        env = {p.name: self.current(p) for p in call.flat_args}
        args, kwargs = substituted((call.args, call.kwargs), env)
        places = tuple(tensor_place(call, i) for i in mutated)
        kwargs = (*kwargs, ("mutated", places))
        bare = on_behalf(call, call.symbol.as_variant(FUNCTIONAL), args, kwargs, call.context)
        known = {p.name for p in call.flat_args}
        outs = [self.editor.fresh(p.name) if p.name in known else p.name for p in call.flat_outs]
        made = self.expanded(bare, [call.flat_args[i].name for i in mutated], outs)
        made = self.plain_form(call, made)
        for alias in made.effects.aliases:
            if alias.identical and alias.kind == "out":
                first, twin = made.flat_outs[alias.index], made.flat_outs[alias.output]
                self.twins.setdefault(first.name, []).append(twin)
        self.editor.append(made)
        return made

    def inverse(self, call: BoundSymbol, step: ViewStep, viewed: Proxy, value: Proxy) -> Proxy:
        """Add the call that computes the new value of ``viewed`` from the ``value`` of its view."""
        old = step.call.flat_args[step.argument]
        env = {p.name: self.current(p) for p in step.call.flat_args}
        env[old.name] = viewed
        args, kwargs = substituted((step.call.args, step.call.kwargs), env)
        places = (output_place(step), tensor_place(step.call, step.argument))
        context = step.call.context.with_("grad", call.context.get("grad"))
        args = (value, *places, *args)
        bare = on_behalf(call, step.call.symbol.as_variant(INVERSE), args, kwargs, context)
        made = self.expanded(bare, [old.name])
        self.check_copy(step.call.flat_outs[step.output], value, context)
        self.editor.append(made)
        return self.laid_out(call, made, made.flat_outs[0], viewed)
