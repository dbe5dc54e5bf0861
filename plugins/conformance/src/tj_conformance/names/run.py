"""Made-up programs with hostile names, as a user runs them: fused, and not checked.

``python -m tj_conformance.names.run --programs 10000`` prints every program that differs from
eager, and at last one line of figures. Most are fused by the interpreter of names
(`tj_conformance.fuser`), and of every `COMPILED` one by the executors that are installed. Chunks
run in processes of their own: one that dies counts as a program that differs. ``--only 17`` runs
one program here.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import linecache
import shutil
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch
from tj_core.extend import TjWarning
from torch.utils import _pytree as pytree

from tj_conformance.chunks import Suite, note, parser
from tj_conformance.names.texts import NamedText, named_text

if TYPE_CHECKING:
    from collections import Counter

__all__ = ["COMPILED", "FORMS", "Form", "compare", "main", "session"]

# Numbers of modules that are made: `sys.modules` and `linecache` are the process's.
_serial = itertools.count()

COMPILED = 20
"""One program in this many is compiled by the installed executors."""

CHUNK = 250

Compile = Callable[[Any, tj.Session], Any]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to run a program: with gradients up to ``order``, for rows and numbers in turn.

    A program that is ``kept`` on disk runs in two sessions, the second of which finds it there.
    """

    order: int = 1
    rows: tuple[int, ...] = (4, 4)
    numbers: tuple[int, ...] = (3, 3)
    backend: bool = False
    kept: bool = False


FORMS: dict[str, Form] = {
    "inference": Form(order=0),
    "gradients": Form(),
    "second": Form(order=2),
    "dynamic": Form(rows=(4, 5, 1, 7), numbers=(3, 3, 3, 3)),
    "dynamic inference": Form(order=0, rows=(2, 3, 0, 1), numbers=(2, 2, 2, 2)),
    "numbers": Form(rows=(4, 4, 4, 4), numbers=(1, 0, 2, -1)),
    "backend": Form(backend=True),
    "kept": Form(kept=True),
}
"""Forms by name; a hash of its number chooses a program's."""


def session(compiled: bool = False, **overrides: Any) -> tj.Session:
    """Make a session as installed; unless programs are ``compiled``, regions run as text."""
    if compiled:
        return tj.Session(overrides=overrides)
    overrides["conformance"] = {"fuse": True}
    return tj.Session(["conformance", "..."], disable=["inductor"], overrides=overrides)


def form_of(number: int) -> str:
    """The name of the form that the ``number``-th program takes."""
    return list(FORMS)[number * 7919 % 104729 % len(FORMS)]


def compare(number: int, used: tj.Session | None = None, form: str | None = None) -> str | None:
    """Difference of the ``number``-th program from eager; None without one."""
    name = form or form_of(number)
    made, how = named_text(number), FORMS[name]
    compiled = used is None and number % COMPILED == 0
    try:
        found = _Comparison(made, how, compiled).differences(used)
    except Exception as error:
        import traceback

        found = ["".join(traceback.format_exception(error)[-6:]).replace("\n", "\n#   ")]
    finally:
        torch._dynamo.reset()
    if not found or number in LISTED:
        return None
    said = "\n".join(f"#   {line}" for line in found)
    return f"# {number} differs in {name}{', compiled' * compiled}\n{said}\n{made}"


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A program in a form."""

    made: NamedText
    how: Form
    compiled: bool

    def differences(self, used: tj.Session | None) -> list[str]:
        """The differences, as lines."""
        if not self.how.kept:
            return self.against(used or _usual(self.compiled))
        first, second = _of_one_folder(self.compiled)
        found = self.against(first)
        torch._dynamo.reset()
        return found or self.against(second)

    def against(self, used: tj.Session) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with _module(self.made, "eager") as eager, _module(self.made, "tj") as mine:
                expected, found = self.run(eager, None), self.run(mine, used)
        said = [str(w.message).partition("\n")[0] for w in caught if _is_ours(w)]
        lines = [f"warns: {w}" for w in dict.fromkeys(said)]
        for key in sorted({**expected, **found}, key=lambda k: ("raises" not in k, k)):
            a, b = found.get(key), expected.get(key)
            if not key.endswith("says") and not self.equal(a, b):
                lines.append(f"{key}: {_short(a)}, in eager {_short(b)}")
        if lines and (said := [v for k, v in found.items() if k.endswith("says")]):
            lines.append(f"says: {said[0]}")
        return [*lines[:6], *lines[6:][-1:]]

    def equal(self, a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            # What is cast to float32 or bfloat16 sums second gradients otherwise (docs/limits.md).
            second = self.how.order > 1
            near = self.made.rounded and (self.compiled or second)
            rtol = 3e-2 if near else 1e-6 if second else 1e-9
            largest = max(1.0, float(b.abs().max())) if (near or second) and b.numel() else 1.0
            return (
                a.dtype == b.dtype
                and a.shape == b.shape
                and torch.allclose(a, b, rtol, rtol * largest, equal_nan=True)
            )
        return type(a) is type(b) and bool(a == b)

    def run(self, module: Any, used: tj.Session | None) -> dict[str, Any]:
        """Observations of a caller in all calls."""
        seen: dict[str, Any] = {}
        torch.manual_seed(0)
        f = module.tj_make()
        call = f
        if used is not None:
            call = self.jitted(f, used)
        for i, (rows, k) in enumerate(zip(self.how.rows, self.how.numbers, strict=True)):
            try:
                self.once(module, f, call, rows, k, seen, f"call {i}: ")
            except Exception as error:
                # torch.compile wraps errors of the program's own.
                seen[f"call {i} raises"] = type(error).__name__.removeprefix("Torch")
                seen[f"call {i} says"] = str(error)[:300]
        seen.update((f"state {i}", t.detach()) for i, t in enumerate(module.tj_state(f)))
        return seen

    def jitted(self, f: Any, used: tj.Session) -> Any:
        if self.how.backend:
            return torch.compile(f, backend="tj", options={"session": used})  # type: ignore[dict-item]
        return tj.jit(f, session=used)

    def once(
        self, module: Any, f: Any, call: Any, rows: int, k: int, seen: dict[str, Any], when: str
    ) -> None:
        leaves = [torch.rand(rows, 3, dtype=torch.float64).add(0.5) for _ in range(2)]
        if self.how.order:
            leaves = [leaf.requires_grad_() for leaf in leaves]
        given = [leaf * 1 for leaf in leaves]
        result = module.tj_call(call, *given, k)
        flat, tree = pytree.tree_flatten(result)
        seen[f"{when}structure"] = str(tree)
        outs = [r for r in flat if isinstance(r, torch.Tensor)]
        for i, r in enumerate(flat):
            seen[f"{when}result {i}"] = r.detach().clone() if isinstance(r, torch.Tensor) else r
        seen[f"{when}tracked"] = [r.requires_grad for r in outs]
        tracked = [r for r in outs if r.requires_grad]
        if tracked and self.how.order:
            wrt = [*leaves, *(f.parameters() if isinstance(f, torch.nn.Module) else ())]
            self.gradients(tracked, wrt, seen, when)
        seen.update((f"{when}argument {i}", g.detach().clone()) for i, g in enumerate(given))

    def gradients(
        self, tracked: Sequence[torch.Tensor], wrt: Any, seen: dict[str, Any], when: str
    ) -> None:
        options: Any = {"allow_unused": True, "create_graph": self.how.order > 1}
        total: Any = sum((r**2).sum() for r in tracked)
        first = torch.autograd.grad(total, wrt, **options)
        seen.update((f"{when}gradient {i}", _plain(g)) for i, g in enumerate(first))
        again = [g for g in first if g is not None and g.requires_grad]
        if again:
            penalty = sum((g**2).sum() for g in again)
            second = torch.autograd.grad(penalty, wrt, allow_unused=True)
            seen.update((f"{when}second gradient {i}", _plain(g)) for i, g in enumerate(second))


def _plain(g: torch.Tensor | None) -> Any:
    return None if g is None else g.detach()


def _short(value: Any) -> str:
    return str(value).replace("\n", " ")[:200]


BREAKS = ("`DELETE_DEREF`",)
"""Words of warnings that are no difference: Dynamo cannot delete a variable of a closure."""

LISTED: dict[int, str] = {
    8905: "below torch.compile, with any backend, Dynamo's own `wrap_body_0` meets a global",
}
"""Programs that differ, by number, with reasons."""


def _is_ours(w: warnings.WarningMessage) -> bool:
    said = str(w.message)
    return issubclass(w.category, TjWarning) and not any(words in said for words in BREAKS)


@functools.cache
def _usual(compiled: bool) -> tj.Session:
    return session(compiled)


@functools.cache
def _of_one_folder(compiled: bool) -> tuple[tj.Session, tj.Session]:
    """Two sessions that keep programs in one folder, as two processes would."""
    folder = tempfile.mkdtemp(prefix="tj-names-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return session(compiled, cache_dir=folder), session(compiled, cache_dir=folder)


@contextlib.contextmanager
def _module(made: NamedText, kind: str) -> Iterator[Any]:
    """The program as a module; its text is found by tracebacks."""
    name = f"tj_named_{made.number}_{kind}_{next(_serial)}"
    module = types.ModuleType(name)
    file = f"<{name}>"
    linecache.cache[file] = (len(made.text), None, made.text.splitlines(keepends=True), file)
    sys.modules[name] = module
    exec(compile(made.text, file, "exec"), module.__dict__)
    try:
        yield module
    finally:
        del sys.modules[name], linecache.cache[file]


# --------------------------------------------------------------------------- a whole run


def main(arguments: Sequence[str]) -> int:
    """Run what ``arguments`` say; 1 if any program differs."""
    given = parser(SUITE.module, 500).parse_args(arguments)
    if given.only is not None:
        return SUITE.only(given, (compare(given.only, form=form) for form in FORMS))
    if given.chunk is not None:
        return _chunk(given.chunk, given.programs)
    return SUITE.run(given, "hostile names", _text)


def _text(figures: Counter[str]) -> str:
    return f"{figures['programs']} programs, {figures['different']} different; " + ", ".join(
        f"{figures[name]} {name}" for name in ("regions", "compiled")
    )


def _chunk(first: int, count: int) -> int:
    """Compare programs in this process; count those that are compiled, and the regions."""
    SUITE.chunk(first, count)
    note("compiled", sum(number % COMPILED == 0 for number in range(first, first + count)))
    used = [s for c in (False, True) for s in (_usual(c), *_of_one_folder(c))]
    note("regions", sum(len(s.regions.kernels) for s in used))
    note("done")
    return 0


SUITE = Suite("tj_conformance.names.run", CHUNK, lambda number: compare(number), named_text)
"""Numbered programs with hostile names."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
