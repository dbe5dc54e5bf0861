"""One run of a function: results, gradients, arguments and random state afterwards."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from tj_conformance.executor.calls import Call, tensors
from tj_conformance.executor.comparison import Differs, same_call
from tj_conformance.executor.rounding import Drawn, Runs, scaled
from tj_conformance.gradients.gradients import first_gradients, second_gradients
from tj_conformance.oracle.device import random_state
from tj_conformance.oracle.nearness import doubled
from tj_conformance.oracle.twins import clone_tree

__all__ = [
    "RUNS",
    "EagerRaises",
    "Function",
    "Seen",
    "alike",
    "continued",
    "copies",
    "led",
    "rounding_of",
    "run",
    "see",
    "seed",
]

Function = Callable[..., Any]
SEED = 11


class EagerRaises(Exception):
    """Eager raises here, so there is nothing to compare with."""


@dataclass(frozen=True)
class Seen:
    """One run: its results, with gradients if it took any, its arguments, and random state."""

    results: Any
    given: Call
    state: Any


def _forward(fn: Function, given: Call) -> Any:
    return fn(*given.args, **given.kwargs)


def _first(fn: Function, given: Call) -> Any:
    out = fn(*given.args, **given.kwargs)
    return out, first_gradients(out, (given.args, given.kwargs))


def _second(fn: Function, given: Call) -> Any:
    out = fn(*given.args, **given.kwargs)
    return out, second_gradients(out, (given.args, given.kwargs))


def _later(fn: Function, given: Call) -> Any:
    calls = [Call(*given.args[:2]), Call(*given.args[2:])]
    outs = [fn(*call.args, **call.kwargs) for call in calls]
    return [_summed(out, call) for out, call in zip(outs, calls, strict=True)]


def _summed(out: Any, call: Call) -> Any:
    """Gradients of the sum of all results."""
    wanted = [x for x in tensors(call) if x.requires_grad]
    outs = [y.abs().sum() for y in tensors(out) if y.requires_grad]
    return torch.autograd.grad(outs, wanted, allow_unused=True) if outs and wanted else ()


RUNS: Mapping[str, Callable[[Function, Call], Any]] = {
    "forward": _forward,
    "gradients": _first,
    "second gradients": _second,
    "gradients after a later call": _later,
}
"""Kinds of runs by name; the last one takes the arguments of two calls."""


def run(fn: Function, call: Call, kind: str = "forward") -> Any:
    """Run ``fn`` for the arguments of ``call`` themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some samples are of features that warn
        return RUNS[kind](fn, call)


def see(fn: Function, call: Call, kind: str = "forward") -> Seen:
    """Run ``fn`` for copies of the arguments, all random generators at a fixed state."""
    given = call.twins(grad=kind != "forward")
    seed()
    results = run(fn, given, kind)
    return Seen(results, given, _state())


def alike(jitted: Function, f: Function, call: Call, kind: str = "forward") -> None:
    """Raise unless ``jitted`` does what ``f`` does, the one after the other.

    :raises EagerRaises: if ``f`` does.
    :raises Differs: if they differ.
    """
    expected = eager(f, call, kind)
    got = see(jitted, call, kind)
    mine, theirs = ((s.results, (s.given.args, s.given.kwargs)) for s in (got, expected))
    same_call(mine, theirs, runs=rounding_of(f, call, kind))
    if got.state != expected.state:
        raise Differs("the state of the random number generators is not eager's afterwards")


def eager(f: Function, call: Call, kind: str = "forward") -> Seen:
    """Eager's run.

    :raises EagerRaises: if it raises.
    """
    try:
        return see(f, call, kind)
    except Exception as error:
        raise EagerRaises(str(error)) from error


def rounding_of(f: Function, call: Call, kind: str) -> Runs:
    """Runs of ``f`` that say how far its values are rounded."""

    def moved(step: int) -> Call:
        return Call(*scaled((call.args, dict(call.kwargs)), step)) if step else call

    def exact(step: int) -> Any:
        given = moved(step)
        real = (x.dtype.to_real() for x in tensors(given))
        with Drawn(next((t for t in real if t.is_floating_point), torch.float32)):
            seen = see(f, Call(*doubled((given.args, dict(given.kwargs)))), kind)
        if seen.state != eager(f, given, kind).state:
            raise Differs("other random numbers are drawn in double precision")
        return seen.results

    return Runs(lambda step: see(f, moved(step), kind).results, exact)


def copies(tree: Any) -> Any:
    """Copies of all tensors in ``tree``, without gradients."""
    return clone_tree(tree_map_only(torch.Tensor, torch.Tensor.detach, tree))


def continued(out: Any) -> Any:
    """``out``, and values computed from its tensors: one operation alone makes no region."""
    return out, [_used(x) for x in _leaves(out) if isinstance(x, torch.Tensor)]


def led(args: Any) -> Any:
    """``args``, those that need gradients times one: then the backward has regions, too."""
    # Programs are captured by the hundred, and Dynamo would take half of the time for pytree.
    if isinstance(args, torch.Tensor):
        return args * 1 if args.requires_grad else args
    if isinstance(args, dict):
        return {key: led(value) for key, value in args.items()}
    if type(args) is list:
        return [led(value) for value in args]
    return tuple([led(value) for value in args]) if type(args) is tuple else args


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [tree]


def _used(x: torch.Tensor) -> torch.Tensor:
    if x.layout is not torch.strided:
        return x
    if x.dtype is torch.bool:
        return x.logical_not()
    return (x + 1) * x if x.is_floating_point() or x.is_complex() else x + 1


def seed() -> None:
    """Set all random generators to a fixed state."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)


def _state() -> Any:
    numpy = sys.modules.get("numpy")
    others = None if numpy is None else numpy.random.get_state(legacy=False)["state"]
    mine = None if others is None else (others["key"].tobytes(), others["pos"])
    return [x.tolist() for x in random_state()], random.getstate(), mine
