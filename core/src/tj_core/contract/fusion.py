"""Fusion: executors that run several calls as one.

The core partitions calls into regions (`tj_core.passes.fuse`); an executor accepts or declines
single calls and compiles regions. Equal regions are compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.contract.fields import FLAG, FUNCTION, NUMBER, OPTIONAL_FUNCTION, check_fields
from tj_core.errors import PluginError
from tj_core.ir.effects import NO_EFFECTS, Alias, Effects
from tj_core.ir.proxy import Proxy, TensorProxy
from tj_core.ir.symbol import Constant, Symbol
from tj_core.ir.tree import leaves, map_tree

if TYPE_CHECKING:
    import contextlib

    from tj_core.contract.decline import Decline
    from tj_core.ir.trace import Body, BoundSymbol, Notation
    from tj_core.source import Source

__all__ = ["Boxed", "Fused", "Fusion", "FusionRegion", "interpreter"]

Boxed = Callable[[list[Any]], Sequence[Any]]
"""A function of one list of inputs, which it may empty, that returns the outputs in order."""


def _unchecked(make: Callable[[], Boxed], box: list[Any]) -> Sequence[Any] | None:
    return make()(box)


@dataclass(frozen=True, slots=True)
class FusionRegion:
    """Several calls that an executor runs as one.

    ``body`` holds the calls under formal names: inputs ``a0, a1, ...`` (values of the program, then
    tensor constants), values ``_0, _1, ...``; its outputs are a tuple of proxies. None of its calls
    has an effect, and no output shares memory with another or with an input. Regions with one
    ``key`` are equal but for names: structure, shapes, dtypes, strides, devices, constants;
    symbolic sizes count by order of appearance.

    ``backward``: the calls are of a backward pass. ``flexible``: the outputs, by index, whose
    strides the executor may choose, since only a later program reads them; `Fused.strides` returns
    the choice. ``strides``: the inputs, by index, for which the executor has chosen other strides
    than declared. Regions with symbolic sizes have neither. ``implementations``: functions, by
    symbol, for calls that another executor claimed and lets stand here (`Claim.traceable`);
    ``language`` resolves all other symbols. ``source``: the user's line behind the first call.

    ``overwritten``: outputs, by index, that become the value of an input at the end of the program,
    with the index of that input. The function may write such an output to the memory of the input,
    and return the input itself: no later call reads the old value. Unless `Fusion.consumes`, a
    further run of the function or the program on the written value gives the same.

    ``first_run`` is for an executor that compiles the region again later, for other sizes. It calls
    its first argument, which compiles, and runs the resulting function on the inputs in the second.
    It checks the outputs against the trace and returns them. On failure it reports the error and
    returns None; the executor then runs the calls one by one for such inputs.
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
        """Name of the region's symbol in the namespace of the executor."""
        return f"region_{self.key}"

    @property
    def inputs(self) -> tuple[Proxy, ...]:
        """The inputs of the region, in the order of `Fused.function`'s arguments."""
        return self.body.inputs

    @property
    def actual_inputs(self) -> tuple[Proxy, ...]:
        """The inputs with their actual strides in place of the declared ones."""
        return tuple(
            p.replace(strides=self.strides[i]) if i in self.strides else p
            for i, p in enumerate(self.inputs)
        )

    @property
    def outputs(self) -> tuple[Proxy, ...]:
        """The outputs of the region, in order."""
        return tuple(x for x in leaves(self.body.outputs) if isinstance(x, Proxy))

    @property
    def effects(self) -> Effects:
        """The effects of a run: writes to overwritten inputs."""
        if not self.overwritten:
            return NO_EFFECTS
        aliases = tuple(Alias(output, "arg", place) for output, place in self.overwritten.items())
        return Effects(mutates=tuple(self.overwritten.values()), aliases=aliases)

    def resolve(self, call: BoundSymbol) -> Callable[..., Any]:
        """The function that runs ``call`` of the body: hosted, or the operation itself."""
        hosted = self.implementations.get(call.symbol)
        return hosted if hosted is not None else self.language.resolve(call.symbol)


@dataclass(frozen=True, slots=True)
class Fused:
    """A compiled region.

    ``function`` returns a sequence of the region's outputs, with their declared metadata. A
    ``boxed`` one takes one list of the inputs and empties it, so that inputs without other owners
    are freed as early as possible; else it takes the inputs as arguments. ``source`` is the
    generated code, for people; ``seconds`` the time of compiling. ``strides``: the strides, by
    index, of `flexible` outputs that differ from the declared ones. ``kept`` is a text from which
    `Fusion.restore` makes the same function in another process; empty without such a text.
    """

    function: Callable[..., Sequence[Any]]
    boxed: bool = False
    source: str = ""
    seconds: float = 0.0
    strides: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Fusion:
    """An executor's way to run several calls as one.

    ``can_fuse`` looks at one call, metadata only: True if the call may stand in a region, else a
    `Decline`. ``fuse`` compiles a region; if it raises, the region runs without the executor, with
    a warning, and if it returns a `Decline`, without one.

    ``kernel``, if given, returns True for a call, accepted by `can_fuse`, that shares a kernel with
    its neighbours, so that values between them take no memory and recomputing them costs next to
    nothing; False for one with a kernel of its own in the region, such as a matrix product. By
    default, all calls share kernels.
    ``cost``, if given, estimates the seconds to run a call again; None without an estimate. The
    planning of saved values uses both.

    ``check``, if given, looks at all calls of a planned region: True or a `Decline`. A region has
    at least ``minimum`` calls that compute, views not counted. ``hosts``: calls that other
    executors claimed and declare `traceable` may stand in its regions. ``together``, if given, is
    entered around the `fuse` and `restore` calls of one program, and may compile on exit.
    ``begin``, if given, is entered in its place where a program may be returned before it is
    compiled: after exit, compilation goes on in another thread, and a function waits for it in its
    first call, which raises where it failed. The backward of the program is made meanwhile.

    ``whole``, if given, looks at calls that can stand in one region. True keeps them in one, even
    where they repeat each other; else each repeated part is a region, and compiled once. True is
    for executors whose code is faster if they choose the strides of values between the parts.

    ``restore`` and ``fingerprint``, both or none, are for compiled regions that are kept on disk:
    ``restore(region, text)`` makes a region of what was `Fused.kept` of an equal one, and
    ``fingerprint()`` says as text what it depends on beside the region, the plugins' code and their
    options: versions of libraries, the machine, settings; None where that cannot be said. Without
    both, programs are kept, by the versions of what the plugin's distribution requires, and their
    regions are compiled again.

    ``overwrites``, if given, returns True for an input whose memory regions may overwrite with its
    new value (`FusionRegion.overwritten`). ``consumes``: functions may have to write a value that a
    further run would compute anew (``x.add_(1)``), since they read all that they need of an input
    before they write there, and raise nothing in between, short of memory that runs out. If they
    raise, the program does not run again.

    ``detached``: functions get inputs that require no gradient, as kernels of claimed calls do.
    False is for functions that ignore ``requires_grad`` where no gradients are recorded: inputs
    are then passed as they are, which saves time.
    """

    can_fuse: Callable[[BoundSymbol], bool | Decline]
    fuse: Callable[[FusionRegion], Fused | Decline]
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
    consumes: bool = False
    begin: Callable[[], contextlib.AbstractContextManager[None]] | None = None

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
            consumes=FLAG,
            begin=OPTIONAL_FUNCTION,
        )
        if (self.restore is None) != (self.fingerprint is None):
            raise PluginError("a fusion has both restore and fingerprint, or none of them")


def interpreter(
    region: FusionRegion, found: Callable[[Proxy, Any], Any] = lambda p, value: value
) -> Callable[..., tuple[Any, ...]]:
    """A function that runs the calls of ``region`` one by one, to be traced or as a fallback.

    ``found`` is called with the proxy and value of each result, and returns the value to use.
    """
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
            values.update(_named(call.outputs, function(*args, **dict(kwargs)), found))
        return tuple(values[p.name] for p in region.outputs)

    return run


def _named(
    outputs: Any, result: Any, found: Callable[[Proxy, Any], Any]
) -> Iterator[tuple[str, Any]]:
    """The values of ``result`` with the names that they have in ``outputs``."""
    if isinstance(outputs, tuple | list):
        for output, item in zip(outputs, result, strict=True):
            yield from _named(output, item, found)
    elif isinstance(outputs, Proxy):
        yield outputs.name, found(outputs, result)
