"""Expansions of calls that are easy to get wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from tj_core.errors import TjWarning
from tj_core.ir.effects import Alias
from tj_core.ir.proxy import Device, NumberProxy, Proxy, TensorProxy
from tj_core.ir.symbol import PLAIN_CONTEXT, Constant, Context
from tj_core.ir.tree import leaves
from tj_torch.ops.context.entering import entered, spelling
from tj_torch.ops.errors import CannotExpand, ExpansionError, InternalError
from tj_torch.ops.expansion.expander import Expander, expand
from tj_torch.ops.expansion.replay import replay
from tj_torch.ops.values.convert import constant, tensor_proxy

if TYPE_CHECKING:
    from tj_torch.ops.expansion.expansion import Expansion


def proxy(name: str, *shape: int, grad: bool = False) -> TensorProxy:
    return tensor_proxy(name, torch.empty(shape, requires_grad=grad))


X, Y = proxy("x", 4, 8), proxy("y", 4, 8)
XG = proxy("x", 4, 8, grad=True)


@pytest.fixture(scope="module")
def expander() -> Expander:
    return Expander()


def ops(expansion: Expansion) -> list[str]:
    assert expansion.body is not None
    return [str(call.symbol) for call in expansion.body.calls]


def updated(expansion: Expansion) -> list[int]:
    assert expansion.body is not None
    return [i for i, _ in expansion.body.updates]


# ---------------------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("make", "operators"),
    [
        (lambda x: torch.tensor([1.0, 2.0]), ["aten.clone.default"]),
        (
            lambda x: torch.tensor([1.0, 2.0]).view(2, 1),
            ["aten.clone.default", "aten.view.default"],
        ),
        (lambda x: torch.tensor([1.0, 2.0]) + 1, ["aten.add.Tensor"]),
        (lambda x: x[:, [1, 2]], ["aten.index.Tensor"]),
    ],
)
def test_each_run_makes_the_constants_that_it_returns(make: Any, operators: list[str]) -> None:
    expansion = expand(make, (X,))
    assert ops(expansion) == operators
    assert expansion.body is not None
    first, second = (replay(expansion.body, {0: torch.ones(4, 8)})[0] for _ in range(2))
    assert first.data_ptr() != second.data_ptr()


def test_body_is_in_canonical_form() -> None:
    expansion = expand(F.linear, (XG, proxy("w", 16, 8), proxy("b", 16)))
    body = expansion.body
    assert body is not None
    assert [p.name for p in body.inputs] == ["a0", "a1", "a2"]
    assert ops(expansion) == ["aten.t.default", "aten.addmm.default"]
    assert [c.outputs.name for c in body.calls] == ["_0", "_1"]
    assert body.calls[0].effects.aliases == (Alias(0, "arg", 0),)
    assert body.outputs is body.calls[-1].outputs
    assert all(c.context == PLAIN_CONTEXT for c in body.calls)
    assert expansion.kind == "COMPOSITE"
    assert expansion.outputs.requires_grad
    assert expansion.facts.body is body


def test_one_proxy_in_two_places_is_one_input(expander: Expander) -> None:
    expansion = expander.expand(torch.cat, ([X, Y, X],))
    assert expansion.body is not None
    assert [p.name for p in expansion.body.inputs] == ["a0", "a1"]
    assert [p.name for p in expansion.body.calls[0].flat_args] == ["a0", "a1", "a0"]


def test_dead_calls_go_and_random_ones_stay(expander: Expander) -> None:
    def wasteful(x: Any) -> Any:
        x.sin()
        torch.rand(3)
        return x.cos()

    expansion = expander.expand(wasteful, (X,))
    assert ops(expansion) == ["aten.rand.default", "aten.cos.default"]
    assert expansion.effects.ordered == ("random:cpu",)


def test_no_grad_inside_is_the_context_of_the_inner_calls(expander: Expander) -> None:
    expansion = expander.expand(F.cosine_similarity, (XG, Y))
    assert expansion.body is not None
    contexts = {c.symbol.qualname.split(".")[1]: c.context for c in expansion.body.calls}
    assert contexts["clamp_min"] == Context.of(grad=False)  # of a tensor, or a number up to 2.10
    assert contexts["sum"] == PLAIN_CONTEXT
    quiet = expander.expand(F.cosine_similarity, (XG, Y), {}, Context.of(grad=False))
    assert quiet.body is not None
    assert all(c.context == PLAIN_CONTEXT for c in quiet.body.calls)


def test_constants_written_in_the_call(expander: Expander) -> None:
    expansion = expander.expand(torch.tensor, ([1.0, 2.0],))
    assert expansion.body is not None
    (value,) = expansion.body.calls[0].args
    assert isinstance(value, Constant)
    assert not value.named
    assert value.value.tolist() == [1.0, 2.0]
    assert not expansion.captured


def test_tensors_of_a_closure_are_captured(expander: Expander) -> None:
    scale = torch.full((8,), 3.0)
    expansion = expander.expand(lambda x: x * scale, (X,))
    assert expansion.captured
    assert expansion.body is not None
    x = torch.ones(4, 8)
    assert torch.equal(replay(expansion.body, {0: x})[0], x * 3)


# ---------------------------------------------------------------------------- writes and views


def test_in_place_write(expander: Expander) -> None:
    expansion = expander.expand(torch.Tensor.add_, (X, Y))
    assert expansion.effects.mutates == (0,)
    assert expansion.effects.aliases == (Alias(0, "arg", 0, identical=True),)
    assert expansion.effects.rebinds == ()
    assert expansion.outputs.name == "a0"
    assert (ops(expansion), updated(expansion)) == (["aten.add.Tensor"], [0])


def test_write_that_makes_its_target_require_grad(expander: Expander) -> None:
    expansion = expander.expand(torch.Tensor.add_, (Y, XG))
    ((index, after),) = expansion.effects.rebinds
    assert index == 0
    assert isinstance(after, TensorProxy)
    assert after.requires_grad
    assert expansion.outputs.requires_grad


def test_write_to_a_leaf_is_described_not_refused(expander: Expander) -> None:
    expanded = proxy("x", 4, 8, grad=True).replace(strides=(1, 4))
    expansion = expander.expand(torch.Tensor.mul_, (expanded, 2.0))
    assert expansion.effects.mutates == (0,)
    assert expansion.outputs == expanded.replace(name="a0")
    assert expansion.kind == "COMPOSITE"


def test_write_through_indexing(expander: Expander) -> None:
    expansion = expander.expand(torch.Tensor.__setitem__, (X, slice(1, 3), Y.replace(shape=(2, 8))))
    assert expansion.outputs is None
    assert expansion.effects.mutates == (0,)
    assert ops(expansion)[-1] == "aten.slice_scatter.default"
    x, v = torch.randn(4, 8), torch.randn(2, 8)
    assert expansion.body is not None
    _, updates = replay(expansion.body, {0: x, 1: v})
    x[1:3] = v
    assert torch.equal(updates[0], x)


def test_out_argument_that_is_resized(expander: Expander) -> None:
    expansion = expander.expand(torch.add, (X, Y), {"out": proxy("o", 0)})
    assert expansion.effects.mutates == (2,)
    ((index, after),) = expansion.effects.rebinds
    assert (index, after.same_meta(X)) == (2, True)
    assert expansion.effects.aliases == (Alias(0, "arg", 2, identical=True),)


@pytest.mark.parametrize("method", ["t_", "squeeze_", "unsqueeze_"])
def test_metadata_mutation_writes_nothing(expander: Expander, method: str) -> None:
    arguments = (proxy("x", 1, 3), *([0] if method == "unsqueeze_" else []))
    expansion = expander.expand(getattr(torch.Tensor, method), arguments)
    assert expansion.effects.mutates == ()
    assert [i for i, _ in expansion.effects.rebinds] == [0]
    assert updated(expansion) == []
    assert len(ops(expansion)) == 1


def test_requires_grad_and_detach_rebind(expander: Expander) -> None:
    for fn, before, after in (
        (torch.Tensor.requires_grad_, X, True),
        (torch.Tensor.detach_, XG, False),
    ):
        expansion = expander.expand(fn, (before,))
        ((_, now),) = expansion.effects.rebinds
        assert isinstance(now, TensorProxy)
        assert (now.requires_grad, ops(expansion)) == (after, [])


def test_views(expander: Expander) -> None:
    assert expander.expand(torch.Tensor.view, (X, -1)).effects.aliases == (Alias(0, "arg", 0),)
    chunks = expander.expand(torch.chunk, (X, 2))
    assert chunks.effects.aliases == (Alias(0, "arg", 0), Alias(1, "arg", 0))
    hidden = expander.expand(lambda x: (x * 2).view(-1), (X,))
    assert hidden.effects.aliases == (Alias(0, "internal"),)
    both = expander.expand(lambda x: [y := x * 2, y.t()], (X,))
    assert both.effects.aliases == (Alias(1, "out", 0),)
    same = expander.expand(F.dropout, (X, 0.5, False))
    assert same.effects.aliases == (Alias(0, "arg", 0, identical=True),)


def test_detach_stays_in_the_body(expander: Expander) -> None:
    expansion = expander.expand(torch.Tensor.detach, (XG,))
    assert ops(expansion) == ["aten.detach.default"]
    assert not expansion.outputs.requires_grad


def test_foreach_writes_every_member(expander: Expander) -> None:
    expansion = expander.expand(torch._foreach_add_, ([X, Y], 1.0))
    assert expansion.effects.mutates == (0, 1)
    assert ops(expansion) == ["aten._foreach_add.Scalar"]


@pytest.mark.parametrize("function", [F.batch_norm, F.instance_norm])
def test_running_statistics_are_written(expander: Expander, function: Any) -> None:
    shape = (2, 8, 5)
    names = {"running_mean": proxy("m", 8), "running_var": proxy("v", 8)}
    expansion = expander.expand(function, (proxy("x", *shape),), dict(names, **_training(function)))
    assert expansion.effects.mutates == (1, 2)
    x, mean, var = torch.randn(shape), torch.zeros(8), torch.ones(8)
    assert expansion.body is not None
    out, updates = replay(expansion.body, {0: x, 1: mean, 2: var})
    expected = function(x, mean, var, **_training(function))
    for mine, theirs in ((out, expected), (updates[1], mean), (updates[2], var)):
        torch.testing.assert_close(mine, theirs)


def _training(function: Any) -> dict[str, bool]:
    return {"training": True} if function is F.batch_norm else {"use_input_stats": True}


def test_conjugation_is_kept(expander: Expander) -> None:
    z = tensor_proxy("z", torch.empty(3, dtype=torch.complex64))
    lazy = expander.expand(torch.conj, (z,))
    assert lazy.outputs.flags == ("conj",)
    back = expander.expand(torch.resolve_conj, (z.replace(flags=("conj",)),))
    assert back.outputs.flags == ()
    imaginary = expander.expand(getattr, (z.replace(flags=("conj",)), "imag"))
    assert imaginary.outputs.flags == ("neg",)


# ---------------------------------------------------------------------------- randomness


def test_generators_are_untouched(expander: Expander) -> None:
    before = torch.get_rng_state()
    assert expander.expand(F.dropout, (XG, 0.5)).effects.ordered == ("random:cpu",)
    expander.expand(lambda: (torch.manual_seed(3), torch.rand(2))[1], ())
    assert torch.equal(torch.get_rng_state(), before)


def test_attention_without_dropout_draws_nothing(expander: Expander) -> None:
    q = proxy("q", 1, 2, 4, 8)
    assert not expander.expand(F.scaled_dot_product_attention, (q, q, q)).effects.ordered
    dropped = expander.expand(F.scaled_dot_product_attention, (q, q, q), {"dropout_p": 0.5})
    assert dropped.effects.ordered == ("random:cpu",)


# ---------------------------------------------------------------------------- contexts


def test_grad_mode_decides_requires_grad(expander: Expander) -> None:
    for grad in (True, False):
        for ambient in (True, False):
            with torch.set_grad_enabled(ambient):
                found = expander.expand(torch.sin, (XG,), {}, Context.of(grad=grad))
            assert found.outputs.requires_grad == grad


def test_inference_mode_around_or_in_the_context(expander: Expander) -> None:
    weight = proxy("w", 16, 8, grad=True)
    with torch.inference_mode():
        ambient = expander.expand(F.linear, (X, weight))
    inside = expander.expand(F.linear, (X, weight), {}, Context.of(inference=True, grad=False))
    assert ops(ambient) == ops(inside) == ["aten.t.default", "aten.mm.default"]
    assert (ambient.outputs.requires_grad, inside.outputs.requires_grad) == (True, False)


def test_autocast_is_the_contexts(expander: Expander) -> None:
    context = Context((("autocast.cpu", "bfloat16"), ("grad", True)))
    expansion = expander.expand(torch.mm, (X, proxy("w", 8, 3)), {}, context)
    assert expansion.outputs.dtype.name == "bfloat16"
    assert ops(expansion) == ["aten._to_copy.default"] * 2 + ["aten.mm.default"]
    assert expansion.body is not None
    assert all(c.context.items == (("autocast.cpu", None),) for c in expansion.body.calls)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert expander.expand(torch.mm, (X, proxy("w", 8, 3))).outputs.dtype.name == "float32"
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("grad", False, "torch.no_grad()"),
        ("grad", True, "torch.enable_grad()"),
        ("inference", True, "torch.inference_mode()"),
        ("autocast.cpu", "bfloat16", 'torch.autocast("cpu", dtype=torch.bfloat16)'),
        ("autocast.cpu", None, 'torch.autocast("cpu", enabled=False)'),
        ("device", "meta", 'torch.device("meta")'),
        (
            "sdpa",
            ("MATH",),
            "torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH])",
        ),
    ],
)
def test_spelling(key: str, value: Any, text: str) -> None:
    assert spelling(key)(value) == text


def test_entering_a_context() -> None:
    context = Context(
        (
            ("autocast.cpu", "bfloat16"),
            ("device", "meta"),
            ("grad", False),
            ("inference", False),
            ("sdpa", ("MATH",)),
        )
    )
    with entered(context):
        assert torch.empty(1).device.type == "meta"
        assert not torch.is_grad_enabled()
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        assert not torch.backends.cuda.flash_sdp_enabled()
    assert torch.empty(1).device.type == "cpu"
    assert torch.is_grad_enabled()


def test_attention_backends_of_the_context(expander: Expander) -> None:
    q = proxy("q", 1, 2, 4, 8)
    math = expander.expand(
        F.scaled_dot_product_attention, (q, q, q), {}, Context.of(sdpa=("MATH",))
    )
    assert len(ops(math)) > 5


# ---------------------------------------------------------------------------- kernels


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def test_autograd_function_is_a_kernel(expander: Expander) -> None:
    assert expander.expand(Square.apply, (XG,)).kind == "KERNEL"
    assert expander.expand(Square.apply, (X,)).kind == "COMPOSITE"


@pytest.fixture
def library() -> Iterator[Any]:
    with torch.library._scoped_library("tj_expansion_test", "DEF") as made:
        yield made


def test_custom_operator_is_a_kernel(expander: Expander, library: Any) -> None:
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    op = torch.ops.tj_expansion_test.twice.default
    expansion = expander.expand(op, (X,))
    assert expansion.kind == "KERNEL"
    assert ops(expansion) == ["torch.ops.tj_expansion_test.twice.default"]
    assert expansion.body is not None
    assert torch.equal(replay(expansion.body, {0: torch.ones(4, 8)})[0], torch.full((4, 8), 2.0))


def test_device_that_is_not_here(expander: Expander) -> None:
    on_gpu = XG.replace(device=Device("cuda", 0))
    expansion = expander.expand(torch.mul, (on_gpu, 2.0))
    assert expansion.outputs == on_gpu.replace(name="_0")
    written = expander.expand(torch.Tensor.add_, (Y.replace(device=on_gpu.device), on_gpu))
    assert written.outputs.requires_grad
    indices = expander.expand(torch.argmax, (on_gpu,))
    assert not indices.outputs.requires_grad
    random = expander.expand(F.dropout, (on_gpu, 0.5))
    assert random.effects.ordered == ("random:cuda:0",)


# ---------------------------------------------------------------------------- refusals

SUBCLASS = tensor_proxy("s", torch.empty(2))


def _set_data(x: Any) -> None:
    x.data = torch.ones(3)


REFUSED: list[tuple[Any, tuple[Any, ...], str]] = [
    (torch.Tensor.numpy, (X,), "memory"),
    (torch.Tensor.data_ptr, (X,), "memory"),
    (torch.Tensor.tolist, (X,), "memory"),
    (torch.manual_seed, (1,), "state of the process"),
    (lambda x: (x + 1).numpy(), (X,), "memory"),
    (lambda x: (x + 1).data_ptr() or x, (X,), "memory"),
    (bool, (proxy("x"),), "data"),
    (torch.equal, (X, X), "depends on data"),
    (torch.add, (X, NumberProxy("n")), "run time"),
    (torch.sin, (X.replace(layout="sparse_coo", strides=()),), "sparse_coo"),
    (_set_data, (X,), "other storage"),
    (torch.Tensor.polygamma_, (X, 1), "functionalization"),
    (lambda x: object(), (X,), "a result is a object"),
]


@pytest.mark.parametrize(("fn", "args", "reason"), REFUSED)
def test_refused(expander: Expander, fn: Any, args: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(CannotExpand, match=reason) as caught:
        expander.expand(fn, args)
    assert reason in caught.value.reason


def test_user_errors_are_told_apart(expander: Expander, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExpansionError, match="reduction dim") as caught:
        expander.expand(torch.mm, (X, Y))
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(ExpansionError, match="TypeError"):
        expander.expand(torch.add, (X, "no"))
    assert capfd.readouterr() == ("", "")


def test_process_is_clean_after_a_failure(expander: Expander) -> None:
    for args in ((X, Y), (XG, XG)):
        with pytest.raises(ExpansionError):
            expander.expand(torch.mm, args, {}, Context((("autocast.cpu", "bfloat16"),)))
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_autocast_cache_enabled()
    assert type(torch.ones(2) + 1) is torch.Tensor


def test_every_leaf_of_a_result_is_a_proxy_or_constant(expander: Expander) -> None:
    def many(x: Any) -> Any:
        return {"y": (x + 1, None), "z": [x.shape, x.dtype, "word"]}

    expansion = expander.expand(many, (X,))
    assert expansion.outputs["z"] == [(4, 8), constant(torch.float32), "word"]
    assert sum(isinstance(leaf, Proxy) for leaf in leaves(expansion.outputs)) == 1


def test_an_expansion_does_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    """Warnings are errors here, so that one would prevent the expansion."""
    x = proxy("x", 20)
    expansion = expand(torch.stft, (x, 4), {"return_complex": True}, PLAIN_CONTEXT)
    assert expansion.body is not None
    assert not recwarn.list


def test_a_mistake_of_ours_is_said_to_be_one(
    expander: Expander, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tj_torch.ops.expansion.run.alias_facts", None)
    with (
        pytest.warns(TjWarning, match=r"internal error while expanding sin: TypeError.*run\.py"),
        pytest.raises(InternalError) as caught,
    ):
        expander.expand(torch.sin, (X,))
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("error", [KeyError, TypeError, AssertionError])
def test_a_mistake_in_the_users_function_is_none_of_ours(
    expander: Expander, error: type[Exception]
) -> None:
    def wrong(x: Any) -> Any:
        raise error("mine")

    with pytest.raises(ExpansionError, match=error.__name__):
        expander.expand(wrong, (X,))
    with pytest.raises(ExpansionError, match="TypeError"):
        expander.expand(torch.sin, ("x",))  # compiled code, called by ours, raises
