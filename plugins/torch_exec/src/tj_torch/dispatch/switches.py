"""Switches by which calls run in eager: PyTorch's, as ``torch.compile`` reads them, and tj's own.

For a call that finds its entry, all switches together cost one comparison of two objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tj_core.extend import Jitted, TjError

from tj_torch.torch_private.switches import (
    Stances,
    disabled,
    disabled_for_good,
    stances,
)

__all__ = ["RecompileError", "Switches"]

_EAGER = "force_eager"
_KEEPING = "eager_on_recompile"
_FAILING = "fail_on_recompile"
_WAITING = {"eager_then_compile": None, "aot_eager_then_compile": "aot_eager"}
"""Stances under which the first call runs by another backend, None for eager."""


class RecompileError(TjError, RuntimeError):
    """A program is to be compiled, and the stance is ``fail_on_recompile``.

    It is a RuntimeError, as ``torch.compile`` raises one.
    """


class Switches:
    """The switches of one jitted program; calls run ``original`` where one of them is off.

    ``accept`` is called with PyTorch's stances, and the stance under which entries answer calls.
    """

    def __init__(
        self,
        jitted: Jitted,
        original: Callable[..., Any],
        accept: Callable[[Stances, Any], None],
    ) -> None:
        self.jitted = jitted
        self.original = original
        self.accept = accept
        self.off = _off(jitted)
        self._accepted: Any = None
        self._waited = False
        self._by_stance: dict[str, Callable[..., Any]] = {}

    def instead(self) -> Callable[..., Any] | None:
        """The function that runs a call without any entry; None if entries may answer it."""
        if self.off is not None or disabled() is not None:
            return self.original
        known = stances()
        stance = known._stance
        if stance is None or stance is self._accepted:
            return None
        if stance.stance == _EAGER:
            return self.original
        # `set_stance("default", force_backend=...)` compiles by that backend whatever was asked
        # for.
        if stance.stance == "default" and stance.backend is not None:
            return self._by("eager")
        self._accepted = stance
        self.accept(known, stance)
        return None

    def uncompiled(self, failing: Callable[[], Iterable[str]]) -> Callable[..., Any] | None:
        """The function that runs a call which no entry answers; None to compile for it.

        ``failing`` gives the guard of each entry that fails.

        :raises RecompileError: if the stance is ``fail_on_recompile``.
        """
        name = _stance()
        if name == _FAILING:
            raise _recompiles(self.jitted, tuple(failing()))
        if name in _WAITING and not self._waited:
            self._waited = True
            backend = _WAITING[name]
            return self.original if backend is None else self._by(backend)
        return self.original if name == _KEEPING else None

    @property
    def compile(self) -> bool:
        """True if PyTorch's stance is the usual one, by which calls are compiled for."""
        return _stance() == "default"

    def _by(self, backend: str) -> Callable[..., Any]:
        """The original under ``torch.compile``, which the stance may give another backend."""
        if backend not in self._by_stance:
            dynamic = self.jitted.options.dynamic
            compiled = torch.compile(self.original, backend=backend, dynamic=dynamic)
            self._by_stance[backend] = compiled
        return self._by_stance[backend]


def _stance() -> str:
    stance = stances()._stance
    return "default" if stance is None else stance.stance


def _off(jitted: Jitted) -> str | None:
    """The reason why a program that is jitted now is never compiled; None if it may be."""
    config = jitted.session.config
    if not config.core.enable:
        return f"enable is false ({config['enable'].origin})"
    variable = disabled_for_good()
    return None if variable is None else f"{variable} was set when it was jitted"


def _recompiles(jitted: Jitted, failing: tuple[str, ...]) -> RecompileError:
    guards = "".join(f"\n    - {text}" for text in failing)
    because = f", since a guard of each entry fails:{guards}" if guards else ""
    return RecompileError(
        f"Detected recompile when torch.compile stance is 'fail_on_recompile': {jitted.name} "
        f"would be compiled for this call{because}",
        hint="torch.compiler.set_stance('default') lets it be compiled",
    )
