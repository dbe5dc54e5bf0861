"""A program with its arguments, and its comparison under tj with eager."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch
from torch.utils import _pytree as pytree

from tj_conformance.oracle.compare import Difference, differences, tensors_in
from tj_conformance.oracle.device import seed
from tj_conformance.oracle.nearness import doubled, judged

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol

__all__ = ["Case", "Cases", "Verdict", "evaluate", "found_in", "observe"]

Around = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """One program: ``make`` returns a function and its arguments, the same in every call.

    ``around`` is the context of a call; ``options`` are `tj.jit`'s. ``falls_back`` is the reason
    why a part of the program runs in eager.
    """

    name: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    around: Around = contextlib.nullcontext
    options: tuple[tuple[str, Any], ...] = ()
    falls_back: str = ""


class Cases(dict[str, Case]):
    """Cases by name; a call returns a decorator that adds a case."""

    def __call__(self, *args: Callable[[], Any], **facts: Any) -> Callable[[Any], Any]:
        """Add a function of tensors that ``args`` make."""

        def add(fn: Callable[..., Any]) -> Callable[..., Any]:
            def make() -> tuple[Callable[..., Any], tuple[Any, ...]]:
                seed(0)
                return fn, tuple(arg() for arg in args)

            self.add(fn.__name__, make, **facts)
            return fn

        return add

    def made(self, **facts: Any) -> Callable[[Any], Any]:
        """Add a factory of a function and its arguments."""

        def add(make: Callable[[], Any]) -> Callable[[], Any]:
            def seeded() -> Any:
                seed(0)
                return make()

            self.add(make.__name__, seeded, **facts)
            return make

        return add

    def add(self, name: str, make: Callable[[], Any], **facts: Any) -> None:
        """Add a case."""
        if name in self:
            raise ValueError(f"there are two cases {name!r}")
        options = tuple(facts.pop("options", {}).items())
        self[name] = Case(name, make, options=options, **facts)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a case: the differences from eager, and the reasons of fallbacks.

    ``left`` are the symbols of the program's calls that the caller of `evaluate` asked for.
    """

    name: str
    differences: tuple[Difference, ...]
    fallbacks: tuple[str, ...]
    left: tuple[str, ...] = ()

    def __str__(self) -> str:
        found = [*map(str, self.differences), *(f"falls back: {f}" for f in self.fallbacks)]
        return f"{self.name}: " + ("; ".join(found) or "equal")


def evaluate(
    case: Case,
    jit: Callable[..., Any] = tj.jit,
    left: Callable[[BoundSymbol], bool] = lambda call: False,
    eager: Around = contextlib.nullcontext,
) -> Verdict:
    """Run ``case`` in eager and jitted, twice each, and compare all that a caller sees.

    ``eager`` is the context of the run in eager. The verdict names the calls of the program that
    runs for which ``left`` is true.
    """
    jitted = jit(case.make()[0], **dict(case.options))
    found = found_in(jitted, case, eager=eager)
    stats = tj.stats(jitted)
    whole = stats.entries and not stats.fallbacks
    calls = tj.last_trace(jitted).calls if whole else ()
    return Verdict(
        case.name,
        tuple(found),
        tuple(f.reason for f in stats.fallbacks),
        tuple(call.symbol.qualname for call in calls if left(call)),
    )


def found_in(
    compiled: Callable[..., Any],
    case: Case,
    around: Around = contextlib.nullcontext,
    eager: Around = contextlib.nullcontext,
) -> list[Difference]:
    """Differences from eager in two runs of ``compiled``.

    ``around`` is the context of these, ``eager`` that of eager's. Warnings are not shown: fallbacks
    are in the verdict.
    """
    found: list[Difference] = []
    fn, _ = case.make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            mine, theirs = observe(compiled, case, around), observe(fn, case, eager)
            different = differences(mine, theirs, case.name)
            found += judged(different, mine, theirs, lambda: _exact(case, eager))
    return found


def _exact(case: Case, eager: Around) -> dict[str, Any]:
    """The results of ``case`` in eager and in double precision, which autocast leaves alone."""

    def make() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        program, args = case.make()
        wide = program.double() if isinstance(program, torch.nn.Module) else program
        return wide, doubled(args)

    return observe(make()[0], replace(case, make=make), eager)


def observe(
    run: Callable[..., Any], case: Case, around: Around = contextlib.nullcontext
) -> dict[str, Any]:
    """Call ``run`` with ``case``'s arguments; observe its results, writes, gradients or error.

    ``around`` is entered around the call alone, as options of `tj.jit` do.
    """
    program, args = case.make()
    parameters = _parameters(program)
    module = getattr(run, "_orig_mod", run)  # what torch.compile wraps
    if parameters and isinstance(module, torch.nn.Module):
        module.load_state_dict(program.state_dict())  # type: ignore[attr-defined]
        parameters = _parameters(module)
        module.zero_grad()
    torch.manual_seed(1)
    try:
        with case.around():
            with around():
                out = run(*args)
            state = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    except Exception as error:
        return {"raises": type(error).__name__, "arguments": _detached(args)}
    wanted = [t for t in tensors_in(out) if t.requires_grad and t.is_floating_point()]
    raised = None
    if wanted:
        losses = [(t.float() * t.detach().float().cos()).sum() for t in wanted]
        try:
            torch.autograd.backward(losses)
        except Exception as error:
            raised = type(error).__name__
    grads = [t.grad for t in (*tensors_in(args), *parameters) if t.is_leaf]
    return {
        "out": _detached(out),
        "needs": [t.requires_grad for t in tensors_in(out)],
        "grads": grads,
        "arguments": _detached(args),
        "backward raises": raised,
        "autocast": state,
    }


def _parameters(program: Any) -> list[torch.nn.Parameter]:
    return list(program.parameters()) if isinstance(program, torch.nn.Module) else []


def _detached(tree: Any) -> Any:
    return pytree.tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, tree)
