"""Remembered expansions are those that would be made: equal traces and guards, over databases.

The default run takes a sample; ``TJ_FULL=1`` (``tox -e conformance``) runs everything.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from tj_conformance.module_db import modules
from tj_conformance.op_db import full_name, operations, sample_arguments
from tj_conformance.remembered import compare_memo
from tj_torch.ops.memo import memo

FULL = os.environ.get("TJ_FULL") == "1"
SAMPLES = 2
OPERATIONS = operations()
MODULES = modules()


def check(name: str, make: Callable[[], Any], calls: Iterable[Any]) -> None:
    found = compare_memo(make, calls)
    assert found.problems == []
    # PyTorch chooses between two kinds of max pooling in closures, which no key stands for.
    remembered = "maxpool" not in name.lower().replace("_", "")
    assert found.again.hits > 0 or not found.without.misses or not remembered


@pytest.mark.parametrize("op", OPERATIONS if FULL else OPERATIONS[5::48], ids=full_name)
def test_operation(op: Any) -> None:
    def make() -> Any:
        return lambda *args, **kwargs: op.op(*args, **kwargs)

    check(full_name(op), make, sample_arguments(op, torch.float32, SAMPLES, grad=False))


def samples(info: Any, training: bool) -> Iterator[tuple[Callable[[], Any], Any]]:
    """What makes the module of each sample, and the arguments it is called with."""
    torch.manual_seed(0)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=training, training=training
    )
    for sample in itertools.islice(inputs, SAMPLES):
        given, taken = sample.constructor_input, sample.forward_input

        def make(given: Any = given) -> Any:
            torch.manual_seed(3)
            return info.module_cls(*given.args, **given.kwargs).train(training)

        if taken is not None:
            yield make, (tuple(taken.args), dict(taken.kwargs))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("info", MODULES if FULL else MODULES[3::24], ids=lambda m: m.name)
def test_module(info: Any, training: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        taken = list(samples(info, training))
    for make, call in taken:
        check(info.name, make, [call])


def test_what_differs_is_found() -> None:
    """A memo that mixes up calls is not what is compared with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memo, "call_key", lambda fn, *rest: ((id(fn),), (fn,)))
        calls = [((torch.ones(2),), {}), ((torch.ones(2, 2),), {})]
        found = compare_memo(lambda: lambda x: x.sum(-1), calls)
    assert "traces differ" in found.problems
