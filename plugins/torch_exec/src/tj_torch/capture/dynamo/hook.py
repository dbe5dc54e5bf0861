"""PyTorch's own eval-frame hook, for programs with graph breaks: what it compiles, and leaves."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tj_core.extend import TjWarning

from tj_torch.capture.dynamo.adapter import CaptureFailure, compile_lock, failure_of, muted
from tj_torch.capture.dynamo.features import corrected, say_corrections
from tj_torch.capture.dynamo.fragment_guards import guarded_fragments
from tj_torch.capture.dynamo.fragments import is_compiled
from tj_torch.capture.dynamo.optimizers import is_part_of_step
from tj_torch.capture.dynamo.patches import unprofiled
from tj_torch.capture.dynamo.reference_cycles import let_go
from tj_torch.ops.fakes.handler_state import untouched
from tj_torch.runtime.modes import function_mode_is_on
from tj_torch.runtime.thread_state import kept
from tj_torch.torch_private.runtime import below_functionalization, distributions_as_checked
from tj_torch.torch_private.texts import LOGGERS

__all__ = ["hooked"]


def hooked(
    fn: Callable[..., Any],
    backend: Any,
    dynamic: bool | None,
    on_skip: Callable[[str, Any], None],
    *,
    fullgraph: bool = False,
) -> Callable[..., Any]:
    """``fn`` under PyTorch's own eval-frame hook, its graphs compiled by ``backend``.

    What ``fn`` or ``backend`` raise comes out as they raise it. Where Dynamo sees the program
    raise, the frame it was looking at runs as it is, which raises in the program's own words;
    should it not, ``on_skip`` gets Dynamo's reason and stack. With ``fullgraph`` it gets those of
    graph breaks, too.
    """
    from tj_torch.torch_private.dynamo import dynamo, exc

    with distributions_as_checked():
        context: Any = dynamo.optimize(backend, nopython=fullgraph, dynamic=dynamic)
    patient = _Patient(getattr(context, "callback", None))  # None: TORCHDYNAMO_DISABLE is set
    context.callback = patient
    compiled = context(fn)

    def run(*args: Any, **kwargs: Any) -> Any:
        skipped = patient.begin()
        try:
            result = compiled(*args, **kwargs)
        # Dynamo wraps what a backend raises; users expect tj's error, as without the hook.
        except exc.BackendCompilerFailed as error:
            original: BaseException = error.inner_exception
        except Exception as error:
            # With `fullgraph`, PyTorch raises that no frame was compiled.
            if not fullgraph or all(failure.raised for failure in skipped):
                raise
            original = error
        else:
            _say(skipped, on_skip)
            return result
        if fullgraph:
            _say(skipped, on_skip)
        raise original  # outside of the handler: not chained to Dynamo's error

    return run


def _say(skipped: list[CaptureFailure], on_skip: Callable[[str, Any], None]) -> None:
    for failure in skipped:
        on_skip(failure.reason, failure.stack)


class _Patient:
    """A callback of the eval-frame hook that lets frames run which Dynamo cannot compile.

    Dynamo's own does so for graph breaks only, and skips such code for good; here the next call
    tries again, for it may be other arguments that make the program raise.
    """

    def __init__(self, callback: Any) -> None:
        self._torchdynamo_orig_backend = callback  # where Dynamo looks for the backend
        self._running = threading.local()

    def begin(self) -> list[CaptureFailure]:
        """The list that the failures of this thread's next frames go to."""
        skipped: list[CaptureFailure] = []
        self._running.skipped = skipped
        return skipped

    def __call__(self, frame: Any, *rest: Any) -> Any:
        from tj_torch.torch_private.dynamo import types

        run = types.FrameAction.DEFAULT
        as_it_is = types.ConvertFrameReturn(types.FrameExecStrategy(run, run), apply_to_code=False)
        if is_part_of_step(frame.f_code) or below_functionalization():
            return as_it_is
        if function_mode_is_on():  # a frame after a graph break in one
            reason = "a __torch_function__ mode is on"
            self._running.skipped.append(CaptureFailure(reason, None, raised=False))
            return as_it_is
        # The lock first: a capture in another thread changes the state that all threads share. The
        # frames of an error, too, hold what sets the state.
        with compile_lock() as waited, kept():
            if waited and is_compiled(frame, self._torchdynamo_orig_backend):
                # By that thread. One more program for the same call would count for the limit.
                once = types.FrameExecStrategy(run, types.FrameAction.RUN_ONLY)
                return types.ConvertFrameReturn(once, apply_to_code=False)
            return self._compiled(frame, *rest) or as_it_is

    def _compiled(self, frame: Any, *rest: Any) -> Any:
        """The code that Dynamo compiles ``frame`` to; None if it cannot compile it."""
        from tj_torch.torch_private.dynamo import exc

        wanted = (exc.BackendCompilerFailed, exc.RecompileError, exc.FailOnRecompileLimitHit)
        try:
            seen = untouched(frame.f_locals.values())
            with (
                seen,
                unprofiled(),
                corrected() as noticed,
                guarded_fragments(noticed),
                _only_own_warnings(),
            ):
                say_corrections(noticed.lost)
                return self._torchdynamo_orig_backend(frame, *rest)
        except wanted:  # the backend's own error, and those that a setting of PyTorch's asks for
            raise
        except Exception as error:
            self._running.skipped.append(failure_of(error))
            let_go(error)
        return None


@contextlib.contextmanager
def _only_own_warnings() -> Iterator[None]:
    """Dynamo's runs on fake tensors warn of what the program will warn of when it runs."""
    with muted(LOGGERS[0]), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for w in caught:
        if issubclass(w.category, TjWarning):
            # At their own lines: Python shows a warning once for each.
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
