"""How Dynamo is corrected, and kept away: for one capture, or from code for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

import torch

from tj_torch.torch_private.lookup import MissingNameError

__all__ = [
    "forget_builders",
    "forget_handlers",
    "has",
    "is_pytorchs",
    "leave",
    "leave_frames",
    "path_of",
    "replace",
    "replace_instruction",
    "stop",
    "unprofiled",
    "with_subclasses",
]

_PYTORCHS = str(Path(torch.__file__).parent)


def replace(
    stack: ExitStack,
    owner: Any,
    name: str,
    make: Callable[[Callable[..., Any]], Any],
    *,
    inherited: bool = False,
) -> None:
    """Set ``owner.name`` to what ``make`` makes of it, until ``stack`` is left.

    :param inherited: whether a base of ``owner`` may have it, and ``owner`` gets one of its own.
    :raises MissingNameError: if this PyTorch has no such name.
    """
    if not has(owner, name) and not (inherited and hasattr(owner, name)):
        raise MissingNameError(f"{path_of(owner)}.{name}")
    if has(owner, name):
        original = vars(owner)[name]
        stack.callback(setattr, owner, name, original)
    else:
        original = getattr(owner, name)
        stack.callback(delattr, owner, name)
    setattr(owner, name, make(original))


def path_of(owner: Any) -> str:
    """The path of a class or module: ``torch._dynamo.exc.Unsupported``."""
    return f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__


def replace_instruction(
    stack: ExitStack, name: str, make: Callable[[Callable[..., Any]], Any]
) -> None:
    """Replace how Dynamo runs the bytecode instruction ``name``, until ``stack`` is left.

    It looks them up in a table of each class of its interpreters.

    :raises MissingNameError: if this PyTorch has no such instruction.
    """
    from tj_torch.torch_private.dynamo import InstructionTranslatorBase

    original = vars(InstructionTranslatorBase).get(name)
    replace(stack, InstructionTranslatorBase, name, make)
    made = vars(InstructionTranslatorBase)[name]
    for interpreter in with_subclasses(InstructionTranslatorBase):
        table = interpreter.dispatch_table
        for i in [i for i, entry in enumerate(table) if entry is original]:
            stack.callback(table.__setitem__, i, original)
            table[i] = made


def with_subclasses(cls: Any) -> Iterator[Any]:
    """Yield ``cls`` and all classes that are derived from it."""
    yield cls
    for subclass in cls.__subclasses__():
        yield from with_subclasses(subclass)


def has(owner: Any, name: str) -> bool:
    """Whether this PyTorch has ``owner.name``, there and not in a base: what `replace` takes."""
    return name in vars(owner)


def stop(what: str) -> NoReturn:
    """Break the graph at ``what``."""
    from tj_torch.torch_private.dynamo import exc

    raise exc.Unsupported(what)


@contextmanager
def unprofiled() -> Iterator[None]:
    """Let Dynamo build guards without timing them: it flushes the caches first, in 20 ms.

    That is half of what a small program takes to compile, for a line in a log.
    """
    from tj_torch.torch_private.dynamo import guards

    with ExitStack() as stack:
        if "profile_guard_manager" in vars(guards):
            replace(stack, guards, "profile_guard_manager", lambda _: lambda *timed: 0.0)
        yield


def leave(codes: Iterable[CodeType]) -> None:
    """Make PyTorch's hook run frames of ``codes`` as they are, until it is reset."""
    from tj_torch.torch_private.dynamo import skip_code

    for code in codes:
        skip_code(code)


def is_pytorchs(code: CodeType) -> bool:
    """Tell whether ``code`` is in a file of PyTorch's."""
    return code.co_filename.startswith(_PYTORCHS)


def leave_frames(
    stack: ExitStack, is_one: Callable[[Any], bool], does: str, *, of_pytorch: bool = False
) -> None:
    """Break the graph at functions that have an instruction that ``is_one``; ``does`` says why.

    For corrections that cannot be made in this version of Dynamo. PyTorch's own functions are only
    looked at if ``of_pytorch`` says so.
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
    """Let Dynamo look again, now and later, for how it wraps values of each type.

    It remembers the methods for the whole process, as they were when it first wrapped one:
    a capture of torch.compile's before one of tj's, or after it.
    """
    from tj_torch.torch_private.dynamo import VariableBuilder

    def forget() -> None:
        for name in ("_type_dispatch_impl", "_type_dispatch"):
            if clear := getattr(getattr(VariableBuilder, name, None), "cache_clear", None):
                clear()

    forget()
    stack.callback(forget)


def forget_handlers(stack: ExitStack, *functions: Callable[..., Any]) -> None:
    """Let Dynamo look again, now and later, for how it calls these builtin ``functions``.

    It remembers that for the whole process.
    """
    from tj_torch.torch_private.dynamo import BuiltinVariable

    def forget() -> None:
        remembered = BuiltinVariable.call_function_handler_cache
        for key in [k for k in remembered if k[0] in functions]:
            del remembered[key]

    forget()
    stack.callback(forget)
