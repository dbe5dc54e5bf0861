"""The functions a user types: jit a program, and look at its traces, claims and guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from tj_core.compile.transforms import Transform
from tj_core.contract.executors import Executor
from tj_core.errors import ConfigError, TjError, did_you_mean
from tj_core.host.config import CORE_KEYS
from tj_core.host.jitted import Guard, JitOptions, Jitted, Stats, jitted_of
from tj_core.host.report import Explanation, explain_compilation
from tj_core.host.session import Session, current_session
from tj_core.ir.stage import Stage
from tj_core.ir.trace import Trace

__all__ = ["backend_state", "explain", "guards", "jit", "last_trace", "last_traces", "stats"]


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of one call of `jit`, apart from the program."""

    plugins: Sequence[str | object] | None
    executors: Sequence[str | Executor] | None
    transforms: Sequence[Transform]
    autocast: Any
    dynamic: bool | None
    frontend: str | None
    session: Session | None
    options: dict[str, Any]

    def __post_init__(self) -> None:
        for name, (fits, words) in _ARGUMENTS.items():
            value = getattr(self, name)
            if value is not None and not fits(value):
                shown = repr(value) if isinstance(value, str | int) else f"a {type(value).__name__}"
                raise ConfigError(f"tj.jit: {name} must be {words}, not {shown}")

    def as_dict(self) -> dict[str, Any]:
        """The arguments as keywords, for another call of `jit`."""
        named = {k: getattr(self, k) for k in self.__slots__ if k not in ("options", "session")}
        return {**named, **self.options}


def _all(*kinds: type[Any]) -> Callable[[Any], bool]:
    """A test for a list or tuple of instances of ``kinds``."""
    return lambda value: (
        isinstance(value, list | tuple) and all(isinstance(item, kinds) for item in value)
    )


_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "plugins": (_all(object), "a list of names and objects"),
    "executors": (_all(str, Executor), "a list of names and Executor records"),
    "transforms": (_all(Transform), "a list of Transform records"),
    "dynamic": (lambda value: isinstance(value, bool), "True, False or None"),
    "frontend": (lambda value: isinstance(value, str), "a name"),
    "session": (lambda value: isinstance(value, Session), "a Session"),
}
"""Tests of `jit`'s arguments, with the expected kinds in words; any argument may be None."""


@overload
def jit(fn: None = None, /, **kwargs: Any) -> Callable[[Any], Any]: ...


@overload
def jit(fn: Any, /, **kwargs: Any) -> Any: ...


def jit(
    fn: Any = None,
    /,
    *,
    plugins: Sequence[str | object] | None = None,
    executors: Sequence[str | Executor] | None = None,
    transforms: Sequence[Transform] = (),
    autocast: Any = None,
    dynamic: bool | None = None,
    frontend: str | None = None,
    session: Session | None = None,
    **options: Any,
) -> Any:
    """Compile ``fn``, a function or an ``nn.Module``, when first called and as often as needed.

    Usable as a decorator, with and without arguments. The result behaves as ``fn``: same
    values, gradients, aliases, side effects and exceptions.

    :param plugins: an ordered list of plugin names (or objects), ``"..."`` for the defaults.
    :param executors: the executors to ask, in order; ``"..."`` for all others. PyTorch itself is
        always asked last.
    :param transforms: passes of your own, in addition to the plugins'.
    :param autocast: a data type: calls run under autocast to it, by a plugin for autocast.
    :param dynamic: True for all sizes as symbols, False for none, None for those that change.
    :param frontend: the frontend's name, instead of the first that accepts ``fn``.
    :param session: the session to compile in, instead of the project's.
    :param options: config keys (``check=2``), and plugins' options (``inductor={"minimum": 3}``).
    :raises ConfigError: for an unknown option.
    :raises PluginError: if no plugin can capture ``fn``.
    """
    arguments = _Arguments(
        plugins, executors, transforms, autocast, dynamic, frontend, session, options
    )
    if fn is None:
        return lambda target: _jit(target, arguments)
    return _jit(fn, arguments)


def _jit(fn: Any, arguments: _Arguments) -> Any:
    if not callable(fn):
        raise TjError(f"tj.jit needs a function or a module, not {type(fn).__name__}")
    if isinstance(getattr(fn, "__tj__", None), Jitted):
        fn = fn.__tj__.fn  # jitting twice is jitting once, with the newer options
    session = _session(arguments)
    jitted = _state(fn, session, arguments)
    return session.frontend_for(fn, arguments.frontend).wrap(fn, jitted)


def backend_state(fn: Any, **keywords: Any) -> Jitted:
    """The state of a program that another system captures and calls, for `jit`'s ``keywords``.

    For frontends below such a system, like ``torch.compile(backend="tj")``.
    """
    given = {k: keywords.pop(k, None) for k in _Arguments.__slots__ if k != "options"}
    given["transforms"] = tuple(given["transforms"] or ())
    arguments = _Arguments(**given, options=keywords)
    return _state(fn, _session(arguments), arguments)


def _state(fn: Any, session: Session, arguments: _Arguments) -> Jitted:
    if arguments.autocast is not None and "autocast" not in session.tables:
        raise ConfigError(
            "autocast= needs a plugin that provides it, and none that is loaded does",
            hint="enter autocast in the program, or around its calls: that needs no plugin",
        )
    return Jitted(
        fn,
        session,
        session.pipeline(arguments.transforms or (), arguments.executors),
        JitOptions(arguments.dynamic, arguments.autocast),
        arguments.as_dict(),
        lambda other: _jit(other, arguments),
    )


def _session(arguments: _Arguments) -> Session:
    """The given session, the project's, or one of its own for what differs from the project's."""
    if not arguments.options and arguments.plugins is None:
        return arguments.session or current_session()
    if arguments.session is not None:
        raise ConfigError("give session=, or plugins= and options, not both")
    for key, value in arguments.options.items():
        if key not in CORE_KEYS and not isinstance(value, dict):
            raise ConfigError(
                f"tj.jit has no option {key!r}."
                + did_you_mean(key, [*CORE_KEYS, *_Arguments.__slots__]),
                hint="options of a plugin are given as a dict: inductor={'minimum': 3}",
            )
    return Session(arguments.plugins, overrides=arguments.options)


def last_traces(fn: Any) -> tuple[Trace, ...]:
    """The traces of ``fn``'s newest entry: as acquired, and after each pass that changed it.

    :raises TjError: if ``fn`` has not been compiled yet.
    """
    state = jitted_of(fn)
    compilation = state.last.compilation if state.last else None
    if compilation is None:
        raise TjError(
            f"{state.name} has no trace: it has not been called, or computes nothing on tensors"
        )
    return tuple(compilation.traces)


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
    traces = last_traces(fn) if which == "forward" else _other_traces(jitted_of(fn), which)
    if stage is None:
        return traces[-1]
    wanted = stage if isinstance(stage, Stage) else _stage(stage)
    found = [t for t in traces if t.stage is wanted]
    if not found:
        reached = ", ".join(dict.fromkeys(t.stage.name for t in traces))
        raise TjError(f"no trace at stage {wanted.name}; there are: {reached}")
    return found[-1]


_WHY_NONE = {
    "backward": "PyTorch's autograd differentiates the program, or nothing in it needs a gradient; "
    "pip install tj-autograd for gradients as a transform",
    "epilogue": "the program runs as it was acquired",
    "shared": "no call's arguments shared memory with one that the program writes",
}


def _other_traces(state: Jitted, which: str) -> tuple[Trace, ...]:
    compilation = state.last.compilation if state.last else None
    others = compilation.others if compilation else {}
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


def explain(fn: Any) -> Explanation:
    """The executor of each operation of ``fn``'s newest entry, and declines; prints as a table."""
    state = jitted_of(fn)
    last_traces(fn)
    assert state.last is not None
    assert state.last.compilation is not None
    return explain_compilation(state.last.compilation, state.stats.fallbacks)


def stats(fn: Any) -> Stats:
    """Calls, hits, misses, entries and compile seconds of ``fn`` so far."""
    state = jitted_of(fn)
    state.refresh()
    return state.stats


def guards(fn: Any) -> tuple[Guard, ...]:
    """The conditions under which ``fn``'s newest entry is used; none before it is called."""
    state = jitted_of(fn)
    return state.last.guards() if state.last else ()
