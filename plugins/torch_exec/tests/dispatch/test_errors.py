"""Errors: eager's exception where the program is at fault, else tj's own, with a hint."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.extend import Claim, Executor, RuleTable, Stage, Transform, hookimpl
from torch import nn

X = torch.arange(6.0).reshape(2, 3)


def shapes(x):
    return x @ x


def broadcasting(x):
    return x + torch.ones(4)


def dtypes(x):
    return x.long().index_select(0, x)


def index(x):
    return x[:, 7]


def attribute(x):
    return x.no_such_attribute


def keyword(x):
    return torch.sin(x, wrong=1)


def too_few(x):
    return torch.add(x)


def raises(x):
    raise ValueError(f"the user's own, for {x.ndim} dimensions")


def asserts(x):
    if x.ndim != 3:  # pytest would rewrite an assert
        raise AssertionError("three dimensions, please")
    return x


def key(x):
    return {"a": x}["b"]


def divides(x):
    return x * (1 // (x.ndim - 2))


def unpacks(x):
    a, b, c = x
    return a + b + c


def in_a_branch(x):
    y = x * 2
    if y.shape[0] == 2:
        return F.linear(y, torch.ones(5, 5))
    return y


WRONG = (
    shapes,
    broadcasting,
    dtypes,
    index,
    attribute,
    keyword,
    too_few,
    raises,
    asserts,
    key,
    divides,
    unpacks,
    in_a_branch,
)


def failure(fn: Callable[..., Any], *args: Any) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - callers look at it
        fn(*args)
    return raised.value


def chain(error: BaseException) -> list[BaseException]:
    found = [error]
    while error.__cause__ or (error.__context__ and not error.__suppress_context__):
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
        found.append(error)
    return found


@pytest.mark.parametrize("f", WRONG, ids=lambda f: f.__name__)
def test_a_wrong_program_raises_eagers_error(f: Callable[..., Any]) -> None:
    expected = failure(f, X)
    g = tj.jit(f)
    for _ in range(2):
        error = failure(g, X)
        assert type(error) is type(expected)
        assert str(error) == str(expected)
        assert not any("_dynamo" in type(e).__module__ for e in chain(error))
        assert f"in {f.__name__}" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("f", [shapes, broadcasting, in_a_branch], ids=lambda f: f.__name__)
def test_a_note_names_the_users_line(f: Callable[..., Any]) -> None:
    error = failure(tj.jit(f), X)
    notes = "\n".join(getattr(error, "__notes__", []))
    assert f"at {__file__}:" in notes
    assert f"in {f.__name__}" in notes


def test_a_program_that_fails_for_some_inputs_works_for_others() -> None:
    g = tj.jit(shapes)
    failure(g, X)
    square = torch.randn(3, 3)
    torch.testing.assert_close(g(square), square @ square)
    failure(g, X)
    torch.testing.assert_close(g(square), square @ square)
    assert tj.stats(g).fallbacks == ()


def lookup(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    doubled = table * 2
    return F.embedding(i, doubled)


def test_a_call_that_fails_when_it_runs_names_itself_and_the_users_line() -> None:
    g = tj.jit(lookup)
    g(X, torch.tensor([0, 1]))
    expected = failure(lookup, X, torch.tensor([5]))
    error = failure(g, X, torch.tensor([5]))
    assert type(error) is type(expected)
    assert str(error) == str(expected)
    (note,) = error.__notes__
    assert "torch.nn.functional.embedding(i, doubled)" in note
    assert "return F.embedding(i, doubled)" in note
    assert f"{__file__}:" in note
    frames = traceback.extract_tb(error.__traceback__)
    assert any("embedding(i, doubled)" in (frame.line or "") for frame in frames)


def test_the_note_names_the_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Sequential(nn.Embedding(3, 2))

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return self.table(i)

    g = tj.jit(Model())
    g(torch.tensor([0]))
    error = failure(g, torch.tensor([9]))
    assert "(table.0)" in error.__notes__[0]


def test_after_a_failure_the_function_still_works() -> None:
    g = tj.jit(lookup)
    failure(g, X, torch.tensor([5]))
    i = torch.tensor([1, 0])
    torch.testing.assert_close(g(X, i), lookup(X, i))
    assert torch.is_grad_enabled()


def test_a_failure_in_a_region_leaves_its_context() -> None:
    def f(x, i):
        with torch.no_grad():
            return F.embedding(i, x)

    g = tj.jit(f)
    failure(g, X, torch.tensor([5]))
    assert torch.is_grad_enabled()


def after_a_break(x, log):
    y = x * 2
    log.append(1)
    torch._dynamo.graph_break()
    return y @ y


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
def test_errors_after_a_graph_break_are_eagers() -> None:
    expected = failure(after_a_break, X, [])
    g = tj.jit(after_a_break)
    log: list[int] = []
    for n in range(1, 3):
        error = failure(g, X, log)
        assert type(error) is RuntimeError
        assert str(error) == str(expected)
        assert not any("_dynamo" in type(e).__module__ for e in chain(error))
        assert log == [1] * n  # what comes before the graph break has happened once
        (note,) = error.__notes__
        assert note.startswith(f"tj: in after_a_break, at {__file__}:")
        assert note.endswith("return y @ y")
    x = X[:, :2]
    torch.testing.assert_close(g(x, []), after_a_break(x, []))


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
def test_a_part_that_failed_once_is_compiled_when_it_works() -> None:
    g = tj.jit(after_a_break)
    failure(g, X, [])
    before = [e.compilation.traces[0].calls[-1].symbol.name for e in g.__tj__.entries]
    square = torch.rand(2, 2)
    torch.testing.assert_close(g(square, []), after_a_break(square, []))
    names = [e.compilation.traces[0].calls[-1].symbol.name for e in g.__tj__.entries]
    assert "matmul" not in before
    assert "matmul" in names


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
def test_what_a_part_does_before_it_raises_happens_once() -> None:
    """Writes to objects, tensors and buffers, and draws, in a frame that raises under Dynamo."""

    def f(x, log):
        torch._dynamo.graph_break()
        log.append("after the break")
        x.add_(1)
        noise = torch.rand(2)
        log.append(noise)
        return x @ x

    def attempt(fn: Callable[..., Any]) -> tuple[Exception, torch.Tensor, list[Any], torch.Tensor]:
        x, log = X.clone(), []
        torch.manual_seed(3)
        return failure(fn, x, log), x, log, torch.get_rng_state()

    expected, x, log, state = attempt(f)
    g = tj.jit(f)
    for _ in range(3):
        error, my_x, my_log, my_state = attempt(g)
        assert (type(error), str(error)) == (type(expected), str(expected))
        assert torch.equal(my_x, x)
        assert my_log[0] == log[0]
        assert len(my_log) == len(log) == 2
        assert torch.equal(my_log[1], log[1])
        assert torch.equal(my_state, state)
        (note,) = error.__notes__
        assert note.endswith("return x @ x")


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
@pytest.mark.parametrize("kind", [KeyError, ValueError, StopIteration], ids=lambda k: k.__name__)
def test_what_a_program_catches_after_a_break_it_catches(kind: type[Exception]) -> None:
    def raising(x):
        raise kind("mine")

    def f(x, log):
        torch._dynamo.graph_break()
        try:
            y = raising(x * 2)
        except kind as error:
            log.append(error.args)
            y = x
        return y + 1

    g = tj.jit(f)
    for _ in range(2):
        expected, log = [], []
        torch.testing.assert_close(g(X, log), f(X, expected))
        assert log == expected


def test_a_graph_break_does_not_hide_the_failing_line() -> None:
    def f(x):
        if x.sum() > 0:  # the graph breaks here, in the same frame
            return F.linear(x, torch.ones(5, 5))
        return x

    g = tj.jit(f)
    with pytest.warns(tj.TjWarning, match="graph break"):
        error = failure(g, X)
    assert str(error) == str(failure(f, X))
    assert error.__notes__[0].endswith("return F.linear(x, torch.ones(5, 5))")


@torch.library.custom_op("tj_test_errors::strict", mutates_args=())
def strict(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@strict.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("not on fakes")


def test_a_part_that_only_seems_to_raise_runs_and_is_told() -> None:
    def f(x):
        torch._dynamo.graph_break()
        return strict(x) + 1

    g = tj.jit(f)
    with pytest.warns(tj.TjWarning) as caught:
        torch.testing.assert_close(g(X), X + 1)
    messages = [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]
    assert len(messages) == 2
    assert "graph break" in messages[0]
    assert "not captured" in messages[1]
    assert "not on fakes" in messages[1]
    assert len(tj.stats(g).fallbacks) == 2


@pytest.mark.skipif(torch.__version__ < (2, 11), reason="PyTorch 2.10: a graph break")
def test_a_program_that_computes_nothing_on_tensors_runs_itself() -> None:
    def f(x):
        return torch.Tensor.__radd__(1, x)

    expected = failure(f, X)
    g = tj.jit(f)
    for _ in range(2):
        error = failure(g, X)
        assert type(error) is TypeError
        assert str(error) == str(expected)
        assert f"at {__file__}:" in error.__notes__[0]


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "after a break"])
def test_a_program_warns_as_often_as_in_eager(broken: bool) -> None:
    def f(x, y):
        if broken:
            torch._dynamo.graph_break()
        return torch.cross(x, y), torch.stft(x.flatten(), 4, return_complex=True)

    def outcome(fn: Callable[..., Any]) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fn(torch.rand(3, 3), torch.rand(3, 3))
        theirs = [w for w in caught if not issubclass(w.category, tj.TjWarning)]
        return [str(w.message) for w in theirs]

    torch.set_warn_always(True)
    try:
        expected = outcome(f)
        g = tj.jit(f)
        assert len(expected) == 2
        assert [outcome(g), outcome(g)] == [expected, expected]
    finally:
        torch.set_warn_always(False)


def test_exceptions_of_module_hooks() -> None:
    net = nn.Linear(3, 3)
    g = tj.jit(net)

    def hook(module: Any, args: Any) -> None:
        raise KeyError("from the hook")

    net.register_forward_pre_hook(hook)
    error = failure(g, X)
    assert type(error) is KeyError


# --------------------------------------------------------------------------- tj's own errors


def test_what_cannot_be_jitted() -> None:
    with pytest.raises(tj.TjError, match="needs a function or a module, not int"):
        tj.jit(3)


def test_unknown_options() -> None:
    with pytest.raises(tj.TjError, match=r"no option 'chek'\. Did you mean 'check'"):
        tj.jit(shapes, chek=2)
    with pytest.raises(tj.TjError, match="memo"):
        tj.jit(shapes, memo="perhaps")


def test_unknown_names() -> None:
    with pytest.raises(tj.TjError, match=r"unknown executor 'torhc'\. Did you mean 'torch'"):
        tj.jit(shapes, executors=["torhc"])
    with pytest.raises(tj.TjError, match="no_such"):
        tj.jit(shapes, plugins=["no_such"])


def test_options_that_need_a_plugin() -> None:
    with pytest.raises(tj.TjError, match="needs a plugin") as caught:
        tj.jit(shapes, autocast=torch.bfloat16)
    assert "install" not in str(caught.value)


def test_session_and_options_exclude_each_other() -> None:
    with pytest.raises(tj.TjError, match="not both"):
        tj.jit(shapes, session=tj.Session(), check=1)


def test_asking_too_early_or_the_wrong_thing() -> None:
    g = tj.jit(lambda x: x + 1)
    with pytest.raises(tj.TjError, match="has not been called"):
        tj.last_trace(g)
    with pytest.raises(tj.TjError, match="has not been called"):
        tj.explain(g)
    g(X)
    with pytest.raises(tj.TjError, match="pip install tj-autograd"):
        tj.last_trace(g, which="backward")
    with pytest.raises(tj.TjError, match="Did you mean 'CLAIMED'"):
        tj.last_trace(g, stage="CLAIMD")
    with pytest.raises(tj.TjError, match="no trace at stage FUNCTIONAL; there are: ACQUIRED"):
        tj.last_trace(g, stage="FUNCTIONAL")
    assert tj.last_trace(g, stage="ACQUIRED") == tj.last_traces(g)[0]
    with pytest.raises(tj.TjError, match="is not a jitted callable"):
        tj.stats(shapes)


def test_a_program_without_tensors_has_no_trace() -> None:
    g = tj.jit(lambda n: n + 1)
    assert g(1) == 2
    with pytest.raises(tj.TjError, match="computes nothing on tensors"):
        tj.last_trace(g)


def test_an_unknown_tag_at_the_users_line() -> None:
    def f(x):
        y = tj.tag(x * 2, "SAVVE")
        return y + 1

    error = failure(tj.jit(f), X)
    assert isinstance(error, tj.TjError)
    assert "unknown tag 'SAVVE'. Did you mean 'SAVE'?" in str(error)
    assert f"{__file__}:" in str(error)
    assert 'y = tj.tag(x * 2, "SAVVE")' in str(error)


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
def test_tjs_errors_come_through_the_hook_as_they_are() -> None:
    def f(x):
        torch._dynamo.graph_break()
        return tj.tag(x * 2, "SAVVE")

    assert "unknown tag 'SAVVE'" in str(failure(tj.jit(f), X))
    assert isinstance(failure(tj.jit(f), X), tj.TjError)


# --------------------------------------------------------------------------- plugins' errors


def test_a_transform_that_fails_is_named() -> None:
    def broken(trace: Any, context: Any) -> Any:
        return trace.no_such_field

    class Plugin:
        tj_name = "unlucky"

        @hookimpl
        def tj_transforms(self) -> tuple[Transform, ...]:
            return (Transform("stumble", broken, Stage.ACQUIRED),)

    g = tj.jit(lambda x: x + 1, plugins=[Plugin(), "..."])
    error = failure(g, X)
    assert isinstance(error, tj.TjError)
    assert "transform 'stumble'" in str(error)
    assert "AttributeError" in str(error)
    h = tj.jit(lambda x: x + 1, transforms=[Transform("mine", broken, Stage.ACQUIRED)])
    assert "transform 'mine' of the call (transforms=) failed" in str(failure(h, X))
    wrong = Transform("number", lambda trace, context: 1, Stage.ACQUIRED)
    error = failure(tj.jit(lambda x: x + 1, transforms=[wrong]), X)
    assert "'number' of the call (transforms=) returned int, not a Trace" in str(error)


def test_a_check_that_fails_is_named() -> None:
    def check(call: Any) -> bool:
        raise KeyError("lost")

    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("torch.sin", Claim(torch.sin, check))
    g = tj.jit(lambda x: x.sin(), executors=[Executor("clumsy", claims)])
    error = failure(g, X)
    assert isinstance(error, tj.TjError)
    assert "executor 'clumsy' failed in its check of torch.sin: KeyError" in str(error)
    assert f"{__file__}:" in str(error)


def test_an_implementation_that_fails_names_its_call() -> None:
    def sin(x: torch.Tensor) -> torch.Tensor:
        raise OSError("no such device")

    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("torch.sin", Claim(sin))
    error = failure(tj.jit(lambda x: x.sin(), executors=[Executor("faulty", claims)]), X)
    assert type(error) is OSError
    assert "faulty.torch.sin(x)" in error.__notes__[0]
