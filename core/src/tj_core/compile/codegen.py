"""Executable programs from traces.

The generated function is the printed program with callables bound to flat names, values deleted
after their last use, and every line mapped to the call it runs, so that an error raised by a call
names the user's line.
"""

from __future__ import annotations

import builtins
import re
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from tj_core.analysis.liveness import last_uses, value_names
from tj_core.compile.checked_runs import Checks, EveryRun, FirstRun
from tj_core.compile.function_text import define
from tj_core.compile.plain_arguments import (
    differentiable,
    plain_of,
    records,
    with_plain_arguments,
)
from tj_core.compile.region_kernels import EveryRegionRun, FirstRegionRun, RegionKernel
from tj_core.contract.executors import state_keepers
from tj_core.errors import TraceError, add_note, mark_written
from tj_core.ir.names import Namer
from tj_core.ir.symbol import Constant, Context, Symbol
from tj_core.ir.tags import CONSUMES
from tj_core.text.printer import INDENT, call_text, value_text

if TYPE_CHECKING:
    from types import TracebackType

    from tj_core.ir.proxy import Proxy
    from tj_core.ir.trace import BoundSymbol, Subprogram, Trace
    from tj_core.source import Source

__all__ = ["Implementation", "Program", "generate"]

Implementation: TypeAlias = "Callable[..., Any] | RegionKernel"
"""The implementation of a symbol that claiming or fusion made."""


NO_CHECKS = Checks()
"""Checks of the first run of each claimed call only."""


@dataclass(frozen=True, slots=True)
class Program:
    """A generated function, its source, and the call behind each of its lines.

    ``inputs`` are the function's inputs, with their actual strides.
    """

    function: Callable[..., Any]
    source: str
    file: str
    lines: Mapping[int, BoundSymbol]
    inputs: tuple[Proxy, ...] = ()


MANY = 32
"""Least number of executors' calls in a program whose frame gets room, see `define`."""


def generate(
    trace: Trace,
    implementations: Mapping[Symbol, Implementation] | None = None,
    *,
    boxed: bool = False,
    checks: Checks = NO_CHECKS,
) -> Program:
    """The program of ``trace``.

    A symbol runs by its entry in ``implementations``, else by the function that the trace's
    language resolves it to. ``checks`` are the checks of the former. A ``boxed`` program takes one
    list and empties it, so that the caller keeps no argument alive.

    :raises TraceError: if a call uses a value that no earlier call defines.
    """
    _check_defined(trace)
    writer = _Writer(trace, implementations or {}, boxed, checks)
    source = writer.text()
    lines = writer.lines
    room = sum(call.symbol in writer.implementations for call in trace.calls) >= MANY
    function = define(source, trace.name, writer.globals, f"tj {trace.name}", room=room)
    file = function.__code__.co_filename
    consuming = writer.consuming

    def annotate(error: Exception) -> None:
        line = _raising(error.__traceback__, file)
        if any(place.consumed(line) for place in consuming):
            mark_written(error)
        _annotate(error, lines.get(line))

    writer.globals[writer.annotate] = annotate
    for first in writer.first_runs:
        first.program = weakref.ref(function)
    return Program(function, source, file, lines, trace.inputs)


@dataclass(frozen=True, slots=True)
class _Consuming:
    """A call at ``line`` of a region that writes inputs over what it needs of them.

    ``scope`` are the program's globals, in which the region's function has ``name``.
    """

    line: int
    kernel: RegionKernel
    name: str
    scope: Mapping[str, Any]

    def consumed(self, line: int) -> bool:
        """Decide if the inputs may be written when the call at ``line`` has raised.

        Without its executor, the region writes none. In its first run it marks errors itself.
        """
        if self.kernel.failure is not None or line < self.line:
            return False
        return line > self.line or not isinstance(self.scope[self.name], FirstRegionRun)


class _Writer:
    """The text of one program, and the globals that it runs with."""

    def __init__(
        self,
        trace: Trace,
        implementations: Mapping[Symbol, Implementation],
        boxed: bool,
        checks: Checks,
    ) -> None:
        self.trace = trace
        self.boxed = boxed
        self.checks = checks
        self.implementations = implementations
        self.globals: dict[str, Any] = {}
        self.lines: dict[int, BoundSymbol] = {}
        self.consuming: list[_Consuming] = []
        self.first_runs: list[FirstRun | FirstRegionRun] = []
        # Weak: a result that the program has freed may be overwritten.
        self.alive: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        values = trace.names() - {r.name for call in trace.calls for r in call.subprograms}
        self.free = Namer({*values, *dir(builtins), trace.name, "_"}).own
        self.annotate, self.args, self.box, self.error = map(
            self.free, ("_annotate", "_args", "_box", "_error")
        )
        self.exception = "Exception"
        if "Exception" in values:
            self.exception = self.free("_Exception")
            self.globals[self.exception] = Exception
        self.bound: dict[object, str] = {}

    def text(self) -> str:
        names = ", ".join(p.name for p in self.trace.inputs)
        out = [f"def {self.trace.name}({self.args if self.boxed else names}):"]
        if self.boxed and names:
            # The comma after the names unpacks a list of one, too.
            out += [f"{INDENT}{names}, = {self.args}", f"{INDENT}{self.args}.clear()"]
            if unused := _unused_inputs(self.trace):
                out.append(f"{INDENT}del {', '.join(unused)}")
        body = list(self.statements(len(out) + 2))
        result = f"return {value_text(self.trace.outputs, str, self.constant)}"
        if not body:
            return "\n".join([*out, INDENT + result, ""])
        out += [f"{INDENT}try:", *body, f"{INDENT}except {self.exception} as {self.error}:"]
        out += [f"{INDENT * 2}{self.annotate}({self.error})", f"{INDENT * 2}raise"]
        return "\n".join([*out, INDENT + result, ""])

    def statements(self, line: int) -> Iterator[str]:
        """The statements inside the ``try``; ``line`` is the line number of the first."""
        context = Context()
        indent = INDENT * 2
        uses = last_uses(self.trace.calls, self.trace.outputs)
        for call, dead in zip(self.trace.calls, uses, strict=True):
            if (beyond := call.context.beyond(self.trace.context)) != context:
                context = beyond
                entered = self.trace.language.enter(call.context, self.trace.context)
                indent = INDENT * (3 if entered else 2)
                if entered:
                    yield f"{INDENT * 2}with {', '.join(map(self.manager, entered))}:"
                    line += 1
            self.lines[line] = call
            yield indent + self.statement(call, dead, line)
            line += 1

    def statement(self, call: BoundSymbol, dead: list[str], line: int) -> str:
        """The line that runs ``call`` and then deletes the ``dead`` values."""
        kernel = self.implementations.get(call.symbol)
        if isinstance(kernel, RegionKernel):
            return self.in_box(call, kernel, dead, line)
        text = call_text(call, str, self.callee(call), self.constant, self.region)
        return f"{text}{_deletion(dead)}"

    def in_box(self, call: BoundSymbol, kernel: RegionKernel, dead: list[str], line: int) -> str:
        """A region's call, with its arguments in a list, so that the region can free dead ones."""
        args = {p.name for p in call.flat_args}
        before = [name for name in dead if name in args]
        after = [name for name in dead if name not in args]
        plain = kernel.detached or records(call.context, self.trace.language.runtime)
        values = ", ".join(self.given(a, plain=plain) for a in call.args)
        function = self.kernel(call, kernel)
        if CONSUMES in call.tags:
            self.consuming.append(_Consuming(line, kernel, function, self.globals))
        run = f"{value_text(call.outputs)} = {function}({self.box})"
        return f"{self.box} = [{values}]{_deletion(before)}; {run}{_deletion(after)}"

    def given(self, argument: Any, *, plain: bool) -> str:
        """The text of a region's argument, made ``plain`` if it may require a gradient."""
        text = value_text(argument, str, self.constant)
        if not plain or value_names(argument).isdisjoint(self.differentiable):
            return text
        function = plain_of(self.trace.language.runtime)
        if function is None:
            return text
        if "plain" not in self.bound:
            self.bind("plain", "_plain", function)
        return f"{self.bound['plain']}({text})"

    def kernel(self, call: BoundSymbol, kernel: RegionKernel) -> str:
        name = self.free(re.sub(r"\W", "_", call.symbol.qualname))
        kind = FirstRegionRun if self.checks.reference is None else EveryRegionRun
        first = kind(kernel, call, self.trace.language.runtime, name, self.alive)
        self.first_runs.append(first)
        self.globals[name] = first
        return name

    def callee(self, call: BoundSymbol) -> str:
        symbol = call.symbol
        mine, language = self.implementations.get(symbol), self.trace.language
        wish = re.sub(r"\W", "_", symbol.qualname)
        assert not isinstance(mine, RegionKernel)
        if mine is not None and call.executor is not None:
            return self.claimed(call, mine, wish)
        entry = None if mine else language.entry(call)
        # For other arguments of one symbol, the dialect may give another function.
        key = (symbol, entry)
        if key not in self.bound:
            self.bind(key, wish, mine or entry or language.resolve(symbol))
        return self.bound[key]

    def claimed(self, call: BoundSymbol, implementation: Callable[..., Any], wish: str) -> str:
        """The global of one call's implementation, which checks its first run or every run.

        Each call has a global of its own.
        """
        name, runtime = self.free(wish), self.trace.language.runtime
        kernel = with_plain_arguments(implementation, call, self.differentiable, runtime)
        parts = kernel, call, runtime, self.checks.owner(call), name, self.alive
        reference = self.reference(call)
        if reference is None:
            first = FirstRun(*parts)
        else:
            pair = self.checks.pair(call, self.trace)
            first = EveryRun(*parts, reference=reference, pair=pair)
        self.first_runs.append(first)
        self.globals[name] = first
        return name

    def reference(self, call: BoundSymbol) -> Callable[..., Any] | None:
        """The function that repeats every run of ``call``, if values are compared."""
        make = self.checks.reference
        ordered = len(call.effects.ordered) > len(state_keepers(call))
        return None if make is None or ordered else make(call, self.trace)

    @cached_property
    def differentiable(self) -> frozenset[str]:
        """The values that may require a gradient at run time."""
        return differentiable(self.trace)

    def constant(self, constant: Constant) -> str:
        key = (constant.text, id(constant.value))
        if key not in self.bound:
            self.bind(key, "_" + re.sub(r"\W", "_", constant.text).strip("_"), constant.value)
        return self.bound[key]

    def region(self, region: Subprogram) -> str:
        """The global of a region's program, which is generated on its own."""
        key = ("region", id(region.program))
        if key not in self.bound:
            program = generate(region.program, self.implementations, checks=self.checks)
            self.bind(key, region.name, program.function)
        return self.bound[key]

    def manager(self, text: str) -> str:
        """The expression that makes a context manager, anew at each entry, by a global function."""
        if text not in self.bound:
            evaluate = self.trace.language.evaluate
            self.bind(text, "_context", evaluate(f"lambda: {text}"))
        return f"{self.bound[text]}()"

    def bind(self, key: object, wish: str, value: Any) -> None:
        self.bound[key] = name = self.free(wish)
        self.globals[name] = value


def _check_defined(trace: Trace) -> None:
    known = {p.name for p in trace.inputs}
    for call in trace.calls:
        for p in call.flat_args:
            if p.name not in known:
                raise TraceError(
                    f"call {call.label!r} ({call.symbol}) uses {p.name!r}, which nothing before it "
                    "defines",
                    source=call.source,
                )
        known.update([p.name for p in call.flat_outs])
    if missing := value_names(trace.outputs) - known:
        raise TraceError(f"the program returns {min(missing)!r}, which nothing in it defines")


def _deletion(names: list[str]) -> str:
    return f"; del {', '.join(names)}" if names else ""


def _unused_inputs(trace: Trace) -> list[str]:
    used = value_names(trace.outputs)
    used.update(p.name for call in trace.calls for p in call.flat_args)
    return [p.name for p in trace.inputs if p.name not in used]


def _annotate(error: Exception, call: BoundSymbol | None) -> None:
    """Add a note to ``error`` with the ``call`` that raised it, and the user's line."""
    if call is None:
        return
    note = f"tj: raised by `{call_text(call)}`"
    if call.source is not None:
        note += f"\n  at {_full(call.source)}"
    add_note(error, note)


def _raising(traceback: TracebackType | None, file: str) -> int:
    """The line of ``file`` that raised, 0 if none did."""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == file:
            return traceback.tb_lineno
        traceback = traceback.tb_next
    return 0


def _full(source: Source) -> str:
    path = f" ({source.module_path})" if source.module_path else ""
    return f"{source}{path}"
