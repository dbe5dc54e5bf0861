"""Kernels are linked to libraries without functions, where these work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest
import torch
from tj_inductor.adapter import libraries, linking
from tj_inductor.kernels import Waiting, one_file
from torch._inductor.cpp_builder import get_cpp_compiler

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the options are for Linux")

KERNEL = f"""
// {__file__} {os.environ.get("PYTEST_XDIST_WORKER")}
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(float* x)
{{
    auto y = at::vec::Vectorized<float>::loadu(x, 8);
    y.sin().store(x, 8);
}}
"""


def flags(folder: Path, compiler: str | None = None) -> tuple[str, ...]:
    linking._flags.cache_clear()
    return linking._flags(compiler or get_cpp_compiler(), str(folder))


@pytest.fixture(autouse=True)
def anew() -> None:
    linking._flags.cache_clear()


def test_a_kernel_finds_functions_of_pytorch() -> None:
    assert linking.link_flags()
    module = libraries.library(one_file([Waiting(["float*"], KERNEL)]))
    x = torch.linspace(-1, 1, 8)
    expected = x.sin()
    module.kernel_0(x)  # its `sin` is a function of PyTorch's library
    torch.testing.assert_close(x, expected)
    names = Path(module.__file__).read_bytes()
    assert all(f"lib{name}.so\0".encode() in names for name in linking.LIBRARIES)


def test_the_libraries_are_built_once(tmp_path: Path) -> None:
    first = flags(tmp_path)
    with mock.patch("subprocess.run") as run:
        assert flags(tmp_path) == first != ()
    assert not run.called
    folder = Path(first[0].removeprefix("-L"))
    assert {f.name for f in folder.iterdir()} == {f"lib{n}.so" for n in linking.LIBRARIES}
    assert [f.name for f in folder.parent.iterdir()] == [folder.name], "something is left behind"


def test_several_threads_may_build_them(tmp_path: Path) -> None:
    found: list[tuple[str, ...]] = []
    threads = [threading.Thread(target=lambda: found.append(flags(tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert found[0]


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_a_compiler_that_fails(tmp_path: Path, compiler: str) -> None:
    assert flags(tmp_path, compiler) == ()


def test_a_linker_without_these_options(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *push-state*) exit 1;; esac\n'
                        f'exec {get_cpp_compiler()} "$@"\n')  # fmt: skip
    compiler.chmod(0o700)
    assert flags(tmp_path / "cache", str(compiler)) == ()


def test_libraries_that_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "LIBRARIES", ("tj_no_such",))
    need = ("-Wl,--push-state,--no-as-needed", "-ltj_no_such", "-Wl,--pop-state")
    monkeypatch.setattr(linking, "NEED", need)
    assert flags(tmp_path) == ()


@pytest.mark.parametrize("place", ["with a space", "a\ttab"])
def test_a_folder_that_cannot_be_an_option(tmp_path: Path, place: str) -> None:
    assert flags(tmp_path / place) == ()


def test_a_folder_that_others_can_write_to(tmp_path: Path) -> None:
    (folder,) = [Path(f.removeprefix("-L")) for f in flags(tmp_path)[:1]]
    folder.chmod(0o777)
    assert flags(tmp_path) == ()


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "tj").write_text("")
    assert flags(tmp_path) == ()


def test_what_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    failing = subprocess.CalledProcessError(1, "link")
    with mock.patch("subprocess.run", side_effect=failing):
        assert flags(tmp_path) == ()
    assert not [*(tmp_path / "tj").iterdir()]
