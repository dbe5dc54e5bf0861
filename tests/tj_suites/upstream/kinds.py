"""Ways to run a test file on tj, and without it, to tell whose fault a failure is."""

from __future__ import annotations

from enum import Enum
from pathlib import PurePosixPath

__all__ = ["EXACT", "INSTALLED", "Kind", "Mode", "environment", "kind_of", "references"]


class Kind(Enum):
    """The ways in which test files come to compile."""

    WRAPPED = "wrapped"
    """Eager programs: Dynamo wraps the whole test."""
    DYNAMO = "dynamo"
    """Dynamo's own tests: the backends that they name are replaced."""
    AOT = "aot"
    """Tests of ``aot_function``: `tj.jit` takes its place."""
    COMPILED = "compiled"
    """Inductor's tests: `tj.jit` compiles, and a comparison with eager is the check of a model."""
    TRANSFORMS = "transforms"
    """Tests of ``torch.func``: what it is given, or what it returns, is jitted."""


class Mode(Enum):
    """Compiler that a process runs the tests on."""

    TJ = "tj"
    """Backend ``tj``; in place of ``aot_function``, `tj.jit`."""
    JIT = "jit"
    """`tj.jit` itself where a function is compiled."""
    INSIDE = "inside"
    """``grad(jit(f))``, and so for every transform of ``torch.func``."""
    OUTSIDE = "outside"
    """``jit(grad(f))``."""
    EAGER = "eager"
    """Wrapped by Dynamo with its backend ``eager``; of Inductor's tests, with nothing compiled."""
    PLAIN = "plain"
    """The file as it stands."""


EXACT = dict.fromkeys(
    (
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
    ),
    (Mode.TJ,),
)
"""The files of the exact measure, below ``test``, with PyTorch's kernels alone, and their modes."""

INSTALLED = {
    "inductor/test_torchinductor.py": (Mode.JIT,),
    "inductor/test_torchinductor_dynamic_shapes.py": (Mode.JIT,),
    "inductor/test_cpu_repro.py": (Mode.JIT,),
    "inductor/test_compiled_optimizers.py": (Mode.JIT,),
    "test_nn.py": (Mode.JIT,),
    "test_torch.py": (Mode.JIT,),
    "test_optim.py": (Mode.JIT,),
    "test_ops.py": (Mode.JIT,),
    "functorch/test_eager_transforms.py": (Mode.INSIDE, Mode.OUTSIDE),
    "dynamo/test_functions.py": (Mode.TJ,),
    "dynamo/test_modules.py": (Mode.TJ,),
    "dynamo/test_exceptions.py": (Mode.TJ,),
    "dynamo/test_activation_checkpointing.py": (Mode.TJ,),
}
"""The files of the measure as installed, with all plugins and the defaults, and their modes."""


def kind_of(file: str) -> Kind:
    """The kind of a file, by its path below ``test``."""
    path = PurePosixPath(file)
    return _FOLDERS.get(path.parts[0]) or _STEMS.get(path.stem, Kind.WRAPPED)


_FOLDERS = {"dynamo": Kind.DYNAMO, "inductor": Kind.COMPILED}
_STEMS = {"test_aotdispatch": Kind.AOT, "test_eager_transforms": Kind.TRANSFORMS}


def references(kind: Kind) -> tuple[Mode, ...]:
    """Modes in which failing tests run again, without tj."""
    return _REFERENCES.get(kind, (Mode.PLAIN,))


_REFERENCES = {Kind.WRAPPED: (Mode.PLAIN, Mode.EAGER), Kind.COMPILED: (Mode.EAGER,)}


def environment(kind: Kind, mode: Mode) -> dict[str, str]:
    """Variables that are read when PyTorch's test classes are imported."""
    if kind is not Kind.WRAPPED or mode is Mode.PLAIN:
        return {}
    return {"PYTORCH_TEST_WITH_DYNAMO": "1", "PYTORCH_TEST_WITHOUT_COMPILED_AUTOGRAD": "1"}
