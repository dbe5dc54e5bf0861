"""Made-up Functions and custom operators with a backward of their own, as Python text.

One number determines one program: what is saved and how, what the backward returns, how outputs are
marked, and what the program does around the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

__all__ = ["OwnText", "own_text"]

HEADER = """import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

RATE = 1.5
settings = {"rate": 0.5}
"""

COMPUTED = (
    "x.sin()",
    "x.exp()",
    "x * 2",
    "x * x",
    "(x > 0).float()",
    "x.abs() + 1",
    "x - x.mean()",
)
"""Expressions that a forward may compute from an argument, with its shape."""

CONSTANTS = ("torch.ones_like(x) * 4", "torch.full_like(x, 3.0)", "torch.zeros_like(x)")


@dataclass(frozen=True, slots=True)
class OwnText:
    """A program: ``text`` defines ``program(x, z)``; ``number`` made it.

    ``ambient`` is the context of its call, as text. With ``writes``, its arguments are written
    before gradients are taken. With ``linear`` each gradient is proportional to the tangents, as
    true ones are; without it, a sum depends on how it is split.
    """

    number: int
    text: str
    ambient: str
    writes: bool
    linear: bool

    @property
    def rewritten(self) -> bool:
        """True if a saved tensor may be written before or while gradients are taken.

        A checkpoint reruns a Function that writes its arguments.
        """
        return self.writes or ("mark_dirty" in self.text and "checkpoint(lambda" in self.text)

    def __str__(self) -> str:
        return f"# program {self.number}, in {self.ambient}, writes: {self.writes}\n{self.text}"


def own_text(number: int) -> OwnText:
    """The program that ``number`` makes."""
    random = Random(number)
    maker = _Maker(random)
    lines = list(maker.lines())
    ambient = _choose(random, {"nullcontext()": 12, "torch.no_grad()": 1, AUTOCAST: 1})
    text = HEADER + "\n".join(lines) + "\n"
    return OwnText(number, text, ambient, random.random() < 0.15, maker.linear)


AUTOCAST = 'torch.autocast("cpu", dtype=torch.bfloat16)'


def _choose(random: Random, weights: dict[str, int]) -> str:
    return random.choices(list(weights), list(weights.values()))[0]


@dataclass
class _Maker:
    """Makes the lines of one program.

    ``count`` is the number of results of the called operation; with ``number`` it takes a number,
    too. ``linear`` is that of `OwnText`.
    """

    random: Random
    count: int = 0
    number: bool = False
    linear: bool = True

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def lines(self) -> Iterator[str]:
        names = ["First"]
        tensors = self.random.choice((1, 1, 2))
        operator = self.chance(0.25)
        yield from self.operator(tensors) if operator else self.function("First", tensors, False)
        if not operator and self.chance(0.3):
            names.append("Second")
            yield from self.function("Second", 1, True)
        yield ""
        yield ""
        yield "def program(x, z):"
        yield from (f"    {line}" for line in self.program(names, tensors, operator))

    # ------------------------------------------------------------------ a Function

    def function(self, name: str, tensors: int, simple: bool) -> Iterator[str]:
        args = ["x", "y"][:tensors]
        number = self.chance(0.3) and not simple
        self.number = self.number or number
        given = [*args, *(["k"] if number else [])]
        setup = self.chance(0.35)
        dirty = not simple and not setup and self.chance(0.08)
        outputs = self.outputs(args, number, simple)
        if dirty:
            outputs[0] = "x"
        self.count = self.count or len(outputs)
        kept = self.kept(args, len(outputs), number)
        marks = list(self.marks(outputs, simple))
        yield ""
        yield ""
        yield f"class {name}(torch.autograd.Function):"
        yield "    @staticmethod"
        first = "" if setup else "ctx, "
        yield f"    def forward({first}{', '.join(given)}):"
        yield from ["        x.mul_(2)", "        ctx.mark_dirty(x)"] if dirty else []
        for i, text in enumerate(outputs):
            yield f"        o{i} = {text}"
        returned = ", ".join(f"o{i}" for i in range(len(outputs)))
        notes = [*marks, *self.keeping(kept)]
        if setup:
            yield f"        return {returned}"
            yield ""
            yield "    @staticmethod"
            yield "    def setup_context(ctx, inputs, output):"
            yield f"        {', '.join(given)}{',' if len(given) == 1 else ''} = inputs"
            yield f"        {returned} = output"
            yield from (f"        {line}" for line in notes or ["pass"])
        else:
            yield from (f"        {line}" for line in notes)
            yield f"        return {returned}"
        yield ""
        yield "    @staticmethod"
        yield from ["    @once_differentiable"] if self.chance(0.1) else []
        tangents = ", ".join(f"g{i}" for i in range(len(outputs)))
        yield f"    def backward(ctx, {tangents}):"
        materialized = not any("materialize" in line for line in marks)
        nested = not simple and self.chance(0.08)
        body = self.backward(kept, args, given, len(outputs), materialized, nested)
        yield from (f"        {line}" for line in body)
        if nested:
            yield from NESTED

    def outputs(self, args: Sequence[str], number: bool, simple: bool) -> list[str]:
        count = 1 if simple else self.random.choice((1, 1, 1, 2, 2, 3))
        found = [self.output(args, number) for _ in range(count)]
        if count > 1 and self.chance(0.15):
            found[-1] = self.random.choice(("3", "'word'", "x.argmax()", "None"))
        return found

    def output(self, args: Sequence[str], number: bool) -> str:
        if self.chance(0.08):
            return self.random.choice(("x", "x.view_as(x)", "x[:1]", "x.t()"))
        text = self.random.choice(COMPUTED)
        if len(args) > 1 and self.chance(0.7):
            text = f"{text} * y"
        return f"({text}) * k" if number else text

    def marks(self, outputs: Sequence[str], simple: bool) -> Iterator[str]:
        index = len(outputs) - 1
        tensor = outputs[index] not in ("3", "'word'", "None")
        if tensor and (outputs[index] == "x.argmax()" or self.chance(0.1)):
            yield f"ctx.mark_non_differentiable(o{index})"
        if not simple and self.chance(0.1):
            yield "ctx.set_materialize_grads(False)"

    # ------------------------------------------------------------------ what is saved

    def kept(self, args: Sequence[str], outputs: int, number: bool) -> list[tuple[str, str, str]]:
        """Choose the saved values, each as (name in the backward, way to save it, expression)."""
        found = []
        for i in range(self.random.choice((0, 1, 1, 2, 3))):
            how = "saved" if self.chance(0.7) else "attribute"
            what = _choose(
                self.random,
                {
                    self.random.choice(list(args)): 4,
                    "o0": 2,
                    self.random.choice(COMPUTED): 4,
                    self.random.choice(CONSTANTS): 2,
                },
            )
            found.append((f"s{i}", how, what))
        return found

    def keeping(self, kept: Sequence[tuple[str, str, str]]) -> Iterator[str]:
        saved = [what for _, how, what in kept if how == "saved"]
        if saved:
            yield f"ctx.save_for_backward({', '.join(saved)})"
        for name, how, what in kept:
            if how == "attribute":
                yield f"ctx.{name} = {what}"
        if self.chance(0.3):
            yield "ctx.shape = x.shape"

    # ------------------------------------------------------------------ a backward

    def backward(
        self,
        kept: Sequence[tuple[str, str, str]],
        args: Sequence[str],
        given: Sequence[str],
        outputs: int,
        materialized: bool,
        nested: bool,
    ) -> Iterator[str]:
        saved = [name for name, how, _ in kept if how == "saved"]
        if saved:
            yield f"{', '.join(saved)}, = ctx.saved_tensors"
        for name, how, _ in kept:
            if how == "attribute":
                yield f"{name} = ctx.{name}"
        names = [name for name, _, _ in kept]
        if not materialized:
            yield "if g0 is None:"
            yield f"    return {', '.join(['None'] * len(given))}"
        if nested:
            yield "g0 = Inner.apply(g0)"
        if self.chance(0.03):
            yield "if torch.is_grad_enabled():"
            yield "    g0 = g0 * 3"
        if self.chance(0.03):
            yield "with torch.no_grad():"
            yield "    g0 = g0 * 2"
        gradients = [
            "None" if name == "k" else self.gradient(i, names, outputs, materialized)
            for i, name in enumerate(given)
        ]
        if self.chance(0.02):
            gradients = self.random.choice(
                (gradients[:-1], [*gradients, "None"], [*gradients, "g0"])
            )
        yield f"return {', '.join(gradients) or '()'}"

    def gradient(self, i: int, names: Sequence[str], outputs: int, materialized: bool) -> str:
        tangent = "g0"
        if outputs > 1 and materialized and self.chance(0.4):
            tangent = f"(g0 + g{self.random.randrange(outputs)})"
        texts = {tangent: 2, f"{tangent} * 5": 2, "None": 1, f"{tangent} * RATE": 1}
        texts[f"torch.full_like({tangent}, 6.0)"] = 1
        texts[f'{tangent} * settings["rate"]'] = 0 if self.chance(0.8) else 1
        for name in names:
            texts[f"{tangent} * {name}"] = 4
            texts[name] = 2
            texts[f"{name}.view_as({name})"] = 1
            texts[f"{name}.t().t()"] = 1
            texts[f"-{name}"] = 1
        text = _choose(self.random, texts)
        self.linear = self.linear and (text == "None" or (tangent in text and "full" not in text))
        if self.chance(0.15):
            return f"({text}) if ctx.needs_input_grad[{i}] else None"
        return text

    # ------------------------------------------------------------------ an operator

    def operator(self, tensors: int) -> Iterator[str]:
        args = ["x", "y"][:tensors]
        self.count = self.random.choice((1, 1, 2))
        outputs = [f"{self.random.choice(COMPUTED)} + 0" for _ in range(self.count)]
        kept = self.kept(args, self.count, False)
        result = "torch.Tensor" if self.count == 1 else "tuple[torch.Tensor, torch.Tensor]"
        typed = ", ".join(f"{a}: torch.Tensor" for a in args)
        yield ""
        yield ""
        yield '@torch.library.custom_op(f"tj_made::{NAME}", mutates_args=())'
        yield f"def First({typed}) -> {result}:"
        yield f"    return {', '.join(outputs)}"
        yield ""
        yield ""
        yield "@First.register_fake"
        yield f"def _({', '.join(args)}):"
        yield f"    return {', '.join(['torch.empty_like(x)'] * self.count)}"
        yield ""
        yield ""
        yield "def setup(ctx, inputs, output):"
        yield f"    {', '.join(args)}{',' if len(args) == 1 else ''} = inputs"
        yield f"    {', '.join(f'o{i}' for i in range(self.count))} = output"
        yield from (f"    {line}" for line in self.keeping(kept))
        yield ""
        yield ""
        yield f"def backward(ctx, {', '.join(f'g{i}' for i in range(self.count))}):"
        body = self.backward(kept, args, args, self.count, True, False)
        yield from (f"    {line}" for line in body)
        yield ""
        yield ""
        yield "First.register_autograd(backward, setup_context=setup)"

    # ------------------------------------------------------------------ the program

    def program(self, names: Sequence[str], tensors: int, operator: bool) -> Iterator[str]:
        before = self.random.choice(("x", "x * z", "x.sin()", "x + 0", "x.detach()", "x.t().t()"))
        yield f"a = {before}"
        yield from self.call("a", tensors, operator)
        result = "o0" if self.count == 1 else self.random.choice(("o", "o0", "o0"))
        uses = {
            f"return {result}": 3,
            "return o0 * z": 3,
            "return (o0 * 2).sum()": 2,
            f"return {result}, a": 1,
            "return o0 * a + x": 1,
        }
        if "Second" in names:
            yield "b = Second.apply(o0.sin())"
            uses = {"return b": 2, "return b * o0": 2, "return b, o0": 1, "return b.exp().sum()": 1}
        yield _choose(self.random, uses)

    def call(self, given: str, tensors: int, operator: bool) -> Iterator[str]:
        apply = "First" if operator else "First.apply"
        args = ", ".join([*[given, "z"][:tensors], *(["2.0"] if self.number else [])])
        text = f"{apply}({args})"
        wrapped = _choose(
            self.random, {"{}": 12, "checkpoint": 2, "no_grad": 1, "autocast": 1, "twice": 1}
        )
        if wrapped == "checkpoint":
            text = f"checkpoint(lambda a: {text}, {given}, use_reentrant=False)"
        if wrapped in ("no_grad", "autocast"):
            yield f"with {'torch.no_grad()' if wrapped == 'no_grad' else AUTOCAST}:"
            yield f"    o = {text}"
        else:
            yield f"o = {text}"
        yield "o0 = o[0] if isinstance(o, tuple) else o"
        if wrapped == "twice" and self.count == 1:
            yield f"o0 = o = o0 + {text}"


NESTED = """

class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 7""".splitlines()
