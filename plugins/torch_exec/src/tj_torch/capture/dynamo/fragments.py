"""The frames that Dynamo compiles below its hook: their places in the program, and their guards."""

from __future__ import annotations

import re
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tj_torch.torch_private.lookup import MissingNameError

__all__ = [
    "Break",
    "Frame",
    "cached_backends",
    "compiled_callable",
    "compiling_frame",
    "is_compiled",
    "original_of",
    "owner",
]

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")


@dataclass(frozen=True, slots=True)
class Break:
    """A graph break: Dynamo's reason, and the stack of the program there."""

    reason: str
    stack: Any


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that Dynamo compiles, or the rest of one after a graph break.

    ``after`` is the graph break before it, None at the function's beginning; ``ended`` the one that
    ends it. ``guards`` returns the texts of its guards, once it has been compiled. ``failed`` is
    the first guard of the program compiled before that does not hold for the locals ``values``.
    """

    function: str
    after: Break | None
    ended: Break | None
    guards: Callable[[], tuple[str, ...]]
    failed: str
    values: dict[str, Any]
    file: str = ""

    def is_of(self, code: types.CodeType) -> bool:
        """Test for a frame of ``code``, or the rest of one."""
        return (self.file, self.function) == (code.co_filename, code.co_name)


def compiling_frame() -> Frame | None:
    """The frame whose graph the backend is called for; None if this PyTorch does not tell."""
    try:
        from tj_torch.torch_private.dynamo import InstructionTranslator

        output = InstructionTranslator.current_tx().output
        code, reason = output.root_tx.f_code, output.compile_subgraph_reason
        name, after = _beginning(code)
        ended = Break(reason.reason, reason.user_stack) if reason.graph_break else None
        values = output.local_scope
        failed, file = _failed(code, output), code.co_filename
        return Frame(name, after, ended, _guards_of(code), failed, values, file)
    except (MissingNameError, AttributeError):  # the feature "graph breaks" is lost
        return None


def _beginning(code: types.CodeType) -> tuple[str, Break | None]:
    """The name of the function that ``code`` is, or goes on with, and the graph break before it."""
    from tj_torch.torch_private.dynamo import graph_break_reasons

    resumed = _RESUMED.fullmatch(code.co_name)
    if resumed is None:
        return code.co_name, None
    name, line = resumed.group(1), int(resumed.group(2))
    for found in reversed(graph_break_reasons):
        if any((f.filename, f.lineno) == (code.co_filename, line) for f in found.user_stack):
            return name, Break(found.reason, found.user_stack)
    frame = types.SimpleNamespace(filename=code.co_filename, lineno=line, line="", name=name)
    return name, Break("a graph break", [frame])


def _guards_of(code: types.CodeType) -> Callable[[], tuple[str, ...]]:
    """Function that returns the texts of the guards of the program now compiled for ``code``."""
    from tj_torch.torch_private.dynamo import CompileContext

    number, reference = str(CompileContext.current_compile_id()), weakref.ref(code)

    def texts() -> tuple[str, ...]:
        live = reference()
        for entry in () if live is None else _cached(live):
            if str(getattr(entry, "compile_id", None)) == number:
                return tuple(map(str, entry.guard_manager.code_parts))
        return ()

    return texts


def _failed(code: types.CodeType, output: Any) -> str:
    """The guard for which the newest program of ``code`` and this backend is not used; or empty."""
    mine = _innermost(output.compiler_fn)
    for entry in _cached(code):  # the newest first
        if _innermost(entry.backend) != mine:
            continue
        try:
            parts = entry.guard_manager.check_verbose(output.local_scope).verbose_code_parts
        except Exception:  # of the program's own objects, which guards compare: no reason is known
            return ""
        return str(parts[0]) if parts else ""
    return ""


def is_compiled(frame: Any, callback: Any) -> bool:
    """Test if a program of the backend of ``callback`` is there for the arguments of ``frame``."""
    mine = _innermost(callback)
    programs = (e for e in _cached(frame.f_code) if _innermost(e.backend) == mine)
    try:
        return any(entry.guard_manager.check(frame.f_locals) for entry in programs)
    except Exception:  # of the program's own objects, which guards compare
        return False


def _cached(code: types.CodeType) -> Iterator[Any]:
    from tj_torch.torch_private.dynamo import _debug_get_cache_entry_list

    yield from _debug_get_cache_entry_list(code)


# --------------------------------------------------------------------------- torch.compile


def owner(is_ours: Callable[[Any], bool]) -> Any:
    """The object of ``torch.compile`` that asked for this graph; None if there is none.

    One is made by each call of ``torch.compile``; ``is_ours`` tells the backend that it holds.
    """
    try:
        from tj_torch.torch_private.dynamo import InstructionTranslator

        return _holder(InstructionTranslator.current_tx().output.compiler_fn, is_ours)
    except (MissingNameError, AttributeError):  # the feature "graph breaks" is lost
        return None


def _holder(wrapped: Any, is_ours: Callable[[Any], bool]) -> Any:
    """The innermost of backends that wrap one another, if it holds ours.

    Those around it have copies of its attributes.
    """
    found = _innermost(wrapped)
    return found if is_ours(getattr(found, "compiler_fn", None)) else None


def _innermost(wrapped: Any) -> Any:
    while (inner := getattr(wrapped, "_torchdynamo_orig_backend", None)) is not None:
        wrapped = inner
    return wrapped


def compiled_callable(fn: Any, is_ours: Callable[[Any], bool]) -> Any:
    """The object that `owner` returns for graphs of ``fn``.

    None if ``fn`` is nothing that ``torch.compile`` returned, or if its backend is another one.
    """
    context = vars(fn).get("dynamo_ctx") if isinstance(fn, torch.nn.Module) else None
    callback = getattr(context, "callback", None)
    if callback is None and isinstance(fn, types.FunctionType):
        names = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        is_compiled = hasattr(fn, "_torchdynamo_orig_callable") and "callback" in names
        callback = names["callback"].cell_contents if is_compiled else None
    return _holder(callback, is_ours)


def original_of(fn: Any) -> Any:
    """The module or function that ``torch.compile`` made ``fn`` of; None for any other object."""
    if isinstance(fn, torch.nn.Module):
        return fn._modules.get("_orig_mod") if "dynamo_ctx" in vars(fn) else None
    return getattr(fn, "_torchdynamo_orig_callable", None)


def cached_backends(fn: Any) -> Iterator[Any]:
    """The backends whose programs Dynamo keeps for ``fn``, a result of ``torch.compile``.

    Another call of ``torch.compile`` with equal arguments may have compiled them.
    """
    original = getattr(fn, "_torchdynamo_orig_callable", None)
    module = getattr(original, "__self__", None)
    if isinstance(module, torch.nn.Module) and original.__module__ == torch.nn.Module.__module__:
        original = module  # `Module.compile` compiles a method of `Module` around the forward
    original = getattr(original, "forward", original)
    code = getattr(getattr(original, "__func__", original), "__code__", None)
    try:
        yield from () if code is None else (entry.backend for entry in _cached(code))
    except (MissingNameError, AttributeError):  # the feature "graph breaks" is lost
        return
