"""Exported programs against their ``module()``: values, checks, mutation, state, gradients."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from tj_conformance.oracle.twins import clone_tree
from torch import nn
from torch.export import Dim, export

# PyTorch warns of its own use of pytree, and that a leaf module's buffer is assigned.
pytestmark = [
    pytest.mark.sampled(16),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
]


class Model(nn.Module):
    """Module with parameters, buffers that it writes, a constant, and a no-grad region."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("hidden", torch.ones(4), persistent=False)
        self.constant = torch.full((4,), 0.5)

    def forward(self, x: torch.Tensor, *, extra: dict[str, torch.Tensor]) -> Any:
        self.calls.add_(1)
        self.hidden.mul_(2)
        x = self.norm(self.linear(x)).relu() + self.constant
        with torch.no_grad():
            total = x.sum()
        return {"a": x * extra["y"], "b": [x.t(), total, self.calls.clone()], "n": 3}


def arguments(n: int = 3) -> tuple[Any, Any]:
    torch.manual_seed(n)
    return (torch.rand(n, 4),), {"extra": {"y": torch.rand(n, 4)}}


def exported(**keywords: Any) -> Any:
    args, kwargs = arguments()
    return export(Model(), args, kwargs, **keywords)


DYNAMIC = {"x": {0: Dim("batch", min=2, max=16)}, "extra": {"y": {0: Dim.AUTO}}}


def state(module: Any) -> Any:
    return dict(module.state_dict())


@pytest.mark.parametrize("decomposed", [False, True], ids=["torch", "core aten"])
@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
def test_an_exported_program(strict: bool, decomposed: bool) -> None:
    mine, theirs = (exported(strict=strict) for _ in range(2))
    if decomposed:
        mine, theirs = mine.run_decompositions(), theirs.run_decompositions()
    jitted, module = tj.jit(mine), theirs.module()
    for _ in range(3):
        args, kwargs = arguments()
        assert_equal(jitted(*args, **kwargs), module(*args, **kwargs))
        assert_equal(state(jitted), state(module))
    assert (tj.stats(jitted).hits, tj.stats(jitted).fallbacks) == (2, ())
    calls = tj.last_trace(jitted, stage="ACQUIRED").calls
    assert any(call.symbol.namespace == "aten" for call in calls)
    assert {call.source.file for call in calls if call.source} == {__file__}
    assert "linear" in {call.source.module_path for call in calls if call.source}


def test_it_shares_the_programs_state() -> None:
    program = exported()
    jitted = tj.jit(program)
    args, kwargs = arguments()
    first = jitted(*args, **kwargs)
    assert program.state_dict["calls"].item() == 1.0
    with torch.no_grad():
        program.state_dict["linear.weight"].zero_()
    assert not torch.equal(jitted(*args, **kwargs)["a"], first["a"])
    assert tj.stats(jitted).hits == 1


def test_gradients() -> None:
    mine, theirs = exported(), exported()
    jitted, module = tj.jit(mine), theirs.module()
    for _ in range(2):
        results = []
        for f in (jitted, module):
            args, kwargs = clone_tree(arguments())
            args[0].requires_grad_()
            f(*args, **kwargs)["a"].square().sum().backward()
            results.append([args[0].grad, *(p.grad for p in f.parameters())])
        assert_equal(*results)
        assert all(g is not None for g in results[0])


def test_sizes_within_and_beyond_the_constraints() -> None:
    mine, theirs = (exported(dynamic_shapes=DYNAMIC) for _ in range(2))
    jitted, module = tj.jit(mine), theirs.module()
    for n in (3, 5, 3, 5, 16):
        args, kwargs = arguments(n)
        assert_equal(jitted(*args, **kwargs), module(*args, **kwargs))
    assert (tj.stats(jitted).entries, tj.stats(jitted).hits) == (3, 2)
    for n in (17, 17, 20):
        args, kwargs = arguments(n)
        errors = []
        for f in (module, jitted):
            with pytest.raises(Exception) as caught:  # noqa: PT011 - as eager raises
                f(*args, **kwargs)
            errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]
    assert tj.stats(jitted).fallbacks == ()
    assert_equal(state(jitted), state(module))


def other_keys() -> Any:
    (x,), _ = arguments()
    return (x,), {"extra": {"z": x}}


def no_keywords() -> Any:
    return arguments()[0], {}


def other_columns() -> Any:
    _, kwargs = arguments()
    return (torch.rand(3, 3),), kwargs


def other_type() -> Any:
    (x,), kwargs = arguments()
    return (x.double(),), kwargs


@pytest.mark.parametrize("wrong", [other_keys, no_keywords, other_columns, other_type])
def test_wrong_inputs_are_refused_as_by_the_module(wrong: Any) -> None:
    jitted, module = tj.jit(exported()), exported().module()
    for warm in (False, True):
        if warm:
            args, kwargs = arguments()
            jitted(*args, **kwargs)
        args, kwargs = wrong()
        with pytest.raises(Exception) as expected:  # noqa: PT011 - as eager raises
            module(*args, **kwargs)
        with pytest.raises(type(expected.value)) as got:
            jitted(*args, **kwargs)
        assert str(got.value) == str(expected.value)


def test_mutated_inputs() -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            x.add_(1)
            y.copy_(x * 2)
            return x, y.sum()

    inputs = torch.ones(3), torch.zeros(3)
    program = export(Writes(), clone_tree(inputs))
    for case in (program, program.run_decompositions()):
        jitted, module = tj.jit(case), case.module()
        for _ in range(2):
            mine, theirs = clone_tree(inputs), clone_tree(inputs)
            got, expected = jitted(*mine), module(*theirs)
            assert_equal((got, mine), (expected, theirs))
            assert (got[0] is mine[0]) == (expected[0] is theirs[0])


@dataclasses.dataclass
class Both:
    x: torch.Tensor
    y: torch.Tensor


torch.export.register_dataclass(Both)


def test_dataclasses() -> None:
    class Swap(nn.Module):
        def forward(self, both: Both) -> Both:
            return Both(both.y + 1, both.x * 2)

    given = Both(torch.ones(2), torch.zeros(2))
    jitted = tj.jit(export(Swap(), (given,)))
    for _ in range(2):
        out = jitted(given)
        assert type(out) is Both
        assert_equal((out.x, out.y), (given.y + 1, given.x * 2))


def test_checks_on_data() -> None:
    class Checked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n = x.sum().int().item()
            torch._check(n >= 0)
            torch._check(n < 10)
            return torch.zeros(n) + 1

    program = export(Checked(), (torch.ones(3),))
    jitted, module = tj.jit(program), program.module()
    for x in (torch.ones(3), torch.ones(3) * 2, torch.zeros(3)):
        assert_equal(jitted(x), module(x))
    assert (tj.stats(jitted).entries, tj.stats(jitted).fallbacks) == (1, ())
    for f in (module, jitted):
        with pytest.raises(RuntimeError):
            f(torch.ones(3) * 30)


@pytest.mark.filterwarnings("ignore:You are calling torch.compile inside")  # PyTorch 2.10
def test_branches() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return torch.cond(x.sum() > 0, self.linear, lambda x: x.cos(), (x,))

    program = export(Branches(), (torch.ones(2, 3),))
    jitted, module = tj.jit(program), program.module()
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        assert_equal(jitted(x), module(x))
    assert tj.stats(jitted).fallbacks == ()


def test_copies() -> None:
    args, kwargs = arguments()
    jitted = tj.jit(exported())
    other = copy.deepcopy(jitted)
    assert_equal(other(*args, **kwargs), jitted(*args, **kwargs))
    assert other.linear.weight is not jitted.linear.weight
    assert {c.symbol.namespace for c in tj.last_trace(other, stage="ACQUIRED").calls} >= {"aten"}
    assert "the tensors are distinct objects" in map(str, tj.guards(other))  # no other frontend's


def test_the_other_frontends_say_what_to_do() -> None:
    program = exported()
    for name in ("dynamo", "dynamo_hook"):
        with pytest.raises(tj.TjError, match="no Python that can be captured") as caught:
            tj.jit(program, frontend=name)
        assert 'frontend="fx"' in str(caught.value)
    args, kwargs = arguments()
    assert tj.jit(program, frontend="fx")(*args, **kwargs)["n"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_models(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="models of transformers")
    small = {"vocab_size": 101, "use_cache": False, "attn_implementation": "sdpa"}
    if name == "llama":
        config = transformers.LlamaConfig(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            **small,
        )
    else:
        config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=32, **small)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids).logits

    ids = torch.randint(0, 101, (2, 8))
    with torch.no_grad():
        program = export(Logits(), (ids,), strict=False)
        jitted, module = tj.jit(program), program.module()
        for _ in range(2):
            assert_equal(jitted(ids), module(ids))
            assert_equal(jitted(ids), model(input_ids=ids).logits)
    assert (tj.stats(jitted).misses, tj.stats(jitted).fallbacks) == (1, ())
