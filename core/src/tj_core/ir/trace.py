"""Traces: short straight-line programs, immutable, that print as Python and read back.

A trace holds calls, a call may hold subprograms, and a subprogram holds a trace: hence one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from tj_core.errors import TraceError
from tj_core.ir.effects import NO_EFFECTS, Effects
from tj_core.ir.names import Namer
from tj_core.ir.proxy import Proxy, TensorProxy, is_subclass
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import PLAIN_CONTEXT, Constant, Context, Symbol
from tj_core.ir.tags import NO_TAGS, TagSet
from tj_core.ir.tree import leaves, map_tree
from tj_core.showing import text_html

if TYPE_CHECKING:
    from tj_core.ir.runtime import RuntimeValues
    from tj_core.source import Source

__all__ = ["Body", "BoundSymbol", "Change", "Notation", "PassRecord", "Subprogram", "Trace"]


@dataclass(frozen=True, slots=True)
class Body:
    """The calls that a call decomposes into, under formal names, in SSA form.

    ``inputs`` stand for the call's argument proxies, used or not, in flat order, each distinct
    proxy once; they have the arguments' metadata, and no tags.
    ``outputs`` has the structure of the call's outputs. ``updates`` are the new values of the
    arguments the call mutates, as pairs of flat index and value. Equal calls share one body, so
    that nested bodies cost no memory per call.

    Names are ``a0, a1, ...`` for inputs, by the flat index at which the argument first stands, and
    ``_0, _1, ...`` for the values that calls define, in order.
    """

    inputs: tuple[Proxy, ...]
    calls: tuple[BoundSymbol, ...]
    outputs: Any
    updates: tuple[tuple[int, Any], ...] = ()

    def __post_init__(self) -> None:
        names = {p.name for p in self.inputs}
        wanted = len(self.inputs)
        for call in self.calls:
            defined = {p.name for p in call.defined()}
            names |= defined
            wanted += len(defined)
        if len(names) != wanted:
            raise TraceError(f"a body defines {self._defined_twice()!r} twice")

    def _defined_twice(self) -> str:
        seen: set[str] = set()
        for group in (self.inputs, *(call.defined() for call in self.calls)):
            found = {p.name for p in group}
            if again := seen & found:
                return min(again)
            seen |= found
        return next(p.name for i, p in enumerate(self.inputs) if p in self.inputs[:i])


@dataclass(frozen=True, slots=True)
class Subprogram:
    """An operand program of a higher-order operation: a leaf among the call's arguments.

    At run time it is a function that the operation calls as it sees fit: never, once, or in the
    backward pass. ``program`` is closed: it reads only its inputs, and has a namespace of its own.
    It runs in the context of its call, is at its call's stage (its own ``stage`` is ignored), and
    may write and draw random numbers; the call's effects sum these up
    (`tj_core.edit.subprograms.summed_effects`).

    ``operands`` has, for each input of the program, the flat index of the argument with the same
    metadata that becomes this input; None for a value that the operation makes: a slice, a tangent.
    ``returns``: the call's outputs are the program's (its first ones, if the program has more).
    """

    program: Trace
    operands: tuple[int | None, ...] = ()
    returns: bool = False

    @property
    def name(self) -> str:
        """The subprogram's name in the arguments of its call: the name of its program."""
        return self.program.name


@dataclass(frozen=True)
class BoundSymbol:
    """A call of an operation. Immutable; `replace` makes an edited copy.

    ``args`` and ``kwargs`` are trees (tuples, lists, dicts, slices) whose leaves are proxies,
    constants and subprograms; ``outputs`` is one of tuples and lists. ``parent`` names the call
    that this one derives from (its first output): a backward call its forward call, a claimed call
    the user's. ``executor`` owns the call from stage CLAIMED on. Equality leaves out ``source``.
    """

    symbol: Symbol
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    outputs: Any = None
    effects: Effects = NO_EFFECTS
    body: Body | None = None
    context: Context = PLAIN_CONTEXT
    tags: TagSet = NO_TAGS
    source: Source | None = field(default=None, compare=False)
    parent: str | None = None
    executor: str | None = None

    def replace(self, **changes: Any) -> BoundSymbol:
        """A copy with ``changes`` applied."""
        made = object.__new__(type(self))
        known = made.__dict__
        known.update(self.__dict__, **changes)
        for name in changes:
            for found_out in _FOUND_OUT_FROM[name]:  # KeyError: there is no such field
                known.pop(found_out, None)
        return made

    @cached_property
    def flat_args(self) -> tuple[Proxy, ...]:
        """The proxies among the arguments, in order; effects count these."""
        return tuple([x for x in leaves((self.args, self.kwargs)) if isinstance(x, Proxy)])

    @cached_property
    def flat_outs(self) -> tuple[Proxy, ...]:
        """The proxies among the outputs, in order."""
        return tuple([x for x in leaves(self.outputs) if isinstance(x, Proxy)])

    @cached_property
    def subprograms(self) -> tuple[Subprogram, ...]:
        """The subprograms among the arguments, in order, each once."""
        found = (x for x in leaves((self.args, self.kwargs)) if isinstance(x, Subprogram))
        return tuple({id(subprogram.program): subprogram for subprogram in found}.values())

    @cached_property
    def on_subclass(self) -> bool:
        """Test for a call that computes with tensor subclasses, which redefine operations.

        A call with a subprogram, or in namespace ``tj``, only passes values on, and is none.
        """
        if self.subprograms or self.symbol.namespace == "tj":
            return False
        values = (*self.flat_args, *self.flat_outs)
        return any(map(is_subclass, values))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The names, without modules, of the tensor subclasses that the call computes with."""
        if not self.on_subclass:
            return ()
        values = (p for p in (*self.flat_args, *self.flat_outs) if isinstance(p, TensorProxy))
        found = (p.subclass.type.rpartition(".")[2] for p in values if p.subclass is not None)
        return tuple(dict.fromkeys(found))

    @cached_property
    def unnamed(self) -> tuple[Constant, ...]:
        """The constants without a spelling in Python, those of subprograms and bodies included."""
        trees: list[Any] = [self.args, self.kwargs, self.outputs, self.context.items]
        parts: list[BoundSymbol] = []
        for subprogram in self.subprograms:
            trees += [subprogram.program.outputs, subprogram.program.context.items]
            parts += subprogram.program.calls
        if self.body is not None:
            trees += [self.body.outputs, self.body.updates]
            parts += self.body.calls
        return (*_unnamed(trees), *chain.from_iterable(part.unnamed for part in parts))

    @property
    def label(self) -> str:
        """The call's name in messages and in ``parent``: its first output, else its symbol."""
        return self.flat_outs[0].name if self.flat_outs else self.symbol.qualname

    def defined(self) -> tuple[Proxy, ...]:
        """The outputs that are new values: an output named as an argument is this argument."""
        known = {p.name for p in self.flat_args}
        return tuple(p for p in self.flat_outs if p.name not in known)

    def map_proxies(self, fn: Callable[[Proxy], Any]) -> BoundSymbol:
        """A copy with ``fn`` applied to every argument and output proxy (self if none changes).

        ``fn`` keeps distinct values distinct; else see `tj_core.edit.bodies.with_args`.
        """
        moved = self.map_args(fn)
        outputs = map_tree(fn, self.outputs, Proxy)
        return moved if outputs is self.outputs else moved.replace(outputs=outputs)

    def map_args(self, fn: Callable[[Proxy], Any]) -> BoundSymbol:
        """A copy with ``fn`` applied to every argument proxy (self if none changes).

        Effects and body stay as they are; `tj_core.edit.bodies.with_args` adapts them.
        """
        found: list[Any] = []

        def noted(p: Proxy) -> Any:
            found.append(new := fn(p))
            return new

        args = map_tree(noted, self.args, Proxy)
        kwargs = map_tree(noted, self.kwargs, Proxy)
        if args is self.args and kwargs is self.kwargs:
            return self
        made = self.replace(args=args, kwargs=kwargs)
        if all(isinstance(p, Proxy) for p in found):
            made.__dict__["flat_args"] = tuple(found)  # every pass asks for it
        return made

    def walk(self) -> Iterator[BoundSymbol]:
        """The call itself and, depth first, all calls in its subprograms and its body."""
        yield self
        for subprogram in self.subprograms:
            yield from subprogram.program.walk()
        for call in self.body.calls if self.body else ():
            yield from call.walk()


_FOUND_OUT_FROM: Mapping[str, tuple[str, ...]] = {f.name: () for f in fields(BoundSymbol)} | {
    "args": ("flat_args", "subprograms", "on_subclass", "kinds", "unnamed"),
    "kwargs": ("flat_args", "subprograms", "on_subclass", "kinds", "unnamed"),
    "outputs": ("flat_outs", "on_subclass", "kinds", "unnamed"),
    "body": ("unnamed",),
    "context": ("unnamed",),
    "symbol": ("on_subclass", "kinds"),
}
"""Cached properties of a call that depend on each of its fields.

Passes copy calls by the thousand: `replace` keeps the caches that a change leaves valid.
"""


@dataclass(frozen=True, slots=True)
class Change:
    """One edit of a pass: the changed call, and the rule (with plugin and place) behind the change.

    ``declined`` are the plugins that came before in order and did not take the call, with reasons.
    """

    call: str
    plugin: str
    rule: str
    origin: str = ""
    declined: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PassRecord:
    """A pass that made a trace: its name, its plugin, its edits and its seconds."""

    name: str
    plugin: str = "core"
    changes: tuple[Change, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, repr=False)
class Trace:
    """A program: inputs, calls, outputs.

    ``outputs`` is a tree of proxies and constants. ``context`` is the dynamic context the program
    was acquired in, which calls' contexts are relative to. Equality leaves out ``history``,
    sources and ``language``.
    """

    inputs: tuple[Proxy, ...]
    calls: tuple[BoundSymbol, ...]
    outputs: Any
    name: str = "computation"
    stage: Stage = Stage.ACQUIRED
    context: Context = PLAIN_CONTEXT
    tags: TagSet = NO_TAGS
    history: tuple[PassRecord, ...] = field(default=(), compare=False, repr=False)
    language: Notation = field(compare=False, repr=False, kw_only=True)

    def replace(self, **changes: Any) -> Trace:
        """A copy with ``changes`` applied."""
        return replace(self, **changes)

    def names(self) -> set[str]:
        """Every name the program binds or uses at top level, those of its constants included."""
        found = {p.name for p in self.inputs} | set(self.constants())
        for call in self.calls:
            found.update(p.name for p in (*call.flat_args, *call.flat_outs))
            found.update(subprogram.name for subprogram in call.subprograms)
        return found

    def namer(self) -> Namer:
        """A `Namer` of names that are free in the program."""
        return Namer(self.names() | self.language.names())

    def constants(self) -> dict[str, Any]:
        """The values that travel beside the printed program: name to object.

        :raises TraceError: if two different values have one name.
        """
        found: dict[str, Any] = {}
        own = _unnamed((self.outputs, self.context.items))
        for constant in chain(own, *[call.unnamed for call in self.calls]):
            if found.setdefault(constant.text, constant.value) is not constant.value:
                raise TraceError(f"two constants are called {constant.text!r}")
        return found

    def walk(self) -> Iterator[BoundSymbol]:
        """All calls, those in subprograms and bodies included, depth first."""
        for call in self.calls:
            yield from call.walk()

    def walk_programs(self) -> Iterator[BoundSymbol]:
        """All calls, those in subprograms included and those in bodies not: the calls that run."""
        for call in self.calls:
            yield call
            for subprogram in call.subprograms:
                yield from subprogram.program.walk_programs()

    def __str__(self) -> str:
        return self.python()

    def __repr__(self) -> str:
        return f"<tj trace {self.name!r} at stage {self.stage.name}: {len(self.calls)} calls>"

    def _repr_html_(self) -> str:
        return text_html(str(self))

    def python(self, *, sources: bool = True, bodies: bool = True) -> str:
        """The program as Python text, deterministic. See `tj_core.text.printer`."""
        return self.language.print(self, sources=sources, bodies=bodies)

    @staticmethod
    def parse(
        text: str, *, language: Notation, constants: Mapping[str, Any] | None = None
    ) -> Trace:
        """The trace that prints as ``text``; ``constants`` as given by `constants`.

        :raises ParseError: if ``text`` is not the print of a trace.
        """
        return language.parse(text, constants or {})


class Notation(Protocol):
    """The spelling of programs in Python, and the evaluation of the spelled text.

    `tj_core.text.language.Language` is the implementation.
    """

    def print(self, trace: Trace, *, sources: bool, bodies: bool) -> str:
        """``trace`` as Python text."""
        ...

    def parse(self, text: str, constants: Mapping[str, Any]) -> Trace:
        """The trace that prints as ``text``."""
        ...

    def prelude(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        """The import lines of programs that use ``namespaces``."""
        ...

    def names(self) -> set[str]:
        """The global names that printed programs import for their dialects."""
        ...

    def resolve(self, symbol: Symbol) -> Callable[..., Any]:
        """The callable behind ``symbol``."""
        ...

    def entry(self, call: BoundSymbol) -> Callable[..., Any] | None:
        """An equivalent of the resolved function for the arguments of ``call``, or None."""
        ...

    @property
    def runtime(self) -> tuple[RuntimeValues, ...]:
        """The dialects' functions on values at run time."""
        ...

    def observe(self, value: Any) -> Proxy | None:
        """The metadata of a value at run time; None if no dialect knows the value."""
        ...

    def checks_writes(self, call: BoundSymbol) -> bool:
        """Decide if ``call`` may raise because of earlier mutations of its arguments."""
        ...

    def evaluate(self, text: str) -> Any:
        """The value of an expression under the preludes of all dialects."""
        ...

    def enter(self, context: Context, outer: Context = PLAIN_CONTEXT) -> tuple[str, ...]:
        """The context managers, as expressions, that lead from ``outer`` to ``context``."""
        ...


def _unnamed(tree: Any) -> Iterator[Constant]:
    return (x for x in leaves(tree) if isinstance(x, Constant) and not x.named)
