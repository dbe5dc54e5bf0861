"""Fusion: executors that run several calls as one.

The core decides which calls stand together (`tj_core.passes.fuse`); an executor says which calls it
takes and compiles a region. Equal regions are compiled once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tj_core.contract.decline import Decline
from tj_core.contract.fields import FLAG, FUNCTION, NUMBER, OPTIONAL_FUNCTION, check_fields
from tj_core.errors import PluginError
from tj_core.ir.effects import NO_EFFECTS, Alias, Effects
from tj_core.ir.proxy import Proxy, TensorProxy
from tj_core.ir.symbol import Constant, Symbol
from tj_core.ir.trace import Body, BoundSymbol, Notation
from tj_core.ir.tree import leaves, map_tree
from tj_core.source import Source

__all__ = ["Boxed", "Fused", "Fusion", "FusionRegion", "interpreter"]

Boxed = Callable[[list[Any]], Sequence[Any]]
"""Takes one list, which it may empty, and returns the outputs in order."""


def _unchecked(make: Callable[[], Boxed], box: list[Any]) -> Sequence[Any] | None:
    return make()(box)


@dataclass(frozen=True, slots=True)
class FusionRegion:
    """Calls that one executor runs as one.

    ``body`` holds them under formal names: inputs ``a0, a1, ...`` (values of the program, then
    tensor constants), values ``_0, _1, ...``; its outputs are a tuple of proxies. None of its calls
    has an effect, and no output shares memory with another or with an input. Regions with one
    ``key`` are equal but for names: structure, shapes, dtypes, strides, devices, constants; sizes
    that are symbols by the order in which they appear.

    ``backward``: the calls are of a backward pass. ``flexible``: the outputs, by index, whose
    strides the executor may choose, since only a later program reads them; it says in
    `Fused.strides` what they are. ``strides``: the inputs, by index, that come with other strides
    than they declare, which the executor has chosen so; everything else is as if they came as
    declared. Regions whose sizes are symbols have neither. ``implementations``: what runs calls
    that another executor claimed and lets stand here (`Claim.traceable`), by symbol; ``language``
    resolves all others. ``source``: the user's line behind the first call.

    ``overwritten``: outputs that become the value of an input when the program is done, by index,
    with the index of that input. The function may write them to the memory of the input, and return
    the input itself: nobody reads its old value later, and where the function, or the program, runs
    again on what it has written, it does the same again.

    ``first_run`` is for an executor that compiles the region again later, for other sizes: it calls
    its first argument, which compiles, runs the function that this returns for the inputs in the
    second, and returns the outputs, held against the trace. It returns None if that failed, which
    it has reported; then the executor runs the calls one by one for such inputs.
    """

    body: Body
    key: str
    language: Notation
    backward: bool = False
    flexible: frozenset[int] = frozenset()
    strides: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    implementations: Mapping[Symbol, Callable[..., Any]] = field(default_factory=dict)
    source: Source | None = None
    overwritten: Mapping[int, int] = field(default_factory=dict)
    first_run: Callable[[Callable[[], Boxed], list[Any]], Sequence[Any] | None] = field(
        default=_unchecked, compare=False, repr=False
    )

    @property
    def name(self) -> str:
        """What its symbol is called in the namespace of the executor."""
        return f"region_{self.key}"

    @property
    def inputs(self) -> tuple[Proxy, ...]:
        """The values that the region takes, in the order of `Fused.function`'s arguments."""
        return self.body.inputs

    @property
    def actual_inputs(self) -> tuple[Proxy, ...]:
        """The inputs with the strides that they come with."""
        return tuple(
            p.replace(strides=self.strides[i]) if i in self.strides else p
            for i, p in enumerate(self.inputs)
        )

    @property
    def outputs(self) -> tuple[Proxy, ...]:
        """The values that the region returns."""
        return tuple(x for x in leaves(self.body.outputs) if isinstance(x, Proxy))

    @property
    def effects(self) -> Effects:
        """What running it does, beside computing."""
        if not self.overwritten:
            return NO_EFFECTS
        aliases = tuple(Alias(output, "arg", place) for output, place in self.overwritten.items())
        return Effects(mutates=tuple(self.overwritten.values()), aliases=aliases)

    def resolve(self, call: BoundSymbol) -> Callable[..., Any]:
        """What runs ``call`` of the body: a hosted implementation, or the operation itself."""
        hosted = self.implementations.get(call.symbol)
        return hosted if hosted is not None else self.language.resolve(call.symbol)


@dataclass(frozen=True, slots=True)
class Fused:
    """A compiled region.

    ``function`` returns a sequence of the region's outputs, with the metadata that they declare. A
    ``boxed`` one takes one list of the inputs and empties it, so that inputs nobody else needs are
    freed as it goes; else it takes the inputs as arguments. ``source`` is the text of what was
    generated, for people; ``seconds`` what compiling took. ``strides``: for a `flexible` output
    that got other strides than declared, those, by index. ``kept`` is a text that `Fusion.restore`
    makes the same of in another process; empty where there is none.
    """

    function: Callable[..., Sequence[Any]]
    boxed: bool = False
    source: str = ""
    seconds: float = 0.0
    strides: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Fusion:
    """How an executor runs several calls as one.

    ``can_fuse`` looks at one call, metadata only: True if the call may stand in a region, else a
    `Decline`. ``fuse`` compiles a region; what it raises makes that region run without the
    executor, with a warning.

    ``kernel``, if given, says of a call that `can_fuse` accepts whether it is computed together
    with its neighbours, so that values between them take no memory and running it again costs next
    to nothing; False is for a matrix product, which stands in a region as a kernel of its own. None
    means all are.
    ``cost``, if given, estimates what running a call again takes, in seconds; None where there is
    no estimate. Both are asked while the memory of training is planned.

    ``check``, if given, looks at all calls of a region to be: True or a `Decline`. A region has at
    least ``minimum`` calls that compute, views not counted. ``hosts``: calls that other
    executors claimed and declare `traceable` may stand in its regions. ``together``, if given, is
    entered around the `fuse` and `restore` calls of one program, and may compile on exit what these
    prepared.

    ``whole``, if given, looks at calls that can stand in one region. True keeps them in one, even
    where they repeat each other; else each repeated part is a region, and compiled once. It is for
    executors whose code is faster where they choose the strides of values between the parts.

    ``restore`` and ``fingerprint``, both or none, are for compiled regions that are kept on disk:
    ``restore(region, text)`` makes a region of what was `Fused.kept` of an equal one, and
    ``fingerprint()`` says as text what it depends on beside the region, the plugins' code and their
    options: versions of libraries, the machine, settings; None where that cannot be said.

    ``overwrites``, if given, says of an input whether regions may write its new value to its memory
    (`FusionRegion.overwritten`).

    ``detached``: functions get inputs that require no gradient, as kernels of claimed calls do.
    False is for functions that do not look at that where no gradients are recorded, and saves the
    time there.
    """

    can_fuse: Callable[[BoundSymbol], bool | Decline]
    fuse: Callable[[FusionRegion], Fused]
    cost: Callable[[BoundSymbol], float | None] | None = None
    kernel: Callable[[BoundSymbol], bool] | None = None
    check: Callable[[Sequence[BoundSymbol]], bool | Decline] | None = None
    minimum: int = 2
    hosts: bool = False
    together: Callable[[], contextlib.AbstractContextManager[None]] | None = None
    whole: Callable[[Sequence[BoundSymbol]], bool] | None = None
    restore: Callable[[FusionRegion, str], Fused] | None = None
    fingerprint: Callable[[], str | None] | None = None
    detached: bool = True
    overwrites: Callable[[TensorProxy], bool] | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            can_fuse=FUNCTION,
            fuse=FUNCTION,
            cost=OPTIONAL_FUNCTION,
            kernel=OPTIONAL_FUNCTION,
            check=OPTIONAL_FUNCTION,
            minimum=NUMBER,
            hosts=FLAG,
            together=OPTIONAL_FUNCTION,
            whole=OPTIONAL_FUNCTION,
            restore=OPTIONAL_FUNCTION,
            fingerprint=OPTIONAL_FUNCTION,
            detached=FLAG,
            overwrites=OPTIONAL_FUNCTION,
        )
        if (self.restore is None) != (self.fingerprint is None):
            raise PluginError("a fusion has both restore and fingerprint, or none of them")


def interpreter(region: FusionRegion) -> Callable[..., tuple[Any, ...]]:
    """A function that runs the calls of ``region`` one by one: to be traced, or in its place."""
    names = [p.name for p in region.inputs]
    steps = [(region.resolve(call), call) for call in region.body.calls]

    def run(*inputs: Any) -> tuple[Any, ...]:
        values: dict[str, Any] = dict(zip(names, inputs, strict=True))

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Proxy):
                return values[leaf.name]
            return leaf.value if isinstance(leaf, Constant) else leaf

        for function, call in steps:
            args, kwargs = map_tree(value, call.args), map_tree(value, call.kwargs)
            _bind(call.outputs, function(*args, **dict(kwargs)), values)
        return tuple(values[p.name] for p in region.outputs)

    return run


def _bind(outputs: Any, result: Any, values: dict[str, Any]) -> None:
    """Give the values of ``result`` the names that they have in ``outputs``."""
    if isinstance(outputs, tuple | list):
        for output, item in zip(outputs, result, strict=True):
            _bind(output, item, values)
    elif isinstance(outputs, Proxy):
        values[outputs.name] = result
