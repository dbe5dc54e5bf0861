"""The function a user types to compile a program, `jit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from tj_core.compile.transforms import Transform
from tj_core.contract.executors import Executor
from tj_core.errors import ConfigError, TjError, did_you_mean
from tj_core.host.config import CORE_KEYS
from tj_core.host.equivalents import equivalent, is_torchs
from tj_core.host.jitted import JitOptions, Jitted
from tj_core.host.session import Session, current_session

__all__ = ["backend_state", "jit"]


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of one call of `jit`, apart from the program."""

    plugins: Sequence[str | object] | None
    executors: Sequence[str | Executor] | None
    transforms: Sequence[Transform]
    autocast: Any
    dynamic: bool | None
    fullgraph: bool | None
    on_miss: str | None
    compile: str | None
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
    "fullgraph": (lambda value: isinstance(value, bool), "True, False or None"),
    "on_miss": (lambda value: value in ("compile", "eager"), '"compile" or "eager"'),
    "compile": (lambda value: value in ("call", "background"), '"call" or "background"'),
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
    fullgraph: bool | None = None,
    on_miss: str | None = None,
    compile: str | None = None,
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
    :param fullgraph: True: a program that cannot be captured whole is an error; None: as the
        config says.
    :param on_miss: what a call does that no program is there for: ``"compile"`` one, or run in
        ``"eager"`` at once, while a thread compiles behind it; None: as the config says.
    :param compile: kernels are compiled in the ``"call"`` that needs them, or in the
        ``"background"``, while PyTorch's run; None: as the config says.
    :param frontend: the frontend's name, instead of the first that accepts ``fn``.
    :param session: the session to compile in, instead of the project's.
    :param options: config keys (``check=2``), and plugins' options (``inductor={"minimum": 3}``).
    :raises ConfigError: for an unknown option.
    :raises PluginError: if no plugin can capture ``fn``.
    """
    arguments = _Arguments(
        plugins,
        executors,
        transforms,
        autocast,
        dynamic,
        fullgraph,
        on_miss,
        compile,
        frontend,
        session,
        options,
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
        JitOptions(
            arguments.dynamic,
            arguments.autocast,
            arguments.fullgraph,
            arguments.on_miss,
            arguments.compile,
        ),
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
        if is_torchs(key, value) or (key not in CORE_KEYS and not isinstance(value, dict)):
            known = [*CORE_KEYS, *_Arguments.__slots__]
            meant = "" if is_torchs(key, value) else did_you_mean(key, known)
            raise ConfigError(
                f"tj.jit has no option {_shown(key, value)}.{meant}", hint=equivalent(key, value)
            )
    return Session(arguments.plugins, overrides=arguments.options)


def _shown(key: str, value: object) -> str:
    """An option that does not exist, in words: with its value where only that is wrong."""
    return f"{key}={value!r}" if key in CORE_KEYS else repr(key)
