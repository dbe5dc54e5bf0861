"""The commands ``tj trace``, ``tj explain`` and ``tj compare``: run a program, and show what became
of it.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from tj_core.cli.console import print_json, print_python
from tj_core.errors import TjError
from tj_core.host.config import REST
from tj_core.ir.stage import Stage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tj_core.cli.target import Program

__all__ = ["add_compare", "add_explain", "add_target", "add_trace", "run_target"]

_TARGET = (
    "file.py:function or package.module:function; a function without parameters runs a program, "
    "or makes one"
)


def add_trace(commands: Any) -> None:
    """Add the command ``trace`` to ``commands``, the subparsers of ``tj``."""
    parser = commands.add_parser("trace", help="run a program and print the trace it leaves")
    add_target(parser)
    parser.add_argument(
        "--stage",
        type=str.upper,
        choices=[stage.name for stage in Stage],
        help="the trace as it was at this stage, not the last one",
    )
    parser.add_argument("--which", choices=["forward", "backward"], default="forward")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_trace)


def add_explain(commands: Any) -> None:
    """Add the command ``explain`` to ``commands``, the subparsers of ``tj``."""
    parser = commands.add_parser("explain", help="run a program and say who claimed its calls")
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_explain)


def add_compare(commands: Any) -> None:
    """Add the command ``compare`` to ``commands``, the subparsers of ``tj``."""
    said = "run a program, and the same one as it was written, and measure how results differ"
    parser = commands.add_parser("compare", help=said)
    add_target(parser)
    parser.add_argument(
        "--layers", action="store_true", help="measure what each layer returns, too"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_compare)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `run_target` to a command: the target, and ``--inputs``."""
    parser.add_argument("target", metavar="TARGET", help=_TARGET)
    parser.add_argument(
        "--inputs",
        metavar="ARGUMENTS",
        help='the arguments to call the program with: "torch.rand(4, 8), k=3"',
    )


def run_target(args: argparse.Namespace) -> Any:
    """Run the program of the parsed arguments; return it jitted.

    With ``--json``, what the program prints goes to stderr.

    :raises TjError: see `find_program`.
    """
    with _surroundings(args):
        return _program(args).run()


def _program(args: argparse.Namespace) -> Program:
    from tj_core.cli.target import find_program

    return find_program(args.target, args.inputs)


@contextlib.contextmanager
def _surroundings(args: argparse.Namespace) -> Iterator[None]:
    """Run the user's code with the global options; with ``--json``, let it print to stderr."""
    from tj_core.cli.target import as_environment

    found = {
        "TJ_PLUGINS": None if args.plugins is None else ",".join(args.plugins),
        # Beside what the project disables.
        "TJ_DISABLE": None if args.disable is None else ",".join((*args.disable, REST)),
        "TJ_CONFIG": args.config,
    }
    aside = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
    with as_environment(found), aside:
        yield


def _compare(args: argparse.Namespace) -> int:
    from tj_core.looking.comparison import compare

    with _surroundings(args):
        program = _program(args)
        if program.inputs is None:
            raise TjError(
                f"{args.target} has run already", hint="say with --inputs what to compare"
            )
        args_, keywords = program.inputs.args, program.inputs.kwargs
        fast, plain = program.run(), program.original
        found = compare(fast, plain, args_, keywords=keywords, layers=args.layers)
    if args.json:
        print_json({"target": args.target, **found.as_dict()})
    else:
        print(found)
    return 0


def _trace(args: argparse.Namespace) -> int:
    from tj_core.looking.views import last_trace

    stage = None if args.stage is None else Stage[args.stage]
    trace = last_trace(run_target(args), which=args.which, stage=stage)
    if args.json:
        named = {"target": args.target, "which": args.which, "stage": trace.stage.name}
        print_json({**named, "trace": str(trace)})
    else:
        print_python(str(trace))
    return 0


def _explain(args: argparse.Namespace) -> int:
    from tj_core.looking.views import explain

    found = explain(run_target(args))
    if args.json:
        print_json({"target": args.target, **found.as_dict()})
    else:
        print(found)
    return 0
