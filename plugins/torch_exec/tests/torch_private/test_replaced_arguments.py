"""Replaced functions of PyTorch take the positional arguments of the functions they replace.

A new PyTorch may give a function another parameter. A replacement that does not take it raises in
the middle of a capture; the program then runs in eager, with right results.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import pytest
from tj_torch.capture.dynamo.features import FEATURES
from tj_torch.capture.dynamo.observations import Observations
from tj_torch.torch_private.replacement import noting, path_of

if TYPE_CHECKING:
    from tj_torch.torch_private.features import Correction

POSITIONAL = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD


def plain(found: Any) -> Any:
    """The function of a method of a class or an object, or of a static one."""
    return getattr(found, "__func__", found)


def counts(function: Callable[..., Any]) -> range | None:
    """Numbers of positional arguments that ``function`` takes; None if that cannot be said."""
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # a C function without a text signature
        return None
    if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        return None
    taken = [p for p in parameters if p.kind in POSITIONAL]
    return range(sum(p.default is Parameter.empty for p in taken), len(taken) + 1)


def refused(original: Any, made: Any) -> list[int]:
    """Numbers of positional arguments that ``original`` takes, and ``made`` does not."""
    wanted = counts(plain(original))
    if wanted is None or isinstance(plain(made), type):
        return []
    signature = inspect.signature(plain(made), follow_wrapped=False)
    needed = [
        p.name
        for p in inspect.signature(plain(original), follow_wrapped=False).parameters.values()
        if p.kind is Parameter.KEYWORD_ONLY and p.default is Parameter.empty
    ]

    def takes(count: int) -> bool:
        try:
            signature.bind(*[None] * count, **dict.fromkeys(needed))
        except TypeError:
            return False
        return True

    return [count for count in wanted if not takes(count)]


@pytest.mark.probe
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_replacements_take_the_arguments_of_the_replaced(feature: Correction) -> None:
    with ExitStack() as stack:
        with noting() as seen:
            feature.apply(stack, Observations())
        made = [(owner, name, vars(owner)[name]) for owner, name in seen]
    found = {
        f"{path_of(owner)}.{name}": numbers
        for owner, name, replacement in made
        if (numbers := refused(vars(owner).get(name, getattr(owner, name)), replacement))
    }
    assert not found


def test_a_parameter_that_is_new_is_found() -> None:
    class Variable:
        @classmethod
        def create(cls, tx: Any, text: str, args: Any = ()) -> None: ...

    def create(cls: Any, text: str, args: Any) -> None: ...

    def any_number(cls: Any, *given: Any) -> None: ...

    original = vars(Variable)["create"]
    assert refused(original, classmethod(create)) == [4]
    assert not refused(original, classmethod(any_number))
