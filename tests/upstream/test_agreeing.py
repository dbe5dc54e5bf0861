"""Stand-ins for Inductor's generated code agree with all questions; results are compared still."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from tj_suites.upstream.agreeing import AGREEING, agree
from torch.testing import FileCheck
from torch.testing._internal.common_utils import TestCase


def asking(
    test: TestCase, run_and_get_code: Any, metrics: Any, file_check: Any, length: Any
) -> Any:
    """Ask as Inductor's tests do; the result of what was run."""
    result, code = run_and_get_code(torch.sin, torch.zeros(2))
    test.assertTrue("aten.sin" in code)
    test.assertEqual(code.count("empty"), 3)
    file_check().check("sin").check_count("for", 2, exactly=True).run(code)
    metrics.reset()
    metrics.generated_kernel_count = 0
    test.assertEqual(metrics.generated_kernel_count, 2)
    test.assertEqual(length(metrics.loops), 1)
    test.assertEqual(metrics.loops[0].inner, 5)
    assert metrics.generated_kernel_count > 7
    return result


def file_of_tests(**names: Any) -> types.ModuleType:
    """A module with these names."""
    module = types.ModuleType("a_file")
    vars(module).update(names)
    return module


def test_whatever_is_asked_agrees() -> None:
    file: Any = file_of_tests(run_and_get_code=None, metrics=None, FileCheck=FileCheck)
    agree(file)
    case = TestCase()
    result = asking(case, file.run_and_get_code, file.metrics, file.FileCheck, file.len)
    assert torch.equal(result, torch.zeros(2))


def test_what_a_file_does_not_have_it_does_not_get() -> None:
    file = file_of_tests(metrics=None)
    agree(file)
    assert not hasattr(file, "FileCheck")
    assert vars(file)["len"]([1, 2]) == 2


def test_what_is_no_generated_code_is_compared() -> None:
    assert AGREEING == 3
    with pytest.raises(AssertionError):
        TestCase().assertEqual(torch.ones(2), torch.zeros(2))
