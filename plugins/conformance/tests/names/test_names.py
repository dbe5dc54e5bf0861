"""Programs with hostile names, as installed: fused, not checked, equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.names import run
from tj_conformance.names.hostile import HOSTILE, normal
from tj_conformance.names.texts import named_text


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the tests' environment says what takes part, or that anything is checked."""
    for name in ("PLUGINS", "STRICT", "CHECK", "DISABLE"):
        monkeypatch.delenv(f"TJ_{name}", raising=False)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("number", range(600))
def test_a_program_is_equal_to_eager(number: int) -> None:
    assert (found := run.compare(number)) is None, found


def test_programs_take_all_names_and_forms() -> None:
    made = [named_text(number) for number in range(300)]
    text = "\n".join(program.text for program in made)
    names = {name for kind in HOSTILE.values() for name in kind.split()}
    assert sum(name in text for name in names) > 0.95 * len(names)
    assert {run.form_of(number) for number in range(300)} == {*run.FORMS}
    assert all(compile(p.text, "", "exec") for p in made)


def test_the_interpreter_of_names_fuses_forward_and_backward() -> None:
    session = run.session()
    x = torch.rand(4, 3, requires_grad=True)
    tj.jit(lambda x: x.sin() * x + 1, session=session)(x).sum().backward()
    regions = [kernel.fused for kernel in session.regions.kernels.values()]
    assert len(regions) == 2
    assert all(region is not None and "def region(a0" in region.source for region in regions)


def boundary(_apply: Any, _call: Any) -> Any:
    return _apply.sin() * _call + 1


def generated(_box: Any, _args: Any) -> Any:
    _error = _box * 2
    _annotate = _error + _args
    return _annotate.sin() * _error, _box * 3


def gradients(x: Any, grad_x: Any) -> Any:
    x_1 = x * 2
    grad_grad_x = x_1 * grad_x
    return grad_grad_x.sin() * x, x_1


def frame(fn: Any, rows: Any) -> Any:
    run, miss = fn * rows, fn + 1
    return run * miss


@pytest.mark.parametrize("program", [boundary, generated, gradients, frame])
def test_names_of_generated_code(program: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    jitted = tj.jit(program, session=run.session())
    results = []
    for f in (program, jitted):
        leaves = [torch.linspace(0.5, 1, 9).view(3, 3).requires_grad_() for _ in range(2)]
        made = f(*(leaf * 1 for leaf in leaves))
        outs = made if isinstance(made, tuple) else (made,)
        results.append((*outs, *torch.autograd.grad(sum((t**2).sum() for t in outs), leaves)))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("name", ["self", "fn", "args", "kwargs", "module", "ﬁ", "a0", "call"])
def test_a_keyword_may_have_any_name(name: str) -> None:
    torch._dynamo.reset()
    x = torch.rand(3)
    jitted = tj.jit(lambda x, **kw: x.sin() * kw[name], session=run.session())
    torch.testing.assert_close(jitted(x, **{name: x}), x.sin() * x)


class Attributes(torch.nn.Module):
    """Two buffers that Python's text calls by one name."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ﬁ", torch.ones(3) * 2)
        self.register_buffer("fi", torch.ones(3) * 5)
        self.register_buffer("a0", torch.ones(3) * 7)

    def forward(self, a1: Any) -> Any:
        return a1 * self._buffers["ﬁ"] + self.fi * self.a0


def test_attributes_that_are_one_identifier() -> None:
    module, x = Attributes(), torch.rand(3)
    jitted = tj.jit(module, session=run.session())
    torch.testing.assert_close(jitted(x), module(x))
    inputs = [p.name for p in tj.last_trace(jitted, stage="ACQUIRED").inputs]
    assert len({normal(name) for name in inputs}) == len(inputs)
