"""Made-up programs that view, write and alias, as Python text; a hypothesis strategy makes them.

While a program is made it also runs, so that every line can be chosen to fit the values there are;
a line that PyTorch refuses is left out, or is the last one. A program prints as a regression test.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from tj_conformance.programs.aliasing import Jit, Report, Scene, check, stateless
from tj_conformance.programs.lines import LINES, Line, Values
from tj_conformance.programs.modules import module_of

__all__ = ["TextProgram", "programs", "run_text"]


@dataclass(frozen=True, slots=True)
class TextProgram:
    """A program as text, with the text that makes its arguments.

    ``setup`` lines define ``args`` and ``watched``; where ``apart`` is set, the program is also
    called with arguments that share nothing, between two calls with these.
    """

    setup: tuple[str, ...]
    args: tuple[str, ...]
    watched: tuple[str, ...]
    body: tuple[str, ...]
    result: str
    apart: bool = False

    def __str__(self) -> str:
        """A file with ``make`` and ``program``, ready to be pasted as a test."""
        scene = f"Scene({_tuple(self.args)}, {_tuple(self.watched)})"
        lines = [
            "import torch",
            "from tj_conformance.programs.aliasing import Scene, check, stateless",
            "",
            "",
            "def make():",
            *(f"    {line}" for line in self.setup),
            f"    return {scene}",
            "",
            "",
            "def make_apart():",
            "    scene = make()",
            "    clones = [t.detach().clone().requires_grad_(t.requires_grad) for t in scene.args]",
            "    return Scene(tuple(clones))",
            "",
            "",
            f"def program({', '.join(self.args)}):",
            *(f"    {line}" for line in self.body),
            f"    return {self.result}",
            "",
            "",
            "def test_program() -> None:",
            f"    scenes = [{', '.join(self.scenes())}]",
            '    assert str(check(stateless(program), scenes)) == "equal"',
        ]
        return "\n".join(lines) + "\n"

    def scenes(self) -> list[str]:
        """The names of the functions that make the arguments, call by call."""
        return ["make", "make_apart", "make"] if self.apart else ["make"]


def _tuple(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def run_text(program: TextProgram, jit: Jit, **options: Any) -> Report:
    """Compare ``program`` with eager; ``jit`` compiles it, ``options`` are `check`'s."""
    with module_of(str(program)) as module:
        space = vars(module)
        scenes: list[Callable[[], Scene]] = [space[name] for name in program.scenes()]
        return check(stateless(space["program"]), scenes, jit=jit, **options)


# --------------------------------------------------------------------------- arguments

_SHAPES = ((2, 3), (3, 3), (4,), (3,), (1, 3), (2, 1, 3), (), (0, 3), (1,), (2, 2, 2))
_TYPES = ("float32",) * 6 + ("float64", "int64", "complex64", "bool")
_OF_ARGUMENT = (
    "{p}",
    "{p}",
    "{p}[1:]",
    "{p}[:1]",
    "{p}[..., :2]",
    "{p}.view(-1)",
    "{p}.view(-1)[1:4]",
    "{p}.t()",
    "{p}.detach()",
    "{p}.detach()[1:]",
    "{p}.unsqueeze(0)",
    "{p}[..., ::2]",
    "{p}.unsqueeze(0).expand(2, *{p}.shape)",
    "{p}.unbind(0)[0]",
    "{p}.data.view(-1)",
)


@dataclass
class _Maker:
    """A program in the making: its lines, and the values that they have made so far."""

    draw: Callable[[Any], Any]

    def __post_init__(self) -> None:
        self.space: dict[str, Any] = {"torch": torch}
        self.setup: list[str] = []
        self.body: list[str] = []
        self.depth = 0
        self.open: list[Any] = []
        self.count = itertools.count()

    def choose(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def run(self, line: str) -> bool:
        """Execute ``line``; False if PyTorch refuses it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of some things only once per process
            try:
                exec(line, self.space)
            except Exception:
                return False
        return True

    # ------------------------------------------------------------------ arguments

    def arguments(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Lines that make one to three arguments out of one or two bases."""
        watched: list[str] = []
        bases = [
            name for i in range(self.draw(st.integers(1, 2))) for name in self.base(i, watched)[-1:]
        ]
        args = []
        for name in "abc"[: self.draw(st.integers(1, 3))]:
            base = self.choose(bases)
            line = f"{name} = {self.choose(_OF_ARGUMENT).format(p=base)}"
            if not self.run(line):
                line = f"{name} = {base}"
                self.run(line)
            self.setup.append(line)
            args.append(name)
        return tuple(args), tuple(watched)

    def base(self, i: int, watched: list[str]) -> list[str]:
        shape, dtype = self.choose(_SHAPES), self.choose(_TYPES)
        count = torch.Size(shape).numel()
        made = f"p{i} = torch.arange(1, {count + 1}).reshape({shape}).to(torch.{dtype})"
        kind = self.choose(("plain", "leaf", "inner")) if _differentiable(dtype) else "plain"
        lines = [made if kind == "plain" else f"{made}.requires_grad_()"]
        if kind == "inner":
            lines.append(f"q{i} = p{i} * 1")
        names = [line.split(" = ")[0] for line in lines]
        for line in lines:
            self.run(line)
        self.setup += lines
        watched += names
        return names

    # ------------------------------------------------------------------ body

    def values(self) -> Values:
        """The tensors a line may use, by name."""
        hidden = tuple("pq")
        return {
            name: value
            for name, value in self.space.items()
            if isinstance(value, torch.Tensor) and not name.startswith(hidden)
        }

    def line(self) -> bool:
        """Append a line, or none if it does not fit; False if the program cannot go on."""
        make: Line = self.choose(LINES)
        fresh = f"t{next(self.count)}"
        line = make(self.choose, self.values(), fresh)
        if line is None:
            return True
        if line.startswith("with "):
            self.enter(line)
            return True
        if self.run(line):
            self.body.append("    " * self.depth + line)
            return True
        if self.draw(st.integers(0, 9)) == 9:  # eager refuses it: so must everyone
            self.body.append("    " * self.depth + line)
            return False
        return True

    def enter(self, line: str) -> None:
        if self.depth:
            self.leave()
            return
        mode = eval(line.removeprefix("with ").removesuffix(":"), self.space)
        mode.__enter__()
        self.open.append(mode)
        self.body.append(line)
        self.body.append("    pass")
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1
        self.open.pop().__exit__(None, None, None)

    def result(self) -> str:
        """An expression over any of the values, in any nesting, with repetitions."""
        names = sorted(self.values())
        chosen = self.draw(st.lists(st.sampled_from(names), min_size=0, max_size=4))
        form = self.choose(_FORMS)
        if form == "one" and chosen:
            return str(chosen[0])
        if form == "dict":
            return "{" + ", ".join(f"'{i}': {n}" for i, n in enumerate(chosen)) + "}"
        if form == "nested" and len(chosen) > 1:
            return f"[{chosen[0]}, ({', '.join(chosen[1:])},), None, {chosen[0]}.shape]"
        return f"[{', '.join(chosen)}]"


_FORMS = ("list", "one", "dict", "nested")


def _differentiable(dtype: str) -> bool:
    kind: torch.dtype = getattr(torch, dtype)
    return kind.is_floating_point or kind.is_complex


@st.composite
def programs(draw: Callable[[Any], Any], max_lines: int = 7) -> TextProgram:
    """Programs of at most ``max_lines`` lines over one to three arguments."""
    maker = _Maker(draw)
    before = torch.is_grad_enabled()
    state = torch.get_rng_state()
    torch.manual_seed(0)
    try:
        args, watched = maker.arguments()
        for _ in range(draw(st.integers(1, max_lines))):
            if not maker.line():
                break
        while maker.depth:
            maker.leave()
        result = maker.result()
    finally:
        while maker.depth:
            maker.leave()
        torch.set_grad_enabled(before)
        torch.set_rng_state(state)
    setup, body = tuple(maker.setup), tuple(_without_needless_pass(maker.body))
    return TextProgram(setup, args, watched, body, result, draw(st.integers(0, 3)) == 3)


def _without_needless_pass(lines: list[str]) -> Iterator[str]:
    for line, after in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        if line != "    pass" or not after.startswith("    "):
            yield line
