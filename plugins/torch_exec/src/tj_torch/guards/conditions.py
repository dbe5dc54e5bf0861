"""Conditions of a graph in Python, which Dynamo checks as one guard, after all others."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

__all__ = ["Conditions"]


class Conditions:
    """Conditions that a graph depends on, each as code and as text.

    In code, ``G`` is the dict of the program's globals. What raises does not hold. ``of_objects``
    counts those on objects that the program is given; others are on modules and globals.
    """

    def __init__(self) -> None:
        from tj_torch.torch_private.dynamo import GlobalStateSource

        self.scope: dict[str, Any] = {}
        self.texts: dict[str, str] = {}
        self.of_objects = 0
        # One object, since Dynamo tells guards apart by the functions that make them.
        self._guard = GlobalStateSource().make_guard(functools.partial(_create, conditions=self))

    def add(self, code: str, text: str = "", *, of_objects: bool = True, **scope: Any) -> None:
        """Guard ``code``, with further names in ``scope``.

        To be called each time: Dynamo takes guards back where it goes back in the program.
        """
        from tj_torch.torch_private.dynamo import install_guard

        self.of_objects += of_objects and code not in self.texts
        self.scope |= scope
        self.texts[code] = text or code
        install_guard(self._guard)

    def bind(self, wish: str, value: Any) -> str:
        """Name of ``value`` in the code, which begins with ``wish``."""
        for name, known in self.scope.items():
            if known is value:
                return name
        made = f"{wish}{len(self.scope)}"
        self.scope[made] = value
        return made


def _create(builder: Any, guard: Any, conditions: Conditions) -> None:
    from tj_torch.torch_private.dynamo import get_verbose_code_parts

    texts = conditions.texts
    # By number: Dynamo computes an expression that stands in two conditions before both.
    codes = [f"({code}) or fail({number})" for number, code in enumerate(texts)]
    verbose = get_verbose_code_parts([" and ".join(texts.values())], guard)
    scope = {**conditions.scope, "fail": functools.partial(_fail, [*texts.values()])}
    builder.add_python_lambda_leaf_guard_to_root(codes, verbose, scope)


def _fail(texts: list[str], number: int) -> NoReturn:
    """Say which condition does not hold: the message of an error in a guard is its reason."""
    raise LookupError(texts[number])
