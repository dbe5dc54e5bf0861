"""How a test file is put on tj, and how it is run without, to see who is to blame."""

from __future__ import annotations

from enum import Enum
from pathlib import PurePosixPath

__all__ = ["FILES", "Kind", "Mode", "environment", "kind_of", "references"]

FILES = (
    "functorch/test_aotdispatch.py",
    "test_autograd.py",
    "test_view_ops.py",
    "test_indexing.py",
    "test_custom_ops.py",
    "dynamo/test_misc.py",
    "dynamo/test_repros.py",
    "dynamo/test_higher_order_ops.py",
    "dynamo/test_autograd_function.py",
    "dynamo/test_aot_autograd.py",
    "dynamo/test_hooks.py",
    "dynamo/test_ctx_manager.py",
    "dynamo/test_subclasses.py",
)
"""The files of the standing measure, below ``test``."""


class Kind(Enum):
    """What a test file is about."""

    WRAPPED = "wrapped"
    """Eager programs: Dynamo wraps the whole test."""
    DYNAMO = "dynamo"
    """Dynamo's own tests: the backends that they name are replaced."""
    AOT = "aot"
    """Tests of ``aot_function``: `tj.jit` takes its place."""


class Mode(Enum):
    """What a process runs the tests on."""

    TJ = "tj"
    """Backend ``tj``; in place of ``aot_function``, `tj.jit`."""
    JIT = "jit"
    """`tj.jit` itself where a function is compiled."""
    EAGER = "eager"
    """Wrapped by Dynamo with its backend ``eager``."""
    PLAIN = "plain"
    """The file as it stands."""


def kind_of(file: str) -> Kind:
    """The kind of a file, by its path below ``test``."""
    path = PurePosixPath(file)
    if path.parts[0] == "dynamo":
        return Kind.DYNAMO
    return Kind.AOT if path.stem == "test_aotdispatch" else Kind.WRAPPED


def references(kind: Kind) -> tuple[Mode, ...]:
    """How tests that fail run again, without tj."""
    return (Mode.PLAIN, Mode.EAGER) if kind is Kind.WRAPPED else (Mode.PLAIN,)


def environment(kind: Kind, mode: Mode) -> dict[str, str]:
    """Variables that are read when PyTorch's test classes are imported."""
    if kind is not Kind.WRAPPED or mode is Mode.PLAIN:
        return {}
    return {"PYTORCH_TEST_WITH_DYNAMO": "1", "PYTORCH_TEST_WITHOUT_COMPILED_AUTOGRAD": "1"}
