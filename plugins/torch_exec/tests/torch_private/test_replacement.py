"""Functions of PyTorch replaced for a while."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tj_torch.torch_private.lookup import MissingNameError
from tj_torch.torch_private.replacement import replace


@dataclass(frozen=True)
class Entry:
    handler: Any


class Variable:
    """A class with a table of methods, as Dynamo's are from 2.14 on."""

    def size(self) -> int:
        return 1

    def stride(self) -> int:
        return 2

    tp_methods: ClassVar = {"size": Entry(size), "numel": Entry(size), "stride": Entry(stride)}

    def called(self, name: str) -> Any:
        return self.tp_methods[name].handler(self)


def test_a_method_is_replaced_in_the_table_that_it_is_called_from() -> None:
    variable = Variable()
    before = dict(Variable.tp_methods)
    with ExitStack() as stack:
        replace(stack, Variable, "size", lambda size: lambda self: size(self) + 10)
        assert [variable.called(n) for n in ("size", "numel", "stride")] == [11, 11, 2]
        assert variable.size() == 11
    assert Variable.tp_methods == before
    assert variable.size() == 1


def test_a_method_that_is_not_there_is_missing() -> None:
    with ExitStack() as stack, pytest.raises(MissingNameError, match="numel"):
        replace(stack, Variable, "numel", lambda original: original)
