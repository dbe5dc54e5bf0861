"""The private names of PyTorch that the adapter uses do what it counts on."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import pytest
import torch
from tj_inductor.adapter import compiling, modules
from tj_inductor.adapter.settings import settings
from tj_inductor.kernels import Collected, Compilation, Waiting, collecting
from torch._inductor.async_compile import AsyncCompile
from torch._subclasses.fake_tensor import FakeTensorMode


def made(run: Any, *inputs: torch.Tensor, visible: tuple[int, ...] = (0,)) -> modules.Compiled:
    mode = FakeTensorMode()
    with torch.no_grad():
        with mode:
            fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in inputs]
        graph = compiling.traced(run, fakes, mode)
        return compiling.compiled(graph, fakes, mode, dict.fromkeys(visible), backward=False)


@pytest.mark.slow
def test_a_graph_becomes_a_function_of_a_list_that_it_empties() -> None:
    x = torch.randn(5, 3)
    compiled = made(lambda x: (x.exp() * 2,), x)
    box = [x]
    (y,) = compiled.function(box)
    assert torch.allclose(y, x.exp() * 2)
    assert box == []
    assert "cpp_fused" in compiled.source
    assert compiled.strides == ((3, 1),)


def test_visible_outputs_keep_their_strides() -> None:
    x = torch.randn(4, 5, 6)
    compiled = made(lambda x: (x.permute(2, 0, 1).exp(),), x)
    (y,) = compiled.function([x])
    assert y.stride() == x.permute(2, 0, 1).exp().stride() == compiled.strides[0]


def test_settings_that_a_version_does_not_have_are_left() -> None:
    import torch._inductor.config as config

    with settings({"size_asserts": False, "cpp.no_such_setting": 1}):
        assert config.size_asserts is False
    assert config.size_asserts is True


def test_kernels_of_many_graphs_are_one_file() -> None:
    assert Collected.supported()
    before = AsyncCompile.cpp_pybinding, AsyncCompile.wait
    x = torch.randn(7)
    with collecting():
        first = made(lambda x: (x.sin() + 1,), x)
        second = made(lambda x: (x.cos() * 3,), x)
        again = made(lambda x: (x.sin() + 1,), x)
    assert (AsyncCompile.cpp_pybinding, AsyncCompile.wait) == before
    for compiled, expected in ((first, x.sin() + 1), (second, x.cos() * 3), (again, x.sin() + 1)):
        assert torch.allclose(compiled.function([x])[0], expected)


@pytest.mark.slow
def test_a_kernel_that_is_called_before_it_is_compiled_is_compiled_alone() -> None:
    x = torch.randn(7)
    with collecting():
        compiled = made(lambda x: (x.sinh() - 1,), x)
        assert torch.allclose(compiled.function([x])[0], x.sinh() - 1)
    assert torch.allclose(compiled.function([x])[0], x.sinh() - 1)


def test_kernels_wait_for_a_compiler_that_goes_on() -> None:
    x = torch.randn(7)
    with collecting(goes_on=True):
        first = made(lambda x: (x.sin() * 5,), x)
        second = made(lambda x: (x.cos() + 7,), x)
    for compiled, expected in ((first, x.sin() * 5), (second, x.cos() + 7)):
        assert torch.allclose(compiled.function([x])[0], expected)
    assert not any(thread.name == "tj-inductor" for thread in threading.enumerate())


@pytest.mark.slow
def test_a_child_of_the_process_compiles_what_its_parent_has_begun() -> None:
    x = torch.randn(7)
    with collecting(goes_on=True):
        compiled = made(lambda x: (x.sin() * 11,), x)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os._exit(0 if torch.allclose(compiled.function([x])[0], x.sin() * 11) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_kernel_that_does_not_compile_raises_in_its_first_call() -> None:
    kernel = Waiting(["float*"], "int nothing;")
    collected = Collected(kernels=[kernel])
    kernel.compilation = Compilation(collected)
    with pytest.raises(Exception, match=r"(?i)error"):
        kernel(torch.ones(3))


def test_other_threads_compile_as_always() -> None:
    x, found = torch.randn(9), []
    with collecting():

        def work() -> None:
            found.append(torch.compile(lambda x: x.cosh() - 2, fullgraph=True)(x))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert torch.allclose(found[0], x.cosh() - 2)


def test_what_is_no_kernel_is_an_error() -> None:
    from tj_inductor.kernels import one_file

    with pytest.raises(ValueError, match="0 entries"):
        one_file([Waiting(["float*"], "int nothing;")])


HEAD = """\
import torch
from torch._inductor.utils import maybe_profile
from torch._inductor.codegen.memory_planning import _align as align
from torch._inductor.select_algorithm import extern_kernels
"""
LIGHT = HEAD[: HEAD.index("from torch._inductor.codegen")]
OURS = "from tj_inductor.adapter.modules import extern_kernels\n"

MODULES = {
    "neither is used": ("n = alignment", LIGHT),
    "products": ("extern_kernels.mm(x, y); extern_kernels.addmm(b, x, y)", LIGHT + OURS),
    "defined in C++": ("torch.ops.aten.sin.default(x); inductor_ops._mm_plus_mm(x)", LIGHT),
    "the compiler's own": ("extern_kernels.bias_addmm(b, x, y)", LIGHT + HEAD.splitlines(True)[-1]),
    "both ways": ("extern_kernels.mm(x); f(extern_kernels)", LIGHT + HEAD.splitlines(True)[-1]),
    "another of its names": ("n = align(7)", LIGHT + HEAD.splitlines(True)[-2]),
    "not defined": ("torch.ops.no_such_namespace.f(x)", HEAD),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_import_of_the_compiler_what_they_need(name: str) -> None:
    body, head = MODULES[name]
    assert modules.without_compiler(HEAD + body) == head + body


def test_what_modules_call_as_it_is_is_what_inductor_has() -> None:
    from torch._inductor.select_algorithm import extern_kernels

    for name, function in vars(modules.extern_kernels).items():
        assert getattr(extern_kernels, name) is function


def test_imports_of_the_compiler_stand_at_the_head_of_a_module() -> None:
    x = torch.randn(4, 4)
    source = made(lambda x: ((x @ x).sin() + 1,), x).source
    assert all(line in source for line in HEAD.splitlines(True)[1:])
    light = modules.without_compiler(source)
    assert OURS in light
    assert "import _align" not in light
    compiled = modules.restored(source, ((4, 1),), ())
    torch.testing.assert_close(compiled.function([x])[0], (x @ x).sin() + 1)
