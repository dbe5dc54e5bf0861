"""Metadata as text, printed and parsed: the quoted part of ``# t0: "cpu f32[2, 2]"``."""

from __future__ import annotations

import ast
import re

from tj_core.errors import ParseError
from tj_core.ir.proxy import (
    Device,
    Dim,
    DType,
    NumberProxy,
    OpaqueProxy,
    Proxy,
    SubclassInfo,
    SymDim,
    TensorProxy,
    contiguous_strides,
)
from tj_core.ir.tags import NO_TAGS, TagSet, TagValue

__all__ = ["meta_text", "parse_meta", "parse_tags", "tags_text"]


def meta_text(proxy: Proxy) -> str:
    """The metadata of ``proxy`` as text, without name and tags."""
    if isinstance(proxy, TensorProxy):
        return _tensor_text(proxy)
    if isinstance(proxy, NumberProxy):
        return f"{proxy.kind} {proxy.expr}".rstrip()
    if isinstance(proxy, OpaqueProxy):
        return f"object {proxy.type}"
    raise TypeError(f"{type(proxy).__name__} has no text")


def _tensor_text(t: TensorProxy) -> str:
    words = [f"{t.device} {t.dtype}[{', '.join(map(str, t.shape))}]"]
    if t.subclass:
        words[0] = f"{t.subclass.type}[{words[0]}]"
    if t.layout == "strided" and t.strides != contiguous_strides(t.shape):
        words.append(f"strides=({', '.join(map(str, t.strides))})")
    if t.layout != "strided":
        words.append(f"layout={t.layout}")
    if t.requires_grad:
        words.append("requires_grad")
    words += t.flags
    if t.subclass:
        inner = {name: meta_text(p) for name, p in t.subclass.inner}
        words.append(f"subclass={(inner, t.subclass.context)!r}")
    return " ".join(words)


# Sizes are expressions, with parentheses and commas of their own but without brackets.
_TENSOR = re.compile(
    r"(?:(?P<subclass>[\w.<>]+)\[)?"
    r"(?P<device>[\w:]+) (?P<dtype>[\w/]+)\[(?P<shape>[^\]]*)\](?(subclass)\])"
    r"(?: strides=\((?P<strides>.*?)\)(?= layout=| requires_grad| conj| neg| subclass=|$))?"
    r"(?: layout=(?P<layout>\w+))?(?P<grad> requires_grad)?"
    r"(?P<flags>(?: (?:conj|neg))*)(?: subclass=(?P<info>.*))?"
)


def parse_meta(name: str, text: str, tags: TagSet = NO_TAGS) -> Proxy:
    """The proxy called ``name`` whose metadata prints as ``text``.

    :raises ParseError: if ``text`` is not printed metadata.
    """
    if match := re.fullmatch(r"(int|float|bool|complex)(?: (.+))?", text):
        return NumberProxy(name, match[1], match[2] or "", tags=tags)
    if text.startswith("object "):
        return OpaqueProxy(name, text[7:], tags=tags)
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise ParseError(f"{text!r} is not the metadata of a value")
    shape, layout = _dims(match["shape"]), match["layout"] or "strided"
    strides = _dims(match["strides"]) if match["strides"] is not None else contiguous_strides(shape)
    return TensorProxy(
        name,
        shape,
        (strides or ()) if layout == "strided" else (),
        DType.parse(match["dtype"]),
        Device.parse(match["device"]),
        match["grad"] is not None,
        layout,
        tuple(match["flags"].split()),
        _subclass(match["subclass"], match["info"]),
        tags=tags,
    )


def _subclass(kind: str | None, info: str | None) -> SubclassInfo | None:
    if kind is None:
        return None
    inner, context = ast.literal_eval(info or "({}, '')")
    proxies = tuple((attr, parse_meta(attr, text)) for attr, text in inner.items())
    return SubclassInfo(kind, proxies, context)  # type: ignore[arg-type]


def _dims(text: str) -> tuple[Dim, ...]:
    words = [w for w in _split(text) if w]
    return tuple(int(w) if re.fullmatch(r"-?\d+", w) else SymDim(w) for w in words)


def _split(text: str) -> list[str]:
    """Split ``text`` at its commas, except within parentheses."""
    words, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            words.append("")
        else:
            words[-1] += char
    return [w.strip() for w in words]


def tags_text(tags: TagSet) -> str:
    """`` {SAVE, REGION=3}``, or nothing for no tags."""
    return f" {{{tags}}}" if tags else ""


_TAG = re.compile(
    r"(?P<name>\w+)"
    r"""(?:=(?P<value>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,'"]+))?"""
    r"(?:, |$)"
)


def parse_tags(text: str) -> TagSet:
    """The tags that print as ``text`` (with or without braces).

    :raises ParseError: if ``text`` is not the print of tags.
    """
    inner = text.strip()
    inner = inner[1:-1] if inner.startswith("{") else inner
    found: dict[str, TagValue] = {}
    position = 0
    while position < len(inner):
        match = _TAG.match(inner, position)
        if match is None:
            raise ParseError(f"{text!r} are not tags")
        found[match["name"]] = ast.literal_eval(match["value"]) if match["value"] else None
        position = match.end()
    return TagSet(found)
