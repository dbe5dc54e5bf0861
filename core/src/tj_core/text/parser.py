"""Parser of printed traces; the inverse of `tj_core.text.printer`."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tj_core.errors import ParseError
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.names import formal_input
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import PLAIN_CONTEXT, Constant, Context, Symbol
from tj_core.ir.tags import NO_TAGS, TagSet
from tj_core.ir.trace import Body, BoundSymbol, Notation, Subprogram, Trace
from tj_core.text.metadata import parse_meta, parse_tags

if TYPE_CHECKING:
    from tj_core.ir.proxy import Proxy

__all__ = ["parse_trace"]

_META = re.compile(r'# (\w+): ("(?:[^"\\]|\\.)*")(?: (\{.*\}))?$')
_DEF = re.compile(r"def (\w+)\((.*)\):")


@dataclass(frozen=True)
class _Code:
    """A part of a line as a syntax tree, with the line, which has the spelling of constants."""

    node: ast.expr
    line: str


@dataclass(frozen=True, slots=True)
class _Enclosing:
    """The context and executor that a call inherits from its surroundings."""

    context: Context = PLAIN_CONTEXT
    executor: str | None = None


@dataclass
class _Draft:
    """A call being read: its statement, and the lines that follow it."""

    statement: ast.stmt
    text: str
    metas: dict[str, Proxy] = field(default_factory=dict)
    extras: dict[str, _Code] = field(default_factory=dict)
    body: list[str] = field(default_factory=list)
    subprograms: list[_Block] = field(default_factory=list)


@dataclass
class _Block:
    """The lines of a program or body, sorted by kind."""

    name: str = "computation"
    inputs: list[str] = field(default_factory=list)
    metas: dict[str, Proxy] = field(default_factory=dict)
    extras: dict[str, _Code] = field(default_factory=dict)
    drafts: list[_Draft] = field(default_factory=list)
    result: _Code | None = None
    updates: _Code | None = None


def parse_trace(text: str, language: Notation, constants: Mapping[str, Any]) -> Trace:
    """The trace that prints as ``text``.

    :raises ParseError: with the line that cannot be parsed.
    """
    return _Reader(language, constants).trace(text.split("\n"))


def _split(lines: list[str]) -> _Block:
    """Sort lines by kind; only this function knows the marks ``#|`` and ``#:``."""
    block = _Block()
    subprograms: list[_Block] = []
    waiting = list(reversed(lines))
    while waiting:
        raw = waiting.pop()
        line = raw.strip()
        draft = block.drafts[-1] if block.drafts else None
        if not line or line.startswith(("import ", "from ", "with ")):
            continue
        if line.startswith("#| "):
            _expect(draft, line).body.append(line[3:])
        elif line.startswith("#: "):
            _extra(block, draft, line)
        elif match := _META.match(line):
            _meta(block, draft, match)
        elif match := _DEF.fullmatch(line):
            inside = _indented(waiting, len(raw) - len(raw.lstrip()))
            subprograms.append(_function(match, inside))
        elif not line.startswith("#"):
            _statement(block, line)
            if block.drafts and block.drafts[-1] is not draft:
                block.drafts[-1].subprograms, subprograms = subprograms, []
    return block


def _function(match: re.Match[str], lines: list[str]) -> _Block:
    """The function with the matched first line and these further ``lines``."""
    block = _split(lines)
    block.name, block.inputs = match[1], [n for n in match[2].split(", ") if n]
    return block


def _indented(waiting: list[str], depth: int) -> list[str]:
    """Take the next lines that are indented deeper than ``depth`` off ``waiting``."""
    found = []
    while waiting and (not waiting[-1].strip() or waiting[-1][: depth + 1].isspace()):
        found.append(waiting.pop())
    return found


def _expect(draft: _Draft | None, line: str) -> _Draft:
    if draft is None:
        raise ParseError(f"no call before {line!r}")
    return draft


def _extra(block: _Block, draft: _Draft | None, line: str) -> None:
    code = _expression(f"dict({line[3:]})")
    assert isinstance(code.node, ast.Call)
    for keyword in code.node.keywords:
        value = _Code(keyword.value, code.line)
        if keyword.arg == "updates":
            block.updates = value
            continue
        target = draft.extras if draft else block.extras
        target[str(keyword.arg)] = value


def _meta(block: _Block, draft: _Draft | None, match: re.Match[str]) -> None:
    name, text, tags = match.groups()
    proxy = parse_meta(name, json.loads(text), parse_tags(tags) if tags else NO_TAGS)
    (draft.metas if draft else block.metas)[name] = proxy


def _statement(block: _Block, line: str) -> None:
    code, mark, meta = line.partition("  # ")
    while mark:  # a string argument may hold the mark: take the shortest code that parses
        try:
            ast.parse(code)
            break
        except SyntaxError:
            head, mark, meta = meta.partition("  # ")
            code = f"{code}  # {head}"
    if re.match(r"return\b", code):
        block.result = _expression(code[len("return") :].strip() or "None")
        return
    try:
        block.drafts.append(_Draft(ast.parse(code).body[0], code))
    except SyntaxError as error:
        raise ParseError(f"not a call: {line!r}") from error
    if mark and (match := _META.match(f"# {meta}")):
        _meta(block, block.drafts[-1], match)


def _expression(text: str) -> _Code:
    try:
        return _Code(ast.parse(text, mode="eval").body, text)
    except SyntaxError as error:
        raise ParseError(f"not an expression: {text!r}") from error


class _Reader:
    """Turns blocks into traces and bodies."""

    def __init__(self, language: Notation, constants: Mapping[str, Any]) -> None:
        self.language = language
        self.constants = constants

    def trace(self, lines: list[str]) -> Trace:
        # The imports before the function are no part of the program.
        start = next((i for i, line in enumerate(lines) if line.startswith("def ")), None)
        if start is None:
            raise ParseError("there is no function in the text")
        match = _DEF.fullmatch(lines[start].strip())
        if match is None:
            raise ParseError(f"not a function: {lines[start]!r}")
        block = _function(match, lines[start + 1 :])
        extras = {k: self.value(v, {}) for k, v in block.extras.items()}
        stage = extras.get("stage", "ACQUIRED")
        if stage not in Stage.__members__:
            raise ParseError(f"{stage!r} is not a stage")
        enclosing = _Enclosing(executor=extras.get("executor"))
        return self.program(block, extras, enclosing).replace(stage=Stage[stage])

    def program(self, block: _Block, extras: Mapping[str, Any], enclosing: _Enclosing) -> Trace:
        """The trace of a function, at no stage."""
        missing = [n for n in block.inputs if n not in block.metas]
        if missing:
            raise ParseError(f"no metadata for input {missing[0]!r}")
        env = {name: block.metas[name] for name in block.inputs}
        inputs = tuple(env.values())
        if "context" in extras:
            enclosing = replace(enclosing, context=Context(tuple(extras["context"].items())))
        return Trace(
            inputs,
            tuple(self.call(draft, env, enclosing) for draft in block.drafts),
            self.value(block.result, env),
            block.name,
            context=enclosing.context,
            tags=TagSet(extras.get("tags", {})),
            language=self.language,
        )

    def subprogram(self, block: _Block, enclosing: _Enclosing) -> Subprogram:
        extras = {k: self.value(v, {}) for k, v in block.extras.items()}
        program = self.program(block, extras, enclosing)
        return Subprogram(program, extras.get("operands", ()), extras.get("returns", False))

    def call(
        self, draft: _Draft, env: dict[str, Any], enclosing: _Enclosing, path: str = ""
    ) -> BoundSymbol:
        statement = draft.statement
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        node = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
        if not isinstance(node, ast.Call):
            raise ParseError(f"not a call: {draft.text!r}")
        extras = {k: self.value(v, env) for k, v in draft.extras.items()}
        context = Context(tuple(extras.get("context", {}).items())).over(enclosing.context)
        enclosing = replace(enclosing, context=context)
        subprograms = {block.name: self.subprogram(block, enclosing) for block in draft.subprograms}
        args = tuple(self.value(_Code(a, draft.text), env | subprograms) for a in node.args)
        kwargs = tuple(self.keywords(node, draft.text, env | subprograms))
        executor = extras.get("executor")
        effects = _effects(extras, env)
        env.update(draft.metas)
        env.update(_rebound(extras, effects))
        name = _qualname(node.func)
        call = BoundSymbol(
            Symbol.parse(name),
            args,
            kwargs,
            _outputs(target, draft.metas, iter(extras.get("constants", ()))),
            effects,
            context=context,
            tags=TagSet(extras.get("tags", {})),
            parent=extras.get("parent"),
            executor=enclosing.executor if executor is None else executor or None,
        )
        kind, _, plain = name.partition(".")
        if "." in plain and kind in call.kinds:
            call = call.replace(symbol=Symbol.parse(plain))
        return call.replace(body=self.body(call, draft.body, path, env)) if draft.body else call

    def body(
        self, call: BoundSymbol, lines: list[str], path: str, outer: Mapping[str, Proxy]
    ) -> Body:
        """The body of ``call`` under formal names, from ``lines`` under the call's own names."""
        block = _split(lines)
        # At top level values print under their own names.
        printed = {proxy.name: name for name, proxy in outer.items()} if path else {}
        env: dict[str, Proxy] = {}
        for index, arg in enumerate(call.flat_args):
            env.setdefault(
                printed.get(arg.name, arg.name), arg.replace(name=formal_input(index), tags=NO_TAGS)
            )
        inputs = tuple(env.values())
        calls = []
        for position, draft in enumerate(block.drafts):
            draft.metas = {
                n: p.replace(name=env[n].name if n in env else "_" + n[1 + len(path) :])
                for n, p in draft.metas.items()
            }
            calls.append(self.call(draft, env, _Enclosing(), f"{path}{position}_"))
        updates = self.value(block.updates, env) if block.updates else ()
        return Body(inputs, tuple(calls), self.value(block.result, env), updates)

    def keywords(
        self, call: ast.Call, line: str, env: Mapping[str, Proxy]
    ) -> Iterator[tuple[str, Any]]:
        for keyword in call.keywords:
            value = self.value(_Code(keyword.value, line), env)
            if keyword.arg is None:  # **{'from': 0}
                yield from value.items()
            else:
                yield keyword.arg, value

    def value(self, code: _Code | None, env: Mapping[str, Any]) -> Any:
        """The argument tree of the expression ``code``."""
        if code is None:
            raise ParseError("the program has no return line")
        return self.read(code.node, code.line, env)

    def read(self, node: Any, line: str, env: Mapping[str, Any]) -> Any:
        """The argument tree of ``node``, an expression in the text ``line``."""
        read = functools.partial(self.read, line=line, env=env)
        match node:
            case ast.Constant():
                return node.value
            case ast.Name() if node.id in env:
                return env[node.id]
            case ast.Name() if node.id in self.constants:
                return Constant(node.id, self.constants[node.id], named=False)
            case ast.Tuple():
                return tuple(map(read, node.elts))
            case ast.List():
                return list(map(read, node.elts))
            case ast.Dict():
                return dict(zip(map(read, node.keys), map(read, node.values), strict=True))
            case ast.Call(func=ast.Name(id="slice")):
                return slice(*map(read, node.args))
            case ast.Call(func=ast.Name(id="complex"), args=[real, imaginary]):
                return complex(read(real), read(imaginary))
            case ast.UnaryOp() | ast.BinOp() if (number := _number(node)) is not None:
                return number
        return self.named(ast.get_source_segment(line, node) or ast.unparse(node))

    def named(self, text: str) -> Constant:
        try:
            return Constant(text, self.language.evaluate(text))
        except Exception as error:
            raise ParseError(
                f"{text!r} is neither a value of the program nor a constant"
            ) from error


def _number(node: ast.expr) -> Any:
    """The negative or complex number of the expression ``node``, or None."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _qualname(node: ast.expr) -> str:
    """The dotted name of a callee; the inverse of the printer's ``getattr(x, 'from')``."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return f"{_qualname(node.value)}.{node.attr}"
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(part))]):
            return f"{_qualname(owner)}.{part}"
    raise ParseError(f"{ast.unparse(node)!r} is not the name of an operation")


def _outputs(target: ast.expr | None, metas: Mapping[str, Proxy], constants: Any) -> Any:
    if target is None:
        return None
    if isinstance(target, ast.Tuple):
        return tuple(_outputs(item, metas, constants) for item in target.elts)
    if isinstance(target, ast.List):
        return [_outputs(item, metas, constants) for item in target.elts]
    assert isinstance(target, ast.Name)
    if target.id == "_":
        return next(constants)
    if target.id not in metas:
        raise ParseError(f"no metadata for {target.id!r}")
    return metas[target.id]


def _effects(extras: Mapping[str, Any], env: Mapping[str, Proxy]) -> Effects:
    """The effects as printed; ``env`` holds the arguments under their printed names."""
    rebinds = extras.get("rebinds", {}).items()
    return Effects(
        extras.get("mutates", ()),
        tuple(
            (i, parse_meta(env[name].name, text, TagSet(tags))) for i, (name, text, tags) in rebinds
        ),
        tuple(Alias(*facts) for facts in extras.get("aliases", ())),
        extras.get("ordered", ()),
        extras.get("marks", ()),
        extras.get("copies_back", False),
    )


def _rebound(extras: Mapping[str, Any], effects: Effects) -> Iterator[tuple[str, Proxy]]:
    """Rebound values by their printed names."""
    for (name, *_), (_, proxy) in zip(
        extras.get("rebinds", {}).values(), effects.rebinds, strict=True
    ):
        yield name, proxy
