"""Programs that other compilers get wrong and tj does not: the table of `docs/scoreboard.md`.

tj's column is measured in every run. ``TJ_FULL=1`` also measures torch.compile, on the spot, and
compares with the table; ``python test_scoreboard.py`` writes the table anew. ``-rP`` prints it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import tj_core as tj
import torch
from tj_torch.conformance.aliasing import Program, check
from tj_torch.conformance.cases import Table
from tj_torch.conformance.scenes import (
    base_and_row,
    one,
    overlapping,
    pair,
    placed,
    rows,
    same,
    storage_only,
    viewed,
)
from tj_torch.conformance.world import FACTS, RELATIONS

PAGE = Path(__file__).resolve().parents[4] / "docs" / "scoreboard.md"
FULL = os.environ.get("TJ_FULL") == "1"
case = Table()
WHERE: dict[str, str] = {}


def known(where, *, kind="plain", **facts):
    """A program on the board; ``where`` says who reported it."""

    def add(fn):
        WHERE[fn.__name__] = where
        return case(kinds=(kind,), breaks=(), **facts)(fn)

    return add


def known_stateful(where, *, kind="plain", **facts):
    def add(make):
        WHERE[make.__name__] = where
        return case.stateful(kinds=(kind,), breaks=(), **facts)(make)

    return add


OURS = "found here"


# --------------------------------------------------------------------------- layouts


def around(new):
    """A tensor, then two views of another one's base."""
    base = new(2, 2)
    b = new(2, 2)
    return new.scene(b, base.view(2, 2), base.view(-1).view(2, 2), watched=(base,))


def double_0d(new):
    return new.scene(new(dtype=torch.float64))


def vector(new):
    return new.scene(new(5))


def detached_alias(new):
    x = new(2, 3)
    return new.scene(x, x.detach())


def square_twice(new):
    x = new(2, 2)
    return new.scene(x, x, new(2, 2))


# --------------------------------------------------------------------------- programs


@known("AOTAutograd, synthetic base", kind="inner", layouts=(around,))
def outputs_are_swapped(b, a, c):
    z = b + 1
    c.mul_(2)
    t, u = a + c, a * c
    return t.view(-1), t.unsqueeze(0), u.view(-1), u.unsqueeze(0), z


@known("AOTAutograd, synthetic base", kind="inner", layouts=(around,))
def one_intermediate_with_two_views(b, a, c):
    z = b + 1
    c.mul_(2)
    t = a + c
    return t.view(-1), t.unsqueeze(0), z


@known("AOTAutograd, dedupe", kind="inner", layouts=(square_twice,))
def duplicate_and_view_of_output(a, b, c):
    a.t_()
    z = c * 2
    return z, z.view(-1), a + b


@known("PyTorch issue 198095", layouts=(rows, overlapping))
def offset_of_a_view_is_lost(x, y):
    x.add_(100)
    return y[0]


@known("PyTorch issue 198095", layouts=(vector,))
def offset_of_a_slice_is_lost(x):
    t = x[1:]
    x.add_(100)
    return t[0]


@known("AOTAutograd, dedupe", layouts=(same,))
def cancelling_metadata(x, y):
    x.t_()
    u = x * 1
    y.t_()
    return u, y * 1


@known("AOTAutograd, dedupe", kind="leaf", layouts=(same, same))
def grad_mode_beside_duplicates(x, y):
    z = x * y
    x.detach().mul_(2)
    torch.set_grad_enabled(False)
    return z


@known("aot_function: no error", kind="leaf", raises=("leaf",))
def write_to_a_leaf(x, y):
    x.mul_(2)
    return x * 3


@known("AOTAutograd, versions")
def data_has_its_own_version(x, y):
    x.data.mul_(2)
    return x + y


@known("AOTAutograd, versions")
def one_write_is_one_version(x, y):
    x.mul_(2)
    return x + y


@known("AOTAutograd, not replayed", kind="inner")
def detached_argument(x, y):
    x.detach_()
    return x * y


@known("AOTAutograd, not replayed")
def argument_needs_a_gradient(x, y):
    x.requires_grad_()
    return x * y


@known("PyTorch issue 139789", layouts=(pair, overlapping))
def compiled_apart_called_overlapping(x, y):
    x.add_(1)
    return x * y.sum(), y * 1


@known("AOTAutograd, synthetic base", kind="leaf", layouts=(detached_alias,))
def stale_saved_value(x, y):
    z = x * x
    y.mul_(2)
    return z


@known("AOTAutograd, synthetic base", layouts=(storage_only,))
def versions_without_a_base(x, y):
    x.add_(1)
    return x + 1, y * 2


@known("torch.compile, CPU scalars", layouts=(double_0d,))
def scalar_argument_is_written(x):
    x.mul_(3)
    return x * x


@known("Inductor", layouts=(vector,))
def shifted_by_one(x):
    x[1:] = x[:-1].clone()
    return x + 1


@known("PyTorch issue 90507")
def view_then_in_place_view(x, y):
    z = x * 2
    v = z.unsqueeze(0)
    z.t_()
    return v, z, z.unsqueeze(0)


@known("PyTorch issue 118739", kind="inner", layouts=(one,))
def backward_of_one_chunk_then_another(x):
    return x.unbind(0)


@known("AOTAutograd, intermediates", kind="inner")
def view_made_without_grad(x, y):
    z = x * 2
    with torch.no_grad():
        v = z.view(-1)
    return z.sum(), v


@known("AOTAutograd, in-place views", kind="inner", layouts=(one,))
def transposed_argument_has_its_grad_fn(x):
    x.t_()
    return x * 2


@known("AOTAutograd, in-place views", kind="inner")
def in_place_view_is_no_view(x, y):
    z = x * 2
    z.t_()
    return z


@known(f"Dynamo, {OURS}")
def shape_under_a_second_name(x, y):
    z = x.clone()
    z.mul_(2).t_()
    return z, z.shape


@known(f"Dynamo, {OURS}", kind="leaf")
def attribute_view_without_grad(x, y):
    with torch.no_grad():
        v = x.T
    return v, x * y


@known(f"Dynamo, {OURS}")
def data_is_returned_as_written(x, y):
    d = x.data
    d.add_(1)
    return d, y * 2


@known(f"Dynamo, {OURS}", layouts=(viewed,))
def lerp_of_lists_is_one_write(x, y):
    torch._foreach_lerp_([x, y], [x + 1, y + 1], 0.5)
    return x + y


@known(f"Dynamo, {OURS}")
def text_of_an_exception(x, y):
    try:
        raise KeyError("key")
    except KeyError as error:
        return x + y, str(error)


@known("AOTAutograd", kind="inner", layouts=(pair,))
def hidden_write_between_uses(x, y):
    z = x * 2
    w = z * z
    z.detach().mul_(3)
    return w, z


@known("AOTAutograd, non-differentiable views", kind="inner", layouts=(storage_only,))
def views_of_other_bases(x, y):
    y.add_(1)
    return x * 2, y


@known("AOTAutograd, several dtypes", layouts=(base_and_row,))
def written_as_another_type(x, y):
    y.view(torch.int32).zero_()
    return x * 2


@known("AOTAutograd", kind="inner", create_graph=True)
def gradients_of_gradients(x, y):
    return x * x * y


@known("lightning-thunder: stale entry", layouts=(one,))
def none_then_zero(x):
    return torch.linalg.norm(x), torch.linalg.norm(x, ord=0, dim=0)


@known("lightning-thunder: gradients lost", kind="inner")
def tensors_in_a_list(x, y):
    return torch.vstack([x, y]), torch.column_stack([y, y])


@known("lightning-thunder: no requires_grad", kind="inner")
def rounding_needs_a_gradient(x, y):
    return x.ceil(), y.floor()


@known("lightning-thunder: plain tuple")
def return_types(x, y):
    return x.max(1)


@known_stateful("lightning-thunder: baked in", layouts=(one, one))
def attribute_that_counts():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0

        def forward(self, x):
            self.n = self.n + 1
            return x * self.n

    module = Counts()
    return Program(module, lambda: module.n)


@known_stateful("lightning-thunder: not updated", layouts=(lambda new: new.scene(new(2, 3, 4)),))
def running_statistics():
    module = torch.nn.InstanceNorm1d(3, track_running_stats=True)
    return Program(module, lambda: dict(module.named_buffers()))


# --------------------------------------------------------------------------- measuring

PEERS = {
    "aot_eager": lambda fn: torch.compile(fn, backend="aot_eager"),
    "inductor": lambda fn: torch.compile(fn, backend="inductor"),
}


def outcome(case, jit) -> str:
    """``equal``, or in a few words what differs; a version only if nothing else does."""
    found = measured(case, jit)
    if found == "wrong _version":
        worse = measured(case, jit, ignore=("_version",))
        return found if worse == "equal" else worse
    return found


def measured(case, jit, ignore=()) -> str:
    torch._dynamo.reset()
    (kind,) = case.kinds
    scenes = [placed(layout, kind) for layout in case.layouts]
    try:
        report = check(case.make, scenes, jit=jit, create_graph=case.create_graph, ignore=ignore)
    finally:
        torch._dynamo.reset()
        torch.set_grad_enabled(True)
    return "equal" if report.ok else min(map(words, report.differences), key=severity)


def severity(text: str) -> bool:
    return text == "wrong _version"


def words(difference) -> str:
    got, _, expected = difference.what.partition(" instead of ")
    if difference.what.startswith("values"):
        return "wrong gradient" if ".grad" in difference.where else "wrong values"
    for name in (*FACTS, *RELATIONS):
        if got.startswith(name):
            return f"wrong {name}" if name in FACTS else "other aliases"
    if got.startswith("tensors"):
        return "other aliases"
    if error := re.search(r"(\w+(Error|Failed))", got):
        return f"raises {error[1]}"
    return "no error" if "Error" in expected else "wrong values"


def table(columns) -> str:
    """The scoreboard as Markdown; ``columns`` are ways of compiling by name."""
    lines = [f"| program | reported as | {' | '.join(columns)} |"]
    lines.append("|---|---|" + "---|" * len(columns))
    for c in case.cases:
        found = [outcome(c, jit) for jit in columns.values()]
        lines.append(f"| `{c.name}` | {WHERE[c.name]} | {' | '.join(found)} |")
    return "\n".join(lines) + "\n"


def rows_of(page: str) -> dict[str, list[str]]:
    found = [
        line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[2:] for row in found}


@pytest.mark.parametrize("case", case.cases, ids=lambda c: c.name)
def test_tj_equals_eager(case) -> None:
    assert outcome(case, tj.jit) == "equal"


def test_the_page_lists_all_programs() -> None:
    listed = rows_of(PAGE.read_text("utf-8"))
    assert list(listed) == [c.name for c in case.cases]
    assert {row[0] for row in listed.values()} == {"equal"}
    print(PAGE.read_text("utf-8"))


def test_others_fail_on_most_of_it() -> None:
    listed = rows_of(PAGE.read_text("utf-8"))
    wrong = [name for name, row in listed.items() if {*row[1:]} != {"equal"}]
    assert len(wrong) >= len(listed) // 2


@pytest.mark.parametrize("case", case.cases[:3], ids=lambda c: c.name)
def test_what_aot_eager_does_is_seen_on_the_spot(case) -> None:
    """Of a few; of all with ``TJ_FULL=1``, see below."""
    if written_for() != torch.__version__.split("+")[0]:
        pytest.skip("the page is of another PyTorch")
    found = outcome(case, PEERS["aot_eager"])
    print(case.name, found)
    assert found == rows_of(PAGE.read_text("utf-8"))[case.name][1]


def written_for() -> str:
    """The version of PyTorch that the page is of."""
    return re.search(r"PyTorch (\S+),", PAGE.read_text("utf-8"))[1]


@pytest.mark.skipif(not FULL, reason="TJ_FULL=1 measures torch.compile; that takes minutes")
def test_the_page_says_what_torch_compile_does() -> None:
    page = PAGE.read_text("utf-8")
    if written_for() != torch.__version__.split("+")[0]:
        pytest.skip(f"the page is of PyTorch {written_for()}, this is {torch.__version__}")
    new = table({"tj": tj.jit, **PEERS})
    print(new)
    assert rows_of(new) == rows_of(page), "python test_scoreboard.py writes the page anew"


def main() -> None:
    """Measure all, and write the page."""
    page = PAGE.read_text("utf-8")
    head = page.partition("| program |")[0]
    head = re.sub(r"PyTorch \S+,", f"PyTorch {torch.__version__.split('+')[0]},", head)
    PAGE.write_text(head + table({"tj": tj.jit, **PEERS}), "utf-8")
    print(PAGE.read_text("utf-8"), file=sys.stderr)


if __name__ == "__main__":
    main()
