"""Programs as text that keep state between calls, and their comparison with eager."""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tj_core as tj
import torch

from tj_conformance.meaning.descriptions import Descriptions

__all__ = ["Agreement", "Script", "agreement"]

Jit = Callable[..., Any]

# Numbers of modules that are made: `sys.modules` and `linecache` are the process's.
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Script:
    """A module that defines ``f``, a user's calls of it, and a watched expression.

    Each of ``calls`` is lines, of which the last is an expression; ``watched`` is an expression
    whose value is compared after each of them.
    """

    text: str
    calls: tuple[str, ...]
    watched: str = "None"

    def __str__(self) -> str:
        """A file that shows eager's behaviour."""
        shown = (line for call in self.calls for line in _shown(call, self.watched))
        return "\n".join((_HEADER + self.text, *shown))


def _shown(call: str, watched: str) -> Iterator[str]:
    *before, last = call.splitlines()
    yield from before
    yield f"print({last}, {watched})"


_HEADER = "import torch\n"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Comparison of one script: the differences, call by call, and the reasons of fallbacks."""

    differences: tuple[str, ...]
    fallbacks: tuple[str, ...]
    warned: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((*self.differences, *(f"fell back: {f}" for f in self.fallbacks)))


def agreement(script: Script, jit: Jit = tj.jit) -> Agreement:
    """Run ``script`` in eager and with ``f`` jitted, and compare all that is visible."""
    expected, _ = _seen(script, lambda f: f)
    jitted: list[Any] = []

    def compiled(f: Any) -> Any:
        jitted.append(jit(f))
        return jitted[0]

    got, warned = _seen(script, compiled)
    pairs = zip(got, expected, strict=True)
    different = (f"call {i}: {a}\n instead of {b}" for i, (a, b) in enumerate(pairs) if a != b)
    fallbacks = tuple(str(f) for f in tj.stats(jitted[0]).fallbacks) if _is_tj(jitted[0]) else ()
    return Agreement(tuple(different), fallbacks, warned)


def _is_tj(jitted: Any) -> bool:
    return hasattr(jitted, "__tj__")


def _seen(script: Script, compiled: Callable[[Any], Any]) -> tuple[list[Any], tuple[str, ...]]:
    """Observations of a user after each call, and the warnings of tj."""
    with _module(script) as space, _seeded(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        space["f"] = compiled(space["f"])
        seen = Descriptions()
        found = [_one(space, seen, call, script.watched) for call in script.calls]
    kinds = (w for w in caught if issubclass(w.category, tj.TjWarning))
    return found, tuple(str(w.message) for w in kinds)


def _one(space: dict[str, Any], seen: Descriptions, call: str, watched: str) -> Any:
    *before, last = call.splitlines()
    exec("\n".join(before), space)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            what = "returns", seen.look(eval(last, space))
        except Exception as error:
            what = "raises", (type(error).__name__, str(error))
    return *what, seen.look(eval(watched, space)), out.getvalue(), *_drawn()


def _drawn() -> tuple[int, ...]:
    """A digest of the state of all global generators."""
    import numpy as np

    state = np.random.get_state(legacy=True)
    numpy = hash((state[1].tobytes(), state[2]))  # type: ignore[index]
    return hash(random.getstate()), numpy, hash(torch.get_rng_state().numpy().tobytes())


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    import numpy as np

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@contextlib.contextmanager
def _module(script: Script) -> Iterator[dict[str, Any]]:
    """The names that the script's text defines, as those of a module that can be imported."""
    module = types.ModuleType(f"script_{next(_serial)}")
    file = f"<{module.__name__}>"
    text = _HEADER + script.text
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    sys.modules[module.__name__] = module  # Dynamo imports it to get at its globals
    try:
        exec(compile(text, file, "exec"), vars(module))
        yield vars(module)
    finally:
        del linecache.cache[file], sys.modules[module.__name__]
