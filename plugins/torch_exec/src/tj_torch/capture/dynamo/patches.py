"""Patches of Dynamo for one capture that replace more than a name, and frames left to Python."""

from __future__ import annotations

import dis
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import torch

from tj_torch.torch_private.eager import level_depth
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from types import CodeType

T = TypeVar("T")

__all__ = [
    "OfGraph",
    "Stopped",
    "forget_builders",
    "forget_handlers",
    "insisting",
    "is_nested",
    "is_pytorchs",
    "leave",
    "leave_frames",
    "leave_program",
    "put_item",
    "replace_getattr",
    "replace_handler",
    "replace_instruction",
    "stop",
    "unprofiled",
    "with_subclasses",
]

_PYTORCHS = str(Path(torch.__file__).parent)


def replace_handler(
    stack: ExitStack, function: Callable[..., Any], make: Callable[[Callable[..., Any]], Any]
) -> None:
    """Replace Dynamo's handler of calls of ``function``, until ``stack`` is left."""
    from tj_torch.torch_private.dynamo import TorchInGraphFunctionVariable

    handlers = TorchInGraphFunctionVariable._get_handlers()
    put_item(stack, handlers, function, make(handlers[function]))


def put_item(stack: ExitStack, table: dict[Any, Any], key: Any, value: Any) -> None:
    """Set the item of ``key`` in ``table``, one of Dynamo's, until ``stack`` is left."""
    if key in table:
        stack.callback(table.__setitem__, key, table[key])
    else:
        stack.callback(table.pop, key)
    table[key] = value


def replace_instruction(
    stack: ExitStack, name: str, make: Callable[[Callable[..., Any]], Any]
) -> None:
    """Replace Dynamo's handler of the bytecode instruction ``name``, until ``stack`` is left.

    Each class of its interpreters has a table of handlers. Those of generators alone are in a
    derived class.

    :raises MissingNameError: if this PyTorch has no such instruction.
    """
    from tj_torch.torch_private.dynamo import InstructionTranslatorBase

    having = (cls for cls in with_subclasses(InstructionTranslatorBase) if name in vars(cls))
    owner = next(having, InstructionTranslatorBase)
    original = vars(owner).get(name)
    replace(stack, owner, name, make)
    made = vars(owner)[name]
    place = dis.opmap.get(name)
    for interpreter in with_subclasses(owner) if place is not None else ():
        table = interpreter.dispatch_table
        # A subclass may have a handler of its own for the instruction.
        if table[place] is original:
            stack.callback(table.__setitem__, place, original)
            table[place] = made


def with_subclasses(cls: Any) -> Iterator[Any]:
    """Yield ``cls`` and all derived classes."""
    yield cls
    for subclass in cls.__subclasses__():
        yield from with_subclasses(subclass)


class Stopped(Exception):
    """Mark of a graph break that a correction makes, not Dynamo."""


def stop(what: str) -> NoReturn:
    """Break the graph at ``what``."""
    raise _noted(_stopped()(what))


def leave_program(what: str) -> NoReturn:
    """Leave the whole program, or the frame below PyTorch's hook, to Python because of ``what``.

    At a graph break, parts of it would be compiled.
    """
    from tj_torch.torch_private.dynamo import exc

    raise _noted(exc.SkipFrame(what), stack=True)


def _noted(error: Any, stack: bool = False) -> Any:
    """Record ``error``, which is about to be raised, for `insisting`, and return it.

    No variable of a frame that raises an error may hold the error: the frames of the user's call
    are below, with the result, which would live until garbage is collected.
    """
    from tj_torch.torch_private.dynamo import TracingContext

    if stack:
        error.real_stack = TracingContext.extract_stack()
    if (stops := _STOPS.get()) is not None:
        stops.append(error)
    return error


# Set in a call of one thread alone (`insisting`).
_STOPS: ContextVar[list[Exception] | None] = ContextVar("stops", default=None)


def insisting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let no graph break of a correction end inside of the function ``original``."""

    def function(*args: Any, **kwargs: Any) -> Any:
        outer, stops = _STOPS.get(), list[Exception]()
        token = _STOPS.set(stops)
        try:
            result = original(*args, **kwargs)
            if stops:
                raise stops[-1]
            return result
        finally:
            _STOPS.reset(token)
            if outer is not None:
                outer += stops
            stops.clear()  # an error would refer to itself through this frame

    return function


@functools.cache
def _stopped() -> Any:
    from tj_torch.torch_private.dynamo import exc

    return type("Stopped", (exc.Unsupported, Stopped), {})


@contextmanager
def unprofiled() -> Iterator[None]:
    """Make Dynamo build guards without profiling them, which flushes caches and takes 20 ms.

    That is half of the compile time of a small program, for a line in a log.
    """
    from tj_torch.torch_private.dynamo import guards

    with ExitStack() as stack:
        if "profile_guard_manager" in vars(guards):
            replace(stack, guards, "profile_guard_manager", lambda _: lambda *timed: 0.0)
        yield


def leave(codes: Iterable[CodeType]) -> None:
    """Make PyTorch's hook run frames of ``codes`` uncompiled, until Dynamo is reset."""
    from tj_torch.torch_private.dynamo import skip_code

    for code in codes:
        skip_code(code)


def replace_getattr(
    stack: ExitStack, reading: Callable[[Any, list[Any], Callable[..., Any]], Any]
) -> None:
    """Replace how Dynamo calls ``getattr``, until ``stack`` is left.

    ``reading`` gets the interpreter, the arguments, and the function in whose place it is called,
    which takes arguments one by one.
    """
    from tj_torch.torch_private.dynamo import builtin

    def together(original: Callable[..., Any]) -> Callable[..., Any]:
        def _call_getattr(self: Any, tx: Any, args: Any, *rest: Any) -> Any:
            return reading(tx, [*args], lambda *given: original(self, tx, [*given], *rest))

        return _call_getattr

    def one_by_one(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_getattr(self: Any, tx: Any, *args: Any) -> Any:
            return reading(tx, [*args], functools.partial(original, self, tx))

        return call_getattr

    own = getattr(builtin, "GetAttrBuiltinVariable", None)
    if own is not None:
        replace(stack, own, "_call_getattr", together)
    else:  # up to 2.11
        forget_handlers(stack, getattr)
        replace(stack, builtin.BuiltinVariable, "call_getattr", one_by_one)


class OfGraph(Generic[T]):
    """Notes on the graph in progress, which ``make`` begins for each graph and attempt at one."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._output: Callable[[], Any] = lambda: None
        self._make, self._notes = make, make()

    def of(self, output: Any) -> T:
        """The notes on the graph of ``output``, Dynamo's `OutputGraph`."""
        if self._output() is not output:
            self._output, self._notes = weakref.ref(output), self._make()
        return self._notes

    def forget(self) -> None:
        """Let go of the notes, and with them of the graph."""
        self._output, self._notes = lambda: None, self._make()


def is_nested(tx: Any) -> bool:
    """Test if ``tx`` is in a function of an operation such as `flex_attention`, or in a level of
    `torch.func`.
    """
    return tx.output.current_tracer.parent is not None or level_depth() > 0


def is_pytorchs(code: CodeType) -> bool:
    """Test for code in a file of PyTorch's."""
    return code.co_filename.startswith(_PYTORCHS)


def leave_frames(
    stack: ExitStack, is_one: Callable[[Any], bool], does: str, *, of_pytorch: bool = False
) -> None:
    """Break the graph at functions with an instruction that ``is_one`` accepts.

    For corrections that cannot be made in this version of Dynamo; ``does`` is the end of the reason
    given. PyTorch's own functions are exempt unless ``of_pytorch``.
    """
    from tj_torch.torch_private.dynamo import InstructionTranslatorBase

    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            looked_at = of_pytorch or not is_pytorchs(self.f_code)
            if looked_at and any(map(is_one, self.instructions)):
                stop(f"{self.f_code.co_name} {does}")

        return init

    replace(stack, InstructionTranslatorBase, "__init__", looking)


def forget_builders(stack: ExitStack) -> None:
    """Clear Dynamo's cache of the methods that wrap values of each type, now and at exit.

    Dynamo keeps the methods for the process as first looked up, be that in a capture of
    torch.compile's, which must not see a patch, or of tj's, which must.
    """
    from tj_torch.torch_private.dynamo import VariableBuilder

    def forget() -> None:
        for name in ("_type_dispatch_impl", "_type_dispatch"):
            if clear := getattr(getattr(VariableBuilder, name, None), "cache_clear", None):
                clear()

    forget()
    stack.callback(forget)


def forget_handlers(stack: ExitStack, *functions: Callable[..., Any]) -> None:
    """Clear Dynamo's cache of handlers for these builtin ``functions``, now and at exit.

    Dynamo keeps the handlers for the process, as `forget_builders` describes.
    """
    from tj_torch.torch_private.dynamo import BuiltinVariable

    def forget() -> None:
        remembered = BuiltinVariable.call_function_handler_cache
        for key in [k for k in remembered if k[0] in functions]:
            del remembered[key]

    forget()
    stack.callback(forget)
