"""Comparison of two callables by the figures of what they return, as for programs that round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tj_core.errors import TjError
from tj_core.host.jitted import Jitted
from tj_core.host.session import current_session
from tj_core.looking.explanation import explain_compilation
from tj_core.showing import aligned, table_html, text_html

__all__ = ["DIFFERENCES", "Comparison", "Difference", "Figures", "compare"]

DIFFERENCES = "differences"
"""The name of the rule table that measures: from two values of a class, the key, to `Figures`."""

HEADER = ("output", "largest error", "mean error", "relative", "cosine", "SNR in dB")


class Figures(NamedTuple):
    """Figures of the differences between two arrays of one shape, computed in float64.

    ``largest`` and ``mean`` are of the absolute values of the differences; ``relative`` is the norm
    of the differences by that of the reference; ``cosine`` the cosine of the angle between both.
    """

    largest: float
    mean: float
    relative: float
    cosine: float

    @property
    def snr(self) -> float:
        """Ratio of signal to noise, in decibels: the reference by the differences."""
        if self.relative == 0:
            return math.inf
        return -20 * math.log10(self.relative) if math.isfinite(self.relative) else -self.relative


class Difference(NamedTuple):
    """An output, by its place among the results, and the figures of its differences."""

    output: str
    figures: Figures


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Differences of what two callables return; `str` is a table.

    ``remarks`` say which transforms declined the first callable's program.
    """

    outputs: tuple[Difference, ...]
    remarks: tuple[str, ...] = ()

    @property
    def worst(self) -> Difference:
        """The output with the largest relative error; one that is not finite counts as larger.

        :raises ValueError: if nothing was compared.
        """
        return max(self.outputs, key=lambda d: (not _finite(d), d.figures.relative))

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The table's rows; `HEADER` names the columns."""
        for name, figures in self.outputs:
            yield name, *(f"{value:.3g}" for value in figures[:3]), *_ratios(figures)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what is not finite is a text."""
        names = ("largest", "mean", "relative", "cosine", "snr")
        return {
            "outputs": [
                {"output": output, **dict(zip(names, map(_plain, (*f, f.snr)), strict=True))}
                for output, f in self.outputs
            ],
            "remarks": list(self.remarks),
        }

    def __str__(self) -> str:
        return "\n".join([*aligned([HEADER, *self.rows()]), *self.remarks])

    def __repr__(self) -> str:
        return f"<tj comparison: {len(self.outputs)} outputs>"

    def _repr_html_(self) -> str:
        return table_html(HEADER, self.rows()) + "".join(map(text_html, self.remarks))


def compare(
    f: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Sequence[Any] = (),
    /,
    *,
    keywords: Mapping[str, Any] | None = None,
) -> Comparison:
    """Call ``f`` and ``reference`` with the same arguments, and measure how results differ.

    Results may be trees of tuples, lists, dicts and dataclasses. The mode of gradients is the
    caller's. Neither callable may write to the arguments.

    :param inputs: the positional arguments, as for `export`; ``keywords`` are the others.
    :raises TjError: if results differ in structure, shapes, or values that are no arrays.
    """
    given = dict(keywords or {})
    got, expected = f(*inputs, **given), reference(*inputs, **given)
    state = getattr(f, "__tj__", None)
    session: Any = state.session if isinstance(state, Jitted) else current_session()
    rules = session.tables.get(DIFFERENCES)
    measures = {rule.key: rule.value for rule in rules} if rules is not None else {}
    outputs = tuple(_differences("", got, expected, measures))
    return Comparison(outputs, tuple(_remarks(state)))


def _remarks(state: object) -> Iterator[str]:
    entry = state.last if isinstance(state, Jitted) else None
    if entry is not None and entry.compilation is not None:
        yield from explain_compilation(entry.compilation).remarks()


def _differences(
    name: str, got: Any, expected: Any, measures: Mapping[str, Callable[..., Figures]]
) -> Iterator[Difference]:
    """Yield the differences of the arrays in two results, which are at ``name``."""
    parts, others = _parts(got), _parts(expected)
    if parts is not None and others is not None:
        if parts.keys() != others.keys():
            raise TjError(f"{_at(name)} differs in structure: {[*parts]} and {[*others]}")
        for key, part in parts.items():
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(inner, part, others[key], measures)
        return
    measure = _measure(got, measures) if _measure(expected, measures) is not None else None
    if measure is not None:
        if tuple(got.shape) != tuple(expected.shape):
            shapes = f"{tuple(got.shape)} and {tuple(expected.shape)}"
            raise TjError(f"{_at(name)} differs in shape: {shapes}")
        yield Difference(name or "result", measure(got, expected))
    elif type(got) is not type(expected) or got != expected:
        raise TjError(f"{_at(name)} differs: {got!r} and {expected!r}")


def _parts(value: Any) -> dict[Any, Any] | None:
    """The parts of a value by their places in it; None for a leaf."""
    if isinstance(value, Mapping):
        return dict(value)
    names = getattr(value, "_fields", None)  # of a named tuple
    if isinstance(value, tuple) and names is not None:
        return dict(zip(names, value, strict=True))
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _measure(
    value: Any, measures: Mapping[str, Callable[..., Figures]]
) -> Callable[..., Figures] | None:
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(value).__mro__)
    return next((measures[name] for name in names if name in measures), None)


def _at(name: str) -> str:
    return f"output {name}" if name else "the result"


def _finite(difference: Difference) -> bool:
    return math.isfinite(difference.figures.relative)


def _ratios(figures: Figures) -> tuple[str, str]:
    return f"{figures.cosine:.6f}", f"{figures.snr:.1f}"


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
