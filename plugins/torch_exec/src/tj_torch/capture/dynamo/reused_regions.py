"""Regions that are captured once (`torch.compiler.nested_compile_region`), and when they are.

Dynamo records the first call of such a function, and uses the record for a later one if the guards
of the first hold for the objects of the later one: those of its layer. It does not guard what it
found so: ``layers[2].scale = 3`` has no effect on a finished program. It does not compare modes
either, nor which arguments are the same tensor. Of what the program itself writes between two calls
it misses most: a rebound global, ``self.scale = 3``, an item of a list.

A region that depends on anything else than `KINDS` of guards is captured for each call, and its
equal records become one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from dataclasses import replace as replace_fields
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from tj_torch.torch_private.lookup import MissingNameError
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["correct", "dynamos_regions"]

KINDS = frozenset(
    (
        "BOOL_MATCH", "BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "CONSTANT_MATCH",
        "CONSTANT_SUBCLASS_MATCH", "DICT_CONTAINS", "DICT_KEYS_MATCH", "DICT_NOT_CONTAINS",
        "EMPTY_NN_MODULE_HOOKS_DICT", "EQUALS_MATCH", "FUNCTION_MATCH", "HASATTR", "ID_MATCH",
        "MAPPING_KEYS_CHECK", "MODULE_MATCH", "NN_MODULE", "NONE_MATCH", "NOT_NONE_MATCH",
        "NOT_PRESENT_IN_GENERIC_DICT", "SEQUENCE_LENGTH", "TENSOR_MATCH", "TYPE_MATCH",
    )
)  # fmt: skip
"""Guards of one object alone, which can be asked of another one."""

OF_PROCESS = frozenset(
    (
        "AUTOGRAD_SAVED_TENSORS_HOOKS", "DEFAULT_DEVICE", "DETERMINISTIC_ALGORITHMS", "DUAL_LEVEL",
        "FUNCTORCH_STACK_MATCH", "GLOBAL_STATE", "GRAD_MODE", "SHAPE_ENV", "TORCH_FUNCTION_STATE",
    )
)  # fmt: skip
"""Guards of modes of the process, which are the same ones for all calls of a program."""

OF_IDENTITY = frozenset(("DUPLICATE_INPUT", "_one"))
"""Guards of an object with several names: Dynamo's, and those of `identity` beside this."""

_KNOWN = KINDS | OF_PROCESS | OF_IDENTITY


@dataclass(frozen=True)
class First:
    """The first call of a region: what Dynamo asks of later ones, and what is asked here.

    ``facts`` are the modes, and which arguments are one value; ``ordered`` the dicts whose order
    counts; ``writes`` the writes of the program until its end. ``condition`` is Dynamo's, whose
    `id` must not become another object's.
    """

    condition: Any
    facts: tuple[Any, ...]
    ordered: tuple[Any, ...]
    writes: tuple[int, int]


@dataclass
class Writes:
    """Writes of a program to Python objects so far.

    ``objects`` are the variables of objects that a region may read, ``count`` the writes to them.
    ``local`` counts those to lists, dicts and cells that the program made. A region reads these
    only if it is given them, where Dynamo compares them, or if they are ``shared``: a written
    object may hold one.
    """

    objects: dict[int, Any] = field(default_factory=dict)
    count: int = 0
    local: int = 0
    shared: bool = False

    def add(self, variable: Any, value: Any) -> None:
        """Note a write of ``value``, None if that is unknown, to an object."""
        if _is_local(variable):
            self.local += 1
        else:
            self.count += 1
            self.objects[id(variable)] = variable
            self.shared = self.shared or not _is_plain_value(value)

    @property
    def state(self) -> tuple[int, int]:
        """Counts that are equal before two calls if nothing that they read was written between."""
        return self.count, self.local if self.shared else 0

    def ids(self, effects: Any) -> set[int]:
        """The ids of the objects that were written, of those that were there before."""
        known = effects.id_to_variable.items()
        return {number for number, variable in known if id(variable) in self.objects}


def dynamos_regions() -> Any:
    """Dynamo's module for regions; None where this PyTorch captures each call of one."""
    try:
        from tj_torch.torch_private.dynamo import invoke_subgraph
    except MissingNameError:
        return None
    return invoke_subgraph if has(invoke_subgraph, "is_reusable") else None


def correct(stack: ExitStack, noticed: Observations) -> None:
    """Guard what a reused region depends on, and use none that may depend on more."""
    regions = dynamos_regions()
    if regions is None:
        return
    from tj_torch.torch_private.dynamo import SideEffects

    made, variable = _Regions(noticed), regions.InvokeSubgraphHigherOrderVariable
    replace(stack, variable, "_call_function", made.calling)
    replace(stack, variable, "install_subgraph_in_output_graph", made.installing)
    replace(stack, regions, "build_reuse_condition", made.building)
    replace(stack, regions, "is_reusable", made.reusing)
    replace(stack, regions, "save_reuse_entry", _saving)
    replace(stack, SideEffects, "store_attr", made.writing)
    replace(stack, SideEffects, "mutation", made.writing)


_MODES = "tj_modes"
"""Key of the modes that a graph was recorded in, in its metadata."""


@dataclass
class _Regions:
    """The regions of one capture.

    ``calls`` has the guards, and the number of conditions, before each that is being captured;
    ``first`` the first calls, by the ids of their conditions; ``written`` the writes of each graph.
    """

    noticed: Observations
    calls: list[tuple[frozenset[Any], int]] = field(default_factory=list)
    first: dict[int, First] = field(default_factory=dict)
    written: WeakKeyDictionary[Any, Writes] = field(default_factory=WeakKeyDictionary)

    def writes(self, graph: Any) -> Writes:
        """The writes of the program of a graph, Dynamo's ``OutputGraph``."""
        return self.written.setdefault(graph.tracing_context, Writes())

    def writing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Note a write."""

        def write(effects: Any, variable: Any, *given: Any, **named: Any) -> Any:
            graph = effects.output_graph_weakref()
            if graph is not None:
                self.writes(graph).add(variable, given[1] if len(given) > 1 else None)
            return original(effects, variable, *given, **named)

        return write

    def conditions(self, tx: Any) -> int:
        """The number of tj's own conditions so far, but for those on globals."""
        return self.noticed.conditions(tx.output).of_objects

    def calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Note what there is before a call."""

        def _call_function(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            self.calls.append((frozenset(tx.output.guards), self.conditions(tx)))
            try:
                return original(variable, tx, args, kwargs)
            finally:
                self.calls.pop()

        return _call_function

    def installing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Keep graphs of other modes apart, which Dynamo takes for equal: their values differ."""

        def install(variable: Any, tx: Any, *given: Any, **named: Any) -> str:
            now = modes(tx)
            found: str = original(variable, tx, *given, **named)
            if tx.output.nn_modules[found].meta.setdefault(_MODES, now) != now:
                *_, body = given
                found = tx.output.install_subgraph("subgraph", body)
                body.meta[_MODES] = now
            return found

        return install

    def building(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make no condition where one would not be enough."""

        def build_reuse_condition(tx: Any, fingerprint: Any, sources: Any, *rest: Any) -> Any:
            guards, conditions = self.calls[-1]
            known = all(map(can_be_asked, set(tx.output.guards) - guards))
            if not known or self.conditions(tx) != conditions or not is_plain(fingerprint):
                return None
            given = sources_of(fingerprint)
            try:
                # Its guards are those of `of_arguments`, which are more than Dynamo's.
                bare = fingerprint._replace(arg_sources=[])
                condition = original(tx, bare, type(sources)(), *rest)
                if condition is None:
                    return None
                condition.guards = [asked(tx, guard) for guard in of_arguments(tx, given)]
            except Exception:  # a guard that Dynamo knows no other object for
                return None
            condition.traced_sources = sources
            every = tx.output.guard_on_key_order
            ordered = tuple(s for s in every if any(leads_to(g, s) for g in given))
            writes = self.writes(tx.output).state
            self.first[id(condition)] = First(condition, facts(tx, fingerprint), ordered, writes)
            self.noticed.records += 1
            return condition

        return build_reuse_condition

    def reusing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Test more than Dynamo does, and guard what was found so."""

        def is_reusable(tx: Any, condition: Any, fingerprint: Any, entry: Any) -> bool:
            first = self.first[id(condition)]
            writes = self.writes(tx.output)
            if first.writes != writes.state or first.facts != facts(tx, fingerprint):
                return False
            if not is_plain(fingerprint):
                return False
            # Guards are asked here: Dynamo would look up each object by itself.
            asked_here: dict[str, Any] = {"guards": []}
            if not tx.output.side_effects.mutated_sources:
                asked_here["traced_sources"] = type(condition.traced_sources)()
            if not original(tx, replace_fields(condition, **asked_here), fingerprint, entry):
                return False
            other = Other(tx, entry.arg_sources, fingerprint.arg_sources)
            fits = other.meets(condition) and other.has_order(first.ordered)
            if not fits or not other.has_tensors(entry) or other.counts(entry):
                return False
            if writes.count and other.reads(condition, writes.ids(tx.output.side_effects)):
                return False
            other.guard(condition)
            tx.output.guard_on_key_order.update(map(other.moved, first.ordered))
            self.noticed.reused += 1
            return True

        return is_reusable


def _saving(original: Callable[..., Any]) -> Callable[..., Any]:
    def save_reuse_entry(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        # There are as many records as Dynamo keeps; or the region reads a value that the program
        # has put into an object, which a later call cannot look up.
        except (RuntimeError, AssertionError):
            return None

    return save_reuse_entry


def _is_local(variable: Any) -> bool:
    """Test for a list, dict, set or cell that the program made."""
    from tj_torch.torch_private import dynamo

    new = (dynamo.AttributeMutationNew, dynamo.ValueMutationNew)
    user = dynamo.UserDefinedObjectVariable
    return isinstance(variable.mutation_type, new) and not isinstance(variable, user)


def _is_plain_value(value: Any) -> bool:
    """Test for a number, a string or a tensor, which holds no list of the program."""
    from tj_torch.torch_private import dynamo

    kinds = (dynamo.ConstantVariable, dynamo.SymNodeVariable, dynamo.TensorVariable)
    return isinstance(value, kinds)


def modes(tx: Any) -> tuple[Any, ...]:
    """The modes of this thread that values of a region depend on."""
    device = torch.get_default_device()
    casts = tuple(
        (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in dict.fromkeys(("cpu", device.type, "cuda"))
    )
    functions = tx.symbolic_torch_function_state
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        device,
        casts,
        tuple(map(id, functions.mode_stack)),
        functions.torch_function_subclass_enabled,
    )


def facts(tx: Any, fingerprint: Any) -> tuple[Any, ...]:
    """The modes, and for each value of the graph that is given, the first place of that value."""
    nodes = values_of(fingerprint)
    return modes(tx), tuple(map(nodes.index, nodes))


def values_of(fingerprint: Any) -> list[Any]:
    """The nodes of arguments that are values of the graph."""
    return [v.as_proxy().node for kind, v in fingerprint.flat_vts if kind.value in _VALUES]


_VALUES = ("tensor", "symnode")


def is_plain(fingerprint: Any) -> bool:
    """Test for no tensor of a user's class among the arguments, whose parts nobody compares."""
    from tj_torch.torch_private.shapes import FakeTensor

    values = (node.meta.get("example_value") for node in values_of(fingerprint))
    return all(type(v) is FakeTensor for v in values if isinstance(v, torch.Tensor))


def kind_of(guard: Any) -> str:
    made = guard.create_fn
    made = made.func if isinstance(made, functools.partial) else made
    return getattr(made, "__name__", "")


def can_be_asked(guard: Any) -> bool:
    return kind_of(guard) in _KNOWN


def names_of(guard: Any) -> list[Any]:
    """The sources that a guard is about."""
    names = [guard.originating_source]
    if kind_of(guard) in OF_IDENTITY:
        for value in guard.create_fn.keywords.values():
            names += value if isinstance(value, tuple) else (value,)
    return names


def leads_to(source: Any, name: Any) -> bool:
    """Test if an object is read from ``source``, and not from its class, which is the same one."""
    from tj_torch.torch_private.dynamo import TypeSource

    while name is not None and not isinstance(name, TypeSource):
        if name == source:
            return True
        name = getattr(name, "base", None)
    return False


def sources_of(fingerprint: Any) -> list[Any]:
    """The sources of a region's arguments, of those that have any."""
    return [source for source in fingerprint.arg_sources if source is not None]


def of_arguments(tx: Any, given: list[Any]) -> Iterator[Any]:
    """The guards of what is read from the sources ``given``, and of what that leads to."""
    for guard in tx.output.guards:
        names = names_of(guard)
        if any(leads_to(source, name) for source in given for name in names):
            yield guard


def asked(tx: Any, guard: Any) -> tuple[Any, Any, Any, Any]:
    """A guard as Dynamo asks it of another object: source, check, what it expects, itself.

    :raises LookupError: if it cannot be asked.
    """
    from tj_torch.torch_private.dynamo import guards

    kind, source = kind_of(guard), guard.originating_source
    if kind in OF_IDENTITY:
        return source, None, None, guard
    if kind not in KINDS:
        raise LookupError(kind)
    check, value = guards.GUARD_VALUE_DISPATCH[kind], tx.output.resolve_source_value(source)
    return source, check, check.get_metadata_fn(guard, value), guard


class Other:
    """A later call of a region: its objects in the place of the first call's."""

    def __init__(self, tx: Any, before: list[Any], now: list[Any]) -> None:
        self.tx = tx
        pairs = zip(before, now, strict=True)
        self.replaced = {old: new for old, new in pairs if None not in (old, new) and old != new}
        self.known = dict(self.replaced)
        self.values: dict[Any, Any] = {}
        self.scope = {"G": tx.output.root_tx.f_globals, "L": tx.output.root_tx.f_locals}

    def moved(self, source: Any) -> Any:
        """The source of the object of this call, given that of the first call's."""
        found = self.known.get(source)
        if found is None:
            parts = {name: getattr(source, name) for name in _parts(source.__class__)}
            chained = {name: part for name, part in parts.items() if hasattr(part, "make_guard")}
            others = {name: self.moved(part) for name, part in chained.items()}
            found = source if others == chained else replace_fields(source, **others)
            self.known[source] = found
        return found

    def value(self, source: Any) -> Any:
        """The object that is read from ``source``."""
        return source.get_value(self.scope, {}, self.values)

    def meets(self, condition: Any) -> bool:
        """Test if the guards of the first call hold for these objects."""
        try:
            return all(self.holds(*guard) for guard in condition.guards)
        except Exception:  # there is no such object
            return False

    def holds(self, source: Any, check: Any, expected: Any, guard: Any) -> bool:
        """Test if one guard holds."""
        if check is None:
            first, *others = (self.value(self.moved(name)) for name in names_of(guard))
            return all(other is first for other in others)
        new = self.moved(source)
        if new is source:
            return True
        value = self.value(new)
        # What Dynamo compares of tensors leaves out the class, and bits that change values.
        if kind_of(guard) == "TENSOR_MATCH" and traits(value) != traits(self.value(source)):
            return False
        return bool(check.eval_fn(value, expected))

    def has_order(self, dicts: Iterable[Any]) -> bool:
        """Test if dicts whose order counts have that of the first call's."""
        pairs = ((self.value(source), self.value(self.moved(source))) for source in dicts)
        return all([*first] == [*other] for first, other in pairs)

    def has_tensors(self, entry: Any) -> bool:
        """Test if tensors that the region finds by itself are different ones, as in the first."""
        sources = (part.source for part in entry.subgraph_input_mapping if hasattr(part, "source"))
        values = [self.value(self.moved(source)) for source in sources]
        return len({id(value) for value in values}) == len(values)

    def counts(self, entry: Any) -> bool:
        """Test for a symbol that stands for a number of the first call's objects."""
        from tj_torch.torch_private.dynamo import is_from_source

        known = self.tx.output.shape_env.var_to_sources
        sizes = [part.expr for part in entry.subgraph_input_mapping if hasattr(part, "expr")]
        symbols = {symbol for size in sizes for symbol in size.free_symbols}
        sources = [source for symbol in symbols for source in known.get(symbol, ())]
        return any(is_from_source(source, old) for source in sources for old in self.replaced)

    def reads(self, condition: Any, written: set[int]) -> bool:
        """Test if what differs between the calls leads to objects ``written``.

        The guards look at the objects as they were before the program.
        """
        guarded = (name for _, _, _, guard in condition.guards for name in names_of(guard))
        for source in (*guarded, *condition.traced_sources):
            new = self.moved(source)
            names = () if new is source else (*self.path(source), *self.path(new))
            if any(id(self.value(name)) in written for name in names):
                return True
        return False

    def path(self, source: Any) -> Iterator[Any]:
        """A source, and what it is read from, up to an argument that differs between the calls."""
        ends = self.replaced.keys() | self.replaced.values()
        while source is not None:
            yield source
            source = None if source in ends else getattr(source, "base", None)

    def guard(self, condition: Any) -> None:
        """Guard for these objects what is guarded for those of the first call."""
        from tj_torch.torch_private.dynamo import VariableBuilder, install_guard

        for source, _, _, guard in condition.guards:
            new = self.moved(source)
            if kind_of(guard) in OF_IDENTITY:
                names = {k: self.all_moved(v) for k, v in guard.create_fn.keywords.items()}
                install_guard(new.make_guard(functools.partial(guard.create_fn.func, **names)))
            elif new is source:
                continue
            elif kind_of(guard) == "TENSOR_MATCH":  # it has the tensor in it
                VariableBuilder(self.tx, new)(self.value(new))
            else:
                install_guard(new.make_guard(guard.create_fn))

    def all_moved(self, value: Any) -> Any:
        """A source, or several, of this call."""
        several = isinstance(value, tuple)
        return tuple(map(self.moved, value)) if several else self.moved(value)


def traits(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The class of a tensor, and its layout."""
    return type(tensor), tensor.layout, tensor.is_conj(), tensor.is_neg(), tensor.is_inference()


@functools.cache
def _parts(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
