"""The verifier: what must hold of a trace, checked after every pass (``TJ_CHECK``).

Level 1 checks form (`tj_core.wellformed`) and the invariant of the stage; level 2 also derives the
metadata of every call again, in bodies too. An error shows the calls around the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tj_core.agreement import agrees
from tj_core.errors import CannotExpandError, TjError, TraceError, VerificationError
from tj_core.expand import Expand
from tj_core.metatext import meta_text
from tj_core.printer import call_text
from tj_core.proxy import Proxy
from tj_core.reexpand import derive
from tj_core.rules import RuleTable
from tj_core.stages import Stage
from tj_core.symbol import PLAIN_CONTEXT, BoundSymbol, Context
from tj_core.tags import TagRegistry
from tj_core.trace import Trace
from tj_core.tree import leaves
from tj_core.wellformed import Scope, used, wrong_name

__all__ = ["CHECK_FORM", "CHECK_METADATA", "INVARIANTS", "is_copy_back", "verify"]

CHECK_FORM = 1
CHECK_METADATA = 2
COPY_BACK = "tj.copy_back"
AROUND = 10


def is_copy_back(call: BoundSymbol) -> bool:
    """Whether ``call`` is ``tj.copy_back(input, value)``, claimed by an executor or not."""
    return COPY_BACK in (call.symbol.qualname, call.symbol.name)


def _functional(call: BoundSymbol) -> str | None:
    mutates = call.effects.mutates or call.effects.rebinds
    return "mutates" if mutates and not is_copy_back(call) else None


def _claimed(call: BoundSymbol) -> str | None:
    if not call.executor:
        return "belongs to no executor"
    for region in call.regions:
        for inner in region.program.calls:
            if problem := _claimed(inner):
                return f"has a region {region.name!r} in which {inner.symbol} {problem}"
    return None


INVARIANTS: Mapping[Stage, Callable[[BoundSymbol], str | None]] = {
    Stage.FUNCTIONAL: _functional,
    Stage.CLAIMED: _claimed,
}
"""Per stage, what is wrong with a call there (None: nothing)."""


def verify(
    trace: Trace,
    *,
    level: int = CHECK_FORM,
    tags: TagRegistry,
    expand: RuleTable[Expand] | None = None,
    reached: Iterable[Stage] = (),
) -> None:
    """Check ``trace``; ``reached`` are the stages whose invariants hold by now.

    A call that no rule can expand is taken at its word.

    :raises VerificationError: naming the call, what is wrong, and the calls around it.
    """
    if level < CHECK_FORM:
        return
    scope = Scope(tags, {}, _taken(trace))
    for wrong in _header(trace, scope):
        raise VerificationError(f"{_when(trace)}: {wrong}")
    reached = frozenset(reached)
    invariants = [INVARIANTS[s] for s in sorted(reached) if s in INVARIANTS]
    metadata = _Metadata(expand, tags) if level >= CHECK_METADATA and expand is not None else None
    for position, call in enumerate(trace.calls):
        problem = scope.problem(call) or _lost_context(trace, call)
        problem = problem or next(filter(None, (check(call) for check in invariants)), None)
        if problem is None and metadata is not None:
            problem = metadata.problem(call)
        if problem is not None:
            raise _error(trace, position, problem)
    if Stage.FUNCTIONAL in reached and (late := _late_use(trace)):
        raise _error(trace, *late)
    for leaf in leaves(trace.outputs):
        if isinstance(leaf, Proxy) and (unknown := used(leaf, scope.env)):
            raise _error(trace, len(trace.calls), f"the program returns {unknown}")


def _late_use(trace: Trace) -> tuple[int, str] | None:
    """The first use of an input that has been copied back to, or call after that; None if none.

    So all else is a program of values: what is copied back nobody sees but the caller.
    """
    inputs = {p.name for p in trace.inputs}
    written: set[str] = set()
    for position, call in enumerate(trace.calls):
        if not is_copy_back(call):
            if written:
                return position, "comes after a value was copied back to an input"
            continue
        target, *values = (p.name for p in call.flat_args)
        if target not in inputs or written & {target, *values}:
            return position, "copies back to no input, or uses one that was copied back to"
        written.add(target)
    returned = {leaf.name for leaf in leaves(trace.outputs) if isinstance(leaf, Proxy)}
    if written & returned:
        return len(trace.calls), "the program returns an input that was copied back to"
    return None


def _taken(trace: Trace) -> set[str]:
    """Names that mean something else in the printed program."""
    try:
        constants = set(trace.constants())
    except TraceError as error:
        raise VerificationError(f"{_when(trace)}: {error.message}") from error
    return constants | {c.symbol.namespace for c in trace.walk()}


def _header(trace: Trace, scope: Scope) -> Iterator[str]:
    """What is wrong with inputs and the trace's own tags; defines the inputs."""
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


def _lost_context(trace: Trace, call: BoundSymbol) -> str | None:
    lost = {key for key, _ in trace.context.items} - {key for key, _ in call.context.items}
    if lost:
        return f"lost the context {', '.join(sorted(lost))}"
    for region in call.regions:
        for inner in region.program.calls:
            if problem := _lost_context(region.program, inner):
                return f"has a region {region.name!r} in which {inner.symbol} {problem}"
    return None


@dataclass
class _Metadata:
    """Derives metadata again; each shared body once per context."""

    expand: RuleTable[Expand]
    tags: TagRegistry
    seen: dict[tuple[int, Context], None] = field(default_factory=dict)

    def problem(self, call: BoundSymbol) -> str | None:
        """What the metadata of ``call`` and of the calls in its body gets wrong, or None."""
        problem = self.wrong(call, PLAIN_CONTEXT, False) or self.body(call, call.context)
        return problem or self.regions(call)

    def regions(self, call: BoundSymbol) -> str | None:
        for region in call.regions:
            key = id(region.program), PLAIN_CONTEXT
            if key in self.seen:
                continue
            self.seen[key] = None
            for inner in region.program.calls:
                if problem := self.problem(inner):
                    return f"has a region {region.name!r} in which {inner.symbol} {problem}"
        return None

    def wrong(self, call: BoundSymbol, context: Context, nested: bool) -> str | None:
        try:
            expanded = derive(call, self.expand, self.tags, context)
        except CannotExpandError:
            return None  # whoever made the call knew better
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
    except TraceError:  # its outputs are no assignment target, which is then the fault
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
