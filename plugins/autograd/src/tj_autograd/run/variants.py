"""Backward programs of one forward: one for each layout of the tangents, made on first use."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    BoundSymbol,
    Context,
    Expand,
    PassError,
    Program,
    Proxy,
    RuleTable,
    TagError,
    TensorProxy,
    Trace,
    own_pass,
)
from tj_core.internal import warn_of
from tj_torch.extend import compiling

from tj_autograd.joint.replay import draws_again, restoring
from tj_autograd.joint.segments import Cut, alone
from tj_autograd.run.autocast import casts
from tj_autograd.run.crossing import has_layout
from tj_autograd.run.rerun import Rerun
from tj_autograd.run.rerun import rerun as make_rerun
from tj_autograd.run.shares import Boxed, Shares, divisible
from tj_autograd.split.halves import Halves, Part, is_backward

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tj_autograd.joint.build import Layout
    from tj_autograd.run.reads import Reads

__all__ = ["Key", "Pullback", "Variants"]

LIMIT = 8
"""Number of backward programs per forward; tangents with a further layout are copied."""

Key = int | str
"""Key of a gradient in a backward program's results: a position,
or, with several segments, a name.
"""


@dataclass(frozen=True, slots=True)
class Pullback:
    """A backward program, with the saved values and the layout of the tangents that it takes.

    ``saved`` are indices of saved values. ``tangents`` has an entry for each root, None where the
    program takes none. ``missing`` are gradients that PyTorch's autograd does not have although the
    program may return one: it takes zeros for a tangent that does not exist. ``takes`` are the
    saved values with the metadata that the program expects, ``calls`` the program's calls.
    ``under`` caches, for an ambient autocast, if eager's backward has other casts in it. ``shares``
    are the programs for some of the gradients, None where all are computed together. ``laid_out``
    are gradients as they are laid out in eager, where the program is that of other tangents.
    """

    program: Boxed
    saved: tuple[int, ...]
    tangents: tuple[TensorProxy | None, ...]
    missing: frozenset[Key] = frozenset()
    takes: tuple[Proxy, ...] = ()
    calls: tuple[BoundSymbol, ...] = ()
    under: dict[Context, bool] = field(default_factory=dict)
    shares: Shares | None = None
    laid_out: Mapping[Key, TensorProxy] = field(default_factory=dict)


@dataclass
class Variants:
    """Makes and caches the backward programs of the segment at ``index`` in ``cut``.

    ``default`` is the layout of the tangents that ``halves`` was made for. ``joint`` makes the
    joint trace for another layout from ``functional``; ``split`` splits it, and saves no values but
    those named. ``within`` is entered while a program is compiled, to provide the program's size
    symbols. ``depended`` are the values that the gradients depend on; ``reads`` is the rule table;
    ``expand`` expands calls under autocast, ``rewrite`` applies rules to a trace. ``frees`` is true
    if PyTorch's autograd would save any tensor for the segment. ``strict``: see
    `tj_core.compile.failures.own_pass`.
    """

    halves: Halves
    cut: Cut
    index: int
    compile_later: Callable[[str, Trace], Program]
    functional: Trace
    joint: Callable[[Layout], Trace]
    split: Callable[[Trace, Layout, frozenset[str]], Halves]
    default: Layout
    within: Callable[[], AbstractContextManager[None]]
    depended: frozenset[str]
    reads: RuleTable[Reads]
    expand: RuleTable[Expand]
    frees: bool
    rewrite: Callable[[Trace, RuleTable[Any]], Trace]
    strict: bool = False
    known: dict[Layout, Pullback] = field(default_factory=dict)

    def __getitem__(self, layout: Layout) -> Pullback:
        """The program for tangents of ``layout``, in which None is a tangent that does not exist.

        It is the default program, to whose layout tangents are copied, if the forward has not saved
        what a program for ``layout`` would read, or there are `LIMIT` programs.
        """
        found = self.known.get(layout)
        if found is None:
            with self.making():
                # Another thread may have made it meanwhile.
                found = self.known.get(layout) or self._make(layout)
                self.known[layout] = found
        return found

    @property
    def usual(self) -> Layout:
        """The layout that the first backward has most often.

        A loss, a tensor without dimensions, has a tangent, and results beside it have none; where
        there is no loss, all have tangents of the default layout.
        """
        losses = [is_scalar(p) for p in self.part.tangents]
        kept = losses if any(losses) else [True] * len(losses)
        return tuple(how if k else None for how, k in zip(self.default, kept, strict=True))

    @property
    def expected(self) -> bool:
        """True if a backward of the layout `usual` is to be expected: of a loss, or of a module."""
        sources = (call.source for call in self.functional.calls)
        return any(map(is_scalar, self.part.tangents)) or any(s and s.module_path for s in sources)

    def casts(self, layout: Layout, ambient: Context) -> bool:
        """Check that eager's backward for ``layout`` has other casts under the autocast of
        ``ambient``.

        Checked are the formulas before decomposition, and the calls of the program, recomputed ones
        included.
        """
        pullback = self[layout]
        if ambient not in pullback.under:
            with self.making():
                joint = self.joint(self.cut.shown(self.index, layout))
                calls = (*filter(is_backward, joint.calls), *pullback.calls)
                pullback.under[ambient] = casts(calls, ambient, self.expand)
        return pullback.under[ambient]

    @functools.cached_property
    def rerun(self) -> Rerun:
        """The program that returns the roots, for a gradient to be differentiated again."""
        trace = alone(self.functional, self.cut, self.index)
        return make_rerun(trace, self.depended, len(self.functional.inputs), self.reads)

    @functools.cached_property
    def again(self) -> Callable[..., Any]:
        """The rerun, compiled to run under PyTorch's autograd."""
        with self.making():
            program = self.compile_later(self.named("again"), self.rerun.trace).function
        # Under PyTorch's own hook, Dynamo must not capture this function.
        run: Callable[..., Any] = torch.compiler.disable(lambda *inputs: program(list(inputs)))
        return run

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Hold what compilation holds: a backward may run in any thread, and need a program."""
        with compiling(), self.within():
            yield

    def shares(self, part: Part) -> Shares | None:
        """Programs for some of the gradients of ``part``; None if it cannot be divided."""

        def compiled(name: str, trace: Trace) -> Boxed:
            return self.compile_later(self.named("backward") + f"_{name}", trace).function

        same = part.gradients.keys() == self.part.gradients.keys()
        return (
            Shares(part, self.rewrite, compiled, self.making) if same and divisible(part) else None
        )

    @property
    def part(self) -> Part:
        """The backward of the segment for the default layout."""
        return self.halves.parts[self.index]

    @property
    def outputs(self) -> tuple[TensorProxy, ...]:
        """Values that the segment returns to autograd."""
        return self.cut.outputs[self.index]

    def named(self, name: str) -> str:
        """``name`` with the segment's suffix."""
        return name + self.cut.name(self.index).removeprefix("backward")

    def _make(self, layout: Layout) -> Pullback:
        if layout == self.default:
            part = self.part
            program, takes = self._compiled(self.named("backward"), part)
            every = tuple(range(len(part.saved)))
            tangents: Any = part.tangents
            shares, calls = self.shares(part), part.backward.calls
            return Pullback(program, every, tangents, takes=takes, calls=calls, shares=shares)
        whole = self.cut.shown(self.index, layout)
        try:
            with own_pass("joint", strict=self.strict):
                joint = self.joint(whole)
        except PassError as error:
            warn_of(error)
            return self[self.default]
        found = self._other(layout, whole, joint) if len(self.known) < LIMIT else None
        return found or self._by_default(joint)

    def _by_default(self, joint: Trace) -> Pullback:
        """The default program, for the tangents of which ``joint`` was made.

        It gets copies of them, and zeros for missing ones. Gradients of these alone are None; the
        others are laid out as ``joint`` says, since eager's strides depend on the tangents'.
        """
        gradients = joint.outputs[1] if self.cut.whole else joint.outputs[1][self.index]
        pairs = enumerate(gradients) if self.cut.whole else gradients.items()
        laid_out = {key: p for key, p in pairs if p is not None and has_layout(p)}
        missing = self._missing(joint)
        return replace(self[self.default], missing=missing, shares=None, laid_out=laid_out)

    def _compiled(self, name: str, part: Part) -> tuple[Boxed, tuple[Proxy, ...]]:
        """Compile the backward of ``part``; return the program and
        the saved values that it takes.
        """
        made = self.compile_later(name, part.backward)
        again = draws_again(part.backward)
        return restoring(made.function) if again else made.function, made.inputs[: len(part.saved)]

    def _other(self, layout: Layout, whole: Layout, joint: Trace) -> Pullback | None:
        mine = {p.name: i for i, p in enumerate(self.part.saved)}
        try:
            with own_pass("split", strict=self.strict):
                made = self.split(joint, whole, frozenset(mine))
        except TagError:  # a value that it reads cannot be made from saved ones
            return None
        except PassError as error:
            warn_of(error)
            return None
        part = made.parts[self.index]
        before, now = _makers(self.halves), _makers(made)
        # The names of two joint traces may agree by chance: only the same call makes the same
        # value.
        if any(p.name not in mine or before.get(p.name) != now.get(p.name) for p in part.saved):
            return None
        program, takes = self._compiled(self.named("backward") + f"_{len(self.known)}", part)
        tangents = iter(part.tangents)
        expected = tuple(None if how is None else next(tangents) for how in layout)
        return Pullback(
            program,
            tuple(mine[p.name] for p in part.saved),
            expected,  # type: ignore[arg-type]
            self._missing(joint),
            takes,
            part.backward.calls,
            shares=self.shares(part),
        )

    def _missing(self, joint: Trace) -> frozenset[Key]:
        """Keys of the gradients that ``joint`` does not have."""
        _, gradients = joint.outputs
        if self.cut.whole:
            return frozenset(i for i, gradient in enumerate(gradients) if gradient is None)
        return frozenset(self.part.gradients.keys() - gradients[self.index].keys())


def is_scalar(p: Proxy) -> bool:
    """Check that ``p`` is a tensor without dimensions."""
    return isinstance(p, TensorProxy) and not p.shape


def _makers(halves: Halves) -> dict[str, BoundSymbol]:
    """Map the names of the forward's values to their calls."""
    return {p.name: call for call in halves.forward.calls for p in call.flat_outs}
