"""The functions a user types to look at compiled programs: traces, claims, guards, counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from tj_core.errors import TjError, did_you_mean
from tj_core.host.jitted import Entry, Guards, Jitted, Stats
from tj_core.ir.stage import Stage
from tj_core.ir.trace import Trace
from tj_core.looking.diffs import TraceDiff
from tj_core.looking.explanation import Explanation, explain_compilation, explain_part
from tj_core.looking.programs import (
    CompiledProgram,
    Programs,
    merged_stats,
    own_states,
    programs_of,
    wait_for,
)

if TYPE_CHECKING:
    from tj_core.compile.compilation import Compilation

__all__ = ["diff", "explain", "guards", "last_trace", "last_traces", "programs", "stats", "wait"]


def programs(fn: Any) -> Programs:
    """All programs behind ``fn``, oldest first: entries, fragments, backwards and variants.

    ``fn`` is what `tj.jit` or ``torch.compile(..., backend="tj")`` returned, or a module that holds
    such callables. All functions that take ``fn`` take one of these programs as well.

    :raises TjError: if ``fn`` is none of these.
    """
    return programs_of(fn)


def last_traces(fn: Any) -> tuple[Trace, ...]:
    """The traces of ``fn``'s newest entry: as acquired, and after each pass that changed it.

    :raises TjError: if ``fn`` has not been compiled yet.
    """
    return fn.traces if isinstance(fn, CompiledProgram) else tuple(_newest(fn).traces)


def last_trace(
    fn: Any,
    which: Literal["forward", "backward", "epilogue", "shared"] = "forward",
    stage: Stage | str | None = None,
) -> Trace:
    """The trace that runs, or the last one at ``stage`` (``"ACQUIRED"``).

    ``which``: the program; its backward; its epilogue, which writes to memory and makes the views
    that are returned; or the program for arguments that share memory, as compiled last.

    :raises TjError: if there is no such trace.
    """
    traces = last_traces(fn) if which == "forward" else _other_traces(_newest(fn), which)
    return at_stage(traces, stage)


def at_stage(traces: Sequence[Trace], stage: Stage | str | None) -> Trace:
    """The last of ``traces`` at ``stage``; the last of all for None."""
    if stage is None:
        return traces[-1]
    wanted = stage if isinstance(stage, Stage) else _stage(stage)
    found = [t for t in traces if t.stage is wanted]
    if not found:
        reached = ", ".join(dict.fromkeys(t.stage.name for t in traces))
        raise TjError(f"no trace at stage {wanted.name}; there are: {reached}")
    return found[-1]


def diff(
    fn: Any,
    before: Stage | str,
    after: Stage | str,
    which: Literal["forward", "backward", "epilogue", "shared"] = "forward",
) -> TraceDiff:
    """The lines in which two traces of ``fn``'s newest entry differ: ``"FUNCTIONAL", "CLAIMED"``.

    ``before`` and ``after`` are stages; ``which`` is as for `last_trace`.

    :raises TjError: if there is no such trace.
    """
    return TraceDiff(last_trace(fn, which, before), last_trace(fn, which, after))


def explain(fn: Any) -> Explanation:
    """The executor of each operation of ``fn``'s newest entry, and declines; prints as a table."""
    fallbacks = stats(fn).fallbacks
    compilation, states = _newest(fn), own_states(fn)
    tables = states[0].session.tables if states else {}
    if isinstance(fn, CompiledProgram) and fn.part:
        return explain_part(compilation, fn.part, fallbacks, tables)
    return explain_compilation(compilation, fallbacks, _ties(fn), tables)


def _ties(fn: Any) -> tuple[tuple[str, str], ...]:
    """The session's ties, unless the call of `tj.jit` has ordered its executors."""
    states = own_states(fn)
    ordered = not states or states[0].arguments.get("executors") is not None
    return () if ordered else states[0].session.tied()


def stats(fn: Any) -> Stats:
    """Calls, hits, misses, entries and compile seconds of ``fn`` so far.

    For one of `programs`, those of the callable that it belongs to.
    """
    return merged_stats(own_states(fn))


def wait(fn: Any, timeout: float | None = None) -> bool:
    """Wait for what is compiled behind ``fn``; False if ``timeout`` seconds were too few.

    That is programs with ``on_miss="eager"``, and kernels with ``compile="background"``. Failures
    are warned of here.

    :raises PluginError: in strict mode, if an executor has failed.
    """
    return wait_for(own_states(fn), timeout)


def guards(fn: Any) -> Guards:
    """The conditions under which ``fn``'s newest entry is used; none before it is called."""
    if isinstance(fn, CompiledProgram):
        return Guards(fn.guards)
    entry = _newest_entry(own_states(fn))
    return Guards(entry.guards()) if entry is not None else Guards()


def _newest_entry(states: Sequence[Jitted]) -> Entry | None:
    entries = (state.last for state in states)
    return max(
        (entry for entry in entries if entry is not None),
        key=lambda entry: entry.number,
        default=None,
    )


def _newest(fn: Any) -> Compilation:
    """The compilation of ``fn``'s newest entry.

    :raises TjError: if there is none.
    """
    if isinstance(fn, CompiledProgram):
        return fn.compilation
    states = own_states(fn)
    entry = _newest_entry(states)
    if entry is None or entry.compilation is None:
        name = states[0].name if states else getattr(fn, "__qualname__", type(fn).__qualname__)
        why = "; ".join(fallback.reason for state in states for fallback in state.stats.fallbacks)
        raise TjError(f"{name} has no trace: " + (why or _WHY_NO_TRACE))
    return entry.compilation


_WHY_NO_TRACE = (
    "it has not been called, computes nothing on tensors, or ran in eager since a switch of "
    "PyTorch's said so, such as TORCH_COMPILE_DISABLE"
)

_WHY_NONE = {
    "backward": "PyTorch's autograd differentiates the program, or nothing in it needs a gradient; "
    "pip install tj-autograd for gradients as a transform",
    "epilogue": "the program runs as it was acquired",
    "shared": "no call's arguments shared memory with one that the program writes",
}


def _other_traces(compilation: Compilation, which: str) -> tuple[Trace, ...]:
    others = compilation.others
    # There may be several, for tangents of several layouts: the newest that was compiled.
    compiled = [t for name, t in others.items() if name.partition("_")[0] == which]
    ran = [t for t in compiled if not isinstance(t, Trace)]
    found = ran[-1] if ran else others.get(which)
    if found is None and which not in _WHY_NONE:
        kinds = ["forward", *_WHY_NONE]
        raise TjError(
            f"there is no kind of traces {which!r}." + did_you_mean(str(which), kinds),
            hint=f"kinds: {', '.join(kinds)}",
        )
    if found is None:
        raise TjError(f"there is no {which} trace: {_WHY_NONE[which]}")
    return (found,) if isinstance(found, Trace) else tuple(found.traces)


def _stage(name: object) -> Stage:
    if not isinstance(name, str) or name not in Stage.__members__:
        raise TjError(
            f"there is no stage {name!r}." + did_you_mean(str(name), Stage.__members__),
            hint=f"stages: {', '.join(Stage.__members__)}",
        )
    return Stage[name]
