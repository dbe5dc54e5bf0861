"""Break the graph where Python's own random number generators draw.

Dynamo copies a `random.Random` and writes the captured call's numbers and states into the program,
so that each call would draw the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct"]


def correct(stack: ExitStack) -> None:
    """Break the graph where a generator draws, unless the program makes it with a seed."""
    from tj_torch.torch_private.dynamo import RandomVariable, misc, user_defined

    def leaving(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_random_fn(tx: Any, fn: Any, *args: Any) -> Any:
            stop("a number that Python's generators draw")

        return call_random_fn

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, rand: Any = None, seed: Any = None, **kwargs: Any) -> None:
            if rand is None and (seed is None or seed.is_constant_none()):
                stop("a random.Random without a seed")
            original(self, rand, seed, **kwargs)

        return init

    def drawing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if self.source is not None:
                stop(f"{name}() of a random.Random, which has a state of its own")
            return original(self, tx, name, *args, **kwargs)

        return call_method

    replace(stack, misc, "call_random_fn", leaving)
    replace(stack, user_defined, "call_random_fn", leaving)
    replace(stack, RandomVariable, "__init__", made)
    # From 2.14 on, a base class has the method.
    replace(stack, RandomVariable, "call_method", drawing, inherited=True)
