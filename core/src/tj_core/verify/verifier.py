"""The verifier of traces, which runs after every pass (option ``check``, ``TJ_CHECK``).

Level 1 checks form (`tj_core.verify.wellformed`) and the invariant of the stage; level 2 also
derives the metadata of every call again, in bodies too. ``"sample"`` is level 2 for one program in
eight, level 1 for the others. Level 3 is level 2 here; programs that are compiled with it compare
the values of claimed calls (`tj_core.compile.checked_runs`). An error shows the calls around the
fault.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tj_core.edit.reexpand import derive
from tj_core.errors import CannotExpandError, TjError, TraceError, VerificationError
from tj_core.ir.proxy import Proxy
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import PLAIN_CONTEXT, Context
from tj_core.ir.tree import leaves
from tj_core.text.metadata import meta_text
from tj_core.text.printer import call_text
from tj_core.verify.agreement import agrees
from tj_core.verify.invariants import INVARIANTS, Broken
from tj_core.verify.wellformed import Scope, used, wrong_name

if TYPE_CHECKING:
    from tj_core.contract.expansion import Expand
    from tj_core.contract.rules import RuleTable
    from tj_core.ir.tags import TagRegistry
    from tj_core.ir.trace import BoundSymbol, Trace

__all__ = ["CHECK_FORM", "CHECK_METADATA", "CHECK_VALUES", "Check", "level_for", "verify"]

Check = Literal[0, 1, 2, 3, "sample"]
CHECK_FORM = 1
CHECK_METADATA = 2
CHECK_VALUES = 3
SHARE = 8
AROUND = 10


def level_for(check: Check, acquired: Trace) -> int:
    """The level of ``check`` for a program; ``"sample"`` decides by a hash of the program.

    The hash is of operations and inputs, so that a program has the same level in every process.
    """
    if check != "sample":
        return check
    operations = (call.symbol.qualname for call in acquired.calls)
    text = ",".join([*operations, *map(meta_text, acquired.inputs)])
    # Not `hash`, which is another one in each process for a text.
    return CHECK_METADATA if zlib.crc32(text.encode()) % SHARE == 0 else CHECK_FORM


def verify(
    trace: Trace,
    *,
    level: int = CHECK_FORM,
    tags: TagRegistry,
    expand: RuleTable[Expand] | None = None,
    reached: Iterable[Stage] = (),
) -> None:
    """Check ``trace``; ``reached`` are the stages whose invariants must hold.

    The metadata of a call that no rule can expand is not checked.

    :raises VerificationError: with the call, the problem, and the calls around it.
    """
    if level < CHECK_FORM:
        return
    scope = Scope(tags, {}, _taken(trace))
    for wrong in _header(trace, scope):
        raise VerificationError(f"{_when(trace)}: {wrong}")
    reached = {*reached}
    metadata = None
    if level >= CHECK_METADATA and expand is not None:
        # Without JOINT, the trace at stage SPLIT is the lowered one.
        inlined = Stage.LOWERED in reached or trace.stage in (Stage.LOWERED, Stage.CLAIMED)
        metadata = _Metadata(expand, tags, inlined, trace.stage >= Stage.SPLIT)
    for position, call in enumerate(trace.calls):
        problem = scope.problem(call)
        if problem is None and metadata is not None:
            problem = metadata.problem(call)
        if problem is not None:
            raise _error(trace, position, problem)
    for stage in sorted({Stage.ACQUIRED, *reached}):
        for position, problem in INVARIANTS.get(stage, _nothing)(trace):
            raise _error(trace, position, problem)
    for unknown in _unknown_outputs(trace, scope):
        raise _error(trace, len(trace.calls), f"the program returns {unknown}")


def _unknown_outputs(trace: Trace, scope: Scope) -> Iterator[str]:
    for leaf in leaves(trace.outputs):
        if isinstance(leaf, Proxy) and (unknown := used(leaf, scope.env)):
            yield unknown


def _nothing(trace: Trace) -> Broken:
    return iter(())


def _taken(trace: Trace) -> set[str]:
    """Names that no value may have: constants and namespaces of the printed program."""
    try:
        constants = set(trace.constants())
    except TraceError as error:
        raise VerificationError(f"{_when(trace)}: {error.message}") from error
    return constants | {c.symbol.namespace for c in trace.walk()}


def _header(trace: Trace, scope: Scope) -> Iterator[str]:
    """Problems of the inputs and of the trace's own tags. Defines the inputs in ``scope``."""
    for p in trace.inputs:
        if p.name in scope.env:
            yield f"two inputs are called {p.name!r}"
        if problem := wrong_name(p.name, scope.taken):
            yield f"an input is called {p.name!r}, which {problem}"
        scope.env[p.name] = p
    try:
        for name in trace.tags:
            scope.tags.require(name, "trace")
        for name in {name: None for p in trace.inputs for name in p.tags}:
            scope.tags.require(name, "proxy")
    except TjError as error:
        yield error.message


@dataclass
class _Metadata:
    """The check of metadata by a new derivation; once per shared body and context.

    ``inlined``: the program may hold calls of bodies, as after lowering or claiming, which leave
    out ``requires_grad``. ``parts``: so may calls that have a parent, which a transform may have
    put in its place once gradients are calls.
    """

    expand: RuleTable[Expand]
    tags: TagRegistry
    inlined: bool = False
    parts: bool = False
    seen: dict[tuple[int, Context], None] = field(default_factory=dict)

    def problem(self, call: BoundSymbol) -> str | None:
        """The first problem of the metadata of ``call``, its body and its subprograms, or None."""
        inlined = self.inlined or (self.parts and bool(call.parent))
        problem = self.wrong(call, PLAIN_CONTEXT, inlined) or self.body(call, call.context)
        return problem or self.subprograms(call)

    def subprograms(self, call: BoundSymbol) -> str | None:
        for subprogram in call.subprograms:
            key = id(subprogram.program), PLAIN_CONTEXT
            if key in self.seen:
                continue
            self.seen[key] = None
            for inner in subprogram.program.calls:
                if problem := self.problem(inner):
                    return f"has a subprogram {subprogram.name!r} in which {inner.symbol} {problem}"
        return None

    def wrong(self, call: BoundSymbol, context: Context, nested: bool) -> str | None:
        try:
            expanded = derive(call, self.expand, self.tags, context)
        except CannotExpandError:
            return None  # only the frontend, which made the call, knows its metadata
        except Exception as error:
            return f"cannot be expanded: {type(error).__name__}: {error}"
        if expanded is None or agrees(call, expanded.outputs, nested=nested):
            return None
        return f"computes {_facts(expanded.outputs)}, not {_facts(call.outputs)} as the trace says"

    def body(self, call: BoundSymbol, context: Context) -> str | None:
        if call.body is None or (id(call.body), context) in self.seen:
            return None
        self.seen[id(call.body), context] = None
        for inner in call.body.calls:
            problem = self.wrong(inner, context, True)
            problem = problem or self.body(inner, inner.context.over(context))
            if problem is not None:
                return f"has a body in which {inner.symbol} {problem}"
        return None


def _facts(outputs: Any) -> str:
    texts = (meta_text(p) if isinstance(p, Proxy) else repr(p) for p in leaves(outputs))
    return f"[{', '.join(texts)}]"


def _when(trace: Trace) -> str:
    last = trace.history[-1].name if trace.history else "acquisition"
    return f"after {last}, at stage {trace.stage.name}"


def _line(call: BoundSymbol) -> str:
    try:
        return call_text(call)
    except TraceError:  # the outputs are no assignment target: this is the reported problem
        return f"{call.symbol}(...)"


def _error(trace: Trace, position: int, problem: str) -> VerificationError:
    call = trace.calls[position] if position < len(trace.calls) else None
    first = max(0, position - AROUND)
    lines = [
        f"{'-->' if i == position else '   '} {_line(c)}"
        for i, c in enumerate(trace.calls[first : position + AROUND + 1], first)
    ]
    subject = f"call {call.label!r} ({call.symbol}) {problem}" if call else problem
    return VerificationError(
        f"{_when(trace)}: {subject}",
        source=call.source if call else None,
        hint="\n  ".join(lines),
    )
