"""Traces as Python text.

Lines of a printed program::

    y = torch.add(x, 1)  # y: "cpu f32[2, 3]" {SAVE}     a call, its outputs' metadata and tags
    y = Kind.torch.add(x, 1)  # y: ...                   a call on the tensor subclass Kind
    # model.py:12 (layers.0): y = x + 1                  the source line of the next call
    #: mutates=(0,), executor='torch'                    further fields of a call, trace or body
    #| _0 = aten.add.Tensor(x, 1)  # _0: ...             its body; nested bodies nest the mark
    def true_fn(x): ...                                  a subprogram of the next call

Everything but sources and history is in the text, so that it reads back. The text
is the same in every process: it holds no addresses and iterates over no set. Metadata stands
in JSON quotes, which escape line ends.
"""

from __future__ import annotations

import json
import keyword
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.errors import TraceError
from tj_core.ir.names import formal_index
from tj_core.ir.proxy import Proxy
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant, Context
from tj_core.ir.trace import Body, BoundSymbol, Subprogram, Trace
from tj_core.ir.tree import leaves
from tj_core.text.metadata import meta_text, tags_text
from tj_core.text.roots import roots

if TYPE_CHECKING:
    from tj_core.ir.effects import Effects
    from tj_core.source import Source

__all__ = ["call_text", "is_name", "keyword_text", "print_trace", "printed_lines", "value_text"]

INDENT = "    "


def print_trace(trace: Trace, *, sources: bool = True, bodies: bool = True) -> str:
    """The whole program as text, imports included."""
    lines = printed_lines(trace, sources=sources, bodies=bodies)
    return "\n".join(line for line, _ in lines) + "\n"


def printed_lines(
    trace: Trace, *, sources: bool = True, bodies: bool = True
) -> Iterator[tuple[str, BoundSymbol | None]]:
    """The lines of the whole program, each with the call that it belongs to, if any."""
    head = [*trace.language.prelude(_namespaces(trace))]
    head += ["", ""] if head else []
    yield from ((line, None) for line in head)
    yield from _function(trace, sources, bodies)


_Lines = Iterator[tuple[str, "BoundSymbol | None"]]


@dataclass(frozen=True, slots=True)
class _Style:
    """The parts to print, and the executor that is printed once, at the function."""

    sources: bool
    bodies: bool
    usual: str | None = None


def _function(trace: Trace, sources: bool, bodies: bool) -> _Lines:
    yield f"def {trace.name}({', '.join(p.name for p in trace.inputs)}):", None
    extras = {"stage": trace.stage.name}
    usual = _usual_executor(trace)
    extras |= _present(context=dict(trace.context.items), tags=dict(trace.tags), executor=usual)
    yield f"{INDENT}#: {_keywords(extras)}", None
    for line, call in _inside(trace, _Style(sources, bodies, usual)):
        yield INDENT + line, call


def _inside(trace: Trace, style: _Style) -> _Lines:
    yield from ((_meta_comment(p), None) for p in trace.inputs)
    yield from _calls(trace, style)
    yield f"return {value_text(trace.outputs)}", None


def _subprogram(subprogram: Subprogram, enclosing: Context, style: _Style) -> Iterator[str]:
    """A subprogram as a function of its own; ``enclosing`` is the context of its call."""
    program = subprogram.program
    yield f"def {subprogram.name}({', '.join(p.name for p in program.inputs)}):"
    context = None if program.context == enclosing else dict(program.context.items)
    extras = _present(
        operands=subprogram.operands, returns=subprogram.returns, tags=dict(program.tags)
    )
    extras |= {} if context is None else {"context": context}
    if extras:
        yield f"{INDENT}#: {_keywords(extras)}"
    for line, _ in _inside(program, style):
        yield INDENT + line


def _usual_executor(trace: Trace) -> str | None:
    """The executor of most calls of a claimed trace; it stands once, at the function."""
    if trace.stage is not Stage.CLAIMED:
        return None
    counts = Counter(call.executor for call in trace.calls if call.executor)
    return counts.most_common(1)[0][0] if counts else None


def _calls(trace: Trace, style: _Style) -> _Lines:
    source: Source | None = None
    context: Context = Context()
    indent = ""
    for call in trace.calls:
        if (beyond := call.context.beyond(trace.context)) != context:
            context = beyond
            entered = trace.language.enter(call.context, trace.context)
            indent = INDENT if entered else ""
            if entered:
                yield f"with {', '.join(entered)}:", None
        if style.sources and call.source and call.source != source:
            source = call.source
            yield f"{indent}# {source.short()}", None
        for subprogram in call.subprograms:
            for line in _subprogram(subprogram, call.context, style):
                yield indent + line, call
        executor = None if call.executor == style.usual else call.executor or ""
        shown = call.replace(context=beyond, executor=executor)
        for line in print_call(shown, bodies=style.bodies):
            yield indent + line, call


def print_call(
    call: BoundSymbol, rename: Callable[[str], str] = str, path: str = "", *, bodies: bool = True
) -> Iterator[str]:
    """The lines of one call: the statement, the call's further fields, its body."""
    outs = [_meta_comment(p, rename) for p in call.flat_outs]
    statement = call_text(call, rename, _callee(_of_kind(call)))
    yield f"{statement}  {outs[0]}" if len(outs) == 1 else statement
    if len(outs) > 1:
        yield from outs
    if extras := _extras(call, rename):
        yield f"#: {_keywords(extras)}"
    if call.body is not None and bodies:
        for line in _body(call, call.body, rename, path):
            yield f"#| {line}"


def _body(call: BoundSymbol, body: Body, rename: Callable[[str], str], path: str) -> Iterator[str]:
    """A body under the names of the call it serves; ``path`` keeps nested names apart."""
    args = call.flat_args
    names = {p.name: rename(args[formal_index(p.name)].name) for p in body.inputs}

    def actual(name: str) -> str:
        return names.get(name) or f"_{path}{name[1:]}"

    for position, inner in enumerate(body.calls):
        for subprogram in inner.subprograms:
            yield from _subprogram(subprogram, inner.context, _Style(False, True))
        yield from print_call(inner, actual, f"{path}{position}_")
    yield f"return {value_text(body.outputs, actual)}"
    if body.updates:
        pairs = ", ".join(f"({i}, {value_text(v, actual)})" for i, v in body.updates)
        yield f"#: updates=({pairs},)"


def call_text(
    call: BoundSymbol,
    rename: Callable[[str], str] = str,
    callee: str | None = None,
    constant: Callable[[Constant], str] | None = None,
    subprogram: Callable[[Subprogram], str] | None = None,
) -> str:
    """The statement of one call: ``y = torch.add(x, 1)``."""
    args = [value_text(a, rename, constant, subprogram) for a in call.args]
    args += [keyword_text(k, value_text(v, rename, constant, subprogram)) for k, v in call.kwargs]
    text = f"{callee or _callee(call.symbol.qualname)}({', '.join(args)})"
    return text if call.outputs is None else f"{_target(call.outputs, rename)} = {text}"


def _of_kind(call: BoundSymbol) -> str:
    """The name of the operation, prefixed with the tensor subclass that defines its meaning.

    The name of a claimed call has the prefix already, after the executor's name.
    """
    name = call.symbol.qualname
    own = any(kind in name.split(".") for kind in call.kinds)
    return name if own or not call.kinds else f"{call.kinds[0]}.{name}"


def is_name(word: str) -> bool:
    """Test if ``word`` can be the name of a variable that Python's parser leaves unchanged."""
    plain = word.isascii() or unicodedata.normalize("NFKC", word) == word
    return plain and word.isidentifier() and not keyword.iskeyword(word)


def _callee(qualname: str) -> str:
    """A dotted name as an expression, with `getattr` for keywords (``random_.from``)."""
    text, *parts = qualname.split(".")
    for part in parts:
        text = f"{text}.{part}" if is_name(part) else f"getattr({text}, {part!r})"
    return text


def keyword_text(name: str, value: str) -> str:
    """A keyword argument as text in a call; ``**{'from': 0}`` if the name is a keyword."""
    return f"{name}={value}" if is_name(name) else f"**{{{name!r}: {value}}}"


def _target(tree: Any, rename: Callable[[str], str]) -> str:
    """An assignment target for an output tree; ``_`` stands for constants."""
    if isinstance(tree, dict | slice):
        raise TraceError(f"a call cannot have a {type(tree).__name__} among its outputs: {tree!r}")
    if isinstance(tree, tuple):
        items = [_target(item, rename) for item in tree]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(tree, list):
        return f"[{', '.join(_target(item, rename) for item in tree)}]"
    return rename(tree.name) if isinstance(tree, Proxy) else "_"


def value_text(
    tree: Any,
    rename: Callable[[str], str] = str,
    constant: Callable[[Constant], str] | None = None,
    subprogram: Callable[[Subprogram], str] | None = None,
) -> str:
    """A tree of arguments as a Python expression."""

    def text(item: Any) -> str:
        if isinstance(item, Proxy):
            return rename(item.name)
        if isinstance(item, Constant):
            return constant(item) if constant else item.text
        if isinstance(item, Subprogram):
            return subprogram(item) if subprogram else item.name
        if type(item) is tuple:
            return f"({text(item[0])},)" if len(item) == 1 else f"({', '.join(map(text, item))})"
        if type(item) is list:
            return f"[{', '.join(map(text, item))}]"
        if type(item) is dict:
            return f"{{{', '.join(f'{k!r}: {text(v)}' for k, v in item.items())}}}"
        if type(item) is slice:
            return f"slice({text(item.start)}, {text(item.stop)}, {text(item.step)})"
        if type(item) is complex and repr(item.real) != "0.0":
            return f"complex({item.real!r}, {item.imag!r})"  # a sum would lose the sign of -0.0
        return "..." if item is ... else repr(item)

    return text(tree)


def _meta_comment(proxy: Proxy, rename: Callable[[str], str] = str) -> str:
    meta = json.dumps(meta_text(proxy), ensure_ascii=False)
    return f"# {rename(proxy.name)}: {meta}{tags_text(proxy.tags)}"


def _extras(call: BoundSymbol, rename: Callable[[str], str]) -> dict[str, Any]:
    """The fields of a call beyond its statement, for the ``#:`` line."""
    constants = tuple(x for x in leaves(call.outputs) if not isinstance(x, Proxy))
    return _present(
        constants=() if call.outputs is None else constants,
        tags=dict(call.tags),
        context=dict(call.context.items),
        **_effects(call.effects, rename),
        parent=call.parent,
        executor=call.executor,
    )


def _effects(effects: Effects, rename: Callable[[str], str]) -> dict[str, Any]:
    return {
        "mutates": effects.mutates,
        "rebinds": {i: (rename(p.name), meta_text(p), dict(p.tags)) for i, p in effects.rebinds},
        "aliases": tuple((a.output, a.kind, a.index, a.identical) for a in effects.aliases),
        "ordered": effects.ordered,
        "marks": effects.marks,
        "copies_back": effects.copies_back,
    }


def _present(**values: Any) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v not in (None, False, (), {})}


def _keywords(values: dict[str, Any]) -> str:
    return ", ".join(f"{k}={value_text(v)}" for k, v in values.items())


def _namespaces(trace: Trace) -> set[str]:
    """The namespaces of a program: of its symbols, named constants and contexts."""
    found = {call.symbol.namespace for call in trace.calls}
    for subprogram in [subprogram for call in trace.calls for subprogram in call.subprograms]:
        found |= _namespaces(subprogram.program)
    trees: Iterable[Any] = [trace.outputs, *((c.args, c.kwargs) for c in trace.calls)]
    for leaf in leaves(list(trees)):
        if isinstance(leaf, Constant) and leaf.named:
            found.update(roots(leaf.text))
    for context in {call.context: None for call in trace.calls}:
        for text in trace.language.enter(context, trace.context):
            found.update(roots(text))
    return found
