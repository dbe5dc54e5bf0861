"""Small programs that show whether Inductor does what the executor counts on, in this PyTorch.

A name that is still there and has no effect any more is found by these: see
`tj_inductor.adapter.features` for what each is about. They compile a few kernels, which takes half
a minute where none is built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import tj_core as tj
import torch

from tj_inductor import kernels
from tj_inductor.adapter import calls, compiling, libraries
from tj_inductor.adapter import priority as adapter_priority
from tj_inductor.adapter.linking import link_flags
from tj_inductor.adapter.modules import Compiled, restored
from tj_inductor.adapter.vectors import several_kinds, try_few
from tj_inductor.branches import without_branches
from tj_inductor.draws import Drawn, may_draw_by_mkl
from tj_inductor.elementary import with_fast_erf, with_fast_exp, with_fast_tanh
from tj_inductor.kernels import Waiting, collecting
from tj_inductor.kernels import one_file as text_of_one_file
from tj_inductor.loads import with_fast_loads
from tj_inductor.thrown import THROWS, thrown_again

__all__ = [
    "calls_of_onednn",
    "copies",
    "draws",
    "elementary",
    "equal",
    "errors",
    "finished",
    "formulas",
    "found_again",
    "in_place",
    "linked",
    "low_precision",
    "one_file",
    "places",
    "priority",
    "readers",
    "reads",
    "regions",
    "rows",
    "strides",
    "symbols",
    "vectors",
    "versions",
]

Program = Callable[..., Any]


def _fused(program: Program, *calls: tuple[Any, ...], **how: Any) -> list[Any]:
    """The results of ``program``, jitted, which has to have a region in it."""
    overrides = {"strict": True, "inductor": {"minimum": 1}}
    jitted = tj.jit(program, session=tj.Session(("inductor", "torch"), overrides=overrides), **how)
    found = [jitted(*args) for args in calls]
    assert "inductor.region" in tj.last_trace(jitted).python(), "no region is compiled"
    return found


def _traced(run: Program, *inputs: torch.Tensor) -> tuple[torch.fx.GraphModule, list[Any], Any]:
    from tj_inductor.adapter.names import FakeTensorMode

    mode = FakeTensorMode()
    with torch.no_grad():
        with mode:
            fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in inputs]
        return compiling.traced(run, fakes, mode), fakes, mode


def _compiled(
    run: Program, *inputs: torch.Tensor, visible: Mapping[int, Any] | None = None, **more: Any
) -> Compiled:
    graph, fakes, mode = _traced(run, *inputs)
    with torch.no_grad():
        return compiling.compiled(graph, fakes, mode, visible or {0: None}, backward=False, **more)


def _called(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def regions() -> None:
    """See that a region is compiled, and right."""
    x = torch.arange(-3.0, 3.0)
    for found in _fused(lambda x: (x * 2 + 1).relu(), (x,), (x,)):
        assert torch.equal(found, (x * 2 + 1).relu()), "the result is another than eager's"


def strides() -> None:
    """See that an output gets other strides than those of the graph."""
    x = torch.ones(4, 3)
    made = _compiled(lambda x: (x * 2,), x, visible={0: (1, 4)})
    (found,) = made.function([x])
    assert found.stride() == (1, 4) == made.strides[0], f"strides are {found.stride()}"


def formulas() -> None:
    """See that divisions and truths are those of eager, and that indices are looked at."""

    def program(x: Any, b: Any) -> Any:
        return torch.floor_divide(x, 0.1), torch.remainder(x, x / 0), b.any(0)

    x, b = torch.tensor([1.0, 7.5, -1.0]), torch.tensor([0, 3], dtype=torch.uint8)
    (found,) = _fused(program, (x, b))
    for a, e in zip(found, program(x, b), strict=True):
        assert a.dtype == e.dtype, f"{a}, not {e}"
        assert torch.equal(a.nan_to_num(9), e.nan_to_num(9)), f"{a}, not {e}"
    i = torch.tensor([0])
    graph, _, _ = _traced(lambda x, i: (torch.index_select(x, 0, i),), x, i)
    assert "aten.where.self" in _called(graph), "a negative index is not looked at"


def errors() -> None:
    """See that errors in a kernel's parallel loop are caught in the loop, and raised after it."""
    texts: list[str] = []
    x, i = torch.ones(200, 64, 8), torch.zeros(200, 3, 8, dtype=torch.int64)
    with collecting(change=lambda text: _noted(text, texts, thrown_again)):
        made = _compiled(lambda x, i: (x.gather(1, i) * 2,), x, i)
    assert texts, "no text of a kernel is seen"
    assert THROWS in texts[0], "an index is looked at in another way"
    loop = "#pragma omp parallel" in texts[0]
    assert not loop or thrown_again(texts[0]) != texts[0], "nothing is caught in a parallel loop"
    i[-1, -1, -1] = 64
    try:
        made.function([x, i])
    except (IndexError, RuntimeError):
        return
    raise AssertionError("an index out of bounds raises nothing")


def _noted(text: str, texts: list[str], change: Callable[[str], str] = str) -> str:
    texts.append(text)
    return change(text)


def one_file() -> None:
    """See that the kernels of two graphs are built as one file, and run."""
    x = torch.ones(3)
    with mock.patch.object(kernels, "library", wraps=libraries.library) as built, collecting():
        first = _compiled(lambda x: (x.sin() + 1,), x)
        second = _compiled(lambda x: (x.cos() + 1,), x)
    assert built.call_count == 1, f"{built.call_count} files are built"
    torch.testing.assert_close(first.function([x])[0], x.sin() + 1)
    torch.testing.assert_close(second.function([x])[0], x.cos() + 1)


LOADS = ("mask_of", "store_of")
"""Functions that a kernel of masks calls."""


def elementary() -> None:
    """See that elementary functions, masks and choices are found in the texts of kernels."""
    texts: list[str] = []
    x = torch.ones(64)
    with collecting(change=lambda text: _noted(text, texts)):
        _compiled(lambda x: (x.tanh() * x.exp() * x.erf(),), x)
    assert texts, "no text of a kernel is seen"
    assert with_fast_tanh(texts[0]) != texts[0], "tanh is spelled otherwise"
    vectors = "at::vec::Vectorized<float>" in texts[0]
    assert not vectors or with_fast_exp(texts[0]) != texts[0], "exp is spelled otherwise"
    assert not vectors or with_fast_erf(texts[0]) != texts[0], "erf is spelled otherwise"
    with collecting(change=lambda text: _noted(text, texts)):
        _compiled(lambda x, mask: ((x > 2) & mask,), x, x > 0)
    fast = with_fast_loads(texts[-1])
    called = fast[fast.rindex('extern "C"') :]
    assert not vectors or all(name in called for name in LOADS), (
        "masks are loaded or stored otherwise"
    )
    windows = torch.ones(8, 14, 14)
    with collecting(change=lambda text: _noted(text, texts)):
        _compiled(lambda x: (x.view(8, 2, 7, 2, 7).permute(1, 3, 2, 4, 0).relu(),), windows)
    assert "std::max(tmp" not in without_branches(texts[-1]), (
        "a largest scalar is spelled otherwise"
    )


KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(float* x)
{
    x[0] = 7;
}
"""


def found_again() -> None:
    """See that a file that was built is found by its text, and loaded."""
    from tj_inductor.adapter.names import CppPythonBindingsCodeCache

    source = text_of_one_file([Waiting(["float*"], KERNEL)])
    libraries.library(source)
    with mock.patch.object(CppPythonBindingsCodeCache, "load_async") as asked:
        module = libraries.library(source)
    assert not asked.called, "a file that was built is asked for again"
    x = torch.zeros(1)
    module.kernel_0(x)
    assert x.item() == 7, "it is another file"


def linked() -> None:
    """See that the linker finds the libraries without functions before PyTorch's."""
    empty = link_flags()[:1]
    if not empty:
        return
    source = text_of_one_file([Waiting(["float*"], f"// {time.time_ns()}{KERNEL}")])
    with mock.patch("subprocess.run", wraps=subprocess.run) as run:
        libraries.library(source)
    commands = [" ".join(call.args[0]) for call in run.call_args_list]
    links = [c for c in commands if "-shared" in c and "-ltorch_cpu" in c]
    assert links, "Inductor does not link kernels to PyTorch"
    found = [option for option in links[-1].split() if option.startswith("-L")]
    assert found[:1] == [*empty], "PyTorch's libraries are found first"


def vectors() -> None:
    """See that Inductor tries no kind of vectors after the first that works."""
    if not several_kinds():
        return
    try_few()
    from tj_inductor.adapter.names import config, cpu_vec_isa

    facts = {"__str__.return_value": "", "bit_width.return_value": config.cpp.simdlen}
    first, second = mock.MagicMock(**facts), mock.MagicMock(**facts)
    anew = cpu_vec_isa.valid_vec_isa_list.__wrapped__
    replaced = {"valid_vec_isa_list": anew, "supported_vec_isa_list": [first, second]}
    with mock.patch.multiple(cpu_vec_isa, **replaced), mock.patch.dict(os.environ):
        os.environ.pop("ATEN_CPU_CAPABILITY", None)
        assert cpu_vec_isa.pick_vec_isa() is first, "it has another way to know them"
    assert not second.__bool__.called, "it tries all kinds"


def finished() -> None:
    """See that the text of a region restores the region."""
    x = torch.ones(4, 4)
    made = _compiled(lambda x: ((x @ x) * 2 + 1,), x)
    assert made.whole, "a region is more than its text"
    again = restored(made.source, made.strides, made.same)
    assert torch.equal(again.function([x])[0], made.function([x])[0]), "the text is another region"


def versions() -> None:
    """See that no write of a kernel counts in the version of a new result."""
    x = torch.ones(4, 4)
    # The last product is written to memory that a value before it has had.
    for found in _fused(lambda x: (x @ x, (x + 1) @ x @ x), (x,), (x,)):
        versions = [value._version for value in found]
        assert versions == [0, 0], f"the versions are {versions}"


def low_precision() -> None:
    """See that bfloat16 and float16 are rounded between operations."""

    def program(x: Any) -> Any:
        return (x * x - x) * x + x

    for dtype in (torch.bfloat16, torch.float16):
        x = torch.linspace(-2, 2, 67).to(dtype)
        (found,) = _fused(program, (x,))
        assert torch.equal(found, program(x)), f"{dtype} is rounded otherwise than in eager"


def copies() -> None:
    """See that copies are in memory of their own, where Inductor returns the argument."""

    def copied(x: torch.Tensor) -> Any:
        made = torch.ops.aten.copy(x.new_empty_strided((4, 6), (6, 1)), x)
        return made.view(-1).clone(), x.neg()

    x = torch.ones(4, 6)
    made = _compiled(copied, x, visible=dict.fromkeys(range(2)))
    memory = [y.data_ptr() for y in (x, *made.function([x]))]
    assert len(set(memory)) == len(memory), "two results share memory"


def calls_of_onednn() -> None:
    """See that a product of oneDNN's in a graph is called, and right."""
    operator = getattr(torch.ops.mkldnn, calls.PRODUCT.partition("::")[2], None)
    if operator is None or not torch.backends.mkldnn.is_available():
        return  # tj-onednn claims nothing here
    x, w = torch.ones(4, 8), torch.ones(3, 8)
    made = _compiled(lambda x, w: (operator(x * 2, w, None, "none", [], "") + 1,), x, w)
    assert PRODUCT_CALL in made.source, "the product is another call"
    assert torch.equal(made.function([x, w])[0], (x * 2) @ w.t() + 1), "the product is wrong"


PRODUCT_CALL = calls.PRODUCT.replace("::", ".")
"""Its spelling in a module of generated code."""


def symbols() -> None:
    """See that a region serves several sizes."""
    calls = [(torch.ones(n),) for n in (5, 7, 9)]
    for found, (x,) in zip(
        _fused(lambda x: (x * 2 + x.shape[0]).relu(), *calls, dynamic=True), calls, strict=True
    ):
        assert torch.equal(found, x * 2 + len(x)), "the result is another than eager's"
    wholes = [(torch.full((n,), 2**40 + 1),) for n in (5, 7, 9)]
    for found, (x,) in zip(
        _fused(lambda x: (x + (x.shape[0] & 6)) * 2, *wholes, dynamic=True), wholes, strict=True
    ):
        assert torch.equal(found, (x + (len(x) & 6)) * 2), "bits of a size are no integer"


def equal() -> None:
    """See that equal operators are computed once."""
    graph, _, _ = _traced(lambda x: (x.sin() + x.sin(),), torch.ones(3))
    assert _called(graph).count("aten.sin.default") == 1, "they are computed twice"


def in_place() -> None:
    """See that an output is written to an input, and is that input."""
    x = torch.ones(4)
    made = _compiled(lambda x: (x * 2,), x, written={0: 0})
    (found,) = made.function([x])
    assert torch.equal(x, torch.full((4,), 2.0)), "the input is not written"
    assert found.data_ptr() == x.data_ptr(), "the result is not the input"


def reads() -> None:
    """See that values, indices and rows in one place are copied before a region writes there."""

    def program(x: Any) -> Any:
        v, w, row = x.cumsum(0), (x + 1).cumsum(0), (x + 2).cumsum(0)[1]
        v[1:] = v[:-1].clone()
        places = w[:, 0].long() % 8
        written = row.expand(3, 8).index_fill(0, torch.tensor([1]), 7)
        return v, w.index_put((places,), torch.arange(8.0)[:, None]), written

    x = torch.arange(64.0).view(8, 8) * 7 % 11
    (found,) = _fused(program, (x,))
    for a, e in zip(found, program(x), strict=True):
        assert torch.equal(a, e), f"{a}, not {e}"


def places() -> None:
    """See that what is made of an ``arange`` overflows as in eager, and not before."""

    def program(x: Any) -> Any:
        return torch.arange(32) * 10**9 + x, torch.arange(300).to(torch.uint8).long() + x[0]

    x = torch.zeros(32, dtype=torch.int64)
    (found,) = _fused(program, (x,))
    for a, e in zip(found, program(x), strict=True):
        assert torch.equal(a, e), f"{a}, not {e}"


def images() -> None:
    """See that scores of attention between convolutions are not laid out as images."""

    def program(x: Any, w: Any) -> Any:
        q = torch.conv2d(x, w).flatten(2)
        scores = torch.bmm(q.transpose(1, 2), q).view(1, 2, 16, 16).softmax(-1).view(2, 16, 16)
        return (torch.conv2d(torch.bmm(q, scores).view(2, 8, 4, 4), w),)

    x, w = torch.rand(2, 8, 4, 4), torch.rand(8, 8, 1, 1)
    graph, fakes, mode = _traced(program, x, w)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default):
        node.target = calls.extern_call(node.target)
    with torch.no_grad():
        made = compiling.compiled(graph, fakes, mode, {0: None}, backward=False)
        (found,) = made.function([x, w])
    torch.testing.assert_close(found, program(x, w)[0])
    assert "(1, 2, 16, 16), (512, 1, 32, 2)" not in made.source, "they are in channels_last"


def priority() -> None:
    """See that compilers behind calls have a lower priority."""
    if shutil.which("nice") is not None:
        from tj_inductor.adapter.names import cpp_builder

        behind = mock.patch.object(adapter_priority, "is_beside", return_value=True)
        with behind, adapter_priority.lower_priority(), tempfile.TemporaryDirectory() as folder:
            cpp_builder.run_compile_cmd("sh -c 'nice > priority'", folder)
            found = int(Path(folder, "priority").read_text())
        assert found > os.nice(0), f"compilers have the priority {found}"


def readers() -> None:
    """See that a sigmoid that is read twice, for one result, is not written to memory."""

    def program(x: Any) -> Any:
        s = x.sigmoid()
        return (s * (1 - s),)

    x = torch.rand(64)
    graph, fakes, mode = _traced(program, x)
    made = compiling.compiled(graph, fakes, mode, {0: None}, backward=False)
    torch.testing.assert_close(made.function([x])[0], program(x)[0])
    # The result would be written over it.
    assert "in_out_ptr" not in made.source, "it is written to memory"


def rows() -> None:
    """See that rows which an index picks are summed by vectors along the rows."""

    def program(table: Any, index: Any) -> Any:
        return (torch.nn.functional.embedding(index, table).sum(1),)

    given = [torch.rand(5, 64), torch.arange(80).view(5, 16) % 5]
    graph, fakes, mode = _traced(program, *given)
    made = compiling.compiled(graph, fakes, mode, {0: None}, backward=False)
    torch.testing.assert_close(made.function([*given])[0], program(*given)[0])
    # Elements of a row are put in an array, from which a vector is read.
    assert "tmpbuf" not in made.source, "they are read element by element"


def draws() -> None:
    """See that a dropout's numbers are PyTorch's, on processors that are not Intel's."""
    made = Drawn()
    usable = made.wait()
    assert made.kernel.function is not None, "the kernel is not built"
    assert usable or may_draw_by_mkl(), "the numbers are others than PyTorch's"
