"""PyTorch's test files on tj, with a source tree made up for it."""

from __future__ import annotations

import itertools
import sys
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from tj_conformance.sampling import FULL
from tj_suites.upstream import __main__ as command
from tj_suites.upstream import known, older, stored
from tj_suites.upstream.compare import Report, Verdict, compare
from tj_suites.upstream.kinds import EXACT, INSTALLED, Kind, Mode, kind_of
from tj_suites.upstream.known import Known
from tj_suites.upstream.outcome import UNEXPECTED, Outcome, Status
from tj_suites.upstream.running import Limits, Run, run
from tj_suites.upstream.table import table
from tj_suites.upstream.worker import Order

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "test_plain.py": """
        import os
        import time
        import unittest


        class TestPlain(unittest.TestCase):
            def test_crashes(self):
                os.abort()

            def test_exits(self):
                os._exit(3)

            def test_fails(self):
                self.assertEqual(1, 2)

            def test_fails_in_a_part(self):
                with self.subTest("part"):
                    self.fail("of one")

            def test_hangs(self):
                time.sleep(1000)

            def test_passes(self):
                self.assertEqual(2, 2)

            @unittest.expectedFailure
            def test_should_fail(self):
                self.fail("as it should")

            @unittest.expectedFailure
            def test_should_fail_and_does_not(self):
                pass

            @unittest.skip("not here")
            def test_skipped(self):
                pass

            def test_takes_memory(self):
                bytearray(1 << 38)


        class TestClass(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                super().setUpClass()
                cls.ready = True

            def test_set_up(self):
                self.assertTrue(self.ready)


        class TestNotSetUp(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                raise ValueError("this class is never ready")

            def test_never_runs(self):
                pass
    """,
    "test_eager.py": """
        import os
        import sys

        import torch
        from torch._dynamo.testing import a_name_that_is_gone
        from torch.testing._internal.common_utils import TestCase


        class TestEager(TestCase):
            def test_comes_before(self):
                os.environ["A_TEST_RAN"] = "1"

            def test_fails(self):
                self.assertEqual(torch.ones(2), torch.zeros(2))

            def test_fails_after_another(self):
                self.assertNotIn("A_TEST_RAN", os.environ)

            def test_needs_what_is_gone(self):
                a_name_that_is_gone()

            def test_not_with_dynamo(self):
                self.assertNotIn("PYTORCH_TEST_WITH_DYNAMO", os.environ)

            def test_not_with_tj(self):
                self.assertNotIn("tj_core", sys.modules)

            def test_wrapped(self):
                counts = torch._dynamo.utils.counters["frames"]
                self.assertEqual(sum(counts.values()) > 0, "PYTORCH_TEST_WITH_DYNAMO" in os.environ)
    """,
    "test_broken.py": "import nothing_of_this_name",
    "dynamo/test_small.py": """
        import torch
        import torch._dynamo.test_case
        import torch._dynamo.testing

        class SmallTests(torch._dynamo.test_case.TestCase):
            def test_counts(self):
                counter = torch._dynamo.testing.CompileCounter()
                f = torch.compile(lambda x: x + 1, backend=counter)
                self.assertEqual(f(torch.ones(2)), torch.full((2,), 2.0))
                self.assertEqual((counter.frame_count, counter.op_count), (1, 1))

            def test_wants_its_own_backend(self):
                f = torch.compile(lambda x: x + 1, backend="aot_eager")
                node = f(torch.ones(2, requires_grad=True)).grad_fn
                self.assertEqual(node.name(), "CompiledFunctionBackward")
    """,
    "functorch/test_aotdispatch.py": """
        import torch
        from functorch.compile import aot_function, nop
        from torch.testing._internal.common_utils import TestCase


        class TestAOT(TestCase):
            def test_adds(self):
                f = aot_function(lambda x: x + 1, nop)
                self.assertEqual(f(torch.ones(2)), torch.full((2,), 2.0))

            def test_looks_at_the_graph(self):
                seen = []
                aot_function(lambda x: x + 1, lambda g, _: seen.append(g) or g)(torch.ones(2))
                self.assertEqual(len(seen), 1)
    """,
}
LIMITS = Limits(seconds=60)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name, text in FILES.items():
        file = root / "test" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    return root


@pytest.fixture(scope="module")
def plain(tree: Path) -> dict[str, Outcome]:
    """Outcomes of tests that need no PyTorch, by their method's name."""
    job = Run(tree / "test/test_plain.py", Kind.WRAPPED, Mode.PLAIN)
    outcomes = run(job, Limits(seconds=4))
    return {name.partition(".")[2]: outcome for name, outcome in outcomes.items()}


def names(report: Report, verdict: Verdict) -> set[str]:
    return {outcome.test.partition(".")[2] for outcome in report.tests(verdict)}


def test_a_run_goes_on_whatever_becomes_of_a_test(plain: dict[str, Outcome]) -> None:
    assert {name: outcome.status.value for name, outcome in plain.items()} == {
        "test_crashes": "crashed",
        "test_exits": "crashed",
        "test_fails": "failed",
        "test_fails_in_a_part": "failed",
        "test_hangs": "timed out",
        "test_never_runs": "gone",
        "test_passes": "passed",
        "test_set_up": "passed",
        "test_should_fail": "passed",
        "test_should_fail_and_does_not": "failed",
        "test_skipped": "skipped",
        "test_takes_memory": "failed",
    }


def test_errors_are_kept(plain: dict[str, Outcome]) -> None:
    assert {name: outcome.summary for name, outcome in plain.items() if outcome.summary} == {
        "test_crashes": "crashed: SIGABRT",
        "test_exits": "crashed: exit status 3",
        "test_fails": "AssertionError: 1 != 2",
        "test_fails_in_a_part": "AssertionError: of one",
        "test_hangs": "timed out: SIGABRT",
        "test_never_runs": "ValueError: this class is never ready",
        "test_should_fail_and_does_not": "unexpected success",
        "test_skipped": "not here",
        "test_takes_memory": "MemoryError:",
    }
    assert "self.assertEqual(1, 2)" in plain["test_fails"].error
    for name in ("test_crashes", "test_hangs"):  # where it was, from the fault handler
        assert f"in {name}" in plain[name].error


processes = pytest.mark.skipif(
    not FULL, reason="TJ_FULL=1 runs each kind of file in processes; one kind runs without"
)


@pytest.mark.slow
def test_what_fails_with_tj_alone_is_told_from_what_fails_everywhere(tree: Path) -> None:
    report = compare(tree, "test_eager.py", LIMITS)
    passed = {"test_comes_before", "test_fails_after_another", "test_wrapped"}
    assert names(report, Verdict.PASSED) == passed
    assert names(report, Verdict.ALONE) == {"test_not_with_tj"}
    everywhere = {"test_fails", "test_needs_what_is_gone", "test_not_with_dynamo"}
    assert names(report, Verdict.EVERYWHERE) == everywhere
    # Only what fails runs again, with the backend "eager" only what passes in plain eager.
    assert len(report.outcomes[Mode.PLAIN]) == 5
    assert len(report.outcomes[Mode.EAGER]) == 3
    gone = report.outcomes[Mode.TJ]["TestEager.test_needs_what_is_gone"]
    assert gone.summary == "ImportError: a_name_that_is_gone is not in the installed PyTorch"


@processes
def test_backends_of_dynamos_own_tests_are_replaced(tree: Path) -> None:
    report = compare(tree, "dynamo/test_small.py", LIMITS)
    assert names(report, Verdict.PASSED) == {"test_counts"}
    assert names(report, Verdict.ALONE) == {"test_wants_its_own_backend"}


def test_parts_of_a_file_are_all_of_it(tree: Path, plain: dict[str, Outcome]) -> None:
    """By the hash of the test's name."""
    orders = [Order("", "", "", None, 0, 3, part) for part in range(3)]
    names = [f"TestPlain.{name}" for name in plain]
    taken = [[name for name in names if order.takes(name)] for order in orders]
    assert sorted(itertools.chain(*taken)) == sorted(names)
    assert all(taken)


def test_a_file_that_does_not_load_fails_once(tree: Path) -> None:
    (gone,) = run(Run(tree / "test/test_broken.py", Kind.WRAPPED, Mode.PLAIN), LIMITS).values()
    assert gone.status is Status.GONE
    assert "No module named 'nothing_of_this_name'" in gone.summary


def test_each_test_in_a_process_of_its_own(tree: Path) -> None:
    tests = ("TestPlain.test_passes", "TestPlain.test_exits", "TestPlain.test_no_such")
    job = Run(tree / "test/test_plain.py", Kind.WRAPPED, Mode.PLAIN, tests)
    outcomes = run(job, Limits(each=True))
    assert [o.status for o in outcomes.values()] == [Status.PASSED, Status.CRASHED, Status.GONE]


def test_kinds_of_files() -> None:
    kinds = {file: kind_of(file) for file in EXACT | INSTALLED}
    assert kinds["functorch/test_aotdispatch.py"] is Kind.AOT
    assert kinds["functorch/test_eager_transforms.py"] is Kind.TRANSFORMS
    assert kinds["test_autograd.py"] is Kind.WRAPPED
    assert kinds["dynamo/test_misc.py"] is Kind.DYNAMO
    assert kinds["inductor/test_cpu_repro.py"] is Kind.COMPILED


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("cannot import name 'a' from 'torch.b' (x.py)", ("torch.b", "a")),
        ("cannot import name 'a' from 'numpy'", None),
        ("No module named 'torch.b'", None),
    ],
)
def test_what_an_import_lacks(message: str, found: object) -> None:
    assert older.missing(ImportError(message)) == found


def test_a_name_that_is_gone_as_a_decorator() -> None:
    @older.Gone("decorator")
    def test_it() -> None:
        raise AssertionError("it does not run")

    with pytest.raises(ImportError, match="decorator is not in"):
        test_it()


@pytest.mark.parametrize("name", ["bf32_on_and_off", "skipOps"])
def test_a_decorator_with_settings_that_is_gone(name: str) -> None:
    assert older.GONE[name]("Class", atol=1)(str) is str


def test_what_a_function_makes_now(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("torch_like")
    module.get_new_module_tests = lambda: [1, 2]
    monkeypatch.setitem(sys.modules, "torch_like", module)
    older.supply("torch_like", "new_module_tests")
    assert module.new_module_tests == [1, 2]
    older.supply("torch_like", "another")
    assert isinstance(module.another, older.Gone)


def test_a_hook_of_fewer_arguments() -> None:
    class Case:
        def guard_manager_clone_hook_fn(self, manager: str, scope: str) -> str:
            return manager + scope

    module = ModuleType("test_x")
    vars(module)["Case"] = Case
    older.adapt(module)
    case: Any = Case()
    assert case.guard_manager_clone_hook_fn("a", "b", "builder") == "ab"


def report(**statuses: Status) -> Report:
    """Outcomes on tj, each of which passes without."""
    outcomes = {name: Outcome(name, status, "why") for name, status in statuses.items()}
    passing = {name: Outcome(name, Status.PASSED) for name in statuses}
    return Report("test_x.py", Mode.TJ, {Mode.TJ: outcomes, Mode.PLAIN: passing})


LISTED = (Known("test_x.py", "a reason", ("a", "b")),)


def test_an_entry_of_the_table_may_be_of_one_mode() -> None:
    file = "functorch/test_eager_transforms.py"
    entry = Known(file, "a reason", ("a",), modes=(Mode.INSIDE,))
    assert entry.concerns(Report(file, Mode.INSIDE))
    assert not entry.concerns(Report(file, Mode.OUTSIDE))
    assert Known(file, "a reason", ("a",)).concerns(Report(file, Mode.OUTSIDE))
    assert not LISTED[0].concerns(Report("test_x.py", Mode.JIT))


def test_the_table_of_reasons_is_compared_in_both_directions() -> None:
    found = report(a=Status.FAILED, b=Status.PASSED, c=Status.FAILED)
    assert list(known.disagreements(found, LISTED)) == [
        "c: failed: why",
        "b: passed, remove it from the table",
    ]
    assert known.text(LISTED) == "test_x.py: a reason\n    a\n    b"


def test_a_listed_test_fails_for_the_reason_that_is_listed() -> None:
    found = report(a=Status.FAILED, b=Status.FAILED)
    for error, wrong in (("why", []), ("who", ["a", "b"])):
        table = (Known("test_x.py", "a reason", ("a", "b"), error),)
        lines = [f"{test}: not for the reason in the table: why" for test in wrong]
        assert list(known.disagreements(found, table)) == lines


def test_what_others_are_expected_to_fail_may_pass() -> None:
    found = report(a=Status.FAILED)
    found.outcomes[Mode.TJ]["a"] = Outcome("a", Status.FAILED, UNEXPECTED)
    assert found.verdict("a") is Verdict.PASSED


def test_figures() -> None:
    found = report(a=Status.FAILED, b=Status.PASSED, c=Status.CRASHED, d=Status.SKIPPED)
    assert list(table([found], LISTED))[2:] == [
        "| `test_x.py` | 3 | 1 | 1 | 1 | 0 | 1 |",
        "| together | 3 | 1 | 1 | 1 | 0 | 1 |",
    ]


def test_reports_are_stored(tmp_path: Path) -> None:
    found = report(a=Status.FAILED, b=Status.PASSED)
    stored.write(tmp_path / "found.json", [found])
    assert stored.read(tmp_path / "found.json") == [found]
    assert stored.failed(tmp_path / "found.json") == {("test_x.py", Mode.TJ): ("a",)}


@processes
def test_the_command_runs_failures_again(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a file whose ``aot_function`` is replaced."""
    file, found = "functorch/test_aotdispatch.py", tmp_path / "found.json"
    assert command.main([str(tree), file, "--json", str(found)]) == 1
    assert f"| `{file}` | 2 | 1 | 1 | 0 | 0 | 0 |" in capsys.readouterr().out
    (report,) = stored.read(found)
    assert names(report, Verdict.PASSED) == {"test_adds"}
    assert command.main([str(tree), "--only-failed", str(found), "--each"]) == 1
    told = capsys.readouterr().out
    assert f"{file}: TestAOT.test_looks_at_the_graph: failed: " in told
    assert f"| `{file}` | 1 | 0 | 1 | 0 | 0 | 0 |" in told
