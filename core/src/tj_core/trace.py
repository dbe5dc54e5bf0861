"""Traces: short straight-line programs, immutable, that print as Python and read back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tj_core.errors import TraceError
from tj_core.language import EMPTY_LANGUAGE, Language
from tj_core.proxy import Proxy
from tj_core.stages import Stage
from tj_core.symbol import PLAIN_CONTEXT, BoundSymbol, Constant, Context
from tj_core.tags import NO_TAGS, TagSet
from tj_core.tree import leaves

__all__ = ["Change", "Namer", "PassRecord", "Trace"]


@dataclass(frozen=True, slots=True)
class Change:
    """One edit of a pass: the call it changed, and the rule (with plugin and place) that did.

    ``declined`` are who would have come first, and why they did not.
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


@dataclass(frozen=True)
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
    language: Language = field(default=EMPTY_LANGUAGE, compare=False, repr=False)

    def replace(self, **changes: Any) -> Trace:
        """A copy with ``changes`` applied."""
        return replace(self, **changes)

    def after(self, record: PassRecord, **changes: Any) -> Trace:
        """The copy that a pass leaves behind: edited, with the pass added to the history."""
        return self.replace(history=(*self.history, record), **changes)

    def names(self) -> set[str]:
        """Every name the program binds or uses at top level, those of its constants included."""
        found = {p.name for p in self.inputs} | set(self.constants())
        for call in self.calls:
            found.update(p.name for p in (*call.flat_args, *call.flat_outs))
            found.update(region.name for region in call.regions)
        return found

    def constants(self) -> dict[str, Any]:
        """The values that travel beside the printed program: name to object.

        :raises TraceError: if two different ones have one name.
        """
        found: dict[str, Any] = {}
        for constant in _unnamed(self):
            if found.setdefault(constant.text, constant.value) is not constant.value:
                raise TraceError(f"two constants are called {constant.text!r}")
        return found

    def walk(self) -> Iterator[BoundSymbol]:
        """All calls, those in regions and bodies included, depth first."""
        for call in self.calls:
            yield from call.walk()

    def __str__(self) -> str:
        return self.python()

    def python(self, *, sources: bool = True, bodies: bool = True) -> str:
        """The program as Python text, deterministic. See `tj_core.printer`."""
        from tj_core.printer import print_trace

        return print_trace(self, sources=sources, bodies=bodies)

    @staticmethod
    def parse(
        text: str,
        *,
        language: Language = EMPTY_LANGUAGE,
        constants: Mapping[str, Any] | None = None,
    ) -> Trace:
        """The trace that prints as ``text``; ``constants`` as given by `constants`.

        :raises ParseError: if ``text`` is not the print of a trace.
        """
        from tj_core.parser import parse_trace

        return parse_trace(text, language, constants or {})

    def callable(self) -> Callable[..., Any]:
        """The program as a function of its inputs, its calls run as their symbols' callables."""
        from tj_core.codegen import generate

        return generate(self).function


def _unnamed(trace: Trace) -> Iterator[Constant]:
    trees: list[Any] = [trace.outputs, trace.context.items]
    for call in trace.walk():
        trees += [call.args, call.kwargs, call.outputs, call.context.items]
        if call.body is not None:
            trees += [call.body.outputs, call.body.updates]
        for region in call.regions:
            trees += [region.program.outputs, region.program.context.items]
    for leaf in leaves(trees):
        if isinstance(leaf, Constant) and not leaf.named:
            yield leaf


class Namer:
    """Gives names that are free in a program, always the same for the same requests."""

    __slots__ = ("_last", "_taken")

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._last: dict[str, int] = {}

    def __call__(self, wish: str) -> str:
        """``wish`` if it is free and an identifier, else ``wish_1``, ``wish_2``, ..."""
        base = re.sub(r"\W", "_", wish)
        if not base or base[0].isdigit() or _RESERVED.fullmatch(base):
            base = "v" + base
        name, n = base, self._last.get(base, 0)
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._last[base] = n
        self._taken.add(name)
        return name


# Formal names of bodies, and words that Python or the printed program itself uses.
_RESERVED = re.compile(
    r"_[\d_]*|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|"
    r"False|finally|for|from|global|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|"
    r"True|try|while|with|yield|slice|complex|float|device|dtype"
)
