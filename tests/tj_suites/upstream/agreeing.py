"""Stand-ins for Inductor's generated code and its counts, which agree with all that a test asks.

A test that looks for a kernel's text before it compares results would else end there: of a program
of tj the text is another one, or none.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["AGREEING", "agree", "agree_on_counters"]


class _Agreeing:
    """Object that every look-up and computation returns again; every comparison with it holds."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        """Nothing is kept."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Nothing is kept."""

    def __iter__(self) -> Iterator[Any]:
        """One text, where texts are looked through."""
        yield self

    def _itself(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def _true(self, *args: Any) -> bool:
        return True

    __call__ = __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = _itself
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _true
    __hash__ = object.__hash__


AGREEING: Any = _Agreeing()


def _len(value: Any) -> Any:
    return AGREEING if value is AGREEING else builtins.len(value)


def _with_text(run: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Result of a call, and the generated code."""
    return run(*args, **kwargs), AGREEING


def _text(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    run(*args, **kwargs)
    return AGREEING


def _result(test: Any, run: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """The result of a call whose code is not looked at; ``settings`` say what it should have."""
    return run(*args)


def _with_both_texts(run: Callable[..., Any]) -> tuple[Any, tuple[Any, Any]]:
    """The result of a call whose sum is differentiated, and the code of forward and backward."""
    result = run()
    result.sum().backward()
    return result, (AGREEING, AGREEING)


STAND_INS: dict[str, Any] = {
    "FileCheck": AGREEING,
    "_run_and_assert_no_indirect_indexing": _result,
    "metrics": AGREEING,
    "run_and_get_code": _with_text,
    "run_and_get_cpp_code": _with_text,
    "run_and_get_triton_code": _text,
    "run_fw_bw_and_get_code": _with_both_texts,
}
"""By the names under which test files import them."""


def agree(module: ModuleType) -> None:
    """Let what ``module`` looks at in generated code agree with it."""
    scope = vars(module)
    scope.update({name: new for name, new in STAND_INS.items() if name in scope}, len=_len)


class _Counters:
    """The counters of Dynamo, where those of Inductor agree."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def __getitem__(self, name: str) -> Any:
        return AGREEING if name == "inductor" else self.original[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


def agree_on_counters() -> None:
    """Let Inductor's counters agree with whoever imports them from now on."""
    scope = vars(importlib.import_module("torch._dynamo.utils"))
    scope["counters"] = _Counters(scope["counters"])
