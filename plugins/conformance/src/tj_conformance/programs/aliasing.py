"""The oracle for programs that write and alias: tj must not be distinguishable from eager.

`check` runs a program in eager and jitted, on equal inputs that are built separately, and compares
all that a caller can see (`tj_conformance.oracle.world`): after the call, after every backward
pass, and after a write to each output in turn. Several scenes run through one jitted callable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch
from tj_core.internal import jitted_of
from torch.utils import _pytree as pytree

from tj_conformance.oracle import device
from tj_conformance.oracle.compare import Difference
from tj_conformance.oracle.world import World, attempt, compare_worlds, look_at

if TYPE_CHECKING:
    from tj_core.extend import Compilation

__all__ = ["Jit", "Program", "Report", "Scene", "check", "stateless"]

Jit = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """Arguments of one call, and other tensors of the caller that it can reach.

    ``watched`` are the leaves that receive gradients, the bases of arguments that are views, and
    views of the arguments that stay with the caller.
    """

    args: tuple[Any, ...]
    watched: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A callable, and its state between calls as a tree of tensors and plain values."""

    fn: Callable[..., Any]
    state: Callable[[], Any] = tuple


def stateless(fn: Callable[..., Any]) -> Callable[[], Program]:
    """The factory that `check` wants, of a function that keeps nothing."""
    return lambda: Program(fn)


@dataclass(frozen=True, slots=True)
class Report:
    """Result of `check`.

    ``raised`` are the types of the exceptions that eager raised, call by call (None: it returned);
    ``backward_raised`` those of its backward passes; ``fallbacks`` are tj's reasons for running
    parts of the program without capture, ``entries`` is the number of its compiled entries, and
    ``compilations`` are their compilations.
    """

    differences: tuple[Difference, ...]
    raised: tuple[str | None, ...] = ()
    backward_raised: frozenset[str] = frozenset()
    fallbacks: tuple[str, ...] = ()
    entries: int = 0
    compilations: tuple[Compilation, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    def __str__(self) -> str:
        return "\n".join(map(str, self.differences)) or "equal"


def check(
    make: Callable[[], Program],
    scenes: Sequence[Callable[[], Scene]],
    *,
    jit: Jit = tj.jit,
    create_graph: bool = False,
    ignore: Collection[str] = (),
    lenient: bool = False,
    other_saved: bool = False,
    early: bool = False,
    seed: int = 11,
) -> Report:
    """Run each scene twice through one jitted callable, and compare with eager.

    After the first call of a scene come backward passes through each root alone, through all of
    them, and through freed graphs; after the second, writes to each output in turn and then a
    backward pass. ``make`` builds the program once for each side; ``jit`` compiles it.
    ``create_graph`` adds gradients of gradients; ``ignore`` names facts of
    `tj_conformance.oracle.world` that do not count. A ``lenient`` check accepts gradients that
    eager refuses because a saved tensor was written, and other rounding, since contributions are
    added in another order. With ``other_saved`` it also accepts refusals after writes to results,
    and other layouts of gradients of gradients, the first of which determines that of a sum. An
    ``early`` candidate raises while it captures, before it writes, maybe a RuntimeError: the
    comparison ends at a call that raises. Else it ends at the first difference: later ones would
    only repeat it.
    """
    run = _Run(create_graph, ignore, lenient, other_saved, early, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of either side, a fallback's included: see `fallbacks`
        theirs = _Side(make())
        mine = _Side(make())
        mine.call = jit(mine.program.fn)
        for i, scene in enumerate(scenes):
            for after in (run.differentiate, run.write):
                if not run.over:
                    run.once(mine, theirs, scene, after, f"scene {i}, {after.__name__}")
    jitted = attempt(jitted_of, mine.call)
    if isinstance(jitted, str):  # another compiler's
        return Report(tuple(run.differences), tuple(run.raised), frozenset(run.backward_raised))
    return Report(
        tuple(run.differences),
        tuple(run.raised),
        frozenset(run.backward_raised),
        tuple(f.reason for f in jitted.stats.fallbacks),
        len(jitted.entries),
        tuple(e.compilation for e in jitted.entries if e.compilation is not None),
    )


@dataclass
class _Side:
    """Eager, or the candidate: its program, and the call in progress."""

    program: Program
    scene: Scene = field(default_factory=lambda: Scene(()))
    out: Any = None
    error: str | None = None

    def __post_init__(self) -> None:
        self.call: Callable[..., Any] = self.program.fn

    def begin(self, scene: Scene, seed: int) -> None:
        """Call the program on a fresh scene."""
        self.scene, self.out, self.error = scene, None, None
        device.seed(seed)
        try:
            self.out = self.call(*scene.args)
        except Exception as error:
            self.error = type(error).__name__

    def world(self) -> World:
        return look_at(
            watched=self.scene.watched,
            args=self.scene.args,
            state=self.program.state(),
            out=self.out,
        )

    def outputs(self) -> list[torch.Tensor]:
        """The tensors that were returned, each object once."""
        leaves = pytree.tree_leaves(self.out)
        return list({id(t): t for t in leaves if isinstance(t, torch.Tensor)}.values())

    def roots(self) -> list[torch.Tensor]:
        """Tensors with a history that were returned or written."""
        tensors = self.world().distinct().values()
        return [t for t in tensors if attempt(_has_history, t) is True]

    def leaves(self) -> list[torch.Tensor]:
        tensors = self.world().distinct().values()
        return [t for t in tensors if attempt(_is_grad_leaf, t) is True]


def _is_grad_leaf(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and tensor.is_leaf


def _has_history(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is not None


_AMBIENT: dict[str, Callable[[], Any]] = {
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "random state": torch.get_rng_state,
}
"""Settings outside of all tensors that a program may leave changed."""


def _equal(a: Any, b: Any) -> bool:
    return a.equal(b) if isinstance(a, torch.Tensor) else bool(a == b)


_REFUSED = "raises RuntimeError"

_LAYOUT = ("strides", "bytes of storage", "offset", "is a view")


@dataclass
class _Run:
    """A comparison in progress."""

    create_graph: bool
    ignore: Collection[str]
    lenient: bool
    other_saved: bool
    early: bool
    seed: int
    differences: list[Difference] = field(default_factory=list)
    raised: list[str | None] = field(default_factory=list)
    backward_raised: set[str] = field(default_factory=set)
    allowed: tuple[tuple[str | None, str | None], ...] = ((None, _REFUSED),)

    @property
    def over(self) -> bool:
        """True after a difference, or after a call that raised if the candidate raises early."""
        return bool(self.differences) or (self.early and any(self.raised))

    def once(
        self,
        mine: _Side,
        theirs: _Side,
        scene: Callable[[], Scene],
        after: Callable[[_Side, _Side, str], None],
        when: str,
    ) -> None:
        """Run one call on each side, and apply ``after`` to its results."""
        ambient = []
        for side in (theirs, mine):
            before = torch.is_grad_enabled()
            side.begin(scene(), self.seed)
            ambient.append({name: look() for name, look in _AMBIENT.items()})
            torch.set_grad_enabled(before)
        self.raised.append(theirs.error)
        if self.early and theirs.error is not None and mine.error in (theirs.error, "RuntimeError"):
            return
        if mine.error != theirs.error:
            what = f"{mine.error or 'returns'} instead of {theirs.error or 'returns'}"
            self.differences.append(Difference(f"{when}: the call", what))
            return
        for name, value in ambient[0].items():
            if not _equal(ambient[1][name], value):
                self.differences.append(Difference(f"{when}: the call", f"{name} differs"))
        self.compare(mine, theirs, f"{when}: after the call")
        if theirs.error is None and not self.differences:
            after(mine, theirs, when)

    def compare(self, mine: _Side, theirs: _Side, when: str) -> bool:
        """Compare both sides at moment ``when``; False if they differ."""
        worlds = mine.world(), theirs.world()
        self.differences += compare_worlds(*worlds, when, self.ignore, rounding=self.lenient)
        return not self.differences

    def differentiate(self, mine: _Side, theirs: _Side, when: str) -> None:
        """Run backward through each root alone, through all, and once more with the graph freed."""
        self.allowed = ((None, _REFUSED),)
        count = len(theirs.roots())
        steps = [([i], True) for i in range(count)] if count > 1 else []
        everything = list(range(count))
        if self.create_graph and not self.double(mine, theirs, when):
            return
        last = [(everything, False)] * (1 if self.lenient else 2)
        for roots, retain in [*steps, *last]:
            if count and not self.backward(mine, theirs, roots, retain, when):
                return

    def backward(
        self, mine: _Side, theirs: _Side, roots: list[int], retain: bool, when: str
    ) -> bool:
        """Run one backward pass on each side; True if they agree and another pass is of use."""
        when = f"{when}: after backward of roots {roots}"
        expected, got = (_backward(side, roots, retain) for side in (theirs, mine))
        allowed = self.lenient and (got, expected) in self.allowed
        if got != expected and not allowed:
            self.differences.append(Difference(when, f"{got} instead of {expected}"))
        if expected is not None:
            self.backward_raised.add(expected.removeprefix("raises "))
        if expected is not None or allowed:
            # Which gradients were added up before the error is not defined; those of a module's
            # parameters would stay there for the next call.
            for leaf in (*mine.leaves(), *theirs.leaves()):
                leaf.grad = None
            return False
        return self.compare(mine, theirs, when)

    def double(self, mine: _Side, theirs: _Side, when: str) -> bool:
        expected, got = (_double(side) for side in (theirs, mine))
        where = f"{when}: gradients of gradients"
        if isinstance(expected, str) or isinstance(got, str):
            if got != expected:
                self.differences.append(Difference(where, f"{got} instead of {expected}"))
        else:
            worlds = look_at(grads=got), look_at(grads=expected)
            # Whether it adds in place is the autograd engine's own business.
            ignored = ("_version", *(_LAYOUT if self.other_saved else ()), *self.ignore)
            self.differences += compare_worlds(*worlds, where, ignored)
        return not self.differences

    def write(self, mine: _Side, theirs: _Side, when: str) -> None:
        """Write to each output, as a caller might, then go backward."""
        if self.other_saved:
            self.allowed = ((None, _REFUSED), (_REFUSED, None))
        for i, (a, b) in enumerate(zip(mine.outputs(), theirs.outputs(), strict=True)):
            said = f"{when}: after writing to output {i}"
            expected, got = list(_written(b)), list(_written(a))
            if got != expected:
                self.differences.append(Difference(said, f"{got} instead of {expected}"))
            if not self.compare(mine, theirs, said):
                return
        if count := len(theirs.roots()):
            self.backward(mine, theirs, list(range(count)), False, f"{when}: written")


def _tangent(root: torch.Tensor) -> torch.Tensor:
    """A fixed gradient for ``root``, another for each element."""
    flat = torch.arange(1, root.numel() + 1, device=root.device)
    return flat.reshape(root.shape).to(root.dtype)


def _backward(side: _Side, which: list[int], retain: bool) -> Any:
    """Run a backward pass; return the exception that PyTorch raised, or None."""
    found = side.roots()
    if len(found) <= max(which):
        return f"only {len(found)} roots"
    roots = [found[i] for i in which]
    tangents = [_tangent(r) for r in roots]
    return attempt(lambda: torch.autograd.backward(roots, tangents, retain_graph=retain))


def _double(side: _Side) -> Any:
    """Gradients of the leaves, and gradients of those."""
    roots, leaves = side.roots(), side.leaves()
    if not roots or not leaves:
        return []

    def grads() -> Any:
        tangents = [_tangent(r) for r in roots]
        options = {"allow_unused": True, "retain_graph": True}
        first = torch.autograd.grad(roots, leaves, tangents, create_graph=True, **options)
        again = [g for g in first if g is not None and g.requires_grad]
        ones = [_tangent(g) for g in again]
        second = torch.autograd.grad(again, leaves, ones, **options) if again else ()
        return [(None if g is None else g.detach()) for g in (*first, *second)]

    return attempt(grads)


def _written(tensor: torch.Tensor) -> Iterator[str | None]:
    """Write under the ambient grad mode and, where that is refused, hidden from autograd."""
    said = attempt(_scramble, tensor)
    yield said if isinstance(said, str) else None
    if isinstance(said, str):
        with torch.no_grad():
            said = attempt(_scramble, tensor)
        yield said if isinstance(said, str) else None


def _scramble(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is torch.bool:
        return tensor.logical_not_()
    return tensor.mul_(3)
