"""``tj package``: show, verify and run a package."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tj_core.extend import CliCommand, PackageError

if TYPE_CHECKING:
    import argparse

    from tj_core.extend import Session

__all__ = ["package_command"]


def package_command() -> CliCommand:
    """Make the command ``tj package``."""
    return CliCommand("package", "show, verify or run a program in a file", _configure, _run)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=sorted(_ACTIONS))
    parser.add_argument("file", type=Path, metavar="FILE", help="a package, as tj.export saves it")
    parser.add_argument("--traces", action="store_true", help="show: print the traces, too")
    parser.add_argument("--seed", type=int, default=0, help="run: seed of the inputs (default: 0)")
    parser.add_argument(
        "--inputs",
        type=Path,
        metavar="TENSORS",
        help="run: a file of safetensors with the arguments by name, instead of random numbers",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(args: argparse.Namespace, session: Session) -> int:
    found, lines = _ACTIONS[args.action](args)
    print(json.dumps(found, indent=2) if args.json else "\n".join(lines))
    return int(not found.get("usable", True))


Said = tuple[dict[str, Any], list[str]]
"""Plain data for JSON, and lines for people."""


def _show(args: argparse.Namespace) -> Said:
    from tj_torch.package.archive import opened
    from tj_torch.package.trees import leaves

    manifest, members = opened(_bytes(args.file), str(args.file))
    contract = manifest["contract"]
    arguments = {
        name: [
            content if kind == "tensor" else _plain(kind, content) for kind, content in leaves(tree)
        ]
        for name, _, _, tree in contract["arguments"]
    }
    sizes = {name: len(data) for name, data in members.items()}
    found = {
        "name": manifest["name"],
        "made": manifest["made"],
        "arguments": arguments,
        "ranges": contract["ranges"],
        "executors": sorted(manifest["executors"]),
        "members": sizes,
    }
    lines = [manifest["name"], *_rows("made with", manifest["made"])]
    lines += _rows("arguments", {k: ", ".join(v) for k, v in arguments.items()})
    lines += [f"  where {condition}" for condition in contract["ranges"]]
    lines += _rows("members", {k: f"{v} bytes" for k, v in sizes.items()})
    if args.traces:
        texts = {n: d.decode() for n, d in members.items() if n.startswith("traces/")}
        found["traces"] = texts
        for name, text in texts.items():
            lines += ["", name, text]
    return found, lines


def _plain(kind: str, content: Any) -> str:
    return f"int {content}" if kind == "number" else str(content[1])


def _rows(title: str, values: Mapping[str, str]) -> list[str]:
    width = max(map(len, values), default=0)
    return [title, *(f"  {name.ljust(width)}  {value}" for name, value in values.items())]


def _verify(args: argparse.Namespace) -> Said:
    from tj_torch.package.program import Package

    try:
        Package.load(args.file)
    except PackageError as error:
        return {"usable": False, "reason": error.message}, [error.message]
    return {"usable": True}, [f"{args.file} is whole, and made for this process"]


def _call(args: argparse.Namespace) -> Said:
    import torch
    from tj_core.extend import meta_text

    from tj_torch.ops.values.convert import tensor_proxy
    from tj_torch.package.examples import example
    from tj_torch.package.program import Package
    from tj_torch.package.tensors import unpacked
    from tj_torch.torch_private.runtime import pytree

    begun = time.perf_counter()
    package = Package.load(args.file)
    loaded = time.perf_counter()
    torch.manual_seed(args.seed)
    given = unpacked(_bytes(args.inputs)) if args.inputs is not None else None
    positional, keywords = example(package.manifest, given)
    start = time.perf_counter()
    result = package(*positional, **keywords)
    seconds = time.perf_counter() - start
    results = [
        meta_text(tensor_proxy("x", x)) if isinstance(x, torch.Tensor) else repr(x)
        for x in pytree.tree_leaves(result)
    ]
    found = {"load_seconds": loaded - begun, "seconds": seconds, "results": results}
    lines = [f"loaded in {loaded - begun:.3f} s, ran in {seconds:.6f} s", *results]
    return found, lines


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error}") from error


_ACTIONS = {"run": _call, "show": _show, "verify": _verify}
