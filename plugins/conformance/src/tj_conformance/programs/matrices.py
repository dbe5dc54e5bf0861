"""Made-up functions of two square matrices, as lines of Python; a hypothesis strategy makes them.

Each value is a matrix of the same size, so that any call may follow any other: calls with one and
with several results, views, draws, writes into values and into views, lines without gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

__all__ = ["CALLS", "Body", "bodies", "call"]

Draw = Callable[[Any], Any]

_F = "torch.nn.functional."

CALLS = (
    "{a} * {b}",
    "{a} + {b}",
    "{a} - {b} * 0.5",
    "{a} @ {b} * 0.3",
    "({a} @ {b}.t()) @ {a} * 0.1",
    "torch.tanh({a})",
    "torch.sin({a} * {b})",
    "torch.relu({a})",
    "torch.where({a} > 0, {a}, {b})",
    "({a} * 0.2).exp()",
    "{a} / (1 + {b}.abs())",
    "torch.atan2({a}, {b})",
    "torch.maximum({a}, {b})",
    "torch.softmax({a}, -1)",
    "torch.softmax({a}, 0)",
    "torch.log_softmax({a}, 1)",
    "torch.logsumexp({a}, -1, keepdim=True) * {a}",
    _F + "layer_norm({a}, ({n},))",
    "torch.rms_norm({a}, ({n},))",
    _F + "normalize({a}, dim=-1)",
    _F + "linear({a}, {b}, {b}[0])",
    _F + "gelu({a})",
    _F + "silu({a}) * {b}",
    _F + "scaled_dot_product_attention({a}[None], {b}[None], {a}[None])[0]",
    _F + "cross_entropy({a}, torch.arange({n})) * {b}",
    _F + "dropout({a}, 0.5, True)",
    "torch.rand_like({a}) * {a}",
    "torch.einsum('ij,kj->ik', {a}, {b}) * 0.2",
    "{a} * {b}.sum()",
    "{a} - {b}.mean(0)",
    "{a}.mean() + {b}",
    "{a}.sum(-1, keepdim=True) * {b}",
    "{a}.amax(-1, keepdim=True) + {b}",
    "{a}.norm(dim=1, keepdim=True) * {b}",
    "{a}.std(-1, keepdim=True) + {b}",
    "{a}.var(0) + {a}",
    "{a}.t() * 1",
    "{a}[torch.arange({n}).flip(0)]",
    "{a}.index_select(1, torch.arange({n}) % 2)",
    "{a}.gather(1, {b}.argsort(1))",
    "{a}.scatter_add(0, torch.zeros({n}, {n}, dtype=torch.int64), {b})",
    "{a}.masked_fill({b} > 0.5, 0.25)",
    "{a}.detach() * {b}",
    "{a}.pow(3)",
    "{a}.abs().sqrt()",
    "{a}.sigmoid() * 2",
    "({a} ** 2).cumsum(0) * 0.1",
    "{a}.sort(-1).values",
    "{a}.max(1).values[:, None] * {b}",
    "{a}.clamp(-1, 0.5)",
    "{a}.flip(0)",
    "{a}.roll(1, 1)",
    "{a}.clone()",
    "{a}.to(torch.bfloat16).to({a}.dtype)",
    "torch.cat([{a}, {b}])[1 : {n} + 1]",
    "torch.stack([{a}, {b}]).mean(0)",
    "torch.outer({a}[0], {b}[:, 1])",
    "torch.tril({a}) + {b}",
    "{a}.diagonal()[None] + {b}",
    "{a}.view(-1).view({n}, {n})",
    "{a}.reshape({n}, {n})",
    "{a}.contiguous()",
    "{a}.expand({n}, {n})",
    "{a}.t()",
    "{a}.unfold(0, {n}, 1)[0].t()",
)
"""Calls that make a matrix of ``{n}`` by ``{n}`` from two of them; ``{n}`` is more than two."""

_PAIRS = (
    ("{v}, {w} = torch.var_mean({a}, 1, keepdim=True)", "{v} = {v} + {b}", "{w} = {w} * {b}"),
    ("{v}, {w} = {a}.max(0)", "{v} = {v} + {b}", "{w} = {w} * {a}"),
    ("{v}, {w} = torch.sort({a}, 1)", "{w} = {b}.gather(1, {w})"),
    ("{v}, {w} = torch.topk({a}, {n}, 1)", "{w} = {w} * {b}"),
    ("{v}, {w} = {a}.split([1, {n} - 1])", "{v} = torch.cat([{w}, {v}])", "{w} = {v} * 2"),
    ("{v}, {w} = torch.stack([{a}, {b}]).unbind(0)",),
)
"""Calls with two results, and lines that make matrices of these."""

_WRITES = (
    "{a}.mul_(1.5)",
    "{a}.mul_({b})",
    "{a}.add_({b})",
    "{a}.sub_({b}.detach())",
    "{a}.clamp_(-1, 1)",
    "{a}[0] = {b}[1]",
    "{a}[:, 1].zero_()",
    "{a}.t().mul_({b})",
)


@dataclass(frozen=True, slots=True)
class Body:
    """Lines of a function of ``a`` and ``b``, and the names of what it returns."""

    lines: tuple[str, ...]
    returned: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([*self.lines, f"return {', '.join(self.returned)},"])


def call(draw: Draw, names: Sequence[str], size: str, calls: Sequence[str] = CALLS) -> str:
    """Choose one of ``calls``, of two values of which the last ones are likelier."""
    return str(draw(st.sampled_from(calls))).format(
        a=_one(draw, names), b=_one(draw, names), n=size
    )


def _one(draw: Draw, names: Sequence[str]) -> str:
    return str(draw(st.sampled_from(names[-3:]) | st.sampled_from(names)))


@st.composite
def bodies(
    draw: Draw,
    size: str,
    *,
    lines: tuple[int, int] = (2, 6),
    more: Sequence[str] = (),
    written: Sequence[str] = (),
) -> Body:
    """Bodies of so many statements, from the first to the second number of ``lines``.

    ``size`` is an expression for that of the matrices, ``more`` are further calls, and ``written``
    are the arguments that a body may write.
    """
    maker = _Maker(draw, size, (*more, *CALLS), written)
    for _ in range(draw(st.integers(*lines))):
        maker.statement()
    return Body(tuple(maker.lines), maker.returned())


class _Maker:
    """A body in the making: its lines, and the names of its values."""

    def __init__(self, draw: Draw, size: str, calls: Sequence[str], written: Sequence[str]) -> None:
        self.draw, self.size, self.written = draw, size, written
        # A few calls only, so that two are alike now and then.
        few = st.lists(st.sampled_from(calls), min_size=4, max_size=12)
        self.calls = draw(few) if draw(st.integers(0, 2)) else calls
        self.lines: list[str] = []
        self.names = ["a", "b"]
        self.earlier: list[str] = []

    def fresh(self) -> str:
        """The name of a new value."""
        self.names.append(f"v{len(self.names) - 2}")
        return self.names[-1]

    def statement(self) -> None:
        """Add a call, or now and then a pair of results or a write."""
        kind = self.draw(st.integers(0, 9))
        if kind == 9:
            self.pair()
        elif kind in {7, 8} and len(self.names) > 2:
            self.write()
        else:
            self.value()

    def value(self) -> None:
        # One call in six is an earlier one again, which may become one call with it.
        again = self.earlier and self.draw(st.integers(0, 5)) == 5
        made = (
            self.draw(st.sampled_from(self.earlier))
            if again
            else call(self.draw, self.names, self.size, self.calls)
        )
        self.earlier.append(made)
        # One call in eight is made without gradients: a view of a tensor that needs one does, too.
        before = "with torch.no_grad(): " if self.draw(st.integers(0, 7)) == 7 else ""
        self.lines.append(f"{before}{self.fresh()} = {made}")

    def pair(self) -> None:
        a, b = _one(self.draw, self.names), _one(self.draw, self.names)
        v, w = self.fresh(), self.fresh()
        for line in self.draw(st.sampled_from(_PAIRS)):
            self.lines.append(line.format(v=v, w=w, a=a, b=b, n=self.size))

    def write(self) -> None:
        target = self.draw(st.sampled_from([*self.names[2:], *self.written]))
        line = self.draw(st.sampled_from(_WRITES))
        if target not in self.written and self.draw(st.booleans()):
            self.lines.append(f"{target} = {target}.clone()")
        self.lines.append(line.format(a=target, b=_one(self.draw, self.names)))

    def returned(self) -> tuple[str, ...]:
        """One to three values, of which one in ten is an argument."""
        made = self.names[2:] or self.names
        found = self.draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
        given = self.draw(st.sampled_from("ab")) if self.draw(st.integers(0, 9)) == 9 else None
        return (*found, given) if given else tuple(found)
