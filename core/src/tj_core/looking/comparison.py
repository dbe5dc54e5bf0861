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

__all__ = ["DIFFERENCES", "LAYERS", "Comparison", "Difference", "Figures", "Observed", "compare"]

DIFFERENCES = "differences"
"""The name of the rule table that measures: from two values of a class, the key, to `Figures`."""

LAYERS = "layers"
"""The name of the rule table whose rule ``observe`` calls a program, and returns `Observed`."""

HEADER = ("output", "largest error", "mean error", "relative", "cosine", "SNR in dB")


Row = tuple[str, ...]
"""The cells of a row of a table."""


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


class Observed(NamedTuple):
    """The result of a call, and the arrays that its layers returned, by name, in their order."""

    result: Any
    layers: dict[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Differences of what two callables return; `str` is a table.

    ``layers`` are those of the layers' outputs, in the order in which the reference has run them.
    ``remarks`` say which transforms declined the first callable's program.
    """

    outputs: tuple[Difference, ...]
    remarks: tuple[str, ...] = ()
    layers: tuple[Difference, ...] = ()

    @property
    def worst(self) -> Difference:
        """The output with the largest relative error; one that is not finite counts as larger.

        :raises ValueError: if nothing was compared.
        """
        return max(self.outputs, key=lambda d: (not _finite(d), d.figures.relative))

    def first(self, above: float = 0.0) -> Difference | None:
        """The first layer with a relative error ``above`` that, or a NaN; None if there is none."""
        return next((d for d in self.layers if not d.figures.relative <= above), None)

    def tables(self) -> list[tuple[Row, list[Row]]]:
        """The header and rows of each table: the outputs, and the layers if they were observed."""
        found: list[tuple[Row, list[Row]]] = [(HEADER, [*map(_row, self.outputs)])]
        if self.layers:
            found.append((("layer", *HEADER[1:]), [*map(_row, self.layers)]))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what is not finite is a text."""
        first = self.first()
        return {
            "outputs": [_data("output", difference) for difference in self.outputs],
            "layers": [_data("layer", difference) for difference in self.layers],
            "first": first.output if first is not None else None,
            "remarks": list(self.remarks),
        }

    def __str__(self) -> str:
        tables = (aligned([header, *rows]) for header, rows in self.tables())
        text = "\n\n".join("\n".join(lines) for lines in tables)
        return "\n".join([text, *self.remarks])

    def __repr__(self) -> str:
        layers = f", {len(self.layers)} of layers" if self.layers else ""
        return f"<tj comparison: {len(self.outputs)} outputs{layers}>"

    def _repr_html_(self) -> str:
        tables = "".join(table_html(*table) for table in self.tables())
        return tables + "".join(map(text_html, self.remarks))


def compare(
    f: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Sequence[Any] = (),
    /,
    *,
    keywords: Mapping[str, Any] | None = None,
    layers: bool = False,
) -> Comparison:
    """Call ``f`` and ``reference`` with the same arguments, and measure how results differ.

    Results may be trees of tuples, lists, dicts and dataclasses. The mode of gradients is the
    caller's. Neither callable may write to the arguments.

    :param inputs: the positional arguments, as for `export`; ``keywords`` are the others.
    :param layers: call both once more, and measure what each of their layers returns, too: the
        submodules, of modules or of those that a function finds. Their names have to agree.
    :raises TjError: if results differ in structure, shapes, or values that are no arrays; with
        ``layers``, if layers do.
    """
    given = dict(keywords or {})
    got, expected = f(*inputs, **given), reference(*inputs, **given)
    state = getattr(f, "__tj__", None)
    session: Any = state.session if isinstance(state, Jitted) else current_session()
    rules = session.tables.get(DIFFERENCES)
    measures = {rule.key: rule.value for rule in rules} if rules is not None else {}
    outputs = tuple(_differences("", got, expected, measures))
    remarks = tuple(_remarks(state))
    if not layers:
        return Comparison(outputs, remarks)
    observe = _observer(session)
    mine, theirs = (observe(each, inputs, given) for each in (f, reference))
    again = Comparison(tuple(_differences("", mine.result, got, measures)))
    if again.outputs and (relative := again.worst.figures.relative):
        remarks += (f"with its layers observed, the result differs by {relative:.3g}",)
    return Comparison(outputs, remarks, tuple(_of_layers(mine.layers, theirs.layers, measures)))


def _observer(session: Any) -> Callable[..., Observed]:
    """The function that calls a program and observes its layers.

    :raises TjError: if there is none.
    """
    rules = {rule.key: rule.value for rule in session.tables.get(LAYERS, ())}
    if "observe" not in rules:
        raise TjError("no plugin that is loaded observes layers", hint="tj-torch does")
    found: Callable[..., Observed] = rules["observe"]
    return found


def _of_layers(
    got: Mapping[str, Any],
    expected: Mapping[str, Any],
    measures: Mapping[str, Callable[..., Figures]],
) -> Iterator[Difference]:
    """Yield the differences of the outputs of layers, by name, in the order of ``expected``."""
    if not got and not expected:
        raise TjError("neither callable has called a layer", hint=LAYERED)
    sides = ("the first", got.keys() - expected.keys()), ("the reference", expected.keys() - got)
    only = [f"only {side} has {', '.join(sorted(names)[:MOST])}" for side, names in sides if names]
    if only:
        raise TjError(f"layers differ in structure: {'; '.join(only)}", hint=LAYERED)
    for name, value in expected.items():
        yield from _differences(name, got[name], value, measures, "layer")


MOST = 5
"""Number of layers that an error names."""

LAYERED = (
    "layers are the submodules that are called, by their paths, of a module, or of those that a "
    "function finds in its closure, its globals and its arguments"
)


def _remarks(state: object) -> Iterator[str]:
    entry = state.last if isinstance(state, Jitted) else None
    if entry is not None and entry.compilation is not None:
        yield from explain_compilation(entry.compilation).remarks()


def _differences(
    name: str,
    got: Any,
    expected: Any,
    measures: Mapping[str, Callable[..., Figures]],
    what: str = "output",
) -> Iterator[Difference]:
    """Yield the differences of the arrays in two results, which are at ``name``."""
    parts, others = _parts(got), _parts(expected)
    if parts is not None and others is not None:
        if parts.keys() != others.keys():
            raise TjError(f"{_at(name, what)} differs in structure: {[*parts]} and {[*others]}")
        for key, part in parts.items():
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(inner, part, others[key], measures, what)
        return
    measure = _measure(got, measures) if _measure(expected, measures) is not None else None
    if measure is not None:
        if tuple(got.shape) != tuple(expected.shape):
            shapes = f"{tuple(got.shape)} and {tuple(expected.shape)}"
            raise TjError(f"{_at(name, what)} differs in shape: {shapes}")
        yield Difference(name or "result", measure(got, expected))
    elif type(got) is not type(expected) or got != expected:
        raise TjError(f"{_at(name, what)} differs: {got!r} and {expected!r}")


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


def _at(name: str, what: str) -> str:
    return f"{what} {name}" if name else "the result"


def _finite(difference: Difference) -> bool:
    return math.isfinite(difference.figures.relative)


def _row(difference: Difference) -> Row:
    """The cells under `HEADER`."""
    name, figures = difference
    cells = (f"{value:.3g}" for value in figures[:3])
    return name, *cells, f"{figures.cosine:.6f}", f"{figures.snr:.1f}"


def _data(what: str, difference: Difference) -> dict[str, Any]:
    names = ("largest", "mean", "relative", "cosine", "snr")
    name, figures = difference
    values = map(_plain, (*figures, figures.snr))
    return {what: name, **dict(zip(names, values, strict=True))}


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
