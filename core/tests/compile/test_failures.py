"""Errors inside of a pass of tj's own."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from tj_core.compile.failures import own_pass
from tj_core.errors import PassError


class Argument:
    pass


def test_an_error_that_is_replaced_keeps_no_arguments() -> None:
    def fails(argument: Any) -> None:
        with own_pass("mine", strict=False):
            raise LookupError

    def call() -> weakref.ref[Argument]:
        argument = Argument()
        with pytest.raises(PassError, match="mine") as caught:
            fails(argument)
        del caught
        return weakref.ref(argument)

    gc.collect()
    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()
