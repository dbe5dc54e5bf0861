"""Several arguments: one tensor twice, views of one base, patterns that change between calls."""

from __future__ import annotations

import functools
import itertools

import pytest
import tj_core as tj
import torch
from tj_conformance.programs.aliasing import Report, check, stateless
from tj_conformance.programs.cases import Table, run_case
from tj_conformance.programs.scenes import (
    KINDS,
    base_and_row,
    columns,
    halves,
    one,
    overlapping,
    pair,
    placed,
    rows,
    same,
    storage_only,
    viewed,
)
from tj_conformance.programs.tracer import traced

pytestmark = pytest.mark.sampled(16)

case = Table()
LEAF = ("leaf",)
GRAD = ("leaf", "inner")


# --------------------------------------------------------------------------- layouts


def offset_zero_twice(new):
    """Two views of one base at the same offset, of different shapes."""
    base = new(6)
    return new.scene(base.view(2, 3), base[:3], watched=(base,))


def base_second(new):
    x = new(2, 3)
    return new.scene(x[1:], x.view(-1)[:3], watched=(x,))


def other_type(new):
    """Two views of the same memory, of different data types."""
    x = new(2, 3)
    return new.scene(x, x.detach().view(torch.int32)[0], watched=(x,))


def detached_copy_of_name(new):
    x = new(2, 3)
    return new.scene(x, x.detach()[0], watched=(x,))


def reversed_groups(new):
    """Two groups with None and numbers between them, bases out of order."""
    a, b = new(2, 3), new(6)
    return new.scene(b[:3], None, a, 2, b[1:4], a[1], watched=(b,))


def three_of_one(new):
    base = new(9)
    return new.scene(base[1:7].view(2, 3), base[4:7], base[2:5], watched=(base,))


def three_apart(new):
    return new.scene(new(2, 3), new(3), new(3))


def same_three(new):
    x = new(2, 3)
    y = new(3)
    return new.scene(x, y, y)


def parameters_and_view(new):
    """Leaves that share memory, like tied weights."""
    x = new(2, 3)
    return new.scene(x, torch.nn.Parameter(x.detach()[1]), watched=(x,))


ALIASED = (same, overlapping, base_and_row, rows, storage_only, offset_zero_twice, base_second)
APART = (pair, halves, columns)


# --------------------------------------------------------------------------- duplicates


@case("D1", "T:dedupe", layouts=(same,))
def same_read(x, y):
    return x * y, x


@case("D2", "T:dedupe", layouts=(same,), raises=LEAF)
def same_written(x, y):
    x.mul_(2)
    return x + y


@case("D2", "D4", layouts=(same,), raises=LEAF)
def same_written_and_returned(x, y):
    x.mul_(2)
    return y, x, x.view(-1)


@case("D2", layouts=(same,), raises=LEAF)
def same_both_written(x, y):
    x.mul_(2)
    y.add_(1)
    return x * y


@case("D2", layouts=(same,))
def same_written_in_hiding(x, y):
    with torch.no_grad():
        x.mul_(2)
    return x * y, y.detach()


@case("D2", "D4", layouts=(same_three,), raises=LEAF)
def second_and_third_are_one(x, y, z):
    x.add_(z)
    z.mul_(2)
    return y, x * y


@case("D3", "T:dedupe", layouts=(same,), breaks=True, raises=LEAF)
def metadata_of_both_names(x, y):
    x.t_()
    y.unsqueeze_(0)
    return x + 1, y


@case("D3", layouts=(same,), breaks=True, raises=LEAF)
def metadata_that_cancels(x, y):
    x.t_()
    u = x * 1
    y.t_()
    return u, y * 1


@case("D3", layouts=(same,), breaks=True, raises=LEAF)
def data_by_one_name_metadata_by_other(x, y):
    x.mul_(2)
    y.t_()
    return x, y + 1


# --------------------------------------------------------------------------- shared storage


@case("S1", "S2", "S3", "S8", "T:synthetic base", layouts=ALIASED, raises=LEAF)
def first_written(x, y):
    x.add_(1)
    return x * y.sum(), y


@case("S1", "S2", "S3", layouts=ALIASED, raises=LEAF)
def second_written(x, y):
    y.mul_(2)
    return x * 2, x.view(-1)


@case("S1", "S3", layouts=(*ALIASED, viewed), raises=LEAF)
def both_written(x, y):
    x.mul_(2)
    y.add_(1)
    x.add_(y.sum())
    return y, x


@case("S1", "S2", "S3", layouts=(*ALIASED, viewed))
def first_written_in_hiding(x, y):
    before = y * 2
    with torch.no_grad():
        x.add_(1)
    return before, x.sum() * y


@case("S1", "S2", layouts=ALIASED)
def second_written_through_detach(x, y):
    y.detach().mul_(2)
    return x * 2, y


@case("S3", layouts=(storage_only, detached_copy_of_name))
def data_of_first_written(x, y):
    x.data.add_(1)
    return x * 2, y


@case("S3", layouts=(detached_copy_of_name,), raises=LEAF)
def a_value_saved_before_is_stale(x, y):
    """Only the shared version counter shows it to the backward."""
    z = x * x
    y.mul_(2)
    x.mul_(1)
    return z


@case("S3", layouts=(detached_copy_of_name,))
def saved_value_written_by_its_detached_name(x, y):
    z = x * x
    y.mul_(2)
    return z


@case("S1", "S8", "T:synthetic base", layouts=ALIASED, raises=LEAF)
def outputs_view_what_was_written(x, y):
    y.add_(1)
    return x.view(-1), y[1:], y, x[0]


@case("S1", "T:synthetic base", layouts=(overlapping, rows), raises=LEAF)
def offset_is_kept(x, y):
    """Regression case of PyTorch issue 198095: a view of a view was rebuilt without its offset."""
    x.add_(100)
    return y[0], y[1:], x[1]


@case("S5", "T:synthetic base", layouts=APART, raises=LEAF)
def apart_and_written(x, y):
    x.mul_(2)
    y.add_(1)
    return x * y.sum(), y


@case("S7", layouts=(*ALIASED, *APART))
def nothing_is_written(x, y):
    return x.view(-1) if x.is_contiguous() else x.t(), y[1:], x * 2, y


@case("S9", "T:synthetic base", layouts=(reversed_groups,), raises=LEAF)
def several_groups(b1, nothing, a, n, b2, row):
    b2.add_(n)
    a.mul_(2)
    return nothing, row, b1 * 1, n, a, b1[1:]


@case("S9", layouts=(three_of_one, three_apart), raises=LEAF)
def one_of_three_written(x, y, z):
    z.mul_(2)
    return x + y, z, y.view(3, 1), x


@case("S1", layouts=(parameters_and_view,))
def tied_weights(x, w):
    with torch.no_grad():
        w.add_(1)
    return x * w


@case("S1", layouts=(other_type,), kinds=("plain",))
def one_memory_as_two_types(x, y):
    x.mul_(2)
    return y + 1, y


@case("S1", layouts=(other_type,), kinds=("plain",))
def written_as_the_other_type(x, y):
    y.zero_()
    return x * 2


@case("S1", "S2", layouts=ALIASED, raises=LEAF)
def intermediates_beside_aliases(z, x):
    """Finding 1 of the reference: outputs swapped where arguments got a synthetic base."""
    y = x + 1
    x.mul_(2)
    t, u = z.sum() + x, z.sum() * x
    return t.view(-1), t.unsqueeze(0), u.view(-1), u.unsqueeze(0), y


# --------------------------------------------------------------------------- one data, one metadata


def torture(order, extra):
    """PyTorch PR 96235: data of one argument, metadata of the other, and a third view returned."""

    def program(x, y):
        for step in order:
            if step == "data of x":
                x.mul_(2)
            elif step == "metadata of y":
                y.unsqueeze_(0)
            elif step == "metadata of x":
                x.transpose_(0, 1)
            elif step == "data of y":
                y.add_(1)
        found = [x * 2, y + 1]
        if "view of x" in extra:
            found.append(x.reshape(-1)[1:])
        if "view of y" in extra:
            found.append(y.view(-1))
        if "arguments" in extra:
            found += [x, y]
        return found

    return program


OTHER_CALLS = {"lenient": True, "ignore": ("grad_fn",)}
STEPS = (("data of x", "metadata of y"), ("metadata of x", "data of y"))
ORDERS = [
    *(order for steps in STEPS for order in itertools.permutations(steps)),
    ("data of x", "metadata of y", "data of y", "metadata of x"),
    ("metadata of x", "data of x", "metadata of y", "data of y"),
]
EXTRA = [(), ("view of x",), ("view of y", "arguments")]


def functional(through=lambda fn: fn, **options):
    """Way of jitting in functional form; only FX captures metadata changes of arguments."""
    session = functools.cache(
        lambda: tj.Session(["torch"], overrides={"torch": {"functional": "always"}})
    )
    return lambda fn: tj.jit(through(fn), session=session(), **options)


MODES = {
    "as acquired": (tj.jit, {}),
    "functional": (functional(), OTHER_CALLS),
    "functional, fx": (functional(traced, frontend="fx"), OTHER_CALLS),
}
"""Ways of compiling, with allowed differences: autograd sees other calls than the user's."""


def tortured(order, extra, kind, jit, options) -> Report:
    program = stateless(torture(order, extra))
    layouts = (overlapping, base_and_row) if extra else (overlapping, same, pair)
    return check(program, [placed(layout, kind) for layout in layouts], jit=jit, **options)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["plain", "inner"])
@pytest.mark.parametrize("extra", EXTRA, ids="+".join)
@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_the_torture_of_the_seed_issue(order, extra, kind, mode) -> None:
    report = tortured(order, extra, kind, *MODES[mode])
    assert report.ok, str(report)


@case("S4", "S6", layouts=(overlapping, same, base_and_row), breaks=True, raises=LEAF)
def data_of_one_metadata_of_other(x, y):
    x.mul_(2)
    y.unsqueeze_(0)
    return x.view(-1), y, x + 1


@case("S6", layouts=(overlapping, storage_only), breaks=True, raises=LEAF)
def only_metadata(x, y):
    x.t_()
    y.unsqueeze_(1)
    return x * 2, y.view(-1)


# --------------------------------------------------------------------------- changing patterns


def writes(x, y):
    x.mul_(2)
    return x * y.sum(), y.view(-1)


def writes_in_hiding(x, y):
    before = x * y.sum()
    with torch.no_grad():
        y.add_(1)
    return before, x * 3


def reads(x, y):
    return x * y.sum(), x, y[:1]


def square_pair(new):
    return new.scene(new(3, 3), new(3, 3))


SQUARE = (square_pair, same, square_pair, same)
RECTANGLE = (pair, overlapping, halves, rows, pair, storage_only, overlapping, pair)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["plain", "inner"])
@pytest.mark.parametrize("layouts", [SQUARE, SQUARE[1:], RECTANGLE, RECTANGLE[1:]])
@pytest.mark.parametrize("program", [writes, writes_in_hiding, reads])
def test_s10_arguments_are_apart_and_later_together(program, layouts, kind, mode) -> None:
    jit, options = MODES[mode]
    scenes = [placed(layout, kind) for layout in layouts]
    report = check(stateless(program), scenes, jit=jit, **options)
    assert report.ok, str(report)
    assert report.fallbacks == ()
    assert report.entries <= len({*layouts}), "one entry per pattern at most"


def test_s10_a_known_pattern_is_a_hit() -> None:
    f = tj.jit(writes)
    for layout in (*SQUARE, *SQUARE):
        f(*placed(layout, "inner")().args)
    stats = tj.stats(f)
    assert (stats.misses, stats.hits) == (2, len(SQUARE) * 2 - 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [same, overlapping, base_and_row, storage_only, one])
def test_s10_nothing_is_written_and_nothing_recompiles(layout, kind) -> None:
    def program(x, y=None):
        return x * 2, (x if y is None else y).sum()

    report = check(stateless(program), [placed(layout, kind)] * 3)
    assert report.ok, str(report)
    assert (report.entries, report.fallbacks) == (1, ())


@pytest.mark.parametrize(**case.parameters())
def test_several(case, kind) -> None:
    run_case(case, kind)
