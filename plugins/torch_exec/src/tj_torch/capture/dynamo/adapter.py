"""TorchDynamo as a capture library; `hook` has its own way of running programs in parts.

`capture` runs Dynamo's symbolic bytecode evaluation once and returns the FX graph; `Capture.build`
turns a computation for that graph into a function of the original arguments plus C++ guards.
No eval-frame hook is installed: calls are dispatched by `tj_torch.dispatch.dispatcher`.
"""

from __future__ import annotations

import contextlib
import logging
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tj_torch.capture.dynamo import versions, zeros
from tj_torch.capture.dynamo.features import corrected, say_lost
from tj_torch.capture.dynamo.noticed import Absent, Lookup, Noticed
from tj_torch.capture.dynamo.passed_over import pass_over_own
from tj_torch.capture.dynamo.patches import leave, unprofiled
from tj_torch.capture.dynamo.released import forget_tensors, forgotten_after_failure, let_go
from tj_torch.ops.handler_state import untouched
from tj_torch.runtime.modes import without_modes
from tj_torch.runtime.thread_state import kept
from tj_torch.torch_private.features import Feature
from tj_torch.torch_private.ops import without_saved_tensor_hooks
from tj_torch.torch_private.runtime import below_functionalization as inside_dispatch
from tj_torch.torch_private.runtime import function_modes as function_mode_count

__all__ = [
    "Absent",
    "Built",
    "Capture",
    "CaptureFailure",
    "Lookup",
    "Noticed",
    "Uninitialized",
    "capture",
    "compile_lock",
    "compiling",
    "failure_of",
    "forget_examples",
    "function_modes",
    "global_check",
    "guard_forward_mode",
    "inlined_as",
    "inside_dispatch",
    "is_array",
    "leave",
    "muted",
    "numpy_name",
    "placeholder_sources",
    "record_calls",
    "skipped",
    "tensor_check",
]


class CaptureFailure(Exception):
    """Dynamo gave up. ``raised``: the program itself raises, as far as Dynamo can see.

    ``wanted``: the user has told compilers to leave a function alone.
    """

    def __init__(self, reason: str, stack: Any, *, raised: bool, wanted: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.stack = stack
        self.raised = raised
        self.wanted = wanted


class Uninitialized(Exception):
    """The program initialises a lazy module in this call, which only a real call can do."""


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled entry: C++ guard check on frame locals, the function, and the guards as text.

    ``explain`` checks and says which guard does not hold, in ``verbose_code_parts``.
    """

    check: Callable[[dict[str, Any]], bool]
    run: Callable[..., Any]
    guards: Callable[[], list[str]]
    traced_codes: tuple[types.CodeType, ...]
    explain: Callable[[dict[str, Any]], Any]


class Capture:
    """One captured program. Drop it once built: it holds the example inputs."""

    def __init__(self, output: Any, root: types.FunctionType, noticed: Noticed) -> None:
        self._output = output
        self._root = root
        self.noticed = noticed
        given = output.backend_input
        self.graph: torch.fx.GraphModule | None = given.graph_module if given else None
        self.examples: tuple[Any, ...] = tuple(given.example_inputs) if given else ()

    @property
    def sources(self) -> dict[int, str]:
        """For each graph input that has one, the expression over the frame it is read from."""
        exported = self._output.graph_capture_output.output_graph.export_metadata
        found = exported.graph_input_idx_to_local_source
        return {i: source.name for i, source in found.items()}

    def build(self, computation: Callable[..., Any] | None, on_dead: Callable[[], None]) -> Built:
        """The entry that runs ``computation`` in the graph's place.

        To be called after all passes, so that what they specialised on is guarded.
        ``on_dead`` is called when an object that the guards know by its identity is freed.

        :raises CaptureFailure: if there are no guards to build: on fake tensors some writes that
            PyTorch refuses change the shape of an input instead.
        """
        produced = self._output.graph_capture_output
        if computation is not None:
            produced.f_globals[self._output.backend_input.backend_id] = computation
        try:
            manager = _guard_manager(self._root, produced.output_graph, on_dead)
        except (AssertionError, LookupError) as error:
            reason = f"Dynamo cannot guard the program: {type(error).__name__}: {error}"
            raise CaptureFailure(reason, None, raised=True) from error
        run = types.FunctionType(
            produced.bytecode,
            produced.f_globals,
            closure=produced.closure,
            argdefs=produced.argdefs,
        )
        run.__kwdefaults__ = getattr(produced, "kwdefaults", None)  # type: ignore[assignment]
        if self._output.backend_input is not None:
            forget_tensors(self._output.backend_input.fake_mode)
        codes = tuple(produced.traced_code or ())
        guards, sizes = manager.guard_manager, _size_guards(produced.output_graph)
        texts: Callable[[], list[str]] = lambda: [*map(str, guards.code_parts), *sizes]  # noqa: E731
        return Built(guards.check, run, texts, codes, guards.check_verbose)


def _size_guards(graph: Any) -> list[str]:
    """The conditions on symbolic sizes among the guards that were built, as text."""
    found = (g.code_list or () for g in graph.guards if g.create_fn_name() == "SHAPE_ENV")
    return [str(code) for codes in found for code in codes]


def _guard_manager(root: types.FunctionType, graph: Any, on_dead: Callable[[], None]) -> Any:
    """Dynamo's guards, telling us when a guarded object dies.

    Dynamo itself only invalidates its own cache entries, of which there is none here; without
    this, a new object at a dead one's address would pass as the dead one. ``on_dead`` lives as
    long as any guarded object, so it must hold nothing but weak references.
    """
    from tj_torch.torch_private.dynamo import CheckFunctionManager

    # Hooks on saved tensors act when the program runs; guarding on them costs a Python call.
    for guard in [g for g in graph.guards if g.create_fn_name() == "AUTOGRAD_SAVED_TENSORS_HOOKS"]:
        graph.guards.inner.discard(guard)

    class Manager(CheckFunctionManager):
        def id_ref(self, obj: object, obj_str: str) -> int:
            # Dynamo's own finalizer would keep this manager, and all it holds, alive as long as
            # the guarded object, which is often a class.
            with contextlib.suppress(TypeError):  # of objects without weak references
                if id(obj) not in self._weakrefs:
                    self._weakrefs[id(obj)] = weakref.ref(obj)
                    weakref.finalize(obj, on_dead).atexit = False
            return id(obj)

    from tj_torch.torch_private.dynamo import dynamo

    settings = dynamo.config.patch(**versions.settings(None))
    state = versions.ambient_state()
    with compile_lock(), _measured(), _quiet(), settings, state, contextlib.ExitStack() as stack:
        zeros.guard_signs(stack)
        return Manager(root.__code__, graph)


@contextlib.contextmanager
def _measured() -> Iterator[None]:
    from tj_torch.torch_private.dynamo import dynamo_timed, get_metrics_context

    with unprofiled(), get_metrics_context(), dynamo_timed("tj_capture"):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Dynamo logs at length what it raises; the exception says it all.

    It warns of what it looks at itself (``.grad`` of a value), and of what the program will warn of
    again when it runs; where warnings are errors these would pass for failures of the program.
    """
    names = ("torch._subclasses.fake_tensor", "torch._dynamo", "torch._guards")
    with muted(*names), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def muted(*names: str) -> Iterator[None]:
    """Loggers that say nothing for a while."""
    loggers = [logging.getLogger(n) for n in names]
    levels = [log.level for log in loggers]
    for log in loggers:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(loggers, levels, strict=True):
            log.setLevel(level)


@contextlib.contextmanager
def compiling(given: Iterable[Any] = ()) -> Iterator[None]:
    """While tj compiles for ``given``: with Dynamo's lock, taken again or not, no hook, no modes.

    A backward may be compiled where the hook is on: it would capture what tj runs to compile. It
    may also run in a mode of the user's, which would take part. The thread's state stays as it is.
    """
    from tj_torch.torch_private.dynamo import set_eval_frame

    pass_over_own()
    with compile_lock(), untouched(given), kept(), without_modes():
        hook = set_eval_frame(None)
        try:
            yield
        finally:
            set_eval_frame(hook)


@contextlib.contextmanager
def compile_lock() -> Iterator[None]:
    """The lock that Dynamo holds while it compiles; it may be taken again by its holder.

    The user's hooks on saved tensors see nothing of what compiling saves.
    """
    from tj_torch.torch_private.dynamo import convert_frame

    with convert_frame.compile_lock, without_saved_tensor_hooks():
        yield


def capture(
    root: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dynamic: bool | None,
    opaque: tuple[Callable[..., Any], ...] = (),
) -> Capture:
    """Capture ``root(*args, **kwargs)``; functions in ``opaque`` stay one call each.

    :raises CaptureFailure: if Dynamo cannot capture the whole program.
    :raises Uninitialized: if a lazy module gets its parameters in this call.
    """
    lost: list[tuple[Feature, str]] = []
    try:
        return _captured(root, args, kwargs, dynamic, opaque, lost)
    finally:
        say_lost(lost)  # here, where warnings are the user's again


def _captured(
    root: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic: bool | None,
    opaque: tuple[Callable[..., Any], ...],
    lost: list[tuple[Feature, str]],
) -> Capture:
    """The same; ``lost`` gets the features that this PyTorch has lost."""
    from tj_torch.torch_private.dynamo import convert_frame, dynamo

    with (
        compile_lock(),
        forgotten_after_failure(),
        _measured(),
        _quiet(),
        versions.ambient_state(),
        dynamo.config.patch(**versions.settings(dynamic)),
        _allowed(opaque),
        corrected() as noticed,
    ):
        lost += noticed.lost
        try:
            return Capture(convert_frame.fullgraph_capture(root, args, kwargs), root, noticed)
        except Exception as error:
            lazy = noticed.uninitialized
            failed: Exception = Uninitialized(str(error)) if lazy else failure_of(error)
            let_go(error)
        try:
            raise failed  # outside of the handler: Dynamo's error holds the arguments
        finally:
            del failed  # it holds this frame


_RAISES = (
    "Observed exception",
    "failed to bind arguments",
    "TypeError when making fake tensor call",
)
"""How Dynamo says that the program itself raises."""

_DISABLED = "`torch.compiler.disable()`d function"
"""The words of Dynamo for a function which the user told compilers to leave alone."""


def failure_of(error: Exception) -> CaptureFailure:
    """The failure that an ``error`` of Dynamo's is, in its words."""
    from tj_torch.torch_private.dynamo import exc

    reason = str(error).strip() or type(error).__name__
    raised = (
        isinstance(error, exc.TorchRuntimeError)
        or not isinstance(error, exc.TorchDynamoException)
        or any(text in reason for text in _RAISES)
    )
    wanted = _DISABLED in reason.partition("\n")[0]
    return CaptureFailure(reason, getattr(error, "real_stack", None), raised=raised, wanted=wanted)


@contextlib.contextmanager
def _allowed(functions: tuple[Callable[..., Any], ...]) -> Iterator[None]:
    """Make Dynamo record calls of ``functions`` without looking inside, for this capture only."""
    from tj_torch.torch_private.dynamo import trace_rules

    allowed = trace_rules._allowed_callable_ids
    known = allowed.function_ids or set()
    new = [id(f) for f in functions if id(f) not in known]
    for key in new:
        allowed.add(key)
    try:
        yield
    finally:
        for key in new:
            allowed.remove(key)


def inlined_as(call: Callable[..., Any], program: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, marked so that Dynamo looks through ``program`` where it meets ``call``.

    Inside torch.compile or another tj.jit a jitted program is part of the surrounding one, and
    torch.compile of ``call`` itself is of ``program``.
    """
    pass_over_own()
    call._torchdynamo_inline = program  # type: ignore[attr-defined]
    call._torchdynamo_orig_callable = program  # type: ignore[attr-defined]
    call._torchdynamo_wrapper_id = id(call)  # type: ignore[attr-defined]
    return call


def function_modes() -> bool:
    """Whether a ``__torch_function__`` mode is active; Dynamo guards on the stack of them."""
    return bool(function_mode_count() > 0)


def record_calls(function: Callable[..., Any]) -> None:
    """Make Dynamo record calls of ``function``, which is tj's own, in every capture from now on."""
    pass_over_own()
    torch.compiler.allow_in_graph(function)


def guard_forward_mode() -> None:
    """Let the program that is being captured hold only where forward-mode AD is as it is now.

    To be called by a backend: Dynamo has no such guard of its own.
    """
    from tj_torch.torch_private.dynamo import GlobalStateSource, GuardBuilder, TracingContext

    context = TracingContext.try_get()
    if context is not None:
        guards = context.guards_context.dynamo_guards
        guards.add(GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL))


def forget_examples() -> None:
    """Drop what the capture that runs knows real tensors by; for a backend, at its end."""
    from tj_torch.torch_private.dynamo import TracingContext

    context = TracingContext.try_get()
    if context is not None and context.fake_mode is not None:
        forget_tensors(context.fake_mode)


def skipped(reason: str) -> Exception:
    """What a backend raises so that Dynamo runs this part of the program as it is."""
    from tj_torch.torch_private.dynamo import exc

    return exc.SkipFrame(reason)


def placeholder_sources(graph: torch.fx.GraphModule) -> dict[int, str]:
    """For each input of a graph that the hook captured, the expression it is read from."""
    found = {}
    for i, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder"):
        argument = node.meta.get("grapharg")
        if argument is not None and argument.source is not None:
            found[i] = argument.source.name
    return found


def numpy_name(node: torch.fx.Node) -> str | None:
    """What ``node`` takes from NumPy: the name of a function, method, operator or attribute."""
    from tj_torch.torch_private.dynamo import utils

    kinds = (utils.numpy_to_tensor_wrapper, utils.numpy_method_wrapper)
    if isinstance(node.target, (*kinds, utils.numpy_operator_wrapper)):
        return str(node.target.__name__).removeprefix("wrapped_")  # type: ignore[union-attr]
    return str(node.args[1]) if node.target is utils.numpy_attr_wrapper else None


def is_array(source: str) -> bool:
    """Whether what the expression ``source`` reads is an array of NumPy in the program."""
    return source.startswith("___from_numpy(")


def tensor_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A check in C++ that as many values are distinct tensors with the metadata of ``tensors``.

    Type, data type, device, sizes, strides, what dispatch looks at (layout, conjugate and negative
    bits, functorch's levels, inference tensors), and requires_grad where gradients are on.
    """
    from tj_torch.torch_private.dynamo import TensorGuards

    guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return guards.check  # type: ignore[no-any-return]


def global_check() -> Callable[[], bool]:
    """A check in C++ that grad mode, autocast, default data type and determinism are as now."""
    from tj_torch.torch_private.dynamo import GlobalStateGuard

    return GlobalStateGuard().check  # type: ignore[no-any-return]
