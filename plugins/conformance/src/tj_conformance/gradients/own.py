"""Made-up programs with backwards that users wrote, compared with eager.

``python -m tj_conformance.gradients.own --programs 10000`` prints every program that differs, and
at last one line of figures. Chunks run in processes of their own: one that dies counts as a program
that differs. ``--only 17`` runs one program here.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch
from tj_core.extend import TjWarning

from tj_conformance.chunks import Suite, note, parser
from tj_conformance.gradients.owntexts import OwnText, own_text
from tj_conformance.oracle import world
from tj_conformance.oracle.configurations import current

if TYPE_CHECKING:
    from collections import Counter

__all__ = ["KNOWN", "WAYS", "compare", "main"]

Program = Callable[..., Any]

WAYS: dict[str, Callable[[Program], Program]] = {
    "torch,autograd": lambda f: tj.jit(f, plugins=["torch", "autograd"]),
    "torch": lambda f: tj.jit(f, plugins=["torch"]),
    "backend": lambda f: torch.compile(f, backend="tj"),
}
"""Ways to compile a program; the n-th program takes the n-th, in turns."""

KNOWN = {
    763: "a backward that reads a global variable runs when the program's backward does; where it "
    "returns None, the gradient is zeros, and in eager it is missing",
    7331: "the last bit of a sum of three gradients: an argument is returned, whose gradient from "
    "outside autograd adds first in eager, and in tj to the sum of the two from inside",
}
"""Numbers of programs that are known to differ, with the reasons."""

CHUNK = 100


def compare(
    number: int, way: str | None = None, jit: Callable[[Program], Program] | None = None
) -> str | None:
    """Difference of the ``number``-th program from eager, compiled in ``way``; None without one.

    ``jit``, if given, compiles it instead.
    """
    made = own_text(number)
    way = way or list(WAYS)[number % len(WAYS)]
    jit = jit or WAYS[way]
    torch._dynamo.reset()
    with _module(made, "eager") as eager, _module(made, "compiled") as other:
        expected = _observed(eager.program, eager, made)
        compiled = jit(other.program)
        for when in ("first", "second"):
            found = _observed(compiled, other, made)
            names = sorted({*found, *expected})
            lines = [
                f"#   {name}: {found.get(name)}, in eager {expected.get(name)}"
                for name in names
                if not _equal(found.get(name), expected.get(name))
                and not (
                    made.rewritten and (_is_refused(name, expected) or _is_refused(name, found))
                )
            ]
            if lines:
                return f"# differs in the {when} call, {way}\n" + "\n".join(lines) + f"\n{made}"
    return None


@contextlib.contextmanager
def _module(made: OwnText, kind: str) -> Iterator[Any]:
    """The program as a module; its text is found by tracebacks."""
    name = f"tj_made_{made.number}_{kind}"
    module = types.ModuleType(name)
    module.__dict__["NAME"] = f"{name}_operator"
    file = f"<{name}>"
    linecache.cache[file] = (len(made.text), None, made.text.splitlines(keepends=True), file)
    sys.modules[name] = module
    exec(compile(made.text, file, "exec"), module.__dict__)
    try:
        yield module
    finally:
        del sys.modules[name], linecache.cache[file]


# --------------------------------------------------------------------------- what is observed


def _observed(f: Program, module: Any, made: OwnText) -> dict[str, Any]:
    """Observations of a caller in one call and its gradients, by name."""
    seen: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with _noted(seen, "call"):
            _look(f, module, made, seen)
    seen["warnings"] = sorted({w for w in map(_warning, caught) if w})
    return seen


def _look(f: Program, module: Any, made: OwnText, seen: dict[str, Any]) -> None:
    torch.manual_seed(7)
    leaves = [torch.rand(3, 3).add(0.5).requires_grad_() for _ in range(2)]
    given = [leaf * 1 for leaf in leaves]
    scope = {"torch": torch, "nullcontext": contextlib.nullcontext}
    with eval(made.ambient, scope):
        result = f(*given)
    flat = list(result) if isinstance(result, tuple) else [result]
    seen["types"] = [type(r).__name__ if not isinstance(r, torch.Tensor) else "" for r in flat]
    tensors = [r for r in flat if isinstance(r, torch.Tensor)]
    seen["values"] = [_value(r) for r in tensors]
    seen["same"] = [[i for i, g in enumerate(given) if g is r] for r in tensors]
    seen["tracked"] = [(r.requires_grad, r.is_leaf) for r in tensors]
    tracked = [r for r in tensors if r.requires_grad]
    if made.writes:
        with torch.no_grad():
            given[0].mul_(3)
        module.settings["rate"] = 4.0
    for i, r in enumerate(tracked):
        with _noted(seen, f"gradient of {i}"):
            total = (r.float() ** 2).sum()
            found = torch.autograd.grad(total, given, retain_graph=True, allow_unused=True)
            seen[f"gradients of {i}"] = [None if g is None else _value(g) for g in found]
    if tracked:
        if made.linear and not made.writes:  # tj computes the first ones from the inputs again
            with _noted(seen, "second gradient"):
                _second(tracked, given, seen)
        with _noted(seen, "backward"):
            torch.autograd.backward([r.float().sum() for r in tracked])
            seen["grad"] = [None if leaf.grad is None else _value(leaf.grad) for leaf in leaves]
    seen["given"] = [_value(g) for g in given]
    module.settings["rate"] = 0.5


def _second(tracked: Sequence[torch.Tensor], given: Sequence[torch.Tensor], seen: Any) -> None:
    total = sum((r.float() ** 2).sum() for r in tracked)
    assert isinstance(total, torch.Tensor)
    first = torch.autograd.grad(
        total, given, create_graph=True, retain_graph=True, allow_unused=True
    )
    seen["differentiable"] = [g is not None and g.requires_grad for g in first]
    again = [g for g in first if g is not None and g.requires_grad]
    if again:
        penalty = sum((g.float() ** 2).sum() for g in again)
        assert isinstance(penalty, torch.Tensor)
        found = torch.autograd.grad(penalty, given, allow_unused=True, retain_graph=True)
        seen["gradients of gradients"] = [g if g is None else _Close(g.detach()) for g in found]


@contextlib.contextmanager
def _noted(seen: dict[str, Any], name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        seen[name] = f"raises {type(error).__name__}"


_ASKED = {
    "grad": "backward",
    "differentiable": "second gradient",
    "gradients of gradients": "second gradient",
}
"""Request under which each observation is made."""


def _is_refused(name: str, expected: dict[str, Any]) -> bool:
    """Check that eager refuses this gradient, since a saved value was written.

    tj checks the values that gradients need, eager all that were saved. tj may save arguments and
    recompute values from them, where eager saves the values.
    """
    gradients = _ASKED.get(name, name.replace("gradients of", "gradient of"))
    return expected.get(gradients) == "raises RuntimeError"


def _equal(a: Any, b: Any) -> bool:
    """Compare two observations; second gradients may differ in the order of sums."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, _Value) and isinstance(b, _Value):
        return a.equals(b)
    if isinstance(a, _Close) and isinstance(b, _Close):
        return torch.allclose(a.value, b.value, rtol=1e-4, atol=1e-5, equal_nan=True)
    return bool(a == b)


@dataclass(frozen=True, slots=True)
class _Close:
    """A value that is equal to another one up to rounding."""

    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor's metadata and elements when it was observed."""

    metadata: str
    value: torch.Tensor

    def __str__(self) -> str:
        return f"{self.metadata} {self.value.tolist()}"

    __repr__ = __str__

    def equals(self, other: _Value) -> bool:
        """Check that another value is the same, up to rounding if the configuration rounds."""
        if str(self) == str(other):
            return True
        if not current().rounds or self.metadata != other.metadata:
            return False
        return world.same_but_for_rounding(self.value, other.value) is None


def _value(t: torch.Tensor) -> _Value:
    t = t.detach()
    return _Value(f"{t.dtype} {tuple(t.shape)} {t.stride()}", t.clone())


_OTHERS = re.compile(
    "should not be instantiated|attribute of a Tensor that is not a leaf|torch.jit.script"
)


def _warning(w: warnings.WarningMessage) -> str | None:
    """The text of a warning that is the program's own."""
    text = str(w.message).partition("\n")[0]
    return None if issubclass(w.category, TjWarning) or _OTHERS.search(text) else text


# --------------------------------------------------------------------------- a whole run


def main(arguments: Sequence[str]) -> int:
    """Run what ``arguments`` say; 1 if any program differs."""
    given = parser(SUITE.module, 300).parse_args(arguments)
    if given.only is not None:
        return SUITE.only(given, (compare(given.only, way) for way in WAYS))
    if given.chunk is not None:
        SUITE.chunk(given.chunk, given.programs)
        note("done")
        return 0
    return SUITE.run(given, "own backwards", _said)


def _said(figures: Counter[str]) -> str:
    return f"{figures['programs']} programs, {figures['different']} different"


def _unknown(number: int) -> str | None:
    """The difference of a program that is not in `KNOWN`."""
    try:
        found = compare(number)
    except Exception as error:
        found = f"# fails: {type(error).__name__}: {error}\n{own_text(number)}"
    if found is None or number not in KNOWN:
        return found
    print(f"# {number}, known: {KNOWN[number]}")
    return None


SUITE = Suite("tj_conformance.gradients.own", CHUNK, _unknown, own_text)
"""Numbered programs with backwards of their own, without the known differences."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
