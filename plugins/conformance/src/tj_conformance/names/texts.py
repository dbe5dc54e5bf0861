"""Made-up programs with hostile names, as Python text: one number determines one program.

The names are those of locals, arguments, attributes, modules, buffers, parameters, closures,
globals and keys. A text calls functions without the names of builtins, which it may redefine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import torch

from tj_conformance.names.hostile import HOSTILE, Names, normal

__all__ = ["NamedText", "named_text"]

PURE = (
    "{a} + {b}",
    "{a} * {b}",
    "{a} - {b} * 0.5",
    "{a}.sin()",
    "{T}.tanh({a})",
    "{T}.add({a}, {b}, alpha=2)",
    "({a} * 0.3).exp()",
    "{a}.softmax(-1)",
    "{a} * {b}.mean(0)",
    "{a}.relu() + {b}",
    "{a}.t().t() * 2",
    "{a}[:, [2, 0, 1]]",
    "{T}.where({a} > 0, {a}, {b})",
    "{a} @ {square}",
    "{T}.nn.functional.linear({a}, {square}) + {b}",
    "{T}.cat([{a}, {a}], -1).view(-1, 6)[:, 1:4]",
    "{a} + {number}",
    "{a} * {number}",
    "{a}.detach() * {b}",
    "{a}.cumsum(0) * 0.1",
    "{a}.unbind(-1)[1].unsqueeze(-1) * {b}",
    "{helper}({a}, {b})",
    "{checkpoint}({helper}, {a}, {b}, use_reentrant=False)",
    "{Function}.apply({a})",
    "{T}.nn.functional.layer_norm({a}, (3,))",
    "({a}.float() + 1).to({T}.float64)",
)
"""Expressions over ``{a}`` and ``{b}``, matrices of three columns, with such a matrix as result."""

WRITES = (
    "{a} += {b}.detach()",
    "{a}.mul_(0.5)",
    "{a} *= 2",
    "{a}[:1] = 0.5",
    "{a}.copy_({b})",
    "{a}.t().add_(1)",
    "{T}.add({a}.detach(), {b}.detach(), out={a}.data)",
)


@dataclass(frozen=True, slots=True)
class NamedText:
    """A program: ``text`` defines ``tj_make``, ``tj_call`` and ``tj_state``; ``number`` made it.

    ``rounded`` is true if autocast rounds values in it.
    """

    number: int
    text: str
    rounded: bool

    def __str__(self) -> str:
        return f"# program {self.number}\n{self.text}"


def named_text(number: int) -> NamedText:
    """The program that ``number`` makes."""
    random = Random(number)
    maker = _Maker(random, Names(random, {"tj_make", "tj_call", "tj_state", "tj_static"}))
    return NamedText(number, "\n".join(maker.lines()) + "\n", maker.rounded)


@dataclass
class _Maker:
    """Makes the lines of one program.

    ``values`` are the matrices that a line may read, ``own`` those of them that are locals, which
    it may write and rebind; ``numbers`` are numbers. ``owned`` are expressions of a module's
    attributes: matrices, one row each, and buffers.
    """

    random: Random
    names: Names
    values: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    squares: list[str] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    stored: str = ""
    rounded: bool = False

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def pick(self, options: list[str]) -> str:
        recent = options[-3:] if self.chance(0.6) else options
        return self.random.choice(recent)

    # ------------------------------------------------------------------ the whole file

    def lines(self) -> Iterator[str]:
        new = self.names.draw
        self.T, self.checkpoint, self.helper, self.Function = new(), new(), new(), new()
        self.number, self.square, self.kept = new(), new(), new()
        yield "from builtins import staticmethod as tj_static"
        yield f"import torch as {self.T}"
        yield f"from torch.utils.checkpoint import checkpoint as {self.checkpoint}"
        yield ""
        yield f"{self.number} = 1.5"
        yield f"{self.square} = {self.T}.eye(3, dtype={self.T}.float64) * 2 - 0.1"
        yield f"{self.kept} = {self.T}.zeros(1, 3, dtype={self.T}.float64)"
        yield from self.function()
        yield from self.helping()
        self.numbers.append(self.number)
        self.squares.append(self.square)
        self.values.append(self.kept)
        yield from (self.module() if self.chance(0.4) else self.plain())

    def function(self) -> Iterator[str]:
        """A Function that brings its gradient, its names hostile, too."""
        ctx, x, g = (self.names.draw() for _ in range(3))
        yield from (
            "",
            "",
            f"class {self.Function}({self.T}.autograd.Function):",
            f"    def forward({ctx}, {x}):",
            f"        {ctx}.save_for_backward({x})",
            f"        return {x}.sin()",
            "",
            f"    def backward({ctx}, {g}):",
            f"        {x}, = {ctx}.saved_tensors",
            f"        return {g} * {x}.cos()",
            "",
            "    forward = tj_static(forward)",
            "    backward = tj_static(backward)",
        )

    def helping(self) -> Iterator[str]:
        """A function that others call, and checkpoints run again."""
        p, q, made = (self.names.draw() for _ in range(3))
        again = self.random.choice((p, q, made))
        yield from ("", "", f"def {self.helper}({p}, {q}):")
        yield f"    {made} = {self.T}.tanh({p}) * {q}"
        yield f"    {again} = {made} + {p}.cos()"
        yield f"    return {again} * {q}"

    def plain(self) -> Iterator[str]:
        """A function, which may be nested in another and read its values."""
        program, outer = self.names.draw(), self.names.draw()
        closed = self.names.draw() if self.chance(0.4) else None
        indent = "    " if closed else ""
        parameters, opening, calling = self.signature()
        if closed:
            yield from ("", "", f"def {outer}({closed}):", "")
            self.values.append(closed)
        else:
            yield from ("", "")
        yield f"{indent}def {program}({', '.join(parameters)}):"
        if self.chance(0.3):
            self.stored = self.kept
            yield f"{indent}    global {self.kept}"
        yield from (f"{indent}    {line}" for line in [*opening, *self.body()])
        if closed:
            yield f"    return {program}"
        made = f"{outer}({self.T}.ones(3, dtype={self.T}.float64) * 0.7)" if closed else program
        yield from self.ending(made, calling, f"({self.kept},)")

    def module(self) -> Iterator[str]:
        """A module with parameters, buffers, numbers and a module inside."""
        taken = {normal(n) for n in (*dir(torch.nn.Module), *vars(torch.nn.Linear(1, 1)))}
        me = self.names.draw()
        kind = self.names.draw()
        # An attribute may be called as a local is: both are named after it.
        attributes = Names(self.random, taken)
        w, row, buffer, number, inner = (attributes.draw() for _ in range(5))
        parameters, opening, calling = self.signature(frozenset({"self"}))
        T = self.T
        matrix = f"{T}.linspace(-1, 1, 9, dtype={T}.float64).view(3, 3)"
        yield from (
            "",
            "",
            f"class {kind}({T}.nn.Module):",
            f"    def __init__({me}):",
            f"        {T}.nn.Module.__init__({me})",
            f"        {me}.register_parameter({w!r}, {T}.nn.Parameter({matrix}))",
            f"        {me}.register_parameter({row!r}, {T}.nn.Parameter({matrix}[0] + 1))",
            f"        {me}.register_buffer({buffer!r}, {matrix}[1] + 0.5)",
            f"        {me}.__setattr__({number!r}, 2.5)",
            f"        {me}.add_module({inner!r}, {T}.nn.Linear(3, 3).double())",
            "",
            f"    def forward({', '.join([me, *parameters])}):",
        )
        self.squares.append(_attribute(me, w, "_parameters"))
        self.values += [_attribute(me, row, "_parameters"), _attribute(me, buffer, "_buffers")]
        self.buffers.append(_attribute(me, buffer, "_buffers"))
        self.numbers.append(_attribute(me, number, "__dict__"))
        self.inner = _attribute(me, inner, "_modules")
        yield from (f"        {line}" for line in [*opening, *self.body()])
        state = f"(*f.parameters(), *f.buffers(), {self.kept})"
        yield from self.ending(f"{kind}()", calling, state)

    def ending(self, made: str, calling: str, state: str) -> Iterator[str]:
        """The functions by which a program is made, called and inspected."""
        yield from ("", "", "def tj_make():", f"    return {made}")
        yield from ("", "", "def tj_call(f, x, y, k):", f"    return f({calling})")
        yield from ("", "", "def tj_state(f):", f"    return {state}")

    # ------------------------------------------------------------------ arguments

    def signature(self, avoid: frozenset[str] = frozenset()) -> tuple[list[str], list[str], str]:
        """Parameters, lines that make three values of them, and the text of a call."""
        x, y, k = (self.names.draw(avoid) for _ in range(3))
        self.values += [x, y]
        self.own += [x, y]
        self.numbers.append(k)
        named = f"x, **{{{normal(y)!r}: y, {normal(k)!r}: k}}"
        more = self.names.draw(avoid)
        kinds: dict[str, tuple[list[str], list[str], str]] = {
            "places": ([x, y, k], [], "x, y, k"),
            "names": ([x, y, k], [], named),
            "defaults": ([x, y, f"{k}=2"], [], "x, y" if self.chance(0.5) else "x, y, k"),
            "keywords": ([x, "*", y, k], [], named),
            "any": ([f"*{more}"], [f"{x}, {y}, {k} = {more}"], "x, y, k"),
            "one": ([x, more], [f"{y}, {k} = {more}"], "x, (y, k)"),
            "dict": ([x, more], [f"{y}, {k} = {more}['a0'], {more}[{x!r}]"],
                     f"x, {{'a0': y, {x!r}: k}}"),
        }  # fmt: skip
        raw = [self.random.choice(HOSTILE["unicode"].split()), "fn"]
        if normal(raw[0]) != x and x != "fn" and raw[0] not in avoid:
            opening = [f"{y}, {k} = {more}[{raw[0]!r}], {more}['fn']"]
            kinds["any names"] = (
                [x, f"**{more}"], opening, f"x, **{{{raw[0]!r}: y, 'fn': k}}"
            )  # fmt: skip
        return kinds[self.random.choice(list(kinds))]

    # ------------------------------------------------------------------ the body

    def body(self) -> Iterator[str]:
        for _ in range(self.random.randint(2, 6)):
            yield from self.random.choice(_STATEMENTS)(self)
        yield self.result()

    def filled(self, template: str) -> str:
        return template.format(
            a=self.pick(self.values),
            b=self.pick(self.values),
            T=self.T,
            square=self.pick(self.squares),
            number=self.pick(self.numbers),
            helper=self.helper,
            checkpoint=self.checkpoint,
            Function=self.Function,
        )

    def expression(self) -> str:
        """A new matrix, at least one of whose operands has all its rows."""
        return f"{self.filled(self.random.choice(PURE))} + {self.pick(self.own)} * 0.5"

    def local(self, name: str) -> str:
        """``name``, added to the values."""
        if name not in self.own:
            self.own.append(name)
        if name not in self.values:
            self.values.append(name)
        return name

    def assigned(self) -> Iterator[str]:
        made = self.expression()
        yield f"{self.local(self.names.draw())} = {made}"

    def bound_again(self) -> Iterator[str]:
        yield f"{self.pick(self.own)} = {self.expression()}"

    def swapped(self) -> Iterator[str]:
        a, b = self.pick(self.own), self.pick(self.own)
        yield f"{a}, {b} = {b}, {a}"

    def pair(self) -> Iterator[str]:
        made = f"{self.expression()}, {self.expression()}"
        new = f"{self.local(self.names.draw())}, {self.local(self.names.draw())}"
        yield f"{new} = {made}"

    def written(self) -> Iterator[str]:
        a = self.pick(self.own)
        text = self.random.choice(WRITES).format(a=a, b=self.pick(self.own), T=self.T)
        yield f"{a} = {a} * 1" if self.chance(0.4) else f"{a} = {a}"
        yield text

    def viewed(self) -> Iterator[str]:
        a = self.pick(self.own)
        yield f"{self.local(self.names.draw())} = {a}[:]"

    def size(self) -> Iterator[str]:
        new = self.names.draw()
        yield f"{new} = {self.pick(self.own)}.shape[0]"
        self.numbers.append(new)

    def repeated(self) -> Iterator[str]:
        a = self.pick(self.own)
        n = self.names.draw()
        yield f"for {n} in (1, 2):"
        yield f"    {a} = {a} * {n} + {self.pick(self.values)}"

    def without(self) -> Iterator[str]:
        made = self.expression()
        yield f"with {self.T}.no_grad():"
        yield f"    {self.local(self.names.draw())} = {made}"

    def cast(self) -> Iterator[str]:
        self.rounded = True
        a, made = self.pick(self.own), f"{self.T}.float64"
        yield f"with {self.T}.autocast('cpu', dtype={self.T}.bfloat16):"
        new = self.names.draw()
        yield f"    {new} = ({a}.float() @ {self.pick(self.squares)}.float()).to({made})"
        self.local(new)

    def inside(self) -> Iterator[str]:
        f, p, n = (self.names.draw() for _ in range(3))
        a, b = self.pick(self.values), self.pick(self.own)
        yield f"def {f}({p}):"
        yield f"    {n} = {p} * 2"
        yield f"    return {n} + {a}"
        yield f"{self.local(self.names.draw())} = {f}({b})"

    def listed(self) -> Iterator[str]:
        v = self.names.draw()
        a, b = self.pick(self.own), self.pick(self.own)
        yield f"{self.local(self.names.draw())} = [{v} * 2 for {v} in ({a}, {b})][1]"

    def anonymous(self) -> Iterator[str]:
        p = self.names.draw()
        a, b = self.pick(self.values), self.pick(self.own)
        yield f"{self.local(self.names.draw())} = (lambda {p}: {p} + {a})({b})"

    def named(self) -> Iterator[str]:
        a, made = self.pick(self.own), self.expression()
        m = self.names.draw()
        yield f"{self.local(self.names.draw())} = ({m} := {made}) + {a}"
        self.local(m)

    def keyed(self) -> Iterator[str]:
        d = self.names.draw()
        keys = self.random.sample(["a0", "torch", "_0", "s0", "grad_x", "fn", "computation"], 2)
        a, b = self.pick(self.own), self.expression()
        yield f"{d} = {{{keys[0]!r}: {a}, {keys[1]!r}: {b}}}"
        yield f"{self.local(self.names.draw())} = {d}[{keys[0]!r}] * {d}[{keys[1]!r}]"

    def stores(self) -> Iterator[str]:
        if self.stored:
            yield f"{self.stored} = {self.pick(self.own)}.detach()[:1] * 1"
        elif self.buffers:
            yield f"{self.pick(self.buffers)}.mul_(0.5)"
        else:
            yield from self.assigned()

    def called(self) -> Iterator[str]:
        if self.buffers:
            a = self.pick(self.own)
            yield f"{self.local(self.names.draw())} = {self.inner}({a})"
        else:
            yield from self.bound_again()

    def gone(self) -> Iterator[str]:
        if len(self.own) > 3:
            a = self.pick(self.own)
            self.own.remove(a)
            self.values.remove(a)
            yield f"del {a}"
        else:
            yield from self.assigned()

    def result(self) -> str:
        a, b, c = (self.pick(self.own) for _ in range(3))
        keys = self.names.draw(), self.names.draw()
        return self.random.choice((
            f"return {a}",
            f"return {a}, {b}, {c}",
            f"return {{{keys[0]!r}: {a}, {keys[1]!r}: {b} * 2}}",
            f"return [{a}, ({b}, {self.pick(self.numbers)}), {c}.sum()]",
            f"return {a}.sum(0), {b}",
        ))  # fmt: skip


def _attribute(me: str, name: str, where: str) -> str:
    """Expression of a module's attribute; `getattr` if Python would mangle the name."""
    return f"{me}.{name}" if normal(name) == name else f"{me}.{where}[{name!r}]"


_STATEMENTS: tuple[Callable[[_Maker], Iterator[str]], ...] = (
    *(_Maker.assigned, _Maker.bound_again) * 3,
    *(_Maker.pair, _Maker.written, _Maker.named, _Maker.keyed) * 2,
    _Maker.swapped,
    _Maker.viewed,
    _Maker.size,
    _Maker.repeated,
    _Maker.without,
    _Maker.cast,
    _Maker.inside,
    _Maker.listed,
    _Maker.anonymous,
    _Maker.stores,
    _Maker.called,
    _Maker.gone,
)
