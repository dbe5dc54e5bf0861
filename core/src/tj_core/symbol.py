"""Symbols, and one call of a symbol: arguments, outputs, effects, body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from tj_core.proxy import Proxy
from tj_core.tags import NO_TAGS, TagSet
from tj_core.tree import leaves, map_tree

if TYPE_CHECKING:
    from tj_core.source import Source
    from tj_core.trace import Trace

__all__ = [
    "NO_EFFECTS",
    "PLAIN_CONTEXT",
    "Alias",
    "Body",
    "BoundSymbol",
    "Constant",
    "Context",
    "Effects",
    "Region",
    "Symbol",
]

FUNCTIONAL = ".functional"
"""Ends the name of an operation whose writes are results: new values, then what it returns."""

INVERSE = ".inverse"
"""Ends the name of a view's inverse: what is viewed, from a new value of the view."""

EDITED = ".rewritten"
"""Ends the name of a symbol whose call has an edited body."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of an operation; what it means is in tables. The world of symbols is open.

    ``namespace`` is an identifier, without dots; ``name`` may have them.
    """

    namespace: str
    name: str

    @property
    def qualname(self) -> str:
        """``namespace.name``, as printed."""
        return f"{self.namespace}.{self.name}"

    @classmethod
    def parse(cls, qualname: str) -> Symbol:
        """The symbol printed as ``qualname``."""
        namespace, _, name = qualname.partition(".")
        return cls(namespace, name)

    @property
    def functional(self) -> bool:
        """Whether this is what an operation that writes is made into: nothing is written."""
        return self.name.endswith((FUNCTIONAL, INVERSE))

    @property
    def edited(self) -> bool:
        """Whether the call's body was edited: it means what its body says, and no rule knows it."""
        return self.name.endswith(EDITED)

    def as_edited(self) -> Symbol:
        """The symbol of a call of this one whose body was edited."""
        return self if self.edited else Symbol(self.namespace, self.name + EDITED)

    def __str__(self) -> str:
        return self.qualname


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant argument that Python's literals cannot spell; ``nan`` and ``inf`` are such.

    ``text``, a dotted name or a call, evaluates to it under the dialects' preludes
    (``torch.float32``, ``float("nan")``); where no text does, ``text`` is a name (``_function0``)
    and the value travels beside the program.
    """

    text: str
    value: Any = field(hash=False)
    named: bool = True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant) or self.text != other.text:
            return False
        return self.named or self.value is other.value


@dataclass(frozen=True, slots=True)
class Context:
    """The dynamic context of a call: grad mode, autocast, ..., as sorted pairs of key and value.

    A trace's context is the one its program was acquired in, and runs in; a call's is the one at
    that point of the program, and holds every key the trace's does. In a body, a call's context
    holds only what differs from that of the call the body belongs to.
    """

    items: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, **values: Any) -> Context:
        """The context with ``values``."""
        return cls(tuple(sorted(values.items())))

    def with_(self, key: str, value: Any) -> Context:
        """A context that differs in ``key``."""
        return Context(tuple(sorted({**dict(self.items), key: value}.items())))

    def over(self, outer: Context) -> Context:
        """This context where it says something, ``outer`` elsewhere."""
        if not outer.items or self == outer:
            return self
        return Context(tuple(sorted({**dict(outer.items), **dict(self.items)}.items())))

    def beyond(self, outer: Context) -> Context:
        """The part of this context in which it differs from ``outer``."""
        known = dict(outer.items)
        return Context(tuple(i for i in self.items if i[0] not in known or known[i[0]] != i[1]))

    def get(self, key: str) -> Any:
        """The value of ``key``, or None."""
        return dict(self.items).get(key)


PLAIN_CONTEXT = Context()


@dataclass(frozen=True, slots=True)
class Alias:
    """Output ``output`` shares storage with argument or output ``index``, or with a hidden value.

    Counts are of proxies, arguments and outputs each flattened in order. ``identical`` means that
    the two are one Python object.
    """

    output: int
    kind: Literal["arg", "out", "hidden"]
    index: int = 0
    identical: bool = False


@dataclass(frozen=True, slots=True)
class Effects:
    """What a call does besides computing its outputs.

    ``mutates``: arguments (flat indices of proxies) whose data it writes.
    ``rebinds``: arguments whose metadata it changes, each with the proxy they are afterwards.
    ``aliases``: outputs that share storage.
    ``ordered``: resources whose calls keep their order and are never merged or removed, such as
    ``random:cpu``, ``collective``, ``stream``, ``side_effect``.
    ``versions``: arguments written, or changed in metadata, each with how often the call counts
    that (for autograd, which compares counters), where it is not once.
    ``hidden``: written arguments for which autograd, though gradients are on, sees no write.
    """

    mutates: tuple[int, ...] = ()
    rebinds: tuple[tuple[int, Proxy], ...] = ()
    aliases: tuple[Alias, ...] = ()
    ordered: tuple[str, ...] = ()
    versions: tuple[tuple[int, int], ...] = ()
    hidden: tuple[int, ...] = ()

    @property
    def removable(self) -> bool:
        """Whether a call none of whose outputs is used may go."""
        return not (self.mutates or self.rebinds or self.ordered)


NO_EFFECTS = Effects()


@dataclass(frozen=True, slots=True)
class Body:
    """The calls that a call decomposes into, under formal names, in SSA form.

    ``inputs`` stand for the call's argument proxies, used or not, in flat order, each distinct
    proxy once; they have the arguments' metadata, and no tags.
    ``outputs`` has the structure of the call's outputs. ``updates`` are the new values of the
    arguments the call mutates, as pairs of flat index and value. A body is shared by all calls it
    serves, which is why depth is free.

    Names are ``a0, a1, ...`` for inputs, by the flat index at which the argument first stands, and
    ``_0, _1, ...`` for what calls define, in order.
    """

    inputs: tuple[Proxy, ...]
    calls: tuple[BoundSymbol, ...]
    outputs: Any
    updates: tuple[tuple[int, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Region:
    """An operand program of a higher-order operation: a leaf among the call's arguments.

    When the call runs it is a function, called as the operation sees fit: never, once, or in the
    backward pass. ``program`` is closed: it sees nothing but its inputs, and names in it are its
    own. It runs in the context of its call, is of its call's stage (its own says nothing), and may
    write and draw random numbers; the call's effects sum that up (`tj_core.regions.summed`).

    ``operands`` has for each input of the program the flat index of the argument that it is, with
    that argument's metadata; None for a value that the operation makes up (a slice, a tangent).
    ``returns``: the call's outputs are the program's (its first ones, if it has more).
    """

    program: Trace
    operands: tuple[int | None, ...] = ()
    returns: bool = False

    @property
    def name(self) -> str:
        """What the region is called in its call's arguments: the name of its program."""
        return self.program.name


@dataclass(frozen=True)
class BoundSymbol:
    """One call. Immutable; `replace` makes an edited copy.

    ``args`` and ``kwargs`` are trees (tuples, lists, dicts, slices) whose leaves are proxies,
    constants and regions; ``outputs`` is one of tuples and lists. ``parent`` names the call this
    one derives from (its first output): a backward call its forward call, a claimed call the
    user's. ``executor`` owns the call from stage CLAIMED on. Equality leaves out ``source``.
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
        return replace(self, **changes)

    @cached_property
    def flat_args(self) -> tuple[Proxy, ...]:
        """The proxies among the arguments, in order; effects count these."""
        return tuple(x for x in leaves((self.args, self.kwargs)) if isinstance(x, Proxy))

    @cached_property
    def flat_outs(self) -> tuple[Proxy, ...]:
        """The proxies among the outputs, in order."""
        return tuple(x for x in leaves(self.outputs) if isinstance(x, Proxy))

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """The regions among the arguments, in order, each once."""
        found = (x for x in leaves((self.args, self.kwargs)) if isinstance(x, Region))
        return tuple({id(region.program): region for region in found}.values())

    @property
    def label(self) -> str:
        """How messages and ``parent`` name this call: its first output, else its symbol."""
        return self.flat_outs[0].name if self.flat_outs else self.symbol.qualname

    def defined(self) -> tuple[Proxy, ...]:
        """The outputs that are new values: those that are not an argument under its own name."""
        known = {p.name for p in self.flat_args}
        return tuple(p for p in self.flat_outs if p.name not in known)

    def map_proxies(self, fn: Callable[[Proxy], Any]) -> BoundSymbol:
        """A copy with ``fn`` applied to every argument and output proxy (self if none changes).

        ``fn`` keeps distinct values distinct; where it may not, see `tj_core.expand.with_args`.
        """
        args = map_tree(fn, self.args, Proxy)
        kwargs = map_tree(fn, self.kwargs, Proxy)
        outputs = map_tree(fn, self.outputs, Proxy)
        if args is self.args and kwargs is self.kwargs and outputs is self.outputs:
            return self
        return self.replace(args=args, kwargs=kwargs, outputs=outputs)

    def walk(self) -> Iterator[BoundSymbol]:
        """This call and, depth first, all calls in its regions and its body."""
        yield self
        for region in self.regions:
            yield from region.program.walk()
        for call in self.body.calls if self.body else ():
            yield from call.walk()
