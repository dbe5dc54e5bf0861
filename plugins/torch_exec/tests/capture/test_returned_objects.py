"""Calls that return an object they are given: the program's names are all of one object."""

from __future__ import annotations

import gc

import pytest
import tj_core as tj
import torch
from tj_torch.capture.dynamo.patches import OfGraph
from tj_torch.capture.eager_probe import equal_to_eager

pytestmark = pytest.mark.usefixtures("lenient", "forgotten")

START = """
import operator
p = torch.nn.Parameter(torch.ones(2))
p.grad = torch.ones(2) * 3
given, keys = p.grad, {p: 'value'}
def gradient(p):
    return None if p.grad is None else p.grad.tolist()
def seen():
    return p.tolist(), p._version, gradient(p), p.requires_grad, getattr(p, 'mark', 0)
@torch.no_grad()
def f(p, k):
    DO
    return RETURN
"""

WRITES = [
    "p -= k * p.grad",
    "w = p.mul_(2)",
    "w = torch.add(p, k, out=p)",
    "w = operator.iadd(p, k)",
    "w = torch.nn.init.zeros_(p)",
    "w = torch.nn.functional.relu_(p)",
    "w = p.contiguous()",
    "w = p.to(torch.float32)",
    "w = p.requires_grad_()",
    "w = p.clamp_(max=k).neg_()",
]

ATTRIBUTES = [
    "{}.grad = None",
    "del {}.grad",
    "setattr({}, 'grad', None)",
    "{}.grad = torch.zeros(2); {}.grad.add_(1)",
    "{}.mark = 3",
    "{}.requires_grad_(False)",
    "{}.grad.zero_()",
    "{}.data = torch.zeros(2)",
]

READS = [
    "{}.grad",
    "getattr({}, 'mark', None)",
    "({} is p, {} in keys, keys.get({}))",
    "({}.is_leaf, {}.requires_grad, isinstance({}, torch.nn.Parameter))",
    "{}.grad.sum() * {}",
]


def _named(text: str, write: str) -> str:
    return text.replace("{}", "w" if write.startswith("w = ") else "p")


@pytest.mark.sampled(24)
@pytest.mark.parametrize("attribute", ATTRIBUTES)
@pytest.mark.parametrize("write", WRITES)
def test_attributes_set_after_a_write(write: str, attribute: str) -> None:
    text = START.replace("DO", f"{write}; {_named(attribute, write)}").replace("RETURN", "p + 1")
    again = "setattr(p, 'grad', given)"
    calls = ("f(p, 1)", "seen()", again, "f(p, 0)", "seen()", again, "f(p, 2.5)")
    # No trace holds that a tensor gets other memory.
    equal_to_eager(text, *calls, leaves_frames=".data = " in attribute)()


@pytest.mark.sampled(20)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("write", WRITES)
def test_reads_after_a_write(write: str, read: str) -> None:
    returned = _named(read, write)
    text = START.replace("DO", f"p.mark = k; {write}").replace("RETURN", returned)
    equal_to_eager(text, "f(p, 1)", "seen()", "f(p, 2)", "seen()")()


LOOP = """
ps = [torch.ones(2, requires_grad=True) for _ in range(3)]
momentum = {p: torch.zeros(2) for p in ps}
def f(x, rate):
    loss = sum((x * p).sum() for p in ps)
    loss.backward()
    with torch.no_grad():
        for p in ps:
            STEP
    return loss
def state():
    return [(p.tolist(), p.grad is None, momentum[p].tolist()) for p in ps]
"""

STEPS = [
    "p -= rate * p.grad; p.grad = None",
    "p -= rate * p.grad; p.grad.zero_()",
    "v = momentum[p]; v *= 0.9; v += p.grad; p -= rate * v; p.grad = None",
    "momentum[p] = momentum[p] * 0.9 + p.grad; p.sub_(rate * momentum[p]); del p.grad",
]


@pytest.mark.parametrize("step", STEPS)
def test_an_optimizer_by_hand(step: str) -> None:
    text = LOOP.replace("STEP", step)
    calls = [f"(f(torch.ones(2), {rate}), state())" for rate in (0, 1, 0.1, 0.2)]
    equal_to_eager(text, *calls)()


NEW = """
x = torch.arange(3.0)
def f(x):
    y = x * 2
    y.mark = 3
    z = y.add_(1)
    z.other = 4
    out = torch.empty_like(x)
    out.k = 1
    r = torch.add(x, z, out=out)
    return getattr(z, 'mark', 0), getattr(y, 'other', 0), getattr(r, 'k', 0), r is out, z, r
"""


def test_objects_that_the_program_makes() -> None:
    equal_to_eager(NEW, "f(x)", "f(x + 1)")()


SEVERAL = """
x = torch.arange(6.0).view(2, 3)
def f(x):
    values, places = torch.empty(2), torch.empty(2, dtype=torch.int64)
    values.mark = 5
    found, at = torch.max(x, 1, out=(values, places))
    return found is values, getattr(found, 'mark', 0), found, at
"""

BRANCHES = """
x = torch.arange(3.0)
def f(x):
    y = x * 2
    z = torch.cond(x.sum() > 2, lambda y: y.sin().add_(1), lambda y: y.cos().mul_(2), (y,))
    return z + y
"""


@pytest.mark.parametrize("text", [SEVERAL, BRANCHES])
def test_several_results_and_branches(text: str) -> None:
    equal_to_eager(text, "f(x)", "f(x - 2)")()


KEYS = """
p, q, r = torch.ones(2), torch.ones(2), torch.ones(2)
d = {p: 1.0, q: 2.0}
def f(ps, d):
    y = ps[0] * ps[1]
    d[ps[0]] = d[ps[0]] + 1
    return y
"""


def test_inputs_that_are_keys_too() -> None:
    """One source for each way to an object: such are guarded to be one, not to differ."""
    calls = ["f([p, q], d)", "f([p, q], d)", "f([q, p], d)", "f([p, r], d)", "f([q, q], d)"]
    calls += ["f([p, q], {q: 5.0, p: 2.0})", "f([p, q], {r: 1.0, q: 2.0})", "[*d.values()]"]
    equal_to_eager(KEYS, *calls)()


CLIPPED = """
torch.manual_seed(0)
m = torch.nn.Linear(4, 3)
o = torch.optim.OPTIMIZER(m.parameters(), lr=0.1)
x = torch.rand(5, 4)
def f(x):
    loss = m(x).pow(2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
    o.step()
    o.zero_grad()
    return loss.detach()
"""


@pytest.mark.parametrize("optimizer", ["AdamW", "Adagrad"])
def test_parameters_read_before_a_step_with_state(optimizer: str) -> None:
    equal_to_eager(CLIPPED.replace("OPTIMIZER", optimizer), *["f(x)"] * 4, "m.weight")()


def test_a_capture_leaves_no_variables() -> None:
    tj.jit(lambda x: x.mul(2).add_(1))(torch.ones(3))
    kept = [o for o in gc.get_objects() if type(o) is OfGraph]
    assert [o._notes for o in kept] == [o._make() for o in kept]
