"""Guards of the keys in ``vars(x)`` and ``x.__dict__``, which Dynamo leaves out.

Dynamo finds the program's own writes there, and no changes between calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo import releases
from tj_torch.capture.dynamo.computed_attributes import dict_of
from tj_torch.capture.dynamo.patches import leave_frames
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["guard_own_dicts"]


def guard_own_dicts(stack: ExitStack) -> None:
    """Guard the keys that the program asks for, in dicts of objects that were there before.

    Up to 2.11 the graph breaks in functions that read such dicts.
    """
    from tj_torch.torch_private.dynamo import GuardBuilder, install_guard

    own = releases.own_dicts()
    if own is None:
        leave_frames(stack, _reads, "reads the dict of an object")
        return

    def all_keys(original: Callable[..., Any]) -> Callable[..., Any]:
        def install_dict_keys_match_guard(self: Any) -> None:
            if self.source is not None:
                install_guard(self.source.make_guard(GuardBuilder.DICT_KEYS_MATCH))

        return install_dict_keys_match_guard

    def one_key(original: Callable[..., Any]) -> Callable[..., Any]:
        def install_dict_contains_guard(self: Any, tx: Any, args: Any) -> None:
            if self.source is None:
                return
            if self.before is None or not args[0].is_python_constant():
                self.install_dict_keys_match_guard()
                return
            # The program may have written the key since.
            key = args[0].as_python_constant()
            there = key in self.before
            kind = GuardBuilder.DICT_CONTAINS if there else GuardBuilder.DICT_NOT_CONTAINS
            install_guard(self.source.make_guard(functools.partial(kind, key=key)))

        return install_dict_contains_guard

    replace(stack, own, "__init__", _noting)
    replace(stack, own, "install_dict_keys_match_guard", all_keys)
    replace(stack, own, "install_dict_contains_guard", one_key)


def _reads(instruction: Any) -> bool:
    """Test for an instruction that loads ``vars`` or an attribute ``__dict__``."""
    names = {"vars": ("LOAD_GLOBAL", "LOAD_NAME"), "__dict__": ("LOAD_ATTR", "LOAD_METHOD")}
    return instruction.opname in names.get(str(instruction.argval), ())


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let the variable of a dict have the keys from before."""

    def init(self: Any, vt: Any, *args: Any, **kwargs: Any) -> None:
        original(self, vt, *args, **kwargs)
        own = dict_of(getattr(vt, "value", getattr(vt, "fn", None)))
        self.before = None if own is None else frozenset(own)

    return init
