"""Extension modules are found by their text while nothing changes, and else built as always."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from tj_core.extend import TjWarning
from tj_inductor.adapter import libraries
from tj_inductor.adapter.settings import settings
from tj_inductor.kernels import Waiting, one_file
from torch._inductor.codecache import CppPythonBindingsCodeCache

HERE = f"{__file__} {os.environ.get('PYTEST_XDIST_WORKER')}"
"""Text that makes the module's source unique to this process: others run the same test at once."""

KERNEL = f"""
// {HERE}
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(float* x)
{{
    x[0] = 7;
}}
"""
SOURCE = one_file([Waiting(["float*"], KERNEL)])


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[Any, int]]:
    """The module, and how often Inductor was asked for it."""
    asked: list[str] = []
    theirs = CppPythonBindingsCodeCache.load_async

    def counted(source: str, **more: Any) -> Any:
        asked.append(source)
        return theirs(source, **more)

    monkeypatch.setattr(CppPythonBindingsCodeCache, "load_async", counted)

    def found() -> tuple[Any, int]:
        asked.clear()
        return libraries.library(SOURCE), len(asked)

    found()
    return found


def record() -> Path:
    path = libraries._record(SOURCE)
    assert path is not None
    return path


def test_what_was_built_is_found(built: Any) -> None:
    module, asked = built()
    x = torch.zeros(1)
    module.kernel_0(x)
    assert x.item() == 7
    assert asked == 0
    assert record().is_file()


def test_a_file_that_changed_is_not_used(built: Any) -> None:
    module, _ = built()
    os.utime(module.__file__)
    again, asked = built()
    assert (again.__file__, asked) == (module.__file__, 1)
    assert built()[1] == 0


def test_a_truncated_file_is_built_again_with_a_word(built: Any) -> None:
    """Loading half of a file ends the process. What is loaded here keeps its own."""
    module, _ = built()
    path = Path(module.__file__)
    size = path.stat().st_size
    half = path.with_suffix(".half")
    half.write_bytes(path.read_bytes()[: size // 2])
    half.replace(path)
    with pytest.warns(TjWarning, match=f"has {size // 2} bytes, and had {size} when it was built"):
        assert libraries._loaded(record()) is None
    assert not path.exists()
    CppPythonBindingsCodeCache.cache.pop(module.key, None)  # another process knows of none
    again, asked = built()
    assert path.stat().st_size == size
    assert asked == 1
    x = torch.zeros(1)
    again.kernel_0(x)
    assert x.item() == 7


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"key": "k", "file": "no.so", "size": 1}'])
def test_a_record_that_cannot_be_read_is_written_again(text: str, built: Any) -> None:
    record().write_text(text)
    assert built()[1] == 1
    assert built()[1] == 0


def test_a_file_that_cannot_be_loaded_is_built_again(
    built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: str, key: str) -> Any:
        raise ImportError(path)

    module, _ = built()
    with monkeypatch.context() as patch:
        patch.setattr(CppPythonBindingsCodeCache, "_load_library", fails)
        assert libraries._loaded(record()) is None
    assert f"{module.key}.kernel" not in sys.modules
    monkeypatch.setitem(sys.modules, f"{module.key}.kernel", module)


def test_a_folder_that_others_can_write_to_is_not_used(
    built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(path)

    assert built()[1] == 0
    with monkeypatch.context() as patch:
        patch.setattr(libraries, "own_folder", refused)
        assert built()[1] == built()[1] == 1
    assert built()[1] == 0


@pytest.mark.parametrize(
    "setting", [{"cpp.min_chunk_size": 77}, {"cpp.enable_kernel_profile": True}]
)
def test_settings_count(setting: dict[str, object], built: Any) -> None:
    before = record()
    with settings(setting):
        assert record() != before


def test_vectors_that_the_user_chooses_count(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = record()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert record() != before


def test_with_a_setting_that_no_text_says_inductor_is_asked(built: Any) -> None:
    with inductor_config.patch({"post_grad_custom_post_pass": lambda graph: None}):
        assert built()[1] == 1
        assert built()[1] == 1
