"""Inputs of a program on the command line: from a text of arguments, or from annotations."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.errors import ParseError, TjError
from tj_core.text.metadata import parse_meta

if TYPE_CHECKING:
    from tj_core.ir.proxy import Proxy

__all__ = ["Inputs", "annotated_inputs", "given_inputs", "required_parameters"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def call(self, function: Callable[..., Any]) -> Any:
        """Call ``function`` with these arguments."""
        return function(*self.args, **self.kwargs)


def required_parameters(function: Any) -> tuple[str, ...] | None:
    """The parameters of a function or a module without which it cannot be called.

    ``*args`` counts as one; None where Python knows no signature.
    """
    parameters = _parameters(function)
    if parameters is None:
        return None
    return tuple(
        f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    )


def given_inputs(target: str, function: Any, text: str, names: Mapping[str, Any]) -> Inputs:
    """The inputs that ``text`` spells as the arguments of a call: ``torch.rand(4, 8), k=3``.

    It is evaluated with ``names``; other names are imported.

    :raises TjError: if ``text`` is no list of arguments, fails, or does not fit ``function``.
    """
    try:
        # A line of its own for the parenthesis: the text may end with a comment.
        tree = ast.parse(f"_inputs({text}\n)", mode="eval")
    except SyntaxError as error:
        raise TjError(
            f"--inputs {text!r} is no list of arguments: {error.msg}", hint=_FORM
        ) from None
    scope = {**names, "_inputs": lambda *args, **kwargs: Inputs(args, kwargs)}
    try:
        scope |= _imported(tree, scope)
        found = eval(compile(tree, "<inputs>", "eval"), scope)  # the user's own text
    except Exception as error:
        raise TjError(f"--inputs {text!r}: {type(error).__name__}: {error}", hint=_FORM) from error
    _check(target, function, found)
    return found  # type: ignore[no-any-return]


_FORM = '--inputs are the arguments of one call: --inputs "torch.rand(4, 8), torch.rand(8, 3)"'


def annotated_inputs(function: Any, names: Mapping[str, Any]) -> Inputs | None:
    """The inputs that the annotations of required parameters describe; None if one has none.

    An annotation is metadata as traces print it, ``"cpu f32[4, 8]"``, or ``"f32[4, 8]"`` on the
    CPU; or an ``Annotated`` with such a text.

    :raises TjError: if no plugin makes such values, or a size is no number.
    """
    parameters, needed = _parameters(function), required_parameters(function)
    if parameters is None or needed is None or any(name not in parameters for name in needed):
        return None
    args, kwargs = [], {}
    for name in needed:
        described = _described(parameters[name], names)
        if described is None:
            return None
        value = _example(described)
        if parameters[name].kind is inspect.Parameter.KEYWORD_ONLY:
            kwargs[name] = value
        else:
            args.append(value)
    return Inputs(tuple(args), kwargs)


# ------------------------------------------------------------------------------- a text


def _imported(tree: ast.AST, scope: Mapping[str, Any]) -> dict[str, Any]:
    """The modules of names in ``tree`` that neither ``scope`` nor Python defines."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in scope and not hasattr(builtins, node.id):
            spec = importlib.util.find_spec(node.id)
            if spec is not None:
                found[node.id] = importlib.import_module(node.id)
    return found


def _check(target: str, function: Any, inputs: Inputs) -> None:
    try:
        signature = inspect.signature(_called(function))
    except (TypeError, ValueError):  # Python knows no signature: the call will tell
        return
    try:
        signature.bind(*inputs.args, **inputs.kwargs)
    except TypeError as error:
        raise TjError(f"--inputs do not fit {target}{signature}: {error}", hint=_FORM) from None


# ------------------------------------------------------------------------------- annotations


def _called(function: Any) -> Any:
    """The function whose signature is that of a call: a module's ``forward``."""
    return function if isinstance(function, type) else getattr(function, "forward", function)


def _parameters(function: Any) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(_called(function)).parameters
    except (TypeError, ValueError):
        return None


def _described(parameter: inspect.Parameter, names: Mapping[str, Any]) -> Proxy | None:
    """The proxy that a parameter's annotation describes, or None."""
    annotation = parameter.annotation
    if isinstance(annotation, str):  # with `from __future__ import annotations`, all are
        # A name in it may be imported for type checkers alone.
        with contextlib.suppress(Exception):
            annotation = eval(annotation, dict(names))
    texts = annotation.__metadata__ if hasattr(annotation, "__metadata__") else (annotation,)
    found = (_parsed(parameter.name, text) for text in texts if isinstance(text, str))
    return next((proxy for proxy in found if proxy is not None), None)


def _parsed(name: str, text: str) -> Proxy | None:
    for full in (text, f"cpu {text}"):
        with contextlib.suppress(ParseError, ValueError):
            return parse_meta(name, full)
    return None


def _example(described: Proxy) -> Any:
    from tj_core.host.reproducing import example_value
    from tj_core.host.session import current_session

    try:
        return example_value(described, {}, current_session())
    except KeyError as error:
        raise TjError(
            f"the annotation of {described.name} has a size that is no number: {error.args[0]}",
            hint="give the size as a number, or " + _FORM,
        ) from None
