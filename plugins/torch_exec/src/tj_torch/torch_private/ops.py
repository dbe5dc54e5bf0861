"""Uses of private names of PyTorch by expansions; the names are in the tables beside this.

Those of fake tensors and symbols are found when they are first used, since PyTorch takes long to
import them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tj_torch.torch_private.eager import (
    TENSOR_BASE,
    BackwardCFunction,
    CreationMeta,
    DispatchKey,
    DispatchKeySet,
    _device_constructors,
    _disable_functionalization,
    _DisableAutocast,
    _disabled_torch_function_impl,
    _enable_functionalization,
    _ExcludeDispatchKeyGuard,
    _from_functional_tensor,
    _functionalize_has_data_mutation,
    _functionalize_has_metadata_mutation,
    _functionalize_sync,
    _get_creation_meta,
    _IncludeDispatchKeyGuard,
    _is_functional_tensor,
    _nn,
    _pop_saved_tensors_default_hooks,
    _push_saved_tensors_default_hooks,
    _saved_tensors_hooks_is_enabled,
    _select_conv_backend,
    _set_conj,
    _set_neg,
    _set_throw_on_mutable_data_ptr,
    _SetExcludeDispatchKeyGuard,
    _to_functional_tensor,
    _top_saved_tensors_default_hooks,
    _VariableFunctions,
    asserted_number,
)
from tj_torch.torch_private.lookup import MissingNameError
from tj_torch.torch_private.runtime import pytree
from tj_torch.torch_private.texts import WHERE_IMPORTED

__all__ = [
    "ASSERTED_NUMBER",
    "autograd_function_node",
    "base_of",
    "can_be_written",
    "convolution_backend",
    "data_dependent",
    "data_mutated",
    "deny_data_pointer",
    "depend_on_data",
    "disabled_torch_function",
    "factories",
    "fake_constant",
    "fake_reason",
    "fake_tensor",
    "functionalization",
    "functionalization_below_subclasses",
    "functionalized",
    "functionalized_again",
    "guarded_object",
    "has_no_hooks",
    "is_dense",
    "is_fake",
    "is_input_check",
    "is_known",
    "memory_format",
    "metadata_mutated",
    "no_autocast",
    "only_data_mutated",
    "paused_functionalization",
    "python_dispatcher",
    "python_functions",
    "quiet",
    "same_masks",
    "set_conj",
    "set_neg",
    "storage_id",
    "survives_writes",
    "symbols_for_placements",
    "unwrapped",
    "without_saved_tensor_hooks",
]


ASSERTED_NUMBER = asserted_number
"""The assertion of a graph on numbers that depend on data."""


def memory_format(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format that kernels take the strides of ``tensor`` for."""
    from tj_torch.torch_private.shapes import suggest_memory_format

    found: torch.memory_format = suggest_memory_format(tensor)
    return found


def convolution_backend(args: tuple[Any, ...]) -> str:
    """The backend of a convolution's gradients on CPUs: ``"Slow2d"``, ``"Mkldnn"``.

    ``args`` are the operator's: the tangent, the input, the weight, the bias's sizes and the rest.
    Of fake tensors PyTorch only says that another device does.
    """
    _, x, weight, bias_sizes, *how = args[:10]
    given = (torch.empty(1, dtype=t.dtype).expand(t.shape) for t in (x, weight))
    return str(_select_conv_backend(*given, None, *how, bias_sizes).name)


def is_known(truth: Any) -> bool:
    """Tell whether a number with symbols is true for all their values, with no guard."""
    from tj_torch.torch_private.shapes import statically_known_true

    return bool(statically_known_true(truth))


def depend_on_data(sizes: Sequence[Any]) -> bool:
    """Test for sizes with symbols whose values are known only where the program runs."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(sizes))


def fake_tensor(mode: Any, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A fake tensor on ``device`` with the metadata of ``meta``, made without dispatching."""
    from tj_torch.torch_private.shapes import FakeTensor

    made: torch.Tensor = FakeTensor(mode, meta, device)
    return made


def disabled_torch_function() -> Any:
    """The ``__torch_function__`` of subclasses that leave PyTorch's functions alone."""
    return _disabled_torch_function_impl


def is_fake(tensor: torch.Tensor) -> bool:
    """Test for a fake tensor."""
    from tj_torch.torch_private.shapes import FakeTensor

    return isinstance(tensor, FakeTensor)


def fake_constant(tensor: torch.Tensor) -> torch.Tensor | None:
    """The data of a tensor that was spelled out in the program; None for other fakes."""
    return getattr(tensor, "constant", None) if is_fake(tensor) else tensor


def fake_reason(error: BaseException) -> str | None:
    """Reason that ``error`` comes of fake tensors; None if it does not.

    They lack data, which the function's Python code or an operator's kernel asks for, or they
    lack a kernel.
    """
    from tj_torch.torch_private.shapes import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        GuardOnDataDependentSymNode,
        UnsupportedFakeTensorException,
        UnsupportedOperatorException,
    )

    detail = str(error).partition("\n")[0]
    reasons = {
        DataDependentOutputException: "a value depends on data",
        DynamicOutputShapeException: "a shape depends on data",
        UnsupportedFakeTensorException: "fake tensors do not support this",
        UnsupportedOperatorException: "an operator has no fake kernel",
        GuardOnDataDependentSymNode: "a value depends on data",
    }
    if type(error) in reasons:
        return f"{reasons[type(error)]}: {detail}"
    if "data is not allocated yet" in detail or "Cannot access data pointer" in detail:
        return "compiled code looks at data"
    if "on tensor with symbolic sizes" in detail:
        return "compiled code asks for the sizes as numbers"
    if "sizes for customized tensor" in detail:
        return "the size of a tensor becomes a symbol in place"
    return None


def guarded_object(value: Any) -> Any:
    """The object, such as a device mesh, that ``value`` is or stands for; None for other values.

    Dynamo guards what makes two of these equal, so that one stands for all that come later.
    """
    try:
        from tj_torch.torch_private.shapes import FakeScriptObject, get_opaque_obj_info
    except MissingNameError:  # before PyTorch 2.11
        return None

    found = value.real_obj if isinstance(value, FakeScriptObject) else value
    info = get_opaque_obj_info(type(found))
    return None if info is None or info.guard_fn is None else found


def data_dependent() -> tuple[type[Exception], ...]:
    """Errors raised where sizes or numbers depend on data and the mode has no symbols for them."""
    from tj_torch.torch_private.shapes import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )

    return (DataDependentOutputException, DynamicOutputShapeException)


@contextlib.contextmanager
def functionalization() -> Iterator[None]:
    """Operators on wrapped tensors run as functional operators while this is entered."""
    _enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        _disable_functionalization()


@contextlib.contextmanager
def paused_functionalization() -> Iterator[None]:
    """Inside of `functionalization`, operators run as they are while this is entered."""
    _disable_functionalization()
    try:
        yield
    finally:
        _enable_functionalization(reapply_views=True)


@contextlib.contextmanager
def functionalization_below_subclasses() -> Iterator[None]:
    """As `functionalization`, left out until `functionalized_again`: tensor subclasses come first.

    PyTorch leaves functionalization out inside of ``__torch_dispatch__``.
    """
    key = DispatchKey.Functionalize
    outside = _ExcludeDispatchKeyGuard(DispatchKeySet(key))
    with functionalization(), outside:
        yield


@contextlib.contextmanager
def functionalized_again() -> Iterator[None]:
    """Inside of `functionalization_below_subclasses`, operators are functional."""
    key = DispatchKey.Functionalize
    with (
        _SetExcludeDispatchKeyGuard(key, False),
        _IncludeDispatchKeyGuard(key),
    ):
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep fake tensors from logging errors, which the caller looks at itself, and calls from
    warning of what they warn of when they run; where warnings are errors they would raise here.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = disabled


def python_functions(name: str) -> list[Callable[..., Any]]:
    """The functions that PyTorch generates in C++ for operators called ``name``, methods last."""
    homes = (_VariableFunctions, _nn, TENSOR_BASE)
    return [getattr(home, name) for home in homes if hasattr(home, name)]


def functionalized(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that holds ``tensor`` as its current value."""
    made: torch.Tensor = _to_functional_tensor(tensor)
    return made


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The current value of a functionalized tensor; any other tensor itself."""
    if not _is_functional_tensor(tensor):
        return tensor
    _functionalize_sync(tensor)
    value: torch.Tensor = _from_functional_tensor(tensor)
    return value


def data_mutated(tensor: torch.Tensor) -> bool:
    """Test for a functionalized tensor whose elements have been written."""
    return bool(_functionalize_has_data_mutation(tensor))


def only_data_mutated(tensor: torch.Tensor) -> bool:
    """Test for a functionalized tensor whose elements alone have been written."""
    known = _is_functional_tensor(tensor)
    return known and data_mutated(tensor) and not metadata_mutated(tensor)


def metadata_mutated(tensor: torch.Tensor) -> bool:
    """Test for a functionalized tensor whose sizes or strides were changed in place."""
    if not _is_functional_tensor(tensor):
        return False
    return bool(_functionalize_has_metadata_mutation(tensor))


def storage_id(tensor: torch.Tensor) -> int:
    """A number that tensors have in common if and only if they share storage."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def is_dense(tensor: torch.Tensor) -> bool:
    """Test for a strided tensor whose elements fill a block of memory, each once."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense.default(tensor))


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """Base of the tensor as autograd knows it; the tensor itself if it is no view."""
    base = tensor._base
    return tensor if base is None else base


def can_be_written(tensor: torch.Tensor) -> bool:
    """Test if autograd allows writes to the tensor."""
    base = base_of(tensor)
    return survives_writes(tensor) and not (base.is_leaf and base.requires_grad)


def has_no_hooks(tensor: torch.Tensor) -> bool:
    """Test for a tensor that is no view, or a view without hooks.

    Once it is written, gradients go to its base by another way, on which these hooks are not.
    """
    return tensor._base is None or not tensor._backward_hooks


def survives_writes(tensor: torch.Tensor) -> bool:
    """Test if autograd allows uses of the tensor after a write to its memory."""
    if tensor._base is None:
        return True
    return bool(_get_creation_meta(tensor) == CreationMeta.DEFAULT)


def deny_data_pointer(tensor: torch.Tensor) -> None:
    """Let reading the tensor's address raise instead of giving zero."""
    _set_throw_on_mutable_data_ptr(tensor)


def set_conj(tensor: torch.Tensor) -> None:
    """Set the tensor's conjugate bit."""
    _set_conj(tensor, True)


def set_neg(tensor: torch.Tensor) -> None:
    """Set the tensor's negative bit."""
    _set_neg(tensor, True)


@contextlib.contextmanager
def python_dispatcher(enabled: bool) -> Iterator[None]:
    """Use PyTorch's decompositions written in Python while this is entered, if ``enabled``."""
    from tj_torch.torch_private.shapes import enable_python_dispatcher

    # PyTorch's own context begins when it is made, not when it is entered.
    with enable_python_dispatcher() if enabled else contextlib.nullcontext():
        yield


def no_autocast() -> Any:
    """A context without any autocast, whatever is ambient."""
    return _DisableAutocast()


def autograd_function_node() -> Any:
    """The base class of graph nodes that belong to an ``autograd.Function``."""
    return BackwardCFunction


def factories() -> Any:
    """PyTorch's functions that make tensors out of none, as a set."""
    return _device_constructors()


def is_input_check(module: torch.nn.Module) -> bool:
    """Test for the module by which an exported program checks its inputs."""
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}" == WHERE_IMPORTED["GuardsFn"].path


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """No hook sees what is saved inside."""
    found = []
    while _saved_tensors_hooks_is_enabled():
        pair = _top_saved_tensors_default_hooks(False)
        if pair is None:
            break
        found.append(pair)
        _pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(found):
            _push_saved_tensors_default_hooks(*pair)


@contextlib.contextmanager
def symbols_for_placements() -> Iterator[None]:
    """Let DTensor find the placements of calls that take symbolic numbers.

    DTensor caches placements by arguments. The hash of a symbolic float asks for its value, where
    that of a symbolic integer raises `TypeError`, and nothing is cached: both raise here.
    """
    schema = WHERE_IMPORTED["OpSchema"]
    if schema.path.rpartition(".")[0] not in sys.modules:
        yield
        return
    kind = schema.find()
    original = kind.__hash__

    def hashed(self: Any) -> int:
        given = pytree.tree_leaves((self.args_schema, self.kwargs_schema))
        if any(isinstance(x, torch.SymFloat) for x in given):
            raise TypeError("unhashable type: SymFloat")
        return int(original(self))

    kind.__hash__ = hashed
    try:
        yield
    finally:
        kind.__hash__ = original


@contextlib.contextmanager
def same_masks() -> Iterator[Callable[[], bool]]:
    """Leave the masks that placements of DTensor keep, from one call to the next, as they are.

    The placements are shared by all calls alike. What is given says whether one is changed now.
    """
    buffer = WHERE_IMPORTED["MaskBuffer"]
    if buffer.path.rpartition(".")[0] not in sys.modules:
        yield lambda: False
        return
    kind, found = buffer.find(), dict[int, tuple[Any, Any, int]]()

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            found.setdefault(id(self), (self, self.data, self.refcount))
            return original(self, *args)

        return call

    names = ("materialize_mask", "release_mask")
    originals = {name: getattr(kind, name) for name in names}
    for name, original in originals.items():
        setattr(kind, name, noting(original))
    try:
        yield lambda: any(buffer.refcount != count for buffer, _, count in found.values())
    finally:
        for name, original in originals.items():
            setattr(kind, name, original)
        for buffer, data, count in found.values():
            buffer.data, buffer.refcount = data, count
