"""Gradients beside derived ones: rules of plugins, pairs of
executors, graphs recorded at run time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import tj_core as tj
import torch
from tj_autograd.joint.rules import GradRule
from tj_conformance.gradients.layer_norm import layer_norm, layer_norm_backward
from tj_core.contract.decline import Decline
from tj_core.contract.executors import Claim, Executor, Pair
from tj_core.contract.rules import RuleTable
from tj_core.errors import PluginError, notes
from tj_core.host.hookspecs import hookimpl
from tj_core.testing.plugins import plugin_object
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(16)

LAYER_NORM = "torch.nn.functional.layer_norm"
RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def noted(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function, saying that it ran."""

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            RAN.append(name)
            return fn(*args, **kwargs)

        return run

    return decorate


def rules(key: str, rule: GradRule) -> Any:
    """A plugin with one gradient rule."""

    class Rules:
        TJ_PLUGIN_API = 1

        @staticmethod
        @hookimpl
        def tj_rule_tables(options: Any) -> Any:
            table: RuleTable[Any] = RuleTable("grad")
            table.set(key, rule)
            return (table,)

    return Rules


def executor(name: str, claim: Claim, key: str = LAYER_NORM) -> Any:
    """A plugin with an executor that claims an operation."""

    class Plugin:
        TJ_PLUGIN_API = 1

        @staticmethod
        @hookimpl
        def tj_executors(options: Any) -> Any:
            claims: RuleTable[Claim] = RuleTable("claim")
            claims.set(key, claim)
            return (Executor(name, claims),)

    Plugin.__name__ = name
    return Plugin


def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (F.layer_norm(x.sin(), (5,), w) * x).sum()


def check(fn: Callable[..., Any], *plugins: Any, inference: bool = False) -> Any:
    """``fn`` with ``plugins``, its results and gradients those of eager."""
    jitted = tj.jit(fn, session=tj.Session([*plugins, "torch", "autograd"]))
    torch.manual_seed(0)
    x, w = torch.randn(4, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    results = []
    for run in (jitted, fn):
        out = run(x, w)
        results.append((out, *torch.autograd.grad(out, [x, w])))
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)
    return jitted


# ------------------------------------------------------------------------------- rules


def test_a_rule_takes_the_place_of_the_derived_one() -> None:
    jitted = check(f, rules(LAYER_NORM, GradRule(layer_norm, layer_norm_backward)))
    trace = tj.last_trace(jitted, stage="JOINT")
    record = next(r for r in trace.history if r.name == "joint")
    assert ("layer_norm", "Rules", LAYER_NORM) in [
        (c.call, c.plugin, c.rule) for c in record.changes
    ]
    names = [c.symbol.qualname for c in trace.calls]
    assert f"{LAYER_NORM}.augmented" in names
    assert f"{LAYER_NORM}.backward" in names


def test_a_rule_that_saves_only_arguments_and_results_leaves_the_call_alone() -> None:
    def forward(x, *, out=None):
        result = torch.exp(x)
        return result, (result,)

    def backward(saved, grad):
        return (grad * saved[0],)

    jitted = check(
        lambda x, w: (x.exp() * w).sum(), rules("torch.exp", GradRule(forward, backward))
    )
    exp, *_ = (c for c in tj.last_trace(jitted, stage="JOINT").calls if "exp" in c.symbol.name)
    assert exp.symbol.qualname == "torch.exp"


def test_a_rule_may_decline() -> None:
    rule = GradRule(layer_norm, layer_norm_backward, lambda call: Decline("not today"))
    jitted = check(f, rules(LAYER_NORM, rule))
    changes = tj.last_trace(jitted, stage="JOINT").history[-1].changes
    assert {c.rule for c in changes} == {"derived"}


def test_one_value_in_several_places() -> None:
    """An argument given twice, and one tangent for two results."""

    def product(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.ops.aten.mul.Tensor(x, y), (x, y)

    def halves(x: torch.Tensor, chunks: int, dim: int = 0) -> Any:
        out = torch.ops.aten.split.Tensor(x, x.shape[dim] // chunks, dim)
        return tuple(out), (dim,)

    def squared(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.mul(x.sin(), w) + torch.mul(x, x)).sum()

    def chunked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a, b = torch.chunk(x * w, 2)
        return (a + b).sum()

    def factors(saved: Any, g: torch.Tensor) -> Any:
        x, y = saved
        return (g * y).sum_to_size(x.shape), (g * x).sum_to_size(y.shape)

    check(squared, rules("torch.mul", GradRule(product, factors)))
    rule = GradRule(halves, lambda s, *gs: (torch.cat(gs, s[0]),))
    check(chunked, rules("torch.chunk", rule))


def test_a_rule_for_tensors_in_a_list_and_several_outputs() -> None:
    def forward(tensors, dim=0):
        return torch.cat(tensors, dim), ([t.shape[dim] for t in tensors], dim)

    def backward(saved, grad):
        return (list(grad.split(*saved)),)

    check(
        lambda x, w: (torch.cat([x, w[None] * 2, x]) ** 2).sum(),
        rules("torch.cat", GradRule(forward, backward)),
    )


class Saved(NamedTuple):
    """A value of an own type that a rule saves beside tensors."""

    factor: float
    shape: torch.Size


def test_what_is_saved_may_be_anything() -> None:
    """Sequences of tensors, and objects that keep their type."""

    def forward(x: torch.Tensor, *, out: Any = None) -> Any:
        result = torch.exp(x)
        return result, ([result, (x, x * 2)], Saved(2.0, x.shape))

    def backward(saved: Any, grad: torch.Tensor) -> Any:
        (result, (x, double)), rest = saved
        assert isinstance(rest, Saved)
        assert rest.shape == x.shape
        return (grad * result * (double / x / rest.factor).round(),)

    check(lambda x, w: (x.exp() * w).sum(), rules("torch.exp", GradRule(forward, backward)))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (GradRule(lambda x, *a: x, layer_norm_backward), "return a pair"),
        (GradRule(lambda x, *a: (x.sum(), ()), layer_norm_backward), "its forward returns"),
        (GradRule(layer_norm, lambda s, g: (g.sum(), None, None)), "for argument 'sin'"),
        (GradRule(layer_norm, lambda s, g: (None,) * 9), "9 gradients for the 5 parameters"),
        (GradRule(layer_norm, lambda s, g: g), "a sequence with a gradient per parameter"),
        (GradRule(layer_norm, lambda s, g: ([g, g],)), "2 gradients for the 1 tensors of 'x'"),
        (GradRule(layer_norm, lambda s, g: g.view(17)), "does not fit"),
        (GradRule(layer_norm, lambda s, g: ()), "0 gradients, none for 'x', which needs one"),
        (GradRule(layer_norm, lambda s, g: (1.0,)), "a float as a gradient of 'x'"),
        (GradRule(layer_norm, lambda s, g: (g.double(), None, None)), "for argument 'sin'"),
    ],
)
def test_a_rule_that_does_not_fit(rule: GradRule, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        check(f, rules(LAYER_NORM, rule))
    assert message in str(caught.value)
    assert "test_rules.py" in str(caught.value)


# ------------------------------------------------------------------------------- pairs

PAIR = Pair(
    noted("forward")(layer_norm),
    noted("backward")(layer_norm_backward),
    (layer_norm, layer_norm_backward),
)


def plain(x, normalized_shape, weight=None, bias=None, eps=1e-05):
    return F.layer_norm(x, normalized_shape, weight, bias, eps)


WITH_PAIR = Claim(noted("pair's own")(plain), pair=PAIR)
FORWARD_ONLY = Claim(noted("forward only")(plain))


@pytest.mark.parametrize("order", [("pair", "only"), ("only", "pair")])
def test_the_pair_is_used_where_a_gradient_is_needed(order: tuple[str, str]) -> None:
    """The search for a gradient does not stop at an executor without one."""
    both = {"pair": executor("pair", WITH_PAIR), "only": executor("only", FORWARD_ONLY)}
    jitted = check(f, *(both[name] for name in order))
    assert RAN == ["forward", "backward"]
    assert tj.explain(jitted).counts()["pair"] == 1
    RAN.clear()
    with torch.no_grad():
        jitted(torch.randn(4, 5), torch.randn(5))
    assert [{"pair": "pair's own", "only": "forward only"}[order[0]]] == RAN


def gradient(jitted: Any, call: str = "layer_norm") -> tuple[str, ...]:
    """Row of ``call`` in the table of gradients in `tj.explain`."""
    rows = str(tj.explain(jitted)).partition("gradients:")[2].splitlines()
    found = next(row for row in rows if row.split(" ")[0] == call)
    return tuple(cell.strip() for cell in found.split("  ") if cell)


@pytest.mark.parametrize("order", [("pair", "only"), ("only", "pair")])
def test_whose_gradient_it_is_and_who_had_none_is_explained(order: tuple[str, str]) -> None:
    both = {"pair": executor("pair", WITH_PAIR), "only": executor("only", FORWARD_ONLY)}
    jitted = check(f, *(both[name] for name in order))
    declined = ("only: it has no gradient",) if order[0] == "only" else ()
    assert gradient(jitted) == ("layer_norm", LAYER_NORM, "pair", *declined)
    assert gradient(jitted, "sin") == ("sin", "derived", "autograd")
    ran = {record.executor for record in tj.explain(jitted).others["backward"]}
    assert "pair" in ran
    assert "\nbackward:\n" in str(tj.explain(jitted))


def test_a_plugins_rule_is_explained() -> None:
    rule = GradRule(layer_norm, layer_norm_backward)
    assert gradient(check(f, rules(LAYER_NORM, rule))) == ("layer_norm", LAYER_NORM, "Rules")
    assert gradient(check(f)) == ("layer_norm", "derived", "autograd")


def test_who_declined_a_gradient_is_explained() -> None:
    rule = GradRule(layer_norm, layer_norm_backward, lambda call: Decline("too small"))
    pair = executor("pair", Claim(plain, lambda call: Decline("too small"), PAIR))
    jitted = check(f, rules(LAYER_NORM, rule), pair)
    said = "pair: too small; Rules: too small"
    assert gradient(jitted) == ("layer_norm", "derived", "autograd", said)


@pytest.mark.parametrize("answer", [False, None, "too small"])
def test_a_check_that_neither_agrees_nor_declines_is_named(answer: Any) -> None:
    rule = GradRule(layer_norm, layer_norm_backward, lambda call: answer)
    claim = Claim(plain, lambda call: answer, PAIR)
    for plugin, whose in (
        (rules(LAYER_NORM, rule), "the gradient rule of plugin 'Rules'"),
        (executor("pair", claim), "executor 'pair' of plugin 'pair' (inline)"),
    ):
        with pytest.raises(PluginError) as error:
            check(f, plugin)
        assert error.value.message.startswith(f"{whose} answered {answer!r} in its check of")
        assert notes(error.value) == []


def test_a_pair_without_functions_for_metadata_runs_on_fakes() -> None:
    check(f, executor("pair", Claim(plain, pair=Pair(layer_norm, layer_norm_backward))))


def test_a_check_holds_for_the_pair_too() -> None:
    claim = Claim(plain, lambda call: Decline("too small"), PAIR)
    check(f, executor("pair", claim))
    assert RAN == []


def test_a_pair_comes_before_a_rule() -> None:
    check(
        f,
        rules(LAYER_NORM, GradRule(layer_norm, noted("rule")(layer_norm_backward))),
        executor("pair", WITH_PAIR),
    )
    assert RAN == ["forward", "backward"]


def test_a_forward_alone_takes_the_augmented_calls_parts() -> None:
    """Executors may claim the parts of a forward whose derived rule saves more than the call
    returns.
    """
    claim = Claim(noted("native")(torch.native_layer_norm))
    check(f, executor("native", claim, "aten.native_layer_norm.default"))
    assert RAN == ["native"]


def test_executors_claim_backward_calls() -> None:
    claim = Claim(noted("cos")(torch.cos))
    check(f, executor("cosine", claim, "aten.cos.default"))
    assert RAN == ["cos"]


def test_a_pair_needs_an_implementation() -> None:
    with pytest.raises(PluginError, match="needs an implementation"):
        Claim(None, pair=PAIR)


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_a_pair_that_does_not_fit(half: str) -> None:
    wrong = {"forward": lambda x, *a: x, "backward": lambda s, g: (g.sum(),)}[half]
    meta = (wrong, layer_norm_backward) if half == "forward" else (layer_norm, wrong)
    with pytest.raises(PluginError, match="pair for"):
        check(f, executor("pair", Claim(plain, pair=Pair(layer_norm, layer_norm_backward, meta))))


# ------------------------------------------------------------------------------- recorded


def test_an_operation_that_looks_at_data() -> None:
    """The backward of a data-dependent operation is known only after it has run."""

    def g(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        spectrum = torch.complex(x.t(), x.t().sin())
        return torch.istft(spectrum, 8, window=w.new_ones(8)).sum() * w.exp().sum()

    symbols = [c.symbol.qualname for c in tj.last_trace(check(g), stage="JOINT").calls]
    assert "tj_autograd.joint.recordings.forward" in symbols
    assert "tj_autograd.joint.recordings.backward" in symbols


def test_parts_around_a_graph_break_have_gradients() -> None:
    def g(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        spread = F.gaussian_nll_loss(x, x.detach() * 0, w.exp().expand(4, 5))
        return spread * 2 + x.sin().sum()

    with pytest.warns(tj.TjWarning, match="graph break"):
        check(g)


def test_numbers_are_drawn_in_eagers_order() -> None:
    """Dropout of what is laid out in another way than row by row draws in the order of memory."""

    def g(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (F.dropout((x * w).t(), 0.5) * 3).sum() + F.dropout(x * w, 0.5).sum()

    results = []
    for fn in (tj.jit(g), g):
        torch.manual_seed(0)
        x, w = torch.randn(4, 5, requires_grad=True), torch.randn(5, requires_grad=True)
        results.append((*torch.autograd.grad(fn(x, w), [x, w]), torch.rand(3)))
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("grad", "torch.sin", lambda x: x, "the rule for 'torch.sin' .* is a function, not a Grad"),
        ("gradd", "torch.sin", "any", r"nobody reads rule table 'gradd'\. Did you mean 'grad'\?"),
        ("grad", "sin", "any", r"table 'grad': 'sin' names no operation\. Did you mean 'torch.sin"),
        ("grad", "torch.sinn", "any", r"no operation 'torch.sinn'\. Did you mean 'torch.sinh?'"),
    ],
)
def test_rules_that_would_never_be_asked_are_named(
    name: str, key: str, value: Any, message: str
) -> None:
    rule = GradRule(layer_norm, layer_norm_backward) if value == "any" else value
    table: RuleTable[Any] = RuleTable(name)
    table.set(key, rule)
    plugin = plugin_object("mine", tj_rule_tables=(table,))
    with pytest.raises(PluginError, match=rf"^plugin 'mine' \(inline\).*{message}"):
        tj.Session(plugins=[plugin, "torch", "autograd"], overrides={"strict": True})


def test_a_rule_consists_of_functions() -> None:
    with pytest.raises(PluginError, match=r"^GradRule: backward must be a function, not a NoneT"):
        GradRule(layer_norm, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("forward", [lambda: None, lambda x, *, other: None, dict.fromkeys])
def test_a_pair_whose_forward_takes_something_else_is_the_executors_fault(forward: Any) -> None:
    pair = Pair(forward, layer_norm_backward, meta=(layer_norm, layer_norm_backward))
    with pytest.raises(PluginError) as error:
        check(f, executor("pair", Claim(plain, pair=pair)))
    assert error.value.message.startswith(
        f"the pair for {LAYER_NORM!r} of executor 'pair' of plugin 'pair' (inline) does not fit: "
        "its forward has not the operation's parameters"
    )
    assert notes(error.value) == []
