"""Capture of whole programs with TorchDynamo; see `hook` for programs with graph breaks.

`capture` runs Dynamo's symbolic bytecode evaluation once and returns the FX graph; `Capture.build`
turns a computation for that graph into a function of the original arguments plus C++ guards.
No eval-frame hook is installed: calls are dispatched by `tj_torch.dispatch.dispatcher`.
"""

from __future__ import annotations

import contextlib
import logging
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo import releases, zeros
from tj_torch.capture.dynamo.changes import noting_changes
from tj_torch.capture.dynamo.equal_parts import Equals, flatten
from tj_torch.capture.dynamo.features import corrected, say_corrections
from tj_torch.capture.dynamo.fewer_imports import importing_less
from tj_torch.capture.dynamo.ordered_dicts import guard_empty
from tj_torch.capture.dynamo.patches import leave, unprofiled
from tj_torch.capture.dynamo.read_values import ChangedError, ReadValues
from tj_torch.capture.dynamo.reference_cycles import forget_tensors, forgotten_after_failure, let_go
from tj_torch.capture.dynamo.settings import guarding, settings, with_settings
from tj_torch.capture.dynamo.skip_rules import pass_over_own
from tj_torch.guards.dynamo import DynamoGuards, dynamo_guards
from tj_torch.ops.fakes.handler_state import untouched
from tj_torch.runtime.beside import is_beside
from tj_torch.runtime.compile_lock import compile_lock
from tj_torch.runtime.modes import without_modes
from tj_torch.runtime.thread_state import kept
from tj_torch.torch_private.replacement import has, replace
from tj_torch.torch_private.runtime import function_modes as function_mode_count
from tj_torch.torch_private.texts import LOGGERS

if TYPE_CHECKING:
    from tj_core.extend import Trace

    from tj_torch.capture.dynamo.observations import Observations
    from tj_torch.torch_private.features import Correction

__all__ = [
    "Built",
    "Capture",
    "CaptureFailure",
    "ChangedError",
    "Uninitialized",
    "capture",
    "compile_lock",
    "compiling",
    "failure_of",
    "forget_examples",
    "function_modes",
    "guard_forward_mode",
    "inlined_as",
    "is_array",
    "leave",
    "muted",
    "numpy_name",
    "placeholder_sources",
    "record_calls",
    "skipped",
]


class CaptureFailure(Exception):
    """Dynamo cannot capture the program.

    ``raised``: by Dynamo's analysis, the program itself raises. ``wanted``: the user has disabled
    compilation of a function.
    """

    def __init__(self, reason: str, stack: Any, *, raised: bool, wanted: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.stack = stack
        self.raised = raised
        self.wanted = wanted


class Uninitialized(Exception):
    """The program initializes a lazy module in this call, which only a real call can do."""


@dataclass(frozen=True, slots=True)
class Built:
    """Compiled entry: Dynamo's guards on the frame's locals, and the function."""

    guards: DynamoGuards
    run: Callable[..., Any]
    traced_codes: tuple[types.CodeType, ...]


class Capture:
    """Captured program; to be dropped once built, as it holds the example inputs."""

    def __init__(self, output: Any, root: types.FunctionType, noticed: Observations) -> None:
        self._output = output
        self._root = root
        self.noticed = noticed
        given = output.backend_input
        self.graph: torch.fx.GraphModule | None = given.graph_module if given else None
        if self.graph is not None and noticed.equals is not None:
            flatten(self.graph, noticed.equals)
        self.examples: tuple[Any, ...] = tuple(given.example_inputs) if given else ()

    @property
    def sources(self) -> dict[int, str]:
        """Expressions over the frame that graph inputs are read from, by index."""
        exported = self._output.graph_capture_output.output_graph.export_metadata
        found = exported.graph_input_idx_to_local_source
        return {i: source.name for i, source in found.items()}

    @property
    def handled(self) -> int:
        """Number of the calls whose errors a handler of the program may catch."""
        graph = None if self.graph is None else self.graph.graph
        return sum(node.graph is graph for node in self.noticed.handled)

    def break_instead(self) -> CaptureFailure:
        """A graph break where data was first left to a run of the program as it is."""
        assert self.noticed.deferred
        reason, stack = self.noticed.deferred[0]
        return CaptureFailure(reason, stack, raised=False)

    def check_inputs(self, trace: Trace) -> None:
        """Check the metadata of the inputs of ``trace`` against the captured values.

        :raises ChangedError: if the program has changed one meanwhile.
        """
        if self.noticed.read is not None:
            self.noticed.read.check_inputs(trace, self.sources)

    def build(self, computation: Callable[..., Any] | None, on_dead: Callable[[], None]) -> Built:
        """Build the entry that runs ``computation`` in place of the graph.

        Must be called after all passes, so that their specializations are guarded. ``on_dead`` is
        called when an object that is guarded by identity is freed.

        :raises CaptureFailure: if Dynamo cannot build guards, as after a write that PyTorch refuses
            and that on fake tensors changed the shape of an input instead.
        :raises ChangedError: if the program has changed meanwhile what was captured.
        """
        produced = self._output.graph_capture_output
        # Globals of its own, since the root's live as long as the jitted program.
        scope = {**produced.f_globals}
        # A program without tensor operations has no graph to call.
        if computation is not None:
            # Dynamo's bytecode calls the graph by this global name.
            name = self._output.backend_input.backend_id
            scope[name] = computation
            produced.f_globals.pop(name, None)
        try:
            guards = _built_guards(self._root, produced.output_graph, on_dead, self.noticed.read)
        except (AssertionError, LookupError) as error:
            if self.noticed.read is not None:
                # Dynamo tests its guards on the arguments: they may have changed, and an object may
                # have got an attribute that it did not have.
                raise ChangedError("what the program reads") from None
            reason = f"Dynamo cannot guard the program: {type(error).__name__}: {error}"
            raise CaptureFailure(reason, None, raised=True) from error
        run = types.FunctionType(
            produced.bytecode,
            scope,
            closure=produced.closure,
            argdefs=produced.argdefs,
        )
        run.__kwdefaults__ = getattr(produced, "kwdefaults", None)
        if self._output.backend_input is not None:
            forget_tensors(self._output.backend_input.fake_mode)
        codes = tuple(produced.traced_code or ())
        return Built(guards, run, codes)


def _built_guards(
    root: types.FunctionType, graph: Any, on_dead: Callable[[], None], read: ReadValues | None
) -> DynamoGuards:
    """Dynamo's guards, built in the state that captures run in."""
    chosen, state = with_settings(settings(None) | guarding()), releases.ambient_state()
    with compile_lock(), _measured(), _quiet(), chosen, state, contextlib.ExitStack() as stack:
        zeros.guard_signs(stack)
        guard_empty(stack)
        if read is not None:
            read.while_guarding(stack)
        return dynamo_guards(root, graph, on_dead)


@contextlib.contextmanager
def _measured() -> Iterator[None]:
    """Enter the context for measurements that Dynamo asks for; nobody reads them."""
    from tj_torch.torch_private.dynamo import dynamo_timed, get_metrics_context

    measured = get_metrics_context()
    with contextlib.ExitStack() as stack:
        if has(measured, "_on_exit"):  # it writes all settings of PyTorch as text
            replace(stack, measured, "_on_exit", lambda original: lambda *metrics: None)
        stack.enter_context(unprofiled())
        stack.enter_context(measured)
        stack.enter_context(dynamo_timed("tj_capture"))
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Dynamo's logging and warnings inside.

    Dynamo logs all errors before raising. It warns because of its own accesses (``.grad`` of a
    non-leaf), and of what the program warns of again at run time; where warnings are errors, these
    would look like failures of the program.
    """
    with muted(*LOGGERS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def muted(*names: str) -> Iterator[None]:
    """Silence these loggers inside, except for critical messages."""
    loggers = [logging.getLogger(n) for n in names]
    levels = [log.level for log in loggers]
    _set_levels(loggers, [logging.CRITICAL] * len(loggers))
    try:
        yield
    finally:
        _set_levels(loggers, levels)


def _set_levels(loggers: list[logging.Logger], levels: list[int]) -> None:
    for log, level in zip(loggers, levels, strict=True):
        log.level = level
    # It makes all loggers of the process forget whether they are on: once is enough.
    loggers[0].setLevel(levels[0])


@contextlib.contextmanager
def compiling(given: Iterable[Any] = ()) -> Iterator[None]:
    """Enter the state for compiling with arguments ``given``: Dynamo's lock, no hook, no modes.

    A backward may be compiled while the eval-frame hook is active, which would capture tj's own
    code, or under a mode of the user's, which would see tj's operations. The thread's state is
    restored at exit.
    """
    from tj_torch.torch_private.dynamo import (
        FORCE_SKIP_FILES,
        SKIP_DIRS,
        _recompile_re,
        set_eval_frame,
    )

    pass_over_own()
    assert FORCE_SKIP_FILES and SKIP_DIRS and _recompile_re  # noqa: PT018
    with compile_lock(), untouched(given), kept(), without_modes():
        # The hook is one per thread; `set_eval_frame` returns the one before.
        hook = set_eval_frame(None)
        try:
            yield
        finally:
            set_eval_frame(hook)


def capture(
    root: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dynamic: bool | None,
    opaque: tuple[Callable[..., Any], ...] = (),
    defers: bool = False,
) -> Capture:
    """Capture ``root(*args, **kwargs)``; functions in ``opaque`` stay one call each.

    ``defers``: what is captured may raise for some data, for which the program runs as it is.

    :raises CaptureFailure: if Dynamo cannot capture the whole program.
    :raises ChangedError: if the program, which runs on, changes meanwhile what is captured.
    :raises Uninitialized: if a lazy module gets its parameters in this call.
    """
    lost: list[tuple[Correction, str]] = []
    try:
        return _captured(root, args, kwargs, dynamic, opaque, lost, defers)
    finally:
        say_corrections(lost)  # outside of `_quiet`, which suppresses warnings


def _captured(
    root: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic: bool | None,
    opaque: tuple[Callable[..., Any], ...],
    lost: list[tuple[Correction, str]],
    defers: bool,
) -> Capture:
    """`capture`; adds the features that this PyTorch has lost to ``lost``."""
    from tj_torch.torch_private.dynamo import convert_frame

    with (
        compile_lock(),
        forgotten_after_failure(),
        _measured(),
        _quiet(),
        importing_less(),
        releases.ambient_state(),
        with_settings(settings(dynamic)),
        _allowed(opaque),
        corrected() as noticed,
        noting_changes(noticed),
        contextlib.ExitStack() as stack,
    ):
        lost += noticed.lost
        noticed.deferred = [] if defers else None
        if is_beside():
            noticed.read = ReadValues()
            noticed.read.while_tracing(stack)
        else:
            noticed.equals = Equals()
        try:
            return Capture(convert_frame.fullgraph_capture(root, args, kwargs), root, noticed)
        except Exception as error:
            failed = _failed(error, noticed)
            let_go(error)
        try:
            raise failed  # outside of the handler: Dynamo's error holds the arguments
        finally:
            del failed  # it holds this frame


def _failed(error: Exception, noticed: Observations) -> Exception:
    """Convert an ``error`` of Dynamo's in a capture that has ``noticed`` so much."""
    if noticed.read is not None and noticed.read.changed is not None:
        return ChangedError(noticed.read.changed)
    return Uninitialized(str(error)) if noticed.uninitialized else failure_of(error)


_RAISES = (
    "Observed exception",
    "failed to bind arguments",
    "TypeError when making fake tensor call",
)
"""Texts in errors of Dynamo by which the program itself raises."""

_DISABLED = "`torch.compiler.disable()`d function"
"""Text in errors of Dynamo for a function that the user has disabled compilation of."""


def failure_of(error: Exception) -> CaptureFailure:
    """Convert an ``error`` of Dynamo's."""
    from tj_torch.torch_private.dynamo import exc

    reason = str(error).strip() or type(error).__name__
    raised = (
        # An operator raised on fake tensors, or Python code of the program did.
        isinstance(error, exc.TorchRuntimeError)
        or not isinstance(error, exc.TorchDynamoException)
        or any(text in reason for text in _RAISES)
    )
    wanted = _DISABLED in reason.partition("\n")[0]
    return CaptureFailure(reason, getattr(error, "real_stack", None), raised=raised, wanted=wanted)


@contextlib.contextmanager
def _allowed(functions: tuple[Callable[..., Any], ...]) -> Iterator[None]:
    """Make Dynamo record calls of ``functions`` without tracing into them, in this capture."""
    from tj_torch.torch_private.dynamo import _allowed_callable_ids as allowed

    known = allowed.function_ids or set()
    # Others were allowed before, by the user, and stay so after the capture.
    new = [id(f) for f in functions if id(f) not in known]
    for key in new:
        allowed.add(key)
    try:
        yield
    finally:
        for key in new:
            allowed.remove(key)


def inlined_as(call: Callable[..., Any], program: Callable[..., Any]) -> Callable[..., Any]:
    """Mark ``call`` so that Dynamo traces ``program`` in its place; return it.

    Inside of torch.compile or another tj.jit, a jitted program becomes part of the outer one, and
    torch.compile of ``call`` itself compiles ``program``.
    """
    pass_over_own()
    call._torchdynamo_inline = program  # type: ignore[attr-defined]
    call._torchdynamo_orig_callable = program  # type: ignore[attr-defined]
    call._torchdynamo_wrapper_id = id(call)  # type: ignore[attr-defined]
    return call


def function_modes() -> bool:
    """Test for an active ``__torch_function__`` mode; Dynamo guards on the stack of modes."""
    return bool(function_mode_count() > 0)


def record_calls(function: Callable[..., Any]) -> None:
    """Make Dynamo record calls of ``function``, one of tj's own, in all later captures."""
    pass_over_own()
    torch.compiler.allow_in_graph(function)


def guard_forward_mode() -> None:
    """Guard the program being captured on the current level of forward-mode AD.

    To be called by a backend, since Dynamo adds no such guard itself.
    """
    from tj_torch.torch_private.dynamo import GlobalStateSource, GuardBuilder, TracingContext

    context = TracingContext.try_get()
    if context is not None:
        guards = context.guards_context.dynamo_guards
        guards.add(GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL))


def forget_examples() -> None:
    """Drop the running capture's references to real tensors; for a backend, at its end."""
    from tj_torch.torch_private.dynamo import TracingContext

    context = TracingContext.try_get()
    if context is not None and context.fake_mode is not None:
        forget_tensors(context.fake_mode)


def skipped(reason: str) -> Exception:
    """Exception with which a backend makes Dynamo run this frame uncompiled."""
    from tj_torch.torch_private.dynamo import exc

    skip: Exception = exc.SkipFrame(reason)
    return skip


def placeholder_sources(graph: torch.fx.GraphModule) -> dict[int, str]:
    """Expressions that inputs of a graph captured by the hook are read from, by index."""
    found = {}
    for i, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder"):
        argument = node.meta.get("grapharg")
        if argument is not None and argument.source is not None:
            found[i] = argument.source.name
    return found


def numpy_name(node: torch.fx.Node) -> str | None:
    """Name of NumPy's function, method, operator or attribute that ``node`` uses; else None."""
    from tj_torch.torch_private.dynamo import utils

    kinds = (utils.numpy_to_tensor_wrapper, utils.numpy_method_wrapper)
    if isinstance(node.target, (*kinds, utils.numpy_operator_wrapper)):
        return str(node.target.__name__).removeprefix("wrapped_")
    return str(node.args[1]) if node.target is utils.numpy_attr_wrapper else None


def is_array(source: str) -> bool:
    """Test if the expression ``source`` reads a NumPy array."""
    return source.startswith("___from_numpy(")
